package slurm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine/slurm"
)

func TestReadConfig(t *testing.T) {
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "slurm.json")
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return name
	}
	got, err := slurm.ReadConfig(write(`{"partition": "cpu", "args": ["--nice"], "sandbox": "podman", "max_running_per_array": 3, "poll": "90s"}`))
	want := &slurm.Config{Partition: "cpu", Args: []string{"--nice"}, Sandbox: "podman", MaxPerArray: 3, Poll: slurm.Duration(90 * time.Second)}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for text, part := range map[string]string{
		`{"partitoin": "cpu"}`:     "did you mean partition?",
		`{"sandbox": "apptainer"}`: "use host, podman or docker",
		`{"poll": "-5s"}`:          "negative",
		`{"cpus": -1}`:             "not negative",
		`{`:                        "unexpected",
	} {
		if _, err := slurm.ReadConfig(write(text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	if _, err := slurm.ReadConfig(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a file that is named and missing is no error")
	}
}
