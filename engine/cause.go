package engine

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/kiln-build/kiln/internal/run"
)

// Cause says why an attempt failed, and with that whether it is tried again.
type Cause string

// The causes and what the engine does, in one run. Counts begin anew in the next run.
const (
	// CauseFault is the job's own: a compile error, a failed test or audit. Never retried.
	CauseFault Cause = "fault"
	// CauseNetwork is a download that failed, a timeout, a wrong checksum. Up to three attempts,
	// with a growing pause.
	CauseNetwork Cause = "network"
	// CauseMemory is an attempt that was killed for memory. One attempt with [Attempt.Shrink] 1,
	// one with 2, then failed, with the measured peak.
	CauseMemory Cause = "memory"
	// CauseTime is a wall time limit. Up to three attempts; the next one finds in
	// [Attempt.Previous] what was made, so that it goes on and does not begin again.
	CauseTime Cause = "time"
	// CauseDisk is a full disk. One more attempt, after [Options.CleanDisk].
	CauseDisk Cause = "disk"
	// CauseLost is an attempt that ended without the job's doing: a worker that vanished, a kiln
	// that was killed. Up to five attempts.
	CauseLost Cause = "lost"
	// CausePaused is an attempt that was stopped because its time on a machine was over, and not
	// its own: the limit of a queue, or a job with a higher priority. Up to twenty attempts; the
	// next one goes on with what was made, and is expected to take longer.
	CausePaused Cause = "paused"
	// CauseCanceled: a person canceled it. Not retried in this run.
	CauseCanceled Cause = "canceled"
)

type failure struct {
	cause Cause
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Fail gives an error its cause. The text stays the same. Of several causes in one
// error the outermost counts. Fail of nil is nil.
func Fail(cause Cause, err error) error {
	if err == nil {
		return nil
	}
	return &failure{cause, err}
}

// CauseOf returns the cause that [Fail] gave to err. Without one it is found from what the error
// is: a full disk or quota, a command that was killed (SIGKILL, or exit code 137, which a shell or
// container makes of it), a network error, a context that ended. Everything else is [CauseFault].
// The cause of nil is empty.
func CauseOf(err error) Cause {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.cause
	}
	if e, ok := errors.AsType[*run.Error](err); ok && e.Cause == nil && e.Err == nil &&
		(e.State.Signal == "SIGKILL" || e.State.ExitCode == 137) {
		return CauseMemory
	}
	switch {
	case isDiskFull(err):
		return CauseDisk
	case errors.Is(err, context.Canceled):
		return CauseCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return CauseTime
	}
	if e, ok := errors.AsType[net.Error](err); ok {
		// The number of a system's error has the methods of a net.Error, but may be that of a file.
		if _, number := e.(syscall.Errno); !number {
			return CauseNetwork
		}
	}
	return CauseFault
}

func isDiskFull(err error) bool {
	for _, full := range diskFull {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}

type skip struct{ reason string }

func (s *skip) Error() string { return "skipped: " + s.reason }

// Skip returns an error that makes a job skipped, with a reason for the user, and not failed.
func Skip(reason string) error { return &skip{reason} }

// SkipReason returns the reason if err is, or wraps, one of [Skip].
func SkipReason(err error) (reason string, ok bool) {
	s, ok := errors.AsType[*skip](err)
	if !ok {
		return "", false
	}
	return s.reason, true
}
