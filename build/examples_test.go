package build_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/engine"
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
