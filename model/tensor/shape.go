package tensor

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

var (
	// ErrOverflow is the error for a shape with more elements or bits than 64 bits count.
	ErrOverflow = errors.New("size overflows")
	// ErrPartialByte is the error for elements of 4 or 6 bits that do not fill whole bytes.
	ErrPartialByte = errors.New("size is not a whole number of bytes")
)

// Elements returns the number of elements of a shape, from left to right. The
// shape [] is a scalar and has one; a dimension of 0 makes it 0. As in the safetensors
// reference library, an overflow before a dimension of 0 is still an overflow.
func Elements(shape []int64) (int64, error) {
	n, err := elements(shape)
	if err == nil && n > math.MaxInt64 {
		err = fmt.Errorf("shape %v: %w", shape, ErrOverflow)
	}
	if err != nil {
		return 0, err
	}
	return int64(n), nil
}

// Size returns the number of bytes that elements of type d in the given shape take,
// without padding between or after them.
func Size(d DType, shape []int64) (int64, error) {
	if !d.Valid() {
		return 0, fmt.Errorf("size of a tensor of unknown dtype %d", uint8(d))
	}
	n, err := elements(shape)
	if err != nil {
		return 0, err
	}
	hi, size := bits.Mul64(n, uint64(d.Bits()))
	if hi != 0 {
		return 0, fmt.Errorf("%v of shape %v: %w", d, shape, ErrOverflow)
	}
	if size%8 != 0 {
		return 0, fmt.Errorf("%v of shape %v: %d bits: %w", d, shape, size, ErrPartialByte)
	}
	return int64(size / 8), nil
}

func elements(shape []int64) (uint64, error) {
	n := uint64(1)
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("shape %v: negative dimension", shape)
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 {
			return 0, fmt.Errorf("shape %v: %w", shape, ErrOverflow)
		}
		n = lo
	}
	return n, nil
}
