package kilntest

import (
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// GitServer serves the repositories below dir at /git/, as hosting services do, with git's own
// server.
func GitServer(t testing.TB, dir string) http.Handler {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		Lacking(t, "git", "%v", err)
	}
	return &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
}

// Repository makes a repository of a folder: git's arguments, a commit with the tag, and a commit
// after it, which must not be built.
func Repository(t testing.TB, dir, tag string, before ...[]string) {
	t.Helper()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "--quiet")
	for _, args := range before {
		git(args...)
	}
	git("add", ".")
	git("commit", "--quiet", "--message", "one")
	git("tag", "--annotate", tag, "--message", "the release")
	for _, name := range []string{"setup.py", "pyproject.toml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("raise SystemExit('not the release')"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	git("add", ".")
	git("commit", "--quiet", "--message", "two")
}
