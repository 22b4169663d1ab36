package matrix_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/matrix"
)

// TestBuildArgs: every argument that people have in their pipelines is understood for every
// front-end, at plan time and with its position.
func TestBuildArgs(t *testing.T) {
	const head = "packages:\n  x:\n    versions: [\"1.0\"]\n    matrix: [{python: \"3.12\"}]\n    build: {frontend: FRONTEND}\n    build_args: >-\n      "
	for _, tc := range []struct {
		frontend, args string
		words          []string
		config         map[string][]string
		said           string // rule-less text of the first finding
	}{
		{"build", "", nil, nil, ""},
		{"build", "--no-build-isolation", nil, nil, "note: --no-build-isolation is not needed: builds are not isolated, unless build: {isolation: true} says so"},
		{"pip", "--no-isolation -n", nil, nil, "note: --no-isolation is not needed: builds are not isolated, unless build: {isolation: true} says so"},
		{"build", "-w dist --verbose", []string{"--verbose"}, nil, "note: -w is not needed: kiln collects the files itself; --dist says where"},
		{"build", "-w --verbose", []string{"--verbose"}, nil, "note: -w is not needed: kiln collects the files itself; --dist says where"},
		{"pip", "--wheel-dir=out", nil, nil, "note: --wheel-dir is not needed: kiln collects the files itself; --dist says where"},
		{"uv", "-vv", []string{"-vv"}, nil, ""},
		{"uv", "--config-settings=a=b -C c=d -Ca=e --config-setting flag", nil, map[string][]string{"a": {"b", "e"}, "c": {"d"}, "flag": {""}}, ""},
		{"pip", "--global-option build_ext --global-option=-j4 --build-option=--plat", nil, map[string][]string{"--global-option": {"build_ext", "-j4"}, "--build-option": {"--plat"}}, ""},
		{"build", "--skip-dependency-check", []string{"--skip-dependency-check"}, nil, ""},
		{"pip", "--skip-dependency-check", nil, nil, "note: --skip-dependency-check is not needed: this front-end does not check them"},
		{"pip", "--check-build-dependencies", []string{"--check-build-dependencies"}, nil, ""},
		{"build", ".", nil, nil, "note: . is not needed: kiln builds the folder of the source"},
		{"uv", "--brand-new-option", []string{"--brand-new-option"}, nil, "warning: kiln does not know --brand-new-option; uv build gets it as it is"},
		{"build", "--index-url https://mirror.example/simple", nil, nil, "error: --index-url has no place in build_args"},
		{"build", "--sdist", nil, nil, "error: --sdist has no place in build_args"},
		{"build", "-p 3.11", nil, nil, "error: -p has no place in build_args"},
		{"pip", "setup.py bdist_wheel", nil, nil, `error: "setup.py" is a command, and kiln calls the front-end itself`},
		{"pip", "subfolder", nil, nil, `error: "subfolder" is not an option`},
		{"build", "--outdir", nil, nil, "error: --outdir needs a value"},
		{"build", "-C =x", nil, nil, "error: -C needs a key"},
	} {
		t.Run(tc.frontend+" "+tc.args, func(t *testing.T) {
			text := strings.Replace(head, "FRONTEND", tc.frontend, 1) + tc.args + "\n"
			if tc.args == "" {
				text = strings.Replace(text, ">-", `""`, 1)
			}
			file, found := matrix.Parse("packages.yml", []byte(text))
			said := ""
			if len(found) > 0 {
				said = fmt.Sprintf("%s: %s", found[0].Severity, found[0].Message)
			}
			if said != tc.said {
				t.Errorf("said %q, want %q", said, tc.said)
			}
			if file == nil {
				return
			}
			s, ok := file.Plan(matrix.Options{}).Settings("x-1.0-cpu-cp312-linux_x86_64")
			if !ok {
				t.Fatal("no such row")
			}
			if got := s.BuildArgs; len(got)+len(tc.words) > 0 && !cmp.Equal(tc.words, got) {
				t.Errorf("words %q, want %q", got, tc.words)
			}
			if got := s.ConfigSettings; len(got)+len(tc.config) > 0 && !cmp.Equal(tc.config, got) {
				t.Errorf("config settings %q, want %q", got, tc.config)
			}
		})
	}
}

// TestBuildArgsPosition: the column of a word in the middle of the line, and two settings that
// contradict each other.
func TestBuildArgsPosition(t *testing.T) {
	_, found := matrix.Parse("packages.yml", []byte("packages:\n  x:\n    versions: [\"1.0\"]\n    build_args: \"--verbose --no-isolation\"\n    build: {isolation: true}\n"))
	if len(found) != 1 || found[0].Pos.String() != "packages.yml:4:28" || found[0].Width != len("--no-isolation") {
		t.Errorf("findings %+v", found)
	}
}

// TestLooseTorch: a row that is built against a torch without fixing it still needs one that exists
// for its toolkit and its Python.
func TestLooseTorch(t *testing.T) {
	const doc = "packages:\n  x:\n    versions: [\"1.0\"]\n    extra_deps: [TORCH]\n"
	for _, tc := range []struct{ torch, cuda, python, want string }{
		{"torch", "12.8.1", "3.12", ""},
		{"torch", "12.5.1", "3.12", "--cuda:1:1: error: no torch is published for CUDA 12.5"},
		{"torch", "12.2.2", "3.12", "--cuda:1:1: error: no torch is published for CUDA 12.2"},
		{"torch", "14.0.0", "3.12", "--cuda:1:1: warning: CUDA 14.0.0 is not in the table"},
		{"torch", "12.8.1", "3.6", "--python:1:1: error: no torch with CUDA 12.8 has wheels for CPython 3.6"},
		{"torch", "12.1.1", "3.14", "--python:1:1: error: no torch with CUDA 12.1 has wheels for CPython 3.14"},
		{"torch==2.6.0", "12.8.1", "3.12", "--cuda:1:1: error: torch 2.6.0 has no CUDA 12.8 build"},
		{"torch>=2.6", "12.5.1", "3.12", "--cuda:1:1: error: no torch is published for CUDA 12.5"},
		{"numpy", "12.5.1", "3.6", ""},
	} {
		file := parse(t, strings.Replace(doc, "TORCH", `"`+tc.torch+`"`, 1))
		var got string
		for _, d := range file.Plan(matrix.Options{CUDA: []string{tc.cuda}, Python: []string{tc.python}}).Findings {
			if d.Rule != "loose-torch" {
				got = fmt.Sprintf("%s: %s: %s", d.Pos, d.Severity, d.Message)
				break
			}
		}
		if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
			t.Errorf("%+v:\n got %s", tc, got)
		}
	}
}
