// Package slurm runs the attempts of an engine as jobs of a Slurm cluster. It serves `kiln build
// --runner slurm`: attempts that ask for the same become one array, and kiln follows them through
// the folder that it shares with the nodes.
//
// What an attempt came to is in its folder, written by its worker; see [engine.Worker]. What Slurm
// says is a hint: when to look, and why there is no result. Nothing is decided by Slurm's word
// alone, so a controller that is down for an hour delays only what has not been submitted.
//
// Slurm is used through its commands sbatch, squeue --json, scontrol and scancel, and through sacct
// for the post-mortem of a job where there is one. There is no scheduler here: order, priorities
// and limits are the cluster's.
//
// A batch is one array. It has a folder in [Options.Dir] with the list of its attempts, the script,
// the number of the array, and what the tasks printed. That is all a restarted process needs to
// find its jobs.
package slurm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
)

// Options says how jobs are submitted. Dir, Owner and Worker must be set.
type Options struct {
	// Dir is the folder of the batches. The nodes must see it, and the attempts' folders, at the
	// same path.
	Dir string
	// Owner tells the jobs of one state folder from all others. It is part of the jobs' names:
	// letters and digits.
	Owner string
	// Worker is the command that a job runs; the folder of the batch is added as its last argument.
	// It has to call [Work].
	Worker []string
	// Programs is a folder with the program of Worker and with those of earlier processes; what no
	// job needs any more is removed from it. Empty means that there is none.
	Programs string
	// Prefix stands before Worker: "apptainer", "exec", "image.sif".
	Prefix []string
	// WorkDir is the jobs' working folder; empty means that of this process.
	WorkDir string
	// Env is the environment of Slurm's commands, and with that of the jobs. JobEnv is more for jobs
	// alone: sbatch has it in its environment, and nothing has it in its arguments or its script.
	Env    []string
	JobEnv []string

	// Partition, Account, QOS and Constraint are sbatch's; empty means the cluster's default. Args
	// are further arguments of sbatch.
	Partition, Account, QOS, Constraint string
	Args                                []string
	// MaxPerArray is how many tasks of one array may run at once; zero means no limit. There may be
	// several arrays: Jobs of
	// [engine.Options] limits all that Slurm has.
	MaxPerArray int
	// MaxTasks is how many tasks an array may have; zero means 500. The cluster's MaxArraySize is a
	// limit too.
	MaxTasks int
	// TimeLimit is the longest that the partition lets a job run; zero means that there is no
	// limit. See [Site].
	TimeLimit time.Duration
	// Grace is how long before the end of its time a job is told to stop; zero means 2 minutes.
	// Slurm may tell it a minute earlier than that.
	Grace time.Duration
	// Poll is how often the queue and the folders are looked at, and the least time between two
	// rounds of submissions; zero means 15 seconds.
	Poll time.Duration
	// Window is how long the first attempt of a batch waits for others; zero means 2 seconds.
	Window time.Duration
	// Beat is that of the workers: see [engine.Worker]. Zero means 10 seconds.
	Beat time.Duration
	// Command runs one of Slurm's commands and writes its output to stdout. The error has what it
	// printed to stderr. Nil means that the program is looked up in the PATH of Env.
	Command func(ctx context.Context, stdout io.Writer, argv ...string) error
	// Log gets what is not about one attempt. Nil discards.
	Log *slog.Logger
}

// commandLimit is how long one of Slurm's commands may take. They wait for the controller
// themselves, but not forever.
const commandLimit = 2 * time.Minute

// Runner is an [engine.Keeper] for a Slurm cluster.
type Runner struct {
	opts   Options
	prefix string // of the names of jobs

	mu      sync.Mutex
	waiting []*task // to be submitted
	since   time.Time
	active  map[*task]bool // submitted, or about to be
	batches map[string]*batch
	looping bool
	kept    map[string]*task // by the folder of the attempt
	last    time.Time        // of the last round of submissions
}

var _ engine.Keeper = (*Runner)(nil)

// New returns a runner.
func New(opts Options) (*Runner, error) {
	var err error
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, err
	}
	if opts.WorkDir == "" {
		if opts.WorkDir, err = os.Getwd(); err != nil {
			return nil, err
		}
	}
	if len(opts.Worker) == 0 || opts.Owner == "" || strings.Trim(opts.Owner, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" {
		return nil, errors.New("slurm: Options.Worker and an Options.Owner of letters and digits must be set")
	}
	opts.MaxTasks = cmp.Or(opts.MaxTasks, 500)
	opts.Grace = cmp.Or(opts.Grace, 2*time.Minute)
	opts.Poll = cmp.Or(opts.Poll, 15*time.Second)
	opts.Window = cmp.Or(opts.Window, 2*time.Second)
	opts.Beat = cmp.Or(opts.Beat, 10*time.Second)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Command == nil {
		env := slices.Concat(opts.Env, []string{"SLURM_BITSTR_LEN=0"}) // or lists of tasks are cut short
		opts.Command = func(ctx context.Context, stdout io.Writer, argv ...string) error {
			if argv[0] == "sbatch" {
				return command(ctx, slices.Concat(env, opts.JobEnv), stdout, argv)
			}
			return command(ctx, env, stdout, argv)
		}
	}
	return &Runner{
		opts: opts, prefix: "kiln-" + opts.Owner + "-", active: map[*task]bool{}, batches: map[string]*batch{}, kept: map[string]*task{},
	}, nil
}

// commandError is a command of Slurm that did not work.
type commandError struct {
	name, text string
	err        error
}

func (e *commandError) Error() string { return e.name + ": " + cmp.Or(e.text, e.err.Error()) }
func (e *commandError) Unwrap() error { return e.err }

func command(ctx context.Context, env []string, stdout io.Writer, argv []string) error {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := run.Cmd{Argv: argv, Env: env, Stdout: stdout, Stderr: &stderr, TailLines: -1}
	if _, err := cmd.Run(ctx); err != nil {
		return &commandError{argv[0], strings.TrimSpace(stderr.String()), err}
	}
	return nil
}

// Name is "slurm".
func (r *Runner) Name() string { return "slurm" }

// Capacity has no limits: the cluster knows them.
func (r *Runner) Capacity() engine.Capacity {
	return engine.Capacity{CPU: -1, MemoryBytes: -1, DiskBytes: -1, Queue: true}
}

// task is an attempt on its way through Slurm.
type task struct {
	a       *engine.Attempt
	request request
	batch   *batch
	index   int

	stop    error // why it is to be ended; nil if it is not
	told    bool  // scancel was called
	state   string
	reason  string
	entry   *Entry // the last that was seen
	skipped int    // looks into the folder that were not made
	looks   int    // since it was to be ended
	missing int    // how many answers of squeue in a row did not have it
	beats   engine.WorkerState
	still   time.Time   // since when beats has not changed
	queued  func(error) // ends the stage of waiting; nil when it has ended
	done    chan verdict
}

// QueueStage is the stage of an attempt that waits for Slurm to start it.
const QueueStage = "queue"

// started says that a task waits no more.
func (t *task) started() {
	if t.queued != nil {
		t.queued(nil)
		t.queued = nil
	}
}

type verdict struct {
	result engine.Result
	err    error
}

// request is what a job asks for. Attempts with the same one share an array.
type request struct {
	CPU     int           `json:"cpu"`
	MiB     int64         `json:"mib,omitempty"`
	Minutes int           `json:"minutes,omitempty"`
	Grace   time.Duration `json:"-"`
}

// request rounds what an attempt needs, so that rows that differ a little share an array.
func (r *Runner) request(a *engine.Attempt) request {
	q := request{CPU: max(1, a.Job.Resources.CPU)}
	if n := a.Resources.MemoryBytes; n > 0 {
		q.MiB = roundUp((n+1<<20-1)>>20, 4)
	}
	q.Grace = r.opts.Grace
	limit := time.Duration(0)
	if a.Job.WallLimit > 0 {
		limit = a.Job.WallLimit + q.Grace + time.Minute // its own limit comes first
	}
	if a.Expect > 0 {
		if expected := max(2*a.Expect, 10*time.Minute) + q.Grace; limit == 0 || expected < limit {
			limit = expected
		}
	}
	if most := r.opts.TimeLimit; most > 0 && (limit == 0 || limit > most) {
		limit = most
	}
	if limit > 0 {
		q.Minutes = int(roundUp(int64((limit+time.Minute-1)/time.Minute), 4))
		if most := int(r.opts.TimeLimit / time.Minute); most > 0 {
			q.Minutes = max(1, min(q.Minutes, most))
		}
		q.Grace = min(q.Grace, limit/2)
	}
	return q
}

// roundUp returns the next number with at most so many steps between two powers of two.
func roundUp(n, steps int64) int64 {
	step := int64(1)
	for step*2*steps <= n {
		step *= 2
	}
	return (n + step - 1) / step * step
}

// Run implements [engine.Runner].
func (r *Runner) Run(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	if err := a.Save(); err != nil {
		return engine.Result{}, err
	}
	t := &task{a: a, request: r.request(a), done: make(chan verdict, 1), queued: a.Stage(QueueStage)}
	r.mu.Lock()
	if len(r.waiting) == 0 {
		r.since = time.Now()
	}
	r.waiting = append(r.waiting, t)
	r.active[t] = true
	r.startLoop()
	r.mu.Unlock()
	return r.await(ctx, t)
}

// Resume implements [engine.Keeper].
func (r *Runner) Resume(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	r.mu.Lock()
	t := r.kept[a.Dir]
	if t != nil {
		t.a = a
		r.active[t] = true
		r.startLoop()
	}
	r.mu.Unlock()
	if t == nil {
		return engine.Result{}, engine.Fail(engine.CauseLost, errors.New("its job is not known"))
	}
	return r.await(ctx, t)
}

func (r *Runner) await(ctx context.Context, t *task) (engine.Result, error) {
	select {
	case v := <-t.done:
		return v.result, v.err
	case <-ctx.Done():
	}
	r.mu.Lock()
	t.stop = context.Cause(ctx)
	r.mu.Unlock()
	v := <-t.done
	if v.err != nil {
		v.err = t.stop
	}
	return v.result, v.err
}

// finish ends a task for the engine. r.mu is held.
func (r *Runner) finish(t *task, result engine.Result, err error) {
	if !r.active[t] {
		return
	}
	delete(r.active, t)
	delete(r.kept, t.a.Dir)
	if i := slices.Index(r.waiting, t); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	if b := t.batch; b != nil {
		if b.open--; b.open == 0 {
			delete(r.batches, b.name)
			os.RemoveAll(b.dir)
		}
	}
	t.started()
	t.done <- verdict{result, err}
}

// startLoop starts the polling loop unless it runs already. r.mu is held.
func (r *Runner) startLoop() {
	if r.looping {
		return
	}
	r.looping = true
	go r.loop()
}

// loop submits and looks until there is nothing left. It outlives the contexts of attempts, which
// end by its doing.
func (r *Runner) loop() {
	ctx := context.Background()
	tick := time.NewTicker(min(r.opts.Window, r.opts.Poll))
	defer tick.Stop()
	var looked time.Time
	faults := 0
	for {
		r.submit(ctx)
		if pause := r.opts.Poll << min(faults, 3); time.Since(looked) >= pause || faults == 0 && r.hurry() {
			looked = time.Now()
			if err := r.look(ctx); err != nil {
				if faults++; faults == 1 {
					r.opts.Log.Warn("Slurm does not answer; what runs goes on, and is followed through its files", "error", err)
				}
			} else {
				if faults > 0 {
					r.opts.Log.Warn("Slurm answers again")
				}
				faults = 0
			}
		}
		r.mu.Lock()
		if len(r.active) == 0 {
			r.looping = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		<-tick.C
	}
}

// hurry reports whether a caller waits for the end of a task that has not been told so yet.
func (r *Runner) hurry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range r.active {
		if t.stop != nil && !t.told {
			return true
		}
	}
	return false
}

// look asks for the queue, and then looks into the folders of tasks for which something may have
// changed.
func (r *Runner) look(ctx context.Context) error {
	r.cancel(ctx)
	queue, err := r.queue(ctx)
	r.mu.Lock()
	tasks := make([]*task, 0, len(r.active))
	for t := range r.active {
		if t.batch != nil {
			tasks = append(tasks, t)
		}
	}
	if err == nil {
		for _, b := range r.batches {
			if b.unsure {
				b.unsure, b.job = false, queue.byName(b.jobName)
				if b.job > 0 {
					err = errors.Join(err, b.saveJob())
				} else {
					r.again(b)
				}
			}
		}
	}
	r.mu.Unlock()
	for _, t := range tasks {
		if t.batch.job > 0 {
			r.check(ctx, t, queue)
		}
	}
	return err
}

// check looks at one task. A nil queue means that Slurm did not answer.
func (r *Runner) check(ctx context.Context, t *task, queue *queue) {
	r.mu.Lock()
	stopping := t.stop != nil
	r.mu.Unlock()
	var e *Entry
	if queue != nil {
		if e = queue.find(t.batch.job, t.index); e != nil {
			t.entry, t.missing = e, 0
			r.explain(t, e)
		} else {
			t.missing++
		}
	}
	// The folder of one that waits is looked at now and then: only files are true.
	if e != nil && waiting(e.State) && t.skipped < 8 && !stopping {
		t.skipped++
		return
	}
	t.skipped = 0
	if e != nil && !waiting(e.State) {
		t.started()
	}
	result, ended, err := t.a.Poll()
	if ended {
		if engine.CauseOf(err) == engine.CausePaused && t.entry != nil && t.entry.State == "CANCELLED" {
			err = engine.Fail(engine.CauseCanceled, fmt.Errorf("%s was canceled with scancel: %w", t.jobID(), err))
		}
		if e != nil && waiting(e.State) {
			// Slurm is about to start again what has ended.
			_ = r.opts.Command(ctx, io.Discard, "scancel", t.jobID())
		}
		r.mu.Lock()
		r.finish(t, result, err)
		r.mu.Unlock()
		return
	}
	if stopping && e != nil && !endedEntry(e) {
		if t.looks++; t.looks%4 == 0 {
			t.told = false // a controller that was killed may have forgotten it
		}
	}
	gone := e == nil && queue != nil && t.missing > 2 || e != nil && endedEntry(e)
	stuck := e != nil && neverStarts(e)
	switch {
	case stuck && !stopping:
		_ = r.opts.Command(ctx, io.Discard, "scancel", t.jobID())
		err = r.neverStarted(t, e)
	case !gone || !r.silent(t):
		return
	default:
		err = r.postMortem(ctx, t)
	}
	r.mu.Lock()
	r.finish(t, engine.Result{}, err)
	r.mu.Unlock()
}

func endedEntry(e *Entry) bool { return ended(e.State) && !e.Completing }

// silent reports whether the worker has said nothing for long enough, or never began. Slurm calls a
// job ended as soon as it is to end, and a node lost when it cannot be reached: neither means that
// the folder is no longer written to.
func (r *Runner) silent(t *task) bool {
	s, err := t.a.Worker()
	if err != nil {
		return false
	}
	var now engine.WorkerState
	if s != nil {
		now = *s
	}
	if t.still.IsZero() || now != t.beats {
		t.beats, t.still = now, time.Now()
	}
	patience := 3 * r.opts.Beat
	if s == nil {
		patience = r.opts.Beat // files of a shared folder may be seen late
		if t.entry != nil && t.entry.State == "CANCELLED" && t.entry.Nodes == "" {
			patience = 0 // it never had a node
		}
	}
	return time.Since(t.still) >= patience
}

// explain tells the user once why a job waits, and that it was started again.
func (r *Runner) explain(t *task, e *Entry) {
	state, reason := e.State, e.Reason
	if t.state == state && t.reason == reason {
		return
	}
	before := t.state
	t.state, t.reason = state, reason
	switch {
	case waiting(state) && before != "" && !waiting(before):
		t.a.Warn(fmt.Sprintf("%s was put back into the queue by Slurm (start %d)", t.jobID(), e.Restarts+1))
	case state == "PENDING" && reason == "JobHeldUser":
		t.a.Warn(fmt.Sprintf("%s is held; `scontrol release %d` lets it go on", t.jobID(), e.Job))
	}
}

// neverStarts reports whether a pending job waits for something that does not come.
func neverStarts(e *Entry) bool {
	if e.State == "SPECIAL_EXIT" || e.State == "REQUEUE_HOLD" {
		return true
	}
	if e.State != "PENDING" {
		return false
	}
	switch e.Reason {
	case "PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
		"JobHoldMaxRequeue", "JobHeldAdmin", "DependencyNeverSatisfied":
		return true
	}
	return strings.Contains(strings.ToLower(e.Reason), "requeued_held") || strings.Contains(strings.ToLower(e.Reason), "requeued held")
}

func (r *Runner) neverStarted(t *task, e *Entry) error {
	err := fmt.Errorf("%s would never start: Slurm says %s", t.jobID(), cmp.Or(e.Reason, e.State))
	if strings.Contains(strings.ToLower(e.Reason), "requeue") || strings.Contains(e.State, "REQUEUE") || e.State == "SPECIAL_EXIT" {
		return engine.Fail(engine.CauseLost, err)
	}
	return engine.Fail(engine.CauseFault, err)
}

// postMortem says why a job ended without a result.
func (r *Runner) postMortem(ctx context.Context, t *task) error {
	state, code, signal := "", 0, 0
	if t.entry != nil && ended(t.entry.State) {
		state, code, signal = t.entry.State, t.entry.ExitCode, t.entry.Signal
	} else {
		state, code, signal = r.account(ctx, t)
	}
	text := t.jobID() + " ended without a result"
	if state != "" {
		text += ": Slurm says " + state
	}
	if code != 0 {
		text += fmt.Sprintf(", exit code %d", code)
	}
	if signal != 0 {
		text += fmt.Sprintf(", signal %d", signal)
	}
	if t.entry != nil && t.entry.Nodes != "" {
		text += " on " + t.entry.Nodes
	}
	if out := t.batch.output(t.index); out != "" {
		text += "\n  " + strings.ReplaceAll(out, "\n", "\n  ")
	}
	return engine.Fail(causeOf(state, code), errors.New(text))
}

// causeOf is what the end of a job without a result means.
func causeOf(state string, code int) engine.Cause {
	switch state {
	case "OUT_OF_MEMORY":
		return engine.CauseMemory
	case "TIMEOUT", "PREEMPTED":
		return engine.CausePaused
	case "DEADLINE":
		return engine.CauseTime
	case "CANCELLED", "REVOKED":
		return engine.CauseCanceled
	case "FAILED":
		if code == 126 || code == 127 {
			return engine.CauseFault // the worker's program is not there
		}
	}
	return engine.CauseLost
}

// account asks scontrol and, where there is one, the accounting for a job that the queue does not
// have any more.
func (r *Runner) account(ctx context.Context, t *task) (state string, code, signal int) {
	id := fmt.Sprintf("%d_%d", t.batch.job, t.index)
	var out bytes.Buffer
	exit := ""
	if err := r.opts.Command(ctx, &out, "scontrol", "--oneliner", "show", "job", id); err == nil {
		fields := keyValues(out.String())
		state, exit = fields["JobState"], fields["ExitCode"]
	}
	if state == "" {
		out.Reset()
		if err := r.opts.Command(ctx, &out, "sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", "--jobs="+id); err == nil {
			line, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
			state, exit, _ = strings.Cut(line, "|")
			state, _, _ = strings.Cut(state, " ") // CANCELLED by 1000
		}
	}
	if a, b, ok := strings.Cut(exit, ":"); ok {
		code, _ = strconv.Atoi(a)
		signal, _ = strconv.Atoi(b)
	}
	return state, code, signal
}

func (t *task) jobID() string { return fmt.Sprintf("%d_%d", t.batch.job, t.index) }

// queue is one answer of squeue.
type queue struct {
	tasks  map[[2]int]*Entry
	shared map[int]*Entry // of tasks that have no entry of their own
	names  map[string]int
}

func (r *Runner) queue(ctx context.Context) (*queue, error) {
	q := &queue{tasks: map[[2]int]*Entry{}, shared: map[int]*Entry{}, names: map[string]int{}}
	in, out := io.Pipe()
	read := make(chan error, 1)
	go func() {
		err := ReadQueue(in, r.prefix, q.add)
		if err == nil {
			_, err = io.Copy(io.Discard, in)
		}
		_ = in.CloseWithError(err)
		read <- err
	}()
	err := r.opts.Command(ctx, out, "squeue", "--json", "--states=all")
	_ = out.Close()
	if bad := <-read; err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	return q, nil
}

func (q *queue) add(e Entry) {
	q.names[e.Name] = e.Job
	if e.Task >= 0 {
		q.tasks[[2]int{e.Job, e.Task}] = &e
		return
	}
	for _, i := range e.Tasks {
		q.tasks[[2]int{e.Job, i}] = &e
	}
	if e.All {
		q.shared[e.Job] = &e
	}
}

func (q *queue) byName(name string) int { return q.names[name] }

func (q *queue) find(job, index int) *Entry {
	if e := q.tasks[[2]int{job, index}]; e != nil {
		return e
	}
	return q.shared[job]
}

// cancel tells Slurm which tasks are not wanted any more: all of them in few calls.
func (r *Runner) cancel(ctx context.Context) {
	var ids []string
	var told []*task
	r.mu.Lock()
	for t := range r.active {
		switch {
		case t.stop == nil || t.told:
		case t.batch == nil:
			r.finish(t, engine.Result{}, t.stop)
		case t.batch.job > 0:
			// The file holds also if the controller cannot be reached.
			_ = t.batch.unwant(t.index)
			ids = append(ids, t.jobID())
			told = append(told, t)
		}
	}
	r.mu.Unlock()
	if r.scancel(ctx, ids) == nil {
		r.mu.Lock()
		for _, t := range told {
			t.told = true
		}
		r.mu.Unlock()
	}
}

// cancelAtOnce is how many jobs one call of scancel gets.
const cancelAtOnce = 200

func (r *Runner) scancel(ctx context.Context, ids []string) error {
	slices.Sort(ids)
	for part := range slices.Chunk(ids, cancelAtOnce) {
		err := r.opts.Command(ctx, io.Discard, slices.Concat([]string{"scancel"}, part)...)
		// One that has ended is as good.
		if err != nil && !strings.Contains(err.Error(), "Invalid job id") && !strings.Contains(err.Error(), "already completing") {
			return err
		}
	}
	return nil
}

// Keep implements [engine.Keeper].
func (r *Runner) Keep(ctx context.Context, lost []engine.Lost) ([]engine.Lost, error) {
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	var kept []engine.Lost
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lost {
		for _, b := range r.batches {
			i := slices.Index(b.Attempts, l.Dir)
			if i < 0 || b.job == 0 {
				continue
			}
			r.kept[l.Dir] = &task{batch: b, index: i, a: &engine.Attempt{Dir: l.Dir}, done: make(chan verdict, 1)}
			b.open++
			kept = append(kept, l)
			break
		}
	}
	return kept, nil
}

// load reads the batches of an earlier process.
func (r *Runner) load(ctx context.Context) error {
	entries, err := os.ReadDir(r.opts.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var queue *queue
	for _, entry := range entries {
		r.mu.Lock()
		known := r.batches[entry.Name()] != nil
		r.mu.Unlock()
		if known {
			continue
		}
		b, err := readBatch(filepath.Join(r.opts.Dir, entry.Name()), r.prefix)
		if err != nil || b == nil {
			continue // killed while it was made; sweepBatches removes it
		}
		if b.job == 0 {
			// sbatch may have worked before it was killed.
			if queue == nil {
				if queue, err = r.queueNow(ctx); err != nil {
					return err
				}
			}
			if b.job = queue.byName(b.jobName); b.job > 0 {
				if err := b.saveJob(); err != nil {
					return err
				}
			}
		}
		r.mu.Lock()
		r.batches[b.name] = b
		r.mu.Unlock()
	}
	return nil
}

// queueNow waits for a controller that answers.
func (r *Runner) queueNow(ctx context.Context) (*queue, error) {
	for tries := 0; ; tries++ {
		q, err := r.queue(ctx)
		if err == nil || !transient(err) || ctx.Err() != nil {
			return q, err
		}
		if tries == 0 {
			r.opts.Log.Warn("Slurm does not answer: waiting for it", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(r.opts.Poll << min(tries, 3)):
		}
	}
}

// Sweep implements [engine.Runner]: it cancels every job of this owner that is not kept, and waits
// for its end.
func (r *Runner) Sweep(ctx context.Context, _ []engine.Lost) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	wanted := map[[2]int]bool{}
	for _, t := range r.kept {
		wanted[[2]int{t.batch.job, t.index}] = true
	}
	any := len(r.batches) > 0
	for _, b := range r.batches {
		for i := range b.Attempts {
			if b.job == 0 || !wanted[[2]int{b.job, i}] {
				_ = b.unwant(i)
			}
		}
	}
	r.mu.Unlock()
	if !any {
		return r.sweepPrograms() // nothing was ever submitted, so no Slurm is needed
	}
	for {
		queue, err := r.queueNow(ctx)
		if err != nil {
			return err
		}
		var ids []string
		for key, e := range queue.tasks {
			if !wanted[key] && !endedEntry(e) {
				ids = append(ids, fmt.Sprintf("%d_%d", key[0], key[1]))
			}
		}
		if len(ids) == 0 {
			break
		}
		if err := r.scancel(ctx, ids); err != nil && !transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(r.opts.Poll, 2*time.Second)):
		}
	}
	if err := r.sweepBatches(ctx); err != nil {
		return err
	}
	return r.sweepPrograms()
}

// sweepPrograms removes the programs that neither this process nor a job that is kept will run.
func (r *Runner) sweepPrograms() error {
	if r.opts.Programs == "" {
		return nil
	}
	scripts, err := filepath.Glob(filepath.Join(r.opts.Dir, "*", scriptFile))
	if err != nil {
		return err
	}
	var used strings.Builder
	used.WriteString(quote(r.opts.Worker))
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		used.Write(text)
	}
	programs, err := os.ReadDir(r.opts.Programs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, p := range programs {
		path := filepath.Join(r.opts.Programs, p.Name())
		if !p.Type().IsRegular() || strings.Contains(used.String(), quote([]string{path})) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// sweepBatches waits for the workers of unwanted attempts to fall silent, and removes folders
// without wanted ones.
func (r *Runner) sweepBatches(ctx context.Context) error {
	r.mu.Lock()
	var rest []*task
	kept := map[string]bool{}
	for dir := range r.kept {
		kept[dir] = true
	}
	for _, b := range r.batches {
		for i, dir := range b.Attempts {
			if !kept[dir] {
				rest = append(rest, &task{batch: b, index: i, a: engine.NewAttempt(engine.Job{}, 0, dir, nil)})
			}
		}
	}
	r.mu.Unlock()
	for _, t := range rest {
		for {
			if s, err := t.a.Worker(); s == nil && err == nil {
				break // it never began
			}
			if _, ended, _ := t.a.Poll(); ended || r.silent(t) {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(min(r.opts.Poll, r.opts.Beat)):
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, b := range r.batches {
		if b.open == 0 {
			delete(r.batches, name)
			if err := os.RemoveAll(b.dir); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(r.opts.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if r.batches[entry.Name()] == nil {
			if err := os.RemoveAll(filepath.Join(r.opts.Dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// transient reports whether Slurm may answer otherwise in a while.
func transient(err error) bool {
	if err == nil {
		return false
	}
	text := strings.ToLower(err.Error())
	for _, known := range []string{
		"unable to contact", "connect failure", "connection refused", "timed out", "timeout", "temporarily", "zero bytes", "try again",
		"communication", "cut short", "unexpected eof", "munge", "protocol authentication",
		"submit limit", "qosmaxsubmit", "assocmaxsubmit", "accounting/qos policy", "resource temporarily",
	} {
		if strings.Contains(text, known) {
			return true
		}
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNoQueue)
}

// batch is one array.
type batch struct {
	Format   string   `json:"format"`
	Attempts []string `json:"attempts"` // folders, by task
	Request  request  `json:"request"`

	name    string
	dir     string
	jobName string
	job     int
	open    int  // tasks that have not ended
	unsure  bool // sbatch failed, and may have worked
	tasks   []*task
	tries   int
	retryAt time.Time
}

const (
	batchFormat = "kiln-slurm-batch/1"
	batchFile   = "batch.json"
	jobFile     = "job"
	scriptFile  = "job.sh"
)

func (b *batch) saveJob() error {
	return fsx.WriteFile(filepath.Join(b.dir, jobFile), []byte(strconv.Itoa(b.job)+"\n"), 0o666)
}

// unwant says in a file that a task is not to go on.
func (b *batch) unwant(index int) error {
	return os.WriteFile(filepath.Join(b.dir, "cancel."+strconv.Itoa(index)), nil, 0o666)
}

// output is the end of what a task printed: why its worker could not even begin.
func (b *batch) output(index int) string {
	text, err := os.ReadFile(filepath.Join(b.dir, "out."+strconv.Itoa(index)))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

func readBatch(dir, prefix string) (*batch, error) {
	text, err := os.ReadFile(filepath.Join(dir, batchFile))
	if err != nil {
		return nil, err
	}
	b := &batch{dir: dir, name: filepath.Base(dir), jobName: prefix + filepath.Base(dir)}
	if err := json.Unmarshal(text, b); err != nil {
		return nil, err
	}
	if b.Format != batchFormat {
		return nil, fmt.Errorf("read %s: format %q, want %q", dir, b.Format, batchFormat)
	}
	if text, err := os.ReadFile(filepath.Join(dir, jobFile)); err == nil {
		b.job, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	return b, nil
}
