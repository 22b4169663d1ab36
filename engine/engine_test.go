package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/memory"
	"github.com/kiln-build/kiln/internal/run"
)

const gb = 1 << 30

func nothing(context.Context, *engine.Attempt) (engine.Result, error) { return engine.Result{}, nil }

// recorder collects events as short lines.
type recorder struct {
	events []engine.Event
}

func (r *recorder) add(e engine.Event) { r.events = append(r.events, e) }

func (r *recorder) lines(kinds ...engine.EventKind) []string {
	var list []string
	for _, e := range r.events {
		if len(kinds) > 0 && !slices.Contains(kinds, e.Kind) {
			continue
		}
		line := fmt.Sprintf("%s %s", e.Job, e.Kind)
		if e.Attempt > 0 {
			line = fmt.Sprintf("%s.%d %s", e.Job, e.Attempt, e.Kind)
		}
		for _, s := range []string{e.Stage, string(e.Cause), e.Text} {
			if s != "" {
				line += " " + s
			}
		}
		if e.Total > 0 {
			line += fmt.Sprintf(" %d/%d", e.Done, e.Total)
		}
		if e.Delay > 0 {
			line += fmt.Sprintf(" after %v", e.Delay)
		}
		list = append(list, line)
	}
	return list
}

func options(t *testing.T, f func(context.Context, *engine.Attempt) (engine.Result, error)) engine.Options {
	return engine.Options{Dir: filepath.Join(t.TempDir(), "state"), Runner: engine.Local(f), CPU: 4, MemoryBytes: 16 * gb, DiskBytes: 100 * gb}
}

func mustRun(t *testing.T, jobs []engine.Job, opts engine.Options) *engine.Report {
	t.Helper()
	report, err := engine.Run(t.Context(), jobs, opts)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// statuses is a report in short.
func statuses(r *engine.Report) map[string]string {
	m := make(map[string]string)
	for _, j := range r.Jobs {
		text := string(j.Status)
		if j.Reason != "" {
			text += ": " + strings.SplitN(j.Reason, "\n", 2)[0]
		}
		m[j.ID] = text
	}
	return m
}

// TestAfter: a job begins after those that it names, and does not fail with them.
func TestAfter(t *testing.T) {
	var mu sync.Mutex
	var order []string
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, a.Job.ID)
		switch a.Job.ID {
		case "bad":
			return engine.Result{}, errors.New("broken")
		case "skipped":
			return engine.Result{}, engine.Skip("not here")
		}
		return engine.Result{}, nil
	})
	jobs := []engine.Job{
		{ID: "last", Digest: "1", After: []string{"second", "skipped"}},
		{ID: "second", Digest: "1", After: []string{"bad"}},
		{ID: "bad", Digest: "1"},
		{ID: "skipped", Digest: "1"},
		{ID: "needs", Digest: "1", Needs: []string{"bad"}, After: []string{"second"}},
	}
	got := statuses(mustRun(t, jobs, opts))
	want := map[string]string{"last": "done", "second": "done", "bad": "failed: broken", "skipped": "skipped: not here", "needs": "skipped: needs bad, which failed: broken"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	if slices.Index(order, "second") < slices.Index(order, "bad") || order[len(order)-1] != "last" {
		t.Errorf("they ran as %q", order)
	}
	if _, err := engine.Run(t.Context(), []engine.Job{{ID: "a", After: []string{"b"}}, {ID: "b", Needs: []string{"a"}}}, opts); err == nil || !strings.Contains(err.Error(), "jobs need each other") {
		t.Errorf("a ring gives %v", err)
	}
}

func TestRun(t *testing.T) {
	var rec recorder
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		end := a.Stage("compile")
		a.Progress(3, 3, "files")
		switch a.Job.ID {
		case "bad":
			err := errors.New("x.cu:3: no such type")
			end(err)
			return engine.Result{PeakMemoryBytes: 7}, err
		case "gpu":
			end(nil)
			return engine.Result{}, fmt.Errorf("test: %w", engine.Skip("no GPU on this machine"))
		}
		end(nil)
		a.Warn("careful")
		a.Used(500, 10)
		return engine.Result{PeakMemoryBytes: 100, DiskBytes: 20, Outputs: json.RawMessage(`{"file":"` + a.Job.ID + `"}`)}, nil
	})
	opts.Jobs, opts.OnEvent = 1, rec.add
	jobs := []engine.Job{
		{ID: "good", Digest: "1"},
		{ID: "bad", Digest: "1"},
		{ID: "after-bad", Digest: "1", Needs: []string{"good", "bad"}},
		{ID: "last", Digest: "1", Needs: []string{"after-bad"}},
		{ID: "gpu", Digest: "1"},
		{ID: "after-gpu", Digest: "1", Needs: []string{"gpu"}},
		{ID: "after-good", Digest: "1", Needs: []string{"good"}},
	}
	report := mustRun(t, jobs, opts)
	want := map[string]string{
		"good": "done", "after-good": "done", "bad": "failed: x.cu:3: no such type",
		"after-bad": "skipped: needs bad, which failed: x.cu:3: no such type",
		"last":      "skipped: needs bad, which failed: x.cu:3: no such type",
		"gpu":       "skipped: no GPU on this machine",
		"after-gpu": "skipped: needs gpu, which was skipped: no GPU on this machine",
	}
	if diff := cmp.Diff(want, statuses(report)); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if report.OK() || report.Count(engine.StatusDone, engine.StatusFailed) != 3 {
		t.Error("wrong counts")
	}
	bad := report.Jobs[1]
	if bad.Attempts != 1 || bad.Cause != engine.CauseFault || bad.Err == nil || bad.Result.PeakMemoryBytes != 7 {
		t.Errorf("bad: %+v", bad)
	}
	wantResult := engine.Result{PeakMemoryBytes: 500, DiskBytes: 20, Outputs: json.RawMessage(`{"file":"good"}`)}
	if diff := cmp.Diff(wantResult, report.Jobs[0].Result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	wantEvents := []string{
		"good submitted", "bad submitted", "after-bad submitted", "last submitted", "gpu submitted", "after-gpu submitted", "after-good submitted",
		"good.1 started", "good.1 stage compile", "good.1 progress files 3/3", "good.1 stage_done compile", "good.1 warning careful", "good.1 finished",
		"bad.1 started", "bad.1 stage compile", "bad.1 progress files 3/3", "bad.1 stage_done compile fault", "bad.1 failed fault",
		"after-bad skipped needs bad, which failed: x.cu:3: no such type", "last skipped needs bad, which failed: x.cu:3: no such type",
		"gpu.1 started", "gpu.1 stage compile", "gpu.1 progress files 3/3", "gpu.1 stage_done compile", "gpu.1 skipped no GPU on this machine",
		"after-gpu skipped needs gpu, which was skipped: no GPU on this machine",
		"after-good.1 started", "after-good.1 stage compile", "after-good.1 progress files 3/3", "after-good.1 stage_done compile", "after-good.1 warning careful", "after-good.1 finished",
	}
	if diff := cmp.Diff(wantEvents, rec.lines()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	// The second run does again what failed, and nothing else.
	rec = recorder{}
	report = mustRun(t, jobs, opts)
	want["good"], want["after-good"] = "reused", "reused"
	if diff := cmp.Diff(want, statuses(report)); diff != "" {
		t.Errorf("second run (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantResult, report.Jobs[0].Result); diff != "" {
		t.Errorf("reused result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"bad.2 started", "gpu.2 started"}, rec.lines(engine.EventStarted)); diff != "" {
		t.Errorf("second run (-want +got):\n%s", diff)
	}
}

func TestReuse(t *testing.T) {
	var ran []string
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		ran = append(ran, fmt.Sprint(a.Job.ID, a.Number, a.Job.Digest))
		if a.Job.Digest == "broken" {
			return engine.Result{}, errors.New("broken")
		}
		return engine.Result{Outputs: json.RawMessage(`"` + a.Job.Digest + `"`)}, nil
	})
	opts.Jobs = 1
	step := func(want string, jobs ...engine.Job) *engine.Report {
		t.Helper()
		ran = nil
		report := mustRun(t, jobs, opts)
		if got := strings.Join(ran, " "); got != want {
			t.Errorf("ran %q, want %q", got, want)
		}
		return report
	}
	a1, a2, b := engine.Job{ID: "a", Digest: "x"}, engine.Job{ID: "a", Digest: "y"}, engine.Job{ID: "b"}
	step("a1x b1", a1, b)
	step("b2", a1, b) // without a digest it runs every time
	step("a2y", a2)
	step("", a2)
	step("a3x", a1) // only the last result is known
	step("a4broken", engine.Job{ID: "a", Digest: "broken"})
	report := step("", a1) // and a failure does not end it
	if got := string(report.Jobs[0].Result.Outputs); got != `"x"` {
		t.Errorf("outputs %s", got)
	}
	if s, err := engine.ReadState(opts.Dir); err != nil || s.Job("a").Status != engine.StatusDone {
		t.Errorf("state %+v, %v", s.Job("a"), err)
	}
	opts.Reuse = func(job engine.Job, r engine.Result) error {
		if job.ID != "a" || string(r.Outputs) != `"x"` {
			t.Errorf("asked for %s, %s", job.ID, r.Outputs)
		}
		return errors.New("the file is gone")
	}
	step("a5x", a1)
	opts.Reuse = func(engine.Job, engine.Result) error { return nil }
	step("", a1)
}

func TestInvalid(t *testing.T) {
	opts := options(t, nothing)
	tests := []struct {
		jobs []engine.Job
		want string
	}{
		{[]engine.Job{{}}, "job 1 has no ID"},
		{[]engine.Job{{ID: "a"}, {ID: "a"}}, "jobs 1 and 2 are both a"},
		{[]engine.Job{{ID: "a", Needs: []string{"b", "c"}}}, "job a needs b, which does not exist\njob a needs c, which does not exist"},
		{[]engine.Job{{ID: "a", Needs: []string{"a"}}}, "jobs need each other: a → a"},
		{[]engine.Job{{ID: "x", Needs: []string{"a"}}, {ID: "a", Needs: []string{"b"}}, {ID: "b", Needs: []string{"c"}}, {ID: "c", Needs: []string{"a"}}}, "jobs need each other: a → b → c → a"},
		{[]engine.Job{{ID: "a", Resources: engine.Resources{CPU: -1}}}, "job a asks for negative resources"},
		{[]engine.Job{{ID: "a", Payload: json.RawMessage("{")}}, "job a has a payload that is not JSON"},
	}
	for _, tt := range tests {
		if _, err := engine.Run(t.Context(), tt.jobs, opts); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if _, err := engine.Run(t.Context(), nil, engine.Options{}); err == nil {
		t.Error("no error without options")
	}
	if report, err := engine.Run(t.Context(), nil, opts); err != nil || len(report.Jobs) != 0 {
		t.Errorf("no jobs: %+v, %v", report, err)
	}
}

// failing returns work that fails as told: attempt n of a job ends with the nth error.
func failing(errs ...error) func(context.Context, *engine.Attempt) (engine.Result, error) {
	n := 0
	return func(_ context.Context, _ *engine.Attempt) (engine.Result, error) {
		n++
		if n > len(errs) {
			return engine.Result{}, nil
		}
		return engine.Result{PeakMemoryBytes: int64(n) * gb}, errs[n-1]
	}
}

func TestRetry(t *testing.T) {
	oops := errors.New("oops")
	fail := func(c engine.Cause) error { return fmt.Errorf("stage: %w", engine.Fail(c, oops)) }
	repeat := slices.Repeat[[]error]
	tests := []struct {
		name string
		errs []error
		want []string
		wall time.Duration // pauses
	}{
		{"fault", []error{oops}, []string{"a.1 failed fault"}, 0},
		{"network twice", repeat([]error{fail(engine.CauseNetwork)}, 2), []string{"a.1 retry network after 5s", "a.2 retry network after 15s", "a.3 finished"}, 20 * time.Second},
		{"network", repeat([]error{fail(engine.CauseNetwork)}, 9), []string{"a.1 retry network after 5s", "a.2 retry network after 15s", "a.3 failed network"}, 20 * time.Second},
		{"memory", repeat([]error{fail(engine.CauseMemory)}, 9), []string{"a.1 retry memory", "a.2 retry memory", "a.3 failed memory"}, 0},
		{"memory once", []error{fail(engine.CauseMemory)}, []string{"a.1 retry memory", "a.2 finished"}, 0},
		{"time", repeat([]error{fail(engine.CauseTime)}, 9), []string{"a.1 retry time", "a.2 retry time", "a.3 failed time"}, 0},
		{"disk", repeat([]error{fail(engine.CauseDisk)}, 9), []string{"a.1 retry disk", "a.2 failed disk"}, 0},
		{"lost", repeat([]error{fail(engine.CauseLost)}, 9), []string{
			"a.1 retry lost after 5s", "a.2 retry lost after 15s", "a.3 retry lost after 45s", "a.4 retry lost after 2m15s", "a.5 failed lost",
		}, 200 * time.Second},
		{"canceled", []error{fail(engine.CauseCanceled)}, []string{"a.1 canceled canceled stage: oops"}, 0},
		{"each has its own count", []error{fail(engine.CauseNetwork), fail(engine.CauseMemory), fail(engine.CauseNetwork), fail(engine.CauseDisk), oops}, []string{
			"a.1 retry network after 5s", "a.2 retry memory", "a.3 retry network after 15s", "a.4 retry disk", "a.5 failed fault",
		}, 20 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rec recorder
				cleaned := 0
				opts := options(t, failing(tt.errs...))
				opts.OnEvent = rec.add
				opts.CleanDisk = func(context.Context) error { cleaned++; return nil }
				start := time.Now()
				mustRun(t, []engine.Job{{ID: "a"}}, opts)
				got := rec.lines(engine.EventRetry, engine.EventFinished, engine.EventFailed, engine.EventCanceled)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if wall := time.Since(start); wall != tt.wall {
					t.Errorf("pauses of %v, want %v", wall, tt.wall)
				}
				if want := strings.Count(strings.Join(got, "\n"), "retry disk"); cleaned != want {
					t.Errorf("disk cleaned %d times, want %d", cleaned, want)
				}
			})
		})
	}
}

func TestShrink(t *testing.T) {
	var shrinks []int
	need := 2 // runs only with this much shrinking
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		shrinks = append(shrinks, a.Shrink)
		if a.Shrink < need {
			return engine.Result{PeakMemoryBytes: 5300e6}, engine.Fail(engine.CauseMemory, errors.New("nvcc: killed"))
		}
		return engine.Result{PeakMemoryBytes: 1 * gb}, nil
	})
	step := func(want ...int) *engine.Report {
		t.Helper()
		shrinks = nil
		report := mustRun(t, []engine.Job{{ID: "a", Resources: engine.Resources{MemoryBytes: 4 * gb}}}, opts)
		if diff := cmp.Diff(want, shrinks); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		return report
	}
	step(0, 1, 2)
	step(2) // learned
	need = 3
	report := step(2)
	if got, want := report.Jobs[0].Reason, "killed for memory, at last with one thing at a time: nvcc: killed; the largest peak was 4.9 GiB"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}

func TestWallLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		opts := options(t, func(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
			if a.Number == 3 {
				return engine.Result{}, nil
			}
			<-ctx.Done()
			if a.Number == 2 { // one that does not say why
				return engine.Result{}, errors.New("gcc: terminated")
			}
			return engine.Result{}, context.Cause(ctx)
		})
		opts.OnEvent = rec.add
		start := time.Now()
		report := mustRun(t, []engine.Job{{ID: "a", WallLimit: time.Hour}}, opts)
		var got []string
		for _, e := range rec.events {
			if e.Kind == engine.EventRetry {
				got = append(got, fmt.Sprintf("%s %s", e.Cause, e.Error))
			}
		}
		want := []string{"time wall time limit of 1h0m0s reached", "time wall time limit of 1h0m0s reached: gcc: terminated"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if time.Since(start) != 2*time.Hour || report.Jobs[0].Wall != 2*time.Hour || report.Jobs[0].Status != engine.StatusDone || report.Jobs[0].Reason != "" {
			t.Errorf("after %v: %+v", time.Since(start), report.Jobs[0])
		}
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var ran []string
		var mu sync.Mutex
		opts := options(t, func(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
			mu.Lock()
			ran = append(ran, a.Job.ID)
			mu.Unlock()
			if a.Job.ID == "quick" {
				return engine.Result{}, nil
			}
			if a.Job.ID == "network" {
				return engine.Result{}, engine.Fail(engine.CauseNetwork, errors.New("reset"))
			}
			time.AfterFunc(time.Second, func() { cancel(enough) })
			<-ctx.Done()
			time.Sleep(3 * time.Second) // ending takes a while; Run waits
			if a.Job.ID == "finishes" {
				return engine.Result{}, nil
			}
			return engine.Result{}, context.Cause(ctx)
		})
		opts.CPU = 4
		jobs := []engine.Job{
			{ID: "quick", Digest: "1"},
			{ID: "network", Digest: "1"}, // waits for its second attempt when all ends
			{ID: "slow", Digest: "1"},
			{ID: "finishes", Digest: "1"},
			{ID: "waiting", Digest: "1", Needs: []string{"slow"}},
			{ID: "after", Digest: "1", Needs: []string{"finishes"}},
		}
		start := time.Now()
		report, err := engine.Run(ctx, jobs, opts)
		if !errors.Is(err, enough) {
			t.Errorf("error %v", err)
		}
		if d := time.Since(start); d != 4*time.Second {
			t.Errorf("Run returned after %v, before its attempts", d)
		}
		want := map[string]string{
			"quick": "done", "network": "canceled: enough", "slow": "canceled: enough", "waiting": "canceled: enough", "finishes": "done", "after": "canceled: enough",
		}
		if diff := cmp.Diff(want, statuses(report)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// The next run goes on.
		ran = nil
		ctx, cancel = context.WithCancelCause(t.Context())
		cancel(enough)
		if report, err = engine.Run(ctx, jobs, opts); !errors.Is(err, enough) || report.Count(engine.StatusReused) != 2 || len(ran) > 0 {
			t.Errorf("with a context that is over: %+v, %v, ran %v", statuses(report), err, ran)
		}
	})
}

func TestFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := options(t, func(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
			if a.Job.ID == "bad" {
				time.Sleep(time.Second)
				return engine.Result{}, errors.New("no")
			}
			<-ctx.Done()
			return engine.Result{}, context.Cause(ctx)
		})
		opts.FailFast, opts.Jobs = true, 2
		report := mustRun(t, []engine.Job{{ID: "bad"}, {ID: "b"}, {ID: "c"}, {ID: "d", Needs: []string{"bad"}}}, opts)
		want := map[string]string{"bad": "failed: no", "b": "canceled: bad failed", "c": "canceled: bad failed", "d": "skipped: needs bad, which failed: no"}
		if diff := cmp.Diff(want, statuses(report)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestPanic(t *testing.T) {
	opts := options(t, func(context.Context, *engine.Attempt) (engine.Result, error) { panic("surprise") })
	report := mustRun(t, []engine.Job{{ID: "a"}}, opts)
	if j := report.Jobs[0]; j.Status != engine.StatusFailed || !strings.Contains(j.Reason, "the runner panicked: surprise") || !strings.Contains(j.Reason, "engine_test.go") {
		t.Errorf("%+v", j)
	}
}

func TestOutputsMustBeJSON(t *testing.T) {
	opts := options(t, func(context.Context, *engine.Attempt) (engine.Result, error) {
		return engine.Result{Outputs: json.RawMessage("{")}, nil
	})
	if j := mustRun(t, []engine.Job{{ID: "a"}}, opts).Jobs[0]; j.Status != engine.StatusFailed || !strings.Contains(j.Reason, "not JSON") {
		t.Errorf("%+v", j)
	}
}

// TestFolders: who finds what of whom, and what is left at the end.
func TestFolders(t *testing.T) {
	dirs := func(opts engine.Options) string {
		entries, err := os.ReadDir(filepath.Join(opts.Dir, "attempts"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	script := map[int]error{}
	var earlier []string
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		var names []string
		for _, dir := range a.Earlier {
			text, err := os.ReadFile(filepath.Join(dir, "made"))
			if err != nil {
				t.Error(err)
			}
			names = append(names, string(text))
		}
		if len(a.Earlier) > 0 && a.Previous != a.Earlier[0] || len(a.Earlier) == 0 && a.Previous != "" {
			t.Errorf("previous %q of %q", a.Previous, a.Earlier)
		}
		earlier = append(earlier, strings.Join(names, ","))
		if entries, err := os.ReadDir(a.Dir); err != nil || len(entries) > 0 {
			t.Errorf("folder has %v, %v", entries, err)
		}
		log, err := a.OpenLog()
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(log, "log")
		log.Close()
		if err := os.WriteFile(filepath.Join(a.Dir, "made"), []byte(fmt.Sprint(a.Number)), 0o666); err != nil {
			t.Error(err)
		}
		return engine.Result{}, script[a.Number]
	})
	step := func(digest, wantEarlier, wantDirs string) *engine.Report {
		t.Helper()
		earlier = nil
		report := mustRun(t, []engine.Job{{ID: "a", Digest: digest}}, opts)
		if got := strings.Join(earlier, " "); got != wantEarlier {
			t.Errorf("attempts found %q, want %q", got, wantEarlier)
		}
		if got := dirs(opts); got != wantDirs {
			t.Errorf("left %q, want %q", got, wantDirs)
		}
		return report
	}
	disk, lost := engine.Fail(engine.CauseDisk, errors.New("full")), engine.Fail(engine.CauseTime, errors.New("slow"))
	script = map[int]error{1: disk, 2: lost, 3: errors.New("bad"), 4: errors.New("worse"), 6: errors.New("other")}
	step("x", " 1 2,1", "a.3")     // the last failure is kept
	step("x", "3", "a.4")          // and found by the next run
	report := step("y", "", "a.5") // but not with another digest; success removes it
	step("z", "", "a.5 a.6")       // the last success stays beside a later failure
	step("z", "6", "a.7")          // until there is a newer one
	if text, err := os.ReadFile(filepath.Join(report.Jobs[0].Dir, "log")); err == nil {
		t.Errorf("log of a removed attempt: %q", text)
	}
	s, err := engine.ReadState(opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(s.Job("a").LogPath()); string(text) != "log" {
		t.Errorf("log %q, %v", text, err)
	}

	// Leftovers of a killed process go, things of others stay.
	for _, name := range []string{".kiln-tmp-x/y", "a.3", "b.1", "somebody"} {
		if err := os.MkdirAll(filepath.Join(opts.Dir, "attempts", name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	step("z", "", "a.7 b.1 somebody")

	// An attempt that leaves nothing leaves no folder; odd names are made safe.
	opts = options(t, nothing)
	mustRun(t, []engine.Job{{ID: "a"}, {ID: "../b c/Ü"}}, opts)
	if got := dirs(opts); got != "" {
		t.Errorf("left %q", got)
	}
	opts = options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		f, err := a.OpenLog()
		return engine.Result{}, errors.Join(err, f.Close())
	})
	mustRun(t, []engine.Job{{ID: "../b c/Ü"}, {ID: "..b_c__"}, {ID: "B"}, {ID: "b"}, {ID: strings.Repeat("x", 300)}}, opts)
	if got := strings.Fields(dirs(opts)); len(got) != 5 {
		t.Errorf("left %q", got)
	}
}

func TestLearned(t *testing.T) {
	peak := int64(2 * gb)
	var granted []engine.Resources
	var mu sync.Mutex
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		granted = append(granted, a.Resources)
		return engine.Result{PeakMemoryBytes: peak, DiskBytes: peak / 2}, nil
	})
	step := func(want engine.Resources, job engine.Job) {
		t.Helper()
		granted = nil
		mustRun(t, []engine.Job{job}, opts)
		if diff := cmp.Diff([]engine.Resources{want}, granted); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	margin := func(n int64) int64 { return n + n/5 }
	job := engine.Job{ID: "a", Class: "c", Resources: engine.Resources{CPU: 2, MemoryBytes: 8 * gb}}
	step(job.Resources, job)
	step(engine.Resources{CPU: 2, MemoryBytes: margin(2 * gb), DiskBytes: margin(gb)}, job)
	peak = gb // everything was in a cache: the larger one still counts
	step(engine.Resources{CPU: 2, MemoryBytes: margin(2 * gb), DiskBytes: margin(gb)}, job)
	// Another of the class counts like it, one of no class with what it asks for, one that asks for
	// nothing with its share.
	step(engine.Resources{CPU: 1, MemoryBytes: margin(2 * gb), DiskBytes: margin(gb)}, engine.Job{ID: "b", Class: "c", Resources: engine.Resources{MemoryBytes: 3 * gb}})
	step(engine.Resources{CPU: 1, MemoryBytes: 3 * gb}, engine.Job{ID: "c", Resources: engine.Resources{MemoryBytes: 3 * gb}})
	step(engine.Resources{CPU: 3, MemoryBytes: 12 * gb}, engine.Job{ID: "d", Resources: engine.Resources{CPU: 3}})
	step(engine.Resources{CPU: 4, MemoryBytes: 1}, engine.Job{ID: "e", Resources: engine.Resources{CPU: 99, MemoryBytes: 1}})
	for range 5 {
		mustRun(t, []engine.Job{job}, opts)
	}
	step(engine.Resources{CPU: 2, MemoryBytes: margin(gb), DiskBytes: margin(gb / 2)}, job)
	s, err := engine.ReadState(opts.Dir)
	if err != nil || s.Job("a").Learned.PeakMemoryBytes != gb || s.Job("nobody") != nil {
		t.Errorf("state %+v, %v", s, err)
	}
}

func TestOrder(t *testing.T) {
	job := func(id string, mem int64) engine.Job {
		return engine.Job{ID: id, Resources: engine.Resources{MemoryBytes: mem * gb}}
	}
	started := func(t *testing.T, opts engine.Options, jobs ...engine.Job) string {
		var rec recorder
		opts.OnEvent = rec.add
		mustRun(t, jobs, opts)
		var ids []string
		for _, e := range rec.events {
			if e.Kind == engine.EventStarted {
				ids = append(ids, e.Job)
			}
		}
		return strings.Join(ids, " ")
	}
	t.Run("largest first", func(t *testing.T) {
		opts := options(t, nothing)
		opts.Jobs = 1
		if got := started(t, opts, job("s", 1), job("m", 2), job("l", 3), job("m2", 2)); got != "l m m2 s" {
			t.Error(got)
		}
	})
	t.Run("then longest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
				time.Sleep(map[string]time.Duration{"b": 3, "c": 2}[a.Job.ID] * time.Second)
				return engine.Result{}, nil
			})
			opts.Jobs = 1
			if got := started(t, opts, job("a", 1), job("b", 1), job("c", 1)); got != "a b c" {
				t.Error(got)
			}
			if got := started(t, opts, job("a", 1), job("b", 1), job("c", 1)); got != "b c a" {
				t.Error(got)
			}
		})
	})
	t.Run("small ones pass, but not for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
				// They overlap, so that without the rule there would always be one running.
				time.Sleep(map[string]time.Duration{"hold": 100}[a.Job.ID]*time.Second + time.Duration(len(a.Job.ID))*time.Second)
				return engine.Result{}, nil
			})
			opts.CPU = 3
			jobs := []engine.Job{job("hold", 15)}
			jobs = append(jobs, job("big", 14))
			for i := range 20 {
				jobs = append(jobs, job(strings.Repeat("i", i%3+1)+fmt.Sprint(i), 1))
			}
			got := strings.Fields(started(t, opts, jobs...))
			if got[0] != "hold" || slices.Index(got, "big") != 1+8 {
				t.Errorf("big started after %d others: %v", slices.Index(got, "big"), got)
			}
		})
	})
	t.Run("larger than the machine", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var running, most atomic.Int32
			var rec recorder
			opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
				n := running.Add(1)
				defer running.Add(-1)
				if a.Job.ID == "huge" {
					time.Sleep(time.Second)
					most.Store(max(n, running.Load()))
				}
				time.Sleep(time.Second)
				return engine.Result{}, nil
			})
			opts.OnEvent = rec.add
			mustRun(t, []engine.Job{job("a", 1), job("huge", 99), job("b", 1), {ID: "free", Resources: engine.Resources{MemoryBytes: 1}}}, opts)
			if most.Load() != 1 {
				t.Errorf("%d ran beside it", most.Load()-1)
			}
			want := []string{"huge.1 warning counts with 99.0 GiB of memory, more than the 16.0 GiB that jobs may use: it runs alone"}
			if diff := cmp.Diff(want, rec.lines(engine.EventWarning)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	})
}

func TestLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := options(t, nil)
		opts.Runner = engine.Local(func(context.Context, *engine.Attempt) (engine.Result, error) {
			if owner, active := engine.Active(opts.Dir); !active || !strings.Contains(owner, fmt.Sprintf("process %d on ", os.Getpid())) {
				t.Errorf("active: %v %q", active, owner)
			}
			other := opts
			other.Runner = engine.Local(nothing)
			_, err := engine.Run(t.Context(), []engine.Job{{ID: "b"}}, other)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("is locked by process %d on ", os.Getpid())) {
				t.Errorf("second run: %v", err)
			}
			s, err := engine.ReadState(opts.Dir)
			if err != nil || s.Job("a").Status != engine.StatusRunning || !s.Ended.IsZero() {
				t.Errorf("state while at work: %+v, %v", s, err)
			}
			return engine.Result{}, nil
		})
		if _, active := engine.Active(opts.Dir); active {
			t.Error("active before")
		}
		mustRun(t, []engine.Job{{ID: "a"}}, opts)
		if _, active := engine.Active(opts.Dir); active {
			t.Error("active after")
		}
	})
}

func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UTC()
		var opts engine.Options
		var seen []engine.JobState
		opts = options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
			time.Sleep(time.Minute)
			if a.Job.ID == "bad" {
				a.Stage("test")(engine.Fail(engine.CauseFault, errors.New("wrong")))
				return engine.Result{PeakMemoryBytes: 9}, errors.New("wrong")
			}
			if a.Job.ID == "old" {
				return engine.Result{PeakMemoryBytes: 5}, nil
			}
			a.Stage("fetch")(nil)
			a.Stage("compile")
			a.Progress(7, 46, "files")
			for len(seen) == 0 { // the scheduler writes it in its own time
				s, err := engine.ReadState(opts.Dir)
				if err != nil {
					t.Error(err)
				}
				if s.Job("a").Done > 0 {
					seen = append(seen, *s.Job("a"))
				}
				time.Sleep(time.Millisecond)
			}
			return engine.Result{PeakMemoryBytes: 5}, nil
		})
		opts.Jobs = 1
		if s, err := engine.ReadState(opts.Dir); err != nil || len(s.Jobs) != 0 {
			t.Errorf("state of nothing: %+v, %v", s, err)
		}
		mustRun(t, []engine.Job{{ID: "old"}}, opts)
		mustRun(t, []engine.Job{{ID: "a", Digest: "d", Class: "c"}, {ID: "bad"}, {ID: "after", Needs: []string{"bad"}}}, opts)
		ignore := cmpopts.IgnoreUnexported(engine.JobState{})
		want := []engine.JobState{{
			ID: "a", Class: "c", Current: true, Status: engine.StatusRunning, Attempt: 1, Digest: "d", Stage: "compile", Done: 7, Total: 46, Unit: "files",
			Started: start.Add(time.Minute),
		}}
		if diff := cmp.Diff(want, seen, ignore); diff != "" {
			t.Errorf("while at work (-want +got):\n%s", diff)
		}
		s, err := engine.ReadState(opts.Dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, j := range s.Jobs {
			got = append(got, fmt.Sprintf("%s %v %s stage=%s peak=%d %s", j.ID, j.Current, j.Status, j.Stage, j.PeakMemoryBytes, j.Reason))
		}
		if diff := cmp.Diff([]string{
			"a true done stage= peak=5 ", "bad true failed stage=test peak=9 wrong",
			"after true skipped stage= peak=0 needs bad, which failed: wrong", "old false done stage= peak=5 ",
		}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s.PID != os.Getpid() || s.Host == "" || s.Ended.Before(s.Started) {
			t.Errorf("%+v", s)
		}
	})
}

func TestCauseOf(t *testing.T) {
	base := errors.New("x")
	tests := []struct {
		err  error
		want engine.Cause
	}{
		{nil, ""},
		{base, engine.CauseFault},
		{engine.Fail(engine.CauseNetwork, nil), ""},
		{fmt.Errorf("a: %w", engine.Fail(engine.CauseNetwork, base)), engine.CauseNetwork},
		{engine.Fail(engine.CauseFault, engine.Fail(engine.CauseNetwork, base)), engine.CauseFault},
		{context.Canceled, engine.CauseCanceled},
		{context.DeadlineExceeded, engine.CauseTime},
		{&net.DNSError{Err: "no such host"}, engine.CauseNetwork},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, engine.CauseNetwork},
		{&os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, engine.CauseFault},
		{&run.Error{State: run.State{ExitCode: -1, Signal: "SIGKILL"}}, engine.CauseMemory},
		{&run.Error{State: run.State{ExitCode: 137}}, engine.CauseMemory},
		{&run.Error{State: run.State{ExitCode: -1, Signal: "SIGKILL"}, Cause: context.Canceled}, engine.CauseCanceled},
		{&run.Error{State: run.State{ExitCode: 1}}, engine.CauseFault},
		{engine.Fail(engine.CauseFault, &run.Error{State: run.State{ExitCode: 137}}), engine.CauseFault},
	}
	if runtime.GOOS != "windows" {
		full := &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
		tests = append(tests, struct {
			err  error
			want engine.Cause
		}{&run.Error{Err: full}, engine.CauseDisk})
	}
	for _, tt := range tests {
		if got := engine.CauseOf(tt.err); got != tt.want {
			t.Errorf("CauseOf(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
	if engine.Fail(engine.CauseDisk, base).Error() != "x" || !errors.Is(engine.Fail(engine.CauseDisk, base), base) {
		t.Error("Fail changes the error")
	}
	if reason, ok := engine.SkipReason(fmt.Errorf("a: %w", engine.Skip("why"))); !ok || reason != "why" {
		t.Error("SkipReason")
	}
	if _, ok := engine.SkipReason(base); ok || engine.Skip("why").Error() != "skipped: why" {
		t.Error("SkipReason of another error")
	}
}

// TestSweep: attempts without an end are told to the runner, and tried again.
func TestSweep(t *testing.T) {
	opts := options(t, nothing)
	journal := filepath.Join(opts.Dir, "journal.jsonl")
	var cut []byte
	opts.Runner = engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		text, err := os.ReadFile(journal)
		if err != nil {
			t.Error(err)
		}
		cut = text // as if the process were killed here
		return engine.Result{}, os.WriteFile(filepath.Join(a.Dir, "object"), nil, 0o666)
	})
	jobs := []engine.Job{{ID: "a", Digest: "1"}}
	mustRun(t, jobs, opts)
	if err := os.WriteFile(journal, cut, 0o666); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("podman does not answer")
	var lost [][]engine.Lost
	var sweepErr error
	local := engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		if a.Number != 2 {
			t.Errorf("attempt %d", a.Number)
		}
		_, err := os.Stat(filepath.Join(a.Previous, "object"))
		return engine.Result{}, err
	})
	local.OnSweep = func(_ context.Context, l []engine.Lost) error {
		lost = append(lost, l)
		return sweepErr
	}
	opts.Runner = local
	sweepErr = broken
	if _, err := engine.Run(t.Context(), jobs, opts); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	sweepErr = nil
	if report := mustRun(t, jobs, opts); report.Jobs[0].Status != engine.StatusDone {
		t.Errorf("%+v", report.Jobs[0])
	}
	mustRun(t, jobs, opts)
	one := []engine.Lost{{Job: "a", Number: 1, Dir: filepath.Join(opts.Dir, "attempts", "a.1")}}
	if diff := cmp.Diff([][]engine.Lost{one, one, nil}, lost); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLateEvents(t *testing.T) {
	var rec recorder
	var late *engine.Attempt
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		if a.Job.ID == "b" {
			late.Stage("too late")
		}
		late = a
		return engine.Result{}, nil
	})
	opts.OnEvent, opts.Jobs = rec.add, 1
	mustRun(t, []engine.Job{{ID: "a"}, {ID: "b"}}, opts)
	for range 1000 { // there is no reader any more, and nothing hangs
		late.Stage("much too late")(nil)
	}
	if got := rec.lines(engine.EventStage); len(got) > 0 {
		t.Errorf("events %q", got)
	}
	engine.NewAttempt(engine.Job{}, 1, t.TempDir(), nil).Stage("nobody listens")(nil)
}

// limitless is a runner that has room for everything.
type limitless struct{ *engine.LocalRunner }

func (limitless) Capacity() engine.Capacity {
	return engine.Capacity{CPU: -1, MemoryBytes: -1, DiskBytes: -1}
}

// TestCapacity: a runner's own limits count, unless the options have others.
func TestCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most int
		var mu sync.Mutex
		opts := options(t, nil)
		opts.Runner = limitless{engine.Local(func(context.Context, *engine.Attempt) (engine.Result, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return engine.Result{}, nil
		})}
		var jobs []engine.Job
		for i := range 50 {
			jobs = append(jobs, engine.Job{ID: fmt.Sprint(i), Resources: engine.Resources{CPU: 64, MemoryBytes: 1 << 50, DiskBytes: 1 << 50}})
		}
		opts.CPU, opts.MemoryBytes, opts.DiskBytes = 0, 0, 0
		mustRun(t, jobs, opts)
		if most != len(jobs) {
			t.Errorf("%d of %d at once", most, len(jobs))
		}
		most, opts.Jobs = 0, 7
		mustRun(t, jobs, opts)
		if most != 7 {
			t.Errorf("%d at once, want 7", most)
		}
		most, opts.Jobs, opts.CPU = 0, 0, 130
		mustRun(t, jobs, opts)
		if most != 2 {
			t.Errorf("%d at once, want 2", most)
		}
	})
}

// TestThisMachine: without limits in the options those of the machine count.
func TestThisMachine(t *testing.T) {
	var rec recorder
	var granted engine.Resources
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		granted = a.Resources
		return engine.Result{}, nil
	})
	opts.CPU, opts.MemoryBytes, opts.DiskBytes, opts.OnEvent = 0, 0, 0, rec.add
	mustRun(t, []engine.Job{{ID: "a", Resources: engine.Resources{CPU: 1 << 20, DiskBytes: 1 << 60}}}, opts)
	here, err := memory.Read()
	if err != nil {
		t.Skip(err)
	}
	if granted.CPU != runtime.GOMAXPROCS(0) || granted.MemoryBytes <= 0 || granted.MemoryBytes >= here.TotalBytes {
		t.Errorf("granted %+v on a machine with %+v", granted, here)
	}
	if got := rec.lines(engine.EventWarning); len(got) != 1 || !strings.Contains(got[0], "of disk, more than the ") {
		t.Errorf("warnings %q", got)
	}
}
