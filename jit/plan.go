package jit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/machine"
)

// ErrNotSupported is the error for compiling on a system that kiln has no compiler commands for.
// Modules that are compiled already can be used there.
var ErrNotSupported = errors.New("not supported on this system")

// unit is one source and the command that compiles it.
type unit struct {
	source string // as Spec.files gives it
	kind   string
	object string // file name in the work folder
	memory int64  // what the compiler may need
	argv   []string
	flags  []string // of argv, without what differs from file to file
}

// plan is everything that is decided before the first compiler is called. The same spec, machine
// and options give the same plan.
type plan struct {
	spec     *Spec
	module   string // file name of the result
	units    []unit
	link     []string // without the objects
	archs    compat.ArchList
	gfx      compat.GfxList
	launcher string // a compiler cache in front of compilers, or ""
	// translated says that hipcc compiles what torch's hipify makes of .cu files; hip is what it
	// made, as soon as it is needed.
	translated bool
	hip        *translation
	msvc       *machine.MSVC // the toolset that compiles on Windows
	warnings   []string
	inputs     Inputs
	files      []string // everything that was looked at: a change of one makes another plan
}

// targets are the GPUs that are compiled for.
func (p *plan) targets() string { return cmp.Or(p.archs.String(), p.gfx.String()) }

// The places of a command that differ from run to run.
const (
	tokenSource = "{source}"
	tokenObject = "{object}"
	tokenOutput = "{output}"
)

// newPlan decides how to compile. The error is an [*Error] where the machine lacks something.
func newPlan(spec *Spec, m *machine.Machine, opts *Options) (*plan, error) {
	sources, folders, err := spec.files()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", spec.title(), err)
	}
	p := &planner{
		plan: &plan{spec: spec, module: spec.Name + m.Python.ExtSuffix, files: folders},
		m:    m, opts: opts, cuda: spec.CUDA,
	}
	// A torch for ROCm has its extensions written for CUDA.
	p.translated = spec.Torch && m.Torch.HIP != "" && (spec.CUDA || slices.ContainsFunc(sources, func(s string) bool { return sourceKind(s) == kindCUDA }))
	if p.translated {
		p.cuda, p.rocm = false, true
	}
	switch {
	case m.OS == "windows":
		p.module = spec.windowsModule(m.Python.ExtSuffix)
	case spec.Kind == KindLibrary:
		p.module = spec.Name + ".so"
	case spec.Kind == KindProgram:
		p.module = spec.Name
	}
	for i, s := range sources {
		kind := sourceKind(s)
		if kind == kindC && spec.CAsCXX {
			kind = kindCXX
		}
		switch {
		case kind == kindCUDA && p.translated:
			kind = kindHIP
		case kind == kindCUDA:
			p.cuda = true
		case kind == kindHIP:
			p.rocm = true
		}
		p.units = append(p.units, unit{source: s, kind: kind, object: fmt.Sprintf("%03d-%s.o", i+1, filepath.Base(s))})
		p.files = append(p.files, spec.path(s))
	}
	if p.rocm && p.cuda {
		return nil, fmt.Errorf("%s: .cu and .hip sources cannot be in one module: nvcc compiles the first, hipcc the second", spec.title())
	}
	if m.OS == "windows" && p.rocm {
		return nil, fmt.Errorf("compile %s with hipcc: %w", spec.Name, ErrNotSupported)
	}
	if d := p.problems(); len(d) > 0 {
		return nil, &Error{Name: spec.Name, Diagnoses: d}
	}
	if err := p.selectArchs(); err != nil {
		return nil, err
	}
	if err := p.selectGfx(); err != nil {
		return nil, err
	}
	if m.OS == "windows" {
		p.windowsCommands()
	} else {
		p.commands()
	}
	if err := p.identify(); err != nil {
		return nil, err
	}
	return p.plan, nil
}

func (s *Spec) title() string {
	if s.file != "" {
		return s.file
	}
	return s.Name
}

type planner struct {
	*plan
	m     *machine.Machine
	opts  *Options
	cuda  bool // nvcc compiles, or CUDA is linked
	rocm  bool // the same for hipcc and HIP
	ccbin string
}

func (p *planner) kit() machine.CUDAToolkit {
	kit, _ := p.m.Toolkit()
	return kit
}

func (p *planner) cxx() machine.Compiler {
	if p.msvc != nil {
		return machine.Compiler{Path: p.msvc.CL, Kind: "msvc", Version: p.msvc.Toolset}
	}
	return p.m.Compilers[0]
}

// problems are what keeps this machine from compiling this module, in the words of kiln doctor.
func (p *planner) problems() []machine.Diagnosis {
	report := machine.Examine(p.m, p.opts.Table)
	want := []string{"no-compiler", "no-python", "python-headers"}
	if p.cuda {
		want = append(want, "no-nvcc")
		// nvcc gets another compiler if one that it accepts is there, or takes the one of its flags.
		if p.kit().HostCompiler == "" && !p.choosesHost() && !hasPrefix(p.spec.Flags.NVCC, "-allow-unsupported-compiler") && !hasPrefix(p.spec.Flags.NVCC, "--allow-unsupported-compiler") {
			want = append(want, "host-compiler")
		}
		if p.spec.Torch {
			want = append(want, "torch-cpu", "cuda-mismatch")
		}
	}
	if p.spec.Torch && p.m.Torch.Version == "" {
		return []machine.Diagnosis{newDiagnosis("missing-requirement", "torch is not installed for "+p.m.Python.Path+", and "+p.spec.Name+" is an extension of it",
			pythonName(p.m.Python)+" -m pip install torch")}
	}
	var out []machine.Diagnosis
	if p.m.OS == "windows" {
		want = slices.DeleteFunc(want, func(id string) bool { return id == "no-compiler" || id == "host-compiler" })
		if lacks := p.chooseMSVC(); lacks != nil {
			out = append(out, *lacks)
		}
	}
	if p.translated && hipifyIdentity(p.m.Torch.Dir) == "" {
		out = append(out, newDiagnosis("missing-requirement", "torch in "+p.m.Torch.Dir+" has no utils/hipify, which translates .cu files for ROCm", "install torch again"))
	}
	if p.rocm && (len(p.m.ROCm) == 0 || p.m.ROCm[0].HIPCC == "") {
		out = append(out, p.noHIPCC())
	}
	for _, problem := range report.Problems {
		// Without any nvcc there is a note too, on a machine that has no use for one.
		if !slices.Contains(want, problem.ID) || problem.Severity == compat.Note && (problem.ID != "no-nvcc" || p.kit().NVCC != "") {
			continue
		}
		out = append(out, newDiagnosis(problem.ID, problem.Message, problem.Fix))
	}
	return out
}

// noHIPCC is a problem of this module alone: kiln doctor reports a missing hipcc only where torch
// is a ROCm build, which needs all of AMD's libraries.
func (p *planner) noHIPCC() machine.Diagnosis {
	install := func(tool string) string {
		return machine.InstallCommand(tool, p.m.OS, p.m.Distribution, p.m.Python.Version, "", p.m.Root)
	}
	fix := install("hipcc") + " (AMD's repository has to be added first)"
	if alone := install("hipcc-alone"); alone != "" && !p.spec.Torch {
		fix = alone + "\n" + fix
	}
	return newDiagnosis("no-hipcc", p.spec.Name+" is compiled by hipcc, and no hipcc was found", fix+"\nif it is installed: set ROCM_HOME to the folder that has bin/hipcc in it")
}

func pythonName(py machine.Python) string {
	if py.Prefix != py.BasePrefix || !strings.HasPrefix(py.Path, "/usr/bin/") {
		return py.Path
	}
	return "python3"
}

// newDiagnosis is one of the table, with the words of this case.
func newDiagnosis(id, detail, fix string) machine.Diagnosis {
	d := machine.Diagnosis{ID: id, Title: "This machine lacks something", Detail: detail, Fix: fix, Class: machine.ClassFault, Confidence: machine.Certain}
	for _, known := range machine.Known() {
		if known.ID == id {
			d.Title, d.Class = known.Title, known.Class
		}
	}
	return d
}

// selectArchs decides for which GPUs to compile.
func (p *planner) selectArchs() error {
	if !p.cuda || !slices.ContainsFunc(p.units, func(u unit) bool { return u.kind == kindCUDA }) {
		return nil
	}
	list := p.opts.Archs
	if strings.TrimSpace(list) == "" {
		list = p.spec.Archs
	}
	kit := p.kit()
	req := machine.ArchRequest{
		List: list, Flags: p.spec.Flags.NVCC, NVCC: kit.ArchList(), CUDA: kit.Version, Torch: p.m.Torch.Public(), JIT: true, Table: p.opts.Table,
	}
	for _, g := range p.m.GPUs {
		if cc, err := compat.ParseCC(g.ComputeCapability); err == nil && !g.Hidden {
			req.Devices = append(req.Devices, cc)
		}
	}
	choice, err := machine.SelectArchs(req)
	if err != nil {
		fix := "set TORCH_CUDA_ARCH_LIST, or archs in the spec, to what this nvcc makes, or use another toolkit"
		return &Error{Name: p.spec.Name, Diagnoses: []machine.Diagnosis{newDiagnosis("arch-unsupported", err.Error(), fix)}}
	}
	p.archs, p.warnings = choice.List, choice.Warnings
	return nil
}

// selectGfx is selectArchs for AMD: PYTORCH_ROCM_ARCH, else the GPUs of this machine, else what
// hipcc takes by itself.
func (p *planner) selectGfx() error {
	if !p.rocm || hasPrefix(p.spec.Flags.HIP, "--offload-arch") {
		return nil
	}
	const name = "PYTORCH_ROCM_ARCH"
	list, err := compat.ParseGfxList(p.opts.Host.Getenv(name))
	if err != nil {
		return &Error{Name: p.spec.Name, Diagnoses: []machine.Diagnosis{newDiagnosis("arch-unsupported", name+": "+err.Error(), "export "+name+`="gfx90a gfx1100"`)}}
	}
	if len(list.Items()) == 0 {
		var targets []string
		for _, g := range p.m.GPUs {
			if g.Target != "" && !g.Hidden {
				targets = append(targets, g.Target)
			}
		}
		if list, err = compat.ParseGfxList(strings.Join(targets, " ")); err != nil {
			return fmt.Errorf("GPUs of this machine: %w", err)
		}
	}
	if len(list.Items()) == 0 {
		p.warnings = append(p.warnings, "there is no AMD GPU here and "+name+" is not set: compiling for hipcc's default")
	}
	p.gfx = list
	return nil
}

// Memory that one compiler may need; more than most files do.
const (
	memoryPlain = 256 << 20
	memoryTorch = 1200 << 20
	memoryCUDA  = 2 << 30
)

// commands fills in the command lines. They are those of torch's own builder where the result
// depends on them; docs/jit.md lists the differences.
func (p *planner) commands() {
	s, m := p.spec, p.m
	if p.opts.Launcher != "" {
		p.launcher = p.opts.Launcher
	} else if !p.opts.NoLauncher && m.CCache.Path != "" {
		p.launcher = m.CCache.Path
	}
	var common []string
	if s.Kind != KindProgram {
		common = append(common, "-DTORCH_EXTENSION_NAME="+s.Name)
		if s.Torch {
			common = append(common, "-DTORCH_API_INCLUDE_EXTENSION_H")
		}
	}
	if s.Torch {
		// A nightly build is of the release that it becomes, and one that cannot be read is new.
		before := func(release string) bool { return versionLess(compat.Minor(m.Torch.Public()), release) }
		if before("2.14") {
			common = append(common, pybindTags(filepath.Join(m.Torch.Dir, "lib", machine.LibraryName(m.OS, "torch_python")))...)
		}
		if abi := m.Torch.CXX11ABI; abi == "0" || abi != "" && before("2.11") {
			common = append(common, "-D_GLIBCXX_USE_CXX11_ABI="+abi)
		}
	}
	for _, dir := range s.Include {
		if p.translated {
			common = append(common, "-I"+tokenHIP+s.path(dir))
		}
		common = append(common, "-I"+s.path(dir))
	}
	for _, dir := range p.systemIncludes() {
		common = append(common, "-isystem", dir)
	}
	standard := ""
	if s.Torch {
		standard = "-std=c++17"
		if std, ok := p.table().CXXStandard(m.Torch.Public()); ok {
			standard = "-std=c++" + strconv.Itoa(std)
		}
	}
	for i := range p.units {
		u := &p.units[i]
		memory := int64(memoryPlain)
		if s.Torch {
			memory = memoryTorch
		}
		var argv []string
		switch u.kind {
		case kindCUDA:
			memory = memoryCUDA
			argv = p.nvcc(common, standard)
		case kindHIP:
			memory = memoryCUDA
			argv = p.hipcc(common, standard)
		default:
			argv = p.host(u.kind, common, standard)
		}
		u.memory, u.flags = memory, argv[1:]
		u.argv = append(argv, "-MD", "-MF", tokenObject+".d", "-c", tokenSource, "-o", tokenObject)
	}
	p.linkCommand()
}

func (p *planner) table() *compat.Table {
	if p.opts.Table != nil {
		return p.opts.Table
	}
	return compat.Default()
}

// host is the command for C and C++.
func (p *planner) host(kind string, common []string, standard string) []string {
	flags := p.spec.Flags.CXX
	argv := append([]string{p.cxx().Path}, common...)
	argv = append(argv, "-fPIC")
	if p.rocm || p.spec.Torch && p.m.Torch.HIP != "" {
		argv = append(argv, hipDefines...)
	}
	if kind == kindC {
		// The driver takes C for C, whatever it is called.
		argv = append(argv, "-x", "c")
		flags = slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return strings.HasPrefix(f, "-std=c++") || strings.HasPrefix(f, "-std=gnu++") })
	} else if standard != "" && !hasPrefix(flags, "-std=") {
		argv = append(argv, standard)
	}
	if !hasPrefix(flags, "-O") {
		argv = append(argv, "-O3")
	}
	if p.opts.Debug {
		argv = append(argv, "-ftime-report", "-DTORCH_USE_CUDA_DSA")
	}
	return append(argv, flags...)
}

// torchNVCCFlags are those that torch's headers expect.
var torchNVCCFlags = []string{
	"-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
	"--expt-relaxed-constexpr",
}

func (p *planner) nvcc(common []string, standard string) []string {
	flags, kit := p.spec.Flags.NVCC, p.kit()
	argv := []string{kit.NVCC}
	if f := strings.Fields(p.opts.Host.Getenv("PYTORCH_NVCC")); len(f) > 0 {
		argv = f
		p.launcher = "" // it brings its own
	}
	argv = append(argv, common...)
	if p.spec.Torch {
		argv = append(argv, torchNVCCFlags...)
	}
	argv = append(argv, p.archs.GencodeFlags()...)
	argv = append(argv, "--compiler-options", "-fPIC")
	if p.ccbin = p.hostCompiler(); p.ccbin != "" {
		argv = append(argv, "-ccbin", p.ccbin)
	}
	if standard != "" && !hasPrefix(flags, "-std=") && !hasPrefix(flags, "--std=") {
		argv = append(argv, standard)
	}
	if !hasPrefix(flags, "-O") {
		argv = append(argv, "-O3")
	}
	if p.opts.Debug {
		argv = append(argv, "-DTORCH_USE_CUDA_DSA")
	}
	return append(argv, flags...)
}

// choosesHost reports whether the flags name the compiler that nvcc calls. It takes only one.
func (p *planner) choosesHost() bool {
	return hasPrefix(p.spec.Flags.NVCC, "-ccbin") || hasPrefix(p.spec.Flags.NVCC, "--compiler-bindir")
}

// hostCompiler is what nvcc is told to call; empty where it decides itself, as a distribution's
// nvcc does.
func (p *planner) hostCompiler() string {
	if p.choosesHost() {
		return ""
	}
	for _, name := range []string{"CUDAHOSTCXX", "CC"} {
		if f := strings.Fields(p.opts.Host.Getenv(name)); len(f) > 0 && p.m.Result("nvcc-host-compiler").Status == machine.OK {
			return f[len(f)-1]
		}
	}
	if p.m.Result("nvcc-host-compiler").Status == machine.Unsupported {
		return p.kit().HostCompiler
	}
	return ""
}

// hipDefines are those that torch's headers expect of every file where torch is for ROCm.
var hipDefines = []string{"-D__HIP_PLATFORM_AMD__=1", "-DUSE_ROCM=1", "-DHIPBLAS_V2"}

func (p *planner) hipcc(common []string, standard string) []string {
	flags := p.spec.Flags.HIP
	argv := append([]string{p.m.ROCm[0].HIPCC}, common...)
	argv = append(append(argv, "-fPIC"), hipDefines...)
	if p.spec.Torch {
		argv = append(argv, "-DCUDA_HAS_FP16=1", "-D__HIP_NO_HALF_OPERATORS__=1", "-D__HIP_NO_HALF_CONVERSIONS__=1", "-DWITH_HIP")
		// Newer releases have more, and say so themselves.
		const more = "HIP_ENABLE_WARP_SYNC_BUILTINS"
		if text, err := os.ReadFile(filepath.Join(p.m.Torch.Dir, "utils", "cpp_extension.py")); err == nil && strings.Contains(string(text), more) {
			argv = append(argv, "-D"+more+"=1")
		}
	}
	argv = append(argv, p.gfx.OffloadFlags()...)
	if !hasPrefix(flags, "-fgpu-rdc") && !hasPrefix(flags, "-fno-gpu-rdc") {
		argv = append(argv, "-fno-gpu-rdc")
	}
	if standard != "" && !hasPrefix(flags, "-std=") {
		argv = append(argv, standard)
	}
	if !hasPrefix(flags, "-O") {
		argv = append(argv, "-O3")
	}
	return append(argv, flags...)
}

// systemIncludes are the folders of headers that are not the project's: torch, CUDA, Python.
func (p *planner) systemIncludes() []string {
	var dirs []string
	if p.spec.Torch {
		inc := filepath.Join(p.m.Torch.Dir, "include")
		dirs = append(dirs, inc, filepath.Join(inc, "torch", "csrc", "api", "include"))
	}
	if p.cuda {
		kit := p.kit()
		for _, dir := range []string{filepath.Join(kit.Home, "include"), filepath.Join(filepath.Dir(kit.Home), "cuda_runtime", "include")} {
			// A system folder given by hand changes the order in which the compiler searches, and
			// breaks #include_next.
			if _, err := os.Stat(filepath.Join(dir, "cuda_runtime.h")); err == nil && dir != "/usr/include" {
				dirs = append(dirs, dir)
			}
		}
		if p.spec.Torch {
			dirs = append(dirs, p.variable("CUDA_INC_PATH")...)
			for _, dir := range p.variable("CUDNN_HOME", "CUDNN_PATH") {
				dirs = append(dirs, filepath.Join(dir, "include"))
			}
		}
	}
	if p.rocm {
		dirs = append(dirs, filepath.Join(p.m.ROCm[0].Home, "include"))
	}
	if inc := p.m.Python.Include; inc != "" {
		dirs = append(dirs, inc)
	}
	return slices.DeleteFunc(dirs, func(d string) bool { return d == "/usr/include" })
}

// variable is the value of the first of these variables that is set, as a list of one or none.
func (p *planner) variable(names ...string) []string {
	for _, name := range names {
		if v := p.opts.Host.Getenv(name); v != "" {
			return []string{p.opts.Host.Abs(v)}
		}
	}
	return nil
}

func (p *planner) linkCommand() {
	s, m := p.spec, p.m
	argv := []string{p.cxx().Path}
	if s.Kind != KindProgram {
		argv = append(argv, "-shared")
	}
	if m.OS == "darwin" {
		argv = append(argv, "-undefined", "dynamic_lookup")
	}
	for _, dir := range s.LibraryDirs {
		argv = append(argv, "-L"+s.path(dir))
	}
	for _, l := range s.Libraries {
		argv = append(argv, "-l"+l)
	}
	argv = append(argv, s.Flags.Link...)
	if s.Torch {
		argv = append(argv, "-L"+filepath.Join(m.Torch.Dir, "lib"), "-lc10")
		switch {
		case p.cuda:
			argv = append(argv, "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda")
		case p.rocm:
			argv = append(argv, "-lc10_hip", "-ltorch_cpu", "-ltorch_hip")
		default:
			argv = append(argv, "-ltorch_cpu")
		}
		argv = append(argv, "-ltorch")
		if s.Kind == KindProgram {
			argv = append(argv, "-Wl,-rpath,"+filepath.Join(m.Torch.Dir, "lib")) // no Python loads torch for it
		} else {
			argv = append(argv, "-ltorch_python")
		}
	}
	if p.cuda {
		argv = append(argv, p.cudart()...)
		for _, dir := range p.variable("CUDNN_HOME", "CUDNN_PATH") {
			argv = append(argv, "-L"+filepath.Join(dir, "lib64"))
		}
	}
	if p.rocm {
		argv = append(argv, "-L"+filepath.Join(m.ROCm[0].Home, "lib"), "-lamdhip64")
	}
	p.link = append(argv, "-o", tokenOutput)
}

// cudart is how the runtime library is linked.
func (p *planner) cudart() []string {
	kit := p.kit()
	// torch brings the library along; a module without torch has to find it by itself.
	find := func(dir string, argv ...string) []string {
		if p.spec.Torch && p.spec.Kind != KindProgram || dir == "/usr/lib" {
			return argv
		}
		return append(argv, "-Wl,-rpath,"+dir)
	}
	if kit.CUDART != "" {
		return find(filepath.Dir(kit.CUDART), kit.CUDART) // only its versioned name is there
	}
	for _, name := range []string{"lib64", "lib"} {
		dir := filepath.Join(kit.Home, name)
		if _, err := os.Stat(filepath.Join(dir, "libcudart.so")); err == nil {
			return find(dir, "-L"+dir, "-lcudart")
		}
	}
	return []string{"-lcudart"}
}

// inputVariables change what compilers do without a trace on their command lines.
var inputVariables = []string{
	"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "GCC_EXEC_PREFIX",
	"COMPILER_PATH", "SOURCE_DATE_EPOCH", "MACOSX_DEPLOYMENT_TARGET", "CL", "_CL_", "LINK", "_LINK_",
}

// identify collects the inputs, all but the headers, which are known only after compiling.
func (p *planner) identify() error {
	s, m := p.spec, p.m
	add := func(name, value string) { p.inputs = append(p.inputs, Input{name, value}) }
	add("format", "1")
	add("module", s.Name)
	if !s.isModule() {
		add("kind", s.Kind)
	}
	add("system", m.OS+"/"+m.Arch) // the C library is in Python's SOABI
	add("python", m.Python.Minor()+" "+m.Python.SOABI+" "+m.Python.ExtSuffix)
	p.files = append(p.files, m.Python.Path, filepath.Join(m.Python.Prefix, "pyvenv.cfg"))
	compiler := p.cxx()
	tools := []string{compiler.Path}
	add("c++ compiler", compiler.Kind+" "+compiler.Version+" "+identify(compiler.Path))
	if p.cuda {
		kit := p.kit()
		add("nvcc", kit.Full)
		for _, dir := range []string{"bin", "nvvm/bin", "/usr/lib/nvidia-cuda-toolkit/bin"} {
			if !strings.HasPrefix(dir, "/") {
				dir = filepath.Join(kit.Home, dir)
			}
			for _, name := range []string{"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary"} {
				for _, ext := range []string{"", ".exe"} {
					if f := filepath.Join(dir, name+ext); isFile(f) {
						tools = append(tools, f)
					}
				}
			}
		}
		host := m.Result("nvcc-host-compiler")
		value := host.Value
		if p.ccbin != "" {
			value += " " + identify(p.ccbin)
		} else if kit.HostCompiler != "" {
			value += " " + identify(kit.HostCompiler)
		}
		add("nvcc host compiler", value)
		add("archs", p.archs.String())
	}
	if p.rocm {
		add("hipcc", m.ROCm[0].Version+" "+identify(m.ROCm[0].HIPCC))
		tools = append(tools, m.ROCm[0].HIPCC)
		if p.translated {
			add("hipify", hipifyIdentity(m.Torch.Dir))
			for _, name := range hipifyFiles {
				tools = append(tools, filepath.Join(m.Torch.Dir, "utils", "hipify", name))
			}
		}
	}
	p.files = append(p.files, tools...)
	if s.Torch {
		torch, files := torchIdentity(m)
		p.inputs, p.files = append(p.inputs, torch...), append(p.files, files...)
	}
	for _, v := range inputVariables {
		if value := p.opts.Host.Getenv(v); value != "" {
			add("variable "+v, value)
		}
	}
	seen := map[string]bool{}
	for _, u := range p.units {
		if argv := p.normal(u.flags); !seen[u.kind] {
			seen[u.kind] = true
			add(u.kind+" flags", strings.Join(argv, " "))
		}
	}
	add("link flags", strings.Join(p.normal(p.link[1:]), " "))
	for _, u := range p.units {
		sum, _, err := fsx.SHA256(s.path(u.source))
		if err != nil {
			return fmt.Errorf("source %s: %w", u.source, reason(err))
		}
		add("source "+u.source, sum)
	}
	return p.headerNames()
}

// normal makes paths of the project and of installations independent of where they are.
func (p *planner) normal(argv []string) []string {
	out := slices.Clone(argv)
	for i, a := range out {
		for _, r := range []struct{ dir, token string }{{p.spec.Root, "{root}"}, {p.m.Torch.Dir, "{torch}"}, {p.m.Python.Include, "{python}"}, {p.kit().Home, "{cuda}"}} {
			if len(r.dir) > len("/usr") {
				a = strings.ReplaceAll(a, r.dir, r.token)
			}
		}
		out[i] = a
	}
	return out
}

// maxHeaders bounds how many files below an include folder are listed.
const maxHeaders = 20_000

// headerNames adds the names of all headers in the project's include folders: a new one may hide
// another without any file that was read having changed. Folders as large as a whole system's are
// not looked at.
func (p *planner) headerNames() error {
	var names []string
	for _, dir := range p.spec.Include {
		n, before, files := 0, len(names), len(p.files)
		err := filepath.WalkDir(p.spec.path(dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return fmt.Errorf("include %s: %w", dir, reason(err))
			case entry.IsDir():
				if strings.HasPrefix(entry.Name(), ".") && path != p.spec.path(dir) || path == p.opts.Dir {
					return fs.SkipDir
				}
				p.files = append(p.files, path)
			case isHeader(path):
				if n++; n > maxHeaders {
					p.warnings = append(p.warnings, fmt.Sprintf("include %s has more than %d headers: a new one that hides another is not noticed", dir, maxHeaders))
					names, p.files = names[:before], append(p.files[:files], p.spec.path(dir))
					return fs.SkipAll
				}
				names = append(names, strings.TrimPrefix(path, p.spec.Root))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	slices.Sort(names)
	if len(names) > 0 {
		p.inputs = append(p.inputs, Input{"header names", question(slices.Compact(names)...)[:16]})
	}
	return nil
}

func isHeader(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".inc", "":
		return true
	}
	return false
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

func hasPrefix(list []string, prefix string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, prefix) })
}

// fill puts the places of one run into a command.
func (p *plan) fill(argv []string, source, object, output string) []string {
	hip := ""
	if p.hip != nil {
		hip = p.hip.Dir
	}
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = strings.NewReplacer(tokenHIP, hip, tokenSource, source, tokenObject, object, tokenOutput, output).Replace(a)
	}
	return out
}

// source is the path of a unit's source for its compiler, relative to Root where it is the project's.
func (p *plan) source(u unit) string {
	if p.hip != nil {
		return p.hip.path(p.spec.path(u.source))
	}
	return u.source
}

// command is the whole command of a unit.
func (p *plan) command(u unit, dir string) []string {
	argv := p.fill(u.argv, p.source(u), filepath.Join(dir, u.object), "")
	if p.launcher != "" {
		argv = append([]string{p.launcher}, argv...)
	}
	return argv
}

// linkCommand is the whole command that links the objects.
func (p *plan) linkCommand(dir, output string) []string {
	argv := p.fill(p.link, "", filepath.Join(dir, "import"), output)
	objects := make([]string, len(p.units))
	for i, u := range p.units {
		objects[i] = filepath.Join(dir, u.object)
	}
	// Objects before libraries: the linker takes from a library what is wanted so far.
	return slices.Concat(argv[:1], objects, argv[1:])
}

// defaultJobs is how many compilers run at once unless Options say it.
func defaultJobs() int { return runtime.GOMAXPROCS(0) }
