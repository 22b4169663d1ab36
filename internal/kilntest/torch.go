package kilntest

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TorchWheels makes a folder of wheels that look like torch to a build, and have nothing in them.
func TorchWheels(t *testing.T, dir string, versions ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "libtorch_cpu.so")
	cmd := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so", "-o", library, "-x", "c", "-")
	cmd.Stdin = strings.NewReader("int torch_here;\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	code, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		f, err := os.Create(filepath.Join(dir, "torch-"+v+"-py3-none-any.whl"))
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		info := "torch-" + v + ".dist-info/"
		for name, text := range map[string]string{
			"torch/__init__.py":         "from . import _C, version\n__version__ = version.__version__\n",
			"torch/_C.py":               "_GLIBCXX_USE_CXX11_ABI = True\n",
			"torch/version.py":          fmt.Sprintf("__version__ = %q\ncuda = hip = None\n", v),
			"torch/lib/libtorch_cpu.so": string(code),
			info + "METADATA":           "Metadata-Version: 2.1\nName: torch\nVersion: " + v + "\n",
			info + "WHEEL":              "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
			info + "RECORD":             "",
		} {
			w, err := z.Create(name)
			if err == nil {
				_, err = w.Write([]byte(text))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
