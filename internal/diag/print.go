package diag

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printer writes diagnostics for people: the place, the message, the source line
// with a caret, related places and the next step.
type Printer struct {
	// Sources maps a file name to its text. A diagnostic about a file that is
	// not here is printed without its source line.
	Sources map[string][]byte
	// Color turns on ANSI colours.
	Color bool
}

// maxSourceColumns is how much of a source line is shown: a longer one is cut
// around the caret, so that a minified file does not fill the screen.
const maxSourceColumns = 100

// Print writes every diagnostic in the order given.
func (p *Printer) Print(w io.Writer, list List) error {
	var out bytes.Buffer
	for _, d := range list {
		p.print(&out, d)
	}
	_, err := w.Write(out.Bytes())
	return err
}

func (p *Printer) print(w *bytes.Buffer, d Diagnostic) {
	if at := d.Pos.String(); at != "" {
		fmt.Fprintf(w, "%s: ", p.paint(bold, at))
	}
	fmt.Fprintf(w, "%s %s\n", p.paint(severityColor(d.Severity), d.Severity.String()+":"), p.paint(bold, d.Message))
	if !d.Secret {
		p.snippet(w, d.Pos, d.Width, severityColor(d.Severity))
	}
	for _, r := range d.Related {
		if at := r.Pos.String(); at != "" {
			fmt.Fprintf(w, "  %s: ", at)
		} else {
			w.WriteString("  ")
		}
		fmt.Fprintf(w, "%s\n", r.Message)
		p.snippet(w, r.Pos, 1, dim)
	}
	if d.Hint != "" {
		fmt.Fprintf(w, "  %s %s\n", p.paint(green, "hint:"), d.Hint)
	}
}

// snippet prints the source line and the caret.
func (p *Printer) snippet(w *bytes.Buffer, pos Pos, width int, color string) {
	line, ok := sourceLine(p.Sources[pos.File], pos.Line)
	if !ok {
		return
	}
	// Tabs and control characters would move the caret away from its column:
	// every character of the source is shown as exactly one cell.
	cells := []rune(strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, line))
	start := min(max(pos.Column-1, 0), len(cells))
	end := min(start+max(width, 1), max(len(cells), start+1))
	before, after := "", ""
	if len(cells) > maxSourceColumns {
		from := max(0, min(start-maxSourceColumns/2, len(cells)-maxSourceColumns))
		to := min(len(cells), from+maxSourceColumns)
		if from > 0 {
			before = "…"
		}
		if to < len(cells) {
			after = "…"
		}
		cells, start, end = cells[from:to], start-from, min(end-from, to-from+1)
	}
	number := fmt.Sprintf("%d", pos.Line)
	pad := strings.Repeat(" ", len(number))
	// East Asian characters take two cells on a terminal; the caret line must too.
	lead := strings.Repeat(" ", utf8.RuneCountInString(before)+columns(cells[:min(start, len(cells))]))
	under := max(1, columns(cells[min(start, len(cells)):min(end, len(cells))]))
	fmt.Fprintf(w, "  %s %s%s%s\n", p.paint(dim, number+" |"), before, string(cells), after)
	fmt.Fprintf(w, "  %s %s%s\n", p.paint(dim, pad+" |"), lead, p.paint(color, strings.Repeat("^", under)))
}

// sourceLine returns line n (from 1) without its line end.
func sourceLine(text []byte, n int) (string, bool) {
	if n < 1 || text == nil {
		return "", false
	}
	for ; n > 1; n-- {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return "", false
		}
		text = text[i+1:]
	}
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		text = text[:i]
	}
	return strings.TrimSuffix(string(text), "\r"), true
}

// columns returns how many terminal cells the characters take.
func columns(cells []rune) int {
	n := 0
	for _, r := range cells {
		switch {
		case unicode.Is(unicode.Mn, r):
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul) || r >= 0x1F300 && r <= 0x1FAFF || r >= 0xFF01 && r <= 0xFF60:
			n += 2
		default:
			n++
		}
	}
	return n
}

// ANSI sequences for the four parts of a diagnostic.
const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[1;31m"
	yellow = "\x1b[1;33m"
	blue   = "\x1b[1;34m"
	green  = "\x1b[32m"
	reset  = "\x1b[0m"
)

func severityColor(s Severity) string {
	switch s {
	case Error:
		return red
	case Warning:
		return yellow
	}
	return blue
}

func (p *Printer) paint(color, s string) string {
	if !p.Color {
		return s
	}
	return color + s + reset
}
