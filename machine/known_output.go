package machine

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/wheel"
)

// outputEntries are about what a build leaves behind.
func outputEntries() []entry {
	wheels := func(e *Evidence) []string {
		return slices.DeleteFunc(slices.Clone(e.Outputs), func(n string) bool { return !strings.HasSuffix(n, ".whl") })
	}
	pure := func(e *Evidence) bool {
		w := wheels(e)
		return e.Native && len(w) > 0 && !slices.ContainsFunc(w, func(n string) bool { return !strings.HasSuffix(n, "-none-any.whl") })
	}
	return []entry{
		{
			id: "version-not-found", title: "The version of the package could not be read", modes: []int{24}, class: ClassFault,
			cause: "The file has no line of the expected form. The build would give wheels of the version \"None\".",
			text:  []pattern{text("version", `no version (?:matches|found) in (?P<file>\S+)`), text("Invalid version", `(?:InvalidVersion|packaging\.version\.InvalidVersion): Invalid version: '(?P<version>[^']*)'`), text("setuptools-scm was unable", `setuptools-scm was unable to detect version`), text("Unable to determine package version", `Unable to determine package version`)},
			facts: func(e *Evidence) bool {
				return e.VersionWanted == "None" || e.VersionFound == "None" || e.Stage == StageCollect && e.VersionFound == "0.0.0" && e.VersionWanted != "" && e.VersionWanted != "0.0.0"
			},
			say: func(f *finding) (string, string) {
				if v := f.get("version", ""); v != "" {
					return fmt.Sprintf("%q is not a Python version (PEP 440).", v), "correct it in the source, or patch it for the build"
				}
				if slices.ContainsFunc(f.lines, func(l string) bool { return strings.Contains(l, "setuptools-scm") }) {
					return "setuptools-scm reads the version from git, and the source has no git history.", "set SETUPTOOLS_SCM_PRETEND_VERSION to the version in the row's env, or fetch the source with its tags"
				}
				return "No version was found in " + cmp.Or(f.get("file", ""), "the source") + ".", ways("correct version_from (file and pattern), or give the version in versions", "the metadata of the built wheel has "+cmp.Or(f.e.VersionFound, "the version that setup.py knows"))
			},
			hides: []string{"wrong-version", "python-error"},
		},
		{
			id: "no-wheel", title: "The build succeeded and left no wheel", modes: []int{22}, class: ClassFault, stages: []string{StageCollect},
			cause: "The builder wrote it elsewhere, or built only an sdist.",
			facts: func(e *Evidence) bool {
				return e.Stage == StageCollect && len(e.WantOutputs) > 0 && e.Outputs != nil && len(wheels(e)) == 0 && strings.HasSuffix(e.WantOutputs[0], ".whl")
			},
			say: func(f *finding) (string, string) {
				return "Expected " + join(f.e.WantOutputs) + ", found " + cmp.Or(join(f.e.Outputs), "nothing") + ".", "check the row's build arguments: they must not change the output folder or the format"
			},
		},
		{
			id: "several-wheels", title: "The build left several wheels", modes: []int{22}, class: ClassFault, stages: []string{StageCollect},
			cause: "Wheels of dependencies are in the output folder, and the first one may be of another project.",
			facts: func(e *Evidence) bool {
				return e.Stage == StageCollect && len(wheels(e)) > max(1, len(slices.DeleteFunc(slices.Clone(e.WantOutputs), func(n string) bool { return !strings.HasSuffix(n, ".whl") })))
			},
			say: func(f *finding) (string, string) {
				return fmt.Sprintf("The output folder has %s; expected %s.", few(wheels(f.e), 5), cmp.Or(join(f.e.WantOutputs), "one")), "build without dependencies (pip wheel --no-deps), and with an empty output folder"
			},
		},
		{
			id: "pure-wheel", title: "The wheel has no compiled code in it", modes: []int{3}, class: ClassFault, stages: []string{StageCollect, StageAudit},
			cause: "The package skips its extension when it finds no GPU, no nvcc or a certain variable, and builds a pure wheel that compiles itself at first import, or never.",
			facts: pure,
			say: func(f *finding) (string, string) {
				d := join(wheels(f.e)) + " fits every platform, so nothing was compiled."
				for _, v := range []string{"EXLLAMA_NOCOMPILE", "FLASH_ATTENTION_SKIP_CUDA_BUILD", "MAMBA_SKIP_CUDA_BUILD"} {
					if _, set := f.e.Env[v]; set {
						return d + " " + v + " is set, with any value it means that.", "take " + v + " out of the row's env, or make the row an sdist"
					}
				}
				return d, ways("set FORCE_CUDA=1 in the row's env: many packages build device code without a GPU only then", "see in the log why the package skipped its extension")
			},
			hides: []string{"wrong-name", "not-built"},
		},
		{
			id: "not-built", title: "The wheel was downloaded, not built", modes: []int{23}, class: ClassFault, stages: []string{StageCompile, StageCollect}, warns: true,
			cause: "The package's build step fetched a ready wheel. It was built elsewhere, for a torch and an ABI that are not known.",
			text:  []pattern{text("Raw wheel path", `Raw wheel path (?P<path>\S+)`), text("Guessing wheel URL", `Guessing wheel URL:\s+(?P<url>\S+)`)},
			facts: func(e *Evidence) bool {
				return e.Native && e.CompileCalls < 0 && len(wheels(e)) > 0
			},
			confirm: func(f *finding) Confidence {
				switch {
				case f.facts:
					return Certain
				case f.e.CompileCalls > 0, f.e.failed():
					return ""
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				d := "No compiler was called, and a wheel came out"
				if u := f.get("url", ""); u != "" {
					d = "The build fetched " + u
				}
				return d + ".", forceBuild(append(slices.Clone(f.e.Outputs), f.e.LogLines...))
			},
			hides: []string{"wrong-name"},
		},
		{
			id: "wrong-version", title: "The wheel has another version than the row", modes: []int{24, 30}, class: ClassFault, stages: []string{StageCollect, StageAudit},
			cause: "The source says another version than the configuration, for instance because the ref points to a later commit.",
			facts: func(e *Evidence) bool {
				return otherVersion(e.VersionFound, e.VersionWanted)
			},
			say: func(f *finding) (string, string) {
				return fmt.Sprintf("The metadata says %s, the row %s.", f.e.VersionFound, f.e.VersionWanted), ways("set the row's ref to the tag of the version", "or correct the version in packages.yml")
			},
			hides: []string{"wrong-name"},
		},
		{
			id: "wrong-name", title: "The wheel has another name than expected", modes: []int{22, 30, 32}, class: ClassFault, stages: []string{StageCollect},
			cause: "A tag of the file name is not what the row promises: another Python built it, or the build tag did not reach the package.",
			facts: func(e *Evidence) bool {
				w := wheels(e)
				return e.Stage == StageCollect && len(w) == 1 && len(e.WantOutputs) > 0 && !slices.Contains(e.WantOutputs, w[0])
			},
			say: func(f *finding) (string, string) {
				w := wheels(f.e)
				if len(w) == 0 || len(f.e.WantOutputs) == 0 {
					return "The wheel's name is not the expected one.", "compare the two: build tag, Python, ABI and platform"
				}
				return fmt.Sprintf("The build gave %s, expected was %s%s.", w[0], f.e.WantOutputs[0], nameDifference(w[0], f.e.WantOutputs[0])),
					ways("a missing build tag: the package does not let setuptools set its version; set local_version to \"\" and let kiln rewrite it, or use the package's own variable", "another Python tag: check the interpreter of the row")
			},
		},
		{
			id: "arch-ignored", title: "The package did not build the archs it was asked for", modes: []int{12}, class: ClassFault, stages: []string{StageAudit, StageCompile, StageCollect, StagePreflight},
			cause: "Some packages have their own variable for archs, and PyTorch's builder drops TORCH_CUDA_ARCH_LIST as soon as a compile flag contains the word arch.",
			facts: func(e *Evidence) bool {
				return len(missingArchs(e)) > 0 || e.Stage == StagePreflight && e.Env["FLASH_ATTENTION_CUDA_ARCHS"] != ""
			},
			say: func(f *finding) (string, string) {
				if _, set := f.e.Env["FLASH_ATTENTION_CUDA_ARCHS"]; set {
					return "FLASH_ATTENTION_CUDA_ARCHS is read by nothing: the package reads FLASH_ATTN_CUDA_ARCHS.", "set FLASH_ATTN_CUDA_ARCHS=\"80;90\" instead"
				}
				var missing []string
				for _, a := range missingArchs(f.e) {
					missing = append(missing, a.String())
				}
				return fmt.Sprintf("Asked for %s, found %s: %s %s missing.", f.e.Arch, cmp.Or(f.e.ArchFound, "none"), cmp.Or(join(missing), "some"), plural(len(missing), "is", "are")),
					ways("use the package's own variable (FLASH_ATTN_CUDA_ARCHS for flash-attention)", "or patch its flags")
			},
		},
	}
}

// missingArchs are the entries of the row's list for which the binaries have nothing.
func missingArchs(e *Evidence) []compat.Arch {
	if e.Arch == "" || e.ArchFound == "" {
		return nil
	}
	want, err1 := compat.Default().ArchList(e.Arch, e.Torch)
	have, err2 := compat.ParseArchList(e.ArchFound)
	if err1 != nil || err2 != nil {
		return nil
	}
	return slices.DeleteFunc(want.Items(), func(a compat.Arch) bool {
		return slices.ContainsFunc(have.Items(), func(h compat.Arch) bool {
			return h.Target() == a.Target() && (h.SASS || !a.SASS) && (h.PTX || !a.PTX)
		})
	})
}

// nameDifference says in which field two wheel names differ.
func nameDifference(got, want string) string {
	g, err1 := wheel.ParseFilename(got)
	w, err2 := wheel.ParseFilename(want)
	if err1 != nil || err2 != nil {
		return ""
	}
	switch {
	case wheel.NormalizeName(g.Name) != wheel.NormalizeName(w.Name):
		return ": another package"
	case g.Version.Public() != w.Version.Public():
		return ": another version"
	case g.Version.Local() != w.Version.Local():
		return ": another build tag"
	}
	return ": other tags"
}

// windowsEntries are the ones that only Windows has.
func windowsEntries() []entry {
	return []entry{
		{
			id: "msvc-too-new", title: "nvcc does not accept this Visual Studio", modes: []int{15}, class: ClassFault,
			cause: "Visual Studio 17.10 and later say _MSC_VER 1940, which CUDA up to 12.3 refuses.",
			text:  []pattern{plain("unsupported Microsoft Visual Studio version")},
			say: func(f *finding) (string, string) {
				return "This nvcc knows older compilers only.", ways("use toolset 14.39 (Visual Studio 17.9): vcvarsall.bat x64 -vcvars_ver=14.39", "or CUDA 12.4 or newer")
			},
			hides: []string{"compile-error"},
		},
		{
			id: "no-msvc", title: "There is no Visual C++ compiler", class: ClassFault,
			cause: "Build Tools are not installed, or their shell is not active.",
			text:  []pattern{plain("Microsoft Visual C++ 14.0 or greater is required"), text("'cl' is not recognized", `'cl(?:\.exe)?' is not recognized`), text("Error checking compiler version for cl", `Error checking compiler version for cl`), plain("Could not find vcvarsall.bat"), plain("Unable to find vcvarsall.bat")},
			facts: func(e *Evidence) bool { return slices.Contains(e.ToolsMissing, "cl") },
			say: func(f *finding) (string, string) {
				return "cl.exe was not found: neither on PATH, nor by vswhere, nor in the usual folders.", otherInstalls["windows"]["c++"]
			},
			hides: []string{"python-error", "compile-error", "no-compiler"},
		},
		{
			id: "sdk-variable", title: "The developer shell is active, and DISTUTILS_USE_SDK is not set", modes: []int{36}, class: ClassFault,
			cause: "setuptools would look for another compiler than the one of the shell; PyTorch's builder stops instead.",
			text:  []pattern{text("DISTUTILS_USE_SDK", `VC environment is activated but DISTUTILS_USE_SDK is not set`)},
			say: func(f *finding) (string, string) {
				return "The build was started in a developer shell.", "set DISTUTILS_USE_SDK=1"
			},
			hides: []string{"python-error"},
		},
		{
			id: "path-too-long", title: "A path or command line is too long for Windows", modes: []int{36}, class: ClassFault,
			cause: "Paths end at 260 characters unless long paths are on; command lines at 32 KB.",
			text:  []pattern{plain("The filename or extension is too long"), plain("LNK1170"), text("WinError 206", `\[WinError 206\]`), plain("path too long"), plain("C1083: Cannot open compiler generated file")},
			say: func(f *finding) (string, string) {
				return "Windows refused a path or a command line.", ways("turn long paths on: reg add HKLM\\SYSTEM\\CurrentControlSet\\Control\\FileSystem /v LongPathsEnabled /t REG_DWORD /d 1 /f", "build in a folder with a short path, such as C:\\k", "the linker: pass objects in a response file")
			},
			hides: []string{"python-error", "compile-error"},
		},
		{
			id: "python-lib", title: "Python's import library is missing", modes: []int{36}, class: ClassFault,
			cause: "pythonXY.lib, for free-threaded builds pythonXYt.lib, is in libs of the base installation, not of a virtual environment.",
			text:  []pattern{text("LNK1104", `LNK1104: cannot open file '(?P<lib>python\d+t?\.lib)'`)},
			say: func(f *finding) (string, string) {
				return cmp.Or(f.get("lib", ""), "pythonXY.lib") + " was not found.", "add the folder libs of the base interpreter to LIB: python -c \"import sys; print(sys.base_prefix)\""
			},
			hides: []string{"link-error"},
		},
	}
}

var traceback = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?P<type>(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit|Failed|Iteration))(?:: (?P<msg>.*))?$`)
})

// genericEntries speak when nothing else does, the first that fits.
func genericEntries() []entry {
	return []entry{
		{
			id: "link-error", title: "The linker failed", class: ClassFault, generic: true, stages: []string{StageCompile, StageImport},
			cause: "A function is used and not defined, or defined twice.",
			text: []pattern{
				text("undefined reference to", "undefined reference to [`'](?P<symbol>[^`']+)'"), text("multiple definition of", "multiple definition of [`'](?P<symbol>[^`']+)'"), text("LNK2001", `LNK20(?:01|05|19): (?P<symbol>.*)`), text("LNK2019", `LNK2019: (?P<symbol>.*)`),
				text("nvlink error", `nvlink error\s*: (?P<symbol>.*)`),
			},
			say: func(f *finding) (string, string) {
				if f.get("symbol", "") == "" {
					return "The objects do not fit together.", "add the missing source file or library"
				}
				n := len(f.all["symbol"])
				d := fmt.Sprintf("%d %s: %s.", n, plural(n, "symbol does not resolve", "symbols do not resolve"), few(f.all["symbol"], 3))
				if slices.ContainsFunc(f.all["symbol"], func(s string) bool {
					return strings.HasPrefix(s, "c10::") || strings.HasPrefix(s, "at::") || strings.HasPrefix(s, "torch::")
				}) {
					return d, "torch's own symbols are missing: link with torch's libraries (BuildExtension does), and check that headers and libraries are of one torch"
				}
				return d, "add the source file that defines it to the extension's sources, or the library that does"
			},
		},
		{
			id: "compile-error", title: "The code does not compile", class: ClassFault, generic: true, stages: []string{StageCompile, StageImport},
			cause: "The compiler refused the code: usually the package does not support this version of torch, CUDA or the compiler.",
			facts: func(e *Evidence) bool { return e.failed() && FindCompilerErrors(e.LogLines, 1).Total > 0 },
			confirm: func(f *finding) Confidence {
				errs := FindCompilerErrors(f.e.LogLines, maxProof/2)
				for _, e := range errs.First {
					f.lines = append(f.lines, e.Text)
				}
				return Certain
			},
			say: func(f *finding) (string, string) {
				errs := FindCompilerErrors(f.e.LogLines, 1)
				if errs.Total == 0 {
					return "The compiler found errors.", "see which version of torch, CUDA and the compiler the package supports"
				}
				first := errs.First[0]
				d := units.Count(errs.Total, "error")
				if errs.Files > 0 {
					d += " in " + units.Count(errs.Files, "file")
				}
				where := ""
				if first.File != "" {
					where = first.File
					if first.Line > 0 {
						where += fmt.Sprintf(":%d", first.Line)
					}
					where += ": "
				}
				fix := "look at the first error; later ones often follow from it"
				if strings.Contains(first.File, "torch/include") || strings.Contains(first.File, "/c10/") {
					fix = "the error is in torch's headers: the compiler or its flags do not suit this torch"
				} else if f.e.Torch != "" || f.e.CUDA != "" {
					fix = ways(fix, "check that the package supports"+suffix(" torch ", f.e.Torch)+suffix(" CUDA ", f.e.CUDA))
				}
				return d + ". The first: " + where + first.Message, fix
			},
		},
		{
			id: "test-failed", title: "The test failed", class: ClassFault, generic: true, stages: []string{StageTest},
			cause: "The module was loaded and did something unexpected.",
			text:  []pattern{text("Error", `^(?P<type>(?:[A-Za-z_][\w.]*\.)?AssertionError)(?:: (?P<msg>.*))?$`), text("FAILED", `^FAILED (?P<msg>.*)`)},
			say: func(f *finding) (string, string) {
				return "The test's own check failed" + colon(f.get("msg", "")) + ".", "run it in the environment that was kept: kiln shell ROW"
			},
		},
		{
			id: "python-error", title: "A Python program failed", class: ClassFault, generic: true,
			cause: "The last exception of the traceback is the cause, unless another is named as its cause before it.",
			facts: func(e *Evidence) bool { return e.failed() && pythonError(e.LogLines) != "" },
			confirm: func(f *finding) Confidence {
				f.lines = append(f.lines, pythonError(f.e.LogLines))
				if at := tracebackPlace(f.e.LogLines); at != "" {
					f.lines = append(f.lines, at)
				}
				return Possible
			},
			say: func(f *finding) (string, string) {
				return cmp.Or(pythonError(f.e.LogLines), "An exception ended the program") + tracebackPlaceText(f.e.LogLines), "the traceback in the log shows where"
			},
		},
		{
			id: "killed-by-signal", title: "The command was ended by a signal", class: ClassFault, generic: true,
			cause: "The program crashed, or another program ended it.",
			facts: func(e *Evidence) bool { return e.Signal != "" || e.ExitCode > 128 && e.ExitCode < 160 },
			say: func(f *finding) (string, string) {
				s := f.e.Signal
				if s == "" && f.e.ExitCode > 128 {
					s = fmt.Sprintf("signal %d", f.e.ExitCode-128)
				}
				switch s {
				case "SIGSEGV", "signal 11", "SIGABRT", "signal 6", "SIGILL", "signal 4", "SIGBUS", "signal 7":
					fix := "run it again under a debugger: gdb --args …"
					if s == "SIGILL" || s == "signal 4" {
						fix = "the binary uses instructions that this processor does not have: build without -march=native"
					}
					return program(f.e.Argv) + " crashed (" + s + ").", fix
				case "SIGTERM", "signal 15", "SIGINT", "signal 2", "SIGHUP", "signal 1":
					return program(f.e.Argv) + " was asked to end (" + s + ").", "run it again"
				}
				return program(f.e.Argv) + " was ended by " + cmp.Or(s, "a signal") + ".", "run it again; if it happens at the same place, look at the log"
			},
		},
		{
			id: "unknown", title: "The cause is not known", class: ClassFault, generic: true,
			cause: "No entry of this table fits.",
			facts: func(e *Evidence) bool { return e.failed() },
			confirm: func(f *finding) Confidence {
				lines := slices.DeleteFunc(slices.Clone(f.e.LogLines), func(l string) bool { return strings.TrimSpace(l) == "" })
				f.lines = append(f.lines, lines[max(0, len(lines)-maxProof):]...)
				return Possible
			},
			say: func(f *finding) (string, string) {
				return fmt.Sprintf("%s failed with exit code %d, and nothing in its output is known.", program(f.e.Argv), f.e.ExitCode), "read the log from its first error on"
			},
		},
	}
}

func suffix(label, value string) string {
	if value == "" {
		return ""
	}
	return label + value
}

// program is the name of a command without its folder.
func program(argv []string) string {
	if len(argv) == 0 {
		return "The command"
	}
	return argv[0][strings.LastIndexAny(argv[0], `/\`)+1:]
}

// pythonError is the last exception of the tracebacks in a log. pip quotes the output
// of its children with an indent.
func pythonError(lines []string) string {
	seen := slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "Traceback (most recent call last)") })
	if !seen {
		return ""
	}
	for _, l := range slices.Backward(lines) {
		l = strings.TrimLeft(l, " │|")
		if traceback().MatchString(l) && !strings.HasPrefix(l, "subprocess.CalledProcessError") {
			return l
		}
	}
	return ""
}

var tracebackFrame = regexp.MustCompile(`^\s*File "([^"]+)", line (\d+)`)

// tracebackPlace is the innermost frame before the last exception.
func tracebackPlace(lines []string) string {
	for _, l := range slices.Backward(lines) {
		l = strings.TrimLeft(l, " │|")
		if tracebackFrame.MatchString(l) {
			return l
		}
	}
	return ""
}

func tracebackPlaceText(lines []string) string {
	m := tracebackFrame.FindStringSubmatch(tracebackPlace(lines))
	if m == nil {
		return ""
	}
	return fmt.Sprintf(" (%s:%s)", m[1], m[2])
}
