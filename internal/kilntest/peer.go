package kilntest

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Peer is a program that answers requests one after the other, each a line of JSON.
type Peer struct {
	in  io.Writer
	out *bufio.Reader
}

// StartPeer starts a Python program and ends it with the test. If the test fails, the last of what
// it printed is shown.
func StartPeer(t testing.TB, python string, args ...string) *Peer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1")
	var log strings.Builder
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
		if text := log.String(); t.Failed() && text != "" {
			t.Logf("the last of what %s printed:\n%s", args[0], text[max(0, len(text)-4000):])
		}
	})
	return &Peer{in, bufio.NewReader(out)}
}

// Ask sends a request and reads its answer.
func (p *Peer) Ask(t testing.TB, request, answer any) {
	t.Helper()
	if err := json.NewEncoder(p.in).Encode(request); err != nil {
		t.Fatal(err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("the other program ended: %v", err)
	}
	if err := json.Unmarshal(line, answer); err != nil {
		t.Fatal(err)
	}
}
