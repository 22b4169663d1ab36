package exl2

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// TestBorderlineMatrices gives the same matrices to both readers of files with quantized layers:
// that of "kiln model" and that of "kiln quant". They must agree, on what exllamav2 can load and
// compute with.
func TestBorderlineMatrices(t *testing.T) {
	type group struct{ bits, packed int }
	repeat := func(n int, g group) (out []group) {
		for range n {
			out = append(out, g)
		}
		return out
	}
	usual := []group{{4, 8}, {3, 3}}
	change := func(suffix string, f func(*rawTensor)) func([]rawTensor) []rawTensor { return with("."+suffix, f) }
	narrow := change("q_invperm", func(t *rawTensor) {
		var data []byte
		for i := range t.shape[0] {
			data = append(data, t.data[4*i], t.data[4*i+1])
		}
		t.dtype, t.data = tensor.I16, data
	})
	bias := func(d tensor.DType, n int64) func([]rawTensor) []rawTensor {
		return func(l []rawTensor) []rawTensor {
			size, _ := tensor.Size(d, []int64{n})
			return append(l, rawTensor{"l.bias", d, []int64{n}, make([]byte, size)})
		}
	}
	for _, test := range []struct {
		name   string
		groups []group
		cols   int
		edit   func([]rawTensor) []rawTensor
		good   bool
	}{
		{"ordinary", usual, 32, nil, true},
		{"8 columns", usual, 8, nil, true},
		{"40 columns", usual, 40, nil, true},
		{"36 columns", usual, 36, nil, false},
		{"no columns", usual, 0, nil, false},
		{"6 bits in 3 packed rows", []group{{6, 3}}, 32, nil, false},
		{"2 bits in 1 packed row", []group{{2, 1}}, 32, nil, false},
		{"7 bits", []group{{7, 7}}, 32, nil, false},
		{"widths that increase", []group{{3, 3}, {4, 4}}, 32, nil, false},
		{"65536 rows", repeat(512, group{4, 16}), 8, nil, true},
		{"65568 rows", append(repeat(512, group{4, 16}), group{4, 4}), 8, nil, false},
		{"a group of 65504 rows", []group{{2, 4094}, {2, 2}}, 8, nil, true},
		{"a group of 65536 rows", []group{{2, 4096}}, 8, nil, false},
		{"no permutation", usual, 32, without(".q_invperm"), false},
		{"a permutation in 16 bits", usual, 32, narrow, true},
		{"32768 rows permuted in 16 bits", repeat(256, group{4, 16}), 8, narrow, true},
		{"32800 rows permuted in 16 bits", append(repeat(256, group{4, 16}), group{4, 4}), 8, narrow, false},
		{"a permutation with a row twice", usual, 32, change("q_invperm", func(t *rawTensor) { copy(t.data[4:8], t.data[:4]) }), false},
		{"a permutation that is too long", usual, 32, change("q_invperm", func(t *rawTensor) {
			t.shape[0]++
			t.data = append(t.data, 96, 0, 0, 0)
		}), false},
		{"half a group", usual, 32, change("q_groups", func(t *rawTensor) { t.shape[0], t.data = 3, t.data[:6] }), false},
		{"scales in BF16", usual, 32, change("q_scale_max", func(t *rawTensor) { t.dtype = tensor.BF16 }), false},
		{"bias", usual, 32, bias(tensor.F16, 32), true},
		{"bias in F32", usual, 32, bias(tensor.F32, 32), false},
		{"bias of 31 columns", usual, 32, bias(tensor.F16, 31), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var table, perm []byte
			packed, rows := 0, 0
			for _, g := range test.groups {
				table = binary.LittleEndian.AppendUint16(table, uint16(g.bits))
				table = binary.LittleEndian.AppendUint16(table, uint16(packed))
				packed += g.packed
				rows += g.packed * 32 / g.bits
			}
			for i := range rows {
				perm = binary.LittleEndian.AppendUint32(perm, uint32(rows-1-i))
			}
			n, count := int64(test.cols), int64(len(test.groups))
			tensors := []rawTensor{
				{"l.q_weight", tensor.I32, []int64{int64(packed), n}, make([]byte, 4*int64(packed)*n)},
				{"l.q_invperm", tensor.I32, []int64{int64(rows)}, perm},
				{"l.q_scale", tensor.I32, []int64{count, n / 8}, make([]byte, count*(n/8)*4)},
				{"l.q_scale_max", tensor.F16, []int64{count}, make([]byte, 2*count)},
				{"l.q_groups", tensor.I16, []int64{2 * count}, table},
			}
			if test.edit != nil {
				tensors = test.edit(tensors)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "model.safetensors")
			if err := writeSafetensors(path, tensors, false); err != nil {
				t.Fatal(err)
			}
			info, err := Inspect(t.Context(), dir, InnerLinks)
			if err != nil {
				t.Fatal(err)
			}
			file, err := safetensors.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			layers := quant.Inspect(file)
			if len(layers) != 1 {
				t.Fatalf("%d layers", len(layers))
			}
			if got := len(info.Problems) == 0; got != test.good {
				t.Errorf("model: good is %v, want %v: %v", got, test.good, info.Problems)
			}
			if got := layers[0].Err == nil; got != test.good {
				t.Errorf("quant: good is %v, want %v: %v", got, test.good, layers[0].Err)
			}
		})
	}
}
