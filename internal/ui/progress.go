package ui

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/units"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Progress shows how far a long copy is: a bar with throughput on a terminal, a line
// every few seconds elsewhere. Nothing is shown of what takes less than a second.
// Methods may be called from several goroutines.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer
	term  Terminal
	what  string
	start time.Time
	last  time.Time // of the last line
	bars  *mpb.Progress
	bar   *mpb.Bar
}

// NewProgress makes a progress display for a job with a short name.
func NewProgress(w io.Writer, term Terminal, what string) *Progress {
	now := time.Now()
	return &Progress{w: Raw(w), term: term, what: Escape(what), start: now, last: now}
}

const (
	progressDelay = time.Second
	progressEvery = 5 * time.Second
)

// Set says that done of total bytes are done.
func (p *Progress) Set(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.start) < progressDelay {
		return
	}
	if p.term.Width > 0 {
		if p.bar == nil {
			p.bars = mpb.New(mpb.WithOutput(p.w), mpb.WithWidth(min(40, p.term.Width/3)), mpb.WithAutoRefresh())
			p.bar = p.bars.AddBar(total,
				mpb.PrependDecorators(decor.Name(p.what+" ")),
				mpb.AppendDecorators(decor.CountersKibiByte(" % .1f / % .1f"), decor.Any(func(s decor.Statistics) string {
					return "  " + rate(s.Current, time.Since(p.start)) + "  " + left(s.Current, s.Total, time.Since(p.start))
				})))
		}
		p.bar.SetCurrent(done)
		return
	}
	if now.Sub(p.last) >= progressEvery {
		p.last = now
		spent := now.Sub(p.start)
		_, _ = fmt.Fprintf(p.w, "%s: %s of %s, %s, %s\n", p.what, units.Bytes(done), units.Bytes(total), rate(done, spent), left(done, total, spent))
	}
}

// Close removes the bar. What was done is for the caller to say.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
}

func rate(done int64, spent time.Duration) string {
	return units.Bytes(int64(float64(done)/max(spent.Seconds(), 1e-3))) + "/s"
}

func left(done, total int64, spent time.Duration) string {
	if done <= 0 || total < done {
		return ""
	}
	return Duration(time.Duration(float64(spent)*float64(total-done)/float64(done))) + " left"
}
