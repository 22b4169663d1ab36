package build

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestCleanDisk: a full disk costs downloads first, and compiled code only if nothing else helps.
func TestCleanDisk(t *testing.T) {
	b := &Builder{Options: Options{StateDir: t.TempDir()}}
	for _, name := range []string{"ccache", "compilers", "pip", "auditwheel-0"} {
		if err := os.MkdirAll(filepath.Join(b.cacheDir(), name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.cleanDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(b.cacheDir(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if !slices.Equal(left, []string{"ccache", "compilers"}) {
		t.Errorf("left: %q", left)
	}
}
