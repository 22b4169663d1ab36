package fsx_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestDiskFull uses a file system of 256 KiB.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		kilntest.Lacking(t, "mount", "mounting a small file system needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "file")
	if err := fsx.WriteFile(path, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	free, err := fsx.FreeSpace(dir)
	if err != nil || free <= 0 || free > 256<<10 {
		t.Errorf("free space %d, %v", free, err)
	}
	big := bytes.Repeat([]byte("new "), 100_000)
	if err := fsx.WriteFile(path, big, 0o666); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("WriteFile: %v", err)
	}
	wantTree(t, dir, map[string]string{"file": "old"})

	f, err := fsx.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := fsx.Preallocate(f.File(), 1<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Preallocate: %v", err)
	}
	src, err := os.Open(writeOutside(t, big))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if n, err := fsx.CopyRange(f.File(), 0, src, 0, int64(len(big))); !errors.Is(err, unix.ENOSPC) || n >= int64(len(big)) {
		t.Errorf("CopyRange: %d, %v", n, err)
	}
	if err := f.Abort(); err != nil {
		t.Error(err)
	}
	wantTree(t, dir, map[string]string{"file": "old"})
}

func writeOutside(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "src")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}
