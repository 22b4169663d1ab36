package kilntest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/internal/fsx"
)

// browserPackages is where what a test in a browser needs is listed, from a package two folders
// below the root.
const browserPackages = "../../index/web/testdata/browser/"

// Browser finds Chromium and Node.js and installs the packages that drive and check a page into
// .cache/browser, once. It is for packages two folders below the root.
func Browser(t testing.TB) (chromium, node, modules string) {
	t.Helper()
	for _, name := range []string{os.Getenv("KILN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		Lacking(t, "chromium", "no chromium on this machine")
	}
	node, err := exec.LookPath("node")
	npm, err2 := exec.LookPath("npm")
	if err != nil || err2 != nil {
		Lacking(t, "chromium", "no node and npm on this machine")
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
	want, err := os.ReadFile(browserPackages + "package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	stamp := filepath.Join(modules, "installed")
	if have, _ := os.ReadFile(stamp); bytes.Equal(have, want) {
		return chromium, node, modules
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(browserPackages + name)
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
		Lacking(t, "chromium", "npm ci: %v\n%s", err, out)
	}
	if err := os.WriteFile(stamp, want, 0o644); err != nil {
		t.Fatal(err)
	}
	return chromium, node, modules
}
