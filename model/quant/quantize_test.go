package quant_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// writeTensors writes a file and opens it.
func writeTensors(t testing.TB, tensors quant.TensorMap) *safetensors.File {
	t.Helper()
	var specs []safetensors.Spec
	for name, v := range tensors {
		specs = append(specs, safetensors.Spec{Name: name, DType: v.DType, Shape: v.Shape})
	}
	layout, err := safetensors.NewLayout(specs, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.safetensors")
	if err := safetensors.WriteFile(path, layout, func(name string) (io.Reader, error) { return tensors.Open(name) }); err != nil {
		t.Fatal(err)
	}
	return open(t, path)
}

func open(t testing.TB, path string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func normal(rng *rand.Rand, n int, sigma float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(sigma * rng.NormFloat64())
	}
	return out
}

// TestQuantizeRoundTrip quantizes normal weights, writes and reads a file, and compares with what
// rounding to the nearest step must give: in groups of 128 the largest weight is about 2.7 standard
// deviations, so a step is 2.7·2/(2ᵇ−1) of them, and the error of a rounding is step/√12.
func TestQuantizeRoundTrip(t *testing.T) {
	const k, n = 512, 96
	rng := rand.New(rand.NewPCG(1, 2))
	w := normal(rng, k*n, 0.02)
	perm := make([]int32, k)
	for i, v := range rng.Perm(k) {
		perm[i] = int32(v)
	}
	for _, bits := range []int{2, 3, 4, 5, 6, 8} {
		groups, err := quant.MixGroups(k, quant.Share{Bits: bits, GroupRows: 128})
		if err != nil {
			t.Fatal(err)
		}
		m, err := quant.QuantizeEXL2(w, k, n, quant.EXL2Spec{Groups: groups, Perm: perm})
		if err != nil {
			t.Fatal(err)
		}
		f := writeTensors(t, m.Tensors("model.layers.0.mlp.up_proj"))
		again, err := quant.LoadEXL2(quant.Files(f), "model.layers.0.mlp.up_proj", quant.EXL2Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := dequantize(t, again)
		if !bytes.Equal(got, dequantize(t, m)) {
			t.Errorf("%d bit: writing and reading changes the weights", bits)
		}
		if diff := cmp.Diff(perm, again.Perm()); diff != "" {
			t.Errorf("%d bit: permutation (-want +got):\n%s", bits, diff)
		}
		values := make([]float32, k*n)
		tensor.DecodeF16(values, got)
		var diff, norm float64
		for i, v := range w {
			diff += float64(values[i]-v) * float64(values[i]-v)
			norm += float64(v) * float64(v)
		}
		e, want := math.Sqrt(diff/norm), 2.7*2/float64(int(1)<<bits-1)/math.Sqrt(12)
		t.Logf("%d bit: relative error %.4f, by the rule %.4f, bits per weight %.3f", bits, e, want, again.BitsPerWeight())
		if e > 1.2*want || e < 0.8*want {
			t.Errorf("%d bit: relative error %.4f, want about %.4f", bits, e, want)
		}
	}
}

// TestQuantizeBound holds, for any matrix and mixture, that no weight is further from its code than
// the steps of scales and codes explain, that padding is zero, and that groups and permutation are
// kept.
func TestQuantizeBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		widths := []int{8, 6, 5, 4, 3, 2}
		var groups []quant.Group
		k := 0
		for _, b := range widths {
			for range rapid.IntRange(0, 2).Draw(t, fmt.Sprint("groups of ", b)) {
				g := quant.Group{Bits: b, FirstRow: k, Rows: 32 * rapid.IntRange(1, 3).Draw(t, "blocks")}
				groups = append(groups, g)
				k += g.Rows
			}
		}
		if k == 0 {
			return
		}
		n := rapid.IntRange(1, 40).Draw(t, "columns")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		perm := make([]int32, k)
		for i, v := range rng.Perm(k) {
			perm[i] = int32(v)
		}
		w := normal(rng, k*n, math.Exp2(rapid.Float64Range(-6, 6).Draw(t, "size")))
		m, err := quant.QuantizeEXL2(w, k, n, quant.EXL2Spec{Groups: groups, Perm: perm})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(groups, m.Groups()); diff != "" {
			t.Fatalf("groups (-want +got):\n%s", diff)
		}
		again, err := quant.LoadEXL2(m.Tensors(""), "", quant.EXL2Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 2*k*m.Cols())
		if err := again.Dequantize(got); err != nil {
			t.Fatal(err)
		}
		values := make([]float32, k*m.Cols())
		tensor.DecodeF16(values, got)
		inv := again.InvPerm()
		for _, g := range groups {
			largest := 0.0
			for i := range g.Rows {
				for _, v := range w[int(perm[g.FirstRow+i])*n:][:n] {
					largest = max(largest, math.Abs(float64(v)))
				}
			}
			// The range of codes ends a whole step above the largest weight of a column or, if the
			// lower step was chosen, where (15/16)² or less of the scale ends.
			bound := largest*(2/float64(int(1)<<g.Bits-1)+1-15.0*15/256) + 0x1p-14
			for i := range g.Rows {
				row := int(perm[g.FirstRow+i])
				if int(inv[row]) != g.FirstRow+i {
					t.Fatal("the permutation is not kept")
				}
				for j := range m.Cols() {
					v := float64(values[row*m.Cols()+j])
					want := 0.0
					if j < n {
						want = float64(w[row*n+j])
					}
					if d := math.Abs(v - want); d > bound || j >= n && v != 0 {
						t.Fatalf("row %d, column %d of %d bits: %v became %v, largest %v", row, j, g.Bits, want, v, largest)
					}
				}
			}
		}
	})
}

func TestQuantizeErrors(t *testing.T) {
	w := make([]float32, 64*32)
	whole := []quant.Group{{Bits: 4, Rows: 64}}
	bad := append([]float32(nil), w...)
	bad[32*3+5] = float32(math.NaN())
	huge := append([]float32(nil), w...)
	huge[0] = 1e9
	for _, test := range []struct {
		w    []float32
		k, n int
		spec quant.EXL2Spec
		want string
	}{
		{w, 64, 31, quant.EXL2Spec{Groups: whole}, "2048 weights for 64 rows and 31 columns"},
		{w, -64, -32, quant.EXL2Spec{Groups: whole}, "2048 weights for -64 rows and -32 columns"},
		{bad, 64, 32, quant.EXL2Spec{Groups: whole}, "weight in row 3, column 5 is NaN"},
		{huge, 64, 32, quant.EXL2Spec{Groups: whole}, "scale of group 0 overflows half precision"},
		{w, 64, 32, quant.EXL2Spec{}, "groups have 0 rows: want 64"},
		{w, 64, 32, quant.EXL2Spec{Groups: []quant.Group{{Bits: 7, Rows: 64}}}, "group 0 has width 7"},
		{w, 64, 32, quant.EXL2Spec{Groups: []quant.Group{{Bits: 4, Rows: 32}, {Bits: 5, Rows: 32}}}, "group 1 has width 5 after width 4"},
		{w, 64, 32, quant.EXL2Spec{Groups: []quant.Group{{Bits: 4, Rows: 48}}}, "group 0 has 48 rows"},
		{w, 64, 32, quant.EXL2Spec{Groups: []quant.Group{{Bits: 4, Rows: 96}}}, "group 0 has 96 rows: want a multiple of 32, at most 64"},
		{w, 64, 32, quant.EXL2Spec{Groups: whole, Perm: make([]int32, 3)}, "permutation has 3 elements"},
		{w, 64, 32, quant.EXL2Spec{Groups: whole, Perm: make([]int32, 64)}, "permutation[1] is 0"},
		{w, 64, 32, quant.EXL2Spec{Groups: whole, Bias: make([]float32, 3)}, "bias has 3 elements"},
		{w, 64, 32, quant.EXL2Spec{Groups: whole, Bias: huge[:32]}, "bias of column 0 is 1e+09"},
	} {
		if _, err := quant.QuantizeEXL2(test.w, test.k, test.n, test.spec); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
	}
	if _, err := quant.QuantizeEXL2(w, 64, 32, quant.EXL2Spec{Groups: whole}); err != nil {
		t.Errorf("zeros: %v", err)
	}
}

func TestMixGroups(t *testing.T) {
	got, err := quant.MixGroups(512, quant.Share{Bits: 8, GroupRows: 32, Fraction: 0.05}, quant.Share{Bits: 5, GroupRows: 128, Fraction: 0.2}, quant.Share{Bits: 4, GroupRows: 128, Fraction: 0.75})
	if err != nil {
		t.Fatal(err)
	}
	want := []quant.Group{{8, 0, 32}, {5, 32, 128}, {4, 160, 128}, {4, 288, 128}, {4, 416, 96}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, k := range []int{0, -32, 48, 1 << 20} {
		if _, err := quant.MixGroups(k, quant.Share{Bits: 4, GroupRows: 32}); err == nil {
			t.Errorf("%d rows: no error", k)
		}
	}
	for _, s := range []quant.Share{{}, {Bits: 7, GroupRows: 32}, {Bits: 4, GroupRows: 33}, {Bits: 4, GroupRows: 32, Fraction: math.NaN()}} {
		if _, err := quant.MixGroups(64, s); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
	if _, err := quant.MixGroups(64); err == nil {
		t.Error("no shares: no error")
	}
}

func TestInspect(t *testing.T) {
	f := open(t, "testdata/exl2.safetensors")
	byKey := map[string]quant.LayerInfo{}
	for _, layer := range quant.Inspect(f) {
		if layer.Err != nil {
			t.Error(layer.Err)
		}
		byKey[layer.Key] = layer
	}
	if len(byKey) != 15 {
		t.Errorf("%d layers, want 15", len(byKey))
	}
	layer := byKey["e854_mixed_groups"]
	// 32·8 + 128·5 + 352·4 bits a column; 4 a group and column; q_perm and q_group_map, which this
	// file has too.
	bytes := int64((32*8+128*5+352*4)*64/8 + 5*64/2 + 5*6 + 4*512 + 2*512 + 4*512)
	want := quant.LayerInfo{
		Key: "e854_mixed_groups", Format: quant.EXL2, Rows: 512, Cols: 64, Groups: 5, Permuted: true,
		Widths: []quant.WidthInfo{{8, 32, 1}, {5, 128, 1}, {4, 352, 3}},
		Bytes:  bytes, BitsPerWeight: 8 * float64(bytes) / 512 / 64,
	}
	if diff := cmp.Diff(want, layer); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if byKey["e4_g128_noperm"].Permuted || !byKey["e4_g128_bias"].Bias {
		t.Error("permutation or bias is not recognised")
	}

	permuted := map[string]bool{}
	for _, layer := range quant.Inspect(open(t, "testdata/gptq.safetensors")) {
		if layer.Err != nil || layer.Format != quant.GPTQ || layer.Widths[0].Bits != 4 {
			t.Errorf("%+v", layer)
		}
		permuted[layer.Key] = layer.Permuted
	}
	if diff := cmp.Diff(map[string]bool{
		"g128": false, "g128_seq_gidx": false, "g128_actorder": true, "g32_actorder_allzeros": true, "g64_allzeros": false, "one_group": false,
	}, permuted); diff != "" {
		t.Errorf("act-order (-want +got):\n%s", diff)
	}

	// A layer that cannot be loaded is listed with its reason.
	broken := writeTensors(t, quant.TensorMap{"a.b.q_weight": {DType: tensor.I32, Shape: []int64{4, 32}, Data: make([]byte, 512)}})
	layers := quant.Inspect(broken)
	if len(layers) != 1 || layers[0].Key != "a.b" || layers[0].Err == nil {
		t.Errorf("broken layer: %+v", layers)
	}
	if err := quant.DequantizeFile(t.Context(), filepath.Join(t.TempDir(), "x"), broken, quant.DequantizeOptions{}); err == nil {
		t.Error("dequantizing a broken layer is no error")
	}
}

func TestDequantizeFile(t *testing.T) {
	src := open(t, "testdata/exl2.safetensors")
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain.safetensors")
	if err := quant.DequantizeFile(t.Context(), plain, src, quant.DequantizeOptions{}); err != nil {
		t.Fatal(err)
	}
	out := open(t, plain)
	if got := len(out.Header().Tensors); got != 15 {
		t.Errorf("%d tensors, want 15", got)
	}
	for _, v := range out.Header().Tensors {
		key := strings.TrimSuffix(v.Name, ".weight")
		if !bytes.Equal(read(t, out, v.Name), read(t, src, key+".recon")) {
			t.Errorf("%s differs from exllamav2", v.Name)
		}
	}

	turned := filepath.Join(dir, "turned.safetensors")
	opts := quant.DequantizeOptions{Keys: []string{"e4_g128_bias"}, Transpose: true, CopyOthers: true}
	if err := quant.DequantizeFile(t.Context(), turned, src, opts); err != nil {
		t.Fatal(err)
	}
	out = open(t, turned)
	v, ok := out.Header().Lookup("e4_g128_bias.weight")
	if !ok || v.Shape[0] != 64 || v.Shape[1] != 256 {
		t.Fatalf("transposed weight: %+v", v)
	}
	got, want := read(t, out, v.Name), read(t, src, "e4_g128_bias.recon")
	for i := range 256 {
		for j := range 64 {
			if a, b := got[2*(j*256+i):][:2], want[2*(i*64+j):][:2]; !bytes.Equal(a, b) {
				t.Fatalf("transposed weight %d, %d is % x, want % x", i, j, a, b)
			}
		}
	}
	if !bytes.Equal(read(t, out, "e4_g128_bias.bias"), read(t, src, "e4_g128_bias.bias")) {
		t.Error("the bias is not copied")
	}
	if _, ok := out.Header().Lookup("e4_g128_bias.q_weight"); ok {
		t.Error("the packed weights are still there")
	}
	if _, ok := out.Header().Lookup("e8_g128.q_weight"); !ok {
		t.Error("another layer is not copied")
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	missing := filepath.Join(dir, "missing.safetensors")
	if err := quant.DequantizeFile(ctx, missing, src, quant.DequantizeOptions{}); !errors.Is(err, cause) {
		t.Errorf("cancelled: error %v", err)
	}
	if err := quant.DequantizeFile(t.Context(), missing, src, quant.DequantizeOptions{Keys: []string{"nobody"}}); err == nil {
		t.Error("a key that does not exist is no error")
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("a file is left after an error")
	}
}

func read(t testing.TB, f *safetensors.File, name string) []byte {
	t.Helper()
	r, err := f.Reader(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
