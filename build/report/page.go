package report

import (
	"crypto/sha256"
	_ "embed" // for the page
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/look"
	"github.com/kiln-build/kiln/internal/units"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed live.js
	liveJS string

	css = look.CSS + pageCSS
)

// policy lets a page use its own style sheet and, if it is served, its script, which asks the
// server for news.
func policy(live bool) string {
	p := "default-src 'none'; style-src " + digest(css) + "; base-uri 'none'; form-action 'none'"
	if live {
		p += "; script-src " + digest(liveJS) + "; connect-src 'self'; frame-ancestors 'none'"
	}
	return p
}

// digest names an inline text in a policy.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func glyph(s Status) string {
	for _, state := range states {
		if state.status == s {
			return state.glyph
		}
	}
	return "?"
}

var pages = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes":   units.Bytes,
	"count":   units.Count,
	"seconds": func(s float64) string { return units.Duration(time.Duration(s * float64(time.Second))) },
	"time":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"stamp":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"glyph":   glyph,
	"short":   record.ShortReason,
	"inc":     func(i int) int { return i + 1 },
}).Parse(pageHTML))

// view is a report with what depends on the moment and on where it is shown.
type view struct {
	*Report
	Policy   string // of a page that is a file
	CSS      template.CSS
	JS       template.JS
	Live     bool // the page is served and asks for news
	Revision string
	Now      time.Time

	Grids  []grid
	Failed []Row
	Lines  []rowLine
	// Wall is how long the build took, or has taken until now.
	Wall float64
}

// rowLine is a row in the list of all.
type rowLine struct {
	Row
	Elapsed float64 // of a running one
	// X and Width are where its bar is in the time of the build, in percent; Critical is whether
	// it is on the critical path.
	X, Width string
	Critical bool
}

// WriteHTML writes the report as it is at a moment as a page that needs no other file.
func (r *Report) WriteHTML(w io.Writer, now time.Time) error { return r.write(w, now, false, "") }

func (r *Report) write(w io.Writer, now time.Time, live bool, revision string) error {
	v := view{Report: r, CSS: template.CSS(css), Live: live, Revision: revision, Now: now, Grids: r.grids}
	if live {
		v.JS = template.JS(liveJS)
	} else {
		v.Policy = policy(false)
	}
	end := r.Ended
	if r.Active {
		end = now
	} else if end.IsZero() { // killed: until the last sign of life
		for i := range r.Rows {
			if end.Before(r.Rows[i].Ended) {
				end = r.Rows[i].Ended
			}
		}
	}
	span := end.Sub(r.Started)
	v.Wall = max(0, span.Seconds())
	critical := map[int]bool{}
	for _, s := range r.Path {
		critical[s.Row] = true
	}
	for i := range r.Rows {
		l := rowLine{Row: r.Rows[i], Critical: critical[i]}
		if l.Status == engine.StatusFailed {
			v.Failed = append(v.Failed, l.Row)
		}
		if r.ran(&l.Row) && span > 0 {
			ended := l.Ended
			if ended.IsZero() {
				ended = now
				l.Elapsed = max(0, now.Sub(l.Started).Seconds())
			}
			x := max(0, min(100, 100*l.Started.Sub(r.Started).Seconds()/span.Seconds()))
			width := max(0.8, min(100-x, 100*ended.Sub(l.Started).Seconds()/span.Seconds()))
			l.X, l.Width = fmt.Sprintf("%.1f", min(x, 99.2)), fmt.Sprintf("%.1f", width)
		}
		v.Lines = append(v.Lines, l)
	}
	var b strings.Builder
	if err := pages.Execute(&b, v); err != nil {
		return fmt.Errorf("page of the build: %w", err)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
