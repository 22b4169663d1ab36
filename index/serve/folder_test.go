package serve_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
)

// folderFixture serves a folder of wheels.
func folderFixture(t *testing.T, dir string) *fixture {
	t.Helper()
	folder, err := index.OpenFolder(dir, index.AddOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := serve.New(t.Context(), folder, serve.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, dir: dir, server: server, http: httptest.NewServer(server)}
	t.Cleanup(f.http.Close)
	return f
}

// TestFolderAsStore: a folder of wheels is served as an index that they were added to, in every
// view, byte for byte.
func TestFolderAsStore(t *testing.T) {
	names := []string{
		wheel128, "flash_attn-2.8.3+cu126.torch2.9-cp312-cp312-linux_x86_64.whl", "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl",
		"tiny-1.0-py3-none-any.whl", "tiny-1.1-py3-none-any.whl",
	}
	store := newFixture(t, serve.Options{})
	store.publish(names...)
	dir := t.TempDir()
	for _, name := range names {
		putWheel(t, dir, name, nil)
	}
	folder := folderFixture(t, dir)
	paths := []string{"/catalog.json"}
	for _, view := range store.server.Catalog().Views() {
		root := "/" + strings.TrimPrefix(view.Path+"/simple/", "/")
		paths = append(paths, root, root+"flash-attn/", root+"tiny/")
	}
	for p := range store.server.Catalog().Projects() {
		for i := range p.Files {
			paths = append(paths, "/"+p.Files[i].HostedPath(), "/"+p.Files[i].HostedPath()+".metadata")
		}
	}
	found := 0
	for _, path := range paths {
		for _, accept := range []string{"text/html", "application/vnd.pypi.simple.v1+json"} {
			want, got := store.do("GET", path, "Accept", accept), folder.do("GET", path, "Accept", accept)
			if want.StatusCode != got.StatusCode || want.body != got.body || want.Header.Get("Etag") != got.Header.Get("Etag") {
				t.Errorf("%s as %s: %d, want %d\n%s\nwant\n%s", path, accept, got.StatusCode, want.StatusCode, got.body, want.body)
			}
			if want.StatusCode == http.StatusOK {
				found++
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d pages were found in %q", found, paths)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(names) {
		t.Errorf("the folder was changed: %v, %v", entries, err)
	}
	if got := folder.do("POST", "/legacy/"); got.StatusCode != http.StatusForbidden {
		t.Errorf("an upload is answered with %d", got.StatusCode)
	}
}

// TestFolderChanges: files come, are half there, are replaced and go.
func TestFolderChanges(t *testing.T) {
	dir := t.TempDir()
	const name, path = "tiny-1.0-py3-none-any.whl", "/simple/tiny/"
	f := folderFixture(t, dir)
	reload := func() *index.Catalog {
		t.Helper()
		if err := f.server.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		return f.server.Catalog()
	}
	if got := f.do("GET", path); got.StatusCode != http.StatusNotFound {
		t.Errorf("empty folder: %d", got.StatusCode)
	}
	whole := indextest.Wheel(t, name, nil)
	if err := os.WriteFile(filepath.Join(dir, name), whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if reload(); f.do("GET", path).StatusCode != http.StatusNotFound {
		t.Error("half a wheel is served")
	}
	putWheel(t, dir, name, nil)
	first := reload()
	if first != reload() {
		t.Error("another catalog without a change")
	}
	page := f.do("GET", path, "Accept", "application/vnd.pypi.simple.v1+json")
	if page.StatusCode != http.StatusOK || !strings.Contains(page.body, name) {
		t.Fatalf("%d %s", page.StatusCode, page.body)
	}
	file := first.Project("tiny").File(name)
	old := "/" + file.HostedPath()
	if got := f.do("GET", old); got.body != string(whole) {
		t.Errorf("%d, %d bytes", got.StatusCode, len(got.body))
	}

	// Replaced, and asked for before the server has noticed: no other bytes under the old hash.
	putWheel(t, dir, name, map[string]string{"tiny/extra.py": "x = 1\n"})
	if got := f.do("GET", old); got.StatusCode != http.StatusNotFound {
		t.Errorf("replaced: %d", got.StatusCode)
	}
	reload()
	if got := f.do("GET", path, "If-None-Match", page.Header.Get("Etag"), "Accept", "application/vnd.pypi.simple.v1+json"); got.StatusCode != http.StatusOK {
		t.Errorf("the page of the replaced file: %d", got.StatusCode)
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	if reload(); f.do("GET", path).StatusCode != http.StatusNotFound {
		t.Error("a removed file is served")
	}
}

func putWheel(t *testing.T, dir, name string, files map[string]string) {
	t.Helper()
	path := filepath.Join(dir, name)
	temp, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(temp, bytes.NewReader(indextest.Wheel(t, name, files))); err != nil {
		t.Fatal(err)
	}
	if err := temp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, indextest.Day, indextest.Day); err != nil {
		t.Fatal(err)
	}
}

// TestFolderWhileReading: files are served while another is being read, however long that takes.
func TestFolderWhileReading(t *testing.T) {
	dir := t.TempDir()
	putWheel(t, dir, "tiny-1.0-py3-none-any.whl", nil)
	reading, goOn := make(chan struct{}), make(chan struct{})
	folder, err := index.OpenFolder(dir, index.AddOptions{Audit: func(context.Context, string, index.Digest) index.Facts {
		close(reading)
		<-goOn
		return index.Facts{}
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := folder.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	putWheel(t, dir, wheel128, nil)
	done := make(chan error, 1)
	go func() {
		_, err := folder.Catalog(t.Context())
		done <- err
	}()
	<-reading
	content, err := folder.OpenFile(&catalog.Project("tiny").Files[0], "")
	if err != nil {
		t.Fatal(err)
	}
	content.Close()
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
