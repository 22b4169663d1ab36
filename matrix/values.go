package matrix

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/units"
)

// place is where a value stands in packages.yml. Its zero value means that the
// value was not written.
type place struct {
	pos   diag.Pos
	width int
	// lead is how many characters stand between pos and the first character of
	// the value (a quote), or -1 where offsets in the value say nothing about
	// columns (escapes, block scalars).
	lead int
}

// Pos returns where the value begins.
func (p place) Pos() diag.Pos { return p.pos }

// IsSet reports whether the value was written, even as an empty text.
func (p place) IsSet() bool { return p.pos.IsValid() }

func (p *place) setPlace(q place) { *p = q }

// at returns the place of n characters at a character offset inside the value.
func (p place) at(offset, n int) place {
	if p.lead < 0 {
		return p
	}
	p.pos.Column += p.lead + offset
	p.lead, p.width = 0, n
	return p
}

// The scalar types of packages.yml. Each remembers its position, because most
// mistakes are found long after decoding.
type (
	// Text is a string.
	Text struct {
		Value string
		place
	}
	// Version is a string that looks like a number to YAML when it is not
	// quoted, and is therefore refused unquoted.
	Version struct{ Text }
	// Scalar is a string, or a number or truth value taken as it is written.
	Scalar struct{ Text }
	// Bool is a truth value.
	Bool struct {
		Value bool
		place
	}
	// Int is a whole number from 1 on.
	Int struct {
		Value int
		place
	}
	// Size is a number of bytes, written "4 GiB" or "500 MB".
	Size struct {
		Bytes int64
		place
	}
	// Duration is a span of time, written "90s", "45m" or "2h30m".
	Duration struct {
		Value time.Duration
		place
	}
	// Kind is the kind of a row: a wheel or a source distribution.
	Kind struct{ Text }
	// Frontend is the program that builds a wheel.
	Frontend struct{ Text }
	// RuntimeTorch says how far a wheel's metadata is tied to its torch.
	RuntimeTorch struct{ Text }
	// Repair says what becomes of a wheel after the build.
	Repair struct{ Text }
	// CUDACheck says what becomes of torch's comparison of CUDA versions.
	CUDACheck struct{ Text }
	// PythonSource says which interpreters may be used.
	PythonSource struct{ Text }
	// AuditSeverity says how bad the findings of an audit rule are.
	AuditSeverity struct{ Text }
	// TestKind says how a row is tested.
	TestKind struct{ Text }
	// ReuseProof says how a wheel is proven to serve another row.
	ReuseProof struct{ Text }
	// Sandbox is where rows are built.
	Sandbox struct{ Text }
	// ReleaseOn is a kind of run that publishes.
	ReleaseOn struct{ Text }
	// Trigger is what starts a workflow.
	Trigger struct{ Text }
)

// Entry is one key of a [Map].
type Entry[T any] struct {
	Key   Text
	Value T
}

// Map is a YAML mapping with keys of the user's choice, in the order written.
type Map[T any] []Entry[T]

// OneOrMany is a list that may be written as its only element.
type OneOrMany[T any] []T

// ZipSets is a list of axis names, or a list of such lists.
type ZipSets [][]Text

// PerToolkit is one value for all rows, or one for each of several toolkits: a
// mapping from a toolkit pattern to the value, of which the first that matches
// counts. A pattern is a CUDA version or range ("12.8", ">=12.8"), the same after
// the word "rocm" ("rocm >=6"), one of "cuda", "rocm" and "none", or "default".
type PerToolkit[T any] struct {
	Cases []ToolkitCase[T]
	place
}

// ToolkitCase is one line of a [PerToolkit].
type ToolkitCase[T any] struct {
	Toolkit Text // empty if one value is given for all
	Value   T
	match   toolkitPattern
}

// choices lists the words that an enumerated scalar accepts.
func (Kind) choices() []string         { return []string{"wheel", "sdist"} }
func (Frontend) choices() []string     { return []string{"build", "pip", "uv"} }
func (RuntimeTorch) choices() []string { return []string{"any", "minor", "exact"} }
func (Repair) choices() []string       { return []string{"off", "auto"} }
func (CUDACheck) choices() []string    { return []string{"strict", "bypass"} }
func (PythonSource) choices() []string { return []string{"image", "managed"} }
func (AuditSeverity) choices() []string {
	return []string{"off", "note", "warning", "error"}
}

func (TestKind) choices() []string {
	return []string{"import", "install", "sdist", "none"}
}
func (ReuseProof) choices() []string { return []string{"import", "tests"} }
func (ReleaseOn) choices() []string  { return []string{"push", "tag", "dispatch"} }
func (Trigger) choices() []string    { return []string{"push", "tag"} }
func (Sandbox) choices() []string    { return []string{"docker", "podman", "host"} }

// nodeDecoder is implemented by pointers to the types that decode themselves.
type nodeDecoder interface {
	decodeNode(d *decoder, n *yaml.Node)
}

func (t *Text) decodeNode(d *decoder, n *yaml.Node) {
	t.place = d.place(n) // also of what is not text, so that it is not taken for missing
	if s, ok := d.scalar(n); ok {
		t.Value = s
		if n.Tag != "!!str" {
			d.errorf(n, "type", quoted(n.Value), "want text, got the %s %s", tagNoun(n.Tag), n.Value)
		}
	}
}

func (v *Version) decodeNode(d *decoder, n *yaml.Node) {
	v.place = d.place(n)
	s, ok := d.scalar(n)
	if !ok {
		return
	}
	v.Value = s
	switch n.Tag {
	case "!!str":
	case "!!float", "!!int":
		message := fmt.Sprintf("%s is a number in YAML, and a version is text", s)
		if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsInf(f, 0) {
			if reads := strconv.FormatFloat(f, 'f', -1, 64); reads != s {
				message = fmt.Sprintf("%s is a number in YAML and reads as %s", s, reads)
			}
		}
		d.errorf(n, "unquoted-version", quoted(s), "%s", message)
	default:
		d.errorf(n, "type", quoted(s), "want a version, got the %s %s", tagNoun(n.Tag), s)
	}
}

func (s *Scalar) decodeNode(d *decoder, n *yaml.Node) {
	if text, ok := d.scalar(n); ok {
		s.Value, s.place = text, d.place(n)
	}
}

func (b *Bool) decodeNode(d *decoder, n *yaml.Node) {
	s, ok := d.scalar(n)
	if !ok {
		return
	}
	b.place = d.place(n)
	// YAML 1.1 words such as "yes" are text here, as in every modern reader.
	switch {
	case n.Tag == "!!bool" && strings.EqualFold(s, "true"):
		b.Value = true
	case n.Tag == "!!bool" && strings.EqualFold(s, "false"):
	default:
		d.errorf(n, "type", "write true or false, without quotes", "want true or false, got %q", s)
	}
}

func (i *Int) decodeNode(d *decoder, n *yaml.Node) {
	s, ok := d.scalar(n)
	if !ok {
		return
	}
	i.place = d.place(n)
	v, err := strconv.Atoi(s)
	if n.Tag != "!!int" || err != nil || v < 1 {
		hint := ""
		if n.Tag == "!!str" && err == nil && v > 0 {
			hint = "write it without quotes"
		}
		d.errorf(n, "type", hint, "want a whole number from 1 on, got %q", s)
		return
	}
	i.Value = v
}

func (s *Size) decodeNode(d *decoder, n *yaml.Node) {
	text, ok := d.scalar(n)
	if !ok {
		return
	}
	s.place = d.place(n)
	bytes, err := units.ParseBytes(text)
	if err != nil || n.Tag != "!!str" {
		d.errorf(n, "size", `write a number and a unit, such as "4 GiB"`, "%q is not a size", text)
		return
	}
	s.Bytes = bytes
}

func (t *Duration) decodeNode(d *decoder, n *yaml.Node) {
	text, ok := d.scalar(n)
	if !ok {
		return
	}
	t.place = d.place(n)
	v, err := time.ParseDuration(text)
	if err != nil || v <= 0 || n.Tag != "!!str" {
		d.errorf(n, "duration", `write a number and a unit, such as "45m" or "2h30m"`, "%q is not a time span", text)
		return
	}
	t.Value = v
}

func (k *Kind) decodeNode(d *decoder, n *yaml.Node)         { d.choice(n, &k.Text, k.choices()) }
func (f *Frontend) decodeNode(d *decoder, n *yaml.Node)     { d.choice(n, &f.Text, f.choices()) }
func (r *RuntimeTorch) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &r.Text, r.choices()) }
func (r *Repair) decodeNode(d *decoder, n *yaml.Node)       { d.choice(n, &r.Text, r.choices()) }
func (u *CUDACheck) decodeNode(d *decoder, n *yaml.Node)    { d.choice(n, &u.Text, u.choices()) }

func (p *PythonSource) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &p.Text, p.choices()) }

func (a *AuditSeverity) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &a.Text, a.choices()) }

func (k *TestKind) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &k.Text, k.choices()) }

// decodeNode reads a test as a map or as its kind alone.
func (t *Test) decodeNode(d *decoder, n *yaml.Node) {
	if n.Kind != yaml.ScalarNode {
		d.structure(n, reflect.ValueOf(t).Elem())
		return
	}
	t.place = d.place(n)
	d.value(n, &t.Kind)
}

// decodeNode reads how to get kiln as a map or as its version alone.
func (k *WorkflowKiln) decodeNode(d *decoder, n *yaml.Node) {
	if n.Kind != yaml.ScalarNode {
		d.structure(n, reflect.ValueOf(k).Elem())
		return
	}
	k.place = d.place(n)
	d.value(n, &k.Version)
}

// decodeNode reads versions, or a map.
func (t *TorchAxis) decodeNode(d *decoder, n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		d.structure(n, reflect.ValueOf(t).Elem())
		return
	}
	t.place = d.place(n)
	t.OneOrMany.decodeNode(d, n)
}

// decodeNode reads versions, or a map.
func (p *PythonAxis) decodeNode(d *decoder, n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		d.structure(n, reflect.ValueOf(p).Elem())
		return
	}
	p.place = d.place(n)
	p.OneOrMany.decodeNode(d, n)
}

// with returns the test with what other sets.
func (t Test) with(other Test) Test {
	if other.Kind.IsSet() {
		t.Kind = other.Kind
	}
	if other.Expressions != nil {
		t.Expressions = other.Expressions
	}
	if other.Requires != nil {
		t.Requires = other.Requires
	}
	if other.Command != nil {
		t.Command = other.Command
	}
	if other.Files != nil {
		t.Files = other.Files
	}
	if other.Extras != nil {
		t.Extras = other.Extras
	}
	if other.RequiresGPU.IsSet() {
		t.RequiresGPU = other.RequiresGPU
	}
	if other.Image.IsSet() {
		t.Image = other.Image
	}
	if other.Timeout.IsSet() {
		t.Timeout = other.Timeout
	}
	return t
}

func (r *ReuseProof) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &r.Text, r.choices()) }

func (s *Sandbox) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &s.Text, s.choices()) }

func (r *ReleaseOn) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &r.Text, r.choices()) }

func (t *Trigger) decodeNode(d *decoder, n *yaml.Node) { d.choice(n, &t.Text, t.choices()) }

func (d *decoder) choice(n *yaml.Node, t *Text, known []string) {
	before := len(d.list)
	t.decodeNode(d, n)
	if t.IsSet() && len(d.list) == before && !slices.Contains(known, t.Value) {
		d.errorf(n, "choice", "", "%q is not one of %s%s", t.Value, strings.Join(known, ", "), diag.DidYouMean(t.Value, known))
	}
}

func (m *Map[T]) decodeNode(d *decoder, n *yaml.Node) {
	for key, value := range d.mapping(n) {
		e := Entry[T]{Key: Text{Value: key.Value, place: d.place(key)}}
		if key.Tag != "!!str" {
			d.errorf(key, "type", quoted(key.Value), "want a name, got the %s %s", tagNoun(key.Tag), key.Value)
		}
		d.value(value, &e.Value)
		*m = append(*m, e)
	}
}

func (l *OneOrMany[T]) decodeNode(d *decoder, n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		var v T
		d.value(n, &v)
		*l = append(*l, v)
		return
	}
	for _, item := range n.Content {
		var v T
		d.value(item, &v)
		*l = append(*l, v)
	}
}

func (z *ZipSets) decodeNode(d *decoder, n *yaml.Node) {
	items, ok := d.sequence(n)
	if !ok {
		return
	}
	nested := len(items) > 0 && d.resolve(items[0]).Kind == yaml.SequenceNode
	if !nested {
		var set []Text
		d.value(n, &set)
		*z = append(*z, set)
		return
	}
	for _, item := range items {
		var set []Text
		d.value(item, &set)
		*z = append(*z, set)
	}
}

func (p *PerToolkit[T]) decodeNode(d *decoder, n *yaml.Node) {
	p.place = d.place(n)
	if n.Kind != yaml.MappingNode {
		var c ToolkitCase[T]
		d.value(n, &c.Value)
		p.Cases = append(p.Cases, c)
		return
	}
	for key, value := range d.mapping(n) {
		c := ToolkitCase[T]{Toolkit: Text{Value: key.Value, place: d.place(key)}}
		match, err := parseToolkitPattern(key.Value)
		switch {
		case key.Tag == "!!float" || key.Tag == "!!int":
			d.errorf(key, "unquoted-version", quoted(key.Value), "%s is a number in YAML, and a toolkit version is text", key.Value)
		case err != nil:
			d.errorf(key, "toolkit-pattern", `write a CUDA version or range such as "12.8" or ">=12.8", "rocm >=6", "cuda", "rocm", "none" or "default"`, "%v", err)
		}
		c.match = match
		d.value(value, &c.Value)
		p.Cases = append(p.Cases, c)
	}
}

// pick returns the value of the first case that matches.
func (p PerToolkit[T]) pick(cuda, rocm string) (v T, ok bool) {
	for i := range p.Cases {
		if p.Cases[i].match.matches(cuda, rocm) {
			return p.Cases[i].Value, true
		}
	}
	return v, false
}

func quoted(s string) string { return fmt.Sprintf("write %q", s) }

// tagNoun names a YAML type for people.
func tagNoun(tag string) string {
	switch tag {
	case "!!int", "!!float":
		return "number"
	case "!!bool":
		return "truth value"
	case "!!timestamp":
		return "date"
	case "!!str":
		return "text"
	}
	return "value of type " + strings.TrimPrefix(tag, "!!")
}
