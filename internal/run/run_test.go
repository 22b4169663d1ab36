//go:build unix

package run_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/run"
)

// helperEnv makes the test binary play a part in another process.
const helperEnv = "KILN_RUN_HELPER"

func TestMain(m *testing.M) {
	run.Main()
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func sh(script string, args ...string) *run.Cmd {
	return &run.Cmd{Argv: append([]string{"sh", "-c", script, "sh"}, args...), Env: []string{"PATH=/usr/bin:/bin"}}
}

func TestEnds(t *testing.T) {
	tests := []struct {
		name   string
		script string
		want   run.State
		text   string // of the error
	}{
		{"ok", "echo fine", run.State{}, ""},
		{"code", "echo first; echo; echo 'no such thing' >&2; echo; exit 3", run.State{ExitCode: 3}, "run sh: exit code 3: no such thing"},
		{"signal", "kill -USR1 $$", run.State{ExitCode: -1, Signal: "SIGUSR1"}, "run sh: ended by SIGUSR1"},
		{"killed", "echo working; kill -KILL $$", run.State{ExitCode: -1, Signal: "SIGKILL"}, "run sh: killed (SIGKILL), perhaps for memory"},
		{"group", "kill -TERM 0; sleep 60", run.State{ExitCode: -1, Signal: "SIGTERM"}, "run sh: ended by SIGTERM"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, err := sh(tt.script).Run(t.Context())
			if diff := cmp.Diff(tt.want, state, cmpopts.IgnoreFields(run.State{}, "Wall", "CPU", "PeakMemoryBytes")); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if state.Wall <= 0 || state.CPU <= 0 || state.PeakMemoryBytes <= 0 {
				t.Errorf("nothing was measured: %+v", state)
			}
			var failed *run.Error
			switch {
			case tt.text == "":
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &failed) || failed.State != state || failed.Cause != nil || failed.Err != nil:
				t.Errorf("error %#v", err)
			case !strings.HasPrefix(err.Error(), tt.text):
				t.Errorf("error %q, want %q", err, tt.text)
			}
		})
	}
}

func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", 0o644, "#!/bin/sh\n")
	write("odd", 0o755, "#!/no/such/interpreter\n")
	tests := []struct {
		cmd  run.Cmd
		is   error
		text string
	}{
		{run.Cmd{}, nil, "run command: no program is named"},
		{run.Cmd{Argv: []string{"true"}}, exec.ErrNotFound, "run true: executable file not found in $PATH: its environment has no PATH"},
		{run.Cmd{Argv: []string{"no-such-program"}, Env: []string{"PATH=/bin"}}, exec.ErrNotFound, "/bin"},
		{run.Cmd{Argv: []string{"plain"}, Env: []string{"PATH=" + dir}}, nil, "plain is not executable"},
		{run.Cmd{Argv: []string{"./plain"}, Dir: dir}, nil, "plain is not executable"},
		{run.Cmd{Argv: []string{dir}}, nil, "is a folder"},
		{run.Cmd{Argv: []string{"./odd"}, Dir: dir}, os.ErrNotExist, "no such file"},
		{run.Cmd{Argv: []string{"/bin/true"}, Dir: filepath.Join(dir, "none")}, os.ErrNotExist, "no such file"},
		// A relative entry would let the working folder decide what runs.
		{run.Cmd{Argv: []string{"odd"}, Dir: dir, Env: []string{"PATH=.:"}}, exec.ErrNotFound, "not found"},
	}
	for _, tt := range tests {
		state, err := tt.cmd.Run(t.Context())
		var failed *run.Error
		if !errors.As(err, &failed) || failed.Err == nil || state.ExitCode != -1 || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%q: state %+v, error %#v", tt.cmd.Argv, state, err)
		}
		if err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%q: error %q, want %q in it", tt.cmd.Argv, err, tt.text)
		}
	}
}

// TestLookup: the PATH of the command counts, not that of this process.
func TestLookup(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		text := "#!/bin/sh\necho " + name + " $0 $KEY\n"
		if err := os.WriteFile(filepath.Join(dir, name, "tool"), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "a"))
	var out bytes.Buffer
	cmd := run.Cmd{Argv: []string{"tool"}, Env: []string{"PATH=/none", "KEY=old", "PATH=/bin:" + filepath.Join(dir, "b"), "KEY=\xff"}, Stdout: &out}
	if _, err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "b " + filepath.Join(dir, "b", "tool") + " \xff\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
}

func TestEnvironmentIsEmpty(t *testing.T) {
	var out bytes.Buffer
	cmd := run.Cmd{Argv: []string{"/usr/bin/env"}, Stdout: &out}
	if _, err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		t.Errorf("the child has %q", out.String())
	}
}

func TestStreams(t *testing.T) {
	script := `cat; pwd; echo err >&2; echo out`
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := sh(script)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, strings.NewReader("in\n"), &out, &errs
	if _, err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String()+"|"+errs.String(), "in\n"+dir+"\nout\n|err\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// One writer for both keeps the order.
	for _, second := range []io.Writer{nil, &out} {
		out.Reset()
		cmd = sh(`for i in 1 2 3 4 5; do echo a$i; echo b$i >&2; done`)
		cmd.Stdout, cmd.Stderr = &out, second
		if _, err := cmd.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := "a1\nb1\na2\nb2\na3\nb3\na4\nb4\na5\nb5\n"; out.String() != want {
			t.Errorf("merged: %q", out.String())
		}
	}
}

// TestStdin: a command that does not read its input, and an input that does not end.
func TestStdin(t *testing.T) {
	big := strings.NewReader(strings.Repeat("x", 1<<20))
	cmd := sh(`head -c 3; echo`)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = big, &out
	if _, err := cmd.Run(t.Context()); err != nil || out.String() != "xxx\n" {
		t.Errorf("output %q, error %v", out.String(), err)
	}
	r, w := io.Pipe()
	defer w.Close()
	cmd.Stdin, cmd.Argv = r, []string{"true"}
	if _, err := cmd.Run(t.Context()); err != nil {
		t.Error(err)
	}
	file, err := os.Open("run_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out.Reset()
	cmd.Stdin, cmd.Argv = file, []string{"head", "-n", "1"}
	if _, err := cmd.Run(t.Context()); err != nil || out.String() != "//go:build unix\n" {
		t.Errorf("output %q, error %v", out.String(), err)
	}
}

// TestSlowWriter: output that is written slowly is not lost when the command has long ended.
func TestSlowWriter(t *testing.T) {
	var out bytes.Buffer
	cmd := sh(`head -c 60000 /dev/zero; echo end`)
	first := true
	cmd.Stdout = writerFunc(func(p []byte) (int, error) {
		if first {
			first = false
			time.Sleep(2 * time.Second)
		}
		return out.Write(p)
	})
	if _, err := cmd.Run(t.Context()); err != nil || out.Len() != 60004 {
		t.Errorf("%d bytes, error %v", out.Len(), err)
	}
}

// counter counts what comes, without keeping it.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func TestFlood(t *testing.T) {
	const size = 100 << 20
	var out, errs counter
	// Lines on one stream, one endless line on the other.
	cmd := sh(fmt.Sprintf(`head -c %d /dev/zero >&2 & yes 'a line of output' | head -c %d; wait; printf '\nlast\n' >&2; exit 1`, size, size))
	cmd.Stdout, cmd.Stderr, cmd.TailLines = &out, &errs, 3
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := cmd.Run(t.Context())
	runtime.ReadMemStats(&after)
	var failed *run.Error
	if !errors.As(err, &failed) || len(failed.Tail) != 3 {
		t.Fatalf("error %+v", err)
	}
	for _, line := range failed.Tail { // of either stream, but not of both at once
		if !strings.HasPrefix("a line of output", line) && line != "last" && strings.Trim(line, "\x00") != " …" {
			t.Errorf("line %q", line)
		}
	}
	if out.n != size || errs.n != size+6 {
		t.Errorf("got %d and %d bytes", out.n, errs.n)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 600<<20 {
		t.Errorf("%d MB were allocated for a tail of 3 lines", used>>20)
	}
}

func TestWriterFails(t *testing.T) {
	full := errors.New("disk full")
	cmd := sh(`while :; do echo more; done`)
	cmd.Stdout, cmd.Grace = writerFunc(func([]byte) (int, error) { return 0, full }), -1
	state, err := cmd.Run(t.Context())
	if !errors.Is(err, full) || state.Signal != "SIGKILL" || !strings.Contains(err.Error(), "write its output: disk full") {
		t.Errorf("state %+v, error %v", state, err)
	}
}

func TestCancel(t *testing.T) {
	stop := errors.New("enough")
	t.Run("polite", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		out := onFirstWrite(func() { cancel(stop) })
		cmd := sh(`trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done`)
		cmd.Stdout, cmd.Grace = out, time.Minute
		state, err := cmd.Run(ctx)
		var failed *run.Error
		if !errors.As(err, &failed) || !errors.Is(failed.Cause, stop) || !errors.Is(err, stop) || state.ExitCode != 7 ||
			!strings.HasSuffix(out.String(), "bye\n") { // the shell may say before that its child was ended
			t.Errorf("state %+v, output %q, error %v", state, out.String(), err)
		}
		if want := "run sh: ended: enough"; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	})
	t.Run("stubborn", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cmd := sh(`trap '' TERM; echo ready; while :; do sleep 0.01; done`)
		cmd.Stdout, cmd.Grace = onFirstWrite(func() { cancel(stop) }), 10*time.Millisecond
		state, err := cmd.Run(ctx)
		if !errors.Is(err, stop) || state.Signal != "SIGKILL" {
			t.Errorf("state %+v, error %v", state, err)
		}
	})
	t.Run("before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stop)
		var out bytes.Buffer
		cmd := sh(`echo never`)
		cmd.Stdout = &out
		state, err := cmd.Run(ctx)
		if !errors.Is(err, stop) || state.ExitCode != -1 || out.Len() > 0 {
			t.Errorf("state %+v, error %v, output %q", state, err, out.String())
		}
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// firstWrite collects output and calls a function at the first of it.
type firstWrite struct {
	bytes.Buffer
	call func()
}

func onFirstWrite(call func()) *firstWrite { return &firstWrite{call: call} }

func (w *firstWrite) Write(p []byte) (int, error) {
	if w.call != nil {
		w.call()
		w.call = nil
	}
	return w.Buffer.Write(p)
}

func TestRedact(t *testing.T) {
	var out bytes.Buffer
	cmd := sh(`printf 'token=sec'; sleep 0.05; printf 'ret1 secret12 secr'; sleep 0.05; echo; echo "$1" >&2; exit 1`, "arg-secret1")
	cmd.Stdout, cmd.Redact = &out, []string{"secret1", "", "secret12"}
	_, err := cmd.Run(t.Context())
	if want := "token=*** *** secr\narg-***\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
	for _, format := range []string{"%v", "%+v", "%q", "%s"} {
		if text := fmt.Sprintf(format, err); strings.Contains(text, "secret1") || !strings.Contains(text, "***") {
			t.Errorf("%s: %s", format, text)
		}
	}
}

// TestRedactProperty: however the output is cut into writes, the result is the one
// of a single write, and no secret is in it.
func TestRedactProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringOfN(rapid.SampledFrom([]rune("ab\n")), 0, 40, -1)
		secrets := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("abc")), 1, 4, -1), 1, 3).Draw(t, "secrets")
		text := letters.Draw(t, "text")
		whole := run.RedactStream(secrets, []string{text})
		var parts []string
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		if got := run.RedactStream(secrets, parts); got != whole {
			t.Fatalf("%q in parts %q: %q, in one %q", secrets, parts, got, whole)
		}
		for _, s := range secrets {
			if strings.Contains(strings.ReplaceAll(whole, "***", "\x00"), s) {
				t.Fatalf("%q is in %q", s, whole)
			}
		}
	})
}

func TestTail(t *testing.T) {
	long := strings.Repeat("x", 5000)
	tests := []struct {
		script string
		lines  int
		want   []string
	}{
		{`seq 5; exit 1`, 2, []string{"4", "5"}},
		{`seq 2; exit 1`, 0, []string{"1", "2"}},
		{`seq 3; exit 1`, -1, nil},
		{`printf 'a\nb'; exit 1`, 2, []string{"a", "b"}},
		{`printf 'a\nb\nc'; exit 1`, 2, []string{"b", "c"}},
		{`printf ' 10%%\r 50%%\r100%%\r\n'; exit 1`, 2, []string{"100%"}},
		{`printf '\377\n'; exit 1`, 2, []string{"\uFFFD"}},
		{`echo ` + long + `; exit 1`, 2, []string{long[:4096] + " …"}},
	}
	for _, tt := range tests {
		cmd := sh(tt.script)
		cmd.TailLines = tt.lines
		_, err := cmd.Run(t.Context())
		var failed *run.Error
		if !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, failed.Tail, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%.40s (-want +got):\n%s", tt.script, diff)
		}
	}
}

func TestMany(t *testing.T) {
	// Many at once, some of them ended early: none may get the fate of another.
	group := make(chan error)
	const n = 40
	for i := range n {
		go func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out bytes.Buffer
			cmd := sh(`echo $1; exit $1`, fmt.Sprint(i))
			if i%4 == 3 {
				time.AfterFunc(rand.N(20*time.Millisecond), cancel)
				cmd = sh(`sleep 60`)
			}
			cmd.Stdout = &out
			state, err := cmd.Run(ctx)
			switch {
			case i%4 == 3:
				if !errors.Is(err, context.Canceled) {
					group <- fmt.Errorf("%d: %w", i, err)
					return
				}
			case state.ExitCode != i || out.String() != fmt.Sprintln(i):
				group <- fmt.Errorf("%d: state %+v, output %q, error %w", i, state, out.String(), err)
				return
			}
			group <- nil
		}()
	}
	for range n {
		if err := <-group; err != nil {
			t.Error(err)
		}
	}
}
