package build_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// stockImage is small, and made by dev/e2e/images.sh; it has Python 3.11.
const stockImage = "localhost/kiln-e2e/ci"

// podmanBoxes skips the test if podman cannot run a container of the image.
func podmanBoxes(t *testing.T) *sandbox.Containers {
	t.Helper()
	boxes := sandbox.Container(sandbox.ContainerOptions{Runtime: "podman", CABundle: os.Getenv("SSL_CERT_FILE"), LockDir: t.TempDir()})
	box, err := boxes.Open(t.Context(), sandbox.Spec{Name: "probe", Owner: "build probe", Image: stockImage})
	if err == nil {
		_, err = box.Run(t.Context(), sandbox.Command{Argv: []string{"true"}, Env: []string{"PATH=/usr/bin:/bin"}})
	}
	switch {
	case errors.Is(err, sandbox.ErrNoRuntime):
		kilntest.Lacking(t, "podman", "no podman: dev/scripts/podman.sh installs it")
	case errors.Is(err, sandbox.ErrNoImage):
		kilntest.Lacking(t, "podman", "no image %s: dev/e2e/images.sh ci makes it", stockImage)
	case err != nil:
		kilntest.Lacking(t, "podman", "podman does not work here: %v", err)
	}
	return boxes
}

// pythonMirror packs the Python of the image as uv expects it and returns the list to find it with.
func pythonMirror(t *testing.T, boxes *sandbox.Containers) string {
	t.Helper()
	dir := t.TempDir()
	box, err := boxes.Open(t.Context(), sandbox.Spec{
		Name: "pack", Owner: "build pack", Image: stockImage, Mounts: []sandbox.Mount{{Host: dir, Inside: "/out"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const pack = `set -e
mkdir -p /out/python/bin /out/python/lib /out/python/include
cp -a /usr/bin/python3.11 /out/python/bin/
ln -s python3.11 /out/python/bin/python3
cp -a /usr/lib/python3.11 /out/python/lib/
rm -f /out/python/lib/python3.11/sitecustomize.py # a link out of the folder
cp -aL /usr/include/python3.11 /out/python/include/
tar -C /out -czf /out/python.tar.gz python
rm -rf /out/python
`
	var out bytes.Buffer
	if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", pack}, Env: []string{"PATH=/usr/bin:/bin"}, Stdout: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	archive := filepath.Join(dir, "python.tar.gz")
	sum, _, err := fsx.SHA256(archive)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]any{"cpython-3.11.2-linux-x86_64-gnu": map[string]any{
		"name": "cpython", "arch": map[string]any{"family": "x86_64", "variant": nil}, "os": "linux", "libc": "gnu", "major": 3, "minor": 11, "patch": 2,
		"prerelease": "", "url": "file://" + archive, "sha256": sum, "variant": nil, "build": "1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "downloads.json")
	if err := os.WriteFile(name, list, 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestStockImage: an image without Python, git and ninja, as people have them. kiln brings the
// Python, once, for the build and for the test. Forced to the image's own, a row says what was
// looked at; with image_setup, the image of the test is completed where nothing else helps.
func TestStockImage(t *testing.T) {
	uv := os.Getenv("KILN_UV")
	if uv == "" {
		kilntest.Lacking(t, "uv", "KILN_UV is not set")
	}
	boxes := podmanBoxes(t)
	const hide, show = "mv /usr/bin/python3.11 /usr/bin/hidden && rm /usr/bin/python3 /usr/bin/ninja", "if [ -e /usr/bin/hidden ]; then mv /usr/bin/hidden /usr/bin/python3.11; fi"
	bare := bareImage(t, boxes, hide)
	p := newProject(t, map[string]string{
		"packages.yml": fmt.Sprintf(`
x-shared: &shared
  versions: ["1.0"]
  local_version: ""
  source: {path: src}
  extra_deps: [build, setuptools]
  test_import: _tiny
  image: %[1]s
  image_setup: ["sh -c '%[2]s'"]
  matrix: [{os: debian-12, python: "3.11"}]
packages:
  tiny: {<<: *shared}
  forced: {<<: *shared, python: {source: image}}
  completed: {<<: *shared, python: {source: image}, image_setup: ["sh -c '%[3]s'"], test: {image: %[4]q}, env: {KILN_NAME: completed}}
`, stockImage, hide, show, bare),
		"src/setup.py": `from setuptools import Extension, setup
import os
setup(name=os.environ.get("KILN_NAME", "tiny"), version="1.0", ext_modules=[Extension("_tiny", ["native.c"])])
`,
		"src/native.c": native("_tiny"),
	})
	p.opts.Sandboxes, p.opts.Path = boxes, filepath.Dir(uv)
	p.opts.Network.PythonDownloads = pythonMirror(t, boxes)
	plan := p.plan()
	result, err := build.Run(t.Context(), plan, plan.Rows, p.opts)
	if err != nil {
		t.Fatal(err)
	}
	row := result.Rows[0]
	if row.Status != engine.StatusDone || row.Record.Test.Result != "passed" {
		t.Fatalf("%s: %v\n%s", row.Status, row.Err, p.log(row))
	}
	r := row.Record
	if r.Interpreter.Source != "managed" || r.Interpreter.SHA256 == "" || r.Test.Interpreter != r.Interpreter {
		t.Errorf("built with %+v, tested with %+v", r.Interpreter, r.Test.Interpreter)
	}
	for _, c := range r.Commands {
		if c.Stage == "compile" && c.Network {
			t.Errorf("%q had the network", c.Argv)
		}
	}
	stored, err := filepath.Glob(filepath.Join(p.dir, ".kiln", "store", "python", "cpython-3.11.2-linux-x86_64-gnu-*"))
	if err != nil || len(stored) != 1 {
		t.Errorf("the store has %q, want one Python", stored)
	}

	forced := result.Rows[1]
	failure, ok := errors.AsType[*build.RowError](forced.Err)
	if !ok || failure.Diagnosis.ID != "no-python" {
		t.Fatalf("%s: %v\n%s", forced.Status, forced.Err, p.log(forced))
	}
	for _, want := range []string{"/opt/python/cp311-cp311/bin/python3", "/opt/hostedtoolcache/Python/3.11.*/x64/bin/python3", "source: image"} {
		if !strings.Contains(failure.Diagnosis.Detail, want) {
			t.Errorf("the message does not name %s:\n%s", want, failure.Diagnosis.Detail)
		}
	}

	completed := result.Rows[2]
	if completed.Status != engine.StatusDone || completed.Record.Test.Result != "passed" || completed.Record.Test.Interpreter.Source != "image" {
		t.Fatalf("%s: %v\n%s", completed.Status, completed.Err, p.log(completed))
	}
}

// bareImage returns the name of the image that a command makes of the stock image.
func bareImage(t *testing.T, boxes *sandbox.Containers, command string) string {
	t.Helper()
	open := func(spec sandbox.Spec) sandbox.Box {
		spec.Name, spec.Owner = "bare", "build bare"
		box, err := boxes.Open(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	open(sandbox.Spec{Image: stockImage, Setup: [][]string{{"sh", "-c", command}}})
	out, err := exec.CommandContext(t.Context(), "podman", "images", "--filter", "label=kiln.setup", "--format", "{{.Repository}}:{{.Tag}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		look := sandbox.Command{Argv: []string{"sh", "-c", "[ -e /usr/bin/hidden ] && [ ! -e /usr/bin/python3.11 ]"}, Env: []string{"PATH=/usr/bin:/bin"}}
		if _, err := open(sandbox.Spec{Image: name}).Run(t.Context(), look); err == nil {
			return name
		}
	}
	t.Fatalf("none of %q is the image without Python", out)
	return ""
}
