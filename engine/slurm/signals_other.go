//go:build !unix

package slurm

import "os"

// limitSignals are none: there is no Slurm here.
var limitSignals []os.Signal
