package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/audit/internal/table"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestAdd: a snapshot that is taken out of a table and added again gives the same releases, in
// the same order, and adding what is there changes nothing.
func TestAdd(t *testing.T) {
	const kind = audit.KindPython // the smallest with several releases
	source, err := os.ReadFile(filepath.Join("..", "..", "snapshots", kind+".table"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, kind+".table")
	want, err := releases(string(source))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range want {
		snapshot := filepath.Join(dir, r.Label+".kilnsnap")
		writeTable(t, snapshot, want[i:i+1])
		writeTable(t, file, append(append(want[:0:0], want[:i]...), want[i+1:]...))
		var before []byte
		for range 2 {
			if err := add(t.Context(), dir, snapshot); err != nil {
				t.Fatal(err)
			}
			after, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if before != nil && !bytes.Equal(before, after) {
				t.Errorf("%s: adding it twice changes the table", r.Label)
			}
			got, err := releases(string(after))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", r.Label, diff)
			}
			before = after
		}
	}
	if err := add(t.Context(), dir, filepath.Join(dir, "nowhere")); err == nil {
		t.Error("added a file that is not there")
	}
}

func writeTable(t *testing.T, file string, releases []table.Release) {
	t.Helper()
	data, err := table.Encode(releases)
	if err == nil {
		err = os.WriteFile(file, data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAddRequirement: pip finds and downloads the wheel of a requirement, and its symbols are
// added. The wheel is a small one in a folder, which pip searches in place of an index.
func TestAddRequirement(t *testing.T) {
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		kilntest.Lacking(t, "python", "no C compiler: %v", err)
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the wheel is for Linux on x86-64")
	}
	dir := t.TempDir()
	library := filepath.Join(dir, "libtorch.so")
	source := filepath.Join(dir, "torch.c")
	if err := os.WriteFile(source, []byte("void kiln_torch_symbol(void) {}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), compiler, "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	code, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	archive := kilntest.Zip(t, map[string][]byte{
		"torch/version.py":                     []byte("__version__ = '2.99.0+cu130'\ncuda: Optional[str] = '13.0'\n"),
		"torch/lib/libtorch.so":                code,
		"torch-2.99.0.dist-info/METADATA":      []byte("Metadata-Version: 2.1\nName: torch\nVersion: 2.99.0\n"),
		"torch-2.99.0.dist-info/WHEEL":         []byte("Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_28_x86_64\n"),
		"torch-2.99.0.dist-info/RECORD":        nil,
		"torch/_C.cpython-312-x86_64-linux.so": code,
	})
	if err := os.WriteFile(filepath.Join(dir, "torch-2.99.0-cp312-cp312-manylinux_2_28_x86_64.whl"), archive, 0o666); err != nil {
		t.Fatal(err)
	}
	writeTable(t, filepath.Join(dir, "torch.table"), nil)
	t.Setenv("PIP_NO_INDEX", "1")
	t.Setenv("PIP_FIND_LINKS", dir)
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	if err := add(t.Context(), dir, "torch==2.99.0", "manylinux_2_28_x86_64"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "torch.table"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := releases(string(data))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || identity(got[0]) != "torch-2.99.0+cu130-linux_x86_64" || !slices.Contains(got[0].Names["libtorch.so"], "kiln_torch_symbol") {
		t.Errorf("the table has %+v", got)
	}
	if err := add(t.Context(), dir, "torch==2.98.0", "manylinux_2_28_x86_64"); err == nil {
		t.Error("added a release that is not there")
	}
}
