package exl2

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestExampleFiles keeps examples/tiny-exl2 what the fixture maker makes of its seed; -update
// writes it.
func TestExampleFiles(t *testing.T) {
	fx := fixture{Seed: 20, Arch: "LlamaForCausalLM", Limit: 0.0625, Plain: true, Set: map[string]any{"tie_word_embeddings": false}}
	fx.make(t, t.TempDir())
	example := filepath.Join("..", "..", "examples", "tiny-exl2")
	// The job names the folders of the temporary place; the example is used with --model and --out.
	job := filepath.Join(fx.work, JobFile)
	data, err := os.ReadFile(job)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	fields["in_dir"], fields["out_dir"], fields["compile_full"] = "model", "work", "tiny-exl2"
	if data, err = json.MarshalIndent(fields, "", "    "); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(job, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(fx.model, "subdir")); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"work": fx.work, "work/out_tensor": filepath.Join(fx.work, "out_tensor"), "model": fx.model} {
		to := filepath.Join(example, filepath.FromSlash(name))
		if kilntest.Update() {
			if err := os.RemoveAll(to); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(to, os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
		}
		for path, want := range hashDir(t, from) {
			if got := hashDir(t, to)[path]; got != want {
				t.Errorf("%s/%s differs from what the fixture maker makes; run with -update", name, path)
			}
		}
	}
}
