package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
)

// The library is built once, by the first test that needs it.
var built struct {
	once sync.Once
	dir  string
	err  error
	log  []byte
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// library returns a folder with libkiln.so and the Python module _fast.
func library(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("libkiln is a library for Linux")
	}
	if _, err := exec.LookPath(compiler()); err != nil {
		kilntest.Lacking(t, "cc", "no C compiler")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "libkiln"); built.err != nil { //nolint:usetesting // lives as long as all tests
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s -w", //nolint:noctx // outlives the test
			"-o", filepath.Join(built.dir, "libkiln.so"), ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if built.log, built.err = cmd.CombinedOutput(); built.err != nil {
			return
		}
		script := "import sys; sys.path.insert(0, '../../python'); import backend; backend.build_fast(sys.argv[1])"
		if path := interpreter(); path != "" {
			built.log, built.err = exec.Command(path, "-c", script, filepath.Join(built.dir, "_fast.abi3.so")).CombinedOutput() //nolint:noctx // as above
		}
	})
	if built.err != nil {
		t.Fatalf("build libkiln: %v\n%s", built.err, built.log)
	}
	return built.dir
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

// run runs a command in a folder and returns what it wrote to standard output.
func run(t *testing.T, dir string, env []string, argv ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out.Bytes(), log.Bytes())
	}
	return out.Bytes()
}

// TestC compiles a program with the header alone and runs it with the library.
func TestC(t *testing.T) {
	lib := library(t)
	program := filepath.Join(t.TempDir(), "cpu")
	run(t, "testdata", nil, compiler(), "-std=c99", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", "..", "-o", program, "cpu.c",
		"-L", lib, "-lkiln", "-lpthread", "-lm", "-Wl,-rpath,"+lib)
	if got := string(run(t, "", nil, program)); got != "ok\n" {
		t.Errorf("output %q, want ok", got)
	}
}

// TestHeaderIsCPlusPlus: the header is for C++ too.
func TestHeaderIsCPlusPlus(t *testing.T) {
	cxx, err := exec.LookPath("c++")
	if err != nil {
		kilntest.Lacking(t, "cc", "no C++ compiler")
	}
	source := filepath.Join(t.TempDir(), "h.cc")
	if err := os.WriteFile(source, []byte("#include <kiln.h>\nint main() { return kiln_abi_version() - KILN_ABI_VERSION; }\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	run(t, "", nil, cxx, "-Wall", "-Werror", "-fsyntax-only", "-I", ".", source)
}

func interpreter() string {
	if path := os.Getenv("KILN_PYTHON"); path != "" {
		return path
	}
	path, _ := exec.LookPath("python3")
	return path
}

// python returns an interpreter with numpy and the environment in which it finds the package and
// the library.
func python(t *testing.T) (string, []string) {
	t.Helper()
	path := interpreter()
	if path == "" || exec.CommandContext(t.Context(), path, "-c", "import numpy").Run() != nil {
		kilntest.Lacking(t, "python", "no Python with numpy; KILN_PYTHON can name one")
	}
	root, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	return path, []string{
		"KILN_LIBRARY=" + filepath.Join(library(t), "libkiln.so"), "PYTHONPATH=" + root, "PYTHONDONTWRITEBYTECODE=1", "KILN_TEST_DEVICE=",
	}
}

// TestPython runs the tests of the Python package.
func TestPython(t *testing.T) {
	interpreter, env := python(t)
	run(t, "../../python/tests", env, interpreter, "-W", "error", "-m", "unittest", "discover", "-s", ".")
}

// TestPythonDriver runs the Python package with a CUDA driver that has no GPU and writes down what
// it is asked for.
func TestPythonDriver(t *testing.T) {
	interpreter, env := python(t)
	dir := t.TempDir()
	run(t, "../../model/quant/cuda/testdata", nil, compiler(), "-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "libcuda.so.1"), "fakedriver.c")
	env = append(env, "LD_LIBRARY_PATH="+dir)
	run(t, "../../python/tests", env, interpreter, "-W", "error", "fake_gpu.py")
	t.Logf("%s", run(t, "../../python/tests", env, interpreter, "fake_gpu.py", "cost"))
	// The same in a folder without the module _fast.
	alone := t.TempDir()
	if err := os.Symlink(filepath.Join(library(t), "libkiln.so"), filepath.Join(alone, "libkiln.so")); err != nil {
		t.Fatal(err)
	}
	env = append(env, "KILN_LIBRARY="+filepath.Join(alone, "libkiln.so"), "KILN_TEST_FAST=0")
	run(t, "../../python/tests", env, interpreter, "-W", "error", "fake_gpu.py")
	t.Logf("%s", run(t, "../../python/tests", env, interpreter, "fake_gpu.py", "cost"))
}

// TestPythonEqualsGo: what comes through C and Python is, bit for bit, what the package quant
// computes.
func TestPythonEqualsGo(t *testing.T) {
	interpreter, env := python(t)
	var got map[string]map[string]string
	if err := json.Unmarshal(run(t, "../../python/tests", env, interpreter, "goldens.py", "cpu"), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{}
	cpu, err := quant.NewCPU(quant.CPUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"exl2", "gptq"} {
		f, err := safetensors.Open("../../model/quant/testdata/" + format + ".safetensors")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, tensor := range f.Header().Tensors {
			if key, ok := strings.CutSuffix(tensor.Name, ".recon"); ok {
				want[format+"/"+key] = hashes(t, cpu, f, format, key)
			}
		}
	}
	if len(want) != 21 {
		t.Errorf("%d golden matrices, want 21", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-Go +Python):\n%s", diff)
	}
}

func hashes(t *testing.T, cpu *quant.CPU, f *safetensors.File, format, key string) map[string]string {
	t.Helper()
	load := func() (*quant.QMatrix, error) { return quant.LoadEXL2(quant.Files(f), key, quant.EXL2Options{}) }
	if format == "gptq" {
		load = func() (*quant.QMatrix, error) { return quant.LoadGPTQ(quant.Files(f), key, quant.GPTQOptions{}) }
	}
	m, err := load()
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Reader(key + ".x")
	if err != nil {
		t.Fatal(err)
	}
	activations := make([]byte, r.Size())
	if _, err := r.ReadAt(activations, 0); err != nil {
		t.Fatal(err)
	}
	rows := len(activations) / 2 / m.Rows()
	result, weights := make([]byte, 2*rows*m.Cols()), make([]byte, 2*m.Rows()*m.Cols())
	x, err := quant.NewHalf(rows, m.Rows(), activations)
	if err != nil {
		t.Fatal(err)
	}
	y, err := quant.NewHalf(rows, m.Cols(), result)
	if err != nil {
		t.Fatal(err)
	}
	w, err := cpu.Upload(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := cpu.Gemm(t.Context(), y, x, w, quant.GemmOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Dequantize(weights); err != nil {
		t.Fatal(err)
	}
	hash := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	return map[string]string{"gemm": hash(result), "weights": hash(weights)}
}
