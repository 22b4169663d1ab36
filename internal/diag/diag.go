// Package diag carries what kiln has to say about a file that a person wrote:
// where it is, what is wrong, and what to do next. It serves every command that
// reads such a file; nothing here knows what the file means.
//
// A reader collects diagnostics in a [List] instead of stopping at the first one,
// and the command prints them with [Printer], which shows the source line and a
// caret below the place:
//
//	packages.yml:4:15: error: 2.10 is a number in YAML and reads as 2.1
//	  4 |     versions: [2.10]
//	    |                ^^^^
//	  hint: write "2.10"
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in a file. Line and Column count from 1, Column in characters
// (not bytes); the zero value means that the place is not known.
type Pos struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// IsValid reports whether the position names a line.
func (p Pos) IsValid() bool { return p.Line > 0 }

// String returns file:line:column, leaving out what is not known.
func (p Pos) String() string {
	switch {
	case !p.IsValid():
		return p.File
	case p.File == "":
		return fmt.Sprintf("%d:%d", p.Line, p.Column)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

func (p Pos) compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Severity says how bad something is: a greater one is worse. Only an Error, the zero value, stops
// a command.
type Severity int

// The severities, worst first.
const (
	Error   Severity = -iota // cannot work
	Warning                  // unknown, wasteful or doubtful
	Note                     // worth knowing
	Off                      // not to be said at all
)

var severityNames = [...]string{-Error: "error", -Warning: "warning", -Note: "note", -Off: "off"}

// String returns the word that users see.
func (s Severity) String() string {
	if s > Error || s < Off {
		return fmt.Sprintf("severity %d", int(s))
	}
	return severityNames[-s]
}

// MarshalText writes the word, so that JSON output reads "severity": "error".
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word.
func (s *Severity) UnmarshalText(text []byte) error {
	v, err := ParseSeverity(string(text))
	*s = v
	return err
}

// ParseSeverity reads off, note, warning or error.
func ParseSeverity(name string) (Severity, error) {
	if i := slices.Index(severityNames[:], name); i >= 0 {
		return Severity(-i), nil
	}
	return Off, fmt.Errorf("unknown severity %q: use off, note, warning or error", name)
}

// Related points at a second place that explains the first.
type Related struct {
	Pos     Pos    `json:"pos"`
	Message string `json:"message"`
}

// Diagnostic is one thing to say about one place.
type Diagnostic struct {
	Severity Severity `json:"severity"`
	// Rule is a stable short name, for machines and for looking it up.
	Rule    string `json:"rule"`
	Message string `json:"message"`
	// Hint is the next step, if one is known.
	Hint string `json:"hint,omitempty"`
	Pos  Pos    `json:"pos"`
	// Width is how many characters the caret underlines; 0 means 1.
	Width   int       `json:"-"`
	Related []Related `json:"related,omitempty"`
	// Secret keeps the source line from being shown: it holds what no log may have.
	Secret bool `json:"-"`
}

// String returns the first line that [Printer] prints, without colours.
func (d Diagnostic) String() string {
	if at := d.Pos.String(); at != "" {
		return at + ": " + d.Severity.String() + ": " + d.Message
	}
	return d.Severity.String() + ": " + d.Message
}

// List collects diagnostics. The zero value is ready to use.
type List []Diagnostic

// Add appends one diagnostic.
func (l *List) Add(d Diagnostic) { *l = append(*l, d) }

// Count returns how many diagnostics have the given severity.
func (l List) Count(s Severity) int {
	n := 0
	for _, d := range l {
		if d.Severity == s {
			n++
		}
	}
	return n
}

// HasErrors reports whether any diagnostic is an Error.
func (l List) HasErrors() bool { return l.Count(Error) > 0 }

// Sort orders by file, line and column; at one place the worst comes first and
// otherwise the order of addition is kept.
func (l List) Sort() {
	slices.SortStableFunc(l, func(a, b Diagnostic) int {
		return cmp.Or(a.Pos.compare(b.Pos), cmp.Compare(b.Severity, a.Severity))
	})
}

// Err returns the list as an error if it has at least one Error, else nil.
func (l List) Err() error {
	if !l.HasErrors() {
		return nil
	}
	return &ListError{Diagnostics: l}
}

// ListError is a [List] with at least one Error in it.
type ListError struct{ Diagnostics List }

// Error returns the errors, one a line; warnings and notes are left out.
func (e *ListError) Error() string {
	var lines []string
	for _, d := range e.Diagnostics {
		if d.Severity == Error {
			lines = append(lines, d.String())
		}
	}
	return strings.Join(lines, "\n")
}
