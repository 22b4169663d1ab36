package sandbox

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// controlGroup is where the kernel counts what a container uses, in version 1 or 2 of its
// interface.
type controlGroup struct {
	root        fs.FS
	memory, cpu string // folders; version 2 has one
	v2          bool
}

// findControlGroup looks for the group of a container, whose ID is in the name of its folder with
// every runtime and driver. It returns nil if there is none: not yet, or because the runtime is on
// another machine.
func findControlGroup(root fs.FS, id string) *controlGroup {
	const top = "sys/fs/cgroup"
	if id == "" {
		return nil
	}
	g := &controlGroup{root: root}
	if _, err := fs.Stat(root, top+"/cgroup.controllers"); err == nil {
		g.v2 = true
		g.memory = findFolder(root, top, id)
	} else if g.memory = findFolder(root, top+"/memory", id); g.memory != "" {
		rel := strings.TrimPrefix(g.memory, top+"/memory/")
		for _, controllers := range []string{"cpu,cpuacct", "cpuacct"} {
			if folder := path.Join(top, controllers, rel); exists(root, folder) {
				g.cpu = folder
				break
			}
		}
	}
	if g.memory == "" {
		return nil
	}
	return g
}

// findFolder returns the first folder with the ID in its name, but for that of podman's monitor.
func findFolder(root fs.FS, top, id string) (found string) {
	// Folders come and go while this looks at them.
	_ = fs.WalkDir(root, top, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir
		case !entry.IsDir():
			return nil
		case strings.Contains(path.Base(name), id) && !strings.Contains(path.Base(name), "conmon"):
			found = name
			return fs.SkipAll
		}
		return nil
	})
	return found
}

func exists(root fs.FS, name string) bool {
	_, err := fs.Stat(root, name)
	return err == nil
}

// sibling returns the group that another container of the same runtime has.
func (g *controlGroup) sibling(id, other string) *controlGroup {
	return &controlGroup{root: g.root, memory: strings.ReplaceAll(g.memory, id, other), cpu: strings.ReplaceAll(g.cpu, id, other), v2: g.v2}
}

func (g *controlGroup) exists() bool { return exists(g.root, g.memory) }

// sample reads the counters and keeps the largest values. A group that is gone changes nothing.
func (g *controlGroup) sample(u *usage) {
	current, stat, events := "memory.usage_in_bytes", [2]string{"total_inactive_file", "total_active_file"}, "memory.oom_control"
	if g.v2 {
		current, stat, events = "memory.current", [2]string{"inactive_file", "active_file"}, "memory.events"
	}
	used, ok := g.number(g.memory, current)
	if !ok {
		return
	}
	u.samples++
	// What was read from files counts, but the kernel gives it back before it kills.
	if data, err := fs.ReadFile(g.root, path.Join(g.memory, "memory.stat")); err == nil {
		for _, key := range stat {
			if text, ok := lastField(data, key); ok {
				if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
					used -= n
				}
			}
		}
	}
	u.peakBytes = max(u.peakBytes, used)
	if data, err := fs.ReadFile(g.root, path.Join(g.memory, events)); err == nil {
		if text, ok := lastField(data, "oom_kill"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				u.oomKills = max(u.oomKills, n)
			}
		}
	}
	if g.v2 {
		if data, err := fs.ReadFile(g.root, path.Join(g.memory, "cpu.stat")); err == nil {
			if text, ok := lastField(data, "usage_usec"); ok {
				if n, err := strconv.ParseInt(text, 10, 64); err == nil {
					u.cpu = max(u.cpu, time.Duration(n)*time.Microsecond)
				}
			}
		}
	} else if n, ok := g.number(g.cpu, "cpuacct.usage"); ok {
		u.cpu = max(u.cpu, time.Duration(n))
	}
}

func (g *controlGroup) number(folder, file string) (int64, bool) {
	if folder == "" {
		return 0, false
	}
	data, err := fs.ReadFile(g.root, path.Join(folder, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
