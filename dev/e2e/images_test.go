// Package e2e_test builds with real toolkits in real containers. It needs the images that images.sh
// makes, minutes, and gigabytes of disk, so it runs only when KILN_E2E (a comma list) names images.
package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
)

const (
	prefix = "localhost/kiln-e2e/"
	path   = "PATH=/usr/local/bin:/usr/bin:/bin"
)

func TestMain(m *testing.M) {
	run.Main()
	os.Exit(m.Run())
}

// The sources of a module kiln_probe, whose function answer needs what was compiled from the device
// source.
var sources = map[string]string{
	"module.cpp": `#include <Python.h>
extern "C" int kiln_answer(void);
static PyObject *answer(PyObject *, PyObject *) { return PyLong_FromLong(kiln_answer()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "kiln_probe", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_kiln_probe(void) { return PyModule_Create(&module); }
`,
	"torch.cpp": `#include <torch/extension.h>
extern "C" int kiln_answer(void);
static int64_t answer() { return torch::ones({kiln_answer()}).sum().item<int64_t>(); }
PYBIND11_MODULE(kiln_probe, m) { m.def("answer", &answer); }
`,
	"plain.cpp": `extern "C" int kiln_answer(void) { return 42; }
`,
	"device.cu": `__global__ void fill(int *p) { *p = 42; }
void launch(int *p) { fill<<<1, 1>>>(p); }
extern "C" int kiln_answer(void) { return 42; }
`,
	"device.hip": `#include <hip/hip_runtime.h>
__global__ void fill(int *p) { *p = 42; }
void launch(int *p) { fill<<<1, 1>>>(p); }
extern "C" int kiln_answer(void) { return 42; }
`,
}

const include = `-I"$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')" `

// TestImages compiles a module in every devel image and imports it in the runtime image that
// belongs to it.
func TestImages(t *testing.T) {
	kilntest.NeedE2E(t, "images")
	for _, test := range []struct {
		devel, runtime string
		python         string
		tool           []string // prints version
		version        string
		compile        string
		env            []string
		before         string // what is imported first
	}{
		{
			devel: "ci", runtime: "ci", python: "3.11", tool: []string{"g++", "--version"}, version: " 12.",
			compile: "g++ -shared -fPIC " + include + "module.cpp plain.cpp -o kiln_probe.so",
		},
		{
			devel: "sid-python314", runtime: "sid-python314-runtime", python: "3.14", tool: []string{"ninja", "--version"}, version: "1.",
			compile: "g++ -shared -fPIC " + include + "module.cpp plain.cpp -o kiln_probe.so",
		},
		{
			devel: "bookworm-cuda118", runtime: "bookworm-runtime", python: "3.11", tool: []string{"nvcc", "--version"}, version: "release 11.8",
			compile: "nvcc -ccbin g++-11 -arch=sm_80 -Xcompiler -fPIC -shared " + include + "module.cpp device.cu -o kiln_probe.so",
		},
		{
			devel: "trixie-cuda124", runtime: "trixie-runtime", python: "3.13", tool: []string{"nvcc", "--version"}, version: "release 12.4",
			compile: "nvcc -ccbin g++-13 -arch=sm_80 -Xcompiler -fPIC -shared " + include + "module.cpp device.cu -o kiln_probe.so",
		},
		{
			devel: "trixie-hip", runtime: "trixie-hip-runtime", python: "3.13", tool: []string{"hipcc", "--version"}, version: "HIP version: 5.7",
			compile: "hipcc --offload-arch=gfx90a -fPIC -shared " + include + "module.cpp device.hip -o kiln_probe.so",
		},
		{
			devel: "trixie-torch26", runtime: "trixie-torch26-runtime", python: "3.13",
			tool: []string{"python3", "-c", "import torch; print(torch.__version__, torch.version.cuda)"}, version: "12.4",
			compile: `python3 -c 'from torch.utils.cpp_extension import load
load("kiln_probe", ["torch.cpp", "device.cu"], build_directory=".", with_cuda=True, verbose=True)'`,
			env:    []string{"TORCH_CUDA_ARCH_LIST=8.0", "CC=gcc-13", "CXX=g++-13", "MAX_JOBS=2"},
			before: "import torch; ",
		},
	} {
		t.Run(test.devel, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range sources {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			devel := open(t, test.devel, dir, false)
			if got := output(t, devel, test.tool, test.env...); !strings.Contains(got, test.version) {
				t.Errorf("%q prints %q, want %q in it", test.tool, got, test.version)
			}
			output(t, devel, []string{"sh", "-c", test.compile}, test.env...)

			box := open(t, test.runtime, dir, true)
			import1 := test.before + "import sys, kiln_probe; print('%d.%d' % sys.version_info[:2], kiln_probe.answer())"
			if got, want := output(t, box, []string{"python3", "-c", import1}), test.python+" 42\n"; got != want {
				t.Errorf("the module says %q, want %q", got, want)
			}
			if test.runtime == test.devel {
				return
			}
			for _, tool := range []string{"nvcc", "hipcc", "g++", "gcc", "cc", "c++", "ninja"} {
				if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "command -v " + tool}, Env: []string{path}}); err == nil {
					t.Errorf("the runtime image has %s", tool)
				}
			}
		})
	}
}

// TestNetwork installs from the package index inside a container, by a command and by a setup, with
// the certificates and the index of this machine.
func TestNetwork(t *testing.T) {
	kilntest.NeedE2E(t, "images")
	var env []string
	for _, key := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"} {
		if value := os.Getenv(key); value != "" {
			env = append(env, key+"="+value)
		}
	}
	boxes := sandbox.Container(sandbox.ContainerOptions{
		CABundle: os.Getenv("SSL_CERT_FILE"), NetworkEnv: env, Network: os.Getenv("KILN_E2E_NETWORK"), LockDir: t.TempDir(),
	})
	dir := t.TempDir()
	var log bytes.Buffer
	box, err := boxes.Open(t.Context(), sandbox.Spec{
		Name: "e2e-network", Owner: "e2e " + t.Name(), Image: prefix + "ci", Mounts: []sandbox.Mount{{Host: dir, Inside: "/work"}}, Log: &log,
		Setup: [][]string{{"python3", "-m", "venv", "/opt/venv"}, {"/opt/venv/bin/pip", "install", "--quiet", "packaging"}},
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	for _, network := range []bool{true, false} {
		cmd := sandbox.Command{
			Argv: []string{"/opt/venv/bin/pip", "download", "--quiet", "--retries", "0", "--no-deps", "--dest", "/work", "wheel"},
			Env:  []string{path, "HOME=/tmp"}, Network: network,
		}
		if _, err := box.Run(t.Context(), cmd); (err == nil) != network {
			t.Errorf("download with network %v: %v", network, err)
		}
	}
	if found, err := filepath.Glob(filepath.Join(dir, "wheel-*.whl")); err != nil || len(found) != 1 {
		t.Errorf("downloaded %q, %v", found, err)
	}
	if got := output(t, box, []string{"/opt/venv/bin/python", "-c", "import packaging; print(packaging.__name__)"}); got != "packaging\n" {
		t.Errorf("set up: %q", got)
	}
}

func open(t *testing.T, name, dir string, readOnly bool) sandbox.Box {
	t.Helper()
	boxes := sandbox.Container(sandbox.ContainerOptions{})
	box, err := boxes.Open(t.Context(), sandbox.Spec{
		Name: "e2e-" + name, Owner: "e2e " + t.Name(), Image: prefix + name, MemoryBytes: 6 << 30,
		Mounts: []sandbox.Mount{{Host: dir, Inside: "/work", ReadOnly: readOnly}},
	})
	if errors.Is(err, sandbox.ErrNoImage) {
		t.Fatalf("no image %s: dev/e2e/images.sh %s makes it", name, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return box
}

func output(t *testing.T, box sandbox.Box, argv []string, env ...string) string {
	t.Helper()
	var out, log bytes.Buffer
	outcome, err := box.Run(t.Context(), sandbox.Command{
		Argv: argv, Env: append([]string{path, "HOME=/tmp", "PYTHONPATH=/work"}, env...), Stdout: &out, Stderr: &log,
	})
	if err != nil {
		t.Fatalf("%+v\n%s\n%s", err, &out, &log)
	}
	t.Logf("%s: %.1f s, %.1f s of processor, %d MB", argv[0], outcome.Wall.Seconds(), outcome.CPU.Seconds(), outcome.PeakMemoryBytes/1e6)
	return out.String()
}

// Every image in images.sh is one that a test names.
func TestImageNames(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "bash", "images.sh", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var source []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if !bytes.Contains(source, fmt.Appendf(nil, "%q", name)) {
			t.Errorf("no test uses the image %s", name)
		}
	}
}
