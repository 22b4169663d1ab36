package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func TestSlurmConfig(t *testing.T) {
	t.Setenv("KILN_SLURM_CONFIG", "")
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "slurm.json")
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return name
	}
	got, err := readSlurmConfig(write(`{"partition": "cpu", "args": ["--nice"], "sandbox": "podman", "max_running_per_array": 3, "poll": "90s"}`))
	want := &slurmConfig{Partition: "cpu", Args: []string{"--nice"}, Sandbox: "podman", MaxPerArray: 3, Poll: duration(90 * time.Second)}
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
		if _, err := readSlurmConfig(write(text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	if _, err := readSlurmConfig(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a file that is named and missing is no error")
	}
	t.Setenv("KILN_SLURM_CONFIG", write(`{"qos": "high"}`))
	if got, err := readSlurmConfig(""); err != nil || got.QOS != "high" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWorkerFlags: a job gets the flags of the build that are about a row, and its own command takes them all.
func TestWorkerFlags(t *testing.T) {
	var flags buildFlags
	cmd := &cobra.Command{Use: "build"}
	flags.register(cmd)
	cmd.Flags().BoolVar(&flags.rebuild, "rebuild", false, "")
	if err := cmd.ParseFlags([]string{
		"--runner=slurm", "--jobs=5", "--cpus=4", "--memory=8GiB", "--fail-fast", "--rebuild", "--select=cuda>=12 and python=3.12",
		"--container-arg=--device=a,b", "--container-arg=x y", "--package=a,b", "--keep-work", "--index-url=https://example.org/simple",
	}); err != nil {
		t.Fatal(err)
	}
	flags.runner = "podman"
	got := workerCommand(cmd, "/shared/kiln", &flags, &slurmConfig{Scratch: "/local", Beat: duration(5 * time.Second)}, "http://cache/kiln")
	want := []string{
		"/shared/kiln", "slurm-worker", "--runner=podman", "--scratch=/local", "--beat=5s", "--cache-remote=http://cache/kiln",
		"--container-arg=--device=a,b", "--container-arg=x y", "--index-url=https://example.org/simple", "--keep-work=true", "--package=a", "--package=b",
		"--rebuild=true", "--select=cuda>=12 and python=3.12",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := (&app{}).slurmWorkerCommand().ParseFlags(got[2:]); err != nil {
		t.Error(err)
	}
}
