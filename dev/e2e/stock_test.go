package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// stockFamily is one kind of image that people have, made to look alike by stock-images.sh.
type stockFamily struct {
	name    string
	image   string // "" for the default image of CUDA rows
	devel   string // its name
	test    string // the image of the test, "" for the twin of the image
	other   string // where the wheels are installed by pip alone
	pythons []string
	cuda    string
	glibc   string
	deps    string // further requirements of CUDA rows
	torch   string // the torch rows; "" for none
	tooNew  string // a Python that needs a newer glibc than the image has
}

var stockFamilies = []stockFamily{
	{
		name: "ubuntu", devel: "nvidia/cuda:13.0.2-devel-ubuntu22.04", other: "docker.io/library/cuda:12.4-runtime-debian13", pythons: []string{"3.12", "3.13"}, cuda: "13.0.2", glibc: "2.35",
		torch: `{os: ubuntu-22.04, python: PYTHONS, torch: "2.6.0", image: "nvidia/cuda:13.0.2-devel-ubuntu22.04"}`,
	},
	{
		name: "manylinux", image: "quay.io/pypa/manylinux_2_28_x86_64", devel: "quay.io/pypa/manylinux_2_28_x86_64", test: "docker.io/library/debian:11-slim",
		other: "nvidia/cuda:13.0.2-runtime-ubuntu22.04", pythons: []string{"3.10", "3.12"}, cuda: "13.0.2", glibc: "2.31",
		deps:  "nvidia-cuda-nvcc==13.0.*, nvidia-cuda-crt==13.0.*, nvidia-nvvm==13.0.*, nvidia-cuda-runtime==13.0.*, nvidia-cuda-cccl==13.0.*",
		torch: `{os: debian-11, python: PYTHONS, torch: "2.6.0", image: quay.io/pypa/manylinux_2_28_x86_64}`,
	},
	{
		name: "debian", image: "docker.io/library/cuda:12.4-devel-debian13", devel: "docker.io/library/cuda:12.4-devel-debian13", other: "docker.io/library/cuda:12.4-runtime-debian13",
		pythons: []string{"3.12", "3.13"}, cuda: "12.4.0", glibc: "2.41",
		torch: `{os: debian-13, python: PYTHONS, torch: "2.6.0", image: "docker.io/library/cuda:12.4-devel-debian13"}`,
	},
	// Their GCC is too old for torch 2.6.
	{
		name: "rocky", image: "nvidia/cuda:13.0.2-devel-rockylinux8", devel: "nvidia/cuda:13.0.2-devel-rockylinux8", other: "docker.io/library/debian:11-slim",
		pythons: []string{"3.10", "3.11"}, cuda: "13.0.2", glibc: "2.28", tooNew: "3.13",
	},
	{
		name: "ubi", image: "nvidia/cuda:13.0.2-devel-ubi8", devel: "nvidia/cuda:13.0.2-devel-ubi8", other: "nvidia/cuda:13.0.2-runtime-ubuntu22.04",
		pythons: []string{"3.11"}, cuda: "13.0.2", glibc: "2.28",
	},
	{
		name: "pytorch", image: "docker.io/pytorch/manylinux2_28-builder:cuda13.0", devel: "docker.io/pytorch/manylinux2_28-builder:cuda13.0",
		test: "docker.io/library/debian:11-slim", other: "nvidia/cuda:13.0.2-runtime-ubuntu22.04", pythons: []string{"3.10", "3.12"}, cuda: "13.0.2", glibc: "2.28", tooNew: "3.13",
	},
}

// stockCache is where stock-images.sh puts Pythons and torch.
func stockCache(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".cache", "images", "stock"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// packages writes the packages.yml of a family.
func (f *stockFamily) packages(t *testing.T, torch bool) string {
	t.Helper()
	here, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	pythons := `["` + strings.Join(f.pythons, `", "`) + `"]`
	image := ""
	if f.test != "" {
		image = ", image: " + f.test
	}
	if torch {
		return fmt.Sprintf(`
packages:
  stock-torch:
    versions: ["0.1.0"]
    source: {path: %q}
    extra_deps: [build, setuptools, wheel]
    torch_source: {path: %q}
    test_import: stock_torch
    local_version: ""
    test: {expressions: ["stock_torch.answer()"]%s}
    resources: {jobs: 1, memory_per_job: 3 GiB}
    matrix:
      - %s
`, filepath.Join(here, "dev/e2e/testdata/stock-torch"), filepath.Join(stockCache(t), "torch"), image, strings.ReplaceAll(f.torch, "PYTHONS", pythons))
	}
	row := fmt.Sprintf(`{os: ubuntu-22.04, python: %s, cuda: %q, arch: "7.5 9.0+PTX"`, pythons, f.cuda)
	if f.image != "" {
		row += ", image: " + f.image
	}
	if f.deps != "" {
		row += ", extra_deps: [" + f.deps + "]"
	}
	return fmt.Sprintf(`
packages:
  hello-cuda:
    source: {path: %q}
    version_from: {file: pyproject.toml}
    extra_deps: [build, "setuptools>=77"]
    env: {BUILD_TARGET: cuda}
    test: {expressions: ["hello_cuda.backend()"]%s}
    resources: {jobs: 1}
    matrix:
      - %s}
`, filepath.Join(here, "examples/hello-cuda"), image, row)
}

// TestE2EStock builds hello-cuda and a torch extension in look-alikes of stock images, with Pythons
// that the images lack and kiln brings: built without network, audited, tested in the runtime twin,
// installed by pip in another image.
func TestE2EStock(t *testing.T) {
	kilntest.NeedE2E(t, "stock")
	store := t.TempDir()
	for _, f := range stockFamilies {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel() // most of the time is that of pip
			f.bare(t)
			t.Run("hello-cuda", func(t *testing.T) { f.build(t, store, false) })
			if f.torch != "" {
				t.Run("torch", func(t *testing.T) { f.build(t, store, true) })
			}
			if f.tooNew != "" {
				t.Run("too-new", func(t *testing.T) { f.refuse(t, store) })
			}
		})
	}
}

// bare makes sure that the image lacks what stock images lack.
func (f *stockFamily) bare(t *testing.T) {
	t.Helper()
	box, err := containers(t).Open(t.Context(), sandbox.Spec{Name: "bare", Owner: "stock", Image: f.devel})
	if err != nil {
		t.Fatalf("%v\n  dev/e2e/stock-images.sh makes it", err)
	}
	var out bytes.Buffer
	look := `for p in python3 git ninja ccache; do command -v $p; done; for v in ` + strings.ReplaceAll(strings.Join(f.pythons, " "), ".", "") + `; do ls -d /opt/python/cp$v-cp$v 2>/dev/null; done; true`
	if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", look}, Env: []string{path}, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		t.Fatalf("%s has %q", f.devel, out.String())
	}
}

func (f *stockFamily) build(t *testing.T, store string, torch bool) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "packages.yml"), []byte(f.packages(t, torch)), 0o666); err != nil {
		t.Fatal(err)
	}
	env := stockEnv(t, store)
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), kiln(t), args...)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("kiln %q: %v\n%s", args, err, out)
			logs, _ := filepath.Glob(filepath.Join(dir, ".kiln", "attempts", "*", "log"))
			for _, name := range logs {
				text, _ := os.ReadFile(name)
				t.Logf("%s\n%s", name, text[max(0, len(text)-5000):])
			}
			t.FailNow()
		}
		return string(out)
	}
	if plan := run("plan", "--quiet"); !strings.Contains(plan, "manylinux_2_28") && !strings.Contains(plan, "manylinux_"+strings.ReplaceAll(f.glibc, ".", "_")) {
		t.Errorf("the plan does not say which tag the image gives:\n%s", plan)
	}
	start := time.Now()
	run("build", "--runner", "podman", "--engine-arg=--runtime=runc", "--jobs", "1")
	t.Logf("%d rows in %s", len(f.pythons), time.Since(start).Round(time.Second))
	n := 0
	for r, err := range record.All(filepath.Join(dir, "dist")) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		f.check(t, r)
		f.install(t, store, dir, r)
	}
	if n != len(f.pythons) {
		t.Errorf("%d rows were built, want %d", n, len(f.pythons))
	}
}

// refuse wants a build with a Python that the image cannot run to fail, with both versions of glibc
// in the message, and to leave nothing.
func (f *stockFamily) refuse(t *testing.T, store string) {
	g := *f
	g.pythons = []string{f.tooNew}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "packages.yml"), []byte(g.packages(t, false)), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), kiln(t), "build", "--runner", "podman", "--engine-arg=--runtime=runc")
	cmd.Dir, cmd.Env = dir, stockEnv(t, store)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "needs glibc 2.35 or newer, and the image "+f.image+" has 2.") {
		t.Errorf("%v:\n%s", err, out)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "dist", "*.whl")); len(files) > 0 {
		t.Errorf("built %q", files)
	}
}

func stockEnv(t *testing.T, store string) []string {
	t.Helper()
	return append(os.Environ(), "KILN_CACHE_DIR="+store, "UV_PYTHON_DOWNLOADS_JSON_URL="+filepath.Join(stockCache(t), "pythons", "downloads.json"))
}

// check looks at what the record says.
func (f *stockFamily) check(t *testing.T, r *record.Record) {
	t.Helper()
	id := r.Recipe.Row.ID
	switch {
	case r.Interpreter.Source != "managed" || r.Test.Interpreter.Source != "managed" || r.Interpreter.SHA256 != r.Test.Interpreter.SHA256:
		t.Errorf("%s: built with %+v, tested with %+v", id, r.Interpreter, r.Test.Interpreter)
	case r.Test.Result != "passed" || !r.Test.NetworkOff:
		t.Errorf("%s: test %s, network off: %v", id, r.Test.Result, r.Test.NetworkOff)
	case r.Test.Image == r.Image || r.Image == "":
		t.Errorf("%s: built and tested in %s", id, r.Image)
	case r.Audit == nil:
		t.Errorf("%s: no audit", id)
	}
	for _, c := range r.Commands {
		if c.Stage == "compile" && c.Network {
			t.Errorf("%s: %q had the network", id, c.Argv)
		}
	}
	t.Logf("%s: Python %s, %s, peak %d MB, %v", id, r.Interpreter.Version, r.Libc, r.PeakMemoryBytes/1e6, r.Test.Values)
}

// install lets pip alone install the wheel in another image, and imports it.
func (f *stockFamily) install(t *testing.T, store, dir string, r *record.Record) {
	t.Helper()
	version := r.Recipe.Row.Python
	homes, err := filepath.Glob(filepath.Join(store, "store", "python", "cpython-"+version+".*-linux-x86_64-gnu-*"))
	if err != nil || len(homes) != 1 {
		t.Fatalf("the store has %q for Python %s, want one", homes, version)
	}
	box, err := containers(t).Open(t.Context(), sandbox.Spec{Name: "elsewhere", Owner: "stock", Image: f.other, Mounts: []sandbox.Mount{
		{Host: filepath.Join(dir, "dist"), Inside: "/dist", ReadOnly: true},
		{Host: homes[0], Inside: "/python", ReadOnly: true},
		{Host: filepath.Join(stockCache(t), "torch"), Inside: "/torch", ReadOnly: true},
		{Host: t.TempDir(), Inside: "/venv"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	script := `set -e
/python/bin/python` + version + ` -m venv /venv/v
export PIP_DISABLE_PIP_VERSION_CHECK=1
`
	network := len(r.Recipe.Torch) > 0
	if network {
		script += "/venv/v/bin/pip install -q --no-compile --no-cache-dir --find-links /torch torch==2.6.0\n"
	}
	script += "/venv/v/bin/pip install -q --no-index /dist/" + r.Files[0].Name + "\n"
	for _, expression := range r.Recipe.Settings.Test.Expressions {
		module, _, _ := strings.Cut(expression, ".")
		script += "cd / && /venv/v/bin/python -c 'import " + module + "; print(" + expression + ")'\n"
	}
	var out bytes.Buffer
	if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", script}, Env: []string{path, "HOME=/venv", "TMPDIR=/venv"}, Network: network, Stdout: &out}); err != nil {
		t.Errorf("%s: %v\n%s", r.Recipe.Row.ID, err, out.String())
		return
	}
	t.Logf("%s: installed in %s: %s", r.Files[0].Name, f.other, strings.TrimSpace(out.String()))
}

// TestE2EStockSubmodule builds examples/llama-cpp-python with its CUDA code from a stand-in, for the
// toolkit that there is an image of.
func TestE2EStockSubmodule(t *testing.T) {
	kilntest.NeedE2E(t, "stock")
	root := t.TempDir()
	server := httptest.NewServer(kilntest.GitServer(t, root))
	defer server.Close()
	for _, name := range []string{"llama.cpp", "llama-cpp-python"} {
		if err := os.CopyFS(filepath.Join(root, name), os.DirFS(repository(t, "build", "testdata", "submodule", name))); err != nil {
			t.Fatal(err)
		}
	}
	kilntest.Repository(t, filepath.Join(root, "llama.cpp"), "b1")
	kilntest.Repository(t, filepath.Join(root, "llama-cpp-python"), "v0.3.16",
		[]string{"submodule", "--quiet", "add", server.URL + "/git/llama.cpp", "vendor/llama.cpp"},
		[]string{"-C", "vendor/llama.cpp", "checkout", "--quiet", "b1"})
	text, err := os.ReadFile(repository(t, "examples", "llama-cpp-python", "packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := strings.NewReplacer("https://github.com/abetlen", server.URL+"/git", `["12.6.3", "12.8.1"]`, `"13.0.2"`).Replace(string(text))
	if err := os.WriteFile(filepath.Join(dir, "packages.yml"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), kiln(t), "build", "--runner", "podman", "--engine-arg=--runtime=runc")
	cmd.Dir, cmd.Env = dir, stockEnv(t, t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kiln build: %v\n%s", err, out)
	}
	n := 0
	for r, err := range record.All(filepath.Join(dir, "dist")) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		t.Logf("%s: test %s, %s", r.Files[0].Name, r.Test.Result, r.Recipe.Row.Arch)
	}
	if n != 1 {
		t.Errorf("%d rows were built, want one", n)
	}
}

// TestE2EStockPrune builds a row in an image that only a registry has, which is this test. With
// --prune kiln removes what it pulled and what it made of it; an image that was there stays.
func TestE2EStockPrune(t *testing.T) {
	kilntest.NeedE2E(t, "stock")
	podman := func(env []string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "podman", args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	layout := t.TempDir()
	// Another ID than that of the image it is made of, so that nothing else goes with it.
	made, label := "localhost/kiln-throw-away:stock", "kiln.throw-away="+filepath.Base(filepath.Dir(layout))
	container, err := podman(nil, "create", "docker.io/library/debian:11-slim", "true")
	if err != nil {
		t.Fatal(container)
	}
	for _, args := range [][]string{
		{"commit", "-q", "--change", "LABEL " + label, container, made},
		{"rm", container},
		{"save", "-q", "--format", "oci-dir", "-o", layout, made},
		{"image", "rm", made},
	} {
		if out, err := podman(nil, args...); err != nil {
			t.Fatalf("podman %q: %v\n%s", args, err, out)
		}
	}
	registry := httptest.NewServer(serveLayout(t, layout))
	defer registry.Close()
	host := strings.TrimPrefix(registry.URL, "http://")
	image := host + "/kiln/throw-away:stock"
	dir, store := t.TempDir(), t.TempDir()
	config := filepath.Join(dir, "registries.conf")
	for name, text := range map[string]string{
		config: fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", host),
		filepath.Join(dir, "packages.yml"): fmt.Sprintf(`
packages:
  wordcount:
    source: {path: %q}
    version_from: {file: pyproject.toml}
    extra_deps: [hatchling]
    image: %q
    image_setup: ["touch /completed"]
    matrix: [{kind: sdist, python: "3.12"}]
`, repository(t, "examples", "pure-sdist"), image),
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	env := append(stockEnv(t, store), "CONTAINERS_REGISTRIES_CONF="+config)
	setups := func() []string {
		out, err := podman(env, "images", "-q", "--filter", "label="+label)
		if err != nil {
			t.Fatal(out)
		}
		return strings.Fields(out)
	}
	build := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), kiln(t), append([]string{"build", "--runner", "podman", "--engine-arg=--runtime=runc"}, args...)...)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kiln build: %v\n%s", err, out)
		}
		return string(out)
	}
	out := build("--prune")
	if left := setups(); len(left) > 0 {
		t.Errorf("--prune left %q\n%s", left, out)
	}
	if err := os.RemoveAll(filepath.Join(dir, "dist")); err != nil {
		t.Fatal(err)
	}
	if out, err := podman(env, "pull", "-q", image); err != nil {
		t.Fatal(out)
	}
	out = build("--prune")
	if left := setups(); len(left) != 1 {
		t.Errorf("an image that was there before: %q are left, want it alone\n%s", left, out)
	}
	if out, err := podman(env, "image", "rm", image); err != nil {
		t.Error(out)
	}
}

// serveLayout is a registry with one image, read from the folder that podman save writes.
func serveLayout(t *testing.T, dir string) http.Handler {
	t.Helper()
	var index struct {
		Manifests []struct{ Digest, MediaType string }
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil || len(index.Manifests) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	manifest := index.Manifests[0]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		digest := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		switch {
		case r.URL.Path == "/v2/":
			return
		case strings.HasSuffix(r.URL.Path, "/manifests/"+digest):
			digest = manifest.Digest
			w.Header().Set("Content-Type", manifest.MediaType)
			w.Header().Set("Docker-Content-Digest", digest)
		}
		http.ServeFile(w, r, filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:")))
	})
}
