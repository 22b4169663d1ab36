package run_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
)

var helpers = map[string]func() error{
	"allocate":     helperAllocate,
	"run":          helperRun,
	"dial":         helperDial,
	"unprivileged": helperUnprivileged,
	"look":         helperLook,
}

// markEnv marks the processes of one test: what is left is found by it.
const markEnv = "KILN_RUN_TEST_MARK"

func newMark() string { return markEnv + "=" + rand.Text() }

// marked returns the processes that have the mark in their environment.
func marked(t *testing.T, mark string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	var list []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(mark)) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			list = append(list, pid)
		}
	}
	return list
}

func wantNone(t *testing.T, mark string) {
	t.Helper()
	if left := marked(t, mark); len(left) > 0 {
		for _, pid := range left {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("left behind: %d %q", pid, line)
		}
	}
}

// waitNone waits for orphaned processes to vanish.
func waitNone(t *testing.T, mark string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); len(marked(t, mark)) > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	wantNone(t, mark)
}

// stubborn is a tree that does not want to end: a child that ignores signals, with children of its
// own, a daemon in a session of its own whose parents are gone, and a process that forks all the
// time.
const stubborn = `
trap '' TERM INT HUP
(trap '' TERM; sleep 1000 & sleep 1000) &
(setsid sh -c 'trap "" TERM; sleep 1000 & sleep 1000; sleep 1000' &) &
(trap '' TERM; while :; do (sleep 0.5 &); sleep 0.01; done) &
sleep 0.1
echo ready
`

// eachIsolation runs a test with and without namespaces: nothing about the end of a tree may depend
// on them.
func eachIsolation(t *testing.T, test func(t *testing.T, own bool)) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own processes %v", own), func(t *testing.T) {
			if own {
				needOwnProcesses(t)
			}
			test(t, own)
		})
	}
}

func needOwnProcesses(t *testing.T) {
	t.Helper()
	cmd := sh("true")
	cmd.OwnProcesses = true
	if _, err := cmd.Run(t.Context()); errors.Is(err, run.ErrNotSupported) && !kilntest.Required("pidns") {
		t.Skip("this system refuses process namespaces: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestTreeEndsWithContext(t *testing.T) { eachIsolation(t, testTreeEndsWithContext) }

func testTreeEndsWithContext(t *testing.T, own bool) {
	mark := newMark()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := sh(stubborn + "wait")
	cmd.OwnProcesses = own
	cmd.Env = append(cmd.Env, mark)
	before := 0
	cmd.Stdout = onFirstWrite(func() { before = len(marked(t, mark)); cancel() })
	cmd.Grace = 50 * time.Millisecond
	if _, err := cmd.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if before < 6 {
		t.Errorf("the tree had only %d processes", before)
	}
	wantNone(t, mark)
}

func TestTreeEndsWithCommand(t *testing.T) { eachIsolation(t, testTreeEndsWithCommand) }

func testTreeEndsWithCommand(t *testing.T, own bool) {
	mark := newMark()
	cmd := sh(stubborn + "exit 5")
	cmd.OwnProcesses = own
	cmd.Env = append(cmd.Env, mark)
	if state, err := cmd.Run(t.Context()); state.ExitCode != 5 {
		t.Errorf("state %+v, error %v", state, err)
	}
	wantNone(t, mark)
}

// helperRun runs the stubborn tree until it is killed.
func helperRun() error {
	cmd := sh(stubborn + "wait")
	cmd.OwnProcesses = os.Getenv("KILN_RUN_OWN") == "true"
	cmd.Env = append(cmd.Env, os.Getenv("KILN_RUN_MARK_FOR_CHILD"))
	cmd.Stdout = os.Stdout
	_, err := cmd.Run(context.Background())
	return err
}

// startHelper starts a process that runs the stubborn tree and returns it once the tree is there.
func startHelper(t *testing.T, mark string, own bool) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=run", "KILN_RUN_MARK_FOR_CHILD="+mark, fmt.Sprintf("KILN_RUN_OWN=%v", own))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestTreeEndsWithParent(t *testing.T) { eachIsolation(t, testTreeEndsWithParent) }

func testTreeEndsWithParent(t *testing.T, own bool) {
	mark := newMark()
	helper := startHelper(t, mark, own)
	// The helper has the mark too, in another variable.
	if n := len(marked(t, mark)); n < 7 {
		t.Fatalf("the tree had only %d processes", n)
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait()
	waitNone(t, mark)
}

// TestParentKilledEarly: the moment does not matter, also not one in which the supervisor
// has just been started.
func TestParentKilledEarly(t *testing.T) {
	mark := newMark()
	for range 20 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperEnv+"=run", "KILN_RUN_MARK_FOR_CHILD="+mark)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n, _ := rand.Int(rand.Reader, big.NewInt(60_000))
		time.Sleep(time.Duration(n.Int64()) * time.Microsecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	waitNone(t, mark)
}

// TestSupervisorKilled: the direct child dies with the supervisor, and Run says what happened.
func TestSupervisorKilled(t *testing.T) {
	mark := newMark()
	cmd := sh(`echo $PPID; exec sleep 1000`)
	cmd.Env = append(cmd.Env, mark)
	killed := make(chan error, 1)
	cmd.Stdout = writerFunc(func(p []byte) (int, error) {
		pid, err := strconv.Atoi(strings.TrimSpace(string(p)))
		if err == nil {
			var p *os.Process
			if p, err = os.FindProcess(pid); err == nil {
				err = p.Kill()
			}
		}
		killed <- err
		return len(p), nil
	})
	_, err := cmd.Run(t.Context())
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	if err == nil || !strings.Contains(err.Error(), "the supervising process ended") {
		t.Errorf("error %v", err)
	}
	waitNone(t, mark)
}

const allocation = 200 << 20

// helperAllocate uses memory, of its own or of a file that it shares with others, says so, and
// keeps it until its input ends.
func helperAllocate() error {
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANON // not of Go's heap, which the race detector makes larger
	if path := os.Getenv("KILN_RUN_MAP"); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		fd, flags = int(f.Fd()), unix.MAP_SHARED
	}
	block, err := unix.Mmap(fd, 0, allocation, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// allocators starts processes that use memory and returns when they all do.
func allocators(t *testing.T, n int, env ...string) []int {
	var pids []int
	for range n {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe") // it ends by itself
		cmd.Env = append(env, helperEnv+"=allocate")
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
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		if _, err := out.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, cmd.Process.Pid)
	}
	return pids
}

func TestTreeMemory(t *testing.T) {
	between := func(what string, got, least int64) {
		t.Helper()
		if got < least || got > least+least/2 {
			t.Errorf("%s: %d MB, want a little over %d MB", what, got>>20, least>>20)
		}
	}
	t.Run("own", func(t *testing.T) {
		pids := allocators(t, 3)
		if got := run.Descendants(); len(got) < 3 || !slices.Contains(got, pids[0]) || !slices.Contains(got, pids[2]) {
			t.Errorf("descendants %v, want %v", got, pids)
		}
		if got := run.DescendantsByParent(); !slices.Contains(got, pids[0]) || !slices.Contains(got, pids[2]) {
			t.Errorf("descendants by parent %v, want %v", got, pids)
		}
		between("three", run.TreeMemory(pids, 0), 3*allocation)
		if got := run.TreeMemory(pids, 5*allocation); got != 5*allocation {
			t.Errorf("an earlier peak became %d MB", got>>20)
		}
		between("one, and one that has ended", run.TreeMemory([]int{pids[0], 1 << 30}, 0), allocation)
	})
	t.Run("shared", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "shared")
		if err := os.WriteFile(path, make([]byte, allocation), 0o666); err != nil {
			t.Fatal(err)
		}
		between("three with the same pages", run.TreeMemory(allocators(t, 3, "KILN_RUN_MAP="+path), 0), allocation)
	})
}

func TestPeakMemory(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A grandchild, which is waited for by the shell and not by us.
	one := sh(`"$1"; true`, exe)
	one.Env = append(one.Env, helperEnv+"=allocate")
	state, err := one.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := state.PeakMemoryBytes; got < allocation || got > allocation*3/2 {
		t.Errorf("peak of a grandchild %d MB, want a little over %d MB", got>>20, allocation>>20)
	}
	small, err := sh(`true`).Run(t.Context())
	if err != nil || small.PeakMemoryBytes > 64<<20 {
		t.Errorf("peak of nothing %d MB, error %v", small.PeakMemoryBytes>>20, err)
	}
	if testing.Short() {
		return
	}
	// Two at once are a sum, which only sampling can see: they stay for longer than the longest
	// pause of it.
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	two := sh(`exec 3<&0; "$1" <&3 & "$1" <&3 & wait`, exe)
	ready := 0
	two.Env, two.Stdin = append(two.Env, helperEnv+"=allocate"), in
	two.Stdout = writerFunc(func(p []byte) (int, error) {
		if ready += bytes.Count(p, []byte("ready")); ready == 2 {
			time.AfterFunc(3*time.Second, func() { hold.Close() })
		}
		return len(p), nil
	})
	if state, err = two.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := state.PeakMemoryBytes; got < 2*allocation || got > 3*allocation {
		t.Errorf("peak of two %d MB, want about %d MB", got>>20, 2*allocation>>20)
	}
}

// helperDial connects to the address in the environment, and to itself through the loopback
// interface.
func helperDial() error {
	var d net.Dialer
	own, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	conn, err := d.DialContext(context.Background(), "tcp", own.Addr().String())
	if err != nil {
		fmt.Fprintln(os.Stdout, "no loopback")
	} else {
		conn.Close()
	}
	if conn, err = d.DialContext(context.Background(), "tcp", os.Getenv("KILN_RUN_DIAL")); err != nil {
		fmt.Fprintln(os.Stdout, "cut off")
		return nil
	}
	conn.Close()
	fmt.Fprintln(os.Stdout, "connected")
	return nil
}

func TestNoNetwork(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, tt := range []struct {
		off  bool
		want string
	}{{false, "connected\n"}, {true, "cut off\n"}} {
		var out bytes.Buffer
		cmd := run.Cmd{Argv: []string{exe}, Env: []string{helperEnv + "=dial", "KILN_RUN_DIAL=" + server.Addr().String()}, Stdout: &out, NoNetwork: tt.off}
		_, err := cmd.Run(t.Context())
		if errors.Is(err, run.ErrNotSupported) && !kilntest.Required("netns") {
			t.Skip("this system refuses network namespaces")
		}
		if err != nil || out.String() != tt.want {
			t.Errorf("NoNetwork %v: %q, %v; want %q", tt.off, out.String(), err, tt.want)
		}
	}
}

// helperUnprivileged runs a command without network as an ordinary user and shows its rights.
func helperUnprivileged() error {
	cmd := sh(`id -u; grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status; cat /sys/class/net/*/operstate`)
	cmd.NoNetwork, cmd.Stdout = true, os.Stdout
	_, err := cmd.Run(context.Background())
	if errors.Is(err, run.ErrNotSupported) {
		fmt.Fprintln(os.Stdout, "not supported")
		return nil
	}
	return err
}

// TestNoNetworkUnprivileged does it as an ordinary user: through a user namespace, in which the
// command gets no rights that it did not have.
func TestNoNetworkUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{helperEnv + "=unprivileged"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("the test binary is in a folder that others cannot read")
	}
	if strings.Contains(string(out), "not supported") && !kilntest.Required("netns") {
		t.Skip("this system refuses user namespaces")
	}
	want := "65534\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\n"
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("output %q, error %v; want %q", out, err, want)
	}
}

// look is what a hostile command does to find the environment of the process that started it: it
// reads all of /proc, and tries to get at the /proc behind it.
const (
	lookAround = `
show() {
	cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'
	ls -d /proc/[0-9]* | wc -l
}
show
`
	lookBehind = `
umount /proc 2>/dev/null && show
umount -l /proc 2>/dev/null && show
dir=$(mktemp -d)
mount -t proc proc $dir 2>/dev/null && cat $dir/[0-9]*/environ
rmdir $dir
unshare -r -m sh -c 'umount -l /proc && cat /proc/[0-9]*/environ' 2>/dev/null
nsenter -t 1 -m -p cat /proc/1/environ 2>/dev/null
grep -c . /proc/1/status
grep CapEff /proc/self/status
`
)

// helperLook runs that as this user. Its own environment has the secret, and it is closed to others
// as a kiln with secrets is.
func helperLook() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	cmd := sh(lookAround)
	if os.Getenv("KILN_RUN_OWN") != "false" { // it would take /proc from the machine
		cmd = sh(lookAround + lookBehind)
		cmd.OwnProcesses = true
	}
	cmd.NoNetwork, cmd.Stdout = os.Getenv("KILN_RUN_NETWORK") == "off", os.Stdout
	_, err := cmd.Run(context.Background())
	if open, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); open != 0 {
		return errors.New("the process stays open to others")
	}
	return err
}

func TestOwnProcesses(t *testing.T) {
	needOwnProcesses(t)
	for _, user := range []uint32{0, 65534} {
		for _, network := range []string{"on", "off"} {
			t.Run(fmt.Sprintf("user %d network %s", user, network), func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
				cmd.Env = []string{helperEnv + "=look", "PLANTED=sesame-sesame", "KILN_RUN_NETWORK=" + network}
				cmd.Dir = "/"
				if user != 0 && os.Getuid() == 0 {
					cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
				}
				out, err := cmd.CombinedOutput()
				if errors.Is(err, os.ErrPermission) {
					t.Skip("the test binary is in a folder that others cannot read")
				}
				if err != nil || strings.Contains(string(out), "sesame") {
					t.Fatalf("error %v, output:\n%s", err, out)
				}
			})
		}
	}
	// Without the namespace the same look finds it.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{helperEnv + "=look", "PLANTED=sesame-sesame", "KILN_RUN_OWN=false"}
	if out, err := cmd.CombinedOutput(); os.Getuid() == 0 && (err != nil || !strings.Contains(string(out), "sesame")) {
		t.Errorf("nothing was found where there is something: %v\n%s", err, out)
	}
}

func BenchmarkRun(b *testing.B) {
	for _, own := range []bool{false, true} {
		b.Run(fmt.Sprintf("own processes %v", own), func(b *testing.B) {
			cmd := sh("true")
			cmd.OwnProcesses = own
			for b.Loop() {
				if _, err := cmd.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
