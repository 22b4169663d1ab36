// Package machinetest has machines that are made up, for tests of what looks at one.
package machinetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/kiln-build/kiln/machine"
)

// A Fake is a machine that is made up: files, and what programs print.
type Fake struct {
	OS, Arch string // Arch is amd64 unless set
	Env      []string
	Files    map[string]string
	// Programs maps a command line, words separated by spaces, to its output. An output
	// that begins with "!" is a failure. A program is a file as well.
	Programs map[string]string
	Registry map[string]string
	Root     bool
}

func (f *Fake) sep() string {
	if f.OS == "windows" {
		return `\`
	}
	return "/"
}

// Host is the door to the machine. Changes of f after the call have no effect on files.
func (f *Fake) Host() *machine.Host {
	if f.Arch == "" {
		f.Arch = "amd64"
	}
	files := maps.Clone(f.Files)
	if files == nil {
		files = map[string]string{}
	}
	for line := range f.Programs {
		// Only the first word is a path, which may have spaces on Windows.
		name := line
		if i := strings.Index(line, ".exe "); i >= 0 {
			name = line[:i+4]
		} else if f.OS != "windows" {
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
		OS: f.OS, Arch: f.Arch, Env: f.Env, Root: f.Root,
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
			out, ok := f.Programs[strings.Join(argv, " ")]
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
			v, ok := f.Registry[key+`\`+value]
			return v, ok
		},
	}
}

// NVCC128 is what nvcc --version prints.
const NVCC128 = `nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Fri_Feb_21_20:23:50_PST_2025
Cuda compilation tools, release 12.8, V12.8.93
Build cuda_12.8.r12.8/compiler.35583870_0
`

// SMI is the question that a probe asks for GPUs.
const SMI = "nvidia-smi --query-gpu=index,uuid,name,compute_cap,driver_version,memory.total --format=csv,noheader"

// Python is the answer of an interpreter for an interpreter in prefix.
func Python(prefix, version string) string {
	return fmt.Sprintf(`{"version": %q, "soabi": "cpython-312-x86_64-linux-gnu", "ext_suffix": ".cpython-312-x86_64-linux-gnu.so", "free_threaded": false, "include": "/usr/include/python3.12", "prefix": %q, "base_prefix": "/usr", "scripts": %q, "site_packages": [%q]}`,
		version, prefix, prefix+"/bin", prefix+"/lib/python3.12/site-packages")
}

// TorchVersion is a torch/version.py.
const TorchVersion = `from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.9.0+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = '0fabc3ba44823f257e70ce397d989c8de5e362c1'
hip: Optional[str] = None
rocm: Optional[str] = None
xpu: Optional[str] = None
`

// Workstation is an Ubuntu machine with everything.
func Workstation() *Fake {
	const site = "/venv/lib/python3.12/site-packages/torch/"
	f := &Fake{
		OS:  "linux",
		Env: []string{"PATH=/venv/bin:/usr/local/cuda/bin:/usr/bin", "VIRTUAL_ENV=/venv"},
		Files: map[string]string{
			"/etc/os-release":                           "PRETTY_NAME=\"Ubuntu 24.04.3 LTS\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n",
			"/proc/cpuinfo":                             "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n\nprocessor\t: 2\n\nprocessor\t: 3\n",
			"/sys/fs/cgroup/cpu.max":                    "200000 100000\n",
			"/proc/meminfo":                             "MemTotal: 65536000 kB\nMemAvailable:   33554432 kB\n",
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
			site + "version.py":                         TorchVersion,
		},
		Programs: map[string]string{
			"/usr/bin/c++ --version":                   "c++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\nCopyright (C) 2023\n",
			"/usr/bin/g++ --version":                   "g++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\n",
			"/usr/bin/g++-9 --version":                 "g++-9 (Ubuntu 9.5.0-6ubuntu2) 9.5.0\n",
			"/usr/bin/g++-14 --version":                "g++-14 (Ubuntu 14.2.0-4ubuntu2~24.04) 14.2.0\n",
			"/usr/bin/clang++ --version":               "Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64-pc-linux-gnu\n",
			"/usr/local/cuda/bin/nvcc --version":       NVCC128,
			"/usr/local/cuda/bin/nvcc --list-gpu-code": "sm_50\nsm_75\nsm_80\nsm_86\nsm_89\nsm_90\nsm_100\nsm_101\nsm_120\n",
			"/venv/bin/python -":                       Python("/venv", "3.12.3"),
			"/venv/bin/ninja --version":                "1.11.1.git.kitware.jobserver-1\n",
			"/usr/bin/ccache --version":                "ccache version 4.9.1\nFeatures: file-storage\n",
			"/usr/bin/git --version":                   "git version 2.43.0\n",
			"/usr/bin/" + SMI:                          "0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA H200, 9.0, 580.159.04, 143771 MiB\n",
			"getconf GNU_LIBC_VERSION":                 "glibc 2.39\n",
		},
	}
	for _, l := range []string{"libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so"} {
		f.Files[site+"lib/"+l] = ""
	}
	return f
}

// Distribution makes the toolkit that of a distribution, whose nvcc is a script that picks a
// compiler.
func Distribution(f *Fake) {
	for name, text := range f.Files {
		if rest, ok := strings.CutPrefix(name, "/usr/local/cuda/"); ok {
			delete(f.Files, name)
			f.Files["/usr/"+rest] = text
		}
	}
	for name, text := range f.Programs {
		if rest, ok := strings.CutPrefix(name, "/usr/local/cuda/bin/"); ok {
			delete(f.Programs, name)
			f.Programs["/usr/bin/"+rest] = text
		}
	}
	f.Files["/usr/lib/nvidia-cuda-toolkit/bin/nvcc"] = ""
	f.Files["/usr/include/crt/host_config.h"] = "#if __GNUC__ > 12\n"
}

// DebianTorch makes the torch that of a distribution: some of its libraries are those of the
// system.
func DebianTorch(f *Fake) {
	const from, to = "/venv/lib/python3.12/site-packages/torch/", "/usr/lib/python3/dist-packages/torch/"
	for name, text := range f.Files {
		if rest, ok := strings.CutPrefix(name, from); ok {
			delete(f.Files, name)
			f.Files[to+rest] = text
		}
	}
	delete(f.Files, to+"lib/libtorch_cuda.so")
	f.Files["/usr/lib/x86_64-linux-gnu/libtorch_cuda.so.2.9"] = ""
	f.Programs["/venv/bin/python -"] = strings.ReplaceAll(f.Programs["/venv/bin/python -"], "/venv/lib/python3.12/site-packages", "/usr/lib/python3/dist-packages")
}

// Windows is a machine with three Visual Studios and two CUDA toolkits.
func Windows() *Fake {
	const (
		vs     = `C:\Program Files (x86)\Microsoft Visual Studio`
		vs22   = `C:\Program Files\Microsoft Visual Studio\2022\Community`
		site   = `C:\venv\Lib\site-packages`
		python = `{"version": "3.12.3", "include": "C:\\Python312\\Include", "prefix": "C:\\venv", "base_prefix": "C:\\Python312", "scripts": "C:\\venv\\Scripts", "site_packages": ["C:\\venv\\Lib\\site-packages"]}`
	)
	where := vs + `\Installer\vswhere.exe -latest -prerelease -products * -requires Microsoft.VisualStudio.Component.VC.Tools.x86.x64 -property installationPath -utf8`
	return &Fake{
		OS: "windows",
		Env: []string{
			`Path=C:\Windows\System32`, `ProgramFiles=C:\Program Files`, `ProgramW6432=C:\Program Files`, `ProgramFiles(x86)=C:\Program Files (x86)`, `VIRTUAL_ENV=C:\venv`, `SystemRoot=C:\Windows`,
			`CUDA_PATH_V12_10=C:\cuda1210`, `CUDA_PATH_V12_4=C:\cuda124`, `CUDA_PATH_V11_8=C:\cuda118`,
		},
		Files: map[string]string{
			vs22 + `\VC\Tools\MSVC\14.9.1\bin\Hostx64\x64\cl.exe`:                     "",
			vs22 + `\VC\Tools\MSVC\14.39.33519\bin\Hostx64\x64\cl.exe`:                "",
			vs22 + `\VC\Auxiliary\Build\vcvarsall.bat`:                                "",
			vs + `\2019\BuildTools\VC\Tools\MSVC\14.29.30133\bin\Hostx64\x64\cl.exe`:  "",
			vs + `\2017\Preview\VC\Tools\MSVC\14.16.27023\bin\Hostx86\x86\cl.exe`:     "", // no 64-bit compiler
			`C:\Program Files (x86)\Microsoft Visual Studio 14.0\VC\bin\amd64\cl.exe`: "",
			`C:\Python312\Include\Python.h`:                                           "",
			site + `\torch\version.py`:                                                TorchVersion,
			site + `\torch\lib\c10.dll`:                                               "",
		},
		Programs: map[string]string{
			where:                                vs22 + "\r\n",
			`C:\venv\Scripts\python.exe -`:       python,
			`C:\cuda1210\bin\nvcc.exe --version`: "Cuda compilation tools, release 12.10, V12.10.1\r\n",
			`C:\cuda124\bin\nvcc.exe --version`:  "Cuda compilation tools, release 12.4, V12.4.131\r\n",
			`C:\Windows\System32\nvidia-smi.exe --query-gpu=index,uuid,name,compute_cap,driver_version,memory.total --format=csv,noheader`: "0, GPU-1, NVIDIA GeForce RTX 4090, 8.9, 560.94, 24564 MiB\r\n",
		},
		Registry: map[string]string{`Software\Microsoft\VisualStudio\SxS\VC7\14.0`: `C:\Program Files (x86)\Microsoft Visual Studio 14.0\VC\`},
	}
}

// ROCm is a machine with two AMD GPUs and a ROCm build of torch.
func ROCm() *Fake {
	return &Fake{OS: "linux", Env: []string{"PATH=/usr/bin"}, Files: map[string]string{
		"/opt/rocm-6.2.4/.info/version":                           "6.2.4-118\n",
		"/opt/rocm-6.2.4/bin/hipcc":                               "",
		"/opt/rocm-5.7.0/.info/version":                           "5.7.0-1\n",
		"/sys/class/kfd/kfd/topology/nodes/0/properties":          "cpu_cores_count 64\ngfx_target_version 0\n",
		"/sys/class/kfd/kfd/topology/nodes/10/properties":         "gfx_target_version 110000\n",
		"/sys/class/kfd/kfd/topology/nodes/2/properties":          "simd_count 440\ngfx_target_version 90010\n",
		"/usr/include/python3.12/Python.h":                        "",
		"/lib/site/lib/python3.12/site-packages/torch/version.py": "__version__ = '2.6.0+rocm6.2.4'\ncuda = None\nhip = '6.2.41134-65d174c3e'\n",
	}, Programs: map[string]string{"/usr/bin/python3 -": Python("/lib/site", "3.12.1"), "/usr/bin/g++ --version": "g++ (GCC) 14.1.0\n"}}
}
