package machine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/machine"
)

// A fake is a machine that is made up: files, and what programs print.
type fake struct {
	os, arch string
	env      []string
	files    map[string]string
	// programs maps a command line, words separated by spaces, to its output. An output
	// that begins with "!" is a failure. A program is a file as well.
	programs map[string]string
	registry map[string]string
	root     bool
}

func (f *fake) sep() string {
	if f.os == "windows" {
		return `\`
	}
	return "/"
}

func (f *fake) host() *machine.Host {
	if f.arch == "" {
		f.arch = "amd64"
	}
	files := maps.Clone(f.files)
	if files == nil {
		files = map[string]string{}
	}
	for line := range f.programs {
		// Only the first word is a path, which may have spaces on Windows.
		name := line
		if i := strings.Index(line, ".exe "); i >= 0 {
			name = line[:i+4]
		} else if f.os != "windows" {
			name, _, _ = strings.Cut(line, " ")
		}
		if _, ok := files[name]; !ok {
			files[name] = ""
		}
	}
	info := func(name string, dir bool) fs.FileInfo {
		m := fstest.MapFS{"x": {Mode: 0o755}}
		if dir {
			m = fstest.MapFS{"x/y": {}}
		}
		i, _ := m.Stat("x")
		return i
	}
	return &machine.Host{
		OS: f.os, Arch: f.arch, Env: f.env, Root: f.root,
		ReadFile: func(name string) ([]byte, error) {
			if d, ok := files[name]; ok {
				return []byte(d), nil
			}
			return nil, fs.ErrNotExist
		},
		Stat: func(name string) (fs.FileInfo, error) {
			if _, ok := files[name]; ok {
				return info(name, false), nil
			}
			for n := range files {
				if strings.HasPrefix(n, strings.TrimSuffix(name, f.sep())+f.sep()) {
					return info(name, true), nil
				}
			}
			return nil, fs.ErrNotExist
		},
		ReadDir: func(name string) ([]string, error) {
			var out []string
			for n := range files {
				if rest, ok := strings.CutPrefix(n, strings.TrimSuffix(name, f.sep())+f.sep()); ok {
					first, _, _ := strings.Cut(rest, f.sep())
					if !slices.Contains(out, first) {
						out = append(out, first)
					}
				}
			}
			slices.Sort(out)
			if len(out) == 0 {
				return nil, fs.ErrNotExist
			}
			return out, nil
		},
		Run: func(_ context.Context, argv []string, _ string) ([]byte, error) {
			out, ok := f.programs[strings.Join(argv, " ")]
			if !ok {
				return nil, fmt.Errorf("%s: %w", argv[0], exec.ErrNotFound)
			}
			if text, bad := strings.CutPrefix(out, "!"); bad {
				return []byte(text), errors.New("exit status 1")
			}
			return []byte(out), nil
		},
		FreeSpace: func(string) (int64, error) { return 50 << 30, nil },
		Registry: func(key, value string) (string, bool) {
			v, ok := f.registry[key+`\`+value]
			return v, ok
		},
	}
}

const nvcc128 = `nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Fri_Feb_21_20:23:50_PST_2025
Cuda compilation tools, release 12.8, V12.8.93
Build cuda_12.8.r12.8/compiler.35583870_0
`

const smi = "nvidia-smi --query-gpu=index,uuid,name,compute_cap,driver_version,memory.total --format=csv,noheader"

// python answers for an interpreter in prefix.
func python(prefix, version string) string {
	return fmt.Sprintf(`{"version": %q, "soabi": "cpython-312-x86_64-linux-gnu", "ext_suffix": ".cpython-312-x86_64-linux-gnu.so", "free_threaded": false,
 "include": "/usr/include/python3.12", "prefix": %q, "base_prefix": "/usr", "scripts": %q, "site_packages": [%q]}`,
		version, prefix, prefix+"/bin", prefix+"/lib/python3.12/site-packages")
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "") }

const torchVersion = `from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.9.0+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = '0fabc3ba44823f257e70ce397d989c8de5e362c1'
hip: Optional[str] = None
rocm: Optional[str] = None
xpu: Optional[str] = None
`

// workstation is an Ubuntu machine with everything.
func workstation() *fake {
	const site = "/venv/lib/python3.12/site-packages/torch/"
	f := &fake{
		os:  "linux",
		env: []string{"PATH=/venv/bin:/usr/local/cuda/bin:/usr/bin", "VIRTUAL_ENV=/venv"},
		files: map[string]string{
			"/etc/os-release":                           "PRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n",
			"/proc/cpuinfo":                             "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n\nprocessor\t: 2\n\nprocessor\t: 3\n",
			"/sys/fs/cgroup/cpu.max":                    "200000 100000\n",
			"/proc/meminfo":                             "MemTotal: 65536000 kB\nMemAvailable:   33554432 kB\n",
			"/sys/fs/cgroup/memory.max":                 "max\n",
			"/proc/mounts":                              "/dev/sda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw,nosuid,noexec 0 0\nsrv:/home /home nfs4 rw 0 0\n",
			"/proc/driver/nvidia/version":               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \nGCC version:  gcc version 15.3.0 (GCC) \n",
			"/usr/lib/x86_64-linux-gnu/libcuda.so.1":    "",
			"/usr/include/python3.12/Python.h":          "",
			"/usr/local/cuda/bin/ptxas":                 "",
			"/usr/local/cuda/bin/cudafe++":              "",
			"/usr/local/cuda/bin/fatbinary":             "",
			"/usr/local/cuda/nvvm/bin/cicc":             "",
			"/usr/local/cuda/include/cuda_runtime.h":    "",
			"/usr/local/cuda/include/crt/host_config.h": "#if defined(__GNUC__)\n#if __GNUC__ > 14\n#error\n",
			"/usr/local/cuda/lib64/libcudart.so":        "",
			site + "version.py":                         torchVersion,
		},
		programs: map[string]string{
			"/usr/bin/c++ --version":                   "c++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\nCopyright (C) 2023\n",
			"/usr/bin/g++ --version":                   "g++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\n",
			"/usr/bin/g++-9 --version":                 "g++-9 (Ubuntu 9.5.0-6ubuntu2) 9.5.0\n",
			"/usr/bin/g++-14 --version":                "g++-14 (Ubuntu 14.2.0-4ubuntu2~24.04) 14.2.0\n",
			"/usr/bin/clang++ --version":               "Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64-pc-linux-gnu\n",
			"/usr/local/cuda/bin/nvcc --version":       nvcc128,
			"/usr/local/cuda/bin/nvcc --list-gpu-code": "sm_50\nsm_75\nsm_80\nsm_86\nsm_89\nsm_90\nsm_100\nsm_101\nsm_120\n",
			"/venv/bin/python -":                       oneLine(python("/venv", "3.12.3")),
			"/venv/bin/ninja --version":                "1.11.1.git.kitware.jobserver-1\n",
			"/usr/bin/ccache --version":                "ccache version 4.9.1\nFeatures: file-storage\n",
			"/usr/bin/git --version":                   "git version 2.43.0\n",
			"/usr/bin/" + smi:                          "0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA H200, 9.0, 580.159.04, 143771 MiB\n",
			"getconf GNU_LIBC_VERSION":                 "glibc 2.39\n",
		},
	}
	for _, l := range []string{"libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so"} {
		f.files[site+"lib/"+l] = ""
	}
	return f
}

// distribution makes the toolkit that of a distribution, whose nvcc is a script that picks a compiler.
func distribution(f *fake) {
	for name, text := range f.files {
		if rest, ok := strings.CutPrefix(name, "/usr/local/cuda/"); ok {
			delete(f.files, name)
			f.files["/usr/"+rest] = text
		}
	}
	for name, text := range f.programs {
		if rest, ok := strings.CutPrefix(name, "/usr/local/cuda/bin/"); ok {
			delete(f.programs, name)
			f.programs["/usr/bin/"+rest] = text
		}
	}
	f.files["/usr/lib/nvidia-cuda-toolkit/bin/nvcc"] = ""
	f.files["/usr/include/crt/host_config.h"] = "#if __GNUC__ > 12\n"
}

// debianTorch makes the torch that of a distribution: some of its libraries are those of the system.
func debianTorch(f *fake) {
	const from, to = "/venv/lib/python3.12/site-packages/torch/", "/usr/lib/python3/dist-packages/torch/"
	for name, text := range f.files {
		if rest, ok := strings.CutPrefix(name, from); ok {
			delete(f.files, name)
			f.files[to+rest] = text
		}
	}
	delete(f.files, to+"lib/libtorch_cuda.so")
	f.files["/usr/lib/x86_64-linux-gnu/libtorch_cuda.so.2.9"] = ""
	f.programs["/venv/bin/python -"] = strings.ReplaceAll(f.programs["/venv/bin/python -"], "/venv/lib/python3.12/site-packages", "/usr/lib/python3/dist-packages")
}

func probe(f *fake, opts machine.ProbeOptions) *machine.Machine {
	return machine.Probe(context.Background(), f.host(), opts)
}

func TestProbeWorkstation(t *testing.T) {
	m := probe(workstation(), machine.ProbeOptions{WorkDir: "/home/user/src", TempDir: "/tmp/x"})
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
	again := probe(workstation(), machine.ProbeOptions{WorkDir: "/home/user/src", TempDir: "/tmp/x"})
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
		change func(f *fake)
		want   []string
		able   string
		fix    string // in the first fix
	}{
		{"nothing", func(*fake) {}, []string{}, all, ""},
		{"no compiler", func(f *fake) {
			for p := range f.programs {
				if strings.Contains(p, "++") {
					delete(f.programs, p)
				}
			}
		}, []string{"warning no-compiler"}, "run-cuda", "sudo apt-get install -y g++"},
		{"broken compiler", func(f *fake) {
			for p := range f.programs {
				if strings.Contains(p, "++") {
					f.programs[p] = "!c++: error while loading shared libraries: libz.so.1"
				}
			}
		}, []string{"error no-compiler"}, "run-cuda", "sudo apt-get install -y g++"},
		{"no ninja", func(f *fake) { delete(f.programs, "/venv/bin/ninja --version") }, []string{"warning ninja-missing"}, "build-c++ build-cuda run-cuda", "pip install ninja"},
		{"ninja off PATH", func(f *fake) {
			f.env = []string{"PATH=/usr/local/cuda/bin:/usr/bin", "VIRTUAL_ENV=/venv"}
		}, []string{"warning ninja-missing"}, "build-c++ build-cuda run-cuda", `export PATH="/venv/bin:$PATH"`},
		{"no headers", func(f *fake) { delete(f.files, "/usr/include/python3.12/Python.h") }, []string{"warning python-headers"}, "run-cuda", "sudo apt-get install -y python3.12-dev"},
		{"no toolkit", func(f *fake) {
			for n := range f.files {
				if strings.HasPrefix(n, "/usr/local/cuda") {
					delete(f.files, n)
				}
			}
			delete(f.programs, "/usr/local/cuda/bin/nvcc --version")
			delete(f.programs, "/usr/local/cuda/bin/nvcc --list-gpu-code")
		}, []string{"warning no-nvcc"}, "build-c++ run-cuda", "repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb && sudo dpkg -i cuda-keyring_1.1-1_all.deb && sudo apt-get update && sudo apt-get install -y cuda-toolkit-12-8"},
		{"CUDA_HOME is wrong", func(f *fake) {
			f.env = append(f.env, "CUDA_HOME=/opt/old-cuda", "PATH=/venv/bin:/usr/bin")
			for n := range f.files {
				if strings.HasPrefix(n, "/usr/local/cuda") {
					delete(f.files, n)
				}
			}
			delete(f.programs, "/usr/local/cuda/bin/nvcc --version")
			delete(f.programs, "/usr/local/cuda/bin/nvcc --list-gpu-code")
		}, []string{"error no-nvcc"}, "build-c++ run-cuda", "unset CUDA_HOME"},
		{"toolkit without ptxas", func(f *fake) { delete(f.files, "/usr/local/cuda/bin/ptxas") }, []string{"error no-nvcc"}, "build-c++ run-cuda", "cuda-toolkit-12-8"},
		{"nvcc does not run", func(f *fake) { f.programs["/usr/local/cuda/bin/nvcc --version"] = "!nvcc: cannot execute binary file" }, []string{"error no-nvcc"}, "build-c++ run-cuda", "cuda-toolkit-12-8"},
		{"torch for another CUDA", func(f *fake) {
			f.files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\n"
		}, []string{"error cuda-mismatch"}, "build-c++ run-cuda", "cuda-toolkit-13-0"},
		{"torch for another CUDA, its toolkit is there", func(f *fake) {
			f.files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\n"
			f.programs["/usr/local/cuda-13.0/bin/nvcc --version"] = "Cuda compilation tools, release 13.0, V13.0.88\n"
		}, []string{"error cuda-mismatch", "note toolkit-differs"}, "build-c++ run-cuda", "export CUDA_HOME=/usr/local/cuda-13.0"},
		{"CPU torch", func(f *fake) {
			f.files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n"
		}, []string{"error torch-cpu"}, "build-c++ build-cuda", "--index-url https://download.pytorch.org/whl/cu130"},
		{"torch lacks a library", func(f *fake) { delete(f.files, "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so") }, []string{"error damaged-module"}, all, "--force-reinstall torch"},
		{"gcc too new, an older one is there", func(f *fake) {
			f.files["/usr/local/cuda/include/crt/host_config.h"] = "#if __GNUC__ > 12\n"
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "export CUDAHOSTCXX=/usr/bin/g++-9"},
		{"gcc too new", func(f *fake) {
			f.files["/usr/local/cuda/include/crt/host_config.h"] = "#if __GNUC__ > 12\n"
			delete(f.programs, "/usr/bin/g++-9 --version")
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++-12"},
		{"CUDAHOSTCXX", func(f *fake) { f.env = append(f.env, "CUDAHOSTCXX=g++-14") }, []string{}, all, ""},
		{"CUDAHOSTCXX with a path, CC", func(f *fake) {
			f.env = append(f.env, "CC=/opt/gcc/bin/gcc", "CXX=ccache /opt/gcc/bin/g++")
			f.programs["/opt/gcc/bin/g++ --version"] = "g++ (GCC) 13.3.0\n"
		}, []string{}, all, ""},
		{"CUDAHOSTCXX is wrong", func(f *fake) { f.env = append(f.env, "CUDAHOSTCXX=g++-11") }, []string{"error no-compiler"}, "build-c++ run-cuda", "unset CUDAHOSTCXX"},
		{"CUDAHOSTCXX is too new", func(f *fake) {
			f.env = append(f.env, "CUDAHOSTCXX=g++-14")
			f.files["/usr/local/cuda/include/crt/host_config.h"] = "#if __GNUC__ > 13\n"
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "export CUDAHOSTCXX=/usr/bin/c++"},
		{"only clang", func(f *fake) {
			for p := range f.programs {
				if strings.Contains(p, "g++") || strings.Contains(p, "bin/c++") {
					delete(f.programs, p)
				}
			}
			f.programs["/usr/bin/clang++ --version"] = "clang version 18.1.3\n"
		}, []string{"error no-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++"},
		{"driver too old", func(f *fake) {
			f.programs["/usr/bin/"+smi] = "0, GPU-1, NVIDIA GeForce GTX 1080, 6.1, 470.82.01, 8119 MiB\n"
		}, []string{"error driver-old", "error no-kernel-image"}, "build-c++ build-cuda compile-at-import", "update the NVIDIA driver to 525.60.13"},
		{"nvidia-smi fails", func(f *fake) {
			f.programs["/usr/bin/"+smi] = "!Failed to initialize NVML: Driver/library version mismatch\n"
		}, []string{"error no-device"}, "build-c++ build-cuda compile-at-import", "--gpus all"},
		{"GPUs hidden", func(f *fake) { f.env = append(f.env, "CUDA_VISIBLE_DEVICES=") }, []string{"note no-device"}, "build-c++ build-cuda compile-at-import", "unset CUDA_VISIBLE_DEVICES"},
		{"arch list is nonsense", func(f *fake) { f.env = append(f.env, "TORCH_CUDA_ARCH_LIST=9.0;99") }, []string{"error arch-unsupported"}, all, "TORCH_CUDA_ARCH_LIST"},
		{"variable that nothing reads", func(f *fake) { f.env = append(f.env, "FLASH_ATTENTION_CUDA_ARCHS=90") }, []string{"warning arch-ignored"}, all, "FLASH_ATTN_CUDA_ARCHS"},
		{"Fedora", func(f *fake) {
			f.files["/etc/os-release"] = "ID=rocky\nID_LIKE=\"rhel centos fedora\"\n"
			delete(f.files, "/usr/include/python3.12/Python.h")
		}, []string{"warning python-headers"}, "run-cuda", "sudo dnf install -y python3.12-devel"},
		{"Python without headers, not the system's", func(f *fake) {
			f.programs["/venv/bin/python -"] = strings.ReplaceAll(f.programs["/venv/bin/python -"], "/usr/include", "/opt/python/include")
		}, []string{"warning python-headers"}, "run-cuda", "does not come from the system"},
		{"CPU torch without a GPU", func(f *fake) {
			f.files["/venv/lib/python3.12/site-packages/torch/version.py"] = "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n"
			delete(f.programs, "/usr/bin/"+smi)
			delete(f.files, "/proc/driver/nvidia/version")
		}, []string{"warning torch-cpu"}, "build-c++ build-cuda", "--index-url https://download.pytorch.org/whl/cu128"},
		{"root needs no sudo", func(f *fake) {
			f.root = true
			delete(f.files, "/usr/include/python3.12/Python.h")
		}, []string{"warning python-headers"}, "run-cuda", "apt-get install -y python3.12-dev"},
		{"distribution's nvcc, gcc too new", func(f *fake) {
			distribution(f)
			delete(f.programs, "/usr/bin/g++-9 --version")
		}, []string{"error host-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++-12"},
		{"distribution's nvcc, an older gcc is there", distribution, []string{}, all, ""},
		{"distribution's nvcc without a compiler", func(f *fake) {
			distribution(f)
			for _, c := range []string{"c++", "g++", "g++-9", "g++-14"} {
				delete(f.programs, "/usr/bin/"+c+" --version")
			}
		}, []string{"error no-compiler"}, "build-c++ run-cuda", "sudo apt-get install -y g++"},
		{"distribution's torch without a toolkit", func(f *fake) {
			debianTorch(f)
			delete(f.programs, "/usr/local/cuda/bin/nvcc --version")
			delete(f.programs, "/usr/local/cuda/bin/nvcc --list-gpu-code")
		}, []string{"warning no-nvcc"}, "build-c++ run-cuda", "sudo apt-get install -y nvidia-cuda-toolkit"},
		{"distribution's torch for the CPU", func(f *fake) {
			debianTorch(f)
			f.files["/usr/lib/python3/dist-packages/torch/version.py"] = "__version__ = '2.9.0+debian'\n"
		}, []string{"error torch-cpu"}, "build-c++ build-cuda", "sudo apt-get install -y python3-torch-cuda libtorch-cuda-dev"},
		{"cudart from PyPI", func(f *fake) {
			delete(f.files, "/usr/local/cuda/lib64/libcudart.so")
			f.files["/usr/local/cuda/lib64/libcudart.so.12"] = ""
		}, []string{"warning link-lib"}, "build-c++ run-cuda", "ln -s libcudart.so.12 /usr/local/cuda/lib64/libcudart.so"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := workstation()
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
			if want := slices.ContainsFunc(tt.want, func(s string) bool { return strings.HasPrefix(s, "error") }); r.HasErrors() != want {
				t.Errorf("HasErrors is %v", r.HasErrors())
			}
		})
	}
}

// TestToolkitOrder: what is searched where, and that 12.10 is above 12.9.
func TestToolkitOrder(t *testing.T) {
	release := func(v string) string { return "Cuda compilation tools, release " + v + ", V" + v + ".1\n" }
	f := &fake{os: "linux", env: []string{"PATH=/usr/bin", "CUDA_HOME=/cuda/home/", "CUDA_PATH=/cuda/path", "CONDA_PREFIX=/conda"}, programs: map[string]string{
		"/cuda/home/bin/nvcc --version":            release("12.4"),
		"/cuda/path/bin/nvcc --version":            release("12.5"),
		"/usr/bin/nvcc --version":                  release("11.8"),
		"/conda/bin/nvcc --version":                release("12.1"),
		"/usr/local/cuda-12.9/bin/nvcc --version":  release("12.9"),
		"/usr/local/cuda-12.10/bin/nvcc --version": release("12.10"),
	}, files: map[string]string{"/usr/lib/nvidia-cuda-toolkit/bin/nvcc": ""}}
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

func windowsFake() *fake {
	const (
		vs     = `C:\Program Files (x86)\Microsoft Visual Studio`
		vs22   = `C:\Program Files\Microsoft Visual Studio\2022\Community`
		site   = `C:\venv\Lib\site-packages`
		python = `{"version": "3.12.3", "include": "C:\\Python312\\Include", "prefix": "C:\\venv", "base_prefix": "C:\\Python312", "scripts": "C:\\venv\\Scripts", "site_packages": ["C:\\venv\\Lib\\site-packages"]}`
	)
	where := vs + `\Installer\vswhere.exe -latest -prerelease -products * -requires Microsoft.VisualStudio.Component.VC.Tools.x86.x64 -property installationPath -utf8`
	return &fake{
		os: "windows",
		env: []string{
			`Path=C:\Windows\System32`, `ProgramFiles=C:\Program Files`, `ProgramW6432=C:\Program Files`, `ProgramFiles(x86)=C:\Program Files (x86)`, `VIRTUAL_ENV=C:\venv`, `SystemRoot=C:\Windows`,
			`CUDA_PATH_V12_10=C:\cuda1210`, `CUDA_PATH_V12_4=C:\cuda124`, `CUDA_PATH_V11_8=C:\cuda118`,
		},
		files: map[string]string{
			vs22 + `\VC\Tools\MSVC\14.9.1\bin\Hostx64\x64\cl.exe`:                     "",
			vs22 + `\VC\Tools\MSVC\14.39.33519\bin\Hostx64\x64\cl.exe`:                "",
			vs22 + `\VC\Auxiliary\Build\vcvarsall.bat`:                                "",
			vs + `\2019\BuildTools\VC\Tools\MSVC\14.29.30133\bin\Hostx64\x64\cl.exe`:  "",
			vs + `\2017\Preview\VC\Tools\MSVC\14.16.27023\bin\Hostx86\x86\cl.exe`:     "", // no 64-bit compiler
			`C:\Program Files (x86)\Microsoft Visual Studio 14.0\VC\bin\amd64\cl.exe`: "",
			`C:\Python312\Include\Python.h`:                                           "",
			site + `\torch\version.py`:                                                torchVersion,
			site + `\torch\lib\c10.dll`:                                               "",
		},
		programs: map[string]string{
			where:                                vs22 + "\r\n",
			`C:\venv\Scripts\python.exe -`:       python,
			`C:\cuda1210\bin\nvcc.exe --version`: "Cuda compilation tools, release 12.10, V12.10.1\r\n",
			`C:\cuda124\bin\nvcc.exe --version`:  "Cuda compilation tools, release 12.4, V12.4.131\r\n",
			`C:\Windows\System32\nvidia-smi.exe --query-gpu=index,uuid,name,compute_cap,driver_version,memory.total --format=csv,noheader`: "0, GPU-1, NVIDIA GeForce RTX 4090, 8.9, 560.94, 24564 MiB\r\n",
		},
		registry: map[string]string{`Software\Microsoft\VisualStudio\SxS\VC7\14.0`: `C:\Program Files (x86)\Microsoft Visual Studio 14.0\VC\`},
	}
}

func TestProbeWindows(t *testing.T) {
	m := probe(windowsFake(), machine.ProbeOptions{})
	want := []machine.MSVC{
		{
			Home: `C:\Program Files\Microsoft Visual Studio\2022\Community`, CL: `C:\Program Files\Microsoft Visual Studio\2022\Community\VC\Tools\MSVC\14.39.33519\bin\Hostx64\x64\cl.exe`,
			Toolset: "14.39.33519", MSCVer: 1939, Source: "vswhere", VCVarsAll: `C:\Program Files\Microsoft Visual Studio\2022\Community\VC\Auxiliary\Build\vcvarsall.bat`,
		},
		{
			Home: `C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools`, CL: `C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools\VC\Tools\MSVC\14.29.30133\bin\Hostx64\x64\cl.exe`,
			Toolset: "14.29.30133", MSCVer: 1929, Source: "folders",
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
		f := windowsFake()
		f.env = append(f.env, `Path=C:\VS\VC\Tools\MSVC\14.44.35207\bin\Hostx64\x64;C:\Windows\System32`, "VSCMD_ARG_TGT_ARCH=x64", `CUDA_HOME=C:\cuda124`)
		f.files[`C:\VS\VC\Tools\MSVC\14.44.35207\bin\Hostx64\x64\cl.exe`] = ""
		f.programs[`C:\cuda124\bin\nvcc.exe --version`] = "Cuda compilation tools, release 12.3, V12.3.52\r\n"
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
		f := windowsFake()
		f.env = append(f.env, `Path=C:\VS\VC\Tools\MSVC\14.39.1\bin\Hostx86\x86`)
		f.files[`C:\VS\VC\Tools\MSVC\14.39.1\bin\Hostx86\x86\cl.exe`] = ""
		if r := probe(f, machine.ProbeOptions{}).Result("cl"); r.Status != machine.Unsupported {
			t.Errorf("%+v", r)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		f := &fake{os: "windows"} // no variables at all: the search must not stumble
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
	f := &fake{os: "windows", programs: map[string]string{
		`cmd /u /c "C:\VS\VC\Auxiliary\Build\vcvarsall.bat" x86_amd64 >nul && set`:                   utf16le("Path=C:\\VS\\bin;C:\\Ärger\r\nINCLUDE=C:\\inc\r\nLib=C:\\lib\r\n"),
		`cmd /u /c "C:\VS\VC\Auxiliary\Build\vcvarsall.bat" x86_amd64 -vcvars_ver=14.39 >nul && set`: utf16le("PATH=x\r\n"),
	}}
	got, err := machine.VCVars(t.Context(), f.host(), m, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"PATH": `C:\VS\bin;C:\Ärger`, "INCLUDE": `C:\inc`, "LIB": `C:\lib`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := machine.VCVars(t.Context(), f.host(), m, "14.39"); err == nil || !strings.Contains(err.Error(), "INCLUDE") {
		t.Errorf("an environment without INCLUDE: %v", err)
	}
	if _, err := machine.VCVars(t.Context(), f.host(), machine.MSVC{}, ""); err == nil {
		t.Error("no script, no error")
	}
}

func TestProbeROCm(t *testing.T) {
	f := &fake{os: "linux", env: []string{"PATH=/usr/bin"}, files: map[string]string{
		"/opt/rocm-6.2.4/.info/version":                           "6.2.4-118\n",
		"/opt/rocm-6.2.4/bin/hipcc":                               "",
		"/opt/rocm-5.7.0/.info/version":                           "5.7.0-1\n",
		"/sys/class/kfd/kfd/topology/nodes/0/properties":          "cpu_cores_count 64\ngfx_target_version 0\n",
		"/sys/class/kfd/kfd/topology/nodes/10/properties":         "gfx_target_version 110000\n",
		"/sys/class/kfd/kfd/topology/nodes/2/properties":          "simd_count 440\ngfx_target_version 90010\n",
		"/usr/include/python3.12/Python.h":                        "",
		"/lib/site/lib/python3.12/site-packages/torch/version.py": "__version__ = '2.6.0+rocm6.2.4'\ncuda = None\nhip = '6.2.41134-65d174c3e'\n",
	}, programs: map[string]string{"/usr/bin/python3 -": oneLine(python("/lib/site", "3.12.1")), "/usr/bin/g++ --version": "g++ (GCC) 14.1.0\n"}}
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
		f := workstation()
		f.files["/venv/lib/python3.12/site-packages/torch/lib/libc10.so"] = string(data)
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
	w := workstation()
	f.Add(w.files["/etc/os-release"], torchVersion, w.programs["/usr/bin/"+smi], nvcc128, w.files["/proc/mounts"], w.programs["/venv/bin/python -"], "\x7fELF")
	f.Add("ID='a\\\"b'", "cuda = '1'\n__version__ = \"2\"", "0, x, y, [N/A], 390.1\n", "release 99.9, V99.9.9", "a b c", "{}", "")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, release, torch, gpus, nvcc, system, interpreter, library string) {
		w := workstation()
		w.files["/etc/os-release"] = release
		w.files["/venv/lib/python3.12/site-packages/torch/version.py"] = torch
		w.files["/venv/lib/python3.12/site-packages/torch/lib/libc10.so"] = library
		for _, n := range []string{"/proc/mounts", "/proc/meminfo", "/proc/cpuinfo", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max", "/proc/driver/nvidia/version", "/sys/class/kfd/kfd/topology/nodes/1/properties", "/proc/driver/nvidia/gpus/0/information", "/opt/rocm/.info/version"} {
			w.files[n] = system
		}
		w.programs["/usr/bin/"+smi] = gpus
		w.programs["/usr/local/cuda/bin/nvcc --version"] = nvcc
		w.programs["/usr/local/cuda/bin/nvcc --list-gpu-code"] = nvcc
		w.programs["/venv/bin/python -"] = interpreter
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
		env := &fake{os: "windows", programs: map[string]string{`cmd /u /c "x" x86_amd64 >nul && set`: system}}
		if _, err := machine.VCVars(t.Context(), env.host(), machine.MSVC{VCVarsAll: "x"}, ""); err == nil && system == "" {
			t.Error("an empty environment is accepted")
		}
	})
}

// TestSlow: programs that hang cost their time limit; a compiler that only takes too
// long for the test compile is not broken.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := workstation().host()
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

// TestProbeCache: the folder for compiled modules, and another one where it does not do.
func TestProbeCache(t *testing.T) {
	f := workstation()
	f.files["/proc/mounts"] = "/dev/sda / ext4 rw 0 0\ntmpfs /cache tmpfs rw,noexec 0 0\n"
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
	h := f.host()
	for path, want := range map[string]bool{"/cache": true, "/cache/x/y": true, "/cachet": false, "/home": false} {
		if got := h.NoExec(path); got != want {
			t.Errorf("NoExec(%s) = %v", path, got)
		}
	}
}
