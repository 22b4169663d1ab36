package serve_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// clientPrograms are the programs people use with an index.
type clientPrograms struct {
	t      *testing.T
	python string
	home   string
}

func newClients(t *testing.T, modules ...string) *clientPrograms {
	t.Helper()
	if testing.Short() {
		t.Skip("runs pip, uv and twine")
	}
	c := &clientPrograms{t: t, python: os.Getenv("KILN_PYTHON"), home: t.TempDir()}
	if indextest.E2E() {
		c.python = indextest.Venv(t, "clients", indextest.ClientPackages...)
	}
	if c.python == "" {
		path, err := exec.LookPath("python3")
		if err != nil {
			kilntest.Lacking(t, "python", "no Python on this machine")
		}
		c.python = path
	}
	for _, m := range append([]string{"pip"}, modules...) {
		if err := exec.CommandContext(t.Context(), c.python, "-c", "import "+m).Run(); err != nil {
			kilntest.Lacking(t, m, "Python has no %s: %s", m, c.python)
		}
	}
	return c
}

// run runs a Python program without any configuration of its user.
func (c *clientPrograms) run(ok bool, args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), c.python, append([]string{"-m"}, args...)...)
	cmd.Dir = c.home
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "PIP_") && !strings.HasPrefix(name, "UV_") && !strings.HasPrefix(name, "TWINE_") && !strings.HasSuffix(strings.ToLower(name), "_proxy") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+c.home, "XDG_CONFIG_HOME="+c.home, "PIP_CONFIG_FILE="+os.DevNull, "PIP_NO_INPUT=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_CACHE_DIR="+c.home+"/pip",
		"UV_CACHE_DIR="+c.home+"/uv", "UV_NO_CONFIG=1", "UV_PYTHON="+c.python, "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if (err == nil) != ok {
		c.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// requestLog is an access log that tests read.
type requestLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *requestLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// take returns the requests since the last call, as "GET 200 /path".
func (l *requestLog) take(t *testing.T) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range bytes.Lines(l.buf.Bytes()) {
		var r struct {
			Method, URL string
			Status      json.Number
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Method+" "+r.Status.String()+" "+r.URL)
	}
	l.buf.Reset()
	return out
}

func has(list []string, pattern string) bool {
	re := regexp.MustCompile(pattern)
	return slices.ContainsFunc(list, re.MatchString)
}

// TestClients: pip and uv install from a view what the view is for, verified by hash and
// resolved from the metadata alone; twine and uv upload, once and again.
func TestClients(t *testing.T) {
	c := newClients(t, "twine", "uv")
	log := &requestLog{}
	f := newFixture(t, serve.Options{AccessLog: slog.New(slog.NewJSONHandler(log, nil))})
	dist := t.TempDir()
	write := func(name string, extra map[string]string) string {
		path := filepath.Join(dist, name)
		if err := os.WriteFile(path, indextest.Wheel(t, name, extra), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := write("demo_ext-1.0+cu128.torch2.9-py3-none-any.whl", nil)
	b := write("demo_ext-1.0+cu130.torch2.9-py3-none-any.whl", nil)
	upload := f.http.URL + "/legacy/"

	// Uploads.
	c.run(true, "twine", "upload", "--non-interactive", "--disable-progress-bar", "--repository-url", upload, "-u", "__token__", "-p", f.secret, a)
	c.run(true, "uv", "publish", "--publish-url", upload, "--check-url", f.http.URL+"/all/simple/", "--token", f.secret, b)
	log.take(t)
	c.run(true, "uv", "publish", "--publish-url", upload, "--check-url", f.http.URL+"/all/simple/", "--token", f.secret, b)
	if requests := log.take(t); has(requests, "^POST") {
		t.Errorf("uv publish --check-url sends a file again: %q", requests)
	}
	// twine refuses --skip-existing for every index but PyPI; the same bytes again are no mistake.
	c.run(true, "twine", "upload", "--non-interactive", "--disable-progress-bar", "--repository-url", upload, "-u", "__token__", "-p", f.secret, a)
	write(filepath.Base(a), map[string]string{"demo_ext_more.py": ""})
	if out := c.run(false, "twine", "upload", "--non-interactive", "--disable-progress-bar", "--repository-url", upload, "-u", "__token__", "-p", f.secret, a); !strings.Contains(out, "400") {
		t.Errorf("twine does not say why: %s", out)
	}
	if out := c.run(false, "uv", "publish", "--publish-url", upload, "--token", "kiln_wrong", b); !strings.Contains(out, "401") && !strings.Contains(out, "not valid") {
		t.Errorf("uv does not say why: %s", out)
	}
	f.consistent()

	// Installs: the view decides, not the order of labels.
	installed := func(dir string) string {
		names, err := filepath.Glob(filepath.Join(dir, "demo_ext-*.dist-info"))
		if err != nil || len(names) != 1 {
			t.Fatalf("installed: %q %v", names, err)
		}
		return filepath.Base(names[0])
	}
	view := f.http.URL + "/cu128/torch2.9/simple/"
	want := "demo_ext-1.0+cu128.torch2.9.dist-info"
	for name, args := range map[string][]string{
		"pip":         {"pip", "install", "--target", c.home + "/pip-view", "--index-url", view, "demo-ext"},
		"uv":          {"uv", "pip", "install", "--target", c.home + "/uv-view", "--index-url", view, "demo-ext"},
		"pip, exact":  {"pip", "install", "--target", c.home + "/pip-exact", "--index-url", f.http.URL + "/all/simple/", "demo-ext==1.0+cu128.torch2.9"},
		"uv, exact":   {"uv", "pip", "install", "--target", c.home + "/uv-exact", "--index-url", f.http.URL + "/all/simple", "demo_ext==1.0+cu128.torch2.9"},
		"pip, spells": {"pip", "install", "--target", c.home + "/pip-name", "--index-url", view, "Demo.Ext"},
	} {
		if strings.Contains(name, ",") && !indextest.E2E() {
			continue // a second each, and much the same
		}
		log.take(t)
		c.run(true, args...)
		requests := log.take(t)
		if got := installed(args[slices.Index(args, "--target")+1]); got != want {
			t.Errorf("%s: installed %s, want %s", name, got, want)
		}
		if !has(requests, `whl\.metadata$`) {
			t.Errorf("%s: the metadata was not asked for: %q", name, requests)
		}
		if !has(requests, `^GET 200 /files/.*whl$`) {
			t.Errorf("%s: the file was not fetched: %q", name, requests)
		}
	}

	// Hash checking with the lines the index shows.
	file := f.server.Catalog().Project("demo-ext").Files[0]
	lines := index.InstallLines("demo-ext", view, &file)
	requirements := filepath.Join(c.home, "requirements.txt")
	if err := os.WriteFile(requirements, []byte("--index-url "+view+"\n"+lines.Requirements), 0o644); err != nil {
		t.Fatal(err)
	}
	c.run(true, "pip", "install", "--target", c.home+"/hashed", "--require-hashes", "-r", requirements)
	c.run(true, "uv", "pip", "install", "--target", c.home+"/uv-hashed", "--require-hashes", "-r", requirements)
	catalogView := f.server.Catalog().View("cu128/torch2.9")
	pinned, err := catalogView.Pin("demo-ext", "")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := catalogView.AppendPylock(nil, f.http.URL+"/", "demo-ext", pinned)
	if err != nil {
		t.Fatal(err)
	}
	pylock := filepath.Join(c.home, "pylock.demo-ext.toml")
	if err := os.WriteFile(pylock, lock, 0o644); err != nil {
		t.Fatal(err)
	}
	c.run(true, "uv", "pip", "install", "--target", c.home+"/uv-locked", "-r", pylock)
	if got := installed(c.home + "/uv-locked"); got != want {
		t.Errorf("from the lock file uv installs %s, want %s", got, want)
	}
	text, err := os.ReadFile(requirements)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(requirements, bytes.ReplaceAll(text, []byte(file.SHA256.String()), bytes.Repeat([]byte("0"), 64)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := c.run(false, "pip", "install", "--target", c.home+"/wrong", "--no-cache-dir", "--require-hashes", "-r", requirements); !strings.Contains(strings.ToLower(out), "hash") {
		t.Errorf("pip accepts a wrong hash: %s", out)
	}
}

// TestClientsRange: where pages do not announce metadata, uv reads it out of the wheel with range
// requests.
func TestClientsRange(t *testing.T) {
	c := newClients(t, "uv")
	log := &requestLog{}
	f := newFixture(t, serve.Options{AccessLog: slog.New(slog.NewJSONHandler(log, nil))})
	name := "demo_ext-1.0-py3-none-any.whl"
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, indextest.Wheel(t, name, map[string]string{"demo_ext_data.bin": strings.Repeat("0123456789", 200_000)}), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, problems, err := f.store.Add(t.Context(), []index.NewFile{{Path: path}}, index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	announcement := regexp.MustCompile(`"core-metadata":\{[^}]*\},?`)
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/simple/") {
			f.server.ServeHTTP(w, r)
			return
		}
		r.Header.Del("Accept-Encoding")
		page := httptest.NewRecorder()
		f.server.ServeHTTP(page, r)
		w.Header().Set("Content-Type", page.Header().Get("Content-Type"))
		w.WriteHeader(page.Code)
		_, _ = w.Write(announcement.ReplaceAll(page.Body.Bytes(), nil))
	}))
	defer old.Close()
	in := filepath.Join(c.home, "in.txt")
	if err := os.WriteFile(in, []byte("demo-ext\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := c.run(true, "uv", "pip", "compile", "--index-url", old.URL+"/all/simple/", in)
	if !strings.Contains(out, "demo-ext==1.0") {
		t.Errorf("uv resolves to: %s", out)
	}
	requests := log.take(t)
	if !has(requests, "^HEAD 200 /files/") || !has(requests, "^GET 206 /files/") || has(requests, "^GET 200 /files/") {
		t.Errorf("want HEAD and ranges: %q", requests)
	}
}

// TestWheelNames: a wheel is found by the name that a project's own downloader has for it, in upper
// case where the normal form has lower case.
func TestWheelNames(t *testing.T) {
	c := newClients(t, "uv")
	f := newFixture(t, serve.Options{})
	name := "demo_ext-1.0+cu12torch2.9cxx11abitrue-py3-none-any.whl"
	f.publish(name, "demo_ext-1.1+pt211cu130-py3-none-any.whl")
	if f.server.Catalog().View("cu130/torch2.11") == nil {
		t.Error("pt211cu130 is not read as torch 2.11 with CUDA 13.0")
	}
	for i, spelling := range []string{strings.Replace(name, "abitrue", "abiTRUE", 1), strings.Replace(name, "+cu12", "%2BCU12", 1), name} {
		address := f.http.URL + "/wheels/" + spelling
		for _, program := range [][]string{{"pip", "install"}, {"uv", "pip", "install"}} {
			to := filepath.Join(c.home, program[0]+strconv.Itoa(i))
			c.run(true, append(program, "--no-deps", "--target", to, address)...)
			if found, _ := filepath.Glob(filepath.Join(to, "demo_ext-1.0+cu12torch2.9cxx11abitrue.dist-info")); len(found) != 1 {
				t.Errorf("%s installed nothing from %s", program[0], address)
			}
		}
	}
	for _, path := range []string{"/wheels/", "/wheels/demo_ext-1.2-py3-none-any.whl", "/wheels/other-1.0-py3-none-any.whl", "/wheels/" + name + ".cdx.json", "/wheels/x/" + name} {
		if status := f.do(http.MethodGet, path).StatusCode; status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
}
