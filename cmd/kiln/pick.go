package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/pick"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/machine"
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
	machine     pick.Target // what flags say
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
	flags.StringVar(&f.interpreter, "interpreter", "", "Python `program` to ask (default: that of the active environment, else python3 or python on PATH)")
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
	Machine pick.Target    `json:"machine"`
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
	target, err := a.pickMachine(ctx, f)
	if err != nil {
		return err
	}
	a.secrets.AddNetRC(f.index)
	files, simpleURL, err := pick.Files(ctx, f.index, req.Name, a.secrets.Transport(http.DefaultTransport), a.log)
	if err != nil {
		return err
	}
	picked, err := pick.Rank(files, target, pick.Options{Specifier: req.Specifier, Prereleases: f.pre})
	if err != nil {
		return err
	}
	result := pickResult{Project: req.Name, Index: f.index, Machine: target, Best: picked.Best(), Result: picked}
	if best := result.Best; best != nil {
		torch := ""
		if v, err := wheel.ParseVersion(target.Torch); err == nil {
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
		text += fmt.Sprintf(" (and %s)", units.Count(n, "more thing"))
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
func describeMachine(m pick.Target) string {
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

// pickMachine probes the machine and applies the flags.
func (a *app) pickMachine(ctx context.Context, f pickFlags) (pick.Target, error) {
	var m pick.Target
	switch {
	case f.machineFile != "":
		data, err := readFileOrStdin(a, f.machineFile)
		if err != nil {
			return m, fmt.Errorf("--machine: %w", err)
		}
		var file struct{ Machine *pick.Target }
		file.Machine = &m
		if err := json.Unmarshal(data, &file); err == nil && file.Machine != nil && file.Machine.OS == "" {
			err = json.Unmarshal(data, &m) // the object itself, not the whole output
			if err != nil {
				return m, fmt.Errorf("--machine: %w", err)
			}
		} else if err != nil {
			return m, fmt.Errorf("--machine: %w", err)
		}
		m.TorchABI = cmp.Or(m.TorchABI, machine.TorchABI(compat.Default(), m.Torch, m.OS))
	case !f.noProbe:
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		m = forPick(machine.Probe(ctx, a.host(), machine.ProbeOptions{Python: f.interpreter}))
	}
	return f.apply(m)
}

// forPick is what picking needs to know of a machine. It only names things as package pick does,
// which thereby depends on no way to look at one.
func forPick(found *machine.Machine) pick.Target {
	m := pick.Target{
		OS:    cmp.Or(map[string]string{"darwin": "macos"}[found.OS], found.OS),
		Arch:  cmp.Or(map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[found.Arch], found.Arch),
		Glibc: found.GLIBC, Musl: found.Musl, MacOS: found.MacOS,
		Python: found.Python.Version, FreeThreaded: found.Python.FreeThreaded,
		Torch: found.Torch.Version, TorchCUDA: found.Torch.CUDA, TorchROCm: found.Torch.HIP, TorchABI: found.Torch.CXX11ABI,
		Driver: found.Driver.Version, DriverCUDA: found.Driver.CUDA,
	}
	if m.Driver == "none" {
		m.Driver, m.NoDriver = "", true
	}
	for _, g := range found.GPUs {
		// One that is hidden runs nothing, and one whose code is not known excludes nothing.
		if arch := g.ComputeCapability + g.Target; arch != "" && !g.Hidden {
			m.GPUs = append(m.GPUs, pick.GPU{Name: g.Name, Arch: arch})
		}
	}
	return m
}

func readFileOrStdin(a *app, name string) ([]byte, error) {
	if name == "-" {
		var buf bytes.Buffer
		_, err := buf.ReadFrom(a.stdin)
		return buf.Bytes(), err
	}
	return fsx.ReadFile(name, maxInput)
}

// apply replaces what is known of a machine with what the flags say.
func (f pickFlags) apply(m pick.Target) (pick.Target, error) {
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
		m.TorchABI = machine.TorchABI(compat.Default(), m.Torch, m.OS)
	}
	if driver := f.machine.Driver; driver != "" {
		m.Driver, m.DriverCUDA, m.NoDriver = driver, machine.DriverCUDA(compat.Default(), driver, m.OS), false
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
