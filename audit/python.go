package audit

import (
	"bytes"
	_ "embed"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/wheel"
)

// stableABIText has a line for each Python version that added names to the stable ABI;
// make_stable_abi.py writes it.
//
//go:embed data/stable_abi.txt
var stableABIText string

// stableABI maps the names of the stable ABI to the minor of the Python 3 that added them.
var stableABI = sync.OnceValue(func() map[string]int {
	out := make(map[string]int, 1024)
	for line := range strings.Lines(stableABIText) {
		fields := strings.Fields(line)
		_, minor, _ := strings.Cut(fields[0], ".")
		n, err := strconv.Atoi(minor)
		if err != nil {
			panic("data/stable_abi.txt: " + err.Error())
		}
		for _, name := range fields[1:] {
			out[name] = n
		}
	}
	return out
})

// isPythonSymbol says whether a name belongs to the interpreter.
func isPythonSymbol(name string) bool {
	return strings.HasPrefix(name, "Py") || strings.HasPrefix(name, "_Py")
}

// A moduleSuffix is what the end of an extension module's file name says: .abi3.so,
// .cpython-313t-x86_64-linux-gnu.so, .cp312-win_amd64.pyd, or just .so.
type moduleSuffix struct {
	python string // "cp312", "cp313t", or ""
	abi3   bool
}

var (
	unixSuffix    = regexp.MustCompile(`\.cpython-(3\d+t?)(?:-[a-z0-9_-]+)?\.so$`)
	windowsSuffix = regexp.MustCompile(`\.cp(3\d+t?)-[a-z0-9_]+\.pyd$`)
)

func parseModuleSuffix(name string) moduleSuffix {
	if m := unixSuffix.FindStringSubmatch(name); m != nil {
		return moduleSuffix{python: "cp" + m[1]}
	}
	if m := windowsSuffix.FindStringSubmatch(name); m != nil {
		return moduleSuffix{python: "cp" + m[1]}
	}
	return moduleSuffix{abi3: strings.HasSuffix(name, ".abi3.so")}
}

// moduleName is the name a native file is imported under if it is an extension module:
// "exllamav2_ext" for exllamav2_ext.cpython-312-x86_64-linux-gnu.so.
func moduleName(member string) string {
	stem, _, _ := strings.Cut(path.Base(member), ".")
	return stem
}

// initFunction is the function Python calls in a module (PEP 489).
func initFunction(module string) string {
	for i := range len(module) {
		if module[i] >= 0x80 {
			return "" // PyInitU_ and punycode, which are not in use
		}
	}
	return "PyInit_" + module
}

// pythonMinor is 12 for cp312 and cp312t; 0 if the tag is no CPython 3 one.
func pythonMinor(tag string) int {
	digits, ok := strings.CutPrefix(strings.TrimSuffix(tag, "t"), "cp3")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// pythonUse is what a module takes from the interpreter.
type pythonUse struct {
	names    []string // all strong names
	unstable []string // those that are not in the stable ABI
	minor    int      // of the oldest Python 3 that has the stable ones
	newest   string   // the name that needs it
}

func pythonUseOf(names []string) pythonUse {
	use := pythonUse{names: names}
	stable := stableABI()
	for _, name := range names {
		minor, ok := stable[name]
		switch {
		case !ok:
			use.unstable = append(use.unstable, name)
		case minor > use.minor:
			use.minor, use.newest = minor, name
		}
	}
	return use
}

var pybindID = regexp.MustCompile(`__pybind11_internals_v[0-9A-Za-z_]+__`)

// pybindInternals looks for the id that pybind11 modules share their types under. It is a
// string among the constants of the file, which are size bytes at offset.
func pybindInternals(r io.ReaderAt, offset, size int64) string {
	if size > 512<<20 {
		return ""
	}
	const overlap = 256
	buf := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(buf)) - overlap {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), size-at)], offset+at)
		if n == 0 {
			return ""
		}
		if i := bytes.Index(buf[:n], []byte("__pybind11_internals_v")); i >= 0 {
			if m := pybindID.Find(buf[i:n]); m != nil && len(m) < overlap {
				return string(m)
			}
		}
		if err != nil || n < len(buf) {
			return ""
		}
	}
	return ""
}

// wheelPython is the CPython a wheel is for, by its tags: the tag, such as "cp312" or "cp313t",
// and whether it asks for the stable ABI. The tag is "" if there are several, or none.
func wheelPython(f wheel.Filename) (tag string, abi3 bool) {
	for _, t := range f.Tags() {
		this := ""
		switch {
		case t.ABI == "abi3":
			abi3, this = true, t.Python
		case strings.HasPrefix(t.ABI, "cp3"):
			this = t.ABI
		default:
			continue
		}
		if tag != "" && tag != this {
			return "", abi3
		}
		tag = this
	}
	return tag, abi3
}
