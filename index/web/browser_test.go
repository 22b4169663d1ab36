package web_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/index/web"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// browserTools finds Chromium and Node.js and installs the packages of testdata/browser into
// .cache/browser, once.
func browserTools(t *testing.T) (chromium, node, modules string) {
	t.Helper()
	for _, name := range []string{os.Getenv("KILN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		kilntest.Lacking(t, "chromium", "no chromium on this machine")
	}
	node, err := exec.LookPath("node")
	npm, err2 := exec.LookPath("npm")
	if err != nil || err2 != nil {
		kilntest.Lacking(t, "chromium", "no node and npm on this machine")
	}
	modules, err = filepath.Abs("../../.cache/browser")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := fsx.Lock(t.Context(), filepath.Join(modules, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock() //nolint:errcheck // freed at the end of the process
	want, err := os.ReadFile("testdata/browser/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	stamp := filepath.Join(modules, "installed")
	if have, _ := os.ReadFile(stamp); bytes.Equal(have, want) {
		return chromium, node, modules
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile("testdata/browser/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(modules, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install := exec.CommandContext(t.Context(), npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = modules
	if out, err := install.CombinedOutput(); err != nil {
		kilntest.Lacking(t, "chromium", "npm ci: %v\n%s", err, out)
	}
	if err := os.WriteFile(stamp, want, 0o644); err != nil {
		t.Fatal(err)
	}
	return chromium, node, modules
}

// TestBrowser uses the pages as people do, in Chromium: with and without script, with the keyboard,
// light and dark, wide and narrow, served and static; axe finds nothing. The screenshots are in
// .cache/screenshots.
func TestBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	chromium, node, modules := browserTools(t)
	catalog := testCatalog()
	h, err := web.Handler(catalog, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(h)
	defer served.Close()

	dir := t.TempDir()
	err = web.Render(catalog, testOptions(), func(path string, data []byte) error {
		name := filepath.Join(dir, "gpu", filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	static := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer static.Close()

	pictures, err := filepath.Abs("../../.cache/screenshots")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("testdata/browser/check.mjs")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, script, served.URL+"/", static.URL+"/gpu/", chromium, pictures, modules)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	var result struct{ Problems []string }
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	for _, p := range result.Problems {
		t.Error(p)
	}
}
