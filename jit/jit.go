package jit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/machine"
)

// Options say how [Load] works. Dir and Env must be set.
type Options struct {
	// Dir is the folder of the [Store].
	Dir string
	// Env is the environment, as NAME=value: where programs are looked for, and what compilers get.
	Env []string
	// Python is the interpreter that the module is for, CUDAHome the toolkit to use; empty means
	// the first one found.
	Python   string
	CUDAHome string
	// Archs is a list of GPU targets, as TORCH_CUDA_ARCH_LIST has it; it goes before the spec's.
	Archs string
	// Jobs is how many compilers may run at once. Zero means as many as there are processors and
	// memory for.
	Jobs int
	// Debug adds device-side assertions and the compiler's times.
	Debug bool
	// Output gets everything that compilers print, as it comes; nil keeps it in the log only.
	Output io.Writer
	// NoPrebuilt looks for no module that was compiled elsewhere.
	NoPrebuilt bool
	// NoCompile, if not empty, forbids compiling, and says why.
	NoCompile string
	// Launcher is a compiler cache to put in front of compilers. Empty means ccache if it is there;
	// NoLauncher none.
	Launcher   string
	NoLauncher bool
	// Retry compiles although the same inputs failed a moment ago, and although an entry is there
	// that looks damaged.
	Retry bool
	// LockTimeout is how long to wait for another process that compiles the same. Zero means an
	// hour.
	LockTimeout time.Duration
	// LoadTimeout is how long loading a module may take. Zero means two minutes.
	LoadTimeout time.Duration
	// RememberAs is a name, of hexadecimal digits, under which the answer is remembered as well:
	// for callers that look at it themselves, as kiln.load does.
	RememberAs string
	// OtherDirs are folders for a store that may be proposed where Dir cannot be used.
	OtherDirs []string
	// OnEvent is told what happens, one at a time. Nil means that no event is reported.
	OnEvent func(Event)
	// Table is the table of versions; nil means the built-in one.
	Table *compat.Table
	// Host is the machine to look at; nil means this one. Programs run on this one in any case.
	Host *machine.Host
}

// EventKind is what an [Event] is about.
type EventKind string

// The kinds of events.
const (
	EventRejected EventKind = "rejected" // a prebuilt module does not fit; Text says which and why
	EventWaiting  EventKind = "waiting"  // another process compiles the same module; Text says which
	EventCompile  EventKind = "compile"  // Done of Total files are compiled; Text is the one that was
	EventWarning  EventKind = "warning"
)

// Event is something that happens while a module is looked for or compiled.
type Event struct {
	Kind        EventKind
	Text        string
	Done, Total int
}

// Where a module came from, as it stands in [Result.Source].
const (
	SourcePrebuilt = "prebuilt" // compiled elsewhere, and fits
	SourceCache    = "cache"    // compiled earlier
	SourceBuilt    = "built"    // compiled now
)

// Result is a module that works here.
type Result struct {
	Name   string `json:"name"`
	Path   string `json:"path"`   // of the module's file
	Source string `json:"source"` // one of the Source constants
	// Torch says that torch has to be imported first.
	Torch bool `json:"torch"`
	// Key is the store's, empty for a module that is not in it.
	Key   string `json:"key,omitempty"`
	Archs string `json:"archs,omitempty"`
	// Remembered says that nothing had to be looked at but the times of files.
	Remembered bool `json:"remembered"`
	// Compiled counts the files that were compiled now.
	Compiled int `json:"compiled,omitempty"`
	// Rejected are modules that were found and do not fit.
	Rejected []Candidate `json:"rejected,omitempty"`
	Warnings []string    `json:"warnings,omitempty"`
}

// Candidate is a module that was compiled elsewhere.
type Candidate struct {
	Path string `json:"path"`
	// Diagnoses say why it cannot be used, the first one first.
	Diagnoses []machine.Diagnosis `json:"diagnoses"`
}

// Error says why there is no module.
type Error struct {
	Name string
	// Diagnoses are the causes, the most likely first; there is at least one.
	Diagnoses []machine.Diagnosis
	// Command is the one that failed first, Tail the end of its output, Log the file with all of
	// it.
	Command []string
	Tail    []string
	Log     string
	// Remembered says that it failed earlier, with the same inputs, and was not tried again.
	Remembered time.Time
	Rejected   []Candidate
	// Err is the underlying error, if there is one.
	Err error
}

// Error is one line: the module and the first cause.
func (e *Error) Error() string {
	text := "module " + e.Name
	if len(e.Diagnoses) > 0 {
		text += ": " + e.Diagnoses[0].Detail + " [" + e.Diagnoses[0].ID + "]"
	}
	return text
}

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }

// Load returns a module for this Python and this torch: see the package comment for the ways to get
// one. A failure that is the machine's or the sources' is an [*Error].
func Load(ctx context.Context, spec *Spec, opts Options) (*Result, error) {
	l, err := newLoader(spec, &opts)
	if err != nil {
		return nil, err
	}
	if !opts.Retry {
		if r, ok := l.store.recall(l.question()); ok {
			r.Remembered, r.Compiled = true, 0
			if r.Source == SourceBuilt {
				r.Source = SourceCache
			}
			touch(l.store.folderOf(r.Path))
			if opts.RememberAs != "" {
				l.store.copyMemory(l.question(), opts.RememberAs)
			}
			return &r, nil
		}
	}
	r, err := l.load(ctx)
	if e, ok := errors.AsType[*Error](err); ok {
		e.Rejected = l.rejected
	} else if err != nil {
		if d, ok := l.explainError(err); ok {
			return nil, &Error{Name: spec.Name, Diagnoses: []machine.Diagnosis{d}, Rejected: l.rejected, Err: err}
		}
	}
	return r, err
}

// loader is one call of Load.
type loader struct {
	spec     *Spec
	opts     *Options
	store    *Store
	machine  *machine.Machine
	rejected []Candidate
	watched  []string // besides the plan's files
	began    time.Time
}

func newLoader(spec *Spec, opts *Options) (*loader, error) {
	if opts.Dir == "" {
		return nil, errors.New("jit: Options.Dir must be set")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	opts.Dir = dir
	if name := opts.RememberAs; name != "" && (len(name) < memoryName || strings.Trim(name, "0123456789abcdef") != "") {
		return nil, fmt.Errorf("jit: %q is not a name of %d or more hexadecimal digits", name, memoryName)
	}
	if opts.Host == nil {
		opts.Host = machine.Local(opts.Env)
	}
	// Compilers and the interpreter run in other folders, and the answer is remembered for this
	// path.
	if strings.ContainsAny(opts.Python, `/\`) { // else it is a name on PATH
		opts.Python = opts.Host.Abs(opts.Python)
	}
	opts.CUDAHome = opts.Host.Abs(opts.CUDAHome)
	if len(spec.Inline) > 0 {
		spec = spec.inFolder(filepath.Join((&Store{Dir: dir}).dir(), inlineDir))
	}
	if opts.LockTimeout <= 0 {
		opts.LockTimeout = time.Hour
	}
	if opts.LoadTimeout <= 0 {
		opts.LoadTimeout = 2 * time.Minute
	}
	return &loader{spec: spec, opts: opts, store: &Store{Dir: dir}, began: time.Now()}, nil
}

// questionVariables decide what is found and chosen.
var questionVariables = append([]string{
	"PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CXX", "CC", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "PYTORCH_NVCC", "CUDA_VISIBLE_DEVICES",
	"CUDA_INC_PATH", "CUDNN_HOME", "CUDNN_PATH", "ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH",
}, inputVariables...)

// question is what is asked: everything that decides the answer and is no file.
func (l *loader) question() string {
	o := l.opts
	parts := []string{
		l.spec.file, l.spec.Root, string(l.spec.text), fmt.Sprintf("%+v", l.spec.withoutText()), o.Python, o.CUDAHome, o.Archs, o.Launcher,
		strconv.FormatBool(o.Debug), strconv.FormatBool(o.NoPrebuilt), strconv.FormatBool(o.NoLauncher), o.Host.KernelGPUs(),
	}
	for _, v := range questionVariables {
		parts = append(parts, o.Host.Getenv(v))
	}
	return question(parts...)
}

func (s *Spec) withoutText() Spec {
	c := *s
	c.text = nil
	return c
}

func (l *loader) event(e Event) {
	if l.opts.OnEvent != nil {
		l.opts.OnEvent(e)
	}
}

// probe looks at the machine.
func (l *loader) probe(ctx context.Context) {
	if l.machine == nil {
		l.machine = machine.Probe(ctx, l.opts.Host, machine.ProbeOptions{
			Python: l.opts.Python, CUDAHome: l.opts.CUDAHome, WorkDir: l.opts.Dir, Table: l.opts.Table,
			// A busy machine answers slowly.
			Timeout: time.Minute,
		})
	}
}

// load is Load without the memory.
func (l *loader) load(ctx context.Context) (*Result, error) {
	l.probe(ctx)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if l.machine.Python.Version == "" {
		r := l.machine.Result("python")
		fix := machine.InstallCommand("python-venv", l.machine.OS, l.machine.Distribution, "", "", l.machine.Root)
		return nil, &Error{Name: l.spec.Name, Diagnoses: []machine.Diagnosis{newDiagnosis("no-python", cmp.Or(r.Detail, "no Python was found"), fix)}}
	}
	l.watched = append(l.watched, filepath.SplitList(l.opts.Host.Getenv("PATH"))...)
	l.watched = append(l.watched, l.machine.Python.SitePackages...)
	if err := l.writeInline(); err != nil {
		return nil, err
	}
	if !l.opts.NoPrebuilt && !l.spec.Prebuilt.Off && l.spec.isModule() {
		r, err := l.prebuilt(ctx)
		if r != nil || err != nil {
			if r != nil {
				l.remember(*r, append(l.watched, r.Path))
			}
			return r, err
		}
	}
	// A project that changes while it is compiled is compiled again, with what it has become.
	for range 3 {
		r, files, err := l.cachedOrBuilt(ctx)
		if errors.Is(err, errChanged) {
			l.event(Event{Kind: EventWarning, Text: err.Error() + "; compiling again"})
			continue
		}
		if err != nil {
			return nil, err
		}
		r.Rejected = l.rejected
		l.remember(*r, append(slices.Concat(l.watched, files), r.Path))
		return r, nil
	}
	return nil, fmt.Errorf("module %s: its files kept changing while they were compiled", l.spec.Name)
}

func (l *loader) remember(r Result, files []string) {
	l.store.remember(l.question(), r, files)
	if name := l.opts.RememberAs; name != "" {
		l.store.remember(name, r, files)
	}
}

// places are the folders of this machine.
func (l *loader) places() places {
	kit, _ := l.machine.Toolkit()
	return places{"{root}": l.spec.Root, "{torch}": l.machine.Torch.Dir, "{python}": l.machine.Python.Include, "{cuda}": kit.Home}
}

// keyLength is how much of a digest is in the name of an entry.
const keyLength = 32

// cachedOrBuilt takes the module from the store, or compiles it. files are those that the answer
// depends on.
func (l *loader) cachedOrBuilt(ctx context.Context) (r *Result, files []string, err error) {
	began := time.Now()
	p, err := newPlan(l.spec, l.machine, l.opts)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range p.warnings {
		l.event(Event{Kind: EventWarning, Text: w})
	}
	base := p.inputs.Digest()[:keyLength]
	digests := map[string]string{}
	look := func() bool {
		e, ok := l.store.find(l.spec.Name, base, l.places(), digests)
		if ok && !e.intact() {
			// It was changed, or the disk is damaged. Compile again rather than load it.
			l.event(Event{Kind: EventWarning, Text: "the module in " + e.Dir + " is damaged; compiling again"})
			if _, err := l.store.removeEntry(e); err != nil {
				return false
			}
			ok = false
		}
		if ok {
			r, files = l.result(p, e, SourceCache)
		}
		return ok
	}
	if look() {
		return r, files, nil
	}
	if l.opts.NoCompile != "" {
		return nil, nil, &Error{Name: l.spec.Name, Diagnoses: []machine.Diagnosis{newDiagnosis("no-native-module",
			"no compiled module fits, and "+l.opts.NoCompile+" forbids compiling one", "unset "+l.opts.NoCompile)}}
	}
	if f, ok := l.store.failed(l.spec.Name, base, l.began); ok && !l.opts.Retry {
		return nil, nil, f.error(l.spec.Name)
	}
	if err := l.usable(); err != nil {
		return nil, nil, err
	}
	lock, err := l.lock(ctx, base)
	if err != nil {
		return nil, nil, err
	}
	if lock != nil {
		defer lock.Unlock() //nolint:errcheck // It ends with the file.
	}
	clear(digests)
	if look() { // the process that held the lock compiled it
		return r, files, nil
	}
	if f, ok := l.store.failed(l.spec.Name, base, l.began); ok && (!l.opts.Retry || f.Time.After(l.began)) {
		return nil, nil, f.error(l.spec.Name)
	}
	l.store.sweep()
	e, err := l.build(ctx, p, base, began)
	if err != nil {
		return nil, nil, err
	}
	_ = os.Remove(l.store.failurePath(l.spec.Name, base))
	r, files = l.result(p, e, SourceBuilt)
	r.Compiled = len(p.units)
	return r, files, nil
}

// result is the answer for an entry.
func (l *loader) result(p *plan, e Entry, source string) (*Result, []string) {
	touch(e.Dir)
	files := slices.Clone(p.files)
	managed := l.managed()
	for _, h := range e.Headers {
		f := l.places().path(h.Path)
		if slices.ContainsFunc(managed, func(dir string) bool { return strings.HasPrefix(f, dir) }) && !strings.HasPrefix(f, l.spec.Root+string(filepath.Separator)) {
			f = filepath.Dir(f)
		}
		files = append(files, f)
	}
	return &Result{
		Name: l.spec.Name, Path: e.Path(), Source: source, Torch: l.spec.Torch, Key: e.Key, Archs: e.Archs, Warnings: p.warnings,
	}, files
}

// managed are folders, each with a separator at its end, whose files only a package manager
// changes. It replaces files, which changes their folders, so that watching the folders is enough:
// the five thousand headers of torch are in a few dozen.
func (l *loader) managed() []string {
	var dirs []string
	if l.machine.OS == "linux" {
		dirs = append(dirs, "/usr/include/", "/usr/lib/", "/usr/local/cuda")
	}
	if torch := l.machine.Torch.Dir; torch != "" {
		if records, err := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(torch)), "torch-*.dist-info", "RECORD")); err == nil && len(records) > 0 {
			dirs = append(dirs, torch+string(filepath.Separator))
		}
	}
	return dirs
}

// lock waits until no other process compiles the same. It is nil on a file system without locks.
func (l *loader) lock(ctx context.Context, base string) (*fsx.FileLock, error) {
	dir := l.store.moduleDir(l.spec.Name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, base+".lock")
	lock, err := fsx.TryLock(path)
	if locked, ok := errors.AsType[*fsx.LockedError](err); ok {
		l.event(Event{Kind: EventWaiting, Text: fmt.Sprintf("process %d on %s compiles %s", locked.Owner.PID, locked.Owner.Host, l.spec.Name)})
		limited, cancel := context.WithTimeoutCause(ctx, l.opts.LockTimeout, fmt.Errorf("no end after %s", l.opts.LockTimeout))
		defer cancel()
		lock, err = fsx.Lock(limited, path)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil // The rename at the end of a build is enough; work may be done twice.
	}
	return lock, err
}

// usable reports, before the first compiler runs, that modules could not be loaded from the store.
func (l *loader) usable() error {
	if err := os.MkdirAll(l.store.dir(), 0o777); err != nil {
		return err
	}
	if l.opts.Host.NoExec(l.opts.Dir) {
		detail := l.opts.Dir + " is on a file system that is mounted noexec: a module in it cannot be loaded"
		return &Error{Name: l.spec.Name, Diagnoses: []machine.Diagnosis{newDiagnosis("noexec", detail, l.otherDir())}}
	}
	return nil
}

// otherDir proposes a folder for the store.
func (l *loader) otherDir() string {
	for _, dir := range l.opts.OtherDirs {
		if dir == l.opts.Dir || l.opts.Host.NoExec(dir) {
			continue
		}
		if free, err := fsx.FreeSpace(dir); err == nil && free > 1<<30 {
			return "export KILN_CACHE_DIR=" + dir
		}
	}
	return "set KILN_CACHE_DIR to a folder on another file system, with room and without noexec"
}

// explainError puts errors of kiln's own work in the store into words.
func (l *loader) explainError(err error) (machine.Diagnosis, bool) {
	switch {
	case engine.CauseOf(err) == engine.CauseDisk:
		free := ""
		if n, ferr := fsx.FreeSpace(l.opts.Dir); ferr == nil {
			free = "; " + units.Bytes(n) + " are free"
		}
		return newDiagnosis("disk-full", "the disk of "+l.opts.Dir+" is full"+free, l.otherDir()), true
	case errors.Is(err, os.ErrPermission):
		return newDiagnosis("file-access", err.Error(), l.otherDir()), true
	}
	return machine.Diagnosis{}, false
}

func (f *failure) error(name string) *Error {
	return &Error{Name: name, Diagnoses: f.Diagnoses, Command: f.Command, Tail: f.Tail, Log: f.Log, Remembered: f.Time}
}

// Explanation says why a module would be compiled, or that it would not: what differs from the
// newest entry.
type Explanation struct {
	Name string `json:"name"`
	// Key is that of the inputs of now, without headers.
	Key string `json:"key"`
	// Hit says that the store has the module.
	Hit bool `json:"hit"`
	// Entry is the newest one of this name, nil if there is none.
	Entry *Entry `json:"entry,omitempty"`
	// Changes are what differs from it.
	Changes []Change `json:"changes"`
	// Inputs are all that decides the result now, but for headers.
	Inputs Inputs `json:"inputs"`
}

// Explain compares the inputs of now with the store. It compiles nothing.
func Explain(ctx context.Context, spec *Spec, opts Options) (*Explanation, error) {
	l, err := newLoader(spec, &opts)
	if err != nil {
		return nil, err
	}
	l.probe(ctx)
	if err := l.writeInline(); err != nil {
		return nil, err
	}
	p, err := newPlan(l.spec, l.machine, &opts)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Name: spec.Name, Key: p.inputs.Digest()[:keyLength], Inputs: p.inputs, Changes: []Change{}}
	_, e.Hit = l.store.find(spec.Name, e.Key, l.places(), map[string]string{})
	if e.Hit {
		return e, nil
	}
	e.Entry, e.Changes, err = l.store.Explain(spec.Name, p.inputs, l.places())
	return e, err
}
