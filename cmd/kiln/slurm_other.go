//go:build !unix

package main

import "os"

// slurmLimitSignals are none: there is no Slurm here.
var slurmLimitSignals []os.Signal
