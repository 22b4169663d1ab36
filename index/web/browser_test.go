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
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestBrowser uses the pages as people do, in Chromium: with and without script, with the keyboard,
// light and dark, wide and narrow, served and static; axe finds nothing. The screenshots are in
// .cache/screenshots.
func TestBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	chromium, node, modules := kilntest.Browser(t)
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
