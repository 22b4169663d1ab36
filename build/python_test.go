package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
)

func TestFindPythons(t *testing.T) {
	got := FindPythons([]string{"HOME=/home/me", "AGENT_TOOLSDIRECTORY=/opt/hostedtoolcache", "RUNNER_TOOL_CACHE=/cache", "PYENV_ROOT=/pyenv", "PATH=/usr/bin:/opt/pyenv/shims:/pyenv/shims"})
	want := []string{
		"/opt/hostedtoolcache/Python/{python}.*/{arch}{-freethreaded}/bin/python3",
		"/cache/Python/{python}.*/{arch}{-freethreaded}/bin/python3",
		"/pyenv/versions/{python}.*{t}/bin/python3",
		"/home/me/.asdf/installs/python/{python}.*{t}/bin/python3",
		"/home/me/.local/share/mise/installs/python/{python}.*{t}/bin/python3",
		"/home/me/.local/share/uv/python/cpython-{python}.*{+freethreaded}-linux-*/bin/python3",
		"/opt/pyenv/versions/{python}.*{t}/bin/python3",
		"/opt/pyenv/installs/python/{python}.*{t}/bin/python3",
		"/pyenv/installs/python/{python}.*{t}/bin/python3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	if got := FindPythons(nil); len(got) != 1 {
		t.Errorf("without variables: %q", got)
	}
}

// Free-threaded builds are installed beside the others, under names of their own.
func TestPythonPlaces(t *testing.T) {
	if machineArch() != "x86_64" {
		t.Skip("the names are those of x86-64")
	}
	boxes := sandbox.Container(sandbox.ContainerOptions{})
	for version, want := range map[string][]string{
		"3.13":  {"python3.13", "/opt/python/cp313-cp313/bin/python3", "/opt/hostedtoolcache/Python/3.13.*/x64/bin/python3"},
		"3.14t": {"python3.14t", "/opt/python/cp314-cp314t/bin/python3", "/opt/hostedtoolcache/Python/3.14.*/x64-freethreaded/bin/python3", "/root/.local/share/uv/python/cpython-3.14.*+freethreaded-linux-*/bin/python3"},
	} {
		a := &attempt{Recipe: &record.Recipe{}, builder: &Builder{Options: Options{Sandboxes: boxes}}}
		a.Row.Python = version
		got := a.pythonPlaces()
		for _, place := range want {
			if !slices.Contains(got, place) {
				t.Errorf("%s: %q lacks %s", version, got, place)
			}
		}
	}
}

func TestParseSurvey(t *testing.T) {
	got := parseSurvey(`libc glibc 2.35
program git
program ccache
ccache 4.5.1
python /usr/bin/python3
python /opt/hostedtoolcache/Python/3.13.10/x64/bin/python3
python /opt/hostedtoolcache/Python/3.13.9/x64/bin/python3
python /opt/hostedtoolcache/Python/3.13.11/x64/bin/python3
python pyenv: no such command
`)
	if got.libc != "gnu" || got.glibc != 35 {
		t.Errorf("libc %s %s", got.libc, got.glibc)
	}
	// An older ccache than kiln can use counts as none.
	if diff := cmp.Diff(map[string]bool{"ninja": true, "ccache": true}, got.missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	want := []string{
		"/usr/bin/python3", "/opt/hostedtoolcache/Python/3.13.11/x64/bin/python3",
		"/opt/hostedtoolcache/Python/3.13.10/x64/bin/python3", "/opt/hostedtoolcache/Python/3.13.9/x64/bin/python3",
	}
	if diff := cmp.Diff(want, got.pythons); diff != "" {
		t.Errorf("interpreters (-want +got):\n%s", diff)
	}
	if got := parseSurvey("libc musl\n"); got.libc != "musl" || got.glibc != 0 {
		t.Errorf("musl: %+v", got)
	}
}

// A Python that needs a newer glibc than the image has is refused with both versions.
func TestManagedPythonNeedsGLIBC(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "python")
	folder := filepath.Join(root, "cpython-3.13.5-linux-"+machineArch()+"-gnu-0123456789ab")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := writeJSONFile(filepath.Join(root, "cpython-3.13-linux-"+machineArch()+"-gnu.json"), &interpreter{Folder: filepath.Base(folder), Version: "3.13.5", SHA256: "01", GLIBC: "2.35"}); err != nil {
		t.Fatal(err)
	}
	a := &attempt{Recipe: &record.Recipe{}, builder: &Builder{store: &toolStore{dir: dir}}, log: &tailWriter{to: os.Stderr}}
	a.Row.Python = "3.13"
	e := &environment{attempt: a, image: "quay.io/pypa/manylinux_2_28_x86_64", seen: survey{libc: "gnu", glibc: 28}}
	_, err := e.managedPython(t.Context())
	if err == nil || !strings.Contains(err.Error(), "needs glibc 2.35 or newer, and the image quay.io/pypa/manylinux_2_28_x86_64 has 2.28") {
		t.Errorf("error %v", err)
	}
	e.seen.glibc = 35
	if got, err := e.managedPython(t.Context()); err != nil || got.dir != folder {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseGLIBC(t *testing.T) {
	for text, want := range map[string]glibcVersion{"2.35": 35, "glibc 2.28": 28, "2.2.5": 2, "": 0, "musl": 0, "PRIVATE": 0, "glibc": 0} {
		if got := parseGLIBC(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestPrograms: every program that kiln brings is pinned for both architectures and C libraries.
func TestPrograms(t *testing.T) {
	for name, p := range programs {
		for _, arch := range []string{"x86_64", "aarch64"} {
			for _, libc := range []string{"gnu", "musl"} {
				file, ok := p.wheels[arch]
				if !ok {
					file, ok = p.wheels[arch+"-"+libc]
				}
				if !ok || len(file.sha256) != 64 || !strings.Contains(file.name, "-"+p.version+"-") || !strings.Contains(file.name, arch) {
					t.Errorf("%s for %s with %s: %+v", name, arch, libc, file)
				}
			}
		}
	}
}

// TestStorePythons lets uv choose from a mirror that has every kind of Python: with and without the
// lock, for both C libraries. The interpreters are no programs, so this machine can run none of them.
func TestStorePythons(t *testing.T) {
	if runtime.GOOS != "linux" || machineArch() == "" {
		t.Skip("kiln brings Pythons to Linux")
	}
	uv := os.Getenv("KILN_UV")
	if uv == "" {
		kilntest.Lacking(t, "uv", "KILN_UV is not set")
	}
	mirror := t.TempDir()
	list := map[string]any{}
	for _, kind := range []struct{ variant, libc string }{{"", "gnu"}, {"freethreaded", "gnu"}, {"", "musl"}, {"freethreaded", "musl"}} {
		suffix, program := "", "python3.14"
		var variant any
		if kind.variant != "" {
			suffix, program, variant = "+"+kind.variant, "python3.14t", kind.variant
		}
		name := "cpython-3.14.1" + suffix + "-linux-" + machineArch() + "-" + kind.libc
		archive := filepath.Join(mirror, name+".tar.gz")
		sum := packPython(t, archive, program, name)
		list[name] = map[string]any{
			"name": "cpython", "arch": map[string]any{"family": machineArch(), "variant": nil}, "os": "linux", "libc": kind.libc, "major": 3, "minor": 14, "patch": 1,
			"prerelease": "", "url": "file://" + archive, "sha256": sum, "variant": variant, "build": "1",
		}
	}
	downloads := filepath.Join(mirror, "downloads.json")
	if err := writeJSONFile(downloads, list); err != nil {
		t.Fatal(err)
	}
	s := &toolStore{dir: t.TempDir(), path: []string{filepath.Dir(uv)}, network: Network{PythonDownloads: downloads}}
	for _, want := range []struct{ version, libc, name string }{
		{"3.14", "gnu", "cpython-3.14.1-linux-ARCH-gnu"},
		{"3.14t", "gnu", "cpython-3.14.1+freethreaded-linux-ARCH-gnu"},
		{"3.14", "musl", "cpython-3.14.1-linux-ARCH-musl"},
		{"3.14t", "musl", "cpython-3.14.1+freethreaded-linux-ARCH-musl"},
	} {
		var log bytes.Buffer
		got, err := s.python(t.Context(), want.version, want.libc, &log)
		if err != nil {
			t.Errorf("%s with %s: %v\n%s", want.version, want.libc, err, log.String())
			continue
		}
		text, err := os.ReadFile(got.program(got.dir, want.version))
		if name := strings.ReplaceAll(want.name, "ARCH", machineArch()); err != nil || !strings.Contains(string(text), "# "+name+"\n") || got.Version != "3.14.1" {
			t.Errorf("%s with %s: %s (%v):\n%s", want.version, want.libc, got.Folder, err, text)
		}
	}
	if _, err := s.python(t.Context(), "3.13t", "musl", io.Discard); err == nil || !strings.Contains(err.Error(), "uv knows no cpython-3.13+freethreaded-linux-"+machineArch()+"-musl") {
		t.Errorf("a Python that the mirror lacks: %v", err)
	}
}

// packPython writes an archive as uv expects it, and returns its hash.
func packPython(t *testing.T, archive, program, says string) string {
	t.Helper()
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	compressed := gzip.NewWriter(f)
	files := tar.NewWriter(compressed)
	for name, text := range map[string]string{
		"python/bin/" + program:                                "#!/nowhere/sh\n# " + says + "\n",
		"python/lib/" + program + "/_sysconfigdata__linux_.py": "# system configuration generated and used by the sysconfig module\nbuild_time_vars = {'prefix': '/install'}\n",
	} {
		if err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(files.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	sum, _, err := fsx.SHA256(archive)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// pruner remembers what it was asked to remove.
type pruner struct {
	sandbox.Maker
	asked []string
}

func (p *pruner) Prune(_ context.Context, image string) ([]string, error) {
	p.asked = append(p.asked, image)
	return []string{image}, nil
}

// An image goes with the last row that needs it, not before, and not when a row is tried again.
func TestPruning(t *testing.T) {
	boxes := &pruner{Maker: sandbox.Container(sandbox.ContainerOptions{})}
	b := &Builder{Options: Options{Sandboxes: boxes, Prune: true, Log: slog.New(slog.DiscardHandler)}}
	p := b.newPruning(map[string]*record.Recipe{
		"a": {Image: "devel", TestImage: "runtime"}, "b": {Image: "devel", TestImage: "devel"}, "c": {Image: "other", TestImage: "runtime"},
	})
	var seen []engine.EventKind
	on := p.follow(t.Context(), func(e engine.Event) { seen = append(seen, e.Kind) })
	step := func(job string, kind engine.EventKind, want ...string) {
		t.Helper()
		boxes.asked = nil
		on(engine.Event{Job: job, Kind: kind})
		p.wait()
		if diff := cmp.Diff(want, boxes.asked); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", job, kind, diff)
		}
	}
	step("a", engine.EventRetry)
	step("a", engine.EventFinished)
	step("a", engine.EventFinished)
	step("b", engine.EventFailed, "devel")
	step("c", engine.EventReused, "other", "runtime")
	if len(seen) != 5 {
		t.Errorf("%d events were passed on", len(seen))
	}
	b.Prune = false
	if b.newPruning(nil) != nil {
		t.Error("without Prune images are removed")
	}
}

// A program whose bytes are not the pinned ones is not kept, and the index that delivered it is named.
func TestProgramOtherBytes(t *testing.T) {
	if runtime.GOOS != "linux" || machineArch() == "" {
		t.Skip("kiln brings programs to Linux")
	}
	file := programs["uv"].wheels[machineArch()]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/simple/uv/":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<a href="/files/%s">%s</a>`, file.name, file.name)
		case "/files/" + file.name:
			fmt.Fprint(w, "not the wheel")
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	network := Network{IndexURL: server.URL + "/simple/"}
	dir := t.TempDir()
	s := &toolStore{dir: dir, network: network, sources: &sources{network: network, client: server.Client()}}
	_, err := s.uv(t.Context())
	if err == nil || !strings.Contains(err.Error(), "fetch uv") || !strings.Contains(err.Error(), "sha256 mismatch") {
		t.Errorf("error %v", err)
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, "programs", "uv-*", "uv")); len(kept) > 0 {
		t.Errorf("kept %q", kept)
	}
	// The user's own comes first, and is asked nothing.
	own := filepath.Join(t.TempDir(), "uv")
	if err := os.WriteFile(own, []byte("#!/bin/sh\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	s.path = []string{filepath.Dir(own)}
	if got, err := s.uv(t.Context()); err != nil || got != own {
		t.Errorf("uv is %s, %v", got, err)
	}
}
