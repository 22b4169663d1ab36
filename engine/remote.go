package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// An attempt can be made by a worker on another machine that shares the attempt's folder: the
// runner calls [Attempt.Save], starts a worker that calls [Work], and then [Attempt.Follow]. From
// then on the worker is the folder's only writer.

const (
	recipeName  = "attempt.json"
	eventsName  = "events.jsonl"
	outcomeName = "result.json"
	workerName  = "worker.json"
)

// stateLimit is how large a file of one worker may be.
const stateLimit = 64 << 20

// outcome is what a worker leaves: a result, or why there is none.
type outcome struct {
	Result Result `json:"result"`
	Error  string `json:"error,omitempty"`
	Cause  Cause  `json:"cause,omitempty"`
	Skip   string `json:"skip,omitempty"`
}

// Save writes the attempt into its folder, for [Work].
func (a *Attempt) Save() error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return fsx.WriteFile(filepath.Join(a.Dir, recipeName), text, 0o666)
}

// Work makes the attempt that was saved in a folder, with a runner of this machine. See
// [Worker.Work].
func Work(ctx context.Context, dir string, runner Runner) error {
	return (&Worker{Runner: runner}).Work(ctx, dir)
}

// Worker makes attempts that another process saved.
type Worker struct {
	// Runner does the work.
	Runner Runner
	// Name says who this is, such as "slurm job 12_3", and Start how often the same one was started
	// before. A batch system that lost sight of a machine starts the job again elsewhere, while the
	// first may still be at work: the larger Start is right, and the other one ends itself.
	Name  string
	Start int
	// Beat is how often the worker says that it is alive, and looks whether it is still wanted;
	// zero means 10 seconds.
	Beat time.Duration
	// Unwanted, if set, is asked at every beat and before the work begins; an answer other than ""
	// ends it.
	Unwanted func() string
}

// Errors of a worker that is not needed.
var (
	// ErrEnded means that the attempt has its result.
	ErrEnded = errors.New("the attempt has ended already")
	// ErrReplaced means that another worker makes the attempt.
	ErrReplaced = errors.New("another worker makes this attempt")
)

// WorkerState is what a worker leaves in the attempt's folder while it is at work.
type WorkerState struct {
	Name  string `json:"name"`
	Start int    `json:"start"`
	Host  string `json:"host,omitempty"`
	// Beats grows as long as the worker is alive. It is a count because the clocks of two machines
	// differ.
	Beats int `json:"beats"`
}

const defaultBeat = 10 * time.Second

// Work makes the attempt in a folder and leaves its events and its result there. Its error is not
// that of the attempt, which is in the result, but one that kept the result from being written:
// [ErrEnded] and [ErrReplaced] if there is nothing for this worker to do. The folder may have
// another path here than where it was saved, if those of earlier attempts are beside it.
//
// The attempt's wall limit counts from here. When ctx ends with a cause of [Fail], that is the
// attempt's cause.
func (w *Worker) Work(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, recipeName))
	if err != nil {
		return err
	}
	var a Attempt
	if err := json.Unmarshal(text, &a); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(dir, recipeName), err)
	}
	a.Dir = dir
	for i, earlier := range a.Earlier {
		a.Earlier[i] = filepath.Join(filepath.Dir(dir), filepath.Base(earlier))
	}
	if len(a.Earlier) > 0 {
		a.Previous = a.Earlier[0]
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	state, err := w.claim(ctx, dir)
	if err != nil {
		return err
	}
	// It beats until the runner has returned: one that is being ended still writes.
	var beats sync.WaitGroup
	returned := make(chan struct{})
	stopBeats := sync.OnceFunc(func() { close(returned); beats.Wait() })
	defer stopBeats()
	beats.Go(func() { w.beat(ctx, cancel, returned, dir, state) })

	log, err := openEvents(filepath.Join(dir, eventsName))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var logErr error
	a.emit = func(e Event) {
		line, err := json.Marshal(e)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			_, err = log.Write(append(line, '\n'))
		}
		logErr = errors.Join(logErr, err)
	}
	start := time.Now()
	limited, stop := withLimit(ctx, a.Job.WallLimit)
	var o outcome
	o.Result, err = callRunner(limited, w.Runner.Run, &a)
	err = limitCause(limited, err)
	stop()
	o.Result = a.withUsed(o.Result)
	o.Result.Wall = cmp.Or(o.Result.Wall, time.Since(start))
	if err != nil {
		o.Error, o.Cause = err.Error(), CauseOf(err)
		o.Skip, _ = SkipReason(err)
		if f, ok := errors.AsType[*failure](context.Cause(ctx)); ok && ctx.Err() != nil {
			o.Error, o.Cause = f.Error(), f.cause
		}
	}
	mu.Lock()
	logErr = errors.Join(logErr, log.Close())
	mu.Unlock()
	// The result is the last thing that is written.
	replaced := errors.Is(context.Cause(ctx), ErrReplaced)
	stopBeats()
	if now, err := readWorker(dir); replaced || err == nil && now != nil && !now.is(state) {
		return ErrReplaced
	}
	if text, err = json.Marshal(o); err == nil {
		err = fsx.WriteFile(filepath.Join(dir, outcomeName), text, 0o666)
	}
	return errors.Join(err, logErr)
}

func (s *WorkerState) is(o *WorkerState) bool { return s.Name == o.Name && s.Start == o.Start }

// claim makes this worker the one that makes the attempt.
func (w *Worker) claim(ctx context.Context, dir string) (*WorkerState, error) {
	if w.Beat == 0 {
		w.Beat = defaultBeat
	}
	host, _ := os.Hostname() // for people only
	mine := &WorkerState{Name: w.Name, Start: w.Start, Host: host}
	if o, err := readOutcome(dir); o != nil || err != nil {
		return nil, cmp.Or(err, ErrEnded)
	}
	if w.Unwanted != nil {
		if why := w.Unwanted(); why != "" {
			return nil, errors.New(why)
		}
	}
	before, err := readWorker(dir)
	if err != nil {
		return nil, err
	}
	if before == nil {
		return mine, writeWorker(dir, mine)
	}
	if before.Name == w.Name && before.Start >= w.Start {
		return nil, ErrReplaced
	}
	wait := func() error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(w.Beat):
			return nil
		}
	}
	if before.Name != w.Name {
		// The same attempt was submitted twice. The worker that is alive keeps it.
		for range 3 {
			if err := wait(); err != nil {
				return nil, err
			}
		}
		if now, err := readWorker(dir); err != nil || now == nil || *now != *before {
			return nil, cmp.Or(err, ErrReplaced)
		}
	}
	if err := writeWorker(dir, mine); err != nil {
		return nil, err
	}
	// The one before sees this at its next beat, and takes a moment to end.
	for range 2 {
		if err := wait(); err != nil {
			return nil, err
		}
		now, err := readWorker(dir)
		if err != nil {
			return nil, err
		}
		switch {
		case now == nil || now.Name == w.Name && now.Start < w.Start:
			err = writeWorker(dir, mine) // it wrote in the same moment
		case !now.is(mine):
			err = ErrReplaced
		}
		if err != nil {
			return nil, err
		}
	}
	if o, err := readOutcome(dir); o != nil || err != nil {
		return nil, cmp.Or(err, ErrEnded)
	}
	return mine, nil
}

// beat says that the worker is alive until the work has returned, and ends ctx when the worker is
// not wanted any more.
func (w *Worker) beat(ctx context.Context, cancel context.CancelCauseFunc, returned <-chan struct{}, dir string, state *WorkerState) {
	tick := time.NewTicker(w.Beat)
	defer tick.Stop()
	for next := *state; ; {
		select {
		case <-returned:
			return
		case <-tick.C:
		}
		if errors.Is(context.Cause(ctx), ErrReplaced) {
			return
		}
		if w.Unwanted != nil && ctx.Err() == nil {
			if why := w.Unwanted(); why != "" {
				cancel(Fail(CauseCanceled, errors.New(why)))
			}
		}
		now, err := readWorker(dir)
		switch {
		case err != nil:
			continue // a file system that is away for a moment
		case now != nil && !now.is(state) && (now.Name != state.Name || now.Start > state.Start):
			cancel(ErrReplaced)
			return
		}
		next.Beats++
		_ = writeWorker(dir, &next) // the same
	}
}

// openEvents opens the list of events behind the last whole line: a worker that was killed may have
// left half of one.
func openEvents(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	if err == nil && len(text) > 0 {
		err = f.Truncate(int64(bytes.LastIndexByte(text, '\n') + 1))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func readWorker(dir string) (*WorkerState, error) {
	text, err := fsx.ReadFile(filepath.Join(dir, workerName), stateLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // No worker yet is the usual case.
	}
	if err != nil {
		return nil, err
	}
	s := new(WorkerState)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, workerName), err)
	}
	return s, nil
}

// writeWorker does not sync: after a crash of the machine its worker is gone too.
func writeWorker(dir string, s *WorkerState) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, fmt.Sprintf("%s.%d", workerName, s.Start))
	if err := os.WriteFile(temp, text, 0o666); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, workerName))
}

// Worker returns what the attempt's worker last said of itself, nil if there was none yet.
func (a *Attempt) Worker() (*WorkerState, error) { return readWorker(a.Dir) }

// Poll passes on what a worker's events have grown by, and returns its result if it is there. It is
// one look of [Attempt.Follow], for runners that look themselves. It must not be called by two
// goroutines at once.
func (a *Attempt) Poll() (result Result, ended bool, err error) {
	// The result first: events that come after this look belong to the next.
	o, err := readOutcome(a.Dir)
	if err != nil {
		return Result{}, true, err
	}
	if err := a.relay(); err != nil {
		return Result{}, true, err
	}
	if o == nil {
		return Result{}, false, nil
	}
	result, err = o.unpack()
	return result, true, err
}

// Follow passes on the events of a worker and returns its result once it is there. It looks every
// so often, and asks alive, which may be nil, whether the worker is still there: if it is not, and
// has left no result either, the error is a [CauseLost]. An error of alive is passed on. When ctx
// ends, Follow returns its cause at once; ending the worker is the runner's part.
func (a *Attempt) Follow(ctx context.Context, every time.Duration, alive func(context.Context) (bool, error)) (Result, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	gone := 0
	for {
		if result, ended, err := a.Poll(); ended {
			return result, err
		}
		if alive != nil {
			ok, err := alive(ctx)
			switch {
			case ctx.Err() != nil:
				return Result{}, context.Cause(ctx)
			case err != nil:
				return Result{}, err
			case ok:
				gone = 0
			default:
				// A shared folder may show a file later than the worker's end is known.
				if gone++; gone > 3 {
					return Result{}, Fail(CauseLost, errors.New("the worker ended without a result"))
				}
			}
		}
		select {
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func readOutcome(dir string) (*outcome, error) {
	text, err := fsx.ReadFile(filepath.Join(dir, outcomeName), stateLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // No result yet is the usual case.
	}
	if err != nil {
		return nil, err
	}
	o := new(outcome)
	if err := json.Unmarshal(text, o); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, outcomeName), err)
	}
	return o, nil
}

func (o *outcome) unpack() (Result, error) {
	switch {
	case o.Skip != "":
		return o.Result, Skip(o.Skip)
	case o.Error != "":
		return o.Result, Fail(o.Cause, errors.New(o.Error))
	}
	return o.Result, nil
}

// relay passes on the events that are new, whole lines only.
func (a *Attempt) relay() error {
	f, err := os.Open(filepath.Join(a.Dir, eventsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	for in := bufio.NewReader(f); ; {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		a.offset += int64(len(line))
		var e Event
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return fmt.Errorf("read %s: %w", f.Name(), err)
		}
		if a.emit != nil {
			if e.Error != "" {
				e.Err = Fail(e.Cause, errors.New(e.Error))
			}
			e.Job, e.Attempt = a.Job.ID, a.Number
			a.emit(e)
		}
	}
}
