package exl2

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// FuzzJob feeds the readers of job_new.json and config.json. What they accept must survive being written and read again.
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

// FuzzInvariants feeds files of quantized layers. What is accepted must satisfy the arithmetic that kernels rely on.
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
		if groups, err := parseGroups(table, int(packed), int(rows)); err == nil {
			n, words := 0, 0
			for _, g := range groups {
				n += g.rows
				words += g.rows * g.bits
			}
			if n != int(rows) || len(groups) > 0 && words != 32*int(packed) {
				t.Fatalf("accepted groups %v for %d packed of %d rows", groups, packed, rows)
			}
		}
		if len(table) > 0 && checkPermutation(table) == nil && len(table)/4 > 0 {
			sum, n := 0, len(table)/4
			for i := range n {
				sum += int(binary.LittleEndian.Uint32(table[4*i:]))
			}
			if sum != n*(n-1)/2 {
				t.Fatalf("accepted permutation % x", table)
			}
		}
		r := bytes.NewReader(data)
		h, err := parseHeader(r, int64(len(data)))
		if err != nil {
			return
		}
		m, ps := readMatrix("file", "l", h.lookup, h.data(r))
		if len(ps) > 0 {
			return
		}
		sum, words := 0, 0
		for _, g := range m.groups {
			sum += g.rows
			words += g.rows * g.bits / 32
		}
		w, _ := h.lookup("l.q_weight")
		if sum != m.rows || int64(words) != w.Shape[0] || int64(m.cols) != w.Shape[1] || m.cols%32 != 0 {
			t.Fatalf("accepted %d rows in groups of %d, %d packed of %v", m.rows, sum, words, w.Shape)
		}
		p, _ := h.lookup("l.q_invperm")
		seen := make([]bool, m.rows)
		for i := range m.rows {
			seen[binary.LittleEndian.Uint32(data[p.Offset+int64(4*i):])] = true
		}
		for i, ok := range seen {
			if !ok {
				t.Fatalf("row %d is not in the permutation", i)
			}
		}
	})
}
