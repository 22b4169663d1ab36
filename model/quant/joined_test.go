package quant_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// TestJoined: two matrices side by side have the weights of each.
func TestJoined(t *testing.T) {
	const rows, cols = 64, 32
	r := rand.New(rand.NewPCG(1, 2))
	bytes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	one := func() quant.TensorMap {
		return quant.TensorMap{
			"q_weight":    {DType: tensor.I32, Shape: []int64{7, cols}, Data: bytes(4 * 7 * cols)},
			"q_groups":    {DType: tensor.I16, Shape: []int64{4}, Data: []byte{4, 0, 0, 0, 3, 0, 4, 0}},
			"q_scale":     {DType: tensor.I32, Shape: []int64{2, cols / 8}, Data: bytes(2 * cols / 2)},
			"q_scale_max": {DType: tensor.F16, Shape: []int64{2}, Data: []byte{byte(r.Uint32()), 0x25, byte(r.Uint32()), 0x24}},
		}
	}
	a, b := one(), one()
	side := func(name string, rows, bytes int) []byte {
		var out []byte
		for i := range rows {
			out = append(out, a[name].Data[i*bytes:][:bytes]...)
			out = append(out, b[name].Data[i*bytes:][:bytes]...)
		}
		return out
	}
	joined := quant.TensorMap{
		"q_weight":    {DType: tensor.I32, Shape: []int64{7, 2 * cols}, Data: side("q_weight", 7, 4*cols)},
		"q_groups":    a["q_groups"],
		"q_scale":     {DType: tensor.I32, Shape: []int64{2, 2 * cols / 8}, Data: side("q_scale", 2, cols/2)},
		"q_scale_max": {DType: tensor.F16, Shape: []int64{2, 2}, Data: side("q_scale_max", 2, 2)},
	}
	weights := func(src quant.TensorMap, cols int, opts quant.EXL2Options) []byte {
		t.Helper()
		m, err := quant.LoadEXL2(src, "", opts)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]byte, 2*rows*cols)
		if err := m.Dequantize(out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	wa, wb := weights(a, cols, quant.EXL2Options{}), weights(b, cols, quant.EXL2Options{})
	all := weights(joined, 2*cols, quant.EXL2Options{Joined: true})
	for k := range rows {
		want := slices.Concat(wa[2*cols*k:][:2*cols], wb[2*cols*k:][:2*cols])
		if !slices.Equal(all[4*cols*k:][:4*cols], want) {
			t.Fatalf("row %d differs", k)
		}
	}
	if _, err := quant.LoadEXL2(joined, "", quant.EXL2Options{}); err == nil {
		t.Error("joined matrices were loaded as one of a file")
	}
	odd := joined["q_scale_max"]
	odd.Shape, odd.Data = []int64{2, 3}, bytes(12)
	joined["q_scale_max"] = odd
	if _, err := quant.LoadEXL2(joined, "", quant.EXL2Options{Joined: true}); err == nil {
		t.Error("three sections of 64 columns were loaded")
	}
}
