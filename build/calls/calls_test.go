package calls

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func FuzzParseRecords(f *testing.F) {
	f.Add([]byte(`{"row":"a","source":"x.cu","result":"hit"}` + "\n" + `{"row":"a","sour`))
	f.Add([]byte("\n\n[]"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = parseRecords(text)
	})
}

// A launcher that was killed while it wrote leaves half a line; the others count.
func TestRecordsTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	for _, name := range []string{"a.cu", "b.cu"} {
		r := launcher.Entry{Row: "row", Source: name, Result: launcher.Miss}
		if err := r.Append(path); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"row":"row","sou`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	records, err := ReadRecords(path)
	if err != nil || len(records) != 2 || records[1].Source != "b.cu" {
		t.Errorf("got %v, %v", records, err)
	}
	if records, err := ReadRecords(path + ".none"); err != nil || records != nil {
		t.Errorf("no file: %v, %v", records, err)
	}
}

// GPU sources that read Python.h are named, with the include that brings it; C++ sources need it.
func TestPython(t *testing.T) {
	in := &Inputs{
		Files: []string{"/kiln/work/share/inc/site/torch/include/torch/extension.h", "/kiln/work/share/inc/python/Python.h"},
		Calls: []Unit{
			{Source: "/kiln/work/source/csrc/a.cu", Tool: "nvcc", Read: []int{0, 1}},
			{Source: "/kiln/work/source/csrc/b.cu", Tool: "nvcc"},
			{Source: "/kiln/work/source/csrc/c.cpp", Tool: "g++", Read: []int{0, 1}},
		},
	}
	const want = "compiled again for every Python, as they read Python.h: csrc/a.cu; they get it through torch/extension.h: " +
		"with #include <torch/types.h> in its place, and bindings in a .cpp file, they are compiled once"
	if got := in.Python(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := (&Inputs{Calls: in.Calls[1:]}).Python(); got != "" {
		t.Error(got)
	}
}

func TestExplain(t *testing.T) {
	in := func(digests ...string) *Inputs {
		return &Inputs{Files: []string{"/kiln/work/source/k.cu", "/usr/include/a.h", "/kiln/work/share/inc/torch/torch.h"}[:len(digests)], Digests: digests}
	}
	unit := func(compiler, args string, read ...int) *Unit {
		return &Unit{Source: "/kiln/work/source/k.cu", Tool: "nvcc", Compiler: compiler, Args: strings.Fields(args), Result: launcher.Miss, Read: read}
	}
	for _, test := range []struct {
		name string
		inA  *Inputs
		a    *Unit
		inB  *Inputs
		b    *Unit
		want Difference
	}{
		{"nothing", in("1", "2"), unit("id", "-c", 0, 1), in("1", "2"), unit("id", "-c", 0, 1), Difference{}},
		{"compiler", in("1"), unit("id", "-c", 0), in("1"), unit("di", "-O3", 0), Difference{What: "compiler", Name: "nvcc", A: "id", B: "di"}},
		{"argument", in("1"), unit("id", "-c -DA=1", 0), in("1"), unit("id", "-c -DA=2", 0), Difference{What: "argument", A: "-DA=1", B: "-DA=2"}},
		{"one more argument", in("1"), unit("id", "-c", 0), in("1"), unit("id", "-c -g", 0), Difference{What: "argument", A: "none", B: "-g"}},
		{
			"header", in("1", "2", "3"), unit("id", "-c", 0, 1, 2), in("1", "2", "4"), unit("id", "-c", 0, 1, 2),
			Difference{What: "file", Name: "/kiln/work/share/inc/torch/torch.h", A: "3", B: "4"},
		},
		{
			"two headers, one of them not read", in("1", "2", "3"), unit("id", "-c", 0, 1, 2), in("1", "5"), unit("id", "-c", 0, 1),
			Difference{What: "file", Name: "/usr/include/a.h", A: "2", B: "5", More: 1},
		},
	} {
		if diff := cmp.Diff(test.want, Explain(test.inA, test.inB, test.a, test.b)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestFind(t *testing.T) {
	in := &Inputs{Calls: []Unit{{Source: "/kiln/work/source/a/x.cu"}, {Source: "/kiln/work/source/b/x.cu"}, {Source: "/kiln/work/source/c.cpp"}}}
	for file, want := range map[string]string{"a/x.cu": "/kiln/work/source/a/x.cu", "c.cpp": "/kiln/work/source/c.cpp", "x.cu": "", "y.cu": ""} {
		u, names := in.Find(file)
		if got := ""; u != nil && u.Source != want || u == nil && want != got {
			t.Errorf("%s: got %v", file, u)
		}
		if file == "x.cu" && len(names) != 2 || file == "y.cu" && len(names) != 3 {
			t.Errorf("%s: names %q", file, names)
		}
	}
}
