package jit_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/jit"
)

func TestParseSpec(t *testing.T) {
	got, list := jit.ParseSpec("dir/ext.yml", "", []byte(`
name: ext
root: src
sources: ["**/*.cpp", k.cu]
include: inc
flags: {cxx: [-O2], nvcc: [-lineinfo], hip: [], link: -s}
libraries: [cublas]
library_dirs: [/opt/lib]
torch: true
cuda: true
archs: "8.0 9.0+PTX"
prebuilt: {modules: [pkg.ext], folders: [lib], wheels: [wheels]}
`))
	if len(list) > 0 {
		t.Fatal(list)
	}
	root, err := filepath.Abs("dir/src")
	if err != nil {
		t.Fatal(err)
	}
	want := &jit.Spec{
		Name: "ext", Root: root, Sources: []string{"**/*.cpp", "k.cu"}, Include: []string{"inc"},
		Flags:     jit.Flags{CXX: []string{"-O2"}, NVCC: []string{"-lineinfo"}, Link: []string{"-s"}},
		Libraries: []string{"cublas"}, LibraryDirs: []string{"/opt/lib"}, Torch: true, CUDA: true, Archs: "8.0 9.0+PTX",
		Prebuilt: jit.Prebuilt{Modules: []string{"pkg.ext"}, Folders: []string{"lib"}, Wheels: []string{"wheels"}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(jit.Spec{})); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if s, list := jit.ParseSpec("", "/d", []byte(`{"name": "x", "sources": ["a.cpp"], "prebuilt": false}`)); len(list) > 0 || s.Root != "/d" || !s.Prebuilt.Off {
		t.Errorf("JSON: %+v, %v", s, list)
	}
}

// TestBrokenSpec compares what is said about every mistake with testdata/broken.txt.
func TestBrokenSpec(t *testing.T) {
	var out strings.Builder
	for _, text := range []string{
		"", "- a", "name: [x", "name: x\nsource: [a.cpp]", "name: x\nname: y\nsources: [a.cpp]", "name: no-dash\nsources: [a.py]",
		"name: x\nsources: []", "name: x\nsources:\n", "name: x\nsources: [a.cpp]\ntorch: maybe", "name: x\nsources: [a.cpp]\narchs: 9.x",
		"name: x\nsources: [a.cpp]\nflags: {gcc: -O2}", "name: x\nsources: [{a: b}]", "name: x\nsources: [a.cpp]\n---\nname: y", "name: \xff",
		"name: x\nsources: [a.cpp]\nprebuilt: {modules: [a..b]}", "name: x: y",
	} {
		spec, list := jit.ParseSpec("ext.yml", "", []byte(text))
		if spec != nil || !list.HasErrors() {
			t.Errorf("%q is taken", text)
		}
		p := diag.Printer{Sources: map[string][]byte{"ext.yml": []byte(text)}}
		if err := p.Print(&out, list); err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n")
	}
	kilntest.Golden(t, "testdata/broken.txt", []byte(out.String()))
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte("name: x\nsources: [a.cpp]\nflags: {cxx: -O2}\nprebuilt: {folders: [a]}\n"))
	f.Add([]byte("a: &a [*a]\nname: *a"))
	f.Add([]byte(`{"name": "x", "sources": ["a.cu"], "archs": "9.0"}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, list := jit.ParseSpec("", "/", text)
		if (spec == nil) != list.HasErrors() {
			t.Fatalf("spec %v with %v", spec, list)
		}
		if spec != nil && (spec.Name == "" || len(spec.Sources) == 0) {
			t.Fatalf("spec %+v", spec)
		}
	})
}

func FuzzStatLine(f *testing.F) {
	f.Add("1 2 3 4 - /a b")
	f.Add("0 0 0 0 a /gone")
	f.Add("z -1 10 2 abcdef /x")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, line string) {
		again, ok := jit.StatLine(line)
		if !ok {
			return
		}
		// What is read is written so that it is read as the same.
		if third, ok := jit.StatLine(strings.TrimSuffix(again, "\n")); !ok || third != again {
			t.Fatalf("%q becomes %q, then %q", line, again, third)
		}
	})
}

func TestFindPybind(t *testing.T) {
	const id = "__pybind11_internals_v4_gcc_libstdcpp_cxxabi1018__"
	for _, size := range []int{0, 1<<20 - 20, 1 << 20, 3<<20 + 7} {
		data := append(bytes.Repeat([]byte{0}, size), id...)
		if diff := cmp.Diff([]string{"_gcc", "_libstdcpp", "_cxxabi1018"}, jit.FindPybind(bytes.NewReader(data))); diff != "" {
			t.Errorf("after %d bytes (-want +got):\n%s", size, diff)
		}
	}
	if got := jit.FindPybind(strings.NewReader("__pybind11_internals_v5_strange__")); got != nil {
		t.Errorf("got %q", got)
	}
}

func TestInputs(t *testing.T) {
	a := jit.Inputs{{Name: "ab", Value: "c"}}
	if a.Digest() == (jit.Inputs{{Name: "a", Value: "bc"}}).Digest() {
		t.Error("parts run into each other")
	}
	old := jit.Inputs{{Name: "x", Value: "1"}, {Name: "y", Value: "2"}, {Name: "z", Value: "3"}}
	now := jit.Inputs{{Name: "x", Value: "1"}, {Name: "y", Value: "5"}, {Name: "new", Value: "4"}}
	want := []jit.Change{{Name: "y", Old: "2", New: "5"}, {Name: "new", New: "4"}, {Name: "z", Old: "3"}}
	if diff := cmp.Diff(want, old.Compare(now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := json.Marshal(old); err != nil {
		t.Error(err)
	}
}
