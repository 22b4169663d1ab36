package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/wheel"
)

// TestRelease makes a release for this machine, twice the same, and installs its wheel with pip:
// the command runs under both names and as a module.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("links kiln")
	}
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	t.Chdir(filepath.Join("..", ".."))
	key := filepath.Join(t.TempDir(), "key")
	public, err := sign.NewKey(key)
	if err != nil {
		t.Fatal(err)
	}
	here := regexp.MustCompile("^" + runtime.GOOS + "/" + runtime.GOARCH + "$")
	var sums [2]string
	dir := ""
	for i := range sums {
		dir = filepath.Join(t.TempDir(), "dist")
		if err := run(t.Context(), io.Discard, config{out: dir, only: here, key: key + ".pem"}); err != nil {
			t.Fatal(err)
		}
		sums[i] = read(t, filepath.Join(dir, "SHA256SUMS"))
	}
	if sums[0] != sums[1] {
		t.Errorf("two releases of one commit differ:\n%s\n%s", sums[0], sums[1])
	}
	if out, err := execute(t, dir, "sha256sum", "-c", "SHA256SUMS"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	checkProvenance(t, dir, public)

	wheels, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
	if len(wheels) != 1 {
		t.Fatalf("wheels: %q", wheels)
	}
	f, err := os.Open(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	w, err := wheel.NewReader(f, info.Size(), filepath.Base(wheels[0]), wheel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := w.Check(t.Context(), wheel.CheckOptions{}); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", err, found)
	}

	venv := filepath.Join(t.TempDir(), "venv")
	if out, err := execute(t, "", python, "-m", "venv", venv); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bin := filepath.Join(venv, "bin")
	if out, err := execute(t, "", filepath.Join(bin, "python"), "-m", "pip", "install", "--no-index", "--quiet", wheels[0]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	target := filepath.Join(t.TempDir(), "target")
	if out, err := execute(t, "", filepath.Join(bin, "python"), "-m", "pip", "install", "--no-index", "--quiet", "--target", target, wheels[0]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, argv := range [][]string{
		{filepath.Join(bin, "kiln"), "version"},
		{filepath.Join(bin, "kiln-build"), "version"},
		{filepath.Join(bin, "python"), "-m", "kiln_build", "version"},
		{"env", "PYTHONPATH=" + target, python, "-m", "kiln_build", "version"},
	} {
		if out, err := execute(t, "", argv...); err != nil || !strings.HasPrefix(out, "kiln 0.") {
			t.Errorf("%q: %v\n%s", argv, err, out)
		}
	}
}

func checkProvenance(t *testing.T, dir string, public []byte) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "*.intoto.jsonl"))
	if len(names) != 1 {
		t.Fatalf("statements: %q", names)
	}
	payload, envelope, err := sign.Open([]byte(read(t, names[0])))
	if err != nil {
		t.Fatal(err)
	}
	key, err := sign.NewTrustedKey("release", public)
	if err != nil {
		t.Fatal(err)
	}
	var statement struct{ Subject []sign.Subject }
	if err := json.Unmarshal(payload, &statement); err != nil {
		t.Fatal(err)
	}
	var trust sign.Trust
	trust.Add(key)
	if _, err := trust.Verify(envelope, time.Now()); err != nil {
		t.Error(err)
	}
	if len(statement.Subject) != 4 {
		t.Errorf("%d files in the statement", len(statement.Subject))
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func execute(t *testing.T, dir string, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestLinked: a module that only one system needs is in the bill of materials, others are there once.
func TestLinked(t *testing.T) {
	info := func(modules ...string) *buildinfo.BuildInfo {
		b := &buildinfo.BuildInfo{GoVersion: "go1.26"}
		for _, m := range modules {
			b.Deps = append(b.Deps, &debug.Module{Path: m, Version: "v1.0.0"})
		}
		return b
	}
	_, refs := linked([]*buildinfo.BuildInfo{info("a", "b"), info("a", "windows"), info("b")})
	want := []string{"pkg:golang/std@go1.26", "pkg:golang/a@v1.0.0", "pkg:golang/b@v1.0.0", "pkg:golang/windows@v1.0.0"}
	if diff := cmp.Diff(want, refs); diff != "" {
		t.Error(diff)
	}
}

// TestWithAddresses: links of the README lead somewhere from the page of an index too.
func TestWithAddresses(t *testing.T) {
	const there = "https://github.com/kiln-build/kiln/"
	got := string(withAddresses([]byte("[a](docs/a.md) [b](docs/b.md#c) ![p](docs/p.svg) [w](https://example.org/x) [h](#here)")))
	want := "[a](" + there + "blob/main/docs/a.md) [b](" + there + "blob/main/docs/b.md#c) ![p](" + there + "raw/main/docs/p.svg) [w](https://example.org/x) [h](#here)"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestManPages: texts that would be requests of roff are not.
func TestManPages(t *testing.T) {
	files := map[string][]byte{}
	manPages(command{
		Name: "kiln x", Use: "kiln x [flags]", Short: "Does x", Long: "First.\n.SH not a heading\n'so not a file\nC:\\path\n\n  as it is",
		Commands: []command{{Name: "kiln x y", Short: "Does y"}},
	}, "1.0", time.Now(), files)
	page := string(files["man/man1/kiln-x.1"])
	for _, want := range []string{".TH \"KILN-X\" 1", "\n\\&.SH not a heading\n", "\n\\&'so not", `C:\epath`, ".nf\n  as it is\n.fi", ".BR kiln\\-x\\-y (1)"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if files["man/man1/kiln-x-y.1"] == nil {
		t.Error("no page for the subcommand")
	}
}
