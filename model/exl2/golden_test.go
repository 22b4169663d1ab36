package exl2

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// goldenCase is a fixture and the SHA-256 of every file that the reference makes of it.
// testdata/golden.json was written by internal/reference/reference.py, not by this package: see
// -update.
type goldenCase struct {
	Name  string            `json:"name"`
	Seed  uint64            `json:"seed"`
	Arch  string            `json:"arch"`
	Set   map[string]any    `json:"set,omitempty"`
	Limit float64           `json:"limit"`
	Tower bool              `json:"tower,omitempty"`
	Fatal bool              `json:"fatal,omitempty"`
	Files map[string]string `json:"files,omitempty"`
}

// goldenCases lists what testdata/golden.json must cover.
func goldenCases() []goldenCase {
	var cases []goldenCase
	for i, arch := range append(Architectures(), "SomethingNewForCausalLM") {
		cases = append(cases, goldenCase{Name: arch, Seed: uint64(100 + i), Arch: arch, Limit: 8192})
	}
	add := func(name, arch string, limit float64, set map[string]any) {
		cases = append(cases, goldenCase{Name: name, Seed: uint64(1000 + len(cases)), Arch: arch, Limit: limit, Set: set})
	}
	add("llama tied", "LlamaForCausalLM", 8192, map[string]any{"tie_word_embeddings": true})
	add("llama untied", "LlamaForCausalLM", 8192, map[string]any{"tie_word_embeddings": false})
	add("llama biases", "LlamaForCausalLM", 8192, map[string]any{"attention_bias": true, "mlp_bias": true})
	add("llama small shards", "LlamaForCausalLM", 0.03, nil)
	add("llama fatal shard", "LlamaForCausalLM", 0.001, nil)
	add("llama head norms", "LlamaForCausalLM", 1, map[string]any{"use_qk_norm": true})
	add("glm4 bias", "Glm4ForCausalLM", 8192, map[string]any{"attention_bias": true})
	add("qwen3 without head norms", "Qwen3ForCausalLM", 8192, map[string]any{"use_qk_norm": false})
	add("mixtral small shards", "MixtralForCausalLM", 0.02, nil)
	add("dbrx small shards", "DbrxForCausalLM", 0.05, nil)
	add("cohere small shards", "CohereForCausalLM", 0.05, nil)
	add("gpt2 small shards", "GPT2LMHeadModel", 0.05, nil)
	add("gemma2 head norms", "Gemma2ForCausalLM", 8192, map[string]any{"use_qk_norm": true})
	add("gemma3 small shards", "Gemma3ForConditionalGeneration", 0.25, nil)
	add("minicpm scale", "MiniCPMForCausalLM", 8192, map[string]any{"scale_emb": 12})
	add("granite multiplier", "GraniteForCausalLM", 8192, map[string]any{"embedding_multiplier": 0.1})
	for i, limit := range []float64{0.02, 0.0125, 0.03, 0.05} {
		cases = append(cases, goldenCase{Name: "qwen2-vl overlapping prefixes", Seed: uint64(2000 + i), Arch: "Qwen2VLForConditionalGeneration", Limit: limit})
	}
	// Vision parts with types that loaders cannot read, in files whose headers list tensors in
	// another order than their data has.
	for i, arch := range []string{
		"Gemma3ForConditionalGeneration", "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration",
		"Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
	} {
		for j, limit := range []float64{0.1, 0.03} {
			cases = append(cases, goldenCase{
				Name: "extras of any type, headers in any order: " + arch, Seed: uint64(3000 + 10*i + j), Arch: arch, Limit: limit, Tower: true,
			})
		}
	}
	add("pixtral that is none", "LlavaForConditionalGeneration", 8192, map[string]any{"vision_config": map[string]any{"model_type": "clip"}})
	return cases
}

func (g *goldenCase) fixture() *fixture {
	return &fixture{Seed: g.Seed, Arch: g.Arch, Set: g.Set, Limit: g.Limit, Tower: g.Tower}
}

func hashDir(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		out[e.Name()] = hex.EncodeToString(sum[:])
	}
	return out
}

// TestGolden compares the compatible mode with digests of what the reference implementation wrote.
func TestGolden(t *testing.T) {
	path := filepath.Join("testdata", "golden.json")
	if kilntest.Update() {
		needE2E(t)
		ref := startReference(t)
		cases := goldenCases()
		for i := range cases {
			g := &cases[i]
			fx := g.fixture()
			fx.make(t, t.TempDir())
			switch a := ref.ask(t, map[string]any{"op": "compile", "work": fx.work}); a.Status {
			case "ok":
				g.Files = hashDir(t, fx.out)
			case "fatal":
				g.Fatal = true
			default:
				t.Fatalf("%s: %s", g.Name, a.Message)
			}
		}
		data, err := json.MarshalIndent(cases, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		kilntest.WriteGolden(t, path, append(data, '\n'))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != len(goldenCases()) || len(cases) < 40 {
		t.Fatalf("%d cases in %s, want %d", len(cases), path, len(goldenCases()))
	}
	for i, g := range cases {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fx := g.fixture()
			fx.make(t, dir)
			out := filepath.Join(dir, "mine")
			err := compileFixture(t, fx, PlanOptions{Mode: Compat, Out: out}, WriteOptions{NoHash: i%2 == 0})
			if g.Fatal {
				if ps, ok := asProblems(err); !ok || !ps.Has(BadPacking) {
					t.Fatalf("got %v, want a packing problem", err)
				}
				if _, err := os.Lstat(out); err == nil {
					t.Fatal("output exists")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.Files, hashDir(t, out)); diff != "" {
				t.Errorf("files differ (-reference +got):\n%s", diff)
			}
		})
	}
}
