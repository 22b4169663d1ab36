package serve_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index/serve"
)

func TestTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "tokens.json")
	tokens, err := serve.OpenTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	secret, token, err := tokens.Create(t.Context(), serve.NewToken{Note: "ci", Projects: []string{"Flash_Attn", "exllama*"}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(secret, "kiln_") || len(secret) != len("kiln_")+43 {
		t.Errorf("secret of %d bytes with prefix %.5s, want 256 bits after kiln_", len(secret), secret)
	}
	stored, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(stored), secret) || strings.Contains(string(stored), secret[5:]) {
		t.Error("the file of tokens has the secret in it")
	}
	if info, _ := os.Stat(path); runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}

	// Another process sees it.
	other, err := serve.OpenTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	found, err := other.Lookup(secret)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(token, found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	for project, want := range map[string]bool{"flash-attn": true, "exllamav2": true, "exllama": true, "flash-attn-2": false, "torch": false, "": false} {
		if got := found.Allows(serve.ScopeUpload, project); got != want {
			t.Errorf("upload of %q allowed: %v, want %v", project, got, want)
		}
	}
	if found.Allows("yank", "flash-attn") {
		t.Error("a token for uploads may yank")
	}
	for _, wrong := range []string{"", "kiln_", secret[:len(secret)-1], secret + "A", strings.ToUpper(secret)} {
		if _, err := other.Lookup(wrong); !errors.Is(err, serve.ErrNoToken) {
			t.Errorf("lookup of a wrong secret: %v", err)
		}
	}

	if err := tokens.Revoke(t.Context(), "ffffffff0"); !errors.Is(err, serve.ErrNoToken) {
		t.Errorf("revoking no token: %v", err)
	}
	if err := tokens.Revoke(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Lookup(secret); !errors.Is(err, serve.ErrNoToken) {
		t.Errorf("a revoked token is found: %v", err)
	}
}

func TestTokenExpires(t *testing.T) {
	tokens, err := serve.OpenTokens(filepath.Join(t.TempDir(), "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}, Expires: time.Now().Add(-time.Hour)}); err == nil {
		t.Error("a token is made that has ended already")
	}
	secret, _, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}, Expires: time.Now().Add(3 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Lookup(secret); err != nil {
		t.Error(err)
	}
	time.Sleep(3100 * time.Millisecond) // the file has the time of the clock
	if _, err := tokens.Lookup(secret); !errors.Is(err, serve.ErrNoToken) {
		t.Errorf("an expired token is found: %v", err)
	}
}

func TestTokenPatterns(t *testing.T) {
	tokens, err := serve.OpenTokens(filepath.Join(t.TempDir(), "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"", "a/b", "a b", "<x>", "föö"} {
		if _, _, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{pattern}}); err == nil {
			t.Errorf("the pattern %q is accepted", pattern)
		}
	}
	_, token, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{"a*b*c"}})
	if err != nil {
		t.Fatal(err)
	}
	for project, want := range map[string]bool{"abc": true, "a-b-c": true, "aXbYbZc": true, "ab": false, "abcd": false, "xabc": false, "acb": false} {
		if got := token.Allows(serve.ScopeUpload, project); got != want {
			t.Errorf("a*b*c matches %q: %v, want %v", project, got, want)
		}
	}
}

// TestTokensConcurrently: no change is lost when many are made at once.
func TestTokensConcurrently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			tokens, err := serve.OpenTokens(path)
			if err == nil {
				_, _, err = tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	tokens, err := serve.OpenTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := tokens.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 10 {
		t.Errorf("%d tokens, want 10", len(list))
	}
}

func TestTokensBrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	for _, text := range []string{"", "{", `{"kiln-tokens":2}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := serve.OpenTokens(path); err == nil {
			t.Errorf("%q is read as a file of tokens", text)
		}
	}
}
