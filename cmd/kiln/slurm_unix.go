//go:build unix

package main

import (
	"os"
	"syscall"
)

// slurmLimitSignals say that the time of a job is nearly over.
var slurmLimitSignals = []os.Signal{syscall.SIGUSR1}
