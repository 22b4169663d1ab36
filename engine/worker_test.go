package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine"
)

// savedAttempt is a folder for workers.
func savedAttempt(t *testing.T, job engine.Job) *engine.Attempt {
	t.Helper()
	a := engine.NewAttempt(job, 1, t.TempDir(), nil)
	if err := a.Save(); err != nil {
		t.Fatal(err)
	}
	return a
}

// sleeper works for a while, and says how it ended.
func sleeper(d time.Duration, ended *error) engine.Runner {
	return engine.Local(func(ctx context.Context, _ *engine.Attempt) (engine.Result, error) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			*ended = context.Cause(ctx)
			return engine.Result{}, context.Cause(ctx)
		}
		return engine.Result{DiskBytes: int64(d)}, nil
	})
}

// TestWorkerReplaced: a batch system starts a job again while the first worker, which it cannot
// see, is still at work.
func TestWorkerReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Slurm, whose workers these are, is not on Windows, where none may replace a file that the other reads")
	}
	synctest.Test(t, func(t *testing.T) {
		a := savedAttempt(t, engine.Job{ID: "a"})
		first := make(chan error, 1)
		var why error
		go func() {
			first <- (&engine.Worker{Runner: sleeper(time.Hour, &why), Name: "job 1"}).Work(t.Context(), a.Dir)
		}()
		time.Sleep(time.Minute + 5*time.Second) // between two beats: who writes last at the same instant is luck
		start := time.Now()
		var began time.Time
		second := engine.Worker{Name: "job 1", Start: 1, Runner: engine.Local(func(context.Context, *engine.Attempt) (engine.Result, error) {
			began = time.Now()
			return engine.Result{DiskBytes: 2}, nil
		})}
		if err := second.Work(t.Context(), a.Dir); err != nil {
			t.Fatal(err)
		}
		if err := <-first; !errors.Is(err, engine.ErrReplaced) || !errors.Is(why, engine.ErrReplaced) {
			t.Errorf("the first ended with %v, %v", err, why)
		}
		if d := began.Sub(start); d != 20*time.Second {
			t.Errorf("the second began after %v", d)
		}
		if r, ended, err := a.Poll(); !ended || err != nil || r.DiskBytes != 2 {
			t.Errorf("%+v, %v, %v", r, ended, err)
		}
		// What comes after the end has nothing to do.
		for _, w := range []engine.Worker{{Name: "job 1", Start: 2}, {Name: "job 1"}, {Name: "job 2"}} {
			w.Runner = engine.Local(func(context.Context, *engine.Attempt) (engine.Result, error) { panic("it ran") })
			if err := w.Work(t.Context(), a.Dir); !errors.Is(err, engine.ErrEnded) {
				t.Errorf("%+v: %v", w, err)
			}
		}
	})
}

// TestWorkerTwice: the same attempt was submitted twice. The second leaves it to the first, or
// takes over if that is dead.
func TestWorkerTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := savedAttempt(t, engine.Job{ID: "a"})
		first := make(chan error, 1)
		var why error
		go func() {
			first <- (&engine.Worker{Runner: sleeper(time.Hour, &why), Name: "job 1"}).Work(t.Context(), a.Dir)
		}()
		time.Sleep(time.Minute)
		err := (&engine.Worker{Runner: sleeper(time.Second, &why), Name: "job 2"}).Work(t.Context(), a.Dir)
		if !errors.Is(err, engine.ErrReplaced) {
			t.Errorf("the second: %v", err)
		}
		if err := <-first; err != nil || why != nil {
			t.Errorf("the first: %v, %v", err, why)
		}

		a = savedAttempt(t, engine.Job{ID: "a"})
		if err := os.WriteFile(filepath.Join(a.Dir, "worker.json"), []byte(`{"name":"job 1","start":3,"beats":7}`), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := (&engine.Worker{Runner: sleeper(time.Second, &why), Name: "job 2"}).Work(t.Context(), a.Dir); err != nil {
			t.Errorf("after the death of the first: %v", err)
		}
		if s, err := a.Worker(); err != nil || s == nil || s.Name != "job 2" {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestWorkerEnds: how a worker's context ends is what the attempt came to.
func TestWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paused := engine.Fail(engine.CausePaused, errors.New("the queue's time is over"))
		unwanted := ""
		tests := []struct {
			name  string
			job   engine.Job
			after func(cancel context.CancelCauseFunc)
			cause engine.Cause
			text  string
		}{
			{"paused", engine.Job{ID: "a"}, func(cancel context.CancelCauseFunc) { cancel(paused) }, engine.CausePaused, "the queue's time is over"},
			{"wall limit", engine.Job{ID: "a", WallLimit: time.Minute}, nil, engine.CauseTime, "wall time limit of 1m0s"},
			{"unwanted", engine.Job{ID: "a"}, func(context.CancelCauseFunc) { unwanted = "nobody wants it" }, engine.CauseCanceled, "nobody wants it"},
		}
		for _, tt := range tests {
			a := savedAttempt(t, tt.job)
			ctx, cancel := context.WithCancelCause(t.Context())
			if tt.after != nil {
				time.AfterFunc(time.Minute, func() { tt.after(cancel) })
			}
			var why error
			w := engine.Worker{Runner: sleeper(time.Hour, &why), Name: "job 1", Unwanted: func() string { return unwanted }}
			if err := w.Work(ctx, a.Dir); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			r, ended, err := a.Poll()
			if !ended || engine.CauseOf(err) != tt.cause || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v, %v (%s)", tt.name, ended, err, engine.CauseOf(err))
			}
			if r.Wall < time.Minute || r.Wall > 2*time.Minute {
				t.Errorf("%s: wall %v", tt.name, r.Wall)
			}
			cancel(nil)
		}
		a := savedAttempt(t, engine.Job{ID: "a"})
		w := engine.Worker{Unwanted: func() string { return "never wanted" }}
		if err := w.Work(t.Context(), a.Dir); err == nil || err.Error() != "never wanted" {
			t.Errorf("%v", err)
		}
	})
}

// TestWorkerTornEvents: a worker that was killed left half a line; the next one's events are read
// nevertheless.
func TestWorkerTornEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		a := engine.NewAttempt(engine.Job{ID: "a"}, 1, t.TempDir(), func(e engine.Event) { got = append(got, string(e.Kind)+" "+e.Stage+e.Text) })
		if err := a.Save(); err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(engine.Event{Kind: engine.EventWarning, Text: "first", Time: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(a.Dir, "events.jsonl"), append(append(line, '\n'), line[:20]...), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, ended, err := a.Poll(); ended || err != nil {
			t.Fatal(ended, err)
		}
		w := engine.Worker{Runner: engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
			a.Stage("compile")(nil)
			return engine.Result{}, nil
		})}
		if err := w.Work(t.Context(), a.Dir); err != nil {
			t.Fatal(err)
		}
		if _, ended, err := a.Poll(); !ended || err != nil {
			t.Fatal(ended, err)
		}
		if diff := cmp.Diff([]string{"warning first", "stage compile", "stage_done compile"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestPausedRetries: a paused attempt is tried again, and is expected to take longer.
func TestPausedRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expect []time.Duration
		r := engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
			expect = append(expect, a.Expect)
			time.Sleep(time.Hour)
			if len(expect) < 5 {
				return engine.Result{}, engine.Fail(engine.CausePaused, errors.New("time is over"))
			}
			return engine.Result{}, nil
		})
		report, err := engine.Run(t.Context(), []engine.Job{{ID: "a"}}, engine.Options{Dir: t.TempDir(), Runner: r, CPU: 1, MemoryBytes: 1 << 30})
		if err != nil || report.Jobs[0].Status != engine.StatusDone || report.Jobs[0].Attempts != 5 {
			t.Fatalf("%+v, %v", report, err)
		}
		want := []time.Duration{0, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour}
		if diff := cmp.Diff(want, expect); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
