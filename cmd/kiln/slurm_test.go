package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/engine/slurm"
)

// TestWorkerFlags: a job gets the flags of the build that are about a row, and its own command
// takes them all.
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
	got := workerCommand(cmd, "/shared/kiln", &flags, &slurm.Config{Scratch: "/local", Beat: slurm.Duration(5 * time.Second)}, "http://cache/kiln")
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
