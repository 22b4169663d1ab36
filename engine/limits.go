package engine

import (
	"fmt"
	"runtime"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/memory"
)

// diskReserve is left free on the disk.
const diskReserve = 1 << 30

// limits is what all attempts together may count. A negative number means no limit.
type limits struct {
	cpu      int
	memory   int64
	disk     int64
	diskPath string // asked instead of disk, if set
	queue    bool   // see Capacity
}

func newLimits(opts Options) (limits, error) {
	c := opts.Runner.Capacity()
	l := limits{cpu: opts.CPU, memory: opts.MemoryBytes, disk: opts.DiskBytes, queue: c.Queue}
	if l.cpu == 0 {
		l.cpu = c.CPU
	}
	if l.cpu == 0 {
		l.cpu = runtime.GOMAXPROCS(0) // knows control groups
	}
	if l.memory == 0 {
		l.memory = c.MemoryBytes
	}
	if l.memory == 0 {
		m, err := memory.Read()
		if err != nil {
			return limits{}, fmt.Errorf("find the memory of this machine: %w", err)
		}
		l.memory = m.BudgetBytes()
	}
	if l.disk == 0 {
		l.disk = c.DiskBytes
	}
	if l.disk == 0 {
		l.diskPath = opts.DiskPath
	}
	return l, nil
}

// diskNow is the limit of disk at this moment.
func (l *limits) diskNow() int64 {
	if l.diskPath == "" {
		return l.disk
	}
	free, err := fsx.FreeSpace(l.diskPath)
	if err != nil {
		return -1 // a file system that does not say
	}
	return max(0, free-diskReserve)
}

// count returns what a job counts with.
func (l *limits) count(asked Resources, learned Learned) Resources {
	r := asked
	r.CPU = max(1, r.CPU)
	if l.cpu > 0 {
		// More processors than there are make a job slow, not impossible.
		r.CPU = min(r.CPU, l.cpu)
	}
	if learned.PeakMemoryBytes > 0 {
		r.MemoryBytes = withMargin(learned.PeakMemoryBytes)
	} else if r.MemoryBytes == 0 && l.memory > 0 && l.cpu > 0 {
		r.MemoryBytes = l.memory / int64(l.cpu) * int64(r.CPU)
	}
	if learned.DiskBytes > 0 {
		r.DiskBytes = withMargin(learned.DiskBytes)
	}
	return r
}

// withMargin is for the next attempt needing a little more than the last.
func withMargin(n int64) int64 { return n + n/5 }
