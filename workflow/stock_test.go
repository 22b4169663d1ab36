package workflow_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/publish"
)

// stockRun is a run whose rows are built as on a hosted runner: in the images that the workflow
// names, of which dev/e2e/stock-images.sh makes look-alikes, with Pythons that kiln brings. There is
// podman under the name of docker.
func stockRun(t *testing.T) actRun {
	t.Helper()
	programs := t.TempDir()
	// A machine that is itself a container may not have the limits that podman asks for.
	limits := filepath.Join(programs, "containers.conf")
	must(t, os.WriteFile(limits, []byte("[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n[engine]\nruntime = \"runc\"\n"), 0o666))
	script(t, filepath.Join(programs, "docker"), "export CONTAINERS_CONF="+limits+"\nexec podman \"$@\"")
	return actRun{event: byHand, programs: programs, env: []string{
		"KILN_CACHE_DIR=" + t.TempDir(), "UV_PYTHON_DOWNLOADS_JSON_URL=" + stockFile(t, "pythons", "downloads.json"),
	}}
}

func script(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o777))
}

// stockFile is something that dev/e2e/stock-images.sh made.
func stockFile(t *testing.T, elem ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{"..", ".cache", "images", "stock"}, elem...)...))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v\n  dev/e2e/stock-images.sh makes it", err)
	}
	return path
}

// replaced is the text with every old line replaced; a line that is not there is a fault of the test.
func replaced(t *testing.T, text string, lines map[string]string) string {
	t.Helper()
	for old, line := range lines {
		if strings.Count(text, old) != 1 {
			t.Fatalf("%q is not once in\n%s", old, text)
		}
		text = strings.Replace(text, old, line, 1)
	}
	return text
}

// exllamav2Rows are one row of every group of examples/exllamav2 that the hosted workflow builds, of
// both rows of include, and for each the torch that is on the package index.
var exllamav2Rows = []string{
	"exllamav2-0.3.2-cu121-torch2.3.1-cp311-linux_x86_64",
	"exllamav2-0.3.2-cu124-torch2.6.0-cp312-linux_x86_64",
	"exllamav2-0.3.2-cu128-torch2.9.0-cp313-linux_x86_64",
	"exllamav2-0.3.2-cu121-torch2.2.2-cp310-linux_x86_64",
	"exllamav2-0.3.2-sdist",
}

// exllamav2Repo is examples/exllamav2 with a stand-in for the sources and a folder in place of
// PyTorch's index.
func exllamav2Repo(t *testing.T, env string) string {
	t.Helper()
	repo := t.TempDir()
	text, err := os.ReadFile(filepath.Join("..", "examples", "exllamav2", "packages.yml"))
	must(t, err)
	config, _, _ := strings.Cut(string(text), "\nworkflow:")
	config = replaced(t, config, map[string]string{
		`    source: {git: "https://github.com/turboderp-org/exllamav2", ref: "v{version}"}`: fmt.Sprintf("    source: {path: src}\n    torch_source: {path: %q}\n    test: {timeout: 1h}%s", stockFile(t, "torch"), env),
		// The compiler that stands in for CUDA 12.8 is that of 13.0, which has no older architectures.
		`"6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX"`: `"7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX"`,
	})
	must(t, os.WriteFile(filepath.Join(repo, "packages.yml"), []byte(config), 0o666))
	must(t, os.CopyFS(filepath.Join(repo, "src"), os.DirFS(filepath.Join("testdata", "standins", "exllamav2"))))
	return repo
}

// rowsOf leaves out all other rows.
func rowsOf(rows []string) string {
	return "  rows: \"id in (" + strings.Join(rows, ", ") + ")\"\n"
}

// TestE2EWorkflowExLlamaV2 runs the workflow of examples/exllamav2 for one row of every Linux group
// and for the sdist row: artifacts, release, index and pages.
func TestE2EWorkflowExLlamaV2(t *testing.T) {
	kilntest.NeedE2E(t, "workflow")
	r := stockRun(t)
	r.workflow, r.parallel = rowsOf(exllamav2Rows), 5
	public, artifacts := runWorkflow(t, exllamav2Repo(t, ""), r)
	want := []string{
		"exllamav2-0.3.2+cu121.torch2.2.2-cp310-cp310-linux_x86_64.whl", "exllamav2-0.3.2+cu121.torch2.3.1-cp311-cp311-linux_x86_64.whl",
		"exllamav2-0.3.2+cu124.torch2.6.0-cp312-cp312-linux_x86_64.whl", "exllamav2-0.3.2+cu128.torch2.9.0-cp313-cp313-linux_x86_64.whl",
		"exllamav2-0.3.2-py3-none-any.whl", "exllamav2-0.3.2.tar.gz",
	}
	checkFiles(t, public, artifacts, "exllamav2", want)
	for _, row := range exllamav2Rows {
		if _, err := os.Stat(filepath.Join(artifacts, "dist-"+row, "records", row+".json")); err != nil {
			t.Errorf("the artifacts lack a record: %v", err)
		}
	}
	if notes := onlyRelease(t, public).Notes; strings.Contains(notes, "not complete") {
		t.Errorf("the notes:\n%s", notes)
	}
}

// TestE2EWorkflowExLlamaV2Failure: nvcc refuses the sources of one row. Its job is red, the other
// goes on, the release has the rest, and its notes have the message of the compiler.
func TestE2EWorkflowExLlamaV2Failure(t *testing.T) {
	kilntest.NeedE2E(t, "workflow")
	rows := []string{"exllamav2-0.3.2-cu124-torch2.6.0-cp312-linux_x86_64", "exllamav2-0.3.2-sdist"}
	r := stockRun(t)
	r.workflow, r.fails = rowsOf(rows), true
	public, artifacts := runWorkflow(t, exllamav2Repo(t, "\n    env: {EXLLAMA_BROKEN: {\"12.4\": 1}}"), r)
	checkFiles(t, public, artifacts, "exllamav2", []string{"exllamav2-0.3.2-py3-none-any.whl", "exllamav2-0.3.2.tar.gz"})
	notes := onlyRelease(t, public).Notes
	if !strings.Contains(notes, "not complete") || !strings.Contains(notes, "this toolkit has no warp shuffle") {
		t.Errorf("the notes do not say what failed, and why:\n%s", notes)
	}
	if _, err := os.Stat(filepath.Join(artifacts, "log-"+rows[0])); err != nil {
		t.Errorf("the log of the failed row: %v", err)
	}
	t.Log(notes)
}

// checkFiles wants exactly these files in the release folder, and all of them on the project's page.
func checkFiles(t *testing.T, public, artifacts, project string, want []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(artifacts, "pages", "all", "simple", project, "index.html"))
	must(t, err)
	found := map[string]bool{}
	for _, pattern := range []string{"*.whl", "*.tar.gz"} {
		files, err := filepath.Glob(filepath.Join(public, "*", pattern))
		must(t, err)
		for _, f := range files {
			found[filepath.Base(f)] = true
		}
	}
	for _, name := range want {
		if !found[name] {
			t.Errorf("%s is not published", name)
		}
		delete(found, name)
		if !strings.Contains(string(page), ">"+html.EscapeString(name)+"<") {
			t.Errorf("the index does not have %s", name)
		}
	}
	for name := range found {
		t.Errorf("%s is published", name)
	}
}

func onlyRelease(t *testing.T, public string) publish.Release {
	t.Helper()
	target, err := publish.NewDir(public, publish.DirOptions{})
	must(t, err)
	releases, err := target.List(t.Context(), func(string) bool { return true })
	must(t, err)
	if len(releases) != 1 {
		t.Fatalf("%d releases, want one", len(releases))
	}
	return releases[0]
}

// baseForm is a packages.yml as people have it.
const baseForm = `packages:
  flash-attn:
    versions: ["2.8.3"]
    build_args: "--no-build-isolation"
    extra_deps: [torch, ninja, psutil]
    test_import: flash_attn
    description: "Fast and memory-efficient exact attention"
`

// TestE2EWorkflowBaseForm: a push of a file in the base form to the main branch builds its four rows,
// releases them and deploys the index. The sources come from the package index, torch from PyTorch's;
// a server on this machine has a stand-in for the first and the torches of the package index.
func TestE2EWorkflowBaseForm(t *testing.T) {
	kilntest.NeedE2E(t, "workflow")
	repo, r := t.TempDir(), stockRun(t)
	must(t, os.WriteFile(filepath.Join(repo, "packages.yml"), []byte(baseForm), 0o666))
	address := serveIndexes(t, map[string][]string{
		"cu129": {"torch-2.9.0-"}, "cu130": {"torch-2.15.0-"},
	})
	script(t, filepath.Join(r.programs, "kiln"), fmt.Sprintf(`kiln=%s
if [ "$1" = build ]; then shift; exec "$kiln" build --torch-index %s/whl --container-arg=--add-host=localhost:%s "$@"; fi
exec "$kiln" "$@"`, builtKiln(t), address, outside(t)))
	event := filepath.Join(t.TempDir(), "event.json")
	must(t, os.WriteFile(event, []byte(`{"ref": "refs/heads/main", "repository": {"default_branch": "main"}}`), 0o666))
	r.workflow, r.parallel = "  release_on: [push]\n", 4
	r.event = []string{"push", "--eventpath", event}
	r.env = append(r.env, "PIP_INDEX_URL="+address+"/simple/")
	public, artifacts := runWorkflow(t, repo, r)
	checkFiles(t, public, artifacts, "flash-attn", []string{
		"flash_attn-2.8.3+cu129-cp312-cp312-linux_x86_64.whl", "flash_attn-2.8.3+cu129-cp313-cp313-linux_x86_64.whl",
		"flash_attn-2.8.3+cu130-cp312-cp312-linux_x86_64.whl", "flash_attn-2.8.3+cu130-cp313-cp313-linux_x86_64.whl",
	})
	if notes := onlyRelease(t, public).Notes; strings.Contains(notes, "not complete") || !strings.Contains(notes, "exact attention") {
		t.Errorf("the notes:\n%s", notes)
	}
}

// serveIndexes serves the package index, in which flash-attn is a stand-in, and below /whl indexes as
// PyTorch has them, with the wheels that begin with the words given. What it does not have is the
// business of the public index. pip trusts the name localhost without TLS.
func serveIndexes(t *testing.T, torches map[string][]string) string {
	t.Helper()
	sdist := packSdist(t, filepath.Join("testdata", "standins", "flash-attn"), "flash_attn-2.8.3")
	wheels := stockFile(t, "torch")
	page := func(w http.ResponseWriter, files map[string]string) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!DOCTYPE html><html><body>\n")
		for name, link := range files {
			fmt.Fprintf(w, "<a href=%q>%s</a>\n", link, name)
		}
		fmt.Fprint(w, "</body></html>\n")
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(wheels))))
	mux.HandleFunc("/sdist/flash_attn-2.8.3.tar.gz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(sdist) })
	public := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://pypi.org/simple/"+r.PathValue("project")+"/", http.StatusFound)
	}
	mux.HandleFunc("/simple/{project}/{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("project") == "flash-attn" {
			name := "flash_attn-2.8.3.tar.gz"
			page(w, map[string]string{name: fmt.Sprintf("/sdist/%s#sha256=%x", name, sha256.Sum256(sdist))})
			return
		}
		public(w, r)
	})
	mux.HandleFunc("/whl/{toolkit}/{project}/{$}", func(w http.ResponseWriter, r *http.Request) {
		names := []string{strings.ReplaceAll(r.PathValue("project"), "-", "_") + "-"}
		if names[0] == "torch-" {
			names = torches[r.PathValue("toolkit")]
		}
		files := map[string]string{}
		for _, name := range names {
			found, _ := filepath.Glob(filepath.Join(wheels, name+"*.whl"))
			for _, f := range found {
				files[filepath.Base(f)] = "/files/" + filepath.Base(f)
			}
		}
		if len(files) == 0 {
			public(w, r)
			return
		}
		page(w, files)
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	must(t, err)
	server := httptest.NewUnstartedServer(mux)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return fmt.Sprintf("http://localhost:%d", listener.Addr().(*net.TCPAddr).Port)
}

// outside is the address of this machine that its containers reach.
func outside(t *testing.T) net.IP {
	t.Helper()
	all, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP
		}
	}
	t.Fatal("this machine has no address of its own")
	return nil
}

// packSdist packs a folder as a source distribution.
func packSdist(t *testing.T, dir, root string) []byte {
	t.Helper()
	var out strings.Builder
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	must(t, archive.WriteHeader(&tar.Header{Name: root + "/PKG-INFO", Mode: 0o644, Size: int64(len(pkgInfo))}))
	_, err := archive.Write([]byte(pkgInfo))
	must(t, err)
	must(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: root + "/" + filepath.ToSlash(name), Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err = archive.Write(text)
		return err
	}))
	must(t, archive.Close())
	must(t, compressed.Close())
	return []byte(out.String())
}

const pkgInfo = "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n"
