package workflow_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/publish/publishtest"
	"github.com/kiln-build/kiln/workflow"
)

// TestInstallCUDA puts a toolkit together from archives like NVIDIA's.
func TestInstallCUDA(t *testing.T) {
	archive := func(folder, name, text string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		w, err := z.Create(folder + "/" + name)
		must(t, err)
		_, err = w.Write([]byte(text))
		must(t, err)
		must(t, z.Close())
		return b.Bytes()
	}
	files := map[string][]byte{}
	list := map[string]any{"release_date": "2026-01-01"}
	for _, name := range []string{"cuda_cudart", "cuda_nvcc", "libcublas", "cuda_unused"} {
		path := name + "/windows-x86_64/" + name + "-windows-x86_64-12.8.1-archive.zip"
		files["/"+path] = archive(name+"-archive", "bin/"+name+".txt", name)
		list[name] = map[string]any{"name": name, "version": "12.8.1", "windows-x86_64": map[string]string{"relative_path": path, "sha256": publishtest.Sum(files["/"+path])}}
	}
	text, err := json.Marshal(list)
	must(t, err)
	files["/redistrib_12.8.1.json"] = text
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if files[r.URL.Path] == nil {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write(files[r.URL.Path])
	}))
	defer server.Close()
	dir := filepath.Join(t.TempDir(), "cuda")
	opts := workflow.CUDAOptions{Version: "12.8.1", Source: server.URL, Dir: dir, Retry: publishtest.QuickRetry}
	for range 2 {
		toolkit, err := workflow.InstallCUDA(t.Context(), opts)
		must(t, err)
		if len(toolkit.Components) != 3 {
			t.Errorf("components: %+v", toolkit.Components)
		}
	}
	for _, name := range []string{"bin/cuda_nvcc.txt", "bin/libcublas.txt"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for name, change := range map[string]func(){
		"another hash":  func() { files["/libcublas/windows-x86_64/libcublas-windows-x86_64-12.8.1-archive.zip"] = []byte("x") },
		"no component":  func() { delete(list, "libcublas"); files["/redistrib_12.8.1.json"], _ = json.Marshal(list) },
		"no such thing": func() { delete(files, "/redistrib_12.8.1.json") },
	} {
		change()
		opts.Dir = filepath.Join(t.TempDir(), "cuda")
		if _, err := workflow.InstallCUDA(t.Context(), opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
