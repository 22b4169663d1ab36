package fsx_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// helperEnv makes the test binary play a part in another process: see helpers.
const helperEnv = "KILN_FSX_HELPER"

var helpers = map[string]func(path string) error{
	"write":   helperWrite,
	"publish": helperPublish,
	"hold":    helperHold,
	"count":   helperCount,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(ctx context.Context, name, path string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], path)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// version returns content that shows any damage: a number, filler of a length
// that depends on it, and the hash of both.
func version(n int) []byte {
	text := fmt.Sprintf("%d\n%s\n", n, strings.Repeat(strconv.Itoa(n%10), 1000+n*7919%200_000))
	sum := sha256.Sum256([]byte(text))
	return []byte(text + hex.EncodeToString(sum[:]))
}

func parseVersion(text []byte) (int, error) {
	first, _, _ := strings.Cut(string(text), "\n")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0, err
	}
	if string(text) != string(version(n)) {
		return 0, fmt.Errorf("content of version %d is damaged", n)
	}
	return n, nil
}

func helperWrite(path string) error {
	for n := 1; ; n++ {
		if err := fsx.WriteFile(path, version(n), 0o666); err != nil {
			return err
		}
		fmt.Println(n) //nolint:forbidigo // The parent reads it.
	}
}

func helperPublish(path string) error {
	for n := 1; ; n++ {
		dir, err := fsx.MkdirTemp(path)
		if err != nil {
			return err
		}
		for _, name := range []string{"a", "b", "c"} {
			if err := os.WriteFile(filepath.Join(dir, name), version(n), 0o666); err != nil {
				return err
			}
		}
		if err := fsx.RenameDir(dir, path, fsx.RenameDirOptions{Replace: true}); err != nil {
			return err
		}
		fmt.Println(n) //nolint:forbidigo // The parent reads it.
	}
}

// killRandomly runs a helper, kills it after a random time and returns the last
// version that the helper said was done.
func killRandomly(t *testing.T, name, path string) int {
	t.Helper()
	cmd := helper(t.Context(), name, path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan int)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			n, _ := strconv.Atoi(scan.Text())
			lines <- n
		}
	}()
	last := <-lines // the first version is there
	timer := time.After(time.Duration(rand.IntN(30_000)) * time.Microsecond)
	for waiting := true; waiting; {
		select {
		case n, open := <-lines:
			if !open {
				t.Fatal("the helper ended by itself")
			}
			last = n
		case <-timer:
			waiting = false
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for n := range lines {
		last = n
	}
	_ = cmd.Wait()
	return last
}

func rounds(t *testing.T) int {
	if testing.Short() {
		return 3
	}
	return 25
}

func TestKillDuringWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for range rounds(t) {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		said := killRandomly(t, "write", path)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseVersion(text)
		if err != nil {
			t.Fatal(err)
		}
		// The helper may die between the rename and its line.
		if got != said && got != said+1 {
			t.Fatalf("version %d, but the helper had finished %d", got, said)
		}
	}
	removeLeftovers(t, dir, "state")
}

func TestKillDuringRenameDir(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot exchange two folders in one step")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	for range rounds(t) {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		said := killRandomly(t, "publish", path)
		entries, err := os.ReadDir(path)
		if err != nil || len(entries) != 3 {
			t.Fatalf("%d files: %v", len(entries), err)
		}
		for _, entry := range entries {
			text, err := os.ReadFile(filepath.Join(path, entry.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := parseVersion(text); err != nil || got != said && got != said+1 {
				t.Fatalf("%s: version %d, but the helper had finished %d: %v", entry.Name(), got, said, err)
			}
		}
	}
	removeLeftovers(t, dir, "model")
}

// removeLeftovers checks that everything beside the named file is recognisable as
// unfinished.
func removeLeftovers(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != name && !fsx.IsTemp(entry.Name()) {
			t.Errorf("unexpected %s", entry.Name())
		}
	}
}

func helperHold(path string) error {
	if _, err := fsx.TryLock(path); err != nil {
		return err
	}
	fmt.Println("locked") //nolint:forbidigo // The parent reads it.
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func TestLockNamesOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	cmd := helper(t.Context(), "hold", path)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}

	_, err = fsx.TryLock(path)
	var locked *fsx.LockedError
	if !errors.As(err, &locked) || !errors.Is(err, fsx.ErrLocked) {
		t.Fatalf("TryLock: %v", err)
	}
	host, _ := os.Hostname()
	if locked.Owner.PID != cmd.Process.Pid || locked.Owner.Host != host || time.Since(locked.Owner.Time) > time.Minute {
		t.Errorf("owner %+v, want process %d on %s", locked.Owner, cmd.Process.Pid, host)
	}
	want := fmt.Sprintf("%s is locked by process %d on %s since ", path, cmd.Process.Pid, host)
	if !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %q, want it to start with %q", err, want)
	}

	boom := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(boom) })
	if _, err := fsx.Lock(ctx, path); !errors.Is(err, boom) || !errors.Is(err, fsx.ErrLocked) {
		t.Errorf("Lock with a context that ends: %v", err)
	}

	// A killed owner holds nothing, and its name in the file does not count.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	lock, err := fsx.Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fsx.TryLock(path); !errors.As(err, &locked) || locked.Owner.PID != os.Getpid() {
		t.Errorf("lock of this process: %v", err)
	}
	if err := errors.Join(lock.Unlock(), lock.Unlock()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != 0 {
		t.Errorf("after Unlock: %q, %v", text, err)
	}
	if _, err := fsx.TryLock(filepath.Join(path, "below")); err == nil || errors.Is(err, fsx.ErrLocked) {
		t.Errorf("impossible path: %v", err)
	}
}

// TestLockedErrorWithoutOwner: a lock file without a readable name.
func TestLockedErrorWithoutOwner(t *testing.T) {
	err := &fsx.LockedError{Path: "x.lock"}
	if got, want := err.Error(), "x.lock is locked by another process"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

const counts = 200

// helperCount increments a number in a file without any protection but the lock.
func helperCount(path string) error {
	for range counts {
		lock, err := fsx.Lock(context.Background(), path+".lock")
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		n, _ := strconv.Atoi(string(text))
		if err := os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o666); err != nil {
			return err
		}
		if err := lock.Unlock(); err != nil {
			return err
		}
	}
	return nil
}

func TestLockContention(t *testing.T) {
	path := filepath.Join(t.TempDir(), "count")
	var cmds []*exec.Cmd
	for range 2 {
		cmd := helper(t.Context(), "count", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	if err := helperCount(path); err != nil {
		t.Error(err)
	}
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if text, _ := os.ReadFile(path); string(text) != strconv.Itoa(3*counts) {
		t.Errorf("counted to %s, want %d", text, 3*counts)
	}
}
