//go:build amd64 || arm64

package kernels

import (
	"math"

	"github.com/kiln-build/kiln/model/tensor"
)

// panelRows is how many rows of activations the assembly takes at once.
const panelRows = 6

// assembly is a set of functions without checks. Pointers to scales and sums are nil where there
// are none.
type assembly struct {
	cols     int                                                             // of a block, always
	mulCodes [9]func(y, x *float32, words *uint32, depth int, sums *float32) // by width
	unpack   [9]func(panel *float32, words *uint32, rows int)
	mulPanel [panelRows + 1]func(y, a, panel *float32, depth int, scales *uint32, sums *float32) // by rows
	round    func(panel *float32, scales *uint32, rows, shifted int)
	encode   func(dst *byte, src *float32, n int) // n is a multiple of convertStep
	decode   func(dst *float32, src *byte, n int)
	read     func(words *uint32, n int) uint32 // n is a multiple of readStep
}

// intAssembly is what [Ints] is made of.
type intAssembly struct {
	rows     []int
	mul      [9][9]func(y *float32, x, words *uint32, depth, pieces, shifted int) // by width and rows
	order    *[9][StepRows]uint8
	quantize func(dst *uint32, src *uint16, n int) (largest, sum uint32) // n is a multiple of 16
}

const (
	convertStep = 32
	readStep    = 128
)

func check(ok bool) {
	if !ok {
		panic("kernels: slices do not fit the piece")
	}
}

// piece checks count pieces in the words of the first.
func (a *assembly) piece(p Piece, count int) {
	check(p.Cols == a.cols && p.Rows > 0 && p.Rows%StepRows == 0 && count > 0 && len(p.Words) >= count*p.Size())
}

// shifted is how the assembly is told.
func (p Piece) shifted() int {
	if p.Shifted {
		return 1
	}
	return 0
}

func (a *assembly) withInts(i *intAssembly) *Ints {
	if i == nil {
		return nil
	}
	return &Ints{
		Order: i.order, Rows: i.rows,
		Quantize: func(dst []uint32, src []uint16) (scale float32, sum int32, ok bool) {
			check(len(src)%StepRows == 0 && len(src) > 0 && len(dst) >= len(src)/2)
			largest, total := i.quantize(&dst[0], &src[0], len(src))
			exponent := max(1, largest>>10)
			return math.Float32frombits((127 - 29 + exponent) << 23), int32(total), exponent < 31
		},
		Mul: func(y []float32, x []uint32, rows int, first Piece, count int) {
			a.piece(first, count)
			check(len(y) >= rows*first.Cols && len(x) >= count*IntWords(rows, first.Rows))
			i.mul[first.Bits][rows](&y[0], &x[0], &first.Words[0], first.Rows, count, first.shifted())
		},
	}
}

// set adds the checks.
func (a *assembly) set(name string, ints *intAssembly) Set {
	piece := func(p Piece) { a.piece(p, 1) }
	return Set{
		Ints: a.withInts(ints),
		Name: name, BlockCols: a.cols, StepCols: a.cols, PanelRows: panelRows,
		MulCodes: func(y, x []float32, p Piece, sums []float32) {
			piece(p)
			check(len(y) >= p.Cols && len(x) >= p.Rows)
			var s *float32
			if p.Shifted {
				s = &sums[0]
			}
			a.mulCodes[p.Bits](&y[0], &x[0], &p.Words[0], p.Rows, s)
		},
		Unpack: func(panel []float32, p Piece) {
			piece(p)
			check(len(panel) >= p.Rows*p.Cols)
			a.unpack[p.Bits](&panel[0], &p.Words[0], p.Rows)
		},
		Round: func(panel []float32, p Piece) {
			piece(p)
			check(len(panel) >= p.Rows*p.Cols)
			a.round(&panel[0], &p.Words[p.codes()], p.Rows, p.shifted())
		},
		MulPanel: func(y, x, panel []float32, rows int, p Piece, scaled bool, sums []float32) {
			piece(p)
			check(len(y) >= rows*p.Cols && len(x) >= rows*p.Rows && len(panel) >= p.Rows*p.Cols)
			var scales *uint32
			var s *float32
			if scaled {
				scales = &p.Words[p.codes()]
				if p.Shifted {
					s = &sums[:rows][0]
				}
			}
			a.mulPanel[rows](&y[0], &x[0], &panel[0], p.Rows, scales, s)
		},
		Encode: func(dst []byte, src []float32) {
			check(len(dst) == 2*len(src))
			n := len(src) / convertStep * convertStep
			if n > 0 {
				a.encode(&dst[0], &src[0], n)
			}
			tensor.EncodeF16(dst[2*n:], src[n:])
		},
		Decode: func(dst []float32, src []byte) {
			check(len(src) == 2*len(dst))
			n := len(dst) / convertStep * convertStep
			if n > 0 {
				a.decode(&dst[0], &src[0], n)
			}
			tensor.DecodeF16(dst[n:], src[2*n:])
		},
		Read: func(words []uint32) uint32 {
			n := len(words) / readStep * readStep
			out := read(words[n:])
			if n > 0 {
				out |= a.read(&words[0], n)
			}
			return out
		},
	}
}
