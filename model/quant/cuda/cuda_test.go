package cuda_test

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/quant/quanttest"
	"github.com/kiln-build/kiln/model/safetensors"
)

func open(t testing.TB, opts cuda.Options) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(opts)
	if errors.Is(err, cuda.ErrNotSupported) {
		kilntest.Lacking(t, "gpu", "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNoDriver(t *testing.T) {
	if _, _, err := cuda.Probe(); err == nil {
		t.Skip("there is a driver")
	}
	_, err := cuda.Open(cuda.Options{})
	if !errors.Is(err, cuda.ErrNotSupported) {
		t.Fatalf("error %v, want ErrNotSupported", err)
	}
	if !strings.Contains(err.Error(), "cuda") {
		t.Errorf("error %q does not name the library", err)
	}
}

func TestError(t *testing.T) {
	for want, e := range map[string]*cuda.Error{
		"cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)": {Func: "cuMemAlloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"},
		"cublasGemmEx: error 13":                   {Func: "cublasGemmEx", Code: 13},
	} {
		if diff := cmp.Diff(want, e.Error()); diff != "" {
			t.Error(diff)
		}
	}
}

// TestImagesCurrent fails when a kernel was edited and not compiled.
func TestImagesCurrent(t *testing.T) {
	images, err := cuda.EmbeddedImages()
	if err != nil {
		t.Fatal(err)
	}
	hash, err := cuda.SourceHash()
	if err != nil {
		t.Fatal(err)
	}
	if len(images.Files) == 0 {
		t.Error("there are no images")
	}
	for _, image := range images.Files {
		if image.Source != hash {
			t.Errorf("%s is of source %.12s, the source is %.12s: run go generate", image.Name, image.Source, hash)
		}
		if !strings.HasPrefix(image.Compiler, "nvcc ") && !strings.HasPrefix(image.Compiler, "NVRTC ") {
			t.Errorf("%s was compiled by %q", image.Name, image.Compiler)
		}
	}
}

var entry = regexp.MustCompile(`\.entry (kiln_[a-z0-9_]+)\(`)

// kernelsIn returns the kernels of a compiled file, sorted.
func kernelsIn(t *testing.T, data []byte, ptx bool) []string {
	t.Helper()
	var names []string
	if ptx {
		for _, m := range entry.FindAllSubmatch(data, -1) {
			names = append(names, string(m[1]))
		}
	} else {
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range f.Sections {
			if name, ok := strings.CutPrefix(s.Name, ".text."); ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestImages reads the compiled kernels without a GPU: each has exactly those that the package will
// look for.
func TestImages(t *testing.T) {
	images, err := cuda.EmbeddedImages()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images.Files {
		file, err := os.Open(filepath.Join("kernels", image.Name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		r, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(image.Kernels(), kernelsIn(t, data, image.PTX)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", image.Name, diff)
		}
	}
}

// compiler returns NVRTC of the packages of KILN_PYTHON.
func compiler(t *testing.T) *cuda.Compiler {
	t.Helper()
	py := os.Getenv("KILN_PYTHON")
	if py == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set: it names a Python with dev/python/requirements.txt installed")
	}
	const find = `import glob, importlib.util as u
s = u.find_spec("nvidia")
print(*(f for p in (s.submodule_search_locations if s else []) for f in glob.glob(p + "/cu13/lib/libnvrtc.so.*")), sep="\n")`
	out, err := exec.CommandContext(t.Context(), py, "-c", find).Output()
	if err != nil {
		kilntest.Lacking(t, "python", "KILN_PYTHON: %v", err)
	}
	path, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if path == "" {
		kilntest.Lacking(t, "nvcc", "the packages of KILN_PYTHON have no NVRTC")
	}
	c, err := cuda.NewCompiler(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCompile compiles the embedded source of each image as Options.JIT does, with the pinned NVRTC
// and without a GPU: to machine code where that is quick, else to PTX.
func TestCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for a minute")
	}
	c := compiler(t)
	archs, err := c.Architectures()
	if err != nil || !slices.Contains(archs, 80) || !slices.Contains(archs, 90) {
		t.Errorf("NVRTC %s compiles for %v, error %v", c.Version(), archs, err)
	}
	images, err := cuda.EmbeddedImages()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images.Files {
		t.Run(image.Name, func(t *testing.T) {
			target := fmt.Sprintf("%d%d", image.Major, image.Minor)
			if !slices.Contains(archs, 10*image.Major+image.Minor) {
				target = "75" // the oldest that it knows
			}
			if image.Specific {
				target += "a"
			}
			ptx := image.Module != "pack"
			if ptx {
				target = "compute_" + target
			} else {
				target = "sm_" + target
			}
			data, err := c.Compile(image.Module, target)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(image.Kernels(), kernelsIn(t, data, ptx)); diff != "" {
				t.Errorf("kernels (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := c.Compile("pack", "sm_1"); err == nil {
		t.Error("compiling for sm_1 is no error")
	}
}

// TestDevice runs the suite on a GPU, with machine code and with PTX, also that for older ones.
func TestDevice(t *testing.T) {
	for name, opts := range map[string]cuda.Options{
		"machine code": {}, "PTX": {PTX: true}, "7.5": {Capability: 75}, "6.0": {Capability: 60},
	} {
		t.Run(name, func(t *testing.T) {
			quanttest.TestBackend(t, func(t testing.TB) quant.Backend { return open(t, opts) })
		})
	}
}

// TestGolden reconstructs the matrices that exllamav2 has reconstructed.
func TestGolden(t *testing.T) {
	d := open(t, cuda.Options{})
	for _, format := range []string{"exl2", "gptq"} {
		f, err := safetensors.Open("../testdata/" + format + ".safetensors")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, tensor := range f.Header().Tensors {
			key, ok := strings.CutSuffix(tensor.Name, ".recon")
			if !ok {
				continue
			}
			t.Run(format+"/"+key, func(t *testing.T) {
				var m *quant.QMatrix
				if format == "exl2" {
					m, err = quant.LoadEXL2(quant.Files(f), key, quant.EXL2Options{})
				} else {
					m, err = quant.LoadGPTQ(quant.Files(f), key, quant.GPTQOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				r, err := f.Reader(tensor.Name)
				if err != nil {
					t.Fatal(err)
				}
				want, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				w, err := d.Upload(t.Context(), m)
				if err != nil {
					t.Fatal(err)
				}
				dense, err := d.NewMatrix(m.Rows(), m.Cols())
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(want))
				if err := errors.Join(d.Dequantize(dense, w), dense.CopyTo(got), dense.Close(), w.Close()); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Error("weights differ from exllamav2")
				}
			})
		}
	}
}
