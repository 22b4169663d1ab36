package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEnviron(t *testing.T) {
	line := func(state, flags, start, end string) string {
		return "12 (a b) c) " + state + " 1 2 3 4 5 " + flags + strings.Repeat(" 7", 40) + " " + start + " " + end + " 0\n"
	}
	for _, test := range []struct {
		name, stat string
		want       environState
	}{
		{"in the middle of execve", line("R", "4194304", "0", "0"), environLater},
		{"at its end", line("R", "4194304", "140700", "140700"), environLater},
		{"at its end, waiting for memory", line("D", "4194304", "140700", "140700"), environLater},
		{"with an environment", line("S", "4194304", "140700", "140722"), environSome},
		{"with an empty one", line("S", "4194304", "140700", "140700"), environNone},
		{"a kernel thread", line("I", "69238880", "0", "0"), environNone},
		{"ended", line("Z", "4194308", "0", "0"), environNone},
		{"an old kernel", "12 (a) R 1 2 3\n", environNone},
		{"nothing", "", environNone},
	} {
		if got := environ(test.stat); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if got := environ(string(self)); got != environSome {
		t.Errorf("this process: %v\n%s", got, self)
	}
}

// TestMarkedProcesses lists processes while they become others again and again: a sweep that sees
// none of them would leave them behind.
func TestMarkedProcesses(t *testing.T) {
	owner := fmt.Sprintf("becoming %d", os.Getpid())
	again := `[ "$1" -lt 3000 ] && exec sh -c "$0" "$0" $(($1 + 1)); exec sleep 1000`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", again, again, "0")
	cmd.Env = []string{"PATH=/usr/bin:/bin", ownerEnv + "=" + owner}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for range 200 {
		if pids := markedProcesses(ownerEnv + "=" + owner); !slices.Contains(pids, cmd.Process.Pid) {
			t.Fatalf("process %d is not among %d", cmd.Process.Pid, pids)
		}
	}
}

// What a call of the runtime prints may come later than its end on a busy machine: here by a process
// that outlives it.
func TestCallSlowOutput(t *testing.T) {
	program := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n(sleep 2; echo late) &\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	c := Container(ContainerOptions{Program: program})
	if got, err := c.call(t.Context(), "look", nil, "inspect"); err != nil || got != "late" {
		t.Errorf("%q, %v", got, err)
	}
}
