package build

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ulimitArgs asks for the limits that this process has. By default podman asks for more open files and processes than
// a machine without CAP_SYS_RESOURCE, such as a container, may give.
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

// ownedProcesses lists the processes that were started for an owner, without this one.
func ownedProcesses(owner string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && isOwned(pid, owner) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isOwned looks into the environment that a process was started with. That of a process which has ended is empty.
func isOwned(pid int, owner string) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	want := []byte(ownerEnv + "=" + owner)
	for kv := range bytes.SplitSeq(data, []byte{0}) {
		if bytes.Equal(kv, want) {
			return true
		}
	}
	return false
}

// killOwned kills a process if it still is that of the owner.
func killOwned(pid int, owner string) error {
	// The descriptor stays with the process even if its number is given to another one.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd) //nolint:errcheck // It was only used to signal.
	if !isOwned(pid, owner) {
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
