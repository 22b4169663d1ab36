package build_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/matrix"
)

func TestMain(m *testing.M) {
	launcher.Main()
	run.Main()
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(buildChild(dir))
	}
	os.Exit(m.Run())
}

// pythonVersion returns the version of the Python that builds on this machine get, and
// the search path that finds it.
func pythonVersion(t *testing.T) (version, path string) {
	t.Helper()
	py := os.Getenv("KILN_PYTHON")
	if py == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	out, err := exec.CommandContext(t.Context(), py, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)").Output()
	if err != nil {
		kilntest.Lacking(t, "python", "KILN_PYTHON: %v", err)
	}
	version, prefix, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return version, filepath.Join(prefix, "bin") + ":/usr/local/bin:/usr/bin:/bin"
}

// project is a folder with packages.yml and sources. Rows built in it share downloads
// with all other tests of this process.
type project struct {
	t    *testing.T
	dir  string
	opts build.Options
}

// newProject writes files, given by their path. In packages.yml {python} is the version
// of this machine's Python.
func newProject(t *testing.T, files map[string]string) *project {
	t.Helper()
	version, path := pythonVersion(t)
	p := &project{t: t, dir: t.TempDir()}
	p.opts = build.Options{
		Dir: p.dir, Sandboxes: sandbox.Host(sandbox.HostOptions{}), Path: path,
		Network: build.Network{CertFile: os.Getenv("SSL_CERT_FILE")},
	}
	for name, text := range files {
		if name == "packages.yml" {
			text = strings.ReplaceAll(text, "PYTHON", version)
		}
		p.write(name, text)
	}
	return p
}

func (p *project) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		p.t.Fatal(err)
	}
}

// plan plans packages.yml.
func (p *project) plan() *matrix.Plan {
	p.t.Helper()
	name := filepath.Join(p.dir, "packages.yml")
	text, err := os.ReadFile(name)
	if err != nil {
		p.t.Fatal(err)
	}
	file, found := matrix.Parse(name, text)
	if found.HasErrors() {
		p.t.Fatal(found)
	}
	plan := file.Plan(matrix.Options{})
	if plan.Findings.HasErrors() {
		p.t.Fatal(plan.Findings)
	}
	return plan
}

// build builds all rows.
func (p *project) build() *build.Result {
	p.t.Helper()
	plan := p.plan()
	result, err := build.Run(p.t.Context(), plan, plan.Rows, p.opts)
	if err != nil {
		p.t.Fatal(err)
	}
	return result
}

// statuses are the states of the rows, with the diagnosis of those that failed.
func statuses(result *build.Result) map[string]string {
	out := map[string]string{}
	for _, r := range result.Rows {
		s := string(r.Status)
		if e, ok := errors.AsType[*build.RowError](r.Err); ok {
			s += " " + e.Stage + " " + e.Diagnosis.ID
		}
		if r.Record != nil {
			s += " " + r.Record.Test.Result
		}
		out[r.Row.Package] = s
	}
	return out
}

func (p *project) log(r build.RowResult) string {
	text, err := os.ReadFile(filepath.Join(r.Dir, engine.LogName))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

const setupPy = `
from setuptools import Extension, setup
setup(name="%s", version="1.0", py_modules=[%s], ext_modules=[Extension("%s", ["native.c"])])
`

const nativeC = `
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
`

func native(name string) string { return strings.ReplaceAll(nativeC, "NAME", name) }

// TestBuild builds a package with native code and a source distribution, then looks at
// what a second run does.
func TestBuild(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
packages:
  demo:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [build, setuptools]
    test_import: demo
    test: {expressions: ["demo.VALUE + 1"]}
    local_version: "cpu"
    matrix:
      - {python: "PYTHON"}
    include:
      - {kind: sdist, python: "PYTHON", env: {DEMO_PURE: 1}}
`,
		"src/setup.py": `
import os
from setuptools import Extension, setup
pure = "DEMO_PURE" in os.environ
setup(name="demo", version="1.0", py_modules=["demo"], ext_modules=[] if pure else [Extension("_demo", ["native.c"])])
`,
		"src/MANIFEST.in": "include native.c\n",
		"src/native.c":    native("_demo"),
		"src/demo.py":     "VALUE = 41\n",
	})
	result := p.build()
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone {
			t.Fatalf("%s is %s: %v\n%s", r.Row.ID, r.Status, r.Err, p.log(r))
		}
	}
	wheelRow := result.Rows[0]
	if got := wheelRow.Record.Test.Values["demo.VALUE + 1"]; got != "42" {
		t.Errorf("the expression gave %q, want 42", got)
	}
	if got := wheelRow.Record.Test.Modules["_demo"]; !strings.Contains(got, "site-packages") {
		t.Errorf("_demo was loaded from %q, want site-packages", got)
	}
	var want []string
	for _, r := range result.Rows {
		want = append(want, r.Row.Files()...)
	}
	var got []string
	entries, err := os.ReadDir(filepath.Join(p.dir, "dist"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			got = append(got, e.Name())
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dist (-want +got):\n%s", diff)
	}
	if work, _ := os.ReadDir(filepath.Join(p.dir, ".kiln", "work")); len(work) > 0 {
		t.Errorf("%d work folders are left", len(work))
	}

	t.Run("again", func(t *testing.T) {
		if again := p.build(); again.Count(engine.StatusReused) != 2 {
			t.Errorf("want both rows reused, got %v", statuses(again))
		}
	})
	t.Run("a lost file is built again with the same bytes", func(t *testing.T) {
		before := wheelRow.Record.Files[0]
		if err := os.Remove(filepath.Join(p.dir, "dist", before.Name)); err != nil {
			t.Fatal(err)
		}
		again := p.build()
		if again.Rows[0].Status != engine.StatusDone || again.Rows[1].Status != engine.StatusReused {
			t.Fatalf("want done and reused, got %s and %s", again.Rows[0].Status, again.Rows[1].Status)
		}
		if diff := cmp.Diff(before, again.Rows[0].Record.Files[0]); diff != "" {
			t.Errorf("the file (-before +after):\n%s", diff)
		}
	})
	t.Run("a new test tests and does not build", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(p.dir, "packages.yml"))
		if err != nil {
			t.Fatal(err)
		}
		p.write("packages.yml", strings.Replace(string(text), "demo.VALUE + 1", "demo.VALUE + 2", 1))
		again := p.build()
		r := again.Rows[0]
		if r.Status != engine.StatusDone || r.Record.Test.Values["demo.VALUE + 2"] != "43" {
			t.Fatalf("got %s, %v", r.Status, r.Record.Test)
		}
		if i := slices.IndexFunc(r.Record.Stages, func(s record.Stage) bool { return s.Name == "compile" }); r.Record.Stages[i].Skipped == "" {
			t.Error("the row was compiled again")
		}
	})
	t.Run("changed source is built again, and the old file is kept aside", func(t *testing.T) {
		p.write("src/demo.py", "VALUE = 141\n")
		again := p.build()
		r := again.Rows[0]
		if r.Status != engine.StatusDone || r.Record.Test.Values["demo.VALUE + 2"] != "143" {
			t.Fatalf("got %s: %v\n%s", r.Status, r.Err, p.log(r))
		}
		old := filepath.Join(p.dir, ".kiln", "replaced", wheelRow.Record.Files[0].SHA256, wheelRow.Record.Files[0].Name)
		if _, err := os.Stat(old); err != nil {
			t.Errorf("the old file: %v", err)
		}
	})
	t.Run("history", func(t *testing.T) {
		f, err := os.Open(filepath.Join(p.dir, ".kiln", "history.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		h, err := matrix.ReadHistory(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range result.Rows {
			if m := h.Rows[r.Row.ID]; m.Seconds <= 0 || m.PeakMemoryBytes <= 0 || m.FileBytes <= 0 {
				t.Errorf("%s: measured %+v", r.Row.ID, m)
			}
		}
	})
}

// TestTestKinds: a package that compiles itself at its first import cannot be imported by the test,
// so its rows are tested in another way, or not at all by choice.
func TestTestKinds(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
x-shared: &shared
  versions: ["1.0"]
  source: {path: src}
  extra_deps: [build, setuptools]
  local_version: ""
  env: {PACKAGE: "{package}"}
  test_import: lazy
packages:
  imported: {<<: *shared, matrix: [{python: "PYTHON", wheel_tag: py3-none, platform: any}]}
  installed: {<<: *shared, test: install, matrix: [{python: "PYTHON", wheel_tag: py3-none, platform: any}]}
  untested: {<<: *shared, matrix: [{python: "PYTHON", wheel_tag: py3-none, platform: any, test: none}]}
  source: {<<: *shared, include: [{kind: sdist, python: "PYTHON"}]}
`,
		"src/setup.py": `
import os
from setuptools import setup
setup(name=os.environ["PACKAGE"], version="1.0", py_modules=["lazy"])
`,
		"src/lazy.py": "raise ImportError('compiles at its first import, and there is no compiler')\n",
	})
	result := p.build()
	want := map[string]string{
		"imported": "failed test python-error", "installed": "done passed", "untested": "done not run", "source": "done passed",
	}
	got := statuses(result)
	got["imported"] = strings.Join(strings.Fields(got["imported"])[:3], " ")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for _, r := range result.Rows {
		if r.Err != nil && r.Row.Package != "imported" {
			t.Log(p.log(r))
		}
	}
}

// TestFailures provokes failures for real, each in a row of its own, and wants the right
// diagnosis. None of them stops another, and nothing of them gets into dist/.
func TestFailures(t *testing.T) {
	simple := func(name string) string { return fmt.Sprintf(setupPy, name, "", "_"+name) }
	files := map[string]string{
		"packages.yml": `
x-shared: &shared
  versions: ["1.0"]
  matrix: [{python: "PYTHON"}]
  local_version: ""
packages:
  good: {<<: *shared, source: {path: good}, extra_deps: [build, setuptools], test_import: _good}
  syntax: {<<: *shared, source: {path: syntax}, extra_deps: [build, setuptools]}
  wrongimport: {<<: *shared, source: {path: wrongimport}, extra_deps: [build, setuptools]}
  missingdep: {<<: *shared, source: {path: missingdep}, extra_deps: [build, setuptools]}
  pure: {<<: *shared, source: {path: pure}, extra_deps: [build, setuptools]}
  otherversion: {<<: *shared, source: {path: otherversion}, extra_deps: [build, setuptools]}
  badpatch: {<<: *shared, source: {path: good}, extra_deps: [build, setuptools], build: {patches: [{file: setup.py, find: "no such text", replace: ""}]}}
  nonet: {<<: *shared, source: {path: nonet}, extra_deps: [build, setuptools]}
  symbol: {<<: *shared, source: {path: symbol}, extra_deps: [build, setuptools], test_import: symbol}
  runtimedep: {<<: *shared, source: {path: runtimedep}, extra_deps: [build, setuptools], test_import: runtimedep}
  norequirement: {<<: *shared, source: {path: good}, extra_deps: [build, setuptools, "no-such-package-on-any-index==9.9"]}
  nopython: {versions: ["1.0"], source: {path: good}, local_version: "", matrix: [{python: "3.98"}]}
  nonvcc: {versions: ["1.0"], source: {path: good}, extra_deps: [build, setuptools], matrix: [{python: "PYTHON", cuda: "11.8.0"}]}
  windows: {versions: ["1.0"], source: {path: good}, local_version: "", matrix: [{os: windows-2022, python: "PYTHON"}]}
  slowtest: {<<: *shared, source: {path: good2}, extra_deps: [build, setuptools], test_import: _slowtest, test: {expressions: ["__import__('time').sleep(600)"], timeout: 25s}}
  gpu: {<<: *shared, source: {path: gpu}, extra_deps: [build, setuptools], test_import: _gpu, test: {requires_gpu: true}}
  dynamicdep: {<<: *shared, source: {path: dynamicdep}, extra_deps: [build, setuptools]}
  nocc: {<<: *shared, source: {path: good}, extra_deps: [build, setuptools], env: {CC: "ccache no-such-compiler -O2"}}
  nocargo: {<<: *shared, source: {path: nocargo}, extra_deps: [build]}
  nofolder: {<<: *shared, source: {path: nowhere}}
  notorch: {versions: ["1.0"], source: {path: good}, torch_source: {path: no-wheels}, matrix: [{python: "PYTHON", torch: "2.11.0"}]}
  norepository: {<<: *shared, source: {git: "file:///nowhere/at/all.git", ref: v1.0}}
  wrongsum: {<<: *shared, source: {sdist: good/setup.py, sha256: "0000000000000000000000000000000000000000000000000000000000000000"}}
`,
		"dynamicdep/setup.py": strings.Replace(simple("dynamicdep"), "version=", "setup_requires=['a-requirement-nobody-has'], version=", 1), "dynamicdep/native.c": native("_dynamicdep"),
		"nocargo/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n[project]\nname = \"nocargo\"\nversion = \"1.0\"\n",
		// What maturin's does without cargo.
		"nocargo/backend.py": "def get_requires_for_build_wheel(config_settings=None):\n    return ['puccinialin']\n",
		"good/setup.py":      simple("good"), "good/native.c": native("_good"),
		"good2/setup.py": simple("slowtest"), "good2/native.c": native("_slowtest"),
		"gpu/setup.py": simple("gpu"), "gpu/native.c": native("_gpu"),
		"syntax/setup.py": simple("syntax"), "syntax/native.c": "int main( { return 0; }\n",
		"wrongimport/setup.py": fmt.Sprintf(setupPy, "wrongimport", "", "_other"), "wrongimport/native.c": native("_other"),
		"missingdep/setup.py": simple("missingdep"), "missingdep/native.c": native("_missingdep"),
		"missingdep/pyproject.toml": "[build-system]\nrequires = [\"setuptools\", \"a-requirement-nobody-has\"]\nbuild-backend = \"setuptools.build_meta\"\n",
		"pure/setup.py":             "from setuptools import setup\nsetup(name='pure', version='1.0', py_modules=['pure'])\n", "pure/pure.py": "",
		"otherversion/setup.py": strings.Replace(simple("otherversion"), "1.0", "2.0", 1), "otherversion/native.c": native("_otherversion"),
		"nonet/setup.py":           "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)\n",
		"symbol/setup.py":          fmt.Sprintf(setupPy, "symbol", `"symbol"`, "_symbol"),
		"symbol/symbol.py":         "try:\n    import _symbol\nexcept ImportError:\n    pass\n", // hides the error, as some packages do
		"symbol/native.c":          strings.Replace(native("_symbol"), "{ return", "{ extern int nobody_has_this(void); nobody_has_this(); return", 1),
		"runtimedep/setup.py":      fmt.Sprintf(setupPy, "runtimedep", `"runtimedep"`, "_runtimedep"),
		"runtimedep/runtimedep.py": "import a_module_nobody_has\n", "runtimedep/native.c": native("_runtimedep"),
	}
	p := newProject(t, files)
	result := p.build()
	want := map[string]string{
		"good":          "done passed",
		"syntax":        "failed compile compile-error",
		"wrongimport":   "failed test wrong-import-name",
		"missingdep":    "failed preflight build-requirement",
		"pure":          "failed collect pure-wheel",
		"otherversion":  "failed preflight wrong-version",
		"badpatch":      "failed fetch patch",
		"nonet":         "failed compile download-in-build",
		"symbol":        "failed audit audit-symbol-missing",
		"runtimedep":    "failed test runtime-dependency",
		"norequirement": "failed prepare dependency-not-found",
		"nopython":      "failed prepare no-python",
		"nonvcc":        "failed preflight no-nvcc",
		"windows":       "skipped",
		"slowtest":      "failed test test-timeout",
		"gpu":           "done not run",
		"dynamicdep":    "failed preflight build-requirement",
		"nocc":          "failed preflight no-compiler",
		"nocargo":       "failed preflight no-cargo",
		"nofolder":      "failed fetch ",
		"notorch":       "failed fetch ",
		"norepository":  "failed fetch ",
		"wrongsum":      "failed fetch ",
	}
	if diff := cmp.Diff(want, statuses(result)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
		for _, r := range result.Rows {
			if statuses(&build.Result{Rows: []build.RowResult{r}})[r.Row.Package] != want[r.Row.Package] {
				t.Logf("%s: %v\n%s", r.Row.Package, r.Err, p.log(r))
			}
		}
	}
	for _, r := range result.Rows {
		said := map[string]string{
			"nofolder": "nowhere: no such file or directory", "notorch": "no-wheels: no such file or directory", "wrongsum": "sha256 mismatch: got ",
			// All that git says, not its last line.
			"norepository": "fatal: '/nowhere/at/all.git' does not appear to be a git repository fatal: Could not read from remote repository. Please make sure you have the correct access rights and the repository exists.",
		}[r.Row.Package]
		if text := strings.Join(strings.Fields(r.Reason), " "); said != "" && (!strings.Contains(text, said) || r.Attempts != 1) {
			t.Errorf("%s: after %d attempts: %s\nwant %q after one", r.Row.Package, r.Attempts, r.Reason, said)
		}
	}
	entries, err := filepath.Glob(filepath.Join(p.dir, "dist", "*"))
	if err != nil || len(entries) != 3 { // good, gpu and the folder of the records
		t.Errorf("dist has %q (%v), want the files of two rows and their records", entries, err)
	}
}

// TestHooks: commands run before and after the build and before the test, and the test is that of
// the package itself, with its own files; what fails in it is shown.
func TestHooks(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
x-shared: &shared
  versions: ["1.0"]
  source: {path: src}
  extra_deps: [build, setuptools]
  local_version: ""
  before_build: python generate.py {version}
  after_build: "sh -c 'ls $KILN_OUT > made.txt && test -s made.txt'"
  env: {PACKAGE: "{package}"}
packages:
  good:
    <<: *shared
    test_import: _good
    before_test: "sh -c 'echo 42 > tests/data.txt'"
    test: {command: python -m unittest discover -v tests, requires: iniconfig, extras: check, files: [tests, "*.ini"]}
    matrix: [{python: "PYTHON"}]
  wrong: {<<: *shared, test_import: _wrong, test: {command: python -m unittest discover tests, files: tests}, matrix: [{python: "PYTHON"}]}
  expression: {<<: *shared, test_import: _expression, test: {expressions: ["1 + 1", "_expression.nothing"]}, matrix: [{python: "PYTHON"}]}
  nofile: {<<: *shared, test_import: _nofile, test: {command: python -V, files: nowhere}, matrix: [{python: "PYTHON", after_build: []}]}
  nohook: {<<: *shared, matrix: [{python: "PYTHON", before_build: python no-such-file.py}]}
`,
		"src/setup.py": `
import os
from setuptools import Extension, setup
name = os.environ["PACKAGE"]
setup(name=name, version="1.0", extras_require={"check": ["zipp"]}, ext_modules=[Extension("_" + name, ["native.c"])])
`,
		"src/generate.py": `
import os, sys
assert sys.argv[1:] == ["1.0"], sys.argv
open("native.c", "w").write(open("native.in").read().replace("NAME", "_" + os.environ["PACKAGE"]))
`,
		"src/native.in": nativeC, "src/test.ini": "",
		"src/tests/test_it.py": `
import os, unittest
class It(unittest.TestCase):
    def test_it(self):
        import iniconfig, zipp, _good
        self.assertTrue(os.path.exists("test.ini") and not os.path.exists("setup.py"))
        self.assertEqual(open("tests/data.txt").read().strip(), "42")
`,
	})
	result := p.build()
	want := map[string]string{
		"good": "done passed", "wrong": "failed test test-command", "expression": "failed test test-expression", "nofile": "failed test test-files", "nohook": "failed compile python-error",
	}
	got := statuses(result)
	if strings.HasPrefix(got["nohook"], "failed compile ") {
		got["nohook"] = want["nohook"] // whatever Python says of a file that is not there
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for _, r := range result.Rows {
		said := map[string]string{"wrong": "No module named 'iniconfig'", "expression": "_expression.nothing: AttributeError", "nofile": "the source has no nowhere"}[r.Row.Package]
		if !strings.Contains(r.Reason, said) || r.Row.Package == "good" && r.Status != engine.StatusDone {
			t.Errorf("%s: want %q in %q\n%s", r.Row.Package, said, r.Reason, p.log(r))
		}
		if r.Record == nil {
			continue
		}
		// What kiln plan --env lists is what the build had.
		settings, _ := p.plan().Settings(r.Row.ID)
		listed := build.Variables(r.Row, settings)
		for _, pair := range r.Record.Environment {
			name, _, _ := strings.Cut(pair, "=")
			if !slices.ContainsFunc(listed, func(v build.Variable) bool { return v.Name == name }) {
				t.Errorf("%s is in the environment of %s and not in the list", name, r.Row.ID)
			}
		}
	}
}

// TestDistFolder: a folder that cannot be written is said before anything is compiled.
func TestDistFolder(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `packages: {good: {versions: ["1.0"], source: {path: good}, matrix: [{python: "PYTHON"}]}}`, "good/setup.py": "", "file": "",
	})
	p.opts.DistDir = filepath.Join(p.dir, "file", "dist")
	started := false
	p.opts.OnEvent = func(engine.Event) { started = true }
	plan := p.plan()
	_, err := build.Run(t.Context(), plan, plan.Rows, p.opts)
	if err == nil || !strings.Contains(err.Error(), "the folder for finished files cannot be written") || started {
		t.Errorf("got %v, started %v", err, started)
	}
}

// TestFindCUDA: a toolkit is found where only PATH names it, as kiln doctor finds it.
func TestFindCUDA(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
packages:
  good: {versions: ["1.0"], source: {path: good}, extra_deps: [build, setuptools], test_import: _good, audit: {no-gpu-code: off}, matrix: [{python: "PYTHON", cuda: "12.9.1"}]}
`,
		"good/setup.py": fmt.Sprintf(setupPy, "good", "", "_good"), "good/native.c": native("_good"),
		"toolkit/bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.86'\n",
	})
	home := filepath.Join(p.dir, "toolkit")
	if err := os.Chmod(filepath.Join(home, "bin", "nvcc"), 0o777); err != nil {
		t.Fatal(err)
	}
	p.opts.Path = filepath.Join(home, "bin") + string(filepath.ListSeparator) + p.opts.Path
	r := p.build().Rows[0]
	if r.Record == nil || r.Record.Tools.CUDAHome != home || r.Record.Tools.CUDAVersion != "12.9.86" {
		t.Errorf("%+v\n%s", r, p.log(r))
	}
}

// TestRecipeDigest: what affects the files changes the digests, what does not, does not.
func TestRecipeDigest(t *testing.T) {
	row := matrix.Row{ID: "demo", Package: "demo", Version: "1.0", Kind: matrix.KindWheel, Python: "3.12", CUDA: "12.8.1", Torch: "2.9.0", Arch: "8.0", Platform: "linux_x86_64", WheelTag: "cp312-cp312"}
	base := matrix.Settings{ExtraDeps: []string{"torch", "torchvision", "ninja"}, Frontend: "build", TorchSource: matrix.TorchSettings{Kind: "index"}}
	opts := build.RecipeOptions{Sandbox: "podman", DefaultImage: "cuda:{version}"}
	make := func(change func(*matrix.Row, *matrix.Settings, *record.Source, *build.RecipeOptions)) *record.Recipe {
		t.Helper()
		r, s, src, o := row, base, record.Source{Kind: "git", Digest: "abc"}, opts
		change(&r, &s, &src, &o)
		recipe, err := build.NewRecipe(r, s, src, o)
		if err != nil {
			t.Fatal(err)
		}
		return recipe
	}
	first := make(func(*matrix.Row, *matrix.Settings, *record.Source, *build.RecipeOptions) {})
	if diff := cmp.Diff([]string{"torchvision", "ninja", "build"}, first.Deps); diff != "" {
		t.Errorf("requirements of the default index (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"torch==2.9.0"}, first.Torch); diff != "" || first.TorchIndex != build.DefaultTorchIndex+"/cu128" {
		t.Errorf("torch (-want +got):\n%sfrom %s", diff, first.TorchIndex)
	}
	for name, change := range map[string]func(*matrix.Row, *matrix.Settings, *record.Source, *build.RecipeOptions){
		"source": func(_ *matrix.Row, _ *matrix.Settings, s *record.Source, _ *build.RecipeOptions) { s.Digest = "def" },
		"arch":   func(r *matrix.Row, _ *matrix.Settings, _ *record.Source, _ *build.RecipeOptions) { r.Arch = "9.0" },
		"env": func(_ *matrix.Row, s *matrix.Settings, _ *record.Source, _ *build.RecipeOptions) {
			s.Env = map[string]string{"A": "1"}
		},
		"image": func(_ *matrix.Row, _ *matrix.Settings, _ *record.Source, o *build.RecipeOptions) {
			o.DefaultImage = "other:{version}"
		},
		"torch index": func(_ *matrix.Row, _ *matrix.Settings, _ *record.Source, o *build.RecipeOptions) {
			o.TorchIndex = "https://mirror.example"
		},
	} {
		if got := make(change); got.BuildDigest == first.BuildDigest || got.Digest == first.Digest {
			t.Errorf("%s: the digests did not change", name)
		}
	}
	tested := make(func(_ *matrix.Row, s *matrix.Settings, _ *record.Source, _ *build.RecipeOptions) {
		s.Test.Expressions = []string{"1"}
	})
	if tested.BuildDigest != first.BuildDigest || tested.Digest == first.Digest {
		t.Error("another test must change the digest of the verdict alone")
	}
	described := make(func(_ *matrix.Row, s *matrix.Settings, _ *record.Source, _ *build.RecipeOptions) {
		s.Description, s.Resources.Jobs = "other", 3
	})
	if described.Digest != first.Digest {
		t.Error("description and resources must not change the digest")
	}
	text, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	var back record.Recipe
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil || string(again) != string(text) {
		t.Errorf("a recipe does not survive being written down (%v):\n%s\n%s", err, text, again)
	}
}

// TestCancel: a build that is interrupted ends soon and leaves no process behind.
func TestCancel(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
packages:
  sleepy: {versions: ["1.0"], source: {path: src}, extra_deps: [build, setuptools], local_version: "", matrix: [{python: "PYTHON"}]}
`,
		"src/setup.py": "import subprocess, sys\n" +
			"if 'bdist_wheel' in sys.argv:\n    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(987654)']).wait()\n" +
			"from setuptools import setup\nsetup(name='sleepy', version='1.0')\n",
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the user pressed a key")
	p.opts.OnEvent = func(e engine.Event) {
		if e.Kind == engine.EventStage && e.Stage == "compile" {
			cancel(stop)
		}
	}
	plan := p.plan()
	result, err := build.Run(ctx, plan, plan.Rows, p.opts)
	if !errors.Is(err, stop) || result.Rows[0].Status != engine.StatusCanceled {
		t.Fatalf("got %v and %v", err, statuses(result))
	}
	if out, _ := exec.CommandContext(t.Context(), "pgrep", "-f", "time.sleep\\(987654\\)").Output(); len(out) > 0 {
		t.Errorf("processes are left: %s", out)
	}
}

// TestSweepTemps: files that a killed kiln was writing go with the next run, but not those that
// another one may be writing.
func TestSweepTemps(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
packages:
  demo: {versions: ["1.0"], source: {path: src}, local_version: "", matrix: [{python: "PYTHON"}]}
`,
	})
	const temp = ".kiln-tmp-abcdefgh12345678"
	dirs := []string{".kiln", ".kiln/cache", "dist", "dist/records"}
	plant := func() {
		for _, dir := range append(dirs, ".kiln/calls") {
			p.write(dir+"/"+temp, "half a fi")
			p.write(dir+"/"+temp+"-kept/file", "a folder")
			p.write(dir+"/other", "")
		}
	}
	run := func() []string {
		if _, err := build.Run(t.Context(), p.plan(), nil, p.opts); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(p.temps(), func(path string) bool { return strings.HasSuffix(path, "-kept") })
	}
	plant()
	var young []string
	for _, dir := range dirs {
		young = append(young, filepath.Join(p.dir, filepath.FromSlash(dir), temp))
	}
	slices.Sort(young)
	left := run()
	slices.Sort(left)
	if diff := cmp.Diff(young, left); diff != "" {
		t.Errorf("left after a run, of files written just now (-want +got):\n%s", diff)
	}
	p.age()
	if left := run(); len(left) > 0 {
		t.Errorf("old files are left: %v", left)
	}
	for _, dir := range dirs {
		for _, name := range []string{"other", temp + "-kept"} {
			if _, err := os.Stat(filepath.Join(p.dir, filepath.FromSlash(dir), name)); err != nil {
				t.Error(err)
			}
		}
	}
}
