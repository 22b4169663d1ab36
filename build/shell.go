package build

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/fsx"
)

// shellFile remembers how to get into the environment of a failed row.
const shellFile = "shell.json"

type shellSpec struct {
	Sandbox string          `json:"sandbox"`
	Image   string          `json:"image"`
	Setup   [][]string      `json:"setup,omitempty"`
	Mounts  []sandbox.Mount `json:"mounts"`
	Dir     string          `json:"dir"`
	Env     []string        `json:"env"`
	Stage   string          `json:"stage"`
}

// keepShell leaves what `kiln shell` needs in the work folder of a failed row.
func (a *attempt) keepShell() {
	if a.box == nil {
		return
	}
	spec := shellSpec{
		Sandbox: a.Sandbox, Image: a.Image, Setup: a.Settings.ImageSetup, Dir: a.source(), Stage: a.stage,
		Mounts: []sandbox.Mount{{Host: a.work, Inside: insideWork}, {Host: a.builder.cacheDir(), Inside: insideCache}},
	}
	spec.Mounts = append(spec.Mounts, a.brought...)
	if a.managed != nil {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Host: a.managed.dir, Inside: insidePython, ReadOnly: true})
	}
	env, err := a.buildEnv()
	if err != nil {
		return
	}
	_ = a.netEnv(a.box, env) // what no file may have is missing in the shell
	env["TERM"] = "xterm"
	spec.Env = sortedEnv(env)
	if c := a.builder.Network.CertFile; c != "" {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Host: c, Inside: insideCert, ReadOnly: true})
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return
	}
	// Without it there is no shell, and the failure itself is what matters now.
	_ = fsx.WriteFile(filepath.Join(a.work, shellFile), text, 0o666)
}

// ErrNoShell says that a row has no environment to enter.
var ErrNoShell = errors.New("no environment is kept")

// Shell returns the command that opens a shell in the kept environment of a failed row, and the
// environment to start it with, nil for that of this process. log gets the output of making the
// environment.
func Shell(ctx context.Context, stateDir, row string, log io.Writer, sandboxes func(name string) (sandbox.Maker, error)) (argv, env []string, err error) {
	stateDir, err = filepath.Abs(stateDir)
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(filepath.Join(stateDir, "work", row, shellFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s: %w; it is kept when a row fails after its preparation", row, ErrNoShell)
	}
	if err != nil {
		return nil, nil, err
	}
	var spec shellSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", shellFile, err)
	}
	makers, err := sandboxes(spec.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	box, err := makers.Open(ctx, sandbox.Spec{Name: row + "-shell", Owner: "shell", Image: spec.Image, Setup: spec.Setup, Mounts: spec.Mounts, Log: log})
	if err != nil {
		return nil, nil, err
	}
	argv = box.Shell(spec.Dir, spec.Env)
	if onWindows(box) { // no program there starts another one with a new environment
		env = spec.Env
	}
	return argv, env, nil
}

func newID() string { return rand.Text() }
