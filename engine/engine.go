// Package engine runs jobs that need much memory and much time, and loses nothing in a crash. It
// serves `kiln build`, `kiln status` and `kiln logs`: use the machine fully, never more than it
// has, and go on after a stop where the work ended. It knows nothing of wheels, compilers or
// containers: what a job is, only its [Runner] knows.
//
// [Run] takes jobs with their needs and resources, and a state folder. Every change of a job goes
// to a journal in that folder before the engine acts on it, so a run that was stopped by a signal,
// a crash or a power cut is continued by calling Run again: jobs that are done are not run again,
// attempts that have no end are lost and tried again with what they left in their folder.
//
// # Which job starts next
//
// A job counts with its learned peak of memory plus a fifth, or with what it asks for as long as
// nothing was learned. The counts of the running jobs never exceed the budget of memory, processors
// and disk. Of the jobs that are ready, the one with the largest memory starts first, then the one
// that took longest, then the one listed first. (Where memory has no limit, as on a cluster, the
// longest starts first.) If it does not fit, smaller ones that do may fill the gap; but once eight
// jobs have passed it, nothing behind it starts until it has. A job that is larger than the whole
// budget runs alone, with a warning.
//
// # Which failure is tried again
//
// A runner says why an attempt failed with [Fail]; see [Cause] for what follows from it. Nothing
// else stops because one job failed, except for the jobs that need it, unless [Options.FailFast] is
// set.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// Resources is what a job uses of a machine.
type Resources struct {
	// CPU is the number of processors; zero counts as one.
	CPU int `json:"cpu,omitempty"`
	// MemoryBytes is the peak of memory. Zero means unknown and counts as the share
	// of the budget that belongs to the job's processors.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// DiskBytes is the space that the attempt's folder and the outputs take. Zero counts as none.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
}

// Job is one thing to be done. It is a value; the engine does not change it.
type Job struct {
	// ID is stable between runs and readable: it is the job's name in events, errors and folders,
	// and what is learned is remembered by it.
	ID string `json:"id"`
	// Digest stands for everything that the result depends on. A job whose ID and Digest have
	// finished before is not run again. An empty Digest means: run it every time.
	Digest string `json:"digest,omitempty"`
	// Class is shared by jobs that are alike. A job of which nothing was learned counts with the
	// largest of its class. Empty means no class.
	Class string `json:"class,omitempty"`
	// Needs lists the IDs of jobs that must be done first. If one of them fails or is skipped, this
	// job is skipped, with the reason.
	Needs []string `json:"needs,omitempty"`
	// After lists the IDs of jobs that must have ended first, however they ended. It is about order
	// alone: a job that fails does not hold this one back.
	After []string `json:"after,omitempty"`
	// Resources is what the job asks for, and what it counts with while nothing was learned.
	Resources Resources `json:"resources,omitzero"`
	// WallLimit ends an attempt that takes longer, setup included, with [CauseTime]. Zero means no
	// limit.
	WallLimit time.Duration `json:"wall_limit,omitempty"`
	// Payload is the runner's.
	Payload json.RawMessage `json:"payload,omitempty"`
}

// Result is what an attempt used and made.
type Result struct {
	// PeakMemoryBytes and DiskBytes are measured; zero means not measured. They are used also when
	// the attempt failed. See also [Attempt.Used].
	PeakMemoryBytes int64 `json:"peak_memory_bytes,omitempty"`
	DiskBytes       int64 `json:"disk_bytes,omitempty"`
	// Wall is how long the work took, where that is not the time that [Runner.Run] took: an attempt
	// may have waited in a queue. Zero means that it is.
	Wall time.Duration `json:"wall,omitempty"`
	// Outputs is the runner's: it is kept in the journal and given back in the report, also by
	// later runs that reuse it. It should be small: names and digests, not content.
	Outputs json.RawMessage `json:"outputs,omitempty"`
}

// Status is where a job stands.
type Status string

// The states of a job. A report has only the last five of them; [State] has all but reused.
const (
	StatusPending  Status = "pending"  // not tried yet, or to be tried again
	StatusRunning  Status = "running"  // an attempt has begun
	StatusDone     Status = "done"     // finished in this run
	StatusReused   Status = "reused"   // finished in an earlier run, with the same digest
	StatusFailed   Status = "failed"   // for good
	StatusSkipped  Status = "skipped"  // with a reason
	StatusCanceled Status = "canceled" // the run ended first
)

// Options is how [Run] works. Runner and Dir must be set.
type Options struct {
	// Dir is the state folder, made if missing: the journal, the lock and the attempts' folders.
	// One process at a time may use it; the error for a second one is a LockedError that names the
	// first.
	Dir string
	// Runner does the work.
	Runner Runner
	// CPU is the number of processors that jobs may use at once. Zero means what the runner's
	// [Capacity] says, or else all of this machine.
	CPU int
	// MemoryBytes is the memory that jobs may use at once. Zero means what the runner's [Capacity]
	// says, or else what is free on this machine, or in its control group, less a reserve.
	MemoryBytes int64
	// DiskBytes is the space that jobs may use at once. Zero means what the runner's [Capacity]
	// says, or else what is free at DiskPath when a job is to start, less 1 GiB.
	DiskBytes int64
	// DiskPath is where the space is looked at; empty means Dir.
	DiskPath string
	// Jobs is how many jobs may run at once. Zero means as many as the resources allow.
	Jobs int
	// FailFast cancels everything after the first job that failed for good.
	FailFast bool
	// RetryDelay is the pause before the second attempt after a network failure; it is tripled for
	// each further one. Zero means 5 seconds.
	RetryDelay time.Duration
	// Reuse is asked before the result of an earlier run is used again: an error makes the job run,
	// and is logged as the reason. It is the place to look whether the outputs are still there. Nil
	// means yes.
	Reuse func(job Job, result Result) error
	// CleanDisk is called, once at a time, before an attempt that follows a [CauseDisk]. Nil means
	// that there is nothing to clean.
	CleanDisk func(ctx context.Context) error
	// OnEvent gets every event in order, one at a time, after its record is in the journal. It
	// should return soon: nothing is scheduled meanwhile. Nil means that events are dropped.
	OnEvent func(Event)
	// Log gets what is not about a job's work. Nil discards.
	Log *slog.Logger
}

// JobReport is how one job ended.
type JobReport struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	// Attempts counts those of this run.
	Attempts int `json:"attempts,omitempty"`
	// Wall is the time of all attempts of this run together, without pauses. For a reused job it is
	// the time of the attempt that made the result.
	Wall time.Duration `json:"wall,omitempty"`
	// Result is that of the last attempt, with the largest peak of all.
	Result Result `json:"result,omitzero"`
	// Reason says why a job was skipped, canceled or failed.
	Reason string `json:"reason,omitempty"`
	Cause  Cause  `json:"cause,omitempty"` // of a failed job
	Err    error  `json:"-"`               // of a failed or canceled job
	// Dir is the folder of the last attempt of this run or, for a reused job, of the earlier one.
	// It is gone if the attempt left nothing in it. Empty if there was no attempt.
	Dir string `json:"dir,omitempty"`
}

// Report is how a run ended, with one entry a job in the order in which they were given.
type Report struct {
	Jobs    []JobReport `json:"jobs"`
	Started time.Time   `json:"started"`
	Ended   time.Time   `json:"ended"`
}

// Count returns how many jobs have one of the states.
func (r *Report) Count(states ...Status) int {
	n := 0
	for i := range r.Jobs {
		for _, s := range states {
			if r.Jobs[i].Status == s {
				n++
			}
		}
	}
	return n
}

// OK reports whether no job failed or was canceled. Skipped jobs are no failure by themselves;
// those that were skipped because another failed come with it.
func (r *Report) OK() bool { return r.Count(StatusFailed, StatusCanceled) == 0 }

const (
	journalFile = "journal.jsonl"
	lockFile    = "lock"
	attemptsDir = "attempts"
)

// lockWait is how long Run waits for the lock: [Active] takes it for an instant.
const lockWait = 2 * time.Second

// Run runs the jobs that are not done yet and returns when no attempt is running any more.
//
// Failed jobs are in the report and are not an error of Run. An error means that the work as a
// whole did not go to its end: the jobs are not valid (no report then), the state folder cannot be
// used, or ctx ended, when the error is its cause. With an error of the last kinds there is a
// report of what was done.
func Run(ctx context.Context, jobs []Job, opts Options) (*Report, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.RetryDelay == 0 {
		opts.RetryDelay = 5 * time.Second
	}
	if opts.Dir == "" || opts.Runner == nil {
		return nil, errors.New("engine: Options.Dir and Options.Runner must be set")
	}
	graph, err := newGraph(jobs)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	opts.Dir = dir
	if opts.DiskPath == "" {
		opts.DiskPath = dir
	}
	if err := os.MkdirAll(filepath.Join(dir, attemptsDir), 0o777); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	lock, err := takeLock(ctx, filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	report, err := runLocked(ctx, graph, opts)
	return report, errors.Join(err, lock.Unlock())
}

func takeLock(ctx context.Context, path string) (*fsx.FileLock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := fsx.Lock(ctx, path)
	if locked, ok := errors.AsType[*fsx.LockedError](err); ok {
		return nil, locked // without the text about waiting
	}
	return lock, err
}

func runLocked(ctx context.Context, graph *graph, opts Options) (_ *Report, err error) {
	j, state, err := openJournal(filepath.Join(opts.Dir, journalFile))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	limits, err := newLimits(opts)
	if err != nil {
		return nil, err
	}
	s := newScheduler(graph, opts, limits, j, state)
	return s.run(ctx)
}

// Active reports whether a process is at work in the state folder, and who.
func Active(dir string) (owner string, active bool) {
	path := filepath.Join(dir, lockFile)
	if _, err := os.Stat(path); err != nil {
		return "", false
	}
	lock, err := fsx.TryLock(path)
	if locked, ok := errors.AsType[*fsx.LockedError](err); ok {
		return fmt.Sprintf("process %d on %s", locked.Owner.PID, locked.Owner.Host), true
	}
	if err == nil {
		_ = lock.Unlock()
	}
	return "", false
}

// waitsFor are the jobs that must end before this one.
func (j *Job) waitsFor() []string {
	if len(j.After) == 0 {
		return j.Needs
	}
	return slices.Concat(j.Needs, j.After)
}

// graph is the jobs and who needs whom.
type graph struct {
	jobs       []Job
	index      map[string]int
	dependents [][]int
}

// newGraph checks the jobs. All faults are reported.
func newGraph(jobs []Job) (*graph, error) {
	g := &graph{jobs: jobs, index: make(map[string]int, len(jobs)), dependents: make([][]int, len(jobs))}
	var faults []error
	for i := range jobs {
		id := jobs[i].ID
		if id == "" {
			faults = append(faults, fmt.Errorf("job %d has no ID", i+1))
			continue
		}
		if first, ok := g.index[id]; ok {
			faults = append(faults, fmt.Errorf("jobs %d and %d are both %s", first+1, i+1, id))
			continue
		}
		r := jobs[i].Resources
		if r.CPU < 0 || r.MemoryBytes < 0 || r.DiskBytes < 0 || jobs[i].WallLimit < 0 {
			faults = append(faults, fmt.Errorf("job %s asks for negative resources", id))
		}
		if len(jobs[i].Payload) > 0 && !json.Valid(jobs[i].Payload) {
			faults = append(faults, fmt.Errorf("job %s has a payload that is not JSON", id))
		}
		g.index[id] = i
	}
	for i := range jobs {
		for _, need := range jobs[i].waitsFor() {
			if k, ok := g.index[need]; ok {
				g.dependents[k] = append(g.dependents[k], i)
			} else {
				faults = append(faults, fmt.Errorf("job %s needs %s, which does not exist", jobs[i].ID, need))
			}
		}
	}
	if len(faults) == 0 {
		if cycle := g.cycle(); cycle != nil {
			faults = append(faults, fmt.Errorf("jobs need each other: %s", strings.Join(cycle, " → ")))
		}
	}
	return g, errors.Join(faults...)
}

// cycle returns jobs that need each other in a ring, or nil.
func (g *graph) cycle() []string {
	const (
		unseen = iota
		open
		closed
	)
	color := make([]byte, len(g.jobs))
	next := make([]int, len(g.jobs)) // the need to look at next
	for root := range g.jobs {
		if color[root] != unseen {
			continue
		}
		color[root] = open
		for path := []int{root}; len(path) > 0; {
			i := path[len(path)-1]
			if next[i] == len(g.jobs[i].waitsFor()) {
				color[i] = closed
				path = path[:len(path)-1]
				continue
			}
			k := g.index[g.jobs[i].waitsFor()[next[i]]]
			next[i]++
			switch color[k] {
			case unseen:
				color[k] = open
				path = append(path, k)
			case open:
				var ids []string
				for n := len(path) - 1; ; n-- {
					ids = append([]string{g.jobs[path[n]].ID}, ids...)
					if path[n] == k {
						return append(ids, g.jobs[k].ID)
					}
				}
			}
		}
	}
	return nil
}
