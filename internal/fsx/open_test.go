package fsx_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/fsx"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	if err := os.WriteFile(name, []byte("12345"), 0o666); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{4: "", 5: "12345", 100: "12345"} {
		data, err := fsx.ReadFile(name, limit)
		if string(data) != want || (err == nil) != (want != "") {
			t.Errorf("limit %d: %q, %v", limit, data, err)
		}
	}
	if _, err := fsx.ReadFile(dir, 10); !errors.Is(err, fsx.ErrNotRegular) || !strings.Contains(err.Error(), "is a folder") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := fsx.ReadFile(filepath.Join(dir, "none"), 10); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if f, err := fsx.Open(os.DevNull); err == nil || f != nil {
		t.Error("a device was opened")
	}
}
