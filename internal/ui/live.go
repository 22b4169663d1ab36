package ui

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// Live keeps a few lines at the bottom of a terminal up to date while ordinary lines
// scroll above them. On anything but a terminal only the ordinary lines are written.
// Methods may be called from several goroutines.
type Live struct {
	mu    sync.Mutex
	w     io.Writer
	term  Terminal
	lines []string // shown now
}

// NewLive makes a live view.
func NewLive(w io.Writer, term Terminal) *Live { return &Live{w: Raw(w), term: term} }

// IsLive reports whether the lines of Set are shown at all.
func (l *Live) IsLive() bool { return l.term.Width > 0 }

// Set shows these lines at the bottom, cut to the width of the terminal.
func (l *Live) Set(lines []string) {
	if !l.IsLive() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	l.erase(&b)
	l.lines = l.lines[:0]
	for _, line := range lines {
		l.lines = append(l.lines, cut(Escape(line), l.term.Width-1))
	}
	l.draw(&b)
	_, _ = io.WriteString(l.w, b.String())
}

// Print writes a line that stays, above the live ones.
func (l *Live) Print(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	l.erase(&b)
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		b.WriteString(Escape(line) + "\n")
	}
	l.draw(&b)
	_, _ = io.WriteString(l.w, b.String())
}

// Close removes the live lines.
func (l *Live) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	l.erase(&b)
	l.lines = nil
	_, _ = io.WriteString(l.w, b.String())
}

// erase moves to the first live line and clears everything below.
func (l *Live) erase(b *strings.Builder) {
	if len(l.lines) > 0 {
		fmt.Fprintf(b, "\x1b[%dA\x1b[J", len(l.lines))
	}
}

func (l *Live) draw(b *strings.Builder) {
	for _, line := range l.lines {
		b.WriteString(line + "\n")
	}
}
