package build_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// childEnv makes the test program build the project in a folder and end, so that it
// can be killed.
const childEnv = "KILN_BUILD_CHILD"

// programEnv names the kiln that the child puts before the compilers, so that rows share what they
// compile.
const programEnv = "KILN_BUILD_PROGRAM"

// buildChild is the program that gets killed. It returns its exit code.
func buildChild(dir string) int {
	name := filepath.Join(dir, "packages.yml")
	text, err := os.ReadFile(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	file, _ := matrix.Parse(name, text)
	plan := file.Plan(matrix.Options{})
	opts := build.Options{
		Dir: dir, Sandboxes: childSandboxes(), Path: os.Getenv("PATH"),
		Network: build.Network{CertFile: os.Getenv("SSL_CERT_FILE")}, CPU: 2, MemoryBytes: 8 << 30, Kiln: os.Getenv(programEnv),
	}
	result, err := build.Run(context.Background(), plan, plan.Rows, opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone && r.Status != engine.StatusReused {
			fmt.Fprintln(os.Stderr, r.Row.ID, r.Status, r.Reason)
			return 1
		}
	}
	return 0
}

// childSandboxes are containers if KILN_BUILD_IMAGE names an image for them.
func childSandboxes() sandbox.Maker {
	if os.Getenv("KILN_BUILD_IMAGE") != "" {
		return sandbox.Container(sandbox.ContainerOptions{
			Runtime: "podman", RuntimeArgs: []string{"--runtime", "runc"}, CABundle: os.Getenv("SSL_CERT_FILE"),
		})
	}
	return sandbox.Host(sandbox.HostOptions{})
}

// sixRows is a project of six quick rows with native code.
func sixRows(t *testing.T, image string) *project {
	yml := `
packages:
  demo:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [build, setuptools]
    test_import: _demo
    local_version: "{flavor}"
    resources: {jobs: 1, memory_per_job: 256 MiB}
    matrix:
      - {python: "PYTHON", axes: {flavor: [a, b, c, d, e, f]}}
`
	if image != "" {
		yml += "    image: " + image + "\n"
	}
	return newProject(t, map[string]string{
		"packages.yml": yml, "src/native.c": native("_demo"), "src/setup.py": fmt.Sprintf(setupPy, "demo", "", "_demo"),
	})
}

// start starts the child on a project.
func (p *project) start(stderr *bytes.Buffer) *exec.Cmd {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(exe) //nolint:noctx // it is killed by hand
	cmd.Env = append(os.Environ(), childEnv+"="+p.dir, "PATH="+p.opts.Path)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return cmd
}

// hashes are the files in dist with their digests.
func (p *project) hashes() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	plan := p.plan()
	for _, row := range plan.Rows {
		done, err := record.Read(filepath.Join(p.dir, "dist"), row.ID)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, f := range done.Files {
			out[f.Name] = f.SHA256
		}
	}
	return out
}

// temps lists the files that were being written.
func (p *project) temps() (out []string) {
	for _, dir := range []string{".kiln", "dist"} {
		_ = filepath.WalkDir(filepath.Join(p.dir, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && fsx.IsTemp(d.Name()) {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// age makes them older than a writer may take.
func (p *project) age() {
	long := time.Now().Add(-2 * time.Hour)
	for _, path := range p.temps() {
		if err := os.Chtimes(path, long, long); err != nil {
			p.t.Fatal(err)
		}
	}
}

// leftovers lists what a build that ended must not leave: work folders, temporary files,
// and processes of this project.
func (p *project) leftovers() []string {
	p.t.Helper()
	out := p.temps()
	work, _ := filepath.Glob(filepath.Join(p.dir, ".kiln", "work", "*"))
	out = append(out, work...)
	id, err := os.ReadFile(filepath.Join(p.dir, ".kiln", "id"))
	if err != nil {
		p.t.Fatal(err)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range processes {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), string(id)) {
			out = append(out, path)
		}
	}
	return out
}

// TestKill kills a build of six rows at random moments until it has ended, and compares
// the files with those of an undisturbed build. make e2e-build kills 50 times.
func TestKill(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("what is left behind is counted in /proc")
	}
	kills := 4
	if kilntest.E2E("build") {
		kills = 50
	}
	p := sixRows(t, "")
	killBuild(t, p, kills)
}

// TestKillShared does the same with rows that share their compiles: kiln, and with it launchers,
// compilers and ccache, are killed while they fill the cache, and what is taken from it later is
// right.
func TestKillShared(t *testing.T) {
	if !kilntest.E2E("share") {
		t.Skip("KILN_E2E does not name share")
	}
	if os.Getenv("KILN_PYTHON") == "" {
		t.Fatal("KILN_E2E names share, and KILN_PYTHON is not set")
	}
	program := filepath.Join(t.TempDir(), "kiln")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/kiln")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build kiln: %v\n%s", err, out)
	}
	t.Setenv(programEnv, program)
	kills := 30
	if text := os.Getenv("KILN_KILLS"); text != "" { // so that it can be run in parts
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("KILN_KILLS: %v", err)
		}
		kills = n
	}
	p := sixRows(t, "")
	killBuild(t, p, kills)
	hits := 0
	for _, row := range p.plan().Rows {
		done, err := record.Read(filepath.Join(p.dir, "dist"), row.ID)
		if err != nil {
			t.Fatal(err)
		}
		if done.Compiles == nil || done.Compiles.Calls == 0 {
			t.Fatalf("%s: nothing went through the launcher: %+v", row.ID, done.Compiles)
		}
		hits += done.Compiles.Hits
	}
	if hits == 0 {
		t.Error("nothing was shared")
	}
	t.Logf("%d of 6 compiles of the last build were shared", hits)
}

func killBuild(t *testing.T, p *project, kills int) {
	t.Helper()
	var stderr bytes.Buffer
	start := time.Now()
	if err := p.start(&stderr).Wait(); err != nil {
		t.Fatalf("the undisturbed build: %v\n%s", err, &stderr)
	}
	whole := time.Since(start)
	want := p.hashes()
	if len(want) != 6 {
		t.Fatalf("want 6 files, got %v", want)
	}
	clean := func() {
		// Downloads stay: they are not what is being tested.
		for _, dir := range []string{"dist", ".kiln/attempts", ".kiln/work"} {
			os.RemoveAll(filepath.Join(p.dir, dir))
		}
		os.Remove(filepath.Join(p.dir, ".kiln", "journal.jsonl"))
	}
	clean()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d; the undisturbed build took %s", seed, whole.Round(time.Second))
	killed, ended := 0, 0
	fresh := true // nothing of an earlier build is there
	for killed < kills {
		stderr.Reset()
		start = time.Now()
		cmd := p.start(&stderr)
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case <-time.After(time.Duration(random.Int64N(int64(whole)))):
			_ = cmd.Process.Signal(syscall.SIGKILL)
			<-done
			killed++
			fresh = false
		case err := <-done:
			if err != nil {
				t.Fatalf("after %d kills: %v\n%s", killed, err, &stderr)
			}
			if diff := cmp.Diff(want, p.hashes()); diff != "" {
				t.Fatalf("after %d kills the files differ (-want +got):\n%s", killed, diff)
			}
			ended++
			if fresh {
				whole = time.Since(start) // the machine may be busier or less busy by now
			}
			clean()
			fresh = true
		}
	}
	stderr.Reset()
	p.age()
	if err := p.start(&stderr).Wait(); err != nil {
		t.Fatalf("after %d kills: %v\n%s", killed, err, &stderr)
	}
	if diff := cmp.Diff(want, p.hashes()); diff != "" {
		t.Errorf("after %d kills the files differ (-want +got):\n%s", killed, diff)
	}
	if left := p.leftovers(); len(left) > 0 {
		t.Errorf("after %d kills these are left:\n%s", killed, strings.Join(left, "\n"))
	}
	t.Logf("%d kills, %d builds came to their end in between, all with the same files", killed, ended)
}
