package build

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/wheel"
)

// FindPythons returns where a machine with this environment may have interpreters that are not on
// PATH: the tool cache of a hosted runner, and what pyenv, asdf, mise and uv installed. {python}
// stands for a version such as 3.13, {t} for what free-threaded builds have behind it.
func FindPythons(env []string) []string {
	values := variables(env)
	if runtime.GOOS == "windows" {
		for name, value := range values {
			values[strings.ToUpper(name)] = value // names are the same in any case there
		}
		return windowsPythons(values)
	}
	home := values["HOME"]
	data := values["XDG_DATA_HOME"]
	if data == "" && home != "" {
		data = path.Join(home, ".local/share")
	}
	var out []string
	add := func(root, pattern string) {
		if root = filepath.ToSlash(root); path.IsAbs(root) && !slices.Contains(out, path.Join(root, pattern)) {
			out = append(out, path.Join(root, pattern))
		}
	}
	below := func(root, folder string) string {
		if root == "" {
			return ""
		}
		return path.Join(root, folder)
	}
	for _, root := range []string{values["AGENT_TOOLSDIRECTORY"], values["RUNNER_TOOL_CACHE"], "/opt/hostedtoolcache"} {
		add(root, toolCache)
	}
	add(cmp.Or(values["PYENV_ROOT"], below(home, ".pyenv")), "versions/{python}.*{t}/bin/python3")
	add(cmp.Or(values["ASDF_DATA_DIR"], below(home, ".asdf")), "installs/python/{python}.*{t}/bin/python3")
	add(cmp.Or(values["MISE_DATA_DIR"], below(data, "mise")), "installs/python/{python}.*{t}/bin/python3")
	add(cmp.Or(values["UV_PYTHON_INSTALL_DIR"], below(data, "uv/python")), uvFolder)
	// Installed elsewhere, these programs are known by their folder on PATH, as the shell knows them.
	for _, dir := range filepath.SplitList(values["PATH"]) {
		if root := filepath.Dir(dir); filepath.Base(dir) == "shims" {
			add(root, "versions/{python}.*{t}/bin/python3")
			add(root, "installs/python/{python}.*{t}/bin/python3")
		}
	}
	return out
}

// Where images and machines have several Pythons.
const (
	toolCache = "Python/{python}.*/{arch}{-freethreaded}/bin/python3"
	uvFolder  = "cpython-{python}.*{+freethreaded}-linux-*/bin/python3"
)

// imagePythons are the places in images besides PATH.
var imagePythons = []string{
	"/opt/python/cp{nodot}-cp{nodot}{t}/bin/python3", // PyPA's and PyTorch's manylinux images
	"/opt/hostedtoolcache/" + toolCache,
	"/root/.local/share/uv/python/" + uvFolder,
	"/root/.pyenv/versions/{python}.*{t}/bin/python3",
}

// pythonPlaces returns names and patterns for the row's Python, in the order in which they count.
func (a *attempt) pythonPlaces() []string {
	version, free := strings.CutSuffix(a.Row.Python, "t")
	suffix := func(text string) string {
		if free {
			return text
		}
		return ""
	}
	arch := map[string]string{"x86_64": "x64", "aarch64": "arm64"}[machineArch()]
	fill := strings.NewReplacer("{python}", version, "{nodot}", strings.ReplaceAll(version, ".", ""), "{arch}", arch,
		"{t}", suffix("t"), "{-freethreaded}", suffix("-freethreaded"), "{+freethreaded}", suffix("+freethreaded"))
	places := []string{"python" + a.Row.Python, "python3", "python"}
	more := imagePythons
	if a.onHost() {
		more = a.builder.Pythons
	}
	for _, pattern := range more {
		places = append(places, fill.Replace(pattern))
	}
	return places
}

func (a *attempt) onHost() bool { return a.builder.Sandboxes.Name() == "host" }

// survey is what there is in an environment before anything is brought.
type survey struct {
	libc    string // "gnu" or "musl"
	glibc   glibcVersion
	pythons []string // programs that may be the row's Python, in order
	// missing are those of the programs of interest that are not there, or too old.
	missing map[string]bool
}

var ccacheSays = regexp.MustCompile(`^(\d+)\.(\d+)`)

// look surveys a box.
func (e *environment) look(ctx context.Context) error {
	if onWindows(e.box) {
		e.lookWindows()
		return nil
	}
	var out bytes.Buffer
	argv := append([]string{"sh", e.box.Inside(filepath.Join(e.scripts, "survey.sh"))}, e.pythonPlaces()...)
	if _, err := e.command(ctx, e.box, sandbox.Command{Argv: argv, Dir: e.scripts, Env: sortedEnv(e.baseEnv(e.box)), Stdout: &out}); err != nil {
		return err
	}
	e.seen = parseSurvey(out.String())
	return nil
}

func parseSurvey(text string) survey {
	s := survey{libc: "gnu", missing: map[string]bool{"ninja": true, "git": true, "ccache": true}}
	var globbed []string
	for line := range strings.Lines(text) {
		kind, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "libc":
			s.glibc = parseGLIBC(value)
			if value == "musl" {
				s.libc = "musl"
			}
		case "program":
			delete(s.missing, value)
		case "ccache":
			if m := ccacheSays.FindStringSubmatch(value); m != nil {
				major, _ := strconv.Atoi(m[1])
				minor, _ := strconv.Atoi(m[2])
				s.missing["ccache"] = slices.Compare([]int{major, minor}, share.LeastCCache[:]) < 0
			}
		case "python":
			if !slices.Contains(globbed, value) && (path.IsAbs(value) || filepath.IsAbs(value)) {
				globbed = append(globbed, value)
			}
		}
	}
	// A pattern lists 3.13.10 before 3.13.9.
	slices.SortStableFunc(globbed, func(x, y string) int {
		a, b := patchVersion.FindStringSubmatch(x), patchVersion.FindStringSubmatch(y)
		if a == nil || b == nil || x[:strings.Index(x, a[0])] != y[:strings.Index(y, b[0])] {
			return 0
		}
		n, _ := strconv.Atoi(a[1])
		m, _ := strconv.Atoi(b[1])
		return m - n
	})
	s.pythons = globbed
	return s
}

var patchVersion = regexp.MustCompile(`(?:^|[-/\\])\d+\.\d+\.(\d+)`)

// findPython chooses the row's interpreter: one that the environment has, or one that kiln brings.
// It opens the box again where that has to show more.
func (e *environment) findPython(ctx context.Context) error {
	if err := e.look(ctx); err != nil {
		return err
	}
	source := e.Settings.PythonSource
	if e.Settings.TorchSource.Kind == "system" && len(e.Torch) > 0 {
		source = "image" // its torch is for its Python
	}
	var own *facts
	var found []string
	if source != "managed" {
		var err error
		if own, found, err = e.ownPython(ctx); err != nil {
			return err
		}
	}
	whole := own != nil && own.Venv && (own.Headers || !e.builds || !e.Native)
	if !whole && source != "image" {
		managed, err := e.managedPython(ctx)
		switch {
		case err == nil:
			e.managed = managed
		case ctx.Err() != nil:
			return err
		case own == nil && !e.setUp(): // there is another way
			return e.noPython(found, err)
		default:
			fmt.Fprintf(e.log, "no Python of kiln's own: %v\n", err)
		}
	}
	switch {
	case e.managed == nil && own == nil && e.setUp():
		fmt.Fprintf(e.log, "the test image has no Python %s: it is completed as the image of the build is\n", e.Row.Python)
		e.setup = e.Settings.ImageSetup
		if err := e.reopen(ctx); err != nil {
			return err
		}
		return e.findPython(ctx)
	case e.managed == nil && own == nil:
		return e.noPython(found, nil)
	case e.managed == nil && !own.Venv:
		return fault("no-venv", "this Python cannot make virtual environments",
			"install the venv package of that Python; on Debian and Ubuntu: apt-get install python3-venv", "%s lacks the modules venv and ensurepip", own.Executable)
	}
	tools, err := e.bringPrograms(ctx)
	if err != nil {
		return err
	}
	if e.managed == nil {
		e.facts, e.python = *own, own.Executable
		e.interpreter = record.Interpreter{Source: "image", Path: own.Executable, Version: own.PythonFull}
		if e.onHost() {
			e.interpreter.Source = "machine"
		}
		if len(tools) == 0 {
			return nil
		}
		return e.reopen(ctx)
	}
	if err := e.reopen(ctx); err != nil {
		return err
	}
	return e.useManaged(ctx)
}

// setUp reports whether completing the image of a test is still to be tried.
func (e *environment) setUp() bool {
	return !e.builds && !e.onHost() && e.setup == nil && len(e.Settings.ImageSetup) > 0
}

// ownPython looks for the row's interpreter among those of the environment. Without one, found says
// which others there are.
func (e *environment) ownPython(ctx context.Context) (own *facts, found []string, err error) {
	env := sortedEnv(e.baseEnv(e.box))
	for _, name := range e.seen.pythons {
		var f facts
		if err := e.script(ctx, e.box, name, e.scripts, "facts.py", env, &f, "-", "-"); err != nil {
			if _, broken := errors.AsType[*sandbox.RuntimeError](err); broken || ctx.Err() != nil {
				return nil, nil, err // no container was started: nothing is known of the image
			}
			continue // a shim without an interpreter behind it
		}
		if f.Python != e.Row.Python {
			found = append(found, f.Python+" ("+name+")")
			continue
		}
		if onWindows(e.box) && f.Platform != "win-amd64" {
			found = append(found, f.Python+" for "+f.Platform+" ("+name+")")
			continue
		}
		if own == nil || !own.Venv && f.Venv || !own.Headers && f.Headers && f.Venv == own.Venv {
			own = &f
		}
		if own.Venv && own.Headers {
			break
		}
	}
	return own, found, nil
}

// managedPython returns one that kiln brings, if it runs in this environment.
func (e *environment) managedPython(ctx context.Context) (*interpreter, error) {
	managed, err := e.builder.store.python(ctx, e.Row.Python, e.seen.libc, e.log)
	if err != nil {
		return nil, err
	}
	if need := parseGLIBC(managed.GLIBC); e.seen.glibc > 0 && need > e.seen.glibc {
		return nil, fmt.Errorf("the managed Python %s needs glibc %s or newer, and %s has %s", managed.Version, managed.GLIBC, e.place(), e.seen.glibc)
	}
	return managed, nil
}

// place names the environment.
func (e *environment) place() string {
	if e.image != "" {
		return "the image " + e.image
	}
	return "this machine"
}

// noPython says what was looked at.
func (e *environment) noPython(found []string, managed error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "there is no Python %s in %s", e.Row.Python, e.place())
	if len(found) > 0 {
		fmt.Fprintf(&b, "; there is %s", strings.Join(slices.Compact(found), ", "))
	}
	if e.Settings.PythonSource != "managed" {
		fmt.Fprintf(&b, "\nlooked for: %s", strings.Join(e.pythonPlaces(), ", "))
	}
	switch {
	case managed != nil:
		fmt.Fprintf(&b, "\nmanaged by kiln: %v", managed)
	case e.Settings.PythonSource == "image":
		b.WriteString("\nmanaged by kiln: not asked for, as python: {source: image} is set")
	default:
		b.WriteString("\nmanaged by kiln: not asked for, as the torch of the image is for its own Python")
	}
	fix := "install it, or put it on PATH; kiln brings one itself where uv can fetch it: see UV_PYTHON_INSTALL_MIRROR in docs/build.md"
	if onWindows(e.box) {
		version := strings.TrimSuffix(e.Row.Python, "t")
		fix = "winget install --exact --id Python.Python." + version + "\nor: uv python install " + e.Row.Python + "\nkiln finds it in both places; one that is elsewhere must be on PATH"
	}
	if e.image != "" {
		fix = "name an image that has it, or install it with image_setup: in packages.yml, for example\n" +
			"  image_setup: [apt-get update, apt-get install -y python{python}-venv python{python}-dev]\n" +
			"without a way to the network: UV_PYTHON_INSTALL_MIRROR names a folder of Pythons (docs/build.md)"
	}
	err := fault("no-python", "the Python of the row is missing", fix, "%s", b.String())
	if engine.CauseOf(managed) == engine.CauseNetwork {
		return engine.Fail(engine.CauseNetwork, err)
	}
	return err
}

// bringPrograms fetches what the environment lacks for a build: ninja where torch's builder needs it
// in an image, and ccache where compiles are shared. Going without is worse only in speed, so that a program which
// cannot be had is no error here.
func (e *environment) bringPrograms(ctx context.Context) ([]sandbox.Mount, error) {
	if !e.builds || !e.Native || onWindows(e.box) {
		return nil, nil
	}
	var wanted []string
	if e.seen.missing["ninja"] && len(e.Torch) > 0 && !e.onHost() && !slices.ContainsFunc(e.Deps, isNinja) {
		wanted = append(wanted, "ninja")
	}
	if e.seen.missing["ccache"] && e.builder.share != nil {
		wanted = append(wanted, "ccache")
	}
	for _, name := range wanted {
		file, err := e.builder.store.program(ctx, name, e.seen.libc)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			e.warn("%s has no %s, and kiln could not bring one: %v; on Debian and Ubuntu: apt-get install %s", e.place(), name, err, name)
			continue
		}
		fmt.Fprintf(e.log, "%s has no %s: using %s\n", e.place(), name, file)
		if e.onHost() {
			e.hostTools = append(e.hostTools, filepath.Dir(file))
			continue
		}
		e.brought = append(e.brought, sandbox.Mount{Host: file, Inside: path.Join(insideTools, name), ReadOnly: true})
	}
	return e.brought, nil
}

func isNinja(requirement string) bool {
	r, err := wheel.ParseRequirement(requirement)
	return err == nil && r.Name == "ninja"
}

// useManaged takes the interpreter that kiln brought and makes sure that it runs here.
func (e *environment) useManaged(ctx context.Context) error {
	dir := e.managed.dir
	if !e.onHost() {
		dir = insidePython
	}
	name := e.managed.program(dir, e.Row.Python)
	var f facts
	if err := e.script(ctx, e.box, name, e.scripts, "facts.py", sortedEnv(e.baseEnv(e.box)), &f, "-", "-"); err != nil {
		if _, broken := errors.AsType[*sandbox.RuntimeError](err); broken || ctx.Err() != nil {
			return err
		}
		return fault("no-python", "the Python of the row is missing", "name an image that has Python "+e.Row.Python+", or see the log for what the interpreter said",
			"the managed Python %s does not run in %s: %v", e.managed.Version, e.place(), err)
	}
	if f.Python != e.Row.Python {
		return fmt.Errorf("%s is Python %s, not %s", e.managed.dir, f.Python, e.Row.Python)
	}
	fmt.Fprintf(e.log, "%s: using the managed Python %s\n", e.place(), e.managed.Version)
	e.facts, e.python = f, f.Executable
	e.interpreter = record.Interpreter{Source: "managed", Path: f.Executable, Version: f.PythonFull, SHA256: e.managed.SHA256}
	return nil
}
