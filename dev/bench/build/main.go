// Command benchbuild measures what kiln's engine adds to a row, beside make and ninja with the same
// graph: many targets that need nothing and do nothing.
//
//	 2 at once, median of 1 runs  rows  seconds  µs a row  of make  CPU µs  peak RSS
//	         kiln, plain process  2000    33.25     16625     0.53    1442     14 MB
//	    kiln, supervised process   200     7.43     37143     1.18    8660     10 MB
//	              kiln, function  2000    16.62      8308     0.26     272     15 MB
//	kiln, everything done before  2000     1.22       612     0.02      16     15 MB
//	                        make  2000    62.92     31458     1.00     942      6 MB
//	                       ninja  2000    20.49     10244     0.33    1429      5 MB
//
// This was a machine with fourteen times as much to do as it had processors, where only the
// processor time and the ratios say something.
//
// make and ninja start a process for each target; kiln calls a function, so there are two more
// lines in which that function starts the same process: with nothing around it, and the way builds
// do it, under a supervisor that leaves nothing behind. What the engine adds is the difference to
// the function's line, not to the others. It then prints the size of the journal and the time to
// read it.
//
// It fails if the function's line takes longer than that of make.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/dev/internal/measure"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/run"
)

// noop is what a row does when it starts a process.
const noop = "/bin/true"

type config struct {
	rows, runs, jobs int
	supervised       int
	dir, make, ninja string
}

func main() {
	run.Main()
	var c config
	flag.IntVar(&c.rows, "rows", 10_000, "how many rows")
	flag.IntVar(&c.supervised, "supervised", 1000, "how many rows with a supervised process, which are slow")
	flag.IntVar(&c.runs, "runs", 3, "how often each program runs")
	flag.IntVar(&c.jobs, "jobs", runtime.GOMAXPROCS(0), "how many rows at once")
	flag.StringVar(&c.dir, "dir", ".cache/bench", "a folder on the disk to measure")
	flag.StringVar(&c.make, "make", "make", "GNU make; empty leaves it out")
	flag.StringVar(&c.ninja, "ninja", "ninja", "ninja; empty leaves it out")
	part := flag.String("part", "", "internal: run one of kiln's lines in this process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *part != "" {
		err = runPart(ctx, *part, c)
	} else {
		err = compare(ctx, os.Stdout, c)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchbuild:", err)
		os.Exit(1)
	}
}

// parts are kiln's lines: what the function of a row does.
var parts = map[string]func(context.Context, *engine.Attempt) (engine.Result, error){
	"function": func(context.Context, *engine.Attempt) (engine.Result, error) { return engine.Result{}, nil },
	"plain": func(ctx context.Context, _ *engine.Attempt) (engine.Result, error) {
		return engine.Result{}, exec.CommandContext(ctx, noop).Run()
	},
	"supervised": func(ctx context.Context, _ *engine.Attempt) (engine.Result, error) {
		state, err := (&run.Cmd{Argv: []string{noop}}).Run(ctx)
		return engine.Result{PeakMemoryBytes: state.PeakMemoryBytes}, err
	},
}

func runPart(ctx context.Context, name string, c config) error {
	jobs := make([]engine.Job, c.rows)
	for i := range jobs {
		jobs[i] = engine.Job{ID: fmt.Sprintf("row-%05d", i), Digest: "1", Resources: engine.Resources{MemoryBytes: 1 << 20}}
	}
	report, err := engine.Run(ctx, jobs, engine.Options{Dir: c.dir, Runner: engine.Local(parts[name]), CPU: c.jobs, Jobs: c.jobs})
	if err == nil && !report.OK() {
		err = fmt.Errorf("%d rows failed", report.Count(engine.StatusFailed))
	}
	return err
}

// program is one line of the table.
type program struct {
	name  string
	rows  int
	argv  []string
	fresh bool // begins with an empty state folder
}

type result struct {
	wall, cpu time.Duration
	rss       int64
}

func compare(ctx context.Context, w io.Writer, c config) (err error) {
	if err := os.MkdirAll(c.dir, 0o777); err != nil {
		return err
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp(c.dir, "build-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	programs, err := c.programs()
	if err != nil {
		return err
	}
	results := make([][]result, len(programs))
	for i := range c.runs {
		for k, p := range programs {
			if p.fresh {
				if err := os.RemoveAll(c.state()); err != nil {
					return err
				}
			}
			r, err := p.run(ctx, c.dir)
			if err != nil {
				return err
			}
			results[k] = append(results[k], r)
			fmt.Fprintf(os.Stderr, "run %d: %-28s %7.2f s\n", i+1, p.name, r.wall.Seconds())
		}
	}
	return c.print(w, programs, results)
}

func (c config) state() string { return filepath.Join(c.dir, "state") }

func (c config) programs() ([]program, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	kiln := func(name, part string, rows int, fresh bool) program {
		return program{name, rows, []string{self, "-part", part, "-rows", fmt.Sprint(rows), "-jobs", fmt.Sprint(c.jobs), "-dir", c.state()}, fresh}
	}
	list := []program{
		kiln("kiln, plain process", "plain", c.rows, true),
		kiln("kiln, supervised process", "supervised", c.supervised, true),
		kiln("kiln, function", "function", c.rows, true),
		kiln("kiln, everything done before", "function", c.rows, false), // after the line above
	}
	if c.make != "" {
		err := writeLines(filepath.Join(c.dir, "Makefile"), c.rows, "MAKEFLAGS += -rR\n.PHONY: all", " row%d", "\nall:", ".PHONY: row%[1]d\nall: row%[1]d\nrow%[1]d: ; @"+noop+"\n")
		if err != nil {
			return nil, err
		}
		list = append(list, program{"make", c.rows, []string{c.make, "-s", fmt.Sprint("-j", c.jobs), "all"}, false})
	}
	if c.ninja != "" {
		err := writeLines(filepath.Join(c.dir, "build.ninja"), c.rows, "rule noop\n  command = "+noop, "", "", "build row%[1]d: noop\n")
		if err != nil {
			return nil, err
		}
		list = append(list, program{"ninja", c.rows, []string{c.ninja, "--quiet", fmt.Sprint("-j", c.jobs)}, false})
	}
	return list, nil
}

// writeLines writes a file with a part for each row.
func writeLines(path string, rows int, head, item, middle, line string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	fmt.Fprint(w, head)
	for i := range rows {
		if item != "" {
			fmt.Fprintf(w, item, i)
		}
	}
	fmt.Fprintln(w, middle)
	for i := range rows {
		fmt.Fprintf(w, line, i)
	}
	return errors.Join(w.Flush(), f.Close())
}

func (p program) run(ctx context.Context, dir string) (result, error) {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	start := time.Now()
	err := cmd.Run()
	r := result{wall: time.Since(start)}
	if err != nil {
		return r, fmt.Errorf("%s: %w", p.name, err)
	}
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	r.rss = measure.PeakMemory(cmd.ProcessState)
	return r, nil
}

func (c config) print(w io.Writer, programs []program, results [][]result) error {
	median := make([]result, len(programs))
	perRow := make(map[string]time.Duration)
	for i, list := range results {
		slices.SortFunc(list, func(a, b result) int { return int(a.wall - b.wall) })
		median[i] = list[len(list)/2]
		perRow[programs[i].name] = median[i].wall / time.Duration(programs[i].rows)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d at once, median of %d runs\trows\tseconds\tµs a row\tof make\tCPU µs\tpeak RSS\t\n", c.jobs, c.runs)
	for i, p := range programs {
		of := "–"
		if perRow["make"] > 0 {
			of = fmt.Sprintf("%.2f", perRow[p.name].Seconds()/perRow["make"].Seconds())
		}
		fmt.Fprintf(table, "%s\t%d\t%.2f\t%d\t%s\t%d\t%d MB\t\n", p.name, p.rows, median[i].wall.Seconds(), perRow[p.name].Microseconds(), of,
			median[i].cpu.Microseconds()/int64(p.rows), median[i].rss/1e6)
	}
	if err := table.Flush(); err != nil {
		return err
	}

	// The last state folder is that of the rows without a process.
	start := time.Now()
	state, err := engine.ReadState(c.state())
	if err != nil {
		return err
	}
	wall := time.Since(start)
	entries, err := os.ReadDir(c.state())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), "journal") {
			fmt.Fprintf(w, "journal of %d rows: %.1f MB, read in %.3f s\n", len(state.Jobs), float64(info.Size())/1e6, wall.Seconds())
		}
	}
	if own := perRow["kiln, function"]; perRow["make"] > 0 && own > perRow["make"] {
		return fmt.Errorf("a row without a process takes longer than one of make: %v, %v", own, perRow["make"])
	}
	return nil
}
