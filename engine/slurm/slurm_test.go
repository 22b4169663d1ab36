package slurm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/engine/enginetest"
	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/run"
)

func TestMain(m *testing.M) {
	run.Main()
	if os.Getenv(conformanceEnv) != "" {
		if err := conformanceWorker(os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// conformanceEnv makes this test program the worker of a job of a real cluster.
const conformanceEnv = "KILN_SLURM_CONFORMANCE"

// conformanceWorker is what the jobs of the suite run on nodes.
func conformanceWorker(batch string) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		cancel(slurm.ErrStopped)
	}()
	return slurm.Work(ctx, slurm.WorkOptions{
		Batch: batch, Job: os.Getenv("SLURM_ARRAY_JOB_ID"), Task: os.Getenv("SLURM_ARRAY_TASK_ID"), Restart: os.Getenv("SLURM_RESTART_COUNT"),
		Runner: engine.Local(enginetest.Perform), Beat: time.Second,
	})
}

func TestConformance(t *testing.T) {
	clusters := map[engine.Runner]func(t *testing.T) engine.Runner{}
	enginetest.Run(t, enginetest.Config{
		New: func(t *testing.T) engine.Runner {
			f := newFakeCycle(10*time.Millisecond, 3, 64, 1<<40, engine.Local(enginetest.Perform))
			f.set(func() { f.beat = 5 * time.Second })
			dir := filepath.Join(t.TempDir(), "batches")
			t.Cleanup(f.close)
			start := func(t *testing.T) engine.Runner {
				r, err := slurm.New(slurm.Options{
					Dir: dir, Owner: "test", Worker: []string{"kiln"}, Command: f.command,
					Poll: 20 * time.Millisecond, Window: 5 * time.Millisecond, Beat: 5 * time.Second,
				})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			r := start(t)
			clusters[r] = start
			return r
		},
		Again: func(t *testing.T, first engine.Runner) engine.Runner { return clusters[first](t) },
	})
}

// site is a simulated cluster with a run on it.
type site struct {
	t    *testing.T
	fake *fake
	dir  string
	opts slurm.Options
	run  engine.Options
	seen []engine.Event
}

// work is a payload: a row that takes so long, and whose objects are kept in between.
type work struct {
	Seconds int `json:"seconds"`
}

// perform is a build in simulated time: it goes on where earlier attempts stopped, but for the file
// in work.
func (s *site) perform(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	var w work
	if err := json.Unmarshal(a.Job.Payload, &w); err != nil {
		return engine.Result{}, err
	}
	objects := filepath.Join(s.dir, "objects", a.Job.ID)
	text, _ := os.ReadFile(objects)
	done := len(text)
	file := max(1, w.Seconds/20) // seconds a file takes
	for done < w.Seconds {
		select {
		case <-ctx.Done():
			return engine.Result{PeakMemoryBytes: 1 << 30}, context.Cause(ctx)
		case <-time.After(time.Duration(min(file, w.Seconds-done)) * time.Second):
		}
		done += min(file, w.Seconds-done)
		if err := os.WriteFile(objects, []byte(strings.Repeat("x", done)), 0o666); err != nil {
			return engine.Result{}, err
		}
	}
	return engine.Result{PeakMemoryBytes: 1 << 30, Outputs: json.RawMessage(`"` + a.Job.ID + `"`)}, nil
}

func newSite(t *testing.T, nodes, cpu int) *site {
	s := &site{t: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.dir, "objects"), 0o777); err != nil {
		t.Fatal(err)
	}
	s.fake = newFake(nodes, cpu, 256<<10, engine.Local(s.perform))
	s.opts = slurm.Options{Dir: filepath.Join(s.dir, "state", "slurm"), Owner: "test", Worker: []string{"kiln"}, Command: s.fake.command, TimeLimit: 4 * time.Hour}
	s.run = engine.Options{Dir: filepath.Join(s.dir, "state"), OnEvent: func(e engine.Event) { s.seen = append(s.seen, e) }}
	return s
}

func (s *site) runner() *slurm.Runner {
	s.t.Helper()
	r, err := slurm.New(s.opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *site) start(ctx context.Context, jobs ...engine.Job) (*engine.Report, error) {
	s.run.Runner = s.runner()
	return engine.Run(ctx, jobs, s.run)
}

func row(id string, seconds, cpu int) engine.Job {
	return engine.Job{
		ID: id, Digest: "1", Payload: fmt.Appendf(nil, `{"seconds":%d}`, seconds), WallLimit: 2 * time.Hour,
		Resources: engine.Resources{CPU: cpu, MemoryBytes: 2 << 30},
	}
}

// finish checks what every test ends with: all rows built, nothing left.
func (s *site) finish(report *engine.Report, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, j := range report.Jobs {
		if j.Status != engine.StatusDone {
			s.t.Errorf("%s: %s: %s", j.ID, j.Status, j.Reason)
		}
	}
	s.nothingLeft()
}

func (s *site) nothingLeft() {
	s.t.Helper()
	time.Sleep(time.Minute) // workers that have left their result still end
	if n := s.fake.left(); n > 0 {
		s.t.Errorf("%d jobs are left", n)
	}
	if left := batchDirs(s.opts.Dir); len(left) > 0 {
		s.t.Errorf("batches are left: %q", left)
	}
	s.fake.close()
}

func TestArrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, 8)
		s.opts.MaxPerArray, s.opts.MaxTasks = 3, 6
		s.opts.Partition, s.opts.Account, s.opts.QOS, s.opts.Constraint, s.opts.Args = "gpu", "lab", "high", "avx2", []string{"--exclude=n9"}
		var calls [][]string
		s.opts.Command = recorder(s.fake, &calls)
		var jobs []engine.Job
		for i := range 8 {
			jobs = append(jobs, row(fmt.Sprint("small", i), 60, 2))
		}
		jobs = append(jobs, row("large", 60, 8))
		s.finish(s.start(t.Context(), jobs...))
		var got []string
		for _, argv := range calls {
			if argv[0] == "sbatch" {
				got = append(got, strings.Join(slices.DeleteFunc(argv[1:len(argv)-1], func(a string) bool {
					return strings.HasPrefix(a, "--job-name=kiln-test-") || strings.HasPrefix(a, "--output=") || strings.HasPrefix(a, "--chdir=")
				}), " "))
			}
		}
		rest := " --requeue --open-mode=append --mem=2048M --time=128 --signal=B:USR1@120 --partition=gpu --account=lab --qos=high --constraint=avx2 --exclude=n9"
		want := []string{
			"--parsable --array=0-5%3 --nodes=1 --ntasks=1 --cpus-per-task=2" + rest,
			"--parsable --array=0-1%3 --nodes=1 --ntasks=1 --cpus-per-task=2" + rest,
			"--parsable --array=0-0%3 --nodes=1 --ntasks=1 --cpus-per-task=8" + rest,
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("submissions (-want +got):\n%s", diff)
		}
	})
}

func recorder(f *fake, calls *[][]string) func(context.Context, io.Writer, ...string) error {
	return func(ctx context.Context, w io.Writer, argv ...string) error {
		*calls = append(*calls, slices.Clone(argv))
		return f.command(ctx, w, argv...)
	}
}

// TestNodeLost: the tasks of a lost node start again elsewhere, in the same attempt, with what was
// compiled.
func TestNodeLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 3, 8)
		time.AfterFunc(5*time.Minute, func() { s.fake.killNode("n1", time.Hour) })
		var jobs []engine.Job
		for i := range 6 {
			jobs = append(jobs, row(fmt.Sprint("r", i), 600, 4))
		}
		start := time.Now()
		report, err := s.start(t.Context(), jobs...)
		took := time.Since(start)
		s.finish(report, err)
		for _, j := range report.Jobs {
			if j.Attempts != 1 {
				t.Errorf("%s took %d attempts", j.ID, j.Attempts)
			}
		}
		// It waits for the other nodes, then goes on with the half that is left.
		if took < 15*time.Minute || took > 17*time.Minute {
			t.Errorf("took %v", took)
		}
		if !slices.ContainsFunc(s.seen, func(e engine.Event) bool { return strings.Contains(e.Text, "put back into the queue") }) {
			t.Error("nobody was told")
		}
	})
}

// TestControllerAway: jobs end while the controller is down; what was not submitted waits for it.
func TestControllerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		s.run.Jobs = 2
		time.AfterFunc(time.Minute, func() { s.fake.outage(20 * time.Minute) })
		start := time.Now()
		report, err := s.start(t.Context(), row("a", 600, 4), row("b", 600, 4), row("c", 600, 4))
		s.finish(report, err)
		var ended time.Time
		for _, e := range s.seen {
			if e.Kind == engine.EventFinished && ended.IsZero() {
				ended = e.Time
			}
		}
		if d := ended.Sub(start); d > 13*time.Minute {
			t.Errorf("the first row was seen to end after %v", d)
		}
		if n := s.fake.calls["sbatch"] + s.fake.calls["squeue"]; n > 170 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestControllerAwayQueued: rows that wait in the queue have left no file yet. That they are not in
// the answer of a squeue without a controller does not mean that they are gone.
func TestControllerAwayQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		time.AfterFunc(time.Minute, func() { s.fake.outage(20 * time.Minute) })
		report, err := s.start(t.Context(), row("a", 600, 4), row("b", 600, 4), row("c", 600, 4), row("d", 600, 4), row("e", 600, 4))
		s.finish(report, err)
		for _, j := range report.Jobs {
			if j.Attempts != 1 {
				t.Errorf("%s in %d attempts", j.ID, j.Attempts)
			}
		}
		if n := s.fake.calls["sbatch"]; n != 1 {
			t.Errorf("%d submissions", n)
		}
	})
}

// TestLostAnswer: sbatch works and its answer is lost.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		s.fake.set(func() { s.fake.lose = true })
		s.finish(s.start(t.Context(), row("a", 60, 4), row("b", 60, 4)))
		if n := s.fake.calls["sbatch"]; n != 1 {
			t.Errorf("submitted %d times", n)
		}
	})
}

func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		s.fake.set(func() {
			s.fake.refuse = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
		})
		report, err := s.start(t.Context(), row("a", 60, 4))
		if err != nil {
			t.Fatal(err)
		}
		if j := report.Jobs[0]; j.Status != engine.StatusFailed || j.Attempts != 1 || !strings.Contains(j.Reason, "Invalid account") {
			t.Errorf("%+v", j)
		}
		s.nothingLeft()
	})
}

// TestTimeLimit: a row that is longer than the queue allows stops before the limit and goes on in
// the next job.
func TestTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		s.opts.TimeLimit = 30 * time.Minute
		long := row("long", 5*3600, 4)
		long.WallLimit = 0
		start := time.Now()
		report, err := s.start(t.Context(), long)
		took := time.Since(start)
		s.finish(report, err)
		j := report.Jobs[0]
		// A file takes a quarter of an hour here, so each job compiles one.
		if j.Attempts < 10 || j.Attempts > 20 || took > 10*time.Hour {
			t.Errorf("%d attempts, %v", j.Attempts, took)
		}
		for _, e := range s.seen {
			if e.Kind == engine.EventRetry && (e.Cause != engine.CausePaused || !strings.Contains(e.Error, "time limit of the queue")) {
				t.Errorf("%+v", e)
			}
		}
	})
}

// TestCanceledByHand: scancel by a person is no reason to try again.
func TestCanceledByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 8)
		time.AfterFunc(time.Minute, func() { _ = s.fake.command(t.Context(), nil, "scancel", "1_0") })
		report, err := s.start(t.Context(), row("a", 600, 4), row("b", 600, 4))
		if err != nil {
			t.Fatal(err)
		}
		if a, b := report.Jobs[0], report.Jobs[1]; a.Status != engine.StatusCanceled || a.Attempts != 1 || b.Status != engine.StatusDone {
			t.Errorf("%+v\n%+v", a, b)
		}
		s.nothingLeft()
	})
}

// TestInterrupt: the end of the run ends all jobs, in few calls.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, 8)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, errors.New("enough"))
		defer cancel()
		var jobs []engine.Job
		for i := range 100 {
			jobs = append(jobs, row(fmt.Sprint("r", i), 600, 4))
		}
		start := time.Now()
		report, err := s.start(ctx, jobs...)
		if err == nil || report.Count(engine.StatusCanceled) != 100 {
			t.Errorf("%v, %d canceled", err, report.Count(engine.StatusCanceled))
		}
		if d := time.Since(start); d > 5*time.Minute {
			t.Errorf("took %v", d)
		}
		if n := s.fake.calls["scancel"]; n > 4 {
			t.Errorf("%d calls of scancel", n)
		}
		s.nothingLeft()
	})
}

// TestNeverStarts: a job that Slurm takes and would never start fails with Slurm's reason.
func TestNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1, 2)
		time.AfterFunc(10*time.Second, func() {
			s.fake.set(func() {
				for _, a := range s.fake.jobs {
					a.tasks[0].reason = "PartitionTimeLimit"
				}
			})
		})
		report, err := s.start(t.Context(), row("a", 60, 4))
		if err != nil {
			t.Fatal(err)
		}
		if j := report.Jobs[0]; j.Status != engine.StatusFailed || !strings.Contains(j.Reason, "PartitionTimeLimit") {
			t.Errorf("%+v", j)
		}
		s.nothingLeft()
	})
}
