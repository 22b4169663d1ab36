// Package sandbox makes the environments that rows are built and tested in: on the host, or as
// containers of podman or docker, which are called runtimes here. It runs commands in them,
// measures and limits them, and removes what is left. What every implementation promises is tested
// by package sandboxtest. It knows nothing of rows, wheels or Python.
package sandbox

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
)

// Maker makes environments: on the host, or as containers of one runtime. It is safe for concurrent
// use.
type Maker interface {
	// Name is "host", "podman" or "docker".
	Name() string
	// Open makes an environment. Nothing runs in it yet. An image that is not
	// there is pulled, with three attempts, and pinned: Box.Image tells the digest.
	Open(ctx context.Context, spec Spec) (Box, error)
	// Sweep ends and removes everything that earlier, killed runs with this owner
	// left behind, and returns how many things that were. It never touches what
	// other owners made.
	Sweep(ctx context.Context, owner string) (int, error)
}

// Pruner is a [Maker] that keeps images.
type Pruner interface {
	// Prune removes an image that this maker pulled, and what Spec.Setup made of it, and returns
	// their names. An image that was there before stays, and so does one that a container uses.
	Prune(ctx context.Context, image string) (removed []string, err error)
}

// Spec says what an environment looks like.
type Spec struct {
	// Name is unique among the environments that are open, and readable.
	Name string
	// Owner is written on everything that outlives a process, for Sweep.
	Owner string
	// Image is the container image. The host ignores it.
	Image string
	// Setup lists commands (each an argv) that are run once in a container of the
	// image, as root and with network; the result is kept as a derived image and
	// shared by all environments with the same image and setup. The host ignores it.
	Setup [][]string
	// Mounts are the folders that can be seen inside. On the host they are used
	// where they are.
	Mounts []Mount
	// MemoryBytes, PIDs and CPUs are limits; zero means none. The host cannot
	// enforce them, but for that of memory on Windows.
	MemoryBytes int64
	PIDs        int
	CPUs        float64
	// User is who commands run as inside, as "uid:gid"; empty means a user who can
	// write into the mounts. The host ignores it.
	User string
	// Log gets what the runtime itself prints: pulls, setup.
	Log io.Writer
}

// Mount shows one folder or file of the host inside an environment.
type Mount struct {
	Host     string // absolute
	Inside   string // absolute; see Box.Inside
	ReadOnly bool
}

// Command is one program run in an environment.
type Command struct {
	Argv []string
	Dir  string   // a path of the host inside a mount; empty means the first mount
	Env  []string // the whole environment, but for what Box.Env adds
	// Secrets are more variables, KEY=VALUE, with values that only the command may have: they are in
	// no argument, no file and nothing that a runtime keeps.
	Secrets []string
	// Redact are texts that are replaced by "***" in the output and in errors, as the values of
	// Secrets are.
	Redact []string
	// Network says whether the command may reach the network.
	Network bool
	Stdout  io.Writer
	Stderr  io.Writer // nil means Stdout
}

// redact returns what the output must not have.
func (c *Command) redact() []string {
	out := slices.Clone(c.Redact)
	for _, kv := range c.Secrets {
		_, value, _ := strings.Cut(kv, "=")
		out = append(out, secret.Forms(value)...)
	}
	return out
}

// Box is an environment. Its commands may run at the same time.
type Box interface {
	// Run runs a command to its end. The error is a *run.Error if the command
	// did not succeed; its state has OOMKilled set if the memory limit was hit.
	Run(ctx context.Context, cmd Command) (Outcome, error)
	// Inside returns how a path of the host is called inside; the path itself on
	// the host. A path outside all mounts is an error in the program: it panics.
	Inside(host string) string
	// Env returns the variables that commands have besides Command.Env, which wins:
	// those of the image, PATH above all; on the host a mark for Sweep. Commands with
	// network also get what ContainerOptions say about it.
	Env() []string
	// Image returns the pinned image, "" on the host.
	Image() string
	// NetworkOff reports whether commands without Network are really cut off.
	NetworkOff() bool
	// Shell returns a command for the user's terminal that opens a shell in a new
	// environment like this one.
	Shell(dir string, env []string) []string
	// Close removes the environment, not the mounted folders.
	Close(ctx context.Context) error
}

// Outcome is what running a command took.
type Outcome struct {
	run.State
	// OOMKilled says that the memory limit of the environment was hit.
	OOMKilled bool
}
