package exl2

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/model/safetensors"
)

// Limits on files that are read whole. A job holds the measurement of the model, some tens of
// megabytes for a large one.
const (
	maxJobBytes      = 1 << 30
	maxConfigBytes   = 16 << 20
	maxManifestBytes = 1 << 30
)

// Links says which links in the folders of a model are followed. A link that leads elsewhere could
// bring any file of this machine into a model that is published.
type Links bool

const (
	// InnerLinks follows links that stay in their folder, or lead from a snapshot of the Hugging
	// Face cache to its blobs.
	InnerLinks Links = false
	// AllLinks follows links to any regular file.
	AllLinks Links = true
)

// open opens a file of a folder that belongs to the user's model. Anything but a regular file is
// refused without opening it, because that would wait for a writer (a named pipe) or have effects
// (a device).
func (l Links) open(path string) (*os.File, fs.FileInfo, error) {
	if _, err := l.stat(path); err != nil {
		return nil, nil, err
	}
	f, err := fsx.Open(path)
	if err != nil {
		return nil, nil, reason(err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// stat checks what open would open.
func (l Links) stat(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if info, err = os.Stat(path); err == nil && l != AllLinks {
			err = checkLink(path)
		}
	}
	if err != nil {
		return nil, reason(err)
	}
	return info, fsx.CheckRegular(info)
}

func checkLink(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	homes := []string{dir}
	if snapshots := filepath.Dir(dir); filepath.Base(snapshots) == "snapshots" {
		homes = append(homes, filepath.Join(filepath.Dir(snapshots), "blobs"))
	}
	for _, home := range homes {
		if rel, err := filepath.Rel(home, target); err == nil && filepath.IsLocal(rel) {
			return nil
		}
	}
	return fmt.Errorf("is a link to %s, outside of its folder; put the file itself into the folder, or give --follow-links", target)
}

// reason leaves out the path, which problems have anyway.
func reason(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// readSmall reads a whole file of at most limit bytes.
func (l Links) readSmall(path string, limit int64) ([]byte, error) {
	f, info, err := l.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > limit {
		return nil, fmt.Errorf("has %d bytes, at most %d are read; is this the right file?", info.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// scanned is one tensor file whose header was read.
type scanned struct {
	input  Input
	header *safetensors.Header // nil if err is set
	err    error
}

// open opens the file and reads its header. It returns nil if there is an error. The caller closes
// the file.
func (s *scanned) open(links Links) *os.File {
	f, info, err := links.open(s.input.Path)
	if err != nil {
		s.err = err
		return nil
	}
	s.input.Size, s.input.ModTime, s.input.ID = info.Size(), info.ModTime(), fileID(s.input.Path)
	s.header, s.err = safetensors.ReadHeader(f, info.Size())
	if s.err == nil {
		sum := sha256.New()
		_, s.err = io.Copy(sum, io.NewSectionReader(f, 0, s.header.DataStart))
		s.input.HeaderSHA256 = hex.EncodeToString(sum.Sum(nil))
	}
	if s.err != nil {
		s.header = nil
		f.Close() //nolint:errcheck // only read
		return nil
	}
	return f
}

// tensorSource has the tensors of one file, for package quant.
type tensorSource struct {
	*safetensors.Header
	data io.ReaderAt
}

func (s tensorSource) Open(name string) (io.Reader, error) {
	t, ok := s.Lookup(name)
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NewSectionReader(s.data, s.DataStart+t.Offset, t.Size), nil
}
