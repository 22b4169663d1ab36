package build

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/machine"
)

// noStart is a container runtime that has the image and starts nothing.
const noStart = `#!/bin/sh
case "$1" in
image) echo '[{"Id":"sha256:11","RepoDigests":["docker.io/library/debian@sha256:22"],"Config":{"Env":["PATH=/bin"]}}]' ;;
start) echo "Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2" >&2; exit 126 ;;
container) echo '[{"Id":"x","State":{"Running":false,"ExitCode":126,"StartedAt":"0001-01-01T00:00:00Z"}}]' ;;
esac
`

// A container that cannot be started is not an image without Python, and a fix for root has no
// sudo.
func TestRuntimeBreaksBeforePython(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the fault is injected by a shell script")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "docker")
	if err := os.WriteFile(program, []byte(noStart), 0o777); err != nil {
		t.Fatal(err)
	}
	c := sandbox.Container(sandbox.ContainerOptions{Runtime: "docker", Program: program})
	a := &attempt{
		Recipe: &record.Recipe{Image: "debian:13"}, builder: &Builder{Options: Options{StateDir: dir, Sandboxes: c}}, try: &engine.Attempt{}, work: dir, stage: machine.StagePrepare,
		log: &tailWriter{to: io.Discard},
	}
	a.Row.Python = "3.12"
	box, err := c.Open(t.Context(), sandbox.Spec{Name: "b", Image: "debian:13", Mounts: []sandbox.Mount{{Host: dir, Inside: insideWork}}})
	if err != nil {
		t.Fatal(err)
	}
	err = (&environment{attempt: a, box: box, scripts: a.scripts()}).findPython(t.Context())
	if own, ok := errors.AsType[*diagnosed](err); ok {
		t.Fatalf("a broken runtime is taken for %s: %v", own.ID, err)
	}
	e := a.evidence(t.Context(), err)
	if found := machine.Diagnose(e); len(found) != 1 || found[0].ID != "container-runtime" || !strings.Contains(found[0].Detail, "hybrid mode") {
		t.Errorf("%v: %+v", err, found)
	}
	if e.Root != (os.Geteuid() == 0) {
		t.Errorf("root is %v", e.Root)
	}
}
