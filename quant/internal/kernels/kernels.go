// Package kernels has the inner loops of the CPU backend of package quant.
//
// A [Set] is one implementation of all of them. [Portable] is plain Go, runs everywhere and is what others are tested
// against; [Best] is the fastest that this build and this processor have. Sets for one instruction set are in files with
// its build constraint and add themselves to the list in best_*.go.
//
// Kernels do not check their arguments beyond what keeps memory safe: a slice that is too short panics.
package kernels

// BlockRows is the number of rows that the codes of any width fill whole words with: 32 rows of b bits are b words.
const BlockRows = 32

// Codes are packed integers of one width, [Rows, Cols]. The codes of one column are a stream of bits, lowest first, in
// words that are Stride apart, so 32 rows take Bits words.
type Codes struct {
	Words  []uint32 // the first is that of the first row and column
	Stride int      // words from one packed row to the next
	Bits   int      // 2, 3, 4, 5, 6 or 8
	Rows   int      // a multiple of BlockRows
	Cols   int
}

// Dense is a matrix of float32, Stride apart from row to row.
type Dense struct {
	Data   []float32
	Stride int
	Rows   int
	Cols   int
}

// Row returns row i.
func (d Dense) Row(i int) []float32 { return d.Data[i*d.Stride:][:d.Cols] }

// Set is an implementation of the kernels. Functions of a Set may be called by several goroutines at once. An element of a
// result depends on its row of x and its column of codes or weights only, never on what else is in the same call.
type Set struct {
	// Name says which implementation it is, such as "portable".
	Name string

	// MulCodes adds x · (codes − 2^(Bits−1)) to acc. x is [M, codes.Rows] and acc is [M, codes.Cols].
	MulCodes func(acc, x Dense, codes Codes)

	// Unpack writes codes − 2^(Bits−1) to dst, which is [codes.Rows, codes.Cols].
	Unpack func(dst Dense, codes Codes)

	// MulDense adds x · w to acc. x is [M, w.Rows] and acc is [M, w.Cols]; w.Rows is a multiple of BlockRows.
	MulDense func(acc, x, w Dense)

	// MulAdd adds a[i]·b[i] to y[i]. All have one length.
	MulAdd func(y, a, b []float32)

	// MinCols is the number of columns from which on MulCodes is faster than Unpack and MulDense.
	MinCols int
}

// Best returns the fastest set for this processor. Sets are never changed.
func Best() *Set { return best() }
