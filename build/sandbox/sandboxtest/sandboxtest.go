// Package sandboxtest is the conformance suite of [sandbox.Maker]: what every implementation
// promises, tested with real commands. A command of the suite needs sh, bash, env and coreutils
// inside.
//
// It does not test what only one implementation has, such as derived images.
package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/run"
)

// Suite says what is tested and how it can be looked at from outside.
type Suite struct {
	// Sandboxes is the implementation.
	Sandboxes sandbox.Maker
	// Image is used for every environment.
	Image string
	// Isolated says that the inside has its own file system: mounts have other paths and can be
	// read-only.
	Isolated bool
	// Hides says that commands see no processes but their own.
	Hides bool
	// Limits says that memory and processes are limited.
	Limits bool
	// Driver returns a process, not started yet, that calls Drive with the same
	// sandboxes and with its standard input and output.
	Driver func(t *testing.T) *exec.Cmd
	// KillGroup kills the driver together with the programs that it has started and that did
	// not leave its process group.
	KillGroup func(driver *exec.Cmd) error
	// Left lists what exists of the environments of an owner whose names contain box.
	Left func(t *testing.T, owner, box string) []string
}

// PATH is that of every command of the suite.
const PATH = "PATH=/usr/local/bin:/usr/bin:/bin"

// waiting is how long a test waits for what must happen; it is never waited in full unless the test
// fails.
const waiting = 2 * time.Minute

// job is what a driver does.
type job struct {
	Spec sandbox.Spec
	Argv []string
}

// Drive reads one job from r, runs it and hands on its output. It is meant to be killed.
func Drive(ctx context.Context, sandboxes sandbox.Maker, r io.Reader, w io.Writer) error {
	var j job
	if err := json.NewDecoder(r).Decode(&j); err != nil {
		return err
	}
	box, err := sandboxes.Open(ctx, j.Spec)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w, "open"); err != nil {
		return err
	}
	_, err = box.Run(ctx, sandbox.Command{Argv: j.Argv, Env: []string{PATH}, Stdout: w})
	return errors.Join(err, box.Close(ctx))
}

// Run tests that an implementation does what [sandbox.Maker] and [sandbox.Box] say.
func Run(t *testing.T, s Suite) {
	t.Helper()
	type test struct {
		name string
		run  func(*testing.T, *env)
	}
	tests := []test{
		{"ExitCode", testExitCode},
		{"NotFound", testNotFound},
		{"Streams", testStreams},
		{"Streaming", testStreaming},
		{"BigOutput", testBigOutput},
		{"BadWriter", testBadWriter},
		{"Env", testEnv},
		{"Secrets", testSecrets},
		{"Hidden", testHidden},
		{"Dir", testDir},
		{"Mounts", testMounts},
		{"Inside", testInside},
		{"Network", testNetwork},
		{"Parallel", testParallel},
		{"Usage", testUsage},
		{"Cancel", testCancel},
		{"Close", testClose},
		{"Shell", testShell},
		{"Killed", testKilled},
		{"KilledAnytime", testKilledAnytime},
	}
	if s.Limits {
		tests = append(tests, test{"MemoryLimit", testMemoryLimit}, test{"ProcessLimit", testProcessLimit})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := &env{Suite: s, dir: t.TempDir()}
			e.owner = fmt.Sprintf("sandboxtest %d of %d", rand.Uint32(), os.Getpid())
			e.box = fmt.Sprintf("%s-%d", test.name, rand.Uint32())
			test.run(t, e)
			if left := s.Left(t, e.owner, e.box); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// env is what one test works with.
type env struct {
	Suite
	dir, owner, box string
}

func (e *env) spec() sandbox.Spec {
	return sandbox.Spec{
		Name: e.box, Owner: e.owner, Image: e.Image,
		Mounts: []sandbox.Mount{{Host: e.dir, Inside: "/inside/shared folder"}},
	}
}

func (e *env) open(t *testing.T, change func(*sandbox.Spec)) sandbox.Box {
	t.Helper()
	spec := e.spec()
	if change != nil {
		change(&spec)
	}
	box, err := e.Sandboxes.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return box
}

// output runs a shell script that must succeed.
func output(t *testing.T, box sandbox.Box, script string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := box.Run(t.Context(), shell(script, &out, args...)); err != nil {
		t.Fatalf("%+v", err)
	}
	return out.String()
}

func shell(script string, out io.Writer, args ...string) sandbox.Command {
	return sandbox.Command{Argv: append([]string{"sh", "-c", script, "sh"}, args...), Env: []string{PATH}, Stdout: out}
}

func testExitCode(t *testing.T, e *env) {
	box := e.open(t, nil)
	for _, code := range []int{0, 1, 3, 125, 126, 127} {
		outcome, err := box.Run(t.Context(), shell(`echo first; echo last >&2; exit "$1"`, io.Discard, fmt.Sprint(code)))
		if outcome.ExitCode != code || outcome.OOMKilled {
			t.Errorf("exit code %d, want %d; killed for memory: %v", outcome.ExitCode, code, outcome.OOMKilled)
		}
		failed, ok := errors.AsType[*run.Error](err)
		if ok != (code != 0) {
			t.Errorf("exit code %d: error %v", code, err)
		}
		if !ok {
			continue
		}
		if failed.State.ExitCode != code || failed.Cause != nil || failed.Err != nil || !slices.Contains(failed.Tail, "last") {
			t.Errorf("exit code %d: error %+v", code, failed)
		}
	}
}

func testNotFound(t *testing.T, e *env) {
	box := e.open(t, nil)
	outcome, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"there-is-no-such-program"}, Env: []string{PATH}})
	if _, ok := errors.AsType[*run.Error](err); !ok || outcome.ExitCode == 0 {
		t.Errorf("error %v, exit code %d", err, outcome.ExitCode)
	}
}

func testStreams(t *testing.T, e *env) {
	box := e.open(t, nil)
	var stdout, stderr bytes.Buffer
	cmd := shell("echo out; echo err >&2", &stdout)
	cmd.Stderr = &stderr
	if _, err := box.Run(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != "out\n" || stderr.String() != "err\n" {
		t.Errorf("standard output %q, error %q", &stdout, &stderr)
	}
	stdout.Reset()
	cmd.Stderr = nil
	if _, err := box.Run(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	if lines := slices.Sorted(strings.Lines(stdout.String())); !slices.Equal(lines, []string{"err\n", "out\n"}) {
		t.Errorf("both in one: %q", lines)
	}
	if _, err := box.Run(t.Context(), shell("echo nobody listens", nil)); err != nil {
		t.Errorf("without writers: %v", err)
	}
}

// until calls f as soon as text has been written.
type until struct {
	mu   sync.Mutex
	all  bytes.Buffer
	text string
	f    func()
}

func (u *until) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all.Write(p)
	if u.f != nil && strings.Contains(u.all.String(), u.text) {
		u.f()
		u.f = nil
	}
	return len(p), nil
}

// waitFor is a script that waits for a file.
const waitFor = `while [ ! -e "$1" ]; do sleep 0.05; done; `

func testStreaming(t *testing.T, e *env) {
	box := e.open(t, nil)
	seen := filepath.Join(e.dir, "seen")
	// It ends only if its first line arrives before its end.
	out := &until{text: "first\n", f: func() {
		if err := os.WriteFile(seen, nil, 0o666); err != nil {
			t.Error(err)
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), waiting)
	defer cancel()
	if _, err := box.Run(ctx, shell("echo first; "+waitFor+"echo second", out, box.Inside(seen))); err != nil {
		t.Fatal(err)
	}
	if got := out.all.String(); got != "first\nsecond\n" {
		t.Errorf("output %q", got)
	}
}

type counter struct {
	n     int64
	other int // bytes that are not x
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	c.other += len(p) - bytes.Count(p, []byte("x"))
	return len(p), nil
}

func testBigOutput(t *testing.T, e *env) {
	box := e.open(t, nil)
	const size = 32 << 20
	var out counter
	if _, err := box.Run(t.Context(), shell(`head -c "$1" /dev/zero | tr '\0' x`, &out, fmt.Sprint(size))); err != nil {
		t.Fatal(err)
	}
	if out.n != size || out.other != 0 {
		t.Errorf("%d bytes of %d, %d wrong", out.n, size, out.other)
	}
}

type badWriter struct{ err error }

func (w badWriter) Write([]byte) (int, error) { return 0, w.err }

func testBadWriter(t *testing.T, e *env) {
	box := e.open(t, nil)
	full := errors.New("the log is full")
	ctx, cancel := context.WithTimeout(t.Context(), waiting)
	defer cancel()
	_, err := box.Run(ctx, shell("while :; do echo line; sleep 0.01; done", badWriter{full}))
	if !errors.Is(err, full) {
		t.Errorf("error %v, want that of the writer", err)
	}
}

func testEnv(t *testing.T, e *env) {
	box := e.open(t, nil)
	given := []string{
		PATH, "EMPTY=", "SPACES=  a  b ", "LINES=a\nb\n", `QUOTES='"$HOME\`, "UNICODE=é→", "EQUAL=a=b", "COMMA=a,b",
	}
	var out bytes.Buffer
	if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"env", "-0"}, Env: given, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, kv := range slices.Concat(box.Env(), given) {
		key, value, _ := strings.Cut(kv, "=")
		want[key] = value
	}
	got := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\x00"), "\x00") {
		key, value, _ := strings.Cut(kv, "=")
		got[key] = value
	}
	differ(t, "variable", want, got)
}

// differ reports what is not the same in two maps.
func differ(t *testing.T, what string, want, got map[string]string) {
	t.Helper()
	for key, value := range want {
		if have, ok := got[key]; !ok || have != value {
			t.Errorf("%s %s: %q (there: %v), want %q", what, key, have, ok, value)
		}
	}
	for key, value := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s %s: %q, want none", what, key, value)
		}
	}
}

// testSecrets: a command has its secrets, and so far as they can be told apart from other processes
// nobody else: neither in arguments, nor in what it prints, nor in its error.
func testSecrets(t *testing.T, e *env) {
	box := e.open(t, nil)
	for _, network := range []bool{false, true} {
		mark := fmt.Sprintf("pl@nted %d", rand.Uint64())
		var out bytes.Buffer
		ready := filepath.Join(e.dir, "ready")
		go func() {
			defer os.WriteFile(ready, nil, 0o666) //nolint:errcheck // the command ends by itself
			for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(filepath.Join(e.dir, "running")); err == nil {
					break
				}
			}
			seen, _ := exec.CommandContext(t.Context(), "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\000' ' '").Output()
			if bytes.Contains(seen, []byte(mark)) {
				t.Errorf("network %v: the secret is in the arguments of a process", network)
			}
		}()
		_, err := box.Run(t.Context(), sandbox.Command{
			Argv: []string{"sh", "-c", `printf '%s|' "$TOKEN" "$OTHER" "$PLAIN" | tr '[:lower:]' '[:upper:]'; echo " $TOKEN"; touch running
				while [ ! -e ready ]; do sleep 0.05; done; cat; exit 3`},
			Env: []string{PATH, "PLAIN=plain"}, Secrets: []string{"TOKEN=" + mark, `OTHER= '"$x\`}, Network: network, Stdout: &out,
		})
		failed, ok := errors.AsType[*run.Error](err)
		if want := strings.ToUpper(mark) + `| '"$X\|PLAIN| ***` + "\n"; out.String() != want || !ok || failed.State.ExitCode != 3 {
			t.Errorf("network %v: got %q, want %q; %v", network, out.String(), want, err)
		}
		if strings.Contains(fmt.Sprintf("%+v", err), mark) {
			t.Errorf("network %v: the error has the secret: %+v", network, err)
		}
		for _, name := range []string{ready, filepath.Join(e.dir, "running")} {
			_ = os.Remove(name)
		}
	}
}

// testHidden: a command cannot read the environment of the process that started it.
func testHidden(t *testing.T, e *env) {
	if !e.Hides {
		t.Skip("this system cannot hide processes")
	}
	box := e.open(t, nil)
	for _, network := range []bool{false, true} {
		var out bytes.Buffer
		if _, err := box.Run(t.Context(), sandbox.Command{
			Argv: []string{"sh", "-c", `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\000' '\n'; ls -d /proc/[0-9]* | sed 's/.*/a process/'`}, Env: []string{PATH}, Network: network, Stdout: &out,
		}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), filepath.Base(os.Args[0])) || strings.Count(out.String(), "\na process") > 5 {
			t.Errorf("network %v: it sees\n%s", network, out.String())
		}
	}
}

func testDir(t *testing.T, e *env) {
	sub := filepath.Join(e.dir, "sub folder", "x")
	if err := os.MkdirAll(sub, 0o777); err != nil {
		t.Fatal(err)
	}
	box := e.open(t, nil)
	for _, dir := range []string{"", e.dir, sub} {
		var out bytes.Buffer
		if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"pwd", "-P"}, Dir: dir, Env: []string{PATH}, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		want := dir
		if dir == "" {
			want = e.dir
		}
		if got := strings.TrimSpace(out.String()); got != box.Inside(want) {
			t.Errorf("in %q it runs in %q, want %q", dir, got, box.Inside(want))
		}
	}
}

func testMounts(t *testing.T, e *env) {
	sources := filepath.Join(t.TempDir(), `source, "quoted" = odd`)
	if err := os.Mkdir(sources, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(sources, "file")
	if err := os.WriteFile(file, []byte("from the host"), 0o666); err != nil {
		t.Fatal(err)
	}
	box := e.open(t, func(spec *sandbox.Spec) {
		spec.Mounts = append(spec.Mounts,
			sandbox.Mount{Host: sources, Inside: "/inside/sources", ReadOnly: true},
			sandbox.Mount{Host: file, Inside: "/opt/single", ReadOnly: true})
	})
	got := output(t, box, `cat "$1"; printf 'from the inside' >"$2"`, box.Inside(file), box.Inside(filepath.Join(e.dir, "made")))
	if got != "from the host" {
		t.Errorf("read %q", got)
	}
	made, err := os.ReadFile(filepath.Join(e.dir, "made"))
	if err != nil || string(made) != "from the inside" {
		t.Errorf("written inside: %q, %v", made, err)
	}
	if err := os.Remove(filepath.Join(e.dir, "made")); err != nil {
		t.Errorf("remove what was made inside: %v", err)
	}
	if !e.Isolated {
		return
	}
	for _, script := range []string{`: >"$1/new"`, `rm "$1/file"`, `: >/opt/single`, `cat "$2/file"`} {
		if _, err := box.Run(t.Context(), shell(script, io.Discard, box.Inside(sources), sources)); err == nil {
			t.Errorf("%s: no error", script)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "from the host" {
		t.Errorf("the read-only file is now %q, %v", data, err)
	}
}

func testInside(t *testing.T, e *env) {
	nested := filepath.Join(e.dir, "nested")
	if err := os.Mkdir(nested, 0o777); err != nil {
		t.Fatal(err)
	}
	box := e.open(t, func(spec *sandbox.Spec) {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Host: nested, Inside: "/nested"})
	})
	want := map[string]string{
		e.dir:                              "/inside/shared folder",
		filepath.Join(e.dir, "a", "b"):     "/inside/shared folder/a/b",
		nested:                             "/nested",
		filepath.Join(nested, "..hidden"):  "/nested/..hidden",
		filepath.Join(e.dir, "nested-not"): "/inside/shared folder/nested-not",
	}
	got := map[string]string{}
	for host := range maps.Keys(want) {
		got[host] = box.Inside(host)
		if !e.Isolated {
			want[host] = host
		}
	}
	differ(t, "path inside", want, got)
	for _, outside := range []string{filepath.Dir(e.dir), e.dir + "-not"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Inside(%q) does not panic", outside)
				}
			}()
			box.Inside(outside)
		}()
	}
}

// interfaces is a script that prints the network interfaces other than loopback.
const interfaces = `sed -n '3,$s/^ *\([^:]*\):.*/\1/p' /proc/self/net/dev | grep -v '^lo$' || :`

func testNetwork(t *testing.T, e *env) {
	box := e.open(t, nil)
	if !box.NetworkOff() {
		t.Skip("this system cannot cut commands off the network")
	}
	if got := output(t, box, interfaces); got != "" {
		t.Errorf("interfaces without network: %q", got)
	}
	cmd := shell(interfaces, nil)
	var out bytes.Buffer
	cmd.Network, cmd.Stdout = true, &out
	if _, err := box.Run(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	if own, err := net.Interfaces(); err == nil && len(own) > 1 && out.Len() == 0 {
		t.Error("no interface with network, and the host has some")
	}

	// A server of this machine cannot be reached either, under any of its addresses.
	server, err := new(net.ListenConfig).Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"127.0.0.1"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			hosts = append(hosts, ip.IP.String())
		}
	}
	const connect = `port=$0; for host; do if (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; then echo "$host"; fi; done`
	for _, network := range []bool{false, true} {
		var out bytes.Buffer
		_, err := box.Run(t.Context(), sandbox.Command{
			Argv: append([]string{"bash", "-c", connect, port}, hosts...), Env: []string{PATH}, Network: network, Stdout: &out,
		})
		if err != nil {
			t.Fatal(err)
		}
		if !network && out.Len() > 0 {
			t.Errorf("without network it reaches %q", &out)
		}
		// Inside, the loopback address is its own; only the host's sandboxes must reach the server.
		if network && !e.Isolated && out.Len() == 0 {
			t.Errorf("with network it reaches none of %q", hosts)
		}
	}
}

func testParallel(t *testing.T, e *env) {
	box := e.open(t, nil)
	const n = 4
	// Each ends only when all have begun.
	const script = `: >"$1/$2"; while [ "$(ls "$1" | wc -l)" -lt "$3" ]; do sleep 0.05; done; echo "$2"`
	ctx, cancel := context.WithTimeout(t.Context(), waiting)
	defer cancel()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var out bytes.Buffer
			_, err := box.Run(ctx, shell(script, &out, box.Inside(e.dir), fmt.Sprint(i), fmt.Sprint(n)))
			if err != nil || out.String() != fmt.Sprintln(i) {
				t.Errorf("command %d: %q, %v", i, &out, err)
			}
		})
	}
	all.Wait()
}

// hold is a bash script that has $1 MiB of memory in use, says so and waits for the file $2.
const hold = `x=$(head -c "$(($1 << 20))" /dev/zero | tr '\0' x); echo holding; while [ ! -e "$2" ]; do sleep 0.05; done`

func testUsage(t *testing.T, e *env) {
	box := e.open(t, nil)
	ready := make(chan struct{})
	release := filepath.Join(e.dir, "release")
	// The counters are looked at many times a second; a second is enough for a look on a busy
	// machine.
	go func() {
		<-ready
		time.Sleep(time.Second)
		if err := os.WriteFile(release, nil, 0o666); err != nil {
			t.Error(err)
		}
	}()
	outcome, err := box.Run(t.Context(), sandbox.Command{
		Argv: []string{"bash", "-c", hold, "bash", "64", box.Inside(release)}, Env: []string{PATH},
		Stdout: &until{text: "holding", f: func() { close(ready) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	if outcome.PeakMemoryBytes < 64<<20 || outcome.PeakMemoryBytes > 1<<30 {
		t.Errorf("peak of %d bytes, want a little more than %d", outcome.PeakMemoryBytes, 64<<20)
	}
	if outcome.CPU <= 0 || outcome.Wall < time.Second {
		t.Errorf("processor time %v, wall time %v", outcome.CPU, outcome.Wall)
	}
}

func testMemoryLimit(t *testing.T, e *env) {
	const limit = 48 << 20
	box := e.open(t, func(spec *sandbox.Spec) { spec.MemoryBytes = limit })
	never := filepath.Join(e.dir, "never")

	// The command itself is killed, and its counters with it.
	outcome, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"bash", "-c", "exec tail /dev/zero"}, Env: []string{PATH}})
	if err == nil || !outcome.OOMKilled || outcome.PeakMemoryBytes < limit {
		t.Errorf("main process: killed for memory: %v, peak %d, error %v", outcome.OOMKilled, outcome.PeakMemoryBytes, err)
	}
	// A child is killed and the command goes on for a moment, as build programs do.
	outcome, err = box.Run(t.Context(), shell(`tail /dev/zero; echo "child: $?"; sleep 1; exit 3`, io.Discard))
	if err == nil || !outcome.OOMKilled || outcome.ExitCode != 3 {
		t.Errorf("child: killed for memory: %v, exit code %d, error %v", outcome.OOMKilled, outcome.ExitCode, err)
	}
	// Enough memory is not a reason.
	outcome, err = box.Run(t.Context(), shell(`exit 3`, io.Discard, box.Inside(never)))
	if err == nil || outcome.OOMKilled {
		t.Errorf("plain failure: killed for memory: %v, error %v", outcome.OOMKilled, err)
	}
	// A file that is larger than the limit can be written and read: cache does not count.
	out := output(t, box, `head -c 100000000 /dev/zero >"$1/big" && cat "$1/big" | wc -c && rm "$1/big"`, box.Inside(e.dir))
	if strings.TrimSpace(out) != "100000000" {
		t.Errorf("read %q bytes of a large file", out)
	}
}

func testProcessLimit(t *testing.T, e *env) {
	box := e.open(t, func(spec *sandbox.Spec) { spec.PIDs = 20 })
	const fork = `for i in $(seq 40); do sleep 60 & done; echo all`
	var out bytes.Buffer
	_, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", fork}, Env: []string{PATH}, Stdout: &out})
	if err == nil || strings.Contains(out.String(), "all") {
		t.Errorf("40 processes where 20 may be: %v, %q", err, &out)
	}
}

// startForever runs a command that would never end, with a daemon below it, and returns when it has
// begun.
func (e *env) startForever(ctx context.Context, t *testing.T, box sandbox.Box) (result func() error) {
	t.Helper()
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := box.Run(ctx, sandbox.Command{Argv: forever, Env: []string{PATH}, Stdout: &until{text: "ready", f: func() { close(ready) }}})
		ended <- err
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	case <-time.After(waiting):
		t.Fatal("it does not begin")
	}
	return func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(waiting):
			return errors.New("it does not end")
		}
	}
}

var forever = []string{"bash", "-c", `setsid sleep 1000 >/dev/null 2>&1 & echo ready; while :; do sleep 1000; done`}

func testCancel(t *testing.T, e *env) {
	box := e.open(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	result := e.startForever(ctx, t, box)
	if left := e.Left(t, e.owner, e.box); len(left) == 0 {
		t.Error("Left does not see a running command")
	}
	reason := errors.New("the user has had enough")
	cancel(reason)
	err := result()
	failed, ok := errors.AsType[*run.Error](err)
	if !ok || !errors.Is(err, reason) || failed.Cause == nil {
		t.Errorf("error %v, want one with the cause", err)
	}
	if left := e.Left(t, e.owner, e.box); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	// The environment is still of use, and what is canceled beforehand does not begin.
	if got := output(t, box, "echo again"); got != "again\n" {
		t.Errorf("after a canceled command: %q", got)
	}
	if _, err := box.Run(ctx, shell(`: >"$1/begun"`, nil, box.Inside(e.dir))); !errors.Is(err, reason) {
		t.Errorf("canceled beforehand: %v", err)
	}
	if _, err := os.Stat(filepath.Join(e.dir, "begun")); err == nil {
		t.Error("a command began although it was canceled")
	}
}

func testClose(t *testing.T, e *env) {
	box := e.open(t, nil)
	result := e.startForever(t.Context(), t, box)
	for range 2 {
		if err := box.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if left := e.Left(t, e.owner, e.box); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	if err := result(); err == nil {
		t.Error("a command in a closed environment succeeds")
	}
	if _, err := box.Run(t.Context(), shell("echo late", nil)); err == nil {
		t.Error("a command begins in a closed environment")
	}
	if _, err := os.Stat(e.dir); err != nil {
		t.Errorf("the mounted folder: %v", err)
	}
}

func testShell(t *testing.T, e *env) {
	box := e.open(t, nil)
	argv := box.Shell(e.dir, []string{PATH, "MARK=a b"})
	if len(argv) == 0 || !slices.Contains(argv, "MARK=a b") {
		t.Errorf("command %q", argv)
	}
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Error(err)
	}
}

// drive starts a driver with a job, and returns it with its output.
func (e *env) drive(t *testing.T, out io.Writer) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(job{Spec: e.spec(), Argv: forever})
	if err != nil {
		t.Fatal(err)
	}
	driver := e.Driver(t)
	driver.Stdin, driver.Stdout, driver.Stderr = bytes.NewReader(data), out, os.Stderr
	// What the driver leaves behind may keep its output open.
	driver.WaitDelay = time.Second
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	return driver
}

func kill(t *testing.T, driver *exec.Cmd, how func(*exec.Cmd) error) {
	t.Helper()
	if err := how(driver); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	_ = driver.Wait() // It was killed.
}

func alone(driver *exec.Cmd) error { return driver.Process.Kill() }

func (e *env) sweep(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waiting)
	defer cancel()
	n, err := e.Sandboxes.Sweep(ctx, e.owner)
	if err != nil {
		t.Error(err)
	}
	if left := e.Left(t, e.owner, e.box); len(left) > 0 {
		t.Errorf("left behind after Sweep, which counted %d: %q", n, left)
	}
	return n
}

// testKilled kills the process that has a command running, and sweeps; the command of another owner
// goes on.
func testKilled(t *testing.T, e *env) {
	other := *e
	other.owner, other.box = e.owner+" other", "Other"+e.box
	box := other.open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := other.startForever(ctx, t, box)

	ready := make(chan struct{})
	driver := e.drive(t, &until{text: "ready", f: func() { close(ready) }})
	select {
	case <-ready:
	case <-time.After(waiting):
		t.Error("the driver's command does not begin")
	}
	kill(t, driver, alone)
	e.sweep(t)
	if n := e.sweep(t); n != 0 {
		t.Errorf("the second Sweep finds %d things", n)
	}

	if left := e.Left(t, other.owner, other.box); len(left) == 0 {
		t.Error("the command of another owner is gone")
	}
	cancel()
	if err := result(); !errors.Is(err, context.Canceled) {
		t.Errorf("the command of another owner: %v", err)
	}
}

// testKilledAnytime kills the process, alone and together with the programs it was waiting for, at
// moments spread over its whole beginning. Whatever it was doing, nothing is left after Sweep, not
// even later.
func testKilledAnytime(t *testing.T, e *env) {
	ready := make(chan struct{})
	start := time.Now()
	driver := e.drive(t, &until{text: "ready", f: func() { close(ready) }})
	select {
	case <-ready:
	case <-time.After(waiting):
		t.Error("the driver's command does not begin")
	}
	whole := time.Since(start)
	kill(t, driver, alone)
	e.sweep(t)

	const moments = 4
	for i := range moments {
		for _, how := range []func(*exec.Cmd) error{alone, e.KillGroup} {
			driver := e.drive(t, io.Discard)
			time.Sleep(whole * time.Duration(2*i+1) / (2 * moments))
			kill(t, driver, how)
			e.sweep(t)
		}
	}
	if n := e.sweep(t); n != 0 {
		t.Errorf("the last Sweep finds %d things", n)
	}
}
