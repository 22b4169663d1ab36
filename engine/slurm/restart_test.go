package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-build/kiln/engine"
)

// abandoner forgets its attempts when the run ends, as a process that is killed does: the jobs are
// not canceled.
type abandoner struct{ engine.Keeper }

func (r abandoner) Run(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	return abandon(ctx, a, r.Keeper.Run)
}

func (r abandoner) Resume(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	return abandon(ctx, a, r.Keeper.Resume)
}

func abandon(ctx context.Context, a *engine.Attempt, run func(context.Context, *engine.Attempt) (engine.Result, error)) (engine.Result, error) {
	type answer struct {
		result engine.Result
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		result, err := run(context.WithoutCancel(ctx), a)
		got <- answer{result, err}
	}()
	select {
	case v := <-got:
		return v.result, v.err
	case <-ctx.Done():
		return engine.Result{}, context.Cause(ctx)
	}
}

// crash runs jobs until a moment, and leaves everything as a kill in that moment would.
func (s *site) crash(at time.Duration, jobs []engine.Job) {
	s.t.Helper()
	ctx, kill := context.WithCancelCause(s.t.Context())
	defer kill(nil)
	path := filepath.Join(s.run.Dir, "journal.jsonl")
	var journal []byte
	time.AfterFunc(at, func() {
		var err error
		if journal, err = os.ReadFile(path); err != nil {
			s.t.Error(err)
		}
		kill(errors.New("killed"))
	})
	opts := s.run
	opts.Runner = abandoner{s.runner()}
	if _, err := engine.Run(ctx, jobs, opts); err == nil {
		s.t.Fatal("the run ended too early")
	}
	if err := os.WriteFile(path, journal, 0o666); err != nil {
		s.t.Fatal(err)
	}
}

// TestRestart: kiln is killed at several moments and started again. Its jobs go on, and nothing is
// built twice.
func TestRestart(t *testing.T) {
	for _, at := range []time.Duration{time.Second, 16 * time.Second, 3 * time.Minute, 15 * time.Minute} {
		t.Run(at.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, 2, 8)
				s.run.Jobs = 8
				var jobs []engine.Job
				for i := range 12 {
					jobs = append(jobs, row(fmt.Sprintf("r%02d", i), 600, 4))
				}
				s.crash(at, jobs)
				before := s.fake.calls["sbatch"]
				report, err := s.start(t.Context(), jobs...)
				if err != nil {
					t.Fatal(err)
				}
				for _, j := range report.Jobs {
					if j.Status != engine.StatusDone && j.Status != engine.StatusReused || j.Attempts > 1 {
						t.Errorf("%s: %s in %d attempts: %s", j.ID, j.Status, j.Attempts, j.Reason)
					}
				}
				built := 0
				for key, n := range s.fake.starts {
					built += n
					if n != 1 {
						t.Errorf("%s was started %d times", key, n)
					}
				}
				// A kill before sbatch was called leaves nothing; the frozen twin of this test's
				// first process may submit later.
				if at > 2*time.Second && (built != 12 || before == 0 || s.fake.calls["scancel"] > 0) {
					t.Errorf("%d starts, %d submissions before, %v", built, before, s.fake.calls)
				}
				s.nothingLeft()
			})
		})
	}
}

// TestRestartTwice: what the second process has found is found by the third as well.
func TestRestartTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, 8)
		var jobs []engine.Job
		for i := range 12 {
			jobs = append(jobs, row(fmt.Sprintf("r%02d", i), 600, 4))
		}
		s.crash(3*time.Minute, jobs)
		s.crash(3*time.Minute, jobs)
		state, err := engine.ReadState(s.run.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for i := range state.Jobs {
			if j := &state.Jobs[i]; j.Status != engine.StatusRunning && j.Status != engine.StatusDone {
				t.Errorf("%s is %s after the second kill", j.ID, j.Status)
			}
		}
		report, err := s.start(t.Context(), jobs...)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range report.Jobs {
			if j.Status != engine.StatusDone && j.Status != engine.StatusReused || j.Attempts > 1 {
				t.Errorf("%s: %s in %d attempts: %s", j.ID, j.Status, j.Attempts, j.Reason)
			}
		}
		for key, n := range s.fake.starts {
			if n != 1 {
				t.Errorf("%s was started %d times", key, n)
			}
		}
		if s.fake.calls["sbatch"] != 1 || s.fake.calls["scancel"] > 0 {
			t.Errorf("%v", s.fake.calls)
		}
		s.nothingLeft()
	})
}

// TestRestartOtherPlan: after a restart with other rows, the jobs of the old ones are ended.
func TestRestartOtherPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, 8)
		s.crash(3*time.Minute, []engine.Job{row("old", 6000, 4), row("same", 600, 4), row("changed", 6000, 4)})
		changed := row("changed", 60, 4)
		changed.Digest = "2"
		start := time.Now()
		s.finish(s.start(t.Context(), row("same", 600, 4), changed))
		if d := time.Since(start); d > 15*time.Minute {
			t.Errorf("took %v", d)
		}
		if s.fake.calls["scancel"] == 0 {
			t.Error("nothing was canceled")
		}
	})
}

// TestPrograms: a program is kept as long as a job may start it, and no longer.
func TestPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		s.opts.Programs = filepath.Join(s.dir, "it's bin")
		if err := os.Mkdir(s.opts.Programs, 0o777); err != nil {
			t.Fatal(err)
		}
		use := func(name string) {
			s.opts.Worker = []string{filepath.Join(s.opts.Programs, name), "slurm-worker"}
			if err := os.WriteFile(s.opts.Worker[0], nil, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		want := func(when string, names ...string) {
			t.Helper()
			entries, err := os.ReadDir(s.opts.Programs)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if !slices.Equal(got, names) {
				t.Errorf("%s: %q, want %q", when, got, names)
			}
		}
		use("kiln-1")
		use("kiln-2")
		jobs := []engine.Job{row("a", 600, 4), row("b", 600, 4), row("c", 600, 4)}
		s.crash(3*time.Minute, jobs)
		want("nothing has run kiln-1", "kiln-2")
		use("kiln-3")
		time.AfterFunc(time.Minute, func() { want("with jobs of kiln-2", "kiln-2", "kiln-3") })
		report, err := s.start(t.Context(), jobs...)
		s.finish(report, err)
		use("kiln-4")
		if _, err := s.start(t.Context(), jobs...); err != nil {
			t.Fatal(err)
		}
		want("without jobs", "kiln-4")
	})
}
