package index_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/kilntest"
)

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
			return pipDownload(t, indextest.Tool(t, "python", "KILN_PYTHON"), url, args...)
		}},
		{"old-pip", func(t *testing.T, url string, args ...string) ([]string, error) {
			return pipDownload(t, indextest.Tool(t, "old-pip", "KILN_OLD_PIP_PYTHON"), url, args...)
		}},
		{"uv", uvCompile},
	}
}

func pipDownload(t *testing.T, python, url string, args ...string) ([]string, error) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-m", "pip", "-q", "download", "-d", dir, "--no-build-isolation", "--index-url", url}, args...)...)
	cmd.Env = indextest.Environment()
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
	uv, python := indextest.Tool(t, "uv", "KILN_UV"), indextest.Tool(t, "python", "KILN_PYTHON")
	target := t.TempDir()
	cmd := exec.CommandContext(t.Context(), uv, append([]string{"pip", "install", "-q", "--python", python, "--target", target, "--index-url", url, "--link-mode", "copy"}, args...)...)
	cmd.Env = indextest.Environment()
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

// TestWrongWheel: builds of one version for which installers choose the wrong one on a flat page,
// by the order of labels. The flat view shows that they do; the view of the combination, and the
// default view where it is declared, give the right one.
func TestWrongWheel(t *testing.T) {
	tests := []struct {
		name   string
		builds []string // labels of 2.8.3, or whole versions; the first is the right one
		wrong  string   // what a flat page yields
		view   string
	}{
		{"newest CUDA, not the user's", []string{"cu128.torch2.9.0", "cu128.torch2.10.0", "cu130.torch2.9.0"}, "cu130.torch2.9.0", "cu128/torch2.9"},
		{"newest torch, not the user's", []string{"cu128.torch2.9", "cu128.torch2.10"}, "cu128.torch2.10", "cu128/torch2.9"},
		{"numbers in text", []string{"cu12torch2.10cxx11abitrue", "cu12torch2.8cxx11abitrue", "cu12torch2.4cxx11abitrue"}, "cu12torch2.8cxx11abitrue", "cu12/torch2.10"},
		{"no separator", []string{"cu128torch210", "cu128torch29"}, "cu128torch29", "cu128/torch2.10"},
		{"cu92 above cu130", []string{"cu130.torch1.2", "cu100.torch1.2", "cu92.torch1.2"}, "cu92.torch1.2", "cu130/torch1.2"},
		{"ROCm above CUDA", []string{"cu128.torch2.9", "rocm6.4.torch2.9"}, "rocm6.4.torch2.9", "cu128/torch2.9"},
		{"xpu above all", []string{"cu128.torch2.9", "cpu.torch2.9", "xpu.torch2.9"}, "xpu.torch2.9", "cu128/torch2.9"},
		{"a final CPU build above a development one", []string{"2.8.4.dev1+cu130.torch2.9", "cpu.torch2.9"}, "cpu.torch2.9", "cu130/torch2.9"},
		{"any label above none", []string{"2.8.3", "cu128.torch2.9"}, "cu128.torch2.9", "cpu/torch2.9"},
		{"newest of everything, in numbers", []string{"cu.12.8.torch.2.9", "cu.12.8.torch.2.11", "cu.13.0.torch.2.9"}, "cu.13.0.torch.2.9", "cu128/torch2.9"},
	}
	version := func(build string) string {
		if strings.HasPrefix(build, "2.") {
			return build
		}
		return "2.8.3+" + build
	}
	// Each case is a project of its own, so that one run of an installer answers for all of them.
	name := func(i int, build string) string { return fmt.Sprintf("fa%d-%s-py3-none-any.whl", i, version(build)) }
	store := openStore(t, t.TempDir())
	dir := t.TempDir()
	var projects, exact, right, wrong []string
	for i, test := range tests {
		at, err := index.ParseCoordinates(test.view)
		if err != nil {
			t.Fatal(err)
		}
		var files []index.NewFile
		for _, build := range test.builds {
			f := indextest.DependWheel(t, dir, name(i, build))
			if !strings.Contains(f.Path, "+") {
				f.Coordinates = at // nothing in the name says it
			}
			files = append(files, f)
		}
		publish(t, store, files...)
		project := fmt.Sprintf("fa%d", i)
		if err := store.SetProject(t.Context(), project, index.Settings{Default: &at}); err != nil {
			t.Fatal(err)
		}
		pin := "=="
		if !strings.Contains(version(test.builds[0]), "+") {
			pin = "===" // with two signs the label does not count
		}
		projects, exact = append(projects, project), append(exact, project+pin+version(test.builds[0]))
		right, wrong = append(right, name(i, test.builds[0])), append(wrong, name(i, test.wrong))
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
				if i < 2 || client.name == "uv" || indextest.E2E() {
					fetch("/"+test.view, right[i:i+1], projects[i])
				}
			}
		})
	}
}

// TestWrongInstall: what pip does on a machine that has torch 2.9.0, with a stand-in for PyPI and
// an index of CUDA builds beside it. Each way of getting the wrong build on a flat page is shown to
// be one, and beside it is the way that works.
func TestWrongInstall(t *testing.T) {
	python := indextest.Tool(t, "python", "KILN_PYTHON")
	dir := t.TempDir()
	main, store := openStore(t, t.TempDir()), openStore(t, t.TempDir())
	publish(t, main,
		indextest.DependWheel(t, dir, "torch-2.8.0-py3-none-any.whl"), indextest.DependWheel(t, dir, "torch-2.9.0-py3-none-any.whl"), indextest.DependWheel(t, dir, "torch-2.10.0-py3-none-any.whl"),
		writeSdist(t, dir, "newer", "2.8.4"), writeSdist(t, dir, "same", "2.8.3"))
	for _, build := range []string{"cu128.torch2.8", "cu128.torch2.9", "cu128.torch2.10", "cu130.torch2.9", "cu130.torch2.10"} {
		torch := "torch==" + build[strings.Index(build, "torch")+5:] + ".*"
		publish(t, store, indextest.DependWheel(t, dir, "fa-2.8.3+"+build+"-py3-none-any.whl", torch), indextest.DependWheel(t, dir, "loose-2.8.3+"+build+"-py3-none-any.whl", "torch"))
	}
	for _, project := range []string{"newer", "same"} {
		publish(t, store, indextest.DependWheel(t, dir, project+"-2.8.3+cu128.torch2.9-py3-none-any.whl", "torch==2.9.*"))
	}
	for i, toolkit := range []string{"cu126", "cu128", "cu130"} {
		f := indextest.DependWheel(t, dir, fmt.Sprintf("tagged-2.8.3-%d%s-py3-none-any.whl", i+1, toolkit))
		f.Coordinates = index.Coordinates{Toolkit: toolkit, Torch: []string{"2.9"}}
		publish(t, store, f)
	}
	// Names that pip passes over without a word do not get that far.
	renamed := filepath.Join(dir, "other-1.0+cu128.torch2.9-py3-none-any.whl")
	if err := os.WriteFile(renamed, indextest.Wheel(t, "other-1.0-py3-none-any.whl", nil), 0o644); err != nil {
		t.Fatal(err)
	}
	dashed := filepath.Join(dir, "fa-2.8.3+cu128-torch2.9.0-py3-none-any.whl")
	if err := os.WriteFile(dashed, indextest.Wheel(t, "fa-2.8.3+cu128.torch2.9.0-py3-none-any.whl", nil), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, problems, err := store.Add(t.Context(), []index.NewFile{{Path: renamed}, {Path: dashed}}, index.AddOptions{}); err != nil || len(problems) != 2 {
		t.Fatalf("a renamed wheel and a dash in a label: %v %v, want two problems", problems, err)
	}

	pypi, url := serve(t, main.Dir())+"/all/simple/", serve(t, store.Dir())
	flat, view := url+"/all/simple/", url+"/cu128/torch2.9/simple/"
	environments := map[string]string{}
	venvOf := func(installed ...string) string {
		key := strings.Join(installed, " ")
		if environments[key] == "" {
			home := t.TempDir()
			runTool(t, python, "-m", "venv", "--without-pip", home)
			runTool(t, python, append([]string{"-m", "pip", "--python", home, "-q", "install", "--no-index"}, installed...)...)
			environments[key] = home
		}
		return environments[key]
	}
	torch29 := filepath.Join(dir, "torch-2.9.0-py3-none-any.whl")
	constraints := filepath.Join(dir, "constraints.txt")
	if err := os.WriteFile(constraints, []byte("fa==2.8.3+cu128.torch2.9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const right = "fa==2.8.3+cu128.torch2.9"
	for _, test := range []struct {
		name    string
		quick   bool // runs outside KILN_E2E too
		install []string
		extra   []string // other indexes
		args    string
		want    string // what pip would install, or ""
		builds  string // a file that pip tries to build
	}{
		{name: "A: flat, any torch", extra: []string{flat}, args: "loose", want: "loose==2.8.3+cu130.torch2.10"},
		{name: "B: flat, torch pinned", quick: true, extra: []string{flat}, args: "fa", want: "fa==2.8.3+cu130.torch2.10 torch==2.10.0"},
		{name: "C: flat, torch asked for", extra: []string{flat}, args: "fa torch==2.9.0", want: "fa==2.8.3+cu130.torch2.9"},
		{name: "D: view", quick: true, extra: []string{view}, args: "fa", want: right},
		{name: "D, any torch", extra: []string{view}, args: "loose", want: "loose==2.8.3+cu128.torch2.9"},
		{name: "D': view of another torch", extra: []string{url + "/cu128/torch2.8/simple/"}, args: "fa", want: "fa==2.8.3+cu128.torch2.8 torch==2.8.0"},
		{name: "F: a newer sdist elsewhere", extra: []string{view}, args: "newer", builds: "newer-2.8.4.tar.gz"},
		{name: "F': --only-binary", quick: true, extra: []string{view}, args: "--only-binary newer newer", want: "newer==2.8.3+cu128.torch2.9"},
		{name: "F': --prefer-binary", extra: []string{view}, args: "--prefer-binary newer", want: "newer==2.8.3+cu128.torch2.9"},
		{name: "G: the same sdist elsewhere", extra: []string{view}, args: "same==2.8.3", want: "same==2.8.3+cu128.torch2.9"},
		{name: "I: flat, CUDA in the build tag", extra: []string{flat}, args: "tagged", want: "tagged==2.8.3 (3cu130)"},
		{name: "I: view", extra: []string{view}, args: "tagged", want: "tagged==2.8.3 (2cu128)"},
		{name: "K: flat, exact", extra: []string{flat}, args: right, want: right},
		{name: "K: flat, exact, with a dash", extra: []string{flat}, args: "fa==2.8.3+cu128-torch2.9", want: right},
		{name: "M: two views", extra: []string{view, url + "/cu130/torch2.9/simple/"}, args: "fa", want: "fa==2.8.3+cu130.torch2.9"},
		{name: "N: flat, constraints", extra: []string{flat}, args: "-c " + constraints + " fa", want: right},
		{name: "P: another build is there", install: []string{"cu130.torch2.9"}, extra: []string{view}, args: "fa"},
		{name: "P: upgrade", install: []string{"cu130.torch2.9"}, extra: []string{view}, args: "-U fa"},
		{name: "P': by force", install: []string{"cu130.torch2.9"}, extra: []string{view}, args: "--force-reinstall --no-deps fa", want: right},
		{name: "P': exact", quick: true, install: []string{"cu130.torch2.9"}, extra: []string{view}, args: right, want: right},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !test.quick && !indextest.E2E() {
				t.Skip("KILN_E2E does not name index")
			}
			installed := []string{torch29}
			for _, build := range test.install {
				installed = append(installed, filepath.Join(dir, "fa-2.8.3+"+build+"-py3-none-any.whl"))
			}
			report := filepath.Join(t.TempDir(), "report.json")
			args := []string{"-m", "pip", "--python", venvOf(installed...), "install", "--dry-run", "--report", report, "--index-url", pypi}
			for _, extra := range test.extra {
				args = append(args, "--extra-index-url", extra)
			}
			cmd := exec.CommandContext(t.Context(), python, append(args, strings.Fields(test.args)...)...)
			cmd.Env = indextest.Environment()
			out, err := cmd.CombinedOutput()
			if test.builds != "" {
				// There is nothing to build it with, but pip had set its mind on it.
				if err == nil || !strings.Contains(string(out), test.builds) {
					t.Errorf("pip does not build %s: %v\n%s", test.builds, err, out)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if got := reported(t, report); got != test.want {
				t.Errorf("pip %s: %q, want %q\n%s", test.args, got, test.want, out)
			}
		})
	}
}

// runTool runs a program that must succeed.
func runTool(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = indextest.Environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// reported returns what pip's report says would be installed, sorted, with build tags.
func reported(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Install []struct {
			Metadata     struct{ Name, Version string }
			DownloadInfo struct{ URL string } `json:"download_info"`
		}
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range report.Install {
		text := p.Metadata.Name + "==" + p.Metadata.Version
		if parts := strings.Split(p.DownloadInfo.URL, "-"); len(parts) == 6 {
			text += " (" + parts[2] + ")"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// writeSdist writes a source distribution without any source.
func writeSdist(t *testing.T, dir, name, version string) index.NewFile {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	text := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	if err := w.WriteHeader(&tar.Header{Name: name + "-" + version + "/PKG-INFO", Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name+"-"+version+".tar.gz")
	if err := errors.Join(w.Close(), z.Close(), os.WriteFile(path, buf.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	return index.NewFile{Path: path, UploadTime: day}
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
		indextest.DependWheel(t, dir, "fa-1+cu128.torch2.9-py3-none-any.whl", "torch==2.9.*", "einops"),
		indextest.DependWheel(t, dir, "fa-1+cu130.torch2.9-py3-none-any.whl", "torch==2.9.*", "einops"),
		indextest.DependWheel(t, dir, "fa-2+cu128.torch2.10-py3-none-any.whl", "torch==2.10.*", "einops"),
		indextest.DependWheel(t, dir, "torch-2.9.1+cu128-py3-none-any.whl"),
		indextest.DependWheel(t, dir, "torch-2.9.1+cu130-py3-none-any.whl"),
		indextest.DependWheel(t, dir, "einops-0.8-py3-none-any.whl"),
		indextest.DependWheel(t, dir, "einops-0.9-py3-none-any.whl"),
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
	if _, problems, err := elsewhere.AddDir(t.Context(), dir, index.ScanOptions{Base: serve(t, dir) + "/", WriteMetadata: true}); err != nil || problems != nil {
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
					if test.uvOnly && client.name != "uv" && !indextest.E2E() {
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
	python := indextest.Tool(t, "python", "KILN_PYTHON")
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import pypi_simple").CombinedOutput(); err != nil {
		kilntest.Lacking(t, "pypi-simple", "the Python of KILN_PYTHON has no pypi-simple: %s", out)
	}
	store := openStore(t, t.TempDir())
	publish(t, store, indextest.Wheels(t, fa128, fa130)...)
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
