package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/fsx"
)

// facts are what python/facts.py prints.
type facts struct {
	Python       string            `json:"python"`
	PythonFull   string            `json:"python_full"`
	Executable   string            `json:"executable"`
	Platform     string            `json:"platform"`
	Headers      bool              `json:"headers"`
	Include      string            `json:"include"`
	Venv         bool              `json:"venv"`
	SitePackages string            `json:"site_packages"`
	Libc         string            `json:"libc"`
	Ninja        string            `json:"ninja"`
	CUDAHomes    []string          `json:"cuda_homes"`
	Distribution string            `json:"distribution"`
	OSName       string            `json:"os_name"`
	Packages     map[string]string `json:"packages"`
	Backend      string            `json:"backend"`
	BackendPath  []string          `json:"backend_path"`
	Version      string            `json:"version"` // that pyproject.toml says
	Requires     []string          `json:"requires"`
	Missing      []string          `json:"missing"`
	Torch        *record.Torch     `json:"torch"`
	TorchError   string            `json:"torch_error"`
}

// environment is a virtual environment of the row's Python in a box: that of the build, or that of
// the test.
type environment struct {
	*attempt
	box     sandbox.Box
	name    string // of the box
	builds  bool   // it is that of the build
	image   string // "" on the host
	setup   [][]string
	mounts  []sandbox.Mount
	seen    survey
	managed *interpreter // nil if the environment's own Python is used
	venv    string       // its folder
	scripts string       // the folder of kiln's own programs
	python  string       // the interpreter outside of it, as seen in the box
	pipHome string       // folder of the pip that fills it

	interpreter record.Interpreter
}

// open makes the box with what was brought so far.
func (e *environment) open(ctx context.Context) (err error) {
	mounts := slices.Clone(e.mounts)
	if e.managed != nil {
		mounts = append(mounts, sandbox.Mount{Host: e.managed.dir, Inside: insidePython, ReadOnly: true})
	}
	if e.builds {
		mounts = append(mounts, e.brought...)
	}
	if e.box, err = e.attempt.open(ctx, e.name, e.image, e.setup, mounts); err != nil {
		return err
	}
	if e.builds {
		e.attempt.box = e.box
	}
	return nil
}

// reopen makes it again, after something was added.
func (e *environment) reopen(ctx context.Context) error {
	if err := e.box.Close(ctx); err != nil {
		return err
	}
	e.openers = slices.DeleteFunc(e.openers, func(b sandbox.Box) bool { return b == e.box })
	return e.open(ctx)
}

func prepare(ctx context.Context, a *attempt) error {
	if err := a.checkWork(); err != nil {
		return err
	}
	if err := writeScripts(a.scripts()); err != nil {
		return err
	}
	e := &environment{
		attempt: a, name: "build", builds: true, image: a.Image, setup: a.Settings.ImageSetup, mounts: []sandbox.Mount{{Host: a.work, Inside: insideWork}},
		venv: filepath.Join(a.work, "venv"), scripts: a.scripts(),
	}
	a.venv = e.venv
	if err := e.open(ctx); err != nil {
		return err
	}
	a.record.Image = e.box.Image()
	if err := e.findPython(ctx); err != nil {
		return err
	}
	a.record.Interpreter, a.noGit = e.interpreter, e.seen.missing["git"]
	if e.managed != nil {
		a.managed = e.managed
	}
	var err error
	a.record.Installed, err = e.fill(ctx, a.Deps)
	a.pipHome = e.pipHome
	return err
}

// baseEnv are the variables of every command of the row: nothing else of the outer
// environment gets in.
func (a *attempt) baseEnv(box sandbox.Box, pathDirs ...string) map[string]string {
	env := map[string]string{
		"PATH":                          pathList(box, append(pathDirs, a.searchPath(box)...)),
		"HOME":                          box.Inside(a.home()),
		"TMPDIR":                        box.Inside(a.temp()),
		"LC_ALL":                        "C.UTF-8",
		"PYTHONDONTWRITEBYTECODE":       "1",
		"PYTHONNOUSERSITE":              "1",
		"PYTHONUNBUFFERED":              "1",
		"PIP_DISABLE_PIP_VERSION_CHECK": "1",
		"PIP_NO_INPUT":                  "1",
		"PIP_CONFIG_FILE":               "/dev/null", // where packages come from is said, not found
		"PIP_CACHE_DIR":                 join(box, box.Inside(a.builder.cacheDir()), "pip"),
		"PIP_PROGRESS_BAR":              "off",
		"PIP_ROOT_USER_ACTION":          "ignore",
	}
	if onWindows(box) {
		a.windowsEnv(env, box.Inside(a.home()), box.Inside(a.temp()))
	}
	return env
}

// searchPath returns the folders of programs: those that the image names, or the host's.
func (a *attempt) searchPath(box sandbox.Box) []string {
	if a.onHost() && box == a.box {
		return slices.Concat(a.hostTools, a.builder.searchPath())
	}
	if a.onHost() {
		return a.builder.searchPath()
	}
	dirs := a.builder.searchPath()
	for _, pair := range slices.Backward(box.Env()) {
		if named, ok := strings.CutPrefix(pair, "PATH="); ok && named != "" {
			dirs = strings.Split(named, ":")
			break
		}
	}
	if box == a.box && len(a.brought) > 0 {
		dirs = append([]string{insideTools}, dirs...) // an older program of the image comes second
	}
	return dirs
}

// netEnv adds what a command needs to reach the network, and returns the variables that only the
// command may have.
func (a *attempt) netEnv(box sandbox.Box, env map[string]string) (secrets []string) {
	n := a.builder.Network
	if n.CertFile != "" {
		for _, name := range []string{"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"} {
			env[name] = box.Inside(n.CertFile)
		}
	}
	for i, proxy := range n.ProxyEnv() {
		if name, value, ok := strings.Cut(proxy, "="); ok && proxy == n.Proxies[i] {
			env[name] = value
		} else if ok {
			secrets = append(secrets, proxy)
		}
	}
	return secrets
}

// env are the variables of commands in the environment.
func (e *environment) env() map[string]string {
	return e.baseEnv(e.box, venvBin(e.box, e.venv))
}

// create makes the environment, empty.
func (e *environment) create(ctx context.Context) error {
	a, box := e.attempt, e.box
	if err := e.installer(ctx); err != nil {
		return err
	}
	argv := []string{e.python, "-I", "-m", "venv", "--without-pip"}
	if a.Settings.TorchSource.Kind == "system" && len(a.Torch) > 0 {
		argv = append(argv, "--system-site-packages")
	}
	_, err := a.command(ctx, box, sandbox.Command{Argv: append(argv, box.Inside(e.venv)), Dir: e.scripts, Env: sortedEnv(e.env())})
	return err
}

// fill makes the environment with torch, from torch's own index alone, and then the other
// requirements, from the default index, with torch held fast. It returns what was installed.
func (e *environment) fill(ctx context.Context, deps []string) ([]record.Installed, error) {
	a, box := e.attempt, e.box
	if err := e.create(ctx); err != nil {
		return nil, err
	}
	var lock []record.Installed
	switch {
	case len(a.Torch) == 0:
	case a.Settings.TorchSource.Kind == "system":
	case a.Settings.TorchSource.Kind == "path":
		wheels := box.Inside(a.builder.path(a.Settings.TorchSource.Location))
		got, err := e.pip(ctx, slices.Concat([]string{"--no-deps", "--no-index", "--find-links", wheels}, a.Torch))
		if err != nil {
			return nil, err
		}
		lock = append(lock, got...)
		// The folder need not have what torch itself requires.
		if got, err = e.pip(ctx, slices.Concat(a.indexArgs(), []string{"--find-links", wheels}, a.Torch)); err != nil {
			return nil, err
		}
		lock = append(lock, got...)
	default:
		got, err := e.pip(ctx, slices.Concat([]string{"--index-url", a.TorchIndex}, a.Torch))
		if err != nil {
			return nil, err
		}
		lock = append(lock, got...)
	}
	hold, err := e.holdTorch(ctx)
	if err != nil {
		return nil, err
	}
	if len(deps) > 0 {
		got, err := e.pip(ctx, slices.Concat(a.indexArgs(), hold, deps))
		if err != nil {
			return nil, err
		}
		lock = append(lock, got...)
	}
	return lock, nil
}

// installer finds or makes the pip that fills all environments of this Python and image:
// a recent one, outside of the environments, so that they hold what the row asks for
// and nothing else.
func (e *environment) installer(ctx context.Context) error {
	a, box := e.attempt, e.box
	key := sha256.Sum256([]byte(a.facts.PythonFull + "\n" + a.facts.Executable + "\n" + box.Image() + "\n" + e.interpreter.SHA256))
	dir := filepath.Join(a.builder.cacheDir(), "pip-"+hex.EncodeToString(key[:8]))
	e.pipHome = dir
	return fsx.MakeDirOnce(ctx, dir, func(temp string) error { return e.makePip(ctx, temp) })
}

func (e *environment) makePip(ctx context.Context, dir string) error {
	a, box := e.attempt, e.box
	env := a.baseEnv(box)
	proxies := a.netEnv(box, env)
	args, secrets, err := a.pipAccess(box, e.scripts, append(a.indexArgs(), "pip"))
	if err != nil {
		return err
	}
	for _, cmd := range []sandbox.Command{
		{Argv: []string{e.python, "-I", "-m", "venv", box.Inside(dir)}},
		{
			Argv:    append([]string{venvPython(box, dir), "-m", "pip", "install", "--upgrade"}, args...),
			Secrets: slices.Concat(proxies, secrets), Network: true,
		},
	} {
		cmd.Dir, cmd.Env = e.scripts, sortedEnv(env)
		if _, err := a.command(ctx, box, cmd); err != nil {
			return err
		}
	}
	return nil
}

// holdTorch returns pip arguments that keep the installed torch as it is.
func (e *environment) holdTorch(ctx context.Context) ([]string, error) {
	if len(e.Torch) == 0 {
		return nil, nil
	}
	version, err := e.torchVersion(ctx)
	if err != nil {
		return nil, err
	}
	if version == "" {
		return nil, fault("no-torch", "torch is missing", "install torch in the image, or choose another torch_source", "%s has no torch", e.where())
	}
	constraints := filepath.Join(filepath.Dir(e.venv), "constraints.txt")
	if err := os.WriteFile(constraints, []byte("torch=="+version+"\n"), 0o666); err != nil {
		return nil, err
	}
	return []string{"--constraint", e.box.Inside(constraints)}, nil
}

func (a *attempt) where() string {
	if a.Image != "" {
		return "the image " + a.Image
	}
	return "this machine's Python " + a.Row.Python
}

// torchVersion returns the version of the installed torch, without importing it.
func (e *environment) torchVersion(ctx context.Context) (string, error) {
	var f facts
	if err := e.script(ctx, e.box, venvPython(e.box, e.venv), e.scripts, "facts.py", sortedEnv(e.env()), &f, "-", "-"); err != nil {
		return "", err
	}
	return f.Packages["torch"], nil
}

func (a *attempt) indexArgs() []string {
	if a.builder.Network.IndexURL == "" {
		return nil
	}
	return []string{"--index-url", a.builder.Network.IndexURL}
}
