package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/jit"
	"github.com/kiln-build/kiln/machine"
)

type jitFlags struct {
	opts                                 jit.Options
	asJSON, explain, gc, dryRun, verbose bool
	ninja, cacheDir, maxSize             string
}

func (a *app) jitCommand() *cobra.Command {
	var f jitFlags
	cmd := &cobra.Command{
		Use:   "jit SPEC",
		Short: "Give a working native module for this Python and torch, compiled once if need be",
		Long: `Takes a module that was compiled elsewhere if one fits this Python, this torch and these GPUs;
else compiles the sources of the spec, once, and keeps the result. The path of the module is printed.
SPEC is a YAML file; - reads it from standard input.

A second call for the same module looks at the times of its files and nothing else. Several
processes that want the same module at the same time compile it once.

Variables: TORCH_CUDA_ARCH_LIST, MAX_JOBS, CXX, CC, CUDAHOSTCXX, CUDA_HOME, PYTORCH_NVCC; KILN_CACHE_DIR or
TORCH_EXTENSIONS_DIR for the folder of compiled modules; EXLLAMA_VERBOSE and EXLLAMA_EXT_DEBUG;
KILN_NO_JIT to compile nothing; KILN_NO_PREBUILT; KILN_LOCK_TIMEOUT in seconds.`,
		Example: `  kiln jit ext.yml
  kiln jit ext.yml --json
  kiln jit ext.yml --explain
  kiln jit --gc --max-size "2 GiB"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.jit(cmd.Context(), args, f) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.BoolVar(&f.explain, "explain", false, "say why the module would be compiled again, and compile nothing")
	flags.StringVar(&f.ninja, "ninja", "", "write a build.ninja into this `folder` instead of compiling")
	flags.BoolVar(&f.gc, "gc", false, "remove the modules that were not used for longest")
	flags.StringVar(&f.maxSize, "max-size", "5 GiB", "for --gc: how much may stay; what was used in the last day stays in any case, unless this is 0")
	flags.BoolVar(&f.dryRun, "dry-run", false, "for --gc: only say what would go")
	flags.BoolVar(&f.opts.Retry, "retry", false, "compile although the same sources failed a moment ago")
	flags.BoolVar(&f.opts.NoPrebuilt, "no-prebuilt", false, "look for no module that was compiled elsewhere")
	flags.BoolVar(&f.opts.NoLauncher, "no-ccache", false, "call compilers directly although ccache is there")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "show everything that compilers print")
	flags.IntVarP(&f.opts.Jobs, "jobs", "j", 0, "compile at most this many files at once (default: what fits)")
	flags.StringVar(&f.opts.Archs, "archs", "", "compile for this `list` of GPUs, such as \"8.6 9.0+PTX\"")
	flags.StringVar(&f.opts.Python, "python", "", "make the module for this `interpreter`")
	flags.StringVar(&f.opts.CUDAHome, "cuda-home", "", "use the toolkit in this `folder`")
	flags.StringVar(&f.cacheDir, "cache-dir", "", "keep compiled modules below this `folder`")
	flags.StringVar(&f.opts.RememberAs, "remember-as", "", "remember the answer under this `name` too")
	_ = flags.MarkHidden("remember-as") // for kiln.load
	_ = cmd.MarkFlagDirname("cache-dir")
	return cmd
}

// jit does what the flags ask for: clean up, explain, export or give a module.
func (a *app) jit(ctx context.Context, args []string, f jitFlags) error {
	opts := f.opts
	opts.Env = os.Environ()
	var err error
	if opts.Dir, err = jitDir(f.cacheDir); err != nil {
		return err
	}
	if f.gc {
		if len(args) > 0 {
			return errors.New("--gc looks at all modules: leave the spec out")
		}
		return a.jitGC(ctx, opts.Dir, f.maxSize, f.dryRun, f.asJSON)
	}
	if len(args) == 0 {
		return errors.New("which module? give the path of its spec, or - for standard input")
	}
	spec, err := a.readSpec(args[0])
	if err != nil {
		return err
	}
	if err := jitVariables(&opts); err != nil {
		return err
	}
	if _, set := os.LookupEnv("EXLLAMA_VERBOSE"); set || f.verbose {
		opts.Output = ui.Log(a.stderr)
	}
	switch {
	case f.explain:
		return a.jitExplain(ctx, spec, opts, f.asJSON)
	case f.ninja != "":
		path, err := jit.ExportNinja(ctx, spec, opts, f.ninja)
		if err != nil {
			return a.jitError(err, f.asJSON)
		}
		fmt.Fprintln(a.stdout, path)
		return nil
	}
	view := &jitView{live: ui.NewLive(a.stderr, a.err), name: spec.Name, began: time.Now()}
	opts.OnEvent = view.event
	result, err := jit.Load(ctx, spec, opts)
	view.live.Close()
	if err != nil {
		return a.jitError(err, f.asJSON)
	}
	if f.asJSON {
		return a.printJSON(result)
	}
	fmt.Fprintln(a.stdout, result.Path)
	return nil
}

// jitDir is the folder of compiled modules.
func jitDir(flag string) (string, error) {
	if dir := cmp.Or(flag, os.Getenv("KILN_CACHE_DIR")); dir != "" {
		return filepath.Abs(filepath.Join(dir, "jit"))
	}
	if dir := os.Getenv("TORCH_EXTENSIONS_DIR"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: set KILN_CACHE_DIR", err)
	}
	return filepath.Join(dir, "kiln", "jit"), nil
}

// jitVariables fills in what flags did not say.
func jitVariables(o *jit.Options) error {
	o.Archs = cmp.Or(o.Archs, os.Getenv("TORCH_CUDA_ARCH_LIST"))
	if v := os.Getenv("MAX_JOBS"); v != "" && o.Jobs == 0 {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return fmt.Errorf("MAX_JOBS is %q: want a number", v)
		}
		o.Jobs = n
	}
	if v := os.Getenv("KILN_LOCK_TIMEOUT"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n <= 0 {
			return fmt.Errorf("KILN_LOCK_TIMEOUT is %q: want a number of seconds", v)
		}
		o.LockTimeout = time.Duration(n) * time.Second
	}
	// These count when they are set, whatever to.
	_, o.Debug = os.LookupEnv("EXLLAMA_EXT_DEBUG")
	if _, set := os.LookupEnv("KILN_NO_PREBUILT"); set {
		o.NoPrebuilt = true
	}
	// EXLLAMA_NOCOMPILE is not among them: it leaves compiling to the first import, which is here.
	if _, set := os.LookupEnv("KILN_NO_JIT"); set {
		o.NoCompile = "KILN_NO_JIT"
	}
	o.OtherDirs = otherCaches()
	return nil
}

// otherCaches are folders that KILN_CACHE_DIR could name.
func otherCaches() []string {
	var dirs []string
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".cache", "kiln"))
	}
	return append(dirs, filepath.Join("/var/tmp", "kiln-"+strconv.Itoa(os.Getuid())))
}

// maxSpec is more than any spec has.
const maxSpec = 16 << 20

func (a *app) readSpec(name string) (*jit.Spec, error) {
	var text []byte
	var err error
	file, shown := name, name
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(a.stdin, maxSpec))
		file, shown = "", "standard input"
	} else {
		text, err = fsx.ReadFile(name, maxSpec)
	}
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	spec, list := jit.ParseSpec(file, dir, text)
	for i := range list {
		list[i].Pos.File = shown
	}
	if len(list) > 0 {
		a.printDiagnostics(list, map[string][]byte{shown: text})
	}
	return spec, list.Err()
}

// jitView shows what happens.
type jitView struct {
	live  *ui.Live
	name  string
	began time.Time
	last  time.Time // of the last line where there is no terminal
}

// plainEvery is how often progress is printed where it cannot be overwritten.
const plainEvery = 10 * time.Second

func (v *jitView) event(e jit.Event) {
	switch e.Kind {
	case jit.EventRejected:
		v.live.Print("not usable: " + e.Text)
	case jit.EventWaiting:
		v.live.Print("waiting: " + e.Text)
	case jit.EventWarning:
		v.live.Print("warning: " + e.Text)
	case jit.EventCompile:
		text := fmt.Sprintf("compiling %s: %d of %s, %s", v.name, e.Done, units.Count(e.Total, "file"), ui.Duration(time.Since(v.began)))
		if v.live.IsLive() {
			v.live.Set([]string{text + " " + e.Text})
		} else if e.Done == 0 || time.Since(v.last) > plainEvery {
			v.last = time.Now()
			v.live.Print(text)
		}
	}
}

// jitFailure is an error as JSON.
type jitFailure struct {
	Error      string              `json:"error"`
	Name       string              `json:"name,omitempty"`
	Diagnoses  []machine.Diagnosis `json:"diagnoses"`
	Command    []string            `json:"command,omitempty"`
	Log        string              `json:"log,omitempty"`
	Remembered *time.Time          `json:"remembered,omitempty"`
	Rejected   []jit.Candidate     `json:"rejected,omitempty"`
}

// jitError prints what is wrong and what to do, and gives the exit code.
func (a *app) jitError(err error, asJSON bool) error {
	e, ok := errors.AsType[*jit.Error](err)
	if !ok {
		if asJSON {
			_ = a.printJSON(jitFailure{Error: err.Error(), Diagnoses: []machine.Diagnosis{}})
		}
		return err
	}
	if asJSON {
		f := jitFailure{Error: e.Error(), Name: e.Name, Diagnoses: e.Diagnoses, Command: e.Command, Log: e.Log, Rejected: e.Rejected}
		if !e.Remembered.IsZero() {
			f.Remembered = &e.Remembered
		}
		if err := a.printJSON(f); err != nil {
			return err
		}
	}
	w := a.stderr
	for _, d := range e.Diagnoses {
		fmt.Fprintf(w, "%s [%s, %s]\n%s\n", a.paint(d.Title, "1"), d.ID, d.Confidence, d.Detail)
		for _, l := range d.Lines {
			fmt.Fprintf(w, "  | %s\n", l)
		}
		for line := range strings.SplitSeq(d.Fix, "\n") {
			fmt.Fprintf(w, "  → %s\n", line)
		}
	}
	if len(e.Diagnoses) > 0 && len(e.Diagnoses[0].Lines) == 0 {
		for _, l := range e.Tail {
			fmt.Fprintf(w, "  | %s\n", l)
		}
	}
	if e.Log != "" {
		fmt.Fprintf(w, "The command and its whole output: %s\n", e.Log)
	}
	if !e.Remembered.IsZero() {
		fmt.Fprintf(w, "That was %s ago, and nothing has changed since; --retry compiles again.\n", ui.Duration(time.Since(e.Remembered)))
	}
	return rowsFailedError{fmt.Errorf("no module %s", e.Name)}
}

func (a *app) jitExplain(ctx context.Context, spec *jit.Spec, opts jit.Options, asJSON bool) error {
	e, err := jit.Explain(ctx, spec, opts)
	if err != nil {
		return a.jitError(err, asJSON)
	}
	if asJSON {
		return a.printJSON(e)
	}
	w := a.stdout
	switch {
	case e.Hit:
		fmt.Fprintf(w, "%s is compiled and would be taken as it is.\n", e.Name)
	case e.Entry == nil:
		fmt.Fprintf(w, "%s was never compiled here.\n", e.Name)
	default:
		fmt.Fprintf(w, "%s would be compiled: since %s there changed\n", e.Name, e.Entry.Made.Local().Format(time.DateTime))
		for _, c := range e.Changes {
			switch {
			case c.Old == "":
				fmt.Fprintf(w, "  %s: new\n", c.Name)
			case c.New == "":
				fmt.Fprintf(w, "  %s: gone\n", c.Name)
			case len(c.Old) == 64 && len(c.New) == 64:
				fmt.Fprintf(w, "  %s\n", c.Name)
			default:
				fmt.Fprintf(w, "  %s\n    was %s\n    is  %s\n", c.Name, c.Old, c.New)
			}
		}
	}
	return nil
}

// explainModule is kiln jit --explain under another name.
func (a *app) explainModule(ctx context.Context, file string, asJSON bool) error {
	opts := jit.Options{Env: os.Environ()}
	var err error
	if opts.Dir, err = jitDir(""); err != nil {
		return err
	}
	spec, err := a.readSpec(file)
	if err != nil {
		return err
	}
	if err := jitVariables(&opts); err != nil {
		return err
	}
	return a.jitExplain(ctx, spec, opts, asJSON)
}

// gcModules removes modules that were not used for so long, then those that do not fit.
func (a *app) gcModules(ctx context.Context, maxSize string, older time.Duration) error {
	if maxSize == "" && older == 0 {
		return errors.New("say what is too much: --max-size SIZE or --older-than DURATION")
	}
	dir, err := jitDir("")
	if err != nil {
		return err
	}
	if older > 0 {
		report, err := (&jit.Store{Dir: dir}).GC(ctx, jit.GCOptions{MaxBytes: -1, Keep: older})
		if err != nil {
			return err
		}
		if maxSize == "" {
			return a.printGC(report, dir, "removed")
		}
		a.printRemoved(report, "removed")
	}
	return a.jitGC(ctx, dir, maxSize, false, false)
}

func (a *app) jitGC(ctx context.Context, dir, maxSize string, dryRun, asJSON bool) error {
	opts := jit.GCOptions{DryRun: dryRun}
	if maxSize == "0" {
		opts.MaxBytes, opts.Keep = -1, -1
	} else {
		limit, err := units.ParseBytes(maxSize)
		if err != nil {
			return fmt.Errorf("--max-size: %w", err)
		}
		opts.MaxBytes = limit
	}
	store := &jit.Store{Dir: dir}
	r, err := store.GC(ctx, opts)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(r)
	}
	if dryRun {
		return a.printGC(r, dir, "would remove")
	}
	return a.printGC(r, dir, "removed")
}

func (a *app) printRemoved(r *jit.GCReport, word string) {
	for _, e := range r.Removed {
		fmt.Fprintf(a.stdout, "%s %s %.14s, %s, last used %s\n", word, e.Name, e.Key, units.Bytes(e.Bytes), e.Used.Local().Format(time.DateTime))
	}
}

func (a *app) printGC(r *jit.GCReport, dir, word string) error {
	a.printRemoved(r, word)
	_, err := fmt.Fprintf(a.stdout, "%s of %s stay, in %s\n", units.Count(r.Kept, "module"), units.Bytes(r.KeptBytes), dir)
	return err
}
