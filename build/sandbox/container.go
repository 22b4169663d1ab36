package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/secret"
)

// The labels on everything that kiln leaves with a runtime.
const (
	labelOwner = "kiln.owner" // containers: see Spec.Owner
	labelBox   = "kiln.box"   // containers: see Spec.Name
	labelSetup = "kiln.setup" // derived images: digest of what made them
	labelBase  = "kiln.base"  // derived images: ID of the image they were made from
)

// ownerEnv marks the processes of an owner, for Sweep.
const ownerEnv = "KILN_BOX_OWNER"

// insideCABundle is where containers see ContainerOptions.CABundle.
const insideCABundle = "/etc/kiln/ca-bundle.pem"

const (
	// callLimit is how long a runtime may take for something that should take a moment.
	callLimit = 2 * time.Minute
	// outputLimit is how long the output of a call may take that has ended. A busy machine needs
	// more than a second to hand it over.
	outputLimit = 30 * time.Second
	// stopGrace is the time from asking a canceled command to end to killing it.
	stopGrace = 5 * time.Second
)

// ContainerOptions says which runtime to use and how.
type ContainerOptions struct {
	// Runtime is "podman", the default, or "docker". Both are driven through their command line, so
	// contexts and remote hosts of the runtime work, if the mounted folders exist there.
	Runtime string
	// Program is the path of the runtime's command; empty means Runtime, looked up in PATH.
	Program string
	// RuntimeArgs stand before the subcommand of every call: "--runtime", "runc" for podman,
	// "--context", "farm" for docker.
	RuntimeArgs []string
	// ExtraArgs are added to every container: "--ulimit", "nofile=1024:1024", or
	// "--device", "nvidia.com/gpu=all".
	ExtraArgs []string
	// Network is the network of commands that may have one; empty means the runtime's default.
	// "host" helps where the runtime cannot make networks.
	Network string
	// CABundle is a file of certificates, in PEM, that commands with network trust, for networks
	// with a proxy that ends TLS. The usual variables point to it. Empty means those of the image.
	CABundle string
	// NetworkEnv is given to commands with network, such as HTTPS_PROXY=…. Addresses with
	// credentials in it are treated as Command.Secrets.
	NetworkEnv []string
	// LockDir is where processes that share a runtime wait for each other, so that a derived image
	// is made once; empty means that only this process waits for itself. Containers are started in
	// it: podman's monitor leaves a file called oom in its working folder when one is killed for
	// memory.
	LockDir string
	// Log gets what is worth knowing about the runtime; nil discards.
	Log *slog.Logger
}

// Containers makes environments of containers; see [Container].
type Containers struct {
	opts  ContainerOptions
	log   *slog.Logger
	own   []string // arguments for this runtime on this machine
	locks keyedLocks

	mu      sync.Mutex
	pulled  map[string]bool // images by name that were not here before
	noInit  bool            // the runtime has no init program
	group   *controlGroup   // of the container groupID, for finding those of others
	groupID string
}

// Container returns sandboxes in containers of one runtime. Every command is a container of its
// own, which is removed when the command ends; what they share is mounted. Nothing is started
// before Open.
func Container(opts ContainerOptions) *Containers {
	opts.Runtime = cmp.Or(opts.Runtime, "podman")
	opts.Program = cmp.Or(opts.Program, opts.Runtime)
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Containers{opts: opts, log: log}
	if opts.Runtime == "podman" {
		c.own = []string{"--http-proxy=false"} // podman would keep the proxies of its own environment
		if !slices.ContainsFunc(opts.ExtraArgs, func(arg string) bool { return strings.HasPrefix(arg, "--ulimit") }) {
			c.own = append(c.own, ulimitArgs()...)
		}
	}
	return c
}

// Name implements [Maker].
func (c *Containers) Name() string { return c.opts.Runtime }

// Check asks the runtime for its version, and so whether it is there and running.
func (c *Containers) Check(ctx context.Context) (version string, err error) {
	format := "{{.Server.Version}}"
	if c.opts.Runtime == "podman" {
		format = "{{.Client.Version}}" // There is a server only when it is remote.
	}
	return c.call(ctx, "ask for its version", nil, "version", "--format", format)
}

// Open implements [Maker].
func (c *Containers) Open(ctx context.Context, spec Spec) (Box, error) {
	if c.opts.Runtime != "podman" && c.opts.Runtime != "docker" {
		return nil, fmt.Errorf("open %s: %q is not a runtime: podman and docker are", spec.Name, c.opts.Runtime)
	}
	if spec.Image == "" {
		return nil, fmt.Errorf("open %s: no image is given", spec.Name)
	}
	if err := checkMounts(spec.Mounts); err != nil {
		return nil, fmt.Errorf("open %s: %w", spec.Name, err)
	}
	base, err := c.image(ctx, spec.Image, spec.Log)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", spec.Name, err)
	}
	id := base.ID
	if len(spec.Setup) > 0 {
		if id, err = c.setupImage(ctx, base, spec); err != nil {
			return nil, fmt.Errorf("open %s: %w", spec.Name, err)
		}
	}
	return &containerBox{c: c, spec: spec, pinned: base.pin(spec.Image), id: id, env: base.Config.Env, gate: newGate(spec.Name)}, nil
}

// busyLimit is how long Sweep tries again to remove what the runtime calls busy.
const busyLimit = 15 * time.Second

// Sweep implements [Maker]. A call of the runtime that outlived the killed process may still be
// making a container: those are waited for, so that nothing appears later, and killed if they hang.
func (c *Containers) Sweep(ctx context.Context, owner string) (int, error) {
	if owner == "" {
		return 0, errors.New("sweep: no owner is given")
	}
	swept := map[string]bool{}
	patience, busy := time.Now().Add(callLimit), time.Now().Add(busyLimit)
	for {
		calls := markedProcesses(ownerEnv + "=" + owner) // before the list, or one could end in between unseen
		ids, err := c.leftovers(ctx, owner)
		if err != nil {
			return len(swept), fmt.Errorf("sweep what %s left: %w", owner, err)
		}
		for _, id := range ids {
			// What dies at this very moment may hold a mount for a little while.
			if err := c.remove(ctx, id); err != nil && (ctx.Err() != nil || time.Now().After(busy)) {
				return len(swept), fmt.Errorf("sweep what %s left: %w", owner, err)
			}
			swept[id] = true
		}
		if len(ids) == 0 && len(calls) == 0 {
			return len(swept), nil
		}
		if time.Now().After(patience) {
			for _, pid := range calls {
				if err := killMarked(pid, ownerEnv+"="+owner); err != nil {
					return len(swept), fmt.Errorf("sweep what %s left: end process %d: %w", owner, pid, err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return len(swept), fmt.Errorf("sweep what %s left: %w", owner, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leftovers lists the containers of an owner: those with its label and, as podman can be killed
// between writing the layer and the label, those that only have its name.
func (c *Containers) leftovers(ctx context.Context, owner string) ([]string, error) {
	text, err := c.call(ctx, "list containers", nil, "ps", "--all", "--no-trunc", "--filter", "label="+labelOwner+"="+owner, "--format", "{{.ID}}")
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(text)
	if c.opts.Runtime != "podman" {
		return ids, nil
	}
	text, err = c.call(ctx, "list containers", nil, "ps", "--all", "--external", "--no-trunc", "--format", "{{.ID}} {{.Names}}")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, namePrefix(owner)) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// remove ends a container at once and removes it. One that is gone already is no error.
func (c *Containers) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	args := []string{"rm", "--force", "--volumes"}
	if c.opts.Runtime == "podman" {
		args = append(args, "--time", "0")
	}
	_, err := c.call(ctx, "remove container "+name, nil, append(args, name)...)
	if err, ok := errors.AsType[*RuntimeError](err); ok && isGone(err.Output) {
		return nil
	}
	return err
}

// command prepares a call of the runtime. The runtime's program has the environment of this
// process, as when the user calls it: it says where the runtime is.
func (c *Containers) command(ctx context.Context, owner string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.opts.Program, slices.Concat(c.opts.RuntimeArgs, args)...)
	cmd.WaitDelay = time.Second
	if owner != "" {
		cmd.Env = append(cmd.Environ(), ownerEnv+"="+owner)
	}
	return cmd
}

// call runs one subcommand and returns its standard output without the last line end. The progress
// it reports on standard error goes to log, too.
func (c *Containers) call(ctx context.Context, action string, log io.Writer, args ...string) (string, error) {
	return c.callAs(ctx, "", action, log, args...)
}

func (c *Containers) callAs(ctx context.Context, owner, action string, log io.Writer, args ...string) (string, error) {
	return c.finish(ctx, c.command(ctx, owner, args...), action, log)
}

// finish runs a call of the runtime.
func (c *Containers) finish(ctx context.Context, cmd *exec.Cmd, action string, log io.Writer) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = outputLimit
	if log != nil {
		cmd.Stderr = io.MultiWriter(&stderr, log)
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %s: %w", c.opts.Runtime, action, context.Cause(ctx))
	}
	if err != nil {
		return "", newRuntimeError(c.opts.Runtime, action, stderr.String(), err)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// namePrefix begins the names of all containers of an owner.
func namePrefix(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return "kiln-" + hex.EncodeToString(sum[:4]) + "-"
}

// newName returns a name that no other container has, so that it can be removed by name even when
// the call that made it was lost.
func newName(owner, box string) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, box)
	return namePrefix(owner) + readable[:min(len(readable), 80)] + "-" + strings.ToLower(rand.Text()[:8])
}

// container describes one container that is to be created.
type container struct {
	name, owner, box string
	image            string // ID
	user             string
	dir              string // inside
	env              []string
	secrets          []string // more of env, for standard input
	argv             []string
	network          string // "none", or empty for the runtime's default
	mounts           []Mount
	memoryBytes      int64
	pids             int
	cpus             float64
	caps             []string
	init             bool
	terminal         bool // for a person: not named, removed by the runtime itself
}

// args returns the arguments of create, or of run for a terminal. They are the same for both
// runtimes, but for nothing more than the limits that podman takes from this process.
//
// The environment is given by env(1) inside, which is in every image with a shell: the runtimes
// would add variables of the image, of the container and of their configuration.
func (c *Containers) args(k container) []string {
	var args []string
	if k.terminal {
		args = append(args, "run", "--rm", "--interactive", "--tty")
	} else {
		args = append(args, "create", "--name", k.name, "--label", labelOwner+"="+k.owner, "--label", labelBox+"="+k.box, "--log-driver", "none")
	}
	if len(k.secrets) > 0 {
		args = append(args, "--interactive")
	}
	args = append(args, "--pull", "never", "--hostname", "kiln",
		"--security-opt", "no-new-privileges", "--security-opt", "label=disable", "--cap-drop", "all")
	for _, capability := range k.caps {
		args = append(args, "--cap-add", capability)
	}
	if k.network != "" {
		args = append(args, "--network", k.network)
	}
	if k.memoryBytes > 0 {
		limit := fmt.Sprintf("%db", k.memoryBytes)
		args = append(args, "--memory", limit, "--memory-swap", limit)
	}
	pids := -1 // podman has a limit by default
	if k.pids > 0 {
		pids = k.pids
	}
	args = append(args, "--pids-limit", fmt.Sprint(pids))
	if k.cpus > 0 {
		args = append(args, "--cpus", fmt.Sprintf("%.3f", k.cpus))
	}
	if k.init {
		args = append(args, "--init")
	}
	if k.user != "" {
		args = append(args, "--user", k.user)
	}
	for _, m := range k.mounts {
		args = append(args, "--mount", mountArg(m))
	}
	if k.dir != "" {
		args = append(args, "--workdir", k.dir)
	}
	args = append(args, c.own...)
	args = append(args, c.opts.ExtraArgs...)
	args = append(args, "--entrypoint", "/usr/bin/env", k.image, "-i")
	args = append(args, k.env...)
	return append(args, k.command()...)
}

// readSecrets is a shell that takes variables from its input, up to an empty line, and becomes its
// arguments: what is neither an argument nor a file is seen by no other process, and the runtime
// keeps none of it.
const readSecrets = `while IFS= read -r kv && [ -n "$kv" ]; do export "$kv"; done; exec "$@" </dev/null`

// command is what the container runs below env(1).
func (k *container) command() []string {
	if len(k.secrets) == 0 {
		return k.argv
	}
	return slices.Concat([]string{"sh", "-c", readSecrets, "sh"}, k.argv)
}

// secretInput is the input of readSecrets.
func secretInput(secrets []string) io.Reader {
	return strings.NewReader(strings.Join(secrets, "\n") + "\n\n")
}

// mountArg writes a mount as both runtimes read it: a line of CSV.
func mountArg(m Mount) string {
	fields := []string{"type=bind", "source=" + m.Host, "target=" + m.Inside}
	if m.ReadOnly {
		fields = append(fields, "readonly")
	}
	for i, f := range fields {
		if strings.ContainsAny(f, ",\"\r\n") || strings.HasPrefix(f, " ") {
			fields[i] = `"` + strings.ReplaceAll(f, `"`, `""`) + `"`
		}
	}
	return strings.Join(fields, ",")
}

// create makes a container and returns its ID. It is not canceled: half a container is harder to
// remove than a whole one.
func (c *Containers) create(ctx context.Context, k container) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	for {
		k.init = c.hasInit()
		id, err := c.callAs(ctx, k.owner, "create container "+k.name, nil, c.args(k)...)
		if err, ok := errors.AsType[*RuntimeError](err); ok && k.init && lacksInit(err.Output) {
			c.log.Warn("no init program in containers: orphaned processes are not reaped", "runtime", c.opts.Runtime, "reason", err.Output)
			c.mu.Lock()
			c.noInit = true
			c.mu.Unlock()
			continue
		}
		return id, err
	}
}

func (c *Containers) hasInit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.noInit
}

// networkName is the argument of --network.
func (c *Containers) networkName(on bool) string {
	if !on {
		return "none"
	}
	return c.opts.Network
}

// networkEnv is what commands with network get besides their own variables: those that may be seen,
// and those that may not.
func (c *Containers) networkEnv() (env, secrets []string) {
	if c.opts.CABundle != "" {
		for _, key := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"} {
			env = append(env, key+"="+insideCABundle)
		}
	}
	for _, kv := range c.opts.NetworkEnv {
		if _, found := secret.Extract(kv); len(found) > 0 {
			secrets = append(secrets, kv)
		} else {
			env = append(env, kv)
		}
	}
	return env, secrets
}

// networkMounts is what commands with network see besides their own mounts.
func (c *Containers) networkMounts() []Mount {
	if c.opts.CABundle == "" {
		return nil
	}
	return []Mount{{Host: c.opts.CABundle, Inside: insideCABundle, ReadOnly: true}}
}

// checkMounts finds mistakes that the runtimes report badly, or not at all.
func checkMounts(mounts []Mount) error {
	seen := map[string]bool{}
	for _, m := range mounts {
		switch {
		case !isAbs(m.Host):
			return fmt.Errorf("mount %s: its path on the host is not absolute", m.Host)
		case !path.IsAbs(m.Inside) || path.Clean(m.Inside) != m.Inside || m.Inside == "/":
			return fmt.Errorf("mount %s: %q is not a clean absolute path below / for the inside", m.Host, m.Inside)
		case seen[m.Inside]:
			return fmt.Errorf("mount %s: something else is mounted at %s already", m.Host, m.Inside)
		}
		seen[m.Inside] = true
	}
	return nil
}

// keyedLocks are locks by name that a context can stop waiting for.
type keyedLocks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (l *keyedLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	slot := l.held[key]
	if slot == nil {
		slot = make(chan struct{}, 1)
		l.held[key] = slot
	}
	l.mu.Unlock()
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
