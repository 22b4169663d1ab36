package jit_test

import (
	"archive/zip"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/jit"
)

// TestPrebuilt: a module that was compiled elsewhere is taken if it loads here, and otherwise left
// alone and reported.
func TestPrebuilt(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	built := p.load(p.options(), jit.SourceBuilt, false, "42")
	module, err := os.ReadFile(built.Path)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(built.Path)
	suffix := strings.TrimPrefix(name, "tiny")

	p.write("tiny.yml", "name: tiny\nsources: [src/*.c]\ninclude: [inc]\nprebuilt: {folders: [lib], wheels: [wheels]}\n")
	p.write("inc/value.h", "#define VALUE 1\n")
	p.write("lib/"+name, string(module))
	calls := p.calls()
	r := p.load(p.options(), jit.SourcePrebuilt, false, "42")
	if r.Path != p.path("lib/"+name) || p.calls() != calls {
		t.Errorf("path %s, %d files compiled", r.Path, p.calls()-calls)
	}
	p.load(p.options(), jit.SourcePrebuilt, true, "42")

	// Not wanted.
	opts := p.options()
	opts.NoPrebuilt = true
	p.load(opts, jit.SourceBuilt, false, "1")

	for _, tt := range []struct{ name, file, text, id string }{
		{"cut off", name, string(module[:len(module)/2]), "damaged-module"},
		{"for another Python", "tiny.cpython-38-x86_64-linux-gnu.so", string(module), "wrong-machine"},
		{"no module of that name", name, strings.ReplaceAll(string(module), "PyInit_tiny", "PyInit_tin_"), "not-a-module"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if runtime.GOOS != "linux" {
				t.Skip("reads ELF files")
			}
			p.t = t
			if err := os.RemoveAll(p.path("lib")); err != nil {
				t.Fatal(err)
			}
			p.write("lib/"+tt.file, tt.text)
			r := p.load(p.options(), jit.SourceCache, false, "1")
			if len(r.Rejected) != 1 || r.Rejected[0].Path != p.path("lib/"+tt.file) || r.Rejected[0].Diagnoses[0].ID != tt.id {
				t.Errorf("rejected %+v, want %s", r.Rejected, tt.id)
			}
			if got, err := os.ReadFile(p.path("lib/" + tt.file)); err != nil || string(got) != tt.text {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
	p.t = t

	// In a wheel; one for another Python beside it is passed over.
	if err := os.RemoveAll(p.path("lib")); err != nil {
		t.Fatal(err)
	}
	tag := pythonTag(t, p.python)
	p.write("wheels/tiny-2.0-cp38-cp38-linux_x86_64.whl", "no archive")
	p.wheel("wheels/tiny-1.0-"+tag+".whl", "pkg/tiny"+suffix, module)
	r = p.load(p.options(), jit.SourcePrebuilt, false, "42")
	if !strings.HasPrefix(r.Path, p.store) || len(r.Rejected) > 0 {
		t.Errorf("path %s, rejected %v", r.Path, r.Rejected)
	}
	p.load(p.options(), jit.SourcePrebuilt, true, "42")

	// What was unpacked goes when it was not used for longest, and is unpacked again when it is.
	folder := filepath.Dir(filepath.Dir(r.Path))
	store := &jit.Store{Dir: p.store}
	if report, err := store.GC(t.Context(), jit.GCOptions{MaxBytes: -1}); err != nil || len(report.Removed) > 0 {
		t.Errorf("what was just used is removed: %v, %v", report.Removed, err)
	}
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(folder+".used", old, old); err != nil {
		t.Fatal(err)
	}
	p.load(p.options(), jit.SourcePrebuilt, true, "42")
	if info, err := os.Stat(folder + ".used"); err != nil || info.ModTime().Equal(old) {
		t.Errorf("the use was not noted: %v", err)
	}
	if err := os.Chtimes(folder+".used", old, old); err != nil {
		t.Fatal(err)
	}
	report, err := store.GC(t.Context(), jit.GCOptions{MaxBytes: -1})
	if err != nil || len(report.Removed) != 1 || report.Removed[0].Dir != folder || report.RemovedBytes < int64(len(module)) {
		t.Errorf("removed %+v, %v; want %s", report.Removed, err, folder)
	}
	for _, path := range []string{folder, folder + ".used"} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	p.load(p.options(), jit.SourcePrebuilt, false, "42")
}

// pythonTag is the tag of wheels for an interpreter.
func pythonTag(t *testing.T, python string) string {
	t.Helper()
	const script = `import sys, sysconfig; v = "cp%d%d" % sys.version_info[:2]; print("%s-%s-%s" % (v, v, sysconfig.get_platform().replace("-", "_").replace(".", "_")))`
	out, err := exec.CommandContext(t.Context(), python, "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (p *project) wheel(name, member string, content []byte) {
	p.t.Helper()
	p.write(name, "")
	f, err := os.Create(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	for n, text := range map[string]string{
		member: string(content), "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
		"tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\n", "tiny-1.0.dist-info/RECORD": "",
	} {
		out, err := w.Create(n)
		if err != nil {
			p.t.Fatal(err)
		}
		if _, err := out.Write([]byte(text)); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		p.t.Fatal(err)
	}
}
