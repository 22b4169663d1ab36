package launcher

import (
	"path"
	"slices"
	"strconv"
)

// call is a command line, understood.
type call struct {
	kind Kind
	// args are the arguments without those about dependencies, with long names made short.
	args   []string
	source string
	output string
	// other says that it compiles nothing: a link, a question for the version.
	other bool
	// refused says why a compile is not shared.
	refused string
	// What was asked for about dependencies.
	wantDeps bool
	depPath  string
	targets  []string
	// ccbin is nvcc's host compiler, threads how many passes it may run at once, debug whether folders get
	// into its output.
	ccbin   string
	threads int
	debug   bool
	// archs are the GPUs that hipcc compiles for, as far as the call says.
	archs []string
}

// separate lists options whose value may stand in the next argument. What is missing here is harmless unless the value
// has the name of a source: then there are two, and the call is not shared.
func separate(option string) bool {
	switch option {
	case "-o", "-I", "-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-isysroot", "-iprefix", "-iwithprefix", "-iwithprefixbefore", "-D", "-U",
		"-x", "-MF", "-MT", "-MQ", "-L", "-l", "-T", "-u", "-z", "-Xlinker", "-Xassembler", "-Xpreprocessor", "-B", "--param", "-target", "-arch",
		"-aux-info", "-wrapper", "-Xclang", "-mllvm":
		return true
	}
	return false
}

// nvccSeparate lists those that nvcc has besides.
func nvccSeparate(option string) bool {
	switch option {
	case "-gencode", "--generate-code", "--gpu-architecture", "-code", "--gpu-code", "-ccbin", "--compiler-bindir", "-Xcompiler", "--compiler-options",
		"-Xptxas", "--ptxas-options", "-Xcudafe", "-Xnvlink", "--nvlink-options", "--linker-options", "-Xarchive", "-t", "--threads", "-std", "--std",
		"-maxrregcount", "--maxrregcount", "-diag-suppress", "--diag-suppress", "-diag-error", "--diag-error", "-diag-warn", "--diag-warn", "--output-file",
		"--include-path", "--system-include", "--pre-include", "--define-macro", "--undefine-macro", "--library-path", "--library", "--x", "--machine",
		"-m", "-rdc", "--relocatable-device-code", "--dependency-output", "--dependency-target-name", "-optf", "--options-file", "-odir",
		"--output-directory", "-keep-dir", "--keep-dir", "-Werror", "--Werror", "-ftz", "-prec-div", "-prec-sqrt", "-fmad", "-ftemplate-backtrace-limit",
		"-ftemplate-depth", "-cudart", "--cudart", "-ldir", "--libdevice-directory", "-default-stream", "--default-stream", "-objtemp", "-arch-list",
		"-split-compile", "--split-compile":
		return true
	}
	return false
}

// shortName returns the short name of an option that torch and CMake call by a long one, which ccache does not know; "" if there is none.
func shortName(option string) string {
	switch option {
	case "--compile":
		return "-c"
	case "--device-c":
		return "-dc"
	case "--output-file":
		return "-o"
	case "--include-path":
		return "-I"
	case "--system-include":
		return "-isystem"
	case "--pre-include":
		return "-include"
	case "--define-macro":
		return "-D"
	case "--undefine-macro":
		return "-U"
	case "--dependency-output":
		return "-MF"
	case "--dependency-target-name":
		return "-MT"
	case "--generate-dependencies-with-compile":
		return "-MD"
	case "--generate-nonsystem-dependencies-with-compile":
		return "-MMD"
	case "--compiler-bindir":
		return "-ccbin"
	case "--generate-dependency-targets":
		return "-MP"
	}
	return ""
}

// isSource reports whether a file is something to compile, by its name.
func isSource(file string) bool {
	switch path.Ext(file) {
	case ".c", ".cc", ".cp", ".cxx", ".cpp", ".c++", ".C", ".cu", ".hip", ".m", ".mm", ".i", ".ii", ".cui", ".s", ".S":
		return true
	}
	return false
}

// parseCall understands a command line.
func parseCall(kind Kind, args []string) *call {
	c := &call{kind: kind, threads: 1}
	var sources []string
	compile := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		name, value := a, ""
		joined, hasValue := false, false
		if kind == NVCC && hasPrefix(a, "-") {
			if n, v, ok := cut(a, "="); ok && (nvccSeparate(n) || shortName(n) != "") {
				name, value, joined, hasValue = n, v, true, true
			}
			if short := shortName(name); short != "" {
				name, a, joined = short, short, false
			}
		}
		if !hasValue && (separate(name) || kind == NVCC && nvccSeparate(name)) && i+1 < len(args) {
			i++
			value, hasValue = args[i], true
		}
		emit := func() {
			c.args = append(c.args, a)
			if hasValue && !joined {
				c.args = append(c.args, value)
			}
		}
		switch {
		case name == "-c" || kind == NVCC && name == "-dc":
			compile = true
			emit()
		case name == "-o":
			c.output = value
			emit()
		case !hasValue && hasPrefix(a, "-o") && kind != NVCC && len(a) > 2:
			c.output = a[2:]
			c.args = append(c.args, "-o", a[2:])
		case name == "-MD" || name == "-MMD":
			c.wantDeps = true
		case name == "-MF":
			c.depPath = value
		case hasPrefix(a, "-MF") && !hasValue:
			c.depPath = a[3:]
		case name == "-MT" || name == "-MQ":
			c.targets = append(c.targets, value)
		case hasPrefix(a, "-Wp,-MD,") || hasPrefix(a, "-Wp,-MMD,"):
			c.wantDeps = true
			if words := split(a, ","); len(words) == 3 {
				c.depPath = words[2]
			} else {
				c.refused = "it writes dependencies by " + a
			}
		case name == "-M" || name == "-MM" || name == "-E" || name == "--preprocess" || name == "-###" || name == "--dryrun" || name == "-dryrun" ||
			name == "--generate-dependencies" || name == "--version" || name == "-V" || name == "-dlink" || name == "--device-link" || name == "--lib" || name == "-fsyntax-only":
			c.other = true
		case name == "-MG" || name == "-save-temps" || hasPrefix(a, "-save-temps=") || name == "--keep" || name == "-keep" || name == "--save-temps" ||
			name == "-S" || name == "-optf" || name == "--options-file" || hasPrefix(a, "-fprofile") || hasPrefix(a, "--coverage") || a == "-gsplit-dwarf":
			c.refused = "it is called with " + name
			emit()
		case kind == NVCC && slices.Contains([]string{"-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "--fatbin", "-optix-ir", "--optix-ir", "-ltoir", "--ltoir"}, name):
			// ccache takes them for links.
			c.refused = "ccache does not cache " + name
			compile = true
			emit()
		case hasPrefix(a, "@"):
			c.refused = "it reads arguments from a file"
			emit()
		case !hasPrefix(a, "-") && isSource(a):
			sources = append(sources, a)
			emit()
		default:
			switch kind {
			case NVCC:
				c.nvccOption(name, value, a)
			case HIPCC:
				c.hipOption(a)
			}
			emit()
		}
	}
	switch {
	case c.other || !compile && c.refused == "" || len(sources) == 0:
		c.other = true
	case !compile:
		c.other = len(sources) == 0 || c.output == "" || !hasSuffix(c.output, ".s")
	case len(sources) > 1:
		c.refused = "it compiles several files at once"
	case kind == HIPCC && c.refused == "" && len(c.archs) == 0:
		c.refused = "it does not say for which GPUs"
	}
	if len(sources) > 0 {
		c.source = sources[0]
	}
	if c.output == "" && c.source != "" {
		base := path.Base(c.source)
		c.output = trimSuffix(base, path.Ext(base)) + ".o"
		if c.refused == "" && !c.other {
			c.args = append(c.args, "-o", c.output) // what is written must be known
		}
	}
	return c
}

func (c *call) nvccOption(name, value, arg string) {
	switch {
	case name == "-ccbin":
		c.ccbin = value
	case name == "-t" || name == "--threads":
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			c.threads = n
		}
	case hasPrefix(arg, "-t") && consistsOf(arg[2:], "0123456789") && len(arg) > 2:
		c.threads, _ = strconv.Atoi(arg[2:])
	case arg == "-lineinfo" || arg == "--generate-line-info" || arg == "-G" || arg == "--device-debug" || arg == "-g" || arg == "--debug":
		c.debug = true
	}
}

// hipOption looks at what hipcc, and clang behind it, know about GPUs.
func (c *call) hipOption(arg string) {
	for _, option := range []string{"--offload-arch=", "--amdgpu-target=", "--cuda-gpu-arch="} {
		if arch, ok := cutPrefix(arg, option); ok {
			c.archs = append(c.archs, arch)
			if contains(arch, "native") {
				c.refused = "it compiles for the GPUs of this machine"
			}
		}
	}
	switch {
	case arg == "--genco" || hasSuffix(arg, "-device-only") || hasSuffix(arg, "-host-only"):
		c.refused = "it is called with " + arg
	case hasPrefix(arg, "--no-offload-arch") || hasPrefix(arg, "--no-cuda-gpu-arch"):
		c.refused = "it is called with " + arg
	}
}

// devicePasses returns the arguments that make hipcc list what its passes for GPUs read: the list that it writes with an object is that
// of the pass for the host alone.
func devicePasses(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] == "-o" {
			i++
			continue
		}
		out = append(out, args[i])
	}
	return append(out, "--cuda-device-only", "-M")
}

// headerOptions take a path of headers, in the next argument or joined.
var headerOptions = [...]string{"-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-I"}

// mapPaths changes the paths of headers in arguments.
func mapPaths(kind Kind, args []string, change func(string) string) []string {
	out := slices.Clone(args)
	for i := 0; i < len(out); i++ {
		for _, option := range headerOptions {
			if out[i] == option {
				if i+1 < len(out) {
					i++
					out[i] = change(out[i])
				}
				break
			}
			if rest, ok := cutPrefix(out[i], option); ok {
				if path, ok := cutPrefix(rest, "="); ok && kind == NVCC {
					out[i] = option + "=" + change(path)
				} else if hasPrefix(rest, "/") {
					out[i] = option + change(rest)
				} else {
					continue
				}
				break
			}
		}
	}
	return out
}
