package exl2

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

func tmpfs(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		kilntest.Lacking(t, "mount", "mounting a small file system needs root")
	}
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDiskFull(t *testing.T) {
	fx := llama(t, t.TempDir())
	small := tmpfs(t, "64k")
	out := filepath.Join(small, "out")
	_, err := Write(t.Context(), planFixture(t, fx, PlanOptions{Out: out}), WriteOptions{})
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "free") {
		t.Errorf("too small from the start: %v", err)
	}

	// Another program fills the disk during the write; when there is room again the run goes on.
	big := tmpfs(t, "2m")
	out = filepath.Join(big, "out")
	p := planFixture(t, fx, PlanOptions{Out: out})
	for _, noHash := range []bool{false, true} {
		filled := false
		_, err = Write(t.Context(), p, WriteOptions{NoHash: noHash, Workers: 1, Progress: func(Progress) {
			if !filled {
				filled = true
				f, err := os.Create(filepath.Join(big, "filler"))
				if err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, 4096)
				for err == nil {
					_, err = f.Write(buf)
				}
				f.Close()
			}
		}})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("full in the middle: %v", err)
		}
		if _, err := os.Lstat(out); !errors.Is(err, fs.ErrNotExist) {
			t.Error("output exists")
		}
		if err := os.Remove(filepath.Join(big, "filler")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Write(t.Context(), p, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if rep, err := Verify(t.Context(), out, VerifyOptions{ModelDir: fx.model}); err != nil || !rep.OK() {
		t.Errorf("verify: %v %+v", err, rep)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	fx := llama(t, t.TempDir())
	dir := tmpfs(t, "1m")
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("remount: %v", err)
	}
	_, err := Write(t.Context(), planFixture(t, fx, PlanOptions{Out: filepath.Join(dir, "out")}), WriteOptions{})
	if !errors.Is(err, syscall.EROFS) {
		t.Errorf("got %v", err)
	}
}
