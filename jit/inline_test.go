package jit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/jit"
)

// TestInline: sources that are text. The file that a compiler names is there to be read, cleaning
// up removes it, and the module is the same afterwards.
func TestInline(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("tiny.yml", "name: tiny\ninclude: [inc]\ninline:\n  tiny.c: |\n"+strings.ReplaceAll(tinyC, "\n", "\n    ")+"\n")
	opts := p.options()
	first := p.load(opts, jit.SourceBuilt, false, "42")
	p.load(opts, jit.SourceCache, true, "42")
	files, err := filepath.Glob(filepath.Join(p.store, "v1", "inline", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("inline sources: %q, %v", files, err)
	}
	old := time.Now().Add(-31 * 24 * time.Hour)
	if err := os.Chtimes(files[0], old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := (&jit.Store{Dir: p.store}).GC(t.Context(), jit.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(files[0]); err == nil {
		t.Error("a source that was not used for a month is still there")
	}
	if again := p.load(opts, jit.SourceCache, false, "42"); again.Key != first.Key {
		t.Errorf("key %s, before the cleanup %s", again.Key, first.Key)
	}
	p.write("inc/value.h", "#define VALUE 43\n")
	p.load(opts, jit.SourceBuilt, false, "43")
}

// TestNames: a module may be called as a folder of the store, and a source as a pattern.
func TestNames(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	for _, name := range []string{"tmp", "memory", "failed", "inline"} {
		p.write("tiny.yml", "name: "+name+"\nsources: ['src/[a]*.c']\nkind: library\nprebuilt: false\n")
		p.write("src/[a]*.c", "int answer(void) { return 42; }\n")
		opts := p.options()
		r, err := jit.Load(t.Context(), p.spec(), opts)
		if err != nil {
			t.Fatalf("%v\n%s", err, details(err))
		}
		if _, err := (&jit.Store{Dir: p.store}).GC(t.Context(), jit.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(r.Path); err != nil {
			t.Errorf("%s: %v after a cleanup", name, err)
		}
		if r, err := jit.Load(t.Context(), p.spec(), opts); err != nil || !r.Remembered {
			t.Errorf("%s again: %+v, %v", name, r, err)
		}
	}
}

// TestKinds: a library without an init function, a program, and .c files as C++.
func TestKinds(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("src/tiny.c", "#include <cstdio>\nint first();\nint main() { std::printf(\"%d\\n\", first()); return 0; }\n")
	p.write("src/b.cpp", "int first() { return 7; }\n")
	load := func(kind string) *jit.Result {
		t.Helper()
		p.write("tiny.yml", "name: tiny\nkind: "+kind+"\nc_as_cxx: true\nsources: [src/tiny.c, src/b.cpp]\nprebuilt: false\n")
		r, err := jit.Load(t.Context(), p.spec(), p.options())
		if err != nil {
			t.Fatalf("%v\n%s", err, details(err))
		}
		return r
	}
	if r := load("library"); filepath.Base(r.Path) != "tiny.so" {
		t.Errorf("library: %s", r.Path)
	}
	r := load("program")
	if out, err := exec.CommandContext(t.Context(), r.Path).Output(); err != nil || string(out) != "7\n" {
		t.Errorf("program: %q, %v", out, err)
	}
	// A module needs an init function, which is found missing before the module is kept.
	p.write("tiny.yml", "name: tiny\nc_as_cxx: true\nsources: [src/tiny.c, src/b.cpp]\nprebuilt: false\n")
	if r, err := jit.Load(t.Context(), p.spec(), p.options()); err == nil {
		t.Errorf("a module without an init function: %+v", r)
	}
}

// TestOrder: objects are linked in the order of the sources.
func TestOrder(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.write("tiny.yml", "name: tiny\nsources: [src/z.c, src/*.c, src/a.c]\nprebuilt: false\n")
	p.write("src/z.c", "")
	p.write("src/a.c", "")
	path, err := jit.ExportNinja(t.Context(), p.spec(), p.options(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, a, tiny := strings.Index(string(text), "/src/z.c"), strings.Index(string(text), "/src/a.c"), strings.Index(string(text), "/src/tiny.c")
	if z < 0 || z > a || a > tiny {
		t.Errorf("z at %d, a at %d, tiny at %d in\n%s", z, a, tiny, text)
	}
}
