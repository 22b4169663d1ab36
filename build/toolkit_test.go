package build

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestLayOut: wheels for one part each become one toolkit, in both of PyPI's layouts.
func TestLayOut(t *testing.T) {
	for _, test := range []struct {
		home  string
		files []string
		want  []string
	}{
		{
			"cu13",
			[]string{"cu13/bin/nvcc", "cu13/include/cuda.h", "cu13/lib/libcudart.so.13", "cu13/lib/libcudart_static.a", "cudnn/include/cudnn.h", "cudnn/lib/libcudnn.so.9"},
			[]string{"lib64/libcudart.so", "lib64/libcudart_static.a", "lib/libcudnn.so", "include/cudnn.h"},
		},
		{
			"cuda_nvcc",
			[]string{"cuda_nvcc/bin/nvcc", "cuda_nvcc/include/crt/host_config.h", "cuda_runtime/include/crt/more.h", "cuda_runtime/include/cuda_runtime.h", "cuda_runtime/lib/libcudart.so.12", "cublas/include/cublas_v2.h", "cublas/lib/libcublas.so.12"},
			[]string{"lib64/libcudart.so", "lib64/libcublas.so", "include/crt/host_config.h", "include/crt/more.h", "include/cuda_runtime.h", "include/cublas_v2.h"},
		},
	} {
		t.Run(test.home, func(t *testing.T) {
			site := t.TempDir()
			for _, name := range test.files {
				path := filepath.Join(site, filepath.FromSlash(name))
				if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(name), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			home := filepath.Join(site, test.home)
			for range 2 { // again does no harm
				if err := layOut(home); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range test.want {
				if text, err := os.ReadFile(filepath.Join(home, filepath.FromSlash(name))); err != nil || !strings.Contains(string(text), strings.TrimSuffix(filepath.Base(name), ".so")) {
					t.Errorf("%s: %q, %v", name, text, err)
				}
			}
			// Links lead nowhere out of the environment, so that it looks the same in a container.
			err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type()&fs.ModeSymlink != 0 {
					if target, _ := os.Readlink(path); filepath.IsAbs(target) {
						t.Errorf("%s is a link to %s", path, target)
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestDriverStub(t *testing.T) {
	stub := driverStub("#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuInit(unsigned int Flags);\nCUresult CUDAAPI cuMemAlloc(CUdeviceptr *p, size_t n); /* cuInit */\n")
	var names []string
	for line := range strings.Lines(stub) {
		names = append(names, strings.TrimSuffix(strings.Fields(line)[1], "(void)"))
	}
	if want := []string{"cuInit", "cuMemAlloc", "cuMemAlloc_v2"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// TestLayOutLinks: with the toolkit of PyPI as pip installs it neither nvcc nor the C++ compiler can
// link a program, and laid out both can.
func TestLayOutLinks(t *testing.T) {
	from, err := filepath.Glob(filepath.Join(filepath.Dir(os.Getenv("KILN_PYTHON")), "..", "lib", "python*", "site-packages", "nvidia", "cu13"))
	if os.Getenv("KILN_PYTHON") == "" || err != nil || len(from) != 1 {
		kilntest.Lacking(t, "nvcc", "the environment of KILN_PYTHON has no CUDA toolkit of PyPI")
	}
	home := filepath.Join(t.TempDir(), "nvidia", "cu13")
	err = filepath.WalkDir(from[0], func(path string, d fs.DirEntry, err error) error {
		rel, bad := filepath.Rel(from[0], path)
		switch {
		case err != nil || bad != nil:
			return errors.Join(err, bad)
		case d.IsDir():
			return os.MkdirAll(filepath.Join(home, rel), 0o777)
		case d.Type().IsRegular():
			return os.Link(path, filepath.Join(home, rel))
		}
		return nil
	})
	if err != nil { // on another disk it cannot be linked
		if home = filepath.Join(t.TempDir(), "nvidia", "cu13"); os.CopyFS(home, os.DirFS(from[0])) != nil {
			t.Fatal(err)
		}
	}
	source := filepath.Join(t.TempDir(), "link.cu")
	if err := os.WriteFile(source, []byte(linkProgram), 0o666); err != nil {
		t.Fatal(err)
	}
	link := func() (failed int) {
		for _, argv := range [][]string{
			{filepath.Join(home, "bin", "nvcc"), "-rdc=true", "-cudart", "static", "-o", source + ".static", source},
			{"c++", "-x", "c++", source, "-I" + filepath.Join(home, "include"), "-o", source + ".shared", "-L" + filepath.Join(home, "lib"), "-lcudart"},
		} {
			if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
				t.Logf("%q: %v\n%s", argv, err, out)
				failed++
			}
		}
		return failed
	}
	if link() != 2 {
		t.Error("a toolkit that is not laid out can link: is layOut still needed?")
	}
	if err := layOut(home); err != nil {
		t.Fatal(err)
	}
	if n := link(); n > 0 {
		t.Errorf("%d programs were not linked", n)
	}
}
