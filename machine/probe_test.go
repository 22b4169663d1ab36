package machine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/machine/machinetest"
)

func probe(f *machinetest.Fake, opts machine.ProbeOptions) *machine.Machine {
	return machine.Probe(context.Background(), f.Host(), opts)
}

func TestProbeWorkstation(t *testing.T) {
	m := probe(machinetest.Workstation(), machine.ProbeOptions{WorkDir: "/home/user/src", TempDir: "/tmp/x"})
	want := &machine.Machine{
		OS: "linux", Arch: "amd64", Distribution: "ubuntu debian", Release: "24.04", SystemName: "Ubuntu 24.04.3 LTS", GLIBC: "2.39",
		CPUs: 2, CPUQuota: 2, MemoryBytes: 32 << 30, FreeDiskBytes: 50 << 30, TempNoExec: true, NetworkFileSystem: "nfs4",
		Compilers: []machine.Compiler{
			{Path: "/usr/bin/c++", Kind: "gcc", Version: "13.3.0", Major: 13, Fault: "/usr/bin/c++: " + exec.ErrNotFound.Error()},
			{Path: "/usr/bin/g++-14", Kind: "gcc", Version: "14.2.0", Major: 14},
			{Path: "/usr/bin/g++-9", Kind: "gcc", Version: "9.5.0", Major: 9},
			{Path: "/usr/bin/clang++", Kind: "clang", Version: "18.1.3", Major: 18},
		},
		CUDA: []machine.CUDAToolkit{{
			Home: "/usr/local/cuda", NVCC: "/usr/local/cuda/bin/nvcc", Version: "12.8", Full: "12.8.93", Source: "PATH", Layout: "toolkit",
			Archs: "5.0 7.5 8.0 8.6 8.9 9.0 9.0a 10.0 10.0a 10.1 10.1a 12.0 12.0a", MaxGCC: 14, HostCompiler: "/usr/bin/c++",
		}},
		Ninja:  machine.Tool{Path: "/venv/bin/ninja", Version: "1.11.1", OnPath: true},
		CCache: machine.Tool{Path: "/usr/bin/ccache", Version: "4.9.1", OnPath: true},
		Git:    machine.Tool{Path: "/usr/bin/git", Version: "2.43.0", OnPath: true},
		Python: machine.Python{
			Path: "/venv/bin/python", Version: "3.12.3", SOABI: "cpython-312-x86_64-linux-gnu", ExtSuffix: ".cpython-312-x86_64-linux-gnu.so",
			Include: "/usr/include/python3.12", Headers: true, Prefix: "/venv", BasePrefix: "/usr", Scripts: "/venv/bin",
			SitePackages: []string{"/venv/lib/python3.12/site-packages"},
		},
		Torch:  machine.Torch{Dir: "/venv/lib/python3.12/site-packages/torch", Version: "2.9.0+cu128", CUDA: "12.8", Git: "0fabc3ba44823f257e70ce397d989c8de5e362c1"},
		Driver: machine.NVIDIADriver{Version: "580.159.04", CUDA: "13.0", Library: true, Source: "nvidia-smi"},
		GPUs: []machine.GPU{{
			Vendor: "nvidia", Name: "NVIDIA H200", UUID: "GPU-11111111-2222-3333-4444-555555555555", ComputeCapability: "9.0", MemoryBytes: 143771 << 20,
		}},
	}
	if diff := cmp.Diff(want, m, cmpopts.IgnoreFields(machine.Machine{}, "Results", "Variables")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var order []string
	for _, r := range m.Results {
		order = append(order, r.ID)
	}
	if diff := cmp.Diff("machine c++ python python-headers torch ninja nvcc hipcc ccache sccache git podman docker gpu nvcc-host-compiler", strings.Join(order, " ")); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	again := probe(machinetest.Workstation(), machine.ProbeOptions{WorkDir: "/home/user/src", TempDir: "/tmp/x"})
	if diff := cmp.Diff(m, again, cmpopts.IgnoreFields(machine.Result{}, "Elapsed")); diff != "" {
		t.Errorf("two looks differ:\n%s", diff)
	}
}

// problems are what Examine says, as "severity id".
func problems(r *machine.Report) []string {
	out := []string{}
	for _, p := range r.Problems {
		out = append(out, p.Severity.String()+" "+p.ID)
	}
	return out
}

// able are the abilities that are there.
func able(r *machine.Report) string {
	var out []string
	for _, a := range r.Abilities {
		if a.OK {
			out = append(out, a.ID)
		}
	}
	return strings.Join(out, " ")
}

// TestExamine changes one thing of the workstation at a time.
func TestExamine(t *testing.T) {
	const all = "build-c++ build-cuda compile-at-import run-cuda"
	tests := []struct {
		name   string
		change func(f *machinetest.Fake)
		want   []string
		able   string
		fix    string // in the first fix
	}{
		{"nothing", func(*machinetest.Fake) {}, []string{}, all, ""},
		{"no compiler", func(f *machinetest.Fake) {
			for p := range f.Programs {
				if strings.Contains(p, "++") {
					delete(f.Programs, p)
				}
			}
		}, []string{"warning no-compiler"}, "run-cuda", "sudo apt-get install -y g++"},
		{"broken compiler", func(f *machinetest.Fake) {
			for p := range f.Programs {
				if strings.Contains(p, "++") {
					f.Programs[p] = "!c++: error while loading shared libraries: libz.so.1"
				}
			}
		}, []string{"error no-compiler"}, "run-cuda", "sudo apt-get install -y g++"},
		{"no ninja", func(f *machinetest.Fake) { delete(f.Programs, "/venv/bin/ninja --version") }, []string{"warning ninja-missing"}, "build-c++ build-cuda run-cuda", "pip install ninja"},
		{"ninja off PATH", func(f *machinetest.Fake) {
			f.Env = []string{"PATH=/usr/local/cuda/bin:/usr/bin", "VIRTUAL_ENV=/venv"}
		}, []string{"warning ninja-missing"}, "build-c++ build-cuda run-cuda", `export PATH="/venv/bin:$PATH"`},
		{"no headers", func(f *machinetest.Fake) { delete(f.Files, "/usr/include/python3.12/Python.h") }, []string{"warning python-headers"}, "run-cuda", "sudo apt-get install -y python3.12-dev"},
		{"no toolkit", func(f *machinetest.Fake) {
			for n := range f.Files {
				if strings.HasPrefix(n, "/usr/local/cuda") {
					delete(f.Files, n)
				}
			}
			delete(f.Programs, "/usr/local/cuda/bin/nvcc --version")
			delete(f.Programs, "/usr/local/cuda/bin/nvcc --list-gpu-code")
		}, []string{"warning no-nvcc"}, "build-c++ run-cuda", "repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb && sudo dpkg -i cuda-keyring_1.1-1_all.deb && sudo apt-get update && sudo apt-get install -y cuda-toolkit-12-8"},
		{"CUDA_HOME is wrong", func(f *machinetest.Fake) {
			f.Env = append(f.Env, "CUDA_HOME=/opt/old-cuda", "PATH=/venv/bin:/usr/bin")
			for n := range f.Files {
				if strings.HasPrefix(n, "/usr/local/cuda") {
					delete(f.Files, n)
				}
			}
			delete(f.Programs, "/usr/local/cuda/bin/nvcc --version")
			delete(f.Programs, "/usr/local/cuda/bin/nvcc --list-gpu-code")
		}, []string{"error no-nvcc"}, "build-c++ run-cuda", "unset CUDA_HOME"},
		{"toolkit without ptxas", func(f *machinetest.Fake) { delete(f.Files, "/usr/local/cuda/bin/ptxas") }, []string{"error no-nvcc"}, "build-c++ run-cuda", "cuda-toolkit-12-8"},
		{"nvcc does not run", func(f *machinetest.Fake) {
			f.Programs["/usr/local/cuda/bin/nvcc --version"] = "!nvcc: cannot execute binary file"
		}, []string{"error no-nvcc"}, "build-c++ run-cuda", "cuda-toolkit-12-8"},
		{"torch for another CUDA", func(f *machinetest.Fake) {
			f.Files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\n"
		}, []string{"error cuda-mismatch"}, "build-c++ run-cuda", "cuda-toolkit-13-0"},
		{"torch for another CUDA, its toolkit is there", func(f *machinetest.Fake) {
			f.Files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\n"
			f.Programs["/usr/local/cuda-13.0/bin/nvcc --version"] = "Cuda compilation tools, release 13.0, V13.0.88\n"
		}, []string{"error cuda-mismatch", "note toolkit-differs"}, "build-c++ run-cuda", "export CUDA_HOME=/usr/local/cuda-13.0"},
		{"CPU torch", func(f *machinetest.Fake) {
			f.Files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n"
		}, []string{"error torch-cpu"}, "build-c++ build-cuda", "--index-url https://download.pytorch.org/whl/cu130"},
		{"torch lacks a library", func(f *machinetest.Fake) {
			delete(f.Files, "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so")
		}, []string{"error damaged-module"}, all, "--force-reinstall torch"},
		{"gcc too new, an older one is there", func(f *machinetest.Fake) {
			f.Files["/usr/local/cuda/include/crt/host_config.h"] = "#if __GNUC__ > 12\n"
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "export CUDAHOSTCXX=/usr/bin/g++-9"},
		{"gcc too new", func(f *machinetest.Fake) {
			f.Files["/usr/local/cuda/include/crt/host_config.h"] = "#if __GNUC__ > 12\n"
			delete(f.Programs, "/usr/bin/g++-9 --version")
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++-12"},
		{"CUDAHOSTCXX", func(f *machinetest.Fake) { f.Env = append(f.Env, "CUDAHOSTCXX=g++-14") }, []string{}, all, ""},
		{"CUDAHOSTCXX with a path, CC", func(f *machinetest.Fake) {
			f.Env = append(f.Env, "CC=/opt/gcc/bin/gcc", "CXX=ccache /opt/gcc/bin/g++")
			f.Programs["/opt/gcc/bin/g++ --version"] = "g++ (GCC) 13.3.0\n"
		}, []string{}, all, ""},
		{"CUDAHOSTCXX is wrong", func(f *machinetest.Fake) { f.Env = append(f.Env, "CUDAHOSTCXX=g++-11") }, []string{"error no-compiler"}, "build-c++ run-cuda", "unset CUDAHOSTCXX"},
		{"CUDAHOSTCXX is too new", func(f *machinetest.Fake) {
			f.Env = append(f.Env, "CUDAHOSTCXX=g++-14")
			f.Files["/usr/local/cuda/include/crt/host_config.h"] = "#if __GNUC__ > 13\n"
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "export CUDAHOSTCXX=/usr/bin/c++"},
		{"only clang", func(f *machinetest.Fake) {
			for p := range f.Programs {
				if strings.Contains(p, "g++") || strings.Contains(p, "bin/c++") {
					delete(f.Programs, p)
				}
			}
			f.Programs["/usr/bin/clang++ --version"] = "clang version 18.1.3\n"
		}, []string{"error no-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++"},
		{"driver too old", func(f *machinetest.Fake) {
			f.Programs["/usr/bin/"+machinetest.SMI] = "0, GPU-1, NVIDIA GeForce GTX 1080, 6.1, 470.82.01, 8119 MiB\n"
		}, []string{"error driver-old", "error no-kernel-image"}, "build-c++ build-cuda compile-at-import", "update the NVIDIA driver to 525.60.13"},
		{"nvidia-smi fails", func(f *machinetest.Fake) {
			f.Programs["/usr/bin/"+machinetest.SMI] = "!Failed to initialize NVML: Driver/library version mismatch\n"
		}, []string{"error no-device"}, "build-c++ build-cuda compile-at-import", "--gpus all"},
		{"GPUs hidden", func(f *machinetest.Fake) { f.Env = append(f.Env, "CUDA_VISIBLE_DEVICES=") }, []string{"note no-device"}, "build-c++ build-cuda compile-at-import", "unset CUDA_VISIBLE_DEVICES"},
		{"arch list is nonsense", func(f *machinetest.Fake) { f.Env = append(f.Env, "TORCH_CUDA_ARCH_LIST=9.0;99") }, []string{"error arch-unsupported"}, all, "TORCH_CUDA_ARCH_LIST"},
		{"variable that nothing reads", func(f *machinetest.Fake) { f.Env = append(f.Env, "FLASH_ATTENTION_CUDA_ARCHS=90") }, []string{"warning arch-ignored"}, all, "FLASH_ATTN_CUDA_ARCHS"},
		{"Fedora", func(f *machinetest.Fake) {
			f.Files["/etc/os-release"] = "ID=rocky\nID_LIKE=\"rhel centos fedora\"\n"
			delete(f.Files, "/usr/include/python3.12/Python.h")
		}, []string{"warning python-headers"}, "run-cuda", "sudo dnf install -y python3.12-devel"},
		{"Python without headers, not the system's", func(f *machinetest.Fake) {
			f.Programs["/venv/bin/python -"] = strings.ReplaceAll(f.Programs["/venv/bin/python -"], "/usr/include", "/opt/python/include")
		}, []string{"warning python-headers"}, "run-cuda", "does not come from the system"},
		{"CPU torch without a GPU", func(f *machinetest.Fake) {
			f.Files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n"
			delete(f.Programs, "/usr/bin/"+machinetest.SMI)
			delete(f.Files, "/proc/driver/nvidia/version")
		}, []string{"warning torch-cpu"}, "build-c++ build-cuda", "--index-url https://download.pytorch.org/whl/cu128"},
		{"root needs no sudo", func(f *machinetest.Fake) {
			f.Root = true
			delete(f.Files, "/usr/include/python3.12/Python.h")
		}, []string{"warning python-headers"}, "run-cuda", "apt-get install -y python3.12-dev"},
		{"distribution's nvcc, gcc too new", func(f *machinetest.Fake) {
			machinetest.Distribution(f)
			delete(f.Programs, "/usr/bin/g++-9 --version")
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++-12"},
		{"distribution's nvcc, an older gcc is there", machinetest.Distribution, []string{}, all, ""},
		{"distribution's nvcc without a compiler", func(f *machinetest.Fake) {
			machinetest.Distribution(f)
			for _, c := range []string{"c++", "g++", "g++-9", "g++-14"} {
				delete(f.Programs, "/usr/bin/"+c+" --version")
			}
		}, []string{"error no-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++"},
		{"distribution's torch without a toolkit", func(f *machinetest.Fake) {
			machinetest.DebianTorch(f)
			delete(f.Programs, "/usr/local/cuda/bin/nvcc --version")
			delete(f.Programs, "/usr/local/cuda/bin/nvcc --list-gpu-code")
		}, []string{"warning no-nvcc"}, "build-c++ run-cuda", "sudo apt-get install -y nvidia-cuda-toolkit"},
		{"distribution's torch for the CPU", func(f *machinetest.Fake) {
			machinetest.DebianTorch(f)
			f.Files["/usr/lib/python3/dist-packages/torch/version.py"] = "__version__ = '2.9.0+debian'\n"
		}, []string{"error torch-cpu"}, "build-c++ build-cuda", "sudo apt-get install -y python3-torch-cuda libtorch-cuda-dev"},
		{"docker without its daemon", func(f *machinetest.Fake) {
			f.Programs["/usr/bin/docker --version"] = "Docker version 28.2.2, build e6534b4\n"
			f.Programs["/usr/bin/docker version --format {{.Server.Version}}"] = "!Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n"
		}, []string{"warning container-runtime"}, all, "sudo systemctl start docker"},
		{"docker without its daemon, for root, beside podman", func(f *machinetest.Fake) {
			f.Root = true
			f.Programs["/usr/bin/podman --version"] = "podman version 4.3.1\n"
			f.Programs["/usr/bin/docker --version"] = "Docker version 28.2.2, build e6534b4\n"
			f.Programs["/usr/bin/docker version --format {{.Server.Version}}"] = "!Cannot connect to the Docker daemon\n"
		}, []string{"note container-runtime"}, "build-c++ build-cuda build-containers compile-at-import run-cuda", "systemctl start docker"},
		{"docker with its daemon", func(f *machinetest.Fake) {
			f.Programs["/usr/bin/docker --version"] = "Docker version 28.2.2, build e6534b4\n"
			f.Programs["/usr/bin/docker version --format {{.Server.Version}}"] = "28.2.2\n"
		}, []string{}, "build-c++ build-cuda build-containers compile-at-import run-cuda", ""},
		{"cudart from PyPI", func(f *machinetest.Fake) {
			delete(f.Files, "/usr/local/cuda/lib64/libcudart.so")
			f.Files["/usr/local/cuda/lib64/libcudart.so.12"] = ""
		}, []string{"warning link-lib"}, "build-c++ run-cuda", "ln -s libcudart.so.12 /usr/local/cuda/lib64/libcudart.so"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := machinetest.Workstation()
			tt.change(f)
			r := machine.Examine(probe(f, machine.ProbeOptions{}), nil)
			if diff := cmp.Diff(tt.want, problems(r)); diff != "" {
				t.Errorf("problems (-want +got):\n%s\n%v", diff, r.Problems)
			}
			if diff := cmp.Diff(tt.able, able(r)); diff != "" {
				t.Errorf("abilities (-want +got):\n%s", diff)
			}
			if len(r.Problems) > 0 && !strings.Contains(r.Problems[0].Fix, tt.fix) {
				t.Errorf("fix %q, want %q in it", r.Problems[0].Fix, tt.fix)
			}
			for _, p := range r.Problems {
				if f.Root && strings.Contains(p.Fix, "sudo") {
					t.Errorf("root is told to use sudo: %s", p.Fix)
				}
			}
			if want := slices.ContainsFunc(tt.want, func(s string) bool { return strings.HasPrefix(s, "error") }); r.HasErrors() != want {
				t.Errorf("HasErrors is %v", r.HasErrors())
			}
		})
	}
}

// TestToolkitOrder: what is searched where, and that 12.10 is above 12.9.
func TestToolkitOrder(t *testing.T) {
	release := func(v string) string { return "Cuda compilation tools, release " + v + ", V" + v + ".1\n" }
	f := &machinetest.Fake{OS: "linux", Env: []string{"PATH=/usr/bin", "CUDA_HOME=/cuda/home/", "CUDA_PATH=/cuda/path", "CONDA_PREFIX=/conda"}, Programs: map[string]string{
		"/cuda/home/bin/nvcc --version":            release("12.4"),
		"/cuda/path/bin/nvcc --version":            release("12.5"),
		"/usr/bin/nvcc --version":                  release("11.8"),
		"/conda/bin/nvcc --version":                release("12.1"),
		"/usr/local/cuda-12.9/bin/nvcc --version":  release("12.9"),
		"/usr/local/cuda-12.10/bin/nvcc --version": release("12.10"),
	}, Files: map[string]string{"/usr/lib/nvidia-cuda-toolkit/bin/nvcc": ""}}
	var got []string
	for _, c := range probe(f, machine.ProbeOptions{}).CUDA {
		got = append(got, c.Source+" "+c.Version+" "+c.Layout)
	}
	want := []string{"CUDA_HOME 12.4 toolkit", "CUDA_PATH 12.5 toolkit", "PATH 11.8 distribution", "CONDA_PREFIX 12.1 toolkit", "/usr/local 12.10 toolkit", "/usr/local 12.9 toolkit"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// An option goes before everything.
	m := probe(f, machine.ProbeOptions{CUDAHome: "/conda"})
	if k, ok := m.Toolkit(); !ok || k.Version != "12.1" || k.Source != "option" {
		t.Errorf("with an option: %+v", k)
	}
}

func TestProbeWindows(t *testing.T) {
	m := probe(machinetest.Windows(), machine.ProbeOptions{})
	want := []machine.MSVC{
		{
			Home: `C:\Program Files\Microsoft Visual Studio\2022\Community`, CL: `C:\Program Files\Microsoft Visual Studio\2022\Community\VC\Tools\MSVC\14.39.33519\bin\Hostx64\x64\cl.exe`,
			Toolset: "14.39.33519", MSCVer: 1939, Source: "vswhere", Toolsets: []string{"14.39.33519", "14.9.1"}, VCVarsAll: `C:\Program Files\Microsoft Visual Studio\2022\Community\VC\Auxiliary\Build\vcvarsall.bat`,
		},
		{
			Home: `C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools`, CL: `C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools\VC\Tools\MSVC\14.29.30133\bin\Hostx64\x64\cl.exe`,
			Toolset: "14.29.30133", MSCVer: 1929, Source: "folders", Toolsets: []string{"14.29.30133"},
		},
		{
			Home: `C:\Program Files (x86)\Microsoft Visual Studio 14.0`, CL: `C:\Program Files (x86)\Microsoft Visual Studio 14.0\VC\bin\amd64\cl.exe`,
			Toolset: "14.0", MSCVer: 1900, Source: "registry",
		},
	}
	if diff := cmp.Diff(want, m.MSVC); diff != "" {
		t.Errorf("MSVC (-want +got):\n%s", diff)
	}
	var kits []string
	for _, k := range m.CUDA {
		kits = append(kits, k.Version+" "+k.Source)
	}
	if diff := cmp.Diff([]string{"12.10 CUDA_PATH_V12_10", "12.4 CUDA_PATH_V12_4"}, kits); diff != "" {
		t.Errorf("CUDA (-want +got):\n%s", diff)
	}
	if m.Torch.Version != "2.9.0+cu128" || !slices.Contains(m.Torch.Missing, "torch_cuda.dll") {
		t.Errorf("torch %+v", m.Torch)
	}
	if len(m.GPUs) != 1 || m.GPUs[0].ComputeCapability != "8.9" || m.Driver.Version != "560.94" {
		t.Errorf("GPUs %+v, driver %+v", m.GPUs, m.Driver)
	}
	if !m.Python.Headers {
		t.Error("headers were not found")
	}
	r := machine.Examine(m, nil)
	if !r.Can(machine.BuildCPP) {
		t.Errorf("%+v", r.Abilities)
	}

	t.Run("developer shell", func(t *testing.T) {
		f := machinetest.Windows()
		f.Env = append(f.Env, `Path=C:\VS\VC\Tools\MSVC\14.44.35207\bin\Hostx64\x64;C:\Windows\System32`, "VSCMD_ARG_TGT_ARCH=x64", `CUDA_HOME=C:\cuda124`)
		f.Files[`C:\VS\VC\Tools\MSVC\14.44.35207\bin\Hostx64\x64\cl.exe`] = ""
		f.Programs[`C:\cuda124\bin\nvcc.exe --version`] = "Cuda compilation tools, release 12.3, V12.3.52\r\n"
		m := probe(f, machine.ProbeOptions{})
		if got := m.MSVC[0]; got.Source != "developer shell" || got.Toolset != "14.44.35207" || got.MSCVer != 1944 || got.Home != `C:\VS` {
			t.Errorf("%+v", got)
		}
		got := problems(machine.Examine(m, nil))
		for _, want := range []string{"error msvc-too-new", "warning sdk-variable"} {
			if !slices.Contains(got, want) {
				t.Errorf("problems %v lack %q", got, want)
			}
		}
	})
	t.Run("32-bit compiler on PATH", func(t *testing.T) {
		f := machinetest.Windows()
		f.Env = append(f.Env, `Path=C:\VS\VC\Tools\MSVC\14.39.1\bin\Hostx86\x86`)
		f.Files[`C:\VS\VC\Tools\MSVC\14.39.1\bin\Hostx86\x86\cl.exe`] = ""
		if r := probe(f, machine.ProbeOptions{}).Result("cl"); r.Status != machine.Unsupported {
			t.Errorf("%+v", r)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		f := &machinetest.Fake{OS: "windows"} // no variables at all: the search must not stumble
		m := probe(f, machine.ProbeOptions{})
		if r := m.Result("cl"); r.Status != machine.Missing {
			t.Errorf("%+v", r)
		}
		if got := problems(machine.Examine(m, nil)); !slices.Contains(got, "warning no-msvc") {
			t.Errorf("problems %v", got)
		}
	})
}

func utf16le(s string) string {
	var b bytes.Buffer
	for _, u := range utf16.Encode([]rune(s)) {
		_ = binary.Write(&b, binary.LittleEndian, u) // to memory
	}
	return b.String()
}

func TestVCVars(t *testing.T) {
	m := machine.MSVC{VCVarsAll: `C:\VS\VC\Auxiliary\Build\vcvarsall.bat`}
	f := &machinetest.Fake{OS: "windows", Programs: map[string]string{
		`cmd /u /c "C:\VS\VC\Auxiliary\Build\vcvarsall.bat" x64 >nul && set`:                   utf16le("Path=C:\\VS\\bin;C:\\Ärger\r\nINCLUDE=C:\\inc\r\nLib=C:\\lib\r\n"),
		`cmd /u /c "C:\VS\VC\Auxiliary\Build\vcvarsall.bat" x64 -vcvars_ver=14.39 >nul && set`: utf16le("PATH=x\r\n"),
	}}
	got, err := machine.VCVars(t.Context(), f.Host(), m, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"PATH": `C:\VS\bin;C:\Ärger`, "INCLUDE": `C:\inc`, "LIB": `C:\lib`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := machine.VCVars(t.Context(), f.Host(), m, "14.39"); err == nil || !strings.Contains(err.Error(), "INCLUDE") {
		t.Errorf("an environment without INCLUDE: %v", err)
	}
	if _, err := machine.VCVars(t.Context(), f.Host(), machine.MSVC{}, ""); err == nil {
		t.Error("no script, no error")
	}
}

func TestProbeROCm(t *testing.T) {
	f := machinetest.ROCm()
	m := probe(f, machine.ProbeOptions{})
	wantKits := []machine.ROCmToolkit{{Home: "/opt/rocm-6.2.4", HIPCC: "/opt/rocm-6.2.4/bin/hipcc", Version: "6.2.4", Source: "/opt"}, {Home: "/opt/rocm-5.7.0", Version: "5.7.0", Source: "/opt"}}
	if diff := cmp.Diff(wantKits, m.ROCm); diff != "" {
		t.Errorf("ROCm (-want +got):\n%s", diff)
	}
	wantGPUs := []machine.GPU{{Index: 0, Vendor: "amd", Target: "gfx90a"}, {Index: 1, Vendor: "amd", Target: "gfx1100"}}
	if diff := cmp.Diff(wantGPUs, m.GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	r := machine.Examine(m, nil)
	if !r.Can(machine.BuildROCm) || !r.Can(machine.RunROCm) || r.Can(machine.RunCUDA) {
		t.Errorf("%+v", r.Abilities)
	}
	// ROCm from Python packages goes before one of the system.
	const sdk = "/lib/site/lib/python3.12/site-packages/_rocm_sdk_core"
	f.Files[sdk+"/bin/hipcc"] = ""
	if m := probe(f, machine.ProbeOptions{}); len(m.ROCm) != 3 || m.ROCm[0].Home != sdk || m.ROCm[0].Source != "site-packages" {
		t.Errorf("ROCm from packages: %+v", m.ROCm)
	}
}

// TestHang: a driver that does not answer costs the time limit and nothing more.
func TestHang(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the programs of this test are shell scripts")
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\nexec /bin/sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := machine.Probe(t.Context(), machine.Local([]string{"PATH=" + bin + ":/usr/bin:/bin"}), machine.ProbeOptions{Timeout: 50 * time.Millisecond, Python: "/nowhere/python"})
	if r := m.Result("gpu"); r.Status != machine.Broken || !strings.Contains(r.Detail, "no answer in time") {
		t.Errorf("%+v", r)
	}
}

// TestLocal looks at the machine that runs the test, with a real compiler, interpreter
// and nvcc.
func TestLocal(t *testing.T) {
	interpreter := os.Getenv("KILN_PYTHON")
	if interpreter == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON does not name an interpreter")
	}
	m := machine.Probe(t.Context(), machine.Local(os.Environ()), machine.ProbeOptions{Python: interpreter, WorkDir: t.TempDir(), TempDir: t.TempDir(), Timeout: time.Minute})
	if m.Python.Version == "" || len(m.Python.SitePackages) == 0 {
		t.Errorf("Python: %+v, %+v", m.Python, m.Result("python"))
	}
	if r := m.Result("c++"); r.Status != machine.OK {
		kilntest.Lacking(t, "python", "no C++ compiler: %s", r.Detail)
	}
	if m.FreeDiskBytes <= 0 {
		t.Error("free space is not known")
	}
	i := slices.IndexFunc(m.CUDA, func(k machine.CUDAToolkit) bool { return k.Layout == "pypi" })
	if i < 0 {
		kilntest.Lacking(t, "nvcc", "the interpreter has no nvcc among its packages")
	}
	kit := m.CUDA[i]
	table, ok := compat.Default().Emits(kit.Version)
	if !ok {
		t.Skipf("the table does not know CUDA %s", kit.Version)
	}
	if diff := cmp.Diff(table.String(), kit.Archs); diff != "" {
		t.Errorf("what nvcc %s lists and what the table says (-table +nvcc):\n%s", kit.Version, diff)
	}
	if host, ok := compat.Default().HostCompilers(kit.Version); ok && host.GCC[1] != kit.MaxGCC {
		t.Errorf("nvcc %s accepts gcc up to %d, the table says %d", kit.Version, kit.MaxGCC, host.GCC[1])
	}
}

// TestSitePackages: torch is looked for where the interpreter would import it from, and modules of
// the working folder do not get in the way.
func TestSitePackages(t *testing.T) {
	venv := os.Getenv("KILN_PYTHON")
	if venv == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON does not name an interpreter")
	}
	venv, err := filepath.Abs(venv)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(code string) string {
		cmd := exec.CommandContext(t.Context(), venv, "-I", "-c", "import os, site, sys; print("+code+")")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	base := t.TempDir()
	user := filepath.Join(base, "lib", "python"+ask("'%d.%d' % sys.version_info[:2]"), "site-packages")
	other := t.TempDir()
	for dir, version := range map[string]string{user: "2.9.0+cu128", other: "2.8.0+cpu"} {
		if err := os.MkdirAll(filepath.Join(dir, "torch"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "torch", "version.py"), []byte("__version__ = '"+version+"'\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("json.py", []byte("raise SystemExit('the wrong json')\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	system := ask("sys._base_executable")
	for _, tt := range []struct{ name, python, path, want string }{
		{"an interpreter with user packages", system, "", "2.9.0+cu128"},
		{"a virtual environment has none", venv, "", ""},
		{"PYTHONPATH goes first", system, other, "2.8.0+cpu"},
	} {
		env := append(os.Environ(), "PYTHONUSERBASE="+base, "PYTHONPATH="+tt.path)
		m := machine.Probe(t.Context(), machine.Local(env), machine.ProbeOptions{Python: tt.python, Timeout: time.Minute})
		if m.Python.Version == "" || m.Torch.Version != tt.want {
			t.Errorf("%s: torch %q, want %q; %+v", tt.name, m.Torch.Version, tt.want, m.Result("python"))
		}
		if runtime.GOOS == "linux" && m.GLIBC == "" && m.Musl == "" {
			t.Errorf("%s: the C library is not known", tt.name)
		}
	}
	// A path that is relative to the working folder is good in any other.
	rel, err := filepath.Rel(dir, venv)
	if err != nil {
		t.Fatal(err)
	}
	if m := machine.Probe(t.Context(), machine.Local(os.Environ()), machine.ProbeOptions{Python: rel, Timeout: time.Minute}); !filepath.IsAbs(m.Python.Path) {
		t.Errorf("%s was found as %s", rel, m.Python.Path)
	}
}

// TestTorchABI: the C++ ABI of torch is read from its library.
func TestTorchABI(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("libstdc++'s two ABIs exist on Linux")
	}
	cxx, err := exec.LookPath("g++")
	if err != nil {
		kilntest.Lacking(t, "cc", "no g++")
	}
	const source = "#include <string>\nnamespace c10 { namespace detail { void torchCheckFail(const char*, const std::string& s) { (void)s.size(); } } }\n"
	for _, abi := range []string{"0", "1"} {
		lib := filepath.Join(t.TempDir(), "libc10.so")
		cmd := exec.CommandContext(t.Context(), cxx, "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI="+abi, "-x", "c++", "-", "-o", lib)
		cmd.Stdin = strings.NewReader(source)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		data, err := os.ReadFile(lib)
		if err != nil {
			t.Fatal(err)
		}
		f := machinetest.Workstation()
		f.Files["/venv/lib/python3.12/site-packages/torch/lib/libc10.so"] = string(data)
		m := probe(f, machine.ProbeOptions{})
		if m.Torch.CXX11ABI != abi {
			t.Errorf("ABI %q, want %q", m.Torch.CXX11ABI, abi)
		}
		// It decides what an undefined symbol means.
		e := m.Evidence()
		e.ExitCode, e.Stage, e.LogLines = 1, machine.StageImport, []string{"ImportError: x.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs"}
		got := machine.Diagnose(e)
		if want := map[string]machine.Confidence{"0": machine.Likely, "1": machine.Certain}[abi]; len(got) != 1 || got[0].Confidence != want {
			t.Errorf("with ABI %s: %+v", abi, got)
		}
	}
}

// FuzzProbe: whatever files contain and programs print, looking at the machine and
// judging it ends without a fault.
func FuzzProbe(f *testing.F) {
	w := machinetest.Workstation()
	f.Add(w.Files["/etc/os-release"], machinetest.TorchVersion, w.Programs["/usr/bin/"+machinetest.SMI], machinetest.NVCC128, w.Files["/proc/mounts"], w.Programs["/venv/bin/python -"], "\x7fELF")
	f.Add("ID='a\\\"b'", "cuda = '1'\n__version__ = \"2\"", "0, x, y, [N/A], 390.1\n", "release 99.9, V99.9.9", "a b c", "{}", "")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, release, torch, gpus, nvcc, system, interpreter, library string) {
		w := machinetest.Workstation()
		w.Files["/etc/os-release"] = release
		w.Files["/venv/lib/python3.12/site-packages/torch/version.py"] = torch
		w.Files["/venv/lib/python3.12/site-packages/torch/lib/libc10.so"] = library
		for _, n := range []string{"/proc/mounts", "/proc/meminfo", "/proc/cpuinfo", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max", "/proc/driver/nvidia/version", "/sys/class/kfd/kfd/topology/nodes/1/properties", "/proc/driver/nvidia/gpus/0/information", "/opt/rocm/.info/version"} {
			w.Files[n] = system
		}
		w.Programs["/usr/bin/"+machinetest.SMI] = gpus
		w.Programs["/usr/local/cuda/bin/nvcc --version"] = nvcc
		w.Programs["/usr/local/cuda/bin/nvcc --list-gpu-code"] = nvcc
		w.Programs["/venv/bin/python -"] = interpreter
		m := probe(w, machine.ProbeOptions{WorkDir: "/home/x", TempDir: "/tmp/x"})
		r := machine.Examine(m, nil)
		if len(r.Abilities) == 0 {
			t.Error("no abilities")
		}
		for _, p := range r.Problems {
			if p.ID == "" || p.Message == "" || p.Fix == "" {
				t.Errorf("incomplete: %+v", p)
			}
		}
		env := &machinetest.Fake{OS: "windows", Programs: map[string]string{`cmd /u /c "x" x86_amd64 >nul && set`: system}}
		if _, err := machine.VCVars(t.Context(), env.Host(), machine.MSVC{VCVarsAll: "x"}, ""); err == nil && system == "" {
			t.Error("an empty environment is accepted")
		}
	})
}

// TestSlow: programs that hang cost their time limit; a compiler that only takes too
// long for the test compile is not broken.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := machinetest.Workstation().Host()
		run := h.Run
		h.Run = func(ctx context.Context, argv []string, stdin string) ([]byte, error) {
			if strings.Contains(argv[0], "nvidia-smi") || slices.Contains(argv, "-shared") {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return run(ctx, argv, stdin)
		}
		began := time.Now()
		m := machine.Probe(t.Context(), h, machine.ProbeOptions{TempDir: "/var/tmp/x"})
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("took %s: limits do not run at the same time", took)
		}
		if r := m.Result("c++"); r.Status != machine.OK || m.Compilers[0].Works || m.Compilers[0].Fault != "" {
			t.Errorf("%+v, %+v", r, m.Compilers[0])
		}
		if r := m.Result("gpu"); r.Status != machine.Broken || r.Detail != "no answer in time" {
			t.Errorf("%+v", r)
		}
	})
}

// TestSmoke: a compiler that compiles nothing is broken.
func TestSmoke(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the programs of this test are shell scripts")
	}
	for name, tt := range map[string]struct {
		script string
		status machine.Status
		works  bool
		fault  string
	}{
		"works":      {"exit 0", machine.OK, true, ""},
		"no headers": {"echo '<stdin>:1:10: fatal error: string: No such file or directory' >&2; exit 1", machine.Broken, false, "string: No such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			script := "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'c++ (GCC) 13.2.0'; exit 0; fi\n" + tt.script + "\n"
			if err := os.WriteFile(filepath.Join(bin, "c++"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			m := machine.Probe(t.Context(), machine.Local([]string{"PATH=" + bin}), machine.ProbeOptions{TempDir: t.TempDir(), Timeout: time.Minute, Python: "/nowhere/python"})
			if len(m.Compilers) != 1 {
				t.Fatalf("compilers %+v, %+v", m.Compilers, m.Result("c++"))
			}
			if c := m.Compilers[0]; c.Works != tt.works || c.Fault != tt.fault || m.Result("c++").Status != tt.status {
				t.Errorf("%+v, %+v", c, m.Result("c++"))
			}
		})
	}
}

// TestProbeCache: the folder for compiled modules, and another one where it cannot be used.
func TestProbeCache(t *testing.T) {
	f := machinetest.Workstation()
	f.Files["/proc/mounts"] = "/dev/sda / ext4 rw 0 0\ntmpfs /cache tmpfs rw,noexec 0 0\n"
	m := probe(f, machine.ProbeOptions{CacheDirs: []string{"/cache/jit", "/cache/other", "/home/user/.cache/kiln"}})
	if !m.CacheNoExec || m.CacheDir != "/cache/jit" || m.CacheOther != "/home/user/.cache/kiln" {
		t.Errorf("cache %q, noexec %v, other %q", m.CacheDir, m.CacheNoExec, m.CacheOther)
	}
	r := machine.Examine(m, nil)
	if diff := cmp.Diff([]string{"error noexec"}, problems(r)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if want := "export KILN_CACHE_DIR=/home/user/.cache/kiln"; r.Problems[0].Fix != want {
		t.Errorf("fix %q, want %q", r.Problems[0].Fix, want)
	}
	m.CacheNoExec, m.CacheFreeBytes = false, 1<<20
	if diff := cmp.Diff([]string{"warning disk-full"}, problems(machine.Examine(m, nil))); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	h := f.Host()
	for path, want := range map[string]bool{"/cache": true, "/cache/x/y": true, "/cachet": false, "/home": false} {
		if got := h.NoExec(path); got != want {
			t.Errorf("NoExec(%s) = %v", path, got)
		}
	}
}

// TestCUDAHomes: kiln doctor finds a toolkit in each of the places that builds are told of.
func TestCUDAHomes(t *testing.T) {
	homes := machine.CUDAHomes("12.8")
	want := []string{
		"/usr/local/cuda", "/usr/local/cuda-12.8", "/usr/local/cuda-12", "/opt/cuda", "nvidia/cu12.8", "nvidia/cu12", "nvidia/cuda_nvcc",
	}
	if diff := cmp.Diff(want, homes); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	for _, home := range homes {
		if !strings.HasPrefix(home, "/") {
			home = "/venv/lib/python3.12/site-packages/" + home
		}
		f := machinetest.Workstation()
		f.Env = []string{"PATH=/venv/bin:/usr/bin", "VIRTUAL_ENV=/venv"}
		for name, text := range f.Programs {
			if rest, ok := strings.CutPrefix(name, "/usr/local/cuda/"); ok {
				delete(f.Programs, name)
				f.Programs[home+"/"+rest] = text
			}
		}
		m := machine.Probe(t.Context(), f.Host(), machine.ProbeOptions{})
		if len(m.CUDA) != 1 || m.CUDA[0].Home != home || m.CUDA[0].Version != "12.8" {
			t.Errorf("%s: found %+v", home, m.CUDA)
		}
	}
}

// TestDriverCUDA: a driver that is named by fewer numbers than the table has is one of that release.
func TestDriverCUDA(t *testing.T) {
	for driver, want := range map[string]string{"580.65": "13.0", "580.65.06": "13.0", "580.65.05": "12.9", "580": "13.0", "580.20": "12.9", "570.26": "12.8", "525.60.13": "12.0"} {
		if got := machine.DriverCUDA(compat.Default(), driver, "linux"); got != want {
			t.Errorf("driver %s is CUDA %s, want %s", driver, got, want)
		}
	}
}
