package build_test

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// TestExamples builds the examples that need no GPU toolkit as they are shipped.
func TestExamples(t *testing.T) {
	for _, name := range []string{"cmake-package", "pure-sdist"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, nil)
			if err := os.CopyFS(p.dir, os.DirFS(filepath.Join("..", "examples", name))); err != nil {
				t.Fatal(err)
			}
			buildExample(t, p)
		})
	}
}

// TestExampleSubmodule builds the example whose code is in a submodule from a stand-in, without the
// GPU toolkit: the code for that is left out.
func TestExampleSubmodule(t *testing.T) {
	t.Parallel()
	address := submoduleServer(t)
	p := newProject(t, nil)
	text, err := os.ReadFile(filepath.Join("..", "examples", "llama-cpp-python", "packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(text)
	for old, line := range map[string]string{
		"https://github.com/abetlen/llama-cpp-python": address + "/git/llama-cpp-python", `cuda: ["12.6.3", "12.8.1"], `: "", `    arch: "8.0 8.6 8.9 9.0"`: "",
	} {
		if strings.Count(config, old) != 1 {
			t.Fatalf("%q is not once in\n%s", old, config)
		}
		config = strings.Replace(config, old, line, 1)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "packages.yml"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	buildExample(t, p)
}

// submoduleServer serves a stand-in for llama-cpp-python with its submodule.
func submoduleServer(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	server := httptest.NewServer(kilntest.GitServer(t, root))
	t.Cleanup(server.Close)
	for _, name := range []string{"llama.cpp", "llama-cpp-python"} {
		if err := os.CopyFS(filepath.Join(root, name), os.DirFS(filepath.Join("testdata", "submodule", name))); err != nil {
			t.Fatal(err)
		}
	}
	kilntest.Repository(t, filepath.Join(root, "llama.cpp"), "b1")
	kilntest.Repository(t, filepath.Join(root, "llama-cpp-python"), "v0.3.16",
		[]string{"submodule", "--quiet", "add", server.URL + "/git/llama.cpp", "vendor/llama.cpp"},
		[]string{"-C", "vendor/llama.cpp", "checkout", "--quiet", "b1"})
	return server.URL
}

// buildExample plans packages.yml for this machine's Python, builds all rows and wants them done and
// tested.
func buildExample(t *testing.T, p *project) {
	t.Helper()
	version, _ := pythonVersion(t)
	file := filepath.Join(p.dir, "packages.yml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(`"3.12"`), []byte(`"`+version+`"`))
	config, found := matrix.Parse(file, text)
	if found.HasErrors() {
		t.Fatal(found)
	}
	versions, bad := config.ReadVersions()
	if bad.HasErrors() {
		t.Fatal(bad)
	}
	plan := config.Plan(matrix.Options{Versions: versions})
	if err := plan.Err(); err != nil {
		t.Fatal(err)
	}
	result, err := build.Run(t.Context(), plan, plan.Rows, p.opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone || r.Record.Test.Result != "passed" {
			t.Errorf("%s is %s: %v\n%s", r.Row.ID, r.Status, r.Err, p.log(r))
		}
		if strings.HasPrefix(r.Row.ID, "vectors") && r.Record.Test.Values["vectors.dot([1, 2, 3], [4, 5, 6])"] != "32.0" {
			t.Errorf("the test gave %v", r.Record.Test.Values)
		}
	}
}
