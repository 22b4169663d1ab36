package run_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/kiln-build/kiln/internal/run"
)

// helperEnv makes the test binary play a part in another process.
const helperEnv = "KILN_RUN_HELPER"

func TestMain(m *testing.M) {
	run.Main()
	if part := os.Getenv(helperEnv); part != "" {
		os.Exit(play(part, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// play is what the helpers do.
func play(part string, args []string) int {
	switch part {
	case "print":
		fmt.Fprintln(os.Stdout, strings.Join(args, "|"))
		fmt.Fprintln(os.Stderr, os.Getenv("KEY"))
		return 3
	case "environment":
		fmt.Fprintln(os.Stdout, strings.Join(os.Environ(), "\n"))
	case "polite": // ends by itself when it is asked to
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, os.Interrupt)
		fmt.Fprintln(os.Stdout, "ready")
		<-asked
		fmt.Fprintln(os.Stdout, "goodbye")
		return 7
	case "stubborn":
		signal.Ignore(os.Interrupt)
		fmt.Fprintln(os.Stdout, "ready")
		time.Sleep(time.Minute)
	case "tree", "leaver": // starts a process that starts another; each writes its number into args[0]
		depth := os.Getenv("DEPTH")
		if err := os.WriteFile(filepath.Join(args[0], depth+".pid"), fmt.Append(nil, os.Getpid()), 0o666); err != nil {
			return 1
		}
		if depth != "xx" {
			cmd := exec.CommandContext(context.Background(), os.Args[0], args...)
			cmd.Env = append(os.Environ(), "DEPTH="+depth+"x")
			if err := cmd.Start(); err != nil {
				return 1
			}
		}
		for range 1000 {
			if _, err := os.Stat(filepath.Join(args[0], "xx.pid")); err == nil && part == "leaver" && depth == "" {
				return 0
			}
			time.Sleep(20 * time.Millisecond)
		}
	case "eater":
		for kept := [][]byte{}; len(kept) < 64; {
			kept = append(kept, bytes.Repeat([]byte{1}, 8<<20))
		}
		fmt.Fprintln(os.Stdout, "full")
	case "parent": // runs a tree and is killed itself
		_, _ = helper("tree", args...).Run(context.Background())
	}
	return 0
}

func helper(part string, args ...string) *run.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return &run.Cmd{Argv: append([]string{self}, args...), Env: []string{helperEnv + "=" + part, "SystemRoot=" + os.Getenv("SystemRoot")}, Grace: -1}
}

// alive reports whether a process runs.
func alive(pid uint32) bool {
	handle, err := windows.OpenProcess(windows.SYNCHRONIZE, false, pid)
	if err != nil {
		return false
	}
	defer windows.CloseHandle(handle) //nolint:errcheck // only looked at
	event, err := windows.WaitForSingleObject(handle, 0)
	return err == nil && event == uint32(windows.WAIT_TIMEOUT)
}

// members waits until the three processes of a tree have written their numbers.
func members(t *testing.T, dir string) []uint32 {
	t.Helper()
	var pids []uint32
	for _, name := range []string{".pid", "x.pid", "xx.pid"} {
		var pid uint32
		for end := time.Now().Add(30 * time.Second); pid == 0; time.Sleep(10 * time.Millisecond) {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				_, _ = fmt.Sscan(string(text), &pid)
			}
			if time.Now().After(end) {
				t.Fatalf("no process wrote %s", name)
			}
		}
		pids = append(pids, pid)
	}
	return pids
}

func TestEnds(t *testing.T) {
	var out, log bytes.Buffer
	cmd := helper("print", "a b", `c"d`, `e\`, "ä", "")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(cmd.Env, "KEY=1", "key=ß"), &out, &log
	state, err := cmd.Run(t.Context())
	var failed *run.Error
	if !errors.As(err, &failed) || state.ExitCode != 3 || state.Wall <= 0 {
		t.Errorf("state %+v, error %v", state, err)
	}
	if got := out.String(); got != `a b|c"d|e\|ä|`+"\n" {
		t.Errorf("arguments %q", got)
	}
	if got := log.String(); got != "ß\n" {
		t.Errorf("the last of two equal names has to count: %q", got)
	}
}

// TestLookup: programs have endings, and a dot in a name is none.
func TestLookup(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "mit Leerzeichen und ä")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tool3.13.exe", "plain"} {
		if err := os.WriteFile(filepath.Join(dir, name), program, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for name, found := range map[string]bool{"tool3.13": true, "TOOL3.13.EXE": true, "tool3": false, "plain": false} {
		cmd := helper("environment")
		cmd.Argv = []string{name}
		cmd.Env = append(cmd.Env, "Path="+dir)
		_, err := cmd.Run(t.Context())
		if found && err != nil || !found && !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEnvironmentIsEmpty(t *testing.T) {
	t.Setenv("KILN_OUTER", "1")
	var out bytes.Buffer
	cmd := helper("environment")
	cmd.Stdout = &out
	if _, err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.ToUpper(out.String()), "KILN_OUTER") || strings.Contains(strings.ToUpper(out.String()), "PATHEXT") {
		t.Errorf("of the outer environment:\n%s", out.String())
	}
}

func TestTreeEndsWithContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pids []uint32
	go func() {
		defer cancel()
		pids = members(t, dir)
	}()
	_, err := helper("tree", dir).Run(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestTreeEndsWithCommand: what a command leaves behind is gone when Run returns.
func TestTreeEndsWithCommand(t *testing.T) {
	dir := t.TempDir()
	if _, err := helper("leaver", dir).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range members(t, dir) {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestTreeEndsWithParent: killing the process that runs a command ends the whole tree.
func TestTreeEndsWithParent(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), self, dir)
	parent.Env = append(os.Environ(), helperEnv+"=parent")
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	pids := members(t, dir)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	for _, pid := range pids {
		for end := time.Now().Add(10 * time.Second); alive(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("process %d outlived the process that ran it", pid)
			}
		}
	}
}

func onWine() bool {
	return windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}

// TestMemory: what all processes of a command use is measured, and more than the limit is refused.
func TestMemory(t *testing.T) {
	for _, limit := range []int64{0, 4 << 30, 128 << 20} {
		var out bytes.Buffer
		cmd := helper("eater")
		cmd.Stdout, cmd.MemoryBytes = &out, limit
		state, err := cmd.Run(t.Context())
		if onWine() {
			if err != nil {
				t.Errorf("limit %d: %v", limit, err)
			}
			continue
		}
		if fits := limit != 128<<20; fits != (err == nil) || fits && state.PeakMemoryBytes < 512<<20 {
			t.Errorf("limit %d: a peak of %d, %v", limit, state.PeakMemoryBytes, err)
		}
	}
	if onWine() {
		t.Skip("Wine neither counts the memory of job objects nor limits it")
	}
}

// TestGrace: a command is asked to end, and killed when it does not.
func TestGrace(t *testing.T) {
	for part, want := range map[string]int{"polite": 7, "stubborn": 1} {
		t.Run(part, func(t *testing.T) {
			if part == "polite" && onWine() {
				t.Skip("Wine does not deliver Ctrl-Break to a process group")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := helper(part)
			cmd.Grace = 3 * time.Second
			out := &trigger{text: "ready", do: cancel}
			cmd.Stdout = out
			state, err := cmd.Run(ctx)
			if !errors.Is(err, context.Canceled) || state.ExitCode != want {
				t.Errorf("exit code %d, want %d; %v; output %q", state.ExitCode, want, err, out.all.String())
			}
		})
	}
}

// trigger does something when a text has been written.
type trigger struct {
	all  bytes.Buffer
	text string
	do   func()
}

func (w *trigger) Write(p []byte) (int, error) {
	n, err := w.all.Write(p)
	if strings.Contains(w.all.String(), w.text) {
		w.do()
	}
	return n, err
}
