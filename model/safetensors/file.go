package safetensors

import (
	"fmt"
	"io"
	"os"

	"github.com/kiln-build/kiln/internal/fsx"
)

// File is an open safetensors file. Its methods may be used by several goroutines at
// once, except Close.
type File struct {
	file   *os.File
	header *Header
}

// Open opens a file and checks its header. Errors name the file. Its data is not read.
func Open(path string) (*File, error) {
	f, err := fsx.Open(path)
	if err != nil {
		return nil, err
	}
	header, err := readFileHeader(f)
	if err != nil {
		f.Close() //nolint:errcheck // It was only read; the header's error is the one to report.
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{file: f, header: header}, nil
}

func readFileHeader(f *os.File) (*Header, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return ReadHeader(f, info.Size())
}

// Header returns what the file says about its tensors.
func (f *File) Header() *Header { return f.header }

// OSFile returns the underlying file, for positioned copies. It must not be closed.
func (f *File) OSFile() *os.File { return f.file }

// Reader returns the data of the named tensor. Its [io.SectionReader.Outer] is the file
// and the absolute offset.
func (f *File) Reader(name string) (*io.SectionReader, error) {
	t, ok := f.header.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%s: no tensor %q", f.file.Name(), name)
	}
	return io.NewSectionReader(f.file, f.header.DataStart+t.Offset, t.Size), nil
}

// Close closes the file. Readers of its tensors fail afterwards.
func (f *File) Close() error { return f.file.Close() }
