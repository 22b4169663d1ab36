package exl2

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/kiln-build/kiln/model/tensor"
)

// TestConvert has the values by which the description of the original explains its arithmetic.
func TestConvert(t *testing.T) {
	type pair struct{ in, want uint32 }
	tests := []struct {
		name  string
		dtype tensor.DType
		c     Convert
		pairs []pair
	}{
		{"F32", tensor.F32, Convert{}, []pair{
			{0x3f801000, 0x3c00},
			{0x3f803000, 0x3c02},
			{0x3f801001, 0x3c01},
			{0x477fefff, 0x7bff},
			{0x477ff000, 0x7c00},
			{0x33000000, 0},
			{0x33000001, 1},
			{0x387fc000, 0x03ff},
			{0x387fe000, 0x0400},
			{0x80000000, 0x8000},
			{0xffc12345, 0xfe00},
			{0x7f800001, 0x7e00},
		}},
		{"BF16", tensor.BF16, Convert{}, []pair{{0x4780, 0x7c00}, {0x3301, 1}, {0x3880, 0x0400}, {0x0001, 0}, {0xff81, 0xfe00}}},
		{"F16", tensor.F16, Convert{}, []pair{{0x7d23, 0x7d23}, {0x0001, 0x0001}, {0xfc00, 0xfc00}}},
		{"offset", tensor.F16, Convert{Offset: 1}, []pair{
			{0x8000, 0},
			{0x0001, 0},
			{0x1000, 0},
			{0x1001, 0x1400},
			{0x9000, 0x9000},
			{0x2e66, 0x2e60},
			{0xae66, 0xae68},
			{0x3555, 0x3554},
			{0xbc00, 0xbc00},
			{0x6401, 0x6401},
			{0x7d23, 0x7e00},
			{0xfd23, 0xfe00},
			{0xfc00, 0xfc00},
		}},
		{"scale", tensor.F16, Convert{Scale: 12}, []pair{{0x2e66, 0x2e65}, {0x3555, 0x3555}, {0x3c07, 0x3c07}, {0x6d55, 0x7c00}}},
		{"I16", tensor.I16, Convert{}, []pair{{1, 0x3c00}, {0xffff, 0xbc00}, {2049, 0x6800}}},
		{"I32", tensor.I32, Convert{}, []pair{{65519, 0x7bff}, {65520, 0x7c00}, {0xffffffff, 0xbc00}}},
	}
	for _, tt := range tests {
		var src, want []byte
		for _, p := range tt.pairs {
			if tt.dtype.Bits() == 32 {
				src = binary.LittleEndian.AppendUint32(src, p.in)
			} else {
				src = binary.LittleEndian.AppendUint16(src, uint16(p.in))
			}
			want = binary.LittleEndian.AppendUint16(want, uint16(p.want))
		}
		for _, repeat := range []int{0, 1, 3} {
			c := tt.c
			c.Repeat = repeat
			tn := &Tensor{Convert: &c, From: Source{DType: tt.dtype, Offset: 2, Size: int64(len(src))}}
			// A scratch buffer of two elements makes every boundary count.
			r := newConverter(bytes.NewReader(append([]byte{9, 9}, src...)), tn, c.roundTrips(), make([]byte, 8))
			got, err := io.ReadAll(evenReader{r})
			if err != nil || !bytes.Equal(got, bytes.Repeat(want, max(1, repeat))) {
				t.Errorf("%s repeated %d: %v\n got %x\nwant %x", tt.name, repeat, err, got, want)
			}
		}
	}
}

// evenReader asks for six bytes at a time.
type evenReader struct{ r io.Reader }

func (e evenReader) Read(p []byte) (int, error) { return e.r.Read(p[:min(6, len(p)&^1)]) }
