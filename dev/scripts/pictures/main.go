// Command pictures makes the pictures of the README: the page of a plan, as Chromium shows it, and a
// recording of make quickstart, which is run for it.
//
//	go run ./dev/scripts/pictures -kiln bin/kiln -out docs/pictures
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/fsx"
)

func main() {
	kiln := flag.String("kiln", "bin/kiln", "the kiln that is shown")
	out := flag.String("out", "docs/pictures", "the folder to write to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *kiln, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kiln, out string) error {
	work, err := os.MkdirTemp("", "kiln-pictures")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	matrix, err := screenshot(ctx, kiln, work)
	if err != nil {
		return err
	}
	if err := fsx.WriteFile(filepath.Join(out, "matrix.png"), matrix, 0o644); err != nil {
		return err
	}
	lines, err := record(ctx, work)
	if err != nil {
		return err
	}
	return fsx.WriteFile(filepath.Join(out, "quickstart.svg"), draw(lines), 0o644)
}

// screenshot is the page of ExLlamaV2's plan, as far as its matrix goes.
func screenshot(ctx context.Context, kiln, work string) ([]byte, error) {
	page, picture := filepath.Join(work, "plan.html"), filepath.Join(work, "plan.png")
	for _, argv := range [][]string{
		{kiln, "plan", "-q", "-f", "examples/exllamav2/packages.yml", "--html", page},
		{"chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb", "--window-size=640,916", "--screenshot=" + picture, "file://" + page},
	} {
		if text, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", argv[0], err, text)
		}
	}
	f, err := os.Open(picture)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, fewColors(img))
	return b.Bytes(), err
}

// fewColors rounds colours until a palette holds them: the page has few, and their mixtures at the
// edges of letters.
func fewColors(img image.Image) *image.Paletted {
	for mask := uint8(0xff); ; mask <<= 1 {
		round := func(c color.Color) color.RGBA {
			r, g, b, _ := c.RGBA()
			return color.RGBA{uint8(r>>8)&mask | ^mask>>1, uint8(g>>8)&mask | ^mask>>1, uint8(b>>8)&mask | ^mask>>1, 0xff}
		}
		bounds, known := img.Bounds(), map[color.RGBA]uint8{}
		out := image.NewPaletted(bounds, nil)
		for y := bounds.Min.Y; y < bounds.Max.Y && len(known) <= 256; y++ {
			for x := bounds.Min.X; x < bounds.Max.X; x++ {
				c := round(img.At(x, y))
				i, ok := known[c]
				if !ok {
					i = uint8(len(known))
					known[c] = i
					out.Palette = append(out.Palette, c)
				}
				out.SetColorIndex(x, y, i)
			}
		}
		if len(known) <= 256 {
			return out
		}
	}
}

// line is a line of the terminal and when it was printed.
type line struct {
	text string
	at   time.Duration
}

// record runs the quickstart in a folder of its own. Long waits are cut.
func record(ctx context.Context, work string) ([]line, error) {
	cmd := exec.CommandContext(ctx, "dev/scripts/quickstart.sh")
	cmd.Env = append(os.Environ(), "QUICKSTART_HOME="+filepath.Join(work, "quickstart"), "NO_COLOR=1", "COLUMNS=130")
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(cmd.Run(), w.Close())
	}()
	var lines []line
	const longest = 1500 * time.Millisecond
	last, at := time.Now(), time.Second
	for in := bufio.NewScanner(r); in.Scan(); {
		text := strings.TrimRight(strings.ReplaceAll(in.Text(), work, "."), " ")
		at += min(time.Since(last), longest) + 30*time.Millisecond
		last = time.Now()
		if strings.HasPrefix(text, "The index is in") {
			break
		}
		if text != "" || len(lines) > 0 {
			lines = append(lines, line{text, at})
		}
	}
	_, _ = io.Copy(io.Discard, r)
	return lines, <-done
}

const columns, lineHeight, charWidth, margin = 132, 17, 7.25, 14

// draw writes the lines as a picture in which they appear one after the other, once. Where motion is
// not wanted they are all there.
func draw(lines []line) []byte {
	for len(lines) > 0 && lines[len(lines)-1].text == "" {
		lines = lines[:len(lines)-1]
	}
	var b bytes.Buffer
	width, height := int(columns*charWidth)+2*margin, len(lines)*lineHeight+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img">
<!-- Made by make pictures from a run of make quickstart. -->
<title>make quickstart: kiln plans, builds, audits, indexes and serves hello-cuda, and pip installs it</title>
<style>
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8d4cc; white-space: pre }
.c { fill: #8fd18f; font-weight: bold }
@media (prefers-reduced-motion: no-preference) { text { animation: show 1ms both } }
@keyframes show { from { opacity: 0 } }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#1d1b19"/>
`, width, height)
	for i, l := range lines {
		if l.text == "" {
			continue
		}
		class := ""
		if strings.HasPrefix(l.text, "$ ") {
			class = ` class="c"`
		}
		fmt.Fprintf(&b, "<text%s x=\"%d\" y=\"%d\" xml:space=\"preserve\" style=\"animation-delay:%.1fs\">%s</text>\n",
			class, margin, margin+12+i*lineHeight, l.at.Seconds(), html.EscapeString(cut(l.text)))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// cut shortens a line to the width of the picture.
func cut(s string) string {
	if utf8.RuneCountInString(s) <= columns {
		return s
	}
	return string([]rune(s)[:columns-1]) + "…"
}
