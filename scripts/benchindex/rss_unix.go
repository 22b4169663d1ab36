//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"
)

// peakRSS returns the largest amount of memory that a finished program had, its children included.
func peakRSS(p *os.ProcessState) int64 {
	usage, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return usage.Maxrss // bytes there
	}
	return usage.Maxrss * 1024
}
