package exl2

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// editJob changes the job file of a fixture.
func (fx *fixture) editJob(t testing.TB, edit func(map[string]any)) {
	t.Helper()
	editJSON(t, filepath.Join(fx.work, JobFile), edit)
}

func editJSON(t testing.TB, path string, edit func(map[string]any)) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	edit(m)
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// editTensors rewrites a safetensors file.
func editTensors(t testing.TB, path string, edit func([]rawTensor) []rawTensor) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var list []rawTensor
	for _, e := range h.Tensors {
		list = append(list, rawTensor{e.Name, e.DType, slices.Clone(e.Shape), slices.Clone(data[h.DataStart+e.Offset:][:e.Size])})
	}
	if err := writeSafetensors(path, edit(list), false); err != nil {
		t.Fatal(err)
	}
}

func (fx *fixture) layer(key string) string {
	return filepath.Join(fx.work, "out_tensor", key+".safetensors")
}

const qProj = "model.layers.0.self_attn.q_proj"

// with returns an edit that changes the tensor whose name ends in suffix.
func with(suffix string, change func(*rawTensor)) func([]rawTensor) []rawTensor {
	return func(list []rawTensor) []rawTensor {
		for i := range list {
			if strings.HasSuffix(list[i].name, suffix) {
				change(&list[i])
			}
		}
		return list
	}
}

func without(suffix string) func([]rawTensor) []rawTensor {
	return func(list []rawTensor) []rawTensor {
		var out []rawTensor
		for _, t := range list {
			if !strings.HasSuffix(t.name, suffix) {
				out = append(out, t)
			}
		}
		return out
	}
}

func TestProblems(t *testing.T) {
	// source applies an edit to every file of the source model.
	source := func(edit func([]rawTensor) []rawTensor) func(*testing.T, *fixture) {
		return func(t *testing.T, fx *fixture) {
			paths, _ := filepath.Glob(filepath.Join(fx.model, "model-*.safetensors"))
			for _, p := range paths {
				editTensors(t, p, edit)
			}
		}
	}
	layer := func(edit func([]rawTensor) []rawTensor) func(*testing.T, *fixture) {
		return func(t *testing.T, fx *fixture) { editTensors(t, fx.layer(qProj), edit) }
	}
	job := func(edit func(map[string]any)) func(*testing.T, *fixture) {
		return func(t *testing.T, fx *fixture) { fx.editJob(t, edit) }
	}
	config := func(edit func(map[string]any)) func(*testing.T, *fixture) {
		return func(t *testing.T, fx *fixture) { editJSON(t, filepath.Join(fx.model, ConfigFile), edit) }
	}
	tests := []struct {
		name string
		arch string // LlamaForCausalLM unless set
		edit func(*testing.T, *fixture)
		kind Kind
		text string
	}{
		{"no job", "", func(t *testing.T, fx *fixture) { os.Remove(filepath.Join(fx.work, JobFile)) }, MissingFile, "working directory"},
		{"half a job", "", func(t *testing.T, fx *fixture) {
			data, _ := os.ReadFile(filepath.Join(fx.work, JobFile))
			if err := os.WriteFile(filepath.Join(fx.work, JobFile), data[:len(data)/2], 0o644); err != nil {
				t.Fatal(err)
			}
		}, BadJob, "not a complete job"},
		{"invalid job", "", job(func(m map[string]any) { m["invalid"] = true }), BadJob, "marked invalid"},
		{"too early", "", job(func(m map[string]any) { m["progress"] = "quant" }), BadJob, "not finished"},
		{"no bits", "", job(func(m map[string]any) { delete(m, "bits") }), BadJob, "bits is missing"},
		{"shard size", "", job(func(m map[string]any) { m["shard_size"] = 0 }), BadJob, "shard_size"},
		{"no source", "", job(func(m map[string]any) { m["in_dir"] = "" }), BadJob, "no source model"},
		{"wrong source", "", job(func(m map[string]any) { m["in_dir"] = "/nonexistent" }), MissingFile, "must be the source model"},
		{"two architectures", "", config(func(m map[string]any) { m["architectures"] = []string{"a", "b"} }), BadConfig, "exactly one"},
		{"no layers", "", config(func(m map[string]any) { delete(m, "num_hidden_layers") }), BadConfig, "num_hidden_layers: missing"},
		{"text for a number", "", config(func(m map[string]any) { m["hidden_size"] = "64" }), BadConfig, "want an integer"},
		{"zero scale", "", config(func(m map[string]any) { m["scale_emb"] = 0 }), BadConfig, "scale_emb"},
		{"no layer folder", "", func(t *testing.T, fx *fixture) { os.RemoveAll(filepath.Join(fx.work, "out_tensor")) }, MissingFile, "no folder"},
		{"layer missing", "", func(t *testing.T, fx *fixture) { os.Remove(fx.layer(qProj)) }, MissingFile, "quantized layer is missing"},
		{"layer truncated", "", func(t *testing.T, fx *fixture) {
			if err := os.Truncate(fx.layer(qProj), 200); err != nil {
				t.Fatal(err)
			}
		}, BadFile, qProj},
		{"layer is an LFS pointer", "", func(t *testing.T, fx *fixture) {
			text := "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
			if err := os.WriteFile(fx.layer(qProj), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}, BadFile, "Git LFS pointer"},
		{"foreign tensor", "", layer(func(l []rawTensor) []rawTensor {
			return append(l, rawTensor{"other.q_weight", tensor.I32, []int64{1}, make([]byte, 4)})
		}), ForeignTensor, "does not belong"},
		{"no scales", "", layer(without(".q_scale")), MissingTensor, "q_scale"},
		{"bias that loaders refuse", "", layer(func(l []rawTensor) []rawTensor {
			n := int64(0)
			for _, t := range l {
				if strings.HasSuffix(t.name, ".q_weight") {
					n = t.shape[1]
				}
			}
			return append(l, rawTensor{qProj + ".bias", tensor.F16, []int64{n}, make([]byte, 2*n)})
		}), ForeignTensor, "no bias"},
		{"bias missing", "Qwen2ForCausalLM", layer(without(".bias")), MissingTensor, "wants a bias"},
		{"dtype", "", layer(with(".q_groups", func(t *rawTensor) { t.dtype = tensor.U16 })), BadDType, "want I16"},
		{"dimensions", "", layer(with(".q_invperm", func(t *rawTensor) { t.shape = []int64{1, t.shape[0]} })), BadShape, "1 dimensions"},
		{"scale shape", "", layer(with(".q_scale", func(t *rawTensor) { t.shape[0], t.shape[1] = t.shape[0]*2, t.shape[1]/2 })), BadShape, "q_scale"},
		{"seven bits", "", layer(with(".q_groups", func(t *rawTensor) { t.data[0] = 7 })), BadMatrix, "width 7"},
		{"first row", "", layer(with(".q_groups", func(t *rawTensor) { t.data[2] = 1 })), BadMatrix, "first packed row 1"},
		{"permutation twice", "", layer(with(".q_invperm", func(t *rawTensor) { copy(t.data[4:8], t.data[:4]) })), BadMatrix, "element 1: row"},
		{"permutation range", "", layer(with(".q_invperm", func(t *rawTensor) { t.data[3] = 0x80 })), BadMatrix, "element 0: row -"},
		{"input features", "", config(func(m map[string]any) { m["intermediate_size"] = 4096 }), BadShape, "4096"},
		{"source truncated", "", func(t *testing.T, fx *fixture) {
			paths, _ := filepath.Glob(filepath.Join(fx.model, "model-*.safetensors"))
			info, _ := os.Stat(paths[0])
			if err := os.Truncate(paths[0], info.Size()-1); err != nil {
				t.Fatal(err)
			}
		}, BadFile, ".safetensors"},
		{"source missing", "", func(t *testing.T, fx *fixture) {
			paths, _ := filepath.Glob(filepath.Join(fx.model, "model-*.safetensors"))
			for _, p := range paths {
				os.Remove(p)
			}
		}, MissingFile, "no *.safetensors"},
		{"norm missing", "", source(without("0.input_layernorm.weight")), MissingTensor, "model.layers.0.input_layernorm.weight"},
		{"linear missing", "", source(without("0.self_attn.q_proj.weight")), MissingTensor, qProj},
		{"fused linear missing", "Phi3ForCausalLM", source(without("0.self_attn.qkv_proj.weight")), MissingTensor, "any of: model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.qkv_proj.weight"},
		{"unreadable dtype", "", source(with("0.input_layernorm.weight", func(t *rawTensor) {
			t.dtype, t.data = tensor.F64, make([]byte, 8*t.shape[0])
		})), BadDType, "F64"},
		{"norm shape", "", source(with("0.input_layernorm.weight", func(t *rawTensor) { t.shape = []int64{1, t.shape[0]} })), BadShape, "input_layernorm"},
		{"bias beside an RMS norm", "", source(func(l []rawTensor) []rawTensor {
			return append(l, rawTensor{"model.norm.bias", tensor.F16, []int64{1}, make([]byte, 2)})
		}), ForeignTensor, "no bias"},
		{"preprocessor", "Qwen2VLForConditionalGeneration", func(t *testing.T, fx *fixture) {
			os.Remove(filepath.Join(fx.model, "preprocessor_config.json"))
		}, MissingFile, "preprocessor_config.json"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fx := &fixture{Seed: 7, Arch: "LlamaForCausalLM", Limit: 1, Set: map[string]any{"scale_emb": nil, "embedding_multiplier": nil}}
			if tt.arch != "" {
				fx.Arch = tt.arch
			}
			fx.make(t, dir)
			tt.edit(t, fx)
			inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work})
			found := false
			for _, p := range ps {
				found = found || p.Kind == tt.kind && strings.Contains(p.String(), tt.text)
			}
			if !found {
				t.Errorf("want %s with %q, got %v", tt.kind, tt.text, ps)
			}
			if inv != nil {
				if _, err := inv.Plan(PlanOptions{}); err == nil {
					t.Error("there is a plan nevertheless")
				}
			}
		})
	}
}

func TestProblemsAllAtOnce(t *testing.T) {
	fx := llama(t, t.TempDir())
	for _, key := range []string{qProj, "model.layers.1.mlp.up_proj", "lm_head"} {
		if err := os.Remove(fx.layer(key)); err != nil {
			t.Fatal(err)
		}
	}
	fx.editJob(t, func(m map[string]any) { m["invalid"] = true })
	_, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work})
	if len(ps) != 4 {
		t.Errorf("%d problems, want 4: %v", len(ps), ps)
	}
	if text := ps.Error(); !strings.HasPrefix(text, "4 problems:") {
		t.Error(text)
	}
}

func TestPlanOptions(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work, ModelDir: fx.model})
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	if len(inv.Dropped) != 2 {
		t.Errorf("dropped %q", inv.Dropped)
	}
	for _, out := range []string{fx.model, fx.work, dir} {
		_, err := inv.Plan(PlanOptions{Out: out})
		if ps, ok := asProblems(err); !ok || !ps.Has(BadOutput) {
			t.Errorf("output %s: %v", out, err)
		}
	}
	one, err := inv.Plan(PlanOptions{ShardBytes: -1})
	if err != nil || len(one.Shards) != 1 || one.Shards[0].Name != "model-00001-of-00001.safetensors" {
		t.Errorf("unlimited: %v %+v", err, one.Shards)
	}
	tiny, err := inv.Plan(PlanOptions{ShardBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tiny.Shards {
		if len(s.Tensors) != 1 {
			t.Errorf("%s has %d tensors", s.Name, len(s.Tensors))
		}
	}
	if len(tiny.Notices) < len(tiny.Shards) {
		t.Errorf("%d notices for %d shards that are too large", len(tiny.Notices), len(tiny.Shards))
	}
	if _, err := inv.Plan(PlanOptions{ShardBytes: 1, Mode: Compat}); err == nil {
		t.Error("compat mode found a packing for one byte")
	} else if ps, ok := asProblems(err); !ok || !ps.Has(BadPacking) {
		t.Error(err)
	}
	if _, err := json.Marshal(one); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(fx.out); !errors.Is(err, fs.ErrNotExist) {
		t.Error("planning wrote something")
	}
}

// TestShardSizeDefault reads a job without a shard size.
func TestShardSizeDefault(t *testing.T) {
	fx := llama(t, t.TempDir())
	fx.editJob(t, func(m map[string]any) { delete(m, "shard_size") })
	if p := planFixture(t, fx, PlanOptions{}); p.ShardBytes != 8192<<20 {
		t.Errorf("limit of %d bytes", p.ShardBytes)
	}
	if p := planFixture(t, fx, PlanOptions{ShardBytes: 1000}); p.ShardBytes != 1000 {
		t.Errorf("limit of %d bytes, asked for 1000", p.ShardBytes)
	}
}

// TestRename checks keymaps on the names that real checkpoints have.
func TestRename(t *testing.T) {
	tests := []struct{ arch, in, want string }{
		{"DbrxForCausalLM", "transformer.blocks.3.norm_attn_norm.norm_1.weight", "model.layers.3.input_layernorm.weight"},
		{"DbrxForCausalLM", "transformer.blocks.0.ffn.router.layer.weight", "model.layers.0.block_sparse_moe.gate.weight"},
		{"DbrxForCausalLM", "transformer.blocks.0.ffn.experts.mlp.w1", "model.layers.0.block_sparse_moe.experts.w1"},
		{"DbrxForCausalLM", "transformer.wte.weight", "model.embed_tokens.weight"},
		{"GPT2LMHeadModel", "h.11.attn.c_proj.weight", "model.layers.11.self_attn.o_proj.weight"},
		{"GPT2LMHeadModel", "wpe.weight", "model.wpe.weight"},
		{"GPT2LMHeadModel", "ln_f.bias", "model.norm.bias"},
		{"GPTBigCodeForCausalLM", "transformer.ln_f.weight", "model.norm.weight"},
		{"GPTBigCodeForCausalLM", "transformer.h.1.attn.c_attn.weight", "model.layers.1.self_attn.c_attn.weight"},
		{"InternLM2ForCausalLM", "output.weight", "lm_head.weight"},
		{"InternLM2ForCausalLM", "model.layers.0.attention.wo.weight", "model.layers.0.self_attn.o_proj.weight"},
		{"Gemma3ForConditionalGeneration", "multi_modal_projector.mm_input_projection_weight", "multi_modal_projector.mm_input_projection.weight"},
		{"LlamaForCausalLM", "model.norm.weight", "model.norm.weight"},
	}
	for _, tt := range tests {
		a := findArchitecture(tt.arch)
		if got := a.rename(tt.in); got != tt.want {
			t.Errorf("%s: rename(%s) = %s, want %s", tt.arch, tt.in, got, tt.want)
		}
		if got := a.rename(tt.want); got != tt.want {
			t.Errorf("%s: renaming %s again gives %s", tt.arch, tt.want, got)
		}
	}
	if n := len(Architectures()); n != 28 {
		t.Errorf("%d architectures", n)
	}
}
