package build

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/wheel"
)

// preflight compares the environment with the row.
func preflight(ctx context.Context, a *attempt) error {
	box := a.box
	env := a.baseEnv(box, venvBin(box, a.venv))
	pip := venvPackages(box, a.pipHome, a.Row.Python)
	args := []string{box.Inside(a.source()), pip}
	if len(a.Torch) > 0 {
		args = append(args, "torch")
	}
	if a.Row.CUDA != "" {
		homes := machine.CUDAHomes(compat.Minor(a.Row.CUDA))
		if onWindows(box) {
			homes = machine.WindowsCUDAHomes(a.builder.Host, compat.Minor(a.Row.CUDA))
		}
		args = append(append(args, "nvcc"), homes...)
	}
	var f facts
	if err := a.script(ctx, box, venvPython(box, a.venv), a.scripts(), "facts.py", sortedEnv(env), &f, args...); err != nil {
		return err
	}
	a.facts = f
	a.record.Python, a.record.OS, a.record.Libc, a.record.Torch = f.PythonFull, f.OSName, f.Libc, f.Torch
	if len(f.Missing) > 0 && !a.Settings.Isolation {
		return fault("build-requirement", "a build requirement is missing",
			"add it to extra_deps in packages.yml, or set build: {isolation: true}",
			"build-system.requires asks for %s", strings.Join(f.Missing, ", "))
	}
	if err := a.checkTorch(); err != nil {
		return err
	}
	if a.Row.CUDA != "" {
		if err := a.findCUDA(ctx, env); err != nil {
			return err
		}
		if a.Row.Kind == "wheel" {
			a.checkArchs()
		}
	}
	if a.Row.ROCm != "" {
		if err := a.findROCm(ctx, env); err != nil {
			return err
		}
	}
	// After the toolkit: an image without it and without headers is the wrong image, not one that
	// lacks headers.
	if a.Native && a.Row.Kind == "wheel" && !f.Headers {
		return fault("python-headers", "the headers of Python are missing",
			"install them; on Debian and Ubuntu: apt-get install python"+strings.TrimSuffix(a.Row.Python, "t")+"-dev; on Windows the installer of python.org brings them",
			"Python %s has no Python.h", f.PythonFull)
	}
	if a.Native {
		find := a.findCompiler
		if onWindows(box) && a.Settings.Env["CXX"] == "" {
			find = func(ctx context.Context, _ map[string]string) error { return a.findMSVC(ctx) }
		}
		if err := find(ctx, env); err != nil {
			return err
		}
		if a.tools.CUDAHome != "" && !onWindows(box) {
			ours, err := a.completeToolkit(ctx, a.tools.CUDAHome, env)
			if err != nil {
				return err
			}
			if err := a.linkToolkit(ctx, env, ours || len(a.Torch) > 0); err != nil {
				return err
			}
		}
	}
	a.record.Tools = a.tools
	return a.askBackend(ctx, pip)
}

// backendTime is how long a back-end may take to answer what costs it nothing.
const backendTime = 5 * time.Minute

// askBackend compares what the build back-end would make, and what it asks for besides
// build-system.requires, with the row: minutes of compiling tell no more. A back-end that cannot
// answer is no fault here.
func (a *attempt) askBackend(ctx context.Context, pip string) error {
	// With isolation its requirements are not there yet; and commands before the build may make what
	// it reads.
	if a.Settings.Isolation || len(a.Settings.BeforeBuild) > 0 {
		return nil
	}
	box := a.box
	task, err := json.Marshal(map[string]any{
		"source": box.Inside(a.source()), "pip": pip, "backend": a.facts.Backend, "backend_path": a.facts.BackendPath, "version": a.facts.Version,
		"settings": a.Settings.ConfigSettings,
	})
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, backendTime)
	defer cancel()
	var answer struct {
		Missing []string
		Version string
	}
	err = a.script(limited, box, venvPython(box, a.venv), a.scripts(), "metadata.py", sortedEnv(a.plainEnv()), &answer, string(task))
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		fmt.Fprintf(a.log, "the build back-end did not say what it needs and makes: %v\n", err)
		return nil
	}
	if slices.Contains(answer.Missing, "puccinialin") { // by which maturin would fetch one
		return fault("no-cargo", "there is no Rust compiler",
			"install Rust where the row is built: rustup, or cargo and rustc of the system (Debian and Ubuntu: apt-get install cargo; for an image in image_setup)",
			"the build back-end found no cargo on PATH")
	}
	if len(answer.Missing) > 0 {
		return fault("build-requirement", "a build requirement is missing",
			"add it to extra_deps in packages.yml, or set build: {isolation: true}",
			"the build back-end asks for %s", strings.Join(answer.Missing, ", "))
	}
	v, err := wheel.ParseVersion(answer.Version)
	if err != nil || v.Public() == a.Row.Version { // none is known
		return nil
	}
	return fault("wrong-version", "the version of the source is not the row's",
		"correct versions: in packages.yml, or the ref of the source; a tag may name another version than the code",
		"the row says %s, the source says %s", a.Row.Version, answer.Version)
}

// checkTorch compares the installed torch with the row's.
func (a *attempt) checkTorch() error {
	if len(a.Torch) == 0 {
		return nil
	}
	f := a.facts
	if f.Torch == nil {
		return fault("torch-broken", "torch cannot be imported",
			"the message is the loader's own; a library it names belongs to torch's requirements or to the image", "%s", f.TorchError)
	}
	have, err := wheel.ParseVersion(f.Torch.Version)
	if err != nil {
		return fmt.Errorf("torch says that it is version %q: %w", f.Torch.Version, err)
	}
	if want := a.Row.Torch; want != "" {
		w, err := wheel.ParseVersion(want)
		if err != nil {
			return err
		}
		if have.Public() != w.Public() {
			return fault("torch-version", "another torch is installed than the row says",
				"correct torch: or torch_source: in packages.yml", "installed is %s, want %s", f.Torch.Version, want)
		}
	}
	if f.Ninja == "" && a.Native {
		return fault("ninja-missing", "ninja is missing", "add ninja to extra_deps in packages.yml",
			"without it torch's builder compiles one file at a time")
	}
	major := func(v string) string { m, _, _ := strings.Cut(v, "."); return m }
	switch {
	case a.Row.CUDA != "" && f.Torch.CUDA == "":
		return fault("torch-cuda", "this torch was built without CUDA",
			"the row's torch must come from an index for "+a.Row.TorchIndex(), "torch %s has no CUDA, the row has %s", f.Torch.Version, a.Row.CUDA)
	case a.Row.CUDA != "" && major(f.Torch.CUDA) != major(a.Row.CUDA) && a.Settings.CUDACheck != "bypass":
		return fault("torch-cuda", "torch was built for another major version of CUDA",
			"choose a torch for CUDA "+major(a.Row.CUDA)+"; build: {cuda_check: bypass} builds all the same, and such wheels are suspect",
			"torch %s is for CUDA %s, the row has %s", f.Torch.Version, f.Torch.CUDA, a.Row.CUDA)
	case a.Row.CUDA != "" && f.Torch.CUDA != compat.Minor(a.Row.CUDA):
		a.warn("torch %s was built for CUDA %s, the row has %s", f.Torch.Version, f.Torch.CUDA, a.Row.CUDA)
	case a.Row.ROCm != "" && f.Torch.HIP == "":
		return fault("torch-rocm", "this torch was built without ROCm",
			"the row's torch must come from an index for "+a.Row.TorchIndex(), "torch %s has no HIP, the row has ROCm %s", f.Torch.Version, a.Row.ROCm)
	case a.Row.CUDA == "" && a.Row.ROCm == "" && f.Torch.CUDA+f.Torch.HIP != "":
		a.warn("the row is for the CPU, and torch %s was built for %s: the wheel may need it; torch for the CPU is in the index %s",
			f.Torch.Version, cudaOrROCm(f.Torch), a.Row.TorchIndex())
	}
	return nil
}

func cudaOrROCm(t *record.Torch) string {
	if t.CUDA != "" {
		return "CUDA " + t.CUDA
	}
	return "ROCm " + t.HIP
}

// warn says something in the log and in the record.
func (a *attempt) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(a.log, "warning: %s\n", text)
	a.record.Warnings = append(a.record.Warnings, text)
}

// findCUDA looks for the toolkit of the row's version: where the row's variables say, or in the
// places of package machine, which kiln doctor looks in too, and on PATH.
func (a *attempt) findCUDA(ctx context.Context, env map[string]string) error {
	minor := compat.Minor(a.Row.CUDA)
	homes := a.facts.CUDAHomes
	if given := a.Settings.Env["CUDA_HOME"]; given != "" {
		homes = []string{given}
	}
	var found []string
	for _, home := range homes {
		var out bytes.Buffer
		nvcc := join(a.box, home, "bin", exe(a.box, "nvcc"))
		if _, err := a.command(ctx, a.box, sandbox.Command{Argv: []string{nvcc, "--version"}, Dir: a.scripts(), Env: sortedEnv(env), Stdout: &out}); err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue
		}
		switch release, full := machine.NVCCRelease(out.String()); release {
		case "":
		case minor:
			a.tools.CUDAHome, a.tools.CUDAVersion = home, full
			return nil
		default:
			found = append(found, full+" in "+home)
		}
	}
	fix := "install it, or build in a container: --runner podman"
	where := "on this machine"
	if onWindows(a.box) {
		fix = "install it, or let kiln put it together: kiln workflow cuda " + a.Row.ID + "\nif it is installed: set CUDA_PATH_V" + strings.ReplaceAll(minor, ".", "_") + " to its folder"
	}
	if a.Image != "" {
		where = "in the image " + a.Image
		fix = "build in an image with the compiler; of NVIDIA's images that is the one with -devel in its name"
	}
	detail := fmt.Sprintf("CUDA %s is not %s", minor, where)
	if len(found) > 0 {
		detail += "; there is " + strings.Join(found, ", ")
	}
	return fault("no-nvcc", "the CUDA compiler of the row is missing", fix, "%s", detail)
}

var hipVersion = regexp.MustCompile(`HIP version: (\d+\.\d+)`)

// findROCm looks for hipcc. Distributions have it in /usr, the vendor in /opt/rocm.
func (a *attempt) findROCm(ctx context.Context, env map[string]string) error {
	homes := []string{"/opt/rocm-" + a.Row.ROCm, "/opt/rocm", "/usr"}
	if given := a.Settings.Env["ROCM_HOME"]; given != "" {
		homes = []string{given}
	}
	for _, home := range homes {
		var out bytes.Buffer
		if _, err := a.command(ctx, a.box, sandbox.Command{Argv: []string{path.Join(home, "bin", "hipcc"), "--version"}, Dir: a.scripts(), Env: sortedEnv(env), Stdout: &out}); err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue
		}
		a.tools.ROCmHome = home
		if m := hipVersion.FindStringSubmatch(out.String()); m != nil {
			a.tools.ROCmVersion = m[1]
			if m[1] != compat.Minor(a.Row.ROCm) {
				a.warn("the row says ROCm %s, hipcc is %s", a.Row.ROCm, m[1])
			}
		}
		return nil
	}
	return fault("no-hipcc", "hipcc is missing", "build in an image with the HIP SDK (package rocm-hip-sdk, or hipcc of the distribution)",
		"there is no hipcc in %s", strings.Join(homes, ", "))
}

var gccMajor = regexp.MustCompile(`(?m)^(?:g\+\+|c\+\+|gcc|GCC)[^\n]*?(\d+)\.\d+\.\d+[^\n]*$`)

// findCompiler takes the default C++ compiler, or the newest older one if nvcc refuses it.
func (a *attempt) findCompiler(ctx context.Context, env map[string]string) error {
	version := func(name string) (string, int) {
		var out bytes.Buffer
		if _, err := a.command(ctx, a.box, sandbox.Command{Argv: []string{name, "--version"}, Dir: a.scripts(), Env: sortedEnv(env), Stdout: &out}); err != nil {
			return "", 0
		}
		first, _, _ := strings.Cut(out.String(), "\n")
		if m := gccMajor.FindStringSubmatch(first); m != nil {
			n, _ := strconv.Atoi(m[1])
			return first, n
		}
		return first, 0 // another compiler: its bounds are not checked
	}
	for _, name := range []string{"CC", "CXX", "CUDAHOSTCXX", "CUDACXX", "NVCC_CCBIN"} {
		words := strings.Fields(a.Settings.Env[name])
		if len(words) == 0 {
			continue
		}
		// The program is the first word that is no wrapper such as ccache, before its options.
		program := words[0]
		for _, w := range words[1:] {
			if strings.HasPrefix(w, "-") {
				break
			}
			program = w
		}
		text, _ := version(program)
		if text == "" {
			return fault("no-compiler", "the compiler that the row names does not run",
				"correct "+name+" in env: of packages.yml, or install the compiler", "%s is %s, and %s --version gives nothing", name, a.Settings.Env[name], program)
		}
		if name == "CXX" {
			a.tools.Compiler = text
		}
	}
	if a.tools.Compiler != "" {
		return nil
	}
	first, major := version("c++")
	name := "c++"
	if first == "" {
		name = "g++"
		first, major = version(name)
	}
	bounds, known := a.builder.Compat.HostCompilers(a.Row.CUDA)
	most := bounds.GCC[1]
	if known && most > 0 && (major > most || first == "") {
		for n := most; n >= max(bounds.GCC[0], most-4); n-- {
			older := "g++-" + itoa(n)
			if text, _ := version(older); text != "" {
				a.tools.CXX, a.tools.CC, a.tools.Compiler = older, "gcc-"+itoa(n), text
				fmt.Fprintf(a.log, "CUDA %s accepts GCC up to %d: using %s instead of %s\n", a.Row.CUDA, most, older, name)
				return nil
			}
		}
	}
	switch {
	case first == "":
		return fault("no-compiler", "there is no C++ compiler", "install one; on Debian and Ubuntu: apt-get install g++", "neither c++ nor g++ is on PATH %s", env["PATH"])
	case known && most > 0 && major > most:
		return fault("compiler-too-new", "the C++ compiler is too new for this CUDA",
			fmt.Sprintf("install an older one beside it; on Debian and Ubuntu: apt-get install g++-%d", most),
			"%s is GCC %d, CUDA %s accepts up to %d", name, major, a.Row.CUDA, most)
	}
	a.tools.Compiler = first
	return nil
}
