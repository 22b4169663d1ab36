package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/engine"
)

// drawJobs makes an acyclic graph of jobs. The payload says how a job behaves.
func drawJobs(t *rapid.T, most int) []engine.Job {
	n := rapid.IntRange(1, most).Draw(t, "jobs")
	jobs := make([]engine.Job, n)
	for i := range jobs {
		b := behavior{
			Time:  time.Duration(rapid.IntRange(0, 20).Draw(t, "time")) * time.Second,
			Fails: rapid.SampledFrom([]engine.Cause{"", "", "", "", engine.CauseFault, engine.CauseNetwork, engine.CauseMemory, engine.CauseDisk, engine.CauseTime, "skip"}).Draw(t, "fails"),
			Until: rapid.IntRange(1, 4).Draw(t, "until"),
			Peak:  int64(rapid.IntRange(0, 20).Draw(t, "peak")) * gb,
		}
		payload, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		jobs[i] = engine.Job{
			ID: fmt.Sprint("job", i), Digest: "1", Payload: payload,
			Resources: engine.Resources{
				CPU:         rapid.IntRange(0, 5).Draw(t, "cpu"),
				MemoryBytes: int64(rapid.SampledFrom([]int{0, 1, 1, 2, 3, 5, 8, 15, 20}).Draw(t, "memory")) * gb,
				DiskBytes:   int64(rapid.SampledFrom([]int{0, 0, 1, 10, 60}).Draw(t, "disk")) * gb,
			},
		}
		for range rapid.IntRange(0, min(i, 3)).Draw(t, "needs") {
			jobs[i].Needs = append(jobs[i].Needs, fmt.Sprint("job", rapid.IntRange(0, i-1).Draw(t, "need")))
		}
	}
	return jobs
}

type behavior struct {
	Time  time.Duration
	Fails engine.Cause // in attempts before Until
	Until int
	Peak  int64
}

func (b behavior) end(attempt int) (engine.Result, error) {
	r := engine.Result{PeakMemoryBytes: b.Peak}
	switch {
	case b.Fails == "skip":
		return r, engine.Skip("not here")
	case b.Fails != "" && attempt < b.Until:
		return r, engine.Fail(b.Fails, errors.New("as told"))
	}
	r.Outputs = json.RawMessage(`{}`)
	return r, nil
}

// watch is what must hold at every moment of a run.
type watch struct {
	t    *rapid.T
	jobs map[string]*engine.Job
	opts engine.Options

	mu      sync.Mutex
	running map[string]engine.Resources
	used    engine.Resources
	starts  map[string]int
}

func newWatch(t *rapid.T, jobs []engine.Job, opts engine.Options) *watch {
	w := &watch{t: t, opts: opts, jobs: make(map[string]*engine.Job), running: make(map[string]engine.Resources), starts: make(map[string]int)}
	for i := range jobs {
		w.jobs[jobs[i].ID] = &jobs[i]
	}
	return w
}

func (w *watch) run(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	id := a.Job.ID
	w.mu.Lock()
	if _, twice := w.running[id]; twice {
		w.t.Errorf("%s runs twice at once", id)
	}
	w.starts[id]++
	w.running[id] = a.Resources
	w.used.CPU += a.Resources.CPU
	w.used.MemoryBytes += a.Resources.MemoryBytes
	w.used.DiskBytes += a.Resources.DiskBytes
	if w.used.CPU > w.opts.CPU || w.opts.Jobs > 0 && len(w.running) > w.opts.Jobs {
		w.t.Errorf("%d jobs with %d processors run at once", len(w.running), w.used.CPU)
	}
	if (w.used.MemoryBytes > w.opts.MemoryBytes || w.used.DiskBytes > w.opts.DiskBytes) && len(w.running) > 1 {
		w.t.Errorf("more than there is: %+v by %v", w.used, w.running)
	}
	if asked := a.Job.Resources; a.Resources.CPU < min(asked.CPU, w.opts.CPU) || a.Resources.CPU < 1 {
		w.t.Errorf("%s asks for %+v and counts %+v", id, asked, a.Resources)
	}
	w.mu.Unlock()

	var b behavior
	if err := json.Unmarshal(a.Job.Payload, &b); err != nil {
		return engine.Result{}, err
	}
	select {
	case <-time.After(b.Time):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, id)
	w.used.CPU -= a.Resources.CPU
	w.used.MemoryBytes -= a.Resources.MemoryBytes
	w.used.DiskBytes -= a.Resources.DiskBytes
	if ctx.Err() != nil {
		return engine.Result{}, context.Cause(ctx)
	}
	return b.end(a.Number)
}

// ordered checks the events of a first run: what starts, when and before whom. mem is what a
// job counts with at first.
func (w *watch) ordered(jobs []engine.Job, events []engine.Event, mem func(engine.Job) int64) {
	const maxPassed = 8
	done := make(map[string]bool)
	ended := make(map[string]bool)
	passed := make(map[string]int)
	ready := func(j *engine.Job) bool {
		return !slices.ContainsFunc(j.Needs, func(id string) bool { return !done[id] })
	}
	first := make(map[string]bool)
	for _, e := range events {
		switch e.Kind {
		case engine.EventStarted:
			j := w.jobs[e.Job]
			if !ready(j) || ended[e.Job] {
				w.t.Errorf("%s started too early or again", e.Job)
			}
			if first[e.Job] {
				continue // the rule's order has changed for it
			}
			first[e.Job] = true
			for i := range jobs {
				k := &jobs[i]
				if !first[k.ID] && !ended[k.ID] && ready(k) && mem(*k) > mem(*j) {
					if passed[k.ID]++; passed[k.ID] > maxPassed {
						w.t.Errorf("%s was passed %d times", k.ID, passed[k.ID])
					}
				}
			}
		case engine.EventFinished, engine.EventFailed, engine.EventSkipped, engine.EventCanceled, engine.EventReused:
			if ended[e.Job] {
				w.t.Errorf("%s ended twice", e.Job)
			}
			ended[e.Job] = true
			done[e.Job] = e.Kind == engine.EventFinished || e.Kind == engine.EventReused
		}
	}
	if len(ended) != len(jobs) {
		w.t.Errorf("%d of %d jobs ended", len(ended), len(jobs))
	}
}

// runInBubble is engine.Run with a clock that does not wait. rapid itself has to stay outside.
func runInBubble(t *testing.T, limit time.Duration, jobs []engine.Job, opts engine.Options) (report *engine.Report, err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		if limit > 0 {
			ctx, cancel = context.WithTimeout(t.Context(), limit)
		}
		defer cancel()
		report, err = engine.Run(ctx, jobs, opts)
	})
	return report, err
}

func TestSchedulerProperty(outer *testing.T) {
	dir := outer.TempDir()
	n := 0
	rapid.Check(outer, func(t *rapid.T) {
		n++
		jobs := drawJobs(t, 40)
		opts := engine.Options{
			Dir: filepath.Join(dir, strconv.Itoa(n)), CPU: rapid.IntRange(1, 8).Draw(t, "cpus"), MemoryBytes: 16 * gb, DiskBytes: 100 * gb,
			Jobs: rapid.IntRange(0, 5).Draw(t, "at once"),
		}
		var events []engine.Event
		opts.OnEvent = func(e engine.Event) { events = append(events, e) }
		w := newWatch(t, jobs, opts)
		opts.Runner = engine.Local(w.run)
		report, err := runInBubble(outer, 0, jobs, opts)
		if err != nil {
			t.Fatal(err)
		}
		w.ordered(jobs, events, func(j engine.Job) int64 {
			if j.Resources.MemoryBytes == 0 {
				return opts.MemoryBytes / int64(opts.CPU) * int64(min(max(j.Resources.CPU, 1), opts.CPU))
			}
			return j.Resources.MemoryBytes
		})
		for i, j := range report.Jobs {
			if j.ID != jobs[i].ID || j.Attempts != w.starts[j.ID] {
				t.Errorf("%s: %d attempts, %d starts", j.ID, j.Attempts, w.starts[j.ID])
			}
		}

		// A second run, canceled at some moment, and a third: nothing done is done again, and
		// learned peaks hold.
		for _, limit := range []time.Duration{time.Duration(rapid.IntRange(0, 60).Draw(t, "cancel")) * time.Second, 0} {
			clear(w.starts)
			again, err := runInBubble(outer, limit, jobs, opts)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			for i, j := range report.Jobs {
				if was := j.Status; was == engine.StatusDone || was == engine.StatusReused {
					if again.Jobs[i].Status != engine.StatusReused || w.starts[j.ID] > 0 {
						t.Errorf("%s was %s, now %s", j.ID, was, again.Jobs[i].Status)
					}
				}
			}
			report = again
		}
		if err := os.RemoveAll(opts.Dir); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCutProperty: a journal cut at any byte resumes to the same result, and what it still says to
// be done is not done again.
func TestCutProperty(outer *testing.T) {
	dir := outer.TempDir()
	n := 0
	rapid.Check(outer, func(t *rapid.T) {
		n++
		jobs := drawJobs(t, 12)
		opts := engine.Options{Dir: filepath.Join(dir, strconv.Itoa(n)), CPU: 4, MemoryBytes: 16 * gb, DiskBytes: 100 * gb}
		opts.Runner = engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
			// Without numbers of attempts: they go on counting after a cut.
			var b behavior
			if err := json.Unmarshal(a.Job.Payload, &b); err != nil {
				return engine.Result{}, err
			}
			time.Sleep(b.Time)
			a.Stage("compile")(nil)
			return b.end(1)
		})
		whole, err := runInBubble(outer, 0, jobs, opts)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(opts.Dir, "journal.jsonl")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cut := rapid.IntRange(0, len(text)).Draw(t, "cut")
		if err := os.WriteFile(path, text[:cut], 0o666); err != nil {
			t.Fatal(err)
		}
		state, err := engine.ReadState(opts.Dir)
		if err != nil {
			t.Fatal(err)
		}
		var started []string
		opts.OnEvent = func(e engine.Event) {
			if e.Kind == engine.EventStarted {
				started = append(started, e.Job)
			}
		}
		again, err := runInBubble(outer, 0, jobs, opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range started {
			if j := state.Job(id); j != nil && j.Finished != nil {
				t.Errorf("%s is done in the journal and was run again", id)
			}
		}
		type end struct {
			Status engine.Status
			Cause  engine.Cause
			Reason string
			Output string
		}
		ends := func(r *engine.Report) map[string]end {
			m := make(map[string]end)
			for _, j := range r.Jobs {
				switch j.Status {
				case engine.StatusReused:
					j.Status = engine.StatusDone
				case engine.StatusSkipped:
					j.Reason = "" // of several needs that fail, the first to do so is named
				}
				m[j.ID] = end{j.Status, j.Cause, j.Reason, string(j.Result.Outputs)}
			}
			return m
		}
		if diff := cmp.Diff(ends(whole), ends(again)); diff != "" {
			t.Errorf("cut at %d of %d (-whole +resumed):\n%s", cut, len(text), diff)
		}
		if err := os.RemoveAll(opts.Dir); err != nil {
			t.Fatal(err)
		}
	})
}
