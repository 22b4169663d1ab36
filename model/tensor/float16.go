package tensor

import "math"

// Float16 is an IEEE 754 binary16 number: 1 sign, 5 exponent and 10 mantissa bits.
// Compare with == for equal bits; convert with [Float16.Float32] to compare values.
type Float16 uint16

// Bits of a [Float16].
const (
	f16Sign = 0x8000
	f16Inf  = 0x7C00
	f16NaN  = 0x7E00 // quiet, no payload
)

// Magnitudes of a float32, as bits, that divide what becomes of it in a float16.
const (
	f32Inf          = 0x7F80_0000
	f32MagMask      = 0x7FFF_FFFF
	f32MinNormal16  = 0x3880_0000 // 2⁻¹⁴, the smallest normal float16
	f32Overflow16   = 0x477F_F000 // 65520, from here on an infinity
	f32Rebias16     = 0x3800_0000 // difference of the exponent biases (127 − 15), in place
	f32HalfUlp16    = 0x0000_0FFF // with the parity of bit 13: half a unit, ties to even
	f32DroppedTo16  = 13          // mantissa bits that a float16 does not have
	f16SubnormalAdd = 0.5         // the unit in the last place of 0.5 is the smallest float16
)

// Float16FromFloat32 rounds f to the nearest float16, ties to even. Magnitudes from
// 65520 on become infinite. A NaN keeps its sign and loses its payload: the
// result is sign | 0x7E00.
func Float16FromFloat32(f float32) Float16 {
	b := math.Float32bits(f)
	sign := Float16(b>>16) & f16Sign
	mag := b & f32MagMask
	switch {
	case mag >= f32Overflow16:
		if mag > f32Inf {
			return sign | f16NaN
		}
		return sign | f16Inf
	case mag >= f32MinNormal16:
		mag += f32HalfUlp16 + mag>>f32DroppedTo16&1 - f32Rebias16
		return sign | Float16(mag>>f32DroppedTo16)
	default:
		// The sum is rounded by the processor at exactly the bit where a subnormal
		// float16 ends, so its low bits are the answer.
		return sign | Float16(math.Float32bits(math.Float32frombits(mag)+f16SubnormalAdd))
	}
}

// Float32 returns the same number as a float32. The payload of a NaN is kept.
func (h Float16) Float32() float32 {
	sign := uint32(h&f16Sign) << 16
	mag := uint32(h&^f16Sign) << f32DroppedTo16
	switch {
	case mag >= f16Inf<<f32DroppedTo16:
		return math.Float32frombits(sign | mag | f32Inf)
	case mag >= 0x0400<<f32DroppedTo16:
		return math.Float32frombits(sign | (mag + f32Rebias16))
	default:
		f := float32(mag>>f32DroppedTo16) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	}
}

// IsNaN reports whether h is not a number.
func (h Float16) IsNaN() bool { return h&^f16Sign > f16Inf }

// IsInf reports whether h is an infinity of either sign.
func (h Float16) IsInf() bool { return h&^f16Sign == f16Inf }

// BFloat16 is the upper half of a float32: 1 sign, 8 exponent and 7 mantissa bits.
type BFloat16 uint16

const bf16NaN = 0x7FC0 // quiet, no payload

// BFloat16FromFloat32 rounds f to the nearest bfloat16, ties to even. A NaN keeps its
// sign and loses its payload: the result is sign | 0x7FC0.
func BFloat16FromFloat32(f float32) BFloat16 {
	b := math.Float32bits(f)
	if b&f32MagMask > f32Inf {
		return BFloat16(b>>16)&f16Sign | bf16NaN
	}
	return BFloat16((b + 0x7FFF + b>>16&1) >> 16)
}

// Float32 returns the same number as a float32. The payload of a NaN is kept.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// Float16 rounds b to the nearest float16, as [Float16FromFloat32] does.
func (b BFloat16) Float16() Float16 { return Float16FromFloat32(b.Float32()) }

// IsNaN reports whether b is not a number.
func (b BFloat16) IsNaN() bool { return b&^f16Sign > f32Inf>>16 }

// IsInf reports whether b is an infinity of either sign.
func (b BFloat16) IsInf() bool { return b&^f16Sign == f32Inf>>16 }
