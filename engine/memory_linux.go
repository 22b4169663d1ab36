package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// MachineMemory returns the memory of this machine or of the control group (version 1 or 2)
// that this process is in, whichever has less.
func MachineMemory() (Memory, error) { return machineMemory(os.DirFS("/")) }

func machineMemory(root fs.FS) (Memory, error) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	m := Memory{TotalBytes: meminfo(text, "MemTotal"), AvailableBytes: meminfo(text, "MemAvailable"), Source: "machine"}
	if m.TotalBytes <= 0 {
		return Memory{}, errors.New("proc/meminfo does not say MemTotal")
	}
	if m.AvailableBytes <= 0 { // kernels before 3.14
		m.AvailableBytes = meminfo(text, "MemFree") + meminfo(text, "Cached") + meminfo(text, "Buffers")
	}
	for _, dir := range groupDirs(root) {
		// Every group above has a say too.
		for ; ; dir = path.Dir(dir) {
			if limit, free, ok := groupMemory(root, dir); ok {
				if limit < m.TotalBytes {
					m.TotalBytes, m.Source = limit, "cgroup"
				}
				if free < m.AvailableBytes {
					m.AvailableBytes, m.Source = free, "cgroup"
				}
			}
			if dir == "." || !strings.Contains(dir, "/") {
				break
			}
		}
	}
	return m, nil
}

func meminfo(text []byte, key string) int64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(key+":")); ok {
			var kb int64
			_, _ = fmt.Sscan(string(rest), &kb)
			return kb * 1024
		}
	}
	return 0
}

// groupDirs returns the folders of this process's groups that can limit memory, without a leading slash.
func groupDirs(root fs.FS) []string {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(string(groups)) {
		// 0::/path for version 2, 4:memory:/path for version 1.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		v2 := parts[0] == "0" && parts[1] == ""
		if !v2 && !strings.Contains(","+parts[1]+",", ",memory,") {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			// 36 35 98:0 /group /mount/point options - type source superoptions
			before, after, ok := strings.Cut(mount, " - ")
			fields, kind := strings.Fields(before), strings.Fields(after)
			if !ok || len(fields) < 5 || len(kind) < 3 {
				continue
			}
			if v2 && kind[0] != "cgroup2" || !v2 && (kind[0] != "cgroup" || !strings.Contains(","+kind[2]+",", ",memory,")) {
				continue
			}
			// In a container the mount's root may be the group itself.
			rel, below := strings.CutPrefix(parts[2], strings.TrimSuffix(fields[3], "/"))
			if !below {
				rel = "/"
			}
			dirs = append(dirs, strings.TrimPrefix(path.Join(fields[4], rel), "/"))
		}
	}
	return dirs
}

// groupMemory returns the limit of a group and what is free below it. Pages that only cache files are free.
func groupMemory(root fs.FS, dir string) (limit, free int64, ok bool) {
	for _, v := range []struct{ limit, used, cache string }{
		{"memory.max", "memory.current", "inactive_file"},
		{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	} {
		limit, ok = readNumber(root, path.Join(dir, v.limit))
		if !ok || limit <= 0 {
			continue // "max", or not this version
		}
		used, _ := readNumber(root, path.Join(dir, v.used))
		stat, _ := fs.ReadFile(root, path.Join(dir, "memory.stat"))
		for line := range strings.Lines(string(stat)) {
			if rest, found := strings.CutPrefix(line, v.cache+" "); found {
				n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
				used -= n
			}
		}
		return limit, max(0, limit-max(0, used)), true
	}
	return 0, 0, false
}

func readNumber(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
