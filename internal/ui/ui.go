// Package ui writes what people read on a terminal: tables, sizes, durations, colours.
// It serves cmd/kiln; nothing below it prints.
package ui

import (
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/kiln-build/kiln/internal/units"
)

// Terminal says what an output can show.
type Terminal struct {
	// Width in columns, 0 if the output is not a terminal: then nothing is cut.
	Width int
	// Color is true on a terminal whose user has not turned colours off.
	Color bool
}

// Detect looks at an output. Its width is always found out; color says whether the
// user's environment allows colours.
func Detect(w io.Writer, color bool) Terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return Terminal{}
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 80
	}
	return Terminal{Width: width, Color: color}
}

// Table collects rows of cells and writes them in columns.
type Table struct {
	header []string
	right  []bool
	rows   [][]string
}

// NewTable makes a table. A heading that begins with > belongs to a column of
// numbers, which is aligned to the right.
func NewTable(headings ...string) *Table {
	t := &Table{}
	for _, h := range headings {
		name, right := strings.CutPrefix(h, ">")
		t.header = append(t.header, name)
		t.right = append(t.right, right)
	}
	return t
}

// Add appends a row. Missing cells are empty, and foreign text is escaped.
func (t *Table) Add(cells ...string) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = Escape(c)
	}
	t.rows = append(t.rows, row)
}

// Write prints the table, cutting lines to the terminal's width.
func (t *Table) Write(w io.Writer, term Terminal) error {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i := range min(len(row), len(widths)) {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var out strings.Builder
	line := func(cells []string, style string) {
		var b strings.Builder
		for i, width := range widths {
			cell := ""
			if i < len(cells) {
				cell = cells[i]
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
			if i > 0 {
				b.WriteString("  ")
			}
			if t.right[i] {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		s := cut(strings.TrimRight(b.String(), " "), term.Width)
		if style != "" && term.Color {
			s = style + s + "\x1b[0m"
		}
		out.WriteString(s + "\n")
	}
	line(t.header, "\x1b[1m")
	for _, row := range t.rows {
		line(row, "")
	}
	_, err := io.WriteString(Raw(w), out.String())
	return err
}

// cut shortens a line to width columns; 0 means no limit.
func cut(s string, width int) string {
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(width-1, 0)]) + "…"
}

// Duration is [units.Duration].
func Duration(d time.Duration) string { return units.Duration(d) }
