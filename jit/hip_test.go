package jit_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/jit"
)

// standInHipify has the signature of torch's own, and its way of naming files. It writes a line for
// each call. make e2e-jit-rocm uses torch's.
const standInHipify = `
import os, re
class Result:
    def __init__(self, path):
        self.hipified_path = path
def hipify(project_directory, output_directory, header_include_dirs, includes, extra_files, show_progress, is_pytorch_extension, hipify_extra_files_only):
    assert is_pytorch_extension and hipify_extra_files_only and project_directory == output_directory
    with open(os.environ["HIPIFY_CALLS"], "a") as f:
        f.write("call\n")
    results = {}
    def one(path):
        if path in results:
            return results[path].hipified_path
        root, ext = os.path.splitext(path)
        to = root.replace("/cuda/", "/hip/") + {".cu": ".hip", ".cuh": "_hip.cuh"}.get(ext, "_hip" + ext)
        results[path] = Result(to)
        with open(path) as f:
            text = f.read()
        def header(m):
            for folder in [os.path.dirname(path)] + header_include_dirs:
                if os.path.exists(os.path.join(folder, m[1])):
                    return '#include "%s"' % os.path.relpath(one(os.path.normpath(os.path.join(folder, m[1]))), folder)
            return m[0]
        new = re.sub('#include "([^"]+)"', header, text.replace("cuda", "hip"))
        if new == text and ext not in (".cu",):
            results[path] = Result(path)
        else:
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(to, "w") as f:
                f.write(new)
        return results[path].hipified_path
    for f in extra_files:
        one(f)
    return results
`

// hipcc takes C++ for HIP.
const standInHIPCC = `#!/bin/sh
for a do
  shift
  case $a in
    --offload-arch=*) echo "$a" >>"$HIPIFY_CALLS.archs" ;;
    -fno-gpu-rdc) ;;
    *.hip) set -- "$@" -x c++ "$a" ;;
    --version) echo "HIP version: 6.1.0"; exit ;;
    *) set -- "$@" "$a" ;;
  esac
done
exec g++ "$@"
`

// TestTranslate: .cu files for a torch that is for ROCm. The translation is kept, headers count, and
// nothing is written beside the sources.
func TestTranslate(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	site := p.fakeTorch("2.6.0+rocm6.1", "")
	p.torchFile(site, "version.py", "__version__ = '2.6.0+rocm6.1'\ncuda = None\nhip = '6.1.40091'\n")
	p.torchFile(site, "utils/hipify/__init__.py", "")
	p.torchFile(site, "utils/hipify/hipify_python.py", standInHipify)
	for _, name := range []string{"c10_hip", "torch_hip"} {
		p.torchLibrary(site, name, 2)
	}
	rocm := t.TempDir()
	for _, dir := range []string{"bin", "include", "lib"} {
		if err := os.Mkdir(filepath.Join(rocm, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(rocm, "bin", "hipcc"), []byte(standInHIPCC), 0o777); err != nil {
		t.Fatal(err)
	}
	lib, err := os.ReadFile(filepath.Join(site, "torch", "lib", "libc10.so"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rocm, "lib", "libamdhip64.so"), lib, 0o777); err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(t.TempDir(), "calls")
	p.write("tiny.yml", "name: tiny\ntorch: true\nsources: [src/*.cpp, src/cuda/*.cu]\ninclude: [inc]\nprebuilt: false\n")
	p.write("src/cuda/k.cu", "#ifndef USE_ROCM\n#error not for ROCm\n#endif\n#include \"k.cuh\"\n#include <value.h>\nextern int cuda_answer();\nint cuda_answer() { return cudaValue * VALUE; }\n")
	p.write("src/cuda/k.cuh", "enum { cudaValue = 2 };\n")
	p.write("inc/value.h", "#define VALUE 21\n")
	p.write("src/tiny.cpp", strings.NewReplacer("c10_scale(21)", "cuda_answer()", "static PyObject *answer", "int cuda_answer();\nstatic PyObject *answer").Replace(torchC))
	if err := os.Remove(p.path("src/tiny.c")); err != nil {
		t.Fatal(err)
	}
	opts := p.options()
	opts.Env = append(opts.Env, "ROCM_HOME="+rocm, "PYTORCH_ROCM_ARCH=gfx90a;gfx1030", "HIPIFY_CALLS="+calls)
	before := p.tree()
	load := func(source string) *jit.Result {
		t.Helper()
		r, err := jit.Load(t.Context(), p.spec(), opts)
		if err != nil {
			t.Fatalf("%v\n%s", err, details(err))
		}
		if r.Source != source {
			t.Errorf("source %s, want %s", r.Source, source)
		}
		return r
	}
	count := func(want int) {
		t.Helper()
		text, err := os.ReadFile(calls)
		if n := strings.Count(string(text), "call\n"); err != nil || n != want {
			t.Errorf("translated %d times, want %d, %v", n, want, err)
		}
	}
	first := load(jit.SourceBuilt)
	if first.Archs != "gfx90a;gfx1030" {
		t.Errorf("archs %q", first.Archs)
	}
	if !load(jit.SourceCache).Remembered {
		t.Error("a second call looks again")
	}
	count(1)
	// Other GPUs: compiled again from the same translation.
	opts.Env = append(opts.Env, "PYTORCH_ROCM_ARCH=gfx90a")
	load(jit.SourceBuilt)
	count(1)
	if got := p.tree(); !slices.Equal(got, before) {
		t.Errorf("the project has become %q, was %q", got, before)
	}
	// A header of the project is an input under its own name.
	p.write("src/cuda/k.cuh", "enum { cudaValue = 4 };\n")
	e, err := jit.Explain(t.Context(), p.spec(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(e.Changes, func(c jit.Change) bool { return c.Name == "header {root}/src/cuda/k.cuh" }) {
		t.Errorf("changes: %+v", e.Changes)
	}
	load(jit.SourceBuilt)
	count(2)
	p.write("inc/value.h", "#define VALUE 20\n")
	load(jit.SourceBuilt)
	p.write("inc/value.h", "#define VALUE 21\n")
	p.write("src/cuda/k.cuh", "enum { cudaValue = 2 };\n")
	load(jit.SourceCache)
	count(3)
	path, err := jit.ExportNinja(t.Context(), p.spec(), opts, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "/src/hip/k.hip") || strings.Contains(string(text), "{hip}") {
		t.Errorf("build.ninja:\n%s", text)
	}
}

// tree lists the sources and headers of the project.
func (p *project) tree() []string {
	p.t.Helper()
	var out []string
	for _, dir := range []string{"src", "inc"} {
		err := filepath.WalkDir(p.path(dir), func(path string, _ os.DirEntry, err error) error {
			out = append(out, path)
			return err
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return out
}
