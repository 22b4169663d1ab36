package machine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/compat"
)

// Status says how a probe ended.
type Status string

// What a probe can find.
const (
	OK          Status = "ok"
	Missing     Status = "missing"
	Broken      Status = "broken"      // there, and does not work
	Unsupported Status = "unsupported" // works, and cannot be used for this
	Skipped     Status = "skipped"     // not looked for
)

// A Result says what one probe found and how it knows.
type Result struct {
	ID      string        `json:"id"` // "c++", "nvcc", "python", …
	Status  Status        `json:"status"`
	Value   string        `json:"value,omitempty"`  // usually a version
	Path    string        `json:"path,omitempty"`   // where it is
	Detail  string        `json:"detail,omitempty"` // what is wrong, or worth knowing
	Looked  []string      `json:"looked,omitempty"` // where it was looked for, in order
	Elapsed time.Duration `json:"elapsed_ns"`
}

// A Machine is what [Probe] found. Lists are empty and structs zero where there is
// nothing; Results has one entry a probe, in a fixed order.
type Machine struct {
	OS           string `json:"os"`              // as Go names it
	Arch         string `json:"arch"`            // as Go names it
	Distribution string `json:"distribution"`    // ids of os-release, the nearest first: "ubuntu debian"
	Release      string `json:"release"`         // of the distribution: "24.04"
	SystemName   string `json:"system_name"`     // "Ubuntu 24.04.3 LTS"
	GLIBC        string `json:"glibc,omitempty"` // of Python, where there is one
	Musl         string `json:"musl,omitempty"`
	MacOS        string `json:"macos,omitempty"`
	Root         bool   `json:"root,omitempty"` // no sudo is needed

	CPUs              int     `json:"cpus,omitempty"` // what may be used of them
	MemoryBytes       int64   `json:"memory_bytes,omitempty"`
	FreeDiskBytes     int64   `json:"free_disk_bytes,omitempty"` // in the work folder
	TempNoExec        bool    `json:"temp_noexec,omitempty"`
	WorkNoExec        bool    `json:"work_noexec,omitempty"`
	NetworkFileSystem string  `json:"network_file_system,omitempty"` // of the work folder
	CPUQuota          float64 `json:"cpu_quota,omitempty"`           // of the container
	CacheDir          string  `json:"cache_dir,omitempty"`           // where compiled modules are kept
	CacheNoExec       bool    `json:"cache_noexec,omitempty"`
	CacheFreeBytes    int64   `json:"cache_free_bytes,omitempty"` // -1 if it is not known
	CacheOther        string  `json:"cache_other,omitempty"`      // another folder for them, if that one cannot be used

	Compilers []Compiler    `json:"compilers"`
	MSVC      []MSVC        `json:"msvc,omitempty"`
	CUDA      []CUDAToolkit `json:"cuda"` // the first is used
	ROCm      []ROCmToolkit `json:"rocm,omitempty"`
	Ninja     Tool          `json:"ninja"`
	CCache    Tool          `json:"ccache"`
	SCCache   Tool          `json:"sccache"`
	Git       Tool          `json:"git"`
	Podman    Tool          `json:"podman"`
	Docker    Tool          `json:"docker"`
	Python    Python        `json:"python"`
	Torch     Torch         `json:"torch"`
	Driver    NVIDIADriver  `json:"driver"`
	GPUs      []GPU         `json:"gpus"`

	// Variables are those set that change builds or loading.
	Variables map[string]string `json:"variables,omitempty"`
	Results   []Result          `json:"results"`
}

// A Tool is a program with a version.
type Tool struct {
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	OnPath  bool   `json:"on_path,omitempty"`
}

// ProbeOptions says how to look. The zero value looks at everything that needs no
// compiling.
type ProbeOptions struct {
	CXX      string // C++ compiler to use instead of looking for one
	CUDAHome string // toolkit to use
	Python   string // interpreter to look at
	WorkDir  string // where builds would be; empty: not looked at
	TempDir  string // where a test program is compiled; empty: none is
	// CacheDirs are folders for compiled modules: the one that is used, then others that could be.
	CacheDirs []string
	Timeout   time.Duration // for each program that is run; default 10 s
	Table     *compat.Table // default compat.Default()
}

// Probe looks at a machine. It never fails: what is not there or does not work is in
// the results. Independent probes run at the same time. Programs are run, none of them
// changes anything but files in TempDir.
func Probe(ctx context.Context, h *Host, opts ProbeOptions) *Machine {
	if opts.Timeout <= 0 {
		opts.Timeout = probeTimeout
	}
	if opts.Table == nil {
		opts.Table = compat.Default()
	}
	p := &prober{Host: h, opts: opts, m: &Machine{OS: h.OS, Arch: h.Arch, Root: h.Root}}
	p.system()
	// Python and torch tell where else toolkits and ninja may be, so they come first;
	// the others wait for nothing but them.
	var wait sync.WaitGroup
	results := make([][]Result, 7)
	start := func(i int, probes ...func() Result) {
		wait.Go(func() {
			for _, probe := range probes {
				began := time.Now()
				r := probe()
				r.Elapsed = time.Since(began)
				results[i] = append(results[i], r)
			}
		})
	}
	start(0, func() Result { return p.machine(ctx) })
	start(1, func() Result { return p.compilers(ctx) })
	if h.OS == "windows" {
		start(2, func() Result { return p.msvc(ctx) })
	}
	start(3, func() Result { return p.python(ctx) }, p.pythonHeaders, p.torch, func() Result { return p.ninja(ctx) }, func() Result { return p.cuda(ctx) }, func() Result { return p.rocm(ctx) })
	start(5, p.tools(ctx)...)
	start(6, func() Result { return p.driver(ctx) })
	wait.Wait()
	if p.pythonGLIBC != "" { // modules are loaded into Python
		p.m.GLIBC, p.m.Musl = p.pythonGLIBC, ""
	}
	p.m.Results = append(slices.Concat(results...), p.hostCompiler(ctx))
	p.variables()
	return p.m
}

// prober is one run of Probe. Every probe writes fields of m of its own.
// probeTimeout is how long a program may take to say what it is.
const probeTimeout = 10 * time.Second

type prober struct {
	*Host
	opts ProbeOptions
	m    *Machine

	pythonGLIBC string // what the interpreter says
}

// probeVariables change what is built or loaded without a trace on the command line.
var probeVariables = []string{
	"CUDA_HOME", "CUDA_PATH", "CUDAHOSTCXX", "NVCC_CCBIN", "CC", "CXX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "PYTORCH_NVCC",
	"TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH", "ROCM_HOME", "ROCM_PATH", "MAX_JOBS", "NVCC_THREADS", "FORCE_CUDA", "CUDA_VISIBLE_DEVICES",
	"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "CUDA_DISABLE_PTX_JIT", "CUDA_FORCE_PTX_JIT", "TORCH_EXTENSIONS_DIR",
	"TORCH_DONT_CHECK_COMPILER_ABI", "TORCH_NO_COMPILER_WRAPPER", "EXLLAMA_NOCOMPILE", "EXLLAMA_VERBOSE", "EXLLAMA_EXT_DEBUG", "FLASH_ATTENTION_CUDA_ARCHS",
	"LD_LIBRARY_PATH", "LD_PRELOAD", "DISTUTILS_USE_SDK", "VSCMD_ARG_TGT_ARCH",
}

func (p *prober) variables() {
	for _, name := range probeVariables {
		if v, ok := p.LookupEnv(name); ok {
			if p.m.Variables == nil {
				p.m.Variables = map[string]string{}
			}
			p.m.Variables[name] = v
		}
	}
}

// Toolkit is the CUDA toolkit that a build would use, and whether there is one.
func (m *Machine) Toolkit() (CUDAToolkit, bool) {
	if len(m.CUDA) == 0 {
		return CUDAToolkit{}, false
	}
	return m.CUDA[0], true
}

// Result returns what a probe found.
func (m *Machine) Result(id string) Result {
	for _, r := range m.Results {
		if r.ID == id {
			return r
		}
	}
	return Result{ID: id, Status: Skipped}
}

// Evidence is what the machine adds to the evidence of a failure on it.
func (m *Machine) Evidence() Evidence {
	e := Evidence{
		OS: m.OS, Distribution: m.Distribution, Python: m.Python.Minor(), TorchFound: m.Torch.Version, TorchCUDAFound: m.Torch.CUDA,
		TorchABIFound: m.Torch.CXX11ABI, GLIBCFound: m.GLIBC, DriverFound: m.Driver.Version, FreeDiskBytes: m.FreeDiskBytes, Root: m.Root,
	}
	if m.Torch.Version != "" && m.Torch.CUDA == "" {
		e.TorchCUDAFound = "none"
	}
	if t, ok := m.Toolkit(); ok {
		e.ToolkitFound = t.Version
	}
	for _, g := range m.GPUs {
		if g.ComputeCapability != "" {
			e.GPUsFound = append(e.GPUsFound, g.ComputeCapability)
		}
	}
	for _, id := range []string{"c++", "nvcc", "ninja", "python-headers", "cl"} {
		if m.Result(id).Status == Missing {
			e.ToolsMissing = append(e.ToolsMissing, id)
		}
	}
	if m.Ninja.Path != "" && !m.Ninja.OnPath {
		e.ToolsFound = map[string]string{"ninja": m.Ninja.Path}
	}
	return e
}

// launcherless is the compiler in a variable such as CXX, which may have a launcher in front.
func launcherless(value string) string {
	for f := range strings.FieldsSeq(value) {
		switch base := f[strings.LastIndexAny(f, `/\`)+1:]; base {
		case "ccache", "sccache", "distcc", "env":
			continue
		}
		return f
	}
	return ""
}
