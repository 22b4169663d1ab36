//go:build unix

package exl2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// childEnv makes the test binary compile a fixture and end; see TestMain.
const childEnv = "KILN_EXL2_TEST_CHILD"

// childTask is what the child does, as JSON in the environment.
type childTask struct {
	Work   string
	Out    string
	Mode   Mode
	NoHash bool
	KillAt int // the child kills itself at this call of Progress; 0 means never
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		var task childTask
		if err := json.Unmarshal([]byte(text), &task); err != nil {
			panic(err)
		}
		if err := task.run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (c childTask) run() error {
	inv, ps := ReadInventory(context.Background(), Options{WorkDir: c.Work})
	if err := ps.Err(); err != nil {
		return err
	}
	p, err := inv.Plan(PlanOptions{Out: c.Out, Mode: c.Mode})
	if err != nil {
		return err
	}
	calls := 0
	_, err = Write(context.Background(), p, WriteOptions{NoHash: c.NoHash, BufferBytes: 4096, Progress: func(Progress) {
		if calls++; calls == c.KillAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		time.Sleep(100 * time.Microsecond)
	}})
	return err
}

// start runs the task in a process of its own.
func (c childTask) start(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// killLoop compiles with kill -9 at random moments until want of them hit. Whenever the target
// exists it must be complete, and every run that ends must give the same bytes.
func killLoop(t *testing.T, want int) {
	dir := t.TempDir()
	fx := &fixture{Seed: 11, Arch: "MixtralForCausalLM", Limit: 0.03, Set: map[string]any{"num_local_experts": 3, "num_hidden_layers": 3}}
	fx.make(t, dir)
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	kills, finished, resumedRuns := 0, 0, 0
	for round := 0; kills < want; round++ {
		mode := []Mode{Default, Compat}[round%2]
		whole := filepath.Join(dir, "whole-"+strconv.Itoa(round))
		out := filepath.Join(dir, "out-"+strconv.Itoa(round))
		if err := compileFixture(t, fx, PlanOptions{Out: whole, Mode: mode}, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		chunks := 0
		for _, s := range planFixture(t, fx, PlanOptions{Out: out, Mode: mode}).Shards {
			chunks += int(s.Size/4096) + 1
		}
		inRound := 0
		for {
			task := childTask{Work: fx.work, Out: out, Mode: mode}
			byTime := r.IntN(2) == 0
			if !byTime && inRound < 30 {
				task.KillAt = 1 + r.IntN(chunks/2)
			}
			cmd := task.start(t)
			if byTime && inRound < 30 {
				time.Sleep(time.Duration(r.IntN(120)) * time.Millisecond)
				_ = cmd.Process.Kill()
			}
			err := cmd.Wait()
			_, statErr := os.Lstat(out)
			published := statErr == nil
			if published {
				if diff := diffDirs(t, whole, out); diff != "" {
					t.Fatalf("round %d after %d kills: %s", round, inRound, diff)
				}
			} else if !errors.Is(statErr, fs.ErrNotExist) {
				t.Fatal(statErr)
			}
			if killed(err) {
				kills++
				inRound++
				stage := filepath.Join(dir, "."+filepath.Base(out)+".kiln-partial")
				if _, err := os.Stat(filepath.Join(stage, journalName)); published && errors.Is(err, fs.ErrNotExist) {
					_ = os.Remove(stage) // killed at the very end, with nothing left to do
					break
				}
				continue // if it is published, the next run only cleans up
			}
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			break
		}
		finished++
		if inRound > 0 {
			resumedRuns++
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".out-*")); len(left) > 0 {
			t.Fatalf("left behind: %v", left)
		}
		for _, d := range []string{whole, out} {
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d kills in %d runs that ended with the same bytes, %d of them after a kill", kills, finished, resumedRuns)
}

func TestKilledAtRandom(t *testing.T) { killLoop(t, 12) }

func TestE2EKilledAtRandom(t *testing.T) {
	needE2E(t)
	killLoop(t, 150)
}

func TestReadOnlyTarget(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	parent := filepath.Join(dir, "locked")
	if err := os.Mkdir(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // nothing is read-only for root; a file in the way is
		parent = filepath.Join(dir, "file")
		if err := os.WriteFile(parent, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := planFixture(t, fx, PlanOptions{Out: filepath.Join(parent, "out")})
	_, err := Write(t.Context(), p, WriteOptions{})
	if err == nil {
		t.Fatal("written")
	}
	t.Log(err)
}
