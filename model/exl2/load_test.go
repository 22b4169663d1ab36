package exl2

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// The tests in this file give compiled folders to exllamav2 itself, see
// internal/reference/load_exllamav2.py. They run when KILN_E2E names "model", with the Python of
// KILN_EXLLAMAV2_PYTHON, which must have what is in dev/python/exllamav2.txt; "make e2e-model"
// provides both. No GPU is needed: only exllamav2's compiled extension is replaced.

// exllamav2 is the Python program, answering one request after the other.
type exllamav2 struct{ *kilntest.Peer }

type loadAnswer struct {
	Status  string `json:"status"` // ok, error, fatal
	Message string `json:"message"`
	Layers  int    `json:"layers"`
	Floats  int    `json:"floats"`
	Extras  int    `json:"extras"`
	Files   int    `json:"files"`
}

func startExllamav2(t *testing.T) exllamav2 {
	t.Helper()
	python := os.Getenv("KILN_EXLLAMAV2_PYTHON")
	if python == "" {
		t.Fatal("KILN_EXLLAMAV2_PYTHON names no Python; run make e2e-model")
	}
	return exllamav2{kilntest.StartPeer(t, python, filepath.Join("internal", "reference", "load_exllamav2.py"), "serve")}
}

func (p exllamav2) ask(t *testing.T, request map[string]any) (a loadAnswer) {
	t.Helper()
	p.Ask(t, request, &a)
	return a
}

// buildKiln builds the command that users run.
func buildKiln(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kiln")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/kiln-build/kiln/cmd/kiln").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

type loadCase struct {
	name   string
	arch   string
	set    map[string]any
	vision func(r *rand.Rand, hidden int) []rawTensor // the tensors of a real vision tower
	prep   map[string]any                             // preprocessor_config.json
}

// loaderFields are what exllamav2 wants to find in config.json and a compile does not look at.
var loaderFields = map[string]any{
	"layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_epsilon": 1e-5, "num_experts_per_tok": 1, "max_position_embeddings": 24,
}

var imageNumbers = map[string]any{
	"image_mean": []float64{0.5, 0.5, 0.5}, "image_std": []float64{0.5, 0.5, 0.5}, "resample": 3, "rescale_factor": 0.00392,
}

func loadCases() []loadCase {
	var cases []loadCase
	add := func(c loadCase) { cases = append(cases, c) }
	text := map[string]any{"tie_word_embeddings": nil}
	for _, arch := range append(Architectures(), "SomethingNewForCausalLM") {
		a := findArchitecture(arch)
		if a != nil && len(a.Extras) > 0 {
			continue // below
		}
		set := maps.Clone(text)
		if a != nil && a.Router != "" && a.Keymap != "dbrx" {
			set["num_local_experts"] = 3 // with a single one exllamav2 looks for a layer named "*"
		}
		add(loadCase{name: arch, arch: arch, set: set})
	}
	add(loadCase{name: "Llama, tied", arch: "LlamaForCausalLM", set: map[string]any{"tie_word_embeddings": true}})
	add(loadCase{name: "Llama, all biases and head norms", arch: "LlamaForCausalLM", set: map[string]any{
		"attention_bias": true, "mlp_bias": true, "use_qk_norm": true,
	}})
	add(loadCase{name: "Granite, scaled", arch: "GraniteForCausalLM", set: map[string]any{
		"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
	}})

	pixtral := map[string]any{"vision_config": map[string]any{
		"model_type": "pixtral", "head_dim": 16, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
		"hidden_act": "silu", "patch_size": 4, "rope_theta": 10000.0,
	}, "vision_feature_layer": -1, "spatial_merge_size": 1, "multimodal_projector_bias": false}
	pixtralPrep := map[string]any{
		"image_processor_type": "PixtralImageProcessor", "patch_size": map[string]int{"height": 4, "width": 4}, "size": map[string]int{"longest_edge": 64},
	}
	for _, arch := range []string{"LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"} {
		add(loadCase{name: arch, arch: arch, set: pixtral, prep: pixtralPrep, vision: func(r *rand.Rand, hidden int) []rawTensor {
			v := tower{r: r}
			v.add("vision_tower.patch_conv.weight", 32, 3, 4, 4)
			v.add("vision_tower.ln_pre.weight", 32)
			for i := range 2 {
				l := fmt.Sprintf("vision_tower.transformer.layers.%d.", i)
				for _, p := range []string{"q", "k", "v", "o"} {
					v.add(l+"attention."+p+"_proj.weight", 32, 32)
				}
				v.add(l+"feed_forward.gate_proj.weight", 64, 32)
				v.add(l+"feed_forward.up_proj.weight", 64, 32)
				v.add(l+"feed_forward.down_proj.weight", 32, 64)
				v.add(l+"attention_norm.weight", 32)
				v.add(l+"ffn_norm.weight", 32)
			}
			v.add("multi_modal_projector.linear_1.weight", 64, 32)
			v.add("multi_modal_projector.linear_2.weight", int64(hidden), 64)
			if arch == "Mistral3ForConditionalGeneration" {
				v.add("multi_modal_projector.norm.weight", 32)
				v.add("multi_modal_projector.patch_merger.merging_layer.weight", 32, 32)
			}
			return v.tensors
		}})
	}

	for _, version := range []string{"2", "2_5_"} {
		arch := "Qwen" + version + "VLForConditionalGeneration"
		add(loadCase{name: arch, arch: arch, set: map[string]any{
			"vision_config": map[string]any{
				"embed_dim": 32, "mlp_ratio": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "depth": 2, "patch_size": 4,
				"spatial_merge_size": 2, "spatial_patch_size": 4, "fullatt_block_indexes": []int{1}, "window_size": 8,
			},
			"rope_scaling": map[string]any{"type": "mrope", "mrope_section": []int{2, 3, 3}},
		}, prep: map[string]any{
			"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 16, "max_pixels": 256,
		}, vision: func(r *rand.Rand, hidden int) []rawTensor {
			v := tower{r: r}
			v.add("visual.patch_embed.proj.weight", 32, 3, 2, 4, 4)
			mlp := map[string][2]int64{"fc1": {64, 32}, "fc2": {32, 64}}
			if version == "2_5_" {
				mlp = map[string][2]int64{"gate_proj": {64, 32}, "up_proj": {64, 32}, "down_proj": {32, 64}}
			}
			for i := range 2 {
				l := fmt.Sprintf("visual.blocks.%d.", i)
				v.both(l+"attn.qkv", 96, 32)
				v.both(l+"attn.proj", 32, 32)
				for _, name := range slices.Sorted(maps.Keys(mlp)) {
					v.both(l+"mlp."+name, mlp[name][0], mlp[name][1])
				}
				for _, norm := range []string{"norm1", "norm2"} {
					v.add(l+norm+".weight", 32)
					if version == "2" {
						v.add(l+norm+".bias", 32)
					}
				}
			}
			v.add("visual.merger.ln_q.weight", 32)
			v.both("visual.merger.mlp.0", 128, 128)
			v.both("visual.merger.mlp.2", int64(hidden), 128)
			return v.tensors
		}})
	}

	add(loadCase{name: "Gemma3ForConditionalGeneration", arch: "Gemma3ForConditionalGeneration", set: map[string]any{
		"vision_config": map[string]any{
			"model_type": "siglip_vision_model", "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "patch_size": 4,
		},
		"mm_tokens_per_image": 4, "vocab_size": 90, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
	}, prep: map[string]any{
		"image_processor_type": "Gemma3ImageProcessor", "size": map[string]int{"height": 16, "width": 16},
	}, vision: func(r *rand.Rand, hidden int) []rawTensor {
		v := tower{r: r}
		const p = "vision_tower.vision_model."
		v.add(p+"embeddings.patch_embedding.weight", 32, 3, 4, 4)
		v.add(p+"embeddings.patch_embedding.bias", 32)
		v.add(p+"embeddings.position_embedding.weight", 16, 32)
		for i := range 2 {
			l := fmt.Sprintf(p+"encoder.layers.%d.", i)
			for _, name := range []string{"q_proj", "k_proj", "v_proj", "out_proj"} {
				v.both(l+"self_attn."+name, 32, 32)
			}
			v.both(l+"mlp.fc1", 64, 32)
			v.both(l+"mlp.fc2", 32, 64)
			for _, name := range []string{"layer_norm1", "layer_norm2"} {
				v.add(l+name+".weight", 32)
				v.add(l+name+".bias", 32)
			}
		}
		v.add(p+"post_layernorm.weight", 32)
		v.add(p+"post_layernorm.bias", 32)
		v.add("multi_modal_projector.mm_input_projection_weight", 32, int64(hidden))
		v.add("multi_modal_projector.mm_soft_emb_norm.weight", 32)
		return v.tensors
	}})
	return cases
}

// tower collects tensors of a vision tower.
type tower struct {
	r       *rand.Rand
	tensors []rawTensor
}

func (v *tower) add(name string, shape ...int64) {
	dtype := []tensor.DType{tensor.BF16, tensor.BF16, tensor.F16, tensor.F32}[v.r.IntN(4)]
	v.tensors = append(v.tensors, rawTensor{name, dtype, shape, randomFloats(v.r, dtype, elements(shape))})
}

// both adds a linear layer with its bias.
func (v *tower) both(key string, out, in int64) {
	v.add(key+".weight", out, in)
	v.add(key+".bias", out)
}

// addVision puts the tower and its preprocessor configuration into a source model.
func (c *loadCase) addVision(t *testing.T, fx *fixture) {
	t.Helper()
	if c.vision == nil {
		return
	}
	text, err := os.ReadFile(filepath.Join(fx.model, ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	m, ps := parseModel(text, ConfigFile)
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	tensors := c.vision(rand.New(rand.NewPCG(fx.Seed, 7)), m.hidden)
	if err := writeSafetensors(filepath.Join(fx.model, "model-vision.safetensors"), tensors, true); err != nil {
		t.Fatal(err)
	}
	prep := maps.Clone(imageNumbers)
	maps.Copy(prep, c.prep)
	if text, err = json.Marshal(prep); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fx.model, "preprocessor_config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestE2ELoad compiles tiny models of every architecture with the kiln command in both modes and
// loads the folders with exllamav2: each quantized layer must get its tensors bit by bit, each
// float tensor must be what exllamav2 itself makes of the source, and nothing may be missing or
// left over. The compatible folder is also compared with the one that exllamav2's own step makes of
// the job.
func TestE2ELoad(t *testing.T) {
	needE2E(t)
	loader := startExllamav2(t)
	kiln := buildKiln(t)
	for i, c := range loadCases() {
		t.Run(c.name, func(t *testing.T) {
			set := maps.Clone(loaderFields)
			maps.Copy(set, c.set)
			fx := &fixture{Seed: 7_000 + uint64(i), Arch: c.arch, Set: set, Limit: 0.05}
			dir := t.TempDir()
			fx.make(t, dir)
			c.addVision(t, fx)
			compat := filepath.Join(dir, "compat")
			for _, mode := range []string{"default", "compat"} {
				out := filepath.Join(dir, mode)
				args := []string{"model", "compile", "--job", fx.work, "--out", out}
				if mode == "compat" {
					args = append(args, "--compat")
				}
				if text, err := exec.CommandContext(t.Context(), kiln, args...).CombinedOutput(); err != nil {
					t.Fatalf("kiln %v: %v\n%s", args, err, text)
				}
				request := map[string]any{"op": "load", "folder": out, "work": fx.work, "model": fx.model}
				if c.vision != nil {
					request["tower"] = len(c.vision(rand.New(rand.NewPCG(0, 0)), 32))
				}
				a := loader.ask(t, request)
				if a.Status != "ok" {
					t.Errorf("%s mode: %s", mode, a.Message)
				}
				t.Logf("%s mode: %d quantized layers, %d float tensors, %d extras from %d files", mode, a.Layers, a.Floats, a.Extras, a.Files)
			}
			a := loader.ask(t, map[string]any{"op": "original", "folder": compat, "work": fx.work, "out": filepath.Join(dir, "original")})
			if a.Status != "ok" {
				t.Errorf("compared with the original step: %s", a.Message)
			}
		})
	}
}

// shardSizes are the limits, in MiB, at which kiln is compared with exllamav2's own step: the
// converter's default, none, and such that shards end inside of modules and of vision parts, or that
// no tensor fits.
var shardSizes = []float64{8192, 1073741824, 1, 0.5, 0.25, 0.125, 0.0625, 0.046875, 0.03125, 0.015625, 0.0078125, 0.00390625}

// TestE2EOriginal compiles models of every architecture at twelve shard sizes with exllamav2's own
// step and with kiln, into a folder and into the working folder. Headers list tensors in any order,
// and vision parts have tensors of all types.
func TestE2EOriginal(t *testing.T) {
	needE2E(t)
	loader := startExllamav2(t)
	kiln := buildKiln(t)
	same, fatal := 0, 0
	for i, c := range loadCases() {
		t.Run(c.name, func(t *testing.T) {
			set := maps.Clone(loaderFields)
			maps.Copy(set, c.set)
			fx := &fixture{Seed: 7_300 + uint64(i), Arch: c.arch, Set: set, Limit: 0.05, Tower: true}
			dir := t.TempDir()
			fx.make(t, dir)
			c.addVision(t, fx)
			for _, size := range shardSizes {
				for _, weights := range []bool{false, true} {
					original, mine := filepath.Join(dir, "original"), filepath.Join(dir, "mine")
					args := []string{
						"model", "compile", "--model", fx.model, "--shard-size", strconv.FormatInt(int64(size*(1<<20)), 10) + "B", "--job",
					}
					if weights { // working folders of their own, with the same layers
						for _, work := range []string{original, mine} {
							if err := os.CopyFS(work, os.DirFS(fx.work)); err != nil {
								t.Fatal(err)
							}
							(&fixture{work: work}).setJob(t, "compile_full", nil)
						}
						args = append(args, mine)
					} else {
						args = append(args, fx.work, "--compat", "--out", mine)
					}
					text, err := exec.CommandContext(t.Context(), kiln, args...).CombinedOutput()
					request := map[string]any{"op": "original", "work": fx.work, "out": original, "shard_size": size, "weights": weights, "folder": mine}
					if err != nil {
						request["folder"] = nil
					}
					a := loader.ask(t, request)
					switch {
					case a.Status == "fatal" && err != nil && strings.Contains(string(text), "do not fit into a shard"):
						fatal++
					case a.Status == "ok" && err == nil:
						same++
					default:
						t.Errorf("%v MiB, weights alone %v: the original: %s %s\nkiln: %v\n%s", size, weights, a.Status, a.Message, err, text)
					}
					for _, folder := range []string{original, mine} {
						if err := os.RemoveAll(folder); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		})
	}
	t.Logf("%d folders the same, %d refused by both", same, fatal)
	if same < 400 && !t.Failed() {
		t.Errorf("only %d folders were compared", same)
	}
}

// TestE2EConvert runs the converter of exllamav2 from its start to its end, see
// convert_exllamav2.py, once with its own compile step and once with kiln.exl2 in its place. A run
// takes half a minute, so that a few architectures must do.
func TestE2EConvert(t *testing.T) {
	needE2E(t)
	kiln := buildKiln(t)
	for i, c := range loadCases() {
		if !slices.Contains([]string{"LlamaForCausalLM", "MixtralForCausalLM", "Qwen2VLForConditionalGeneration"}, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			set := maps.Clone(loaderFields)
			maps.Copy(set, c.set)
			fx := &fixture{Seed: 7_400 + uint64(i), Arch: c.arch, Set: set, Limit: 8192, Plain: true}
			run := convertRun{dir: t.TempDir(), kiln: kiln, fx: fx, full: true}
			fx.make(t, run.dir)
			c.addVision(t, fx)
			run.compare(t)
			if c.name == "LlamaForCausalLM" {
				run.full = false
				run.compare(t)
			}
		})
	}
}

// convertRun converts a fixture with both steps.
type convertRun struct {
	dir, kiln string
	fx        *fixture
	full      bool // a model folder, not only the weights
}

func (r *convertRun) folders(step string) (work, out string) {
	name := fmt.Sprintf("%s-%v-", step, r.full)
	return filepath.Join(r.dir, name+"work"), filepath.Join(r.dir, name+"out")
}

func (r *convertRun) convert(t *testing.T, step, kiln string) (string, error) {
	t.Helper()
	work, out := r.folders(step)
	args := []string{
		filepath.Join("internal", "reference", "convert_exllamav2.py"), step, filepath.Join(r.fx.work, "out_tensor"),
		"-i", r.fx.model, "-o", work, "-b", "4.0", "-ss", "0.0625", "-l", "128", "-ml", "128", "-so",
	}
	if r.full {
		args = append(args, "-cf", out)
	}
	cmd := exec.CommandContext(t.Context(), os.Getenv("KILN_EXLLAMAV2_PYTHON"), args...)
	cmd.Env = append(os.Environ(), "KILN="+kiln, "PYTHONPATH="+filepath.Join("..", "..", "python"), "PYTHONDONTWRITEBYTECODE=1")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func (r *convertRun) compare(t *testing.T) {
	t.Helper()
	if text, err := r.convert(t, "original", "/bin/false"); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	workA, outA := r.folders("original")
	workB, outB := r.folders("kiln")
	progress := func(want string) {
		t.Helper()
		job, err := os.ReadFile(filepath.Join(workB, JobFile))
		if err != nil || !strings.Contains(string(job), `"progress": "`+want+`"`) {
			t.Errorf("progress is not %s: %v\n%s", want, err, job)
		}
	}
	// A step that fails leaves the job at it; started again, the converter goes on there.
	if text, err := r.convert(t, "kiln", "/bin/false"); err == nil || !strings.Contains(text, "CompileError") {
		t.Fatalf("%v\n%s", err, text)
	}
	progress("compile")
	text, err := r.convert(t, "kiln", r.kiln)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	progress("finished")
	for _, want := range []string{"Resuming job", `[STATUS]{"stage": "Compiling", "completion": 1.0}[/STATUS]`, "Compiled by kiln", "-- Finished"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if r.full {
		if diff := cmp.Diff(hashDir(t, outA), hashDir(t, outB)); diff != "" {
			t.Errorf("model folders (-original +kiln):\n%s", diff)
		}
		return
	}
	weights := func(dir string) map[string]string {
		files := hashDir(t, dir)
		maps.DeleteFunc(files, func(name, _ string) bool { return !strings.HasPrefix(name, "output") })
		return files
	}
	a, b := weights(workA), weights(workB)
	if diff := cmp.Diff(a, b); diff != "" || len(a) == 0 {
		t.Errorf("%d shards in the working folder (-original +kiln):\n%s", len(a), diff)
	}
}

// TestE2ELoadNotices damages a compiled folder and wants the comparison above to see it, so that it
// cannot pass by looking away.
func TestE2ELoadNotices(t *testing.T) {
	needE2E(t)
	loader := startExllamav2(t)
	fx := &fixture{Seed: 7_100, Arch: "Qwen2ForCausalLM", Set: maps.Clone(loaderFields), Limit: 8192}
	dir := t.TempDir()
	fx.make(t, dir)
	out := filepath.Join(dir, "out")
	if err := compileFixture(t, fx, PlanOptions{Out: out}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	shard := filepath.Join(out, "model-00001-of-00001.safetensors")
	clean, err := os.ReadFile(shard)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(shard)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := map[string]bool{}
	for _, x := range f.Header().Tensors {
		suffix := x.Name[strings.LastIndexByte(x.Name, '.')+1:]
		if seen[suffix] {
			continue
		}
		seen[suffix] = true
		damaged := slices.Clone(clean)
		damaged[f.Header().DataStart+x.Offset] ^= 1
		if err := os.WriteFile(shard, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		if a := loader.ask(t, map[string]any{"op": "load", "folder": out, "work": fx.work, "model": fx.model}); a.Status != "error" {
			t.Errorf("a flipped bit in %s went unnoticed", x.Name)
		}
	}
	if len(seen) < 7 {
		t.Errorf("damaged only %v", seen)
	}
}

// TestE2ERealExtension writes two folders for load_exllamav2.py --real-extension, which needs a
// GPU, to the folder that KILN_REAL_EXTENSION_DIR names: llama-default and llama-compat, of one job
// with values as in a real model.
func TestE2ERealExtension(t *testing.T) {
	needE2E(t)
	dir := os.Getenv("KILN_REAL_EXTENSION_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	work := t.TempDir()
	fx := &fixture{Seed: 7_200, Arch: "LlamaForCausalLM", Limit: 8192, Set: map[string]any{
		"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 512,
		"num_hidden_layers": 3, "max_position_embeddings": 2048, "attention_bias": nil, "mlp_bias": nil, "use_qk_norm": nil, "scale_emb": nil,
		"embedding_multiplier": nil, "tie_word_embeddings": nil, "rope_theta": 10000.0,
	}}
	fx.make(t, work)
	r := rand.New(rand.NewPCG(fx.Seed, 1))
	for _, pattern := range []string{filepath.Join(fx.work, "out_tensor", "*.safetensors"), filepath.Join(fx.model, "model-*.safetensors")} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			if err := makeSane(r, path); err != nil {
				t.Fatal(err)
			}
		}
	}
	kiln := buildKiln(t)
	for mode, flag := range map[string]string{"default": "--compat=false", "compat": "--compat"} {
		out := filepath.Join(dir, "llama-"+mode)
		args := []string{"model", "compile", "--replace", "--strict", "--job", fx.work, "--out", out, flag}
		if text, err := exec.CommandContext(t.Context(), kiln, args...).CombinedOutput(); err != nil {
			t.Fatalf("kiln %v: %v\n%s", args, err, text)
		}
	}
	loader := startExllamav2(t)
	for _, mode := range []string{"default", "compat"} {
		out := filepath.Join(dir, "llama-"+mode)
		if a := loader.ask(t, map[string]any{"op": "load", "folder": out, "work": fx.work, "model": fx.model}); a.Status != "ok" {
			t.Errorf("%s mode: %s", mode, a.Message)
		}
	}
}

// makeSane replaces the float values of a generated file by such that a model made of it computes
// with ordinary numbers: weights of a few hundredths whatever their width in bits, embeddings of
// the order of one, norms near one.
func makeSane(r *rand.Rand, path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	header := f.Header()
	if err := f.Close(); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := func(x safetensors.Tensor) []byte { return data[header.DataStart+x.Offset:][:x.Size] }
	var groups []byte
	for _, x := range header.Tensors {
		if strings.HasSuffix(x.Name, ".q_groups") {
			groups = at(x)
		}
	}
	for _, x := range header.Tensors {
		value := func(int) float64 { return r.NormFloat64() }
		switch {
		case strings.HasSuffix(x.Name, ".q_scale_max"):
			value = func(i int) float64 {
				return 0.1 * (1 + r.Float64()) / float64(int(1)<<(binary.LittleEndian.Uint16(groups[4*i:])-1))
			}
		case strings.HasSuffix(x.Name, "norm.weight"):
			value = func(int) float64 { return 1 + 0.1*r.NormFloat64() }
		}
		b := at(x)
		for i := range int(elements(x.Shape)) {
			switch v := value(i); x.DType {
			case tensor.F16:
				binary.LittleEndian.PutUint16(b[2*i:], uint16(tensor.Float16FromFloat32(float32(v))))
			case tensor.BF16:
				binary.LittleEndian.PutUint16(b[2*i:], uint16(math.Float32bits(float32(v))>>16))
			case tensor.F32:
				binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(v)))
			}
		}
	}
	return os.WriteFile(path, data, 0o644)
}
