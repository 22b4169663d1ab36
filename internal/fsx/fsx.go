// Package fsx writes files that are either old or new after a crash, never a mix,
// and knows the file operations that kiln needs and package os lacks: locks that name their
// owner, reserved space, copies inside the kernel, and publishing a whole folder.
//
// Whatever must survive a crash goes through this package. It knows nothing of
// what the files mean, and it does not clean up behind a process that was killed: a name
// for which [IsTemp] is true is such a leftover and may be removed by a caller that knows that no
// writer is at work (usually the holder of a [FileLock]).
package fsx

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const tempPrefix = ".kiln-tmp-"

// IsTemp reports whether name, the last element of a path, is one that this package
// gives to files and folders under construction. Such names start with a dot, so
// patterns like *.safetensors do not match them.
func IsTemp(name string) bool { return strings.HasPrefix(name, tempPrefix) }

// tempPath returns a new name beside path, so on the same file system.
func tempPath(path string) string {
	return filepath.Join(filepath.Dir(path), tempPrefix+strings.ToLower(rand.Text()[:16]))
}

// MkdirTemp creates a folder beside path, to be filled and then given to [RenameDir].
func MkdirTemp(path string) (string, error) {
	dir := tempPath(path)
	if err := os.Mkdir(dir, 0o777); err != nil {
		return "", err
	}
	return dir, nil
}

// SyncDir makes the names in a folder durable: files created, renamed or removed there.
// It does nothing where the system has no such operation.
func SyncDir(dir string) error {
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}

// ChangeOf returns what tells a file from another, or from itself after a change, although name,
// size and modification time are the same: its number, and when the system last changed it, in
// nanoseconds. Both are zero on Windows.
func ChangeOf(info fs.FileInfo) (inode uint64, changed int64) { return changeOf(info) }

// FreeSpace returns how many bytes the user of this process may still write to the file
// system of path. path need not exist: the nearest folder above it that does is asked.
func FreeSpace(path string) (int64, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return 0, err
	}
	for {
		n, err := freeSpace(path)
		parent := filepath.Dir(path)
		if err == nil || parent == path {
			return n, err
		}
		path = parent
	}
}

// Preallocate makes f at least size bytes long and reserves the space for them where the
// file system can, so that a full disk is reported now. Elsewhere the
// file becomes sparse. Bytes that were there stay; new ones read as zero. After an
// error the length is not known.
func Preallocate(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size > 0 {
		err = preallocate(f, size, info.Size())
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			if size > info.Size() {
				return f.Truncate(size)
			}
		case err != nil:
			return fmt.Errorf("reserve %d bytes for %s: %w", size, f.Name(), err)
		}
	}
	return nil
}

// Prefetch asks the system to read n bytes of f at off into memory, without waiting for
// them. It is a hint: where that is not possible, nothing happens.
func Prefetch(f *os.File, off, n int64) {
	if n > 0 {
		prefetch(f, off, n)
	}
}

// StartWriteback asks the system to begin writing n bytes of f at off to the disk, without
// waiting for it, so that a later Sync finds little to do. It is a hint, and no
// replacement for Sync, which also reports the errors of this writing.
func StartWriteback(f *os.File, off, n int64) {
	if n > 0 {
		startWriteback(f, off, n)
	}
}

// SHA256 returns the SHA-256 of a file, in hexadecimal, and its size. It opens by the rules of
// [Open].
func SHA256(path string) (sum string, size int64, err error) {
	f, err := Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// CopyHash copies src to dst until EOF through buf, which must not be empty, and returns the
// number and the SHA-256 of the bytes that dst accepted. It does not use the shortcuts
// of [io.Copy], since every byte has to be seen.
func CopyHash(dst io.Writer, src io.Reader, buf []byte) (n int64, sum [sha256.Size]byte, err error) {
	if len(buf) == 0 {
		panic("fsx: CopyHash with an empty buffer")
	}
	h := sha256.New()
	for err == nil {
		var r, w int
		r, err = src.Read(buf)
		if r > 0 {
			var werr error
			w, werr = dst.Write(buf[:r])
			h.Write(buf[:w])
			n += int64(w)
			if werr == nil && w < r {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				err = werr
			}
		}
	}
	if err == io.EOF { //nolint:errorlint // Readers return io.EOF itself; a wrapped one is a failure.
		err = nil
	}
	h.Sum(sum[:0])
	return n, sum, err
}

// CopyRange copies n bytes from src at srcOff to dst at dstOff and returns how many were
// copied: fewer only with an error, which is [io.ErrUnexpectedEOF] when src ends too
// early. The kernel does the work where it can (copy_file_range), else a buffer. File
// positions are neither used nor moved, so many may run at once on the same files.
// Ranges of one file must not overlap.
func CopyRange(dst *os.File, dstOff int64, src *os.File, srcOff, n int64) (int64, error) {
	if dstOff < 0 || srcOff < 0 || n < 0 {
		return 0, fmt.Errorf("copy %d bytes from %s at %d to %s at %d: %w", n, src.Name(), srcOff, dst.Name(), dstOff, fs.ErrInvalid)
	}
	done, err := copyRange(dst, dstOff, src, srcOff, n)
	if err == nil && done < n {
		// Either the kernel cannot do it for these files or src has ended: reading tells.
		var more int64
		more, err = copyBuffered(dst, dstOff+done, src, srcOff+done, n-done)
		done += more
	}
	if err != nil {
		err = fmt.Errorf("copy %d bytes from %s at %d to %s: %w", n, src.Name(), srcOff, dst.Name(), err)
	}
	return done, err
}

func copyBuffered(dst io.WriterAt, dstOff int64, src io.ReaderAt, srcOff, n int64) (done int64, err error) {
	buf := make([]byte, min(n, 1<<20))
	for done < n {
		r, rerr := src.ReadAt(buf[:min(int64(len(buf)), n-done)], srcOff+done)
		w, werr := dst.WriteAt(buf[:r], dstOff+done)
		done += int64(w)
		switch {
		case werr != nil:
			return done, werr
		case rerr == io.EOF && done < n:
			return done, io.ErrUnexpectedEOF
		case rerr != nil && done < n:
			return done, rerr
		}
	}
	return done, nil
}
