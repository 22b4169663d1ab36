package publish_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

// TestDeploy: the branch has the whole tree in one commit, whatever was there before, and nothing
// of the books.
func TestDeploy(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		kilntest.Lacking(t, "git", "no git on this machine")
	}
	dir := t.TempDir()
	repo, remote, site := filepath.Join(dir, "repo"), filepath.Join(dir, "remote.git"), filepath.Join(dir, "site")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "--bare", remote)
	git("init", "-q", repo)
	git("-C", repo, "remote", "add", "origin", remote)
	must(t, os.WriteFile(filepath.Join(repo, ".gitignore"), []byte("*.html\n"), 0o666))
	must(t, os.WriteFile(filepath.Join(repo, "staged"), nil, 0o666))
	git("-C", repo, "add", "staged")
	for _, name := range []string{"index.html", "simple/demo/index.html", ".kiln/catalog", "404.html"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(site, name)), 0o777))
		must(t, os.WriteFile(filepath.Join(site, name), []byte(name), 0o666))
	}
	opts := publish.DeployOptions{Repository: repo, Remote: "origin", Branch: "gh-pages", Message: "pages\n", Env: append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")}
	commit, err := publish.Deploy(t.Context(), site, opts)
	must(t, err)
	if commit == "" {
		t.Error("nothing was pushed")
	}
	must(t, os.WriteFile(filepath.Join(site, "index.html"), []byte("new"), 0o666))
	if _, err = publish.Deploy(t.Context(), site, opts); err != nil {
		t.Fatal(err)
	}
	if again, err := publish.Deploy(t.Context(), site, opts); err != nil || again != "" {
		t.Errorf("the same pages were pushed again: %s, %v", again, err)
	}
	if n := git("-C", remote, "rev-list", "--count", "gh-pages"); n != "1" {
		t.Errorf("the branch has %s commits, want 1", n)
	}
	want := ".nojekyll\n404.html\nindex.html\nsimple/demo/index.html"
	if diff := cmp.Diff(want, git("-C", remote, "ls-tree", "-r", "--name-only", "gh-pages")); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	if got := git("-C", remote, "show", "gh-pages:index.html"); got != "new" {
		t.Errorf("index.html is %q", got)
	}
	if got := git("-C", repo, "status", "--porcelain", "staged"); got != "A  staged" {
		t.Errorf("the user's own index changed: %q", got)
	}
}

// TestGitHubLimits: secondary rate limits are 403 with Retry-After, and users do not see drafts.
func TestGitHubLimits(t *testing.T) {
	faults := &publishtest.Faults{}
	server := publishtest.NewGitHub(t, faults)
	target, err := publish.NewGitHub(publish.GitHubOptions{Repository: publishtest.Repository, Token: publishtest.Token, Endpoint: server.URL(), Retry: publishtest.QuickRetry})
	must(t, err)
	inv := publishtest.NewProject(t, publishtest.Document, 100).Inventory(t)
	n := 0
	faults.Set(func(r *http.Request) publishtest.Fault {
		if published, _ := server.Published(); len(published) > 0 && r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/uploads/") {
			t.Error("files were visible before the release was complete")
		}
		if n++; n == 7 || n == 20 {
			return publishtest.Fault{Kind: "status", Status: http.StatusForbidden, After: 1}
		}
		return publishtest.Fault{}
	})
	start := time.Now()
	result, err := publish.Run(t.Context(), target, inv, publish.Options{Owner: "tester"})
	must(t, err)
	if len(result.Failed) > 0 || faults.Count() != 2 {
		t.Errorf("failed: %+v after %d limits", result.Failed, faults.Count())
	}
	if waited := time.Since(start); waited < 2*time.Second {
		t.Errorf("it waited %s, and was asked to wait twice for a second", waited)
	}
	checkShapes(t, server.Log())

	// The index links to what users can download.
	store, err := index.Open(filepath.Join(t.TempDir(), "site"), index.StoreOptions{})
	must(t, err)
	releases, err := target.List(t.Context(), func(string) bool { return true })
	must(t, err)
	if _, problems, err := publish.UpdateIndex(t.Context(), target, releases, store, nil); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	catalog, err := store.Catalog(t.Context())
	must(t, err)
	for _, f := range catalog.Project("demo").Files {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL(""), nil)
		must(t, err)
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		var b bytes.Buffer
		_, err = b.ReadFrom(resp.Body)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || publishtest.Sum(b.Bytes()) != f.SHA256.String() {
			t.Errorf("%s: %s, other bytes than listed", f.URL(""), resp.Status)
		}
	}
}

// TestIndexPapers: a wheel whose papers are not those that its statement names is not listed, and
// does not keep the others out.
func TestIndexPapers(t *testing.T) {
	for _, tt := range []struct{ suffix, change, want string }{
		{".metadata", "changed", "its provenance says"},
		{".cdx.json", "changed", "its provenance says"},
		{".metadata", "deleted", "which is not there"},
		{".cdx.json", "deleted", "which is not there"},
	} {
		dir := t.TempDir()
		target, err := publish.NewDir(dir, publish.DirOptions{URL: "https://wheels.example.org/"})
		must(t, err)
		inv := publishtest.NewProject(t, publishtest.Document, 10).Inventory(t)
		result, err := publish.Run(t.Context(), target, inv, publish.Options{Owner: "tester"})
		must(t, err)
		wheel := inv.Units[0].File.Name
		name := filepath.Join(dir, result.Releases[0].Tag, wheel+tt.suffix)
		if tt.change == "changed" {
			must(t, os.WriteFile(name, []byte("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"), 0o666))
		} else {
			must(t, os.Remove(name))
		}
		store, err := index.Open(filepath.Join(t.TempDir(), "site"), index.StoreOptions{})
		must(t, err)
		releases, err := target.List(t.Context(), func(string) bool { return true })
		must(t, err)
		_, problems, err := publish.UpdateIndex(t.Context(), target, releases, store, nil)
		must(t, err)
		if len(problems) != 1 || problems[0].Filename != wheel || !strings.Contains(problems[0].Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q of %s", tt.suffix, tt.change, problems, tt.want, wheel)
		}
		catalog, err := store.Catalog(t.Context())
		must(t, err)
		if catalog.Project("demo") == nil || catalog.Project("demo").File(wheel) != nil {
			t.Errorf("%s %s: the index has the wheel, or none of the others", tt.suffix, tt.change)
		}
	}
}
