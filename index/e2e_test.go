package index_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// e2e reports whether KILN_E2E names "index": then all clients are installed from PyPI into
// .cache/e2e-index and do everything, and processes are killed a hundred times.
func e2e() bool {
	return slices.Contains(strings.FieldsFunc(os.Getenv("KILN_E2E"), func(r rune) bool { return r == ',' || r == ' ' }), "index")
}

// scale returns how often to do something, in ordinary tests and in those of KILN_E2E.
func scale(few, many int) int {
	if e2e() {
		return many
	}
	return few
}

var venvs sync.Mutex

// venv returns the Python of a virtual environment with certain packages. It is made once for all
// tests and runs.
func venv(t *testing.T, name string, requirements ...string) string {
	t.Helper()
	venvs.Lock()
	defer venvs.Unlock()
	dir, err := filepath.Abs(filepath.Join("..", ".cache", "e2e-index", name))
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(dir, "bin", "python")
	if runtime.GOOS == "windows" {
		python = filepath.Join(dir, "Scripts", "python.exe")
	}
	done, want := filepath.Join(dir, "done.txt"), strings.Join(requirements, "\n")+"\nupgraded"
	if have, err := os.ReadFile(done); err == nil && string(have) == want {
		return python
	}
	base := os.Getenv("KILN_PYTHON")
	if base == "" {
		base = "python3"
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{base, "-m", "venv", dir},
		append([]string{python, "-m", "pip", "install", "-q", "--upgrade", "--disable-pip-version-check"}, requirements...), // a new environment has an old pip
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.WriteFile(done, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	return python
}

// TestLockers: poetry and pdm lock the build of the view they are pointed at, with its hash and those
// of its dependencies. pdm needs the exact pin: of "demo-ext" it locks version 1.0, without label and hash.
func TestLockers(t *testing.T) {
	if !e2e() {
		t.Skip("KILN_E2E does not name index")
	}
	f := newFixture(t, index.ServerOptions{})
	dir := t.TempDir()
	files := []index.NewFile{
		dependWheel(t, dir, "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl", "helper"),
		dependWheel(t, dir, "demo_ext-1.0+cu130.torch2.9-py3-none-any.whl", "helper"),
		dependWheel(t, dir, "helper-2.0-py3-none-any.whl"),
	}
	if _, problems, err := f.store.Publish(t.Context(), files, index.PublishOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := f.store.SetProject(t.Context(), "helper", index.Settings{Shared: new(true)}); err != nil {
		t.Fatal(err)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	view := f.http.URL + "/cu128/torch2.9/simple/"
	project := "[project]\nname = \"user\"\nversion = \"0\"\nrequires-python = \">=3.10,<4\"\ndependencies = [\"%s\"]\n"
	for _, test := range []struct{ name, requirements, dependency, source, lock string }{
		{"poetry", "poetry==2.2.1", "demo-ext", "[[tool.poetry.source]]\nname = \"kiln\"\nurl = \"%s\"\npriority = \"primary\"\n", "poetry.lock"},
		{"pdm", "pdm==2.26.1 unearth==0.17.5", "demo-ext==1.0+cu128.torch2.9", "[[tool.pdm.source]]\nname = \"pypi\"\nurl = \"%s\"\nverify_ssl = false\n", "pdm.lock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			python := venv(t, test.name, strings.Fields(test.requirements)...)
			home := t.TempDir()
			if err := os.WriteFile(filepath.Join(home, "pyproject.toml"), fmt.Appendf(nil, project+test.source, test.dependency, view), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), python, "-m", test.name, "lock")
			cmd.Dir = home
			cmd.Env = append(environment(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "POETRY_CACHE_DIR="+home, "PDM_CHECK_UPDATE=0", "PDM_IGNORE_SAVED_PYTHON=1", "POETRY_VIRTUALENVS_USE_POETRY_PYTHON=true",
				"PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			lock, err := os.ReadFile(filepath.Join(home, test.lock))
			if err != nil {
				t.Fatal(err)
			}
			catalog := f.server.Catalog()
			for _, want := range []string{
				"1.0+cu128.torch2.9", catalog.Project("demo-ext").File(filepath.Base(files[0].Path)).SHA256.String(),
				catalog.Project("helper").Files[0].SHA256.String(),
			} {
				if !strings.Contains(string(lock), want) {
					t.Errorf("no %q in\n%s", want, lock)
				}
			}
			if strings.Contains(string(lock), "cu130") {
				t.Errorf("another build is locked:\n%s", lock)
			}
		})
	}
}

// TestNginx: nginx with the lines of docs/index.md serves an index in both formats, compressed, to installers.
func TestNginx(t *testing.T) {
	if !e2e() {
		t.Skip("KILN_E2E does not name index")
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			kilntest.Lacking(t, "nginx", "no nginx on this machine")
		}
	}
	manual, err := os.ReadFile("../docs/index.md")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(string(manual), "```nginx\n")
	lines, _, found := strings.Cut(lines, "```\n")
	first, second, two := strings.Cut(lines, "\n")
	if !found || !two {
		t.Fatalf("docs/index.md: %q", lines)
	}
	dir, err := os.MkdirTemp("", "kiln-nginx") //nolint:usetesting // its workers are another user, who may not look into the folders of tests
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, filepath.Join(dir, "index"))
	files := []index.NewFile{dependWheel(t, t.TempDir(), "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl"), dependWheel(t, t.TempDir(), "demo_ext-1.0+cu130.torch2.9-py3-none-any.whl")}
	if _, problems, err := store.Publish(t.Context(), files, index.PublishOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf("daemon off; pid %[1]s/pid; error_log %[1]s/error.log;\nevents { }\nhttp {\naccess_log off; gzip_static on;\n%[3]s\nserver { listen %[2]s; root %[1]s/index;\n%[4]s}\n}\n", dir, address, first, second)
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text = strings.Replace(text, "access_log off;", "access_log off; "+name+"_temp_path "+dir+"/"+name+";", 1)
	}
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), nginx, "-e", dir+"/error.log", "-c", conf)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // ends its workers too
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of a test ends before
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if ctx.Err() != nil {
			log, _ := os.ReadFile(dir + "/error.log")
			t.Fatalf("nginx does not listen: %v\n%s", err, log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	view := "http://" + address + "/cu128/torch2.9/simple/"
	for accept, want := range map[string]string{"*/*": "text/html", index.TypeJSON + ", text/html;q=0.1": index.TypeJSON} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, view+"demo-ext/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(req) // asks for gzip and unpacks it
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.Header.Get("Content-Type") != want || !res.Uncompressed || res.Header.Get("Vary") != "Accept" || !strings.Contains(string(body), "demo_ext-1.0") {
			t.Errorf("Accept %s: %s, %v, %v\n%s", accept, res.Status, res.Header, err, body)
		}
	}
	for _, c := range clients(t) {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.fetch(t, view, "demo-ext")
			if err != nil || len(got) != 1 || got[0] != "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl" {
				t.Errorf("%v: %v", got, err)
			}
		})
	}
}
