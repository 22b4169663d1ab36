package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/matrix"
)

// compile runs the front-end.
func compile(ctx context.Context, a *attempt) error {
	env, err := a.buildEnv()
	if err != nil {
		return err
	}
	argv := a.frontend(env)
	shared, err := newSharing(ctx, a, env)
	if err != nil {
		return err
	}
	a.record.Environment = sortedEnv(env)
	if limit := time.Duration(a.Settings.Resources.WallTime); limit > 0 {
		fmt.Fprintf(a.log, "time limit %s, %d compiler calls at once\n", limit, a.jobs)
	}
	network := a.Settings.Network || a.Settings.Isolation
	var secrets []string
	if network {
		secrets = a.netEnv(a.box, env)
	}
	hook := func(commands [][]string) error {
		hooked := maps.Clone(env)
		hooked["KILN_OUT"] = a.box.Inside(a.out())
		return a.hooks(ctx, a.box, commands, sandbox.Command{Dir: a.source(), Env: sortedEnv(hooked), Secrets: secrets, Network: network})
	}
	if err := hook(a.Settings.BeforeBuild); err != nil {
		return err
	}
	a.log.step = func(done, total int) { a.try.Progress(done, total, "files") }
	defer func() { a.log.step = nil }()
	_, err = a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: a.source(), Env: sortedEnv(env), Secrets: secrets, Network: network})
	records, bad := shared.records()
	if err != nil {
		return err
	}
	if bad != nil {
		return bad
	}
	if err := shared.finish(ctx, records); err != nil {
		return err
	}
	if err := hook(a.Settings.AfterBuild); err != nil {
		return err
	}
	return a.bypassed()
}

// hooks runs commands of packages.yml, as base says.
func (a *attempt) hooks(ctx context.Context, box sandbox.Box, commands [][]string, base sandbox.Command) error {
	for _, argv := range commands {
		base.Argv = argv
		if _, err := a.command(ctx, box, base); err != nil {
			return err
		}
	}
	return nil
}

// buildEnv is the environment of the front-end and of all that it starts.
func (a *attempt) buildEnv() (map[string]string, error) {
	env := a.plainEnv()
	if a.Settings.CUDACheck == "bypass" && a.Row.CUDA != "" && len(a.Torch) > 0 {
		if err := a.bypass(env); err != nil {
			return nil, err
		}
	}
	return env, nil
}

// plainEnv is buildEnv without what changes the environment on disk.
func (a *attempt) plainEnv() map[string]string {
	box := a.box
	dirs := []string{venvBin(box, a.venv)}
	if home := a.tools.CUDAHome; home != "" {
		dirs = append(dirs, join(box, home, "bin"))
	}
	if home := a.tools.ROCmHome; home != "" {
		dirs = append(dirs, path.Join(home, "bin"))
	}
	dirs = slices.Compact(dirs)
	env := a.baseEnv(box, dirs...)
	a.developerEnv(env, dirs)
	env["VIRTUAL_ENV"] = box.Inside(a.venv)
	env["MAX_JOBS"] = itoa(a.jobs)
	env["SOURCE_DATE_EPOCH"] = fmt.Sprint(a.epoch.Unix())
	env["PYTHONHASHSEED"] = "0"
	if home := a.tools.CUDAHome; home != "" {
		env["CUDA_HOME"], env["CUDA_PATH"] = home, home
	}
	if home := a.tools.ROCmHome; home != "" {
		env["ROCM_HOME"] = home
		if home != "/usr" { // the clang of a distribution finds its device libraries, unless it is told where they are
			env["ROCM_PATH"] = home
		}
	}
	a.rustEnv(env)
	if a.tools.CXX != "" {
		env["CXX"], env["CC"] = a.tools.CXX, a.tools.CC
	}
	if a.try.Shrink > 0 {
		env["NVCC_THREADS"] = "1"
	}
	if len(a.Torch) > 0 {
		env["TORCH_NO_COMPILER_WRAPPER"] = "1" // torch would call any ccache by itself, in its own way
	}
	if a.noGit && a.Source.Kind != "index" && a.Source.Kind != "sdist" {
		// Back-ends that ask git for the version cannot here. The files must have this version in
		// any case.
		env["SETUPTOOLS_SCM_PRETEND_VERSION"] = a.Row.Version
	}
	for _, pair := range a.Env {
		name, value, _ := strings.Cut(pair, "=")
		if name == toolsetVariable && a.developer != nil {
			continue // vcvarsall.bat said it whole
		}
		if name == "NVCC_THREADS" && a.try.Shrink > 0 || name == "MAX_JOBS" && a.try.Shrink > 0 {
			continue
		}
		env[name] = value
	}
	if !a.setuptools() { // CMake and Meson do not read CPPFLAGS
		for _, name := range []string{"CFLAGS", "CXXFLAGS", "CUDAFLAGS"} {
			if flags := stableMacros(&a.Row); len(flags) > 0 && (name != "CUDAFLAGS" || a.Row.CUDA != "") {
				env[name] = strings.TrimSpace(env[name] + " " + strings.Join(flags, " "))
			}
		}
	}
	return env
}

// rustEnv lets cargo work with the row's empty HOME: crates come once for all rows, and rustup's
// programs find the compiler, which is where the user has it.
func (a *attempt) rustEnv(env map[string]string) {
	set := func(name string) bool {
		return slices.ContainsFunc(a.box.Env(), func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	}
	if !set("CARGO_HOME") { // of an image
		env["CARGO_HOME"] = join(a.box, a.box.Inside(a.builder.cacheDir()), "cargo")
	}
	if host := a.builder.Host; a.onHost() && host != nil {
		home := host.Getenv("RUSTUP_HOME")
		if home == "" {
			home = filepath.Join(host.Getenv("HOME"), ".rustup")
		}
		if info, err := os.Stat(home); err == nil && info.IsDir() && filepath.IsAbs(home) {
			env["RUSTUP_HOME"] = home
		}
	}
}

// frontend returns the command that builds. It may add to env.
func (a *attempt) frontend(env map[string]string) []string {
	python := venvPython(a.box, a.venv)
	source, out := a.box.Inside(a.source()), a.box.Inside(a.out())
	settings := maps.Clone(a.Settings.ConfigSettings)
	if settings == nil {
		settings = map[string][]string{}
	}
	if a.Row.ABI3 != "" {
		a.limitedAPI(env, settings)
	}
	tag := a.Row.BuildTag
	if tag != "" && a.setuptools() && a.Settings.Frontend != "pip" {
		// Two words of the setuptools command line, before what bdist_wheel gets.
		settings["--build-option"] = append([]string{"egg_info", "--tag-build=" + tag}, settings["--build-option"]...)
	}
	var argv []string
	switch a.Settings.Frontend {
	case "pip":
		argv = []string{python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", out}
		if !a.Settings.Isolation {
			argv = append(argv, "--no-build-isolation", "--no-index")
		}
		if tag != "" && a.setuptools() {
			// pip cannot give setuptools a second command; a configuration file can.
			a.configure(env, "[egg_info]\ntag_build = "+tag+"\n")
		}
	case "uv":
		argv = []string{join(a.box, venvBin(a.box, a.venv), exe(a.box, "uv")), "build", "--offline", "--python", python, "--out-dir", out}
		argv = append(argv, a.alone()...)
		if !a.Settings.Isolation {
			argv = append(argv, "--no-build-isolation")
		} else {
			argv = slices.DeleteFunc(argv, func(w string) bool { return w == "--offline" })
		}
	default:
		argv = append([]string{python, "-m", "build", "--outdir", out}, a.alone()...)
		if !a.Settings.Isolation {
			argv = append(argv, "--no-isolation")
		}
		// Preflight has compared what the source requires. An image may have the libraries of its torch
		// from elsewhere than torch's metadata say, which a build does not concern.
		if a.Settings.TorchSource.Kind == "system" {
			argv = append(argv, "--skip-dependency-check")
		}
	}
	flag := "-C"
	if a.Settings.Frontend == "pip" {
		flag = "--config-settings="
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		for _, value := range settings[key] {
			argv = append(argv, flag+key+"="+value)
		}
	}
	return append(append(argv, a.Settings.BuildArgs...), source)
}

// limitedAPI tells the back-end for which Python the wheel is. What it compiles is the package's.
func (a *attempt) limitedAPI(env map[string]string, settings map[string][]string) {
	tag, _, _ := strings.Cut(a.Row.WheelTag, "-")
	switch {
	case a.setuptools():
		a.configure(env, "[bdist_wheel]\npy_limited_api = "+tag+"\n")
	case strings.HasPrefix(a.facts.Backend, "scikit_build_core") && settings["wheel.py-api"] == nil:
		settings["wheel.py-api"] = []string{tag}
	}
}

// configure adds to the configuration file that setuptools reads besides the package's own.
func (a *attempt) configure(env map[string]string, text string) {
	file := filepath.Join(a.work, "setup.cfg")
	have := ""
	if env["DIST_EXTRA_CONFIG"] == a.box.Inside(file) {
		old, _ := os.ReadFile(file)
		have = string(old)
	}
	if err := os.WriteFile(file, []byte(have+text), 0o666); err == nil {
		env["DIST_EXTRA_CONFIG"] = a.box.Inside(file)
	}
}

// alone is the argument of build and uv for a row that makes one file.
func (a *attempt) alone() []string {
	switch {
	case a.Row.Kind == matrix.KindWheel:
		return []string{"--wheel"}
	case a.Row.WheelTag == matrix.NoWheel:
		return []string{"--sdist"}
	}
	return nil
}

// setuptools reports whether the build back-end takes setuptools' options.
func (a *attempt) setuptools() bool { return strings.HasPrefix(a.facts.Backend, "setuptools") }

// bypass switches off torch's comparison of CUDA versions by a hook that is loaded at
// the start of every Python of the environment. No installed file is changed.
func (a *attempt) bypass(env map[string]string) error {
	hook := path.Join(a.box.Inside(a.scripts()))
	site, err := a.hostSitePackages()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(site, "kiln_nocudacheck.pth"), []byte(hook+"\nimport nocudacheck\n"), 0o666); err != nil {
		return err
	}
	env["KILN_CUDA_CHECK_LOG"] = a.box.Inside(a.bypassLog())
	a.warn("torch's comparison of CUDA versions is switched off (cuda_check: bypass)")
	return nil
}

func (a *attempt) bypassLog() string { return filepath.Join(a.work, "nocudacheck.log") }

// bypassed proves that the hook did something.
func (a *attempt) bypassed() error {
	if a.Settings.CUDACheck != "bypass" || a.Row.CUDA == "" || len(a.Torch) == 0 {
		return nil
	}
	text, err := os.ReadFile(a.bypassLog())
	if errors.Is(err, os.ErrNotExist) {
		return fault("patch", "a patch did not apply", "remove build: {cuda_check: bypass}; this build does not use torch's check",
			"torch's comparison of CUDA versions was not found, so it was not switched off")
	}
	if err != nil {
		return err
	}
	a.record.Patches = append(a.record.Patches, record.Patch{File: "torch/utils/cpp_extension.py (from outside)", Places: strings.Count(string(text), "\n")})
	return nil
}

// hostSitePackages returns the folder of the virtual environment's packages as this
// process sees it.
func (a *attempt) hostSitePackages() (string, error) {
	pattern := filepath.Join(a.venv, "lib", "python*", "site-packages")
	if onWindows(a.box) {
		pattern = filepath.Join(a.venv, "Lib", "site-packages")
	}
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("virtual environment %s: want one site-packages folder, got %d", a.venv, len(found))
	}
	return found[0], nil
}
