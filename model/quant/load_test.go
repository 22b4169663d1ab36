package quant_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
	"github.com/kiln-build/kiln/model/tensor"
)

func ints[T int16 | int32 | uint32](values ...T) []byte {
	var out []byte
	for _, v := range values {
		if size := binary.Size(v); size == 2 {
			out = binary.LittleEndian.AppendUint16(out, uint16(v))
		} else {
			out = binary.LittleEndian.AppendUint32(out, uint32(v))
		}
	}
	return out
}

func sum256(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// setCode writes one code of a stream that begins with words: row i of column c out of cols.
func setCode(words []uint32, cols, c, i, bits int, code uint32) {
	for b := range bits {
		t := i*bits + b
		words[t/32*cols+c] |= code >> b & 1 << (t % 32)
	}
}

// TestEXL2Example is a small matrix that was computed by hand: 64 × 8, 32 rows of 5 bits and 32 of
// 3.
func TestEXL2Example(t *testing.T) {
	words, inv := make([]uint32, 8*8), make([]int32, 64)
	scale := make([]uint32, 2)
	for c := range 8 {
		for i := range 32 {
			setCode(words, 8, c, i, 5, uint32((7*i+3*c+1)%32))
			setCode(words[5*8:], 8, c, i, 3, uint32((5*i+2*c+3)%8))
		}
		for g := range scale {
			scale[g] |= uint32((5*g+3*c+2)%16) << (4 * c)
		}
	}
	for k := range inv {
		inv[k] = int32((13*k + 5) % 64)
	}
	tensors := quant.TensorMap{
		"layer.q_weight":    {DType: tensor.I32, Shape: []int64{8, 8}, Data: ints(words...)},
		"layer.q_scale":     {DType: tensor.I32, Shape: []int64{2, 1}, Data: ints(scale...)},
		"layer.q_scale_max": {DType: tensor.F16, Shape: []int64{2}, Data: ints[int16](0x2266, 0x1D71)},
		"layer.q_groups":    {DType: tensor.I16, Shape: []int64{4}, Data: ints[int16](5, 0, 3, 5)},
		"layer.q_invperm":   {DType: tensor.I32, Shape: []int64{64}, Data: ints(inv...)},
	}
	if got, want := sum256(tensors["layer.q_weight"].Data), "43d861c2f7ee52a56984a0ae4ff56b88ebb91a3925b13bb3b4ca095ba3f23387"; got != want {
		t.Fatalf("the example itself is wrong: q_weight has hash %s", got)
	}
	m, err := quant.LoadEXL2(tensors, "layer", quant.EXL2Options{})
	if err != nil {
		t.Fatal(err)
	}
	weights := dequantize(t, m)
	if got, want := sum256(weights), "cbd3683418d9ac0e4668b77b0992dec0ebd3f18f3573e07caeec260dbfefe7aa"; got != want {
		t.Errorf("weights have hash %s, want %s", got, want)
	}
	first := ints(slices.Repeat([]int16{0}, 8)...)
	for j, h := range []uint16{0x9EC0, 0xA566, 0xA88F, 0xA966, 0xA838, 0x0000, 0x1B80, 0x24CC} {
		binary.LittleEndian.PutUint16(first[2*j:], h)
	}
	if diff := cmp.Diff(first, weights[2*8*39:][:16]); diff != "" {
		t.Errorf("row 39 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int32{39, 44, 49, 54, 59, 0, 5, 10}, m.Perm()[:8]); diff != "" {
		t.Errorf("perm (-want +got):\n%s", diff)
	}
	x := make([]float32, 64)
	for k := range x {
		x[k] = float32(k%7-3) / 4
	}
	half := make([]byte, 128)
	tensor.EncodeF16(half, x)
	want := []float64{-0.004255295, -0.031620979, -0.017518997, -0.101853013, 0.009401321, -0.011369646, -0.004638672, 0.043053627}
	y := gemm(t, newCPU(t, quant.CPUOptions{}), m, half, quant.GemmOptions{Path: quant.PathReconstruct})
	if e := relError(y, want); e > 3e-4 {
		t.Errorf("product: error %.2e", e)
	}
	// Loading twice from the same tensors is allowed, and writing them back gives the same.
	if diff := cmp.Diff(tensors, m.Tensors("layer")); diff != "" {
		t.Errorf("tensors (-want +got):\n%s", diff)
	}
	tensors["layer.q_invperm"] = quant.Tensor{DType: tensor.I16, Shape: []int64{64}, Data: ints(narrow(inv)...)}
	again, err := quant.LoadEXL2(tensors, "layer", quant.EXL2Options{Dialect: quant.LoRAX})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dequantize(t, again), weights) {
		t.Error("a permutation of 16 bits gives other weights")
	}
}

func narrow(values []int32) []int16 {
	out := make([]int16, len(values))
	for i, v := range values {
		out[i] = int16(v)
	}
	return out
}

// TestGPTQExample is a small matrix that was computed by hand: 64 × 8, two groups with act-order,
// and a zero point that programs read differently.
func TestGPTQExample(t *testing.T) {
	words, zeros := make([]uint32, 8*8), make([]uint32, 2)
	scales, index := make([]int16, 16), make([]int32, 64)
	for k := range index {
		index[k] = int32(k / 2 % 2)
		for c := range 8 {
			setCode(words, 8, c, k, 4, uint32((3*k+5*c+1)%16))
		}
	}
	for g := range zeros {
		for c := range 8 {
			zeros[g] |= uint32((6+g+3*c)%16) << (4 * c)
			scales[8*g+c] = int16(0x2000 + 0x140*g + 0x31*c)
		}
	}
	tensors := quant.TensorMap{
		"qweight": {DType: tensor.I32, Shape: []int64{8, 8}, Data: ints(words...)},
		"qzeros":  {DType: tensor.I32, Shape: []int64{2, 1}, Data: ints(zeros...)},
		"scales":  {DType: tensor.F16, Shape: []int64{2, 8}, Data: ints(scales...)},
		"g_idx":   {DType: tensor.I32, Shape: []int64{64}, Data: ints(index...)},
	}
	for _, test := range []struct {
		opts quant.GPTQOptions
		want string
	}{
		{quant.GPTQOptions{}, "d306244375c104c9ee9866c17e4f856a8a0bd9d8b113336cc7b2e2445363241e"},
		{quant.GPTQOptions{Zero: quant.ZeroPlusOne, Dialect: quant.LoRAX}, "d306244375c104c9ee9866c17e4f856a8a0bd9d8b113336cc7b2e2445363241e"},
		{quant.GPTQOptions{Dialect: quant.LoRAX}, "f6d51ec7d10561513bc3dcf1f8a267e71b14918ec3ff5cc4810c6771d3b21af6"},
		{quant.GPTQOptions{Zero: quant.ZeroPlusOneWrap, Bits: 4}, "f6d51ec7d10561513bc3dcf1f8a267e71b14918ec3ff5cc4810c6771d3b21af6"},
		{quant.GPTQOptions{Zero: quant.ZeroAsStored}, "c9d86652afd45da2a691fa2e074475689d76636833032e6cd94e30d0f774ae57"},
	} {
		m, err := quant.LoadGPTQ(tensors, "", test.opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := sum256(dequantize(t, m)); got != test.want {
			t.Errorf("%+v: weights have hash %s, want %s", test.opts, got, test.want)
		}
		if diff := cmp.Diff([]int32{0, 1, 4, 5, 8, 9, 12, 13}, m.Perm()[:8]); diff != "" {
			t.Errorf("perm (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(tensors, m.Tensors("")); diff != "" {
			t.Errorf("tensors (-want +got):\n%s", diff)
		}
	}
}

// TestGPTQDefinition compares all widths with the definition, element by element.
func TestGPTQDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	bitsAt := func(data []byte, words func(i int) int, bit, bits int) int32 {
		v := int32(0)
		for i := range bits {
			w := binary.LittleEndian.Uint32(data[4*words((bit+i)/32):])
			v |= int32(w>>((bit+i)%32)&1) << i
		}
		return v
	}
	for _, bits := range []int{2, 3, 4, 8} {
		const k, n = 96, 32
		tensors := quanttest.GPTQ(rng, k, n, bits, 32, true)
		m, err := quant.LoadGPTQ(tensors, "", quant.GPTQOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for row := range k {
			g := int(binary.LittleEndian.Uint32(tensors["g_idx"].Data[4*row:]))
			for c := range n {
				code := bitsAt(tensors["qweight"].Data, func(i int) int { return i*n + c }, row*bits, bits)
				zero := bitsAt(tensors["qzeros"].Data, func(i int) int { return g*n*bits/32 + i }, c*bits, bits) + 1
				scale := tensor.Float16(binary.LittleEndian.Uint16(tensors["scales"].Data[2*(g*n+c):]))
				h := tensor.Float16FromFloat32(float32(code-zero) * scale.Float32())
				want = binary.LittleEndian.AppendUint16(want, uint16(h))
			}
		}
		if !bytes.Equal(dequantize(t, m), want) {
			t.Errorf("%d bit: weights differ from the definition", bits)
		}
	}
}

func TestGPTQGroups(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	load := func(k, groupRows int, opts quant.GPTQOptions, change func(quant.TensorMap)) (*quant.QMatrix, error) {
		tensors := quanttest.GPTQ(rng, k, 32, 4, groupRows, false)
		if change != nil {
			change(tensors)
		}
		return quant.LoadGPTQ(tensors, "", opts)
	}
	rowsOf := func(m *quant.QMatrix) (rows []int) {
		for _, g := range m.Groups() {
			rows = append(rows, g.Rows)
		}
		return rows
	}
	for _, test := range []struct {
		k, groupRows int
		opts         quant.GPTQOptions
		change       func(quant.TensorMap)
		want         []int
	}{
		{256, 64, quant.GPTQOptions{}, nil, []int{64, 64, 64, 64}},
		{320, 128, quant.GPTQOptions{}, nil, []int{128, 128, 64}}, // a short last group
		{96, 96, quant.GPTQOptions{}, nil, []int{96}},             // one group of any size
		{288, 96, quant.GPTQOptions{GroupSize: 96}, nil, []int{96, 96, 96}},
		{40, 16, quant.GPTQOptions{}, nil, []int{16, 16, 8}},
		{128, 64, quant.GPTQOptions{}, func(m quant.TensorMap) { // g_idx of zeros says nothing
			m["g_idx"] = quant.Tensor{DType: tensor.I32, Shape: []int64{128}, Data: make([]byte, 512)}
		}, []int{64, 64}},
		{128, 64, quant.GPTQOptions{}, func(m quant.TensorMap) { // groups may be of unequal size, even empty
			data := make([]byte, 512)
			data[4*7], data[4*100] = 1, 1
			m["g_idx"] = quant.Tensor{DType: tensor.I32, Shape: []int64{128}, Data: data}
		}, []int{126, 2}},
	} {
		m, err := load(test.k, test.groupRows, test.opts, test.change)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(test.want, rowsOf(m)); diff != "" {
			t.Errorf("%d rows in groups of %d (-want +got):\n%s", test.k, test.groupRows, diff)
		}
	}
	_, err := load(960, 96, quant.GPTQOptions{}, nil)
	if err == nil || !strings.Contains(err.Error(), "give the group size") {
		t.Errorf("groups of 96 rows without their size: error %v", err)
	}
	m, err := load(64, 32, quant.GPTQOptions{}, func(m quant.TensorMap) {
		wide := make([]byte, 4*64)
		for i := range 64 {
			binary.LittleEndian.PutUint32(wide[4*i:], math.Float32bits(0.1))
		}
		m["scales"] = quant.Tensor{DType: tensor.F32, Shape: []int64{2, 32}, Data: wide}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Tensors("")["scales"].Data[:2]; !bytes.Equal(got, []byte{0x66, 0x2E}) {
		t.Errorf("0.1 in float32 became % x", got)
	}
}

// TestLoadErrors breaks one rule at a time.
func TestLoadErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	groups := []quant.Group{{Bits: 6, Rows: 32}, {Bits: 4, Rows: 64}, {Bits: 3, Rows: 32}}
	exl2 := quanttest.EXL2(rng, 32, groups) // packed rows: 6, 8, 3
	gptq := quanttest.GPTQ(rng, 64, 32, 4, 32, true)
	set := func(name string, offset int, value ...byte) func(quant.TensorMap) {
		return func(m quant.TensorMap) {
			t := m[name]
			t.Data = slices.Clone(t.Data)
			copy(t.Data[offset:], value)
			m[name] = t
		}
	}
	reshape := func(name string, shape ...int64) func(quant.TensorMap) {
		return func(m quant.TensorMap) {
			size, _ := tensor.Size(m[name].DType, shape)
			if size < 0 || size > 1<<20 {
				size = int64(len(m[name].Data))
			}
			m[name] = quant.Tensor{DType: m[name].DType, Shape: shape, Data: make([]byte, size)}
		}
	}
	retype := func(name string, d tensor.DType) func(quant.TensorMap) {
		return func(m quant.TensorMap) {
			m[name] = quant.Tensor{DType: d, Shape: m[name].Shape, Data: m[name].Data}
		}
	}
	drop := func(name string) func(quant.TensorMap) { return func(m quant.TensorMap) { delete(m, name) } }
	bias := func(n int64, data ...byte) func(quant.TensorMap) {
		return func(m quant.TensorMap) { m["bias"] = quant.Tensor{DType: tensor.F16, Shape: []int64{n}, Data: data} }
	}
	for _, test := range []struct {
		src    quant.TensorMap
		change func(quant.TensorMap)
		want   string
	}{
		{exl2, drop("q_weight"), "l.q_weight: missing"},
		{exl2, drop("q_scale_max"), "l.q_scale_max: missing"},
		{exl2, retype("q_groups", tensor.I32), "l.q_groups: type I32: want I16"},
		{exl2, retype("q_scale_max", tensor.BF16), "l.q_scale_max: type BF16: want F16"},
		{exl2, reshape("q_weight", 17, 32, 1), "l.q_weight: shape [17 32 1]: want 2 dimensions"},
		{exl2, reshape("q_weight", 17, -32), "l.q_weight: shape [17 -32]: want dimensions from 0 to 1073741824"},
		{exl2, reshape("q_weight", 1<<40, 32), "l.q_weight: shape [1099511627776 32]: want dimensions from 0 to 1073741824"},
		{exl2, reshape("q_weight", 1<<29, 1<<29), "l.q_weight: 2176 bytes: want 1152921504606846976 for shape [536870912 536870912]"},
		{exl2, reshape("q_weight", 17, 0), "l.q_weight: 0 columns: want a multiple of 8, at least 8"},
		{exl2, reshape("q_weight", 17, 36), "l.q_weight: 36 columns: want a multiple of 8, at least 8"},
		{exl2, reshape("q_groups", 5), "l.q_groups: 5 elements: want pairs of width and first packed row"},
		{exl2, reshape("q_groups", 0), "l.q_groups: no groups"},
		{exl2, reshape("q_scale", 3, 5), "l.q_scale: shape [3 5]: want [3 4] for 3 groups and 32 columns"},
		{exl2, reshape("q_scale", 2, 4), "l.q_scale: shape [2 4]: want [3 4] for 3 groups and 32 columns"},
		{exl2, reshape("q_scale_max", 4), "l.q_scale_max: 4 elements: want 3, one for each group"},
		{exl2, set("q_groups", 4, 7), "l.q_groups[2]: width 7: want 2, 3, 4, 5, 6 or 8"},
		{exl2, set("q_groups", 8, 5), "l.q_groups[4]: width 5 after width 4: want descending widths"},
		{exl2, set("q_groups", 2, 1), "l.q_groups[1]: first packed row 1: want 0"},
		{exl2, set("q_groups", 6, 0), "l.q_groups[3]: first packed row 0 after 0: want ascending rows"},
		{exl2, set("q_groups", 6, 0, 0x80), "l.q_groups[3]: first packed row -32768 after 0: want ascending rows"},
		{exl2, set("q_groups", 10, 18), "l.q_groups[5]: first packed row 18: q_weight has 17 rows"},
		{exl2, set("q_groups", 6, 7), "l.q_groups[0]: group of 7 packed rows of width 6: want a multiple of 6, for a multiple of 32 weight rows"},
		{exl2, reshape("q_invperm", 96), "l.q_invperm: 96 elements: want 128, one for each row of the groups"},
		{exl2, set("q_invperm", 4*9, 128, 0), "l.q_invperm[9]: row 128: want 0 to 127"},
		{exl2, set("q_invperm", 4*9, 0xFF, 0xFF, 0xFF, 0xFF), "l.q_invperm[9]: row -1: want 0 to 127"},
		{exl2, reshape("q_invperm", 128), "l.q_invperm[1]: row 0: element 0 has it already"},
		{exl2, set("q_scale_max", 2, 0x00, 0x7C), "l.q_scale_max[1]: not finite in half precision"},
		{exl2, bias(31, make([]byte, 62)...), "l.bias: 31 elements: want 32, one for each column"},
		{exl2, bias(32, make([]byte, 62)...), "l.bias: 62 bytes: want 64 for shape [32]"},
		{gptq, drop("qzeros"), "l.qzeros: missing"},
		{gptq, retype("g_idx", tensor.F32), "l.g_idx: type F32: want I32"},
		{gptq, reshape("qweight", 0, 32), "l.qweight: shape [0 32]: no weights"},
		{gptq, reshape("qzeros", 0, 4), "l.qzeros: shape [0 4]: no groups"},
		{gptq, reshape("qzeros", 2, 5), "l.qzeros: shape [2 5] with 32 columns of qweight: no width of 2, 3, 4 or 8 fits"},
		{gptq, reshape("qzeros", 2, 1<<14), "l.qzeros: shape [2 16384] with 32 columns of qweight: no width of 2, 3, 4 or 8 fits"},
		{gptq, reshape("qzeros", 2, 3), "l.qweight: 8 packed rows of width 3: want a multiple of 3"},
		{gptq, reshape("scales", 2, 31), "l.scales: shape [2 31]: want [2 32] for 2 groups and 32 columns"},
		{gptq, reshape("g_idx", 63), "l.g_idx: 63 elements: want 64, one for each weight row"},
		{gptq, set("g_idx", 4*5, 2), "l.g_idx[5]: group 2: want 0 to 1"},
		{gptq, set("g_idx", 4*5+3, 0x80), "want 0 to 1"},
		{gptq, set("scales", 2*33, 0xFF, 0x7F), "l.scales[33]: not finite in half precision"},
	} {
		src := maps.Clone(test.src)
		test.change(src)
		named := quant.TensorMap{}
		for name, t := range src {
			named["l."+name] = t
		}
		var err error
		if _, ok := test.src["qweight"]; ok {
			_, err = quant.LoadGPTQ(named, "l", quant.GPTQOptions{})
		} else {
			_, err = quant.LoadEXL2(named, "l", quant.EXL2Options{})
		}
		var format *quant.FormatError
		if err == nil || !strings.Contains(err.Error(), test.want) || !errors.As(err, &format) {
			t.Errorf("error %v\nwant  %s", err, test.want)
		}
	}

	_, err := quant.LoadEXL2(quant.TensorMap{}, "l", quant.EXL2Options{Dialect: quant.LoRAX})
	if got, want := err.Error(), "l.q_weight: missing\nl.q_groups: missing\nl.q_scale: missing\nl.q_scale_max: missing\nl.q_invperm: missing"; got != want {
		t.Errorf("nothing at all: error %v", err)
	}
	if _, err := quant.LoadEXL2(exl2, "", quant.EXL2Options{Prescale: 1e9}); err == nil {
		t.Error("a prescale that overflows is no error")
	}
	if _, err := quant.LoadGPTQ(gptq, "", quant.GPTQOptions{Bits: 5}); err == nil {
		t.Error("5 bit GPTQ is no error")
	}
	if _, err := quant.LoadGPTQ(gptq, "", quant.GPTQOptions{Bits: 8}); err == nil {
		t.Error("a width that the shapes deny is no error")
	}
}

func TestDialect(t *testing.T) {
	for _, test := range []struct {
		d               quant.Dialect
		m, k, maxDQRows int
		force           bool
		want            quant.Path
	}{
		{quant.Exllamav2, 32, 4096, 8192, false, quant.PathFused},
		{quant.Exllamav2, 33, 4096, 8192, false, quant.PathReconstruct},
		{quant.Exllamav2, 33, 4096, 8192, true, quant.PathFused},
		{quant.Exllamav2, 33, 4096, 4096, false, quant.PathReconstruct},
		{quant.Exllamav2, 33, 4096, 4095, false, quant.PathFused}, // rounded down to 3968
		{quant.Exllamav2, 33, 4096, 0, false, quant.PathFused},
		{quant.LoRAX, 50, 4096, 0, false, quant.PathFused},
		{quant.LoRAX, 51, 4096, 0, false, quant.PathReconstruct},
		{quant.LoRAX, 51, 4096, 0, true, quant.PathFused},
	} {
		if got := test.d.Path(test.m, test.k, test.maxDQRows, test.force); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	if got := quant.Exllamav2.MaxDQRows(4096); got != 1<<17 {
		t.Errorf("max_dq_rows of 4096 columns is %d", got)
	}
	if got := quant.Exllamav2.ScratchElements(4096, 1024, 100); got != 102400 {
		t.Errorf("scratch of exllamav2 is %d", got)
	}
	if got := quant.LoRAX.ScratchElements(4096, 1024, 100); got != 4096*1024 {
		t.Errorf("scratch of LoRAX is %d", got)
	}
}

// fuzzTensors makes the named tensors from data: for each a type, its shape and its bytes, or
// others where the shape is absurd.
func fuzzTensors(data []byte, names ...string) quant.TensorMap {
	next := func() int64 {
		if len(data) == 0 {
			return 0
		}
		v := data[0]
		data = data[1:]
		if v == 255 { // something large
			return int64(len(data)) << 33
		}
		return int64(v)
	}
	types := []tensor.DType{tensor.I32, tensor.I16, tensor.F16, tensor.F32, tensor.BF16}
	out := quant.TensorMap{}
	for _, name := range names {
		kind := next()
		if kind >= 250 {
			continue
		}
		t := quant.Tensor{DType: types[kind%int64(len(types))]}
		for range kind / 16 % 4 {
			t.Shape = append(t.Shape, next())
		}
		size, err := tensor.Size(t.DType, t.Shape)
		if err != nil || size > 1<<16 {
			size = next() & 0xFF
		}
		t.Data = make([]byte, size)
		n := copy(t.Data, data)
		data = data[n:]
		out[name] = t
	}
	return out
}

// fuzzSeed is what fuzzTensors makes tensors of.
func fuzzSeed(m quant.TensorMap, names ...string) []byte {
	types := []tensor.DType{tensor.I32, tensor.I16, tensor.F16, tensor.F32, tensor.BF16}
	var out []byte
	for _, name := range names {
		t, ok := m[name]
		if !ok {
			out = append(out, 250)
			continue
		}
		kind := 16 * len(t.Shape)
		for kind%len(types) != slices.Index(types, t.DType) {
			kind++
		}
		out = append(out, byte(kind))
		for _, d := range t.Shape {
			out = append(out, byte(d))
		}
		out = append(out, t.Data...)
	}
	return out
}

var (
	exl2Names = []string{"q_groups", "q_scale_max", "q_scale", "q_weight", "q_invperm", "bias"}
	gptqNames = []string{"qzeros", "scales", "qweight", "g_idx", "bias"}
)

// exercise computes with a matrix that was accepted.
func exercise(t *testing.T, m *quant.QMatrix) {
	weights := dequantize(t, m)
	x := make([]byte, 2*m.Rows())
	for i := range x {
		x[i] = byte(i%7) + 0x30
	}
	for _, set := range quant.Features().Available {
		gemm(t, newCPU(t, quant.CPUOptions{Kernels: set, Threads: 1}), m, x, quant.GemmOptions{})
	}
	for i := range weights { // writing and loading gives the same matrix
		if i%2 == 1 && weights[i]&0x7C == 0x7C {
			return // a product that overflowed
		}
	}
	var again *quant.QMatrix
	var err error
	if m.Format() == quant.EXL2 {
		again, err = quant.LoadEXL2(m.Tensors("k"), "k", quant.EXL2Options{})
	} else {
		again, err = quant.LoadGPTQ(m.Tensors("k"), "k", quant.GPTQOptions{GroupSize: m.Groups()[0].Rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dequantize(t, again), weights) {
		t.Fatal("writing and loading changes the weights")
	}
}

func FuzzLoadEXL2(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, groups := range [][]quant.Group{
		{{Bits: 2, Rows: 32}},
		{{Bits: 6, Rows: 32}, {Bits: 3, Rows: 64}},
		{{Bits: 8, Rows: 32}, {Bits: 5, Rows: 32}, {Bits: 4, Rows: 32}},
	} {
		seed := fuzzSeed(quanttest.EXL2(rng, 8, groups), exl2Names...)
		if _, err := quant.LoadEXL2(fuzzTensors(seed, exl2Names...), "", quant.EXL2Options{}); err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := quant.LoadEXL2(fuzzTensors(data, exl2Names...), "", quant.EXL2Options{})
		if err == nil {
			exercise(t, m)
		}
	})
}

func FuzzLoadGPTQ(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, bits := range []int{2, 3, 4, 8} {
		seed := fuzzSeed(quanttest.GPTQ(rng, 64, 32, bits, 32, bits == 4), gptqNames...)
		if _, err := quant.LoadGPTQ(fuzzTensors(seed, gptqNames...), "", quant.GPTQOptions{}); err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := quant.LoadGPTQ(fuzzTensors(data, gptqNames...), "", quant.GPTQOptions{})
		if err == nil {
			exercise(t, m)
		}
	})
}
