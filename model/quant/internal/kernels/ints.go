package kernels

import "math"

// Ints are the kernels that multiply in integers. A row of activations becomes 16-bit integers,
// with a power of two for every piece as their scale: the largest has 15 bits, and half-precision
// numbers from 1/16 of the largest on are exact. Sums of a piece are exact, so all implementations
// give the same bits.
//
// The activations of several rows for a piece are words, all rows side by side:
//
//	scales  [rows] float32
//	starts  [rows] int32: minus 2^(Bits−1) times the sum of the integers
//	sums    [rows] float32: the sum of the integers
//	pairs   [Rows/2][rows] two int16, in the order of [Ints.Order]
type Ints struct {
	// Order has, by width, which of 32 rows comes where among the pairs.
	Order *[9][StepRows]uint8

	// Rows are the numbers of rows of activations that Mul takes, ascending, the first 1.
	Rows []int

	// Quantize makes len(src)/2 pairs of numbers in half precision, and returns their scale and
	// their sum. It reports false if one of them is not finite; then the pairs are undefined.
	Quantize func(dst []uint32, src []uint16) (scale float32, sum int32, ok bool)

	// Mul adds the product of several rows of activations with count pieces to y, [rows, Cols]. The
	// pieces have the same width and as many rows as the first, and are one after the other in its
	// words; so are the activations.
	Mul func(y []float32, x []uint32, rows int, first Piece, count int)
}

// IntWords returns the words of the activations of some rows for a piece.
func IntWords(rows, pieceRows int) int { return rows * (3 + pieceRows/2) }

// PutInts stores the activations of row i of several.
func PutInts(x []uint32, rows, i, bits int, pairs []uint32, scale float32, sum int32) {
	x[i] = math.Float32bits(scale)
	x[rows+i] = uint32(-sum << (bits - 1))
	x[2*rows+i] = math.Float32bits(float32(sum)) // exact: it has less than 24 bits
	x = x[3*rows+i:]
	if rows == 1 {
		copy(x, pairs)
		return
	}
	for k, v := range pairs {
		x[k*rows] = v
	}
}
