package index_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestDiskFull adds a wheel to an index on a real disk that gets full at every possible moment.
// What failed is not published, then or later, and leaves nothing behind.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		kilntest.Lacking(t, "mount", "mounting a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	store := openStore(t, filepath.Join(dir, "index"))
	publish(t, store, indextest.Wheels(t, fa128, fa130, pure)...)
	failed, worked := map[string]bool{}, 0
	for blocks := 0; worked < 2; blocks++ {
		name := fmt.Sprintf("flash_attn-3.%d+cu13%d.torch2.9-cp312-cp312-linux_x86_64.whl", blocks, blocks%3)
		files := indextest.Wheels(t, name)
		filler := fill(t, dir, blocks)
		_, problems, err := store.Add(t.Context(), files, index.AddOptions{})
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if len(problems) > 0 || err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(problems, err)
		}
		if err != nil {
			failed[name] = true
		} else {
			worked++
		}
		// Another reader, and the next change, know nothing of it.
		for _, step := range []string{"at once", "after the next change"} {
			s := openStore(t, store.Dir())
			catalog, err := s.Catalog(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range catalog.Project("flash-attn").Files {
				if f := &catalog.Project("flash-attn").Files[i]; failed[f.Filename] {
					t.Errorf("%d blocks free: %s failed and is listed %s", blocks, f.Filename, step)
				}
			}
			report := checkIndex(t, s)
			for _, f := range report.Findings {
				if f.Rule == "orphan" || f.Rule == "stray" {
					t.Errorf("%d blocks free, %s: %v", blocks, step, f)
				}
			}
			hosted, err := filepath.Glob(filepath.Join(store.Dir(), "files", "*", "*", "*.whl"))
			if err != nil || len(hosted) != report.Hosted {
				t.Errorf("%d blocks free, %s: %d files, want %d", blocks, step, len(hosted), report.Hosted)
			}
			if t.Failed() {
				t.Fatal(name)
			}
			if step == "at once" && blocks%8 == 0 {
				publish(t, s, indextest.Wheels(t, fmt.Sprintf("other-%d+cu128.torch2.9-py3-none-any.whl", blocks))...)
			}
		}
	}
	t.Logf("%d moments", len(failed))
	if len(failed) < 10 {
		t.Error("too few")
	}
	left, _ := filepath.Glob(filepath.Join(store.Dir(), ".kiln", "*"))
	for _, path := range left {
		if base := filepath.Base(path); strings.Contains(base, "tmp") {
			t.Errorf("left over: %s", base)
		}
	}
}

// fill leaves so many blocks free.
func fill(t *testing.T, dir string, blocks int) string {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, (int64(stat.Bavail)-int64(blocks))*stat.Bsize); err != nil {
		t.Fatal(err)
	}
	return path
}
