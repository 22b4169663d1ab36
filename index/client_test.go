package index_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
)

// clientPackages are what a Python needs for the tests of clients.
var clientPackages = []string{"pip", "uv", "twine", "pypi-simple"}

// tool returns the path of a program: the one that the variable names, else a program beside the
// Python of KILN_PYTHON. Without it the test is skipped, or fails if KILN_REQUIRE lists it.
func tool(t *testing.T, name, variable string) string {
	t.Helper()
	if e2e() {
		switch name {
		case "old-pip":
			return venv(t, "old-pip", "pip==22.3.1") // the first that reads metadata
		case "python":
			return venv(t, "clients", clientPackages...)
		case "uv":
			python := venv(t, "clients", clientPackages...)
			return filepath.Join(filepath.Dir(python), "uv"+filepath.Ext(python))
		}
	}
	if path := os.Getenv(variable); path != "" {
		return path
	}
	if python := os.Getenv("KILN_PYTHON"); python != "" && name != "old-pip" {
		path := filepath.Join(filepath.Dir(python), name)
		if runtime.GOOS == "windows" {
			path += ".exe"
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	if slices.Contains(strings.Split(os.Getenv("KILN_REQUIRE"), ","), name) {
		t.Fatalf("KILN_REQUIRE lists %s, but it is neither beside KILN_PYTHON nor in %s", name, variable)
	}
	t.Skipf("%s is neither beside KILN_PYTHON nor named by %s", name, variable)
	return ""
}

// client runs an installer.
type client struct {
	name string
	// fetch downloads what args ask for from an index and returns the names of the files.
	fetch func(t *testing.T, url string, args ...string) ([]string, error)
}

// clients are the installers that are there. Wheels in these tests are for any Python, so that
// it does not matter which one runs them.
func clients(t *testing.T) []client {
	return []client{
		{"pip", func(t *testing.T, url string, args ...string) ([]string, error) {
			return pipDownload(t, tool(t, "python", "KILN_PYTHON"), url, args...)
		}},
		{"old-pip", func(t *testing.T, url string, args ...string) ([]string, error) {
			return pipDownload(t, tool(t, "old-pip", "KILN_OLD_PIP_PYTHON"), url, args...)
		}},
		{"uv", uvCompile},
	}
}

func environment() []string {
	return append(os.Environ(), "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_CONFIG_FILE="+os.DevNull, "PIP_NO_CACHE_DIR=1", "PIP_INDEX_URL=", "PIP_EXTRA_INDEX_URL=",
		"PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1", "UV_NO_CONFIG=1", "UV_NO_CACHE=1", "NO_COLOR=1", "UV_PYTHON_DOWNLOADS=never")
}

func pipDownload(t *testing.T, python, url string, args ...string) ([]string, error) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-m", "pip", "-q", "download", "-d", dir, "--no-build-isolation", "--index-url", url}, args...)...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// uvCompile resolves and installs with uv into a new folder, and returns the files it took.
func uvCompile(t *testing.T, url string, args ...string) ([]string, error) {
	t.Helper()
	uv, python := tool(t, "uv", "KILN_UV"), tool(t, "python", "KILN_PYTHON")
	target := t.TempDir()
	cmd := exec.CommandContext(t.Context(), uv, append([]string{"pip", "install", "-q", "--python", python, "--target", target, "--index-url", url, "--link-mode", "copy"}, args...)...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	infos, err := filepath.Glob(filepath.Join(target, "*.dist-info"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, info := range infos {
		names = append(names, strings.TrimSuffix(filepath.Base(info), ".dist-info")+"-py3-none-any.whl")
	}
	slices.Sort(names)
	return names, nil
}

// serve is an ordinary web server over the folder, which knows nothing of indexes.
func serve(t *testing.T, dir string) string {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return server.URL
}

// dependWheel writes a wheel with requirements.
func dependWheel(t *testing.T, dir, filename string, requires ...string) index.NewFile {
	t.Helper()
	parts := strings.SplitN(filename, "-", 3)
	metadata := "Metadata-Version: 2.1\nName: " + parts[0] + "\nVersion: " + parts[1] + "\nRequires-Python: >=3.8\n"
	for _, r := range requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	path := filepath.Join(dir, filename)
	data := testWheel(t, filename, map[string]string{parts[0] + "-" + parts[1] + ".dist-info/METADATA": metadata})
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return index.NewFile{Path: path, UploadTime: day}
}

// TestWrongWheel: builds of one version for which installers choose the wrong one on a flat page, by
// the order of labels. The flat view shows that they do; the view of the combination, and the
// default view where it is declared, give the right one.
func TestWrongWheel(t *testing.T) {
	tests := []struct {
		name   string
		labels []string // the first is the right one
		wrong  string   // what a flat page yields
		view   string
	}{
		{"newest CUDA, not the user's", []string{"cu128.torch2.9.0", "cu128.torch2.10.0", "cu130.torch2.9.0"}, "cu130.torch2.9.0", "cu128/torch2.9"},
		{"newest torch, not the user's", []string{"cu128.torch2.9", "cu128.torch2.10"}, "cu128.torch2.10", "cu128/torch2.9"},
		{"numbers in text", []string{"cu12torch2.10cxx11abitrue", "cu12torch2.8cxx11abitrue"}, "cu12torch2.8cxx11abitrue", "cu12/torch2.10"},
		{"no separator", []string{"cu128torch210", "cu128torch29"}, "cu128torch29", "cu128/torch2.10"},
		{"cu92 above cu130", []string{"cu130.torch1.2", "cu100.torch1.2", "cu92.torch1.2"}, "cu92.torch1.2", "cu130/torch1.2"},
		{"ROCm above CUDA", []string{"cu128.torch2.9", "rocm6.4.torch2.9"}, "rocm6.4.torch2.9", "cu128/torch2.9"},
		{"xpu above all", []string{"cu128.torch2.9", "cpu.torch2.9", "xpu.torch2.9"}, "xpu.torch2.9", "cu128/torch2.9"},
	}
	// Each case is a project of its own, so that one run of an installer answers for all of them.
	name := func(i int, label string) string { return fmt.Sprintf("fa%d-2.8.3+%s-py3-none-any.whl", i, label) }
	store := openStore(t, t.TempDir())
	dir := t.TempDir()
	var projects, exact, right, wrong []string
	for i, test := range tests {
		var files []index.NewFile
		for _, label := range test.labels {
			files = append(files, dependWheel(t, dir, name(i, label)))
		}
		publish(t, store, files...)
		at, err := index.ParseCoordinates(test.view)
		if err != nil {
			t.Fatal(err)
		}
		project := fmt.Sprintf("fa%d", i)
		if err := store.SetProject(t.Context(), project, index.Settings{Default: &at}); err != nil {
			t.Fatal(err)
		}
		projects, exact = append(projects, project), append(exact, project+"==2.8.3+"+test.labels[0])
		right, wrong = append(right, name(i, test.labels[0])), append(wrong, name(i, test.wrong))
	}
	url := serve(t, store.Dir())
	for _, client := range clients(t) {
		t.Run(client.name, func(t *testing.T) {
			fetch := func(path string, want []string, args ...string) {
				t.Helper()
				got, err := client.fetch(t, url+path+"/simple/", append([]string{"--no-deps"}, args...)...)
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("%s/simple/ %q: %v %s", path, args, err, diff)
				}
			}
			fetch("/all", wrong, projects...) // if this fails, installers have changed
			fetch("", right, projects...)
			fetch("/all", right, exact...)
			for i, test := range tests {
				// pip needs a second for each; the pages are the same for all.
				if i < 2 || client.name == "uv" || e2e() {
					fetch("/"+test.view, right[i:i+1], projects[i])
				}
			}
		})
	}
}

// TestInstallers: each client follows dependencies inside a view, obeys hashes, yanks and
// Requires-Python, and reads files that are elsewhere.
func TestInstallers(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, t.TempDir())
	if err := store.SetConfig(t.Context(), index.Config{OldMetadataAttribute: true, Aliases: true, Default: index.Coordinates{Toolkit: "cu130"}}); err != nil {
		t.Fatal(err)
	}
	publish(t, store,
		dependWheel(t, dir, "fa-1+cu128.torch2.9-py3-none-any.whl", "torch==2.9.*", "einops"),
		dependWheel(t, dir, "fa-1+cu130.torch2.9-py3-none-any.whl", "torch==2.9.*", "einops"),
		dependWheel(t, dir, "fa-2+cu128.torch2.10-py3-none-any.whl", "torch==2.10.*", "einops"),
		dependWheel(t, dir, "torch-2.9.1+cu128-py3-none-any.whl"),
		dependWheel(t, dir, "torch-2.9.1+cu130-py3-none-any.whl"),
		dependWheel(t, dir, "einops-0.8-py3-none-any.whl"),
		dependWheel(t, dir, "einops-0.9-py3-none-any.whl"),
	)
	if err := store.SetProject(t.Context(), "einops", index.Settings{Shared: new(true)}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Yank(t.Context(), "einops", func(f *index.File) bool { return f.Version().String() == "0.9" }, `says "no"`, false); err != nil {
		t.Fatal(err)
	}
	url := serve(t, store.Dir())

	// The same wheels, staying where they are.
	elsewhere := openStore(t, t.TempDir())
	if _, problems, err := elsewhere.PublishDir(t.Context(), dir, index.ScanOptions{Base: serve(t, dir) + "/", WriteMetadata: true}); err != nil || problems != nil {
		t.Fatal(err, problems)
	}
	if err := elsewhere.SetProject(t.Context(), "einops", index.Settings{Shared: new(true)}); err != nil {
		t.Fatal(err)
	}
	external := serve(t, elsewhere.Dir())

	catalog, err := store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hash := func(filename string) string {
		project, _, _ := strings.Cut(filename, "-")
		return " --hash=sha256:" + catalog.Project(project).File(filename).SHA256.String() + "\n"
	}
	pinned := filepath.Join(t.TempDir(), "pinned.txt")
	wrong := filepath.Join(t.TempDir(), "wrong.txt")
	text := "torch==2.9.1+cu128" + hash("torch-2.9.1+cu128-py3-none-any.whl") + "einops==0.8" + hash("einops-0.8-py3-none-any.whl") +
		"fa==1+cu128.torch2.9" + hash("fa-1+cu128.torch2.9-py3-none-any.whl")
	if err := os.WriteFile(pinned, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wrong, []byte("einops==0.8"+hash("einops-0.9-py3-none-any.whl")), 0o644); err != nil {
		t.Fatal(err)
	}

	set128 := []string{"einops-0.8-py3-none-any.whl", "fa-1+cu128.torch2.9-py3-none-any.whl", "torch-2.9.1+cu128-py3-none-any.whl"}
	tests := []struct {
		name string
		url  string
		args []string
		want []string // nil: must fail

		uvOnly bool // unless in KILN_E2E: pip needs a second for each
	}{
		{"dependencies in a view", url + "/cu128/torch2.9/simple/", []string{"fa"}, set128, false},
		{"alias", url + "/cu128-torch29/simple/", []string{"fa"}, set128, true},
		{"no slash", url + "/cu128/torch2.9/simple", []string{"fa"}, set128, true},
		{"elsewhere", external + "/cu128/torch2.9/simple/", []string{"fa", "einops<0.9"}, set128, false},
		{"default differs from all", url + "/simple/", []string{"--no-deps", "fa"}, []string{"fa-1+cu130.torch2.9-py3-none-any.whl"}, true},
		{"all", url + "/all/simple/", []string{"--no-deps", "fa"}, []string{"fa-2+cu128.torch2.10-py3-none-any.whl"}, true},
		{"hashes", url + "/cu128/torch2.9/simple/", []string{"--require-hashes", "-r", pinned}, set128, false},
		{"wrong hash", url + "/all/simple/", []string{"--require-hashes", "-r", wrong}, nil, false},
		{"yanked for a pin", url + "/all/simple/", []string{"einops==0.9"}, []string{"einops-0.9-py3-none-any.whl"}, false},
		{"not in the view", url + "/cu128/torch2.9/simple/", []string{"fa==2"}, nil, true},
		{"no such view", url + "/cu134/torch2.9/simple/", []string{"fa"}, nil, true},
	}
	for _, client := range clients(t) {
		t.Run(client.name, func(t *testing.T) {
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					if test.uvOnly && client.name != "uv" && !e2e() {
						t.Skip("KILN_E2E does not name index")
					}
					got, err := client.fetch(t, test.url, test.args...)
					if test.want == nil {
						if err == nil {
							t.Errorf("installed %q", got)
						}
						return
					}
					if err != nil || !slices.Equal(got, test.want) {
						t.Errorf("got %q, want %q: %v", got, test.want, err)
					}
				})
			}
		})
	}
}

// TestPypiSimple reads pages with a client library that checks them against the standards, in
// both formats.
func TestPypiSimple(t *testing.T) {
	python := tool(t, "python", "KILN_PYTHON")
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import pypi_simple").CombinedOutput(); err != nil {
		if slices.Contains(strings.Split(os.Getenv("KILN_REQUIRE"), ","), "pypi-simple") {
			t.Fatalf("%s", out)
		}
		t.Skip("the Python of KILN_PYTHON has no pypi-simple")
	}
	store := openStore(t, t.TempDir())
	publish(t, store, writeWheels(t, fa128, fa130)...)
	if _, err := store.Yank(t.Context(), "flash-attn", func(f *index.File) bool { return f.Filename == fa130 }, `a "reason" <b>`, false); err != nil {
		t.Fatal(err)
	}
	if err := store.SetProject(t.Context(), "flash-attn", index.Settings{Status: new(index.Deprecated), StatusReason: new("old & gone")}); err != nil {
		t.Fatal(err)
	}
	const script = `
import json, sys
from pypi_simple import ProjectPage, IndexPage
root, out = sys.argv[1], {}
for kind, name in (("html", "index.html"), ("json", "index.v1_json")):
    text = open(root + "/all/simple/flash-attn/" + name, encoding="utf-8").read()
    if kind == "html":
        page = ProjectPage.from_html("flash-attn", text, base_url="http://h/all/simple/flash-attn/")
    else:
        page = ProjectPage.from_json_data(json.loads(text), base_url="http://h/all/simple/flash-attn/")
    out[kind] = [page.repository_version, page.status, page.status_reason] + [
        [p.filename, p.url, p.digests, p.requires_python, p.is_yanked, p.yanked_reason, p.metadata_digests, p.version, p.package_type] for p in page.packages]
print(json.dumps(out))
`
	cmd := exec.CommandContext(t.Context(), python, "-c", script, store.Dir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var pages map[string][]any
	if err := json.Unmarshal(out, &pages); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(pages["html"]) != fmt.Sprint(pages["json"]) {
		t.Errorf("HTML and JSON differ:\n%v\n%v", pages["html"], pages["json"])
	}
	text := fmt.Sprint(pages["json"])
	for _, want := range []string{"1.4 deprecated old & gone", `true a "reason" <b>`, "2.8.3+cu128.torch2.9", ">=3.8", "http://h/files/", "%2B"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}
