package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/audit/internal/table"
)

// TestAdd: a snapshot that is taken out of a table and added again gives the same releases, in
// the same order, and adding what is there changes nothing.
func TestAdd(t *testing.T) {
	const kind = audit.KindPython // the smallest with several releases
	source, err := os.ReadFile(filepath.Join("..", "..", "snapshots", kind+".table"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, kind+".table")
	want, err := releases(string(source))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range want {
		snapshot := filepath.Join(dir, r.Label+".kilnsnap")
		writeTable(t, snapshot, want[i:i+1])
		writeTable(t, file, append(append(want[:0:0], want[:i]...), want[i+1:]...))
		var before []byte
		for range 2 {
			if err := add(dir, snapshot); err != nil {
				t.Fatal(err)
			}
			after, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if before != nil && !bytes.Equal(before, after) {
				t.Errorf("%s: adding it twice changes the table", r.Label)
			}
			got, err := releases(string(after))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", r.Label, diff)
			}
			before = after
		}
	}
	if err := add(dir, filepath.Join(dir, "nowhere")); err == nil {
		t.Error("added a file that is not there")
	}
}

func writeTable(t *testing.T, file string, releases []table.Release) {
	t.Helper()
	data, err := table.Encode(releases)
	if err == nil {
		err = os.WriteFile(file, data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}
