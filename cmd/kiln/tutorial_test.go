package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

var fence = regexp.MustCompile("(?ms)^```(\\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$")

// TestTutorial does what docs/tutorial.md says, from the first to the last command, in one shell
// and an empty folder: writes its files, runs its commands, and compares what they print with what
// the page shows. "…" stands for any text, and as a line for any lines.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("builds wheels")
	}
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	page, err := os.ReadFile(filepath.FromSlash("../../docs/tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "kiln"), ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := strings.ReplaceAll(string(page), "8765", freePort(t))

	// One shell runs all, because it keeps jobs. A line says where the output of a command ends.
	const mark = "--- end of command"
	var script strings.Builder
	var commands, wants []string
	script.WriteString("set -m\nexec 2>&1\n")
	for _, block := range fence.FindAllStringSubmatch(text, -1) {
		kind, title, body := block[1], block[2], block[3]
		if title != "" {
			fmt.Fprintf(&script, "mkdir -p \"$(dirname %[1]s)\"\ncat >%[1]s <<'end of file'\n%[2]send of file\n", title, body)
			continue
		}
		if kind != "console" {
			t.Errorf("a block of %s is neither a file nor commands", kind)
		}
		for example := range strings.SplitSeq(strings.TrimPrefix(body, "$ "), "\n$ ") {
			line, want, _ := strings.Cut(example, "\n")
			commands, wants = append(commands, line), append(wants, strings.TrimRight(want, "\n"))
			fmt.Fprintf(&script, "%s\necho \"%s $?\"\n", line, mark)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-s")
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(script.String())
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Dir(python)+":"+os.Getenv("PATH"), "HOME="+cmd.Dir, "NO_COLOR=1", "COLUMNS=300")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("the shell: %v", err)
	}
	var outputs, codes []string
	for part := range strings.SplitSeq(out.String(), mark+" ") {
		code, text, _ := strings.Cut(part, "\n")
		outputs, codes = append(outputs, text), append(codes, code)
	}
	outputs[0], codes = out.String()[:strings.Index(out.String()+mark, mark)], codes[1:]
	if len(outputs) != len(commands)+1 || len(commands) < 12 {
		t.Fatalf("%d commands, %d outputs:\n%s", len(commands), len(outputs)-1, out.String())
	}
	for i, want := range wants {
		if got := strings.TrimRight(outputs[i], "\n"); !shows(want, got) {
			t.Errorf("$ %s\nthe page shows:\n%s\nit prints:\n%s", commands[i], want, got)
		}
		if failed := strings.Contains(want, "\nfailed: "); failed != (codes[i] != "0") {
			t.Errorf("$ %s\nexit code %s\n%s", commands[i], codes[i], outputs[i])
		}
	}
}

// freePort finds a port that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
