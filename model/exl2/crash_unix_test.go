//go:build unix

package exl2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

	Reshard    string // instead of a compile: a model to reshard into Out, or in place if that is empty
	ShardBytes int64
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

func (c childTask) plan() (*Plan, error) {
	if c.Reshard != "" {
		return PlanReshard(context.Background(), c.Reshard, ReshardOptions{Out: c.Out, ShardBytes: c.ShardBytes})
	}
	inv, ps := ReadInventory(context.Background(), Options{WorkDir: c.Work})
	if err := ps.Err(); err != nil {
		return nil, err
	}
	return inv.Plan(PlanOptions{Out: c.Out, Mode: c.Mode, ShardBytes: c.ShardBytes})
}

func (c childTask) run() error {
	p, err := c.plan()
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

// killReshard divides models anew, in place and into another folder, with kill -9 at random moments
// until want of them hit. The model that is resharded in place is whole at every moment.
func killReshard(t *testing.T, want int) {
	dir := t.TempDir()
	fx := &fixture{Seed: 11, Arch: "MixtralForCausalLM", Limit: 0.03, Set: map[string]any{"num_local_experts": 3, "num_hidden_layers": 3}}
	fx.make(t, dir)
	original := filepath.Join(dir, "original")
	if err := compileFixture(t, fx, PlanOptions{Out: original}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(2, uint64(time.Now().UnixNano())))
	kills, finished := 0, 0
	for round := 0; kills < want; round++ {
		size := int64(10_000 + r.IntN(40_000))
		wanted := filepath.Join(dir, "wanted-"+strconv.Itoa(round))
		reshard(t, original, ReshardOptions{Out: wanted, ShardBytes: size}, WriteOptions{})
		model := filepath.Join(dir, "model-"+strconv.Itoa(round))
		if err := os.CopyFS(model, os.DirFS(original)); err != nil {
			t.Fatal(err)
		}
		task := childTask{Reshard: model, ShardBytes: size, NoHash: round%4 == 3}
		out := model
		if round%2 == 1 {
			task.Out = filepath.Join(dir, "out-"+strconv.Itoa(round))
			out = task.Out
		}
		for inRound := 0; ; {
			task.KillAt = 0
			byTime := r.IntN(2) == 0
			if !byTime && inRound < 20 {
				task.KillAt = 1 + r.IntN(40)
			}
			cmd := task.start(t)
			if byTime && inRound < 20 {
				time.Sleep(time.Duration(r.IntN(120)) * time.Millisecond)
				_ = cmd.Process.Kill()
			}
			err := cmd.Wait()
			for _, folder := range []string{model, out} {
				if _, err := os.Lstat(folder); err != nil && folder == out && folder != model {
					continue
				}
				d, err := Diff(t.Context(), original, folder, DiffOptions{})
				if err != nil || !d.Same() {
					t.Fatalf("round %d after %d kills: %s: %v %+v", round, inRound, folder, err, d)
				}
			}
			if killed(err) {
				kills++
				inRound++
				stage := filepath.Join(dir, "."+filepath.Base(out)+".kiln-partial")
				_, published := os.Lstat(task.Out)
				if _, err := os.Stat(filepath.Join(stage, journalName)); task.Out != "" && published == nil && errors.Is(err, fs.ErrNotExist) {
					_ = os.Remove(stage) // killed at the very end, with nothing left to do
					break
				}
				continue
			}
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			break
		}
		finished++
		got, want := hashDir(t, out), hashDir(t, wanted)
		if task.NoHash { // sizes only in its manifest
			delete(got, ManifestName)
			delete(want, ManifestName)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("round %d: files differ (-want +got):\n%s", round, diff)
		}
		for _, pattern := range []string{".model-*", ".out-*"} {
			if left, _ := filepath.Glob(filepath.Join(dir, pattern)); len(left) > 0 {
				t.Fatalf("left behind: %v", left)
			}
		}
		for _, d := range []string{wanted, model, out} {
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d kills in %d runs that ended with the same files", kills, finished)
}

func TestReshardKilledAtRandom(t *testing.T) { killReshard(t, 12) }

func TestE2EReshardKilledAtRandom(t *testing.T) {
	needE2E(t)
	killReshard(t, 150)
}

// killWorkingFolder compiles into working folders with kill -9 at random moments.
func killWorkingFolder(t *testing.T, want int) {
	dir := t.TempDir()
	fx := &fixture{Seed: 11, Arch: "MixtralForCausalLM", Limit: 0.03, Set: map[string]any{"num_local_experts": 3, "num_hidden_layers": 3}}
	fx.make(t, dir)
	fx.setJob(t, "compile_full", nil)
	inputs := hashDir(t, fx.work)
	r := rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano())))
	kills, finished := 0, 0
	for round := 0; kills < want; round++ {
		size := int64(20_000 + r.IntN(40_000))
		whole := filepath.Join(dir, "whole")
		if err := compileFixture(t, fx, PlanOptions{Out: whole, Mode: Compat, ShardBytes: size}, WriteOptions{Replace: true}); err != nil {
			t.Fatal(err)
		}
		for inRound := 0; ; {
			task := childTask{Work: fx.work, ShardBytes: size}
			byTime := r.IntN(2) == 0
			if !byTime && inRound < 20 {
				task.KillAt = 1 + r.IntN(40)
			}
			cmd := task.start(t)
			if byTime && inRound < 20 {
				time.Sleep(time.Duration(r.IntN(120)) * time.Millisecond)
				_ = cmd.Process.Kill()
			}
			if err := cmd.Wait(); killed(err) {
				kills++
				inRound++
				if left, _ := filepath.Glob(filepath.Join(fx.work, "output*")); len(left) > 0 {
					if _, err := os.Stat(filepath.Join(fx.work, ".kiln-partial", journalName)); err != nil {
						break // killed at the very end
					}
				}
				continue
			} else if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			break
		}
		finished++
		wanted := maps.Clone(inputs)
		for name, sum := range hashDir(t, whole) {
			if strings.HasPrefix(name, "output") {
				wanted[name] = sum
			}
		}
		if diff := cmp.Diff(wanted, hashDir(t, fx.work)); diff != "" {
			t.Fatalf("round %d: files differ (-want +got):\n%s", round, diff)
		}
		paths, _ := filepath.Glob(filepath.Join(fx.work, "output*"))
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		_ = os.RemoveAll(filepath.Join(fx.work, ".kiln-partial"))
	}
	t.Logf("%d kills in %d runs that ended with the same files", kills, finished)
}

func TestWorkingFolderKilledAtRandom(t *testing.T) { killWorkingFolder(t, 12) }

func TestE2EWorkingFolderKilledAtRandom(t *testing.T) {
	needE2E(t)
	killWorkingFolder(t, 100)
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
