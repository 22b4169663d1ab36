//go:build unix

package measure

import (
	"os"
	"runtime"
	"syscall"
)

// PeakMemory returns the largest amount of memory in bytes that a finished program had, its
// children included. Linux counts the program that started it as well.
func PeakMemory(p *os.ProcessState) int64 {
	usage, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return usage.Maxrss // bytes there
	}
	return usage.Maxrss * 1024
}
