package jit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/machine"
)

// errChanged says that a file was changed while it was compiled: the result may be of either
// content.
var errChanged = errors.New("changed while it was compiled")

// build compiles and links in a private folder and puts the result into the store.
func (l *loader) build(ctx context.Context, p *plan, base string, began time.Time) (Entry, error) {
	work, err := l.store.newWork(l.spec.Name)
	if err != nil {
		return Entry{}, err
	}
	defer work.remove()
	b := &builder{loader: l, plan: p, dir: work.path}
	for _, dir := range []string{"obj", "log", "tmp", "entry"} {
		if err := os.Mkdir(filepath.Join(work.path, dir), 0o777); err != nil {
			return Entry{}, err
		}
	}
	started := time.Now()
	err = l.translate(ctx, p)
	if err == nil {
		err = b.openMSVC(ctx)
	}
	if err == nil {
		err = b.compile(ctx)
	}
	if err != nil {
		return Entry{}, b.failed(ctx, base, err)
	}
	module := filepath.Join(work.path, "entry", p.module)
	if l.spec.Kind != KindProgram {
		if err := l.tryLoad(ctx, module, l.spec.Name, false); err != nil {
			return Entry{}, b.failed(ctx, base, err)
		}
	}
	headers, err := b.headers(began)
	if err != nil {
		return Entry{}, err
	}
	return b.publish(base, module, headers, time.Since(started))
}

type builder struct {
	*loader
	plan *plan
	dir  string

	msvcEnv []string // the variables of the compiler on Windows

	mu    sync.Mutex
	first *commandError // the first command that failed
	done  int
}

// commandError is a command that failed, with its whole output.
type commandError struct {
	argv  []string
	log   string   // file with its output; empty if lines has it
	lines []string // without log
	stage string
	err   error
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// compile runs all commands, as many at once as fit.
func (b *builder) compile(ctx context.Context) error {
	const link = "link"
	jobs := make([]engine.Job, 0, len(b.plan.units)+1)
	commands := map[string][]string{}
	var all []string
	for _, u := range b.plan.units {
		id := "compile " + u.source
		jobs = append(jobs, engine.Job{ID: id, Resources: engine.Resources{CPU: 1, MemoryBytes: u.memory}})
		commands[id] = b.plan.command(u, filepath.Join(b.dir, "obj"))
		all = append(all, id)
	}
	jobs = append(jobs, engine.Job{ID: link, Needs: all, Resources: engine.Resources{CPU: 1, MemoryBytes: memoryPlain}})
	commands[link] = b.plan.linkCommand(filepath.Join(b.dir, "obj"), filepath.Join(b.dir, "entry", b.plan.module))
	b.event(Event{Kind: EventCompile, Total: len(all)})
	report, err := engine.Run(ctx, jobs, engine.Options{
		Dir: filepath.Join(b.dir, "state"), Jobs: b.opts.Jobs, CPU: max(b.opts.Jobs, defaultJobs()), FailFast: true,
		Runner: engine.Local(func(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
			state, err := b.command(ctx, a.Job.ID, commands[a.Job.ID])
			if err == nil && a.Job.ID != link {
				b.mu.Lock()
				b.done++
				b.event(Event{Kind: EventCompile, Done: b.done, Total: len(all), Text: strings.TrimPrefix(a.Job.ID, "compile ")})
				b.mu.Unlock()
			}
			return engine.Result{PeakMemoryBytes: state.PeakMemoryBytes}, err
		}),
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The cause is the first command that failed for good; what FailFast ended after it is not.
	if report != nil && report.Count(engine.StatusFailed) > 0 {
		if b.first != nil {
			return b.first
		}
		i := slices.IndexFunc(report.Jobs, func(j engine.JobReport) bool { return j.Status == engine.StatusFailed })
		return report.Jobs[i].Err
	}
	return err
}

// environment is that of compilers.
func (b *builder) environment() []string {
	return append(append(
		slices.Clone(b.opts.Env), "LC_ALL=C", "TMPDIR="+filepath.Join(b.dir, "tmp"),
		// The same file in another checkout is the same.
		"CCACHE_BASEDIR="+b.spec.Root, "CCACHE_NOHASHDIR=1", "CCACHE_SLOPPINESS=time_macros",
	), b.msvcEnv...)
}

func (b *builder) logPath(id string) string {
	return filepath.Join(b.dir, "log", strings.NewReplacer("/", "_", `\`, "_", ":", "_", " ", "_").Replace(id)+".log")
}

// command runs one compiler or the linker, with its output in a log of its own.
func (b *builder) command(ctx context.Context, id string, argv []string) (run.State, error) {
	log, err := os.Create(b.logPath(id))
	if err != nil {
		return run.State{}, err
	}
	defer log.Close()
	fmt.Fprintln(log, shellLine(argv))
	var out io.Writer = log
	if b.opts.Output != nil {
		out = io.MultiWriter(log, &lockedWriter{w: b.opts.Output, mu: &b.mu})
	}
	cmd := run.Cmd{Argv: argv, Dir: b.spec.Root, Env: b.environment(), Stdout: out, TailLines: 40}
	state, err := cmd.Run(ctx)
	if err == nil || ctx.Err() != nil {
		return state, err
	}
	if cause := engine.CauseOf(err); cause == engine.CauseFault && diskFull(b.logPath(id)) {
		err = engine.Fail(engine.CauseDisk, err)
	}
	ce := &commandError{argv: argv, log: b.logPath(id), stage: machine.StageCompile, err: err}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil {
		b.first = ce
	}
	return state, ce
}

// diskFull looks whether a compiler says so.
func diskFull(log string) bool {
	text, err := os.ReadFile(log)
	return err == nil && strings.Contains(string(text), "No space left on device")
}

type lockedWriter struct {
	w  io.Writer
	mu *sync.Mutex
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

// failed explains a failure, and keeps what the next process needs to know of it.
func (b *builder) failed(ctx context.Context, base string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	e := &Error{Name: b.spec.Name, Err: err}
	ce, ok := errors.AsType[*commandError](err)
	if !ok {
		return err
	}
	e.Command = ce.argv
	lines := ce.output()
	e.Tail = lines[max(0, len(lines)-40):]
	e.Diagnoses = b.explain(ce)
	for i, d := range e.Diagnoses {
		if d.ID == "disk-full" || d.ID == "noexec" {
			e.Diagnoses[i].Fix = b.otherDir()
		}
	}
	if engine.CauseOf(err) == engine.CauseDisk && !slices.ContainsFunc(e.Diagnoses, func(d machine.Diagnosis) bool { return d.ID == "disk-full" }) {
		d, _ := b.explainError(err)
		e.Diagnoses = append([]machine.Diagnosis{d}, e.Diagnoses...)
	}
	b.keepFailure(base, e, strings.Join(append([]string{shellLine(ce.argv)}, lines...), "\n")+"\n")
	return e
}

// output is what the command printed.
func (e *commandError) output() []string {
	if e.log == "" {
		return e.lines
	}
	text, err := os.ReadFile(e.log)
	if err != nil {
		return nil // explains less
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return lines[1:] // the first is the command
}

// explain says why a command failed, with what is known of the machine.
func (l *loader) explain(ce *commandError) []machine.Diagnosis {
	ev := l.machine.Evidence()
	ev.Stage, ev.Argv, ev.LogLines, ev.Jobs = ce.stage, ce.argv, ce.output(), l.opts.Jobs
	ev.FreeDiskBytes, _ = fsx.FreeSpace(l.opts.Dir)
	ev.ExitCode = 1
	if re, ok := errors.AsType[*run.Error](ce.err); ok {
		ev.ExitCode, ev.Signal, ev.PeakMemoryBytes = re.State.ExitCode, re.State.Signal, re.State.PeakMemoryBytes
		ev.TimedOut = errors.Is(re.Cause, errSlow)
	}
	return machine.Diagnose(ev)
}

// lasting are failures that end only when the inputs change. Installing something can end others.
var lasting = []string{"compile-error", "compiler-crash", "cxx-standard"}

// keepFailure writes the failure down. Not being able to is no further failure.
func (b *builder) keepFailure(base string, e *Error, log string) {
	dir := filepath.Join(b.store.dir(), failedDir)
	if os.MkdirAll(dir, 0o777) != nil {
		return
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%s.log", b.spec.Name, base[:8], time.Now().UTC().Format("20060102T150405")))
	if fsx.WriteFile(path, []byte(log), 0o666) == nil {
		e.Log = path
	}
	f := failure{Format: manifestFormat, Time: time.Now(), Diagnoses: e.Diagnoses, Command: e.Command, Tail: e.Tail, Log: e.Log}
	f.Lasting = len(e.Diagnoses) > 0 && slices.Contains(lasting, e.Diagnoses[0].ID)
	now := time.Now()
	for _, h := range b.projectHeaders() {
		f.Watch = append(f.Watch, watch(h, now))
	}
	if text, err := json.Marshal(f); err == nil {
		_ = fsx.WriteFile(b.store.failurePath(b.spec.Name, base), text, 0o666)
	}
}

// projectHeaders are the headers that a failed compile may have read: no compiler says which.
func (b *builder) projectHeaders() []string {
	var dirs []string
	for _, u := range b.plan.units {
		dirs = append(dirs, filepath.Dir(b.spec.path(u.source)))
	}
	dirs = append(dirs, b.plan.files...) // include folders among them
	slices.Sort(dirs)
	var out []string
	for _, dir := range slices.Compact(dirs) {
		names, err := os.ReadDir(dir)
		if err != nil {
			continue // no folder
		}
		for _, n := range names {
			if f := filepath.Join(dir, n.Name()); !n.IsDir() && isHeader(f) {
				out = append(out, f)
			}
		}
	}
	return out
}

// headers collects what compilers read besides the sources. It fails if a file changed since began.
func (b *builder) headers(began time.Time) ([]Header, error) {
	where := b.places()
	digests := map[string]string{}
	sources := map[string]bool{}
	for _, u := range b.plan.units {
		sources[b.spec.path(u.source)] = true
	}
	for _, u := range b.plan.units {
		files, err := b.plan.included(u, filepath.Join(b.dir, "obj", u.object+".d"))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if !filepath.IsAbs(f) {
				f = filepath.Join(b.spec.Root, f)
			}
			f = b.plan.hip.original(filepath.Clean(f))
			if _, seen := digests[f]; seen || sources[f] || strings.HasPrefix(f, b.dir) {
				continue
			}
			s := statOf(f)
			if s.Absent {
				continue // made by the compiler itself, and gone
			}
			// A time to come is that of another clock, and says nothing.
			if at := s.changedAt(); at > began.UnixNano() && at <= time.Now().UnixNano() {
				return nil, fmt.Errorf("%s: %w", f, errChanged)
			}
			if _, err := b.digest(f, digests); err != nil {
				return nil, err
			}
		}
	}
	for _, in := range b.plan.inputs {
		if name, ok := strings.CutPrefix(in.Name, "source "); ok {
			if sum, _, err := fsx.SHA256(b.spec.path(name)); err != nil || sum != in.Value {
				return nil, fmt.Errorf("%s: %w", name, errChanged)
			}
		}
	}
	out := make([]Header, 0, len(digests))
	for f, sum := range digests {
		out = append(out, Header{where.token(f), sum})
	}
	slices.SortFunc(out, func(x, y Header) int { return strings.Compare(x.Path, y.Path) })
	return out, nil
}

func (b *builder) digest(f string, digests map[string]string) (string, error) {
	sum, _, err := fsx.SHA256(f)
	if err == nil {
		digests[f] = sum
	}
	return sum, err
}

// publish moves the module into the store, with everything that belongs to it, in one step.
func (b *builder) publish(base, module string, headers []Header, wall time.Duration) (Entry, error) {
	info, err := os.Stat(module)
	if err != nil {
		return Entry{}, err
	}
	sum, _, err := fsx.SHA256(module)
	if err != nil {
		return Entry{}, err
	}
	m := Manifest{
		Format: manifestFormat, Name: b.spec.Name, Module: b.plan.module, Size: info.Size(), SHA256: sum, Archs: b.plan.targets(),
		Headers: headers, Made: time.Now().UTC(), Wall: wall,
	}
	entry := filepath.Dir(module)
	for name, v := range map[string]any{manifestName: m, inputsName: b.plan.inputs} {
		text, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return Entry{}, err
		}
		if err := os.WriteFile(filepath.Join(entry, name), append(text, '\n'), 0o666); err != nil {
			return Entry{}, err
		}
	}
	if err := b.joinLogs(filepath.Join(entry, logName)); err != nil {
		return Entry{}, err
	}
	parts := make([]string, 0, 2*len(headers))
	for _, h := range headers {
		parts = append(parts, h.Path, h.SHA256)
	}
	target := filepath.Join(b.store.moduleDir(b.spec.Name), base+"-"+question(parts...)[:16])
	err = fsx.RenameDir(entry, target, fsx.RenameDirOptions{})
	if err != nil && !errors.Is(err, fsx.ErrNotEmpty) {
		return Entry{}, err
	}
	// Where there are no locks, another process may have put its own there: it is as good.
	return readEntry(target)
}

func (b *builder) joinLogs(path string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	names, err := os.ReadDir(filepath.Join(b.dir, "log"))
	for _, n := range names {
		if err != nil {
			break
		}
		var text []byte
		if text, err = os.ReadFile(filepath.Join(b.dir, "log", n.Name())); err == nil {
			_, err = out.Write(text)
		}
	}
	return errors.Join(err, out.Close())
}

// shellLine writes a command so that it can be run again.
func shellLine(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = shellQuote(a)
	}
	return strings.Join(words, " ")
}

func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

var errSlow = errors.New("loading took too long")

// loadScript imports a module. torch modules that were compiled just now are only opened with all
// their symbols: importing torch takes seconds, and the caller will do it anyway.
const loadScript = `import sys
path, name, how = sys.argv[1:4]
if how in ("open", "library"):
    import ctypes, os
    library = ctypes.CDLL(path, mode=os.RTLD_NOW)
    if how == "open":
        getattr(library, "PyInit_" + name)
else:
    if how == "torch":
        import torch
    import importlib.machinery, importlib.util
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    loader.exec_module(importlib.util.module_from_spec(spec))
`

// tryLoad loads a module in a child process. With full, torch is imported before.
func (l *loader) tryLoad(ctx context.Context, path, name string, full bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.opts.LoadTimeout, errSlow)
	defer cancel()
	how, env := "import", slices.Clone(l.opts.Env)
	if !l.spec.isModule() {
		how = "library"
	}
	if l.spec.Torch {
		if full {
			how = "torch"
		} else {
			if l.spec.isModule() {
				how = "open"
			}
			lib := filepath.Join(l.machine.Torch.Dir, "lib")
			if old := l.opts.Host.Getenv("LD_LIBRARY_PATH"); old != "" {
				lib += ":" + old
			}
			env = append(env, "LD_LIBRARY_PATH="+lib)
		}
	}
	cmd := run.Cmd{
		Argv: []string{l.machine.Python.Path, "-c", loadScript, path, name, how}, Env: append(env, "LC_ALL=C.UTF-8"),
		Dir: filepath.Dir(path), TailLines: 40,
	}
	if _, err := cmd.Run(ctx); err != nil {
		ce := &commandError{argv: cmd.Argv, stage: machine.StageImport, err: err}
		if re, ok := errors.AsType[*run.Error](err); ok {
			ce.lines = re.Tail
		}
		return ce
	}
	return nil
}
