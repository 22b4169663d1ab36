package kilntest

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Update reports whether the tests run with -update: then they write what they would compare with.
func Update() bool { return *update }

// Golden compares a text with a file, by its path from the folder of the package with slashes.
// Where a checkout changed line ends, that is no difference.
func Golden(t testing.TB, file string, got []byte) {
	t.Helper()
	path := filepath.FromSlash(file)
	if *update {
		WriteGolden(t, file, got)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got); -update rewrites it:\n%s", path, diff)
	}
}

// WriteGolden writes a golden file, for tests that compare in a way of their own.
func WriteGolden(t testing.TB, file string, got []byte) {
	t.Helper()
	path := filepath.FromSlash(file)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, got, 0o666); err != nil {
		t.Fatal(err)
	}
}
