package matrix_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// TestBroken shows every mistake that is worth a fixture to the reader of
// packages.yml and compares what is said about it. In testdata/broken/structure are
// mistakes that a JSON Schema can see too (and text that is not YAML at all); in
// testdata/broken/meaning are those that only kiln can know of. Read what -update changed
// before you commit it: the golden files are what a person with a mistake in packages.yml sees.
func TestBroken(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("testdata", "broken"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"structure", "meaning"} {
		dir := filepath.Join(root, folder)
		fixtures, err := filepath.Glob(filepath.Join(dir, "*.yml"))
		if err != nil {
			t.Fatal(err)
		}
		if len(fixtures) < 25 {
			t.Errorf("%s has %d fixtures, want 25 or more", folder, len(fixtures))
		}
		for _, fixture := range fixtures {
			name := strings.TrimSuffix(filepath.Base(fixture), ".yml")
			t.Run(folder+"/"+name, func(t *testing.T) { testBroken(t, dir, name) })
		}
		goldens, err := filepath.Glob(filepath.Join(dir, "*.golden"))
		if err != nil {
			t.Fatal(err)
		}
		for _, golden := range goldens {
			if !slices.Contains(fixtures, strings.TrimSuffix(golden, ".golden")+".yml") {
				t.Errorf("%s has no fixture", golden)
			}
		}
	}
}

func testBroken(t *testing.T, dir, name string) {
	t.Chdir(dir) // version_from is read relative to packages.yml, which is a bare name here
	file, golden := name+".yml", name+".golden"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := diagnose(file, text, matrix.Options{})
	if len(list) == 0 {
		t.Error("nothing is said about this file")
	}
	lines := bytes.Count(text, []byte("\n")) + 1
	for _, d := range list {
		checkPosition(t, d.Pos, file, lines, d.Message)
		for _, r := range d.Related {
			checkPosition(t, r.Pos, file, lines, r.Message)
		}
		if d.Rule == "" || d.Message == "" {
			t.Errorf("a diagnostic without rule or message: %+v", d)
		}
	}
	var out bytes.Buffer
	printer := diag.Printer{Sources: map[string][]byte{file: text}}
	if err := printer.Print(&out, list); err != nil {
		t.Fatal(err)
	}
	kilntest.Golden(t, golden, out.Bytes())
}

func checkPosition(t *testing.T, pos diag.Pos, file string, lines int, message string) {
	t.Helper()
	if pos.File != file || pos.Line < 1 || pos.Column < 1 || pos.Line > lines {
		t.Errorf("%q is said of %s, want a line and column of %s", message, pos, file)
	}
}

// diagnose does what `kiln plan` does with a file, and returns all that it says.
func diagnose(name string, text []byte, opts matrix.Options) diag.List {
	file, list := matrix.Parse(name, text)
	if file == nil {
		return list
	}
	versions, found := file.ReadVersions()
	if list = append(list, found...); list.HasErrors() {
		return list
	}
	opts.Versions = versions
	list = append(list, file.Plan(opts).Findings...)
	list.Sort()
	return list
}
