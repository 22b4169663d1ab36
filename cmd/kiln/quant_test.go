package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/model/exl2"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// TestQuantizedModel rounds the layers of a small model to every width, writes it as a model
// folder, and reads it again in three ways: "model inspect" must find the widths, "quant
// dequantize" must give weights that are off by what the width explains, and a product must be off
// by as much.
func TestQuantizedModel(t *testing.T) {
	const hidden, inner, layers = 256, 512, 2
	linears := []struct {
		name string
		k, n int
	}{
		{"self_attn.q_proj", hidden, hidden},
		{"self_attn.k_proj", hidden, hidden},
		{"self_attn.v_proj", hidden, hidden},
		{"self_attn.o_proj", hidden, hidden},
		{"mlp.gate_proj", hidden, inner},
		{"mlp.up_proj", hidden, inner},
		{"mlp.down_proj", inner, hidden},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	halves := func(n int) []byte {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(0.03 * rng.NormFloat64())
		}
		out := make([]byte, 2*n)
		tensor.EncodeF16(out, values)
		return out
	}
	floats := quant.TensorMap{}
	add := func(name string, shape ...int64) {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		floats[name] = quant.Tensor{DType: tensor.F16, Shape: shape, Data: halves(int(n))}
	}
	add("model.embed_tokens.weight", 96, hidden)
	add("model.norm.weight", hidden)
	weights := map[string][]float32{} // [K, N]
	sizes := map[string][2]int{}
	for i := range layers {
		prefix := fmt.Sprintf("model.layers.%d.", i)
		add(prefix+"input_layernorm.weight", hidden)
		add(prefix+"post_attention_layernorm.weight", hidden)
		for _, l := range linears {
			weights[prefix+l.name] = make([]float32, l.k*l.n)
			tensor.DecodeF16(weights[prefix+l.name], halves(l.k*l.n))
			sizes[prefix+l.name] = [2]int{l.k, l.n}
		}
	}
	weights["lm_head"] = make([]float32, hidden*96)
	tensor.DecodeF16(weights["lm_head"], halves(hidden*96))
	sizes["lm_head"] = [2]int{hidden, 96}

	for _, bits := range []int{2, 3, 4, 5, 6, 8} {
		t.Run(fmt.Sprint(bits, " bit"), func(t *testing.T) {
			dir := t.TempDir()
			tensors := maps.Clone(floats)
			for key, w := range weights {
				k, n := sizes[key][0], sizes[key][1]
				groups, err := quant.MixGroups(k, quant.Share{Bits: bits, GroupRows: 64})
				if err != nil {
					t.Fatal(err)
				}
				perm := make([]int32, k)
				for i, v := range rng.Perm(k) {
					perm[i] = int32(v)
				}
				m, err := quant.QuantizeEXL2(w, k, n, quant.EXL2Spec{Groups: groups, Perm: perm})
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(tensors, m.Tensors(key))
			}
			writeModel(t, dir, tensors, bits)

			var info exl2.Info
			if err := json.Unmarshal(kilnOutput(t, "model", "inspect", dir, "--json"), &info); err != nil {
				t.Fatal(err)
			}
			if info.Quantized != len(weights) || info.Floats != len(floats) || len(info.BitsPerRow) != 1 || info.BitsPerRow[0].Bits != bits {
				t.Errorf("model inspect: %d quantized and %d other tensors, rows by width %v: want %d, %d and all %d bits",
					info.Quantized, info.Floats, info.BitsPerRow, len(weights), len(floats), bits)
			}
			// Codes, 4 bits of scale for each column and group, and tables.
			if least := float64(bits) + 4.0/64; info.LayerBits < least || info.LayerBits > least+0.3 {
				t.Errorf("model inspect: %.3f bits per weight, want a little more than %.3f", info.LayerBits, least)
			}

			out := filepath.Join(dir, "half.safetensors")
			kilnOutput(t, "quant", "dequantize", filepath.Join(dir, "model.safetensors"), "--out", out)
			compareWeights(t, out, weights, sizes, bits)
			compareProducts(t, filepath.Join(dir, "model.safetensors"), weights, sizes, bits)
		})
	}
}

// expectedError is the relative error of rounding normal weights to nearest: in groups of 64 the
// largest of them is about 2.4 standard deviations, a step is that times 2/(2ᵇ−1), and the error of
// a rounding is step/√12.
func expectedError(bits int) float64 { return 2.4 * 2 / float64(int(1)<<bits-1) / math.Sqrt(12) }

func writeModel(t *testing.T, dir string, tensors quant.TensorMap, bits int) {
	t.Helper()
	var specs []safetensors.Spec
	for name, v := range tensors {
		specs = append(specs, safetensors.Spec{Name: name, DType: v.DType, Shape: v.Shape})
	}
	layout, err := safetensors.NewLayout(specs, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	err = safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), layout, func(name string) (io.Reader, error) { return tensors.Open(name) })
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "exl2", "bits": %d}}`, bits)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
}

// kilnOutput runs a command that must succeed.
func kilnOutput(t *testing.T, args ...string) []byte {
	t.Helper()
	var stdout, stderr strings.Builder
	if code := run(args, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("kiln %s: exit code %d\n%s", strings.Join(args, " "), code, stderr.String())
	}
	return []byte(stdout.String())
}

func compareWeights(t *testing.T, path string, weights map[string][]float32, sizes map[string][2]int, bits int) {
	t.Helper()
	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var diff, norm float64
	for key, w := range weights {
		r, err := file.Reader(key + ".weight")
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(data)/2)
		tensor.DecodeF16(got, data)
		if len(got) != len(w) { // no padding: all numbers of columns are multiples of 32
			t.Fatalf("%s has %d weights, want %v", key, len(got), sizes[key])
		}
		for i, v := range w {
			diff += float64(got[i]-v) * float64(got[i]-v)
			norm += float64(v) * float64(v)
		}
	}
	e, want := math.Sqrt(diff/norm), expectedError(bits)
	t.Logf("weights: relative error %.4f, by the rule %.4f", e, want)
	if e > 1.25*want || e < 0.75*want {
		t.Errorf("weights: relative error %.4f, want about %.4f", e, want)
	}
}

// compareProducts multiplies with the quantized matrices of the file and compares with the weights
// as they were. Errors of weights are independent, so that of a product is as large, relative to
// it.
func compareProducts(t *testing.T, path string, weights map[string][]float32, sizes map[string][2]int, bits int) {
	t.Helper()
	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cpu, err := quant.NewCPU(quant.CPUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	var diff, norm float64
	for key, w := range weights {
		m, err := quant.LoadEXL2(quant.Files(file), key, quant.EXL2Options{})
		if err != nil {
			t.Fatal(err)
		}
		weight, err := cpu.Upload(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		k, n := sizes[key][0], sizes[key][1]
		x := make([]float32, k)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		half := make([]byte, 2*k)
		tensor.EncodeF16(half, x)
		tensor.DecodeF16(x, half)
		in, err := quant.NewHalf(1, k, half)
		if err != nil {
			t.Fatal(err)
		}
		result := make([]byte, 2*n)
		out, err := quant.NewHalf(1, n, result)
		if err != nil {
			t.Fatal(err)
		}
		if err := cpu.Gemm(t.Context(), out, in, weight, quant.GemmOptions{}); err != nil {
			t.Fatal(err)
		}
		y := make([]float32, n)
		tensor.DecodeF16(y, result)
		for j, v := range y {
			want := 0.0
			for i := range k {
				want += float64(x[i]) * float64(w[i*n+j])
			}
			diff += (float64(v) - want) * (float64(v) - want)
			norm += want * want
		}
	}
	e, want := math.Sqrt(diff/norm), expectedError(bits)
	t.Logf("products: relative error %.4f, by the rule %.4f", e, want)
	if e > 1.3*want || e < 0.7*want {
		t.Errorf("products: relative error %.4f, want about %.4f", e, want)
	}
}
