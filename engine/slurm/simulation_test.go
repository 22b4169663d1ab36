package slurm_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-build/kiln/engine"
)

// rowsEnv is how many rows TestSimulation has; make bench-slurm sets it.
const rowsEnv = "KILN_SIM_ROWS"

// TestSimulation builds many rows, whose times are known from an earlier run, on a simulated
// cluster. Nodes are lost, the controller is away for a while, rows of many lengths wait in line.
// The makespan is compared with what no schedule can beat.
func TestSimulation(t *testing.T) {
	rows, nodes := 300, 6
	if text := os.Getenv(rowsEnv); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		nodes = max(1, rows/50)
	}
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		const cpu, rowCPU = 32, 8
		s := newSite(t, nodes, cpu)
		s.run.OnEvent = nil
		s.run.Jobs = 1000
		s.fake.beat, s.opts.Beat = 5*time.Minute, 5*time.Minute // its files would be most of the test's time
		if rows >= 1000 {
			s.fake.padding = strings.Repeat("p", 3500) // an entry of Slurm's has 3.7 kB
		}
		random := rand.New(rand.NewPCG(1, uint64(rows)))
		jobs := make([]engine.Job, rows)
		var total, longest time.Duration
		for i := range jobs {
			// Most take a quarter of an hour, some an hour.
			seconds := 300 + random.IntN(1200)
			if random.IntN(20) == 0 {
				seconds = 2400 + random.IntN(1800)
			}
			jobs[i] = row(fmt.Sprintf("r%05d", i), seconds, rowCPU)
			d := time.Duration(seconds) * time.Second
			total, longest = total+d, max(longest, d)
		}
		s.learn(jobs)
		slots := nodes * (cpu / rowCPU)
		bound := max(longest, total/time.Duration(slots))

		// Faults, in proportion: one node in twenty is lost for half an hour, the controller is
		// away for five minutes.
		for i := range max(1, nodes/20) {
			at := time.Duration(random.Int64N(int64(bound)))
			time.AfterFunc(at, func() { s.fake.killNode(fmt.Sprint("n", 1+i*7%nodes), 30*time.Minute) })
		}
		time.AfterFunc(bound/3, func() { s.fake.outage(5 * time.Minute) })

		start := time.Now()
		report, err := s.start(t.Context(), jobs...)
		makespan := time.Since(start)
		if err != nil {
			t.Fatal(err)
		}
		again := 0
		for _, j := range report.Jobs {
			if j.Status != engine.StatusDone {
				t.Fatalf("%s: %s: %s", j.ID, j.Status, j.Reason)
			}
			again += j.Attempts - 1
		}
		if again > 0 {
			t.Errorf("%d rows were submitted again, but Slurm starts those of a lost node by itself", again)
		}
		restarts := 0
		for _, n := range s.fake.starts {
			restarts += n - 1
		}
		ratio := float64(makespan) / float64(bound)
		calls := 0
		for _, n := range s.fake.calls {
			calls += n
		}
		t.Logf("%d rows on %d nodes: makespan %v, bound %v, ratio %.3f; %d restarts by Slurm", rows, nodes, makespan.Round(time.Second), bound.Round(time.Second), ratio, restarts)
		t.Logf("%d calls in %v: %v; at most %d in 10 s, %d in a minute", calls, makespan.Round(time.Second), s.fake.calls, s.fake.busiest(10), s.fake.busiest(60))
		if ratio > 1.1 {
			t.Errorf("the makespan is %.3f of the bound", ratio)
		}
		if n := s.fake.busiest(60); n > 60 {
			t.Errorf("%d calls in one minute", n)
		}
		if restarts == 0 {
			t.Error("no node was lost while it had work")
		}
		s.nothingLeft()
	})
	if mib := peakMiB(t); mib > 0 {
		t.Logf("peak memory of this process, the simulated cluster included: %d MiB; %v", mib, time.Since(began).Round(time.Second))
		if rows >= 1000 && mib > 190 {
			t.Errorf("%d MiB is more than 200 MB", mib)
		}
	}
}

// learn runs the rows once on a machine without limits, so that their times are known, and changes
// their digests.
func (s *site) learn(jobs []engine.Job) {
	s.t.Helper()
	opts := s.run
	opts.Runner = s.instant()
	if _, err := engine.Run(s.t.Context(), jobs, opts); err != nil {
		s.t.Fatal(err)
	}
	for i := range jobs {
		jobs[i].Digest = "2"
	}
	// The folders of objects are those of the second run alone.
	files, err := filepath.Glob(filepath.Join(s.dir, "objects", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range files {
		os.Remove(f)
	}
}

// peakMiB is the most memory that the process had, 0 where the system does not tell.
func peakMiB(t *testing.T) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if words := strings.Fields(in.Text()); len(words) > 1 && words[0] == "VmHWM:" {
			n, _ := strconv.Atoi(words[1])
			return n / 1024
		}
	}
	return 0
}

// instant takes no time, and says how long the row takes.
func (s *site) instant() engine.Runner {
	return engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		var w work
		err := json.Unmarshal(a.Job.Payload, &w)
		return engine.Result{PeakMemoryBytes: 1 << 30, Wall: time.Duration(w.Seconds) * time.Second}, err
	})
}
