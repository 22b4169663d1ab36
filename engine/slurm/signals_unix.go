//go:build unix

package slurm

import (
	"os"
	"syscall"
)

// limitSignals say that the time of a job is nearly over.
var limitSignals = []os.Signal{syscall.SIGUSR1}
