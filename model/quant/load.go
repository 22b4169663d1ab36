package quant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// Source is a set of named tensors. [Files] and [TensorMap] are implementations.
type Source interface {
	// Lookup describes the named tensor and reports whether there is one. Offset is not used.
	Lookup(name string) (safetensors.Tensor, bool)
	// Open returns the data of a tensor that Lookup has: exactly its bytes, little endian.
	Open(name string) (io.Reader, error)
}

// Files returns the tensors of one or more files, such as the shards of a model. If two files have
// a tensor of the same name, the first file counts. The files must stay open while the Source is in
// use.
func Files(files ...*safetensors.File) Source { return fileSource(files) }

type fileSource []*safetensors.File

func (s fileSource) Lookup(name string) (safetensors.Tensor, bool) {
	for _, f := range s {
		if t, ok := f.Header().Lookup(name); ok {
			return t, true
		}
	}
	return safetensors.Tensor{}, false
}

func (s fileSource) Open(name string) (io.Reader, error) {
	for _, f := range s {
		if _, ok := f.Header().Lookup(name); ok {
			return f.Reader(name)
		}
	}
	return nil, fmt.Errorf("no tensor %q", name)
}

// Tensor is a tensor in memory.
type Tensor struct {
	DType tensor.DType
	Shape []int64
	Data  []byte // little endian
	// Elsewhere says that the data is not in main memory. That is allowed for the words of a matrix,
	// q_weight or qweight, which [QMatrix.Words] then lacks: only a device that has them can use it.
	Elsewhere bool
}

// TensorMap is a [Source] of tensors in memory, by name.
type TensorMap map[string]Tensor

// Lookup implements [Source].
func (s TensorMap) Lookup(name string) (safetensors.Tensor, bool) {
	t, ok := s[name]
	size := int64(len(t.Data))
	if t.Elsewhere {
		size, _ = tensor.Size(t.DType, t.Shape)
	}
	return safetensors.Tensor{Name: name, DType: t.DType, Shape: t.Shape, Size: size}, ok
}

// Open implements [Source].
func (s TensorMap) Open(name string) (io.Reader, error) {
	t, ok := s[name]
	if !ok || t.Elsewhere {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	return &sliceReader{t.Data}, nil
}

// sliceReader reads a slice; unlike bytes.Reader it can do nothing else.
type sliceReader struct{ rest []byte }

func (r *sliceReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// FormatError is the error for a tensor that breaks a rule of its format.
type FormatError struct {
	Tensor string // full name
	Index  int    // of the element, counted through the whole tensor; −1 if the fault is in no single element
	Reason string
	Rule   Rule
}

// Rule is the kind of rule that a tensor breaks.
type Rule uint8

const (
	// RuleShape is about the shape of a tensor, by itself or beside the others.
	RuleShape Rule = iota
	// RuleMissing is that there must be such a tensor.
	RuleMissing
	// RuleType is about the type of its elements.
	RuleType
	// RuleContent is about the value of an element.
	RuleContent
)

// Error names the tensor, the element and the rule.
func (e *FormatError) Error() string {
	if e.Index < 0 {
		return e.Tensor + ": " + e.Reason
	}
	return fmt.Sprintf("%s[%d]: %s", e.Tensor, e.Index, e.Reason)
}

// maxDimension is the largest number of rows or columns that is loaded.
const maxDimension = 1 << 30

// ZeroPoint is how GPTQ zero points are stored.
type ZeroPoint uint8

const (
	// ZeroDialect is the reading of [GPTQOptions.Dialect]: ZeroPlusOne for Exllamav2,
	// ZeroPlusOneWrap for LoRAX.
	ZeroDialect ZeroPoint = iota
	// ZeroPlusOne is stored + 1, so that all ones stand for 2ᵇ: what exllamav2 does with v1
	// checkpoints.
	ZeroPlusOne
	// ZeroPlusOneWrap is (stored + 1) mod 2ᵇ, so that all ones stand for 0: what LoRAX does with v1
	// checkpoints.
	ZeroPlusOneWrap
	// ZeroAsStored is for v2 checkpoints (checkpoint_format "gptq_v2").
	ZeroAsStored
)

// GPTQOptions change how GPTQ tensors are read. The zero value is what exllamav2 does, for all
// widths.
type GPTQOptions struct {
	// Bits is the width: 2, 3, 4 or 8. 0 means the one that the shapes of qweight and qzeros imply.
	Bits int
	// GroupSize is the number of rows of a group where g_idx does not say it. 0 means the smallest
	// power of two with which the groups cover all rows.
	GroupSize int
	// Zero is the zero point convention of the checkpoint. The tensors do not show it.
	Zero ZeroPoint
	// Dialect is whose rules are followed where Zero is ZeroDialect.
	Dialect Dialect
}

// LoadGPTQ reads the GPTQ tensors key.qweight, key.qzeros, key.scales, and where they exist
// key.g_idx and key.bias. An empty key stands for names without a prefix.
//
// Without g_idx, or when it is all zeros, groups are consecutive blocks of rows. Otherwise g_idx is
// taken at its word, also if groups are of unequal size (which exllamav2 gets wrong). Scales and
// bias that are not in half precision are rounded to it.
//
// A missing tensor or one that breaks the format gives a *[FormatError], several of them joined
// where that is known at once.
func LoadGPTQ(src Source, key string, opts GPTQOptions) (*QMatrix, error) {
	l := loader{src, key}
	m, err := l.gptqStructure(opts)
	if err != nil {
		return nil, err
	}
	if m.words, err = l.codes("qweight"); err != nil {
		return nil, err
	}
	if m.zeroCodes, err = readWords(l, "qzeros"); err != nil {
		return nil, err
	}
	if m.scales, err = l.halfs("scales"); err != nil {
		return nil, err
	}
	if m.bias, err = l.bias(); err != nil {
		return nil, err
	}
	return m, nil
}

// gptqStructure reads what decides about the shape of the matrix: headers and group index.
func (l loader) gptqStructure(opts GPTQOptions) (*QMatrix, error) {
	var errs []error
	weight := l.need(&errs, "qweight", 2, tensor.I32)
	zeros := l.need(&errs, "qzeros", 2, tensor.I32)
	scales := l.need(&errs, "scales", 2, tensor.F16, tensor.BF16, tensor.F32)
	_, indexed := l.src.Lookup(l.name("g_idx"))
	if indexed {
		l.need(&errs, "g_idx", 1, tensor.I32)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	packed, cols, count := weight[0], weight[1], zeros[0]
	if packed == 0 || cols == 0 {
		return nil, l.bad("qweight", -1, "shape %v: no weights", weight)
	}
	if count == 0 {
		return nil, l.bad("qzeros", -1, "shape %v: no groups", zeros)
	}
	width := opts.Bits
	if z := 32 * int64(zeros[1]); width == 0 && z%int64(cols) == 0 {
		width = int(min(z/int64(cols), 32))
	}
	switch {
	case width != 2 && width != 3 && width != 4 && width != 8:
		if opts.Bits != 0 {
			return nil, fmt.Errorf("%s: width %d: want 2, 3, 4 or 8", l.name("qweight"), opts.Bits)
		}
		return nil, l.bad("qzeros", -1, "shape %v with %d columns of qweight: no width of 2, 3, 4 or 8 fits", zeros, cols)
	case 32*int64(zeros[1]) != int64(width)*int64(cols):
		return nil, l.bad("qzeros", -1, "%d columns: want %d columns of qweight in %d bits each to fill the words", zeros[1], cols, width)
	case width == 3 && packed%3 != 0:
		return nil, l.bad("qweight", -1, "%d packed rows of width 3: want a multiple of 3", packed)
	case packed > maxDimension/32:
		return nil, l.bad("qweight", -1, "%d packed rows: want at most %d", packed, maxDimension/32)
	case scales[0] != count || scales[1] != cols:
		return nil, l.bad("scales", -1, "shape %v: want [%d %d] for %d groups and %d columns", scales, count, cols, count, cols)
	}
	if err := l.checkBias(cols, tensor.F16, tensor.BF16, tensor.F32); err != nil {
		return nil, err
	}

	m := &QMatrix{format: GPTQ, rows: packed * 32 / width, cols: cols, zero: opts.Zero}
	if m.zero == ZeroDialect {
		m.zero = ZeroPlusOne
		if opts.Dialect == LoRAX {
			m.zero = ZeroPlusOneWrap
		}
	}
	if indexed {
		index, err := readTensor(l, "g_idx", 4, appendInt32)
		if err != nil {
			return nil, err
		}
		if len(index) != m.rows {
			return nil, l.bad("g_idx", -1, "%d elements: want %d, one for each weight row", len(index), m.rows)
		}
		zero := true
		for k, g := range index {
			if g < 0 || int(g) >= count {
				return nil, l.bad("g_idx", k, "group %d: want 0 to %d", g, count-1)
			}
			zero = zero && g == 0
		}
		if !zero {
			m.setGroupIndex(index, width, count)
			return m, nil
		}
	}
	size := opts.GroupSize
	if size < 0 {
		return nil, fmt.Errorf("%s: group size %d", l.name("qweight"), size)
	}
	if size == 0 {
		size = 1 << bits.Len(uint((m.rows-1)/count))
	}
	if got := (m.rows-1)/size + 1; got != count {
		return nil, l.bad("qzeros", -1, "%d groups: want %d for %d rows in groups of %d (give the group size if it is another)",
			count, got, m.rows, size)
	}
	for g := range count {
		m.groups = append(m.groups, Group{Bits: width, FirstRow: g * size, Rows: min(size, m.rows-g*size)})
	}
	return m, nil
}

// validWidth reports whether b is a width of one of the formats (GPTQ has not all of them).
func validWidth(b int) bool { return b == 2 || b == 3 || b == 4 || b == 5 || b == 6 || b == 8 }

// loader reads the tensors of one layer.
type loader struct {
	src Source
	key string
}

func (l loader) name(suffix string) string {
	if l.key == "" {
		return suffix
	}
	return l.key + "." + suffix
}

func (l loader) bad(suffix string, index int, format string, args ...any) error {
	e := &FormatError{Tensor: l.name(suffix), Index: index, Reason: fmt.Sprintf(format, args...)}
	if index >= 0 {
		e.Rule = RuleContent
	}
	return e
}

// need checks that there is a tensor with so many dimensions, one of the types and all its data,
// and returns its shape. What is wrong is added to errs.
func (l loader) need(errs *[]error, suffix string, dims int, types ...tensor.DType) []int {
	fail := func(rule Rule, format string, args ...any) []int {
		*errs = append(*errs, &FormatError{Tensor: l.name(suffix), Index: -1, Reason: fmt.Sprintf(format, args...), Rule: rule})
		return nil
	}
	t, ok := l.src.Lookup(l.name(suffix))
	if !ok {
		return fail(RuleMissing, "missing")
	}
	if !slices.Contains(types, t.DType) {
		return fail(RuleType, "type %v: want %v", t.DType, types[0])
	}
	if len(t.Shape) != dims {
		return fail(RuleShape, "shape %v: want %d dimensions", t.Shape, dims)
	}
	shape := make([]int, dims)
	for i, d := range t.Shape {
		if d < 0 || d > maxDimension {
			return fail(RuleShape, "shape %v: want dimensions from 0 to %d", t.Shape, maxDimension)
		}
		shape[i] = int(d)
	}
	size, err := tensor.Size(t.DType, t.Shape)
	if err != nil || size > math.MaxInt {
		return fail(RuleShape, "shape %v: too large", t.Shape)
	}
	if size != t.Size {
		return fail(RuleShape, "%d bytes: want %d for shape %v", t.Size, size, t.Shape)
	}
	return shape
}

// halfs reads a tensor in half precision, or rounds it to that. All elements must be finite.
func (l loader) halfs(suffix string) ([]tensor.Float16, error) {
	t, _ := l.src.Lookup(l.name(suffix))
	var out []tensor.Float16
	var err error
	switch t.DType {
	case tensor.F32:
		out, err = readTensor(l, suffix, 4, func(dst []tensor.Float16, b []byte) []tensor.Float16 {
			return append(dst, tensor.Float16FromFloat32(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		})
	case tensor.BF16:
		out, err = readTensor(l, suffix, 2, func(dst []tensor.Float16, b []byte) []tensor.Float16 {
			return append(dst, tensor.BFloat16(binary.LittleEndian.Uint16(b)).Float16())
		})
	default:
		out, err = readTensor(l, suffix, 2, func(dst []tensor.Float16, b []byte) []tensor.Float16 {
			return append(dst, tensor.Float16(binary.LittleEndian.Uint16(b)))
		})
	}
	if err != nil {
		return nil, err
	}
	for i, h := range out {
		if h.IsNaN() || h.IsInf() {
			return nil, l.bad(suffix, i, "not finite in half precision")
		}
	}
	return out, nil
}

// checkBias checks the header of the bias of n columns, if there is one.
func (l loader) checkBias(n int, types ...tensor.DType) error {
	if _, ok := l.src.Lookup(l.name("bias")); !ok {
		return nil
	}
	var errs []error
	if shape := l.need(&errs, "bias", 1, types...); len(errs) > 0 {
		return errs[0]
	} else if shape[0] != n {
		return l.bad("bias", -1, "%d elements: want %d, one for each column", shape[0], n)
	}
	return nil
}

// bias reads a checked bias, or returns nil if there is none.
func (l loader) bias() ([]tensor.Float16, error) {
	if _, ok := l.src.Lookup(l.name("bias")); !ok {
		return nil, nil
	}
	return l.halfs("bias")
}

// codes reads the words of a matrix, nil if they are elsewhere.
func (l loader) codes(suffix string) ([]uint32, error) {
	if tensors, ok := l.src.(TensorMap); ok && tensors[l.name(suffix)].Elsewhere {
		return nil, nil
	}
	return readWords(l, suffix)
}

func readWords(l loader, suffix string) ([]uint32, error) {
	return readTensor(l, suffix, 4, func(dst []uint32, b []byte) []uint32 {
		return append(dst, binary.LittleEndian.Uint32(b))
	})
}

func appendInt32(dst []int32, b []byte) []int32 {
	return append(dst, int32(binary.LittleEndian.Uint32(b)))
}

// readTensor reads all elements of a tensor. Memory is taken as data arrives, whatever size the
// source claims.
func readTensor[T any](l loader, suffix string, size int, decode func([]T, []byte) []T) ([]T, error) {
	name := l.name(suffix)
	t, _ := l.src.Lookup(name)
	r, err := l.src.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	const chunk = 1 << 16
	buf := make([]byte, min(int(t.Size), chunk))
	out := make([]T, 0, min(int(t.Size), 1<<24)/size)
	for rest := int(t.Size); rest > 0; rest -= len(buf) {
		buf = buf[:min(rest, len(buf))]
		if _, err := io.ReadFull(r, buf); err != nil {
			return nil, fmt.Errorf("%s: read: %w", name, err)
		}
		for b := buf; len(b) >= size; b = b[size:] {
			out = decode(out, b)
		}
	}
	return out, nil
}
