package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestTransformers loads and runs models of all architectures that transformers knows, with its
// current major release and the one before, on the CPU.
func TestTransformers(t *testing.T) {
	venv, err := filepath.Abs("../../.cache/venv-transformers")
	if err != nil {
		t.Fatal(err)
	}
	interpreter := os.Getenv("KILN_TRANSFORMERS_PYTHON")
	if interpreter == "" {
		interpreter = filepath.Join(venv, "bin", "python")
	}
	if _, err := os.Stat(interpreter); err != nil {
		kilntest.Lacking(t, "transformers", "no Python with transformers; dev/scripts/torchvenv.sh transformers makes one")
	}
	root, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	kiln := filepath.Join(t.TempDir(), "kiln")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", kiln, "../kiln").CombinedOutput(); err != nil {
		t.Fatalf("build kiln: %v\n%s", err, out)
	}
	for _, c := range []struct{ name, before string }{{"5", ""}, {"4", filepath.Join(venv, "4") + string(filepath.ListSeparator)}} {
		t.Run(c.name, func(t *testing.T) {
			env := []string{
				"KILN=" + kiln, "KILN_LIBRARY=" + filepath.Join(library(t), "libkiln.so"), "PYTHONPATH=" + c.before + root,
				"PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1",
			}
			run(t, "../../python/tests", env, interpreter, "with_transformers.py")
		})
	}
}
