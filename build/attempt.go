package build

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/machine"
)

// scripts are the programs that kiln runs in the environments of a row, with its Python but for one.
//
//go:embed python/facts.py python/metadata.py python/smoke.py python/nocudacheck.py python/survey.sh
var scripts embed.FS

// attempt is one try at a row. Stages leave in it what later stages need.
type attempt struct {
	*record.Recipe
	builder *Builder
	try     *engine.Attempt
	stage   string
	log     *tailWriter

	// work is the row's own folder: the same path in every attempt, because paths
	// get into binaries. It is emptied at the start.
	work string
	jobs int // compiler calls at once

	box       sandbox.Box
	openers   []sandbox.Box
	hostTools []string        // folders of programs that kiln brings to the host
	brought   []sandbox.Mount // programs and Python that kiln brings into the build environment
	managed   *interpreter    // the Python of the build, if kiln brings it
	noGit     bool            // the build environment has no git
	venv      string          // folder of the virtual environment
	pipHome   string          // folder of the pip that fills it
	facts     facts
	epoch     time.Time
	tools     record.Tools
	developer *machine.Developer // the compiler's environment on Windows
	files     []string           // paths of what came out
	reused    bool               // files are those of an earlier build
	proven    bool               // files are those of another row, and were tested
	given     string             // a wheel from elsewhere that is only tested

	record record.Record
	peak   int64
}

// folders of an attempt.
func (a *attempt) source() string  { return filepath.Join(a.work, "source") }
func (a *attempt) out() string     { return filepath.Join(a.work, "out") }
func (a *attempt) scripts() string { return filepath.Join(a.work, "scripts") }
func (a *attempt) testDir() string { return filepath.Join(a.work, "test") }
func (a *attempt) home() string    { return filepath.Join(a.work, "home") }
func (a *attempt) temp() string    { return filepath.Join(a.work, "tmp") }

// The same folders inside a container.
const (
	insideWork   = "/kiln/work"
	insideTest   = "/kiln/test"
	insideOut    = "/kiln/wheel"
	insideCache  = "/kiln/cache"
	insideTorch  = "/kiln/torch"
	insideWheels = "/kiln/wheels"
	insideCert   = "/kiln/ca.crt"
	insideKiln   = "/kiln/bin/kiln"

	insidePython = "/kiln/python"
	insideTools  = "/kiln/tools"
)

// attempt carries out a recipe. It is the function of the local engine runner.
func (b *Builder) attempt(ctx context.Context, recipe *record.Recipe, try *engine.Attempt) (engine.Result, error) {
	logFile, err := try.OpenLog()
	if err != nil {
		return engine.Result{}, err
	}
	defer logFile.Close()
	a := &attempt{
		Recipe: recipe, builder: b, try: try, log: &tailWriter{to: logFile},
		work: filepath.Join(b.localDir(), "work", recipe.Row.ID),
	}
	a.jobs = a.parallelism()
	a.record = record.Record{Recipe: *recipe, Started: time.Now().UTC(), Attempt: try.Number, Jobs: a.jobs}
	err = a.run(ctx)
	// The environments go in any case; the folder of a failed row stays for kiln shell.
	if closed := a.close(ctx); err == nil {
		err = closed
	}
	if err != nil {
		fmt.Fprintf(a.log, "\n%s\n", err)
		return engine.Result{PeakMemoryBytes: a.peak}, err
	}
	disk := folderSize(a.work)
	if !b.KeepWork {
		if err := os.RemoveAll(a.work); err != nil {
			return engine.Result{}, err
		}
	}
	outputs, err := json.Marshal(record.Outputs{Files: a.record.Files, Test: a.record.Test.Result, Compiles: a.record.Compiles, Proof: a.record.Reuse.ProofName()})
	return engine.Result{PeakMemoryBytes: a.peak, DiskBytes: disk, Outputs: outputs}, err
}

// run goes through the stages.
func (a *attempt) run(ctx context.Context) error {
	for _, s := range stages {
		if err := a.runStage(ctx, s); err != nil {
			a.keepShell()
			return err
		}
	}
	return nil
}

// runStage is all that goes around every stage: the log, the events of the engine, the record, the
// reason of a stage that is skipped, and the explanation of an error.
func (a *attempt) runStage(ctx context.Context, s stage) error {
	a.stage = s.name
	fmt.Fprintf(a.log, "\n== %s: %s ==\n", s.name, s.doing)
	done := a.try.Stage(s.name)
	start := time.Now()
	err := skip("the files of an earlier build stand")
	if !s.makes || !a.reused {
		err = s.run(ctx, a)
	}
	if skipped, ok := errors.AsType[*skipStage](err); ok {
		fmt.Fprintf(a.log, "skipped: %s\n", skipped.why)
		a.record.Stages = append(a.record.Stages, record.Stage{Name: s.name, Skipped: skipped.why})
		done(nil)
		return nil
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		err = a.explain(ctx, err)
	}
	done(err)
	a.record.Stages = append(a.record.Stages, record.Stage{Name: s.name, Seconds: time.Since(start).Seconds()})
	return err
}

// skipStage is the error of a stage that has nothing to do.
type skipStage struct{ why string }

func (s *skipStage) Error() string { return s.why }

func skip(format string, args ...any) error { return &skipStage{fmt.Sprintf(format, args...)} }

// close removes the environments, also when the run was canceled.
func (a *attempt) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	for _, box := range a.openers {
		errs = append(errs, box.Close(ctx))
	}
	return errors.Join(errs...)
}

// parallelism says how many compilers may run at once: as many as the job asked for,
// halved after the first death for memory, one after the second.
func (a *attempt) parallelism() int {
	n := max(a.try.Job.Resources.CPU, 1)
	switch a.try.Shrink {
	case 0:
		return n
	case 1:
		return max(1, n/2)
	}
	return 1
}

// open makes an environment that is closed with the attempt.
func (a *attempt) open(ctx context.Context, name, image string, setup [][]string, mounts []sandbox.Mount) (sandbox.Box, error) {
	wheels := filepath.Join(a.builder.StoreDir, wheelsDir)
	if err := os.MkdirAll(wheels, 0o777); err != nil {
		return nil, err
	}
	mounts = append(mounts, sandbox.Mount{Host: a.builder.cacheDir(), Inside: insideCache}, sandbox.Mount{Host: wheels, Inside: insideWheels, ReadOnly: true})
	if a.builder.Network.CertFile != "" {
		mounts = append(mounts, sandbox.Mount{Host: a.builder.Network.CertFile, Inside: insideCert, ReadOnly: true})
	}
	if a.builder.Kiln != "" {
		mounts = append(mounts, sandbox.Mount{Host: a.builder.Kiln, Inside: insideKiln, ReadOnly: true})
	}
	if t := a.Settings.TorchSource; t.Kind == "path" {
		mounts = append(mounts, sandbox.Mount{Host: a.builder.path(t.Location), Inside: insideTorch, ReadOnly: true})
	}
	if a.builder.share != nil && name == "build" {
		mounts = append(mounts, sandbox.Mount{Host: a.builder.share.Dir, Inside: insideSlots})
	}
	box, err := a.builder.Sandboxes.Open(ctx, sandbox.Spec{
		Name: a.Row.ID + "-" + name, Owner: a.builder.owner, Image: image, Setup: setup, Mounts: mounts,
		MemoryBytes: a.memoryLimit(), PIDs: 4096, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	a.openers = append(a.openers, box)
	return box, nil
}

// memoryLimit is what the environment may use: what was asked for, or what was learned
// with the engine's margin if that is more.
func (a *attempt) memoryLimit() int64 {
	return max(a.try.Resources.MemoryBytes, a.try.Job.Resources.MemoryBytes)
}

// command runs a program in a box, with its output in the log, and keeps the peak.
func (a *attempt) command(ctx context.Context, box sandbox.Box, cmd sandbox.Command) (sandbox.Outcome, error) {
	argv := make([]string, len(cmd.Argv))
	for i, arg := range cmd.Argv {
		argv[i] = secret.Clean(arg)
	}
	fmt.Fprintf(a.log, "$ %s\n", quoteCommand(argv))
	cmd.Redact = a.builder.Network.Credentials.Values()
	if cmd.Stdout == nil {
		cmd.Stdout = a.log
	} else if cmd.Stderr == nil {
		cmd.Stderr = a.log
	}
	outcome, err := box.Run(ctx, cmd)
	a.peak = max(a.peak, outcome.PeakMemoryBytes)
	a.try.Used(outcome.PeakMemoryBytes, 0)
	a.record.Commands = append(a.record.Commands, record.Command{
		Stage: a.stage, Argv: argv, Seconds: outcome.Wall.Seconds(), CPUSeconds: outcome.CPU.Seconds(),
		PeakMemoryBytes: outcome.PeakMemoryBytes, ExitCode: outcome.ExitCode, Network: cmd.Network || !box.NetworkOff(),
	})
	if err != nil {
		return outcome, &commandError{err: err, outcome: outcome, argv: argv}
	}
	return outcome, nil
}

// commandError carries what explaining a failed command needs.
type commandError struct {
	err     error
	outcome sandbox.Outcome
	argv    []string
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// RowError is why a row failed, explained.
type RowError struct {
	Row, Stage string
	// Diagnosis is the likeliest cause. Its ID is "unknown" if nothing is known.
	Diagnosis machine.Diagnosis
	// Log is the path of the whole log.
	Log string
	Err error
}

func (e *RowError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: ", e.Row, e.Stage)
	if e.Diagnosis.ID == "" || e.Diagnosis.ID == "unknown" {
		b.WriteString(e.Err.Error())
	} else {
		b.WriteString(e.Diagnosis.Title)
		if e.Diagnosis.Detail != "" {
			b.WriteString(": " + e.Diagnosis.Detail)
		}
	}
	if e.Diagnosis.Fix != "" {
		b.WriteString("\n  " + strings.ReplaceAll(e.Diagnosis.Fix, "\n", "\n  "))
	}
	if e.Log != "" {
		fmt.Fprintf(&b, "\n  log: %s", e.Log)
	}
	return b.String()
}

func (e *RowError) Unwrap() error { return e.Err }

// diagnosed is an error of a stage that knows its own cause: a finding of kiln's, not
// the output of a program.
type diagnosed struct {
	machine.Diagnosis
}

func (e *diagnosed) Error() string { return e.Title + ": " + e.Detail }

// fault makes such an error.
func fault(id, title, fix, format string, args ...any) error {
	return &diagnosed{machine.Diagnosis{
		ID: id, Title: title, Detail: fmt.Sprintf(format, args...), Fix: fix,
		Class: machine.ClassFault, Confidence: machine.Certain,
	}}
}

// explain turns the error of a stage into one with a cause and a next step, and tells
// the engine whether trying again can help.
func (a *attempt) explain(ctx context.Context, err error) error {
	row := &RowError{Row: a.Row.ID, Stage: a.stage, Log: a.try.LogPath(), Err: err}
	if own, ok := errors.AsType[*diagnosed](err); ok {
		row.Diagnosis = own.Diagnosis
	} else if found := machine.Diagnose(a.evidence(ctx, err)); len(found) > 0 {
		row.Diagnosis = found[0]
	}
	cause := engine.CauseOf(err)
	if cause == "" || cause == engine.CauseFault {
		cause = causes[row.Diagnosis.Class]
	}
	if cause == "" {
		cause = engine.CauseFault
	}
	return engine.Fail(cause, row)
}

var causes = map[machine.Class]engine.Cause{
	machine.ClassFault: engine.CauseFault, machine.ClassNetwork: engine.CauseNetwork, machine.ClassMemory: engine.CauseMemory,
	machine.ClassTime: engine.CauseTime, machine.ClassDisk: engine.CauseDisk, machine.ClassLost: engine.CauseLost,
}

// evidence collects what is known about a failure.
func (a *attempt) evidence(ctx context.Context, err error) machine.Evidence {
	e := machine.Evidence{
		Stage: a.stage, LogLines: a.log.lines(), ExitCode: 1, Image: a.Image, Python: a.Row.Python, CUDA: a.Row.CUDA, ROCm: a.Row.ROCm,
		Torch: a.Row.Torch, Arch: a.Row.Arch, OS: a.system(), Distribution: a.facts.Distribution, Root: os.Geteuid() == 0,
		MemoryLimitBytes: a.memoryLimit(), PeakMemoryBytes: a.peak, Jobs: a.jobs, NVCCThreads: a.Settings.Resources.NVCCThreads,
		WallLimit: time.Duration(a.Settings.Resources.WallTime), Requirements: slices.Concat(a.facts.Requires, a.Deps), Env: a.Settings.Env,
		ToolkitFound: a.tools.CUDAVersion, TestImports: a.Settings.Test.Imports, NeedDiskBytes: a.Settings.Resources.DiskBytes,
		Native: a.Native, WantOutputs: a.Files, VersionWanted: a.Row.Version,
		NetworkOff: a.stage == "compile" && a.box != nil && a.box.NetworkOff() && !a.Settings.Network,
		TimedOut:   ctx.Err() != nil, WheelTopLevel: a.record.TopLevel, WheelRequires: a.record.Requires,
	}
	if t := a.facts.Torch; t != nil {
		e.TorchFound, e.TorchCUDAFound, e.TorchABIFound = t.Version, cmp.Or(t.CUDA, "none"), "0"
		if t.CXX11ABI {
			e.TorchABIFound = "1"
		}
	}
	if a.stage == "collect" {
		entries, _ := os.ReadDir(a.out())
		e.Outputs = []string{}
		for _, entry := range entries {
			e.Outputs = append(e.Outputs, entry.Name())
		}
	}
	if free, bad := fsx.FreeSpace(a.work); bad == nil {
		e.FreeDiskBytes = free
	}
	if command, ok := errors.AsType[*commandError](err); ok {
		e.Argv, e.ExitCode, e.Signal = command.argv, command.outcome.ExitCode, command.outcome.Signal
		e.OOMKilled = command.outcome.OOMKilled
		if failed, ok := errors.AsType[*run.Error](err); ok && len(e.LogLines) == 0 {
			e.LogLines = failed.Tail
		}
	}
	if failed, ok := errors.AsType[*sandbox.RuntimeError](err); ok {
		e.LogLines = slices.Concat(e.LogLines, strings.Split(failed.Error(), "\n"))
	}
	return e
}

// script runs an interpreter on one of kiln's scripts and decodes what it prints.
func (a *attempt) script(ctx context.Context, box sandbox.Box, python, dir, name string, env []string, result any, args ...string) error {
	var out bytes.Buffer
	argv := append([]string{python, "-I", box.Inside(filepath.Join(dir, name))}, args...)
	if _, err := a.command(ctx, box, sandbox.Command{Argv: argv, Dir: dir, Env: env, Stdout: &out, Stderr: a.log}); err != nil {
		return err
	}
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		return fmt.Errorf("%s printed %.200q: %w", name, out.String(), err)
	}
	return nil
}

// writeScripts puts kiln's own programs into a folder.
func writeScripts(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	entries, err := scripts.ReadDir("python")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := scripts.ReadFile("python/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), text, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// tailWriter passes on what is written and remembers the last lines of it. It is safe
// for concurrent use.
type tailWriter struct {
	mu   sync.Mutex
	to   io.Writer
	last []byte
	// step, if set, is told of ninja's [done/total] marks.
	step func(done, total int)
}

// ninjaMark is how ninja begins the line of every command it starts.
var ninjaMark = regexp.MustCompile(`(?m)^\[(\d+)/(\d+)\] `)

// tailBytes is how much of a log is searched for the cause of a failure. Compilers
// repeat themselves, so the first error of a parallel build is well within it.
const tailBytes = 1 << 20

func (w *tailWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = append(w.last, p...)
	if over := len(w.last) - 2*tailBytes; over > 0 {
		w.last = slices.Delete(w.last, 0, len(w.last)-tailBytes)
	}
	if w.step != nil {
		if marks := ninjaMark.FindAllSubmatch(p, -1); len(marks) > 0 {
			m := marks[len(marks)-1]
			done, _ := strconv.Atoi(string(m[1]))
			total, _ := strconv.Atoi(string(m[2]))
			w.step(done, total)
		}
	}
	return w.to.Write(p)
}

// lines returns the last lines.
func (w *tailWriter) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.last
	// Only what belongs to the stage that failed.
	if i := bytes.LastIndex(last, []byte("\n== ")); i >= 0 {
		last = last[i+1:]
	}
	return strings.Split(strings.TrimRight(string(last), "\n"), "\n")
}

func quoteCommand(argv []string) string {
	words := make([]string, len(argv))
	for i, w := range argv {
		if w == "" || strings.ContainsAny(w, " \t\n\"'\\$&|<>;*?()`!#") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

func itoa(n int) string { return strconv.Itoa(n) }

// folderSize adds up the files below a folder; what cannot be read does not count.
func folderSize(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}
