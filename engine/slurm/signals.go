package slurm

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Signals returns a context that ends with what a signal means in a job, [ErrTimeLimit] or
// [ErrStopped], and not with its parent.
func Signals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, slices.Concat(limitSignals, []os.Signal{syscall.SIGTERM, os.Interrupt})...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range signals {
			if slices.Contains(limitSignals, s) {
				cancel(ErrTimeLimit)
			} else {
				cancel(ErrStopped)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel(nil)
	}
}
