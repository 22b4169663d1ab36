// Package tensor holds what every reader and writer of model weights agrees on:
// element types, shapes with checked sizes, and exact conversions between the
// float formats that weights are stored in.
//
// It serves the assembly of model files (safetensors, exl2) and quantized matrix
// products (quant). It has no tensor object and does no mathematics on tensors:
// data stays in byte slices that the caller owns, little endian as on disk.
//
// Conversions round to nearest, ties to even, keep subnormal values and the sign
// of zero, and give the same bytes on every machine. Those that can lose a value
// return a [Loss] that counts what became infinite and what was not a number.
package tensor

import (
	"fmt"
	"slices"
)

// DType is the type of a tensor's elements. The zero value is no type.
//
// The order of the constants is that of the safetensors reference library, which
// puts tensors of a higher type first in a file.
type DType uint8

// The element types of safetensors 0.8. F4, F6 and F8 name their exponent and
// mantissa bits; E8M0 is a power of two (the scale of the OCP MX formats), and FNUZ
// types have neither infinities nor a negative zero.
const (
	Bool DType = iota + 1
	F4         // E2M1, two to a byte
	F6E2M3
	F6E3M2
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64 // two F32: real, imaginary
	F64
	I64
	U64
)

var dtypes = [...]struct {
	name string
	bits uint8
}{
	Bool:       {"BOOL", 8},
	F4:         {"F4", 4},
	F6E2M3:     {"F6_E2M3", 6},
	F6E3M2:     {"F6_E3M2", 6},
	U8:         {"U8", 8},
	I8:         {"I8", 8},
	F8E5M2:     {"F8_E5M2", 8},
	F8E4M3:     {"F8_E4M3", 8},
	F8E8M0:     {"F8_E8M0", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	I16:        {"I16", 16},
	U16:        {"U16", 16},
	F16:        {"F16", 16},
	BF16:       {"BF16", 16},
	I32:        {"I32", 32},
	U32:        {"U32", 32},
	F32:        {"F32", 32},
	C64:        {"C64", 64},
	F64:        {"F64", 64},
	I64:        {"I64", 64},
	U64:        {"U64", 64},
}

// DTypes returns every element type, in the order of the constants.
func DTypes() []DType {
	all := make([]DType, 0, len(dtypes)-1)
	for d := Bool; int(d) < len(dtypes); d++ {
		all = append(all, d)
	}
	return all
}

// ParseDType returns the type with the given safetensors name, such as "BF16".
// Names are case-sensitive.
func ParseDType(name string) (DType, error) {
	if name != "" {
		for d := range dtypes {
			if dtypes[d].name == name {
				return DType(d), nil
			}
		}
	}
	return 0, fmt.Errorf("unknown dtype %q", name)
}

// Valid reports whether d is one of the constants.
func (d DType) Valid() bool { return d != 0 && int(d) < len(dtypes) }

// Bits returns the size of one element in bits: 4, 6 or a multiple of 8. It is 0
// for a DType that is none of the constants.
func (d DType) Bits() int {
	if !d.Valid() {
		return 0
	}
	return int(dtypes[d].bits)
}

// String returns the safetensors name.
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// IsFloat reports whether elements are real floating-point numbers of any width.
func (d DType) IsFloat() bool {
	return slices.Contains([]DType{F4, F6E2M3, F6E3M2, F8E5M2, F8E4M3, F8E8M0, F8E4M3FNUZ, F8E5M2FNUZ, F16, BF16, F32, F64}, d)
}

// MarshalText returns the safetensors name, so that JSON and YAML show it.
func (d DType) MarshalText() ([]byte, error) {
	if !d.Valid() {
		return nil, fmt.Errorf("dtype %d has no name", uint8(d))
	}
	return []byte(dtypes[d].name), nil
}

// UnmarshalText accepts what [ParseDType] accepts.
func (d *DType) UnmarshalText(text []byte) error {
	parsed, err := ParseDType(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
