package depfile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/depfile"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"no files", "x.o:", nil},
		{"continued", "a.o: a.cpp b.h \\\n c.h\n", []string{"a.cpp", "b.h", "c.h"}},
		{"continued without a blank", "a.o: a.cpp\\\n b.h\n", []string{"a.cpp", "b.h"}},
		{"nvcc", "kiln : a.cu \\\n    b.h \\\n    a.cu\n", []string{"a.cu", "b.h"}},
		{"lines of Windows", "a.o: a.cpp \\\r\n b.h\r\n", []string{"a.cpp", "b.h"}},
		{"paths of Windows", "a.obj: C:\\src\\a.cpp D:\\a\\\\b.h\n", []string{`C:\src\a.cpp`, `D:\a\\b.h`}},
		{"blank", "x.o: a\\ b.c a\\\tb.h\n", []string{"a b.c", "a\tb.h"}},
		{"backslash before a blank", `x.o: a\\\ b.c d\\ e.c`, []string{`a\ b.c`, `d\`, "e.c"}},
		{"dollar", "x.o: $$d.h a$b $$$$\n", []string{"$d.h", "a$b", "$$"}},
		{"number sign", `x.o: e\#f.h g\\#h.h`, []string{"e#f.h", `g\#h.h`}},
		{"colon", `/w/a\:b.o: x\:y.h`, []string{"x:y.h"}},
		{"target that ends in a backslash", `a\: x.h`, []string{"x.h"}},
		{"two targets", "a.o b.o: x.h", []string{"x.h"}},
		{"empty rules", "a.o: a.cpp b.h\n\nb.h:\nc.h:\n", []string{"a.cpp", "b.h"}},
		{"two rules", "a.o: a.cpp b.h\nb.o: b.cpp b.h\n", []string{"a.cpp", "b.h", "b.cpp"}},
		{"absolute", "/kiln/work/x.o: /kiln/a.cu ../inc/torch.h\n", []string{"/kiln/a.cu", "../inc/torch.h"}},
		{"backslash at the end", `x.o: a.c \`, []string{"a.c"}},
		{"no list", "hello world", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, depfile.Parse([]byte(tt.text))); diff != "" {
				t.Errorf("%q (-want +got):\n%s", tt.text, diff)
			}
		})
	}
}

// TestCompiler: what a real compiler writes is read as the names that it was given.
func TestCompiler(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		kilntest.Lacking(t, "cc", "no gcc")
	}
	dir := t.TempDir()
	want := []string{"x.c", "a b.h", "c$d.h", "e#f.h", `g\h.h`, `i\ j.h`, `k\\ l.h`, `m\\n.h`, "o:p.h"}
	var source strings.Builder
	for _, name := range want[1:] {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		source.WriteString("#include \"" + name + "\"\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "x.c"), []byte(source.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{"x.o", "x y$z.o"} {
		// -nostdinc: stdc-predef.h is not ours.
		cmd := exec.CommandContext(t.Context(), gcc, "-nostdinc", "-MD", "-MP", "-MF", "x.d", "-MT", depfile.Escape(object), "-c", "x.c", "-o", object)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, "x.d"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, depfile.Parse(text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

// TestEscape: names are read as they were written.
func TestEscape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a\\ \t#$é./-]{0,6}[a#$.]`), 0, 5, rapid.ID).Draw(t, "names")
		list := "target.o:"
		for _, name := range names {
			list += " " + depfile.Escape(name)
		}
		if len(names) == 0 {
			names = nil
		}
		if diff := cmp.Diff(names, depfile.Parse([]byte(list+"\n"))); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", list, diff)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("kiln: a.c b.h \\\n c.h\n"))
	f.Add([]byte("x.o: a\\ b.c $$d.h\n\nb.h:\n"))
	f.Add([]byte("a.o: a\\ b $$ \\"))
	f.Add([]byte("a\\: b\\\\\\ c\\\r\n\\#"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		files := depfile.Parse(text)
		if slices.Contains(files, "") {
			t.Error("a file without a name")
		}
		if len(slices.Compact(slices.Sorted(slices.Values(files)))) != len(files) {
			t.Errorf("a file is listed twice: %q", files)
		}
		if n := len(strings.Join(files, "")); n > len(text) {
			t.Errorf("%d bytes of names in %d", n, len(text))
		}
	})
}
