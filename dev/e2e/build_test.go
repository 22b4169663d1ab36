package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// repository returns the path of something in this repository, which must be there.
func repository(t *testing.T, elem ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{"..", ".."}, elem...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// needBuild skips unless make e2e-build runs the tests, and fails there without the images.
func needBuild(t *testing.T, images ...string) {
	t.Helper()
	kilntest.NeedE2E(t, "build")
	if runtime.GOOS != "linux" {
		t.Fatal("needs Linux")
	}
	for _, name := range images {
		box, err := containers(t).Open(t.Context(), sandbox.Spec{Name: "probe", Owner: "probe", Image: prefix + name})
		if err != nil {
			t.Fatalf("image %s: %v\n  make e2e-images makes it", name, err)
		}
		if err := box.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func containers(t *testing.T) *sandbox.Containers {
	return sandbox.Container(sandbox.ContainerOptions{
		Runtime: "podman", RuntimeArgs: []string{"--runtime", "runc"}, CABundle: os.Getenv("SSL_CERT_FILE"), LockDir: t.TempDir(),
	})
}

var makeKiln = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kiln-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kiln")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", path, "../../cmd/kiln") // once for all tests
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// kiln is the static program, which reads the torch of an image from inside.
func kiln(t *testing.T) string {
	t.Helper()
	path, err := makeKiln()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// planOf plans a configuration file; a text instead of a path is written first.
func planOf(t *testing.T, file string) (*matrix.Plan, build.Options) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parsed, found := matrix.Parse(file, text)
	if found.HasErrors() {
		t.Fatal(found)
	}
	versions, found := parsed.ReadVersions()
	if found.HasErrors() {
		t.Fatal(found)
	}
	plan := parsed.Plan(matrix.Options{Versions: versions})
	if plan.Findings.HasErrors() {
		t.Fatal(plan.Findings)
	}
	state := t.TempDir()
	return plan, build.Options{
		Dir: filepath.Dir(file), StateDir: filepath.Join(state, "state"), DistDir: filepath.Join(state, "dist"), Sandboxes: containers(t), Kiln: kiln(t),
		Network: build.Network{CertFile: os.Getenv("SSL_CERT_FILE")},
	}
}

func runRows(t *testing.T, plan *matrix.Plan, opts build.Options) *build.Result {
	t.Helper()
	result, err := build.Run(t.Context(), plan, plan.Rows, opts)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func logOf(r build.RowResult) string {
	text, err := os.ReadFile(filepath.Join(r.Dir, engine.LogName))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-6000):])
}

// TestE2EBuild builds hello-cuda with CUDA 11.8, CUDA 12.4 and without a toolkit, a HIP
// package and a torch extension, each in its own image, tested in its runtime image.
func TestE2EBuild(t *testing.T) {
	needBuild(t, "bookworm-cuda118", "bookworm-runtime", "trixie-cuda124", "trixie-runtime", "sid-python314", "sid-python314-runtime",
		"trixie-hip", "trixie-hip-runtime", "trixie-torch26", "trixie-torch26-runtime")
	plan, opts := planOf(t, filepath.Join("testdata", "packages.yml"))
	result := runRows(t, plan, opts)
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone || r.Record == nil || r.Record.Test.Result != "passed" {
			t.Errorf("%s is %s: %v\n%s", r.Row.ID, r.Status, r.Err, logOf(r))
			continue
		}
		t.Logf("%s: %s, peak %d MB, %d bytes", r.Row.ID, r.Wall.Round(1e9), r.JobReport.Result.PeakMemoryBytes/1e6, r.Record.Files[0].Size)
		if !r.Record.Test.NetworkOff || r.Record.Image == "" || r.Record.Test.Image == r.Record.Image {
			t.Errorf("%s: built in %q, tested in %q, network off %v", r.Row.ID, r.Record.Image, r.Record.Test.Image, r.Record.Test.NetworkOff)
		}
	}
	again := runRows(t, plan, opts)
	if n := again.Count(engine.StatusReused); n != len(plan.Rows) {
		t.Errorf("the second run reused %d of %d rows", n, len(plan.Rows))
	}
}

// write writes a project into a new folder and returns the path of its packages.yml.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "packages.yml")
}

const hungrySetup = `
import os, time
# A compiler with an appetite: the memory is touched, and held while others start.
data = bytearray(int(os.environ["HUNGER_MB"]) << 20)
for i in range(0, len(data), 4096):
    data[i] = 1
time.sleep(3)
from setuptools import Extension, setup
setup(name="hungry", version="1.0", ext_modules=[Extension("hungry", ["native.c"])])
`

const hungryC = `
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "hungry", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_hungry(void) { return PyModule_Create(&module); }
`

// TestE2EMemory: with memory for two of six rows at once, nothing is killed for memory, and
// never more than two run. Then a row that needs more than its limit is killed, tried again
// with less, and fails with the reason.
func TestE2EMemory(t *testing.T) {
	needBuild(t, "ci")
	files := map[string]string{
		"packages.yml": fmt.Sprintf(`
packages:
  hungry:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [build, setuptools]
    image: %sci
    test: {image: %sci}
    local_version: "{flavor}"
    env: {HUNGER_MB: 300}
    resources: {jobs: 1, memory_per_job: 600 MiB}
    matrix:
      - {os: debian-12, python: "3.11", axes: {flavor: [a, b, c, d, e, f]}}
`, prefix, prefix),
		"src/setup.py": hungrySetup, "src/native.c": hungryC,
	}
	plan, opts := planOf(t, write(t, files))
	opts.MemoryBytes, opts.CPU = 1300<<20, 6
	var running, most atomic.Int64
	opts.OnEvent = func(e engine.Event) {
		switch e.Kind {
		case engine.EventStarted:
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
		case engine.EventFinished, engine.EventFailed, engine.EventRetry:
			running.Add(-1)
		default:
		}
	}
	result := runRows(t, plan, opts)
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone || r.Attempts != 1 {
			t.Errorf("%s is %s after %d attempts: %v", r.Row.ID, r.Status, r.Attempts, r.Err)
		}
		if peak := r.JobReport.Result.PeakMemoryBytes; peak < 300<<20 {
			t.Errorf("%s: a peak of %d MB was measured, and it used 300", r.Row.ID, peak>>20)
		}
	}
	if most.Load() != 2 {
		t.Errorf("%d rows ran at once, want 2", most.Load())
	}

	t.Run("too large", func(t *testing.T) {
		files["packages.yml"] = strings.Replace(files["packages.yml"], "HUNGER_MB: 300", "HUNGER_MB: 1500", 1)
		files["packages.yml"] = strings.Replace(files["packages.yml"], "[a, b, c, d, e, f]", "[a]", 1)
		plan, opts := planOf(t, write(t, files))
		result := runRows(t, plan, opts)
		r := result.Rows[0]
		e, ok := errors.AsType[*build.RowError](r.Err)
		if !ok || r.Cause != engine.CauseMemory || r.Attempts != 3 || e.Diagnosis.ID != "oom" {
			t.Errorf("got %s, cause %s, %d attempts: %v", r.Status, r.Cause, r.Attempts, r.Err)
		}
		if _, err := os.Stat("oom"); err == nil {
			t.Error("podman left a file called oom in the working folder")
		}
	})
}

// TestE2EFailures provokes what goes wrong in containers.
func TestE2EFailures(t *testing.T) {
	needBuild(t, "ci", "trixie-runtime", "trixie-cuda124")
	plain := map[string]string{"src/setup.py": strings.Replace(hungrySetup, `int(os.environ["HUNGER_MB"])`, "1", 1), "src/native.c": hungryC}
	plain["packages.yml"] = strings.NewReplacer("IMAGE/", prefix).Replace(`
x-shared: &shared {versions: ["1.0"], source: {path: src}, extra_deps: [build, setuptools]}
packages:
  runtimeimage: {<<: *shared, image: IMAGE/trixie-runtime, matrix: [{os: debian-13, python: "3.13", cuda: "12.4.0"}]}
  noimage: {<<: *shared, image: IMAGE/does-not-exist, matrix: [{os: debian-12, python: "3.11"}]}
  nopython: {<<: *shared, image: IMAGE/ci, python: {source: image}, matrix: [{os: debian-12, python: "3.13"}]}
  wrongcuda: {<<: *shared, image: IMAGE/trixie-cuda124, matrix: [{os: debian-13, python: "3.13", cuda: "12.6.3"}]}
  slow:
    <<: *shared
    image: IMAGE/ci
    resources: {wall_time: 20s}
    build: {patches: [{file: setup.py, find: "time.sleep(3)", replace: "time.sleep(300)"}]}
    matrix: [{os: debian-12, python: "3.11"}]
`)
	plan, opts := planOf(t, write(t, plain))
	result := runRows(t, plan, opts)
	got := map[string]string{}
	for _, r := range result.Rows {
		got[r.Row.Package] = string(r.Status)
		if e, ok := errors.AsType[*build.RowError](r.Err); ok {
			got[r.Row.Package] += " " + e.Stage + " " + e.Diagnosis.ID
		}
	}
	want := map[string]string{
		"runtimeimage": "failed preflight no-nvcc",
		"noimage":      "failed prepare image-not-found",
		"nopython":     "failed prepare no-python",
		"wrongcuda":    "failed preflight no-nvcc",
		"slow":         "failed compile time-limit",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
		for _, r := range result.Rows {
			t.Logf("%s: %v\n%s", r.Row.ID, r.Err, logOf(r))
		}
	}
}

// TestE2EDiskFull builds on a file system that is too small.
func TestE2EDiskFull(t *testing.T) {
	needBuild(t, "ci")
	dir := t.TempDir()
	mount(t, dir, "size=12m")
	plain := map[string]string{
		"src/setup.py": "import os\nopen('ballast', 'wb').write(b'x' * (64 << 20))\n",
		"packages.yml": `packages: {big: {versions: ["1.0"], source: {path: src}, extra_deps: [build, setuptools], image: ` + prefix + `ci, matrix: [{os: debian-12, python: "3.11"}]}}`,
	}
	plan, opts := planOf(t, write(t, plain))
	opts.StateDir = filepath.Join(dir, "state")
	result := runRows(t, plan, opts)
	r := result.Rows[0]
	if r.Status != engine.StatusFailed || r.Cause != engine.CauseDisk {
		t.Errorf("got %s, cause %s: %v", r.Status, r.Cause, r.Err)
	}
}

// TestE2ECUDACheck builds with CUDA 13 for a torch of CUDA 12: refused, unless packages.yml says
// that torch's check is to be switched off; then the record says so.
func TestE2ECUDACheck(t *testing.T) {
	needBuild(t, "trixie-torch26", "trixie-torch26-runtime")
	torchExt, err := filepath.Abs(filepath.Join("testdata", "torch-ext"))
	if err != nil {
		t.Fatal(err)
	}
	plan, opts := planOf(t, write(t, map[string]string{"packages.yml": strings.NewReplacer("IMAGE/", prefix, "TORCH-EXT", torchExt).Replace(`
x-shared: &shared
  versions: ["0.1.0"]
  source: {path: TORCH-EXT}
  extra_deps: [build, "setuptools<80", wheel, ninja, nvidia-cuda-nvcc==13.0.*, nvidia-cuda-crt==13.0.*, nvidia-nvvm==13.0.*, nvidia-cuda-runtime==13.0.*, nvidia-cuda-cccl==13.0.*]
  torch_source: {system: true}
  image: IMAGE/trixie-torch26
  test: {image: IMAGE/trixie-torch26-runtime}
  matrix: [{os: debian-13, python: "3.13", cuda: "13.0.2", torch: "2.6.0", arch: "9.0"}]
packages:
  torch-ext: {<<: *shared}
  torch-ext-bypass:
    <<: *shared
    build: {cuda_check: bypass, patches: [{file: setup.py, find: 'name="torch-ext"', replace: 'name="torch-ext-bypass"'}]}
`)}))
	for _, r := range runRows(t, plan, opts).Rows {
		log := logOf(r)
		if r.Row.Package == "torch-ext" {
			if e, ok := errors.AsType[*build.RowError](r.Err); !ok || e.Diagnosis.ID != "torch-cuda" {
				t.Errorf("strict: %s, %v\n%s", r.Status, r.Err, log)
			}
			continue
		}
		t.Logf("bypass: %s, %v", r.Status, r.Err)
		if !strings.Contains(log, "== collect:") || strings.Contains(log, "CUDA version mismatch") {
			t.Errorf("bypass: it does not compile\n%s", log)
		}
		if r.Status == engine.StatusDone && !slices.ContainsFunc(r.Record.Patches, func(p record.Patch) bool { return strings.Contains(p.File, "cpp_extension") && p.Places > 0 }) {
			t.Errorf("bypass: the record does not say so: %+v", r.Record.Patches)
		}
	}
}
