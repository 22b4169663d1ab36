package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

const pathSeparators = `\/:`

func envKeyEqual(a, b string) bool { return strings.EqualFold(a, b) }

// Main must be the first call of a program that uses [Cmd]: in main, and in TestMain of a
// package whose tests do. On this system it does nothing.
func Main() {}

// findExecutable finds a program as the system's own shell does: by its whole name, then with each of
// the endings of programs. "python3.13" is no name with an ending.
func findExecutable(path string, env []string) (string, error) {
	list := getenv(env, "PATHEXT")
	if list == "" {
		list = ".com;.exe;.bat;.cmd"
	}
	exts := strings.Split(strings.ToLower(list), ";")
	names := []string{path}
	if !slices.Contains(exts, strings.ToLower(filepath.Ext(path))) {
		names = nil
	}
	for _, ext := range exts {
		names = append(names, path+ext)
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err == nil && !info.IsDir() {
			return name, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, windows.ERROR_INVALID_NAME) {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: %s", exec.ErrNotFound, path)
}

// extendedLimit is JOBOBJECT_EXTENDED_LIMIT_INFORMATION in the class of the same number.
const extendedLimit = windows.JobObjectExtendedLimitInformation

// newJob makes a job object whose processes end with the last handle to it, and commit no more memory
// than this; zero means no limit.
func newJob(memory int64) (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if memory > 0 {
		info.BasicLimitInformation.LimitFlags |= windows.JOB_OBJECT_LIMIT_JOB_MEMORY
		info.JobMemoryLimit = uintptr(memory)
	}
	_, err = windows.SetInformationJobObject(job, extendedLimit, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		return 0, errors.Join(err, windows.CloseHandle(job))
	}
	return job, nil
}

// run ends the tree through a job object, which the system closes when this process ends, however
// that is. The command is started asleep and wakes up in the job, so nothing of it is outside.
func (p *process) run(ctx context.Context) outcome {
	o := outcome{state: State{ExitCode: -1}}
	if p.noNetwork || p.ownProcesses {
		o.err = fmt.Errorf("%s: %w", p.isolation(), ErrNotSupported)
		return o
	}
	job, err := newJob(p.memory)
	if err != nil {
		o.err = fmt.Errorf("make a job object: %w", err)
		return o
	}
	defer windows.CloseHandle(job) //nolint:errcheck // It ends the tree; nothing else can fail.
	cmd := &exec.Cmd{
		Path: p.path, Args: p.argv, Env: append([]string{}, p.env...), Dir: p.dir,
		Stdin: p.stdinReader(), Stdout: p.stdout, Stderr: p.stderr,
		SysProcAttr: &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_SUSPENDED},
		WaitDelay:   outputLimit,
	}
	if err := cmd.Start(); err != nil {
		o.err = err
		return o
	}
	pid := uint32(cmd.Process.Pid)
	if err := wakeInJob(job, pid); err != nil {
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
			return
		case <-ctx.Done():
		}
		o.canceled = true
		// Ctrl-Break reaches the group that the command leads. Without a console there is none to
		// send it through.
		if p.grace > 0 && windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, pid) == nil {
			select {
			case <-waited:
				return
			case <-time.After(p.grace):
			}
		}
		_ = windows.TerminateJobObject(job, killedExit)
	}()
	err = cmd.Wait()
	close(waited)
	<-watched
	_ = windows.TerminateJobObject(job, killedExit) // strays
	emptied(job)
	o.state.ExitCode = cmd.ProcessState.ExitCode()
	o.measure(job, cmd.ProcessState)
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		o.err = err
	}
	return o
}

// killedExit is the exit code of processes that are ended with their tree.
const killedExit = 1

// wakeInJob puts a process that was started asleep into a job and lets it run.
func wakeInJob(job windows.Handle, pid uint32) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, pid)
	if err != nil {
		return err
	}
	if err := errors.Join(windows.AssignProcessToJobObject(job, process), windows.CloseHandle(process)); err != nil {
		return err
	}
	threads, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(threads) //nolint:errcheck // it was only read
	entry := windows.ThreadEntry32{Size: uint32(unsafe.Sizeof(windows.ThreadEntry32{}))}
	woken := false
	for err = windows.Thread32First(threads, &entry); err == nil; err = windows.Thread32Next(threads, &entry) {
		if entry.OwnerProcessID != pid {
			continue
		}
		thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, entry.ThreadID)
		if err != nil {
			return err
		}
		_, err = windows.ResumeThread(thread)
		if err := errors.Join(err, windows.CloseHandle(thread)); err != nil {
			return err
		}
		woken = true
	}
	if !woken {
		return fmt.Errorf("wake the command up: %w", err)
	}
	return nil
}

// jobAccounting is JOBOBJECT_BASIC_ACCOUNTING_INFORMATION.
type jobAccounting struct {
	TotalUserTime, TotalKernelTime           int64 // in units of 100 ns
	ThisPeriodUserTime, ThisPeriodKernelTime int64
	PageFaults, Processes                    uint32
	ActiveProcesses, TerminatedProcesses     uint32
}

func (a *jobAccounting) read(job windows.Handle) bool {
	return windows.QueryInformationJobObject(job, windows.JobObjectBasicAccountingInformation, uintptr(unsafe.Pointer(a)), uint32(unsafe.Sizeof(*a)), nil) == nil
}

// emptied waits until the processes of a job that was ended are gone: they hold files open until then.
func emptied(job windows.Handle) {
	var a jobAccounting
	for end := time.Now().Add(reapLimit); a.read(job) && a.ActiveProcesses > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// measure takes what the job used, or the command alone where the system does not count jobs.
func (o *outcome) measure(job windows.Handle, command *os.ProcessState) {
	o.state.CPU = command.UserTime() + command.SystemTime()
	var a jobAccounting
	if a.read(job) {
		o.state.CPU = max(o.state.CPU, time.Duration(a.TotalUserTime+a.TotalKernelTime)*100)
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	if windows.QueryInformationJobObject(job, extendedLimit, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil) == nil {
		o.state.PeakMemoryBytes = int64(info.PeakJobMemoryUsed)
	}
}
