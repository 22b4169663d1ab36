package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/diag"
)

// Severity says how bad a finding is.
type Severity = diag.Severity

// The severities. Off drops the findings of a rule; an Error will not install, load or run
// somewhere the wheel claims to.
const (
	Off     = diag.Off
	Note    = diag.Note
	Warning = diag.Warning
	Error   = diag.Error
)

// The rules, as they stand in Finding.Rule. They are part of kiln's output and do not change.
const (
	RuleArchive           = "archive"
	RuleRecord            = "record"
	RuleDigest            = "digest"
	RuleCorrupt           = "corrupt"
	RuleName              = "name"
	RuleTag               = "tag"
	RuleMetadata          = "metadata"
	RuleClash             = "clash"
	RulePurelib           = "purelib"
	RuleNativeInAny       = "native-in-any"
	RuleNoNative          = "no-native-code"
	RuleModuleMissing     = "module-missing"
	RuleObject            = "object"
	RuleMachine           = "machine"
	RulePlatform          = "platform"
	RulePlatformLoose     = "platform-loose"
	RulePlatformLibrary   = "platform-library"
	RuleISA               = "isa-level"
	RuleVCRuntime         = "vc-runtime"
	RuleRunPath           = "run-path"
	RuleExecStack         = "exec-stack"
	RuleStaticTLS         = "static-tls"
	RuleDebugInfo         = "debug-info"
	RuleBundled           = "bundled-library"
	RuleLibraryMissing    = "library-missing"
	RuleCUDAMajor         = "cuda-major"
	RuleSymbolMissing     = "symbol-missing"
	RuleSymbolUnlinked    = "symbol-unlinked"
	RuleSymbolUnknown     = "symbol-unknown"
	RuleCXXABI            = "cxx-abi"
	RuleImportOrder       = "import-order"
	RulePybind            = "pybind11"
	RuleTorchUndeclared   = "torch-undeclared"
	RuleTorchVersion      = "torch-version"
	RuleTorchStable       = "torch-stable"
	RulePythonTag         = "python-tag"
	RulePythonSymbol      = "python-symbol"
	RulePythonLibrary     = "python-library"
	RuleABI3              = "abi3"
	RuleABI3Version       = "abi3-version"
	RuleLocalVersion      = "local-version"
	RuleArchMissing       = "arch-missing"
	RuleArchExtra         = "arch-extra"
	RuleArchUnreachable   = "arch-unreachable"
	RuleArchUneven        = "arch-uneven"
	RuleNoPTX             = "no-ptx"
	RuleGPUCode           = "gpu-code"
	RuleNothingToRunOnGPU = "no-gpu-code"
)

// A Rule is one thing the audit looks for.
type Rule struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"` // unless the caller says otherwise
	Title    string   `json:"title"`
	Cause    string   `json:"cause"` // how it comes about
	Fix      string   `json:"fix"`   // what to do
}

// Rules lists all rules, sorted by id. The caller owns the slice.
func Rules() []Rule {
	out := slices.Clone(rules)
	slices.SortFunc(out, func(a, b Rule) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// LookupRule returns the rule of an id.
func LookupRule(id string) (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.ID == id })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// ParseSeverities reads assignments such as "arch-extra=error", one for each rule whose
// severity is to change.
func ParseSeverities(list []string) (map[string]Severity, error) {
	out := make(map[string]Severity, len(list))
	for _, item := range list {
		id, name, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("severity %q: want RULE=SEVERITY", item)
		}
		if _, known := LookupRule(id); !known {
			return nil, fmt.Errorf("severity %q: no rule %q", item, id)
		}
		s, err := diag.ParseSeverity(name)
		if err != nil {
			return nil, fmt.Errorf("severity of %s: %w", id, err)
		}
		out[id] = s
	}
	return out, nil
}

var rules = []Rule{
	{
		RuleArchive, Error, "The archive is malformed or hostile",
		"The zip structure contradicts itself, uses names that leave the folder it is unpacked into, or announces far more bytes than it has. Installers disagree about such files, or refuse them.",
		"Build the wheel again with a maintained tool. Do not install it.",
	},
	{
		RuleRecord, Error, "RECORD does not list the files of the wheel",
		"A file was added to or removed from the archive after RECORD was written, or RECORD cannot be read.",
		"Repack the wheel with `wheel pack` or `kiln`, which write RECORD anew.",
	},
	{
		RuleDigest, Error, "A file is not the one RECORD vouches for",
		"The file was changed after RECORD was written: by a repair tool, by strip, or by an attacker.",
		"Find out who changed it. If the change is wanted, repack the wheel; otherwise discard it.",
	},
	{
		RuleCorrupt, Error, "A member cannot be unpacked",
		"The compressed bytes are damaged, usually by an interrupted upload or download.",
		"Fetch or build the wheel again.",
	},
	{
		RuleName, Error, "File name, folders and METADATA disagree",
		"The wheel was renamed by hand, for example to add a local version. pip refuses it, or installs what its name does not say.",
		"Build it with the right version, or let kiln rewrite it, which changes all places at once.",
	},
	{
		RuleTag, Warning, "The tags of the file name are not those of WHEEL",
		"The wheel was renamed after it was built, usually from linux to manylinux. Installers go by the file name; tools that read WHEEL see another platform.",
		"Use `wheel tags` or let kiln rewrite it.",
	},
	{
		RuleMetadata, Error, "METADATA or WHEEL cannot be read, or lack a field",
		"The build backend is broken or very old.",
		"Build with a maintained backend.",
	},
	{
		RuleClash, Error, "Two names are one file on some systems",
		"Names differ in case or in the form of their characters only; on Windows and macOS one overwrites the other.",
		"Rename one of the files.",
	},
	{
		RulePurelib, Warning, "Native code in a wheel that calls itself pure",
		"Root-Is-Purelib is true, or a library lies below .data/purelib. It installs, but systems that keep pure and native code apart (lib and lib64) get it in the wrong folder.",
		"Declare the extension to the build backend (`ext_modules`), or set has_ext_modules.",
	},
	{
		RuleNativeInAny, Error, "Native code in a wheel for any platform",
		"The platform tag is any, so it will be installed on systems where its libraries do not load.",
		"Give the wheel its platform tag: declare the extension to the build backend.",
	},
	{
		RuleNoNative, Warning, "A wheel for one platform has no native code",
		"The extension was not built, for example because a variable told the package to skip it, or it is built at first use.",
		"Look at the build log for a skipped extension; if there is none to build, tag the wheel py3-none-any.",
	},
	{
		RuleModuleMissing, Error, "An expected extension module is not there",
		"The extension was skipped or has another name than the package expects.",
		"Look at the build log; compare the names with `--module`.",
	},
	{
		RuleObject, Error, "A native file cannot be read",
		"Its headers contradict themselves or point outside the file. The loader would refuse it too.",
		"Build it again; if it was stripped or patched, do that again.",
	},
	{
		RuleMachine, Error, "A native file is for another machine",
		"The library was compiled for another CPU than the platform tag says, or copied in from another build.",
		"Clean the build folder and build for one platform at a time.",
	},
	{
		RulePlatform, Error, "The platform tag promises older systems than the wheel runs on",
		"The wheel uses symbol versions of glibc or libstdc++ that came after the version in its tag: it was built on a newer system, or with a newer compiler. Import fails with `version GLIBC_… not found` or `GLIBCXX_… not found`.",
		"Build in the manylinux image of the tag, or give the wheel the tag that is true.",
	},
	{
		RulePlatformLoose, Note, "The wheel would run on older systems than its tag says",
		"The tag names a newer glibc than any symbol needs.",
		"Nothing has to change; an older tag would reach more systems.",
	},
	{
		RulePlatformLibrary, Error, "A library that the platform tag does not promise",
		"A manylinux tag says which libraries every such system has. This one is not among them, is not in the wheel, and is none that torch or CUDA bring.",
		"Vendor it (`auditwheel repair`), link it statically, or use the tag linux_x86_64.",
	},
	{
		RuleISA, Error, "The wheel needs a newer CPU than its tag says",
		"It was compiled with -march=x86-64-v2 or higher, and marks itself so: the loader refuses it on other CPUs.",
		"Compile for the baseline and choose faster code at run time.",
	},
	{
		RuleVCRuntime, Warning, "A C++ runtime that neither Windows nor Python brings",
		"The file was compiled by Visual C++ with /MD, as usual. Machines without the Visual C++ Redistributable do not have the library; many programs install it.",
		"Copy the library into the wheel with `delvewheel repair`, link it statically (/MT), or tell users to install the Redistributable.",
	},
	{
		RuleRunPath, Warning, "A run path leads to the machine that built it",
		"RPATH or RUNPATH has an absolute folder. On other machines it is useless at best; at worst another user can put a library there.",
		"Link without -rpath, or with $ORIGIN; `patchelf --set-rpath` repairs a finished file.",
	},
	{
		RuleExecStack, Warning, "The library asks for an executable stack",
		"A part written in assembly lacks the note that says it needs none. glibc 2.41 and hardened kernels refuse to load such a library.",
		"Link with -z noexecstack, or `patchelf --clear-execstack`.",
	},
	{
		RuleStaticTLS, Note, "The library uses static thread-local storage",
		"It was compiled with the initial-exec model. If it is loaded late there may be no room: `cannot allocate memory in static TLS block`.",
		"Compile with the default TLS model.",
	},
	{
		RuleDebugInfo, Note, "The library carries debug information",
		"It was compiled with -g and not stripped; downloads are larger, and paths of the build machine are in it.",
		"Strip it (`strip -g`), or build without -g.",
	},
	{
		RuleBundled, Error, "A library is in the wheel that must not be",
		"A repair tool copied in a library that must come from the driver, from torch or from the system. Two copies in one process crash or do not see each other's state.",
		"Exclude it when repairing: `auditwheel repair --exclude`.",
	},
	{
		RuleLibraryMissing, Error, "A needed library is nowhere to be found",
		"The module was linked with a library that neither the wheel, nor torch, nor a manylinux system has. Import fails with `cannot open shared object file`, on Windows with `DLL load failed`. There it also fails if the library is in a folder where Windows does not look.",
		"Vendor the library, depend on the package that brings it, or link it statically.",
	},
	{
		RuleCUDAMajor, Error, "The module wants another CUDA major than torch brings",
		"It was built with the toolkit of another major version. Import fails with `libcudart.so.N: cannot open shared object file`, or two runtimes are loaded.",
		"Build with the CUDA version of the torch in the row.",
	},
	{
		RuleSymbolMissing, Error, "A symbol that no library has",
		"The module was compiled against the headers of another torch version, or with another C++ ABI. Import fails with `undefined symbol`.",
		"Build against the exact torch it is to run with, and pin that version in the metadata.",
	},
	{
		RuleSymbolUnlinked, Error, "A symbol from a library that the module does not load",
		"The library exists, but the module was linked without it, and the loader looks only into what a module needs. Import fails with `undefined symbol`.",
		"Add the library to the link line, for example -lc10_cuda.",
	},
	{
		RuleSymbolUnknown, Note, "Symbols that may come from libraries the audit does not know",
		"Nothing that is known defines them, but the module loads libraries of which no symbols are recorded.",
		"Give the audit those libraries, or trust the import test.",
	},
	{
		RuleCXXABI, Error, "Another C++ ABI than torch's",
		"libstdc++ has two kinds of std::string. The module was compiled with the other value of _GLIBCXX_USE_CXX11_ABI than torch; import fails, or strings are garbage.",
		"Compile with the value that `torch.compiled_with_cxx11_abi()` reports.",
	},
	{
		RuleImportOrder, Note, "The module loads only after torch was imported",
		"It needs libraries of torch and has no run path to them, as is usual.",
		"Import torch first in the package's __init__.py.",
	},
	{
		RulePybind, Warning, "Another pybind11 ABI than torch's",
		"The internals ids differ: the module and torch do not recognize each other's types, and passing tensors fails with a TypeError.",
		"Build with the compiler family and the pybind11 headers of that torch (torch.utils.cpp_extension does).",
	},
	{
		RuleTorchUndeclared, Warning, "The wheel needs torch but its metadata does not say so",
		"Requires-Dist has no torch, so that pip installs the wheel alone.",
		"Add torch to the dependencies, with the version it was built for.",
	},
	{
		RuleTorchVersion, Note, "There is no record of the torch the wheel names",
		"The version is newer than this kiln, or not on PyPI.",
		"Give it with --torch: a wheel, a folder, or a snapshot.",
	},
	{
		RuleTorchStable, Error, "Said to be for libtorch's stable ABI, but uses more",
		"The code calls C++ functions of torch, or C functions that came with a later release. The wheel does not load with, or is not safe with, every release it is said to be for.",
		"`kiln audit --stable` lists what replaces each name; or give the row the torch releases it is for: torch: [\"2.10.0\"].",
	},
	{
		RulePythonTag, Error, "A module is for another Python than the tag says",
		"A file of another build was left in the folder, or the wheel was renamed.",
		"Clean the build folder; build one wheel for each Python.",
	},
	{
		RulePythonSymbol, Error, "A symbol that this Python does not have",
		"The module was compiled with the headers of another Python version. Import fails with `undefined symbol`.",
		"Build with the Python of the tag.",
	},
	{
		RulePythonLibrary, Error, "The module is linked with libpython",
		"Most Pythons have no libpython as a library of its own, and manylinux forbids it.",
		"Link without -lpython; setuptools and recent CMake do so.",
	},
	{
		RuleABI3, Error, "Tagged abi3 but uses more than the stable ABI",
		"The module was compiled without Py_LIMITED_API, or uses names outside of it. It fails on other Python versions than the one it was built with.",
		"Define Py_LIMITED_API, or give the wheel the tag of its Python version.",
	},
	{
		RuleABI3Version, Error, "Tagged for an older Python than its stable ABI needs",
		"A function was added to the stable ABI after the Python version in the tag.",
		"Raise the Python tag, or set Py_LIMITED_API to the version in the tag.",
	},
	{
		RuleLocalVersion, Error, "The local version says something else than what is inside",
		"The label names another CUDA major or no CUDA, and users choose by it.",
		"Build the row the label names, or correct the label.",
	},
	{
		RuleArchMissing, Error, "No code for a GPU in the arch list",
		"TORCH_CUDA_ARCH_LIST was not passed to the compiler, or the package sets its own flags. The first kernel fails with `no kernel image is available`.",
		"Look for fixed -gencode flags in setup.py; build again with the list.",
	},
	{
		RuleArchExtra, Warning, "Code for GPUs that are not in the arch list",
		"The package adds its own -gencode flags. The wheel is larger than it has to be.",
		"Remove the flags, or add the targets to the list.",
	},
	{
		RuleArchUnreachable, Note, "Code for GPUs that this torch does not run on",
		"Torch itself has no code for them, so a tensor never gets there.",
		"Drop the target from the list to save time and bytes.",
	},
	{
		RuleArchUneven, Note, "Some parts have code for fewer GPUs than others",
		"Files were compiled with different flags. Those without code for a GPU fail there when they are used.",
		"If it is not intended, as for code that uses features of one GPU, compile all files with one list.",
	},
	{
		RuleNoPTX, Note, "No PTX: newer GPUs will not run it",
		"Machine code runs on its own GPU generation only; PTX can be compiled by the driver for later ones.",
		"Add +PTX to the last entry of the arch list if later GPUs matter.",
	},
	{
		RuleGPUCode, Warning, "GPU code that cannot be read",
		"A container of device code is cut off or has an unknown form.",
		"Build again; if it is from a newer toolkit, update kiln.",
	},
	{
		RuleNothingToRunOnGPU, Error, "An arch list but no GPU code",
		"No native file of the wheel has device code: the CUDA part was not compiled.",
		"Look at the build log: CUDA_HOME unset, FORCE_CUDA missing, or a package switch.",
	},
}
