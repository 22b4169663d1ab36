package fsx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile makes data the content of path, durably and in one step: a reader, or
// a process started after a crash, finds the old file or the new one. perm applies before
// umask, to a new file and to a replaced one. A symbolic link at path is replaced, not
// followed.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	f, err := create(path, perm)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Abort())
	}
	return f.Commit()
}

// AtomicFile is a file under construction beside the path that it will have. Nothing
// is at that path, or the old file still is, until [AtomicFile.Commit].
type AtomicFile struct {
	path string
	temp string
	file *os.File // nil after Commit or Abort
}

// Create starts a file that will be at path, with permissions 0666 before umask. The
// folder must exist. Every AtomicFile is ended by exactly one successful Commit or by
// Abort; "defer f.Abort()" right after Create is the usual way.
func Create(path string) (*AtomicFile, error) { return create(path, 0o666) }

func create(path string, perm fs.FileMode) (*AtomicFile, error) {
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return nil, &fs.PathError{Op: "create", Path: path, Err: errors.New("is a folder")}
	}
	temp := tempPath(path)
	file, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return &AtomicFile{path: path, temp: temp, file: file}, nil
}

// Path returns the path that the file will have.
func (f *AtomicFile) Path() string { return f.path }

// File returns the open file under its temporary name, for [CopyRange] and
// [Preallocate]. It must not be closed, and not be used after Commit or Abort, when it is nil.
func (f *AtomicFile) File() *os.File { return f.file }

// Write appends at the file's position.
func (f *AtomicFile) Write(p []byte) (int, error) {
	n, err := f.file.Write(p)
	return n, f.wrap(err)
}

// WriteAt writes at an offset. It may be called from several goroutines at once.
func (f *AtomicFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.file.WriteAt(p, off)
	return n, f.wrap(err)
}

// wrap names the file that the user knows; the temporary name says nothing.
func (f *AtomicFile) wrap(err error) error {
	if err == nil {
		return nil
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("write %s: %w", f.path, err)
}

// Commit makes the content durable and moves it to its path, replacing what is there.
// On error the path is unchanged and the temporary file is gone, with one exception, which
// the text says: the file is in place but its folder could not be synced.
// Commit after Commit or Abort returns [fs.ErrClosed].
func (f *AtomicFile) Commit() error {
	if f.file == nil {
		return fmt.Errorf("commit %s: %w", f.path, fs.ErrClosed)
	}
	if err := f.file.Sync(); err != nil {
		return errors.Join(f.wrap(err), f.Abort())
	}
	// On some file systems an error of delayed writing appears at close.
	err := f.file.Close()
	f.file = nil
	if err == nil {
		err = rename(f.temp, f.path)
	}
	if err != nil {
		return errors.Join(f.wrap(err), os.Remove(f.temp))
	}
	if err := SyncDir(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("%s is written, but may not survive a crash: %w", f.path, err)
	}
	return nil
}

// Abort removes the temporary file. It does nothing after Commit or Abort.
func (f *AtomicFile) Abort() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return errors.Join(f.wrap(err), os.Remove(f.temp))
}
