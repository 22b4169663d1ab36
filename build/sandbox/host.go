package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/run"
)

// HostOptions says how commands run on the host.
type HostOptions struct {
	// Grace is the time from asking a canceled command to end to killing it; zero means 5 seconds.
	Grace time.Duration
}

// HostMaker makes environments on the host; see [Host].
type HostMaker struct {
	opts       HostOptions
	networkOff func() bool
	hidden     func() error
}

// Host returns sandboxes that are none: commands are child processes of this one, and see
// the files of this user. What remains is that nothing of them is left behind, and, where the
// system can do that, that commands without network have none and that no command sees processes
// other than its own. The program must call [run.Main] first.
func Host(opts HostOptions) *HostMaker {
	return &HostMaker{
		opts:       opts,
		networkOff: sync.OnceValue(func() bool { return probe(run.Cmd{NoNetwork: true}) == nil }),
		hidden:     sync.OnceValue(HidesProcesses),
	}
}

// HidesProcesses tries whether commands on the host can be kept from seeing other processes, and
// with them what they have in their environment. The error says why they cannot.
func HidesProcesses() error { return probe(run.Cmd{OwnProcesses: true}) }

// probe tries it: what a user may do depends on the kernel, its settings and the container around.
func probe(cmd run.Cmd) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd.Argv, cmd.Env = []string{"true"}, []string{"PATH=/usr/bin:/bin:/run/current-system/sw/bin"}
	_, err := cmd.Run(ctx)
	return err
}

// Name implements [Maker].
func (h *HostMaker) Name() string { return "host" }

// Open implements [Maker].
func (h *HostMaker) Open(_ context.Context, spec Spec) (Box, error) {
	for _, m := range spec.Mounts {
		if !isAbs(m.Host) {
			return nil, fmt.Errorf("open %s: mount %s: its path on the host is not absolute", spec.Name, m.Host)
		}
	}
	return &hostBox{h: h, spec: spec, gate: newGate(spec.Name)}, nil
}

// supervisorEnv marks the processes that supervise commands of an owner.
const supervisorEnv = "KILN_BOX_SUPERVISOR"

// Sweep implements [Maker]: it kills the processes that have the owner in the environment that they
// were started with, and waits for their supervisors, which end without kiln: one of them may be
// about to start the command that it was given last. Other systems than Linux cannot find them;
// there it does nothing.
func (h *HostMaker) Sweep(ctx context.Context, owner string) (int, error) {
	if owner == "" {
		return 0, errors.New("sweep: no owner is given")
	}
	swept := map[int]bool{}
	for {
		supervisors := markedProcesses(supervisorEnv + "=" + owner) // first: what they start until they end is in the other list
		pids := markedProcesses(ownerEnv + "=" + owner)
		if len(supervisors)+len(pids) == 0 {
			return len(swept), nil
		}
		for _, pid := range pids {
			if err := killMarked(pid, ownerEnv+"="+owner); err != nil {
				return len(swept), fmt.Errorf("sweep what %s left: kill process %d: %w", owner, pid, err)
			}
			swept[pid] = true
		}
		select {
		case <-ctx.Done():
			return len(swept), fmt.Errorf("sweep what %s left: %w", owner, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// hostBox is an environment on the host.
type hostBox struct {
	h    *HostMaker
	spec Spec
	gate *gate
}

func (b *hostBox) Image() string    { return "" }
func (b *hostBox) NetworkOff() bool { return b.h.networkOff() }

func (b *hostBox) Env() []string { return []string{ownerEnv + "=" + b.spec.Owner} }

func (b *hostBox) Inside(host string) string {
	if _, _, ok := findMount(b.spec.Mounts, host); !ok {
		panic(fmt.Sprintf("sandbox: %s is in no mount of %s", host, b.spec.Name))
	}
	return host
}

func (b *hostBox) Run(ctx context.Context, cmd Command) (Outcome, error) {
	ctx, leave, err := b.gate.enter(ctx)
	if err != nil {
		return Outcome{State: run.State{ExitCode: -1}}, &run.Error{Argv: cmd.Argv, State: run.State{ExitCode: -1}, Err: err}
	}
	defer leave()
	dir := cmd.Dir
	if dir == "" && len(b.spec.Mounts) > 0 {
		dir = b.spec.Mounts[0].Host
	}
	child := run.Cmd{
		Argv: cmd.Argv, Dir: dir, Env: slices.Concat(cmd.Env, cmd.Secrets, b.Env()), Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		Grace: b.h.opts.Grace, NoNetwork: !cmd.Network && b.NetworkOff(), OwnProcesses: b.h.hidden() == nil, Redact: cmd.redact(), MemoryBytes: b.spec.MemoryBytes, Mark: supervisorEnv + "=" + b.spec.Owner,
	}
	state, err := child.Run(ctx)
	return Outcome{State: state}, err
}

func (b *hostBox) Shell(dir string, env []string) []string {
	if runtime.GOOS == "windows" {
		return []string{"cmd.exe", "/k", "cd", "/d", dir}
	}
	shell := "sh"
	if path, err := exec.LookPath("bash"); err == nil {
		shell = path
	}
	if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		env = append(slices.Clone(env), "TERM=xterm")
	}
	return slices.Concat([]string{"sh", "-c", `cd "$1" && shift && exec env -i "$@"`, "sh", dir}, env, []string{shell})
}

func (b *hostBox) Close(ctx context.Context) error { return b.gate.close(ctx) }
