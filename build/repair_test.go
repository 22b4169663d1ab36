package build_test

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/wheel"
)

// TestRepair: a wheel that needs a library of this machine has it inside afterwards, and the oldest
// tag that is true, for musl too (a stand-in for its libc, without a test); one that needs nothing gets the tag alone; what was not asked for stays as it
// was built. A source distribution may come alone, and a universal wheel is one for Python 3.
func TestRepair(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
x-shared: &shared
  versions: ["1.0"]
  source: {path: src}
  extra_deps: [build, setuptools]
  local_version: ""
  env: {PACKAGE: "{package}"}
  before_build: "sh -c 'cc -shared -fPIC -Wl,-soname,libforeign.so.1 -o libforeign.so.1 foreign.c && ln -sf libforeign.so.1 libforeign.so && cc -shared -fPIC -nostdlib -Wl,-soname,libc.musl-$(uname -m).so.1 -o libmusl.so musl.c && sed s/NAME/_{package}/ native.in > native.c'"
packages:
  foreign: {<<: *shared, repair: auto, test_import: _foreign, test: {expressions: ["_foreign.answer()"]}, matrix: [{python: "PYTHON"}]}
  musl: {<<: *shared, repair: auto, test: none, matrix: [{python: "PYTHON", env: {LDFLAGS: "-Wl,--no-as-needed"}}]}
  plain: {<<: *shared, repair: auto, test_import: _plain, matrix: [{python: "PYTHON"}]}
  kept: {<<: *shared, repair: auto, test_import: _kept, matrix: [{python: "PYTHON", repair: "off"}]}
  alone: {<<: *shared, matrix: [{kind: sdist, wheel_tag: none, python: "PYTHON"}]}
  universal: {<<: *shared, matrix: [{kind: sdist, python: "PYTHON"}]}
`,
		"src/setup.py": `
import os
from setuptools import Extension, setup
name = os.environ["PACKAGE"]
foreign, musl = name in ("foreign", "musl"), name == "musl"
pure = name in ("alone", "universal")
setup(
    name=name, version="1.0", py_modules=["only"] if pure else [],
    options={"bdist_wheel": {"python_tag": "py2.py3"}} if pure else {},
    ext_modules=[] if pure else [Extension("_" + name, ["native.c"], define_macros=[("FOREIGN", "1")] if foreign else [],
        libraries=["musl", "foreign"] if musl else ["foreign"] if foreign else [], library_dirs=[os.getcwd()], extra_link_args=["-Wl,-rpath," + os.getcwd()] * foreign + ["-nostdlib"] * musl)],
)
`,
		"src/only.py": "", "src/foreign.c": "int foreign_answer(void) { return 42; }\n", "src/musl.c": "int musl_answer;\n",
		"src/native.in": `
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifdef FOREIGN
int foreign_answer(void);
#else
#define foreign_answer() 1
#endif
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(foreign_answer()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", NULL, -1, methods};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
`,
	})
	result := p.build()
	version, _ := pythonVersion(t)
	tag := "cp" + strings.ReplaceAll(version, ".", "")
	tag += "-" + tag
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	got, want := map[string]string{}, map[string]string{
		"foreign": "foreign-1.0-" + tag + "-manylinux", "plain": "plain-1.0-" + tag + "-manylinux", "musl": "musl-1.0-" + tag + "-musllinux_1_2_" + arch + ".whl", "kept": "kept-1.0-" + tag + "-linux_x86_64.whl",
		"alone": "alone-1.0.tar.gz", "universal": "universal-1.0.tar.gz universal-1.0-py2.py3-none-any.whl",
	}
	for _, r := range result.Rows {
		if r.Record == nil || r.Record.Test.Result != "passed" && r.Row.Package != "musl" {
			t.Errorf("%s: %v\n%s", r.Row.ID, r.Err, p.log(r))
			continue
		}
		var names []string
		for _, f := range r.Record.Files {
			names = append(names, f.Name)
		}
		name := strings.Join(names, " ")
		if cut, _, ok := strings.Cut(name, "manylinux_"); ok {
			name = cut + "manylinux"
		}
		got[r.Row.Package] = name
		if r.Row.Package != "foreign" && r.Row.Package != "musl" {
			continue
		}
		w, err := wheel.Open(filepath.Join(p.dir, "dist", names[0]))
		if err != nil {
			t.Fatal(err)
		}
		inside := false
		for m := range w.Files() {
			inside = inside || strings.HasPrefix(m.Name, r.Row.Package+".libs/libforeign")
		}
		w.Close()
		if v := r.Record.Test.Values["_foreign.answer()"]; !inside || v != "42" && r.Row.Package == "foreign" {
			t.Errorf("libforeign is in the wheel: %v; the answer is %q", inside, v)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if again := statuses(p.build()); again["foreign"] != "done passed" && !strings.HasPrefix(again["foreign"], "reused") {
		t.Errorf("a second run: %v", again)
	}
}
