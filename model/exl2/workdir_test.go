package exl2

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// setJob changes a value of the fixture's job.
func (fx *fixture) setJob(t testing.TB, key string, v any) {
	t.Helper()
	path := filepath.Join(fx.work, JobFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var job map[string]any
	if err := json.Unmarshal(text, &job); err != nil {
		t.Fatal(err)
	}
	job[key] = v
	if text, err = json.Marshal(job); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWorkingFolder compiles a job without an output folder: the original's shards, and nothing
// else, are added to the working folder.
func TestWorkingFolder(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	whole := filepath.Join(dir, "whole")
	if err := compileFixture(t, fx, PlanOptions{Out: whole, Mode: Compat}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	fx.setJob(t, "compile_full", nil)
	want := hashDir(t, fx.work)
	shards := 0
	for name, sum := range hashDir(t, whole) {
		if strings.HasPrefix(name, "output") {
			want[name] = sum
			shards++
		}
	}
	if shards < 2 {
		t.Fatalf("%d shards", shards)
	}
	if err := compileFixture(t, fx, PlanOptions{}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, hashDir(t, fx.work)); diff != "" {
		t.Fatalf("working folder (-want +got):\n%s", diff)
	}
	if left := leftovers(t, fx.work); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	// Again: only with replacement, and then shards of the earlier compile are gone.
	err := compileFixture(t, fx, PlanOptions{}, WriteOptions{})
	if ps, ok := asProblems(err); !ok || !ps.Has(BadOutput) || !strings.Contains(err.Error(), "output-00001-of-") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(filepath.Join(fx.work, "output_temp_1.safetensors"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := planFixture(t, fx, PlanOptions{ShardBytes: -1})
	res, err := Write(t.Context(), p, WriteOptions{Replace: true})
	if err != nil || len(res.Removed) != shards+1 {
		t.Errorf("%+v, %v", res, err)
	}
	if got, _ := filepath.Glob(filepath.Join(fx.work, "*.safetensors")); len(got) != 1 || filepath.Base(got[0]) != "output.safetensors" {
		t.Errorf("%v", got)
	}

	// Other names, in the default packing.
	if err := compileFixture(t, fx, PlanOptions{Mode: Default}, WriteOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	got, _ := filepath.Glob(filepath.Join(fx.work, "*"))
	for i := range got {
		got[i] = filepath.Base(got[i])
	}
	for _, name := range got {
		if name != JobFile && name != "out_tensor" && !strings.HasPrefix(name, "model-0000") {
			t.Errorf("%s is in the working folder", name)
		}
	}
}

func TestMerge(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	whole := filepath.Join(dir, "whole")
	if err := compileFixture(t, fx, PlanOptions{Out: whole, Mode: Compat}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(fx.out, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"notes.txt", "config.json", "output-00009-of-00009.safetensors"} {
		if err := os.WriteFile(filepath.Join(fx.out, name), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := compileFixture(t, fx, PlanOptions{Mode: Compat, Merge: true}, WriteOptions{})
	if ps, ok := asProblems(err); !ok || !ps.Has(BadOutput) || !strings.Contains(err.Error(), "config.json, output-00009") {
		t.Errorf("got %v", err)
	}
	if err := compileFixture(t, fx, PlanOptions{Mode: Compat, Merge: true}, WriteOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	want := hashDir(t, whole)
	got := hashDir(t, fx.out)
	if text, err := os.ReadFile(filepath.Join(fx.out, "notes.txt")); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
	delete(got, "notes.txt")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	fx := llama(t, t.TempDir())
	for _, c := range []struct {
		opts PlanOptions
		want string
	}{
		{PlanOptions{ShardBytes: -1}, "model-00001-of-00001.safetensors"},
		{PlanOptions{ShardBytes: -1, Names: OutputNames}, "output.safetensors"},
		{PlanOptions{ShardBytes: -1, Mode: Compat}, "output.safetensors"},
		{PlanOptions{ShardBytes: -1, Mode: Compat, Names: ModelNames}, "model-00001-of-00001.safetensors"},
		{PlanOptions{Names: OutputNames}, "output-00001-of-0000N.safetensors"},
		{PlanOptions{Mode: Compat, Names: ModelNames}, "model-00001-of-0000N.safetensors"},
	} {
		p := planFixture(t, fx, c.opts)
		want := strings.ReplaceAll(c.want, "N", string(rune('0'+len(p.Shards))))
		if got := p.Shards[0].Name; got != want {
			t.Errorf("%+v: %s, want %s", c.opts, got, want)
		}
		if c.opts.Mode != Compat {
			i := slices.IndexFunc(p.Files, func(f File) bool { return f.Name == IndexFile })
			if !strings.Contains(string(p.Files[i].content), want) {
				t.Errorf("%+v: the index does not name %s", c.opts, want)
			}
		}
	}
	inv, _ := ReadInventory(t.Context(), Options{WorkDir: fx.work})
	if _, err := inv.Plan(PlanOptions{Names: "weights"}); err == nil {
		t.Error("unknown names are accepted")
	}
}

// TestVersion looks at what config.json says about the program that quantized.
func TestVersion(t *testing.T) {
	fx := llama(t, t.TempDir())
	check := func(what, want string, opts PlanOptions) *Plan {
		t.Helper()
		p := planFixture(t, fx, opts)
		i := slices.IndexFunc(p.Files, func(f File) bool { return f.Name == ConfigFile })
		if p.Version != want || !strings.Contains(string(p.Files[i].content), `"version": "`+want+`"`) {
			t.Errorf("%s: version %s, want %s, in\n%s", what, p.Version, want, p.Files[i].content)
		}
		return p
	}
	check("nothing says", ConverterVersion, PlanOptions{})
	layer := filepath.Join(fx.work, "out_tensor", "lm_head.safetensors")
	rewrite := func(path, version string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := 8 + int(data[0]) | int(data[1])<<8
		text := `{"__metadata__":{"exllamav2_version":"` + version + `"},` + string(data[9:n])
		out := append([]byte{byte(len(text)), byte(len(text) >> 8), 0, 0, 0, 0, 0, 0}, text...)
		if err := os.WriteFile(path, append(out, data[n:]...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(layer, "0.2.8")
	check("a layer says", "0.2.8", PlanOptions{})
	rewrite(filepath.Join(fx.work, "out_tensor", "model.layers.0.self_attn.q_proj.safetensors"), "0.2.7")
	if p := check("two layers say", "0.2.8", PlanOptions{}); !strings.Contains(strings.Join(p.Notices, "\n"), "exllamav2 0.2.7 and 0.2.8") {
		t.Errorf("notices %q", p.Notices)
	}
	fx.setJob(t, "version", "0.3.0")
	check("the job says", "0.3.0", PlanOptions{})
	fx.setJob(t, "exllamav2_version", "0.3.1")
	check("the job says more exactly", "0.3.1", PlanOptions{})
	check("the caller says", "0.3.3", PlanOptions{Version: "0.3.3"})
	fx.setJob(t, "exllamav2_version", 3)
	if _, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work}); !ps.Has(BadJob) {
		t.Errorf("got %v", ps)
	}
}

// TestJobFile reads the job from elsewhere.
func TestJobFile(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	other := filepath.Join(dir, "job.json")
	if err := os.Rename(filepath.Join(fx.work, JobFile), other); err != nil {
		t.Fatal(err)
	}
	inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work, JobFile: other})
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	if inv.Job.Dir != fx.work || len(inv.modules) == 0 {
		t.Errorf("%+v", inv.Job)
	}
	if before := maps.Clone(hashDir(t, fx.work)); len(before) != 0 {
		t.Errorf("%v", before)
	}
}
