package audit_test

import (
	"bytes"
	"context"
	"debug/pe"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// The tests in this file compare the audit of Windows files with others: with what Wine's loader and
// the real CPython for Windows say about modules built to fail, and with delvewheel on wheels of
// PyPI. They run when KILN_E2E names "windows-audit"; `make e2e-windows-audit` makes what they need.
//
//	KILN_DELVEWHEEL  the program, delvewheel by default
//
// They compile with mingw-w64, and load in a container of localhost/kiln-e2e/trixie-wine.

const windowsPython = "../.cache/images/windows/Python313" // dev/e2e/windows-python.sh makes it

// wine is a container with Wine and CPython, in which a folder is drive Z's /modules.
type wine struct {
	t  *testing.T
	id string
}

func podman(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "podman", append([]string{"--runtime", "runc"}, args...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return out.String() + log.String(), fmt.Errorf("%w\n%s", err, log.String())
	}
	return out.String() + log.String(), nil
}

func startWine(t *testing.T, work string) *wine {
	t.Helper()
	python, err := filepath.EvalSymlinks(windowsPython)
	if err == nil {
		python, err = filepath.Abs(python)
	}
	if err != nil {
		t.Fatalf("no Python for Windows: dev/e2e/windows-python.sh makes it: %v", err)
	}
	// The runtimes that Wine has are left out, so that this is a Windows without the Visual C++
	// Redistributable; CPython brings its own two.
	out, err := podman(t.Context(), "run", "--detach", "--rm", "--init", "--network", "none", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096",
		"--volume", work+":/modules:ro", "--volume", python+":/python:ro", "--env", "WINEPREFIX=/tmp/wine", "--env", "HOME=/tmp", "--env", "XDG_RUNTIME_DIR=/tmp",
		"--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "WINEDLLOVERRIDES=vcruntime140,vcruntime140_1,msvcp140,vcomp140,mshtml,mscoree=n",
		"localhost/kiln-e2e/trixie-wine", "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	w := &wine{t, strings.TrimSpace(strings.Split(out, "\n")[0])}
	t.Cleanup(func() {
		if _, err := podman(context.WithoutCancel(t.Context()), "rm", "--force", "--time", "0", w.id); err != nil {
			t.Error(err)
		}
	})
	// Python and the DLL of the stable ABI, which the archive lacks, go to a folder of their own.
	if out, err := w.run("wineboot --init >/dev/null 2>&1; wineserver --wait; cp -r /python /tmp/wine/drive_c/Python; cp /modules/python3.dll /tmp/wine/drive_c/Python/"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return w
}

func (w *wine) run(script string) (string, error) {
	return podman(w.t.Context(), "exec", w.id, "sh", "-c", script)
}

// loadScript imports a module the way a package does, and says how it went: the end of the output is
// "loaded", or the exception and the number of the error that Windows gives.
const loadScript = `
import ctypes, sys, os
folder, preload = sys.argv[1:]
if preload:
    ctypes.WinDLL(preload)
sys.path.insert(0, folder)
try:
    import demo
    import demo.pred
    print("loaded")
except ImportError as e:
    k = ctypes.WinDLL("kernel32", use_last_error=True)
    k.LoadLibraryExW.argtypes = [ctypes.c_wchar_p, ctypes.c_void_p, ctypes.c_uint32]
    k.LoadLibraryExW.restype = ctypes.c_void_p
    path = os.path.join(folder, "demo", "pred.pyd")
    code = 0 if not os.path.exists(path) or k.LoadLibraryExW(path, None, 0x1100) else ctypes.get_last_error()
    print("failed", code, type(e).__name__, e)
`

// What the loader can say, as the error numbers of Windows.
const (
	loads          = ""
	moduleNotFound = "failed 126 ImportError"
	badFormat      = "failed 193 ImportError"
	noFile         = "failed 0 ModuleNotFoundError"
	noInit         = "failed 0 ImportError dynamic module does not define module export function"
	// Wine loads a file although names are missing, and complains of each; Windows ends with 127.
	nameNotFound = "No implementation for "
)

// A windowsCase is a module with what the audit and the loader must say about it.
type windowsCase struct {
	name    string
	source  string            // of the module; default plainPyd
	links   map[string]string // libraries that it imports, with the names as in a .def file
	dlls    map[string]string // libraries in the wheel: path, and what the linker is given
	init    string            // demo/__init__.py
	module  string            // file name, if not pred.pyd
	tags    string            // default cp313-cp313
	torch   string            // whose c10.dll is loaded before
	patch   string            // file whose machine is changed
	python  string            // library of the interpreter, if not python313.dll
	delayed bool              // link late
	rule    string            // "" if the audit must find nothing
	detail  string
	reality string
}

const plainPyd = `
#define Py_LIMITED_API 0x03090000
#include <Python.h>
%s
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "pred", 0, -1, 0};
PyMODINIT_FUNC PyInit_pred(void) { %s return PyModule_Create(&def); }
`

// calls is a module that uses functions without calling them.
func calls(names ...string) string {
	var declare, use strings.Builder
	for _, name := range names {
		fmt.Fprintf(&declare, "__declspec(dllimport) int %s(void);\n", name)
		fmt.Fprintf(&use, "if (!Py_IsInitialized()) %s(); ", name)
	}
	return fmt.Sprintf(plainPyd, declare.String(), use.String())
}

func windowsCases() []windowsCase {
	return []windowsCase{
		{name: "good"},
		{name: "library beside the module", source: calls("f"), links: map[string]string{"inner.dll": "f"}, dlls: map[string]string{"demo/inner.dll": "f"}},
		{
			name: "library in another folder", source: calls("f"), links: map[string]string{"inner.dll": "f"}, dlls: map[string]string{"demo.libs/inner.dll": "f"},
			rule: audit.RuleLibraryMissing, detail: "inner.dll", reality: moduleNotFound,
		},
		{
			name: "library in another folder, made known", source: calls("f"), links: map[string]string{"inner.dll": "f"}, dlls: map[string]string{"demo.libs/inner.dll": "f"},
			init: "import os\nos.add_dll_directory(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'demo.libs'))\n",
		},
		{
			name: "library left out", source: calls("f"), links: map[string]string{"inner.dll": "f"},
			rule: audit.RuleLibraryMissing, detail: "inner.dll", reality: moduleNotFound,
		},
		{
			name: "library of a library left out", source: calls("f"), links: map[string]string{"inner.dll": "f"}, dlls: map[string]string{"demo/inner.dll": "f needs gone.dll"},
			rule: audit.RuleLibraryMissing, detail: "gone.dll", reality: moduleNotFound,
		},
		{name: "library left out, loaded late", source: calls("f"), links: map[string]string{"inner.dll": "f"}, delayed: true},
		{
			name: "another version of a library", source: calls("f", "g"), links: map[string]string{"inner.dll": "f g"}, dlls: map[string]string{"demo/inner.dll": "f"},
			rule: audit.RuleSymbolMissing, detail: "g", reality: nameNotFound + "inner.dll.g",
		},
		{
			name: "a number that the library lacks", source: calls("f"), links: map[string]string{"inner.dll": "f @7 NONAME"}, dlls: map[string]string{"demo/inner.dll": "f"},
			rule: audit.RuleSymbolMissing, detail: "#7", reality: nameNotFound + "inner.dll.7",
		},
		{name: "a number", source: calls("f"), links: map[string]string{"inner.dll": "f @1 NONAME"}, dlls: map[string]string{"demo/inner.dll": "f"}},
		{
			name: "a name that stands for another library's", source: calls("h"), links: map[string]string{"inner.dll": "h"},
			dlls: map[string]string{"demo/inner.dll": "h=deep.f", "demo/deep.dll": "f"},
		},
		{
			name: "a name that stands for one that is gone", source: calls("h"), links: map[string]string{"inner.dll": "h"},
			dlls: map[string]string{"demo/inner.dll": "h=deep.gone", "demo/deep.dll": "f"}, rule: audit.RuleSymbolMissing, detail: "h", reality: nameNotFound + "inner.dll.h",
		},
		{name: "module for another machine", patch: "demo/pred.pyd", rule: audit.RuleMachine, reality: badFormat},
		{
			name: "library for another machine", source: calls("f"), links: map[string]string{"inner.dll": "f"}, dlls: map[string]string{"demo/inner.dll": "f"},
			patch: "demo/inner.dll", rule: audit.RuleMachine, reality: moduleNotFound, // Wine looks on, Windows says 193
		},
		{name: "linked with another Python", python: "python312.dll", rule: audit.RulePythonTag, detail: "python312.dll", reality: moduleNotFound},
		{
			name: "linked with a debug build", source: calls("memcpy_d"), links: map[string]string{"vcruntime140d.dll": "memcpy_d"},
			rule: audit.RuleLibraryMissing, detail: "vcruntime140d.dll", reality: moduleNotFound,
		},
		{
			name: "C++ runtime of Visual C++", source: calls("f"), links: map[string]string{"msvcp140.dll": "f == ?_Xlength_error@std@@YAXPEBD@Z"},
			rule: audit.RuleVCRuntime, detail: "msvcp140.dll", reality: moduleNotFound,
		},
		{name: "C runtime that CPython brings", source: calls("f", "g"), links: map[string]string{"vcruntime140.dll": "f == memcpy", "vcruntime140_1.dll": "g == __CxxFrameHandler4"}},
		{
			name: "C++ runtime of mingw", source: calls("f"), links: map[string]string{"libstdc++-6.dll": "f == _ZSt20__throw_length_errorPKc"},
			rule: audit.RuleLibraryMissing, detail: "libstdc++-6.dll", reality: moduleNotFound,
		},
		{
			name: "libraries of Windows", source: calls("a", "b", "c", "d", "e"), links: map[string]string{
				"ws2_32.dll": "a == WSAStartup", "bcrypt.dll": "b == BCryptGenRandom", "dbghelp.dll": "c == SymInitialize", "shlwapi.dll": "d == PathFileExistsW",
				"api-ms-win-crt-heap-l1-1-0.dll": "e == malloc",
			},
		},
		{
			name: "CUDA that nothing brings", source: calls("cudaMalloc"), links: map[string]string{"cudart64_12.dll": "cudaMalloc"},
			rule: audit.RuleLibraryMissing, detail: "cudart64_12.dll", reality: moduleNotFound,
		},
		{name: "stable ABI", python: "python3.dll", tags: "cp39-abi3"},
		{name: "stable ABI in the name", python: "python3.dll", tags: "cp39-abi3", module: "pred.abi3.pyd", rule: audit.RulePythonTag, reality: noFile},
		{
			name: "function that this Python dropped", source: calls("f"), links: map[string]string{"python313.dll": "f == _PyObject_GC_Malloc"},
			rule: audit.RulePythonSymbol, detail: "_PyObject_GC_Malloc", reality: nameNotFound + "python313.dll._PyObject_GC_Malloc",
		},
		{name: "torch 2.6", source: calls("f"), links: map[string]string{"c10.dll": "f == ?report_overflow@c10@@YAXPEBD@Z"}, torch: "2.6.0"},
		{
			name: "built for torch 2.6, loaded with 2.15", source: calls("f"), links: map[string]string{"c10.dll": "f == ?report_overflow@c10@@YAXPEBD@Z"}, torch: "2.15.0",
			rule: audit.RuleSymbolMissing, detail: "?report_overflow@c10@@YAXPEBD@Z", reality: nameNotFound + "c10.dll.?report_overflow@c10@@YAXPEBD@Z",
		},
		{
			name: "renamed", source: strings.ReplaceAll(fmt.Sprintf(plainPyd, "", ""), "PyInit_pred", "PyInit_other"),
			rule: audit.RuleModuleMissing, detail: "PyInit_pred", reality: noInit,
		},
	}
}

func tool(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

const mingw = "x86_64-w64-mingw32-"

// importLibrary makes what the linker needs to import names of a DLL, without the DLL.
func importLibrary(t *testing.T, dir, dll, names string, delayed bool) string {
	t.Helper()
	def := filepath.Join(dir, dll+".def")
	text := "LIBRARY " + dll + "\nEXPORTS\n"
	if strings.Contains(names, "==") || strings.Contains(names, "@") {
		text += names + "\n"
	} else {
		text += strings.ReplaceAll(names, " ", "\n") + "\n"
	}
	if err := os.WriteFile(def, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, dll+".a")
	kind := "--output-lib"
	if delayed {
		kind = "--output-delaylib"
	}
	tool(t, dir, mingw+"dlltool", "-d", def, kind, out)
	return out
}

// build compiles the module and its libraries and returns the files of the wheel.
func (p *windowsCase) build(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	source := p.source
	if source == "" {
		source = fmt.Sprintf(plainPyd, "", "")
	}
	files := map[string][]byte{"demo/__init__.py": []byte(p.init)}
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for name, what := range p.dlls {
		exports, needs, _ := strings.Cut(what, " needs ")
		args := []string{"-shared", "-o", "out.dll", write("dll.c", "int f(void) { return 1; }\n"), write("dll.def", "EXPORTS\n"+exports+"\n")}
		if needs != "" {
			args[3] = write("dll.c", "__declspec(dllimport) int g(void);\nint f(void) { return g(); }\n")
			args = append(args, importLibrary(t, dir, needs, "g", false))
		}
		tool(t, dir, mingw+"gcc", args...)
		files[name] = read(filepath.Join(dir, "out.dll"))
	}
	include, err := filepath.Abs(filepath.Join(windowsPython, "Include"))
	if err != nil {
		t.Fatal(err)
	}
	python := p.python
	if python == "" {
		python = "python313.dll"
	}
	args := []string{"-shared", "-O1", "-I" + include, "-o", "pred.pyd", write("pred.c", source)}
	for dll, names := range p.links {
		args = append(args, importLibrary(t, dir, dll, names, p.delayed))
	}
	tool(t, dir, mingw+"gcc", append(args, importLibrary(t, t.TempDir(), python, "Py_IsInitialized PyModule_Create2", false))...)
	module := p.module
	if module == "" {
		module = "pred.pyd"
	}
	files["demo/"+module] = read(filepath.Join(dir, "pred.pyd"))
	if p.patch != "" {
		binary.LittleEndian.PutUint16(files[p.patch][binary.LittleEndian.Uint32(files[p.patch][0x3c:])+4:], pe.IMAGE_FILE_MACHINE_ARM64)
	}
	return files
}

// TestE2EWindowsPredictions builds modules, most of which must fail, asks the audit why, and then
// the loader.
func TestE2EWindowsPredictions(t *testing.T) {
	kilntest.NeedE2E(t, "windows-audit")
	_, cache := e2ePython(t)
	work := t.TempDir()
	if err := os.Chmod(work, 0o755); err != nil { //nolint:gosec // root of the container reads it
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "load.py"), []byte(loadScript), 0o666); err != nil {
		t.Fatal(err)
	}
	// The DLL of the stable ABI has names that stand for those of the interpreter's.
	if err := os.WriteFile(filepath.Join(work, "python3.def"), []byte("LIBRARY python3.dll\nEXPORTS\nPy_IsInitialized=python313.Py_IsInitialized\nPyModule_Create2=python313.PyModule_Create2\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "empty.c"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	tool(t, work, mingw+"gcc", "-shared", "-o", "python3.dll", "empty.c", "python3.def")
	w := startWine(t, work)
	right, cases := 0, windowsCases()
	for i := range cases {
		p := &cases[i]
		t.Run(p.name, func(t *testing.T) {
			p.check(t, w, work, fmt.Sprint("case", i), cache)
			if !t.Failed() {
				right++
			}
		})
	}
	t.Logf("%d of %d predictions came true", right, len(cases))
}

func (p *windowsCase) check(t *testing.T, w *wine, work, name, cache string) {
	t.Helper()
	files := p.build(t, t.TempDir())
	for file, data := range files {
		path := filepath.Join(work, name, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	tags := p.tags
	if tags == "" {
		tags = "cp313-cp313"
	}
	var metadata []string
	preload, overrides := "", ""
	var opts audit.Options
	if p.torch != "" {
		metadata = append(metadata, "Requires-Dist: torch=="+p.torch)
		dll, err := os.ReadFile(torchDLL(t, cache, p.torch))
		if err == nil {
			err = os.WriteFile(filepath.Join(work, name, "c10.dll"), dll, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		preload = `Z:\modules\` + name + `\c10.dll`
		// torch asks for the Redistributable, so this machine has it.
		overrides = "WINEDLLOVERRIDES=mshtml,mscoree=n "
	}
	wheel := "demo-1.0-" + tags + "-win_amd64.whl"
	data := makeWheel(t, wheel, files, metadata...)
	report, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), wheel, opts)
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.run(overrides + `WINEDEBUG=warn+module,fixme-all wine 'C:\Python\python.exe' /modules/load.py 'Z:\modules\` + name + `' '` + preload + `' 2>&1`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := "nothing"
	for line := range strings.Lines(out) {
		if i := strings.Index(line, nameNotFound); i >= 0 && strings.Contains(line, "case") {
			said = strings.TrimSpace(line[i:])
		}
	}
	end := regexp.MustCompile(`(?m)^(loaded|failed .*?)\r?$`).FindString(out)
	if strings.TrimSpace(end) != "loaded" {
		said = strings.TrimSpace(end)
	}
	switch {
	case p.reality == loads && (said != "nothing" || end == ""):
		t.Errorf("the loader: %s\n%s", said, out)
	case p.reality != loads && !strings.HasPrefix(said, p.reality):
		t.Errorf("the loader: %s, want %s\n%s", said, p.reality, out[max(0, len(out)-3000):])
	}
	if p.rule == "" {
		if report.Worst() > audit.Note {
			t.Errorf("it loads, but the audit finds %+v", report.Findings)
		}
		return
	}
	for _, f := range report.Findings {
		if f.Rule == p.rule && (p.detail == "" || slices.Contains(f.Details, p.detail)) {
			t.Logf("the loader: %s; the audit: %s [%s] %s", said, f.Severity, f.Rule, f.Message)
			return
		}
	}
	t.Errorf("the audit finds %+v", report.Findings)
}

// torchDLL is c10.dll of a torch for Windows, the one library of it that needs no other of torch.
func torchDLL(t *testing.T, cache, version string) string {
	t.Helper()
	path := filepath.Join(cache, "c10", version, "c10.dll")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	wheel := "torch-" + version + "-cp312-cp312-win_amd64.whl"
	python, _ := e2ePython(t)
	data, err := os.ReadFile(extract(t, fetch(t, python, cache, wheel), "torch/lib/c10.dll"))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o777)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o666)
	}
	if err == nil {
		err = os.Remove(filepath.Join(cache, wheel))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// trueFindings are errors about wheels of the corpus that are true, each with what is wrong.
var trueFindings = map[string][]string{
	// The codecs of these modules are not part of the wheel, as its documentation says.
	"imagecodecs": {"heif.dll", "jetraw.dll", "dpcore.dll", "jxs.dll"},
	// RECORD has backslashes.
	"torchrl": {audit.RuleRecord},
}

// Where delvewheel differs: it takes neither Windows 10 nor, for wheels of every Python, CPython for
// granted; it does not look into wheels that it has repaired, nor into the folder for data.
var (
	olderWindows = []string{"d3d12.dll", "d3dcompiler_47.dll", "dxcore.dll", "gdiplus.dll", "icuuc.dll", "vcruntime140.dll", "vcruntime140_1.dll"}
	notAnalyzed  = []string{"intel_openmp", "tbb"}
)

var delveLine = regexp.MustCompile(`(?m)^ {4}(\S+) \(Error: Not Found\)\r?$`)

// TestE2EWindowsCorpus audits wheels of PyPI for Windows, which many people use: an error that is not
// true is a mistake. Libraries that are neither in the wheel nor in Windows nor with Python are
// compared with those that delvewheel would look for.
func TestE2EWindowsCorpus(t *testing.T) {
	kilntest.NeedE2E(t, "windows-audit")
	python, cache := e2ePython(t)
	delve := os.Getenv("KILN_DELVEWHEEL")
	if delve == "" {
		delve = "delvewheel"
	}
	wheels := corpusFile(t, "corpus-windows.txt")
	if len(wheels) < 60 {
		t.Fatalf("only %d wheels", len(wheels))
	}
	same, clean, modules := 0, 0, 0
	for _, w := range wheels {
		t.Run(w.file, func(t *testing.T) {
			path := download(t, python, cache, w)
			defer os.Remove(path) // some are large
			report, err := audit.Check(t.Context(), path, audit.Options{NoTable: true})
			if err != nil {
				t.Fatal(err)
			}
			project, _, _ := strings.Cut(w.file, "-")
			for _, f := range report.Findings {
				known := slices.ContainsFunc(trueFindings[project], func(what string) bool { return what == f.Rule || slices.Contains(f.Details, what) })
				if f.Severity == audit.Error && !known {
					t.Errorf("%s: %s: %s", f.Rule, f.File, f.Message)
				}
			}
			for i := range report.Objects {
				if report.Objects[i].Module != "" {
					modules++
				}
			}
			if !t.Failed() {
				clean++
			}
			out, err := exec.CommandContext(t.Context(), delve, "show", "--ignore-existing", "--analyze-existing", path).CombinedOutput()
			if err != nil {
				t.Fatalf("delvewheel: %v\n%s", err, out)
			}
			want := []string{}
			for _, m := range delveLine.FindAllSubmatch(out, -1) {
				want = append(want, strings.ToLower(string(m[1])))
			}
			slices.Sort(want)
			got := report.External
			verdict := "same"
			if bytes.Contains(out, []byte("has already repaired")) {
				verdict = "delvewheel made it"
			}
			var kiln, other []string
			for _, name := range got {
				if !slices.Contains(want, name) {
					kiln = append(kiln, name)
				}
			}
			for _, name := range want {
				if !slices.Contains(got, name) {
					other = append(other, name)
				}
			}
			if len(kiln)+len(other) == 0 {
				same++
			} else if verdict == "same" {
				verdict = "differs"
			}
			if len(kiln) > 0 && verdict != "delvewheel made it" && !slices.Contains(notAnalyzed, project) {
				t.Errorf("only kiln lists %v", kiln)
			}
			for _, name := range other {
				if !slices.Contains(olderWindows, name) {
					t.Errorf("only delvewheel lists %s", name)
				}
			}
			row, err := json.Marshal(map[string]any{"wheel": w.file, "external": got, "only kiln": kiln, "only delvewheel": other, "verdict": verdict})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s", row)
		})
	}
	t.Logf("%d of %d wheels, with %d modules, have no error that is not true; for %d of them delvewheel lists the same libraries", clean, len(wheels), modules, same)
}
