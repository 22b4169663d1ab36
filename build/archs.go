package build

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// archReader is one place of a build script that decides about GPU architectures.
type archReader struct {
	file     string // relative to the source
	line     int
	variable string // the environment variable it reads, or "" for a flag that is written there
}

var (
	// pythonArchVariable finds os.environ["X_ARCHS"], os.environ.get("X_ARCHS") and os.getenv("X_ARCHS").
	pythonArchVariable = regexp.MustCompile(`(?:environ\s*(?:\.\s*(?:get|pop|setdefault)\s*)?[\[(]|getenv\s*\()\s*["']([A-Z][A-Z0-9_]*(?:ARCH|GENCODE|COMPUTE_CAP)[A-Z0-9_]*)["']`)
	// cmakeArchVariable finds $ENV{X_ARCHS}.
	cmakeArchVariable = regexp.MustCompile(`\$ENV\{([A-Z][A-Z0-9_]*(?:ARCH|GENCODE|COMPUTE_CAP)[A-Z0-9_]*)\}`)
	// archFlag finds flags of nvcc that choose architectures.
	archFlag = regexp.MustCompile(`-gencode|--generate-code|--gpu-architecture|["'\s]-arch[=\s]|arch=compute_`)
)

// otherArchVariables have ARCH in their names and say nothing about GPUs, or are set by kiln.
var otherArchVariables = []string{
	"TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH", "ARCHFLAGS", "ARCH", "HOSTARCH", "HOST_ARCH", "BUILD_ARCH", "TARGET_ARCH",
	"PROCESSOR_ARCHITECTURE", "PROCESSOR_ARCHITEW6432", "CIBW_ARCHS", "CIBW_ARCHS_LINUX", "CIBW_ARCHS_MACOS", "VSCMD_ARG_TGT_ARCH", "CMAKE_OSX_ARCHITECTURES",
}

// archReaders reads the build scripts at the top of a source. torchList reports whether one of them
// reads TORCH_CUDA_ARCH_LIST itself.
func archReaders(dir string) (found []archReader, torchList bool) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.py"))
	for _, pattern := range []string{"CMakeLists.txt", "cmake/*.cmake", "*/CMakeLists.txt"} {
		more, _ := filepath.Glob(filepath.Join(dir, pattern))
		names = append(names, more...)
	}
	for _, name := range names[:min(len(names), 64)] {
		text, err := readStart(name, 1<<20)
		if err != nil {
			continue // what cannot be read cannot be judged
		}
		rel, _ := filepath.Rel(dir, name)
		torchList = torchList || strings.Contains(text, "TORCH_CUDA_ARCH_LIST")
		pattern := cmakeArchVariable
		if strings.HasSuffix(name, ".py") {
			pattern = pythonArchVariable
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			if code := strings.TrimSpace(line); strings.HasPrefix(code, "#") {
				continue
			}
			for _, m := range pattern.FindAllStringSubmatch(line, -1) {
				if !slices.Contains(otherArchVariables, m[1]) {
					found = append(found, archReader{filepath.ToSlash(rel), n, m[1]})
				}
			}
			if archFlag.MatchString(line) {
				found = append(found, archReader{filepath.ToSlash(rel), n, ""})
			}
		}
	}
	return found, torchList
}

func readStart(name string, limit int64) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit))
	return string(text), err
}

// checkArchs warns before anything is compiled if the build scripts choose the architectures in
// another way than by the variable that kiln sets from the row.
func (a *attempt) checkArchs() {
	found, torchList := archReaders(a.source())
	set := map[string]bool{}
	for _, pair := range a.Env {
		name, _, _ := strings.Cut(pair, "=")
		set[name] = true
	}
	var own *archReader
	for i, r := range found {
		switch {
		case r.variable != "" && set[r.variable]:
			return // packages.yml sets it
		case r.variable != "" && (own == nil || own.variable == ""), own == nil:
			own = &found[i]
		}
	}
	switch {
	case own == nil:
	case own.variable != "":
		a.warn("%s:%d reads %s for the GPU architectures, and it is not set: the wheel may get other ones than %s\n"+
			"  to build for the row's, write env: {%s: \"{arch_numbers}\"} in packages.yml, or the form that the package wants",
			own.file, own.line, own.variable, a.Row.Arch, own.variable)
	case !torchList:
		a.warn("%s:%d passes architecture flags to nvcc, and torch's builder ignores TORCH_CUDA_ARCH_LIST then: the wheel may get other GPU architectures than %s",
			own.file, own.line, a.Row.Arch)
	}
}
