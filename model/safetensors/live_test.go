package safetensors_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// startPython starts testdata/live.py with the interpreter that KILN_PYTHON names.
func startPython(t *testing.T) *kilntest.Peer {
	t.Helper()
	path := os.Getenv("KILN_PYTHON")
	if path == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON does not name a Python with safetensors and numpy")
	}
	if out, err := exec.CommandContext(t.Context(), path, "-c", "import numpy, safetensors").CombinedOutput(); err != nil {
		kilntest.Lacking(t, "python", "KILN_PYTHON=%s has no safetensors or numpy: %v\n%s", path, err, out)
	}
	return kilntest.StartPeer(t, path, filepath.Join("testdata", "live.py"))
}

func TestLive(t *testing.T) {
	p := startPython(t)
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b.safetensors")

	t.Run("written by Python", func(t *testing.T) {
		for seed := range 60 {
			var said struct {
				Tensors  map[string][2]any `json:"tensors"`
				Metadata map[string]string `json:"metadata"`
			}
			p.Ask(t, map[string]any{"write": path, "seed": seed}, &said)
			f, err := safetensors.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string][2]any{}
			for _, x := range f.Header().Tensors {
				r, err := f.Reader(x.Name)
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				shape := []any{}
				for _, dim := range x.Shape {
					shape = append(shape, float64(dim))
				}
				sum := sha256.Sum256(data)
				got[x.Name] = [2]any{shape, hex.EncodeToString(sum[:])}
			}
			if diff := gocmp.Diff(said.Tensors, got); diff != "" {
				t.Errorf("seed %d: (-want +got)\n%s", seed, diff)
			}
			if diff := gocmp.Diff(said.Metadata, f.Header().Metadata); diff != "" {
				t.Errorf("seed %d: metadata (-want +got)\n%s", seed, diff)
			}

			// The same tensors laid out here give the same bytes.
			var specs []safetensors.Spec
			for _, x := range f.Header().Tensors {
				specs = append(specs, safetensors.Spec{Name: x.Name, DType: x.DType, Shape: x.Shape})
			}
			l, err := safetensors.NewLayout(specs, said.Metadata)
			if err != nil {
				t.Fatal(err)
			}
			if err := safetensors.WriteFile(other, l, func(name string) (io.Reader, error) { return f.Reader(name) }); err != nil {
				t.Fatal(err)
			}
			f.Close()
			want, _ := os.ReadFile(path)
			mine, _ := os.ReadFile(other)
			if len(said.Metadata) < 2 && !bytes.Equal(want, mine) || len(want) != len(mine) {
				t.Errorf("seed %d: our bytes differ", seed)
			}
		}
	})

	t.Run("written by kiln", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		readable := []tensor.DType{tensor.Bool, tensor.U8, tensor.I8, tensor.I16, tensor.U16, tensor.F16, tensor.I32, tensor.U32, tensor.F32, tensor.F64, tensor.I64, tensor.U64}
		for range 40 {
			var specs []safetensors.Spec
			for k := range rng.IntN(15) {
				shape := make([]int64, rng.IntN(4))
				for i := range shape {
					shape[i] = rng.Int64N(7)
				}
				specs = append(specs, safetensors.Spec{Name: fmt.Sprintf("t%d.\"é\n", k*7919%100), DType: readable[rng.IntN(len(readable))], Shape: shape})
			}
			l, err := safetensors.NewLayout(specs, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = safetensors.WriteFile(path, l, func(name string) (io.Reader, error) {
				_, size, _ := l.Offset(name)
				data := make([]byte, size)
				for i := range data {
					data[i] = byte(rng.Uint32() & 1) // valid for every type
				}
				return bytes.NewReader(data), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			p.Ask(t, map[string]string{"rewrite": path, "to": other}, &struct{}{})
			mine, _ := os.ReadFile(path)
			theirs, _ := os.ReadFile(other)
			if !bytes.Equal(mine, theirs) {
				t.Errorf("Python reads %s and writes something else", l.Header()[8:])
			}
		}
	})

	t.Run("damaged", func(t *testing.T) {
		var seeds [][]byte
		for _, v := range lines[verdict](t, "testdata/headers.jsonl") {
			if v.OK {
				seeds = append(seeds, v.bytes(t))
			}
		}
		rng := rand.New(rand.NewPCG(7, 8))
		for range 1500 {
			raw := damage(rng, seeds[rng.IntN(len(seeds))])
			if err := os.WriteFile(path, raw, 0o666); err != nil {
				t.Fatal(err)
			}
			var v verdict
			p.Ask(t, map[string]string{"verdict": path}, &v)
			compareVerdict(t, v, raw)
		}
	})

	t.Run("index", func(t *testing.T) {
		ix := safetensors.Index{TotalSize: 5, WeightMap: map[string]string{"é\u2028\x7f\u0080": "f", "\uffff": "g", "😀": "h", "\"\\/\b\x00": "i"}}
		var answer struct{ Text string }
		p.Ask(t, map[string]any{"index": map[string]any{"metadata": map[string]any{"total_size": 5}, "weight_map": ix.WeightMap}}, &answer)
		if diff := gocmp.Diff(answer.Text, string(ix.Encode())); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// damage changes a few bytes of the header and keeps its length right.
func damage(rng *rand.Rand, raw []byte) []byte {
	h, err := read(raw)
	if err != nil {
		return raw
	}
	header := slices.Clone(raw[8:h.DataStart])
	const alphabet = "{}[]\",:0123456789eE.+-\\utrnlfas \n\x00\x7f\xc3\xa9_FBIUC"
	for range 1 + rng.IntN(3) {
		if len(header) == 0 {
			break
		}
		i := rng.IntN(len(header))
		c := alphabet[rng.IntN(len(alphabet))]
		switch rng.IntN(4) {
		case 0:
			header[i] = c
		case 1:
			header = slices.Insert(header, i, c)
		case 2:
			header = slices.Delete(header, i, i+1)
		case 3: // a digit: these survive parsing and reach the checks of offsets
			if j := bytes.IndexAny(header[i:], "0123456789"); j >= 0 {
				header[i+j] = '0' + byte(rng.IntN(10))
			}
		}
	}
	return file(header, len(raw)-int(h.DataStart))
}
