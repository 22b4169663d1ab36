package jit_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/jit"
)

// fakeTorch makes a virtual environment with a package that is built like torch: version, headers,
// libraries. It is small, and compiles for real.
func (p *project) fakeTorch(version, cuda string) (site string) {
	t := p.t
	t.Helper()
	venv := filepath.Join(t.TempDir(), "venv")
	if out, err := exec.CommandContext(t.Context(), p.python, "-m", "venv", "--without-pip", venv).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages"))
	if err != nil || len(found) != 1 {
		t.Fatalf("site-packages: %q, %v", found, err)
	}
	p.python = filepath.Join(venv, "bin", "python")
	p.torchVersion(found[0], version, cuda)
	p.torchFile(found[0], "include/torch/extension.h", "#include <Python.h>\nint c10_scale(int);\n")
	p.torchFile(found[0], "include/torch/csrc/api/include/torch/all.h", "")
	names := []string{"c10", "torch", "torch_cpu", "torch_python"}
	if cuda != "" {
		names = append(names, "c10_cuda", "torch_cuda")
	}
	for _, name := range names {
		p.torchLibrary(found[0], name, 2)
	}
	return found[0]
}

func (p *project) torchVersion(site, version, cuda string) {
	p.torchFile(site, "version.py", fmt.Sprintf("__version__ = '%s'\ncuda = '%s'\ngit_version = 'abc'\n", version, cuda))
}

func (p *project) torchFile(site, name, text string) {
	p.t.Helper()
	path := filepath.Join(site, "torch", filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		p.t.Fatal(err)
	}
	// As package managers do it: the new file takes the place of the old one.
	if err := os.WriteFile(path+".new", []byte(text), 0o666); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		p.t.Fatal(err)
	}
}

func (p *project) torchLibrary(site, name string, scale int) {
	p.t.Helper()
	p.torchFile(site, "lib/"+name+".c", fmt.Sprintf("int %s_scale(int x) { return %d * x; }\nconst char %s_tag[] = \"__pybind11_internals_v4_gcc_libstdcpp_cxxabi1018__\";\n", name, scale, name))
	lib := filepath.Join(site, "torch", "lib")
	cmd := exec.CommandContext(p.t.Context(), "g++", "-x", "c", "-shared", "-fPIC", "-Wl,--build-id", filepath.Join(lib, name+".c"), "-o", filepath.Join(lib, "lib"+name+".so"))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
}

const torchC = `
#include <torch/extension.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(c10_scale(21)); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", NULL, -1, methods};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&module); }
`

// TestTorch: flags of an extension, and that every change of an installed torch is seen, also one
// that leaves its version alone.
func TestTorch(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	if runtime.GOOS != "linux" {
		t.Skip("makes Linux libraries")
	}
	site := p.fakeTorch("2.6.0+cpu", "")
	p.write("tiny.yml", "name: tiny\ntorch: true\nsources: [src/tiny.c]\nflags: {cxx: [-O0]}\n")
	p.write("src/tiny.c", torchC)
	opts := p.options()
	load := func(source string, remembered bool) *jit.Result {
		t.Helper()
		r, err := jit.Load(t.Context(), p.spec(), opts)
		if err != nil {
			t.Fatalf("%v\n%s", err, details(err))
		}
		if r.Source != source || r.Remembered != remembered {
			t.Errorf("source %s, remembered %v; want %s, %v", r.Source, r.Remembered, source, remembered)
		}
		return r
	}
	r := load(jit.SourceBuilt, false)
	if !r.Torch {
		t.Error("the result does not say that torch is needed")
	}
	load(jit.SourceCache, true)
	e, err := jit.Explain(t.Context(), p.spec(), opts)
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	for _, in := range e.Inputs {
		if strings.HasSuffix(in.Name, " flags") {
			flags[in.Name] = in.Value
		}
	}
	want := map[string]string{
		"c flags": `-DTORCH_EXTENSION_NAME=tiny -DTORCH_API_INCLUDE_EXTENSION_H -DPYBIND11_COMPILER_TYPE="_gcc" -DPYBIND11_STDLIB="_libstdcpp" -DPYBIND11_BUILD_ABI="_cxxabi1018" ` +
			`-isystem {torch}/include -isystem {torch}/include/torch/csrc/api/include -isystem {python} -fPIC -x c -O0`,
		"link flags": "-shared -L{torch}/lib -lc10 -ltorch_cpu -ltorch -ltorch_python -o {output}",
	}
	if diff := cmp.Diff(want, flags); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}

	changes := []struct {
		name   string
		change func()
	}{
		{"version", func() { p.torchVersion(site, "2.6.1+cpu", "") }},
		{"library of the same version", func() { p.torchLibrary(site, "torch_cpu", 3) }},
		{"list of files", func() {
			path := filepath.Join(site, "torch-2.6.1.dist-info", "RECORD")
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("torch/x,sha256=1,1\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}},
		{"header", func() {
			p.torchFile(site, "include/torch/extension.h", "#include <Python.h>\nint c10_scale(int);\n#define NEW 1\n")
		}},
	}
	for _, tt := range changes {
		tt.change()
		old := r
		if r = load(jit.SourceBuilt, false); r.Path == old.Path {
			t.Errorf("%s: the module is the same", tt.name)
		}
		load(jit.SourceCache, true)
	}

	// A symbol that torch no longer has is found before the module is imported.
	p.torchFile(site, "include/torch/extension.h", "#include <Python.h>\nint c10_scale(int);\nint c10_gone(void);\n")
	p.write("src/tiny.c", torchC+"int use(void) { return c10_gone(); }\n")
	_ = p.failure(opts, "undefined-symbol")

	t.Run("CPU build for CUDA sources", func(t *testing.T) {
		p.write("k.cu", "")
		p.write("tiny.yml", "name: tiny\ntorch: true\nsources: [k.cu]\n")
		p.write("cuda/bin/nvcc", fakeNVCC)
		o := opts
		o.CUDAHome = p.path("cuda")
		p.cudaParts()
		_ = p.failure(o, "torch-cpu")
	})
}

const fakeNVCC = `#!/bin/sh
case $1 in
--version) echo 'Cuda compilation tools, release 12.4, V12.4.131' ;;
--list-gpu-code) printf 'sm_80\nsm_86\nsm_90\n' ;;
*) exit 1 ;;
esac
`

// cudaParts makes the rest of a toolkit.
func (p *project) cudaParts() {
	for _, f := range []string{"bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc", "include/cuda_runtime.h", "lib64/libcudart.so"} {
		p.write("cuda/"+f, "")
	}
	p.write("cuda/include/crt/host_config.h", "#if __GNUC__ > 99\n")
}

// TestNinja: the file that is written for ninja has the commands of torch's builder.
func TestNinja(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	if runtime.GOOS != "linux" {
		t.Skip("makes Linux libraries")
	}
	site := p.fakeTorch("2.6.0+cu124", "12.4")
	p.write("cuda/bin/nvcc", fakeNVCC)
	p.cudaParts()
	p.write("tiny.yml", "name: tiny\ntorch: true\nsources: [a b/x.cpp, c/x.cpp, k.cu]\ninclude: [inc]\nflags: {nvcc: [-lineinfo]}\nlibraries: [m]\n")
	for _, f := range []string{"a b/x.cpp", "c/x.cpp", "k.cu"} {
		p.write(f, "")
	}
	opts := p.options()
	opts.CUDAHome, opts.Archs, opts.Debug = p.path("cuda"), "9.0+PTX 8.0", true
	out := t.TempDir()
	path, err := jit.ExportNinja(t.Context(), p.spec(), opts, out)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The interpreter and its headers are whatever this machine has.
	got := strings.NewReplacer(
		p.dir, "PROJECT", out, "OUT", site, "SITE", "-isystem "+ask(t, p.python, "sysconfig.get_paths()['include']"), "-isystem PYTHON",
		"tiny"+ask(t, p.python, "sysconfig.get_config_var('EXT_SUFFIX')"), "MODULE",
	).Replace(string(text))
	kilntest.Golden(t, "testdata/build.ninja", []byte(got))
}

// ask evaluates an expression about an interpreter.
func ask(t *testing.T, python, expression string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), python, "-c", "import sysconfig; print("+expression+")").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

const cudaSource = `
#include <Python.h>
__global__ void twice(int *x) { *x *= 2; }
static PyObject *answer(PyObject *, PyObject *) { cudaFuncAttributes a; cudaFuncGetAttributes(&a, twice); cudaGetLastError(); return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_tiny() { return PyModule_Create(&module); }
`

// TestCUDA compiles with the nvcc from PyPI, for a module without torch. No GPU is needed.
func TestCUDA(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	homes, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(p.python)), "lib", "python*", "site-packages", "nvidia", "cu*", "bin", "nvcc"))
	if err != nil || len(homes) == 0 {
		kilntest.Lacking(t, "nvcc", "no nvcc among the packages of KILN_PYTHON")
	}
	p.write("tiny.yml", "name: tiny\nsources: [k.cu]\narchs: \"9.0\"\n")
	p.write("k.cu", cudaSource)
	opts := p.options() // no CUDA_HOME: the nvcc that a probe finds is the one that is used
	opts.Env = append(opts.Env, "CUDA_HOME=", "CUDA_PATH=")
	r := p.load(opts, jit.SourceBuilt, false, "42")
	if r.Archs != "9.0" {
		t.Errorf("archs %q", r.Archs)
	}
	p.load(opts, jit.SourceCache, true, "42")
	opts.Archs = "8.0"
	p.load(opts, jit.SourceBuilt, false, "42")
}
