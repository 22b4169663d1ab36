package fsx

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func exchange(a, b string) error {
	err := retry(func() error { return unix.RenamexNp(a, b, unix.RENAME_SWAP) })
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP):
		return errors.ErrUnsupported
	case err != nil:
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}

func changeOf(info fs.FileInfo) (inode uint64, changed int64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return st.Ino, st.Ctimespec.Nano()
}

// preallocate reserves what is missing behind the present end, then moves the end.
func preallocate(f *os.File, size, old int64) error {
	if size <= old {
		return nil
	}
	store := unix.Fstore_t{Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: size - old}
	err := control(f, func(fd int) error { return unix.FcntlFstore(uintptr(fd), unix.F_PREALLOCATE, &store) })
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) {
		return errors.ErrUnsupported
	}
	if err != nil {
		return err
	}
	return f.Truncate(size)
}

// prefetch: macOS takes such advice too, but in a form that Go's packages do not offer; it reads
// ahead by itself.
func prefetch(*os.File, int64, int64) {}

func startWriteback(*os.File, int64, int64) {}

// copyRange: macOS clones whole files only.
func copyRange(*os.File, int64, *os.File, int64, int64) (int64, error) { return 0, nil }
