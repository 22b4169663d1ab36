// Package safetensors reads and writes the safetensors format (version 0.8 of the
// reference library): strict headers, tensors as sections of a file, and files whose every
// offset is known before the first byte is written.
//
// It serves the assembly and inspection of model files of any size with little memory:
// no function holds the data of a tensor. It does not interpret elements; package tensor
// does.
//
// A file is an 8-byte little-endian header length, the header (a JSON object, padded
// with spaces), and the data of all tensors without gaps. What this package accepts the
// reference library accepts. The reverse has five exceptions, where the reference is
// lax by accident: a tensor name or metadata key that occurs twice, a tensor given as a
// JSON array, a dtype given as a JSON object, and a dimension above 2⁶³−1.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/kiln-build/kiln/model/tensor"
)

// MaxHeaderSize is the largest header, in bytes, that readers and writers of the format
// accept.
const MaxHeaderSize = 100_000_000

// lengthSize is the size of the header length in front of the header.
const lengthSize = 8

const metadataKey = "__metadata__"

// Tensor is one entry of a header.
type Tensor struct {
	Name   string
	DType  tensor.DType
	Shape  []int64 // [] for a scalar; not to be changed
	Offset int64   // of the first byte, from the start of the data
	Size   int64   // in bytes
}

// Header is what a file says about its tensors. It is not to be changed.
type Header struct {
	// Tensors are in the order of their data; those without data are in front of the
	// one that starts at the same offset, by name.
	Tensors []Tensor
	// Metadata is nil if the file has none.
	Metadata map[string]string
	// DataStart is where the data begins in the file.
	DataStart int64

	byName map[string]int
	listed []int32 // indexes of Tensors in the order of the header
}

// TruncatedError is the error for a file that ends before what it announces.
type TruncatedError struct {
	Size int64 // of the file
	Want int64 // what is needed, at least
}

// Error says how much is missing.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("file is truncated: it has %d bytes of at least %d", e.Size, e.Want)
}

// Lookup returns the tensor with the given name.
func (h *Header) Lookup(name string) (Tensor, bool) {
	i, ok := h.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return h.Tensors[i], true
}

// InHeaderOrder returns the tensors in the order in which the header lists them, which need not be
// that of their data.
func (h *Header) InHeaderOrder() []Tensor {
	out := make([]Tensor, len(h.listed))
	for i, at := range h.listed {
		out[i] = h.Tensors[at]
	}
	return out
}

// ReadHeader reads and checks the header of a file of the given size. A file that is too
// short gives a [*TruncatedError]. Memory is taken in proportion to header
// bytes that were really there, whatever length the file claims.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	if size < lengthSize {
		return nil, &TruncatedError{Size: size, Want: lengthSize}
	}
	var prefix [lengthSize]byte
	if err := readFull(r, prefix[:], 0); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case length > MaxHeaderSize:
		return nil, tooLong(r, size, length)
	case int64(length) > size-lengthSize:
		return nil, &TruncatedError{Size: size, Want: lengthSize + int64(length)}
	}
	text, err := readHeaderText(r, int(length))
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, err
	}
	h.DataStart = lengthSize + int64(length)
	end, err := h.check()
	if err != nil {
		return nil, err
	}
	switch have := size - h.DataStart; {
	case end > have:
		return nil, &TruncatedError{Size: size, Want: h.DataStart + min(end, math.MaxInt64-h.DataStart)}
	case end < have:
		return nil, fmt.Errorf("file has %d bytes after the last tensor", have-end)
	}
	return h, nil
}

// readHeaderText reads in growing steps, so that a wrong size does not cost memory.
func readHeaderText(r io.ReaderAt, length int) ([]byte, error) {
	var text []byte
	for step := 64 << 10; len(text) < length; step *= 2 {
		done := len(text)
		text = append(text, make([]byte, min(step, length-done))...)
		if err := readFull(r, text[done:], lengthSize+int64(done)); err != nil {
			return nil, err
		}
	}
	return text, nil
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, io.EOF):
		return &TruncatedError{Size: off + int64(n), Want: off + int64(len(p))}
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read header: %w", err)
}

// tooLong explains the most common reason for an absurd length: the small text
// file that Git LFS leaves in place of a large one.
func tooLong(r io.ReaderAt, size int64, length uint64) error {
	const lfs = "version https://git-lfs.github.com/"
	start := make([]byte, min(size, int64(len(lfs))))
	if err := readFull(r, start, 0); err == nil && string(start) == lfs {
		return errors.New("file is a Git LFS pointer, not the model file itself")
	}
	return fmt.Errorf("header length is %d, the limit is %d", length, MaxHeaderSize)
}

func parseHeader(text []byte) (*Header, error) {
	h := &Header{byName: map[string]int{}}
	s := newScanner(text)
	seenMetadata := false
	s.document(func(name string) {
		if name == metadataKey {
			if seenMetadata {
				s.fail("%s occurs more than once", metadataKey)
			}
			seenMetadata = true
			h.Metadata = s.metadata()
			return
		}
		if _, dup := h.byName[name]; dup {
			s.fail("tensor %q occurs more than once", name)
		}
		h.byName[name] = 0
		h.Tensors = append(h.Tensors, s.tensor(name))
	})
	if s.err != nil {
		return nil, fmt.Errorf("header: %w", s.err)
	}
	names := make([]string, len(h.Tensors))
	for i := range h.Tensors {
		names[i] = h.Tensors[i].Name
	}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size), cmp.Compare(a.Name, b.Name))
	})
	for i := range h.Tensors {
		h.byName[h.Tensors[i].Name] = i
	}
	h.listed = make([]int32, len(names))
	for i, name := range names {
		h.listed[i] = int32(h.byName[name])
	}
	return h, nil
}

// check compares offsets with each other and with shapes, and returns where the data ends.
func (h *Header) check() (end int64, err error) {
	for i := range h.Tensors {
		t := &h.Tensors[i]
		switch {
		case t.Offset > end:
			return 0, fmt.Errorf("tensor %q: starts at %d, but the data before it ends at %d", t.Name, t.Offset, end)
		case t.Offset < end:
			return 0, fmt.Errorf("tensor %q: starts at %d, inside the data of %q", t.Name, t.Offset, h.Tensors[i-1].Name)
		}
		size, err := tensor.Size(t.DType, t.Shape)
		if err != nil {
			return 0, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if size != t.Size {
			return 0, fmt.Errorf("tensor %q: %v of shape %v has %d bytes, but its data_offsets span %d", t.Name, t.DType, t.Shape, size, t.Size)
		}
		end += size // no overflow: Offset+Size was an int64 in the file
	}
	return end, nil
}

func (s *scanner) metadata() map[string]string {
	if s.null() {
		return nil
	}
	m := map[string]string{}
	s.object(metadataKey, func(key string) {
		if _, dup := m[key]; dup {
			s.fail("%s: key %q occurs more than once", metadataKey, key)
		}
		m[key] = s.string(fmt.Sprintf("%s: value of %q", metadataKey, key))
	})
	return m
}

func (s *scanner) tensor(name string) Tensor {
	s.within = name
	defer func() { s.within = "" }()
	t := Tensor{Name: name, Shape: make([]int64, 0, 2)}
	var seen [3]bool
	first := func(field string, i int) {
		if seen[i] {
			s.fail("%s occurs more than once", field)
		}
		seen[i] = true
	}
	s.object("entry", func(key string) {
		switch key {
		case "dtype":
			first(key, 0)
			text := s.string("dtype")
			d, err := tensor.ParseDType(text)
			if err != nil && s.err == nil {
				s.fail("%v", err)
			}
			t.DType = d
		case "shape":
			first(key, 1)
			s.array("shape", func() { t.Shape = append(t.Shape, s.integer("dimension")) })
		case "data_offsets":
			first(key, 2)
			var at [2]int64
			n := 0
			s.array("data_offsets", func() {
				v := s.integer("offset")
				if n < len(at) {
					at[n] = v
				}
				n++
			})
			if n != len(at) {
				s.fail("data_offsets has %d entries, not 2", n)
			}
			if at[1] < at[0] {
				s.fail("data_offsets [%d,%d] end before they start", at[0], at[1])
			}
			t.Offset, t.Size = at[0], at[1]-at[0]
		default:
			s.skip()
		}
	})
	for i, field := range []string{"dtype", "shape", "data_offsets"} {
		if !seen[i] {
			s.fail("%s is missing", field)
		}
	}
	return t
}
