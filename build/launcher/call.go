package launcher

import (
	"path"
	"slices"
	"strconv"
	"strings"
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
	// compile says that there is an option for compiling, sources are all that are named.
	compile bool
	sources []string
	// What was asked for about dependencies.
	wantDeps bool
	depPath  string
	targets  []string
	// ccbin is nvcc's host compiler, threads how many passes it may run at once, debug whether
	// folders get into its output.
	ccbin   string
	threads int
	debug   bool
	// archs are the GPUs that hipcc compiles for, as far as the call says.
	archs []string
}

// separate lists options whose value may stand in the next argument. What is missing here is
// harmless unless the value has the name of a source: then there are two, and the call is not
// shared.
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

// shortName returns the short name of an option that torch and CMake call by a long one, which
// ccache does not know; "" if there is none.
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
	for i := 0; i < len(args); {
		var o option
		if o, i = readOption(kind, args, i); o.missing {
			c.refused = "the value of " + o.name + " is missing"
		}
		c.add(o)
	}
	switch {
	case c.other || !c.compile && c.refused == "" || len(c.sources) == 0:
		c.other = true
	case !c.compile:
		c.other = !strings.HasSuffix(c.output, ".s")
	case len(c.sources) > 1:
		c.refused = "it compiles several files at once"
	case kind == HIPCC && c.refused == "" && len(c.archs) == 0:
		c.refused = "it does not say for which GPUs"
	}
	if len(c.sources) > 0 {
		c.source = c.sources[0]
	}
	if c.output == "" && c.source != "" {
		base := path.Base(c.source)
		c.output = strings.TrimSuffix(base, path.Ext(base)) + ".o"
		if c.refused == "" && !c.other {
			c.args = append(c.args, "-o", c.output) // what is written must be known
		}
	}
	return c
}

// option is one option of a command line, or one file.
type option struct {
	arg   string // as it is passed on
	name  string // without a value that nvcc lets stand behind =
	value string
	// hasValue says that there is one, joined that it is part of arg, missing that there should be.
	hasValue, joined, missing bool
}

// readOption reads the option at i and returns where the next one begins.
func readOption(kind Kind, args []string, i int) (option, int) {
	o := option{arg: args[i], name: args[i]}
	if kind == NVCC && strings.HasPrefix(o.arg, "-") {
		if n, v, ok := strings.Cut(o.arg, "="); ok && (nvccSeparate(n) || shortName(n) != "") {
			o.name, o.value, o.joined, o.hasValue = n, v, true, true
		}
		if short := shortName(o.name); short != "" {
			o.name, o.arg, o.joined = short, short, false
		}
	}
	if !o.hasValue && (separate(o.name) || kind == NVCC && nvccSeparate(o.name)) {
		i++
		if o.missing = i == len(args); !o.missing {
			o.value, o.hasValue = args[i], true
		}
	}
	return o, i + 1
}

// keep passes an option on.
func (c *call) keep(o option) {
	c.args = append(c.args, o.arg)
	if o.hasValue && !o.joined {
		c.args = append(c.args, o.value)
	}
}

// add takes in the next option.
func (c *call) add(o option) {
	if c.dependencyOption(o) {
		return
	}
	switch {
	case question(o.name):
		c.other = true
		return
	case o.name == "-c" || c.kind == NVCC && o.name == "-dc":
		c.compile = true
	case o.name == "-o":
		c.output = o.value
	case !o.hasValue && c.kind != NVCC && len(o.arg) > 2 && strings.HasPrefix(o.arg, "-o"):
		c.output = o.arg[2:]
		c.args = append(c.args, "-o", c.output)
		return
	case unshared(o):
		c.refused = "it is called with " + o.name
	case c.kind == NVCC && deviceCode(o.name):
		// ccache takes them for links.
		c.refused = "ccache does not cache " + o.name
		c.compile = true
	case strings.HasPrefix(o.arg, "@"):
		c.refused = "it reads arguments from a file"
	case !strings.HasPrefix(o.arg, "-") && isSource(o.arg):
		c.sources = append(c.sources, o.arg)
	case c.kind == NVCC:
		c.nvccOption(o.name, o.value, o.arg)
	case c.kind == HIPCC:
		c.hipOption(o.arg)
	}
	c.keep(o)
}

// dependencyOption takes in an option about dependency lists; it reports whether this is one.
func (c *call) dependencyOption(o option) bool {
	switch {
	case o.name == "-MD" || o.name == "-MMD":
		c.wantDeps = true
	case o.name == "-MF":
		c.depPath = o.value
	case strings.HasPrefix(o.arg, "-MF") && !o.hasValue:
		c.depPath = o.arg[3:]
	case o.name == "-MT" || o.name == "-MQ":
		c.targets = append(c.targets, o.value)
	case strings.HasPrefix(o.arg, "-Wp,-MD,") || strings.HasPrefix(o.arg, "-Wp,-MMD,"):
		c.wantDeps = true
		if words := strings.Split(o.arg, ","); len(words) == 3 {
			c.depPath = words[2]
		} else {
			c.refused = "it writes dependencies by " + o.arg
		}
	default:
		return false
	}
	return true
}

// question reports whether with an option nothing is compiled.
func question(name string) bool {
	switch name {
	case "-M", "-MM", "-E", "--preprocess", "-###", "--dryrun", "-dryrun", "--generate-dependencies", "--version", "-V",
		"-dlink", "--device-link", "--lib", "-fsyntax-only":
		return true
	}
	return false
}

// unshared reports whether with an option there are results or inputs besides the object and the
// source.
func unshared(o option) bool {
	switch o.name {
	case "-MG", "-save-temps", "--keep", "-keep", "--save-temps", "-S", "-optf", "--options-file", "-gsplit-dwarf":
		return true
	}
	return slices.ContainsFunc([]string{"-save-temps=", "-fprofile", "--coverage"}, func(prefix string) bool {
		return strings.HasPrefix(o.arg, prefix)
	})
}

// deviceCode reports whether nvcc is asked for code of GPUs instead of an object.
func deviceCode(name string) bool {
	switch strings.TrimPrefix(strings.TrimPrefix(name, "-"), "-") {
	case "ptx", "cubin", "fatbin", "optix-ir", "ltoir":
		return strings.HasPrefix(name, "-")
	}
	return false
}

func (c *call) nvccOption(name, value, arg string) {
	switch {
	case name == "-ccbin":
		c.ccbin = value
	case name == "-t" || name == "--threads":
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			c.threads = n
		}
	case strings.HasPrefix(arg, "-t"):
		if n, err := strconv.Atoi(arg[2:]); err == nil && n > 0 {
			c.threads = n
		}
	case lineTables(arg):
		c.debug = true
	}
}

// oneThread replaces the number of passes that nvcc may run at once by one.
func oneThread(args []string) []string {
	out := slices.Clone(args)
	for i := 0; i < len(out); {
		o, next := readOption(NVCC, out, i)
		switch joined := next == i+1; {
		case o.name != "-t" && o.name != "--threads":
			if n, ok := strings.CutPrefix(o.arg, "-t"); ok && o.name == o.arg && n != "" && strings.Trim(n, "0123456789") == "" {
				out[i] = "-t1"
			}
		case joined && o.hasValue:
			out[i] = "--threads=1"
		case o.hasValue:
			out[i+1] = "1"
		}
		i = next
	}
	return out
}

// LineTables reports whether arguments of nvcc make it write the paths and times of sources.
func LineTables(args []string) bool { return slices.ContainsFunc(args, lineTables) }

// lineTables reports whether an option of nvcc makes it write the paths of sources.
func lineTables(arg string) bool {
	switch arg {
	case "-lineinfo", "--generate-line-info", "-G", "--device-debug", "-g", "--debug":
		return true
	}
	return false
}

// hipOption looks at what hipcc, and clang behind it, know about GPUs.
func (c *call) hipOption(arg string) {
	for _, option := range []string{"--offload-arch=", "--amdgpu-target=", "--cuda-gpu-arch="} {
		if arch, ok := strings.CutPrefix(arg, option); ok {
			c.archs = append(c.archs, arch)
			if strings.Contains(arch, "native") {
				c.refused = "it compiles for the GPUs of this machine"
			}
		}
	}
	switch {
	case arg == "--genco" || strings.HasSuffix(arg, "-device-only") || strings.HasSuffix(arg, "-host-only"):
		c.refused = "it is called with " + arg
	case strings.HasPrefix(arg, "--no-offload-arch") || strings.HasPrefix(arg, "--no-cuda-gpu-arch"):
		c.refused = "it is called with " + arg
	}
}

// devicePasses returns the arguments that make hipcc list what its passes for GPUs read: the list
// that it writes with an object is that of the pass for the host alone.
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
			if rest, ok := strings.CutPrefix(out[i], option); ok {
				if path, ok := strings.CutPrefix(rest, "="); ok && kind == NVCC {
					out[i] = option + "=" + change(path)
				} else if strings.HasPrefix(rest, "/") {
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
