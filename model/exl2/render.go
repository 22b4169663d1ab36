package exl2

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/units"
)

// WriteText renders the model as a summary and a heat map: one line for each layer, one column for
// each type of linear, bits per weight in the cells. With color, cells have a background from blue
// (few bits) to red (many).
func (info *Info) WriteText(w io.Writer, color bool) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n", orUnknown(info.Architecture))
	fmt.Fprintf(b, "  bits per weight   %.3f in the layers, %.3f with the head", info.LayerBits, info.AllBits)
	if info.TargetBits > 0 {
		fmt.Fprintf(b, " (asked for: %g, head %g)", info.TargetBits, info.HeadBits)
	}
	fmt.Fprintf(b, "\n  quantized         %d linears, %s\n", info.Quantized, units.Bytes(info.QuantBytes))
	fmt.Fprintf(b, "  other tensors     %d, %s\n", info.Floats, units.Bytes(info.FloatBytes))
	fmt.Fprintf(b, "  files             %d, %s\n", len(info.Files), units.Bytes(info.Bytes))
	if len(info.BitsPerRow) > 0 {
		fmt.Fprint(b, "  rows by width    ")
		var total int64
		for _, s := range info.BitsPerRow {
			total += s.Rows
		}
		for _, s := range info.BitsPerRow {
			fmt.Fprintf(b, " %d bit %.1f%%", s.Bits, 100*float64(s.Rows)/float64(total))
		}
		fmt.Fprintln(b)
	}

	width := 5
	for _, t := range info.Types {
		width = max(width, utf8.RuneCountInString(shortType(t.Type)))
	}
	if len(info.Types) > 0 {
		fmt.Fprint(b, "\n  layer")
		for _, t := range info.Types {
			fmt.Fprintf(b, "  %*s", width, shortType(t.Type))
		}
		fmt.Fprintf(b, "  %*s\n", width, "all")
	}
	cell := func(c Cell, ok bool) {
		if !ok {
			fmt.Fprintf(b, "  %*s", width, "-")
			return
		}
		text := fmt.Sprintf("%*.2f", width, c.Bits)
		if color {
			text = fmt.Sprintf("\x1b[48;5;%d;38;5;232m%s\x1b[0m", ansiShade(c.Bits), text)
		}
		fmt.Fprint(b, "  "+text)
	}
	row := func(name string, cells []Cell, all Cell) {
		fmt.Fprintf(b, "  %5s", name)
		for _, t := range info.Types {
			c, ok := findCell(cells, t.Type)
			cell(c, ok)
		}
		cell(all, true)
		fmt.Fprintln(b)
	}
	for _, l := range info.Layers {
		row(fmt.Sprint(l.Index), l.Cells, l.Cell)
	}
	if len(info.Types) > 0 {
		row("all", info.Types, info.totalLayers)
	}
	for _, c := range info.Other {
		fmt.Fprintf(b, "  %s: %.2f bits per weight, %d groups, %s\n", c.Type, c.Bits, c.Groups, units.Bytes(c.Bytes))
	}
	for _, p := range info.Problems {
		fmt.Fprintf(b, "  problem: %s\n", p)
	}
	return b.Flush()
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown architecture"
	}
	return s
}

func findCell(cells []Cell, typ string) (Cell, bool) {
	for _, c := range cells {
		if c.Type == typ {
			return c, true
		}
	}
	return Cell{}, false
}

// shortType is the last part of a type, which is enough for a column.
func shortType(typ string) string {
	_, last, _ := cutLast(typ)
	if strings.Contains(typ, ".experts.") {
		return "*." + last
	}
	return last
}

// shade maps bits per weight to 0 … 1; EXL2 goes from a little above 2 to a little above 8.
func shade(bits float64) float64 { return math.Max(0, math.Min(1, (bits-2)/6.5)) }

func ansiShade(bits float64) int {
	ramp := []int{33, 39, 45, 50, 84, 118, 154, 190, 226, 220, 214, 208, 203}
	return ramp[int(shade(bits)*float64(len(ramp)-1)+0.5)]
}

// WriteHTML renders the same as one page without outside references; the heat map is SVG and every
// cell tells its numbers.
func (info *Info) WriteHTML(w io.Writer) error {
	b := bufio.NewWriter(w)
	title := html.EscapeString(orUnknown(info.Architecture))
	fmt.Fprintf(b, `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>%s</title>
<style>
body{font:14px/1.5 system-ui,sans-serif;margin:2rem;color:#222;background:#fff}
dl{display:grid;grid-template-columns:max-content auto;gap:0 1.5rem}dt{color:#666}dd{margin:0}
svg text{font:11px ui-monospace,monospace;fill:#222}
@media (prefers-color-scheme:dark){body{background:#16181c;color:#ddd}dt{color:#999}svg .label{fill:#ccc}}
</style></head><body>
<h1>%s</h1>
<dl>
<dt>bits per weight</dt><dd>%.3f in the layers, %.3f with the head</dd>
`, title, title, info.LayerBits, info.AllBits)
	if info.TargetBits > 0 {
		fmt.Fprintf(b, "<dt>asked for</dt><dd>%g, head %g</dd>\n", info.TargetBits, info.HeadBits)
	}
	fmt.Fprintf(b, "<dt>quantized</dt><dd>%d linears, %s</dd>\n<dt>other tensors</dt><dd>%d, %s</dd>\n<dt>files</dt><dd>%d, %s</dd>\n",
		info.Quantized, units.Bytes(info.QuantBytes), info.Floats, units.Bytes(info.FloatBytes), len(info.Files), units.Bytes(info.Bytes))
	for _, c := range info.Other {
		fmt.Fprintf(b, "<dt>%s</dt><dd>%.2f bits per weight, %d groups, %s</dd>\n", html.EscapeString(c.Type), c.Bits, c.Groups, units.Bytes(c.Bytes))
	}
	fmt.Fprint(b, "</dl>\n")

	const cw, ch, left, top = 64, 20, 48, 24
	columns := len(info.Types) + 1
	fmt.Fprintf(b, `<svg role="img" aria-label="bits per weight by layer and type" width="%d" height="%d">`+"\n",
		left+cw*columns, top+ch*(len(info.Layers)+1))
	for i, t := range info.Types {
		fmt.Fprintf(b, `<text class="label" x="%d" y="16" text-anchor="middle">%s</text>`+"\n", left+i*cw+cw/2, html.EscapeString(shortType(t.Type)))
	}
	fmt.Fprintf(b, `<text class="label" x="%d" y="16" text-anchor="middle">all</text>`+"\n", left+(columns-1)*cw+cw/2)
	cell := func(row, col int, where string, c Cell) {
		hue := 220 - 220*shade(c.Bits)
		x, y := left+col*cw, top+row*ch
		fmt.Fprintf(b, `<g><title>%s: %.3f bits per weight, %d linears, %d groups, %s</title><rect x="%d" y="%d" width="%d" height="%d" fill="hsl(%.0f 75%% 70%%)"/><text x="%d" y="%d" text-anchor="middle">%.2f</text></g>`+"\n",
			html.EscapeString(where), c.Bits, c.Count, c.Groups, units.Bytes(c.Bytes), x, y, cw-2, ch-2, hue, x+cw/2-1, y+14, c.Bits)
	}
	row := func(r int, name string, cells []Cell, all Cell) {
		fmt.Fprintf(b, `<text class="label" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, top+r*ch+14, name)
		for i, t := range info.Types {
			if c, ok := findCell(cells, t.Type); ok {
				cell(r, i, "layer "+name+" "+t.Type, c)
			}
		}
		cell(r, columns-1, "layer "+name, all)
	}
	for i, l := range info.Layers {
		row(i, fmt.Sprint(l.Index), l.Cells, l.Cell)
	}
	row(len(info.Layers), "all", info.Types, info.totalLayers)
	fmt.Fprint(b, "</svg>\n")
	for _, p := range info.Problems {
		fmt.Fprintf(b, "<p>problem: %s</p>\n", html.EscapeString(p.String()))
	}
	fmt.Fprint(b, "</body></html>\n")
	return b.Flush()
}
