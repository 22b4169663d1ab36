//go:build amd64 || arm64

package kernels

import (
	"github.com/kiln-build/kiln/model/tensor"
)

// panelRows is how many rows of activations the assembly takes at once.
const panelRows = 6

// assembly is a set of functions without checks. Pointers to scales and sums are nil where there are none.
type assembly struct {
	name     string
	cols     int                                                                // of a block, always
	rows     []int                                                              // that mulCodes has
	mulCodes [9][9]func(y, x *float32, words *uint32, depth int, sums *float32) // by width and rows
	unpack   [9]func(panel *float32, words *uint32, rows int)
	mulPanel [panelRows + 1]func(y, a, panel *float32, depth int, scales *uint32, sums *float32) // by rows
	round    func(panel *float32, scales *uint32, rows, shifted int)
	encode   func(dst *byte, src *float32, n int) // n is a multiple of convertStep
	decode   func(dst *float32, src *byte, n int)
	read     func(words *uint32, n int) uint32 // n is a multiple of readStep
}

const (
	convertStep = 32
	readStep    = 128
)

// set adds the checks.
func (a *assembly) set() Set {
	check := func(ok bool) {
		if !ok {
			panic("kernels: slices do not fit the piece")
		}
	}
	piece := func(p Piece) {
		check(p.Cols == a.cols && p.Rows > 0 && p.Rows%StepRows == 0 && len(p.Words) >= p.Size())
	}
	return Set{
		Name: a.name, BlockCols: a.cols, StepCols: a.cols, CodesRows: a.rows, PanelRows: panelRows,
		MulCodes: func(y, x []float32, rows int, p Piece, sums []float32) {
			piece(p)
			check(len(y) >= rows*p.Cols && len(x) >= rows*p.Rows)
			var s *float32
			if p.Shifted {
				s = &sums[:rows][0]
			}
			a.mulCodes[p.Bits][rows](&y[0], &x[0], &p.Words[0], p.Rows, s)
		},
		Unpack: func(panel []float32, p Piece) {
			piece(p)
			check(len(panel) >= p.Rows*p.Cols)
			a.unpack[p.Bits](&panel[0], &p.Words[0], p.Rows)
		},
		Round: func(panel []float32, p Piece) {
			piece(p)
			check(len(panel) >= p.Rows*p.Cols)
			shifted := 0
			if p.Shifted {
				shifted = 1
			}
			a.round(&panel[0], &p.Words[p.codes()], p.Rows, shifted)
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
