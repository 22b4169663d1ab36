package jit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/jit"
	"github.com/kiln-build/kiln/machine"
)

// helperEnv makes the test binary load a module in another process: its value is the spec's path
// and the store's. Without a spec it removes everything from the store.
const helperEnv = "KILN_JIT_HELPER"

func TestMain(m *testing.M) {
	run.Main()
	if args := os.Getenv(helperEnv); args != "" {
		file, dir, _ := strings.Cut(args, "|")
		if err := helper(file, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(file, dir string) error {
	if file == "" {
		r, err := (&jit.Store{Dir: dir}).GC(context.Background(), jit.GCOptions{MaxBytes: -1, Keep: -1})
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(r))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	spec, list := jit.ParseSpec(file, "", text)
	if err := list.Err(); err != nil {
		return err
	}
	r, err := jit.Load(context.Background(), spec, jit.Options{Dir: dir, Env: os.Environ(), Python: os.Getenv("KILN_PYTHON"), NoLauncher: true})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// python returns an interpreter with headers, and makes sure that there is a compiler.
func python(t *testing.T) string {
	t.Helper()
	py := os.Getenv("KILN_PYTHON")
	if py == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	if _, err := os.Stat(py); err != nil {
		kilntest.Lacking(t, "python", "KILN_PYTHON: %v", err)
	}
	if _, err := exec.LookPath("g++"); err != nil {
		kilntest.Lacking(t, "python", "no C++ compiler")
	}
	return py
}

const tinyC = `
#include <Python.h>
#include "value.h"
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", NULL, -1, methods};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&module); }
`

// project is a module of one file and one header, with a compiler that counts its calls.
type project struct {
	t      *testing.T
	dir    string
	store  string
	python string
	env    []string
}

func newProject(t *testing.T) *project {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("kiln jit does not compile on Windows")
	}
	p := &project{t: t, python: python(t), dir: t.TempDir(), store: filepath.Join(t.TempDir(), "store")}
	p.write("tiny.yml", "name: tiny\nsources: [src/*.c]\ninclude: [inc]\nflags: {cxx: [-O0]}\n")
	p.write("src/tiny.c", tinyC)
	p.write("inc/value.h", "#define VALUE 42\n")
	p.compiler("")
	return p
}

func (p *project) path(name string) string { return filepath.Join(p.dir, filepath.FromSlash(name)) }

func (p *project) write(name, text string) {
	p.t.Helper()
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
		p.t.Fatal(err)
	}
}

// compiler makes the compiler of the project: a script that notes each file, does something first,
// and calls the real one.
func (p *project) compiler(first string) {
	p.write("bin/g++", fmt.Sprintf(`#!/bin/sh
case " $* " in *" -c "*)
	echo x >>'%s'
	%s
esac
exec g++ "$@"
`, p.path("calls"), first))
	// A folder of PATH that another program writes to would be looked at again.
	p.env = append(os.Environ(), "PATH=/usr/local/bin:/usr/bin:/bin", "CXX="+p.path("bin/g++"))
}

// calls is how many files were compiled.
func (p *project) calls() int {
	text, err := os.ReadFile(p.path("calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

func (p *project) spec() *jit.Spec {
	p.t.Helper()
	file := p.path("tiny.yml")
	text, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	spec, list := jit.ParseSpec(file, "", text)
	if err := list.Err(); err != nil {
		p.t.Fatal(err)
	}
	return spec
}

func (p *project) options() jit.Options {
	return jit.Options{Dir: p.store, Env: p.env, Python: p.python, NoLauncher: true}
}

// load wants a module that gives an answer, from a certain source, and compiled or not.
func (p *project) load(opts jit.Options, source string, remembered bool, answer string) *jit.Result {
	p.t.Helper()
	r, err := jit.Load(p.t.Context(), p.spec(), opts)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, details(err))
	}
	if r.Source != source || r.Remembered != remembered {
		p.t.Errorf("source %s, remembered %v; want %s, %v", r.Source, r.Remembered, source, remembered)
	}
	if got := p.answer(r.Path); got != answer {
		p.t.Errorf("the module answers %s, want %s", got, answer)
	}
	return r
}

func details(err error) string {
	if e, ok := errors.AsType[*jit.Error](err); ok {
		return strings.Join(e.Tail, "\n")
	}
	return ""
}

func (p *project) answer(path string) string {
	p.t.Helper()
	const script = `import sys, importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("tiny", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("tiny", sys.argv[1], loader=loader))
loader.exec_module(module)
print(module.answer())`
	out, err := exec.CommandContext(p.t.Context(), p.python, "-c", script, path).CombinedOutput()
	if err != nil {
		p.t.Fatalf("import %s: %v\n%s", path, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestRelativePython: an interpreter may be named from the working folder. Another one of the same
// name in another folder is another question.
func TestRelativePython(t *testing.T) {
	p := newProject(t)
	t.Chdir(filepath.Dir(p.python))
	opts := p.options()
	opts.Python = "." + string(filepath.Separator) + filepath.Base(p.python)
	p.load(opts, jit.SourceBuilt, false, "42")
	p.load(opts, jit.SourceCache, true, "42")
	t.Chdir(t.TempDir())
	_ = p.failure(opts, "no-python")
}

// TestLoad follows one module through its changes.
func TestLoad(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	opts := p.options()
	first := p.load(opts, jit.SourceBuilt, false, "42")
	p.load(opts, jit.SourceCache, true, "42")
	if n := p.calls(); n != 1 {
		t.Fatalf("%d files were compiled, want 1", n)
	}

	// A file that was written anew with the same content: looked at, not compiled.
	p.write("inc/value.h", "#define VALUE 42\n")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(p.path("inc/value.h"), later, later); err != nil {
		t.Fatal(err)
	}
	p.load(opts, jit.SourceCache, false, "42")
	p.load(opts, jit.SourceCache, true, "42")

	// A header: its old time and size do not hide that it changed.
	info, err := os.Stat(p.path("inc/value.h"))
	if err != nil {
		t.Fatal(err)
	}
	p.write("inc/value.h", "#define VALUE 43\n")
	if err := os.Chtimes(p.path("inc/value.h"), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	e, err := jit.Explain(t.Context(), p.spec(), opts)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range e.Changes {
		names = append(names, c.Name)
	}
	if diff := cmp.Diff([]string{"header {root}/inc/value.h"}, names); e.Hit || diff != "" {
		t.Errorf("hit %v, changes (-want +got):\n%s", e.Hit, diff)
	}
	p.load(opts, jit.SourceBuilt, false, "43")

	// Back again: the first module is still there.
	p.write("inc/value.h", "#define VALUE 42\n")
	if again := p.load(opts, jit.SourceCache, false, "42"); again.Path != first.Path {
		t.Errorf("%s, want %s", again.Path, first.Path)
	}
	if e, err := jit.Explain(t.Context(), p.spec(), opts); err != nil || !e.Hit {
		t.Errorf("explain: %+v, %v", e, err)
	}

	// A new file that the pattern finds, a flag, a header that hides another.
	calls := p.calls()
	p.write("src/more.c", "int more;\n")
	p.load(opts, jit.SourceBuilt, false, "42")
	if n := p.calls() - calls; n != 2 {
		t.Errorf("%d files were compiled, want 2", n)
	}
	p.write("tiny.yml", "name: tiny\nsources: [src/*.c]\ninclude: [first, inc]\nflags: {cxx: [-O0]}\n")
	p.write("first/other.h", "")
	p.load(opts, jit.SourceBuilt, false, "42")
	p.write("first/value.h", "#define VALUE 44\n")
	p.load(opts, jit.SourceBuilt, false, "44")

	// Another place gives the same key.
	moved := &project{t: t, dir: t.TempDir(), store: p.store, python: p.python, env: p.env}
	if err := os.CopyFS(moved.dir, os.DirFS(p.dir)); err != nil {
		t.Fatal(err)
	}
	calls = p.calls()
	moved.load(opts, jit.SourceCache, false, "44")
	if p.calls() != calls {
		t.Error("the same project in another folder was compiled again")
	}

	// A damaged module is not given out.
	r := p.load(opts, jit.SourceCache, true, "44")
	if err := os.Chmod(r.Path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Path, []byte("\x7fELF"), 0o666); err != nil {
		t.Fatal(err)
	}
	p.load(opts, jit.SourceBuilt, false, "44")
}

// TestRace: eight processes want the same module at the same time. One compiles.
func TestRace(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	var cmds []*exec.Cmd
	outs := make([]bytes.Buffer, 8)
	for i := range outs {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(slices.Clone(p.env), helperEnv+"="+p.path("tiny.yml")+"|"+p.store)
		cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	paths := map[string]int{}
	built := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("process %d: %v\n%s", i, err, &outs[i])
		}
		var r jit.Result
		if err := json.Unmarshal(outs[i].Bytes(), &r); err != nil {
			t.Fatalf("process %d: %v\n%s", i, err, &outs[i])
		}
		paths[r.Path]++
		if r.Source == jit.SourceBuilt {
			built++
		}
	}
	if n := p.calls(); n != 1 || built != 1 || len(paths) != 1 {
		t.Errorf("%d files were compiled by %d processes into %d modules, want 1 each", n, built, len(paths))
		list, err := (&jit.Store{Dir: p.store}).Entries("tiny")
		if err != nil || len(list) < 2 {
			t.Fatal(err)
		}
		a, err1 := list[0].Inputs()
		b, err2 := list[1].Inputs()
		t.Fatalf("%v, %v, %v", a.Compare(b), err1, err2)
	}
}

// TestRaceOfFailures: callers that waited for a build that failed do not try it again.
func TestRaceOfFailures(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	// Not remembered for itself: what is missing may be installed in the next moment.
	p.write("src/tiny.c", "#include <not_there.h>\n")
	p.compiler("sleep 1")
	var cmds []*exec.Cmd
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(slices.Clone(p.env), helperEnv+"="+p.path("tiny.yml")+"|"+p.store)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		if cmd.Wait() == nil {
			t.Error("a module came out of it")
		}
	}
	// A process that started after the first had failed tries for itself.
	if n := p.calls(); n < 1 || n > 3 {
		t.Errorf("%d files were compiled", n)
	}
}

// TestKill: a process that is killed while it compiles leaves nothing that keeps the next one from
// its work.
func TestKill(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.compiler("exec sleep 1000")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(slices.Clone(p.env), helperEnv+"="+p.path("tiny.yml")+"|"+p.store)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for p.calls() == 0 {
		if t.Context().Err() != nil {
			t.Fatal("no compiler was called")
		}
		time.Sleep(5 * time.Millisecond)
	}
	work, err := filepath.Glob(filepath.Join(p.store, "v1", "tmp", "*"))
	if err != nil || len(work) != 2 {
		t.Fatalf("work folders: %q, %v", work, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	p.compiler("")
	p.load(p.options(), jit.SourceBuilt, false, "42")
	if left, err := filepath.Glob(filepath.Join(p.store, "v1", "tmp", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// failure wants Load to fail with a diagnosis.
func (p *project) failure(opts jit.Options, id string) *jit.Error {
	p.t.Helper()
	_, err := jit.Load(p.t.Context(), p.spec(), opts)
	e, ok := errors.AsType[*jit.Error](err)
	if !ok || len(e.Diagnoses) == 0 || e.Diagnoses[0].ID != id {
		p.t.Fatalf("error %v, want the diagnosis %s\n%s", err, id, details(err))
	}
	return e
}

func TestFailure(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	opts := p.options()
	p.write("inc/value.h", "#define VALUE 4 2\n")
	e := p.failure(opts, "compile-error")
	if !e.Remembered.IsZero() || len(e.Command) == 0 {
		t.Errorf("first failure: %+v", e)
	}
	if text, err := os.ReadFile(e.Log); err != nil || !strings.Contains(string(text), "error: ") || !strings.HasPrefix(string(text), e.Command[0]) {
		t.Errorf("log: %v\n%s", err, text)
	}
	if e := p.failure(opts, "compile-error"); e.Remembered.IsZero() {
		t.Error("compiled again")
	}
	if n := p.calls(); n != 1 {
		t.Errorf("%d files were compiled, want 1", n)
	}
	opts.Retry = true
	if e := p.failure(opts, "compile-error"); !e.Remembered.IsZero() {
		t.Error("not compiled again")
	}
	opts.Retry = false
	// The header is no input that was known before, and its change counts all the same.
	p.write("inc/value.h", "#define VALUE 7\n")
	p.load(opts, jit.SourceBuilt, false, "7")

	// What may be installed meanwhile is tried again.
	p.write("src/tiny.c", "#include <not_there.h>\n")
	_ = p.failure(opts, "header-missing")
	if e := p.failure(opts, "header-missing"); !e.Remembered.IsZero() {
		t.Error("a missing header was remembered")
	}
	p.write("src/tiny.c", tinyC+"int undefined(void);\nint use(void) { return undefined(); }\n")
	if e := p.failure(opts, "undefined-symbol"); !strings.Contains(e.Diagnoses[0].Detail, "undefined") {
		t.Errorf("diagnosis %+v", e.Diagnoses[0])
	}
}

func TestNotUsable(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	t.Run("no compiling", func(t *testing.T) {
		opts := p.options()
		opts.NoCompile = "KILN_NO_JIT"
		if e := p.failure(opts, "no-native-module"); !strings.Contains(e.Diagnoses[0].Detail, "KILN_NO_JIT") {
			t.Errorf("diagnosis %+v", e.Diagnoses[0])
		}
	})
	t.Run("noexec", func(t *testing.T) {
		opts := p.options()
		opts.Host = machine.Local(p.env)
		real, other := opts.Host.ReadFile, t.TempDir()
		opts.Host.ReadFile = func(path string) ([]byte, error) {
			text, err := real(path)
			if path == "/proc/mounts" {
				text = append(text, []byte("\ntmpfs "+p.store+" tmpfs rw,noexec 0 0\n")...)
			}
			return text, err
		}
		opts.OtherDirs = []string{p.store, filepath.Join(other, "cache")}
		if runtime.GOOS == "linux" {
			if e := p.failure(opts, "noexec"); !strings.HasPrefix(e.Diagnoses[0].Fix, "export KILN_CACHE_DIR=") {
				t.Errorf("fix %q", e.Diagnoses[0].Fix)
			}
		}
	})
	t.Run("no compiler", func(t *testing.T) {
		opts := p.options()
		opts.Env = []string{"PATH=" + t.TempDir()}
		_ = p.failure(opts, "no-compiler")
	})
	t.Run("no torch", func(t *testing.T) {
		p.write("tiny.yml", "name: tiny\nsources: [src/*.c]\ntorch: true\n")
		_ = p.failure(p.options(), "missing-requirement")
	})
	t.Run("no nvcc", func(t *testing.T) {
		p.write("src/k.cu", "")
		p.write("tiny.yml", "name: tiny\nsources: [src/*.c, src/k.cu]\n")
		opts := p.options()
		opts.Env = append(opts.Env, "CUDA_HOME="+t.TempDir())
		opts.CUDAHome = t.TempDir()
		opts.Host = without(opts.Env, "nvcc")
		_ = p.failure(opts, "no-nvcc")
	})
	t.Run("no hipcc", func(t *testing.T) {
		p.write("src/k.hip", "")
		p.write("tiny.yml", "name: tiny\nsources: [src/k.hip]\n")
		opts := p.options()
		opts.Host = without(opts.Env, "hipcc")
		if e := p.failure(opts, "no-hipcc"); runtime.GOOS == "linux" && !strings.Contains(e.Diagnoses[0].Fix, "hipcc") {
			t.Errorf("fix %q", e.Diagnoses[0].Fix)
		}
		p.write("bin/hipcc", "#!/bin/sh\nexit 1\n")
		opts.Env = append(opts.Env, "ROCM_HOME="+p.dir, "PYTORCH_ROCM_ARCH=gfx90a 8.0")
		opts.Host = nil
		if e := p.failure(opts, "arch-unsupported"); !strings.Contains(e.Diagnoses[0].Detail, `"8.0"`) {
			t.Errorf("detail %q", e.Diagnoses[0].Detail)
		}
	})
	if n := p.calls(); n != 0 {
		t.Errorf("%d files were compiled", n)
	}
	t.Run("canceled", func(t *testing.T) {
		p.write("tiny.yml", "name: tiny\nsources: [src/tiny.c]\ninclude: [inc]\n")
		p.compiler("sleep 100")
		boom := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		opts := p.options()
		opts.OnEvent = func(jit.Event) { cancel(boom) }
		if _, err := jit.Load(ctx, p.spec(), opts); !errors.Is(err, boom) {
			t.Errorf("error %v", err)
		}
	})
}

// without is this machine without a program.
func without(env []string, program string) *machine.Host {
	h := machine.Local(env)
	stat := h.Stat
	h.Stat = func(path string) (os.FileInfo, error) {
		if strings.HasSuffix(path, "/"+program) {
			return nil, os.ErrNotExist
		}
		return stat(path)
	}
	return h
}

func TestGC(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	opts := p.options()
	var paths []string
	for i := range 3 {
		p.write("inc/value.h", fmt.Sprintf("#define VALUE %d\n", i))
		paths = append(paths, p.load(opts, jit.SourceBuilt, false, fmt.Sprint(i)).Path)
	}
	store := &jit.Store{Dir: p.store}
	now := time.Now()
	for i, path := range paths {
		used := now.Add(time.Duration(i-10) * 24 * time.Hour)
		if err := os.Chtimes(filepath.Dir(path)+".used", used, used); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.Entries("tiny")
	if err != nil || len(list) != 3 || list[0].Path() != paths[2] {
		t.Fatalf("entries %v, %v", list, err)
	}
	limit := list[0].Bytes + list[1].Bytes
	for _, tt := range []struct {
		name string
		opts jit.GCOptions
		want int // removed
	}{
		{"all fits", jit.GCOptions{}, 0},
		{"recently used stays", jit.GCOptions{MaxBytes: -1, Keep: 30 * 24 * time.Hour}, 0},
		{"dry run", jit.GCOptions{MaxBytes: limit, DryRun: true}, 1},
		{"the oldest goes", jit.GCOptions{MaxBytes: limit}, 1},
		{"everything", jit.GCOptions{MaxBytes: -1, Keep: -1}, 2},
	} {
		r, err := store.GC(t.Context(), tt.opts)
		if err != nil || len(r.Removed) != tt.want {
			t.Fatalf("%s: removed %d, want %d; %v", tt.name, len(r.Removed), tt.want, err)
		}
		if tt.name == "the oldest goes" {
			if _, err := os.Stat(paths[0]); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", paths[0], err)
			}
		}
	}
	// A module that is gone is compiled again, although it is remembered.
	p.load(opts, jit.SourceBuilt, false, "2")
}

// TestGCTogether: several processes that clear one store remove everything once, without an error.
func TestGCTogether(t *testing.T) {
	t.Parallel()
	store := &jit.Store{Dir: filepath.Join(t.TempDir(), "store")}
	const n = 40
	for i := range n {
		dir := filepath.Join(store.Dir, "v1", fmt.Sprintf("m%d", i%3), fmt.Sprintf("%032x-%016x", i, i))
		name, text := "manifest.json", `{"format": "kiln-jit/1", "name": "m", "module": "m.so"}`
		if i%4 == 0 {
			dir, name = filepath.Join(filepath.Dir(dir), fmt.Sprintf("wheel.%032x", i), "pkg"), "m.so"
			writeFile(t, filepath.Join(filepath.Dir(dir), "complete.json"), "{}")
		}
		writeFile(t, filepath.Join(dir, name), text)
		// What processes leave that were killed in the middle.
		writeFile(t, filepath.Join(store.Dir, "v1", "tmp", fmt.Sprintf("m-%d", i), "obj", "x.o"), "")
		writeFile(t, filepath.Join(store.Dir, "v1", "tmp", fmt.Sprintf("m-%d.lock", i)), "")
	}
	var cmds []*exec.Cmd
	outs := make([]bytes.Buffer, 4)
	for i := range outs {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperEnv+"=|"+store.Dir)
		cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	removed, leftovers := map[string]int{}, 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("process %d: %v\n%s", i, err, &outs[i])
		}
		var r jit.GCReport
		if err := json.Unmarshal(outs[i].Bytes(), &r); err != nil {
			t.Fatalf("process %d: %v\n%s", i, err, &outs[i])
		}
		for _, e := range r.Removed {
			removed[e.Dir]++
		}
		leftovers += r.Leftovers
	}
	if len(removed) != n || slices.Max(slices.Collect(maps.Values(removed))) != 1 || leftovers != n {
		t.Errorf("%d entries and %d leftovers were removed, want %d of each, once: %v", len(removed), leftovers, n, removed)
	}
	for _, pattern := range []string{"v1/m*/*-*", "v1/m*/wheel*", "v1/tmp/*"} {
		if left, err := filepath.Glob(filepath.Join(store.Dir, filepath.FromSlash(pattern))); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}
