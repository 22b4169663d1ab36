package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kiln-build/kiln/publish/publishtest"
)

// evil is what a terminal must not get: it sets the title, clears the screen, asks for the position of
// the cursor, hides and turns text, in sequences of seven and of eight bits.
const evil = "\x1b]0;pwn\x07\x1b[2J\x1b[6n\u009b8m\u202e\x1b[8m"

// openPTY returns both ends of a terminal that is wide enough for every line.
func openPTY(t *testing.T) (outer, inner *os.File) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(outer.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = errors.Join(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 4000}))
	}
	if err != nil {
		t.Fatal(err)
	}
	inner, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return outer, inner
}

// onTerminal runs kiln with a terminal as its output and returns what the terminal got.
func onTerminal(t *testing.T, dir string, args ...string) string {
	t.Helper()
	outer, inner := openPTY(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kiln", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, inner, inner
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=", "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inner.Close()
	var b bytes.Buffer
	_, _ = io.Copy(&b, outer) // ends with EIO when the last inner end is closed
	outer.Close()
	_ = cmd.Wait() // most of these commands fail, and should
	return b.String()
}

// leaves are the commands that do something, as "model verify".
func leaves(c *cobra.Command) []string {
	var out []string
	for _, sub := range c.Commands() {
		if sub.Name() == "completion" || sub.Name() == "help" {
			continue
		}
		if sub.Runnable() {
			out = append(out, strings.TrimPrefix(sub.CommandPath(), "kiln "))
		}
		out = append(out, leaves(sub)...)
	}
	return out
}

// hostile is a folder with inputs whose every name and text is evil.
func hostile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range []string{"demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/WHEEL", "demo-1.0.dist-info/RECORD", evil + ".so"} {
		if w, err := z.Create(name); err == nil {
			_, _ = w.Write([]byte("Metadata-Version: 2.1\nName: " + evil + "\nVersion: 1.0\n"))
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	write("demo-1.0-py3-none-any.whl", b.String())
	write(evil+".whl", b.String())
	good, err := publishtest.Wheel("good-1.0-py3-none-any.whl", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	write("good-1.0-py3-none-any.whl", string(good))
	statement, err := json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1",
		"subject":   []any{map[string]any{"name": "good-1.0-py3-none-any.whl", "digest": map[string]string{"sha256": evil}}},
		"predicate": map[string]any{"buildDefinition": map[string]any{"externalParameters": map[string]any{"row": map[string]string{"id": evil}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write("good-1.0-py3-none-any.whl.intoto.jsonl", string(statement))
	write("packages.yml", "packages:\n  demo:\n    source: {path: .}\n    versions: [\"1.0\"]\n    local_version: \"\"\n    env: {X: \"\u202e\"}\n    nonsense\u202e: 1\n    matrix: [{python: \"3.12\"}]\n")
	write("build/packages.yml", "packages:\n  demo:\n    source: {path: .}\n    versions: [\"1.0\"]\n    local_version: \"\"\n    extra_deps: [setuptools, build]\n    matrix: [{python: \"PYTHON\"}]\n")
	write("build/setup.py", "import sys\nsys.stdout.write('"+strings.NewReplacer("\x1b", `\x1b`, "\a", `\x07`, "\u009b", `\u009b`, "\u202e", `\u202e`).Replace(evil)+"\\n')\nraise SystemExit('error: it cannot be built: \\x1b[2J\\u202e')\n")
	write("model/config.json", `{"architectures": ["`+strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\u001b`), "\a", `\u0007`)+`"]}`)
	write("model/"+evil+".safetensors", "nonsense")
	header := `{"` + strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\u001b`), "\a", `\u0007`) + `.q_weight":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]}}`
	write("evil.safetensors", string([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0})+header+"\x00\x00\x00\x00")
	write("job/job_new.json", `{"in_dir": "`+strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\u001b`), "\a", `\u0007`)+`"}`)
	write("spec.yml", "name: \""+strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\e`), "\a", `\a`)+"\"\nsources: [a.cpp]\n")
	write("trust.json", `{"format": "kiln-trust/1", "keys": [{"id": "66687aadf862bd77", "name": "`+strings.ReplaceAll(strings.ReplaceAll(evil, "\x1b", `\u001b`), "\a", `\u0007`)+`", "public": "MCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}]}`)
	write("index/.keep", "")
	return dir
}

// TestTerminal: whatever is in their inputs, no command sends anything to a terminal that it acts on,
// but for kiln's own colours and its live view.
func TestTerminal(t *testing.T) {
	dir := hostile(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<a href='demo-1.0-py3-none-any.whl'>demo-1.0-py3-none-any.whl</a><a href='x'>%s</a>", evil)
	}))
	defer server.Close()
	key := "key"
	onTerminal(t, dir, "key", "create", key)
	table := [][]string{
		{"audit", evil + ".whl"},
		{"audit", "demo-1.0-py3-none-any.whl"},
		{"audit", "rules", evil},
		{"audit", "demo-1.0-py3-none-any.whl", "--torch-stable", evil},
		{"audit", "snapshot", "no" + evil},
		{"verify", evil + ".whl"},
		{"verify", "good-1.0-py3-none-any.whl"},
		{"verify", "--trust", evil, "good-1.0-py3-none-any.whl"},
		{"verify", "--json", "good-1.0-py3-none-any.whl"},
		{"key", "list"},
		{"key", "create", "no" + evil + "/x"},
		{"key", "trust", evil},
		{"key", "retire", evil},
		{"key", "revoke", evil},
		{"plan"},
		{"plan", "-f", evil},
		{"build"},
		{"test", evil},
		{"publish", "--to", "dir:public"},
		{"publish", "--to", evil},
		{"status", "--state", evil},
		{"logs", evil},
		{"shell", evil},
		{"index", "add", "--dir", "index", evil + ".whl"},
		{"index", "generate", "--wheels-dir", ".", "--output-dir", "site"},
		{"index", "check", "--dir", "no" + evil},
		{"index", "list", "--dir", "no" + evil},
		{"index", "export", "--dir", "no" + evil, "--url", "https://example.org/", "demo"},
		{"index", "remove", "--dir", "no" + evil, "demo"},
		{"index", "set", "--dir", "index", "--default", evil},
		{"index", "yank", "--dir", "no" + evil, "demo"},
		{"serve", "--dir", "index", "--addr", evil},
		{"serve", "token", "create", "--dir", "index", "--project", evil},
		{"serve", "token", "list", "--dir", "index", evil},
		{"serve", "token", "revoke", "--dir", "index", evil},
		{"pick", evil, "--index", server.URL},
		{"doctor", "--explain", "ImportError: " + evil + ": undefined symbol: x"},
		{"jit", "spec.yml"},
		{"model", "inspect", "model"},
		{"model", "verify", "model"},
		{"model", "diff", "model", "no" + evil},
		{"model", "sign", "model", "--sign-key", evil},
		{"model", "reshard", "model", "--out", "x", "--shard-size", "1 GB"},
		{"model", "plan", "--job", "job"},
		{"model", "compile", "--job", "job"},
		{"quant", "inspect", "evil.safetensors"},
		{"quant", "dequantize", "evil.safetensors", "--out", "x.safetensors"},
		{"quant", "bench", evil},
		{"cache", "stats", evil},
		{"cache", "explain", evil},
		{"cache", "gc", "--max-size", evil},
		{"workflow", "github"},
		{"workflow", "prepare"},
		{"workflow", "summary"},
		{"workflow", "cuda", evil},
		{"workflow", "rocm", "--no" + evil},
		{"workflow", "free-disk", evil},
		{"schema", evil},
		{"commands", evil},
		{"init", evil, "--stdout"},
		{"version", evil},
		{"launcher", "setup", evil, "x"},
		{"launcher", "inputs", evil, "x"},
		{"slurm-worker", evil},
	}
	tried := map[string]bool{}
	for _, args := range table {
		checkTerminal(t, onTerminal(t, dir, args...), args)
		for i := range args {
			tried[strings.Join(args[:i+1], " ")] = true
		}
	}
	for _, name := range leaves((&app{}).command()) {
		if !tried[name] {
			t.Errorf("kiln %s is not in the table", name)
		}
	}
}

// TestTerminalBuild: so it is with the output of a build, in the log and in what is said of the failure.
func TestTerminalBuild(t *testing.T) {
	dir := filepath.Join(hostile(t), "build")
	version, err := exec.CommandContext(t.Context(), python(t), "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)").Output()
	if err != nil {
		t.Fatal(err)
	}
	minor, prefix, _ := strings.Cut(strings.TrimSpace(string(version)), " ")
	t.Setenv("PATH", os.Getenv("PATH")+":"+filepath.Join(prefix, "bin"))
	name := filepath.Join(dir, "packages.yml")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.ReplaceAll(text, []byte("PYTHON"), []byte(minor)), 0o666); err != nil {
		t.Fatal(err)
	}
	row := "demo-1.0-cpu-cp" + strings.ReplaceAll(minor, ".", "") + "-linux_x86_64"
	for _, args := range [][]string{{"build"}, {"logs", row}, {"status"}} {
		got := onTerminal(t, dir, args...)
		if args[0] != "logs" && strings.Contains(got, "failed") {
			got += "]0;pwn" // which line they show as the reason is not the point
		}
		checkTerminal(t, got, args)
	}
	// A file gets the bytes as they are.
	cmd := exec.CommandContext(t.Context(), "kiln", "logs", row)
	cmd.Dir = dir
	if out, err := cmd.Output(); err != nil || !bytes.Contains(out, []byte(evil)) {
		t.Errorf("%v, %q", err, out)
	}
}

func checkTerminal(t *testing.T, got string, args []string) {
	t.Helper()
	if !strings.Contains(got, "]0;pwn") && !strings.Contains(got, `\u202e`) {
		t.Errorf("kiln %q: nothing of it was shown, so nothing was tried:\n%q", args, got)
	}
	for _, bad := range []string{"\x1b]", "\x1b[2J", "\x1b[6n", "\u009b", "\u202e", "\x1b[8m", "\a", "\x9b8m"} {
		if strings.Contains(got, bad) {
			t.Errorf("kiln %q sends %q:\n%q", args, bad, got)
		}
	}
}

// TestNamedPipes: a named pipe as an input is refused at once, by every command that reads files.
// Without a writer on the other end, opening one waits for ever.
func TestNamedPipes(t *testing.T) {
	dir := hostile(t)
	pipe := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), syscall.Mkfifo(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	p, wheel, sdist := pipe("pipe"), pipe("pipe-1.0-py3-none-any.whl"), pipe("pipe-1.0.tar.gz")
	plain := write("plain.yml", "packages:\n  demo:\n    versions: [\"1.0\"]\n    matrix: [{os: debian-12, python: \"3.12\"}]\n")
	version := write("version.yml", "packages:\n  demo:\n    source: {path: .}\n    version_from: {file: pipe}\n    matrix: [{os: debian-12, python: \"3.12\"}]\n")
	pipe("good-1.0-py3-none-any.whl.cdx.json")
	pipe("papers/dist/records/demo-1.0-cpu-cp312-linux_x86_64.json")
	write("papers/packages.yml", "packages:\n  demo:\n    versions: [\"1.0\"]\n    matrix: [{os: debian-12, python: \"3.12\"}]\n")
	pipe("pipes/config.json")
	pipe("pipes/model.safetensors")
	pipe("pipejob/job_new.json")
	pipe("tokens/.kiln/tokens.json")
	table := [][]string{
		{"plan", "-f", p},
		{"plan", "-f", plain, "--compat", p},
		{"plan", "-f", plain, "--history", p},
		{"plan", "-f", version},
		{"build", "-f", p},
		{"test", "-f", p, "x"},
		{"publish", "-f", p, "--to", "dir:public"},
		{"publish", "-f", plain, "--to", "dir:public", "--sign-key", p},
		{"publish", "-f", "papers/packages.yml", "--to", "dir:public"},
		{"workflow", "github", "-f", p},
		{"workflow", "prepare", "-f", p},
		{"workflow", "summary", "-f", p},
		{"workflow", "cuda", "-f", p, "x"},
		{"audit", wheel},
		{"audit", p},
		{"audit", "good-1.0-py3-none-any.whl", "--torch", p},
		{"verify", wheel},
		{"verify", "good-1.0-py3-none-any.whl"},
		{"verify", "good-1.0-py3-none-any.whl", "--statement", p},
		{"verify", "good-1.0-py3-none-any.whl", "--key", p},
		{"verify", "good-1.0-py3-none-any.whl", "--trust", p},
		{"key", "trust", p},
		{"key", "list", "--trust", p},
		{"key", "retire", "x", "--trust", p},
		{"key", "revoke", "x", "--trust", p},
		{"index", "add", "--dir", "site", wheel},
		{"index", "add", "--dir", "site", sdist},
		{"index", "generate", "--output-dir", "site", "--manifest", p},
		{"serve", "--dir", "index", "--tls-cert", p, "--tls-key", p},
		{"serve", "--dir", "tokens"},
		{"serve", "token", "list", "--dir", "tokens"},
		{"serve", "token", "create", "--dir", "tokens", "--project", "x"},
		{"serve", "token", "revoke", "--dir", "tokens", "x"},
		{"pick", "demo", "--index", "http://localhost:1/", "--machine", p},
		{"jit", p},
		{"model", "inspect", "pipes"},
		{"model", "verify", "pipes"},
		{"model", "verify", "model", "--manifest", p},
		{"model", "diff", "pipes", "pipes"},
		{"model", "sign", "model", "--sign-key", p},
		{"model", "reshard", "pipes", "--out", "x", "--shard-size", "1 GB"},
		{"model", "plan", "--job", "pipejob"},
		{"model", "compile", "--job", "pipejob"},
		{"quant", "inspect", p},
		{"quant", "dequantize", p, "--out", "x.safetensors"},
		{"launcher", "setup", p, "x"},
	}
	for _, args := range table {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		cmd := exec.CommandContext(ctx, "kiln", args...)
		cmd.Dir, cmd.WaitDelay = dir, time.Second
		out, err := cmd.CombinedOutput()
		switch text := string(out); {
		case ctx.Err() != nil:
			t.Errorf("kiln %q: still waiting", args)
		case err == nil && args[1] != "inspect": // which lists it among the problems
			t.Errorf("kiln %q: accepted\n%s", args, text)
		case !strings.Contains(text, "is a named pipe, not a file") && !strings.Contains(text, "not a regular file"):
			t.Errorf("kiln %q: %s", args, text)
		}
		cancel()
	}
}
