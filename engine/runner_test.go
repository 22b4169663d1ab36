package engine_test

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/engine/enginetest"
	"github.com/kiln-build/kiln/internal/run"
)

func TestLocalConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{New: func(*testing.T) engine.Runner { return engine.Local(enginetest.Perform) }})
}

// workerDirEnv names the folder of the attempt that a worker process makes.
const workerDirEnv = "KILN_ENGINE_WORKER_DIR"

func init() {
	helpers["worker"] = func() error {
		// With a signal to wait for, a worker that does nothing is no deadlock to the runtime.
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		return engine.Work(ctx, os.Getenv(workerDirEnv), engine.Local(enginetest.Perform))
	}
}

// workers hands attempts to processes that know nothing but their folder, as a runner on a cluster
// does.
type workers struct{ *engine.LocalRunner }

func newWorkers(t *testing.T) engine.Runner {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return workers{engine.Local(func(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
		if err := a.Save(); err != nil {
			return engine.Result{}, err
		}
		work, stop := context.WithCancelCause(ctx)
		var wait sync.WaitGroup
		defer wait.Wait()
		defer stop(nil)
		ended := make(chan struct{})
		wait.Go(func() {
			defer close(ended)
			cmd := run.Cmd{Argv: []string{exe}, Env: []string{helperEnv + "=worker", workerDirEnv + "=" + a.Dir}, Stderr: os.Stderr, Grace: -1}
			_, _ = cmd.Run(work) // what matters is in the folder
		})
		return a.Follow(ctx, 5*time.Millisecond, func(context.Context) (bool, error) {
			select {
			case <-ended:
				return false, nil
			default:
				return true, nil
			}
		})
	})}
}

func (workers) Name() string { return "workers" }

func TestWorkersConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Config{New: newWorkers})
}

// TestFollow: a worker that vanishes, and one that leaves nonsense.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow := func(ctx context.Context, dir string, alive func(context.Context) (bool, error)) (engine.Result, error) {
			return engine.NewAttempt(engine.Job{ID: "a"}, 1, dir, nil).Follow(ctx, time.Minute, alive)
		}
		gone := func(context.Context) (bool, error) { return false, nil }
		start := time.Now()
		_, err := follow(t.Context(), t.TempDir(), gone)
		if engine.CauseOf(err) != engine.CauseLost || time.Since(start) != 3*time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		// It is found late, as on a shared file system.
		dir := t.TempDir()
		time.AfterFunc(150*time.Second, func() {
			if err := os.WriteFile(filepath.Join(dir, "result.json"), []byte(`{"result":{"disk_bytes":5}}`), 0o666); err != nil {
				t.Error(err)
			}
		})
		if r, err := follow(t.Context(), dir, gone); err != nil || r.DiskBytes != 5 {
			t.Errorf("%+v, %v", r, err)
		}
		broken := errors.New("squeue does not answer")
		if _, err := follow(t.Context(), t.TempDir(), func(context.Context) (bool, error) { return false, broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, broken)
		defer cancel()
		if _, err := follow(ctx, t.TempDir(), nil); !errors.Is(err, broken) {
			t.Error(err)
		}
		for _, name := range []string{"result.json", "events.jsonl"} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, name), []byte("{]\n"), 0o666); err != nil {
				t.Fatal(err)
			}
			if _, err := follow(t.Context(), dir, gone); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
			if err := engine.Work(t.Context(), dir, engine.Local(nothing)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("Work without an attempt: %v", err)
			}
		}
	})
}
