package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/pick"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/wheel"
)

// probeTime is how long finding out about the machine may take; a broken driver can hang.
const probeTime = 20 * time.Second

type pickFlags struct {
	index       string
	explain     bool
	asJSON      bool
	pre         bool
	noProbe     bool
	interpreter string
	machineFile string
	machine     pick.Machine // what flags say
	gpus        []string
	cuda        string
}

func (a *app) pickCommand() *cobra.Command {
	var f pickFlags
	cmd := &cobra.Command{
		Use:   "pick PACKAGE[SPECIFIER]",
		Short: "Say which wheel fits this machine, or the one thing that does not fit",
		Long: `Looks at this machine (system, C library, Python, the installed torch with its CUDA and ABI, NVIDIA
driver, GPUs), ranks the files of a package in an index, and prints the one command that installs the
best. If none fits, it says what is wrong with the nearest and exits with 1. Flags replace what was
found, to answer for another machine; with --no-probe they are all that is known.`,
		Example: "  kiln pick flash-attn --index https://wheels.example.org/\n" +
			"  kiln pick flash-attn --index ./index --no-probe --os linux --python 3.12 --torch 2.9.0+cu128 --gpu 9.0",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.pick(cmd.Context(), args[0], f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.index, "index", "", "`URL` or folder of the index (required)")
	flags.BoolVar(&f.explain, "explain", false, "list what fits and the near misses with one reason each")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.BoolVar(&f.pre, "pre", false, "accept pre-releases")
	flags.StringVar(&f.interpreter, "interpreter", "", "Python `program` to ask (default: python3 or python on PATH)")
	flags.BoolVar(&f.noProbe, "no-probe", false, "do not look at this machine")
	flags.StringVar(&f.machineFile, "machine", "", "`file` with the \"machine\" of kiln pick --json on another machine, or - for standard input")
	flags.StringVar(&f.machine.OS, "os", "", "`system`: linux, windows or macos")
	flags.StringVar(&f.machine.Arch, "arch", "", "`processor`: x86_64 or aarch64")
	flags.StringVar(&f.machine.Glibc, "glibc", "", "`version` of glibc, such as 2.39")
	flags.StringVar(&f.machine.Python, "python", "", "`version` of Python, such as 3.12, or 3.13t if it is free-threaded")
	flags.StringVar(&f.machine.Torch, "torch", "", "`version` of torch, such as 2.9.0+cu128, or none")
	flags.StringVar(&f.cuda, "cuda", "", "take only builds for this CUDA `version`, or cpu, or rocm6.4")
	flags.StringVar(&f.machine.Driver, "driver", "", "`version` of the NVIDIA driver, such as 570.86, or none")
	flags.StringSliceVar(&f.gpus, "gpu", nil, "compute `capability` of a GPU, such as 9.0, or gfx90a; may be repeated")
	_ = cmd.MarkFlagRequired("index")
	complete(cmd, "os", "linux", "windows", "macos")
	complete(cmd, "arch", "x86_64", "aarch64")
	return cmd
}

// pickResult is what --json prints.
type pickResult struct {
	Project string         `json:"project"`
	Index   string         `json:"index"`
	Machine pick.Machine   `json:"machine"`
	Best    *pick.Choice   `json:"best"`
	URL     string         `json:"url,omitempty"`
	SHA256  string         `json:"sha256,omitempty"`
	Install *index.Install `json:"install,omitempty"`
	*pick.Result
}

func (a *app) pick(ctx context.Context, arg string, f pickFlags) error {
	req, err := wheel.ParseRequirement(arg)
	if err != nil {
		return err
	}
	if req.URL != "" || req.Marker != "" || len(req.Extras) > 0 {
		return fmt.Errorf("%q: give a package and at most a version specifier, such as flash-attn==2.8.3", arg)
	}
	machine, err := a.pickMachine(ctx, f)
	if err != nil {
		return err
	}
	files, simpleURL, err := a.pickFiles(ctx, f.index, req.Name)
	if err != nil {
		return err
	}
	picked, err := pick.Rank(files, machine, pick.Options{Specifier: req.Specifier, Prereleases: f.pre})
	if err != nil {
		return err
	}
	result := pickResult{Project: req.Name, Index: f.index, Machine: machine, Best: picked.Best(), Result: picked}
	if best := result.Best; best != nil {
		torch := ""
		if v, err := wheel.ParseVersion(machine.Torch); err == nil {
			torch = compat.Minor(v.Public())
		}
		simple := simpleURL(best.Built, torch)
		lines := index.InstallLines(req.Name, simple, best.File)
		result.Install, result.SHA256 = &lines, best.File.SHA256.String()
		if best.File.Base != "" {
			result.URL = best.File.URL("")
		}
	}
	if f.asJSON {
		if err := a.printJSON(result); err != nil {
			return err
		}
	} else if err := a.printPick(result, f.explain); err != nil {
		return err
	}
	if result.Best == nil {
		return rowsFailedError{noFit(req.Name, picked)}
	}
	return nil
}

// noFit is the one thing that does not fit.
func noFit(project string, p *pick.Result) error {
	if len(p.Near) == 0 {
		return fmt.Errorf("%s has no files in this index", project)
	}
	near := p.Near[0]
	text := near.Misses[0].Text
	if n := len(near.Misses) - 1; n > 0 {
		text += fmt.Sprintf(" (and %s)", ui.Count(n, "more thing"))
	}
	return fmt.Errorf("no file of %s fits; the nearest, %s, %s", project, near.Filename, text)
}

func (a *app) printPick(r pickResult, explain bool) error {
	if explain {
		fmt.Fprintln(a.stdout, "machine  ", describeMachine(r.Machine))
		for i, c := range r.Fits {
			mark := "fits     "
			if i == 0 {
				mark = "best     "
			}
			fmt.Fprintln(a.stdout, mark, c.Filename)
		}
		for _, c := range r.Near {
			fmt.Fprintf(a.stdout, "no        %s: %s\n", c.Filename, c.Misses[0].Text)
		}
		if r.Best != nil {
			fmt.Fprintln(a.stdout)
		}
	}
	if r.Best == nil {
		return nil
	}
	for _, note := range r.Best.Notes {
		fmt.Fprintln(a.stderr, "note:", note)
	}
	_, err := fmt.Fprintln(a.stdout, r.Install.Pip)
	return err
}

// describeMachine says in one line what was found.
func describeMachine(m pick.Machine) string {
	parts := []string{strings.TrimSpace(m.OS + " " + m.Arch)}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("glibc", m.Glibc)
	add("musl", m.Musl)
	python := m.Python
	if m.FreeThreaded {
		python += " free-threaded"
	}
	add("Python", python)
	add("torch", cmp.Or(m.Torch, "none"))
	add("C++11 ABI", m.TorchABI)
	if m.NoDriver {
		parts = append(parts, "no NVIDIA driver")
	}
	add("driver", m.Driver)
	add("CUDA", m.DriverCUDA)
	for _, g := range m.GPUs {
		parts = append(parts, strings.TrimSpace(g.Name+" ("+g.Arch+")"))
	}
	if m.Toolkit != "" {
		parts = append(parts, "only "+index.ToolkitName(m.Toolkit))
	}
	return strings.Join(parts, ", ")
}

// pickFiles reads the files of a project from a URL or folder. The function returns the
// repository from which to install a build.
func (a *app) pickFiles(ctx context.Context, where, project string) ([]*index.File, func(index.Coordinates, string) string, error) {
	if strings.Contains(where, "://") {
		remote, err := index.OpenRemote(ctx, &http.Client{Timeout: 2 * time.Minute}, where)
		if err != nil {
			return nil, nil, err
		}
		files, err := remote.Files(ctx, project)
		return files, remote.SimpleURL, err
	}
	if info, err := os.Stat(where); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	} else if !info.IsDir() {
		return nil, nil, fmt.Errorf("index %s: neither a URL nor a folder", where)
	}
	store, err := index.Open(where, index.StoreOptions{Log: a.log})
	if err != nil {
		return nil, nil, err
	}
	catalog, err := store.Catalog(ctx)
	if err != nil {
		return nil, nil, err
	}
	files, ok := catalog.View("all").Files(project)
	if !ok {
		return nil, nil, fmt.Errorf("%s in %s: %w", project, where, index.ErrNoProject)
	}
	abs, err := filepath.Abs(where)
	if err != nil {
		return nil, nil, err
	}
	base := "file://" + filepath.ToSlash(abs) + "/"
	return files, func(c index.Coordinates, torch string) string {
		for _, t := range append([]string{torch}, c.Torch...) {
			if path := c.Toolkit + "/torch" + t; catalog.View(path) != nil {
				return base + path + "/simple/"
			}
		}
		return base + "all/simple/"
	}, nil
}

// pickMachine probes the machine and applies the flags.
func (a *app) pickMachine(ctx context.Context, f pickFlags) (pick.Machine, error) {
	var m pick.Machine
	switch {
	case f.machineFile != "":
		data, err := readFileOrStdin(a, f.machineFile)
		if err != nil {
			return m, fmt.Errorf("--machine: %w", err)
		}
		var file struct{ Machine *pick.Machine }
		file.Machine = &m
		if err := json.Unmarshal(data, &file); err == nil && file.Machine != nil && file.Machine.OS == "" {
			err = json.Unmarshal(data, &m) // the object itself, not the whole output
			if err != nil {
				return m, fmt.Errorf("--machine: %w", err)
			}
		} else if err != nil {
			return m, fmt.Errorf("--machine: %w", err)
		}
	case !f.noProbe:
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		p := prober{run: runCommand, readFile: os.ReadFile, glob: filepath.Glob, goos: runtime.GOOS, goarch: runtime.GOARCH}
		m = p.machine(ctx, f.interpreter)
	}
	return f.apply(m)
}

func readFileOrStdin(a *app, name string) ([]byte, error) {
	if name == "-" {
		var buf bytes.Buffer
		_, err := buf.ReadFrom(a.stdin)
		return buf.Bytes(), err
	}
	return os.ReadFile(name)
}

// apply replaces what is known of a machine with what the flags say.
func (f pickFlags) apply(m pick.Machine) (pick.Machine, error) {
	if f.machine.OS != "" && f.machine.OS != m.OS { // the C library is another too
		m.Glibc, m.Musl, m.MacOS, m.Arch = "", "", "", ""
	}
	m.OS, m.Arch = cmp.Or(f.machine.OS, m.OS), cmp.Or(f.machine.Arch, m.Arch)
	if f.machine.Glibc != "" {
		m.Glibc, m.Musl = f.machine.Glibc, ""
	}
	if python := f.machine.Python; python != "" {
		m.Python, m.FreeThreaded = strings.CutSuffix(python, "t")
	}
	if torch := f.machine.Torch; torch != "" {
		m.Torch, m.TorchCUDA, m.TorchROCm, m.TorchABI = torch, "", "", ""
		if torch == "none" {
			m.Torch = ""
		}
	}
	if m.Torch != "" && m.TorchABI == "" {
		m.TorchABI = torchABI(m)
	}
	if driver := f.machine.Driver; driver != "" {
		m.Driver, m.DriverCUDA, m.NoDriver = driver, driverCUDA(driver, m.OS), false
		if driver == "none" {
			m.Driver, m.DriverCUDA, m.NoDriver, m.GPUs = "", "", true, nil
		}
	}
	if f.gpus != nil {
		m.GPUs = nil
		for _, g := range f.gpus {
			if _, err := compat.ParseCC(g); err != nil && !strings.HasPrefix(g, "gfx") {
				return m, fmt.Errorf("--gpu: %w", err)
			}
			m.GPUs = append(m.GPUs, pick.GPU{Arch: g})
		}
		if f.machine.Driver == "" {
			m.NoDriver = false
		}
	}
	if f.cuda != "" {
		m.Toolkit = f.cuda
		if digits := strings.ReplaceAll(compat.Minor(f.cuda), ".", ""); strings.Trim(digits, "0123456789") == "" && digits != "" {
			m.Toolkit = "cu" + digits
		}
	}
	return m, nil
}

// torchABI looks up with which C++ ABI a release of torch was built.
func torchABI(m pick.Machine) string {
	v, err := wheel.ParseVersion(m.Torch)
	if err != nil || m.OS == "windows" {
		return ""
	}
	value, known := compat.Default().CXX11ABI(v.Public(), m.TorchCUDA, m.TorchROCm, m.OS)
	if !known {
		return ""
	}
	return strings.ToUpper(strconv.FormatBool(value))
}

// driverCUDA is the newest CUDA whose own driver is not newer than this one.
func driverCUDA(driver, goos string) string {
	have := numbers(driver)
	best := ""
	for _, series := range compat.Default().CUDASeries() {
		d, ok := compat.Default().Driver(series)
		needs := d.Linux
		if goos == "windows" {
			needs = cmp.Or(d.Windows, d.Linux) // the numbers of one branch are close
		}
		if ok && needs != "" && slices.Compare(have, numbers(needs)) >= 0 && (best == "" || slices.Compare(numbers(series), numbers(best)) > 0) {
			best = series
		}
	}
	return best
}

func numbers(s string) []int {
	var out []int
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		out = append(out, n)
	}
	return out
}

// prober finds out about a machine. Its functions are those of the system, or a test's.
type prober struct {
	run          func(ctx context.Context, name string, args ...string) ([]byte, error)
	readFile     func(name string) ([]byte, error)
	glob         func(pattern string) ([]string, error)
	goos, goarch string
}

// runCommand runs a program and returns its output, also if it does not end by itself.
func runCommand(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	return cmd.Output()
}

// machine never fails: what cannot be found out stays empty.
func (p prober) machine(ctx context.Context, interpreter string) pick.Machine {
	m := pick.Machine{
		OS:   map[string]string{"darwin": "macos"}[p.goos],
		Arch: map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[p.goarch],
	}
	m.OS, m.Arch = cmp.Or(m.OS, p.goos), cmp.Or(m.Arch, p.goarch)
	p.python(ctx, &m, interpreter)
	if m.OS == "linux" && m.Glibc == "" && m.Musl == "" {
		p.libc(ctx, &m)
	}
	p.nvidia(ctx, &m)
	p.amd(&m)
	return m
}

// pythonProbe prints what only Python knows. torch is not imported, which takes seconds and fails
// on broken installations: its version.py is read as text.
const pythonProbe = `
import importlib.util, json, os, platform, re, sys, sysconfig
out = {"python": platform.python_version(), "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED"))}
try:
    name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    out["glibc"] = version
except Exception:
    pass
if sys.platform == "darwin":
    out["macos"] = platform.mac_ver()[0]
try:
    spec = importlib.util.find_spec("torch")
    text = open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8").read()
    for key, name in (("torch", "__version__"), ("torch_cuda", "cuda"), ("torch_rocm", "hip")):
        found = re.search(r"^" + name + r"\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.M)
        if found:
            out[key] = found.group(1)
except Exception:
    pass
print(json.dumps(out))
`

func (p prober) python(ctx context.Context, m *pick.Machine, interpreter string) {
	candidates := []string{"python3", "python"}
	if interpreter != "" {
		candidates = []string{interpreter}
	}
	for _, name := range candidates {
		out, err := p.run(ctx, name, "-I", "-c", pythonProbe)
		if err != nil {
			continue
		}
		var found pick.Machine
		if json.Unmarshal(out, &found) != nil || found.Python == "" {
			continue
		}
		m.Python, m.FreeThreaded = found.Python, found.FreeThreaded
		m.Glibc, m.MacOS = found.Glibc, found.MacOS
		m.Torch, m.TorchCUDA = found.Torch, found.TorchCUDA
		m.TorchROCm = found.TorchROCm
		return
	}
}

var (
	glibcVersion  = regexp.MustCompile(`(?i)(?:glibc|gnu libc|gnu c library)[^\n]*?(\d+\.\d+)`)
	muslVersion   = regexp.MustCompile(`musl libc[\s\S]*?Version (\d+\.\d+)`)
	driverVersion = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)`)
	smiCUDA       = regexp.MustCompile(`CUDA (?:UMD )?Version:\s+(\d+\.\d+)`)
	gfxTarget     = regexp.MustCompile(`gfx_target_version (\d+)`)
)

// libc asks the loader for the C library where Python did not say.
func (p prober) libc(ctx context.Context, m *pick.Machine) {
	out, err := p.run(ctx, "ldd", "--version")
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		out = append(out, exit.Stderr...) // musl's way
	}
	if found := glibcVersion.FindSubmatch(out); found != nil {
		m.Glibc = string(found[1])
	} else if found := muslVersion.FindSubmatch(out); found != nil {
		m.Musl = string(found[1])
	}
}

// nvidia finds the driver and its GPUs.
func (p prober) nvidia(ctx context.Context, m *pick.Machine) {
	if text, err := p.readFile("/proc/driver/nvidia/version"); err == nil {
		if found := driverVersion.FindSubmatch(text); found != nil {
			m.Driver = string(found[1])
		}
	}
	out, err := p.run(ctx, "nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
	if err == nil {
		for line := range strings.Lines(string(out)) {
			fields := strings.Split(strings.TrimSpace(line), ", ")
			if len(fields) != 3 {
				continue
			}
			if _, err := compat.ParseCC(fields[1]); err == nil {
				m.GPUs = append(m.GPUs, pick.GPU{Name: fields[0], Arch: fields[1]})
			}
			m.Driver = cmp.Or(m.Driver, fields[2])
		}
	}
	if m.Driver == "" {
		m.NoDriver = true
		return
	}
	// The driver itself knows best; the table is for when it does not answer.
	if out, err := p.run(ctx, "nvidia-smi"); err == nil {
		if found := smiCUDA.FindSubmatch(out); found != nil {
			m.DriverCUDA = string(found[1])
		}
	}
	m.DriverCUDA = cmp.Or(m.DriverCUDA, driverCUDA(m.Driver, m.OS))
}

// amd reads the targets of AMD GPUs from the kernel: 90010 is gfx90a.
func (p prober) amd(m *pick.Machine) {
	files, err := p.glob("/sys/class/kfd/kfd/topology/nodes/*/properties")
	if err != nil {
		return
	}
	for _, name := range files {
		text, err := p.readFile(name)
		if err != nil {
			continue
		}
		found := gfxTarget.FindSubmatch(text)
		if found == nil {
			continue
		}
		n, err := strconv.Atoi(string(found[1]))
		if err != nil || n == 0 { // a CPU
			continue
		}
		m.GPUs = append(m.GPUs, pick.GPU{Arch: fmt.Sprintf("gfx%d%x%x", n/10000, n/100%100, n%100)})
	}
}
