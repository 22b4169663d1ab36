package audit

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
)

// maxInMemory is the size up to which a native member is kept in memory while it is looked
// at. Larger ones go to a temporary file: a deflated member can only be read from its
// beginning, and the tables of a library lie at both of its ends.
const maxInMemory = 8 << 20

// A spooled member can be read at any place.
type spooled struct {
	io.ReaderAt
	size int64
	file *os.File
}

// Close removes the temporary file, if there is one.
func (s *spooled) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if e := os.Remove(s.file.Name()); err == nil && !errors.Is(e, os.ErrNotExist) {
		err = e
	}
	return err
}

// magicOf says by its first bytes what a native file is: "elf", "pe", "archive",
// "gpu" for bare device code, or "".
func magicOf(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\x7fELF")):
		return "elf"
	case bytes.HasPrefix(b, []byte("MZ")):
		return "pe"
	case bytes.HasPrefix(b, []byte("\x50\xed\x55\xba")), bytes.HasPrefix(b, []byte("__CLANG_")), bytes.HasPrefix(b, []byte("CCOB")):
		return "gpu"
	case bytes.HasPrefix(b, []byte("!<arch>\n")):
		return "archive"
	}
	return ""
}

// storedMembers are the large members of an archive that are not compressed, and need no copy to be read at any place. What is wrong
// with the archive is for others to say.
func storedMembers(r io.ReaderAt, size int64) map[string]*io.SectionReader {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil
	}
	out := map[string]*io.SectionReader{}
	for _, f := range z.File {
		if f.Method != zip.Store || f.UncompressedSize64 <= maxInMemory || f.UncompressedSize64 != f.CompressedSize64 {
			continue
		}
		n := int64(min(f.UncompressedSize64, math.MaxInt64))
		if offset, err := f.DataOffset(); err == nil && n <= size-offset {
			out[f.Name] = io.NewSectionReader(r, offset, n)
		}
	}
	return out
}

// inPlace is spool for a member that can be read where it is.
func inPlace(section *io.SectionReader) (*spooled, string, error) {
	head := make([]byte, 8)
	if _, err := section.ReadAt(head, 0); err != nil {
		return nil, "", err
	}
	kind := magicOf(head)
	if kind == "" {
		return nil, "", nil
	}
	return &spooled{ReaderAt: section, size: section.Size()}, kind, nil
}

// spool reads src to its end, through sum if that is not nil. If it is a native file, it is
// kept for reading at any place, in dir when it is large; otherwise the result is nil.
func spool(ctx context.Context, src io.Reader, size int64, sum hash.Hash, dir string) (*spooled, string, error) {
	if sum != nil {
		src = io.TeeReader(src, sum)
	}
	head := make([]byte, 8)
	n, err := io.ReadFull(src, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, "", err
	}
	head = head[:n]
	kind := magicOf(head)
	if kind == "" {
		_, err := copyContext(ctx, io.Discard, src)
		return nil, "", err
	}
	if size <= maxInMemory {
		buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
		buf.Write(head)
		if _, err := copyContext(ctx, buf, src); err != nil {
			return nil, "", err
		}
		return &spooled{ReaderAt: bytes.NewReader(buf.Bytes()), size: int64(buf.Len())}, kind, nil
	}
	f, err := os.CreateTemp(dir, "kiln-audit-*")
	if err != nil {
		return nil, "", fmt.Errorf("make temporary file: %w", err)
	}
	s := &spooled{ReaderAt: f, file: f}
	// Where a file may be removed while it is open, nothing is left after a crash.
	_ = os.Remove(f.Name())
	if _, err = f.Write(head); err == nil {
		var m int64
		m, err = copyContext(ctx, f, src)
		s.size = m + int64(n)
	}
	if err != nil {
		_ = s.Close() // the error at hand matters more
		return nil, "", err
	}
	return s, kind, nil
}

// copyContext is io.Copy that stops when ctx ends.
func copyContext(ctx context.Context, dst io.Writer, src io.Reader) (int64, error) {
	buf := make([]byte, 256<<10)
	var total int64
	for {
		if err := context.Cause(ctx); err != nil {
			return total, err
		}
		n, err := src.Read(buf)
		if n > 0 {
			m, werr := dst.Write(buf[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
