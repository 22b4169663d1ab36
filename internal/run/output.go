package run

import (
	"bytes"
	"slices"
	"strings"
)

const redacted = "***"

// redactor replaces secrets in a stream of bytes.
type redactor struct {
	secrets [][]byte // longest first
	first   [256]bool
}

func newRedactor(secrets []string) redactor {
	var r redactor
	for _, s := range secrets {
		if s != "" {
			r.secrets = append(r.secrets, []byte(s))
			r.first[s[0]] = true
		}
	}
	slices.SortFunc(r.secrets, func(a, b []byte) int { return len(b) - len(a) })
	return r
}

// clean appends p to dst with every secret replaced. Unless final, it stops where the rest of p
// could be the beginning of a secret and returns that rest, which is shorter than the longest
// secret.
func (r *redactor) clean(dst, p []byte, final bool) (out, rest []byte) {
	for len(p) > 0 {
		i := 0
		for i < len(p) && !r.first[p[i]] {
			i++
		}
		dst, p = append(dst, p[:i]...), p[i:]
		if len(p) == 0 {
			break
		}
		n := 1
		for _, s := range r.secrets {
			if bytes.HasPrefix(p, s) {
				n = len(s)
				break
			}
			// A longer secret could still come, so this is asked before the shorter ones.
			if !final && bytes.HasPrefix(s, p) {
				return dst, p
			}
		}
		if n > 1 || r.isSecret(p[:1]) {
			dst = append(dst, redacted...)
		} else {
			dst = append(dst, p[0])
		}
		p = p[n:]
	}
	return dst, nil
}

func (r *redactor) isSecret(p []byte) bool {
	return slices.ContainsFunc(r.secrets, func(s []byte) bool { return bytes.Equal(s, p) })
}

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
