package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// replace becomes the compiler.
func (l *launcher) replace(args []string) int {
	err := syscall.Exec(l.tool.Path, append([]string{l.tool.Path}, args...), l.env)
	say(fmt.Errorf("run %s: %w", l.tool.Path, err))
	return 126
}

// dieTogether has a program killed when the launcher is. The kernel sends the signal when the
// thread that started the program ends; [Main] has locked its thread.
func dieTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// What loses its parent becomes a child of this process, and can be waited for.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

func ended(s *os.ProcessState) (code int, signaled bool) {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), true
	}
	return s.ExitCode(), false
}

func killed(s *os.ProcessState) bool {
	code, signaled := ended(s)
	return signaled && code == 128+int(syscall.SIGKILL)
}

// peakBytes is the memory of the largest single process.
func peakBytes(s *os.ProcessState) int64 {
	if usage, ok := s.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss * 1024
	}
	return 0
}

// killOrphans kills what a killed program left behind, and waits for it.
func killOrphans() {
	for {
		for _, pid := range descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		// The children of a killed process become children of this one: again until there are none.
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil {
				return // no children
			}
			if pid == 0 {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// descendants lists the processes below one.
func descendants(root int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state ppid …; a name may have anything in it.
		parts := strings.Split(string(stat), ") ")
		words := strings.Fields(parts[len(parts)-1])
		if len(words) < 2 || words[0] == "Z" {
			continue
		}
		if parent, err := strconv.Atoi(words[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	var out []int
	for next := []int{root}; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		out = append(out, children[pid]...)
	}
	return out
}
