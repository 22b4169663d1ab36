package scaffold

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func TestScript(t *testing.T) {
	s := readScript(`# comment with "quotes"
import os, sys as system
from torch.utils.cpp_extension import (
    BuildExtension,  # the command
    CUDAExtension as Ext,
)
A = "one" 'two'
B: str = A + "-three"
C = ["x", *other, B] + ["y"]
if os.getenv("WITH_X", '0') == '1' and "WITH_Y" in os.environ: pass
D = os.environ["WITH_Z"]
os.environ["SET"] = "value"
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0")
if "--flag" not in sys.argv:
    E = f"{A}!"
here = os.path.dirname(__file__)
F = open(os.path.join(here, "demo", "version.py"), encoding="utf8")
G = lambda x, y: x
H = {"name": r"\d", 'list': [1, 2]}
setup(name="demo", version=B if A else "0", packages=find_packages(where="src"), **H)
'unclosed
last = 1`)
	value := func(name string) string {
		text, ok := s.text(s.assigns[name], 0)
		if !ok {
			return "unknown"
		}
		return text
	}
	for name, want := range map[string]string{"A": "onetwo", "B": "onetwo-three", "E": "onetwo!", "D": "unknown", "G": "unknown"} {
		if got := value(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	var list []string
	for _, n := range s.list(s.assigns["C"], 0) {
		list = append(list, n.text)
	}
	if want := []string{"x", "onetwo-three", "y"}; !cmp.Equal(list, want) {
		t.Errorf("C is %q, want %q", list, want)
	}
	if got := s.path(s.assigns["F"], 0); got != "demo/version.py" {
		t.Errorf("the path is %q", got)
	}
	var reads []setting
	reads = append(reads, s.reads...)
	want := []setting{{"WITH_X", "0", 10}, {"WITH_Y", "", 10}, {"WITH_Z", "", 11}, {"TORCH_CUDA_ARCH_LIST", "8.0;9.0", 13}}
	if diff := cmp.Diff(want, reads, cmp.AllowUnexported(setting{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]setting{{"SET", "value", 12}, {"TORCH_CUDA_ARCH_LIST", "8.0;9.0", 13}}, s.writes, cmp.AllowUnexported(setting{})); diff != "" {
		t.Error(diff)
	}
	if len(s.flags) != 1 || s.flags[0].name != "--flag" {
		t.Errorf("flags %v", s.flags)
	}
	var setup *node
	for _, c := range s.calls {
		if c.text == "setup" {
			setup = c
		}
	}
	if setup == nil || setup.line != 20 {
		t.Fatalf("setup is %+v", setup)
	}
	if name, _ := s.text(setup.argument("name", 0), 0); name != "demo" {
		t.Errorf("the name is %q", name)
	}
	if version, _ := s.text(setup.argument("version", -1), 0); version != "onetwo-three" {
		t.Errorf("the version is %q", version)
	}
	if len(s.imports) != 3 || s.imports[2].module != "torch.utils.cpp_extension" || !cmp.Equal(s.imports[2].names, []string{"BuildExtension", "CUDAExtension"}) {
		t.Errorf("imports %+v", s.imports)
	}
}

func TestTOML(t *testing.T) {
	got := readTOML(`top = 1 # comment
[build-system]
requires = ["a", # why
  'b >= 2', ["nested"], {x = 1},
]
[ project . "urls" ]
"home page" = 'C:\path'
[project]
description = """
two
lines"""
dynamic = { version = { attr = "demo.__version__" }, other = ["x"] }
dotted.key = true
broken
[[array]]
name = "first"`)
	want := tomlTable{
		"top": {text: "1", line: 1}, "build-system.requires": {list: []string{"a", "b >= 2"}, lines: []int{3, 4}, line: 3},
		"project.urls.home page": {text: `C:\path`, line: 7}, "project.description": {text: "two\nlines", line: 9},
		"project.dynamic.version.attr": {text: "demo.__version__", line: 12}, "project.dynamic.other": {list: []string{"x"}, lines: []int{12}, line: 12},
		"project.dotted.key": {text: "true", line: 13}, "array.name": {text: "first", line: 16},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(tomlValue{})); diff != "" {
		t.Error(diff)
	}
}

func TestCMake(t *testing.T) {
	got := readCMake("# project(no)\nproject(demo LANGUAGES \"CXX\" CUDA) #[[ enable_language(\nCUDA) ]]\nIF(A AND (B OR C))\n  Enable_Language(CUDA)\nendif()\nset(X \"a\nb\" c)\nmessage(")
	want := []cmakeCommand{
		{"project", []string{"demo", "LANGUAGES", "CXX", "CUDA"}, 2},
		{"if", []string{"A", "AND", "B", "OR", "C"}, 4},
		{"enable_language", []string{"CUDA"}, 5},
		{"endif", nil, 6},
		{"set", []string{"X", "a\nb", "c"}, 7},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cmakeCommand{})); diff != "" {
		t.Error(diff)
	}
}

func TestRoles(t *testing.T) {
	for key, want := range map[string]string{
		"os": roleOS, "runs-on": roleOS, "python-version": rolePython, "pyver": rolePython, "python_versions": rolePython, "cuda-version": roleCUDA, "torch-cuda": roleCUDA,
		"cudaarch": roleArch, "TORCH_CUDA_ARCH_LIST": roleArch, "pytorch_version": roleTorch, "torch.version": roleTorch, "torch.cuda": roleCUDA, "rocm_version": roleROCm,
		"artname": roleKind, "toolkit_type": roleToolkit, "cxx11_abi": roleOther, "name": roleOther,
	} {
		if got := roleOf(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, tt := range []struct {
		role, value, want string
		ok                bool
	}{
		{rolePython, "3.12", "3.12", true},
		{rolePython, "cp313t", "3.13t", true},
		{rolePython, "3.11.4", "3.11", true},
		{rolePython, "pypy-3.10", "", false},
		{rolePython, "", "", false},
		{roleCUDA, "cu128", "12.8", true},
		{roleCUDA, "118", "11.8", true},
		{roleCUDA, "12.8.1", "12.8.1", true},
		{roleCUDA, "cpu", "", true},
		{roleCUDA, "rocm6.4", "rocm 6.4", true},
		{roleCUDA, "latest", "", false},
		{roleTorch, "2.9.0+cu128", "2.9.0", true},
		{roleTorch, "torch2.8", "2.8", true},
		{roleTorch, "2.6.0.dev20241001", "2.6.0.dev20241001", true},
		{roleTorch, "nightly", "", false},
		{roleArch, "8.0 9.0+PTX", "8.0 9.0+PTX", true},
		{roleArch, "x86_64", "", false},
		{roleArch, "gfx90a;gfx942", "gfx90a;gfx942", true},
		{roleROCm, "6.2.4", "6.2.4", true},
		{roleKind, "sdist", "sdist", true},
		{roleKind, "debug", "", false},
	} {
		if got, ok := normal(tt.role, tt.value); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s %q is %q %v, want %q %v", tt.role, tt.value, got, ok, tt.want, tt.ok)
		}
	}
}

// seeds adds the files of the fixtures.
func seeds(f *testing.F, add func(text string), patterns ...string) {
	f.Helper()
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil || len(names) == 0 {
			f.Fatal(err, pattern)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			add(string(text))
		}
	}
}

// FuzzCheckout reads a project from texts alone. Whatever they are, the file that comes out can be
// read and planned.
func FuzzCheckout(f *testing.F) {
	fuzzcorpus.Add(f)
	seeds(f, func(text string) {
		part := func(name string) string {
			_, rest, _ := strings.Cut(text, "-- "+name+" --\n")
			rest, _, _ = strings.Cut(rest, "\n-- ")
			return rest
		}
		f.Add(part("pyproject.toml"), part("setup.cfg"), part("setup.py"), part("CMakeLists.txt"))
	}, "checkouts/*.txtar")
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, pyproject, cfg, setup, cmake string) {
		p := &project{root: root}
		p.pyproject("pyproject.toml", pyproject)
		p.setupCFG("setup.cfg", cfg)
		p.setupPy("setup.py", setup)
		p.cmakeLists("CMakeLists.txt", cmake)
		p.findVersion()
		p.findImports()
		if p.name == "" {
			return
		}
		s := &scaffold{opts: Options{Dir: root, Output: filepath.Join(root, "packages.yml"), Version: "1.0", Compat: compat.Default()}, project: p, result: &Result{Sources: map[string][]byte{}}}
		s.doc.name = p.name
		if err := s.source(repository{}); err != nil {
			t.Fatal(err)
		}
		s.settings()
		if err := s.fromProject(); err != nil {
			t.Errorf("%v\n%s", err, s.doc.bytes())
		}
	})
}

// FuzzWorkflow takes the matrix of a text. What comes out has its rows, or an error says why not;
// it is never a file that cannot be read.
func FuzzWorkflow(f *testing.F) {
	fuzzcorpus.Add(f)
	seeds(f, func(text string) { f.Add(text) }, "workflows/*.yml", "workflows/*.json")
	f.Fuzz(func(t *testing.T, text string) {
		for _, job := range readWorkflow("workflow.yml", []byte(text)).jobs {
			if len(job.combos) > 40 {
				return // the search takes its time
			}
		}
		s := &scaffold{opts: Options{Workflow: "workflow.yml", Compat: compat.Default()}, project: &project{}, version: "1.0", result: &Result{Sources: map[string][]byte{}}}
		s.doc.name, s.doc.versions = "demo", []string{"1.0"}
		err := s.takeWorkflow("workflow.yml", []byte(text))
		if bad, ok := errors.AsType[*diag.ListError](err); ok && strings.HasPrefix(bad.Diagnostics[0].Pos.File, "packages") {
			t.Errorf("%v\n%s", err, s.doc.bytes())
		}
	})
}
