package ui

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape makes a foreign text safe to show in one cell or line: everything that a terminal acts on
// instead of showing it (control characters, escape sequences, characters that turn the direction of
// text or cannot be seen) and bytes that are no UTF-8 become visible as \u001b or \x9b. These are
// valid in JSON strings too, with the same meaning.
func Escape(s string) string {
	if i := strings.IndexFunc(s, unsafe); i < 0 && utf8.ValidString(s) {
		return s
	}
	return string(appendEscaped(nil, []byte(s)))
}

// unsafe reports whether a terminal might act on a character. Ends of lines and tabs are for the
// caller.
func unsafe(r rune) bool { return !unicode.IsGraphic(r) }

func appendEscaped(dst, src []byte) []byte {
	for len(src) > 0 {
		r, n := utf8.DecodeRune(src)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = fmt.Appendf(dst, `\x%02x`, src[0])
		case !unsafe(r):
			dst = append(dst, src[:n]...)
		case r > 0xffff:
			a, b := utf16.EncodeRune(r)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, a, b)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
		src = src[n:]
	}
	return dst
}

// Writer stands between kiln and a terminal, or what will become of its output: whatever a command
// prints, foreign names, metadata, errors and logs among it, is escaped as by [Escape] here, so that
// no command has to remember it. Ends of lines and tabs stay. With Color, so do the colours that
// kiln itself uses: none of them can hide text, and they end with their line.
//
// [Table], [Live] and [Progress] escape their texts themselves and write past it.
// Methods may be called from several goroutines.
type Writer struct {
	mu    sync.Mutex
	w     io.Writer
	color bool
	log   bool
	open  bool   // a colour is on
	carry []byte // the start of a character or sequence whose end is in the next Write
}

// NewWriter makes a writer; term says whether colours are kept.
func NewWriter(w io.Writer, term Terminal) *Writer { return &Writer{w: w, color: term.Color} }

// Log returns a writer to the same place for the output of compilers and other tools: a carriage
// return becomes the end of a line, and colours that are not kept are left out instead of shown.
func Log(w io.Writer) *Writer {
	if s, ok := w.(*Writer); ok {
		return &Writer{w: s.w, color: s.color, log: true}
	}
	return &Writer{w: w, log: true}
}

// Raw returns what a [Writer] writes to: for a program that a person uses through kiln, such as a
// shell.
func Raw(w io.Writer) io.Writer {
	if s, ok := w.(*Writer); ok {
		return s.w
	}
	return w
}

// maxSequence bounds an escape sequence that is kept or left out.
const maxSequence = 32

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	src := p
	if len(w.carry) > 0 {
		src = append(w.carry, p...)
		w.carry = nil
	}
	return len(p), w.write(src, false)
}

// Flush writes what was kept back: the start of a character that never ended.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	src := w.carry
	w.carry = nil
	return w.write(src, true)
}

func (w *Writer) write(src []byte, last bool) error {
	out := make([]byte, 0, len(src)+16)
	for len(src) > 0 {
		// Almost everything is plain.
		n := 0
		for n < len(src) && (src[n] >= ' ' && src[n] < 0x7f || src[n] == '\t') {
			n++
		}
		out, src = append(out, src[:n]...), src[n:]
		if len(src) == 0 {
			break
		}
		switch c := src[0]; {
		case c == '\n':
			out, src = w.endLine(out), src[1:]
		case c == '\r' && len(src) == 1 && !last:
			w.carry = bytes.Clone(src)
			src = nil
		case c == '\r' && len(src) > 1 && src[1] == '\n':
			src = src[1:]
		case c == '\r' && w.log:
			out, src = w.endLine(out), src[1:]
		case c == 0x1b:
			n, complete := sequence(src)
			if !complete && !last {
				w.carry = bytes.Clone(src)
				src = nil
				break
			}
			out, src = w.sequence(out, src[:n]), src[n:]
		case !utf8.FullRune(src) && !last:
			w.carry = bytes.Clone(src)
			src = nil
		default:
			_, n := utf8.DecodeRune(src)
			out, src = appendEscaped(out, src[:n]), src[n:]
		}
	}
	if len(out) == 0 {
		return nil
	}
	_, err := w.w.Write(out)
	return err
}

func (w *Writer) endLine(out []byte) []byte {
	if w.open {
		out = append(out, "\x1b[0m"...)
		w.open = false
	}
	return append(out, '\n')
}

// sequence returns the length of a control sequence (CSI) with nothing but numbers in it, or 1 for
// any other escape. complete is false if more bytes could make it one.
func sequence(src []byte) (n int, complete bool) {
	if len(src) == 1 {
		return 1, false
	}
	if src[1] != '[' {
		return 1, true
	}
	for n = 2; n < len(src) && n < maxSequence; n++ {
		switch c := src[n]; {
		case c >= '0' && c <= '9' || c == ';':
		case c >= 0x40 && c <= 0x7e:
			return n + 1, true
		default:
			return 1, true
		}
	}
	if n == maxSequence {
		return 1, true
	}
	return 1, false
}

func (w *Writer) sequence(out, s []byte) []byte {
	final := s[len(s)-1]
	if len(s) > 2 && final == 'm' && harmless(s[2:len(s)-1]) && w.color {
		w.open = len(bytes.Trim(s[2:len(s)-1], "0;")) > 0
		return append(out, s...)
	}
	if w.log && len(s) > 2 && (final == 'm' || final == 'K') {
		return out // compilers colour, and clear the rest of the line
	}
	return appendEscaped(out, s)
}

// heat is the colour of a cell of a heat map: dark text on one of the colours of its ramp.
var heat = regexp.MustCompile(`^48;5;(33|39|45|50|84|118|154|190|203|208|214|220|226);38;5;232$`)

// harmless reports whether text stays readable with these attributes: the usual foreground colours
// but black and white, bold, dim, their ends, and heat maps.
func harmless(params []byte) bool {
	if heat.Match(params) {
		return true
	}
	for p := range bytes.SplitSeq(params, []byte{';'}) {
		p = bytes.TrimLeft(p, "0")
		switch string(p) {
		case "", "1", "2", "22", "39",
			"31", "32", "33", "34", "35", "36", "91", "92", "93", "94", "95", "96":
		default:
			return false
		}
	}
	return true
}
