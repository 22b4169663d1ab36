package build

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/record"
)

// TestStoreWheel: a wheel is fetched once, and again only if it was damaged in the store.
func TestStoreWheel(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		fmt.Fprint(w, "the wheel")
	}))
	defer server.Close()
	s := &toolStore{dir: t.TempDir(), sources: &sources{client: server.Client()}}
	p := record.Installed{URL: server.URL + "/a-1-py3-none-any.whl", SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("the wheel")))}
	for i, want := range []int{1, 1, 2} {
		dir, err := s.wheel(t.Context(), p)
		if err != nil || asked != want {
			t.Fatalf("%v, asked %d times, want %d", err, asked, want)
		}
		if i == 1 {
			if err := os.WriteFile(filepath.Join(dir, "a-1-py3-none-any.whl"), []byte("cut off"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.SHA256 = strings.Repeat("0", 64)
	if _, err := s.wheel(t.Context(), p); err == nil || s.hasWheel(p) {
		t.Errorf("other bytes than the index says: %v", err)
	}
}

// TestCleanDisk: a full disk costs downloads first, and compiled code only if nothing else helps.
func TestCleanDisk(t *testing.T) {
	b := &Builder{Options: Options{StateDir: t.TempDir(), StoreDir: t.TempDir()}}
	wheels := filepath.Join(b.StoreDir, wheelsDir, "0")
	if err := os.MkdirAll(wheels, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ccache", "compilers", "pip", "auditwheel-0"} {
		if err := os.MkdirAll(filepath.Join(b.cacheDir(), name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.cleanDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(wheels); err == nil {
		t.Error("the wheels of the store are left")
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
