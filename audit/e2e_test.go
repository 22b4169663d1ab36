package audit_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// The tests in this file compare the audit with other programs: auditwheel and cuobjdump on real
// wheels, and the dynamic loader on modules built to fail. They run when KILN_E2E names "audit".
//
//	KILN_AUDIT_PYTHON   a Python with pip and auditwheel (default python3)
//	KILN_AUDIT_CACHE    a folder for downloads (default ../.cache/audit)
//	KILN_AUDIT_PYTHONS  other interpreters for predictions, as 3.12=/path,3.8=/path
//	KILN_CUOBJDUMP      programs, separated as in PATH (default: cuobjdump on PATH). The
//	                    first that reads a file counts: newer ones call some old cubins invalid.

func needE2E(t *testing.T) (python, cache string) {
	t.Helper()
	kilntest.NeedE2E(t, "audit")
	return e2ePython(t)
}

// e2ePython is the Python with pip, and the folder for downloads.
func e2ePython(t *testing.T) (python, cache string) {
	t.Helper()
	if python = os.Getenv("KILN_AUDIT_PYTHON"); python == "" {
		python = "python3"
	}
	if cache = os.Getenv("KILN_AUDIT_CACHE"); cache == "" {
		cache = filepath.Join("..", ".cache", "audit")
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	return python, cache
}

// A published wheel is one on PyPI, by name and hash.
type published struct{ file, sha256 string }

// download fetches a wheel from PyPI, once, and makes sure that it is the one meant.
func download(t *testing.T, python, cache string, w published) string {
	t.Helper()
	path := fetch(t, python, cache, w.file)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != w.sha256 {
		t.Fatalf("%s has the SHA-256 %s, want %s", path, got, w.sha256)
	}
	return path
}

func fetch(t *testing.T, python, cache, file string) string {
	t.Helper()
	path := filepath.Join(cache, file)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	parts := strings.Split(strings.TrimSuffix(file, ".whl"), "-")
	n := len(parts)
	version, native := strings.CutPrefix(parts[n-3], "cp")
	// Also of py3, py2.py3 and py39; a package may have dropped the oldest, or never had it.
	if minor, err := strconv.Atoi(strings.TrimPrefix(version, "3")); !native || parts[n-2] == "abi3" && (err != nil || minor < 11) {
		version = "3.11"
	}
	args := []string{
		"-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", cache, "--implementation", "cp",
		"--python-version", version, parts[0] + "==" + parts[1],
	}
	for abi := range strings.SplitSeq(parts[n-2], ".") {
		args = append(args, "--abi", abi)
	}
	// pip prefers what is named first. Where a release has two wheels, the last tag tells them apart.
	for _, platform := range slices.Backward(strings.Split(parts[n-1], ".")) {
		args = append(args, "--platform", platform)
	}
	out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("download %s: %v\n%s", file, err, out)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("pip downloaded another file than %s", file)
	}
	return path
}

func corpus(t *testing.T) []published {
	t.Helper()
	return corpusFile(t, "corpus.txt")
}

func corpusFile(t *testing.T, name string) []published {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var wheels []published
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		sum, file, ok := strings.Cut(line, "  ")
		if !ok {
			t.Fatalf("%s: %q is not a hash and a name", name, line)
		}
		wheels = append(wheels, published{file, sum})
	}
	return wheels
}

// knownToWork are rules whose errors about a wheel that many people install and import are
// mistakes of the audit.
var knownToWork = []string{
	audit.RuleSymbolMissing, audit.RuleSymbolUnlinked, audit.RuleLibraryMissing, audit.RuleCUDAMajor, audit.RuleCXXABI,
	audit.RulePythonSymbol, audit.RuleObject, audit.RuleDigest, audit.RuleGPUCode,
	audit.RuleTag, audit.RulePurelib, audit.RuleName, audit.RuleArchive,
}

// TestE2ECorpus compares platform tags with auditwheel's, and looks for mistakes about wheels
// that work.
func TestE2ECorpus(t *testing.T) {
	python, cache := needE2E(t)
	wheels := corpus(t)
	if len(wheels) < 40 {
		t.Fatalf("only %d wheels", len(wheels))
	}
	tags := 0
	for _, w := range wheels {
		t.Run(w.file, func(t *testing.T) {
			path := download(t, python, cache, w)
			report, err := audit.Check(t.Context(), path, audit.Options{NoTable: true})
			if err != nil {
				t.Fatal(err)
			}
			var want struct{ Strict, Tag, Symbols, Error string }
			out, err := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "auditwheel_tags.py"), path).Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(out, &want); err != nil {
				t.Fatal(err)
			}
			if want.Error != "" || report.Platform == nil {
				t.Fatalf("auditwheel: %s; kiln: %v", want.Error, report.Platform)
			}
			p := report.Platform
			if p.Strict != want.Strict || p.Tag != want.Tag || p.Symbols != want.Symbols {
				t.Errorf("strict %s, tag %s, symbols %s; auditwheel says %s, %s, %s", p.Strict, p.Tag, p.Symbols, want.Strict, want.Tag, want.Symbols)
			}
			for _, f := range report.Findings {
				if f.Severity == audit.Error && slices.Contains(knownToWork, f.Rule) || f.Rule == audit.RuleGPUCode && f.Severity > audit.Note {
					t.Errorf("%s %s: %s: %s", f.Severity, f.Rule, f.File, f.Message)
				}
			}
			if !t.Failed() {
				tags++
			}
		})
	}
	t.Logf("%d of %d wheels have auditwheel's tags and no error that is not true", tags, len(wheels))
}

// TestE2EImages compares the GPU targets in the wheels of the corpus with cuobjdump's.
func TestE2EImages(t *testing.T) {
	python, cache := needE2E(t)
	programs, reason := cuobjdumps()
	if len(programs) == 0 {
		kilntest.Lacking(t, "cuobjdump", "%s", reason)
	}
	wheels, images := 0, 0
	for _, w := range corpus(t) {
		t.Run(w.file, func(t *testing.T) {
			path := download(t, python, cache, w)
			report, err := audit.Check(t.Context(), path, audit.Options{NoTable: true, SkipDigests: true})
			if err != nil {
				t.Fatal(err)
			}
			if n := compareImages(t, programs, path, report); n > 0 {
				wheels++
				images += n
			}
		})
	}
	if images == 0 {
		t.Error("no wheel of the corpus has CUDA code")
	}
	t.Logf("%d files of %d wheels have cuobjdump's targets", images, wheels)
}

var cubinLine = regexp.MustCompile(`\bsm_(\d+)([af]?)\.(cubin|ptx)`)

// cuobjdumps are the programs to compare with; none and a reason if there is none.
func cuobjdumps() (programs []string, reason string) {
	if list := filepath.SplitList(os.Getenv("KILN_CUOBJDUMP")); len(list) > 0 {
		return list, ""
	}
	program, err := exec.LookPath("cuobjdump")
	if err != nil {
		return nil, "no cuobjdump: " + err.Error()
	}
	return []string{program}, ""
}

// compareImages compares the GPU code of all ELF files of a wheel with the lists of cuobjdump,
// also of those where the audit found none, and says how many have any.
func compareImages(t *testing.T, programs []string, path string, report *audit.Report) int {
	t.Helper()
	n := 0
	for i := range report.Objects {
		o := &report.Objects[i]
		if o.Kind != "elf" && o.Kind != "object" {
			continue
		}
		file := extract(t, path, o.Path)
		want := []string{}
		for _, g := range o.GPU {
			if g.Kind != "amdgpu" { // cuobjdump lists sm_100f as sm_100
				want = append(want, g.Kind+" "+strings.TrimRight(g.Target, "f"))
			}
		}
		if len(want) > 0 || hasSection(t, file, ".nv_fatbin") {
			slices.Sort(want)
			want = slices.Compact(want)
			if diff := cmp.Diff(want, imagesOf(t, programs, file)); diff != "" {
				t.Errorf("%s: images (-audit +cuobjdump):\n%s", o.Path, diff)
			}
			n++
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func hasSection(t *testing.T, file, name string) bool {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return f.Section(name) != nil
}

// imagesOf lists the images of a file by the first cuobjdump that reads it, sorted, each once, as
// "sass 8.0".
func imagesOf(t *testing.T, programs []string, file string) []string {
	t.Helper()
	var out []byte
	for i, program := range programs {
		var err error
		out, err = exec.CommandContext(t.Context(), program, "--list-elf", "--list-ptx", file).CombinedOutput()
		if err == nil || bytes.Contains(out, []byte("does not contain device code")) {
			break
		}
		if i == len(programs)-1 {
			t.Fatalf("cuobjdump %s: %v\n%s", filepath.Base(file), err, out)
		}
	}
	images := []string{}
	for _, m := range cubinLine.FindAllSubmatch(out, -1) {
		kind := map[string]string{"cubin": "sass", "ptx": "ptx"}[string(m[3])]
		number := string(m[1])
		images = append(images, fmt.Sprintf("%s %s.%s%s", kind, number[:len(number)-1], number[len(number)-1:], strings.TrimRight(string(m[2]), "f")))
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// extract writes one member of a wheel to a file.
func extract(t *testing.T, path, member string) string {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	in, err := z.Open(member)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(member)))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

// TestE2EWorksWith: the table agrees with what is known about wheels of others. works has the
// torch that their requirements or release notes name; fails has those with the other C++ ABI,
// which torch changed with 2.7, or another CUDA major.
func TestE2EWorksWith(t *testing.T) {
	python, cache := needE2E(t)
	for _, test := range []struct {
		wheel        string
		works, fails []string
	}{
		{"auto_gptq-", []string{"2.2.2"}, []string{"2.7.0"}},
		{"autoawq_kernels-", []string{"2.5.1"}, []string{"2.7.0", "2.11.0"}},
		{"torchaudio-", []string{"2.11.0"}, []string{"2.6.0", "2.10.0"}},
		{"torchvision-", []string{"2.14.0", "2.14.1"}, []string{"2.6.0"}},
		{"vllm_flash_attn-", []string{"2.4.0"}, []string{"2.7.0", "2.11.0"}},
		{"xformers-", []string{"2.10.0"}, []string{"2.11.0"}},
	} {
		t.Run(test.wheel, func(t *testing.T) {
			wheels := corpus(t)
			i := slices.IndexFunc(wheels, func(w published) bool { return strings.HasPrefix(w.file, test.wheel) })
			if i < 0 {
				t.Fatal("not in the corpus")
			}
			report, err := audit.Check(t.Context(), download(t, python, cache, wheels[i]), audit.Options{SkipDigests: true})
			if err != nil {
				t.Fatal(err)
			}
			verdicts := map[string]audit.TorchVerdict{}
			for _, v := range report.WorksWith {
				public, _, _ := strings.Cut(v.Torch, "+")
				verdicts[public] = v
			}
			for _, version := range test.works {
				if v := verdicts[version]; !v.OK {
					t.Errorf("torch %s: %+v, but it works", version, v)
				}
			}
			for _, version := range test.fails {
				if v := verdicts[version]; v.Torch == "" || v.OK {
					t.Errorf("torch %s: %+v, but it does not load", version, v)
				}
			}
		})
	}
}

// A prediction is a module that must not load, for a known reason.
type prediction struct {
	name    string
	torch   string // headers and libc10 it is built with; "" for none
	against string // torch it is loaded with
	python  string // headers it is built with; the default interpreter if empty
	run     string // interpreter it is loaded with
	source  string
	flags   []string
	stub    string // build an empty library of this SONAME to link with
	rule    string
	ok      bool // it must load
}

const (
	plainModule = `
#include <Python.h>
%s
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "pred", 0, -1, 0};
extern "C" PyObject *PyInit_pred(void) { %s; return PyModule_Create(&def); }
`
	checkFail = `
#include <string>
namespace c10 { namespace detail { void torchCheckFail(const char*, const char*, uint32_t, const std::string&); } }
`
)

func predictions() []prediction {
	module := func(declarations, body string) string { return fmt.Sprintf(plainModule, declarations, body) }
	fail := module(checkFail, `if (!Py_IsInitialized()) c10::detail::torchCheckFail("a", "b", 1, std::string("c"))`)
	newABI, oldABI := "-D_GLIBCXX_USE_CXX11_ABI=1", "-D_GLIBCXX_USE_CXX11_ABI=0"
	return []prediction{
		{name: "correct, old ABI", torch: "2.6.0", against: "2.6.0", source: fail, flags: []string{oldABI}, ok: true},
		{name: "correct, new ABI", torch: "2.7.0", against: "2.7.0", source: fail, flags: []string{newABI}, ok: true},
		{name: "C++ ABI flag wrong", torch: "2.6.0", against: "2.6.0", source: fail, flags: []string{newABI}, rule: audit.RuleSymbolMissing},
		{name: "C++ ABI flag wrong, other way", torch: "2.7.0", against: "2.7.0", source: fail, flags: []string{oldABI}, rule: audit.RuleSymbolMissing},
		{name: "built for torch 2.6, loaded with 2.7", torch: "2.6.0", against: "2.7.0", source: fail, flags: []string{oldABI}, rule: audit.RuleSymbolMissing},
		{name: "built for torch 2.7, loaded with 2.6", torch: "2.7.0", against: "2.6.0", source: fail, flags: []string{newABI}, rule: audit.RuleSymbolMissing},
		{
			name: "removed from torch", torch: "2.6.0", against: "2.15.0", rule: audit.RuleSymbolMissing, flags: []string{newABI},
			source: module(`namespace c10 { void report_overflow(const char*); }`, `if (!Py_IsInitialized()) c10::report_overflow("x")`),
		},
		{
			name: "signature changed in torch", torch: "2.6.0", against: "2.15.0", rule: audit.RuleSymbolMissing, flags: []string{newABI},
			source: module(`namespace c10 { struct MessageLogger { MessageLogger(const char*, int, int); char space[4096]; }; }`,
				`if (!Py_IsInitialized()) c10::MessageLogger m("x", 1, 2)`),
		},
		{
			name: "libc10 not linked", against: "2.7.0", source: fail, flags: []string{newABI}, rule: audit.RuleSymbolUnlinked,
		},
		{
			name: "CUDA 11 with a torch of CUDA 12", torch: "2.6.0", against: "2.6.0", flags: []string{oldABI}, stub: "libcudart.so.11.0",
			source: module(checkFail+`extern "C" int stub_function(void);`,
				`if (!Py_IsInitialized()) c10::detail::torchCheckFail("a", "b", stub_function(), std::string("c"))`),
			rule: audit.RuleCUDAMajor,
		},
		{
			name: "SONAME of a distribution's torch", torch: "2.6.0", against: "2.6.0", flags: []string{oldABI}, stub: "libc10.so.2.6",
			source: module(`extern "C" int stub_function(void);`, `if (!Py_IsInitialized()) stub_function()`), rule: audit.RuleLibraryMissing,
		},
		{
			name: "library that is gone from torch", torch: "2.6.0", against: "2.6.0", flags: []string{oldABI}, stub: "libtorch_cuda_cu.so",
			source: module(`extern "C" int stub_function(void);`, `if (!Py_IsInitialized()) stub_function()`), rule: audit.RuleLibraryMissing,
		},
		{
			name: "library that is nowhere", flags: []string{newABI}, stub: "libnowhere.so.1",
			source: module(`extern "C" int stub_function(void);`, `if (!Py_IsInitialized()) stub_function()`), rule: audit.RulePlatformLibrary,
		},
		{
			name: "declared, never defined", flags: []string{newABI}, rule: audit.RuleSymbolMissing,
			source: module(`namespace mine { int launch(float*); }`, `if (!Py_IsInitialized()) mine::launch(nullptr)`),
		},
		{
			name: "function of a newer Python", python: "3.13", run: "3.11", rule: audit.RulePythonSymbol,
			source: module(`extern "C" int PyObject_GetOptionalAttr(PyObject*, PyObject*, PyObject**);`,
				`PyObject *r; if (!Py_IsInitialized()) PyObject_GetOptionalAttr(nullptr, nullptr, &r)`),
		},
		{
			name: "private function that Python dropped", python: "3.11", run: "3.13", rule: audit.RulePythonSymbol,
			source: module(`extern "C" int _PyUnicode_Ready(PyObject*);`, `if (!Py_IsInitialized()) _PyUnicode_Ready(nullptr)`),
		},
		{
			name: "private function of an older Python", python: "3.8", run: "3.12", rule: audit.RulePythonSymbol,
			source: module("", `if (!Py_IsInitialized()) _PyObject_GC_Malloc(16)`),
		},
	}
}

// TestE2EPredictions builds modules that must fail, asks the audit why, and then the loader.
func TestE2EPredictions(t *testing.T) {
	python, cache := needE2E(t)
	interpreters := map[string]string{}
	for item := range strings.SplitSeq(os.Getenv("KILN_AUDIT_PYTHONS"), ",") {
		if version, path, ok := strings.Cut(item, "="); ok {
			interpreters[version] = path
		}
	}
	right := 0
	for _, p := range predictions() {
		t.Run(p.name, func(t *testing.T) {
			build, run := python, python
			for _, want := range []struct {
				version string
				program *string
			}{{p.python, &build}, {p.run, &run}} {
				if want.version == "" {
					continue
				}
				path, ok := interpreters[want.version]
				if !ok {
					kilntest.Lacking(t, "python"+want.version, "no Python %s in KILN_AUDIT_PYTHONS", want.version)
				}
				*want.program = path
			}
			predict(t, &p, python, build, run, cache)
			if !t.Failed() {
				right++
			}
		})
	}
	t.Logf("%d of %d predictions came true", right, len(predictions()))
}

func predict(t *testing.T, p *prediction, pip, build, run, cache string) {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "pred.cpp")
	if err := os.WriteFile(source, []byte(p.source), 0o666); err != nil {
		t.Fatal(err)
	}
	output := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	include := output(build, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])")
	tag := output(run, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])")
	module := filepath.Join(dir, "pred.so")
	args := []string{"-shared", "-fPIC", "-O1", "-o", module, "-I" + include, source}
	args = append(args, p.flags...)
	if p.torch != "" {
		args = append(args, "-Wl,--no-as-needed", torchLibrary(t, pip, cache, p.torch))
	}
	if p.stub != "" {
		stub := filepath.Join(dir, "stub", p.stub)
		if err := os.MkdirAll(filepath.Dir(stub), 0o777); err != nil {
			t.Fatal(err)
		}
		code := filepath.Join(dir, "stub.c")
		if err := os.WriteFile(code, []byte("int stub_function(void) { return 1; }\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		output("gcc", "-shared", "-fPIC", "-o", stub, "-Wl,-soname,"+p.stub, code)
		args = append(args, stub)
	}
	output("g++", args...)

	content, err := os.ReadFile(module)
	if err != nil {
		t.Fatal(err)
	}
	wheel := filepath.Join(dir, "pred-1.0-"+tag+"-"+tag+"-manylinux_2_41_x86_64.whl")
	writeWheel(t, wheel, map[string][]byte{"pred.so": content})
	var opts audit.Options
	preload := ""
	if p.against != "" {
		if opts.Torch, err = audit.Builtin(p.against); err != nil {
			t.Fatal(err)
		}
		preload = torchLibrary(t, pip, cache, p.against)
	}
	report, err := audit.Check(t.Context(), wheel, opts)
	if err != nil {
		t.Fatal(err)
	}
	// What `import torch` does for the module: its library is loaded before, for itself only.
	script := "import sys, ctypes\nif sys.argv[1]: ctypes.CDLL(sys.argv[1])\nsys.path.insert(0, sys.argv[2])\nimport pred\n"
	out, err := exec.CommandContext(t.Context(), run, "-c", script, preload, dir).CombinedOutput()
	if p.ok {
		if err != nil {
			t.Errorf("it does not load: %s", out)
		}
		if report.Worst() == audit.Error {
			t.Errorf("it loads, but the audit finds %+v", report.Findings)
		}
		return
	}
	if err == nil {
		t.Fatal("it loads")
	}
	real := regexp.MustCompile(`undefined symbol: (\S+)|(\S+): cannot open shared object file`).FindSubmatch(out)
	if real == nil {
		t.Fatalf("it fails for another reason: %s", out)
	}
	name := strings.TrimRight(string(real[1])+string(real[2]), ",:")
	for _, f := range report.Findings {
		if f.Rule == p.rule && f.Severity == audit.Error && slices.Contains(f.Details, name) {
			t.Logf("the loader: %s; the audit: [%s] %s", name, f.Rule, f.Message)
			return
		}
	}
	t.Errorf("the loader misses %s; the audit finds %+v", name, report.Findings)
}

// torchLibrary is libc10.so of a torch version, the one library of it that needs no CUDA.
func torchLibrary(t *testing.T, python, cache, version string) string {
	t.Helper()
	path := filepath.Join(cache, "libc10", version, "libc10.so")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	w, ok := map[string]published{
		"2.6.0":  {"torch-2.6.0-cp312-cp312-manylinux1_x86_64.whl", "2bb8987f3bb1ef2675897034402373ddfc8f5ef0e156e2d8cfc47cacafdda4a9"},
		"2.7.0":  {"torch-2.7.0-cp312-cp312-manylinux_2_28_x86_64.whl", "15aab3e31c16feb12ae0a88dba3434a458874636f360c567caa6a91f6bfba481"},
		"2.15.0": {"torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl", "6d8c86f4e33a9f12a58149bd9b0d64351632b8eb44479be8ff85e5389932dd79"},
	}[version]
	if !ok {
		t.Fatalf("which wheel of torch %s? add its name and hash", version)
	}
	wheel := download(t, python, cache, w)
	data, err := os.ReadFile(extract(t, wheel, "torch/lib/libc10.so"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o777); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeWheel makes a wheel of the given files; its names come from the file name.
func writeWheel(t *testing.T, path string, files map[string][]byte, metadata ...string) {
	t.Helper()
	data := makeWheel(t, filepath.Base(path), files, metadata...)
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

func makeWheel(t testing.TB, name string, files map[string][]byte, metadata ...string) []byte {
	t.Helper()
	parts := strings.Split(strings.TrimSuffix(name, ".whl"), "-")
	info := parts[0] + "-" + parts[1] + ".dist-info/"
	var wheelTags strings.Builder
	for python := range strings.SplitSeq(parts[2], ".") {
		for abi := range strings.SplitSeq(parts[3], ".") {
			for platform := range strings.SplitSeq(parts[4], ".") {
				fmt.Fprintf(&wheelTags, "Tag: %s-%s-%s\n", python, abi, platform)
			}
		}
	}
	all := map[string][]byte{
		info + "METADATA": []byte("Metadata-Version: 2.1\nName: " + parts[0] + "\nVersion: " + parts[1] + "\n" + strings.Join(append(metadata, ""), "\n")),
		info + "WHEEL":    []byte("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: " + fmt.Sprint(parts[4] == "any") + "\n" + wheelTags.String()),
	}
	maps.Copy(all, files)
	names := slices.Sorted(maps.Keys(all))
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	record := new(strings.Builder)
	add := func(name string, content []byte) {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		sum := sha256.Sum256(all[name])
		fmt.Fprintf(record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(all[name]))
		add(name, all[name])
	}
	fmt.Fprintf(record, "%sRECORD,,\n", info)
	add(info+"RECORD", []byte(record.String()))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
