package run

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// descendants returns the processes below this one, parents before children. A process that is not
// yet or no more below it is missed; callers look again.
func descendants() []int {
	self := os.Getpid()
	if list, ok := fromChildrenFiles(self); ok {
		return list
	}
	return fromParents(self)
}

// fromChildrenFiles walks /proc/PID/task/TID/children, which most kernels have.
func fromChildrenFiles(self int) ([]int, bool) {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d/children", self, self)); err != nil {
		return nil, false
	}
	var list []int
	next := []int{self}
	for len(next) > 0 {
		pid := next[0]
		next = next[1:]
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // ended
			}
			for field := range bytes.FieldsSeq(text) {
				if child, err := strconv.Atoi(string(field)); err == nil {
					list = append(list, child)
					next = append(next, child)
				}
			}
		}
	}
	return list, true
}

// fromParents reads the parent of every process of the system.
func fromParents(self int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, ok := readStat(pid); ok {
			children[stat.parent] = append(children[stat.parent], pid)
		}
	}
	list := children[self]
	for i := 0; i < len(list); i++ {
		list = append(list, children[list[i]]...)
	}
	return list
}

type procStat struct {
	parent, session int
}

func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	// The name, in parentheses, may contain anything.
	i := bytes.LastIndexByte(text, ')')
	if i < 0 {
		return procStat{}, false
	}
	fields := bytes.Fields(text[i+1:]) // state, parent, group, session, …
	if len(fields) < 4 {
		return procStat{}, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	session, err2 := strconv.Atoi(string(fields[3]))
	return procStat{parent, session}, err1 == nil && err2 == nil
}

func signalAll(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, sig) // it may have ended
	}
}

// killSession kills what is left of a session whose leader is gone.
func killSession(leader int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, ok := readStat(pid); ok && stat.session == leader {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// treeMemory returns the larger of peak and what the processes use now. The resident sizes are
// quick to read but count shared pages several times, so only when they say that there may be a new
// peak are the pages counted in proportion, which is slow.
func treeMemory(pids []int, peak int64) int64 {
	page := int64(os.Getpagesize())
	var resident int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			continue
		}
		if fields := bytes.Fields(text); len(fields) > 1 {
			n, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			resident += n * page
		}
	}
	if resident <= peak+peak/100 {
		return peak
	}
	var proportional int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil || len(text) == 0 {
			continue
		}
		if _, after, ok := bytes.Cut(text, []byte("\nPss:")); ok {
			if fields := bytes.Fields(after); len(fields) > 0 {
				kb, _ := strconv.ParseInt(string(fields[0]), 10, 64)
				proportional += kb * 1024
			}
		}
	}
	if proportional == 0 {
		return resident // an old kernel, or not allowed
	}
	return max(peak, proportional)
}
