package quant

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// ErrClosed is the error for a [Weight] or [Matrix] that was closed before.
var ErrClosed = errors.New("already closed")

// Backend multiplies with quantized matrices on one device. Its methods may be called by several
// goroutines at once.
//
// The same call on the same backend gives the same bits every time.
type Backend interface {
	// Name says which device and kernels these are, for people.
	Name() string

	// Upload brings a matrix into the form that the device computes with. The QMatrix is not
	// changed and need not be kept.
	Upload(ctx context.Context, m *QMatrix) (Weight, error)

	// NewMatrix returns a matrix of half-precision zeros on the device. Both numbers may be 0.
	NewMatrix(rows, cols int) (Matrix, error)

	// Gemm computes dst = x·W, or dst += x·W, with a bias added if there is one. x is [M, K], dst
	// is [M, N], and any M is allowed, also 0. Products are summed in float32 or better, and the
	// result with bias and old value is rounded to half precision once. An activation that is not
	// finite makes the elements of its row infinite or NaN, and no others.
	//
	// x, the weight and the bias are only read; dst must not share memory with x. Matrices and
	// weight must be of this backend. A wrong argument is an error and leaves dst as it was; after
	// the error of a ctx that ended, dst is undefined.
	Gemm(ctx context.Context, dst, x Matrix, w Weight, opts GemmOptions) error
}

// Weight is a quantized matrix on a device.
type Weight interface {
	// Rows returns K and Cols returns N.
	Rows() int
	Cols() int
	// Bytes returns the memory that the weight takes on the device.
	Bytes() int64
	// Close gives the memory back. A product with the weight fails with ErrClosed afterwards, and
	// so does a second Close. Products that have begun are not disturbed.
	Close() error
}

// Matrix is a dense matrix of half-precision numbers on a device.
type Matrix interface {
	Rows() int
	Cols() int
	// CopyFrom replaces all elements by float16 from src, which has 2 bytes for each.
	CopyFrom(src []byte) error
	// CopyTo writes all elements to dst as float16, 2 bytes each.
	CopyTo(dst []byte) error
	// Close gives the memory back; uses afterwards fail with ErrClosed.
	Close() error
}

// GemmOptions change what [Backend.Gemm] computes. The zero value overwrites dst, adds the bias of
// the weight and leaves the path to the backend.
type GemmOptions struct {
	// Accumulate adds to dst instead of overwriting it.
	Accumulate bool
	// Bias replaces the bias of the weight: float16, 2 bytes for each column. Nil means the
	// weight's own, if it has one.
	Bias []byte
	// NoBias leaves out any bias, as LoRAX does, whose callers add it.
	NoBias bool
	// Path decides which of two roundings of the weight is computed with.
	Path Path
}

// Path is how a product treats the weights. Both ways are compatible with the formats; they differ
// by at most 2⁻¹¹ of each weight.
type Path uint8

const (
	// PathAuto leaves the choice to the backend.
	PathAuto Path = iota
	// PathFused multiplies with code − zero and then with the scale, so no weight is rounded. It is
	// what force_cuda asks for in exllamav2 and LoRAX.
	PathFused
	// PathReconstruct multiplies with the weights that [QMatrix.Dequantize] gives, rounded to half
	// precision.
	PathReconstruct
)

// String returns "auto", "fused" or "reconstruct".
func (p Path) String() string {
	switch p {
	case PathAuto:
		return "auto"
	case PathFused:
		return "fused"
	case PathReconstruct:
		return "reconstruct"
	}
	return fmt.Sprintf("Path(%d)", uint8(p))
}

// Dialect is a program whose reading of the formats is followed where programs differ. For callers
// that stand in for one of them it also answers which path the program takes and how much scratch
// memory it asks for. The backends of kiln have their own memory and need none of that.
type Dialect uint8

const (
	// Exllamav2 is exllamav2, at commit da07facd.
	Exllamav2 Dialect = iota
	// LoRAX is the extension exllamav2_kernels of LoRAX, at commit a7394ba3.
	LoRAX
)

// String returns the name of the program.
func (d Dialect) String() string {
	switch d {
	case Exllamav2:
		return "exllamav2"
	case LoRAX:
		return "lorax"
	}
	return fmt.Sprintf("Dialect(%d)", uint8(d))
}

// scratchElements is the most that exllamav2's loader allows for the reconstructed matrix.
const scratchElements = 1 << 29

// MaxDQRows returns the argument max_dq_rows that exllamav2's loader gives for a matrix of n
// columns. LoRAX has no such argument; the result then has no meaning but does no harm.
func (d Dialect) MaxDQRows(n int) int {
	if n <= 0 {
		return 0
	}
	return scratchElements / n
}

// Path returns the path that the program takes for a product with m rows of activations and k rows
// of weights. forceCUDA and maxDQRows are the arguments of gemm_half_q_half and make_q_matrix;
// LoRAX has no maxDQRows.
func (d Dialect) Path(m, k, maxDQRows int, forceCUDA bool) Path {
	if d == LoRAX {
		if m <= 50 || forceCUDA {
			return PathFused
		}
		return PathReconstruct
	}
	// The matrix is reconstructed in one piece, in steps of 128 rows, or not at all.
	if step := maxDQRows / 128 * 128; m <= 32 || forceCUDA || k > step {
		return PathFused
	}
	return PathReconstruct
}

// ScratchElements returns how many half-precision elements temp_dq must have at least for a matrix
// of k rows and n columns. It is math.MaxInt64 if that is more.
func (d Dialect) ScratchElements(k, n, maxDQRows int) int64 {
	if d == Exllamav2 {
		k = min(k, maxDQRows)
	}
	if k <= 0 || n <= 0 {
		return 0
	}
	if int64(k) > math.MaxInt64/int64(n) {
		return math.MaxInt64
	}
	return int64(k) * int64(n)
}
