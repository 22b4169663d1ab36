package quant_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// golden is one matrix that exllamav2 has computed with, on a GPU: what it was given and what came
// out. The vectors in testdata/exl2.safetensors and testdata/gptq.safetensors are facts about
// exllamav2 (commit da07facd); nothing in this repository can make them anew.
type golden struct {
	name   string
	src    quant.Source
	key    string
	matrix *quant.QMatrix
}

// goldens loads all cases.
func goldens(t testing.TB) []golden {
	t.Helper()
	var all []golden
	for _, format := range []string{"exl2", "gptq"} {
		f, err := safetensors.Open("testdata/" + format + ".safetensors")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		for _, tensor := range f.Header().Tensors {
			key, ok := strings.CutSuffix(tensor.Name, ".recon")
			if !ok {
				continue
			}
			g := golden{name: format + "/" + key, src: quant.Files(f), key: key}
			if format == "exl2" {
				g.matrix, err = quant.LoadEXL2(g.src, key, quant.EXL2Options{})
			} else {
				g.matrix, err = quant.LoadGPTQ(g.src, key, quant.GPTQOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
		}
	}
	if len(all) != 21 {
		t.Fatalf("%d golden matrices, want 21", len(all))
	}
	return all
}

// bytes returns the data of a tensor, nil if there is none.
func (g golden) bytes(t testing.TB, suffix string) []byte {
	t.Helper()
	name := g.key + "." + suffix
	if _, ok := g.src.Lookup(name); !ok {
		return nil
	}
	r, err := g.src.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (g golden) floats(t testing.TB, suffix string) []float64 {
	t.Helper()
	data := g.bytes(t, suffix)
	narrow := make([]float32, len(data)/4)
	tensor.DecodeF32(narrow, data)
	wide := make([]float64, len(narrow))
	for i, v := range narrow {
		wide[i] = float64(v)
	}
	return wide
}

func (g golden) uint16s(t testing.TB, suffix string) []int32 {
	t.Helper()
	data := g.bytes(t, suffix)
	out := make([]int32, len(data)/2)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint16(data[2*i:]))
	}
	return out
}

func dequantize(t testing.TB, m *quant.QMatrix) []byte {
	t.Helper()
	out := make([]byte, 2*m.Rows()*m.Cols())
	if err := m.Dequantize(out); err != nil {
		t.Fatal(err)
	}
	return out
}

// relError returns ‖got − want‖ / ‖want‖.
func relError(got []byte, want []float64) float64 {
	values := make([]float32, len(got)/2)
	tensor.DecodeF16(values, got)
	var diff, norm float64
	for i, w := range want {
		diff += (float64(values[i]) - w) * (float64(values[i]) - w)
		norm += w * w
	}
	return math.Sqrt(diff / norm)
}

func TestGoldenDequantize(t *testing.T) {
	for _, g := range goldens(t) {
		t.Run(g.name, func(t *testing.T) {
			if got, want := dequantize(t, g.matrix), g.bytes(t, "recon"); !bytes.Equal(got, want) {
				t.Error("weights differ from exllamav2")
			}
			if want := g.bytes(t, "q_perm"); want != nil {
				if diff := cmp.Diff(g.uint16s(t, "q_perm"), g.matrix.Perm()); diff != "" {
					t.Errorf("perm (-want +got):\n%s", diff)
				}
			}
			if want := g.bytes(t, "q_group_map"); want != nil {
				if diff := cmp.Diff(g.uint16s(t, "q_group_map"), g.matrix.GroupMap()); diff != "" {
					t.Errorf("group map (-want +got):\n%s", diff)
				}
			}
			want := g.bytes(t, "recon_lorax")
			if want == nil {
				return
			}
			m, err := quant.LoadGPTQ(g.src, g.key, quant.GPTQOptions{Dialect: quant.LoRAX})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(dequantize(t, m), want) {
				t.Error("weights differ from LoRAX")
			}
		})
	}
}

func newCPU(t testing.TB, opts quant.CPUOptions) *quant.CPU {
	t.Helper()
	c, err := quant.NewCPU(opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// gemm returns x·W for x with whole rows.
func gemm(t testing.TB, b quant.Backend, m *quant.QMatrix, x []byte, opts quant.GemmOptions) []byte {
	t.Helper()
	w, err := b.Upload(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.NewMatrix(len(x)/2/m.Rows(), m.Rows())
	if err != nil {
		t.Fatal(err)
	}
	if err := in.CopyFrom(x); err != nil {
		t.Fatal(err)
	}
	out, err := b.NewMatrix(in.Rows(), m.Cols())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Gemm(t.Context(), out, in, w, opts); err != nil {
		t.Fatal(err)
	}
	result := make([]byte, 2*in.Rows()*m.Cols())
	if err := out.CopyTo(result); err != nil {
		t.Fatal(err)
	}
	return result
}

func TestGoldenGemm(t *testing.T) {
	backends := map[string]quant.Backend{}
	for _, set := range quant.Features().Available {
		backends[set] = newCPU(t, quant.CPUOptions{Kernels: set})
	}
	for _, g := range goldens(t) {
		t.Run(g.name, func(t *testing.T) {
			check := func(name, x, want string, path quant.Path) {
				t.Helper()
				y := gemm(t, backends[name], g.matrix, g.bytes(t, x), quant.GemmOptions{Path: path})
				got := relError(y, g.floats(t, want))
				t.Logf("%s, %v: error %.2e", name, path, got)
				if got > 3e-4 {
					t.Errorf("%s, %v: error %.2e, want at most 3e-4", name, path, got)
				}
			}
			for name := range backends {
				check(name, "x", "y_exact", quant.PathAuto)
				check(name, "x", "y_exact", quant.PathFused)
				check(name, "x", "y_recon", quant.PathReconstruct)
				if g.bytes(t, "x_large") != nil {
					check(name, "x_large", "y_large_ref", quant.PathReconstruct)
				}
			}
			t.Logf("exllamav2: error %.2e", relError(g.bytes(t, "y_fused"), g.floats(t, "y_exact")))
		})
	}
}
