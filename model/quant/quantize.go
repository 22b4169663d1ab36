package quant

import (
	"errors"
	"fmt"
	"math"

	"github.com/kiln-build/kiln/model/tensor"
)

// EXL2Spec says how to quantize a matrix.
type EXL2Spec struct {
	// Groups are the widths and sizes in stored order: widths 2, 3, 4, 5, 6 or 8 and descending,
	// rows a multiple of 32, all rows together K. FirstRow is not looked at. [MixGroups] makes them
	// from fractions.
	Groups []Group
	// Perm is the natural row of each stored row, so rows that need a large width come first. Nil
	// means natural order.
	Perm []int32
	// Bias is added to the matrix as it is: N float32, rounded to half precision. Nil means none.
	Bias []float32
}

// Share is a part of the rows of a matrix.
type Share struct {
	Bits      int
	GroupRows int     // rows of a group, a multiple of 32
	Fraction  float64 // of all rows; rounded up to whole groups
}

// MixGroups divides k rows, a multiple of 32, as exllamav2's converter does: each share gets whole
// groups until its fraction is covered or rows run out, and the last share gets what is left. So
// only the last group may be short.
func MixGroups(k int, shares ...Share) ([]Group, error) {
	if k <= 0 || k%32 != 0 || k > maxEXL2Rows {
		return nil, fmt.Errorf("mix groups of %d rows: want a multiple of 32 up to %d", k, maxEXL2Rows)
	}
	var groups []Group
	first := 0
	for i, s := range shares {
		if !validWidth(s.Bits) || s.GroupRows <= 0 || s.GroupRows%32 != 0 || s.GroupRows > maxGroupRows || !(s.Fraction >= 0) {
			return nil, fmt.Errorf("mix groups: share %d: width %d, groups of %d rows, fraction %v", i, s.Bits, s.GroupRows, s.Fraction)
		}
		want := min(s.Fraction*float64(k), float64(k-first))
		if i == len(shares)-1 {
			want = float64(k - first)
		}
		for covered := 0; float64(covered) < want; {
			g := Group{Bits: s.Bits, FirstRow: first, Rows: min(s.GroupRows, k-first)}
			groups = append(groups, g)
			covered += g.Rows
			first += g.Rows
		}
	}
	if first != k {
		return nil, errors.New("mix groups: no shares")
	}
	return groups, nil
}

// QuantizeEXL2 rounds a matrix of k rows and n columns in natural order to EXL2. Every scale
// becomes the better of the two steps next to the one that covers its weights, and then every
// weight goes to the nearest code. Errors are not carried over to other weights, so what the matrix
// will be used for plays no part. As in exllamav2's converter, columns of zeros are added up to a
// multiple of 32, so [QMatrix.Cols] may be more than n.
//
// A weight that is not finite is an error, and so are weights so large that their scale is not
// finite in half precision. Scales below the smallest half-precision number become 0.
func QuantizeEXL2(w []float32, k, n int, spec EXL2Spec) (*QMatrix, error) {
	if k <= 0 || n <= 0 || k > maxEXL2Rows || n > maxDimension-32 || int64(len(w)) != int64(k)*int64(n) {
		return nil, fmt.Errorf("quantize: %d weights for %d rows and %d columns", len(w), k, n)
	}
	for i, v := range w {
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("quantize: weight in row %d, column %d is %v", i/n, i%n, v)
		}
	}
	m := &QMatrix{format: EXL2, rows: k, cols: (n + 31) / 32 * 32, sections: 1}
	packed := 0
	total := 0
	for i, g := range spec.Groups {
		switch {
		case !validWidth(g.Bits):
			return nil, fmt.Errorf("quantize: group %d has width %d: want 2, 3, 4, 5, 6 or 8", i, g.Bits)
		case i > 0 && g.Bits > spec.Groups[i-1].Bits:
			return nil, fmt.Errorf("quantize: group %d has width %d after width %d: want descending widths", i, g.Bits, spec.Groups[i-1].Bits)
		case g.Rows <= 0 || g.Rows%32 != 0 || g.Rows > min(k-total, maxGroupRows):
			return nil, fmt.Errorf("quantize: group %d has %d rows: want a multiple of 32, at most %d", i, g.Rows, min(k-total, maxGroupRows))
		}
		m.groups = append(m.groups, Group{Bits: g.Bits, FirstRow: total, Rows: g.Rows})
		m.starts = append(m.starts, packed)
		total += g.Rows
		packed += g.Rows / 32 * g.Bits
	}
	if total != k {
		return nil, fmt.Errorf("quantize: groups have %d rows: want %d", total, k)
	}
	if spec.Perm != nil {
		if err := m.setPerm(spec.Perm); err != nil {
			return nil, err
		}
	}
	if spec.Bias != nil {
		if len(spec.Bias) != n {
			return nil, fmt.Errorf("quantize: bias has %d elements: want %d", len(spec.Bias), n)
		}
		m.bias = make([]tensor.Float16, m.cols)
		for j, v := range spec.Bias {
			if m.bias[j] = tensor.Float16FromFloat32(v); m.bias[j].IsInf() || m.bias[j].IsNaN() {
				return nil, fmt.Errorf("quantize: bias of column %d is %v", j, v)
			}
		}
	}

	m.words = make([]uint32, packed*m.cols)
	m.scaleCodes = make([]uint32, len(m.groups)*m.cols/8)
	m.scaleMax = make([]tensor.Float16, len(m.groups))
	q := quantizer{m: m, w: w, n: n, ideal: make([]float64, len(m.groups)*m.cols), scale: make([]float32, m.cols)}
	for g := range m.groups {
		q.chooseMax(g)
	}
	if g, ok := m.setScales(1); !ok {
		return nil, fmt.Errorf("quantize: scale of group %d overflows half precision", g)
	}
	for g := range m.groups {
		q.chooseScales(g)
		q.pack(g)
	}
	return m, nil
}

// setPerm checks and takes a permutation.
func (m *QMatrix) setPerm(perm []int32) error {
	if len(perm) != m.rows {
		return fmt.Errorf("quantize: permutation has %d elements: want %d", len(perm), m.rows)
	}
	inv := make([]int32, m.rows)
	for i := range inv {
		inv[i] = -1
	}
	for i, k := range perm {
		if k < 0 || int(k) >= m.rows || inv[k] >= 0 {
			return fmt.Errorf("quantize: permutation[%d] is %d: want every row from 0 to %d once", i, k, m.rows-1)
		}
		inv[k] = int32(i)
	}
	m.setInvPerm(inv)
	return nil
}

type quantizer struct {
	m     *QMatrix
	w     []float32
	n     int       // columns of w
	ideal []float64 // [group][column] scales with which no weight is cut off
	scale []float32 // of one group, as a reader will see them
}

// row returns the weights of a row of group g.
func (q *quantizer) row(g, i int) []float32 {
	k := q.m.groups[g].FirstRow + i
	if q.m.perm != nil {
		k = int(q.m.perm[k])
	}
	return q.w[k*q.n:][:q.n]
}

// chooseMax sets the largest scale of a group. A reader divides it by 256 in half precision, where
// few bits are left of small numbers; so it is rounded up to what survives that.
func (q *quantizer) chooseMax(g int) {
	group, ideal := q.m.groups[g], q.ideal[g*q.m.cols:][:q.m.cols]
	for i := range group.Rows {
		for j, v := range q.row(g, i) {
			ideal[j] = max(ideal[j], math.Abs(float64(v)))
		}
	}
	largest := 0.0
	for j := range ideal {
		ideal[j] /= float64(int(1)<<group.Bits-1) / 2
		largest = max(largest, ideal[j])
	}
	unit := tensor.Float16FromFloat32(float32(largest / 256))
	if float64(unit.Float32()) < largest/256 {
		unit++ // the next half-precision number; past the last it is infinite
	}
	q.m.scaleMax[g] = tensor.Float16FromFloat32(256 * unit.Float32())
}

// chooseScales sets the scale codes of a group: of the two next to the ideal scale the one with the
// smaller sum of squared errors. The lower cuts off the largest weights, the upper is coarser for
// all.
func (q *quantizer) chooseScales(g int) {
	m, group := q.m, q.m.groups[g]
	top := float64(m.scaleTable[g][15])
	if top == 0 {
		return
	}
	codes := m.scaleCodes[g*(m.cols/8):]
	for j, ideal := range q.ideal[g*m.cols:][:q.n] {
		exact := 16*math.Sqrt(ideal/top) - 1
		lower := min(max(int(math.Floor(exact)), 0), 15)
		upper := min(max(int(math.Ceil(exact)), 0), 15)
		code := upper
		if lower != upper {
			var errLower, errUpper float64
			for i := range group.Rows {
				w := q.row(g, i)[j]
				errLower += roundingError(w, m.scaleTable[g][lower], group.Bits)
				errUpper += roundingError(w, m.scaleTable[g][upper], group.Bits)
			}
			if errLower < errUpper {
				code = lower
			}
		}
		codes[j/8] |= uint32(code) << (j % 8 * 4)
	}
}

// encode returns the code that is nearest to w.
func encode(w, scale float32, bits int) uint32 {
	center := float64(int(1) << (bits - 1))
	if scale == 0 {
		return uint32(center)
	}
	return uint32(min(max(center+math.RoundToEven(float64(w)/float64(scale)), 0), 2*center-1))
}

func roundingError(w, scale float32, bits int) float64 {
	e := float64(w) - float64(scale)*float64(int(encode(w, scale, bits))-1<<(bits-1))
	return e * e
}

// pack rounds the weights of a group.
func (q *quantizer) pack(g int) {
	m, group := q.m, q.m.groups[g]
	m.scaleOf(q.scale, g, 0)
	words := m.words[m.starts[g]*m.cols:]
	for i := range group.Rows {
		bit := i * group.Bits
		low, shift := words[bit/32*m.cols:][:m.cols], bit%32
		row := q.row(g, i)
		for j := range m.cols {
			w := float32(0)
			if j < len(row) {
				w = row[j]
			}
			code := encode(w, q.scale[j], group.Bits)
			low[j] |= code << shift
			if shift+group.Bits > 32 {
				words[(bit/32+1)*m.cols+j] |= code >> (32 - shift)
			}
		}
	}
}
