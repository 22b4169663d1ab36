//go:build linux || darwin

package fsx

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	// Some network and user-space file systems have no sync for folders.
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// renameOverEmptyDir is rename(2), which replaces an empty folder in one step; os.Rename
// refuses any folder.
func renameOverEmptyDir(from, to string) error {
	err := retry(func() error { return unix.Rename(from, to) })
	switch {
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR):
		return ErrNotEmpty
	case err != nil:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

func tryLock(f *os.File) error {
	err := control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errNotOwner
	case errors.Is(err, unix.ENOLCK):
		return errors.ErrUnsupported
	}
	return err // which is ErrUnsupported too if it is ENOSYS or EOPNOTSUPP
}

func unlock(f *os.File) error {
	return control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) })
}

func freeSpace(path string) (int64, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &st) }); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// control calls op with the descriptor of f, again while a signal interrupts it.
func control(f *os.File, op func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	err = conn.Control(func(fd uintptr) {
		opErr = retry(func() error { return op(int(fd)) })
	})
	return errors.Join(err, opErr)
}

func retry(op func() error) error {
	for {
		if err := op(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func removeLocked(l *FileLock, path string) error {
	err := os.Remove(path)
	if err == nil {
		err = os.Remove(filepath.Dir(path))
	}
	return errors.Join(err, l.Unlock())
}

// openInput does not wait for the other end of a pipe.
func openInput(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

func rename(from, to string) error { return os.Rename(from, to) }
