package tensor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/model/tensor"
)

func TestDType(t *testing.T) {
	bits := map[string]int{
		"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
		"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
		"C64": 64, "F64": 64, "I64": 64, "U64": 64,
	}
	if len(tensor.DTypes()) != len(bits) {
		t.Errorf("%d types, want %d", len(tensor.DTypes()), len(bits))
	}
	for _, d := range tensor.DTypes() {
		if d.Bits() != bits[d.String()] {
			t.Errorf("%v has %d bits, want %d", d, d.Bits(), bits[d.String()])
		}
		if back, err := tensor.ParseDType(d.String()); back != d || err != nil {
			t.Errorf("ParseDType(%q) = %v, %v", d.String(), back, err)
		}
		if isFloat := d.String()[0] == 'F' || d == tensor.BF16; d.IsFloat() != isFloat {
			t.Errorf("%v.IsFloat() = %v", d, d.IsFloat())
		}
		text, err := json.Marshal(d)
		var back tensor.DType
		if err != nil || json.Unmarshal(text, &back) != nil || back != d {
			t.Errorf("%v through JSON: %s, %v, %v", d, text, back, err)
		}
	}
	for _, name := range []string{"", "f16", "F128", "F8", "DType(0)"} {
		if d, err := tensor.ParseDType(name); err == nil || d.Valid() {
			t.Errorf("ParseDType(%q) = %v, %v", name, d, err)
		}
		if new(tensor.DType).UnmarshalText([]byte(name)) == nil {
			t.Errorf("UnmarshalText(%q) succeeded", name)
		}
	}
	for _, d := range []tensor.DType{0, tensor.U64 + 1, 255} {
		if _, err := d.MarshalText(); d.Valid() || d.Bits() != 0 || err == nil {
			t.Errorf("%d is a type", d)
		}
		if got, want := d.String(), fmt.Sprintf("DType(%d)", uint8(d)); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}

func TestSize(t *testing.T) {
	const big = math.MaxInt64
	tests := []struct {
		dtype    tensor.DType
		shape    []int64
		elements int64
		size     int64
		err      error
	}{
		{tensor.F32, nil, 1, 4, nil},
		{tensor.F32, []int64{}, 1, 4, nil},
		{tensor.F16, []int64{3, 5}, 15, 30, nil},
		{tensor.C64, []int64{2}, 2, 16, nil},
		{tensor.I64, []int64{0, 7}, 0, 0, nil},
		{tensor.I64, []int64{0, big, big}, 0, 0, nil},
		{tensor.I64, []int64{1 << 62, 2, 0}, 0, 0, nil},
		{tensor.I64, []int64{big, big, 0}, 0, 0, tensor.ErrOverflow},
		{tensor.U8, []int64{1 << 60}, 1 << 60, 1 << 60, nil},
		{tensor.U8, []int64{1 << 61}, 1 << 61, 0, tensor.ErrOverflow},
		{tensor.F4, []int64{1 << 61}, 1 << 61, 1 << 60, nil},
		{tensor.F4, []int64{1 << 32, 1 << 32}, 0, 0, tensor.ErrOverflow},
		{tensor.F4, []int64{4}, 4, 2, nil},
		{tensor.F4, []int64{3}, 3, 0, tensor.ErrPartialByte},
		{tensor.F4, nil, 1, 0, tensor.ErrPartialByte},
		{tensor.F6E2M3, []int64{4}, 4, 3, nil},
		{tensor.F6E3M2, []int64{2, 3}, 6, 0, tensor.ErrPartialByte},
	}
	for _, tt := range tests {
		size, err := tensor.Size(tt.dtype, tt.shape)
		if size != tt.size || !errors.Is(err, tt.err) {
			t.Errorf("Size(%v, %v) = %d, %v, want %d, %v", tt.dtype, tt.shape, size, err, tt.size, tt.err)
		}
		if n, err := tensor.Elements(tt.shape); n != tt.elements || err != nil && !errors.Is(err, tensor.ErrOverflow) {
			t.Errorf("Elements(%v) = %d, %v, want %d", tt.shape, n, err, tt.elements)
		}
	}
	if _, err := tensor.Elements([]int64{1 << 62, 2}); !errors.Is(err, tensor.ErrOverflow) {
		t.Errorf("2⁶³ elements: %v", err)
	}
	_, err := tensor.Size(tensor.U8, []int64{2, -1})
	if diff := cmp.Diff("shape [2 -1]: negative dimension", fmt.Sprint(err)); diff != "" {
		t.Error(diff)
	}
	if _, err := tensor.Size(0, nil); err == nil {
		t.Error("a tensor without type has a size")
	}
}
