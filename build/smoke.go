package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// smokeTask is what python/smoke.py reads.
type smokeTask struct {
	Distribution string   `json:"distribution"`
	Torch        bool     `json:"torch"`
	Imports      []string `json:"imports"`
	Expressions  []string `json:"expressions"`
	Native       []string `json:"native"`
}

type smokeVerdict struct {
	OK       bool              `json:"ok"`
	Step     string            `json:"step"`
	Error    string            `json:"error"`
	Versions map[string]string `json:"versions"`
	Modules  map[string]string `json:"modules"`
	Values   map[string]string `json:"values"`
}

// testFiles tests the files of the row as its test settings say. A wheel is installed and imported
// in a runtime environment: another one than that of the build, without compilers, with the wheel
// read-only and torch held fast.
func testFiles(ctx context.Context, a *attempt) error {
	if a.proven {
		return skip("the wheel was proven")
	}
	if a.Settings.Test.Kind == matrix.TestNone {
		a.record.Test = record.Test{Result: "not run", Why: "packages.yml says test: none"}
		return skip("%s", a.record.Test.Why)
	}
	i := slices.IndexFunc(a.files, func(f string) bool { return strings.HasSuffix(f, ".whl") })
	if i < 0 && a.Settings.Test.Kind != matrix.TestSdist {
		return skip("there is no wheel")
	}
	if a.Settings.Test.RequiresGPU && !a.builder.HaveGPU {
		a.record.Test = record.Test{Result: "not run", Why: "the test needs a GPU, and this machine has none"}
		return skip("%s", a.record.Test.Why)
	}
	start := time.Now()
	if limit := time.Duration(a.Settings.Test.Timeout); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("the test took longer than %s (test.timeout)", limit))
		defer cancel()
	}
	var err error
	made := ""
	if i >= 0 {
		made = a.files[i]
	}
	if a.Settings.Test.Kind == matrix.TestSdist {
		err = a.compareSdist(ctx, made)
	}
	if err == nil && made != "" {
		err = a.testWheel(ctx, made)
	}
	a.record.Test.Seconds = time.Since(start).Seconds()
	if err == nil {
		a.record.Test.Result = "passed"
		return nil
	}
	a.record.Test.Result, a.record.Test.Why = "failed", err.Error()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault("test-timeout", "the test took too long", "raise test: {timeout: …} in packages.yml if it needs the time", "%v", context.Cause(ctx))
	}
	return err
}

func (a *attempt) testWheel(ctx context.Context, wheelFile string) error {
	dir := a.testDir()
	requires, err := a.siblings(a.Settings.Test.Requires)
	if err != nil {
		return err
	}
	e := &environment{
		attempt: a, name: "test", image: a.TestImage, setup: a.testSetup(), venv: filepath.Join(dir, "venv"), scripts: filepath.Join(dir, "scripts"),
		mounts: []sandbox.Mount{
			{Host: dir, Inside: insideTest},
			{Host: filepath.Dir(wheelFile), Inside: insideOut, ReadOnly: true},
			{Host: a.home(), Inside: insideTest + "-home"},
			{Host: a.temp(), Inside: insideTest + "-tmp"},
		},
	}
	if !slices.Equal(requires, a.Settings.Test.Requires) {
		e.mounts = append(e.mounts, sandbox.Mount{Host: a.builder.DistDir, Inside: insideTest + "-dist", ReadOnly: true})
	}
	if err := writeScripts(e.scripts); err != nil {
		return err
	}
	empty := filepath.Join(dir, "cwd") // nothing can be imported from it
	if err := os.MkdirAll(empty, 0o777); err != nil {
		return err
	}
	if err := e.open(ctx); err != nil {
		return err
	}
	a.record.Test.Image, a.record.Test.NetworkOff = e.box.Image(), e.box.NetworkOff()
	if err := e.findPython(ctx); err != nil {
		return err
	}
	a.record.Test.Interpreter = e.interpreter
	if a.Settings.Test.Kind == matrix.TestSdist {
		// That the wheel installs is what matters; its requirements concern its users.
		if err := e.create(ctx); err != nil {
			return err
		}
		got, err := e.pip(ctx, []string{"--no-deps", "--no-index", e.box.Inside(wheelFile)})
		a.record.Test.Installed = got
		return err
	}
	for i := range requires {
		if requires[i] != a.Settings.Test.Requires[i] {
			requires[i] = e.box.Inside(requires[i])
		}
	}
	installed, err := e.fill(ctx, requires)
	if err != nil {
		return err
	}
	before, err := e.torchVersion(ctx)
	if err != nil {
		return err
	}
	hold, err := e.holdTorch(ctx)
	if err != nil {
		return err
	}
	what := e.box.Inside(wheelFile)
	if extras := a.Settings.Test.Extras; len(extras) > 0 {
		what += "[" + strings.Join(extras, ",") + "]"
	}
	got, err := e.pip(ctx, slices.Concat(a.indexArgs(), hold, []string{what}))
	if err != nil {
		return err
	}
	a.record.Test.Installed = append(installed, got...)
	after, err := e.torchVersion(ctx)
	if err != nil {
		return err
	}
	if replaced(before, after) {
		return fault("torch-replaced", "installing the wheel replaced torch", "the wheel's own requirements ask for another torch; see runtime_torch in packages.yml",
			"torch %s became %s", before, after)
	}
	if err := a.testData(ctx, empty); err != nil {
		return err
	}
	if err := a.hooks(ctx, e.box, a.Settings.Test.Before, sandbox.Command{Dir: empty, Env: sortedEnv(e.testEnv(a.searchPath(e.box)...))}); err != nil {
		return err
	}
	if a.Settings.Test.Kind != matrix.TestInstall {
		if err := e.smoke(ctx, empty); err != nil {
			return err
		}
	}
	return e.testCommands(ctx, empty)
}

// replaced reports whether a torch that was there is another one now. One that the wheel brought is
// what it asks for.
func replaced(before, after string) bool { return before != "" && before != after }

// testEnv are the variables of what tests the wheel. No folder with a compiler is on PATH, unless
// more are given: a package that would compile at import must fail.
func (e *environment) testEnv(more ...string) map[string]string {
	env := e.baseEnv(e.box)
	env["PATH"] = pathList(e.box, append([]string{venvBin(e.box, e.venv)}, more...))
	env["VIRTUAL_ENV"] = e.box.Inside(e.venv)
	env["CUDA_VISIBLE_DEVICES"] = ""
	if e.builder.HaveGPU {
		delete(env, "CUDA_VISIBLE_DEVICES")
	}
	return env
}

// testData copies what the commands of the test need of the source into an empty folder.
func (a *attempt) testData(ctx context.Context, to string) error {
	if len(a.Settings.Test.Files) == 0 {
		return nil
	}
	if a.given != "" {
		return fault("test-files", "the test needs files of the source", "test the row, not the wheel alone", "there is no source of %s", filepath.Base(a.given))
	}
	if _, err := os.Stat(a.source()); errors.Is(err, fs.ErrNotExist) { // the files of an earlier build stand
		if _, err := a.builder.sources.fetch(ctx, a.Source, a.source()); err != nil {
			return err
		}
	}
	for _, pattern := range a.Settings.Test.Files {
		found, err := filepath.Glob(filepath.Join(a.source(), filepath.FromSlash(pattern)))
		if err != nil || len(found) == 0 {
			return fault("test-files", "the test needs files of the source", "correct test: {files: …} in packages.yml", "the source has no %s", pattern)
		}
		for _, from := range found {
			rel, err := filepath.Rel(a.source(), from)
			if err != nil {
				return err
			}
			if err := copyAny(from, filepath.Join(to, rel)); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyAny copies a file or a folder.
func copyAny(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm()|0o600)
}

// testCommands runs the commands of the test.
func (e *environment) testCommands(ctx context.Context, cwd string) error {
	for _, argv := range e.Settings.Test.Command {
		switch {
		case argv[0] == "sh":
			argv = append([]string{"/bin/sh"}, argv[1:]...)
		case !strings.Contains(argv[0], "/"): // of the environment alone
			argv = append([]string{join(e.box, venvBin(e.box, e.venv), exe(e.box, argv[0]))}, argv[1:]...)
		}
		_, err := e.command(ctx, e.box, sandbox.Command{Argv: argv, Dir: cwd, Env: sortedEnv(e.testEnv())})
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		said := failedLines(e.log.lines())
		if said == "" {
			said = err.Error()
		}
		return fault("test-command", "a command of the test failed", "the log has all that it printed; kiln shell "+e.Row.ID+" enters the environment of the build",
			"%s: %s", quoteCommand(argv), said)
	}
	return nil
}

var failedLine = regexp.MustCompile(`^(E   |(FAILED|ERROR) [^(]|(\w+\.)*\w*(Error|Exception)\b)`)

// failedLines are those in which pytest and unittest say what was not as expected.
func failedLines(lines []string) string {
	var out []string
	for _, line := range lines {
		if failedLine.MatchString(line) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out[:min(len(out), 8)], "\n  ")
}

// compareSdist reads the source distribution whole and compares its metadata with those of the wheel
// that the front-end built from it; "" is none.
func (a *attempt) compareSdist(ctx context.Context, wheelFile string) error {
	i := slices.IndexFunc(a.files, func(f string) bool { return !strings.HasSuffix(f, ".whl") })
	if i < 0 {
		return fault("no-sdist", "the row made no source distribution", "test the wheel with test: import", "there is only %s", filepath.Base(wheelFile))
	}
	name := filepath.Base(a.files[i])
	f, err := os.Open(a.files[i])
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	source, err := wheel.ReadSdist(ctx, f, info.Size(), name, wheel.Limits{})
	if err != nil {
		return fault("bad-sdist", "the source distribution cannot be used", "the build back-end made it; look at its log and at MANIFEST.in", "%v", err)
	}
	if wheelFile == "" {
		if v, err := wheel.ParseVersion(source.Version()); err != nil || v.Public() != a.Row.Version || wheel.NormalizeName(source.Name()) != a.Row.Package {
			return fault("sdist-differs", "the source distribution is of another package or version", "correct versions: in packages.yml, or the metadata",
				"the row is %s %s, and %s says %s %s", a.Row.Package, a.Row.Version, name, source.Name(), source.Version())
		}
		return nil
	}
	r, err := wheel.Open(wheelFile)
	if err != nil {
		return err
	}
	defer r.Close()
	built, err := r.Metadata()
	if err != nil {
		return err
	}
	for _, field := range []struct{ name, source, wheel string }{
		{"Name", wheel.NormalizeName(source.Name()), wheel.NormalizeName(built.Name())},
		{"Version", source.Version(), built.Version()},
		{"Requires-Python", source.RequiresPython(), built.RequiresPython()},
		{"Requires-Dist", strings.Join(source.RequiresDist(), "; "), strings.Join(built.RequiresDist(), "; ")},
	} {
		dynamic := slices.ContainsFunc(source.All("Dynamic"), func(d string) bool { return strings.EqualFold(strings.TrimSpace(d), field.name) })
		if field.source != field.wheel && !dynamic {
			return fault("sdist-differs", "the source distribution and the wheel built from it differ",
				"make setup.py or pyproject.toml give the same metadata wherever it runs, or list the field in dynamic",
				"%s is %q in %s and %q in %s", field.name, field.source, name, field.wheel, filepath.Base(wheelFile))
		}
	}
	return nil
}

// testSetup completes the test image as the build image if it is the same one; see also
// [environment.setUp].
func (a *attempt) testSetup() [][]string {
	if a.TestImage == a.Image {
		return a.Settings.ImageSetup
	}
	return nil
}

// smoke imports what the wheel has, in an empty folder.
func (e *environment) smoke(ctx context.Context, cwd string) error {
	a, box := e.attempt, e.box
	task := smokeTask{
		Distribution: a.Row.Package, Torch: len(a.Torch) > 0, Imports: a.Settings.Test.Imports,
		Expressions: append([]string{}, a.Settings.Test.Expressions...), Native: append([]string{}, a.record.NativeModules...),
	}
	text, err := json.Marshal(task)
	if err != nil {
		return err
	}
	in, out := filepath.Join(e.scripts, "task.json"), filepath.Join(e.scripts, "verdict.json")
	if err := os.WriteFile(in, text, 0o666); err != nil {
		return err
	}
	env := e.testEnv()
	_, failed := a.command(ctx, box, sandbox.Command{
		Argv: []string{venvPython(box, e.venv), "-I", box.Inside(filepath.Join(e.scripts, "smoke.py")), box.Inside(in), box.Inside(out)},
		Dir:  cwd, Env: sortedEnv(env),
	})
	var v smokeVerdict
	text, err = os.ReadFile(out)
	switch {
	case errors.Is(err, fs.ErrNotExist) && failed != nil:
		return failed // died without a word
	case err != nil:
		return err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("verdict of the smoke test: %w", err)
	}
	a.record.Test.Versions, a.record.Test.Modules, a.record.Test.Values = v.Versions, v.Modules, v.Values
	if failed != nil && slices.Contains(task.Expressions, v.Step) {
		return fault("test-expression", "an expression of the test failed", "correct test: {expressions: …} in packages.yml, or the package", "%s: %s", v.Step, v.Error)
	}
	if failed != nil {
		return failed
	}
	if !v.OK {
		return fmt.Errorf("%s: %s", v.Step, v.Error)
	}
	if a.Native && len(a.record.NativeModules) > 0 && len(v.Modules) == 0 {
		return errors.New("no compiled module of the wheel was loaded")
	}
	return nil
}

// TestWheel tests a wheel that was built elsewhere as a row is tested, and returns the verdict. The
// error is a [RowError] if it failed.
func (b *Builder) TestWheel(ctx context.Context, file string, settings matrix.Settings, row matrix.Row) (record.Test, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return record.Test{}, err
	}
	recipe, err := NewRecipe(row, settings, record.Source{}, b.Recipe)
	if err != nil {
		return record.Test{}, err
	}
	b.owner = newID()
	if err := os.MkdirAll(b.StateDir, 0o777); err != nil {
		return record.Test{}, err
	}
	dir, err := os.MkdirTemp(b.StateDir, "test-")
	if err != nil {
		return record.Test{}, err
	}
	a := &attempt{Recipe: recipe, builder: b, given: file, work: filepath.Join(dir, "work")}
	a.try = engine.NewAttempt(engine.Job{ID: row.ID, Resources: b.resources(settings)}, 1, dir, b.OnEvent)
	logFile, err := a.try.OpenLog()
	if err != nil {
		return record.Test{}, err
	}
	defer logFile.Close()
	a.log = &tailWriter{to: logFile}
	if err = errors.Join(a.run(ctx), a.close(ctx)); err != nil {
		return a.record.Test, err // the folder stays: it has the log
	}
	return a.record.Test, os.RemoveAll(dir)
}

// takeGiven looks into a wheel from elsewhere.
func (a *attempt) takeGiven() error {
	r, err := wheel.Open(a.given)
	if err != nil {
		return err
	}
	defer r.Close()
	m, err := r.Metadata()
	if err != nil {
		return err
	}
	a.record.Requires = m.RequiresDist()
	a.record.TopLevel, a.record.NativeModules = modules(r)
	a.files = []string{a.given}
	return nil
}
