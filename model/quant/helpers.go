package quant

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// spinTime is how long a helper looks for the next call before it ends, and a call for its helpers
// before it sleeps. To wake a sleeping thread takes 20 to 100 µs, a third of a product of one row;
// products of a model follow each other sooner.
const spinTime = 200 * time.Microsecond

// helpers are goroutines that take part in calls. One that has no more to do ends by itself soon
// after, so that there is nothing to close.
type helpers struct {
	slots []atomic.Pointer[call] // one for each helper: nil for none, &waiting, &working or a call for it to join
}

var waiting, working call

// call is a function for 0 to n − 1 that several goroutines work on.
type call struct {
	work  func()
	state atomic.Int64  // helpers at work; negative once no further one may join
	done  chan struct{} // closed by the last helper at work, if the caller waits for it
}

// ended is added to the state of a call that helpers must not join any more.
const ended = -1 << 32

// join works on the call unless it has ended.
func (c *call) join() {
	for {
		n := c.state.Load()
		if n < 0 {
			return
		}
		if c.state.CompareAndSwap(n, n+1) {
			break
		}
	}
	c.work()
	if c.state.Add(-1) == ended {
		close(c.done)
	}
}

// spin calls f until it reports true, for some time, and returns its last answer.
func spin(f func() bool) bool {
	for start := time.Now(); ; runtime.Gosched() { // other goroutines may need the thread
		for range 100 {
			if f() {
				return true
			}
		}
		if time.Since(start) > spinTime {
			return false
		}
	}
}

// run calls work here and on up to n helpers at once, and returns when all have returned.
func (h *helpers) run(n int, work func()) {
	c := &call{work: work, done: make(chan struct{})}
	for i := range min(n, len(h.slots)) {
		slot := &h.slots[i]
		switch {
		case slot.CompareAndSwap(&waiting, c):
		case slot.CompareAndSwap(nil, &working):
			go help(slot, c)
		}
	}
	work()
	if c.state.Add(ended) == ended {
		return
	}
	if !spin(func() bool { return c.state.Load() == ended }) {
		<-c.done
	}
}

// help joins calls until none comes for some time.
func help(slot *atomic.Pointer[call], c *call) {
	for {
		c.join()
		slot.Store(&waiting)
		if !spin(func() bool { return slot.Load() != &waiting }) && slot.CompareAndSwap(&waiting, nil) {
			return
		}
		c = slot.Swap(&working)
	}
}

// parallel calls f for 0 to n − 1, on several goroutines, and waits for all. When ctx ends it
// starts no further call. A goroutine takes many neighbors at once, as memory is read ahead, and
// few near the end, so that all end together.
func (c *CPU) parallel(ctx context.Context, threads, n int, f func(i int, s *cpuScratch)) error {
	threads = min(threads, n)
	var next atomic.Int64
	c.helpers.run(threads-1, func() {
		s, _ := c.scratch.Get().(*cpuScratch)
		if s == nil {
			s = &cpuScratch{}
		}
		defer c.scratch.Put(s)
		for {
			first := int(next.Load())
			last := first + max(1, (n-first)/(2*threads))
			switch {
			case first >= n:
				return
			case !next.CompareAndSwap(int64(first), int64(last)):
				continue
			}
			for i := first; i < last; i++ {
				if ctx.Err() != nil {
					return
				}
				f(i, s)
			}
		}
	})
	return context.Cause(ctx)
}
