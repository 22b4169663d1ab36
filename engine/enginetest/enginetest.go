// Package enginetest checks that an [engine.Runner] keeps the promises of the interface. A runner's
// test calls [Run] with a way to make the runner; the runner's attempts have to call [Perform], in
// this process or, for a runner that hands the work on, in the worker.
package enginetest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/run"
)

// Config is how the suite gets at the runner.
type Config struct {
	// New returns a runner whose attempts call [Perform]. It is called once a test.
	New func(t *testing.T) engine.Runner
	// Again returns a second runner that knows nothing but what the first left on disk, as after a
	// restart. It is needed for an [engine.Keeper].
	Again func(t *testing.T, first engine.Runner) engine.Runner
	// MemoryBytes is what the machine has for all attempts together; zero means 1 TiB.
	MemoryBytes int64
	// Dir returns an empty folder that all workers see at the same path. Nil means t.TempDir.
	Dir func(t *testing.T) string
	// Processes counts the processes whose environment has an entry, wherever workers run. Nil
	// means those of this machine, where that can be found out: on Linux.
	Processes func(t *testing.T, entry string) int
}

// Work is the payload of the suite's jobs: what [Perform] does, in this order.
type Work struct {
	Stages   []string `json:"stages,omitempty"`   // begun and ended
	File     string   `json:"file,omitempty"`     // written to the attempt's folder, with the attempt's number
	Previous string   `json:"previous,omitempty"` // content wanted of File in the previous folder
	Log      string   `json:"log,omitempty"`      // written to the log
	// Tree is an entry of the environment of a tree of processes that do not want to end; the
	// attempt goes on when they are there, and does not wait for them.
	Tree string `json:"tree,omitempty"`
	// Ready is a file that is made then; the attempt waits for the end of its context, or for the
	// file Until if that is set.
	Ready string `json:"ready,omitempty"`
	Until string `json:"until,omitempty"`
	// FirstError is how the first attempt ends, Error all of them.
	FirstError *Failure      `json:"first_error,omitempty"`
	Error      *Failure      `json:"error,omitempty"`
	Result     engine.Result `json:"result,omitzero"`
}

// Failure is an error as data.
type Failure struct {
	Cause engine.Cause `json:"cause,omitempty"`
	Text  string       `json:"text"`
	Skip  bool         `json:"skip,omitempty"`
	Panic bool         `json:"panic,omitempty"`
}

func (f *Failure) err() error {
	switch {
	case f.Panic:
		panic(f.Text)
	case f.Skip:
		return engine.Skip(f.Text)
	}
	return engine.Fail(f.Cause, errors.New(f.Text))
}

// stubborn is a tree with a daemon, and with processes that ignore being asked to end.
const stubborn = `
trap '' TERM INT HUP
(trap '' TERM; sleep 1000 & sleep 1000) &
(setsid sh -c 'trap "" TERM; sleep 1000 & sleep 1000; sleep 1000' &) &
sleep 0.1
echo ready
while :; do echo more >>"$1"; sleep 0.01; done
`

// Perform does the [Work] that the job's payload asks for. It has the form of [engine.Runner.Run].
func Perform(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	var w Work
	if err := json.Unmarshal(a.Job.Payload, &w); err != nil {
		return engine.Result{}, err
	}
	for i, name := range w.Stages {
		end := a.Stage(name)
		a.Progress(i+1, i+1, "steps")
		end(nil)
	}
	if w.Previous != "" {
		text, err := os.ReadFile(filepath.Join(a.Previous, w.File))
		if err != nil && a.Number > 1 || err == nil && string(text) != w.Previous {
			return engine.Result{}, fmt.Errorf("previous folder: %q, %w", text, err)
		}
	}
	if w.File != "" {
		if err := os.WriteFile(filepath.Join(a.Dir, w.File), fmt.Append(nil, a.Number), 0o666); err != nil {
			return engine.Result{}, err
		}
	}
	if w.Log != "" {
		f, err := a.OpenLog()
		if err != nil {
			return engine.Result{}, err
		}
		_, err = f.WriteString(w.Log)
		if err := errors.Join(err, f.Close()); err != nil {
			return engine.Result{}, err
		}
	}
	if w.Tree != "" {
		return engine.Result{}, plant(ctx, a, w)
	}
	if w.Ready != "" {
		if err := os.WriteFile(w.Ready, nil, 0o666); err != nil {
			return engine.Result{}, err
		}
		for until := false; !until; {
			select {
			case <-ctx.Done():
				return engine.Result{}, context.Cause(ctx)
			case <-time.After(5 * time.Millisecond):
			}
			if w.Until != "" {
				_, err := os.Stat(w.Until)
				until = err == nil
			}
		}
	}
	if w.FirstError != nil && a.Number == 1 {
		return w.Result, w.FirstError.err()
	}
	if w.Error != nil {
		return w.Result, w.Error.err()
	}
	return w.Result, nil
}

// plant runs the tree until the context ends.
func plant(ctx context.Context, a *engine.Attempt, w Work) error {
	cmd := run.Cmd{
		Argv: []string{"sh", "-c", stubborn, "sh", filepath.Join(a.Dir, "growing")},
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", w.Tree},
		Stdout: writerFunc(func(p []byte) (int, error) {
			return len(p), os.WriteFile(w.Ready, nil, 0o666)
		}),
		Grace: 100 * time.Millisecond,
	}
	_, err := cmd.Run(ctx)
	return err
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// suite is one test's runner, folder and jobs.
type suite struct {
	Config
	t      *testing.T
	opts   engine.Options
	events []engine.Event
}

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, c Config) {
	if c.Dir == nil {
		c.Dir = func(t *testing.T) string { return t.TempDir() }
	}
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"Identity", (*suite).identity},
		{"Success", (*suite).success},
		{"Failure", (*suite).failure},
		{"Retry", (*suite).retry},
		{"Parallel", (*suite).parallel},
		{"Cancel", (*suite).cancel},
		{"WallLimit", (*suite).wallLimit},
		{"NothingLeft", (*suite).nothingLeft},
		{"Sweep", (*suite).sweep},
		{"Keep", (*suite).keep},
		{"KeepNot", (*suite).keepNot},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &suite{Config: c, t: t}
			s.opts = engine.Options{
				Dir: filepath.Join(c.Dir(t), "state"), Runner: c.New(t), CPU: 8, MemoryBytes: cmp.Or(c.MemoryBytes, 1<<40), DiskBytes: 1 << 40,
				RetryDelay: time.Millisecond, OnEvent: func(e engine.Event) { s.events = append(s.events, e) },
			}
			tt.run(s)
		})
	}
}

func (s *suite) job(id string, w Work) engine.Job {
	payload, err := json.Marshal(w)
	if err != nil {
		s.t.Fatal(err)
	}
	return engine.Job{ID: id, Digest: "1", Payload: payload}
}

func (s *suite) run(jobs ...engine.Job) []engine.JobReport {
	s.t.Helper()
	report, err := engine.Run(s.t.Context(), jobs, s.opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return report.Jobs
}

func (s *suite) identity() {
	r := s.opts.Runner
	if name := r.Name(); name == "" || strings.ContainsAny(name, " \n") || r.Name() != name {
		s.t.Errorf("name %q", r.Name())
	}
	if first, second := r.Capacity(), r.Capacity(); first != second {
		s.t.Errorf("capacity %+v, then %+v", first, second)
	}
}

func (s *suite) success() {
	large, err := json.Marshal(strings.Repeat("ü\n\x00", 30_000))
	if err != nil {
		s.t.Fatal(err)
	}
	want := engine.Result{PeakMemoryBytes: 123, DiskBytes: 456, Outputs: large}
	j := s.run(s.job("a", Work{Stages: []string{"fetch", "compile"}, File: "made", Log: "one\ntwo\n", Result: want}))[0]
	if j.Status != engine.StatusDone || j.Attempts != 1 {
		s.t.Fatalf("%+v", j)
	}
	// A runner may measure more than the function told.
	if j.Result.PeakMemoryBytes < 123 || j.Result.DiskBytes < 456 || !bytes.Equal(j.Result.Outputs, large) {
		s.t.Errorf("result %d, %d, %d bytes of outputs", j.Result.PeakMemoryBytes, j.Result.DiskBytes, len(j.Result.Outputs))
	}
	for name, want := range map[string]string{"made": "1", engine.LogName: "one\ntwo\n"} {
		if text, err := os.ReadFile(filepath.Join(j.Dir, name)); err != nil || string(text) != want {
			s.t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	var kinds []string
	for _, e := range s.events {
		if e.Job != "a" || e.Time.IsZero() {
			s.t.Errorf("event %+v", e)
		}
		// The second progress may come too soon after the first to be an event of its own.
		// A runner may have a stage of its own for waiting.
		if e.Kind != engine.EventProgress && e.Stage != "queue" {
			kinds = append(kinds, strings.TrimSpace(fmt.Sprintf("%s %s", e.Kind, e.Stage)))
		}
	}
	wantKinds := []string{"submitted", "started", "stage fetch", "stage_done fetch", "stage compile", "stage_done compile", "finished"}
	if !slices.Equal(kinds, wantKinds) {
		s.t.Errorf("events %q, want %q", kinds, wantKinds)
	}
}

func (s *suite) failure() {
	fault := func(f Failure) engine.Job {
		return s.job(f.Text, Work{Error: &f, Result: engine.Result{PeakMemoryBytes: 77}})
	}
	jobs := []engine.Job{
		fault(Failure{Cause: engine.CauseFault, Text: "x.cu:1: error"}),
		fault(Failure{Cause: engine.CauseNetwork, Text: "reset by peer"}),
		fault(Failure{Cause: engine.CauseMemory, Text: "cicc killed"}),
		fault(Failure{Cause: engine.CauseDisk, Text: "no space"}),
		fault(Failure{Cause: engine.CauseLost, Text: "node went away"}),
		fault(Failure{Cause: engine.CauseCanceled, Text: "by the operator"}),
		fault(Failure{Skip: true, Text: "no GPU on this machine"}),
		fault(Failure{Panic: true, Text: "a bug"}),
	}
	want := []struct {
		status   engine.Status
		cause    engine.Cause
		attempts int
	}{
		{engine.StatusFailed, engine.CauseFault, 1},
		{engine.StatusFailed, engine.CauseNetwork, 3},
		{engine.StatusFailed, engine.CauseMemory, 3},
		{engine.StatusFailed, engine.CauseDisk, 2},
		{engine.StatusFailed, engine.CauseLost, 5},
		{engine.StatusCanceled, engine.CauseCanceled, 1},
		{engine.StatusSkipped, "", 1},
		{engine.StatusFailed, engine.CauseFault, 1},
	}
	for i, j := range s.run(jobs...) {
		if j.Status != want[i].status || j.Cause != want[i].cause || j.Attempts != want[i].attempts || !strings.Contains(j.Reason, j.ID) {
			s.t.Errorf("%s: %+v, want %+v", j.ID, j, want[i])
		}
		if j.Result.PeakMemoryBytes < 77 && j.ID != "a bug" {
			s.t.Errorf("%s: the peak of a failed attempt is %d", j.ID, j.Result.PeakMemoryBytes)
		}
		if j.Result.Outputs != nil {
			s.t.Errorf("%s: a failed attempt has outputs", j.ID)
		}
	}
}

func (s *suite) retry() {
	w := Work{File: "object", Previous: "1", FirstError: &Failure{Cause: engine.CauseTime, Text: "slow"}, Result: engine.Result{Outputs: json.RawMessage(`1`)}}
	j := s.run(s.job("a", w))[0]
	if j.Status != engine.StatusDone || j.Attempts != 2 {
		s.t.Errorf("%+v", j)
	}
}

func (s *suite) parallel() {
	var jobs []engine.Job
	for i := range 24 {
		w := Work{File: "made", Log: fmt.Sprint(i), Stages: []string{fmt.Sprint("stage", i)}, Result: engine.Result{Outputs: fmt.Append(nil, i)}}
		if i%5 == 4 {
			w.Error = &Failure{Cause: engine.CauseFault, Text: fmt.Sprint("error", i)}
		}
		jobs = append(jobs, s.job(fmt.Sprint("job", i), w))
	}
	for i, j := range s.run(jobs...) {
		if text, err := os.ReadFile(filepath.Join(j.Dir, engine.LogName)); err != nil || string(text) != fmt.Sprint(i) {
			s.t.Errorf("log of %s: %q, %v", j.ID, text, err)
		}
		if i%5 == 4 {
			if j.Status != engine.StatusFailed || j.Reason != fmt.Sprint("error", i) {
				s.t.Errorf("%+v", j)
			}
		} else if j.Status != engine.StatusDone || string(j.Result.Outputs) != fmt.Sprint(i) {
			s.t.Errorf("%+v", j)
		}
	}
	for _, e := range s.events {
		if e.Kind == engine.EventStage && e.Stage != "queue" && e.Stage != strings.Replace(e.Job, "job", "stage", 1) {
			s.t.Errorf("event %+v", e)
		}
	}
}

// waitFor waits for a file that an attempt makes.
func (s *suite) waitFor(ctx context.Context, path string) {
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *suite) cancel() {
	ready := filepath.Join(filepath.Dir(s.opts.Dir), "ready")
	enough := errors.New("enough of this")
	ctx, cancel := context.WithCancelCause(s.t.Context())
	go func() {
		s.waitFor(s.t.Context(), ready)
		cancel(enough)
	}()
	report, err := engine.Run(ctx, []engine.Job{s.job("a", Work{File: "object", Ready: ready})}, s.opts)
	if !errors.Is(err, enough) {
		s.t.Fatalf("error %v", err)
	}
	j := report.Jobs[0]
	if j.Status != engine.StatusCanceled || !strings.Contains(j.Reason, enough.Error()) {
		s.t.Errorf("%+v", j)
	}
	if _, err := os.Stat(filepath.Join(j.Dir, "object")); err != nil {
		s.t.Error(err)
	}
	// The next run finds what was made.
	if j := s.run(s.job("a", Work{File: "object", Previous: "1"}))[0]; j.Status != engine.StatusDone {
		s.t.Errorf("%+v", j)
	}
}

func (s *suite) wallLimit() {
	job := s.job("a", Work{Ready: filepath.Join(filepath.Dir(s.opts.Dir), "ready")})
	job.WallLimit = 50 * time.Millisecond
	j := s.run(job)[0]
	if j.Status != engine.StatusFailed || j.Cause != engine.CauseTime || j.Attempts != 3 || !strings.Contains(j.Reason, "wall time limit of 50ms") {
		s.t.Errorf("%+v", j)
	}
}

func (s *suite) nothingLeft() {
	count := s.Processes
	if count == nil {
		if runtime.GOOS != "linux" {
			s.t.Skip("processes can be counted on Linux only")
		}
		count = countProcesses
	}
	mark := "KILN_ENGINETEST=" + rand.Text()
	dir := filepath.Dir(s.opts.Dir)
	var jobs []engine.Job
	for i := range 3 {
		jobs = append(jobs, s.job(fmt.Sprint("tree", i), Work{Tree: mark, Ready: filepath.Join(dir, fmt.Sprint("ready", i))}))
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	before := 0
	go func() {
		defer cancel()
		for i := range jobs {
			s.waitFor(s.t.Context(), filepath.Join(dir, fmt.Sprint("ready", i)))
		}
		before = count(s.t, mark)
	}()
	report, err := engine.Run(ctx, jobs, s.opts)
	if !errors.Is(err, context.Canceled) {
		s.t.Fatalf("error %v, %+v", err, report)
	}
	if before < 4*len(jobs) {
		s.t.Errorf("there were only %d processes", before)
	}
	if n := count(s.t, mark); n > 0 {
		s.t.Errorf("%d of %d processes are left", n, before)
	}
	for _, j := range report.Jobs {
		path := filepath.Join(j.Dir, "growing")
		first, err := os.Stat(path)
		if err != nil {
			s.t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if second, err := os.Stat(path); err != nil || second.Size() != first.Size() {
			s.t.Errorf("a process still writes to the folder of %s", j.ID)
		}
	}
}

// countProcesses looks into the environments of all processes.
func countProcesses(t *testing.T, entry string) int {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(entry)) {
			n++
		}
	}
	return n
}

func (s *suite) sweep() {
	// With nothing to do, and twice, and for an attempt that never got further than its folder.
	dir := filepath.Join(s.opts.Dir, "attempts", "a.1")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		s.t.Fatal(err)
	}
	for _, lost := range [][]engine.Lost{nil, {{Job: "a", Number: 1, Dir: dir}}, {{Job: "a", Number: 1, Dir: dir}}} {
		if err := s.opts.Runner.Sweep(s.t.Context(), lost); err != nil {
			s.t.Errorf("sweep of %v: %v", lost, err)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		s.t.Errorf("the folder of a lost attempt: %v", err)
	}
	if j := s.run(s.job("a", Work{}))[0]; j.Status != engine.StatusDone {
		s.t.Errorf("%+v", j)
	}
}

// abandoned begins an attempt as a process that is killed would leave it, and returns once it is at
// work, with the runner of the next process.
func (s *suite) abandoned(w Work) (second engine.Keeper, a *engine.Attempt, lost engine.Lost) {
	first, ok := s.opts.Runner.(engine.Keeper)
	if !ok {
		s.t.Skip("its attempts end with the process")
	}
	if s.Again == nil {
		s.t.Fatal("Config.Again is needed for a Keeper")
	}
	dir := filepath.Join(s.opts.Dir, "attempts", "a.1")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		s.t.Fatal(err)
	}
	if err := first.Sweep(s.t.Context(), nil); err != nil {
		s.t.Fatal(err)
	}
	job := s.job("a", w)
	// The first runner is not killed, but its events are no longer read. It ends with its attempt.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = first.Run(s.t.Context(), engine.NewAttempt(job, 1, dir, nil))
	}()
	s.t.Cleanup(func() { <-ended })
	s.waitFor(s.t.Context(), w.Ready)
	second, ok = s.Again(s.t, first).(engine.Keeper)
	if !ok {
		s.t.Fatal("Config.Again did not return a Keeper")
	}
	return second, engine.NewAttempt(job, 1, dir, nil), engine.Lost{Job: "a", Number: 1, Dir: dir}
}

// keep: an attempt outlives the process that began it.
func (s *suite) keep() {
	dir := filepath.Dir(s.opts.Dir)
	w := Work{File: "made", Ready: filepath.Join(dir, "ready"), Until: filepath.Join(dir, "until"), Result: engine.Result{DiskBytes: 5, Outputs: json.RawMessage(`1`)}}
	second, a, lost := s.abandoned(w)
	unknown := engine.Lost{Job: "b", Number: 1, Dir: filepath.Join(filepath.Dir(lost.Dir), "b.1")}
	kept, err := second.Keep(s.t.Context(), []engine.Lost{unknown, lost})
	if err != nil || !slices.Equal(kept, []engine.Lost{lost}) {
		s.t.Fatalf("kept %v, %v", kept, err)
	}
	if err := second.Sweep(s.t.Context(), []engine.Lost{unknown}); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(w.Until, nil, 0o666); err != nil {
		s.t.Fatal(err)
	}
	result, err := second.Resume(s.t.Context(), a)
	if err != nil || result.DiskBytes != 5 || string(result.Outputs) != "1" {
		s.t.Errorf("%+v, %v", result, err)
	}
	if text, err := os.ReadFile(filepath.Join(a.Dir, "made")); err != nil || string(text) != "1" {
		s.t.Errorf("made: %q, %v", text, err)
	}
}

// keepNot: one that is not wanted any more is ended by Sweep.
func (s *suite) keepNot() {
	mark := "KILN_ENGINETEST=" + rand.Text()
	second, _, lost := s.abandoned(Work{Tree: mark, Ready: filepath.Join(filepath.Dir(s.opts.Dir), "ready")})
	if err := second.Sweep(s.t.Context(), []engine.Lost{lost}); err != nil {
		s.t.Fatal(err)
	}
	count := s.Processes
	if count == nil {
		if runtime.GOOS != "linux" {
			return
		}
		count = countProcesses
	}
	if n := count(s.t, mark); n > 0 {
		s.t.Errorf("%d processes are left", n)
	}
}
