package sandbox

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ulimitArgs asks for the limits that this process has. By default podman asks for more open files
// and processes than a machine without CAP_SYS_RESOURCE, such as a container, may give.
func ulimitArgs() []string {
	var args []string
	add := func(name string, resource int, most uint64) {
		var limit unix.Rlimit
		if unix.Getrlimit(resource, &limit) == nil {
			n := min(limit.Max, most)
			args = append(args, "--ulimit", fmt.Sprintf("%s=%d:%d", name, n, n))
		}
	}
	add("nofile", unix.RLIMIT_NOFILE, 1<<20)
	// podman itself goes down to the largest process number, and cannot come back.
	most := uint64(math.MaxInt32)
	if data, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 32); err == nil {
			most = n
		}
	}
	add("nproc", unix.RLIMIT_NPROC, most)
	return args
}

// markedProcesses lists the processes that were started with a variable, KEY=VALUE, without this
// one.
func markedProcesses(mark string) []int {
	for try := 0; ; try++ {
		// What does not become a program in a second waits for something else, a disk perhaps.
		if pids, sure := scanProcesses(mark); sure || len(pids) > 0 || try == 100 {
			return pids
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// scanProcesses is not sure that these are all if one is just becoming another program: for that
// moment it has no environment.
func scanProcesses(mark string) (pids []int, sure bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, true
	}
	sure = true
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		switch marked, known := isMarked(pid, mark); {
		case marked:
			pids = append(pids, pid)
		case !known:
			sure = false
		}
	}
	return pids, sure
}

// isMarked looks into the environment that a process was started with. That of a process which has
// ended is empty, and so, for a moment, is that of one which becomes another program: then it is
// not known.
func isMarked(pid int, mark string) (marked, known bool) {
	for range 10 {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			return false, true
		}
		if len(data) > 0 {
			for kv := range bytes.SplitSeq(data, []byte{0}) {
				marked = marked || string(kv) == mark
			}
			return marked, true
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false, true
		}
		switch environ(string(stat)) {
		case environNone:
			return false, true
		case environLater:
			return false, false
		}
		// It has one by now.
	}
	return false, false
}

// environState is what /proc/PID/stat says of an environment that was empty when it was read.
type environState int

const (
	environNone  environState = iota // it will stay so
	environLater                     // there is no place for it yet, as in the middle of execve
	environSome
)

func environ(stat string) environState {
	const state, flags, start, end = 0, 6, 47, 48 // counted behind the name
	const kernelThread = 0x00200000
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) <= end || f[state] == "Z" || f[state] == "X" {
		return environNone
	}
	bits, err := strconv.ParseUint(f[flags], 10, 64)
	switch {
	case err != nil || bits&kernelThread != 0:
		return environNone
	case f[end] == "0":
		return environLater
	case f[start] == f[end] && (f[state] == "R" || f[state] == "D"):
		return environLater // execve copies it just now, or it is empty
	case f[start] == f[end]:
		return environNone
	}
	return environSome
}

// killMarked kills a process if it still has the mark.
func killMarked(pid int, mark string) error {
	// The descriptor stays with the process even if its number is given to another one.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd) //nolint:errcheck // It was only used to signal.
	if marked, _ := isMarked(pid, mark); !marked {
		return nil
	}
	return ignoreGone(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

func ignoreGone(err error) error {
	if err == unix.ESRCH { //nolint:errorlint // system calls return it bare
		return nil
	}
	return err
}
