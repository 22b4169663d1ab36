package machine

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// A CUDAToolkit is an installation of nvcc.
type CUDAToolkit struct {
	Home    string `json:"home"`
	NVCC    string `json:"nvcc"`
	Version string `json:"version"` // "12.8"
	Full    string `json:"full"`    // "12.8.93", of nvcc
	Source  string `json:"source"`  // how it was found: "CUDA_HOME", "PATH", …
	// Layout is "toolkit", "distribution" (the parts are all over /usr) or "pypi" (the
	// parts are Python packages).
	Layout  string   `json:"layout"`
	Missing []string `json:"missing,omitempty"` // parts that are not there
	CUDART  string   `json:"cudart,omitempty"`  // the runtime library, where only its versioned name is there
	// Archs is what this nvcc can make code for.
	Archs  string `json:"archs,omitempty"`
	MaxGCC int    `json:"max_gcc,omitempty"` // 0: unknown
	// HostCompiler is the compiler that it would call, if that is known and accepted.
	HostCompiler string `json:"host_compiler,omitempty"`
}

// ArchList is Archs, parsed.
func (t CUDAToolkit) ArchList() compat.ArchList {
	l, _ := compat.ParseArchList(t.Archs) // written by us
	return l
}

var nvccRelease = regexp.MustCompile(`release (\d+\.\d+), V(\d+\.\d+\.\d+)`)

// NVCCRelease reads what nvcc --version prints: the toolkit's release, such as "12.8", and nvcc's
// own version, such as "12.8.93". Both are empty if the text has neither.
func NVCCRelease(text string) (release, full string) {
	if m := nvccRelease.FindStringSubmatch(text); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// cudaFolders are the places in which a toolkit is looked for on Linux besides variables and PATH,
// in the order of precedence. A star stands for a version. Relative ones are in folders of Python
// packages: nvcc from PyPI is in one folder for all parts since CUDA 13, in one of its own before.
var cudaFolders = []struct{ dir, name string }{
	{"/usr/local", "cuda"}, {"/usr/local", "cuda-*"}, {"/opt", "cuda"}, {"nvidia", "cu*"}, {"nvidia", "cuda_nvcc"},
}

// CUDAHomes lists the places of a toolkit of one version, such as "12.8", for a system whose
// folders cannot be listed. Relative ones are in folders of Python packages.
func CUDAHomes(version string) []string {
	major, _, _ := strings.Cut(version, ".")
	var homes []string
	for _, f := range cudaFolders {
		prefix, _, versioned := strings.Cut(f.name, "*")
		homes = append(homes, f.dir+"/"+prefix)
		if versioned {
			homes[len(homes)-1] += version
			homes = append(homes, f.dir+"/"+prefix+major)
		}
	}
	return homes
}

// cudaCandidate is a place where a toolkit may be.
type cudaCandidate struct{ home, source string }

// cudaPlaces lists the places in the order of precedence.
func (p *prober) cudaPlaces() []cudaCandidate {
	var out []cudaCandidate
	add := func(home, source string) {
		home = strings.TrimRight(p.Abs(home), `/\`)
		if home != "" && !slices.ContainsFunc(out, func(c cudaCandidate) bool { return c.home == home }) {
			out = append(out, cudaCandidate{home, source})
		}
	}
	add(p.opts.CUDAHome, "option")
	add(p.Getenv("CUDA_HOME"), "CUDA_HOME")
	add(p.Getenv("CUDA_PATH"), "CUDA_PATH")
	if nvcc, ok := p.LookPath("nvcc"); ok {
		add(parent(parent(nvcc)), "PATH")
	}
	if prefix := p.Getenv("CONDA_PREFIX"); prefix != "" {
		if p.OS == "windows" {
			prefix = p.path(prefix, "Library")
		}
		add(prefix, "CONDA_PREFIX")
	}
	if p.OS == "windows" {
		type versioned struct {
			name, home string
		}
		var list []versioned
		for _, e := range p.Env {
			name, value, _ := strings.Cut(e, "=")
			if v, ok := strings.CutPrefix(strings.ToUpper(name), "CUDA_PATH_V"); ok {
				list = append(list, versioned{strings.ReplaceAll(v, "_", "."), value})
			}
		}
		slices.SortFunc(list, func(a, b versioned) int { return compareVersions(b.name, a.name) })
		for _, v := range list {
			add(v.home, "CUDA_PATH_V"+strings.ReplaceAll(v.name, ".", "_"))
		}
		base := p.path(p.Getenv("ProgramFiles"), "NVIDIA GPU Computing Toolkit", "CUDA")
		for _, v := range p.versionedDirs(base, "v") {
			add(p.path(base, v), base)
		}
	}
	for _, f := range cudaFolders {
		bases, source := p.m.Python.SitePackages, "site-packages"
		if strings.HasPrefix(f.dir, "/") {
			if p.OS == "windows" {
				continue
			}
			bases, source = []string{""}, f.dir
		}
		prefix, _, versioned := strings.Cut(f.name, "*")
		for _, base := range bases {
			dir := f.dir
			if base != "" {
				dir = p.path(base, f.dir)
			}
			names := []string{f.name}
			if versioned {
				names = p.versionedDirs(dir, prefix)
			} else if base == "" {
				source = f.dir + "/" + f.name
			}
			for _, name := range names {
				add(p.path(dir, name), source)
			}
		}
	}
	return out
}

// versionedDirs are the names in a folder that are a prefix and a version, newest first.
func (p *prober) versionedDirs(dir, prefix string) []string {
	names, err := p.ReadDir(dir)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		v, ok := strings.CutPrefix(n, prefix)
		return !ok || v == "" || strings.Trim(v, "0123456789.") != ""
	})
	slices.SortFunc(names, func(a, b string) int {
		return compareVersions(strings.TrimPrefix(b, prefix), strings.TrimPrefix(a, prefix))
	})
	return names
}

// compareVersions compares dotted numbers: 12.10 is above 12.9, which is not the order
// of their names.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var n, m int
		if i < len(x) {
			n, _ = strconv.Atoi(x[i]) // not a number: 0
		}
		if i < len(y) {
			m, _ = strconv.Atoi(y[i])
		}
		if n != m {
			return n - m
		}
	}
	return strings.Compare(a, b)
}

// cuda looks for CUDA toolkits.
func (p *prober) cuda(ctx context.Context) Result {
	r := Result{ID: "nvcc", Status: Missing}
	for _, c := range p.cudaPlaces() {
		r.Looked = append(r.Looked, c.home)
		nvcc := p.path(c.home, "bin", p.exe("nvcc"))
		if !p.isFile(nvcc) {
			if c.source == "option" || strings.HasPrefix(c.source, "CUDA_") && c.source != "CUDA_PATH" {
				if r.Detail == "" {
					r.Detail = c.source + " is " + c.home + ", which has no bin/nvcc"
				}
			}
			continue
		}
		out, err := p.run(ctx, p.opts.Timeout, nvcc, "--version")
		release, full := NVCCRelease(string(out))
		if release == "" {
			if r.Status == Missing {
				r.Status, r.Path, r.Detail = Broken, nvcc, "nvcc --version does not work: "+firstLine(out, err)
			}
			continue
		}
		// cuda-12 and cuda-12.8 are usually links to the same.
		if c.source == "/usr/local" && slices.ContainsFunc(p.m.CUDA, func(o CUDAToolkit) bool { return o.Full == full }) {
			continue
		}
		t := CUDAToolkit{Home: c.home, NVCC: nvcc, Version: release, Full: full, Source: c.source, Layout: "toolkit"}
		switch {
		case p.isFile("/usr/lib/nvidia-cuda-toolkit/bin/nvcc") && c.home == "/usr":
			t.Layout = "distribution"
		case c.source == "site-packages":
			t.Layout = "pypi"
		}
		t.Missing, t.CUDART = p.cudaParts(t)
		t.Archs = p.cudaArchs(ctx, t)
		t.MaxGCC = p.maxGCC(t)
		p.m.CUDA = append(p.m.CUDA, t)
	}
	if len(p.m.CUDA) == 0 {
		return r
	}
	t := p.m.CUDA[0]
	r.Status, r.Path, r.Value = OK, t.NVCC, t.Version
	if len(t.Missing) > 0 {
		r.Status = Broken
		r.Detail = sentences(r.Detail, "it lacks "+join(t.Missing))
	}
	return r
}

// includes are the folders in which a toolkit may have its headers.
func (p *prober) includes(t CUDAToolkit) []string {
	target := map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[p.Arch]
	return []string{p.path(t.Home, "include"), p.path(t.Home, "targets", target, "include"), p.path(parent(t.Home), "cuda_runtime", "include")}
}

// cudaParts lists what a toolkit lacks of what a build needs, and the runtime library
// that is there under its versioned name.
func (p *prober) cudaParts(t CUDAToolkit) (missing []string, cudart string) {
	bins := []string{p.path(t.Home, "bin"), p.path(t.Home, "nvvm", "bin")}
	target := map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[p.Arch]
	gnu := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[p.Arch]
	libs := []string{p.path(t.Home, "lib64"), p.path(t.Home, "lib"), p.path(t.Home, "targets", target, "lib"), p.path(t.Home, "lib", gnu), p.path(parent(t.Home), "cuda_runtime", "lib")}
	if t.Layout == "distribution" {
		bins = append(bins, "/usr/lib/nvidia-cuda-toolkit/bin", "/usr/lib/nvidia-cuda-toolkit/nvvm/bin")
	}
	for _, tool := range []string{"ptxas", "cudafe++", "fatbinary", "cicc"} {
		if !slices.ContainsFunc(bins, func(d string) bool { return p.isFile(p.path(d, p.exe(tool))) }) {
			missing = append(missing, tool)
		}
	}
	if !slices.ContainsFunc(p.includes(t), func(d string) bool { return p.isFile(p.path(d, "cuda_runtime.h")) }) {
		missing = append(missing, "cuda_runtime.h")
	}
	cudart, inPyPI := "libcudart.so", ""
	if p.OS == "windows" {
		libs, cudart = []string{p.path(t.Home, "lib", "x64")}, "cudart.lib"
	}
	if !slices.ContainsFunc(libs, func(d string) bool {
		// Packages from PyPI have the library, but not under the name that -lcudart wants.
		if f := p.path(d, "libcudart.so."+strconv.Itoa(number(t.Version))); p.isFile(f) {
			inPyPI = f
		}
		return p.isFile(p.path(d, cudart))
	}) {
		return append(missing, cudart), inPyPI
	}
	return missing, ""
}

// cudaArchs is what nvcc says it can make, with the suffixed targets, which it does not
// list, from the table.
func (p *prober) cudaArchs(ctx context.Context, t CUDAToolkit) string {
	table, known := p.opts.Table.Emits(t.Version)
	out, err := p.run(ctx, p.opts.Timeout, t.NVCC, "--list-gpu-code")
	var plain []string
	if err == nil {
		for f := range strings.FieldsSeq(string(out)) {
			if sm, ok := strings.CutPrefix(f, "sm_"); ok {
				plain = append(plain, sm)
			}
		}
	}
	list, err := compat.ParseArchList(strings.Join(plain, " "))
	if err != nil || list.Empty() {
		if !known {
			return ""
		}
		return table.String()
	}
	all := list.String()
	for _, a := range table.Items() {
		if a.Suffix != "" && list.Has(compat.Arch{Major: a.Major, Minor: a.Minor}) {
			all += " " + a.Target()
		}
	}
	if l, err := compat.ParseArchList(all); err == nil {
		all = l.String()
	}
	return all
}

var gnucLimit = regexp.MustCompile(`__GNUC__\s*>\s*(\d+)`)

// maxGCC is the newest gcc that nvcc's own headers accept.
func (p *prober) maxGCC(t CUDAToolkit) int {
	for _, dir := range p.includes(t) {
		data, err := p.ReadFile(p.path(dir, "crt", "host_config.h"))
		if err != nil {
			continue
		}
		if m := gnucLimit.FindStringSubmatch(string(data)); m != nil {
			return number(m[1])
		}
	}
	if h, ok := p.opts.Table.HostCompilers(t.Version); ok {
		return h.GCC[1]
	}
	return 0
}
