package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/units"
)

// ReportFormat is the value of "format" in a [Report] written as JSON.
const ReportFormat = "kiln-doctor/1"

// A Report says what a machine can do, and what is wrong with it.
type Report struct {
	Format    string     `json:"format"`
	Abilities []Ability  `json:"abilities"`
	Problems  []Problem  `json:"problems"`
	Archs     ArchReport `json:"archs"`
	Machine   *Machine   `json:"machine"`
}

// The abilities, as they stand in [Ability.ID].
const (
	BuildCPP        = "build-c++"        // compile C++ extensions for the Python found
	BuildCUDA       = "build-cuda"       // compile CUDA extensions
	BuildROCm       = "build-rocm"       // compile HIP extensions
	BuildContainers = "build-containers" // build in containers, where the toolkit comes from an image
	CompileAtImport = "compile-at-import"
	RunCUDA         = "run-cuda"
	RunROCm         = "run-rocm"
)

// An Ability is one thing that a machine can do or not.
type Ability struct {
	ID     string `json:"id"`
	Title  string `json:"title"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"` // with what, or what is missing
}

// A Problem is something that is wrong, or missing.
type Problem struct {
	ID       string          `json:"id"` // that of the diagnosis it would become, where there is one
	Severity compat.Severity `json:"severity"`
	Message  string          `json:"message"`
	Fix      string          `json:"fix"` // commands, or what to do; several ways are lines
}

// ArchReport is for which GPUs a build on this machine would compile.
type ArchReport struct {
	List     string   `json:"list,omitempty"`
	Source   string   `json:"source,omitempty"`
	Flags    []string `json:"flags,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// HasErrors says whether something is wrong, as opposed to missing.
func (r *Report) HasErrors() bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Severity == compat.Error })
}

// Can says whether the machine has an ability.
func (r *Report) Can(id string) bool {
	return slices.ContainsFunc(r.Abilities, func(a Ability) bool { return a.ID == id && a.OK })
}

// Examine judges what [Probe] found. It is a pure function of the machine and the table,
// which may be nil for the default one. What is there and cannot work is an error, what
// is missing a warning.
func Examine(m *Machine, table *compat.Table) *Report {
	if table == nil {
		table = compat.Default()
	}
	x := &examiner{m: m, table: table, r: &Report{Format: ReportFormat, Machine: m, Problems: []Problem{}}}
	x.compilers()
	x.python()
	x.toolkit()
	x.torchFit()
	x.devices()
	x.containers()
	x.disks()
	x.archs()
	x.abilities()
	slices.SortStableFunc(x.r.Problems, func(a, b Problem) int { return int(b.Severity - a.Severity) })
	return x.r
}

type examiner struct {
	m     *Machine
	table *compat.Table
	r     *Report
}

func (x *examiner) add(severity compat.Severity, id, fix, format string, args ...any) {
	x.r.Problems = append(x.r.Problems, Problem{ID: id, Severity: severity, Message: fmt.Sprintf(format, args...), Fix: fix})
}

func (x *examiner) install(tool string) string {
	cuda := x.m.Torch.CUDA
	return InstallCommand(tool, x.m.OS, x.m.Distribution, x.m.Python.Minor(), cuda, x.m.Root)
}

// sudo stands before commands that change the system.
func (x *examiner) sudo() string {
	if x.m.Root {
		return ""
	}
	return "sudo "
}

// installNVCC is how to get a toolkit: for torch's CUDA, else for the driver's.
func (x *examiner) installNVCC() string {
	cuda := cmp.Or(x.m.Torch.CUDA, x.m.Driver.CUDA)
	if x.m.Torch.packaged() && family(x.m.OS, x.m.Distribution) == "debian" {
		// The distribution's torch was built with the distribution's toolkit.
		return x.sudo() + "apt-get install -y nvidia-cuda-toolkit"
	}
	install := InstallCommand("nvcc", x.m.OS, x.m.Distribution, "", cuda, x.m.Root)
	id, _, _ := strings.Cut(x.m.Distribution, " ")
	cpu := map[string]string{"amd64": "x86_64", "arm64": "sbsa"}[x.m.Arch]
	const repos = "https://developer.download.nvidia.com/compute/cuda/repos/"
	switch fam := family(x.m.OS, x.m.Distribution); {
	case (id == "ubuntu" || id == "debian") && x.m.Release != "" && cpu != "":
		repo := repos + id + strings.ReplaceAll(x.m.Release, ".", "") + "/" + cpu + "/cuda-keyring_1.1-1_all.deb"
		return "curl -fLO " + repo + " && " + x.sudo() + "dpkg -i cuda-keyring_1.1-1_all.deb && " + x.sudo() + "apt-get update && " + install
	case fam == "fedora" && x.m.Release != "" && cpu != "":
		name := "rhel" + compat.Minor(x.m.Release)
		name, _, _ = strings.Cut(name, ".")
		if id == "fedora" {
			name = "fedora" + x.m.Release
		}
		return x.sudo() + "dnf config-manager --add-repo " + repos + name + "/" + cpu + "/cuda-" + name + ".repo && " + install
	case fam == "debian" || fam == "fedora" || fam == "suse" || fam == "":
		return install + " (NVIDIA's repository has to be added first)"
	}
	return install
}

func (x *examiner) compilers() {
	if x.m.OS == "windows" {
		switch r := x.m.Result("cl"); r.Status {
		case Missing:
			x.add(compat.Warning, "no-msvc", x.install("c++"), "no Visual C++ compiler was found")
		case OK:
			if r.Detail != "" {
				x.add(compat.Warning, "sdk-variable", "set DISTUTILS_USE_SDK=1", "%s", r.Detail)
			}
		default:
			x.add(compat.Error, "no-msvc", "open the x64 Native Tools shell, or run vcvarsall.bat x64", "%s: %s", r.Path, r.Detail)
		}
		return
	}
	switch r := x.m.Result("c++"); r.Status {
	case Missing:
		x.add(compat.Warning, "no-compiler", x.install("c++"), "no C++ compiler is on PATH")
	case Broken:
		x.add(compat.Error, "no-compiler", x.install("c++"), "the C++ compiler %s does not work: %s", r.Path, r.Detail)
	case Unsupported:
		x.add(compat.Error, "cxx-standard", x.install("c++"), "the C++ compiler %s (%s) is too old: %s", r.Path, r.Value, r.Detail)
	}
	if len(x.m.Compilers) > 0 && x.m.Torch.Version != "" {
		c := x.m.Compilers[0]
		if std, ok := x.table.CXXStandard(x.m.Torch.Public()); ok && c.Kind == "gcc" {
			if need := map[int]int{17: 9, 20: 11}[std]; c.Major < need {
				x.add(compat.Warning, "cxx-standard", "install g++ "+fmt.Sprint(need)+" or newer, and set CXX to it", "torch %s needs C++%d, which gcc %d knows fully; this is %s", x.m.Torch.Version, std, need, c.Version)
			}
		}
	}
	switch r := x.m.Result("ninja"); r.Status {
	case Missing:
		x.add(compat.Warning, "ninja-missing", ways("python3 -m pip install ninja", "or "+x.install("ninja")), "ninja is missing: PyTorch's builder compiles one file at a time without it, and nothing at import")
	case Unsupported, Broken:
		fix := "python3 -m pip install --upgrade ninja"
		if x.m.Ninja.Path != "" && !x.m.Ninja.OnPath {
			fix = `export PATH="` + parent(x.m.Ninja.Path) + `:$PATH"`
		}
		x.add(compat.Warning, "ninja-missing", fix, "ninja at %s: %s", r.Path, r.Detail)
	}
}

func (x *examiner) python() {
	switch r := x.m.Result("python"); r.Status {
	case Missing:
		x.add(compat.Warning, "no-python", x.install("python-venv"), "no Python was found")
		return
	case Broken:
		x.add(compat.Error, "no-python", "install Python again, or name another interpreter with --python", "%s does not work: %s", r.Path, r.Detail)
		return
	}
	if !x.m.Python.Headers {
		fix := x.install("python-headers")
		if x.m.OS == "linux" && !strings.HasPrefix(x.m.Python.Include, "/usr/include/") {
			fix = ways("this Python does not come from the system: install it again with its headers, or use the system's: --python /usr/bin/python3", "for that one: "+fix)
		}
		x.add(compat.Warning, "python-headers", fix, "Python %s has no headers: %s/Python.h is missing", x.m.Python.Version, x.m.Python.Include)
	}
	if r := x.m.Result("torch"); r.Status == Broken {
		x.add(compat.Error, "damaged-module", "python3 -m pip install --force-reinstall torch", "torch at %s is not complete: %s", r.Path, r.Detail)
	}
}

func (x *examiner) toolkit() {
	r := x.m.Result("nvcc")
	wanted := x.m.Torch.CUDA != "" || slices.ContainsFunc(x.m.GPUs, func(g GPU) bool { return g.Vendor == "nvidia" })
	switch r.Status {
	case Missing:
		severity := compat.Note
		if wanted {
			severity = compat.Warning
		}
		if r.Detail != "" {
			x.add(compat.Error, "no-nvcc", ways("unset CUDA_HOME, or set it to a folder that has bin/nvcc", x.installNVCC()), "%s", r.Detail)
			return
		}
		x.add(severity, "no-nvcc", ways(x.installNVCC(), "or build in a container whose image has the toolkit"), "no CUDA toolkit was found; CUDA extensions can't be compiled here")
		return
	case Broken:
		fix := x.installNVCC()
		if t, ok := x.m.Toolkit(); ok && t.CUDART != "" && slices.Equal(t.Missing, []string{"libcudart.so"}) {
			fix = "ln -s " + t.CUDART[strings.LastIndexByte(t.CUDART, '/')+1:] + " " + parent(t.CUDART) + "/libcudart.so"
			x.add(compat.Warning, "link-lib", fix, "the CUDA toolkit at %s has no libcudart.so to link with, only %s", t.Home, t.CUDART)
			break
		}
		x.add(compat.Error, "no-nvcc", fix, "the CUDA toolkit at %s: %s", r.Path, r.Detail)
	}
	t, ok := x.m.Toolkit()
	if !ok {
		return
	}
	if t.Layout == "pypi" {
		x.add(compat.Note, "no-nvcc", "export CUDA_HOME="+t.Home, "nvcc %s is installed as a Python package: kiln jit uses it, PyTorch's builder finds it only through CUDA_HOME", t.Version)
	}
	if len(x.m.CUDA) > 1 {
		var others []string
		for _, o := range x.m.CUDA[1:] {
			if o.Version != t.Version {
				others = append(others, o.Version+" ("+o.Home+")")
			}
		}
		if len(others) > 0 {
			x.add(compat.Note, "toolkit-differs", "set CUDA_HOME to the one you want", "CUDA %s at %s is used (%s); there is also %s", t.Version, t.Home, t.Source, join(others))
		}
	}
	hc := x.m.Result("nvcc-host-compiler")
	if hc.Status == Missing && x.m.Result("c++").Status == OK {
		fix := x.install("c++")
		if len(hc.Looked) > 0 {
			fix = ways("unset "+hc.Looked[0]+", or correct it", fix)
		}
		x.add(compat.Error, "no-compiler", fix, "nvcc has no host compiler: %s", hc.Detail)
	}
	if hc.Status == Unsupported {
		fix := "export CUDAHOSTCXX=" + t.HostCompiler + " NVCC_CCBIN=" + t.HostCompiler
		if t.HostCompiler == "" {
			f := &finding{e: &Evidence{OS: x.m.OS, Distribution: x.m.Distribution, ToolkitFound: t.Version, Root: x.m.Root}, groups: map[string]string{"gcc": fmt.Sprint(t.MaxGCC)}}
			for i := range table() {
				if e := &table()[i]; e.id == "host-compiler" {
					_, fix = e.say(f)
				}
			}
		}
		x.add(compat.Error, "host-compiler", fix, "%s is %s: %s", hc.Path, hc.Value, hc.Detail)
	}
	if x.m.OS == "windows" && len(x.m.MSVC) > 0 {
		if h, ok := x.table.HostCompilers(t.Version); ok && h.MSC[1] > 0 && x.m.MSVC[0].MSCVer >= h.MSC[1] {
			x.add(compat.Error, "msvc-too-new", "vcvarsall.bat x64 -vcvars_ver=14.39", "nvcc %s accepts _MSC_VER below %d, and toolset %s is %d", t.Version, h.MSC[1], x.m.MSVC[0].Toolset, x.m.MSVC[0].MSCVer)
		}
	}
}

func (x *examiner) torchFit() {
	t := x.m.Torch
	if t.Version == "" {
		return
	}
	nvidia := slices.ContainsFunc(x.m.GPUs, func(g GPU) bool { return g.Vendor == "nvidia" })
	if t.CUDA == "" && t.HIP == "" {
		fix := "python3 -m pip install --force-reinstall torch==" + t.Public() + " --index-url https://download.pytorch.org/whl/" + x.bestIndex(t.Public())
		if t.packaged() && family(x.m.OS, x.m.Distribution) == "debian" {
			fix = x.sudo() + "apt-get install -y python3-torch-cuda libtorch-cuda-dev"
		}
		_, kit := x.m.Toolkit()
		switch {
		case nvidia:
			x.add(compat.Error, "torch-cpu", fix, "torch %s is a CPU build, and this machine has an NVIDIA GPU", t.Version)
		case kit:
			x.add(compat.Warning, "torch-cpu", fix, "torch %s is a CPU build: CUDA extensions can't be compiled for it", t.Version)
		}
	}
	if kit, ok := x.m.Toolkit(); ok && t.CUDA != "" {
		switch {
		case number(kit.Version) != number(t.CUDA):
			fix := x.installNVCC()
			for _, o := range x.m.CUDA {
				if number(o.Version) == number(t.CUDA) {
					fix = "export CUDA_HOME=" + o.Home
					break
				}
			}
			if series := torchWith(compat.ToolkitTag(kit.Version, "")); len(series) > 0 {
				fix = ways(fix, fmt.Sprintf("or install a torch for CUDA %s: %s have one", kit.Version, few(series, 4)))
			}
			x.add(compat.Error, "cuda-mismatch", fix, "nvcc is CUDA %s, torch %s was built with CUDA %s: the major versions must be equal", kit.Version, t.Version, t.CUDA)
		case compat.Minor(kit.Version) != compat.Minor(t.CUDA):
			x.add(compat.Note, "cuda-mismatch", "use the toolkit of CUDA "+t.CUDA+" if something goes wrong", "nvcc is CUDA %s, torch was built with %s: PyTorch's builder warns, and it usually works", kit.Version, t.CUDA)
		}
	}
	if t.HIP != "" && len(x.m.ROCm) == 0 {
		x.add(compat.Warning, "no-hipcc", x.install("hipcc")+" (AMD's repository has to be added first)", "torch %s is a ROCm build, and no ROCm was found", t.Version)
	}
}

// bestIndex is the newest CUDA build of a torch that the driver can run.
func (x *examiner) bestIndex(torch string) string {
	best := "cu128"
	for _, b := range x.table.TorchBuilds(torch) {
		v, ok := strings.CutPrefix(b, "cu")
		if !ok || len(v) < 3 {
			continue
		}
		cuda := v[:len(v)-1] + "." + v[len(v)-1:]
		if drv, ok := x.table.Driver(cuda); ok && x.m.Driver.Version != "none" && compareVersions(x.m.Driver.Version, cmp.Or(drv.MinLinux, "0")) >= 0 {
			best = b
		}
	}
	return best
}

func (x *examiner) devices() {
	m := x.m
	if r := m.Result("gpu"); r.Status == Broken {
		fix := ways("check that the GPU is given to this container or machine: --gpus all, or --device nvidia.com/gpu=all", "after an update of the driver: restart the machine")
		x.add(compat.Error, "no-device", fix, "the NVIDIA driver does not answer: %s", r.Detail)
	}
	if m.Torch.CUDA != "" && m.Driver.Version != "none" && m.Driver.Version != "" {
		drv, ok := x.table.Driver(m.Torch.CUDA)
		need := drv.MinLinux
		if m.OS == "windows" {
			need = drv.MinWindows
		}
		if ok && need != "" && compareVersions(m.Driver.Version, need) < 0 {
			x.add(compat.Error, "driver-old", ways("update the NVIDIA driver to "+need+" or newer", "or install a torch for an older CUDA"), "driver %s is too old for the CUDA %s of torch %s, which needs %s", m.Driver.Version, m.Torch.CUDA, m.Torch.Version, need)
		}
	}
	if kit, ok := m.Toolkit(); ok && m.Driver.CUDA != "" && compareVersions(kit.Version, m.Driver.CUDA) > 0 {
		x.add(compat.Note, "ptx-too-new", "compile machine code for the GPUs that are to run it, or update the driver", "nvcc %s is newer than driver %s, which compiles PTX up to CUDA %s: only machine code will run here", kit.Version, m.Driver.Version, m.Driver.CUDA)
	}
	if torch, ok := x.table.TorchArchs(m.Torch.Public(), m.Torch.CUDA, "linux"); ok && m.Torch.CUDA != "" {
		for _, g := range m.GPUs {
			cc, err := compat.ParseCC(g.ComputeCapability)
			if g.Vendor == "nvidia" && err == nil && !torch.Covers(cc) {
				x.add(compat.Error, "no-kernel-image", "install a torch that has code for "+cc.String(), "torch %s has no code for %s (%s): it has %s", m.Torch.Version, g.Name, cc, torch)
			}
		}
	}
	if hidden := slices.DeleteFunc(slices.Clone(m.GPUs), func(g GPU) bool { return !g.Hidden }); len(hidden) > 0 {
		x.add(compat.Note, "no-device", "unset CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES hides %d of %d GPUs", len(hidden), len(m.GPUs))
	}
	if m.Variables["CUDA_DISABLE_PTX_JIT"] == "1" {
		x.add(compat.Warning, "jit-off", "unset CUDA_DISABLE_PTX_JIT", "CUDA_DISABLE_PTX_JIT is set: code that is there as PTX only does not run")
	}
	if _, set := m.Variables["FLASH_ATTENTION_CUDA_ARCHS"]; set {
		x.add(compat.Warning, "arch-ignored", "set FLASH_ATTN_CUDA_ARCHS instead", "FLASH_ATTENTION_CUDA_ARCHS is read by nothing")
	}
	if m.Variables["LD_PRELOAD"] != "" {
		x.add(compat.Note, "undefined-symbol", "unset LD_PRELOAD if an import fails", "LD_PRELOAD changes which libraries are loaded: %s", m.Variables["LD_PRELOAD"])
	}
	for _, v := range []string{"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"} {
		if m.Variables[v] != "" {
			x.add(compat.Note, "compile-error", "unset "+v+" if it is not meant", "%s adds flags to every nvcc: %s", v, m.Variables[v])
		}
	}
}

// containers says why a container runtime that is there cannot be used. Where another one can, it
// is only worth a note.
func (x *examiner) containers() {
	severity := compat.Warning
	if x.m.Podman.Path != "" || x.m.Docker.Path != "" {
		severity = compat.Note
	}
	for _, id := range []string{"podman", "docker"} {
		if r := x.m.Result(id); r.Status == Broken {
			x.add(severity, "container-runtime", startRuntime(id, x.m.OS, x.m.Root), "%s does not work: %s", r.Path, r.Detail)
		}
	}
}

// minBuildDisk is what the compile of a middle-sized extension needs, beside torch.
const minBuildDisk = 1 << 30

// minCacheDisk is what a small module and its objects need.
const minCacheDisk = 100 << 20

func (x *examiner) disks() {
	if x.m.FreeDiskBytes > 0 && x.m.FreeDiskBytes < minBuildDisk {
		x.add(compat.Warning, "disk-full", "free some space, or work on another file system", "%s are free here; a build needs more than %s", units.Bytes(x.m.FreeDiskBytes), units.Bytes(minBuildDisk))
	}
	if x.m.TempNoExec {
		x.add(compat.Warning, "noexec", "set TMPDIR to a folder that is not mounted noexec", "the temporary folder is mounted noexec: programs and modules in it do not run")
	}
	if x.m.WorkNoExec {
		x.add(compat.Error, "noexec", "work in a folder that is not mounted noexec", "this folder is mounted noexec: what is built here does not run")
	}
	other := "set KILN_CACHE_DIR to a folder on another file system"
	if x.m.CacheOther != "" {
		other = "export KILN_CACHE_DIR=" + x.m.CacheOther
	}
	if x.m.CacheNoExec {
		x.add(compat.Error, "noexec", other, "%s, where compiled modules are kept, is mounted noexec: they can't be loaded from there", x.m.CacheDir)
	}
	if x.m.CacheDir != "" && x.m.CacheFreeBytes >= 0 && x.m.CacheFreeBytes < minCacheDisk {
		x.add(compat.Warning, "disk-full", other, "%s are free in %s, where compiled modules are kept", units.Bytes(x.m.CacheFreeBytes), x.m.CacheDir)
	}
	if x.m.NetworkFileSystem != "" {
		x.add(compat.Note, "file-access", "build on a local disk if it is slow", "this folder is on a network file system (%s): builds are slower, and locks may not work", x.m.NetworkFileSystem)
	}
	if x.m.MemoryBytes > 0 && x.m.MemoryBytes < 2<<30 {
		x.add(compat.Warning, "oom", "MAX_JOBS=1", "%s of memory are free: compilers of device code need up to 5 GiB each", units.Bytes(x.m.MemoryBytes))
	}
}

// archs says for which GPUs a module would be compiled here.
func (x *examiner) archs() {
	t, ok := x.m.Toolkit()
	if !ok {
		return
	}
	req := ArchRequest{List: x.m.Variables["TORCH_CUDA_ARCH_LIST"], NVCC: t.ArchList(), CUDA: t.Version, Torch: x.m.Torch.Public(), JIT: true, Table: x.table}
	for _, g := range x.m.GPUs {
		if cc, err := compat.ParseCC(g.ComputeCapability); err == nil && !g.Hidden {
			req.Devices = append(req.Devices, cc)
		}
	}
	c, err := SelectArchs(req)
	if err != nil {
		x.r.Archs.Error = err.Error()
		x.add(compat.Error, "arch-unsupported", "correct TORCH_CUDA_ARCH_LIST, or use another toolkit", "%s", err)
		return
	}
	x.r.Archs = ArchReport{List: c.List.String(), Source: c.Source, Flags: c.List.GencodeFlags(), Warnings: c.Warnings}
}

func (x *examiner) abilities() {
	m := x.m
	kit, hasKit := m.Toolkit()
	cxx := m.Result("c++").Status == OK
	cxxName := m.Result("c++").Value
	if m.OS == "windows" {
		cxx, cxxName = m.Result("cl").Status == OK, "MSVC "+m.Result("cl").Value
	}
	headers := m.Python.Headers
	need := func(ok bool, what string) string {
		if ok {
			return ""
		}
		return what
	}
	missing := func(list ...string) string {
		list = slices.DeleteFunc(list, func(s string) bool { return s == "" })
		return "needs " + join(list)
	}
	add := func(id, title string, ok bool, with, without string) {
		a := Ability{ID: id, Title: title, OK: ok, Detail: with}
		if !ok {
			a.Detail = without
		}
		x.r.Abilities = append(x.r.Abilities, a)
	}
	python := "Python " + m.Python.Minor()
	add(BuildCPP, "compile C++ extensions", cxx && headers, cxxName+", "+python,
		missing(need(cxx, "a working C++ compiler"), need(headers, "Python with its headers")))
	hostOK := m.Result("nvcc-host-compiler").Status == OK
	fits := m.Torch.CUDA == "" || number(m.Torch.CUDA) == number(kit.Version)
	complete := hasKit && len(kit.Missing) == 0
	add(BuildCUDA, "compile CUDA extensions", cxx && headers && complete && hostOK && fits, fmt.Sprintf("CUDA %s, %s, %s", kit.Version, m.Result("nvcc-host-compiler").Value, python),
		missing(need(cxx, "a working C++ compiler"), need(headers, "Python with its headers"), need(complete, "a complete CUDA toolkit"), need(!complete || hostOK, "a host compiler that nvcc accepts"), need(!complete || fits, "a toolkit of torch's CUDA major version")))
	without := "needs podman or docker"
	for _, id := range []string{"podman", "docker"} {
		if r := m.Result(id); r.Status == Broken {
			without = fmt.Sprintf("%s is installed and does not work: %s", id, r.Detail)
		}
	}
	add(BuildContainers, "build in containers", m.Podman.Path != "" || m.Docker.Path != "", strings.TrimSpace(toolText("podman", m.Podman)+" "+toolText("docker", m.Docker)), without)
	ninja := m.Ninja.OnPath
	torch := m.Torch.CUDA != "" || m.Torch.HIP != ""
	add(CompileAtImport, "compile at first import", cxx && headers && complete && hostOK && fits && ninja && torch, "torch "+m.Torch.Version+", ninja "+m.Ninja.Version,
		missing(need(torch, "a torch for GPUs"), need(cxx, "a working C++ compiler"), need(complete && hostOK && fits, "a CUDA toolkit that fits"), need(ninja, "ninja on PATH"), need(headers, "Python with its headers")))
	gpu := slices.ContainsFunc(m.GPUs, func(g GPU) bool { return g.Vendor == "nvidia" && !g.Hidden })
	var names []string
	for _, g := range m.GPUs {
		if g.Vendor == "nvidia" && !g.Hidden {
			names = append(names, sentences(g.Name, "("+g.ComputeCapability+")"))
		}
	}
	bad := slices.ContainsFunc(x.r.Problems, func(p Problem) bool { return p.ID == "driver-old" || p.ID == "no-kernel-image" })
	add(RunCUDA, "run CUDA packages", gpu && m.Torch.CUDA != "" && !bad, join(names)+", driver "+m.Driver.Version+", torch "+m.Torch.Version,
		missing(need(gpu, "an NVIDIA GPU with its driver"), need(m.Torch.CUDA != "", "a CUDA build of torch"), need(!bad, "a driver and a torch that fit the GPU")))
	amd := slices.ContainsFunc(m.GPUs, func(g GPU) bool { return g.Vendor == "amd" })
	if len(m.ROCm) > 0 || m.Torch.HIP != "" || amd {
		hipcc := len(m.ROCm) > 0 && m.ROCm[0].HIPCC != ""
		version := ""
		if len(m.ROCm) > 0 {
			version = m.ROCm[0].Version
		}
		add(BuildROCm, "compile ROCm extensions", cxx && headers && hipcc && m.Torch.HIP != "", "ROCm "+version+", torch "+m.Torch.Version,
			missing(need(hipcc, "ROCm with hipcc"), need(m.Torch.HIP != "", "a ROCm build of torch"), need(cxx, "a working C++ compiler"), need(headers, "Python with its headers")))
		var targets []string
		for _, g := range m.GPUs {
			if g.Target != "" {
				targets = append(targets, g.Target)
			}
		}
		add(RunROCm, "run ROCm packages", amd && m.Torch.HIP != "", join(targets)+", torch "+m.Torch.Version, missing(need(amd, "an AMD GPU with its driver"), need(m.Torch.HIP != "", "a ROCm build of torch")))
	}
}

func toolText(name string, t Tool) string {
	if t.Path == "" {
		return ""
	}
	return name + " " + t.Version
}
