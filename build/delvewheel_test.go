package build

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/wheel"
)

// Windows libraries of one section, gzipped: a module that imports from foreign.dll, KERNEL32.dll,
// python312.dll, c10.dll and cudart64_12.dll, and foreign.dll itself.
const (
	windowsModule  = "H4sIAAAAAAACA/ONYiAbOABxgCsDQ0obI4r4BwYmBW4mnNoawKoFgBiLmlmCQIKFNHeAjIoA6nMC0g+AnAoG+gO9opTEkkSg+xkhDgLTLAyjYBQMCZCWX5SamZ6nl5KTAxVJzCsuTy2CyUsIoKr3dg3yc/UxNkJoCM5JTS1g8EBTV1BZkpGfZ2yIUBhQ6ZufUpqTGu9clJpYkmoEVYemL9nQAKoDkpsXoMuXpiQWlZiZxMNNrgSLn0BTp4HE5xCA8AOQxCyg/A4ksQQofwWS2Awo/wKS2A40Pi4AKptAxQEMTwDypwDxDEFQaHjmZZbEx6ek5ubDCrMGUBnIAABYpYMOmgUAAA=="
	windowsForeign = "H4sIAAAAAAACA/ONYiAbOABxgCsDQ0obI4r4BwYmBW4mnNoawKoFgBiLGieQOAtp7gBp4QASVgwDB/SKUhJLEoHuhzoITLMwjIJRMOQAKC+B8igMWwD5NkDsAMSJecXlqUWQNG4AyngMAGdJ211CBAAA"
)

// TestDelvewheel: the call for Windows wheels, with the real program. A library that nobody else
// brings is in the wheel afterwards; those of torch and CUDA are not.
func TestDelvewheel(t *testing.T) {
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	unpack := func(text string) string {
		t.Helper()
		packed, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	run := func(env []string, argv ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
	dir := t.TempDir()
	tools, libs, out := filepath.Join(dir, "tools"), filepath.Join(dir, "libs"), filepath.Join(dir, "out")
	run(nil, append([]string{python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", tools}, delvewheel.requirements...)...)
	name := "demo-1.0-cp312-cp312-win_amd64.whl"
	file := filepath.Join(dir, name)
	for path, text := range map[string]string{
		file:                               string(indextest.Wheel(t, name, map[string]string{"demo/_demo.cp312-win_amd64.pyd": unpack(windowsModule)})),
		filepath.Join(libs, "foreign.dll"): unpack(windowsForeign),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	report, err := audit.Check(t.Context(), file, audit.Options{NoTorch: true})
	if err != nil {
		t.Fatal(err)
	}
	excluded := report.BroughtByOthers()
	if want := []string{"c10.dll", "cudart64_12.dll"}; !slices.Equal(excluded, want) {
		t.Errorf("not to be copied: %q, want %q", excluded, want)
	}
	run([]string{"PYTHONPATH=" + tools, "PATH=" + libs + ":" + os.Getenv("PATH")}, delvewheel.argv(python, out, file, excluded)...)
	made, err := wheel.RewriteFile(t.Context(), filepath.Join(out, name), dir, wheel.RewriteOptions{Overwrite: true})
	if err != nil || made.Name != name {
		t.Fatal(made, err)
	}
	r, err := wheel.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var copied []string
	for m := range r.Files() {
		if strings.HasSuffix(m.Name, ".dll") {
			copied = append(copied, m.Name)
		}
	}
	if len(copied) != 1 || !strings.Contains(copied[0], "foreign-") {
		t.Errorf("copied: %q", copied)
	}
}
