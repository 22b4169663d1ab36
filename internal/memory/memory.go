// Package memory says how much memory this machine has, or the control group that this process is
// in.
package memory

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Info is what a machine, or the control group that this process is in, has.
type Info struct {
	// TotalBytes is the size of the machine or the limit of the group, whichever is less.
	TotalBytes int64
	// AvailableBytes is what can be used now without swapping or killing a process.
	AvailableBytes int64
	// Source says what was less: "machine" or "cgroup".
	Source string
}

// reserve is the least that is kept free for everything else.
const reserve = 2 << 30

// BudgetBytes is what jobs may use: all that is available, but for a reserve of 2 GiB or a tenth of
// the total, whichever is more. On a machine so small that this would leave less than half of what
// is available, it is that half.
func (m Info) BudgetBytes() int64 {
	return max(m.AvailableBytes-max(reserve, m.TotalBytes/10), m.AvailableBytes/2)
}

// files reads a file of a Linux system by its absolute path.
type files func(name string) ([]byte, error)

// ReadLinux returns the memory of the Linux system whose files readFile reads, or of the control
// group (version 1 or 2) that the process is in, whichever has less.
func ReadLinux(readFile func(name string) ([]byte, error)) (Info, error) {
	root := files(readFile)
	text, err := root("/proc/meminfo")
	if err != nil {
		return Info{}, err
	}
	m := Info{TotalBytes: meminfo(text, "MemTotal"), AvailableBytes: meminfo(text, "MemAvailable"), Source: "machine"}
	if m.TotalBytes <= 0 {
		return Info{}, errors.New("/proc/meminfo has no MemTotal")
	}
	if m.AvailableBytes <= 0 { // kernels before 3.14
		m.AvailableBytes = meminfo(text, "MemFree") + meminfo(text, "Cached") + meminfo(text, "Buffers")
	}
	for _, dir := range root.groupDirs() {
		// Every group above limits too.
		for ; dir != "/"; dir = path.Dir(dir) {
			limit, free, ok := root.groupMemory(dir)
			if ok && limit < m.TotalBytes {
				m.TotalBytes, m.Source = limit, "cgroup"
			}
			if ok && free < m.AvailableBytes {
				m.AvailableBytes, m.Source = free, "cgroup"
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

// groupDirs returns the folders of this process's groups that can limit memory.
func (root files) groupDirs() []string {
	groups, err := root("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := root("/proc/self/mountinfo")
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
			dirs = append(dirs, path.Join("/", fields[4], rel))
		}
	}
	return dirs
}

// groupMemory returns the limit of a group and what is free below it. Pages that only cache files
// are free.
func (root files) groupMemory(dir string) (limit, free int64, ok bool) {
	for _, v := range []struct{ limit, used, cache string }{
		{"memory.max", "memory.current", "inactive_file"},
		{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	} {
		limit, ok = root.number(path.Join(dir, v.limit))
		if !ok || limit <= 0 {
			continue // "max", or not this version
		}
		used, _ := root.number(path.Join(dir, v.used))
		stat, _ := root(path.Join(dir, "memory.stat"))
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

func (root files) number(name string) (int64, bool) {
	text, err := root(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
