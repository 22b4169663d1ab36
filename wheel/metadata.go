package wheel

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxMetadataSize is the largest METADATA document [ParseMetadata] reads, in
// bytes. Published documents are a few dozen kilobytes; the largest are READMEs
// with embedded images.
const MaxMetadataSize = 4 << 20

// A Field is one header of a core metadata document.
type Field struct {
	// Name is spelled as in the document; comparisons ignore case.
	Name string

	// Value is what Python's importlib.metadata reports: without the white space
	// after the colon and without the final line break. Continuation lines keep
	// their indentation and are separated by "\n", however the document ends
	// its lines.
	Value string
}

// Metadata is a core metadata document: the METADATA file of a wheel or the
// PKG-INFO file of an sdist, versions 1.0 to 2.6.
//
// The document is kept as text. [Metadata.Bytes] of an unmodified document is
// the input, byte for byte, and a modification changes the lines of the fields
// concerned and no others. Unknown and repeated fields keep their place.
//
// The zero value is an empty document. A Metadata must not be modified while
// another goroutine uses it.
//
// See https://packaging.python.org/specifications/core-metadata/.
type Metadata struct {
	bom    string
	fields []rawField
	body   string // the separator, if the document has one, and all that follows
	sep    int    // length of that separator
	eol    string // line break for new lines; "" means "\n"
}

// rawField is a field with the lines it was read from, line breaks included.
type rawField struct {
	Field
	raw string
}

// ParseMetadata reads a core metadata document the way Python's email parser
// does, which every installer uses: a field is a name of printable ASCII, a
// colon and a value, continued by lines that begin with a space or a tab; the
// block of fields ends at an empty line or at the first line that is none of
// these. CR, LF and CRLF all end lines. A UTF-8 byte order mark is skipped.
//
// Where Python would record a defect and drop a line (a continuation before any
// field, a line that starts with a colon, an mbox "From " line), ParseMetadata
// returns an error: editing around dropped lines would give them a new meaning.
// Invalid UTF-8 is an error outside the description. No field is required, and
// no value is interpreted.
func ParseMetadata(data []byte) (*Metadata, error) {
	if len(data) > MaxMetadataSize {
		return nil, fmt.Errorf("parse METADATA: %d bytes, limit %d", len(data), MaxMetadataSize)
	}
	return parseFields("METADATA", string(data))
}

const utf8BOM = "\ufeff"

// parseFields is ParseMetadata for any document in this format; what names it
// in errors.
func parseFields(what, text string) (*Metadata, error) {
	m := &Metadata{}
	if strings.HasPrefix(text, utf8BOM) {
		m.bom, text = utf8BOM, text[len(utf8BOM):]
	}
	start := 0 // of the last field, which ends at pos
	for pos, number := 0, 1; pos < len(text); number++ {
		line, eol := cutLine(text[pos:])
		if number == 1 && eol == "\r\n" {
			m.eol = eol
		}
		if line == "" {
			m.body, m.sep = text[pos:], len(eol)
			break
		}
		next := pos + len(line) + len(eol)
		if line[0] == ' ' || line[0] == '\t' {
			if len(m.fields) == 0 {
				return nil, fmt.Errorf("parse %s: line %d: continuation of no field", what, number)
			}
			m.fields[len(m.fields)-1].raw = text[start:next]
			pos = next
			continue
		}
		if strings.HasPrefix(line, "From ") {
			return nil, fmt.Errorf("parse %s: line %d: mbox envelope line", what, number)
		}
		colon := nameLength(line)
		if colon == len(line) || line[colon] != ':' {
			m.body = text[pos:] // to the email parser, and so to installers, this is the body
			break
		}
		if colon == 0 {
			return nil, fmt.Errorf("parse %s: line %d: field without a name", what, number)
		}
		m.fields = append(m.fields, rawField{Field{Name: line[:colon]}, text[pos:next]})
		start, pos = pos, next
	}
	for i := range m.fields {
		f := &m.fields[i]
		if !utf8.ValidString(f.raw) && !strings.EqualFold(f.Name, "Description") {
			return nil, fmt.Errorf("parse %s: field %s: invalid UTF-8", what, f.Name)
		}
		f.Value = universalNewlines(strings.TrimRight(strings.TrimLeft(f.raw[len(f.Name)+1:], " \t\r\n"), "\r\n"))
	}
	return m, nil
}

// cutLine splits off the first line of s and the line break that ends it.
func cutLine(s string) (line, eol string) {
	i := strings.IndexAny(s, "\r\n")
	switch {
	case i < 0:
		return s, ""
	case strings.HasPrefix(s[i:], "\r\n"):
		return s[:i], s[i : i+2]
	}
	return s[:i], s[i : i+1]
}

// nameLength is the length of the run of bytes at the start of s that can form
// a field name (RFC 5322 ftext).
func nameLength(s string) int {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == ':' {
			return i
		}
	}
	return len(s)
}

func universalNewlines(s string) string {
	if !strings.Contains(s, "\r") {
		return s
	}
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(s)
}

// Bytes returns the document.
func (m *Metadata) Bytes() []byte {
	size := len(m.bom) + len(m.body)
	for _, f := range m.fields {
		size += len(f.raw)
	}
	b := append(make([]byte, 0, size), m.bom...)
	for _, f := range m.fields {
		b = append(b, f.raw...)
	}
	return append(b, m.body...)
}

// Clone returns an independent copy.
func (m *Metadata) Clone() *Metadata {
	c := *m
	c.fields = slices.Clone(m.fields)
	return &c
}

// Fields returns all fields in the order of the document.
func (m *Metadata) Fields() []Field {
	fields := make([]Field, len(m.fields))
	for i, f := range m.fields {
		fields[i] = f.Field
	}
	return fields
}

// Get returns the value of the first field called name, or "".
func (m *Metadata) Get(name string) string {
	if i := m.index(name); i >= 0 {
		return m.fields[i].Value
	}
	return ""
}

// All returns the values of all fields called name, in order.
func (m *Metadata) All(name string) []string {
	var values []string
	for _, f := range m.fields {
		if strings.EqualFold(f.Name, name) {
			values = append(values, f.Value)
		}
	}
	return values
}

func (m *Metadata) index(name string) int {
	return slices.IndexFunc(m.fields, func(f rawField) bool { return strings.EqualFold(f.Name, name) })
}

// MetadataVersion returns the Metadata-Version field.
func (m *Metadata) MetadataVersion() string { return strings.TrimSpace(m.Get("Metadata-Version")) }

// Name returns the Name field as written.
func (m *Metadata) Name() string { return strings.TrimSpace(m.Get("Name")) }

// Version returns the Version field as written.
func (m *Metadata) Version() string { return strings.TrimSpace(m.Get("Version")) }

// RequiresPython returns the Requires-Python field on one line.
func (m *Metadata) RequiresPython() string { return unfold(m.Get("Requires-Python")) }

// RequiresDist returns the Requires-Dist fields, each on one line.
func (m *Metadata) RequiresDist() []string {
	values := m.All("Requires-Dist")
	for i, v := range values {
		values[i] = unfold(v)
	}
	return values
}

// ProvidesExtra returns the Provides-Extra fields.
func (m *Metadata) ProvidesExtra() []string {
	values := m.All("Provides-Extra")
	for i, v := range values {
		values[i] = unfold(v)
	}
	return values
}

// unfold joins the lines of a value with one space each.
func unfold(value string) string {
	if !strings.Contains(value, "\n") {
		return strings.TrimSpace(value)
	}
	lines := strings.Split(value, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.TrimSpace(strings.Join(lines, " "))
}

// Description returns the description: the text after the fields or, when there
// is none, the Description field without the indentation that folded it. Line
// breaks are "\n". The text may hold invalid UTF-8.
func (m *Metadata) Description() string {
	if body := m.body[m.sep:]; body != "" {
		return universalNewlines(body)
	}
	lines := strings.Split(m.Get("Description"), "\n")
	for i, line := range lines[1:] {
		// "       |" is the form of metadata 1.x; setuptools indents by 8 spaces.
		if rest, ok := strings.CutPrefix(line, "       |"); ok {
			lines[i+1] = rest
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if indent == 0 {
			indent = 1 // a tab
		}
		lines[i+1] = line[min(indent, 8):]
	}
	return strings.Join(lines, "\n")
}

// Set makes name a field with this one value: the first field of that name gets
// the value and the others are removed; without one, the field is added as by
// [Metadata.Add]. A field that has the value already is left as it is written.
func (m *Metadata) Set(name, value string) error {
	raw, err := m.render(name, value)
	if err != nil {
		return err
	}
	i := m.index(name)
	if i < 0 {
		return m.Add(name, value)
	}
	if m.fields[i].Value != value {
		m.fields[i] = raw
	}
	m.removeFrom(i+1, name)
	return nil
}

// Add adds a field after the last field of the same name, or after all fields.
//
// A value may have several lines, separated by "\n"; all but the first must
// begin with a space or a tab. Add refuses a value that could not be read back:
// one with a line break elsewhere, surrounded by white space that parsing drops,
// or with invalid UTF-8.
func (m *Metadata) Add(name, value string) error {
	f, err := m.render(name, value)
	if err != nil {
		return err
	}
	at := len(m.fields)
	for i, v := range slices.Backward(m.fields) {
		if strings.EqualFold(v.Name, name) {
			at = i + 1
			break
		}
	}
	if at > 0 {
		if prev := &m.fields[at-1]; !strings.HasSuffix(prev.raw, "\n") && !strings.HasSuffix(prev.raw, "\r") {
			prev.raw += m.lineBreak() // the document ends without a line break
		}
	}
	m.fields = slices.Insert(m.fields, at, f)
	return nil
}

// Remove removes all fields called name and reports how many there were.
func (m *Metadata) Remove(name string) int { return m.removeFrom(0, name) }

func (m *Metadata) removeFrom(i int, name string) int {
	before := len(m.fields)
	rest := slices.DeleteFunc(m.fields[i:], func(f rawField) bool { return strings.EqualFold(f.Name, name) })
	m.fields = m.fields[:i+len(rest)]
	return before - len(m.fields)
}

func (m *Metadata) lineBreak() string {
	if m.eol == "" {
		return "\n"
	}
	return m.eol
}

// render makes the lines of a field, and refuses what would read back otherwise.
func (m *Metadata) render(name, value string) (rawField, error) {
	refuse := func(reason string) (rawField, error) {
		return rawField{}, fmt.Errorf("set metadata field %q: %s", name, reason)
	}
	switch {
	case name == "" || nameLength(name) != len(name):
		return refuse("invalid name")
	case !utf8.ValidString(value):
		return refuse("invalid UTF-8")
	case strings.Contains(value, "\r"):
		return refuse("value contains a carriage return")
	case value != strings.TrimLeft(value, " \t\n") || strings.HasSuffix(value, "\n"):
		return refuse("value begins with white space or ends with a line break")
	}
	for i := range len(value) {
		if value[i] == '\n' && value[i+1] != ' ' && value[i+1] != '\t' {
			return refuse("line break without indentation")
		}
	}
	eol := m.lineBreak()
	text := strings.ReplaceAll(value, "\n", eol)
	return rawField{Field{name, value}, name + ": " + text + eol}, nil
}

// SetRequiresDist replaces the version clause of every Requires-Dist field of
// the distribution called name, compared in normalized form, and keeps the
// spelling of the name, the extras and the marker:
//
//	n, err := m.SetRequiresDist("torch", "==2.9.*")
//
// turns `torch[opt] (>=2.2.0) ; extra == "gpu"` into
// `torch[opt]==2.9.* ; extra == "gpu"`. An empty clause removes the clause. It
// reports how many fields name the distribution; with 0 the document is
// unchanged. A direct reference ("torch @ https://…") has no version clause to
// replace and is an error, after which the document is unchanged.
func (m *Metadata) SetRequiresDist(name, clause string) (int, error) {
	if _, err := ParseSpecifierSet(clause); err != nil {
		return 0, fmt.Errorf("set requirement %s: %w", name, err)
	}
	want := NormalizeName(name)
	edited := m.Clone()
	n := 0
	for i, f := range edited.fields {
		if !strings.EqualFold(f.Name, "Requires-Dist") {
			continue
		}
		req := cutRequirement(unfold(f.Value))
		if NormalizeName(req.name) != want {
			continue
		}
		if req.direct {
			return 0, fmt.Errorf("set requirement %s: %q is a direct reference", name, unfold(f.Value))
		}
		n++
		if req.clause == clause {
			continue
		}
		raw, err := edited.render(f.Name, req.head+clause+req.tail)
		if err != nil {
			return 0, err
		}
		edited.fields[i] = raw
	}
	*m = *edited
	return n, nil
}

// requirementText is a requirement cut into the parts SetRequiresDist keeps and
// the one it replaces.
type requirementText struct {
	name   string
	head   string // name and extras
	clause string // without the parentheses of old documents
	tail   string // marker with its semicolon and the space before it
	direct bool   // name @ URL
}

func cutRequirement(s string) requirementText {
	end := strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r))
	})
	if end < 0 {
		return requirementText{name: s, head: s}
	}
	req := requirementText{name: s[:end]}
	rest := strings.TrimLeft(s[end:], " \t")
	if strings.HasPrefix(rest, "[") {
		if i := strings.IndexByte(rest, ']'); i >= 0 {
			end = len(s) - len(rest) + i + 1
			rest = strings.TrimLeft(rest[i+1:], " \t")
		}
	}
	req.head = s[:end]
	req.direct = strings.HasPrefix(rest, "@")
	clause, _, _ := strings.Cut(rest, ";")
	clause = strings.TrimRight(clause, " \t")
	req.tail = rest[len(clause):]
	if clause == "" { // keep the space before a marker: "torch ; extra == 'x'"
		req.tail = s[end:]
	}
	if inner, ok := strings.CutPrefix(clause, "("); ok {
		clause = strings.TrimSpace(strings.TrimSuffix(inner, ")"))
	}
	req.clause = clause
	return req
}
