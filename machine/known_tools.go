package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/wheel"
)

// toolEntries are about compilers, toolkits and their versions.
func toolEntries() []entry {
	return []entry{
		{
			id: "torch-cpu", title: "The installed torch is a CPU build", modes: []int{5}, class: ClassFault,
			cause: "CUDA sources are to be built, and torch was installed from an index that gives the CPU build.",
			text: []pattern{
				plain("Torch not compiled with CUDA enabled"), plain("PyTorch was not compiled with CUDA support"),
				text("CUDA_HOME environment variable is not set", `CUDA_HOME environment variable is not set`), text("CUDA was not found on the system", `CUDA was not found on the system`),
			},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && e.CUDA != "" && torchIsCPU(e)
			},
			confirm: func(f *finding) Confidence {
				switch {
				case torchIsCPU(f.e):
					return Certain
				case slices.ContainsFunc(f.lines, func(l string) bool { return strings.Contains(l, "ompiled with CUDA") }):
					return Likely
				}
				return ""
			},
			say: func(f *finding) (string, string) {
				suffix := compat.TorchIndexSuffix(f.e.CUDA, "")
				if f.e.CUDA == "" {
					suffix = "cu128"
				}
				return "The environment has torch " + cmp.Or(f.e.TorchFound, "without CUDA") + ", which has no CUDA in it.",
					"install a CUDA build: pip install torch" + equals(f.e.Torch) + " --index-url https://download.pytorch.org/whl/" + suffix
			},
			hides: []string{"no-nvcc", "cuda-mismatch", "python-error"},
		},
		{
			id: "no-nvcc", title: "There is no CUDA compiler", modes: []int{4}, class: ClassFault,
			cause: "nvcc is not on PATH and CUDA_HOME is not set, usually because a runtime image or a machine without the toolkit is used for building.",
			text: []pattern{
				plain("CUDA_HOME environment variable is not set"), plain("CUDA was not found on the system"), text("nvcc", `nvcc(?:\.exe)?['"]?:? (?:command )?not found`),
				text("nvcc", `No such file or directory: '?\S*nvcc'?`), text("nvcc", `exec: "?nvcc"?: executable file not found`), text("nvcc", `/nvcc: No such file or directory`),
				plain("No CUDA toolset found"), text("CUDA_NVCC_EXECUTABLE", `CUDA_NVCC_EXECUTABLE`), text("Failed to find nvcc", `Failed to find nvcc`),
				text("CUDA_TOOLKIT_ROOT_DIR", `(?:Could NOT find CUDA|Specify CUDA_TOOLKIT_ROOT_DIR)`), plain("Could not find CUDA_TOOLKIT_ROOT_DIR"), text("CMAKE_CUDA_COMPILER", `No CMAKE_CUDA_COMPILER could be found`),
			},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && e.CUDA != "" && slices.Contains(e.ToolsMissing, "nvcc")
			},
			say: func(f *finding) (string, string) {
				e := f.e
				d := "The build found no nvcc"
				if e.CUDA != "" {
					d += " of CUDA " + e.CUDA
				}
				if e.Image != "" {
					d += " in the image " + e.Image
				}
				d += ": it looked at CUDA_HOME, CUDA_PATH, PATH and " + map[bool]string{true: "the installer's folder.", false: "/usr/local/cuda."}[e.OS == "windows"]
				if p := e.ToolsFound["nvcc"]; p != "" {
					return d + " There is one at " + p + ".", "set CUDA_HOME=" + parent(parent(p))
				}
				if strings.Contains(e.Image, "-runtime-") || strings.Contains(e.Image, "-base-") {
					devel := strings.NewReplacer("-runtime-", "-devel-", "-base-", "-devel-").Replace(e.Image)
					return d + " Runtime images have no compiler.", "use the devel image: " + devel
				}
				if e.Image != "" && e.CUDA != "" {
					return d, ways("use an image with the toolkit: nvidia/cuda:"+e.CUDA+"-devel-ubuntu22.04", "or add it to this one: "+f.installCUDA())
				}
				wheel := ""
				if e.Stage == StageImport || e.Stage == StageTest {
					d += " It is needed because the package compiles itself at import: no compiled module came with it."
					wheel = "install a wheel that has the compiled module; its name has the versions of CUDA, torch and Python in it"
				}
				return d, ways(wheel, f.installCUDA(), "if it is installed: set CUDA_HOME to the folder that has bin/nvcc in it")
			},
			hides: []string{"python-error", "header-missing", "no-compiler", "compile-error"},
		},
		{
			id: "no-hipcc", title: "There is no HIP compiler", modes: []int{4}, class: ClassFault,
			cause: "ROCm is not installed, or ROCM_HOME does not point to it.",
			text: []pattern{
				plain("ROCM_HOME environment variable is not set"), text("hipcc", `hipcc['"]?:? (?:command )?not found`), text("hipcc", `No such file or directory: '?\S*hipcc'?`),
				text("hipcc", `/hipcc: No such file or directory`),
			},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && e.ROCm != "" && slices.Contains(e.ToolsMissing, "hipcc")
			},
			say: func(f *finding) (string, string) {
				return "The build found no hipcc: it looked at ROCM_HOME, ROCM_PATH, PATH and /opt/rocm.", ways(f.install("hipcc")+", from AMD's repository", "if it is installed: set ROCM_HOME to the folder that has bin/hipcc in it")
			},
			hides: []string{"python-error", "no-compiler"},
		},
		{
			id: "ninja-missing", title: "ninja is not on PATH", modes: []int{16}, class: ClassFault, warns: true,
			cause: "PyTorch's builder needs ninja to compile at import, and without it builds wheels one file at a time.",
			text: []pattern{
				plain("Ninja is required to load C++ extensions"), text("could not find ninja", `Attempted to use ninja as the (?:BuildExtension )?backend but we could not find ninja`),
				text("ninja", `(?:^|[\s/])ninja(?:-build)?: (?:command )?not found`), text("ninja", `exec: "?ninja"?: executable file not found`), text("ninja", `No such file or directory: 'ninja'`),
				text("CMAKE_MAKE_PROGRAM", `CMake was unable to find a build program corresponding to "Ninja"`),
			},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && slices.Contains(e.ToolsMissing, "ninja")
			},
			say: func(f *finding) (string, string) {
				d := "PyTorch's builder looked for ninja on the PATH of this process and found none."
				if p := f.e.ToolsFound["ninja"]; p != "" {
					return d + " It is installed as " + p + ", which is not on PATH.", "put " + parent(p) + " on PATH, or activate the virtual environment"
				}
				if f.e.Stage == StageImport || f.e.Stage == StageTest {
					return d + " It is needed because the package compiles itself at import: no compiled module came with it.",
						ways("python -m pip install ninja", "or install a wheel that has the compiled module")
				}
				return d, ways("add ninja to the row's extra_deps (python -m pip install ninja)", "or "+f.install("ninja"))
			},
			hides: []string{"python-error", "missing-requirement", "no-native-module", "compile-at-import"},
		},
		{
			id: "arch-unsupported", title: "This nvcc cannot make code for that GPU", modes: []int{14}, class: ClassFault,
			cause: "The architecture is newer than the toolkit, or was dropped by it: CUDA 12 dropped 3.x, CUDA 13 dropped 5.x, 6.x and 7.0.",
			text: []pattern{
				text("Unsupported gpu architecture", `Unsupported gpu architecture '(?P<arch>(?:compute|sm|lto)_\w+)'`), text("Unknown CUDA arch", `Unknown CUDA arch \((?P<torcharch>[^){]+)\)`),
				text("is not defined for option", `Value '(?P<arch>(?:sm|compute)_\w+)' is not defined for option`), text("unsupported CUDA gpu architecture", `unsupported CUDA gpu architecture: (?P<arch>\w+)`),
				text("CUDA_ARCHITECTURES", `CMAKE_CUDA_ARCHITECTURES must be`), text("not supported by nvcc", `(?P<arch>sm_\w+) not supported`),
			},
			facts: func(e *Evidence) bool { return e.in(StagePreflight) && e.Stage != "" && len(badArchs(e)) > 0 },
			say:   sayArch,
			hides: []string{"python-error", "compile-error", "ninja-missing"},
		},
		{
			id: "arch-family-mix", title: "nvcc refuses a target beside the family target of the same number", modes: []int{14}, class: ClassFault,
			cause: "X.Y and X.Yf in one list give the same GPU code.",
			text:  []pattern{text("family-specific", "same GPU code \\(`?(?P<arch>sm_\\w+?)f?`?\\) generated for non family-specific and family-specific")},
			say: func(f *finding) (string, string) {
				return "The arch list has " + cmp.Or(f.get("arch", ""), "a target") + " both plain and with the suffix f.", "keep one of the two: f for features of the family, plain for code that later minors run too"
			},
			hides: []string{"compile-error"},
		},
		{
			id: "arch-unset", title: "No GPU is visible and no arch list is set", modes: []int{14}, class: ClassFault,
			cause: "PyTorch's builder asks the GPUs of the building machine what to compile for; without one and without a list it fails on an empty list.",
			text: []pattern{
				text("IndexError: list index out of range", `IndexError: list index out of range`), text("max() arg is an empty sequence", `max\(\) arg is an empty sequence|max\(\) iterable argument is empty`),
			},
			confirm: func(f *finding) Confidence {
				// The message says nothing; the function in the traceback does.
				if slices.ContainsFunc(f.e.LogLines, func(l string) bool { return strings.Contains(l, "_get_cuda_arch_flags") }) {
					return Certain
				}
				return ""
			},
			say: func(f *finding) (string, string) {
				list := "8.0;8.6;8.9;9.0+PTX"
				if l, ok := compat.Default().DefaultArchs(cmp.Or(f.e.CUDA, f.e.ToolkitFound)); ok {
					if v, ok := l.TorchEnv(); ok {
						list = v
					}
				}
				return "The builder found no GPU to ask and TORCH_CUDA_ARCH_LIST is empty.", `give the row an arch list, or set TORCH_CUDA_ARCH_LIST="` + list + `"`
			},
			hides: []string{"python-error"},
		},
		{
			id: "host-compiler", title: "nvcc does not accept the host compiler", modes: []int{15}, class: ClassFault,
			cause: "Every nvcc accepts gcc up to a certain version. On new distributions the default is newer than that.",
			text: []pattern{
				text("unsupported GNU version", `unsupported GNU version! gcc versions later than (?P<gcc>\d+) are not supported`), text("unsupported clang version", `unsupported clang version! clang version must be less than (?P<clang>\d+)`),
				text("The current installed version of", `The current installed version of (?P<cxx>\S+) \((?P<have>[\d.]+)\) is (?:greater|less) than the (?:maximum|minimum) (?:required )?version`),
			},
			confirm: func(f *finding) Confidence {
				if f.get("have", "") == "0.0.0" {
					return "" // there is none; torch takes that for a version
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				limit := number(f.get("gcc", ""))
				if limit == 0 {
					if h, ok := compat.Default().HostCompilers(cmp.Or(f.e.ToolkitFound, f.e.CUDA)); ok {
						limit = h.GCC[1]
					}
				}
				if limit == 0 {
					return "nvcc refuses the default C++ compiler.", "install an older g++ and set CUDAHOSTCXX to it"
				}
				gxx := fmt.Sprintf("g++-%d", limit)
				install := InstallCommand("c++", f.e.OS, f.e.Distribution, "", "", f.e.asRoot())
				switch family(f.e.OS, f.e.Distribution) {
				case "debian":
					install = strings.Replace(install, " g++", " "+gxx, 1)
				case "fedora":
					install = strings.Replace(install, "gcc-c++", fmt.Sprintf("gcc-toolset-%d-gcc-c++", limit), 1)
				default:
					install = "install " + gxx
				}
				return fmt.Sprintf("This nvcc accepts gcc up to %d, and the default one is newer.", limit),
					ways(install, "then set CUDAHOSTCXX="+gxx+" (and NVCC_CCBIN for nvcc 12.4 and later); where the distribution's own nvcc is used, leave CC unset: it picks the right compiler itself",
						"or use a toolkit that knows this compiler")
			},
			hides: []string{"compile-error", "python-error"},
		},
		{
			id: "cuda-mismatch", title: "The toolkit and torch have different CUDA major versions", modes: []int{5}, class: ClassFault,
			cause: "PyTorch's builder compares nvcc with the CUDA version that torch was built for: another minor gives a warning, another major stops it.",
			text: []pattern{
				text("mismatches the version that was used to compile", `detected CUDA version \((?P<nvcc>[\d.]+)\) mismatches the version that was used to compile(?:\s*PyTorch \((?P<torch>[\d.]+)\))?`),
				text("Please make sure to use the same CUDA versions", `^PyTorch \((?P<torch>[\d.]+)\)\. Please make sure`), // the same sentence, next line
				// torch 2.11 prints the arguments of the exception instead of the sentence.
				text("mismatches the version that was used to compile", `detected CUDA version \(%s\) mismatches.*'(?P<nvcc>[\d.]+)', '(?P<torch>[\d.]+)'\)`),
			},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && e.Stage != "" && e.ToolkitFound != "" && e.TorchCUDAFound != "" && e.TorchCUDAFound != "none" && number(e.ToolkitFound) != number(e.TorchCUDAFound)
			},
			say: func(f *finding) (string, string) {
				nvcc, torch := f.get("nvcc", f.e.ToolkitFound), f.get("torch", f.e.TorchCUDAFound)
				if nvcc == "" || torch == "" {
					return "nvcc and torch are for different CUDA major versions.", "use the toolkit that torch was built for, or the torch build for this toolkit"
				}
				var fixes []string
				if f.e.Image != "" {
					fixes = append(fixes, "use an image with CUDA "+torch+": nvidia/cuda:"+torch+".x-devel-ubuntu22.04")
				} else {
					fixes = append(fixes, "install the toolkit of CUDA "+torch+" and set CUDA_HOME to it: "+InstallCommand("nvcc", f.e.OS, f.e.Distribution, "", torch, false))
				}
				tag := compat.ToolkitTag(nvcc, "")
				if series := torchWith(tag); len(series) > 0 {
					fixes = append(fixes, fmt.Sprintf("or install a torch for %s: %s have one", tag, few(series, 4)))
				}
				return fmt.Sprintf("nvcc is CUDA %s, and torch was built with CUDA %s: the major versions differ.", nvcc, torch), ways(fixes...)
			},
			hides: []string{"python-error", "toolkit-differs"},
		},
		{
			id: "toolkit-differs", title: "The toolkit is not the one the row asks for", modes: []int{5, 32, 33}, class: ClassFault, stages: []string{StagePreflight},
			cause: "The image or the machine has another version than its label says: an older one was cached, or another stands first on PATH.",
			facts: func(e *Evidence) bool {
				return e.Stage == StagePreflight && e.CUDA != "" && e.ToolkitFound != "" && compat.Minor(e.CUDA) != compat.Minor(e.ToolkitFound)
			},
			say: func(f *finding) (string, string) {
				return fmt.Sprintf("The row asks for CUDA %s, and nvcc is %s.", f.e.CUDA, f.e.ToolkitFound),
					ways("check the row's image and pin it by digest", "on a host: set CUDA_HOME to the toolkit of this version")
			},
		},
		{
			id: "torch-differs", title: "The installed torch is not the one the row asks for", modes: []int{5, 33, 35}, class: ClassFault, stages: []string{StagePreflight, StageTest},
			cause: "A requirement of the package replaced torch, or the environment is an old one.",
			facts: func(e *Evidence) bool {
				if e.Stage == "" || e.Torch == "" || e.TorchFound == "" {
					return false
				}
				if e.Torch == compat.Minor(e.Torch) { // a series: any release of it will do
					found, _, _ := strings.Cut(e.TorchFound, "+")
					return e.Torch != compat.Minor(found)
				}
				return otherVersion(e.Torch, e.TorchFound)
			},
			say: func(f *finding) (string, string) {
				return fmt.Sprintf("The row asks for torch %s, and the environment has %s.", f.e.Torch, f.e.TorchFound),
					ways("see which requirement of the wheel asks for another torch: "+cmp.Or(torchRequirement(f.e.WheelRequires), "Requires-Dist in its METADATA"), "install it with torch pinned")
			},
		},
		{
			id: "no-compiler", title: "There is no C++ compiler", modes: []int{4}, class: ClassFault,
			cause: "Neither gcc nor clang is on PATH, or only a part of it is installed.",
			text: []pattern{
				text("failed: No such file or directory", `error: command '(?P<cxx>[^']*(?:g\+\+|gcc|cc|c\+\+|clang\+*)(?:-\d+)?)' failed: No such file or directory`),
				text("not found", `(?:^|[\s/:])(?P<cxx>g\+\+|gcc|c\+\+|cc|clang\+\+)(?:-\d+)?: (?:command )?not found`), text("No such file or directory", `^(?P<cxx>gcc|g\+\+|c\+\+|cc): No such file or directory`),
				text("No such file or directory", `No such file or directory: '(?P<cxx>g\+\+|gcc|c\+\+|cc|clang\+\+|x86_64-linux-gnu-g(?:\+\+|cc))'`),
				text("Failed to preprocess host compiler properties", `Failed to preprocess host compiler properties`), text("cannot execute", "cannot execute ['‘`](?P<cxx>cc1plus|as|ld|collect2)['’]"),
				text("Could not find compiler", `(?i)could not find (?:a )?(?:working )?c(?:\+\+)? compiler`), text("CMAKE_CXX_COMPILER", `No CMAKE_CXX?_COMPILER could be found`),
				text("CalledProcessError", `subprocess\.CalledProcessError: Command '\['which', '(?P<cxx>c\+\+|g\+\+|gcc)'\]' returned non-zero`),
				text("(0.0.0)", `The current installed version of (?P<cxx>\S+) \(0\.0\.0\) is less than the minimum`),
				text("not found", `(?P<cxx>cicc|cudafe\+\+|ptxas|fatbinary): (?:command )?not found`),
			},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && e.Stage != "" && slices.Contains(e.ToolsMissing, "c++")
			},
			say: func(f *finding) (string, string) {
				switch cxx := f.get("cxx", ""); cxx {
				case "cicc", "cudafe++", "ptxas", "fatbinary":
					return "nvcc did not find its own part " + cxx + ": the toolkit is incomplete.", ways(f.installCUDA(), "with nvcc from PyPI: install nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-cccl of the same version")
				case "cc1plus":
					return "gcc is installed, its C++ compiler is not.", f.install("c++")
				default:
					return "The build called " + cmp.Or(cxx, "a C++ compiler") + ", which is not on PATH.", f.install("c++")
				}
			},
			hides: []string{"compile-error", "python-error", "link-error"},
		},
		{
			id: "python-headers", title: "Python's headers are missing", class: ClassFault,
			cause: "The interpreter is installed without its development files.",
			text:  []pattern{text("Python.h", `Python\.h['"]?: No such file|Cannot open include file: 'Python\.h'|'Python\.h' file not found`), text("pyconfig.h", `pyconfig\.h: No such file`)},
			facts: func(e *Evidence) bool {
				return e.in(StagePreflight, StageCompile) && e.Stage != "" && slices.Contains(e.ToolsMissing, "python-headers")
			},
			say: func(f *finding) (string, string) {
				return "Python.h was not found" + forPython(f.e.Python) + ".", ways(f.install("python-headers"), "or build with an interpreter that has its headers")
			},
			hides: []string{"compile-error", "header-missing"},
		},
		{
			id: "cxx-standard", title: "The compiler or its flags are too old for torch's headers", modes: []int{15}, class: ClassFault,
			cause: "torch needs C++17, from 2.13 on C++20. The package sets an older -std, or the compiler does not know it.",
			text: []pattern{
				text("compatible compiler is required", `C\+\+(?P<std>\d+) (?:or later )?compatible compiler is required`), text("You need C++", `You need C\+\+(?P<std>\d+) to compile PyTorch`),
				text("unrecognized command", "unrecognized command[- ]line option ['‘](?P<flag>-std=[^'’]+)['’]"), text("Unsupported", `Value '(?P<flag>c\+\+\d+)' is not defined for option 'std'`),
				text("C++ versions less than", `C\+\+ versions less than C\+\+(?P<std>\d+) are not supported`),
			},
			say: func(f *finding) (string, string) {
				std := f.get("std", "")
				if s, ok := compat.Default().CXXStandard(f.e.torchPublic()); ok && std == "" {
					std = fmt.Sprint(s)
				}
				if std == "" {
					std = "17 or C++20"
				}
				if f.get("flag", "") != "" {
					return "The compiler does not know " + f.get("flag", "") + ".", ways("use a newer compiler: gcc 9 knows C++17, gcc 11 C++20", f.install("c++"))
				}
				return "torch's headers want C++" + std + ", and the package compiles for an older standard.", ways("drop -std from the package's own flags: PyTorch's builder sets the right one", "or use a torch that was current when the package was released")
			},
			hides: []string{"compile-error"},
		},
		{
			id: "header-missing", title: "A header is missing", class: ClassFault,
			cause: "The development files of a library are not installed, or a submodule of the source was not fetched.",
			text: []pattern{
				text("No such file or directory", `fatal error: (?P<header>\S+\.(?:h|hpp|hh|cuh|inl|hxx)): No such file or directory`), text("file not found", `fatal error: '(?P<header>[^']+)' file not found`),
				text("Cannot open include file", `Cannot open include file: '(?P<header>[^']+)'`), text("could not open source file", `could not open source file "(?P<header>[^"]+)"`),
			},
			say:   sayHeader,
			hides: []string{"compile-error"},
		},
		{
			id: "link-lib", title: "A library to link with is missing", class: ClassFault,
			cause: "The linker was told to use a library that is in none of its folders.",
			text: []pattern{
				text("cannot find -l", `cannot find -l(?P<lib>[\w.+-]+)`), text("library not found for -l", `library not found for -l(?P<lib>\w+)`), text("unable to find library", `unable to find library -l(?P<lib>\w+)`), text("LNK1181", `LNK1181: cannot open input file '(?P<lib>[^']+)'`),
			},
			say: func(f *finding) (string, string) {
				libs := f.all["lib"]
				d := "The linker did not find " + cmp.Or(few(libs, 6), "a library") + "."
				switch lib := f.get("lib", ""); {
				case lib == "cudart" || strings.HasPrefix(lib, "cu") || strings.HasPrefix(lib, "nv"):
					return d, ways("install the toolkit's development files, and check that CUDA_HOME/lib64 (or targets/…/lib) has lib"+lib+".so", f.installCUDA(), "lib"+lib+" from PyPI is called lib"+lib+".so.N: link it as lib"+lib+".so into a folder of LIBRARY_PATH")
				case lib == "c10" || strings.HasPrefix(lib, "torch") || strings.HasPrefix(lib, "c10"):
					return d, "torch's own folder (python -c 'import torch; print(torch.__path__[0])')/lib has to be in the library path: build with torch's BuildExtension, and check that torch is a CUDA build if c10_cuda is missing"
				case strings.HasPrefix(lib, "python"):
					return d, f.install("python-headers")
				case lib == "stdc++":
					return d, f.install("c++")
				}
				return d, "install the development package of the library, or add its folder to LIBRARY_PATH"
			},
			hides: []string{"link-error", "compile-error"},
		},
		{
			id: "compiler-crash", title: "The compiler crashed", class: ClassFault,
			cause: "A fault of the compiler itself, or damaged memory. The same input crashes again.",
			text: []pattern{
				text("internal compiler error", `internal compiler error: (?P<what>.*)`), text("Segmentation fault", `(?P<what>Segmentation fault)(?: signal terminated program (?P<program>\S+))?`),
				text("died due to signal", `'?(?P<program>\w+\+*)'? died due to signal (?P<what>\d+)`), text("assertion failed", `(?:error: )?(?P<what>assertion failed at: "\S+", line \d+)`), text("internal error", `(?P<what>internal error: assertion failed)`),
			},
			stages: []string{StageCompile},
			say: func(f *finding) (string, string) {
				return "The compiler crashed" + colon(f.get("what", "")) + ".", ways("try another version of the compiler, or a lower optimization for the file it happens in", "if it happens in another file each time, check the machine's memory")
			},
			hides: []string{"compile-error"},
		},
	}
}

// otherVersion says whether two versions are readable and differ, local parts aside:
// 1.0 and 1.0.0 do not.
func otherVersion(a, b string) bool {
	v, err1 := wheel.ParseVersion(a)
	w, err2 := wheel.ParseVersion(b)
	if err1 != nil || err2 != nil {
		return false
	}
	v, err1 = wheel.ParseVersion(v.Public())
	w, err2 = wheel.ParseVersion(w.Public())
	return err1 == nil && err2 == nil && !v.Equal(w)
}

// torchPublic is the version of the torch that was found, or asked for, without its
// local part.
func (e *Evidence) torchPublic() string {
	v, _, _ := strings.Cut(cmp.Or(e.TorchFound, e.Torch), "+")
	return v
}

// torchIsCPU says whether the torch that was found is known to have no GPU part.
func torchIsCPU(e *Evidence) bool {
	return e.TorchCUDAFound == "none" && !strings.Contains(e.TorchFound, "+rocm") || strings.HasSuffix(e.TorchFound, "+cpu")
}

func equals(version string) string {
	if version == "" {
		return ""
	}
	return "==" + version
}

func forPython(v string) string {
	if v == "" {
		return ""
	}
	return " for Python " + v
}

// parent is the folder of a path of any system.
func parent(p string) string {
	if i := strings.LastIndexAny(p, `/\`); i > 0 {
		return p[:i]
	}
	return p
}

func torchRequirement(requires []string) string {
	for _, l := range requires {
		if r, err := wheel.ParseRequirement(l); err == nil && r.Name == "torch" {
			return l
		}
	}
	return ""
}

// badArchs are the targets of the row that its toolkit cannot make.
func badArchs(e *Evidence) []compat.Arch {
	cuda := cmp.Or(e.ToolkitFound, e.CUDA)
	if cuda == "" || e.Arch == "" {
		return nil
	}
	emits, ok := compat.Default().Emits(cuda)
	if !ok {
		return nil
	}
	list, err := compat.Default().ArchList(e.Arch, e.torchPublic())
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(list.Items(), emits.Has)
}

// sayArch explains a target that nvcc, or PyTorch's builder, does not know.
func sayArch(f *finding) (detail, fix string) {
	e := f.e
	cuda := cmp.Or(e.ToolkitFound, e.CUDA)
	if t := f.get("torcharch", ""); t != "" {
		detail = fmt.Sprintf("PyTorch's builder does not know the arch %q", t)
		if e.Torch != "" || e.TorchFound != "" {
			detail += " (torch " + cmp.Or(e.TorchFound, e.Torch) + ")"
		}
		return detail + ". An empty or misspelled entry is refused too.", ways("correct TORCH_CUDA_ARCH_LIST, or build for a lower arch with +PTX, which newer GPUs can use", "or use a newer torch")
	}
	name := f.get("arch", "")
	if name == "" {
		if bad := badArchs(e); len(bad) > 0 {
			name = "sm_" + strings.ReplaceAll(bad[0].Target(), ".", "")
		}
	}
	_, digits, _ := strings.Cut(name, "_")
	list, err := compat.ParseArchList(digits)
	if digits == "" || err != nil || len(list.Items()) == 0 {
		return "nvcc does not know the architecture.", "use an arch that this toolkit can make; `nvcc --list-gpu-arch` lists them"
	}
	a := list.Items()[0]
	var first, end string // the first and the last CUDA series that make it
	for _, s := range compat.Default().CUDASeries() {
		if l, ok := compat.Default().Emits(s); ok && l.Has(a) {
			if first == "" {
				first = s
			}
			end = s
		}
	}
	which := "This nvcc"
	if cuda != "" {
		which = "nvcc " + compat.Minor(cuda)
	}
	detail = fmt.Sprintf("%s cannot make code for %s (%s)", which, a.Target(), name)
	gpu := ""
	if g, ok := compat.Default().GPU(a.CC()); ok && len(g.Devices) > 0 {
		gpu = fmt.Sprintf(" %s is %s: %s.", a.CC(), g.Family, few(g.Devices, 3))
	}
	emits, known := compat.Default().Emits(cuda)
	highest, lowest := "", ""
	if known && !emits.Empty() {
		var plain []compat.Arch
		for _, i := range emits.Items() {
			if i.Suffix == "" {
				plain = append(plain, i)
			}
		}
		if len(plain) > 0 {
			lowest, highest = plain[0].Target(), plain[len(plain)-1].Target()
		}
	}
	tooOld := lowest != "" && ccLess(a.CC(), mustCC(lowest)) || lowest == "" && end != "" && end != last(compat.Default().CUDASeries())
	switch {
	case first == "":
		detail += "; no toolkit that kiln knows can." + gpu
		fix = "check the number: it is major and minor of the compute capability, such as 8.6 for sm_86"
	case tooOld:
		detail += fmt.Sprintf(": CUDA %s was the last that could.%s", end, gpu)
		fix = ways("drop "+a.Target()+" from the arch list", "or build with CUDA "+end+" or older, and the torch that goes with it")
	default:
		detail += fmt.Sprintf(": CUDA %s was the first that could.%s", first, gpu)
		fix = ways("build with CUDA " + first + " or newer, and the torch that goes with it")
		if highest != "" {
			fix = ways(fix, fmt.Sprintf(`or set TORCH_CUDA_ARCH_LIST="%s+PTX": the driver compiles PTX for newer GPUs`, highest))
		}
	}
	return detail, fix
}

func ccLess(a, b compat.CC) bool {
	return a.Major < b.Major || a.Major == b.Major && a.Minor < b.Minor
}

func mustCC(s string) compat.CC {
	cc, _ := compat.ParseCC(s) // from the table, which is checked
	return cc
}

// headerPackages tell where a header comes from, by prefix.
var headerPackages = []struct{ prefix, what, fix string }{
	{"cutlass/", "CUTLASS, a submodule of the source", "fetch the source with its submodules: git submodule update --init --recursive"},
	{"cute/", "CuTe, a submodule of the source", "fetch the source with its submodules: git submodule update --init --recursive"},
	{"third_party/", "a submodule of the source", "fetch the source with its submodules: git submodule update --init --recursive"},
	{"cublas", "cuBLAS", "install the toolkit's libraries with their headers (libcublas-dev; nvidia-cublas from PyPI)"},
	{"cusparse", "cuSPARSE", "install the toolkit's libraries with their headers (libcusparse-dev; nvidia-cusparse from PyPI)"},
	{"cusolver", "cuSOLVER", "install the toolkit's libraries with their headers (libcusolver-dev; nvidia-cusolver from PyPI)"},
	{"curand", "cuRAND", "install the toolkit's libraries with their headers (libcurand-dev; nvidia-curand from PyPI)"},
	{"cufft", "cuFFT", "install the toolkit's libraries with their headers (libcufft-dev; nvidia-cufft from PyPI)"},
	{"cudnn", "cuDNN", "install cuDNN with its headers (libcudnn9-dev-cuda-12; nvidia-cudnn-cu12 from PyPI)"},
	{"nccl", "NCCL", "install NCCL with its headers (libnccl-dev)"},
	{"nv/target", "the CUDA C++ core libraries", "install them: nvidia-cuda-cccl from PyPI, cuda-cccl from NVIDIA's repository"},
	{"thrust/", "the CUDA C++ core libraries", "install them: nvidia-cuda-cccl from PyPI, cuda-cccl from NVIDIA's repository"},
	{"cub/", "the CUDA C++ core libraries", "install them: nvidia-cuda-cccl from PyPI, cuda-cccl from NVIDIA's repository"},
	{"crt/", "the CUDA compiler", "install nvidia-cuda-crt of nvcc's version (PyPI), or the whole toolkit"},
	{"cuda", "the CUDA runtime", "install the toolkit's headers (cuda-cudart-dev; nvidia-cuda-runtime from PyPI), or set CUDA_HOME to a full toolkit"},
	{"torch/", "torch", "build in the environment that has torch, with torch's BuildExtension"},
	{"ATen/", "torch", "build in the environment that has torch, with torch's BuildExtension"},
	{"c10/", "torch", "build in the environment that has torch, with torch's BuildExtension"},
	{"pybind11/", "pybind11", "add pybind11 to the row's extra_deps, or use the copy in torch/include"},
	{"numpy/", "NumPy", "add numpy to the row's extra_deps"},
	{"hip/", "ROCm", "install ROCm's development files (rocm-hip-sdk)"},
}

func sayHeader(f *finding) (detail, fix string) {
	h := f.get("header", "")
	for _, p := range headerPackages {
		if h != "" && strings.HasPrefix(h, p.prefix) {
			return fmt.Sprintf("%s was not found. It belongs to %s.", h, p.what), p.fix
		}
	}
	return cmp.Or(h, "A header") + " was not found.", ways("if it belongs to the package: fetch its submodules (git submodule update --init --recursive)", "else install the development package of the library it belongs to")
}
