package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
)

// maxInMemory is the size up to which a native member is kept in memory while it is looked
// at. Larger ones go to a temporary file: a deflated member can only be read from its
// beginning, and the tables of a library lie at both of its ends.
const maxInMemory = 8 << 20

// A spooler reads members to their end and keeps native ones.
type spooler struct {
	dir      string // for large ones
	inMemory int64  // what is not large; 0 means maxInMemory
}

// isLarge says whether a member is not kept in memory.
func (p spooler) isLarge(size int64) bool { return size > cmp.Or(p.inMemory, maxInMemory) }

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

// inPlace is spool for a member that can be read where it is.
func inPlace(section *io.SectionReader) (*spooled, string, error) {
	head := make([]byte, 8)
	n, err := section.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	kind := magicOf(head[:n])
	if kind == "" {
		return nil, "", nil
	}
	return &spooled{ReaderAt: section, size: section.Size()}, kind, nil
}

// spool reads src, which has about size bytes, to its end and writes it to sum. If it is a native
// file, it is kept for reading at any place, in a file when it is large; otherwise the result is
// nil.
func (p spooler) spool(ctx context.Context, src io.Reader, size int64, sum io.Writer) (*spooled, string, error) {
	head := make([]byte, 8)
	n, err := io.ReadFull(src, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, "", err
	}
	head = head[:n]
	src = io.MultiReader(bytes.NewReader(head), src)
	kind := magicOf(head)
	if kind == "" {
		_, err := p.copy(ctx, sum, src, size)
		return nil, "", err
	}
	if !p.isLarge(size) {
		buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
		if _, err := p.copy(ctx, io.MultiWriter(buf, sum), src, size); err != nil {
			return nil, "", err
		}
		return &spooled{ReaderAt: bytes.NewReader(buf.Bytes()), size: int64(buf.Len())}, kind, nil
	}
	f, err := os.CreateTemp(p.dir, "kiln-audit-*")
	if err != nil {
		return nil, "", fmt.Errorf("make temporary file: %w", err)
	}
	s := &spooled{ReaderAt: f, file: f}
	// Where a file may be removed while it is open, nothing is left after a crash.
	_ = os.Remove(f.Name())
	s.size, err = p.copy(ctx, io.MultiWriter(f, sum), src, size)
	if err != nil {
		_ = s.Close() // the error at hand matters more
		return nil, "", err
	}
	return s, kind, nil
}

// copy copies a member of about size bytes.
func (p spooler) copy(ctx context.Context, dst io.Writer, src io.Reader, size int64) (int64, error) {
	if p.isLarge(size) {
		return copyAhead(ctx, dst, src)
	}
	return copyContext(ctx, dst, src)
}

// copyContext is io.Copy that stops when ctx ends.
func copyContext(ctx context.Context, dst io.Writer, src io.Reader) (int64, error) {
	buf := make([]byte, copyBytes)
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

// The buffers of a copy.
const (
	copyBytes  = 256 << 10
	copyBlocks = 4
)

// copyAhead is copyContext with a goroutine of its own for reading, so that inflating does not wait
// for digests and the disk.
func copyAhead(ctx context.Context, dst io.Writer, src io.Reader) (int64, error) {
	g, ctx := errgroup.WithContext(ctx)
	free, full := make(chan []byte, copyBlocks), make(chan []byte, copyBlocks)
	for range copyBlocks {
		free <- make([]byte, copyBytes)
	}
	g.Go(func() error {
		defer close(full)
		for {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case buf := <-free:
				n, err := fill(src, buf)
				full <- buf[:n]
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
			}
		}
	})
	var total int64
	g.Go(func() error {
		for buf := range full {
			n, err := dst.Write(buf)
			total += int64(n)
			if err != nil {
				return err
			}
			free <- buf[:cap(buf)]
		}
		return nil
	})
	err := g.Wait()
	return total, err
}

// fill reads until buf is full; other than with io.ReadFull, the error is always that of src.
func fill(src io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = src.Read(buf[n:])
		n += m
	}
	return n, err
}
