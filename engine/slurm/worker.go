package slurm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kiln-build/kiln/engine"
)

// WorkOptions is what a job knows of itself.
type WorkOptions struct {
	// Batch is the folder that the job was given.
	Batch string
	// Job, Task and Restart are SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID and SLURM_RESTART_COUNT,
	// which may be empty.
	Job, Task, Restart string
	// Runner does the work on this node.
	Runner engine.Runner
	// Beat is that of the worker: see [engine.Worker].
	Beat time.Duration
}

// ErrTimeLimit is the cause of a context that ends because the job's time in the queue is over:
// what was made is kept, and the row goes on in another job. ErrStopped is that of one that Slurm
// ends for another reason.
var (
	ErrTimeLimit = engine.Fail(engine.CausePaused, errors.New("stopped before the time limit of the queue"))
	ErrStopped   = engine.Fail(engine.CausePaused, errors.New("stopped by Slurm: preempted, drained or canceled"))
)

// Work makes the attempt of one task. Its error means that the attempt has no result; there is none
// if another job has made the attempt, or makes it.
func Work(ctx context.Context, o WorkOptions) error {
	b, err := readBatch(o.Batch, "")
	if err != nil {
		return err
	}
	index, err := strconv.Atoi(o.Task)
	if err != nil || index < 0 || index >= len(b.Attempts) {
		return fmt.Errorf("SLURM_ARRAY_TASK_ID %q is not a task of %s, which has %d", o.Task, o.Batch, len(b.Attempts))
	}
	restart := 0
	if o.Restart != "" {
		if restart, err = strconv.Atoi(o.Restart); err != nil {
			return fmt.Errorf("SLURM_RESTART_COUNT %q is not a number", o.Restart)
		}
	}
	unwanted := filepath.Join(o.Batch, "cancel."+o.Task)
	w := engine.Worker{
		Runner: o.Runner, Name: fmt.Sprintf("slurm job %s_%s", o.Job, o.Task), Start: restart, Beat: o.Beat,
		Unwanted: func() string {
			if _, err := os.Stat(unwanted); err == nil {
				return "canceled"
			}
			// The folder goes when every attempt in it has ended.
			if _, err := os.Stat(filepath.Join(o.Batch, batchFile)); errors.Is(err, fs.ErrNotExist) {
				return "the build no longer waits for it"
			}
			return ""
		},
	}
	err = w.Work(ctx, b.Attempts[index])
	if errors.Is(err, engine.ErrEnded) || errors.Is(err, engine.ErrReplaced) {
		return nil
	}
	return err
}
