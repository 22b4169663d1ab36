package machine

import (
	"regexp"
	"slices"
	"strings"
)

// maxProof is how many lines of a log a diagnosis quotes.
const maxProof = 10

// An entry is one row of the table of known failures.
type entry struct {
	id, title string
	cause     string // for the manual: what is behind it, in one or two sentences
	// modes are the numbers of the failure modes that the pipeline was asked to know.
	modes  []int
	class  Class
	stages []string  // empty: all
	text   []pattern // a line that matches one of them is the proof
	// facts says whether the evidence, without its log, is enough.
	facts func(e *Evidence) bool
	// confirm looks for facts that agree or contradict. An empty result takes the
	// entry out. nil means Likely by text and Certain by facts.
	confirm func(f *finding) Confidence
	// say puts the facts of this case into words.
	say func(f *finding) (detail, fix string)
	// class of this case, where it depends on it.
	classOf func(f *finding) Class
	// hides are entries that this one explains: a full disk makes a compiler fail too.
	hides []string
	// generic entries speak only when no other does.
	generic bool
	// warns says that the text is meaningful in the log of a command that succeeded.
	warns bool
}

// A pattern is a regular expression with a literal that every match contains. Most
// patterns, and most lines of a long log, are passed over by looking for the literal.
type pattern struct {
	literal string
	re      *regexp.Regexp
}

func text(literal, re string) pattern { return pattern{literal, regexp.MustCompile(re)} }

// plain is the pattern of a fixed text.
func plain(literal string) pattern { return text(literal, regexp.QuoteMeta(literal)) }

// A finding is an entry that matched, on its way to a [Diagnosis].
type finding struct {
	e          *Evidence
	entry      *entry
	lines      []string
	groups     map[string]string // named groups of the lines, first values
	all        map[string][]string
	facts      bool // the facts alone were enough
	confidence Confidence
}

// get returns what a named group matched, or the fallback.
func (f *finding) get(name, fallback string) string {
	if v := f.groups[name]; v != "" {
		return v
	}
	return fallback
}

// escape is what programs print to change colors or to rewrite a line.
var escape = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|\x1b\\][^\a\x1b]*(?:\a|\x1b\\\\)")

// maxLine is how much of a line is looked at; ninja prints commands of many kilobytes.
const maxLine = 8 << 10

// cleanLines drops color and what carriage returns have overwritten.
func cleanLines(lines []string) []string {
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		if strings.Contains(l, "\x1b") {
			l = escape.ReplaceAllString(l, "")
		}
		l = strings.TrimRight(l, "\r\n")
		if i := strings.LastIndexByte(l, '\r'); i >= 0 {
			l = l[i+1:]
		}
		if len(l) > maxLine {
			l = l[:maxLine]
		}
		out = append(out, strings.ToValidUTF8(strings.TrimRight(l, " \t"), "\uFFFD"))
	}
	return out
}

// Diagnose says what the evidence of a failure proves, the most likely cause first.
// It is empty if nothing failed and no fact is wrong; a failure that no entry of the
// table knows gives one diagnosis with the id "unknown". Diagnose looks at nothing
// but its argument.
func Diagnose(e Evidence) []Diagnosis {
	e.LogLines = cleanLines(e.LogLines)
	whole := strings.Join(e.LogLines, "\n")
	var found []*finding
	for i := range table() {
		t := &table()[i]
		if t.generic && len(found) > 0 {
			break // generic entries are the last ones, and one of them is enough
		}
		if len(t.stages) > 0 && !e.in(t.stages...) {
			continue
		}
		if f := match(t, &e, whole); f != nil {
			found = append(found, f)
		}
	}
	hidden := map[string]bool{}
	for _, f := range found {
		if !hidden[f.entry.id] {
			for _, id := range f.entry.hides {
				hidden[id] = true
			}
		}
	}
	var out []Diagnosis
	for _, f := range found {
		if !hidden[f.entry.id] {
			out = append(out, f.diagnosis())
		}
	}
	return out
}

// match compares an entry with the evidence, whose log is also given as one text. It is nil where
// no text and no fact match, or a fact contradicts.
func match(t *entry, e *Evidence, whole string) *finding {
	f := &finding{e: e, entry: t, groups: map[string]string{}, all: map[string][]string{}}
	if t.facts != nil && t.facts(e) {
		f.facts = true
	}
	if e.failed() || t.warns {
		var patterns []pattern
		for _, p := range t.text {
			if strings.Contains(whole, p.literal) {
				patterns = append(patterns, p)
			}
		}
		if len(patterns) > 0 {
			for _, line := range e.LogLines {
				f.look(line, patterns)
			}
		}
	}
	if !f.facts && len(f.lines) == 0 {
		return nil
	}
	switch {
	case t.confirm != nil:
		if f.confidence = t.confirm(f); f.confidence == "" {
			return nil
		}
	case f.facts:
		f.confidence = Certain
	default:
		f.confidence = Likely
	}
	return f
}

// look adds a line to the proof if it matches.
func (f *finding) look(line string, patterns []pattern) {
	for _, p := range patterns {
		if !strings.Contains(line, p.literal) {
			continue
		}
		m := p.re.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for i, name := range p.re.SubexpNames() {
			if name == "" || m[i] == "" {
				continue
			}
			if f.groups[name] == "" {
				f.groups[name] = m[i]
			}
			if !slices.Contains(f.all[name], m[i]) {
				f.all[name] = append(f.all[name], m[i])
			}
		}
		if line = strings.TrimSpace(line); len(f.lines) < maxProof && !slices.Contains(f.lines, line) {
			f.lines = append(f.lines, line)
		}
		return
	}
}

// diagnosis puts a finding into words.
func (f *finding) diagnosis() Diagnosis {
	d := Diagnosis{ID: f.entry.id, Title: f.entry.title, Class: f.entry.class, Confidence: f.confidence, Lines: shorten(f.lines)}
	if f.entry.classOf != nil {
		d.Class = f.entry.classOf(f)
	}
	d.Detail, d.Fix = f.entry.say(f)
	return d
}

// maxQuote is how much of a line is quoted.
const maxQuote = 400

// shorten cuts quoted lines, which may be commands of many kilobytes.
func shorten(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		if r := []rune(l); len(r) > maxQuote {
			l = string(r[:maxQuote-1]) + "…"
		}
		out[i] = l
	}
	return out
}

// Info describes one entry of the table, for manuals and completion.
type Info struct {
	ID, Title, Cause string
	Class            Class
	Stages           []string // empty: all
	Patterns         []string // regular expressions on lines of the log
	FromFacts        bool     // can be found without any text
	Modes            []int
	Generic          bool
}

// Known lists everything that [Diagnose] can find, in order of precedence. The caller
// owns the slice.
func Known() []Info {
	var out []Info
	for _, t := range table() {
		i := Info{
			ID: t.id, Title: t.title, Cause: t.cause, Class: t.class, Stages: slices.Clone(t.stages),
			FromFacts: t.facts != nil, Modes: slices.Clone(t.modes), Generic: t.generic,
		}
		for _, p := range t.text {
			i.Patterns = append(i.Patterns, p.re.String())
		}
		out = append(out, i)
	}
	return out
}

// Remedy is the fix of an entry when nothing is known of the case, for the manual. It
// is empty for an unknown id.
func Remedy(id string) string {
	for i := range table() {
		if t := &table()[i]; t.id == id {
			_, fix := t.say(&finding{e: &Evidence{}, entry: t, groups: map[string]string{}, all: map[string][]string{}})
			return fix
		}
	}
	return ""
}
