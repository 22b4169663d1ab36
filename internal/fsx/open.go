package fsx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ErrNotRegular is the error for an input that is no regular file.
var ErrNotRegular = errors.New("not a regular file")

// CheckRegular returns an error that wraps [ErrNotRegular] and says what it is instead.
func CheckRegular(info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return notRegular("is a folder, not a file")
	case mode&fs.ModeNamedPipe != 0:
		return notRegular("is a named pipe, not a file")
	case mode&fs.ModeDevice != 0:
		return notRegular("is a device, not a file")
	case mode&fs.ModeSocket != 0:
		return notRegular("is a socket, not a file")
	default:
		return notRegular(fmt.Sprintf("is not a regular file (%v)", mode.Type()))
	}
}

type notRegular string

func (e notRegular) Error() string { return string(e) }

func (e notRegular) Is(target error) bool { return target == ErrNotRegular }

// Open opens an input, following links. Anything but a regular file is refused at once: a named
// pipe would wait for a writer, a terminal for a person, and some devices have no end, or act when
// they are opened. All files that users name are opened here or by [ReadFile].
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			pathErr.Op = "open" // what the caller wanted
		}
		return nil, err
	}
	if err := CheckRegular(info); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	// Without waiting, and checked again: it may have been exchanged in between.
	f, err := openInput(path)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = CheckRegular(info)
	}
	if err != nil {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: path, Err: err}, f.Close())
	}
	return f, nil
}

// ReadFile reads an input of at most limit bytes, by the rules of [Open].
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	tooLarge := func() error {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("has more than %d bytes; is this the right file?", limit)}
	}
	if info.Size() > limit {
		return nil, tooLarge()
	}
	// The size is a hint: files of /proc have none, and others may grow.
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = tooLarge()
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}
