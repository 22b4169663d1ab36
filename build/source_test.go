package build_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// sdistOf packs files as a source distribution would have them.
func sdistOf(t *testing.T, root string, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: root + "/" + name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// repository commits files to a new repository, with git's arguments before the commit.
func repository(t *testing.T, dir string, files map[string]string, before ...[]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	kilntest.Repository(t, dir, "v1.0", before...)
}

// TestSources builds from a git tag with a submodule, from an index and from an sdist with its
// hash, each with another front-end.
func TestSources(t *testing.T) {
	root := t.TempDir()
	mux := http.NewServeMux()
	mux.Handle("/git/", kilntest.GitServer(t, root))
	server := httptest.NewServer(mux)
	defer server.Close()
	pkg := func(name, c string) map[string]string {
		return map[string]string{
			"setup.py": fmt.Sprintf("from setuptools import Extension, setup\nsetup(name=%q, version='1.0', ext_modules=[Extension(%q, [%q])])\n", name, name, c),
		}
	}

	repository(t, filepath.Join(root, "native"), map[string]string{"native.c": native("fromgit"), "setup.py": ""})
	repository(t, filepath.Join(root, "fromgit"), pkg("fromgit", "native/native.c"),
		[]string{"submodule", "--quiet", "add", server.URL + "/git/native", "native"},
		[]string{"-C", "native", "checkout", "--quiet", "v1.0"})

	files := pkg("fromindex", "native.c")
	files["native.c"] = native("fromindex")
	listed := sdistOf(t, "fromindex-1.0", files)
	mux.HandleFunc("/simple/fromindex/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<!DOCTYPE html><html><body><a href="/files/fromindex-0.9.tar.gz#sha256=%064d">fromindex-0.9.tar.gz</a>`+
			`<a href="/files/fromindex-1.0.tar.gz#sha256=%x">fromindex-1.0.tar.gz</a></body></html>`, 0, sha256.Sum256(listed))
	})
	mux.HandleFunc("/files/fromindex-1.0.tar.gz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(listed) })

	files = pkg("fromsdist", "native.c")
	files["native.c"] = native("fromsdist")
	sdist := sdistOf(t, "fromsdist-1.0", files)
	mux.HandleFunc("/fromsdist-1.0.tar.gz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(sdist) })
	sum := sha256.Sum256(sdist)

	p := newProject(t, map[string]string{"packages.yml": strings.NewReplacer("SERVER", server.URL, "SUM", hex.EncodeToString(sum[:])).Replace(`
x-shared: &shared {versions: ["1.0"], extra_deps: [setuptools], local_version: cpu, matrix: [{python: "PYTHON"}]}
packages:
  fromgit: {<<: *shared, source: {git: SERVER/git/fromgit, ref: "v{version}"}, build: {frontend: pip}}
  fromindex: {<<: *shared, source: {index: SERVER/simple/}, build: {frontend: uv}}
  fromsdist: {<<: *shared, source: {sdist: SERVER/fromsdist-1.0.tar.gz, sha256: "SUM"}}
`)})
	result := p.build()
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone {
			t.Errorf("%s is %s: %v\n%s", r.Row.ID, r.Status, r.Err, p.log(r))
			continue
		}
		if diff := cmp.Diff(r.Row.Files()[0], r.Record.Files[0].Name); diff != "" {
			t.Errorf("file (-want +got):\n%s", diff)
		}
		if r.Record.Test.Result != "passed" {
			t.Errorf("%s: %+v", r.Row.ID, r.Record.Test)
		}
	}
	// Everything is remembered: the next run sends no request.
	server.Close()
	for _, r := range p.build().Rows {
		if r.Status != engine.StatusReused {
			t.Errorf("%s is %s without the server: %v", r.Row.ID, r.Status, r.Err)
		}
	}
}
