package machine

import (
	"fmt"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/kiln-build/kiln/compat"
)

// A symbol is what the loader did not find.
type symbol struct {
	name  string // as the loader wrote it
	plain string // demangled, or the name
	home  string // who should have it: "torch", "torch's CUDA part", "Python", "CUDA: cublas", …
	abi   string // "0" or "1" where the name tells the C++ ABI it was compiled for
}

// parseSymbol reads a name of the dynamic symbol table.
func parseSymbol(name string) symbol {
	// A version may hang on: foo@GLIBC_2.34, or ", version X" as the loader prints it.
	name, _, _ = strings.Cut(name, "@")
	name = strings.TrimRight(name, ",;:.")
	s := symbol{name: name, plain: name}
	if p, err := demangle.ToString(name, demangle.NoClones); err == nil {
		s.plain = p
	}
	// The old ABI has its own abbreviation for std::string, the new one a namespace.
	if strings.HasPrefix(name, "_Z") {
		switch {
		case strings.Contains(name, "__cxx11"):
			s.abi = "1"
		case hasOldString(name):
			s.abi = "0"
		}
	}
	for _, h := range []struct{ prefix, home string }{
		{"c10::cuda", "torch's CUDA part (libc10_cuda)"},
		{"at::cuda", "torch's CUDA part (libtorch_cuda)"},
		{"c10::hip", "torch's ROCm part (libc10_hip)"},
		{"c10", "torch (libc10)"},
		{"at", "torch (libtorch_cpu)"},
		{"torch", "torch (libtorch_cpu or libtorch_python)"},
		{"caffe2", "torch (libtorch_cpu)"},
		{"pybind11", "the package itself (pybind11)"},
	} {
		if namespace(s.plain, h.prefix) {
			s.home = h.home
			return s
		}
	}
	switch {
	case strings.HasPrefix(name, "Py"), strings.HasPrefix(name, "_Py"):
		s.home = "Python"
	case strings.HasPrefix(name, "cublas"), strings.HasPrefix(name, "cusparse"), strings.HasPrefix(name, "cusolver"),
		strings.HasPrefix(name, "curand"), strings.HasPrefix(name, "cufft"), strings.HasPrefix(name, "cudnn"), strings.HasPrefix(name, "nccl"):
		s.home = "a CUDA library (lib" + strings.ToLower(strings.TrimRight(leadingLower(name), "0123456789")) + ")"
	case strings.HasPrefix(name, "__cuda"), strings.HasPrefix(name, "cuda"):
		s.home = "the CUDA runtime (libcudart)"
	case strings.HasPrefix(name, "cu") && len(name) > 2 && name[2] >= 'A' && name[2] <= 'Z':
		s.home = "the NVIDIA driver (libcuda)"
	case strings.HasPrefix(name, "hip"), strings.HasPrefix(name, "__hip"):
		s.home = "the HIP runtime (libamdhip64)"
	case strings.HasPrefix(s.plain, "std::"), strings.HasPrefix(name, "__cxa"), strings.HasPrefix(name, "__gxx"):
		s.home = "the C++ library (libstdc++)"
	}
	return s
}

// fromTorch says whether some version of torch should have the symbol.
func (s symbol) fromTorch() bool { return strings.HasPrefix(s.home, "torch") }

// hasOldString looks for St's abbreviation of std::string in a mangled name, "Ss", as
// an argument: after a qualifier or at the end.
func hasOldString(name string) bool {
	for _, s := range []string{"RKSs", "RSs", "PSs", "OSs", "vSs", "ISsE", "ISsS"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return strings.HasSuffix(name, "ESs")
}

// leadingLower is the part of a C name before its first capital: "cublas" of
// "cublasGemmEx".
func leadingLower(s string) string {
	for i, r := range s {
		if r >= 'A' && r <= 'Z' || r == '_' {
			return s[:i]
		}
	}
	return s
}

// namespace says whether a demangled name belongs to a namespace: a function in it,
// its vtable, or a return type before it.
func namespace(plain, ns string) bool {
	head, _, _ := strings.Cut(plain, "(")
	for _, p := range []string{"", "vtable for ", "typeinfo for ", "typeinfo name for ", "guard variable for ", "VTT for "} {
		if strings.HasPrefix(head, p+ns+"::") {
			return true
		}
	}
	// A template's return type stands before its name.
	if i := strings.LastIndexByte(head, ' '); i >= 0 && strings.Contains(head, "<") && strings.HasPrefix(head[i+1:], ns+"::") {
		return true
	}
	return false
}

// torchABI is the C++ ABI of the torch that was found, "" if unknown.
func (e *Evidence) torchABI() string {
	if e.TorchABIFound != "" {
		return e.TorchABIFound
	}
	version := e.TorchFound
	if version == "" {
		return ""
	}
	version, local, _ := strings.Cut(version, "+")
	var cuda, rocm string
	switch {
	case e.TorchCUDAFound != "" && e.TorchCUDAFound != "none":
		cuda = e.TorchCUDAFound
	case strings.HasPrefix(local, "rocm"):
		rocm = strings.TrimPrefix(local, "rocm")
	case strings.HasPrefix(local, "cu") && len(local) > 3:
		cuda = local[2:len(local)-1] + "." + local[len(local)-1:]
	}
	abi, known := compat.Default().CXX11ABI(version, cuda, rocm, "linux")
	switch {
	case !known:
		return ""
	case abi:
		return "1"
	}
	return "0"
}

// sayUndefined explains an undefined symbol.
func sayUndefined(f *finding) (detail, fix string) {
	e := f.e
	s := parseSymbol(f.get("symbol", ""))
	what := "The compiled module uses a symbol that no loaded library has"
	if s.name != "" {
		what = fmt.Sprintf("The compiled module uses %s, which no loaded library has", s.plain)
		if s.plain != s.name {
			what += " (symbol " + s.name + ")"
		}
	}
	found := "the installed torch"
	if e.TorchFound != "" {
		found = "the installed torch " + e.TorchFound
	}
	module := f.get("module", "")
	built := builtFor(module + " " + strings.Join(e.Outputs, " "))
	abi := e.torchABI()
	switch {
	case s.fromTorch() && s.abi != "" && abi != "" && s.abi != abi:
		names := map[string]string{"0": "old (_GLIBCXX_USE_CXX11_ABI=0)", "1": "new (_GLIBCXX_USE_CXX11_ABI=1)"}
		detail = fmt.Sprintf("%s. It was compiled for the %s C++ ABI, and %s has the %s one.", what, names[s.abi], found, names[abi])
	case s.fromTorch() && s.abi == "0" && abi == "":
		detail = sentences(what+".", "It belongs to "+s.home+".", "The module was compiled for the old C++ ABI; torch from PyPI has the new one since 2.7.")
	case s.fromTorch():
		detail = sentences(what+".", "It belongs to "+s.home+": the module was compiled for another torch than "+found+".", built)
	case s.home == "Python":
		detail = what + ". It belongs to Python: the module was compiled for another Python version, or for one with or without the GIL."
	case s.home != "":
		detail = what + ". It belongs to " + s.home + "."
	case s.name == "":
		detail = what + ": it was compiled for another torch, CUDA or Python."
	default:
		detail = what + ". No known library has it: an object was left out when the module was linked, or it was compiled against other headers."
	}
	switch {
	case e.in(StageTest, StageAudit, StageCompile) && e.Stage != "":
		fix = ways(
			"check that the torch of the test is the torch of the build: it was replaced if a dependency of the wheel asked for another",
			"if a symbol of the package itself is missing, its source file is not in the list of sources")
	case s.fromTorch() || s.name == "":
		series := ""
		if e.TorchFound != "" {
			version, _, _ := strings.Cut(e.TorchFound, "+")
			series = compat.Minor(version)
		}
		if series != "" {
			fix = ways("install the wheel that was built for torch "+series+cudaText(e.TorchCUDAFound)+pythonText(e.Python)+": pip install --force-reinstall --no-deps WHEEL",
				"or install the torch that the wheel was built for; its file name says which",
				"or compile it here: pip install --no-build-isolation --no-binary :all: PACKAGE")
		} else {
			fix = ways("install the wheel whose name has the version of the installed torch: python -c 'import torch; print(torch.__version__)' shows it",
				"or install the torch that the wheel was built for; its file name says which",
				"or compile it here: pip install --no-build-isolation --no-binary :all: PACKAGE")
		}
	case s.home == "Python":
		fix = "install the wheel for this Python: the tag cpXY in its name must be that of `python --version`"
	case strings.HasPrefix(s.home, "a CUDA library"), strings.HasPrefix(s.home, "the CUDA runtime"):
		fix = ways("import torch before the module: its CUDA libraries are loaded by that", "install the wheel for the CUDA major version of the installed torch")
	default:
		fix = "compile the package again against what is installed"
	}
	return detail, fix
}

// builtFor reads what a wheel or module name says about its torch.
func builtFor(name string) string {
	i := strings.Index(name, "torch")
	if i < 0 || i+5 >= len(name) || name[i+5] < '0' || name[i+5] > '9' {
		return ""
	}
	v := name[i+5:]
	if j := strings.IndexFunc(v, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }); j >= 0 {
		v = v[:j]
	}
	return "Its name says torch " + strings.Trim(v, ".") + "."
}

func cudaText(v string) string {
	if v == "" || v == "none" {
		return ""
	}
	return ", CUDA " + v
}

func pythonText(v string) string {
	if v == "" {
		return ""
	}
	return ", Python " + v
}
