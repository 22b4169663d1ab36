package exl2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kiln-build/kiln/model/tensor"
)

// readable are the dtypes that loaders and the original can read.
var readable = map[tensor.DType]bool{tensor.F16: true, tensor.BF16: true, tensor.F32: true, tensor.I16: true, tensor.I32: true}

// roundTrips returns the function on half-precision values that c asks for, or nil if it leaves
// them as they are.
//
// The original scales or shifts some tensors when it loads them and undoes that when it writes
// them, rounding to half precision both times. The detour changes bits, so it is part of the
// format.
func (c *Convert) roundTrips() *tensor.F16Map {
	if c.Scale == 0 && c.Offset == 0 {
		return nil
	}
	return tensor.NewF16Map(func(x tensor.Float16) tensor.Float16 {
		y := x
		if c.Scale != 0 {
			y = y.ScaleRoundTrip(float32(c.Scale))
		}
		if c.Offset != 0 {
			y = y.OffsetRoundTrip(float32(c.Offset))
		}
		if y.IsNaN() { // the payload is not defined; the sign is that of the source
			y = x&0x8000 | 0x7E00
		}
		return y
	})
}

// roundTripMaps keeps the tables of one run; a model needs one or two.
type roundTripMaps map[[2]float64]*tensor.F16Map

func (m roundTripMaps) get(c *Convert) *tensor.F16Map {
	key := [2]float64{c.Scale, c.Offset}
	t, ok := m[key]
	if !ok {
		t = c.roundTrips()
		m[key] = t
	}
	return t
}

// converter reads the converted form of a float tensor.
type converter struct {
	src    io.ReaderAt
	from   Source
	width  int // bytes of a source element
	repeat int // how often the tensor is still to be read, this time included
	table  *tensor.F16Map
	buf    []byte // for source bytes; a multiple of 4
	pos    int64  // in the source
	loss   tensor.Loss
}

func newConverter(src io.ReaderAt, t *Tensor, table *tensor.F16Map, buf []byte) *converter {
	return &converter{
		src: src, from: t.From, width: t.From.DType.Bits() / 8, repeat: max(1, t.Convert.Repeat), table: table, buf: buf,
	}
}

// Read fills p, whose length must be even, as far as the tensor goes.
func (c *converter) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if c.pos == c.from.Size {
			if c.repeat--; c.repeat <= 0 || c.from.Size == 0 {
				return n, io.EOF
			}
			c.pos = 0
		}
		want := int(min(int64((len(p)-n)/2*c.width), int64(len(c.buf)), c.from.Size-c.pos))
		in := c.buf[:want]
		if got, err := c.src.ReadAt(in, c.from.Offset+c.pos); got < want {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return n, fmt.Errorf("read %s: %w", c.from.Name, err)
		}
		c.pos += int64(want)
		out := p[n : n+want/c.width*2]
		if err := c.convert(out, in); err != nil {
			return n, err
		}
		n += len(out)
	}
	return n, nil
}

// convert converts whole elements and counts what has no finite form.
func (c *converter) convert(dst, src []byte) error {
	var loss tensor.Loss
	var err error
	if c.from.DType == tensor.I16 || c.from.DType == tensor.I32 {
		loss = integersToF16(dst, src, c.from.DType)
	} else if loss, err = tensor.ToF16(dst, src, c.from.DType); err != nil {
		return fmt.Errorf("convert %s: %w", c.from.Name, err)
	}
	if c.table != nil {
		for i := 0; i < len(dst); i += 2 {
			x := tensor.Float16(binary.LittleEndian.Uint16(dst[i:]))
			y := c.table[x]
			if y&0x7FFF == 0x7C00 && x&0x7FFF != 0x7C00 {
				loss.Overflow++
			}
			binary.LittleEndian.PutUint16(dst[i:], uint16(y))
		}
	}
	c.loss = c.loss.Add(loss)
	return nil
}

func integersToF16(dst, src []byte, from tensor.DType) tensor.Loss {
	var loss tensor.Loss
	for i := 0; i < len(dst); i += 2 {
		var v float32
		if from == tensor.I16 {
			v = float32(int16(binary.LittleEndian.Uint16(src[i:])))
		} else {
			v = float32(int32(binary.LittleEndian.Uint32(src[2*i:])))
		}
		h := tensor.Float16FromFloat32(v)
		if h.IsInf() {
			loss.Overflow++
		}
		binary.LittleEndian.PutUint16(dst[i:], uint16(h))
	}
	return loss
}
