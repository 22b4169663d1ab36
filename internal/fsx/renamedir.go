package fsx

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrNotEmpty is the error of [RenameDir] for a target that exists and is not an
// empty folder. It is an [fs.ErrExist] as well.
var ErrNotEmpty = fmt.Errorf("%w and is not an empty folder", fs.ErrExist)

// RenameDirOptions is how [RenameDir] publishes. The zero value refuses to replace.
type RenameDirOptions struct {
	// Replace allows the target to be a folder with content, which is then removed.
	Replace bool
}

// RenameDir publishes the finished folder from, usually made by [MkdirTemp] beside it, as
// the folder to. First every file and folder in from is made durable, then one rename
// shows all of it.
//
// With Replace, the two folders change places in one step on Linux and macOS where the
// file system can, and the old one is removed afterwards under the temporary name. Elsewhere
// there is a moment without a folder at to: the old one is moved aside first, and
// moved back if the new one cannot be placed.
//
// On error the target is unchanged unless the text says that it is published.
func RenameDir(from, to string, opts RenameDirOptions) error {
	if err := renameDir(filepath.Clean(from), filepath.Clean(to), opts); err != nil {
		return fmt.Errorf("publish folder %s: %w", to, err)
	}
	return nil
}

func renameDir(from, to string, opts RenameDirOptions) error {
	if info, err := os.Lstat(from); err != nil {
		return err
	} else if !info.IsDir() {
		return &fs.PathError{Op: "rename", Path: from, Err: errors.New("not a folder")}
	}
	old, err := os.Lstat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !old.IsDir():
		return ErrNotEmpty // even with Replace: a file there was put by mistake
	}
	if err := syncTree(from); err != nil {
		return err
	}
	err = renameOverEmptyDir(from, to)
	switch {
	case err == nil:
		return syncParents(from, to)
	case !errors.Is(err, ErrNotEmpty) || !opts.Replace:
		return err
	}

	replaced := from // where the old folder is afterwards
	err = exchange(from, to)
	if errors.Is(err, errors.ErrUnsupported) {
		replaced, err = moveAside(from, to)
	}
	if err != nil {
		return err
	}
	if err := syncParents(replaced, to); err != nil {
		return err
	}
	if err := os.RemoveAll(replaced); err != nil {
		return fmt.Errorf("published, but the old folder is left behind: %w", err)
	}
	return nil
}

// moveAside puts from in the place of to in two steps, and returns where the old folder is.
func moveAside(from, to string) (replaced string, err error) {
	replaced = tempPath(to)
	if err := rename(to, replaced); err != nil {
		return "", err
	}
	if err := rename(from, to); err != nil {
		return "", errors.Join(err, rename(replaced, to))
	}
	return replaced, nil
}

func syncParents(from, to string) error {
	parents := []string{filepath.Dir(to)}
	if p := filepath.Dir(from); p != parents[0] {
		parents = append(parents, p)
	}
	for _, dir := range parents {
		if err := SyncDir(dir); err != nil {
			return fmt.Errorf("published, but may not survive a crash: %w", err)
		}
	}
	return nil
}

// syncTree makes every file and folder below dir durable. Files that are durable
// already cost one system call.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return SyncDir(path)
		case entry.Type().IsRegular():
			return syncFile(path)
		}
		return nil
	})
}

// MakeDirOnce makes the folder at path, unless it is there, and fills it. Of several callers, also
// in other processes, one fills it while the others wait; it appears complete or not at all. The
// lock is the file at path with ".lock" behind it.
func MakeDirOnce(ctx context.Context, path string, fill func(temp string) error) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	lock, err := Lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // nothing was written under it
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	temp, err := MkdirTemp(path)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := fill(temp); err != nil {
		return err
	}
	return RenameDir(temp, path, RenameDirOptions{})
}
