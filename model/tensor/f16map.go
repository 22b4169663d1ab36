package tensor

import "encoding/binary"

// F16Map is a function from float16 to float16 as a table of its 65,536 values, so
// that any arithmetic costs one lookup an element. Build it once for many tensors.
type F16Map [1 << 16]Float16

// NewF16Map tabulates f, which must not depend on anything but its argument.
func NewF16Map(f func(Float16) Float16) *F16Map {
	m := new(F16Map)
	for i := range m {
		m[i] = f(Float16(i))
	}
	return m
}

// Apply replaces every little-endian float16 in data. It panics if the length is odd.
func (m *F16Map) Apply(data []byte) {
	mustFit(len(data), 2, len(data), 2)
	for len(data) >= 8 {
		w := binary.LittleEndian.Uint64(data)
		w = uint64(m[uint16(w)]) | uint64(m[uint16(w>>16)])<<16 |
			uint64(m[uint16(w>>32)])<<32 | uint64(m[uint16(w>>48)])<<48
		binary.LittleEndian.PutUint64(data, w)
		data = data[8:]
	}
	for len(data) >= 2 {
		binary.LittleEndian.PutUint16(data, uint16(m[binary.LittleEndian.Uint16(data)]))
		data = data[2:]
	}
}

// OffsetRoundTrip returns what is left of x after offset was added and subtracted
// again, each sum computed in float32 and rounded to float16. Programs that keep a norm
// as weight + 1 in half precision write their weights back this way.
func (x Float16) OffsetRoundTrip(offset float32) Float16 {
	y := Float16FromFloat32(x.Float32() + offset)
	return x.quiet(Float16FromFloat32(y.Float32() - offset))
}

// ScaleRoundTrip returns what is left of x after it was multiplied by scale and
// divided by it again, each computed in float32 and rounded to float16.
func (x Float16) ScaleRoundTrip(scale float32) Float16 {
	y := Float16FromFloat32(x.Float32() * scale)
	return x.quiet(Float16FromFloat32(y.Float32() / scale))
}

// quiet returns result, or a NaN with the sign of x where result is one: processors
// differ in the sign of a NaN that they make.
func (x Float16) quiet(result Float16) Float16 {
	if result.IsNaN() {
		return x&f16Sign | f16NaN
	}
	return result
}
