package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Words that make this program one that runs another which sees the folder of a row at a place that
// is the same for all rows of a user: nvcc writes whole paths into line tables, and cannot be told
// others. The first makes namespaces, the second mounts in them.
const (
	atWord     = "at"
	placedWord = "placed"
)

// At is the command line of a program that sees the folder work elsewhere, with the row's paths in
// argv as it sees them.
func At(kiln, work string, argv []string) []string {
	return append([]string{kiln, "launcher", atWord, work}, argv...)
}

// PlaceOf is where the programs of [At] see the folder; "" if this machine lets nothing be shown
// elsewhere.
func PlaceOf(kiln, work string) string {
	place := fmt.Sprintf("/tmp/kiln-work-%d", os.Getuid())
	if err := os.Mkdir(place, 0o755); err != nil && !os.IsExist(err) {
		return ""
	}
	if info, err := os.Lstat(place); err != nil || !info.IsDir() {
		return ""
	}
	argv := At(kiln, work, []string{"/bin/sh", "-c", "[ . -ef " + place + " ]"})
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // It ends by itself.
	cmd.Dir = work
	if cmd.Run() != nil {
		return ""
	}
	return place
}

// at runs the words behind work in namespaces of their own and ends as they do.
func at(work string, argv []string) int {
	runtime.LockOSThread()
	uid, gid := os.Getuid(), os.Getgid()
	cmd := exec.Command("/proc/self/exe", append([]string{"launcher", placedWord, work}, argv...)...) //nolint:noctx // A compiler ends by itself.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		say(err)
		return 126
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		_ = syscall.Kill(os.Getpid(), status.Signal()) // the launcher has to know
	}
	return exitCode(cmd.ProcessState)
}

// placedAt mounts and becomes the program.
func placedAt(work string, argv []string) int {
	runtime.LockOSThread()
	place := fmt.Sprintf("/tmp/kiln-work-%d", os.Getuid())
	cwd, err := os.Getwd()
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount(work, place, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err == nil {
		err = os.Chdir(strings.Replace(cwd, work, place, 1))
	}
	if err == nil {
		err = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
	if err == nil {
		env := append(placed(os.Environ(), work, place), "PWD="+strings.Replace(cwd, work, place, 1)) //nolint:forbidigo // A launcher is a program of its own.
		err = syscall.Exec(argv[0], argv, env)
	}
	say(fmt.Errorf("show %s at %s: %w", work, place, err))
	return 126
}
