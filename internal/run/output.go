package run

import (
	"bytes"
	"slices"
	"strings"
)

// maxTailLine is how much of one line the tail keeps.
const maxTailLine = 4 << 10

// tail keeps the last lines of several streams, in bounded memory.
type tail struct {
	max  int
	ring []string
	next int // index into ring once it is full
}

// tailLine is the unfinished line of one stream.
type tailLine struct {
	text []byte // cut at maxTailLine
	long bool   // it was longer
}

func (t *tail) write(l *tailLine, p []byte) {
	if t.max <= 0 {
		return
	}
	for len(p) > 0 {
		part, rest, end := bytes.Cut(p, []byte{'\n'})
		if room := maxTailLine - len(l.text); len(part) > room {
			l.long = true
			part = part[:room]
		}
		l.text = append(l.text, part...)
		if end {
			t.push(l)
		}
		p = rest
	}
}

// push ends a line.
func (t *tail) push(l *tailLine) {
	line := l.String()
	l.text, l.long = l.text[:0], false
	if len(t.ring) < t.max {
		t.ring = append(t.ring, line)
		return
	}
	t.ring[t.next] = line
	t.next = (t.next + 1) % len(t.ring)
}

// String returns the line as a terminal would show it: a carriage return begins it again, as
// progress bars do.
func (l *tailLine) String() string {
	text := strings.TrimRight(string(l.text), "\r")
	if i := strings.LastIndexByte(text, '\r'); i >= 0 {
		text = text[i+1:]
	}
	if l.long {
		text += " …"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (t *tail) lines() []string { return slices.Concat(t.ring[t.next:], t.ring[:t.next]) }
