package launcher

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"
)

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER of prctl(2).
const prSetChildSubreaper = 36

// state is how a compiler ended.
type state struct {
	code      int
	signal    syscall.Signal
	cpu       time.Duration
	peakBytes int64
}

func (s state) exitCode() int {
	if s.signal != 0 {
		return 128 + int(s.signal)
	}
	return s.code
}

func (s state) killed() bool { return s.signal == syscall.SIGKILL }

// replace becomes the compiler.
func (l *launcher) replace(args []string) int {
	err := syscall.Exec(l.tool.Path, append([]string{l.tool.Path}, args...), l.env)
	say("run " + l.tool.Path + ": " + err.Error())
	return 126
}

// run runs a program to its end, and everything that it started: when it is killed, so are they, and nobody is left
// to write into the object. It stays in the group of its caller, whose signals are for all.
func run(argv, env []string) (state, error) { return runFiles(argv, env, []uintptr{0, 1, 2}) }

// capture is run with what the program writes in a file, and what it says nowhere.
func capture(argv, env []string, output string) (state, error) {
	file, err := os.Create(output)
	if err != nil {
		return state{}, err
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return state{}, err
	}
	defer null.Close()
	return runFiles(argv, env, []uintptr{null.Fd(), file.Fd(), null.Fd()})
}

func runFiles(argv, env []string, files []uintptr) (state, error) {
	// What loses its parent becomes a child of this process, and can be waited for.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Env: env, Files: files, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return state{}, &os.PathError{Op: "run", Path: argv[0], Err: err}
	}
	var status syscall.WaitStatus
	var usage syscall.Rusage
	for {
		if _, err = syscall.Wait4(pid, &status, 0, &usage); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return state{}, &os.PathError{Op: "wait for", Path: argv[0], Err: err}
	}
	s := state{cpu: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), peakBytes: usage.Maxrss * 1024}
	if status.Signaled() {
		s.signal = status.Signal()
		killOrphans()
	} else {
		s.code = status.ExitStatus()
	}
	return s, nil
}

// killOrphans ends what a killed program left behind and waits for it.
func killOrphans() {
	for {
		for _, pid := range descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		// A killed parent hands its children on: again until there are none.
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
		parts := split(string(stat), ") ")
		words := split(parts[len(parts)-1], " ")
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
