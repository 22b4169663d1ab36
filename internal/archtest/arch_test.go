package archtest_test

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/kiln-build/kiln"

// TestMain reads the folders of the module. What the go command reads on behalf of
// a test is not seen by the test cache, and a result from before a change is
// worthless here; a folder that the test itself has read is part of the cache key.
func TestMain(m *testing.M) {
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if d.IsDir() && name != "../.." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		panic(err)
	}
	m.Run()
}

// goCommand runs the go command in the root of the module and returns its output.
func goCommand(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

// deps lists what a package is built from, itself included, without the standard library.
func deps(t *testing.T, env []string, pkg string) []string {
	t.Helper()
	return strings.Fields(goCommand(t, env, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg))
}

// under reports whether pkg is root or below it.
func under(pkg, root string) bool {
	return pkg == root || strings.HasPrefix(pkg, root+"/")
}

// platforms are those that kiln is released for.
var platforms = []struct{ os, arch string }{
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"windows", "amd64"},
	{"darwin", "arm64"},
}

// TestKilnWithoutPurego: a binary with purego in it needs glibc's loader even
// without cgo, so nothing below cmd/kiln may use it, on any platform.
func TestKilnWithoutPurego(t *testing.T) {
	for _, p := range platforms {
		t.Run(p.os+"-"+p.arch, func(t *testing.T) {
			t.Parallel()
			all := deps(t, []string{"CGO_ENABLED=0", "GOOS=" + p.os, "GOARCH=" + p.arch}, "./cmd/kiln")
			if len(all) == 0 {
				t.Fatal("go list names no packages")
			}
			for _, pkg := range all {
				if under(pkg, "github.com/ebitengine/purego") || under(pkg, module+"/model/quant/cuda") {
					t.Errorf("cmd/kiln depends on %s: it would not be static; that code belongs to cmd/kiln-gpu", pkg)
				}
			}
		})
	}
}

// TestStdOnly: these packages are everyone's vocabulary and usable alone, so they
// are built from the standard library and their own subpackages.
func TestStdOnly(t *testing.T) {
	for _, pkg := range []string{"wheel", "model/tensor"} {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			for _, dep := range deps(t, nil, "./"+pkg+"/...") {
				if !under(dep, module+"/"+pkg) {
					t.Errorf("%s depends on %s: only the standard library is allowed", pkg, dep)
				}
			}
		})
	}
}

// TestKilnIsStatic: the binary runs on any Linux, in a container without a libc too.
// The check reads the file, so it does not need a Linux machine.
func TestKilnIsStatic(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			binary := filepath.Join(t.TempDir(), "kiln")
			goCommand(t, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch},
				"build", "-trimpath", "-buildvcs=false", "-o", binary, "./cmd/kiln")
			f, err := elf.Open(binary)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("kiln for linux/%s has a %s segment: it needs a dynamic loader", arch, p.Type)
				}
			}
		})
	}
}

// TestArchitecturePage: docs/architecture.md has a line for every package that is not a program of
// developers, a generator or a suite of tests.
func TestArchitecturePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(goCommand(t, nil, "list", "./...")) {
		name := strings.TrimPrefix(pkg, module+"/")
		if under(name, "dev") || under(name, "examples") || strings.HasSuffix(name, "test") || strings.HasSuffix(name, "/generate") {
			continue
		}
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/architecture.md does not say what %s owns", name)
		}
	}
}

// TestSitePages: every page of docs/ has a place in the navigation of the site, and is linked from
// the README or another page of docs/, so that readers of the repository find it too.
func TestSitePages(t *testing.T) {
	nav, err := os.ReadFile("../../mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 15 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	var texts []byte
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text...)
	}
	for _, page := range pages {
		name := filepath.Base(page)
		if shown := strings.TrimPrefix(strings.ReplaceAll("/"+name, "/index.md", "/wheel-index.md"), "/"); !bytes.Contains(nav, []byte(" "+shown+"\n")) {
			t.Errorf("mkdocs.yml has no %s", shown)
		}
		if !bytes.Contains(texts, []byte("("+name)) && !bytes.Contains(texts, []byte("(docs/"+name)) {
			t.Errorf("no page has a link to docs/%s", name)
		}
	}
}
