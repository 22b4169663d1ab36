package fsx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"
)

// syncDir: Windows has no such operation; NTFS journals names.
func syncDir(dir string) error {
	_, err := os.Stat(dir)
	return err
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil // a read-only file can't be flushed; its writer has done that
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func renameOverEmptyDir(from, to string) error {
	err := os.Remove(to) // removes an empty folder only
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if errors.Is(err, windows.ERROR_DIR_NOT_EMPTY) {
			return ErrNotEmpty
		}
		return err
	}
	return rename(from, to)
}

// renameTime is how long a rename waits for programs that have the target open: scanners and
// indexers do for moments, an editor or an interpreter for as long as it runs.
var renameTime = 2 * time.Second

// rename replaces a file as other systems do: also one that is read-only, or that another program
// has open for a moment.
func rename(from, to string) error {
	for wait, end := time.Millisecond, time.Now().Add(renameTime); ; wait = min(2*wait, 20*time.Millisecond) {
		err := os.Rename(from, to)
		if err == nil || !errors.Is(err, windows.ERROR_ACCESS_DENIED) && !errors.Is(err, windows.ERROR_SHARING_VIOLATION) && !errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return err
		}
		info, bad := os.Lstat(to)
		switch {
		case bad == nil && info.Mode().IsRegular() && info.Mode()&0o200 == 0:
			if err := os.Chmod(to, 0o666); err != nil {
				return err
			}
		case time.Now().After(end) && bad == nil:
			return fmt.Errorf("%w; another program has it open, or it may not be changed: close that program and try again", err)
		case time.Now().After(end):
			return err
		}
		time.Sleep(wait)
	}
}

func exchange(string, string) error { return errors.ErrUnsupported }

func changeOf(fs.FileInfo) (inode uint64, changed int64) { return 0, 0 }

func preallocate(*os.File, int64, int64) error { return errors.ErrUnsupported }

func prefetch(*os.File, int64, int64) {}

func startWriteback(*os.File, int64, int64) {}

func copyRange(*os.File, int64, *os.File, int64, int64) (int64, error) { return 0, nil }

// lockRange is one byte far behind the owner's name: locks are mandatory on Windows, and
// others must be able to read the name.
func lockRange() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 1 << 30} }

func removeLocked(l *FileLock, path string) error {
	err := l.Unlock()
	for _, name := range []string{path, filepath.Dir(path)} {
		if err == nil {
			err = os.Remove(name)
		}
	}
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_DIR_NOT_EMPTY) {
		return nil
	}
	return err
}

func tryLock(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, lockRange())
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return errNotOwner
	}
	return err
}

func unlock(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, lockRange())
}

func freeSpace(path string) (int64, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	var available uint64
	if err := windows.GetDiskFreeSpaceEx(name, &available, nil, nil); err != nil {
		return 0, &fs.PathError{Op: "GetDiskFreeSpaceEx", Path: path, Err: err}
	}
	return int64(min(available, 1<<63-1)), nil
}

// openInput waits for programs that have the file to themselves, as [rename] does: one that gives a
// file its name has it so for a moment.
func openInput(path string) (*os.File, error) {
	for wait, end := time.Millisecond, time.Now().Add(renameTime); ; wait = min(2*wait, 20*time.Millisecond) {
		f, err := os.Open(path)
		if err == nil || !errors.Is(err, windows.ERROR_SHARING_VIOLATION) || time.Now().After(end) {
			return f, err
		}
		time.Sleep(wait)
	}
}
