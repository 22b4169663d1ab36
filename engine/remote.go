package engine

import (
	"bufio"
	"bytes"
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

// An attempt can be made by a worker on another machine that shares the attempt's folder: the runner calls [Attempt.Save],
// starts a worker that calls [Work], and then [Attempt.Follow]. From then on the worker is
// the folder's only writer.

const (
	recipeName  = "attempt.json"
	eventsName  = "events.jsonl"
	outcomeName = "result.json"
)

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

// Work makes the attempt that was saved in a folder, with a runner of this machine, and leaves its events and its result there. Its error
// is not that of the attempt, which is in the result, but one that kept the result from being written.
// The folder may have another path here than where it was saved, if those of earlier attempts are beside it.
func Work(ctx context.Context, dir string, runner Runner) error {
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
	log, err := os.OpenFile(filepath.Join(dir, eventsName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
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
	var o outcome
	o.Result, err = callRunner(ctx, runner, &a)
	o.Result = a.withUsed(o.Result)
	if err != nil {
		o.Error, o.Cause = err.Error(), CauseOf(err)
		o.Skip, _ = SkipReason(err)
	}
	mu.Lock()
	logErr = errors.Join(logErr, log.Close())
	mu.Unlock()
	if text, err = json.Marshal(o); err == nil {
		err = fsx.WriteFile(filepath.Join(dir, outcomeName), text, 0o666)
	}
	return errors.Join(err, logErr)
}

// Follow passes on the events of a worker and returns its result once it is there. It looks every so often, and asks alive, which
// may be nil, whether the worker is still there: if it is not, and has left no result either, the error is a [CauseLost]. An
// error of alive is passed on. When ctx ends, Follow returns its cause at once; ending the worker is the runner's part.
func (a *Attempt) Follow(ctx context.Context, every time.Duration, alive func(context.Context) (bool, error)) (Result, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var offset int64
	gone := 0
	for {
		// The result first: events that come after this look belong to the next.
		o, err := readOutcome(a.Dir)
		if err != nil {
			return Result{}, err
		}
		if offset, err = a.relay(offset); err != nil {
			return Result{}, err
		}
		if o != nil {
			return o.unpack()
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
	text, err := os.ReadFile(filepath.Join(dir, outcomeName))
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

// relay passes on the events from an offset, whole lines only.
func (a *Attempt) relay(offset int64) (int64, error) {
	f, err := os.Open(filepath.Join(a.Dir, eventsName))
	if errors.Is(err, fs.ErrNotExist) {
		return offset, nil
	}
	if err != nil {
		return offset, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return offset, err
	}
	for in := bufio.NewReader(f); ; {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return offset, nil
		}
		if err != nil {
			return offset, err
		}
		offset += int64(len(line))
		var e Event
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return offset, fmt.Errorf("read %s: %w", f.Name(), err)
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
