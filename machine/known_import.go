package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// importNoise are the entries that a loader's message explains.
var importNoise = []string{"python-error", "test-failed", "import-swallowed", "runtime-dependency", "wrong-import-name", "compile-at-import"}

// importEntries are about what happens when a built module is loaded.
func importEntries() []entry {
	return []entry{
		{
			id: "undefined-symbol", title: "The module was compiled for another torch, Python or C++ library", modes: []int{1}, class: ClassFault,
			cause: "A compiled extension fits one torch minor, one Python and one C++ ABI. The loader names the first symbol that is missing.",
			text: []pattern{
				text("undefined symbol", `(?:(?P<module>\S+\.so\S*): )?undefined symbol: (?P<symbol>[^\s,]+)(?:, version (?P<version>\S+))?`),
				text("Symbol not found", `Symbol not found: (?P<symbol>\S+)`), text("symbol lookup error", `symbol lookup error: (?P<module>\S+): undefined symbol: (?P<symbol>\S+)`),
				text("procedure could not be found", `DLL load failed while importing (?P<module>\S+): The specified procedure could not be found`),
			},
			confirm: func(f *finding) Confidence {
				s := parseSymbol(f.get("symbol", ""))
				if s.abi != "" && f.e.torchABI() != "" && s.abi != f.e.torchABI() {
					return Certain
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				if v := f.get("version", ""); v != "" && strings.HasPrefix(v, "lib") {
					module := f.get("module", "the module")
					return fmt.Sprintf("%s needs %s from %s, and the %s that was loaded does not have it: it is older, or a stand-in.",
							module[strings.LastIndexAny(module, `/\`)+1:], parseSymbol(f.get("symbol", "")).plain, v, v),
						ways("install the version of that library that torch names in its requirements: pip install --force-reinstall torch brings them", "see which one is loaded: LD_DEBUG=libs python -c 'import torch' 2>&1 | grep "+v, "unset LD_LIBRARY_PATH if it points to an older CUDA")
				}
				return sayUndefined(f)
			},
			hides: importNoise,
		},
		{
			id: "glibcxx-too-old", title: "The C++ library is older than the compiler that built the module", modes: []int{25}, class: ClassFault,
			cause: "The module was built with a newer GCC than the libstdc++ that is loaded. Conda environments often bring an older one than the system's.",
			text:  []pattern{text("not found", "(?:(?P<lib>\\S+): )?version [`'](?P<version>(?:GLIBCXX|CXXABI)_[\\d.]+)' not found(?: \\(required by (?P<module>[^)]+)\\))?")},
			say: func(f *finding) (string, string) {
				v := f.get("version", "")
				d := "The loaded libstdc++ does not have " + cmp.Or(v, "what the module needs")
				if l := f.get("lib", ""); l != "" {
					d += " (" + l + ")"
				}
				if g := gccOf(v); g != "" {
					d += "; it came with GCC " + g
				}
				var fixes []string
				if strings.Contains(f.get("lib", ""), "conda") {
					fixes = append(fixes, "conda install -c conda-forge libstdcxx-ng")
				}
				return d + ".", ways(append(fixes, "use the newer libstdc++: of the system instead of the environment's, or conda install -c conda-forge libstdcxx-ng", "or build on an older distribution: the wheel then runs on newer ones too")...)
			},
			hides: importNoise,
		},
		{
			id: "glibc-too-old", title: "The system is older than the one that built the module", modes: []int{25}, class: ClassFault,
			cause: "A binary needs at least the glibc that it was linked with.",
			text:  []pattern{text("GLIBC_", "version [`'](?P<version>GLIBC_[\\d.]+)' not found(?: \\(required by (?P<module>[^)]+)\\))?")},
			say: func(f *finding) (string, string) {
				v := strings.TrimPrefix(f.get("version", ""), "GLIBC_")
				d := "The module needs glibc " + cmp.Or(v, "of a newer system")
				if f.e.GLIBCFound != "" {
					d += ", and this system has " + f.e.GLIBCFound
				}
				if who := glibcOf(v); who != "" {
					d += ". The oldest systems that have it: " + who
				}
				return d + ".", ways("use a newer distribution or container", "or build the wheel on an older one, and audit it: the platform tag says the oldest glibc that works")
			},
			hides: importNoise,
		},
		{
			id: "lib-missing", title: "A shared library is missing", modes: []int{2}, class: ClassFault,
			cause: "The module was linked with a library that the loader does not find: CUDA of another major version, no driver, or torch was not imported before.",
			text: []pattern{
				text("cannot open shared object file", `(?P<lib>lib[^\s/:]+\.so[.\d]*): cannot open shared object file`), text("module could not be found", `DLL load failed while importing (?P<module>\S+): The specified module could not be found`),
				text("Library not loaded", `Library not loaded: (?P<lib>\S+)`), text("error 126", `error 126`), text("Error loading", `\[WinError 126\].*Error loading "(?P<lib>[^"]+)"`),
			},
			say:   sayLibrary,
			hides: importNoise,
		},
		{
			id: "wrong-machine", title: "The module is for another kind of processor", class: ClassFault,
			cause: "A 32-bit or ARM file on a 64-bit Intel machine, or the other way round.",
			text: []pattern{
				plain("wrong ELF class"), plain("is not a valid Win32 application"), plain("Exec format error"), plain("incompatible architecture"),
				// glibc says "No such file" of a file with a path when its machine is another.
				text("cannot open shared object file", `ImportError: (?:/|\w:\\)\S+\.so\S*: cannot open shared object file`),
			},
			say: func(f *finding) (string, string) {
				return "The file was built for another processor or word size.", "install the wheel whose platform tag fits this machine (x86_64 or aarch64)"
			},
			hides: append([]string{"lib-missing"}, importNoise...),
		},
		{
			id: "damaged-module", title: "The module's file is damaged", class: ClassFault,
			cause: "A download or a copy ended early, or a Git LFS pointer lies where the file should be.",
			text: []pattern{
				text("file too short", `(?P<file>\S+): file too short`), text("invalid ELF header", `(?P<file>\S+): invalid ELF header`), text("cannot read file data", `(?P<file>\S+): cannot read file data`),
				text("ELF", `(?P<file>\S+): ELF (?:load command|file's phentsize)`), text("BadZipFile", `zipfile\.BadZipFile|BadZipFile: (?P<file>.*)`), text("Wheel", `(?:Wheel|wheel) '(?P<file>[^']+)' .*(?:is invalid|corrupt)`),
			},
			say: func(f *finding) (string, string) {
				return cmp.Or(f.get("file", ""), "The file") + " is cut off or is something else.", ways("remove it and install it again: pip install --force-reinstall --no-cache-dir", "if it came from a repository: git lfs pull")
			},
			hides: append([]string{"lib-missing"}, importNoise...),
		},
		{
			id: "noexec", title: "The module lies on a file system that forbids executing", class: ClassFault,
			cause: "The cache or the temporary folder is mounted with noexec, or a security module forbids it.",
			text:  []pattern{text("failed to map segment from shared object", `(?P<file>\S+): failed to map segment from shared object`)},
			say: func(f *finding) (string, string) {
				return cmp.Or(f.get("file", ""), "The file") + " may not be loaded from where it is.", ways("use a folder that is not mounted noexec: `findmnt -T FOLDER` shows it", "for modules that torch compiles: set TORCH_EXTENSIONS_DIR")
			},
			hides: importNoise,
		},
		{
			id: "not-a-module", title: "The library is not the Python module of that name", class: ClassFault,
			cause: "The file was renamed, or was compiled with another module name than it is imported by.",
			text:  []pattern{text("dynamic module does not define module export function", `dynamic module does not define (?:module export|init) function \((?:PyInit_|init)(?P<module>\w+)\)`)},
			say: func(f *finding) (string, string) {
				return "The file has no function PyInit_" + cmp.Or(f.get("module", ""), "NAME") + ".", "compile it with the name it has: TORCH_EXTENSION_NAME and PYBIND11_MODULE must agree with the file's name"
			},
			hides: importNoise,
		},
		{
			id: "numpy-abi", title: "The module was compiled for another NumPy", class: ClassFault,
			cause: "Modules compiled with NumPy 1 do not run with NumPy 2.",
			text:  []pattern{plain("A module that was compiled using NumPy 1.x cannot be run in"), text("numpy.core.multiarray failed to import", `numpy\.core\.multiarray failed to import`), text("numpy.dtype size changed", `numpy\.dtype size changed`), plain("compiled against API version")},
			say: func(f *finding) (string, string) {
				return "The compiled code and the installed NumPy have different binary interfaces.", ways(`pip install "numpy<2"`, "or build with NumPy 2: such modules run with both")
			},
			hides: importNoise,
		},
		{
			id: "import-swallowed", title: "An earlier import error was dropped", modes: []int{2}, class: ClassFault,
			cause: "ExLlamaV2 passes on an import error only if it contains \"undefined symbol\". Any other error of the loader is dropped and shows up later as a missing name.",
			text:  []pattern{text("is not defined", `NameError: name '(?P<module>\w*_ext|\w*_cuda|\w*_C|\w+_kernels?)' is not defined`), text("UnboundLocalError", `UnboundLocalError: .* variable '(?P<module>\w*_ext)'`)},
			say: func(f *finding) (string, string) {
				m := f.get("module", "MODULE")
				return fmt.Sprintf("The package tried to import %s, ignored that it failed, and missed it later. The loader's own message was lost.", m),
					fmt.Sprintf("let the loader speak: python -c 'import torch, %s', and give its message to `kiln doctor --explain`", m)
			},
			hides: []string{"python-error", "test-failed"},
		},
		{
			id: "no-native-module", title: "There is no compiled module, and nothing to compile it with", modes: []int{3}, class: ClassFault, stages: []string{StageImport, StageTest},
			cause: "The package came without its compiled part and wants to build it at import, which needs a C++ compiler, nvcc and ninja.",
			text:  []pattern{text("No module named", `No module named '(?P<module>\w*(?:_ext|_cuda|_C|_kernels?)(?:\.\w+)*)'`)},
			confirm: func(f *finding) Confidence {
				if len(f.e.ToolsMissing) > 0 {
					return Certain
				}
				if f.e.Stage == "" {
					return Possible
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				d := fmt.Sprintf("The compiled module %s is not installed", cmp.Or(f.get("module", ""), "of the package"))
				if len(f.e.ToolsMissing) > 0 {
					d += ", and it can't be compiled here: " + join(f.e.ToolsMissing) + " " + plural(len(f.e.ToolsMissing), "is", "are") + " missing"
				}
				fixes := []string{"install a wheel that has it; its name has the versions of CUDA, torch and Python in it"}
				for _, t := range f.e.ToolsMissing {
					if t == "nvcc" {
						fixes = append(fixes, "or "+f.installCUDA())
					} else if c := f.install(t); c != "" {
						fixes = append(fixes, "or "+c)
					}
				}
				return d + ".", ways(fixes...)
			},
			hides: []string{"wrong-import-name", "runtime-dependency", "python-error", "test-failed"},
		},
		{
			id: "compile-at-import", title: "The package compiles itself at import", modes: []int{3}, class: ClassFault, stages: []string{StageTest}, warns: true,
			cause: "The wheel has no compiled module, and the package builds one on first use. The test fails for that reason: users may have no compiler.",
			text:  []pattern{text("Building extension module", `Building extension module (?P<module>\w+)`), text("Emitting ninja build file", `Emitting ninja build file`), text("Loading extension module", `Loading extension module (?P<module>\w+)`), text("as PyTorch extensions root", `as PyTorch extensions root`)},
			facts: func(e *Evidence) bool {
				return e.Stage == StageTest && (strings.HasPrefix(e.ModuleFile, "/") || strings.HasPrefix(e.ModuleFile, ".."))
			},
			say: func(f *finding) (string, string) {
				d := "The import started a compile instead of loading a compiled module"
				if f.e.ModuleFile != "" {
					d = "The loaded module is not in the wheel but at " + f.e.ModuleFile
				}
				return d + ".", "build the wheel with its module: unset EXLLAMA_NOCOMPILE and the like, and check that the build compiled"
			},
		},
		{
			id: "wrong-import-name", title: "The test imports a module that the wheel does not have", modes: []int{18}, class: ClassFault, stages: []string{StageTest, StageImport},
			cause: "The name of a package and the name of its module often differ.",
			text:  []pattern{text("No module named", `ModuleNotFoundError: No module named '(?P<module>[^']+)'`)},
			confirm: func(f *finding) Confidence {
				m := topModule(f.get("module", ""))
				asked := slices.ContainsFunc(f.e.TestImports, func(i string) bool { return topModule(i) == m })
				has := slices.Contains(f.e.WheelTopLevel, m)
				switch {
				case len(f.e.TestImports) == 0, !asked, has:
					return ""
				case len(f.e.WheelTopLevel) > 0:
					return Certain
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				d := fmt.Sprintf("The test imports %s, and there is no such module.", cmp.Or(f.get("module", ""), "a name"))
				if len(f.e.WheelTopLevel) > 0 {
					return d + " The wheel has " + few(f.e.WheelTopLevel, 6) + ".", "set test_import: " + nearest(f.get("module", ""), f.e.WheelTopLevel)
				}
				return d, "set test_import to the module's name: `unzip -l WHEEL` shows it"
			},
			hides: []string{"runtime-dependency", "python-error", "test-failed"},
		},
		{
			id: "runtime-dependency", title: "A module that the package imports is not installed", modes: []int{19}, class: ClassFault, stages: []string{StageTest, StageImport},
			cause: "The package needs something that its metadata does not name, or the test needs something of its own.",
			text:  []pattern{text("No module named", `ModuleNotFoundError: No module named '(?P<module>[^']+)'`)},
			say: func(f *finding) (string, string) {
				m := topModule(f.get("module", ""))
				if m == "" {
					return "The package imports a module that is not installed.", "install it, and add it to the package's metadata"
				}
				req := moduleRequirement(m, f.e.WheelRequires)
				d := fmt.Sprintf("The import needs %s.", f.get("module", ""))
				if f.e.Stage == StageTest {
					if declared(req, f.e.WheelRequires) {
						line := requireLine(req, f.e.WheelRequires)
						return d + " The wheel names it (Requires-Dist: " + line + "), so it was not installed, or only with an extra.", "install the wheel with its dependencies, or add " + req + " to the test's requirements"
					}
					return d + " The wheel's metadata does not name it.", ways("declare it in the package: Requires-Dist: "+req, "or add "+req+" to the test's requirements, if only the test needs it")
				}
				return d, "python -m pip install " + req
			},
			hides: []string{"python-error", "test-failed"},
		},
	}
}

func topModule(m string) string {
	top, _, _ := strings.Cut(m, ".")
	return top
}

func requireLine(req string, lines []string) string {
	r, err := wheel.ParseRequirement(req)
	for _, l := range lines {
		if o, err2 := wheel.ParseRequirement(l); err == nil && err2 == nil && o.Name == r.Name {
			return l
		}
	}
	return req
}

// nearest picks the name that is most like another, or all.
func nearest(name string, list []string) string {
	best := ""
	for _, c := range list {
		if common(name, c) > common(name, best) {
			best = c
		}
	}
	if common(name, best) < 3 {
		return join(list)
	}
	return best
}

// common is the length of the common prefix.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// libraryHomes tell who brings a shared library, by the beginning of its name.
var libraryHomes = []struct{ prefix, what, fix string }{
	{"libcuda.so", "the NVIDIA driver, which this machine or container does not have", "install the driver, or give the container the GPU (--gpus all, --device nvidia.com/gpu=all); without a GPU the package can't be imported"},
	{"libnvidia-ml", "the NVIDIA driver, which this machine or container does not have", "install the driver, or give the container the GPU (--gpus all)"},
	{"libc10", "torch: the module was imported before torch", "import torch first; check that torch is installed in this environment and, for libc10_cuda, that it is a CUDA build"},
	{"libtorch", "torch: the module was imported before torch", "import torch first; check that torch is installed in this environment and, for libtorch_cuda, that it is a CUDA build"},
	{"libcudnn", "cuDNN, a dependency of torch", "install it again with torch's other dependencies: pip install --force-reinstall torch"},
	{"libnccl", "NCCL, a dependency of torch", "install it again with torch's other dependencies: pip install --force-reinstall torch"},
	{"libamdhip64", "the HIP runtime of ROCm", "install ROCm's runtime, or the wheel for CUDA"},
	{"libpython", "Python as a shared library", "install the shared library of this Python, or build the module without linking to it"},
	{"libgomp", "GCC's OpenMP runtime", "install libgomp1 (Debian, Ubuntu) or libgomp (Fedora)"},
	{"libstdc++", "GCC's C++ runtime", "install libstdc++6 (Debian, Ubuntu) or libstdc++ (Fedora)"},
}

// cudaLibraries are the libraries whose file name ends in the CUDA major version.
var cudaLibraries = []string{"libcudart", "libcublas", "libcublasLt", "libcusparse", "libcusolver", "libcurand", "libcufft", "libnvrtc", "libnvJitLink", "libcupti"}

func sayLibrary(f *finding) (detail, fix string) {
	lib := f.get("lib", "")
	if lib == "" {
		return "A library that " + cmp.Or(f.get("module", ""), "the module") + " needs was not found; Windows does not say which.", ways("import torch first", "see what it needs: dumpbin /dependents FILE", "install the Visual C++ redistributable")
	}
	if strings.HasPrefix(lib, "libcuda.so") && f.e.Stage == StageTest {
		return lib + " was not found. It is the NVIDIA driver, which belongs to machines with a GPU, and the test imports without one: the module is linked to the driver itself.",
			ways("if it must be: test: {requires_gpu: true} in packages.yml; the test then runs only where a GPU is",
				"better: do not link with -lcuda; ask the runtime for driver functions (cudaGetDriverEntryPoint), so that an import works everywhere",
				"the library in lib64/stubs is for linking only: it must not be on the loader's path")
	}
	for _, h := range libraryHomes {
		if strings.HasPrefix(lib, h.prefix) {
			return fmt.Sprintf("%s was not found. It belongs to %s.", lib, h.what), h.fix
		}
	}
	stem, version, _ := strings.Cut(lib, ".so")
	if slices.Contains(cudaLibraries, stem) {
		major := 0
		if n := number(strings.TrimPrefix(version, ".")); n > 0 {
			major = cudaMajor(stem, n)
		}
		d := fmt.Sprintf("%s was not found. It belongs to CUDA", lib)
		if major > 0 {
			d += fmt.Sprintf(" %d, for which the module was built", major)
		}
		if f.e.TorchCUDAFound != "" && f.e.TorchCUDAFound != "none" {
			have := number(f.e.TorchCUDAFound)
			d += fmt.Sprintf("; the installed torch has CUDA %s", f.e.TorchCUDAFound)
			if major > 0 && have != major {
				return d + ".", ways(fmt.Sprintf("install the wheel for CUDA %d", have), fmt.Sprintf("or a torch for CUDA %d", major))
			}
			return d + ".", "import torch first: it loads its CUDA libraries"
		}
		return d + ".", ways("import torch first: it loads its CUDA libraries", "if that does not help: the wheel is for another CUDA major version than torch (python -c 'import torch; print(torch.version.cuda)')", "install the wheel for torch's CUDA version")
	}
	return lib + " was not found.", ways("install the package that has it", "see all that is missing: ldd MODULE | grep 'not found'")
}

// cudaMajor is the CUDA major that a library version belongs to, 0 where one version
// served several.
func cudaMajor(stem string, version int) int {
	switch stem {
	case "libcufft":
		return version + 1 // 10 is CUDA 11, 11 is 12, 12 is 13
	case "libcusolver", "libcurand", "libcusparse":
		return 0
	}
	return version
}

// gccOf is the GCC release that brought a symbol version of libstdc++.
func gccOf(version string) string {
	return map[string]string{
		"GLIBCXX_3.4.21": "5", "GLIBCXX_3.4.22": "6", "GLIBCXX_3.4.23": "7", "GLIBCXX_3.4.24": "7", "GLIBCXX_3.4.25": "8", "GLIBCXX_3.4.26": "9",
		"GLIBCXX_3.4.27": "9", "GLIBCXX_3.4.28": "9.3", "GLIBCXX_3.4.29": "11", "GLIBCXX_3.4.30": "12", "GLIBCXX_3.4.31": "13", "GLIBCXX_3.4.32": "13.2", "GLIBCXX_3.4.33": "14", "GLIBCXX_3.4.34": "15",
		"CXXABI_1.3.9": "5", "CXXABI_1.3.10": "6", "CXXABI_1.3.11": "7", "CXXABI_1.3.12": "9", "CXXABI_1.3.13": "11", "CXXABI_1.3.14": "13", "CXXABI_1.3.15": "14", "CXXABI_1.3.16": "15",
	}[version]
}

// glibcOf names the oldest well-known systems with at least a glibc version.
func glibcOf(version string) string {
	v, err := wheel.ParseVersion(version)
	if err != nil {
		return ""
	}
	var out []string
	for _, d := range []struct{ glibc, names string }{
		{"2.17", "CentOS 7"},
		{"2.28", "Debian 10, RHEL 8"},
		{"2.31", "Debian 11, Ubuntu 20.04"},
		{"2.34", "RHEL 9"},
		{"2.35", "Ubuntu 22.04"},
		{"2.36", "Debian 12"},
		{"2.39", "Ubuntu 24.04, RHEL 10"},
		{"2.41", "Debian 13"},
	} {
		g, _ := wheel.ParseVersion(d.glibc) // constants
		if g.Compare(v) >= 0 {
			out = append(out, d.names)
		}
		if len(out) == 2 {
			break
		}
	}
	return strings.Join(out, ", ")
}
