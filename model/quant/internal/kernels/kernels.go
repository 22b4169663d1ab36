// Package kernels has the inner loops of the CPU backend of package quant.
//
// A [Set] is one implementation of all of them. [Portable] is plain Go, runs everywhere and is what
// others are tested against; the sets for one instruction set are assembly that the programs in asm
// write. [Sets] returns those that this processor can run.
//
// # Layout
//
// A matrix is divided into blocks of columns and each block into pieces of rows that share their
// scales. A piece is everything about its weights, one after the other in memory, so a product
// walks through a block from start to end:
//
//	codes   [Rows/32·Bits][Cols] words; the codes of a column are a stream of bits, lowest first
//	scales  [Cols] float16, two a word
//	shifts  [Cols] float16, if Shifted: 2^(Bits−1) minus the zero point
//
// The weight of a code is scale · (code − 2^(Bits−1) + shift).
//
// Kernels do not check their arguments beyond what keeps memory safe: a slice that is too short
// panics.
package kernels

//go:generate go run -C asm ./amd64 -pkg kernels -out ../kernels_amd64.s -stubs ../kernels_amd64.go
//go:generate go run -C asm ./arm64 -out ../kernels_arm64.s -stubs ../kernels_arm64.go

const (
	// StepRows divides the rows of every piece: 32 codes of any width fill whole words.
	StepRows = 32
	// MaxPieceRows is the most rows of a piece. A panel with them and a block of columns fits the
	// first-level cache.
	MaxPieceRows = 128
)

// Piece is a part of a block of columns. Rows is a multiple of [StepRows].
type Piece struct {
	Words   []uint32
	Bits    int // 2, 3, 4, 5, 6 or 8
	Rows    int
	Cols    int // of the block
	Shifted bool
}

// Size returns the number of words.
func (p Piece) Size() int {
	n := p.codes() + p.Cols/2
	if p.Shifted {
		n += p.Cols / 2
	}
	return n
}

// codes returns the number of words before the scales.
func (p Piece) codes() int { return p.Rows / StepRows * p.Bits * p.Cols }

// Scales returns the words of the scales and of the shifts; those are nil if there are none.
func (p Piece) Scales() (scales, shifts []uint32) {
	scales = p.Words[p.codes():p.Size()]
	if p.Shifted {
		scales, shifts = scales[:p.Cols/2], scales[p.Cols/2:]
	}
	return scales, shifts
}

// Set is an implementation of the kernels. Functions of a Set may be called by several goroutines
// at once. An element of a result depends on its row of activations and its column of weights only,
// never on what else is in the same call.
type Set struct {
	// Name says which implementation it is, such as "portable".
	Name string

	// BlockCols is the most columns of a block and StepCols divides their number, which is even.
	BlockCols, StepCols int

	// PanelRows is the most rows of activations that MulPanel takes. 0 means that it takes any
	// number, and that multiplying row by row with MulCodes is faster.
	PanelRows int

	// MulCodes adds the product of one row of activations with a piece to y. If the piece is
	// shifted, sums has the sum of the activations; otherwise it is nil.
	MulCodes func(y, x []float32, p Piece, sums []float32)

	// Unpack writes code − 2^(Bits−1) of every code to panel, [Rows, Cols].
	Unpack func(panel []float32, p Piece)

	// Round makes the weights of what Unpack wrote, rounded to half precision.
	Round func(panel []float32, p Piece)

	// MulPanel is MulCodes for several rows, with a panel. x is [Rows, rows]: the activations of
	// all rows for one row of weights are side by side. If scaled, the panel is what Unpack wrote
	// and the scales are taken from the piece; if not, it is what Round made of it. Scaled, it
	// gives the same bits as MulCodes, unless PanelRows is 0.
	MulPanel func(y, x, panel []float32, rows int, p Piece, scaled bool, sums []float32)

	// Encode rounds to little-endian float16, which may change the payload of a NaN, and Decode
	// widens it.
	Encode func(dst []byte, src []float32)
	Decode func(dst []float32, src []byte)

	// Ints is nil where there are none.
	Ints *Ints

	// Read reads all words and does next to nothing with them.
	Read func(words []uint32) uint32
}

// Sets returns the sets that this processor can run, the fastest last. They are never changed.
func Sets() []*Set { return append([]*Set{Portable()}, native()...) }

// Best returns the fastest set.
func Best() *Set {
	all := Sets()
	return all[len(all)-1]
}
