package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/internal/memory"
)

// system reads what the distribution says about itself.
func (p *prober) system() {
	if p.OS == "linux" {
		for _, f := range []string{"/etc/os-release", "/usr/lib/os-release"} {
			if data, err := p.ReadFile(f); err == nil {
				r := parseOSRelease(string(data))
				p.m.Distribution = strings.TrimSpace(r["ID"] + " " + r["ID_LIKE"])
				p.m.Release, p.m.SystemName = r["VERSION_ID"], r["PRETTY_NAME"]
				return
			}
		}
	}
}

// parseOSRelease reads os-release(5): shell assignments, perhaps quoted.
func parseOSRelease(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
			for _, c := range []string{`\`, `"`, "$", "`"} {
				value = strings.ReplaceAll(value, `\`+c, c)
			}
		}
		out[name] = value
	}
	return out
}

// machine looks at processors, memory and disks.
func (p *prober) machine(ctx context.Context) Result {
	r := Result{ID: "machine", Status: OK}
	if p.OS == "linux" {
		if data, err := p.ReadFile("/proc/cpuinfo"); err == nil {
			p.m.CPUs = strings.Count("\n"+string(data), "\nprocessor")
		}
		if data, err := p.ReadFile("/sys/fs/cgroup/cpu.max"); err == nil {
			f := strings.Fields(string(data))
			if len(f) == 2 {
				quota, err1 := strconv.ParseFloat(f[0], 64)
				period, err2 := strconv.ParseFloat(f[1], 64)
				if err1 == nil && err2 == nil && period > 0 {
					p.m.CPUQuota = quota / period
					p.m.CPUs = min(p.m.CPUs, max(1, int(p.m.CPUQuota)))
				}
			}
		}
		if m, err := memory.ReadLinux(p.ReadFile); err == nil {
			p.m.MemoryBytes = m.AvailableBytes
		}
		if data, err := p.ReadFile("/proc/mounts"); err == nil {
			mounts := parseMounts(string(data))
			_, options := mountOf(mounts, p.opts.TempDir)
			p.m.TempNoExec = p.opts.TempDir != "" && hasOption(options, "noexec")
			kind, options := mountOf(mounts, p.opts.WorkDir)
			p.m.WorkNoExec = p.opts.WorkDir != "" && hasOption(options, "noexec")
			switch kind {
			case "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "9p", "fuse.sshfs":
				p.m.NetworkFileSystem = kind
			}
		}
		p.libc(ctx)
	}
	p.cache()
	if p.opts.WorkDir != "" && p.FreeSpace != nil {
		if n, err := p.FreeSpace(p.opts.WorkDir); err == nil {
			p.m.FreeDiskBytes = n
		}
	}
	return r
}

var (
	lddGLIBC = regexp.MustCompile(`(?i)(?:glibc|gnu libc|gnu c library)[^\n]*?(\d+\.\d+)`)
	lddMusl  = regexp.MustCompile(`musl libc[\s\S]*?Version (\d+\.\d+)`)
)

// libc finds the version of the C library.
func (p *prober) libc(ctx context.Context) {
	if out, err := p.run(ctx, p.opts.Timeout, "getconf", "GNU_LIBC_VERSION"); err == nil {
		if v, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "glibc "); ok {
			p.m.GLIBC = v
			return
		}
	}
	out, _ := p.run(ctx, p.opts.Timeout, "ldd", "--version") // musl's answers and fails
	if m := lddGLIBC.FindSubmatch(out); m != nil {
		p.m.GLIBC = string(m[1])
	} else if m := lddMusl.FindSubmatch(out); m != nil {
		p.m.Musl = string(m[1])
	}
}

// cache looks at the folder for compiled modules, and for another one.
func (p *prober) cache() {
	for i, dir := range p.opts.CacheDirs {
		free := int64(-1)
		if p.FreeSpace != nil {
			if n, err := p.FreeSpace(dir); err == nil {
				free = n
			}
		}
		noExec := p.NoExec(dir)
		if i == 0 {
			p.m.CacheDir, p.m.CacheNoExec, p.m.CacheFreeBytes = dir, noExec, free
		} else if !noExec && (free < 0 || free > minBuildDisk) && dir != p.m.CacheDir {
			p.m.CacheOther = dir
			return
		}
	}
}

type mount struct{ dir, kind, options string }

// parseMounts reads /proc/mounts.
func parseMounts(text string) []mount {
	var out []mount
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) >= 4 {
			out = append(out, mount{strings.ReplaceAll(f[1], `\040`, " "), f[2], f[3]})
		}
	}
	return out
}

// mountOf finds the mount that a path lies on.
func mountOf(mounts []mount, name string) (kind, options string) {
	best := -1
	name = path.Clean(name)
	for _, m := range mounts {
		dir := strings.TrimSuffix(m.dir, "/")
		if (name == dir || strings.HasPrefix(name, dir+"/")) && len(dir) >= best {
			best, kind, options = len(dir), m.kind, m.options
		}
	}
	return kind, options
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// Python is an interpreter.
type Python struct {
	Path         string   `json:"path,omitempty"`
	Version      string   `json:"version,omitempty"` // "3.12.4"
	SOABI        string   `json:"soabi,omitempty"`
	ExtSuffix    string   `json:"ext_suffix,omitempty"`
	FreeThreaded bool     `json:"free_threaded,omitempty"`
	Include      string   `json:"include,omitempty"`
	Headers      bool     `json:"headers"` // Python.h is there
	Prefix       string   `json:"prefix,omitempty"`
	BasePrefix   string   `json:"base_prefix,omitempty"` // differs from Prefix in a virtual environment
	Scripts      string   `json:"scripts,omitempty"`
	SitePackages []string `json:"site_packages,omitempty"`
}

// Minor is the version as rows name it: "3.12", "3.13t".
func (p Python) Minor() string {
	if p.Version == "" {
		return ""
	}
	f := strings.SplitN(p.Version, ".", 3)
	if len(f) < 2 {
		return p.Version
	}
	v := f[0] + "." + f[1]
	if p.FreeThreaded {
		v += "t"
	}
	return v
}

// pythonScript asks an interpreter about itself. It imports only the standard library, and not
// from the working folder. The folders of packages are in the order of sys.path, so that of two
// torches the one is found that Python would import.
const pythonScript = `import sys
sys.path = [p for p in sys.path if p]
import json, os, platform, sysconfig
paths = sysconfig.get_paths()
own = {paths["stdlib"], paths["platstdlib"], os.path.join(paths["platstdlib"], "lib-dynload")}
sites = [p for p in sys.path if p not in own and not p.endswith((".zip", "lib-dynload", "DLLs"))]
sites += [paths["platlib"], paths["purelib"]]
try:
    import site
    sites += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        sites.append(site.getusersitepackages())
except Exception:
    pass
try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
except Exception:
    glibc = ""
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3], "soabi": sysconfig.get_config_var("SOABI") or "",
    "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX") or "", "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "include": paths["include"], "prefix": sys.prefix, "base_prefix": sys.base_prefix, "scripts": paths["scripts"],
    "site_packages": sites, "glibc": glibc, "macos": platform.mac_ver()[0]}))
`

// python finds an interpreter and asks it.
func (p *prober) python(ctx context.Context) Result {
	r := Result{ID: "python", Status: Missing}
	var candidates []string
	bin := "bin/python"
	if p.OS == "windows" {
		bin = "Scripts/python.exe"
	}
	if p.opts.Python != "" {
		candidates = append(candidates, p.opts.Python)
	} else {
		if v := p.Getenv("VIRTUAL_ENV"); v != "" {
			candidates = append(candidates, p.path(v, bin))
		}
		if v := p.Getenv("CONDA_PREFIX"); v != "" {
			if p.OS == "windows" {
				candidates = append(candidates, p.path(v, "python.exe"))
			} else {
				candidates = append(candidates, p.path(v, "bin/python"))
			}
		}
		candidates = append(candidates, "python3", "python")
	}
	for _, c := range candidates {
		r.Looked = append(r.Looked, c)
		file, ok := p.LookPath(c)
		if !ok {
			continue
		}
		out, err := p.runInput(ctx, p.opts.Timeout, pythonScript, file, "-")
		if err != nil {
			r.Status, r.Path, r.Detail = Broken, file, firstLine(out, err)
			continue
		}
		answer, err := parsePython(out)
		if err != nil {
			r.Status, r.Path, r.Detail = Broken, file, "it does not answer: "+err.Error()
			continue
		}
		py := answer.Python
		py.Path = file
		var sites []string
		for _, dir := range py.SitePackages {
			if !slices.Contains(sites, dir) {
				sites = append(sites, dir)
			}
		}
		py.SitePackages = sites
		py.Headers = p.isFile(p.path(py.Include, "Python.h"))
		p.m.Python, p.m.MacOS, p.pythonGLIBC = py, answer.MacOS, answer.GLIBC
		r.Status, r.Path, r.Value, r.Detail = OK, file, py.Version, ""
		return r
	}
	return r
}

// pythonHeaders says whether extensions can be compiled for the interpreter.
func (p *prober) pythonHeaders() Result {
	r := Result{ID: "python-headers", Status: Skipped}
	if py := p.m.Python; py.Version != "" {
		r.Status, r.Path, r.Looked = OK, py.Include, []string{py.Include}
		if !py.Headers {
			r.Status, r.Path = Missing, ""
		}
	}
	return r
}

// pythonAnswer is what pythonScript prints.
type pythonAnswer struct {
	Python
	GLIBC string `json:"glibc"`
	MacOS string `json:"macos"`
}

// parsePython reads what pythonScript printed; a sitecustomize may have printed
// something before.
func parsePython(out []byte) (pythonAnswer, error) {
	text := strings.TrimSpace(string(out))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	var answer pythonAnswer
	err := json.Unmarshal([]byte(text), &answer)
	return answer, err
}

// firstLine is the first line that a program wrote, or its error.
func firstLine(out []byte, err error) string {
	if errors.Is(err, errTooSlow) {
		return err.Error()
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			return shorten([]string{line})[0]
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// Torch is an installed torch, as its files say.
type Torch struct {
	Dir      string   `json:"dir,omitempty"`
	Version  string   `json:"version,omitempty"`   // with its local part: "2.11.0+cu130"
	CUDA     string   `json:"cuda,omitempty"`      // "13.0"; empty for builds without
	HIP      string   `json:"hip,omitempty"`       // "6.2.41133"; empty for builds without
	Git      string   `json:"git,omitempty"`       // revision
	CXX11ABI string   `json:"cxx11_abi,omitempty"` // "0" or "1"; empty if unknown
	Missing  []string `json:"missing,omitempty"`   // libraries that should be there
}

// Public is the version without its local part.
func (t Torch) Public() string {
	v, _, _ := strings.Cut(t.Version, "+")
	return v
}

// LibraryName is the file name of a shared library: libc10.so for c10. os is that of Go.
func LibraryName(os, name string) string {
	switch os {
	case "windows":
		return name + ".dll"
	case "darwin":
		return "lib" + name + ".dylib"
	}
	return "lib" + name + ".so"
}

// packaged reports whether a distribution built it. Its libraries are then in the system folders.
func (t Torch) packaged() bool {
	return strings.HasSuffix(t.Version, "+debian") || strings.HasPrefix(t.Dir, "/usr/lib/python3/dist-packages/")
}

// systemLibrary looks for a library among those of the system, with or without its version.
func (p *prober) systemLibrary(name string) bool {
	gnu := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[p.Arch]
	for _, dir := range []string{"/usr/lib/" + gnu, "/usr/lib64", "/usr/lib"} {
		names, err := p.ReadDir(dir)
		if err == nil && slices.ContainsFunc(names, func(n string) bool { return n == name || strings.HasPrefix(n, name+".") }) {
			return true
		}
	}
	return false
}

var torchField = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(__version__|cuda|hip|rocm|git_version|debug)(?:\s*:\s*[^=\n]+)?\s*=\s*(?:'([^']*)'|"([^"]*)"|(None|True|False))`)
})

// parseTorchVersion reads torch/version.py as text.
func parseTorchVersion(text string) Torch {
	var t Torch
	for _, m := range torchField().FindAllStringSubmatch(text, -1) {
		v := m[2] + m[3]
		switch m[1] {
		case "__version__":
			t.Version = v
		case "cuda":
			t.CUDA = v
		case "hip":
			t.HIP = v
		case "git_version":
			t.Git = v
		}
	}
	return t
}

// torch reads the files of an installed torch. Importing it takes seconds, and can fail
// for reasons that have nothing to do with building.
func (p *prober) torch() Result {
	r := Result{ID: "torch", Status: Missing}
	for _, dir := range p.m.Python.SitePackages {
		home := p.path(dir, "torch")
		r.Looked = append(r.Looked, home)
		data, err := p.ReadFile(p.path(home, "version.py"))
		if err != nil {
			continue
		}
		t := parseTorchVersion(string(data))
		if t.Version == "" {
			r.Status, r.Path, r.Detail = Broken, home, "version.py has no __version__"
			return r
		}
		t.Dir = home
		libs := []string{"c10", "torch_cpu", "torch_python"}
		if t.CUDA != "" {
			libs = append(libs, "c10_cuda", "torch_cuda")
		}
		if t.HIP != "" {
			libs = append(libs, "c10_hip", "torch_hip")
		}
		for _, name := range libs {
			l := LibraryName(p.OS, name)
			if !p.isFile(p.path(home, "lib", l)) && !(t.packaged() && p.systemLibrary(l)) {
				t.Missing = append(t.Missing, l)
			}
		}
		if p.OS == "linux" {
			if data, err := p.ReadFile(p.path(home, "lib", "libc10.so")); err == nil {
				t.CXX11ABI = symbolABI(data)
			}
		}
		p.m.Torch = t
		r.Status, r.Path, r.Value = OK, home, t.Version
		if len(t.Missing) > 0 {
			r.Status, r.Detail = Broken, "missing "+join(t.Missing)
		}
		return r
	}
	return r
}
