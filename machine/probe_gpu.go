package machine

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

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

// Where the kernel's drivers say what they have.
const (
	nvidiaVersion = "/proc/driver/nvidia/version"
	nvidiaGPUs    = "/proc/driver/nvidia/gpus"
	amdNodes      = "/sys/class/kfd/kfd/topology/nodes"
)

// HasGPU reports whether programs can use an NVIDIA or AMD GPU: whether a driver has made its
// device file. No program is run.
func (h *Host) HasGPU() bool {
	return slices.ContainsFunc([]string{"/dev/nvidia0", "/dev/kfd"}, func(device string) bool {
		_, err := h.Stat(device)
		return err == nil
	})
}

// KernelGPUs is what the kernel says of GPUs and of NVIDIA's driver: another text means other GPUs
// or another driver. No program is run.
func (h *Host) KernelGPUs() string {
	var parts []string
	for _, dir := range []string{nvidiaGPUs, amdNodes} {
		if names, err := h.ReadDir(dir); err == nil {
			parts = append(parts, names...)
		}
	}
	if text, err := h.ReadFile(nvidiaVersion); err == nil {
		parts = append(parts, string(text))
	}
	return strings.Join(parts, "\n")
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
	if p.OS == "linux" {
		if data, err := p.ReadFile(nvidiaVersion); err == nil {
			r.Looked = append(r.Looked, nvidiaVersion)
			if m := nvrm.FindStringSubmatch(string(data)); m != nil {
				d.Version, d.Source = m[1], nvidiaVersion
			}
		}
		d.Library = p.cudaLibrary()
	}
	var fault string
	if smi, ok := p.findSMI(); ok {
		r.Looked, r.Path = append(r.Looked, smi), smi
		fault = p.askSMI(ctx, smi)
	}
	if len(p.m.GPUs) == 0 && p.OS == "linux" {
		p.m.GPUs = append(p.m.GPUs, p.procGPUs()...)
	}
	hide(p.m.GPUs, p.Host)
	if d.Version != "none" && d.CUDA == "" {
		d.CUDA = DriverCUDA(p.opts.Table, d.Version, p.OS)
	}
	if p.OS == "linux" {
		p.m.GPUs = append(p.m.GPUs, p.amdGPUs(len(p.m.GPUs))...)
	}
	switch {
	case fault != "":
		r.Status, r.Detail = Broken, fault
		return r
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
	r.Path = ""
	return r
}

// cudaLibrary looks for the driver's library where a system has it.
func (p *prober) cudaLibrary() bool {
	gnu := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[p.Arch]
	for _, dir := range []string{"/usr/lib/" + gnu, "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib"} {
		if p.isFile(dir + "/libcuda.so.1") {
			return true
		}
	}
	return false
}

// findSMI looks for nvidia-smi on PATH, and where WSL and Windows have it.
func (p *prober) findSMI() (string, bool) {
	if smi, ok := p.LookPath("nvidia-smi"); ok {
		return smi, true
	}
	for _, f := range []string{"/usr/lib/wsl/lib/nvidia-smi", p.path(p.Getenv("SystemRoot"), "System32", "nvidia-smi.exe")} {
		if p.isFile(f) {
			return f, true
		}
	}
	return "", false
}

// askSMI asks nvidia-smi for devices and driver, and says what is wrong if it does not answer.
func (p *prober) askSMI(ctx context.Context, smi string) (fault string) {
	d := &p.m.Driver
	out, err := p.run(ctx, p.opts.Timeout, smi, "--query-gpu=index,uuid,name,compute_cap,driver_version,memory.total", "--format=csv,noheader")
	if err != nil {
		return firstLine(out, err)
	}
	gpus, version := parseSMI(string(out))
	p.m.GPUs = append(p.m.GPUs, gpus...)
	if version == "" {
		return ""
	}
	d.Version, d.Source, d.Library = version, "nvidia-smi", true
	// Without arguments it prints the newest CUDA that the driver itself says it has.
	if out, err := p.run(ctx, p.opts.Timeout, smi); err == nil {
		if m := smiCUDA.FindSubmatch(out); m != nil {
			d.CUDA = string(m[1])
		}
	}
	return ""
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
		if ok && need != "" && compareVersions(driver, sameLength(need, driver)) >= 0 {
			best = series
		}
	}
	return best
}

// sameLength cuts a version to as many parts as like has: who says 580.65 means 580.65.06 as well.
func sameLength(version, like string) string {
	parts := strings.Split(version, ".")
	return strings.Join(parts[:min(len(parts), 1+strings.Count(like, "."))], ".")
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
	names, err := p.ReadDir(nvidiaGPUs)
	if err != nil {
		return nil
	}
	var out []GPU
	for i, n := range names {
		g := GPU{Index: i, Vendor: "nvidia"}
		data, err := p.ReadFile(nvidiaGPUs + "/" + n + "/information")
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
	names, err := p.ReadDir(amdNodes)
	if err != nil {
		return nil
	}
	slices.SortFunc(names, compareVersions) // 10 after 9
	var out []GPU
	for _, n := range names {
		data, err := p.ReadFile(amdNodes + "/" + n + "/properties")
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
