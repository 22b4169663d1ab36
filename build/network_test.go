package build_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/secret"
)

// TestFindNetworkCredentials: wherever the addresses come from, they have no credentials any more;
// those who connect get them back.
func TestFindNetworkCredentials(t *testing.T) {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PIP_INDEX_URL=https://u:planted1@index.example/simple", "HTTPS_PROXY=http://u:planted2@proxy.example:3128", "NO_PROXY=localhost",
	}
	store := &secret.Store{}
	n := build.FindNetwork(t.Context(), "", env, store)
	if n.IndexURL != "https://index.example/simple" || strings.Contains(fmt.Sprintf("%+v", n.Proxies), "planted") {
		t.Errorf("%+v", n)
	}
	if got := store.URL(n.IndexURL).Full(); got != "https://u:planted1@index.example/simple" {
		t.Error(got)
	}
	if got := strings.Join(n.ProxyEnv(), " "); got != "HTTPS_PROXY=http://u:planted2@proxy.example:3128 NO_PROXY=localhost" {
		t.Error(got)
	}
	n = build.FindNetwork(t.Context(), "https://u:planted3@flag.example/simple", env, store)
	if n.IndexURL != "https://flag.example/simple" || !strings.Contains(store.URL(n.IndexURL).Full(), "planted3") {
		t.Error(n.IndexURL)
	}
	// pip's own settings.
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".config", "pip"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".config", "pip", "pip.conf"), []byte("[global]\nindex-url = https://u:planted4@config.example/simple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n = build.FindNetwork(t.Context(), "", []string{env[0], "HOME=" + home}, store)
	if n.IndexURL == "" {
		kilntest.Lacking(t, "python", "python3 has no pip")
	}
	if n.IndexURL != "https://config.example/simple" || !strings.Contains(store.URL(n.IndexURL).Full(), "planted4") {
		t.Error(n.IndexURL)
	}
}
