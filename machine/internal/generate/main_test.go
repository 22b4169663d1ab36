package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUpToDate: the committed page is what the generator writes.
func TestUpToDate(t *testing.T) {
	got, err := os.ReadFile(filepath.Join("..", "..", "..", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")) // a checkout may have changed the line ends
	if diff := cmp.Diff(string(manual()), string(got)); diff != "" {
		t.Errorf("%s is stale, run `make generate` (-want +got):\n%s", page, diff)
	}
}
