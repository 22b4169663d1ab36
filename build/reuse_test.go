package build_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// TestServes: what the audit of a wheel says of another torch.
func TestServes(t *testing.T) {
	releases := &audit.Report{TorchABI: &audit.TorchABI{Kind: audit.TorchReleases}, WorksWith: []audit.TorchVerdict{
		{Torch: "2.9.1+cu128", Reason: "no at::foo"},
		{Torch: "2.10.0+cu128", OK: true},
		{Torch: "2.13.0+cu130", Reason: "has another layout of c10::TensorImpl than 2.10.0: 184 bytes became 176"},
	}}
	for _, test := range []struct {
		report *audit.Report
		torch  string
		ok     bool
		reason string
	}{
		{&audit.Report{}, "2.10.0", false, "did not look"},
		{&audit.Report{TorchABI: &audit.TorchABI{Kind: audit.TorchAny}}, "2.99.0", true, "nothing of torch"},
		{&audit.Report{TorchABI: &audit.TorchABI{Kind: audit.TorchStable, From: "2.10"}}, "2.99.0", true, "stable ABI, 2.10 and later"},
		{&audit.Report{TorchABI: &audit.TorchABI{Kind: audit.TorchStable, From: "2.10"}}, "2.9.1", false, "not on record"},
		{releases, "2.10.0", true, "all its names"},
		{releases, "2.9.1", false, "torch 2.9.1 lacks at::foo"},
		{releases, "2.13.0", false, "has another layout of c10::TensorImpl"},
		{releases, "2.10.1", false, "not on record"},
	} {
		if reason, ok := build.Serves(test.report, test.torch); ok != test.ok || !strings.Contains(reason, test.reason) {
			t.Errorf("torch %s: %v, %q; want %v, %q", test.torch, ok, reason, test.ok, test.reason)
		}
	}
}

// TestReuseClasses: rows that differ in torch alone are sorted by what their torch releases have in
// common, before anything is built.
func TestReuseClasses(t *testing.T) {
	const text = `
packages:
  demo:
    versions: ["1.0"]
    reuse: {torch: import}
    matrix:
      - {torch: ["2.12.1", "2.10.0", "2.13.0", "2.15.0"], python: ["3.12", "3.13"], local_version: "cpu-torch{torch}"}
      - {cuda: "11.8.0", torch: ["2.6.0", "2.7.0", "2.7.1"], python: "3.12"}
      - {cuda: "11.8.0", torch: "2.7.1", python: "3.13"}
  other:
    versions: ["1.0"]
    matrix: [{torch: ["2.10.0", "2.12.1"], python: "3.12", local_version: "cpu-torch{torch}"}]
`
	file, list := matrix.Parse("packages.yml", []byte(text))
	if list.HasErrors() {
		t.Fatal(list)
	}
	plan := file.Plan(matrix.Options{})
	settings := func(id string) matrix.Settings { s, _ := plan.Settings(id); return s }
	var got []string
	for _, c := range build.ReuseClasses(plan.Rows, settings, compat.Default()) {
		got = append(got, strings.ReplaceAll(strings.Join(c.Rows, " "), "-linux_x86_64", ""))
	}
	want := []string{
		"demo-1.0-cpu-torch2.10.0-cp312 demo-1.0-cpu-torch2.12.1-cp312", "demo-1.0-cpu-torch2.13.0-cp312 demo-1.0-cpu-torch2.15.0-cp312",
		"demo-1.0-cpu-torch2.10.0-cp313 demo-1.0-cpu-torch2.12.1-cp313", "demo-1.0-cpu-torch2.13.0-cp313 demo-1.0-cpu-torch2.15.0-cp313",
		"demo-1.0-cu118-torch2.6.0-cp312", // the old C++ ABI
		"demo-1.0-cu118-torch2.7.0-cp312 demo-1.0-cu118-torch2.7.1-cp312",
		"demo-1.0-cu118-torch2.7.1-cp313",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
}

// reuseProject has a package whose wheel serves every torch, and one whose wheel knows the torch
// that it was built with.
func reuseProject(t *testing.T, kind string) *project {
	const setup = `
from setuptools import Extension, setup
import torch
open("KIND.py", "w").write("BUILT = %r\n" % torch.__version__)
setup(name="KIND", version="1.0", py_modules=["KIND"], ext_modules=[Extension("_KIND", ["native.c"])])
`
	p := newProject(t, map[string]string{
		"packages.yml": strings.ReplaceAll(`
packages:
  KIND:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [setuptools, ninja]
    torch_source: {path: torch}
    local_version: "cpu-torch{torch}"
    reuse: {torch: `+map[string]string{"any": "import", "own": "tests"}[kind]+`}
    test: {expressions: ["__import__('torch').__version__ == `+map[string]string{"any": "'2.10.0'", "own": "own.BUILT"}[kind]+` or 1 / 0"]}
    matrix: [{torch: ["2.10.0", "2.12.1"], python: "PYTHON"}]
`, "KIND", kind),
		"src/setup.py": strings.ReplaceAll(setup, "KIND", kind),
		"src/native.c": native("_" + kind),
	})
	kilntest.TorchWheels(t, filepath.Join(p.dir, "torch"), "2.10.0", "2.12.1")
	return p
}

// TestReuse: a wheel that serves another row is proven and not compiled again; a proof that was
// killed is made again; without the setting the row is compiled.
func TestReuse(t *testing.T) {
	p := reuseProject(t, "any")
	second := "any-1.0-cpu-torch2.12.1-" + "cp" + strings.ReplaceAll(p.plan().Rows[0].Python, ".", "") + "-linux_x86_64"

	// The child is killed while it proves the second row.
	child := exec.Command(os.Args[0]) //nolint:noctx // it is killed
	child.Env = append(os.Environ(), childEnv+"="+p.dir, "PATH="+p.opts.Path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline) && !killed; time.Sleep(20 * time.Millisecond) {
		logs, _ := filepath.Glob(filepath.Join(p.dir, ".kiln", "attempts", second+".*", engine.LogName))
		for _, name := range logs {
			text, _ := os.ReadFile(name)
			killed = killed || strings.Contains(string(text), "== prove:") && strings.Contains(string(text), " install ")
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if !killed {
		t.Fatal("the second row was not proven")
	}
	if _, err := record.Read(filepath.Join(p.dir, "dist"), second); err == nil {
		t.Fatal("there is a record of a proof that was killed")
	}

	result := p.build()
	first := result.Rows[0]
	if first.Status != engine.StatusReused || first.Record.Reuse != nil {
		t.Errorf("the first row is %s: %s", first.Status, first.Reason)
	}
	r := result.Rows[1]
	if r.Status != engine.StatusDone || r.Record == nil || r.Record.Reuse == nil {
		t.Fatalf("the second row is %s, not proven: %s\n%s", r.Status, r.Reason, p.log(r))
	}
	want := &record.Reuse{Row: first.Row.ID, Torch: "2.12.1", Proof: "import", Reason: "it uses nothing of torch's libraries"}
	if diff := cmp.Diff(want, r.Record.Reuse); diff != "" {
		t.Errorf("the proof (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(first.Record.Files, r.Record.Files); diff != "" {
		t.Errorf("the files (-first +second):\n%s", diff)
	}
	if got := r.Record.Test; got.Result != "passed" || got.Versions["torch"] != "2.12.1" || got.Modules["_any"] == "" || len(got.Values) > 0 {
		t.Errorf("the test: %+v", got)
	}
	for _, s := range r.Record.Stages {
		if s.Name == "compile" && s.Skipped == "" {
			t.Error("the row was compiled")
		}
	}
	if files, _ := filepath.Glob(filepath.Join(p.dir, "dist", "*.whl")); len(files) != 1 {
		t.Errorf("dist has %q, want one wheel", files)
	}
	if again := p.build(); again.Count(engine.StatusReused) != 2 {
		t.Errorf("the next run has %v", statuses(again))
	}
	known := func(row *matrix.Row) *record.Record {
		r, _ := record.Read(filepath.Join(p.dir, "dist"), row.ID)
		return r
	}
	expected := build.ExpectReuse(p.plan(), compat.Default(), known)
	if len(expected) != 1 || !expected[0].Proven || expected[0].Row != second || expected[0].From != first.Row.ID {
		t.Errorf("the plan expects %+v", expected)
	}

	text, err := os.ReadFile(filepath.Join(p.dir, "packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	p.write("packages.yml", strings.Replace(strings.Replace(string(text), "reuse: {torch: import}", "", 1), "== '2.10.0'", "!= ''", 1))
	if r := p.build().Rows[1]; r.Status != engine.StatusDone || r.Record.Reuse != nil || r.Record.Files[0].Name == first.Record.Files[0].Name {
		t.Errorf("without reuse the second row is %s, with %+v: %s", r.Status, r.Record, r.Reason)
	}
}

// TestReuseAlone: a row that is built on its own is served by the wheel that another machine, such as
// another job of a hosted workflow, left in dist.
func TestReuseAlone(t *testing.T) {
	run := func(p *project, at int) build.RowResult {
		plan := p.plan()
		result, err := build.Run(t.Context(), plan, plan.Rows[at:at+1], p.opts)
		if err != nil {
			t.Fatal(err)
		}
		return result.Rows[0]
	}
	here, there := reuseProject(t, "any"), reuseProject(t, "any")
	first := run(there, 0)
	if first.Status != engine.StatusDone {
		t.Fatalf("the first row is %s: %s", first.Status, first.Reason)
	}
	if err := os.CopyFS(filepath.Join(here.dir, "dist"), os.DirFS(filepath.Join(there.dir, "dist"))); err != nil {
		t.Fatal(err)
	}
	r := run(here, 1)
	if r.Status != engine.StatusDone || r.Record.Reuse == nil || r.Record.Reuse.Row != first.Row.ID {
		t.Fatalf("the second row is %s, not proven: %s\n%s", r.Status, r.Reason, here.log(r))
	}
}

// TestReuseFails: a row whose proof fails is compiled.
func TestReuseFails(t *testing.T) {
	p := reuseProject(t, "own")
	result := p.build()
	r := result.Rows[1]
	if r.Status != engine.StatusDone || r.Record.Reuse != nil || r.Record.Test.Result != "passed" || r.Record.Files[0].Name != r.Row.Files()[0] {
		t.Fatalf("the second row is %s: %s\n%s", r.Status, r.Reason, p.log(r))
	}
	if !slices.ContainsFunc(r.Record.Warnings, func(w string) bool { return strings.Contains(w, "does not serve this row, so it is compiled") }) {
		t.Errorf("warnings %q", r.Record.Warnings)
	}
}
