package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

const pathSeparators = `\/:`

func envKeyEqual(a, b string) bool { return strings.EqualFold(a, b) }

// Main must be the first call of a program that uses [Cmd]: in main, and in TestMain of a
// package whose tests do. On this system it does nothing.
func Main() {}

func findExecutable(path string, env []string) (string, error) {
	exts := []string{""}
	if filepath.Ext(path) == "" {
		list := getenv(env, "PATHEXT")
		if list == "" {
			list = ".com;.exe;.bat;.cmd"
		}
		exts = strings.Split(list, ";")
	}
	for _, ext := range exts {
		info, err := os.Stat(path + ext)
		if err == nil && !info.IsDir() {
			return path + ext, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: %s", exec.ErrNotFound, path)
}

// extendedLimit is JOBOBJECT_EXTENDED_LIMIT_INFORMATION in the class of the same number.
const extendedLimit = windows.JobObjectExtendedLimitInformation

func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, extendedLimit, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		return 0, errors.Join(err, windows.CloseHandle(job))
	}
	return job, nil
}

// run ends the tree through a job object, which the system closes when this process ends.
// What the command starts in the instant before it is in the job is not part of it.
func (p *process) run(ctx context.Context) outcome {
	o := outcome{state: State{ExitCode: -1}}
	if p.noNetwork || p.ownProcesses {
		o.err = fmt.Errorf("%s: %w", p.isolation(), ErrNotSupported)
		return o
	}
	job, err := newJob()
	if err != nil {
		o.err = fmt.Errorf("make a job object: %w", err)
		return o
	}
	defer windows.CloseHandle(job) //nolint:errcheck // It ends the tree; nothing else can fail.
	cmd := &exec.Cmd{
		Path: p.path, Args: p.argv, Env: append([]string{}, p.env...), Dir: p.dir,
		Stdin: p.stdinReader(), Stdout: p.stdout, Stderr: p.stderr,
		SysProcAttr: &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP},
		WaitDelay:   outputLimit,
	}
	if err := cmd.Start(); err != nil {
		o.err = err
		return o
	}
	handle, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
	if err == nil {
		err = errors.Join(windows.AssignProcessToJobObject(job, handle), windows.CloseHandle(handle))
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		o.err = fmt.Errorf("put the command into a job object: %w", err)
		return o
	}
	waited := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-waited:
		case <-ctx.Done():
			o.canceled = true
			_ = windows.TerminateJobObject(job, 1)
		}
	}()
	err = cmd.Wait()
	close(waited)
	<-watched
	_ = windows.TerminateJobObject(job, 1) // strays
	o.state.ExitCode = cmd.ProcessState.ExitCode()
	o.state.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	if windows.QueryInformationJobObject(job, extendedLimit, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil) == nil {
		o.state.PeakMemoryBytes = int64(info.PeakJobMemoryUsed)
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		o.err = err
	}
	return o
}
