package build_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/matrix"
)

// TestABI3: a row for a Python and all later ones has its tag from kiln, and a wheel that promises
// it without keeping it is refused.
func TestABI3(t *testing.T) {
	files := map[string]string{"packages.yml": "packages:\n"}
	for name, extension := range map[string]string{"good": ", py_limited_api=True", "more": ", py_limited_api=True"} {
		files["packages.yml"] += `
  ` + name + `:
    versions: ["1.0"]
    source: {path: ` + name + `}
    extra_deps: [setuptools]
    matrix: [{python: {abi3: "PYTHON"}}]
    build: {frontend: ` + map[string]string{"good": "pip", "more": "uv"}[name] + `}
`
		files[name+"/setup.py"] = `
from setuptools import Extension, setup
setup(name="` + name + `", version="1.0", ext_modules=[Extension("` + name + `", ["native.c"]` + extension + `)])
`
		files[name+"/native.c"] = "#ifndef Py_LIMITED_API\n#error Py_LIMITED_API is not defined\n#endif\n" + native(name)
	}
	files["more/native.c"] = "#undef Py_LIMITED_API\n" + native("more") + "PyObject *more(PyObject *o) { return (PyObject *)_PyType_Lookup(Py_TYPE(o), o); }\n"
	p := newProject(t, files)
	result := p.build()
	want := map[string]string{"good": "done passed", "more": "failed audit audit-abi3"}
	if diff := cmp.Diff(want, statuses(result)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for _, r := range result.Rows {
		if r.Row.Package == "more" && !strings.Contains(r.Reason, "_PyType_Lookup") {
			t.Errorf("the name is not in: %s", r.Reason)
		}
		if r.Row.Package == "good" && r.Status == engine.StatusDone && !strings.HasSuffix(r.Record.Files[0].Name, "-abi3-linux_x86_64.whl") {
			t.Errorf("the file is %s", r.Record.Files[0].Name)
		}
	}
}

// TestStableVariables: the macros of stable ABIs are added to what packages.yml sets.
func TestStableVariables(t *testing.T) {
	row := matrix.Row{ID: "demo", Package: "demo", Version: "1.0", Kind: "wheel", Platform: "linux_x86_64", CUDA: "12.8.1", Torch: "2.10.0", TorchStable: "2.10", ABI3: "3.10"}
	settings := matrix.Settings{Env: map[string]string{"NVCC_APPEND_FLAGS": "-lineinfo"}, Frontend: "build"}
	recipe, err := build.NewRecipe(row, settings, record.Source{}, build.RecipeOptions{Sandbox: "host"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"TORCH_TARGET_VERSION=0x020a000000000000",
		"CPPFLAGS=-DTORCH_TARGET_VERSION=0x020a000000000000 -DPy_LIMITED_API=0x030a0000",
		"NVCC_APPEND_FLAGS=-lineinfo -DTORCH_TARGET_VERSION=0x020a000000000000 -DPy_LIMITED_API=0x030a0000",
	} {
		if !slices.Contains(recipe.Env, want) {
			t.Errorf("%s is not in %q", want, recipe.Env)
		}
	}
}
