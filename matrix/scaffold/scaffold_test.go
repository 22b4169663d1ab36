package scaffold_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/matrix/scaffold"
)

// facts are the rows of ExLlamaV2's release workflow: kind, os, python, cuda, rocm, torch, arch and
// files, separated by tabs.
func facts(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", "exllamav2-0.3.2.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	var out [][]string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			out = append(out, strings.Split(strings.TrimRight(line, "\n"), "\t"))
		}
	}
	if len(out) != 88 {
		t.Fatalf("the facts have %d rows", len(out))
	}
	return out
}

// TestExLlamaV2 takes a workflow with the rows of ExLlamaV2's, one include entry each, as that has
// them. The file must have the same 88 rows with the same names of files, in at most 30 lines.
func TestExLlamaV2(t *testing.T) {
	rows := facts(t)
	var b strings.Builder
	b.WriteString("on: workflow_dispatch\njobs:\n  build_wheels:\n    runs-on: ${{ matrix.os }}\n    strategy:\n      matrix:\n        include:\n")
	var want []string
	for _, r := range rows {
		fmt.Fprintf(&b, "          - { artname: '%s', os: %s, pyver: '%s', cuda: '%s', rocm: '%s', torch: '%s', cudaarch: '%s' }\n", r[0], r[1], r[2], r[3], r[4], r[5], r[6])
		want = append(want, strings.Join(r, "\t"))
	}
	r := workflow(t, b.String(), scaffold.Options{Name: "exllamav2", Version: "0.3.2"})
	lines := bytes.Count(r.Text, []byte("\n"))
	t.Logf("%d lines\n%s", lines, r.Text)
	if lines > 30 {
		t.Errorf("%d lines, want at most 30", lines)
	}
	// The file is read again, by nothing that wrote it.
	file, list := matrix.Parse("packages.yml", r.Text)
	if file == nil {
		t.Fatal(list.Err())
	}
	plan := file.Plan(matrix.Options{})
	var got []string
	for _, r := range plan.Rows {
		if r.ROCm != "" {
			r.Arch = "" // the workflow leaves it to torch, and kiln has a default
		}
		got = append(got, strings.Join([]string{r.Kind, r.OS, r.Python, r.CUDA, r.ROCm, r.Torch, r.Arch, strings.Join(r.Files(), " ")}, "\t"))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, d := range plan.Findings {
		if d.Severity == diag.Error || slices.Contains([]string{"exclude-nothing", "exclude-all", "duplicate-row"}, d.Rule) {
			t.Error(d)
		}
	}
}

// workflow makes a file from the text of a workflow.
func workflow(t testing.TB, text string, opts scaffold.Options) *scaffold.Result {
	t.Helper()
	r, err := tryWorkflow(t, text, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryWorkflow(t testing.TB, text string, opts scaffold.Options) (*scaffold.Result, error) {
	t.Helper()
	opts.Dir = t.TempDir()
	opts.Workflow = filepath.Join(opts.Dir, "workflow.yml")
	opts.Output = filepath.Join(opts.Dir, "packages.yml")
	if err := os.WriteFile(opts.Workflow, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return scaffold.New(opts)
}

var jobsLine = regexp.MustCompile(`(?m)^# jobs: (.*)$`)

// TestWorkflows compares the file and what is said for every fixture in testdata/workflows. Read
// what -update changed before you commit it.
func TestWorkflows(t *testing.T) {
	counts := map[string]int{
		"flash-attn.yml": 76, "torch-scatter.yml": 72, "bitsandbytes.yml": 24, "zipped.yml": 5, "objects.yml": 4,
		"computed-matrix.json": 13, "xformers.yml": 12, "mamba.yml": 17, "inputs.yml": 5,
	}
	dir, err := filepath.Abs(filepath.Join("testdata", "workflows"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pattern := range []string{"*.yml", "*.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, files...)
	}
	if len(names) < 15 {
		t.Fatalf("%d fixtures", len(names))
	}
	empty := t.TempDir()
	for _, name := range names {
		base := filepath.Base(name)
		t.Run(base, func(t *testing.T) {
			t.Chdir(dir)
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			opts := scaffold.Options{Dir: empty, Output: filepath.Join(empty, "packages.yml"), Workflow: base, Name: "demo", Version: "1.0"}
			if m := jobsLine.FindSubmatch(text); m != nil {
				opts.Jobs = strings.Split(string(m[1]), ",")
			}
			r, err := scaffold.New(opts)
			kilntest.Golden(t, name+".golden", report(t, r, err, empty))
			if want := counts[base]; err == nil && len(r.Plan.Rows) != want {
				t.Errorf("%d rows, want %d", len(r.Plan.Rows), want)
			} else if (err == nil) != (want > 0) {
				t.Errorf("%v", err)
			}
		})
	}
}

// report is what a person gets to see.
func report(t *testing.T, r *scaffold.Result, err error, root string) []byte {
	t.Helper()
	var b bytes.Buffer
	if bad, ok := errors.AsType[*diag.ListError](err); ok {
		p := diag.Printer{Sources: r.Sources}
		if err := p.Print(&b, bad.Diagnostics); err != nil {
			t.Fatal(err)
		}
	} else if err != nil {
		fmt.Fprintln(&b, err)
	} else {
		b.Write(r.Text)
		for _, part := range []struct {
			title string
			notes []scaffold.Note
		}{{"found", r.Found}, {"guessed", r.Guessed}, {"workflows", r.Workflows}} {
			for _, n := range part.notes {
				fmt.Fprintf(&b, "%s: %s\n", part.title, strings.TrimPrefix(fmt.Sprintf("%s:%d: %s", n.Pos.File, n.Pos.Line, n.Text), ":0: "))
			}
		}
		for _, d := range r.Plan.Findings {
			if d.Severity >= diag.Warning {
				d.Pos.File = "packages.yml"
				fmt.Fprintln(&b, "plan:", d)
			}
		}
	}
	return []byte(strings.ReplaceAll(strings.ReplaceAll(b.String(), filepath.ToSlash(root)+"/", ""), root, "."))
}

// TestCheckouts looks at the layouts of thirteen public packages, made by hand after facts about
// them, at others, and at two folders about which nothing can be done.
func TestCheckouts(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("testdata", "checkouts", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for _, name := range names {
		base := strings.TrimSuffix(filepath.Base(name), ".txtar")
		t.Run(base, func(t *testing.T) {
			dir := t.TempDir()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			unpack(t, dir, string(text))
			r, err := scaffold.New(scaffold.Options{Dir: dir, Output: filepath.Join(dir, "packages.yml")})
			kilntest.Golden(t, strings.TrimSuffix(name, ".txtar")+".golden", report(t, r, err, dir))
			if base == "scm" || base == "not-python" {
				if err == nil {
					t.Error("want an error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Plan.Err(); err != nil {
				t.Error(err)
			}
			if bytes.Contains(r.Text, []byte("secret")) {
				t.Error("a password of an address is in the file")
			}
			if bytes.HasPrefix(text, []byte("After facts of ")) {
				good++
			}
		})
	}
	if good < 13 && !t.Failed() {
		t.Errorf("%d public layouts plan without an error, want 13", good)
	}
}

// unpack writes the files of a txtar archive.
func unpack(t *testing.T, dir, text string) {
	t.Helper()
	header := regexp.MustCompile(`(?m)^-- (\S+) --\n`)
	at := header.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		file := filepath.Join(dir, filepath.FromSlash(text[m[2]:m[3]]))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text[m[1]:end]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func project(t *testing.T, files map[string]string, opts scaffold.Options) (*scaffold.Result, error) {
	t.Helper()
	opts.Dir = t.TempDir()
	opts.Output = filepath.Join(opts.Dir, "packages.yml")
	for name, text := range files {
		file := filepath.Join(opts.Dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return scaffold.New(opts)
}

// TestSource checks where the code comes from.
func TestSource(t *testing.T) {
	const pyproject = "[project]\nname = 'demo'\nversion = '1.2'\n"
	tests := []struct {
		name, config string
		tags         string
		opts         scaffold.Options
		want, fails  string
	}{
		{name: "tag", config: "[remote \"origin\"]\n url = git@github.com:a/demo.git\n", tags: "x refs/tags/v1.2\n", want: `source: {git: "https://github.com/a/demo", ref: "v{version}"}`},
		{name: "bare tag", config: "[remote \"origin\"]\n url = ssh://git@example.org:2222/a/demo.git\n", tags: "x refs/tags/1.2\n", want: `source: {git: "https://example.org/a/demo", ref: "{version}"}`},
		{name: "password", config: "[remote \"origin\"]\n url = https://me:hunter2@example.org/a/demo\n", tags: "x refs/tags/1.2\n", want: `source: {git: "https://example.org/a/demo", ref: "{version}"}`},
		{name: "no tag", config: "[remote \"origin\"]\n url = https://example.org/a/demo\n", want: "source: {path: .}\n    version_from: {file: pyproject.toml}"},
		{name: "forced", config: "[remote \"origin\"]\n url = https://example.org/a/demo\n", opts: scaffold.Options{Source: "git"}, want: `ref: "v{version}"`},
		{name: "forced path", config: "[remote \"origin\"]\n url = https://example.org/a/demo\n", tags: "x refs/tags/1.2\n", opts: scaffold.Options{Source: "path"}, want: "source: {path: .}"},
		{name: "local remote", config: "[remote \"origin\"]\n url = /srv/git/demo.git\n", tags: "x refs/tags/1.2\n", want: "source: {path: .}"},
		{name: "no remote", opts: scaffold.Options{Source: "git"}, fails: "--source git"},
		{name: "other version", opts: scaffold.Options{Version: "2.0"}, want: `versions: ["2.0"]`},
		{name: "bad version", opts: scaffold.Options{Version: "2.0+cu128"}, fails: "--version 2.0+cu128"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := project(t, map[string]string{"pyproject.toml": pyproject, ".git/config": tt.config, ".git/packed-refs": tt.tags}, tt.opts)
			switch {
			case tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)):
				t.Errorf("error %v, want %q", err, tt.fails)
			case tt.fails == "" && err != nil:
				t.Error(err)
			case tt.fails == "" && !strings.Contains(string(r.Text), tt.want):
				t.Errorf("no %q in\n%s", tt.want, r.Text)
			}
			said, _ := json.Marshal(r)
			if strings.Contains(string(said), "hunter2") {
				t.Error("the password is shown")
			}
		})
	}
}

// TestRandomMatrices compresses matrices that nobody would write: what comes out has their rows,
// or the package says which it lacks.
func TestRandomMatrices(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pick := func(name string, values ...string) string { return rapid.SampledFrom(values).Draw(rt, name) }
		var b strings.Builder
		b.WriteString("include:\n")
		seen := map[string]bool{}
		for range rapid.IntRange(1, 24).Draw(rt, "rows") {
			toolkit := pick("toolkit", "cuda: '12.6.3'", "cuda: '12.8.1'", "cuda: '13.0'", "rocm: '6.4'", "cuda: ''")
			line := fmt.Sprintf("{os: %s, python: '%s', torch: '%s', %s, abi: '%s'}", pick("os", "ubuntu-22.04", "windows-2022"),
				pick("python", "3.10", "3.12", "3.13", "3.13t"), pick("torch", "2.8", "2.8.0", "2.9.0", "2.9.1"), toolkit, pick("abi", "TRUE", "FALSE"))
			if !seen[line] {
				seen[line] = true
				b.WriteString("  - " + line + "\n")
			}
		}
		r, err := tryWorkflow(t, b.String(), scaffold.Options{Name: "demo", Version: "1.0"})
		if err != nil {
			rt.Fatalf("%v\n%s", err, b.String())
		}
		if len(r.Plan.Rows) > len(seen) || len(r.Plan.Rows) == 0 {
			rt.Errorf("%d rows from %d jobs", len(r.Plan.Rows), len(seen))
		}
		for _, d := range r.Plan.Findings {
			if slices.Contains([]string{"exclude-nothing", "exclude-all", "duplicate-row", "same-file"}, d.Rule) {
				rt.Errorf("%s\n%s", d, r.Text)
			}
		}
	})
}
