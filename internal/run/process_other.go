//go:build unix && !linux

package run

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main must be the first call of a program that uses [Cmd]: in main, and in TestMain of a
// package whose tests do. On this system it does nothing.
func Main() {}

func (p *process) run(ctx context.Context) outcome {
	o := outcome{state: State{ExitCode: -1}}
	if p.noNetwork || p.ownProcesses {
		o.err = fmt.Errorf("%s: %w", p.isolation(), ErrNotSupported)
		return o
	}
	cmd := &exec.Cmd{
		Path: p.path, Args: p.argv, Env: append([]string{}, p.env...), Dir: p.dir,
		Stdin: p.stdinReader(), Stdout: p.stdout, Stderr: p.stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		WaitDelay:   outputLimit,
	}
	if err := cmd.Start(); err != nil {
		o.err = err
		return o
	}
	group := -cmd.Process.Pid
	waited := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-waited:
			return
		case <-ctx.Done():
		}
		o.canceled = true
		_ = unix.Kill(group, unix.SIGTERM)
		select {
		case <-waited:
		case <-time.After(p.grace):
			_ = unix.Kill(group, unix.SIGKILL)
		}
	}()
	err := cmd.Wait()
	close(waited)
	<-watched
	_ = unix.Kill(group, unix.SIGKILL) // strays
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		o.state.Signal = unix.SignalName(status.Signal())
	} else {
		o.state.ExitCode = cmd.ProcessState.ExitCode()
	}
	o.state.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		o.state.PeakMemoryBytes = int64(usage.Maxrss)
		if runtime.GOOS != "darwin" {
			o.state.PeakMemoryBytes *= 1024
		}
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		o.err = err
	}
	return o
}
