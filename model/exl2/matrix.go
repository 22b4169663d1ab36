package exl2

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/kiln-build/kiln/model/tensor"
)

// Limits of the format: the loader keeps rows of the packed matrix in 16 signed bits and the permutation in 16 unsigned bits.
const (
	maxPackedRows = 32767
	maxMatrixRows = 65535
)

// matrixSuffixes are the tensors of one quantized linear layer, in byte order of their names.
var matrixSuffixes = []struct {
	name  string
	dtype tensor.DType
	dims  int
}{
	{"bias", tensor.F16, 1},
	{"q_groups", tensor.I16, 1},
	{"q_invperm", tensor.I32, 1},
	{"q_scale", tensor.I32, 2},
	{"q_scale_max", tensor.F16, 1},
	{"q_weight", tensor.I32, 2},
}

func isMatrixSuffix(name string) bool {
	for _, s := range matrixSuffixes {
		if s.name == name {
			return true
		}
	}
	return false
}

// group is one group of rows of a quantized matrix.
type group struct {
	bits int
	rows int // rows of the unpacked matrix
}

// matrix is what the small tensors of a quantized linear layer say about it.
type matrix struct {
	rows, cols int // K and N
	groups     []group
	bias       bool
	bytes      int64 // of all its tensors
}

// weights returns the number of quantized weights.
func (m *matrix) weights() int64 { return int64(m.rows) * int64(m.cols) }

// tensorData gives the bytes of a tensor by its full name.
type tensorData func(name string) (io.Reader, error)

// readMatrix checks the tensors of the layer key against each other and against the invariants of the format. It reads the
// group table and the permutation, nothing else. The matrix is usable only without problems; file is for messages.
func readMatrix(file, key string, lookup func(name string) (tensorInfo, bool), data tensorData) (*matrix, Problems) {
	var ps Problems
	t := map[string]tensorInfo{}
	m := &matrix{}
	for _, s := range matrixSuffixes {
		name := key + "." + s.name
		info, ok := lookup(name)
		if !ok {
			if s.name != "bias" {
				ps.add(MissingTensor, file, name, "not in the file")
			}
			continue
		}
		if info.DType != s.dtype {
			ps.add(BadDType, file, name, "dtype %s, want %s", info.DType, s.dtype)
		}
		if len(info.Shape) != s.dims {
			ps.add(BadShape, file, name, "shape %v, want %d dimensions", info.Shape, s.dims)
		}
		t[s.name] = info
		m.bytes += info.Size
	}
	if len(ps) > 0 {
		return nil, ps
	}
	_, m.bias = t["bias"]

	groups := t["q_groups"].Shape[0] / 2
	rows := t["q_invperm"].Shape[0]
	packed, cols := t["q_weight"].Shape[0], t["q_weight"].Shape[1]
	shape := func(suffix string, want ...int64) {
		if got := t[suffix].Shape; !slices.Equal(got, want) {
			ps.add(BadShape, file, key+"."+suffix, "shape %v, want %v", got, want)
		}
	}
	switch {
	case t["q_groups"].Shape[0] != 2*groups || groups == 0:
		ps.add(BadShape, file, key+".q_groups", "shape %v, want two entries for each group", t["q_groups"].Shape)
	case packed > maxPackedRows || packed < 1:
		ps.add(BadMatrix, file, key+".q_weight", "%d packed rows, want 1 to %d", packed, maxPackedRows)
	case rows > maxMatrixRows:
		ps.add(BadMatrix, file, key+".q_invperm", "%d rows, at most %d are possible", rows, maxMatrixRows)
	case groups > packed:
		ps.add(BadMatrix, file, key+".q_groups", "%d groups in %d packed rows", groups, packed)
	case cols%32 != 0 || cols == 0:
		ps.add(BadShape, file, key+".q_weight", "%d columns, want a multiple of 32", cols)
	}
	shape("q_scale", groups, cols/8)
	shape("q_scale_max", groups)
	if m.bias {
		shape("bias", cols)
	}
	if len(ps) > 0 {
		return nil, ps
	}
	m.rows, m.cols = int(rows), int(cols)

	read := func(suffix string) ([]byte, bool) {
		r, err := data(key + "." + suffix)
		buf := make([]byte, t[suffix].Size)
		if err == nil {
			_, err = io.ReadFull(r, buf)
		}
		if err != nil {
			ps.add(BadFile, file, key+"."+suffix, "%v", err)
		}
		return buf, err == nil
	}
	if buf, ok := read("q_groups"); ok {
		var err error
		if m.groups, err = parseGroups(buf, int(packed), m.rows); err != nil {
			ps.add(BadMatrix, file, key+".q_groups", "%v", err)
		}
	}
	if buf, ok := read("q_invperm"); ok {
		if err := checkPermutation(buf); err != nil {
			ps.add(BadMatrix, file, key+".q_invperm", "%v", err)
		}
	}
	return m, ps
}

// parseGroups reads the pairs (bits, first packed row) of a matrix with the given packed and unpacked rows.
func parseGroups(table []byte, packed, rows int) ([]group, error) {
	n := len(table) / 4
	entry := func(i int) (bits, first int) {
		return int(int16(binary.LittleEndian.Uint16(table[4*i:]))), int(int16(binary.LittleEndian.Uint16(table[4*i+2:])))
	}
	groups := make([]group, n)
	total := 0
	for i := range groups {
		bits, first := entry(i)
		next := packed
		if i+1 < n {
			_, next = entry(i + 1)
		}
		switch {
		case bits < 2 || bits > 8 || bits == 7:
			return nil, fmt.Errorf("group %d has %d bits, want 2, 3, 4, 5, 6 or 8", i, bits)
		case i > 0 && bits > groups[i-1].bits:
			return nil, fmt.Errorf("group %d has %d bits after one of %d; they never increase", i, bits, groups[i-1].bits)
		case i == 0 && first != 0:
			return nil, fmt.Errorf("group 0 starts at packed row %d, want 0", first)
		case next <= first || next > packed:
			return nil, fmt.Errorf("group %d covers packed rows %d to %d of %d", i, first, next, packed)
		case (next-first)*32%bits != 0:
			return nil, fmt.Errorf("group %d: %d packed rows hold no whole number of rows of %d bits", i, next-first, bits)
		}
		groups[i] = group{bits: bits, rows: (next - first) * 32 / bits}
		total += groups[i].rows
	}
	if total != rows {
		return nil, fmt.Errorf("the groups have %d rows, the permutation %d", total, rows)
	}
	return groups, nil
}

// checkPermutation checks that the 32-bit integers are 0…n−1 in some order.
func checkPermutation(data []byte) error {
	n := len(data) / 4
	seen := make([]bool, n)
	for i := range n {
		v := int32(binary.LittleEndian.Uint32(data[4*i:]))
		if v < 0 || int(v) >= n {
			return fmt.Errorf("entry %d is %d, not a row of %d", i, v, n)
		}
		if seen[v] {
			return fmt.Errorf("row %d occurs twice; not a permutation", v)
		}
		seen[v] = true
	}
	return nil
}
