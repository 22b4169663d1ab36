package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Loss counts elements whose value a conversion could not keep, rounding aside.
type Loss struct {
	Overflow int64 // finite values that became infinite
	NaN      int64 // values that were not a number; their payload is dropped
}

// Add returns the sum, for tensors that are converted in pieces.
func (l Loss) Add(m Loss) Loss {
	return Loss{Overflow: l.Overflow + m.Overflow, NaN: l.NaN + m.NaN}
}

// The conversions below work on words of 64 bits that hold two float32 or four
// 16-bit elements at a time, side by side. That is right for ordinary numbers only. So each
// group is first checked, in a few instructions, for an element that the quick way gets
// wrong (subnormal, overflow, infinity, NaN), and such groups go through the
// scalar functions. On weights that is rare enough for the branch to be free.

// Factors that repeat a 16-bit or 32-bit constant in every lane of a word.
const (
	lanes16 = 0x0001_0001_0001_0001
	lanes32 = 0x0000_0001_0000_0001

	top16 = 0x8000 * lanes16
	top32 = 0x8000_0000 * lanes32
)

// ToF16 converts little-endian elements of type from, which must be F16, BF16 or F32,
// to float16. F16 is copied as it is. dst has two bytes for each element; it may be
// src itself when from has two bytes as well.
func ToF16(dst, src []byte, from DType) (Loss, error) {
	switch from {
	case F16:
		mustFit(len(dst), 1, len(src), 1)
		copy(dst, src)
		return Loss{}, nil
	case BF16:
		return BF16ToF16(dst, src), nil
	case F32:
		return F32ToF16(dst, src), nil
	}
	return Loss{}, fmt.Errorf("no conversion from %v to F16", from)
}

// F16ToF32 widens float16 in src to float32 in dst, both little endian. dst must be
// twice as long as src, or it panics.
func F16ToF32(dst, src []byte) {
	mustFit(len(dst), 4, len(src), 2)
	for len(src) >= 8 && len(dst) >= 16 {
		w := binary.LittleEndian.Uint64(src)
		lo, hi, bad := widen4(w)
		if bad != 0 {
			lo, hi = widenSlow4(w)
		}
		binary.LittleEndian.PutUint64(dst, lo)
		binary.LittleEndian.PutUint64(dst[8:], hi)
		src, dst = src[8:], dst[16:]
	}
	for len(src) >= 2 && len(dst) >= 4 {
		h := Float16(binary.LittleEndian.Uint16(src))
		binary.LittleEndian.PutUint32(dst, math.Float32bits(h.Float32()))
		src, dst = src[2:], dst[4:]
	}
}

// DecodeF16 widens little-endian float16 in src. src must have two bytes for each
// element of dst, or it panics.
func DecodeF16(dst []float32, src []byte) {
	mustFit(len(dst), 1, len(src), 2)
	for len(src) >= 8 && len(dst) >= 4 {
		w := binary.LittleEndian.Uint64(src)
		lo, hi, bad := widen4(w)
		if bad != 0 {
			lo, hi = widenSlow4(w)
		}
		put4(dst, lo, hi)
		src, dst = src[8:], dst[4:]
	}
	for i := range dst {
		dst[i] = Float16(binary.LittleEndian.Uint16(src[2*i:])).Float32()
	}
}

// BF16ToF32 widens bfloat16 in src to float32 in dst, both little endian. dst must be
// twice as long as src, or it panics.
func BF16ToF32(dst, src []byte) {
	mustFit(len(dst), 4, len(src), 2)
	for len(src) >= 8 && len(dst) >= 16 {
		w := binary.LittleEndian.Uint64(src)
		binary.LittleEndian.PutUint64(dst, w&0xFFFF<<16|w&0xFFFF_0000<<32)
		binary.LittleEndian.PutUint64(dst[8:], w>>32&0xFFFF<<16|w>>48<<48)
		src, dst = src[8:], dst[16:]
	}
	for len(src) >= 2 && len(dst) >= 4 {
		binary.LittleEndian.PutUint32(dst, uint32(binary.LittleEndian.Uint16(src))<<16)
		src, dst = src[2:], dst[4:]
	}
}

// DecodeBF16 widens little-endian bfloat16 in src. src must have two bytes for each
// element of dst, or it panics.
func DecodeBF16(dst []float32, src []byte) {
	mustFit(len(dst), 1, len(src), 2)
	for len(src) >= 8 && len(dst) >= 4 {
		w := binary.LittleEndian.Uint64(src)
		put4(dst, w&0xFFFF<<16|w&0xFFFF_0000<<32, w>>32&0xFFFF<<16|w>>48<<48)
		src, dst = src[8:], dst[4:]
	}
	for i := range dst {
		dst[i] = BFloat16(binary.LittleEndian.Uint16(src[2*i:])).Float32()
	}
}

// F32ToF16 rounds float32 in src to float16 in dst, both little endian. dst must be
// half as long as src, or it panics; it may be the first half of src.
func F32ToF16(dst, src []byte) Loss {
	mustFit(len(dst), 2, len(src), 4)
	var loss Loss
	for len(src) >= 16 && len(dst) >= 8 {
		a, b := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		lo, loBad := narrow2(a)
		hi, hiBad := narrow2(b)
		w := lo | hi<<32
		if loBad|hiBad != 0 {
			w = loss.narrow4(a, b)
		}
		binary.LittleEndian.PutUint64(dst, w)
		src, dst = src[16:], dst[8:]
	}
	for len(src) >= 4 && len(dst) >= 2 {
		binary.LittleEndian.PutUint16(dst, uint16(loss.f16(binary.LittleEndian.Uint32(src))))
		src, dst = src[4:], dst[2:]
	}
	return loss
}

// EncodeF16 rounds src to little-endian float16. dst must have two bytes for each
// element of src, or it panics.
func EncodeF16(dst []byte, src []float32) Loss {
	mustFit(len(dst), 2, len(src), 1)
	var loss Loss
	for len(src) >= 4 && len(dst) >= 8 {
		a, b := get4(src)
		lo, loBad := narrow2(a)
		hi, hiBad := narrow2(b)
		w := lo | hi<<32
		if loBad|hiBad != 0 {
			w = loss.narrow4(a, b)
		}
		binary.LittleEndian.PutUint64(dst, w)
		src, dst = src[4:], dst[8:]
	}
	for i, f := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(loss.f16(math.Float32bits(f))))
	}
	return loss
}

// F32ToBF16 rounds float32 in src to bfloat16 in dst, both little endian. dst must be
// half as long as src, or it panics; it may be the first half of src.
func F32ToBF16(dst, src []byte) Loss {
	mustFit(len(dst), 2, len(src), 4)
	var loss Loss
	for len(src) >= 16 && len(dst) >= 8 {
		a, b := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		lo, loBad := narrowBF2(a)
		hi, hiBad := narrowBF2(b)
		w := lo | hi<<32
		if loBad|hiBad != 0 {
			w = loss.narrowBF4(a, b)
		}
		binary.LittleEndian.PutUint64(dst, w)
		src, dst = src[16:], dst[8:]
	}
	for len(src) >= 4 && len(dst) >= 2 {
		binary.LittleEndian.PutUint16(dst, uint16(loss.bf16(binary.LittleEndian.Uint32(src))))
		src, dst = src[4:], dst[2:]
	}
	return loss
}

// EncodeBF16 rounds src to little-endian bfloat16. dst must have two bytes for each
// element of src, or it panics.
func EncodeBF16(dst []byte, src []float32) Loss {
	mustFit(len(dst), 2, len(src), 1)
	var loss Loss
	for len(src) >= 4 && len(dst) >= 8 {
		a, b := get4(src)
		lo, loBad := narrowBF2(a)
		hi, hiBad := narrowBF2(b)
		w := lo | hi<<32
		if loBad|hiBad != 0 {
			w = loss.narrowBF4(a, b)
		}
		binary.LittleEndian.PutUint64(dst, w)
		src, dst = src[4:], dst[8:]
	}
	for i, f := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(loss.bf16(math.Float32bits(f))))
	}
	return loss
}

// BF16ToF16 rounds bfloat16 in src to float16 in dst, both little endian. dst must be
// as long as src, or it panics; it may be src itself.
func BF16ToF16(dst, src []byte) Loss {
	mustFit(len(dst), 2, len(src), 2)
	var loss Loss
	for len(src) >= 8 && len(dst) >= 8 {
		w := binary.LittleEndian.Uint64(src)
		mag := w &^ top16
		// In the range of normal float16 nothing is rounded: there is room for all 7
		// mantissa bits.
		const least, above = f32MinNormal16 >> 16, 0x4780 // 2⁻¹⁴ and 65536
		bad := ^(mag + (0x8000-least)*lanes16) | (mag + (0x8000-above)*lanes16)
		h := (mag-(f32Rebias16>>16)*lanes16)<<3 | w&top16
		if bad&top16 != 0 {
			h = loss.narrow4(w&0xFFFF<<16|w&0xFFFF_0000<<32, w>>32&0xFFFF<<16|w>>48<<48)
		}
		binary.LittleEndian.PutUint64(dst, h)
		src, dst = src[8:], dst[8:]
	}
	for len(src) >= 2 && len(dst) >= 2 {
		b := binary.LittleEndian.Uint16(src)
		binary.LittleEndian.PutUint16(dst, uint16(loss.f16(uint32(b)<<16)))
		src, dst = src[2:], dst[2:]
	}
	return loss
}

// DecodeF32 reads little-endian float32. src must have four bytes for each element of
// dst, or it panics.
func DecodeF32(dst []float32, src []byte) {
	mustFit(len(dst), 1, len(src), 4)
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// EncodeF32 writes little-endian float32. dst must have four bytes for each element of
// src, or it panics.
func EncodeF32(dst []byte, src []float32) {
	mustFit(len(dst), 4, len(src), 1)
	for i, f := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
	}
}

// widen4 turns four float16 into four float32. bad is not 0 when one of them is zero,
// subnormal, infinite or NaN; lo and hi are then meaningless.
func widen4(w uint64) (lo, hi, bad uint64) {
	exp := w & (f16Inf * lanes16)
	// Adding one exponent step carries 31 into the top bit; adding 31 carries all but 0.
	bad = (exp + 0x0400*lanes16) | ^(exp + f16Inf*lanes16)
	lo, hi = w&0xFFFF|w&0xFFFF_0000<<16, w>>32&0xFFFF|w>>48<<32
	lo = lo&(f16Sign*lanes32)<<16 | (lo&(0x7FFF*lanes32)<<13 + f32Rebias16*lanes32)
	hi = hi&(f16Sign*lanes32)<<16 | (hi&(0x7FFF*lanes32)<<13 + f32Rebias16*lanes32)
	return lo, hi, bad & top16
}

// widenSlow4 is the slow way for a group of four.
func widenSlow4(w uint64) (lo, hi uint64) {
	var f [4]uint64
	for i := range f {
		f[i] = uint64(math.Float32bits(Float16(w >> (16 * i)).Float32()))
	}
	return f[0] | f[1]<<32, f[2] | f[3]<<32
}

// narrow2 rounds two float32 to two float16 in the lower half of h. bad is not 0 when
// one of them has a magnitude that is no normal float16; h is then meaningless.
func narrow2(x uint64) (h, bad uint64) {
	mag := x &^ top32
	bad = ^(mag + (0x8000_0000-f32MinNormal16)*lanes32) | (mag + (0x8000_0000-f32Overflow16)*lanes32)
	mag = (mag + mag>>13&lanes32 - (f32Rebias16-f32HalfUlp16)*lanes32) >> 13
	h = mag&(0x7FFF*lanes32) | x>>16&(f16Sign*lanes32)
	return h&0xFFFF | h>>16, bad & top32
}

// narrowBF2 rounds two float32 to two bfloat16 in the lower half of h. bad is not 0
// when one of them is NaN or infinite or may become so; h is then meaningless.
func narrowBF2(x uint64) (h, bad uint64) {
	bad = x&^top32 + (0x8000_0000-0x7F7F_8000)*lanes32
	x += x>>16&lanes32 + 0x7FFF*lanes32
	return x>>16&0xFFFF | x>>48<<16, bad & top32
}

// narrow4 is the slow way for a group of four.
func (l *Loss) narrow4(a, b uint64) uint64 {
	const large = (0x8000_0000 - f32Overflow16) * lanes32
	if ((a&^top32+large)|(b&^top32+large))&top32 == 0 {
		// Zeros and other small numbers, which quantized weights are full of.
		return narrowSmall(uint32(a)) | narrowSmall(uint32(a>>32))<<16 |
			narrowSmall(uint32(b))<<32 | narrowSmall(uint32(b>>32))<<48
	}
	return uint64(l.f16(uint32(a))) | uint64(l.f16(uint32(a>>32)))<<16 |
		uint64(l.f16(uint32(b)))<<32 | uint64(l.f16(uint32(b>>32)))<<48
}

// narrowSmall is Float16FromFloat32, as bits, for magnitudes that do not overflow. It has no
// branch: whether a number is normal is as good as random where this is used.
func narrowSmall(b uint32) uint64 {
	mag := b & f32MagMask
	normal := (mag + f32HalfUlp16 + mag>>f32DroppedTo16&1 - f32Rebias16) >> f32DroppedTo16
	small := math.Float32bits(math.Float32frombits(mag) + f16SubnormalAdd)
	choose := uint32(int32(mag-f32MinNormal16) >> 31) // all ones for a small number
	return uint64(b>>16&f16Sign | (small&choose|normal&^choose)&^f16Sign&0xFFFF)
}

// narrowBF4 is the slow way for a group of four.
func (l *Loss) narrowBF4(a, b uint64) uint64 {
	return uint64(l.bf16(uint32(a))) | uint64(l.bf16(uint32(a>>32)))<<16 |
		uint64(l.bf16(uint32(b)))<<32 | uint64(l.bf16(uint32(b>>32)))<<48
}

func (l *Loss) f16(b uint32) Float16 {
	switch mag := b & f32MagMask; {
	case mag > f32Inf:
		l.NaN++
	case mag >= f32Overflow16 && mag < f32Inf:
		l.Overflow++
	}
	return Float16FromFloat32(math.Float32frombits(b))
}

func (l *Loss) bf16(b uint32) BFloat16 {
	switch mag := b & f32MagMask; {
	case mag > f32Inf:
		l.NaN++
	case mag >= 0x7F7F_8000 && mag < f32Inf:
		l.Overflow++
	}
	return BFloat16FromFloat32(math.Float32frombits(b))
}

func get4(src []float32) (lo, hi uint64) {
	_ = src[3]
	return uint64(math.Float32bits(src[0])) | uint64(math.Float32bits(src[1]))<<32,
		uint64(math.Float32bits(src[2])) | uint64(math.Float32bits(src[3]))<<32
}

func put4(dst []float32, lo, hi uint64) {
	_ = dst[3]
	dst[0], dst[1] = math.Float32frombits(uint32(lo)), math.Float32frombits(uint32(lo>>32))
	dst[2], dst[3] = math.Float32frombits(uint32(hi)), math.Float32frombits(uint32(hi>>32))
}

// mustFit panics unless both slices hold the same number of whole elements: dstPer and
// srcPer are how many entries of each slice make one element.
func mustFit(dst, dstPer, src, srcPer int) {
	if dst%dstPer != 0 || src%srcPer != 0 || dst/dstPer != src/srcPer {
		panic(fmt.Sprintf("tensor: convert %d entries (%d an element) to %d entries (%d an element)", src, srcPer, dst, dstPer))
	}
}
