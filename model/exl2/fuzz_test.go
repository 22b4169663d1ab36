package exl2

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// FuzzJob feeds the readers of job_new.json and config.json. What they accept must survive being
// written and read again.
func FuzzJob(f *testing.F) {
	f.Add([]byte(`{"in_dir":"m","compile_full":null,"shard_size":8192,"bits":4.0,"head_bits":6,"dataset_rows":1,"length":1,"cal_dataset":null,"progress":"compile"}`),
		[]byte(`{"architectures":["LlamaForCausalLM"],"num_hidden_layers":2,"hidden_size":64,"vocab_size":100,"num_attention_heads":2,"intermediate_size":64}`))
	f.Add([]byte(`{"shard_size":1e400}`), []byte(`{"architectures":["MixtralForCausalLM"],"num_local_experts":1e9}`))
	f.Add([]byte(`{"progress":["x"],"invalid":0,"bits":"4","cal_dataset":"a/\ud800"}`), []byte("{\"a\":\"\\ud83d\\ude00\",\"a\":[-0,0.1e-7,{}]}"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, job, config []byte) {
		j, ps := parseJob(job, JobFile)
		if j == nil && len(ps) == 0 {
			t.Fatal("no job and no problem")
		}
		if m, ps := parseModel(config, ConfigFile); len(ps) == 0 {
			if m.layers*(m.experts+1) < 1000 {
				for _, mod := range m.modules() {
					if len(mod.parts) == 0 {
						t.Fatal("a module without parts")
					}
				}
			}
		}
		v, err := parseJSON(config)
		if err != nil {
			return
		}
		text := appendPython(nil, v, 0)
		if !json.Valid(text) {
			t.Fatalf("%q became %q, which is not JSON", config, text)
		}
		again, err := parseJSON(text)
		if err != nil {
			t.Fatalf("%q became %q: %v", config, text, err)
		}
		if second := appendPython(nil, again, 0); !bytes.Equal(text, second) {
			t.Fatalf("%q, written again %q", text, second)
		}
		if j != nil && v.kind == kObject && len(ps) == 0 {
			if _, err := compiledConfig(config, j, ConverterVersion); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzInvariants feeds files of quantized layers. What is accepted must satisfy the arithmetic that
// kernels rely on.
func FuzzInvariants(f *testing.F) {
	dir := f.TempDir()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(dir, fmt.Sprint(seed))
		if err := writeSafetensors(path, quantized(r, "l", 32*(1+r.IntN(3)), 32, seed%2 == 0), false); err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, []byte{8, 0, 0, 0, 4, 0, 8, 0}, uint16(12), uint16(64))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data, table []byte, packed, rows uint16) {
		count := int64(len(table) / 4)
		small := quant.TensorMap{
			"l.q_weight":    {DType: tensor.I32, Shape: []int64{int64(packed), 8}, Data: make([]byte, 32*int(packed))},
			"l.q_groups":    {DType: tensor.I16, Shape: []int64{2 * count}, Data: table[:4*count]},
			"l.q_scale":     {DType: tensor.I32, Shape: []int64{count, 1}, Data: make([]byte, 4*count)},
			"l.q_scale_max": {DType: tensor.F16, Shape: []int64{count}, Data: make([]byte, 2*count)},
		}
		var perm []byte
		for i := range int(rows) {
			perm = binary.LittleEndian.AppendUint32(perm, uint32(i))
		}
		small["l.q_invperm"] = quant.Tensor{DType: tensor.I32, Shape: []int64{int64(rows)}, Data: perm}
		checkAccepted(t, small, int64(packed))

		r := bytes.NewReader(data)
		h, err := safetensors.ReadHeader(r, int64(len(data)))
		if err != nil {
			return
		}
		w, _ := h.Lookup("l.q_weight")
		m := checkAccepted(t, tensorSource{h, r}, slices.Concat(w.Shape, []int64{0})[0])
		if p, _ := h.Lookup("l.q_invperm"); m != nil && p.DType == tensor.I32 {
			seen := make([]bool, m.Rows)
			for i := range m.Rows {
				seen[binary.LittleEndian.Uint32(data[h.DataStart+p.Offset+int64(4*i):])] = true
			}
			if slices.Contains(seen, false) {
				t.Fatal("a row is not in the permutation")
			}
		}
	})
}

// checkAccepted returns nil for a layer with problems.
func checkAccepted(t *testing.T, src quant.Source, packed int64) *quant.LayerInfo {
	m, ps := readMatrix("file", "l", src)
	if len(ps) > 0 {
		return nil
	}
	rows, words := 0, 0
	for _, w := range m.Widths {
		rows += w.Rows
		words += w.Rows * w.Bits / 32
	}
	if rows != m.Rows || int64(words) != packed || m.Cols%8 != 0 {
		t.Fatalf("accepted %d rows in widths of %d, %d packed of %d", m.Rows, rows, words, packed)
	}
	return &m
}

// FuzzManifest: a manifest may be anyone's. It names no file outside of the folder, and whatever it
// says of those inside, the model is judged.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schema":"kiln-exl2-manifest/1","files":[{"name":"a.safetensors","size":18,"sha256":"00"}],"tensors":[{"name":"t","file":"a.safetensors","dtype":"F16","shape":[1],"offset":9,"size":2,"sha256":"00"}]}`))
	f.Add([]byte(`{"schema":"kiln-exl2-manifest/1","files":[{"name":"../config.json","size":1}]}`))
	fuzzcorpus.Add(f)
	dir := f.TempDir()
	for name, text := range map[string]string{"a.safetensors": "\x02\x00\x00\x00\x00\x00\x00\x00{}        ", "config.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		manifest := filepath.Join(t.TempDir(), ManifestName)
		if err := os.WriteFile(manifest, text, 0o666); err != nil {
			t.Fatal(err)
		}
		report, err := Verify(t.Context(), dir, VerifyOptions{ManifestPath: manifest})
		if err == nil && report.OK() {
			t.Fatal("a folder without a model is good")
		}
	})
}
