package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish/publishtest"
)

func init() { scriptCommands["built"] = scriptBuilt }

// scriptBuilt finishes the rows of a packages.yml as a build would, without building. A text makes
// other bytes.
//
//	built packages.yml [ROW [TEXT]]
func scriptBuilt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 3 {
		ts.Fatalf("usage: built FILE [ROW [TEXT]]")
	}
	path := ts.MkAbs(args[0])
	file, list := matrix.Parse("packages.yml", []byte(ts.ReadFile(args[0])))
	if list.HasErrors() {
		ts.Fatalf("%v", list.Err())
	}
	rows := file.Plan(matrix.Options{}).Rows
	for i := range rows {
		if len(args) == 1 || rows[i].ID == args[1] {
			ts.Check(publishtest.Finish(filepath.Join(filepath.Dir(path), "dist"), &rows[i], strings.Join(args[min(2, len(args)):], ""), 100))
		}
	}
}

// python returns an interpreter with pip.
func python(t *testing.T) string {
	t.Helper()
	name := os.Getenv("KILN_PYTHON")
	if name == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	return name
}

// TestPublishToServer publishes to a kiln server, twice, and installs from it with pip.
func TestPublishToServer(t *testing.T) {
	interpreter := python(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "packages.yml")
	if err := os.WriteFile(config, []byte("packages: {demo-pub: {versions: [\"1.0\"], wheel_tag: py3-none, matrix: [{os: debian-12, python: \"3.11\"}]}}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	file, list := matrix.Parse(config, []byte("packages: {demo-pub: {versions: [\"1.0\"], wheel_tag: py3-none, matrix: [{os: debian-12, python: \"3.11\"}]}}\n"))
	if list.HasErrors() {
		t.Fatal(list.Err())
	}
	plan := file.Plan(matrix.Options{})
	if err := publishtest.Finish(filepath.Join(dir, "dist"), &plan.Rows[0], "", 10); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(dir, "store")
	kiln := func(args ...string) (code int, out string) {
		var stdout, stderr strings.Builder
		code = run(args, strings.NewReader(""), &stdout, &stderr)
		return code, stdout.String() + stderr.String()
	}
	var secret strings.Builder
	if code := run([]string{"serve", "token", "create", "--dir", store, "--project", "*"}, strings.NewReader(""), &secret, io.Discard); code != 0 {
		t.Fatalf("token: exit code %d", code)
	}
	t.Setenv("KILN_TOKEN", strings.TrimSpace(secret.String()))
	out, stdout := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- run([]string{"serve", "--dir", store, "--addr", "localhost:0"}, strings.NewReader(""), stdout, io.Discard)
		stdout.Close()
	}()
	lines := bufio.NewScanner(out)
	url := ""
	for url == "" && lines.Scan() {
		for field := range strings.FieldsSeq(lines.Text()) {
			if rest, ok := strings.CutSuffix(field, "legacy/"); ok && strings.HasPrefix(field, "http://") {
				url = rest
			}
		}
	}
	if url == "" {
		t.Fatal("the server does not say where it is")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	if code, out := kiln("publish", "-f", config, "--to", "kiln:"+url); code != 0 || !strings.Contains(out, "dry run") {
		t.Errorf("dry run: exit code %d\n%s", code, out)
	}
	if code, out := kiln("publish", "-f", config, "--to", "kiln:"+url, "--release", "1"); code != 0 || !strings.Contains(out, "uploaded, verified") {
		t.Fatalf("publish: exit code %d\n%s", code, out)
	}
	if code, out := kiln("publish", "-f", config, "--to", "kiln:"+url, "--release", "1"); code != 0 || !strings.Contains(out, "nothing to do") {
		t.Errorf("second publish: exit code %d\n%s", code, out)
	}
	install := exec.CommandContext(t.Context(), interpreter, "-m", "pip", "install", "--no-deps", "--target", filepath.Join(dir, "lib"), "--index-url", url+"simple/",
		"--trusted-host", "localhost", "--no-cache-dir", "--platform", "linux_x86_64", "--only-binary", ":all:", "demo-pub==1.0")
	if text, err := install.CombinedOutput(); err != nil {
		t.Fatalf("pip install: %v\n%s", err, text)
	}
	if _, err := os.Stat(filepath.Join(dir, "lib", "demo_pub.py")); err != nil {
		t.Error(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-done
}
