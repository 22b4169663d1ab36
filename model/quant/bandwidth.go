package quant

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/kiln-build/kiln/model/quant/internal/kernels"
)

// ReadBandwidth returns how many bytes a second this machine reads from main memory with a number
// of threads (0 means GOMAXPROCS). It reads 32 MiB at a time, in turn from 256 MiB, for about the
// given time; the fastest counts.
func ReadBandwidth(ctx context.Context, threads int, d time.Duration) (float64, error) {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	const part, parts = 32 << 20 / 4, 8
	words := make([]uint32, parts*part)
	for i := range words {
		words[i] = uint32(i) // pages that were never written to are all the same one
	}
	set := kernels.Best()
	best := 0.0
	start := time.Now()
	for i := 0; time.Since(start) < d || i < parts; i++ {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		from := words[i%parts*part:][:part]
		begin := time.Now()
		var group sync.WaitGroup
		for t := range threads {
			group.Go(func() { set.Read(from[part*t/threads : part*(t+1)/threads]) })
		}
		group.Wait()
		best = max(best, 4*part/time.Since(begin).Seconds())
	}
	return best, nil
}
