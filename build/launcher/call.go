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
var separate = map[string]bool{
	"-o": true, "-I": true, "-isystem": true, "-iquote": true, "-idirafter": true, "-include": true, "-imacros": true, "-isysroot": true,
	"-iprefix": true, "-iwithprefix": true, "-iwithprefixbefore": true, "-D": true, "-U": true, "-x": true, "-MF": true, "-MT": true, "-MQ": true,
	"-L": true, "-l": true, "-T": true, "-u": true, "-z": true, "-Xlinker": true, "-Xassembler": true, "-Xpreprocessor": true, "-B": true,
	"--param": true, "-target": true, "-arch": true, "-aux-info": true, "-wrapper": true, "-Xclang": true, "-mllvm": true,
}

var nvccSeparate = map[string]bool{
	"-gencode": true, "--generate-code": true, "--gpu-architecture": true, "-code": true, "--gpu-code": true, "-ccbin": true, "--compiler-bindir": true,
	"-Xcompiler": true, "--compiler-options": true, "-Xptxas": true, "--ptxas-options": true, "-Xcudafe": true, "-Xnvlink": true, "--nvlink-options": true,
	"--linker-options": true, "-Xarchive": true, "-t": true, "--threads": true, "-std": true, "--std": true, "-maxrregcount": true, "--maxrregcount": true,
	"-diag-suppress": true, "--diag-suppress": true, "-diag-error": true, "--diag-error": true, "-diag-warn": true, "--diag-warn": true,
	"--output-file": true, "--include-path": true, "--system-include": true, "--pre-include": true, "--define-macro": true, "--undefine-macro": true,
	"--library-path": true, "--library": true, "--x": true, "--machine": true, "-m": true, "-rdc": true, "--relocatable-device-code": true,
	"--dependency-output": true, "--dependency-target-name": true, "-optf": true, "--options-file": true, "-odir": true, "--output-directory": true,
	"-keep-dir": true, "--keep-dir": true, "-Werror": true, "--Werror": true, "-ftz": true, "-prec-div": true, "-prec-sqrt": true, "-fmad": true,
	"-ftemplate-backtrace-limit": true, "-ftemplate-depth": true, "-cudart": true, "--cudart": true, "-ldir": true, "--libdevice-directory": true,
	"-default-stream": true, "--default-stream": true, "-objtemp": true, "-arch-list": true, "-split-compile": true, "--split-compile": true,
}

// shortNames are those of torch and CMake that ccache does not know by their long names.
var shortNames = map[string]string{
	"--compile": "-c", "--device-c": "-dc", "--output-file": "-o", "--include-path": "-I", "--system-include": "-isystem", "--pre-include": "-include",
	"--define-macro": "-D", "--undefine-macro": "-U", "--dependency-output": "-MF", "--dependency-target-name": "-MT",
	"--generate-dependencies-with-compile": "-MD", "--generate-nonsystem-dependencies-with-compile": "-MMD", "--compiler-bindir": "-ccbin",
	"--generate-dependency-targets": "-MP",
}

var sourceNames = map[string]bool{
	".c": true, ".cc": true, ".cp": true, ".cxx": true, ".cpp": true, ".c++": true, ".C": true, ".cu": true, ".hip": true, ".m": true, ".mm": true,
	".i": true, ".ii": true, ".cui": true, ".s": true, ".S": true,
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
		if kind == NVCC && strings.HasPrefix(a, "-") {
			if n, v, ok := strings.Cut(a, "="); ok && (nvccSeparate[n] || shortNames[n] != "") {
				name, value, joined, hasValue = n, v, true, true
			}
			if short, ok := shortNames[name]; ok {
				name, a, joined = short, short, false
			}
		}
		if !hasValue && (separate[name] || kind == NVCC && nvccSeparate[name]) && i+1 < len(args) {
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
		case !hasValue && strings.HasPrefix(a, "-o") && kind != NVCC && len(a) > 2:
			c.output = a[2:]
			c.args = append(c.args, "-o", a[2:])
		case name == "-MD" || name == "-MMD":
			c.wantDeps = true
		case name == "-MF":
			c.depPath = value
		case strings.HasPrefix(a, "-MF") && !hasValue:
			c.depPath = a[3:]
		case name == "-MT" || name == "-MQ":
			c.targets = append(c.targets, value)
		case strings.HasPrefix(a, "-Wp,-MD,") || strings.HasPrefix(a, "-Wp,-MMD,"):
			c.wantDeps = true
			if words := strings.Split(a, ","); len(words) == 3 {
				c.depPath = words[2]
			} else {
				c.refused = "it writes dependencies by " + a
			}
		case name == "-M" || name == "-MM" || name == "-E" || name == "--preprocess" || name == "-###" || name == "--dryrun" || name == "-dryrun" ||
			name == "--generate-dependencies" || name == "--version" || name == "-V" || name == "-dlink" || name == "--device-link" || name == "--lib" || name == "-fsyntax-only":
			c.other = true
		case name == "-MG" || name == "-save-temps" || strings.HasPrefix(a, "-save-temps=") || name == "--keep" || name == "-keep" || name == "--save-temps" ||
			name == "-S" || name == "-optf" || name == "--options-file" || strings.HasPrefix(a, "-fprofile") || strings.HasPrefix(a, "--coverage") || a == "-gsplit-dwarf":
			c.refused = "it is called with " + name
			emit()
		case kind == NVCC && slices.Contains([]string{"-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "--fatbin", "-optix-ir", "--optix-ir", "-ltoir", "--ltoir"}, name):
			// ccache takes them for links.
			c.refused = "ccache does not cache " + name
			compile = true
			emit()
		case strings.HasPrefix(a, "@"):
			c.refused = "it reads arguments from a file"
			emit()
		case !strings.HasPrefix(a, "-") && sourceNames[path.Ext(a)]:
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
		c.other = len(sources) == 0 || c.output == "" || !strings.HasSuffix(c.output, ".s")
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
		c.output = strings.TrimSuffix(base, path.Ext(base)) + ".o"
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
	case strings.HasPrefix(arg, "-t") && strings.Trim(arg[2:], "0123456789") == "" && len(arg) > 2:
		c.threads, _ = strconv.Atoi(arg[2:])
	case arg == "-lineinfo" || arg == "--generate-line-info" || arg == "-G" || arg == "--device-debug" || arg == "-g" || arg == "--debug":
		c.debug = true
	}
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
var headerOptions = []string{"-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-I"}

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
