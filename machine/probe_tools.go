package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// versionOf runs a program with --version and reads the first version number.
func (p *prober) versionOf(ctx context.Context, path string) (string, error) {
	out, err := p.answer(ctx, path, "--version")
	return dottedVersion.FindString(out), err
}

// answer runs a program. If it fails, the error is the first line that it printed.
func (p *prober) answer(ctx context.Context, argv ...string) (string, error) {
	out, err := p.run(ctx, p.opts.Timeout, argv...)
	if err != nil {
		return "", errors.New(firstLine(out, err))
	}
	return string(out), nil
}

// needsService reports whether a program is the client of a service without which it does nothing:
// docker's daemon, and podman's virtual machine where the system is not Linux.
func (p *prober) needsService(id string) bool {
	return id == "docker" || id == "podman" && p.OS != "linux"
}

// ninja looks for ninja on PATH and beside the interpreter.
func (p *prober) ninja(ctx context.Context) Result {
	r := Result{ID: "ninja", Status: Missing}
	names := []string{"ninja", "ninja-build"}
	if s := p.m.Python.Scripts; s != "" {
		names = append(names, p.path(s, p.exe("ninja")))
	}
	for i, n := range names {
		r.Looked = append(r.Looked, n)
		path, ok := p.LookPath(n)
		if !ok {
			continue
		}
		v, err := p.versionOf(ctx, path)
		if err != nil {
			r.Status, r.Path, r.Detail = Broken, path, err.Error()
			continue
		}
		p.m.Ninja = Tool{Path: path, Version: v, OnPath: i < 2}
		r.Status, r.Path, r.Value, r.Detail = OK, path, v, ""
		switch {
		case i == 1:
			r.Detail = "PyTorch's builder looks for the name ninja"
		case i > 1:
			r.Detail = "it is not on PATH, where PyTorch's builder looks"
			r.Status = Unsupported
		case compareVersions(v, "1.3") < 0:
			r.Status, r.Detail = Unsupported, "it does not know the deps directive, which came with 1.3"
		}
		return r
	}
	return r
}

// tools looks for programs of which only the version matters.
func (p *prober) tools(ctx context.Context) []func() Result {
	var out []func() Result
	for _, t := range []struct {
		id   string
		into *Tool
	}{{"ccache", &p.m.CCache}, {"sccache", &p.m.SCCache}, {"git", &p.m.Git}, {"podman", &p.m.Podman}, {"docker", &p.m.Docker}} {
		out = append(out, func() Result {
			r := Result{ID: t.id, Status: Missing, Looked: []string{t.id}}
			path, ok := p.LookPath(t.id)
			if !ok {
				return r
			}
			v, err := p.versionOf(ctx, path)
			if err == nil && p.needsService(t.id) {
				_, err = p.answer(ctx, path, "version", "--format", "{{.Server.Version}}")
			}
			r.Status, r.Path, r.Value = OK, path, v
			if err != nil {
				r.Status, r.Detail = Broken, err.Error()
				return r
			}
			*t.into = Tool{Path: path, Version: v, OnPath: true}
			return r
		})
	}
	return out
}

// A ROCmToolkit is an installation of ROCm.
type ROCmToolkit struct {
	Home    string `json:"home"`
	HIPCC   string `json:"hipcc,omitempty"`
	Version string `json:"version,omitempty"`
	Source  string `json:"source"`
}

// rocm looks for ROCm and AMD GPUs.
func (p *prober) rocm(ctx context.Context) Result {
	r := Result{ID: "hipcc", Status: Missing}
	if p.OS != "linux" {
		r.Status = Skipped
		return r
	}
	type place struct{ home, source string }
	var places []place
	add := func(home, source string) {
		home = strings.TrimRight(home, "/")
		if home != "" && !slices.ContainsFunc(places, func(o place) bool { return o.home == home }) {
			places = append(places, place{home, source})
		}
	}
	add(p.Getenv("ROCM_HOME"), "ROCM_HOME")
	add(p.Getenv("ROCM_PATH"), "ROCM_PATH")
	if hipcc, ok := p.LookPath("hipcc"); ok {
		home := parent(parent(hipcc))
		if strings.HasSuffix(home, "/hip") {
			home = parent(home)
		}
		add(home, "PATH")
	}
	add("/opt/rocm", "/opt/rocm")
	for _, d := range p.versionedDirs("/opt", "rocm-") {
		add("/opt/"+d, "/opt")
	}
	for _, c := range places {
		r.Looked = append(r.Looked, c.home)
		if !p.isDir(c.home) {
			continue
		}
		t := ROCmToolkit{Home: c.home, Source: c.source}
		if f := p.path(c.home, "bin", "hipcc"); p.isFile(f) {
			t.HIPCC = f
		}
		if data, err := p.ReadFile(p.path(c.home, ".info", "version")); err == nil {
			t.Version = dottedVersion.FindString(string(data))
		} else if f := p.path(c.home, "bin", "hipconfig"); p.isFile(f) {
			if out, err := p.run(ctx, p.opts.Timeout, f, "--version"); err == nil {
				t.Version = dottedVersion.FindString(string(out))
			}
		}
		if t.HIPCC == "" && t.Version == "" {
			continue
		}
		p.m.ROCm = append(p.m.ROCm, t)
	}
	if len(p.m.ROCm) > 0 {
		t := p.m.ROCm[0]
		r.Status, r.Path, r.Value = OK, t.Home, t.Version
		if t.HIPCC == "" {
			r.Status, r.Detail = Broken, "it has no bin/hipcc: only the runtime is installed"
		}
	}
	return r
}

// A GPU is one device.
type GPU struct {
	Index             int    `json:"index"`
	Vendor            string `json:"vendor"` // "nvidia" or "amd"
	Name              string `json:"name,omitempty"`
	UUID              string `json:"uuid,omitempty"`
	ComputeCapability string `json:"compute_capability,omitempty"` // "9.0"
	Target            string `json:"target,omitempty"`             // "gfx90a"
	MemoryBytes       int64  `json:"memory_bytes,omitempty"`
	Hidden            bool   `json:"hidden,omitempty"` // by CUDA_VISIBLE_DEVICES
}

// NVIDIADriver is what is known of the driver.
type NVIDIADriver struct {
	Version string `json:"version,omitempty"` // "580.65.06"; "none" if there is none
	CUDA    string `json:"cuda,omitempty"`    // the newest CUDA it is known to have all of
	Library bool   `json:"library"`           // libcuda was found
	Source  string `json:"source,omitempty"`
}

var (
	nvrm    = regexp.MustCompile(`(?m)^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s`)
	smiCUDA = regexp.MustCompile(`CUDA (?:UMD )?Version:\s+(\d+\.\d+)`)
)

// driver looks for GPUs without loading a driver library: that can hang or crash, and
// must not take this process along. nvidia-smi is a child with a time limit.
func (p *prober) driver(ctx context.Context) Result {
	r := Result{ID: "gpu", Status: Missing}
	d := &p.m.Driver
	d.Version = "none"
	var fault string
	if p.OS == "linux" {
		if data, err := p.ReadFile("/proc/driver/nvidia/version"); err == nil {
			r.Looked = append(r.Looked, "/proc/driver/nvidia/version")
			if m := nvrm.FindStringSubmatch(string(data)); m != nil {
				d.Version, d.Source = m[1], "/proc/driver/nvidia/version"
			}
		}
		gnu := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[p.Arch]
		for _, dir := range []string{"/usr/lib/" + gnu, "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib"} {
			if p.isFile(dir + "/libcuda.so.1") {
				d.Library = true
			}
		}
	}
	smi, ok := p.LookPath("nvidia-smi")
	if !ok {
		for _, f := range []string{"/usr/lib/wsl/lib/nvidia-smi", p.path(p.Getenv("SystemRoot"), "System32", "nvidia-smi.exe")} {
			if p.isFile(f) {
				smi, ok = f, true
				break
			}
		}
	}
	if ok {
		r.Looked = append(r.Looked, smi)
		out, err := p.run(ctx, p.opts.Timeout, smi, "--query-gpu=index,uuid,name,compute_cap,driver_version,memory.total", "--format=csv,noheader")
		if err != nil {
			fault = firstLine(out, err)
		} else {
			gpus, version := parseSMI(string(out))
			p.m.GPUs = append(p.m.GPUs, gpus...)
			if version != "" {
				d.Version, d.Source, d.Library = version, "nvidia-smi", true
			}
		}
	}
	if len(p.m.GPUs) == 0 && p.OS == "linux" {
		p.m.GPUs = append(p.m.GPUs, p.procGPUs()...)
	}
	hide(p.m.GPUs, p.Host)
	if d.Version != "none" {
		if d.Source == "nvidia-smi" {
			// The driver itself knows best. Without arguments it prints its CUDA.
			if out, err := p.run(ctx, p.opts.Timeout, smi); err == nil {
				if m := smiCUDA.FindSubmatch(out); m != nil {
					d.CUDA = string(m[1])
				}
			}
		}
		d.CUDA = cmp.Or(d.CUDA, DriverCUDA(p.opts.Table, d.Version, p.OS))
	}
	if p.OS == "linux" {
		p.m.GPUs = append(p.m.GPUs, p.amdGPUs(len(p.m.GPUs))...)
	}
	switch {
	case fault != "":
		r.Status, r.Path, r.Detail = Broken, smi, fault
	case len(p.m.GPUs) > 0:
		r.Status = OK
		var names []string
		for _, g := range p.m.GPUs {
			names = append(names, sentences(g.Name, g.ComputeCapability+g.Target))
		}
		r.Value = strings.Join(names, ", ")
	case d.Version != "none":
		r.Status, r.Detail = Broken, "a driver is loaded, and no GPU can be seen"
	}
	return r
}

// DriverCUDA is the newest CUDA whose own driver is not newer than this one, as the table knows
// it; "" if there is none. os is that of Go.
func DriverCUDA(table *compat.Table, driver, os string) string {
	best := ""
	for _, series := range table.CUDASeries() { // ascending
		d, ok := table.Driver(series)
		need := d.Linux
		if os == "windows" {
			need = cmp.Or(d.Windows, d.Linux) // the numbers of one branch are close
		}
		if ok && need != "" && compareVersions(driver, need) >= 0 {
			best = series
		}
	}
	return best
}

// parseSMI reads the answer of nvidia-smi: index, uuid, name, capability, driver, memory.
func parseSMI(out string) (gpus []GPU, driver string) {
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		if len(f) < 5 {
			continue
		}
		index, err := strconv.Atoi(f[0])
		if err != nil {
			continue
		}
		g := GPU{Index: index, Vendor: "nvidia", UUID: f[1], Name: f[2]}
		if dottedVersion.FindString(f[3]) == f[3] {
			g.ComputeCapability = f[3] // drivers before 510 say "[N/A]"
		}
		if len(f) > 5 {
			if mib, err := strconv.ParseInt(strings.TrimSuffix(f[5], " MiB"), 10, 64); err == nil {
				g.MemoryBytes = mib << 20
			}
		}
		driver = f[4]
		gpus = append(gpus, g)
	}
	return gpus, driver
}

// procGPUs lists the GPUs of the kernel module, which tells no capability.
func (p *prober) procGPUs() []GPU {
	const dir = "/proc/driver/nvidia/gpus"
	names, err := p.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []GPU
	for i, n := range names {
		g := GPU{Index: i, Vendor: "nvidia"}
		data, err := p.ReadFile(dir + "/" + n + "/information")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
			case "Model":
				g.Name = value
			case "GPU UUID":
				g.UUID = value
			}
		}
		out = append(out, g)
	}
	return out
}

// hide marks the devices that CUDA programs would not see.
func hide(gpus []GPU, h *Host) {
	v, set := h.LookupEnv("CUDA_VISIBLE_DEVICES")
	if !set {
		return
	}
	var visible []string
	for f := range strings.SplitSeq(v, ",") {
		f = strings.TrimSpace(f)
		// The driver stops at the first entry that names no device.
		known := slices.ContainsFunc(gpus, func(g GPU) bool {
			return f == strconv.Itoa(g.Index) || strings.HasPrefix(f, "GPU-") && strings.HasPrefix(g.UUID, f)
		})
		if !known {
			break
		}
		visible = append(visible, f)
	}
	for i, g := range gpus {
		gpus[i].Hidden = !slices.ContainsFunc(visible, func(f string) bool {
			return f == strconv.Itoa(g.Index) || strings.HasPrefix(f, "GPU-") && strings.HasPrefix(g.UUID, f)
		})
	}
}

// amdGPUs reads the topology that AMD's kernel driver shows.
func (p *prober) amdGPUs(index int) []GPU {
	const dir = "/sys/class/kfd/kfd/topology/nodes"
	names, err := p.ReadDir(dir)
	if err != nil {
		return nil
	}
	slices.SortFunc(names, compareVersions) // 10 after 9
	var out []GPU
	for _, n := range names {
		data, err := p.ReadFile(dir + "/" + n + "/properties")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) != 2 || f[0] != "gfx_target_version" {
				continue
			}
			if t := gfxName(f[1]); t != "" {
				out = append(out, GPU{Index: index + len(out), Vendor: "amd", Target: t})
			}
		}
	}
	return out
}

// gfxName turns the decimal MMmmss of the kernel into a target: 110000 is gfx1100,
// 90010 is gfx90a. It is empty for 0, a CPU.
func gfxName(s string) string {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 || n/10000 == 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", n/10000, n/100%100, n%100)
}
