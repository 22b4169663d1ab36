package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
)

// killedExitCode is what a runtime reports for a command that SIGKILL ended.
const killedExitCode = 128 + 9

// containerBox is an environment of containers: one for each command.
type containerBox struct {
	c      *Containers
	spec   Spec
	pinned string
	id     string   // of the image that is run, with setup
	env    []string // of the image
	gate   *gate
}

func (b *containerBox) Image() string    { return b.pinned }
func (b *containerBox) NetworkOff() bool { return true }

func (b *containerBox) Env() []string { return slices.Clone(b.env) }

func (b *containerBox) Inside(host string) string {
	m, rest, ok := findMount(b.spec.Mounts, host)
	if !ok {
		panic(fmt.Sprintf("sandbox: %s is in no mount of %s", host, b.spec.Name))
	}
	return path.Join(m.Inside, filepath.ToSlash(rest))
}

// describe turns a command into a container.
func (b *containerBox) describe(cmd Command) (container, error) {
	if len(cmd.Argv) == 0 {
		return container{}, errors.New("no program is named")
	}
	if strings.ContainsRune(cmd.Argv[0], '=') || strings.HasPrefix(cmd.Argv[0], "-") {
		return container{}, fmt.Errorf("%q cannot be run: env would not take it for a program", cmd.Argv[0])
	}
	for _, kv := range cmd.Env {
		if i := strings.IndexByte(kv, '='); i <= 0 || kv[0] == '-' {
			return container{}, fmt.Errorf("%q is not a variable", kv)
		}
	}
	k := container{
		name: newName(b.spec.Owner, b.spec.Name), owner: b.spec.Owner, box: b.spec.Name, image: b.id, user: b.user(),
		env: mergeEnv(b.env, cmd.Env), argv: cmd.Argv, network: b.c.networkName(cmd.Network), mounts: b.spec.Mounts,
		memoryBytes: b.spec.MemoryBytes, pids: b.spec.PIDs, cpus: b.spec.CPUs,
		// Root inside may use files of every owner, as root does; it may not change the system.
		caps: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER"},
		init: b.c.hasInit(),
	}
	k.secrets = cmd.Secrets
	if cmd.Network {
		plain, secrets := b.c.networkEnv()
		k.env, k.secrets = mergeEnv(b.env, plain, cmd.Env), mergeEnv(secrets, cmd.Secrets)
		k.mounts = slices.Concat(k.mounts, b.c.networkMounts())
	}
	for _, kv := range k.secrets {
		if i := strings.IndexByte(kv, '='); i <= 0 || strings.ContainsAny(kv, "\n\x00") {
			return container{}, errors.New("a secret is no variable of one line")
		}
	}
	dir := cmd.Dir
	if dir == "" && len(b.spec.Mounts) > 0 {
		dir = b.spec.Mounts[0].Host
	}
	if dir != "" {
		k.dir = b.Inside(dir)
	}
	return k, nil
}

// user is who writes into the mounts. Root inside is the user outside with podman, unless root runs
// it, who may be root inside, too; with docker root inside is root outside, and would leave files
// that the user cannot delete.
func (b *containerBox) user() string {
	if b.spec.User != "" {
		return b.spec.User
	}
	if uid := os.Getuid(); b.c.opts.Runtime == "docker" && uid > 0 {
		return fmt.Sprintf("%d:%d", uid, os.Getgid())
	}
	return ""
}

func (b *containerBox) Run(ctx context.Context, cmd Command) (Outcome, error) {
	ctx, leave, err := b.gate.enter(ctx)
	if err != nil {
		return Outcome{State: run.State{ExitCode: -1}}, &run.Error{Argv: cmd.Argv, State: run.State{ExitCode: -1}, Err: err}
	}
	defer leave()
	if _, secrets := b.c.networkEnv(); cmd.Network {
		cmd.Redact = slices.Concat(cmd.Redact, (&Command{Secrets: secrets}).redact())
	}
	out := newBoxOutput(cmd)
	outcome, cause, err := b.run(ctx, cmd, out)
	if cause == nil && err == nil && outcome.ExitCode == 0 {
		return outcome, nil
	}
	return outcome, &run.Error{Argv: cmd.Argv, State: outcome.State, Tail: out.tail(), Cause: cause, Err: err}
}

func (b *containerBox) run(ctx context.Context, cmd Command, out *boxOutput) (outcome Outcome, cause, err error) {
	outcome.ExitCode = -1
	k, err := b.describe(cmd)
	if err != nil {
		return outcome, nil, err
	}
	if ctx.Err() != nil {
		return outcome, context.Cause(ctx), nil
	}
	defer func() {
		if bad := b.c.remove(ctx, k.name); bad != nil {
			err = errors.Join(err, bad)
		}
	}()
	id, err := b.c.create(ctx, k)
	if err != nil {
		return outcome, nil, err
	}

	// A log that cannot be written ends the command: its output would be lost.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out.failed = stop

	start := time.Now()
	meter := b.c.newMeter(id)
	canceled, ended := b.attach(ctx, k, out)
	outcome.Wall = time.Since(start)
	usage := meter.stop()
	outcome.CPU, outcome.PeakMemoryBytes = usage.cpu, usage.peakBytes

	if out.err != nil {
		return outcome, nil, fmt.Errorf("write its output: %w", out.err)
	}
	if canceled {
		outcome.Signal = "SIGKILL"
		return outcome, context.Cause(ctx), nil
	}
	state, err := b.c.inspectState(ctx, k.name)
	switch {
	case err != nil:
		return outcome, nil, err
	case state.Running:
		return outcome, nil, newRuntimeError(b.c.opts.Runtime, "follow container "+k.name, strings.Join(out.tail(), "\n"), ended)
	case state.StartedAt.IsZero() || state.StartedAt.Year() <= 1:
		return outcome, nil, newRuntimeError(b.c.opts.Runtime, "start container "+k.name, strings.Join(out.tail(), "\n"), ended)
	}
	outcome.ExitCode = state.ExitCode
	if wall := state.FinishedAt.Sub(state.StartedAt); wall > 0 {
		outcome.Wall = wall
	}
	outcome.OOMKilled = state.OOMKilled || usage.oomKills > 0 || killedForMemory(state.ExitCode, usage, k.memoryBytes)
	if outcome.OOMKilled {
		outcome.PeakMemoryBytes = max(outcome.PeakMemoryBytes, k.memoryBytes)
	}
	return outcome, nil, nil
}

// killedForMemory decides for a main process that the kernel killed together with all its counters.
// Only the kernel kills it, so it was the limit, unless the last look saw less than half of it in
// use.
func killedForMemory(exitCode int, seen usage, limitBytes int64) bool {
	return limitBytes > 0 && exitCode == killedExitCode && (seen.samples == 0 || seen.peakBytes >= limitBytes/2)
}

// attach starts the container and copies its output until it ends. When ctx ends the command is
// asked to end, if it has an init that passes the question on, and killed after a while.
func (b *containerBox) attach(ctx context.Context, k container, out *boxOutput) (canceled bool, err error) {
	args := []string{"start", "--attach"}
	if len(k.secrets) > 0 {
		args = append(args, "--interactive")
	}
	cmd := b.c.command(context.WithoutCancel(ctx), k.owner, append(args, k.name)...)
	if len(k.secrets) > 0 {
		cmd.Stdin = secretInput(k.secrets)
	}
	cmd.Stdout, cmd.Stderr = out.writers()
	defer out.flush()
	if dir := b.c.opts.LockDir; dir != "" {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return false, err
		}
		cmd.Dir = dir
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		canceled = true
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		if b.c.hasInit() {
			// An error is not the last word: the container is removed next.
			_, _ = b.c.call(limited, "stop container "+k.name, nil, "stop", "-t", fmt.Sprint(int(stopGrace.Seconds())), k.name)
		}
		if err := b.c.remove(limited, k.name); err != nil {
			b.c.log.Warn("container not removed", "name", k.name, "err", err)
		}
		select {
		case <-done:
		case <-time.After(stopGrace):
			_ = cmd.Process.Kill() // It follows a container that is gone.
		}
	})
	err = cmd.Wait()
	close(done)
	watch.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited && !errors.Is(err, exec.ErrWaitDelay) {
		out.fail(err)
	}
	return canceled, err
}

func (b *containerBox) Shell(dir string, env []string) []string {
	if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		env = append(slices.Clone(env), "TERM=xterm")
	}
	k, err := b.describe(Command{
		Argv: []string{"sh", "-c", "if command -v bash >/dev/null; then exec bash; fi; exec sh"}, Dir: dir, Env: env, Network: true,
	})
	if err != nil {
		panic("sandbox: shell in " + b.spec.Name + ": " + err.Error())
	}
	k.terminal, k.secrets = true, nil // its input is the user's
	return slices.Concat([]string{b.c.opts.Program}, b.c.opts.RuntimeArgs, b.c.args(k))
}

func (b *containerBox) Close(ctx context.Context) error { return b.gate.close(ctx) }

// containerState is how a container stands.
type containerState struct {
	Running    bool
	OOMKilled  bool
	ExitCode   int
	StartedAt  time.Time
	FinishedAt time.Time
}

// inspected is a container as a runtime describes it.
type inspected struct {
	ID    string `json:"Id"`
	State containerState
}

func parseContainer(data []byte) (inspected, error) {
	var list []inspected
	if err := json.Unmarshal(data, &list); err != nil {
		return inspected{}, err
	}
	if len(list) != 1 || list[0].ID == "" {
		return inspected{}, fmt.Errorf("%d containers with an ID instead of one", len(list))
	}
	return list[0], nil
}

func (c *Containers) inspect(ctx context.Context, name string) (inspected, error) {
	text, err := c.call(ctx, "look at container "+name, nil, "container", "inspect", name)
	if err != nil {
		return inspected{}, err
	}
	info, err := parseContainer([]byte(text))
	if err != nil {
		return inspected{}, fmt.Errorf("%s: look at container %s: %w", c.opts.Runtime, name, err)
	}
	return info, nil
}

func (c *Containers) inspectState(ctx context.Context, name string) (containerState, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	info, err := c.inspect(ctx, name)
	return info.State, err
}

// usage is what a container has used so far.
type usage struct {
	samples   int
	peakBytes int64 // without file cache
	oomKills  int
	cpu       time.Duration
}

const (
	// sampleEvery is how often the counters of a container are read. They vanish with it.
	sampleEvery = 50 * time.Millisecond
	// firstLook is how often is looked for them before.
	firstLook = 10 * time.Millisecond
)

// meter reads the counters of a running container.
type meter struct {
	cancel context.CancelFunc
	done   chan struct{}
	usage  usage
}

// newMeter begins to look for a container, which is about to be started.
func (c *Containers) newMeter(id string) *meter {
	ctx, cancel := context.WithCancel(context.Background())
	m := &meter{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		group := c.waitForGroup(ctx, id)
		if group == nil {
			return
		}
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			group.sample(&m.usage)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return m
}

// waitForGroup returns the control group of a container when it is there. Groups of one runtime are
// in one place under their own ID, so the search through all of them is made for the first only.
func (c *Containers) waitForGroup(ctx context.Context, id string) *controlGroup {
	for pause := firstLook; ; {
		c.mu.Lock()
		known, knownID := c.group, c.groupID
		c.mu.Unlock()
		if known != nil {
			if group := known.sibling(knownID, id); group.exists() {
				return group
			}
			pause = firstLook
		} else if group := findControlGroup(os.DirFS("/"), id); group != nil {
			c.mu.Lock()
			c.group, c.groupID = group, id
			c.mu.Unlock()
			return group
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second) // They may be many, or on another machine.
	}
}

// stop returns what was seen.
func (m *meter) stop() usage {
	m.cancel()
	<-m.done
	return m.usage
}

// findMount returns the innermost mount that a path is in, and the path relative to it.
func findMount(mounts []Mount, host string) (found Mount, rest string, ok bool) {
	for _, m := range mounts {
		rel, err := filepath.Rel(m.Host, host)
		if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
			continue
		}
		if !ok || len(m.Host) > len(found.Host) {
			found, rest, ok = m, rel, true
		}
	}
	return found, rest, ok
}

func isAbs(host string) bool { return filepath.IsAbs(host) }

// tailLines is how many of the last lines of output an error has.
const tailLines = 20

// boxOutput hands on what a command prints, one write at a time and without its secrets, and keeps
// the end of it.
type boxOutput struct {
	stdout, stderr boxStream
	merged         bool
	redact         *secret.Redactor
	failed         context.CancelCauseFunc

	mu  sync.Mutex
	end []byte
	err error
}

func newBoxOutput(cmd Command) *boxOutput {
	o := &boxOutput{merged: cmd.Stderr == nil, redact: secret.NewRedactor(cmd.redact())}
	o.stdout, o.stderr = boxStream{o: o, w: cmd.Stdout}, boxStream{o: o, w: cmd.Stderr}
	return o
}

// writers returns the two streams; equal ones share a pipe, which keeps their order.
func (o *boxOutput) writers() (stdout, stderr io.Writer) {
	if o.merged {
		return &o.stdout, &o.stdout
	}
	return &o.stdout, &o.stderr
}

// flush hands on what could have been the beginning of a secret.
func (o *boxOutput) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stdout.write(nil, true)
	o.stderr.write(nil, true)
}

func (o *boxOutput) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// tail returns the last lines.
func (o *boxOutput) tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.ToValidUTF8(strings.TrimRight(string(o.end), "\r\n"), "\uFFFD")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-tailLines):]
}

// keepBytes bounds what the tail is made from.
const keepBytes = 32 << 10

type boxStream struct {
	o       *boxOutput
	w       io.Writer
	pending []byte // may be the beginning of a secret
}

// Write never fails: the command is ended instead, and read until then.
func (s *boxStream) Write(p []byte) (int, error) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	s.write(p, false)
	return len(p), nil
}

func (s *boxStream) write(p []byte, final bool) {
	if !s.o.redact.Empty() {
		s.pending = append(s.pending, p...)
		clean, rest := s.o.redact.Append(nil, s.pending, final)
		s.pending = append(s.pending[:0], rest...)
		p = clean
	}
	if len(p) == 0 {
		return
	}
	last := p[max(0, len(p)-keepBytes):]
	if len(s.o.end)+len(last) > 2*keepBytes {
		s.o.end = append(s.o.end[:0], s.o.end[len(s.o.end)-min(len(s.o.end), keepBytes):]...)
	}
	s.o.end = append(s.o.end, last...)
	if s.w == nil || s.o.err != nil {
		return
	}
	n, err := s.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.o.err = err
		if s.o.failed != nil {
			s.o.failed(err)
		}
	}
}

// gate lets commands into an environment until it is closed.
type gate struct {
	name string

	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
	ctx    context.Context //nolint:containedctx // It is the life of the environment, not a call.
	cancel context.CancelCauseFunc
}

func newGate(name string) *gate {
	g := &gate{name: name}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	return g
}

// enter returns a context that also ends when the environment is closed.
func (g *gate) enter(ctx context.Context) (inner context.Context, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, fmt.Errorf("%s is closed", g.name)
	}
	g.inside.Add(1)
	inner, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(g.ctx, func() { cancel(context.Cause(g.ctx)) })
	return inner, func() {
		unhook()
		cancel(nil)
		g.inside.Done()
	}, nil
}

// close ends what is inside and waits for it, as long as ctx allows.
func (g *gate) close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel(fmt.Errorf("%s was closed", g.name))
	done := make(chan struct{})
	go func() {
		g.inside.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close %s: %w", g.name, context.Cause(ctx))
	}
}

// lastField returns the number behind a key in a file of lines "key number".
func lastField(data []byte, key string) (string, bool) {
	for line := range bytes.Lines(data) {
		if name, value, ok := strings.Cut(strings.TrimSpace(string(line)), " "); ok && name == key {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}
