package fsx

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func exchange(a, b string) error {
	err := retry(func() error { return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) })
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
	return st.Ino, st.Ctim.Nano()
}

func preallocate(f *os.File, size, _ int64) error {
	err := control(f, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err
}

func prefetch(f *os.File, off, n int64) {
	_ = control(f, func(fd int) error { return unix.Fadvise(fd, off, n, unix.FADV_WILLNEED) })
}

func startWriteback(f *os.File, off, n int64) {
	_ = control(f, func(fd int) error { return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
}

// copyRange copies what copy_file_range can. A short count without an error means that
// it cannot do the rest, for a reason that reading and writing will tell or not have.
func copyRange(dst *os.File, dstOff int64, src *os.File, srcOff, n int64) (done int64, err error) {
	const step = 1 << 30 // the kernel stops below 2 GiB by itself; this keeps calls interruptible
	err = control(src, func(in int) error {
		return control(dst, func(out int) error {
			for done < n {
				r, w := srcOff+done, dstOff+done
				c, err := unix.CopyFileRange(in, &r, out, &w, int(min(n-done, step)), 0)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || c == 0 {
					return err
				}
				done += int64(c)
			}
			return nil
		})
	})
	// Not for these two files: other file systems, a pseudo file, an old kernel, a sandbox.
	for _, no := range []error{unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM, unix.EBADF, unix.ETXTBSY} {
		if errors.Is(err, no) {
			return done, nil
		}
	}
	return done, err
}
