package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/model/tensor"
)

// Spec is a tensor to be written.
type Spec struct {
	Name  string
	DType tensor.DType
	Shape []int64
}

// Layout is a planned file: its header, byte for byte as the reference library
// would write it, and the place of every tensor. The same specs in any order give the same
// Layout. It is immutable.
type Layout struct {
	header  []byte
	tensors []Tensor
	byName  map[string]int
	size    int64
}

// NewLayout plans a file with the given tensors and metadata. All mistakes in specs are
// reported, not the first.
//
// Tensors are placed by type, the highest [tensor.DType] first, then by name in byte
// order. Metadata of nil is left out and an empty map is written as {}; keys are sorted
// (the reference library writes them in random order).
func NewLayout(specs []Spec, metadata map[string]string) (*Layout, error) {
	l := &Layout{
		tensors: make([]Tensor, 0, len(specs)),
		byName:  make(map[string]int, len(specs)),
	}
	var errs []error
	for _, spec := range specs {
		size, err := tensor.Size(spec.DType, spec.Shape)
		_, dup := l.byName[spec.Name]
		switch {
		case dup:
			err = errors.New("occurs more than once")
		case spec.Name == metadataKey:
			err = errors.New("the name is reserved")
		case !utf8.ValidString(spec.Name):
			err = errors.New("the name is not UTF-8")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tensor %q: %w", spec.Name, err))
		}
		l.byName[spec.Name] = 0
		shape := append([]int64{}, spec.Shape...)
		l.tensors = append(l.tensors, Tensor{Name: spec.Name, DType: spec.DType, Shape: shape, Size: size})
	}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			errs = append(errs, fmt.Errorf("metadata %q: not UTF-8", key))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}

	slices.SortFunc(l.tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.DType, a.DType), cmp.Compare(a.Name, b.Name))
	})
	var end int64
	for i := range l.tensors {
		t := &l.tensors[i]
		l.byName[t.Name] = i
		t.Offset = end
		if t.Size > math.MaxInt64-MaxHeaderSize-lengthSize-end {
			return nil, fmt.Errorf("tensor %q: the file would be too long: %w", t.Name, tensor.ErrOverflow)
		}
		end += t.Size
	}
	l.header = appendHeader(make([]byte, lengthSize, 128*(len(l.tensors)+1)), l.tensors, metadata)
	length := len(l.header) - lengthSize
	if length > MaxHeaderSize {
		return nil, fmt.Errorf("the header would have %d bytes, the limit is %d", length, MaxHeaderSize)
	}
	binary.LittleEndian.PutUint64(l.header, uint64(length))
	l.size = int64(len(l.header)) + end
	return l, nil
}

// Header returns everything in front of the data, including the length at the start.
// The caller must not change it.
func (l *Layout) Header() []byte { return l.header }

// DataStart returns where the data begins: the length of [Layout.Header].
func (l *Layout) DataStart() int64 { return int64(len(l.header)) }

// FileSize returns the length of the whole file in bytes.
func (l *Layout) FileSize() int64 { return l.size }

// Tensors returns the tensors in file order, with offsets from [Layout.DataStart]. The
// caller must not change them.
func (l *Layout) Tensors() []Tensor { return l.tensors }

// Offset returns where the data of the named tensor starts in the file and its size in
// bytes, and whether there is such a tensor.
func (l *Layout) Offset(name string) (start, size int64, ok bool) {
	i, ok := l.byName[name]
	if !ok {
		return 0, 0, false
	}
	t := &l.tensors[i]
	return l.DataStart() + t.Offset, t.Size, true
}

// WriteFile writes a planned file, atomically and durably. open is called
// once for each tensor, in file order, and must return exactly its bytes; a result that is
// an [io.Closer] is closed. A section of a file, as from [File.Reader], is copied by the
// kernel where that is possible. To write tensors in parallel, use [Layout.Offset] and
// positioned writes instead.
func WriteFile(path string, l *Layout, open func(name string) (io.Reader, error)) error {
	f, err := fsx.Create(path)
	if err != nil {
		return err
	}
	if err := l.write(f, open); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.Abort())
	}
	return f.Commit()
}

func (l *Layout) write(f *fsx.AtomicFile, open func(name string) (io.Reader, error)) error {
	if err := fsx.Preallocate(f.File(), l.size); err != nil {
		return err
	}
	if _, err := f.WriteAt(l.header, 0); err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for _, t := range l.tensors {
		r, err := open(t.Name)
		if err == nil {
			err = copyTensor(f.File(), l.DataStart()+t.Offset, r, t.Size, buf)
			if c, ok := r.(io.Closer); ok {
				err = errors.Join(err, c.Close())
			}
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

func copyTensor(dst *os.File, off int64, r io.Reader, size int64, buf []byte) error {
	if section, ok := r.(*io.SectionReader); ok {
		outer, start, n := section.Outer()
		pos, err := section.Seek(0, io.SeekCurrent)
		if src, ok := outer.(*os.File); ok && err == nil {
			if n-pos != size {
				return fmt.Errorf("its reader has %d bytes, not %d", n-pos, size)
			}
			_, err := fsx.CopyRange(dst, off, src, start+pos, size)
			return err
		}
	}
	// The struct hides methods for which CopyBuffer would pass over the buffer.
	n, err := io.CopyBuffer(io.NewOffsetWriter(dst, off), struct{ io.Reader }{io.LimitReader(r, size)}, buf)
	if err != nil {
		return err
	}
	if n < size {
		return fmt.Errorf("its reader ended after %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
	}
	// Another byte shows a reader for something else.
	if extra, err := io.ReadFull(r, buf[:1]); extra > 0 {
		return fmt.Errorf("its reader has more than %d bytes", size)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// ShardName returns the name of file i, from 1, of the n files of a model, such as
// model-00001-of-00003.safetensors; a single file is model.safetensors.
func ShardName(prefix string, i, n int) string {
	if n == 1 {
		return prefix + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", prefix, i, n)
}

// appendHeader appends the JSON form with its padding.
func appendHeader(b []byte, tensors []Tensor, metadata map[string]string) []byte {
	b = append(b, '{')
	if metadata != nil {
		b = append(b, `"`+metadataKey+`":{`...)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, key)
			b = append(b, ':')
			b = appendString(b, metadata[key])
		}
		b = append(b, '}')
	}
	for i := range tensors {
		t := &tensors[i]
		if i > 0 || metadata != nil {
			b = append(b, ',')
		}
		b = appendString(b, t.Name)
		b = append(b, `:{"dtype":"`...)
		b = append(b, t.DType.String()...)
		b = append(b, `","shape":[`...)
		for j, dim := range t.Shape {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, dim, 10)
		}
		b = append(b, `],"data_offsets":[`...)
		b = strconv.AppendInt(b, t.Offset, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, t.Offset+t.Size, 10)
		b = append(b, "]}"...)
	}
	b = append(b, '}')
	for len(b)%8 != 0 { // the length in front has 8 bytes itself
		b = append(b, ' ')
	}
	return b
}

// appendString appends s as the reference library writes it: only what JSON demands
// is escaped.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		default:
			if k := strings.IndexByte("\bb\tt\nn\ff\rr", c); k >= 0 {
				b = append(b, '\\', "\bb\tt\nn\ff\rr"[k+1])
			} else {
				b = append(b, `\u00`...)
				b = append(b, hex[c>>4], hex[c&15])
			}
		}
	}
	return append(b, '"')
}
