package slurm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(`{"partition": "gpu", "cpus": 4, "time_limit": "2h", "args": ["--exclusive"]}`))
	f.Add([]byte(`{"partion": 1}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		name := filepath.Join(t.TempDir(), "slurm.json")
		if err := os.WriteFile(name, text, 0o666); err != nil {
			t.Fatal(err)
		}
		c, err := slurm.ReadConfig(name)
		if err == nil {
			_ = c.Options(&slurm.Site{})
		}
	})
}
