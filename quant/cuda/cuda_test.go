package cuda_test

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/quant"
	"github.com/kiln-build/kiln/quant/cuda"
	"github.com/kiln-build/kiln/quant/quanttest"
	"github.com/kiln-build/kiln/safetensors"
)

// lacking skips the test, or fails it if KILN_REQUIRE names tool.
func lacking(t testing.TB, tool, reason string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("KILN_REQUIRE"), ","), tool) {
		t.Fatalf("%s (KILN_REQUIRE has %s)", reason, tool)
	}
	t.Skip(reason)
}

func open(t testing.TB, opts cuda.Options) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(opts)
	if errors.Is(err, cuda.ErrNotSupported) {
		lacking(t, "gpu", err.Error())
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
	if images.Source != hash {
		t.Errorf("compiled kernels are of source %s, the source is %s: run go generate", images.Source, hash)
	}
	if len(images.Files) == 0 || !strings.HasPrefix(images.Compiler, "nvcc ") {
		t.Errorf("images: %+v", images)
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

// TestImages reads the compiled kernels without a GPU: each has exactly those that the package will look for.
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

// nvcc returns the compiler among the packages of KILN_PYTHON.
func nvcc(t *testing.T) string {
	t.Helper()
	py := os.Getenv("KILN_PYTHON")
	if py == "" {
		lacking(t, "python", "KILN_PYTHON is not set: it names a Python with testdata/python/requirements.txt installed")
	}
	const find = `import importlib.util as u
s = u.find_spec("nvidia")
print(*(p + "/cu13/bin/nvcc" for p in (s.submodule_search_locations if s else [])), sep="\n")`
	out, err := exec.CommandContext(t.Context(), py, "-c", find).Output()
	if err != nil {
		lacking(t, "python", "KILN_PYTHON: "+err.Error())
	}
	for path := range strings.Lines(string(out)) {
		if path = strings.TrimSpace(path); path != "" {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	lacking(t, "nvcc", "the packages of KILN_PYTHON have no nvcc")
	return ""
}

// TestCompile compiles each kernel with the pinned compiler, to PTX, for each architecture that it is shipped for.
func TestCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for a minute")
	}
	compiler := nvcc(t)
	images, err := cuda.EmbeddedImages()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images.Files {
		t.Run(image.Name, func(t *testing.T) {
			arch := "compute_" + string(rune('0'+image.Major)) + string(rune('0'+image.Minor))
			if image.Specific {
				arch += "a"
			}
			out := filepath.Join(t.TempDir(), "kernels.ptx")
			args := append(slices.Clone(images.Flags), "-ptx", "-arch="+arch, "-o", out, filepath.Join("kernels", image.Module+".cu"))
			if text, err := exec.CommandContext(t.Context(), compiler, args...).CombinedOutput(); err != nil {
				t.Fatalf("nvcc %q: %v\n%s", args, err, text)
			}
			data, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(image.Kernels(), kernelsIn(t, data, true)); diff != "" {
				t.Errorf("kernels (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDevice runs the suite on a GPU, with machine code and with PTX.
func TestDevice(t *testing.T) {
	for name, opts := range map[string]cuda.Options{"machine code": {}, "PTX": {PTX: true}} {
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
