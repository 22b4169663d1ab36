package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/sandbox"
)

// The CUDA toolkit of PyPI comes in wheels for one part each, without what linkers look for: there
// is no lib64, which nvcc.profile and CMake name, no libcudart.so beside libcudart.so.13, no stub of
// the driver, and before CUDA 13 every part has a folder of its own. layOut makes one toolkit of
// them, with links, in the row's own virtual environment.

// layOut completes the toolkit at home, a folder below the nvidia folder of site-packages. It may be
// called again.
func layOut(home string) error {
	parts, err := filepath.Glob(filepath.Join(filepath.Dir(home), "*"))
	if err != nil {
		return err
	}
	for _, part := range parts {
		if part == home {
			continue
		}
		for _, dir := range []string{"include", "lib", "nvvm", "bin"} {
			if err := linkTree(filepath.Join(part, dir), filepath.Join(home, dir)); err != nil {
				return err
			}
		}
	}
	lib := filepath.Join(home, "lib")
	if err := os.MkdirAll(lib, 0o777); err != nil {
		return err
	}
	if err := linkOnce("lib", filepath.Join(home, "lib64")); err != nil {
		return err
	}
	libraries, err := filepath.Glob(filepath.Join(lib, "lib*.so.*"))
	if err != nil {
		return err
	}
	// Of several versions the newest is last.
	for _, file := range slices.Backward(libraries) {
		name := filepath.Base(file)
		plain, _, _ := strings.Cut(name, ".so.")
		if err := linkOnce(name, filepath.Join(lib, plain+".so")); err != nil {
			return err
		}
	}
	return nil
}

// linkTree shows the files below from at the same places below to, unless something is there.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && name == from {
			return fs.SkipAll
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		place := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(place, 0o777)
		}
		target, err := filepath.Rel(filepath.Dir(place), name)
		if err != nil {
			return err
		}
		return linkOnce(target, place)
	})
}

// linkOnce makes a link, if there is nothing of that name.
func linkOnce(target, place string) error {
	if err := os.Symlink(target, place); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// driverCall is the name of a function of the driver in cuda.h.
var driverCall = regexp.MustCompile(`\bcu[A-Z][A-Za-z0-9]*(?:_v\d+)?(?:_ptsz|_ptds)?\b`)

// driverStub is the C text of a library that has the names of the driver's functions, for linkers:
// PyPI has none, and the driver is not where wheels are built.
func driverStub(header string) string {
	names := driverCall.FindAllString(header, -1)
	slices.Sort(names)
	var b strings.Builder
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(&b, "int %s(void) { return 100; }\n", name) // CUDA_ERROR_NO_DEVICE
	}
	return b.String()
}

// completeToolkit lays out a toolkit of PyPI, if home is one in the virtual environment.
func (a *attempt) completeToolkit(ctx context.Context, home string, env map[string]string) (ours bool, err error) {
	rel, ours := strings.CutPrefix(home, a.box.Inside(a.venv)+"/")
	if !ours {
		return false, nil
	}
	dir := filepath.Join(a.venv, filepath.FromSlash(rel))
	if err := layOut(dir); err != nil {
		return true, fmt.Errorf("lay out the CUDA toolkit: %w", err)
	}
	header, err := os.ReadFile(filepath.Join(dir, "include", "cuda.h"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // the program that is linked below tells what is missing
	}
	if err != nil {
		return true, err
	}
	stubs := filepath.Join(dir, "lib", "stubs")
	if err := os.MkdirAll(stubs, 0o777); err != nil {
		return true, err
	}
	text := filepath.Join(a.temp(), "stub.c")
	if err := os.WriteFile(text, []byte(driverStub(string(header))), 0o666); err != nil {
		return true, err
	}
	stub := path.Join(home, "lib", "stubs", "libcuda.so")
	argv := append(a.hostCompiler(), "-shared", "-fPIC", "-w", "-x", "c", "-Wl,-soname,libcuda.so.1", "-o", stub, a.box.Inside(text))
	if _, err := a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: a.temp(), Env: sortedEnv(env)}); err != nil {
		return true, err
	}
	return true, linkOnce("libcuda.so", filepath.Join(stubs, "libcuda.so.1"))
}

// hostCompiler is the C++ compiler of the row, with the words before it.
func (a *attempt) hostCompiler() []string {
	if words := strings.Fields(a.Settings.Env["CXX"]); len(words) > 0 {
		return words
	}
	if a.tools.CXX != "" {
		return []string{a.tools.CXX}
	}
	return []string{"c++"}
}

const linkProgram = `#include <cuda_runtime.h>
#ifdef __CUDACC__
__global__ void kernel(float *x) { *x += 1; }
void launch(float *x) { kernel<<<1, 1>>>(x); }
#endif
int main() { int n = 0; return cudaGetDeviceCount(&n) == cudaErrorInvalidValue; }
`

// linkToolkit compiles and links a small program in the ways that packages do: with the C++
// compiler and the shared runtime, as torch's builder does, and with nvcc and the static one, as
// CMake does. What cannot be linked now cannot be linked after minutes of compiling either.
func (a *attempt) linkToolkit(ctx context.Context, env map[string]string, must bool) error {
	home, box := a.tools.CUDAHome, a.box
	for name, text := range map[string]string{"link.cu": linkProgram, "link.cpp": linkProgram} {
		if err := os.WriteFile(filepath.Join(a.temp(), name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	inside := func(name string) string { return box.Inside(filepath.Join(a.temp(), name)) }
	lib := path.Join(home, "lib64")
	nvcc := []string{path.Join(home, "bin", "nvcc"), "-rdc=true", "-cudart", "static", "-o", inside("link-static"), inside("link.cu")}
	if cxx := a.hostCompiler(); a.tools.CXX != "" || a.Settings.Env["CXX"] != "" {
		nvcc = append(nvcc, "-ccbin", cxx[len(cxx)-1])
	}
	for _, try := range []struct {
		what string
		argv []string
	}{
		{"the C++ compiler and libcudart.so", append(a.hostCompiler(), "-I", path.Join(home, "include"), "-o", inside("link-shared"), inside("link.cpp"), "-L"+lib, "-L"+path.Join(home, "lib"), "-lcudart")},
		{"nvcc, libcudart_static.a and libcudadevrt.a", nvcc},
	} {
		_, err := a.command(ctx, box, sandbox.Command{Argv: try.argv, Dir: a.temp(), Env: sortedEnv(env)})
		if ctx.Err() != nil {
			return err
		}
		if err == nil {
			continue
		}
		if !must {
			a.warn("a small program cannot be linked with %s: %v", try.what, err)
			continue
		}
		fix := "install the missing part of the toolkit; the log has the whole message of the linker"
		if strings.HasPrefix(home, box.Inside(a.venv)) {
			fix = "add the missing part to extra_deps: nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl of one version make a toolkit"
		}
		return fault("cuda-link", "the CUDA toolkit cannot link a program", fix, "%s: %v", try.what, err)
	}
	return nil
}
