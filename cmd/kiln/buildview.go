package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/memory"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
)

// buildView shows a build at work: lines that stay for what ended, and on a terminal
// live lines for what is running.
type buildView struct {
	live *ui.Live

	mu      sync.Mutex
	total   int
	started time.Time
	running map[string]*rowView
	count   map[engine.EventKind]int
	spent   time.Duration // of finished rows
	expect  time.Duration // of all rows, from history; zero if unknown
	peak    int64
}

type rowView struct {
	id, stage   string
	start       time.Time
	done, total int
	unit        string
}

func newBuildView(live *ui.Live, rows []matrix.Row, plan *matrix.Plan) *buildView {
	v := &buildView{live: live, total: len(rows), running: map[string]*rowView{}, count: map[engine.EventKind]int{}, started: time.Now()}
	if e := plan.Estimate; e.Known > 0 && e.Known == e.Rows && len(rows) == e.Rows {
		v.expect = e.Time
	}
	return v
}

// start redraws twice a second until the returned function is called.
func (v *buildView) start() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				v.live.Close()
				return
			case <-tick.C:
				v.live.Set(v.lines())
			}
		}
	}()
	return func() { close(done); <-ended }
}

// event takes one event of the engine.
func (v *buildView) event(e engine.Event) {
	v.mu.Lock()
	line := v.take(e)
	v.mu.Unlock()
	if line != "" {
		v.live.Print(line)
	}
}

func (v *buildView) take(e engine.Event) string {
	v.count[e.Kind]++
	row := v.running[e.Job]
	switch e.Kind {
	case engine.EventStarted:
		v.running[e.Job] = &rowView{id: e.Job, start: e.Time}
		if !v.live.IsLive() {
			return fmt.Sprintf("start  %s%s", e.Job, tryText(e.Attempt))
		}
	case engine.EventStage:
		if row != nil {
			row.stage, row.done, row.total = e.Stage, 0, 0
		}
		if !v.live.IsLive() && (e.Stage == "compile" || e.Stage == "test") {
			return fmt.Sprintf("%-6s %s", e.Stage, e.Job)
		}
	case engine.EventProgress:
		if row != nil {
			row.done, row.total, row.unit = e.Done, e.Total, e.Text
		}
	case engine.EventWarning:
		return fmt.Sprintf("warn   %s: %s", e.Job, e.Text)
	case engine.EventRetry:
		delete(v.running, e.Job)
		return fmt.Sprintf("retry  %s: %s%s", e.Job, reason(e), delayText(e.Delay))
	case engine.EventFinished:
		delete(v.running, e.Job)
		v.spent += e.Wall
		v.peak = max(v.peak, e.PeakMemoryBytes)
		return fmt.Sprintf("done   %s in %s", e.Job, ui.Duration(e.Wall))
	case engine.EventFailed:
		delete(v.running, e.Job)
		v.spent += e.Wall
		return fmt.Sprintf("FAILED %s: %s", e.Job, reason(e))
	case engine.EventSkipped:
		delete(v.running, e.Job)
		return fmt.Sprintf("skip   %s: %s", e.Job, firstLine(e.Text))
	case engine.EventCanceled:
		delete(v.running, e.Job)
	case engine.EventReused, engine.EventSubmitted, engine.EventStageDone:
	}
	return ""
}

// reason is why a row failed, without the row, which the line names already.
func reason(e engine.Event) string {
	return strings.TrimPrefix(firstLine(e.Error), e.Job+": ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func tryText(n int) string {
	if n > 1 {
		return fmt.Sprintf(" (attempt %d)", n)
	}
	return ""
}

func delayText(d time.Duration) string {
	if d > 0 {
		return "; again in " + ui.Duration(d)
	}
	return "; again"
}

// lines are the live ones: a summary, then one per running row, longest first.
func (v *buildView) lines() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	ended := v.count[engine.EventFinished] + v.count[engine.EventFailed] + v.count[engine.EventSkipped] + v.count[engine.EventReused] + v.count[engine.EventCanceled]
	parts := []string{fmt.Sprintf("%d/%d rows", ended, v.total)}
	if n := v.count[engine.EventFailed]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}
	parts = append(parts, fmt.Sprintf("%d running", len(v.running)), ui.Duration(time.Since(v.started)))
	if left := v.left(ended); left > 0 {
		parts = append(parts, "about "+ui.Duration(left)+" left")
	}
	if m, err := memory.Read(); err == nil {
		parts = append(parts, units.Bytes(m.AvailableBytes)+" memory free")
	}
	out := []string{strings.Join(parts, " · ")}
	rows := make([]*rowView, 0, len(v.running))
	for _, r := range v.running {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *rowView) int { return a.start.Compare(b.start) })
	for _, r := range rows[:min(len(rows), 12)] {
		line := fmt.Sprintf("  %-9s %8s  %s", r.stage, ui.Duration(time.Since(r.start)), r.id)
		if r.total > 0 {
			line += fmt.Sprintf("  %d/%d %s", r.done, r.total, r.unit)
		}
		out = append(out, line)
	}
	if more := len(rows) - 12; more > 0 {
		out = append(out, fmt.Sprintf("  and %d more", more))
	}
	return out
}

// left estimates the time to go: from history if all rows are known, else from the rows
// that ended, at the pace of this run.
func (v *buildView) left(ended int) time.Duration {
	spent := time.Since(v.started)
	if v.expect > 0 && v.spent > 0 {
		pace := float64(spent) / float64(v.spent)
		return time.Duration(max(0, float64(v.expect)*pace) - float64(spent)).Truncate(time.Second)
	}
	if built := v.count[engine.EventFinished] + v.count[engine.EventFailed]; built > 0 {
		return time.Duration(float64(spent) / float64(built) * float64(v.total-ended))
	}
	return 0
}
