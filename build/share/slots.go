package share

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/fsx"
)

// slotPool bounds what all compilers of all rows use at once, in this kiln and in all kilns of the
// machine. The one that is known to need most memory goes first; smaller ones fill the gaps, but
// not forever.
type slotPool struct {
	cpu         int
	memoryBytes int64

	mu      sync.Mutex
	used    slotSum
	running int
	// machine has the other kilns of this machine; nil means that they are not asked. others is
	// what they use, known while schedule runs; again looks once more when they may have given
	// something back.
	machine *sharedMachine
	claim   claim
	others  others
	again   *time.Timer
	waiting []*slotWaiter
	units   map[string]*slotUnit
	peaks   map[string]int64 // learned, by SlotRequest.File
}

// slotUnit is what is known of calls that may have the same result.
type slotUnit struct {
	busy   bool
	misses int // two of them mean that the results differ
}

type slotWaiter struct {
	request launcher.SlotRequest
	passed  int
	ready   chan struct{}
}

// passLimit is how many may go before one that does not fit, as in the engine.
const passLimit = 8

func newSlotPool(cpu int, memoryBytes int64, peaks map[string]int64) *slotPool {
	if peaks == nil {
		peaks = map[string]int64{}
	}
	return &slotPool{cpu: cpu, memoryBytes: memoryBytes, units: map[string]*slotUnit{}, peaks: peaks}
}

// request puts a call into the queue. Its channel is closed when it may run; then it must be
// released.
func (p *slotPool) request(r launcher.SlotRequest) *slotWaiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.CPU = min(max(r.CPU, 1), max(p.cpu, 1))
	if peak := p.peaks[r.File]; peak > 0 {
		r.MemoryBytes = peak + peak/10
	}
	w := &slotWaiter{request: r, ready: make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.schedule()
	return w
}

// release gives back what a call used, or takes it out of the queue.
func (p *slotPool) release(w *slotWaiter, report launcher.SlotReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.schedule()
	for i, other := range p.waiting {
		if other == w {
			p.waiting = append(p.waiting[:i:i], p.waiting[i+1:]...)
			return
		}
	}
	p.running--
	p.used.CPU -= w.request.CPU
	p.used.MemoryBytes -= w.request.MemoryBytes
	if u := p.units[w.request.Unit]; u != nil {
		u.busy = false
		if report.Result == launcher.Miss {
			u.misses++
		}
	}
	// A hit says nothing about what the compiler needs.
	if (report.Result == launcher.Miss || report.Result == launcher.Bypass) && report.PeakMemoryBytes > 0 {
		p.peaks[w.request.File] = report.PeakMemoryBytes
	}
}

// join makes the pool one of those of the machine, which together stay within the limits of the
// machine.
func (p *slotPool) join(dir string, limit slotSum) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claim.Limit = limit
	m, err := openMachine(dir, &p.claim)
	if err != nil {
		return err
	}
	p.machine = m
	return nil
}

// leave takes the pool out of the machine's.
func (p *slotPool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again != nil {
		p.again.Stop()
	}
	if p.machine != nil {
		p.machine.close()
		p.machine = nil
	}
}

// schedule starts what may start, here and with regard to the other kilns of the machine.
func (p *slotPool) schedule() {
	if p.machine == nil {
		p.others = others{}
		p.start()
		return
	}
	all, err := p.machine.begin(p.claim.name)
	now := time.Now()
	p.others = p.claim.sum(all, now)
	waits := p.start()
	p.claim.Running, p.claim.slotSum = p.running, p.used
	switch {
	case !waits:
		p.claim.Wanted, p.claim.Beat = time.Time{}, time.Time{}
	case p.claim.Wanted.IsZero():
		p.claim.Wanted, p.claim.Beat = now, now
	case now.Sub(p.claim.Beat) > machineBeat/4:
		p.claim.Beat = now
	}
	if err := errors.Join(err, p.machine.end(&p.claim)); err != nil {
		// The folder is gone, or the disk is full: each for itself, rather than none.
		p.machine.close()
		p.machine, p.others = nil, others{}
		p.start()
		return
	}
	if waits {
		if p.again == nil {
			p.again = time.AfterFunc(machinePoll, p.look)
		} else {
			p.again.Reset(machinePoll)
		}
	}
}

// look schedules what waited for other kilns.
func (p *slotPool) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.machine != nil {
		p.schedule()
	}
}

// start starts what fits. It reports whether something waits for nothing but other kilns.
func (p *slotPool) start() (waits bool) {
	started := false
	defer func() {
		if started {
			p.claim.Wanted = time.Time{} // the next one waits from now on
		}
	}()
	for {
		next := -1
		blocked := false
		for i, w := range p.waiting {
			if !p.free(w) {
				continue // another row compiles the same file: this call waits for the result, and delays no other
			}
			if w.passed >= passLimit {
				blocked = true
			}
			if next < 0 || larger(w, p.waiting[next]) {
				next = i
			}
		}
		if next < 0 {
			return false
		}
		first := next
		if !p.fits(p.waiting[next]) {
			waits = p.fitsHere(p.waiting[next])
			if blocked {
				return waits
			}
			next = -1
			for i, w := range p.waiting {
				if i != first && p.free(w) && p.fits(w) && (next < 0 || larger(w, p.waiting[next])) {
					next = i
				}
			}
			if next < 0 {
				return waits
			}
			p.waiting[first].passed++
		}
		w := p.waiting[next]
		p.waiting = append(p.waiting[:next:next], p.waiting[next+1:]...)
		p.running++
		p.used.CPU += w.request.CPU
		p.used.MemoryBytes += w.request.MemoryBytes
		if unit := w.request.Unit; unit != "" {
			if p.units[unit] == nil {
				p.units[unit] = &slotUnit{}
			}
			p.units[unit].busy = true
		}
		close(w.ready)
		started = true
	}
}

// larger orders by passes that are used up, then by memory; equal ones keep their order.
func larger(a, b *slotWaiter) bool {
	if x, y := a.passed >= passLimit, b.passed >= passLimit; x != y {
		return x
	}
	return a.request.MemoryBytes > b.request.MemoryBytes
}

// free reports whether no call with perhaps the same result is at work.
func (p *slotPool) free(w *slotWaiter) bool {
	u := p.units[w.request.Unit]
	return w.request.Unit == "" || u == nil || !u.busy || u.misses > 1
}

// fits reports whether there is room, here and in the machine. What is larger than everything runs
// alone.
func (p *slotPool) fits(w *slotWaiter) bool {
	if !p.fitsHere(w) {
		return false
	}
	if o := &p.others; o.first {
		return false
	} else if o.running > 0 {
		return p.used.CPU+o.CPU+w.request.CPU <= o.limit.CPU && p.used.MemoryBytes+o.MemoryBytes+w.request.MemoryBytes <= o.limit.MemoryBytes
	}
	return true
}

// fitsHere reports whether there is room within what this kiln may use.
func (p *slotPool) fitsHere(w *slotWaiter) bool {
	if p.running == 0 {
		return true
	}
	return p.used.CPU+w.request.CPU <= p.cpu && p.used.MemoryBytes+w.request.MemoryBytes <= p.memoryBytes
}

// serve answers launchers until the listener is closed, then ends their connections and waits for
// them.
func (p *slotPool) serve(listener net.Listener) {
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	for {
		conn, err := listener.Accept()
		if err != nil {
			break
		}
		mu.Lock()
		open[conn] = true
		mu.Unlock()
		all.Go(func() {
			p.answer(conn)
			mu.Lock()
			delete(open, conn)
			mu.Unlock()
		})
	}
	mu.Lock()
	for conn := range open {
		_ = conn.Close()
	}
	mu.Unlock()
	all.Wait()
}

func (p *slotPool) answer(conn net.Conn) {
	defer conn.Close()
	dec := json.NewDecoder(bufio.NewReader(conn))
	var r launcher.SlotRequest
	if dec.Decode(&r) != nil {
		return
	}
	w := p.request(r)
	// Reading goes on while it waits: a launcher that was killed closes its end.
	reports := make(chan launcher.SlotReport, 1)
	go func() {
		var report launcher.SlotReport
		_ = dec.Decode(&report)
		reports <- report
	}()
	select {
	case <-w.ready:
		_, _ = conn.Write([]byte("go\n"))
	case report := <-reports:
		p.release(w, report)
		return
	}
	p.release(w, <-reports)
}

// learned returns the peaks that are known.
func (p *slotPool) learned() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.peaks)
}

type peaksFile struct {
	Format string           `json:"format"`
	Peaks  map[string]int64 `json:"peaks"`
}

const peaksFormat = "kiln-peaks/1"

// readPeaks reads what earlier runs learned; a file that cannot be read has taught nothing.
func readPeaks(path string) map[string]int64 {
	var f peaksFile
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &f) != nil || f.Format != peaksFormat {
		return nil
	}
	return f.Peaks
}

func writePeaks(path string, peaks map[string]int64) error {
	if len(peaks) == 0 {
		return nil
	}
	text, err := json.Marshal(peaksFile{peaksFormat, peaks})
	if err != nil {
		return err
	}
	err = fsx.WriteFile(path, append(text, '\n'), 0o666)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the state folder is gone
	}
	return err
}
