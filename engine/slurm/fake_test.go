package slurm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/engine/slurm"
)

// fake is a cluster inside this process. What it does, and when, was watched at Slurm 22.05.8:
// tasks of an array that wait share one entry; squeue --json ignores filters and lists what has
// ended for MinJobAge; a job that is canceled is called so at once and has KillWait to end; a lost
// node is noticed after a while, and its tasks wait, with their start counted, before they begin
// again elsewhere. Jobs are goroutines that call slurm.Work.
type fake struct {
	runner engine.Runner // of the workers
	beat   time.Duration

	// How long things take.
	cycle, notice, hold, keep, grace time.Duration
	// padding stands in for the fields that kiln does not read.
	padding string

	mu      sync.Mutex
	nodes   []*node
	jobs    map[int]*array
	order   []int
	next    int
	down    bool // the controller does not answer
	refuse  string
	lose    bool // the next sbatch works, and says that it did not
	calls   map[string]int
	calledS map[int64]int // commands by second
	starts  map[string]int
	wg      sync.WaitGroup
	stop    chan struct{}
	lastEnd time.Time
	begin   time.Time
}

type node struct {
	name       string
	cpu, used  int
	mem, usedM int64
	up         bool
}

type array struct {
	id      int
	name    string
	batch   string
	cpu     int
	mem     int64
	minutes int
	grace   int
	limit   int
	tasks   []*fakeTask
	running int
}

type fakeTask struct {
	array    *array
	index    int
	state    string
	reason   string
	restarts int
	node     *node
	ended    time.Time
	cancel   context.CancelCauseFunc
	timers   []*time.Timer
	exit     int
	run      int // counts starts, so that an end belongs to its start
}

func newFake(nodes, cpu int, mem int64, runner engine.Runner) *fake {
	return newFakeCycle(3*time.Second, nodes, cpu, mem, runner)
}

// newFakeCycle is newFake with another time between two rounds of the scheduler.
func newFakeCycle(cycle time.Duration, nodes, cpu int, mem int64, runner engine.Runner) *fake {
	f := &fake{
		runner: runner, beat: 10 * time.Second, cycle: cycle, notice: 28 * time.Second, hold: 2 * time.Minute, keep: 5 * time.Minute, grace: 30 * time.Second,
		jobs: map[int]*array{}, calls: map[string]int{}, calledS: map[int64]int{}, starts: map[string]int{}, stop: make(chan struct{}), begin: time.Now(),
	}
	for i := range nodes {
		f.nodes = append(f.nodes, &node{name: fmt.Sprint("n", i+1), cpu: cpu, mem: mem, up: true})
	}
	f.wg.Go(func() {
		tick := time.NewTicker(f.cycle)
		defer tick.Stop()
		for {
			select {
			case <-f.stop:
				return
			case <-tick.C:
				f.schedule()
			}
		}
	})
	return f
}

// close ends the cluster.
func (f *fake) close() {
	close(f.stop)
	f.mu.Lock()
	for _, a := range f.jobs {
		for _, t := range a.tasks {
			if t.cancel != nil {
				t.cancel(engine.ErrReplaced)
			}
			for _, timer := range t.timers {
				timer.Stop()
			}
		}
	}
	f.mu.Unlock()
	f.wg.Wait()
}

var errController = errors.New("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")

// command is Options.Command.
func (f *fake) command(_ context.Context, stdout io.Writer, argv ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[argv[0]]++
	f.calledS[int64(time.Since(f.begin)/time.Second)]++
	if f.down {
		if argv[0] != "squeue" {
			return errController
		}
		// The real one ends well.
		text, err := os.ReadFile("testdata/squeue-22.05-down.json")
		if err == nil {
			_, err = stdout.Write(text)
		}
		return err
	}
	switch argv[0] {
	case "sbatch":
		return f.sbatch(stdout, argv)
	case "squeue":
		return f.squeue(stdout)
	case "scancel":
		for _, id := range argv[1:] {
			job, task, _ := strings.Cut(id, "_")
			n, _ := strconv.Atoi(job)
			i, _ := strconv.Atoi(task)
			if a := f.jobs[n]; a != nil {
				f.end(a.tasks[i], "CANCELLED", slurm.ErrStopped)
			}
		}
		return nil
	case "scontrol":
		return errors.New("slurm_load_jobs error: Invalid job id specified")
	}
	return fmt.Errorf("%s: not found", argv[0])
}

func (f *fake) sbatch(stdout io.Writer, argv []string) error {
	if f.refuse != "" {
		return errors.New(f.refuse)
	}
	f.next++
	a := &array{id: f.next, batch: filepath.Dir(argv[len(argv)-1])}
	for _, arg := range argv {
		key, value, _ := strings.Cut(arg, "=")
		number, _ := strconv.Atoi(strings.TrimSuffix(value, "M"))
		switch key {
		case "--job-name":
			a.name = value
		case "--cpus-per-task":
			a.cpu = number
		case "--mem":
			a.mem = int64(number)
		case "--time":
			a.minutes = number
		case "--signal":
			_, at, _ := strings.Cut(value, "@")
			a.grace, _ = strconv.Atoi(at)
		case "--array":
			list, limit, _ := strings.Cut(value, "%")
			a.limit, _ = strconv.Atoi(limit)
			_, last, _ := strings.Cut(list, "-")
			n, err := strconv.Atoi(last)
			if err != nil {
				return fmt.Errorf("array %q", value)
			}
			for i := range n + 1 {
				a.tasks = append(a.tasks, &fakeTask{array: a, index: i, state: "PENDING", reason: "None"})
			}
		}
	}
	f.next += len(a.tasks)
	f.jobs[a.id] = a
	f.order = append(f.order, a.id)
	if f.lose {
		f.lose = false
		return errors.New("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
	}
	fmt.Fprintln(stdout, a.id)
	return nil
}

// squeue prints the queue as Slurm 22.05 does.
func (f *fake) squeue(stdout io.Writer) error {
	var b bytes.Buffer
	b.WriteString(`{"meta": {"Slurm": {"release": "22.05.8"}}, "errors": [], "jobs": [`)
	first := true
	entry := func(t *fakeTask, task any, list string) {
		if !first {
			b.WriteByte(',')
		}
		first = false
		where := ""
		if t.node != nil {
			where = t.node.name
		}
		taskText := "null"
		if i, ok := task.(int); ok {
			taskText = strconv.Itoa(i)
		}
		fmt.Fprintf(&b, `{"account": %q, "array_job_id": %d, "array_task_id": %s, "array_task_string": %q, "job_id": %d, "name": %q, "job_state": %q, "state_reason": %q, "restart_cnt": %d, "exit_code": %d, "nodes": %q}`,
			f.padding, t.array.id, taskText, list, t.array.id+t.index, t.array.name, t.state, t.reason, t.restarts, t.exit, where)
	}
	for _, id := range f.order {
		a := f.jobs[id]
		var rest []string
		var example *fakeTask
		for _, t := range a.tasks {
			switch {
			case t.state == "PENDING" && t.restarts == 0:
				rest, example = append(rest, strconv.Itoa(t.index)), t
			case !t.ended.IsZero() && time.Since(t.ended) > f.keep:
			default:
				entry(t, t.index, "")
			}
		}
		if example != nil {
			entry(example, nil, strings.Join(rest, ","))
		}
		if b.Len() > 1<<16 {
			if _, err := b.WriteTo(stdout); err != nil {
				return err
			}
		}
	}
	b.WriteString("]}\n")
	_, err := b.WriteTo(stdout)
	return err
}

// schedule starts what fits: in order, and behind one that does not fit those that ask for less.
func (f *fake) schedule() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return
	}
	full := map[[2]int64]bool{}
	f.order = slices.DeleteFunc(f.order, func(id int) bool {
		a := f.jobs[id]
		for _, t := range a.tasks {
			if t.ended.IsZero() || time.Since(t.ended) <= f.keep {
				return false
			}
		}
		delete(f.jobs, id)
		return true
	})
	for _, id := range f.order {
		a := f.jobs[id]
		key := [2]int64{int64(a.cpu), a.mem}
		for _, t := range a.tasks {
			if full[key] || a.limit > 0 && a.running >= a.limit {
				break
			}
			if t.state != "PENDING" || t.reason == "BeginTime" {
				continue
			}
			i := slices.IndexFunc(f.nodes, func(n *node) bool { return n.up && n.cpu-n.used >= a.cpu && n.mem-n.usedM >= a.mem })
			if i < 0 {
				full[key] = true
				break
			}
			f.launch(t, f.nodes[i])
		}
	}
}

func (f *fake) launch(t *fakeTask, n *node) {
	a := t.array
	n.used, n.usedM = n.used+a.cpu, n.usedM+a.mem
	a.running++
	t.node, t.state, t.reason = n, "RUNNING", "None"
	t.run++
	run := t.run
	f.starts[fmt.Sprintf("%s/%d", a.batch, t.index)]++
	ctx, cancel := context.WithCancelCause(context.Background())
	t.cancel = cancel
	if a.minutes > 0 {
		limit := time.Duration(a.minutes) * time.Minute
		t.timers = []*time.Timer{
			time.AfterFunc(limit-time.Duration(a.grace)*time.Second, func() { cancel(slurm.ErrTimeLimit) }),
			time.AfterFunc(limit, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				if t.run == run {
					f.end(t, "TIMEOUT", engine.ErrReplaced)
				}
			}),
		}
	}
	restart := ""
	if t.restarts > 0 {
		restart = strconv.Itoa(t.restarts)
	}
	f.wg.Go(func() {
		err := slurm.Work(ctx, slurm.WorkOptions{
			Batch: a.batch, Job: strconv.Itoa(a.id), Task: strconv.Itoa(t.index), Restart: restart, Runner: f.runner, Beat: f.beat,
		})
		f.mu.Lock()
		defer f.mu.Unlock()
		if t.run == run {
			t.exit = 0
			state := "COMPLETED"
			if err != nil {
				t.exit, state = 256, "FAILED"
			}
			f.end(t, state, nil)
		}
		f.lastEnd = time.Now()
	})
}

// release gives back what a task has of its node.
func (f *fake) release(t *fakeTask) {
	for _, timer := range t.timers {
		timer.Stop()
	}
	t.timers = nil
	if t.node != nil && t.state != "PENDING" {
		t.node.used, t.node.usedM = t.node.used-t.array.cpu, t.node.usedM-t.array.mem
		t.array.running--
	}
}

// end is the end of a task; the cause reaches its worker.
func (f *fake) end(t *fakeTask, state string, cause error) {
	if !t.ended.IsZero() {
		return
	}
	f.release(t)
	if t.cancel != nil && cause != nil {
		t.cancel(cause)
	}
	t.state, t.ended = state, time.Now()
	t.run++
}

// killNode is kill -9 of a node with all that runs on it. It comes back later.
func (f *fake) killNode(name string, away time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.nodes, func(n *node) bool { return n.name == name })
	n := f.nodes[i]
	n.up = false
	var victims []*fakeTask
	for _, a := range f.jobs {
		for _, t := range a.tasks {
			if t.node == n && t.state == "RUNNING" {
				t.cancel(engine.ErrReplaced) // nothing more is written
				t.run++
				victims = append(victims, t)
			}
		}
	}
	time.AfterFunc(f.notice, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, t := range victims {
			if t.state != "RUNNING" {
				continue
			}
			f.release(t)
			t.node, t.state, t.reason = nil, "PENDING", "BeginTime"
			t.restarts++
			time.AfterFunc(f.hold, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				if t.state == "PENDING" {
					t.reason = "None"
				}
			})
		}
	})
	time.AfterFunc(max(away, f.notice+time.Second), func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		n.up = true
	})
}

// outage is a controller that is away for a while.
func (f *fake) outage(d time.Duration) {
	f.set(func() { f.down = true })
	time.AfterFunc(d, func() { f.set(func() { f.down = false }) })
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// left counts tasks that have not ended.
func (f *fake) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, a := range f.jobs {
		for _, t := range a.tasks {
			if t.ended.IsZero() {
				n++
			}
		}
	}
	return n
}

// busiest is the largest number of commands in so many seconds.
func (f *fake) busiest(seconds int64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	most := 0
	for s := range maps.Keys(f.calledS) {
		n := 0
		for i := range seconds {
			n += f.calledS[s+i]
		}
		most = max(most, n)
	}
	return most
}

func batchDirs(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
