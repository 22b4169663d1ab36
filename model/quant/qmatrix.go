package quant

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/kiln-build/kiln/model/quant/internal/kernels"
	"github.com/kiln-build/kiln/model/tensor"
)

// Format is the format of a quantized matrix.
type Format uint8

// The formats. The zero value is none.
const (
	EXL2 Format = iota + 1
	GPTQ
)

// String returns "exl2" or "gptq".
func (f Format) String() string {
	switch f {
	case EXL2:
		return "exl2"
	case GPTQ:
		return "gptq"
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// MarshalText returns the name, so that JSON shows it.
func (f Format) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Group is a run of rows, in stored order, that share their width and, in each column, their scale
// and zero point.
type Group struct {
	Bits     int
	FirstRow int // in stored order
	Rows     int // may be 0 in a GPTQ matrix whose g_idx leaves a group out
}

// QMatrix is a quantized weight matrix of K rows and N columns. It is immutable and may be used by
// any number of goroutines. It owns its memory.
type QMatrix struct {
	format     Format
	rows, cols int
	groups     []Group
	bias       []tensor.Float16 // nil if there is none

	// words are the packed codes, [packed row][column]. The codes of a column are a stream of bits,
	// lowest first. In EXL2 rows are in stored order and a stream begins with each group; in GPTQ
	// they are in natural order and there is one.
	words []uint32

	// perm is from stored to natural row, inv the reverse. Both are nil if the orders are the same.
	perm, inv []int32

	// EXL2
	starts     []int            // first packed row of each group
	scaleCodes []uint32         // [group][column/8], 4 bits each
	sections   int              // of equally many columns, each with its own maxima: 1 but for joined matrices
	scaleMax   []tensor.Float16 // as on disk, [group][section]
	scaleTable [][16]float32    // scale of each code, by group and section

	// GPTQ
	zero      ZeroPoint
	zeroCodes []uint32         // [group][stream of all columns]
	scales    []tensor.Float16 // [group][column]
}

// Format returns the format that the matrix was loaded from or quantized to.
func (m *QMatrix) Format() Format { return m.format }

// Rows returns K, the number of input features.
func (m *QMatrix) Rows() int { return m.rows }

// Cols returns N, the number of output features, padding included.
func (m *QMatrix) Cols() int { return m.cols }

// Groups returns the groups in stored order. The caller owns the slice.
func (m *QMatrix) Groups() []Group { return slices.Clone(m.groups) }

// Permuted reports whether the stored order differs from the natural order: the reordering of EXL2,
// or the act-order of GPTQ. It is false where there is a permutation that changes nothing.
func (m *QMatrix) Permuted() bool { return m.perm != nil }

// Perm returns the natural row of each stored row: q_perm of EXL2, and for GPTQ the stable order by
// group. The caller owns the slice.
func (m *QMatrix) Perm() []int32 { return ordered(m.perm, m.rows) }

// InvPerm returns the stored row of each natural row, q_invperm of EXL2. The caller owns the slice.
func (m *QMatrix) InvPerm() []int32 { return ordered(m.inv, m.rows) }

// GroupMap returns two numbers for each stored row: its group, and how many rows of the group are
// left from this one on. That is q_group_map of exllamav2.
func (m *QMatrix) GroupMap() []int32 {
	out := make([]int32, 0, 2*m.rows)
	for g, group := range m.groups {
		for left := group.Rows; left > 0; left-- {
			out = append(out, int32(g), int32(left))
		}
	}
	return out
}

// Bias returns the bias as float16 for each column, or nil if the matrix has none. The caller owns
// the slice.
func (m *QMatrix) Bias() []byte {
	if m.bias == nil {
		return nil
	}
	return halfBytes(m.bias)
}

// Bytes returns the size of the tensors that [QMatrix.Tensors] gives, without the bias.
func (m *QMatrix) Bytes() int64 {
	n := 4 * int64(m.rows) // q_invperm or g_idx
	for _, group := range m.groups {
		n += int64(group.Rows) * int64(group.Bits) * int64(m.cols) / 8
	}
	if m.format == EXL2 {
		return n + 4*int64(len(m.scaleCodes)) + (2+4)*int64(len(m.groups))
	}
	return n + 4*int64(len(m.zeroCodes)) + 2*int64(len(m.scales))
}

// BitsPerWeight returns the bits of storage for each weight, scales and tables included.
func (m *QMatrix) BitsPerWeight() float64 {
	return 8 * float64(m.Bytes()) / (float64(m.rows) * float64(m.cols))
}

// Dequantize writes the weights as float16 [K, N], in natural order, into dst, which must have
// 2·K·N bytes. It is bit for bit the reconstruction of exllamav2 (except where [LoadGPTQ] says
// otherwise) and the reference for every backend. The bias plays no part.
func (m *QMatrix) Dequantize(dst []byte) error { return m.DequantizeRows(dst, 0, m.rows) }

// DequantizeRows is Dequantize for the natural rows from first to first + n − 1; dst must have
// 2·n·N bytes.
func (m *QMatrix) DequantizeRows(dst []byte, first, n int) error {
	if first < 0 || n < 0 || first > m.rows-n {
		return fmt.Errorf("dequantize rows %d to %d: the matrix has %d", first, first+n-1, m.rows)
	}
	if want := 2 * int64(n) * int64(m.cols); int64(len(dst)) != want {
		return fmt.Errorf("dequantize %d rows of %d columns into %d bytes: want %d", n, m.cols, len(dst), want)
	}
	var (
		line  = make([]float32, m.cols)
		scale = make([]float32, m.cols)
		zero  = make([]int32, m.cols)
		have  = -1 // the group that scale and zero are of
	)
	encode := kernels.Best().Encode
	// In stored order, so that scales and zero points are computed once for each group.
	natural := make([]int, n)
	for i := range natural {
		natural[i] = first + i
	}
	if m.inv != nil {
		slices.SortFunc(natural, func(a, b int) int { return int(m.inv[a]) - int(m.inv[b]) })
	}
	for _, k := range natural {
		g, stream, bit := m.locate(k)
		if g != have {
			m.scaleOf(scale, g, 0)
			m.zeroOf(zero, g, 0)
			have = g
		}
		width := m.groups[g].Bits
		mask := uint32(1)<<width - 1
		low := stream[bit/32*m.cols:][:m.cols]
		shift := bit % 32
		if shift+width <= 32 {
			for j, w := range low {
				line[j] = float32(int32(w>>shift&mask)-zero[j]) * scale[j]
			}
		} else {
			high := stream[(bit/32+1)*m.cols:][:m.cols]
			for j, w := range low {
				w = w>>shift | high[j]<<(32-shift)
				line[j] = float32(int32(w&mask)-zero[j]) * scale[j]
			}
		}
		// The products are exact: 9 and 11 bits make 20. So the weight is rounded once, here.
		encode(dst[2*(k-first)*m.cols:][:2*m.cols], line)
	}
	return nil
}

// locate returns the group of a natural row, the words that its stream begins with, and the bit in
// that stream (of each column) where its code starts.
func (m *QMatrix) locate(k int) (g int, stream []uint32, bit int) {
	i := k
	if m.inv != nil {
		i = int(m.inv[k])
	}
	g = m.groupOf(i)
	if m.format == GPTQ {
		return g, m.words, k * m.groups[g].Bits
	}
	return g, m.words[m.starts[g]*m.cols:], (i - m.groups[g].FirstRow) * m.groups[g].Bits
}

// groupOf returns the group of a stored row: the last that starts at or before it, which is not an
// empty one.
func (m *QMatrix) groupOf(i int) int {
	return sort.Search(len(m.groups), func(g int) bool { return m.groups[g].FirstRow > i }) - 1
}

// scaleOf writes the scales of group g from column first on.
func (m *QMatrix) scaleOf(dst []float32, g, first int) {
	if m.format == GPTQ {
		for j, h := range m.scales[g*m.cols+first:][:len(dst)] {
			dst[j] = h.Float32()
		}
		return
	}
	codes, tables, width := m.scaleCodes[g*(m.cols/8):], m.scaleTable[g*m.sections:], m.cols/m.sections
	for j := range dst {
		n := first + j
		dst[j] = tables[n/width][codes[n/8]>>(n%8*4)&15]
	}
}

// zeroOf writes the zero points of group g from column first on.
func (m *QMatrix) zeroOf(dst []int32, g, first int) {
	width := m.groups[g].Bits
	if m.format == EXL2 {
		for j := range dst {
			dst[j] = 1 << (width - 1)
		}
		return
	}
	mask := uint32(1)<<width - 1
	perRow := len(m.zeroCodes) / len(m.groups)
	codes := m.zeroCodes[g*perRow:][:perRow]
	for j := range dst {
		bit := (first + j) * width
		w := codes[bit/32] >> (bit % 32)
		if bit%32+width > 32 {
			w |= codes[bit/32+1] << (32 - bit%32)
		}
		w &= mask
		switch m.zero {
		case ZeroPlusOne:
			w++
		case ZeroPlusOneWrap:
			w = (w + 1) & mask
		}
		dst[j] = int32(w)
	}
}

// setScales computes the scale of every group and code. If one overflows it returns the group and
// false.
//
// The two roundings to half precision are those of exllamav2, which divides the maxima by 256 in
// half precision, often into the subnormal range, before it multiplies with the squared code.
func (m *QMatrix) setScales(prescale float32) (int, bool) {
	m.scaleTable = make([][16]float32, len(m.scaleMax))
	for g, largest := range m.scaleMax {
		unit := tensor.Float16FromFloat32(largest.Float32() * (prescale / 256))
		for s := range 16 {
			scale := tensor.Float16FromFloat32(float32((s+1)*(s+1)) * unit.Float32())
			if scale.IsInf() || scale.IsNaN() {
				return g, false
			}
			m.scaleTable[g][s] = scale.Float32()
		}
	}
	return 0, true
}

// setInvPerm takes a checked inverse permutation.
func (m *QMatrix) setInvPerm(inv []int32) {
	perm := make([]int32, len(inv))
	identity := true
	for k, i := range inv {
		perm[i] = int32(k)
		identity = identity && int(i) == k
	}
	if !identity {
		m.perm, m.inv = perm, inv
	}
}

// setGroupIndex takes the checked group of every natural row and makes the groups and the stable
// order by group.
func (m *QMatrix) setGroupIndex(index []int32, width, count int) {
	m.groups = make([]Group, count)
	for _, g := range index {
		m.groups[g].Rows++
	}
	next := make([]int32, count) // stored row of the next row of each group
	first := 0
	for g := range m.groups {
		m.groups[g].Bits, m.groups[g].FirstRow = width, first
		next[g] = int32(first)
		first += m.groups[g].Rows
	}
	inv := make([]int32, len(index))
	for k, g := range index {
		inv[k] = next[g]
		next[g]++
	}
	m.setInvPerm(inv)
}

func ordered(p []int32, n int) []int32 {
	if p != nil {
		return slices.Clone(p)
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

func halfBytes(h []tensor.Float16) []byte {
	out := make([]byte, 0, 2*len(h))
	for _, v := range h {
		out = binary.LittleEndian.AppendUint16(out, uint16(v))
	}
	return out
}

// Tensors returns the tensors of the matrix as they are on disk, with names that start with key
// (see [LoadEXL2] and [LoadGPTQ]). Loading them with the same options gives an equal matrix.
func (m *QMatrix) Tensors(key string) TensorMap {
	name := loader{key: key}.name
	out := TensorMap{}
	add := func(suffix string, t tensor.DType, data []byte, shape ...int) {
		s := make([]int64, len(shape))
		for i, d := range shape {
			s[i] = int64(d)
		}
		out[name(suffix)] = Tensor{DType: t, Shape: s, Data: data}
	}
	if m.bias != nil {
		add("bias", tensor.F16, halfBytes(m.bias), m.cols)
	}
	packed, count := len(m.words)/m.cols, len(m.groups)
	if m.format == GPTQ {
		add("qweight", tensor.I32, wordBytes(m.words), packed, m.cols)
		add("qzeros", tensor.I32, wordBytes(m.zeroCodes), count, len(m.zeroCodes)/count)
		add("scales", tensor.F16, halfBytes(m.scales), count, m.cols)
		index := make([]uint32, m.rows)
		for k := range index {
			g, _, _ := m.locate(k)
			index[k] = uint32(g)
		}
		add("g_idx", tensor.I32, wordBytes(index), m.rows)
		return out
	}
	table := make([]byte, 0, 4*count)
	for g, group := range m.groups {
		table = binary.LittleEndian.AppendUint16(table, uint16(group.Bits))
		table = binary.LittleEndian.AppendUint16(table, uint16(m.starts[g]))
	}
	inv := make([]uint32, m.rows)
	for k, i := range m.InvPerm() {
		inv[k] = uint32(i)
	}
	add("q_weight", tensor.I32, wordBytes(m.words), packed, m.cols)
	add("q_groups", tensor.I16, table, 2*count)
	add("q_scale", tensor.I32, wordBytes(m.scaleCodes), count, m.cols/8)
	if m.sections == 1 {
		add("q_scale_max", tensor.F16, halfBytes(m.scaleMax), count)
	} else {
		add("q_scale_max", tensor.F16, halfBytes(m.scaleMax), count, m.sections)
	}
	add("q_invperm", tensor.I32, wordBytes(inv), m.rows)
	return out
}

func wordBytes(words []uint32) []byte {
	out := make([]byte, 0, 4*len(words))
	for _, w := range words {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return out
}
