package engine

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Attempt is one try at a job. Its fields are the runner's to read; its methods may be called
// from several goroutines until [Runner.Run] returns, and do nothing afterwards.
type Attempt struct {
	Job Job `json:"job"`
	// Number counts the attempts of a job from 1, over all runs.
	Number int `json:"number"`
	// Dir is the attempt's own folder, absolute. It exists, is empty, and only this attempt writes
	// to it. What is left in it is kept: after success and after the last failure until the job is
	// tried again, after any other failure until the job has ended. An empty folder is removed.
	Dir string `json:"dir"`
	// Previous is the newest folder in which an earlier attempt with the same digest left
	// something, empty if there is none. The runner may move out of it what it can use. Earlier
	// lists all of them, the newest, which is Previous, first: an attempt that was lost early may
	// have left most in the one before.
	Previous string   `json:"previous,omitempty"`
	Earlier  []string `json:"earlier,omitempty"`
	// Shrink is raised after a memory failure: 0 means as usual, 1 half the parallel work, 2 one
	// thing at a time.
	Shrink int `json:"shrink,omitempty"`
	// Resources is what the attempt counts with: learned, if there is something learned. It is for
	// reservations and limits with room to spare. Parallel work is to be chosen by Job.Resources
	// and Shrink: chosen by what was learned, it would get less with every run.
	Resources Resources `json:"resources"`
	// Expect is how long it took the last time, longer after a [CausePaused]; zero if that is not
	// known.
	Expect time.Duration `json:"expect,omitempty"`

	emit   func(Event) // nil drops
	offset int64       // of the worker's events that were passed on; see Poll

	mu           sync.Mutex
	used         Result
	lastProgress time.Time
}

// NewAttempt returns an attempt outside of a run, for tests of a runner and for runners that hand
// the work on. Dir must exist. emit, which may be nil, gets the events and must be safe for
// concurrent use.
func NewAttempt(job Job, number int, dir string, emit func(Event)) *Attempt {
	return &Attempt{Job: job, Number: number, Dir: dir, Resources: job.Resources, emit: emit}
}

func (a *Attempt) send(e Event) {
	if a.emit == nil {
		return
	}
	e.Time, e.Job, e.Attempt = time.Now(), a.Job.ID, a.Number
	a.emit(e)
}

// Stage says that a stage begins. The function that it returns says how it ended and
// must be called once. Stages may overlap.
func (a *Attempt) Stage(name string) (end func(error)) {
	start := time.Now()
	a.send(Event{Kind: EventStage, Stage: name})
	return func(err error) {
		e := Event{Kind: EventStageDone, Stage: name, Wall: time.Since(start), Err: err}
		if err != nil {
			e.Error, e.Cause = err.Error(), CauseOf(err)
		}
		a.send(e)
	}
}

// progressPause is the least time between two progress events of an attempt.
const progressPause = 100 * time.Millisecond

// Progress says how much is done, in units such as "files" or "bytes"; total is zero when it is not
// known. It may be called often: at most ten calls a second, and the last one, become events.
func (a *Attempt) Progress(done, total int, unit string) {
	now := time.Now()
	a.mu.Lock()
	tooSoon := now.Sub(a.lastProgress) < progressPause && (done != total || total == 0)
	if !tooSoon {
		a.lastProgress = now
	}
	a.mu.Unlock()
	if !tooSoon {
		a.send(Event{Kind: EventProgress, Done: done, Total: total, Text: unit})
	}
}

// Warn tells the user something that is no failure.
func (a *Attempt) Warn(text string) { a.send(Event{Kind: EventWarning, Text: text}) }

// Used says what was measured: memory at one time, and disk. The largest values of all calls and of
// the [Result] count, so it can be called after every command, and counts also when the attempt
// fails.
func (a *Attempt) Used(peakMemoryBytes, diskBytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used.PeakMemoryBytes = max(a.used.PeakMemoryBytes, peakMemoryBytes)
	a.used.DiskBytes = max(a.used.DiskBytes, diskBytes)
}

// withUsed returns the result with what [Attempt.Used] was told.
func (a *Attempt) withUsed(r Result) Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.PeakMemoryBytes = max(r.PeakMemoryBytes, a.used.PeakMemoryBytes)
	r.DiskBytes = max(r.DiskBytes, a.used.DiskBytes)
	return r
}

// LogName is the name of the log in an attempt's folder.
const LogName = "log"

// LogPath is where the attempt's log is.
func (a *Attempt) LogPath() string { return filepath.Join(a.Dir, LogName) }

// OpenLog opens the attempt's log for appending. The caller closes it.
func (a *Attempt) OpenLog() (*os.File, error) {
	return os.OpenFile(a.LogPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
}
