package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/secret"
)

// Limits on what is read: far above any real file, low enough that a hostile one
// costs little. Aliases can make a small file large, so values are counted after
// they are expanded.
const (
	maxFileBytes = 4 << 20
	maxValues    = 1 << 17
	maxDepth     = 32
)

// decode reads the YAML of packages.yml into a Document, and the credentials of its addresses beside
// it. It reports every mistake that can be seen without knowing what the values mean.
func decode(name string, text []byte) (*Document, []secret.URL, diag.List) {
	d := &decoder{file: name, text: text}
	if len(text) > maxFileBytes {
		d.list.Add(diag.Diagnostic{Rule: "yaml", Pos: diag.Pos{File: name}, Message: fmt.Sprintf("file is larger than %d MiB", maxFileBytes>>20)})
		return nil, nil, d.list
	}
	if i := invalidUTF8(text); i >= 0 {
		message := "the file is not UTF-8 text"
		if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
			message = "the file is UTF-16 text"
		}
		d.list.Add(diag.Diagnostic{Rule: "yaml", Pos: d.offset(i), Message: message, Hint: "save it as UTF-8"})
		return nil, nil, d.list
	}
	if i := strangeCharacter(text); i >= 0 {
		r, _ := utf8.DecodeRune(text[i:])
		d.list.Add(diag.Diagnostic{
			Rule: "yaml", Pos: d.offset(i), Hint: "remove it",
			Message: fmt.Sprintf("the invisible character %U does not belong in a file like this", r),
		})
		return nil, nil, d.list
	}
	if i := conflictMarker(text); i >= 0 {
		d.list.Add(diag.Diagnostic{Rule: "yaml", Pos: d.offset(i), Width: 7, Message: "the file has an unresolved merge conflict"})
		return nil, nil, d.list
	}
	loader := yaml.NewDecoder(bytes.NewReader(text))
	var root, next yaml.Node
	switch err := load(loader, &root); {
	case errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0:
		d.list.Add(diag.Diagnostic{
			Rule: "yaml", Pos: diag.Pos{File: name, Line: 1, Column: 1},
			Message: "the file has no content", Hint: "it needs a map `packages`",
		})
		return nil, nil, d.list
	case err != nil:
		d.syntaxError(err)
		return nil, nil, d.list
	}
	switch err := load(loader, &next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.syntaxError(err)
		return nil, nil, d.list
	default:
		d.errorf(&next, "yaml", "put everything below one `packages`", "a second document begins here, and only one is read")
		return nil, nil, d.list
	}
	d.takeCredentials(&root, nil)
	var doc Document
	d.value(root.Content[0], &doc)
	if d.stopped {
		return nil, nil, d.list
	}
	return &doc, d.credentials, d.list
}

// load reads one YAML document. The library is a release candidate and this is
// foreign input: a panic inside it becomes an error.
func load(loader *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML reader stopped: %v", r)
		}
	}()
	return loader.Decode(n)
}

type decoder struct {
	file   string
	text   []byte
	lines  []string // of text, see source
	list   diag.List
	values int
	depth  int
	// credentials are those of addresses, taken out of the values.
	credentials []secret.URL
	// stopped is set once a limit is passed; what was decoded means nothing then.
	stopped bool
}

func (d *decoder) errorf(n *yaml.Node, rule, hint, format string, args ...any) {
	p := d.place(n)
	d.list.Add(diag.Diagnostic{Rule: rule, Pos: p.pos, Width: p.width, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// syntaxError turns an error of the YAML library into a diagnostic.
func (d *decoder) syntaxError(err error) {
	out := diag.Diagnostic{Rule: "yaml", Pos: diag.Pos{File: d.file}, Message: err.Error()}
	if le, ok := errors.AsType[*yaml.LoadError](err); ok {
		out.Message = le.Message
		if le.ContextMsg != "" {
			out.Message += " " + le.ContextMsg
		}
		out.Pos = d.inside(le.Mark.Line, le.Mark.Column)
		if le.ContextMark.Line > 0 && le.ContextMark.Line != le.Mark.Line {
			out.Related = []diag.Related{{Pos: d.inside(le.ContextMark.Line, le.ContextMark.Column), Message: "it began here"}}
		}
		d.explainSyntax(&out, le)
	}
	d.list.Add(out)
}

// explainSyntax puts the commonest syntax errors into the words of the person who made
// them.
func (d *decoder) explainSyntax(out *diag.Diagnostic, le *yaml.LoadError) {
	rest := d.from(out.Pos)
	switch {
	case strings.Contains(le.Message, "cannot start any token") && strings.HasPrefix(rest, "\t"):
		out.Message, out.Hint = "a tab in the indentation", "indent with spaces"
	case strings.Contains(le.Message, "cannot start any token") && rest != "":
		first, _ := utf8.DecodeRuneInString(rest)
		out.Message, out.Hint = fmt.Sprintf("a text cannot begin with %c", first), "put it in quotes"
	case strings.Contains(le.ContextMsg, "block scalar"):
		out.Hint = `quote a text that begins with > or |, such as ">=3.13"`
	case strings.Contains(le.Message, "unknown anchor"):
		out.Hint = "quote a text that begins with *, or define the anchor with & before its use"
	case strings.Contains(le.Message, "mapping values are not allowed"):
		out.Hint = `quote a text with ": " in it, or look for a missing colon or wrong indentation on the line above`
	case strings.Contains(le.Message, "did not find expected key"):
		out.Message, out.Hint = "the indentation fits no map above", "keys of one map begin in the same column"
	case strings.Contains(le.Message, "end of stream") && strings.Contains(le.ContextMsg, "quoted scalar"):
		out.Message, out.Related = "the quote is not closed", nil
		out.Pos = d.inside(le.ContextMark.Line, le.ContextMark.Column)
	}
}

// offset returns the position of a byte of the text.
func (d *decoder) offset(i int) diag.Pos {
	return diag.Pos{
		File: d.file, Line: 1 + bytes.Count(d.text[:i], []byte("\n")),
		Column: 1 + utf8.RuneCount(d.text[bytes.LastIndexByte(d.text[:i], '\n')+1:i]),
	}
}

// conflictMarker returns the offset of the line with which git marks a conflict, or -1.
func conflictMarker(text []byte) int {
	for i := 0; i < len(text); {
		if bytes.HasPrefix(text[i:], []byte("<<<<<<< ")) {
			return i
		}
		n := bytes.IndexByte(text[i:], '\n')
		if n < 0 {
			break
		}
		i += n + 1
	}
	return -1
}

// inside returns the position, or the end of the file if that comes first: the YAML
// library adds a line end to a last line without one.
func (d *decoder) inside(line, column int) diag.Pos {
	if lines := d.source(); line > len(lines) {
		line, column = len(lines), 1+utf8.RuneCountInString(lines[len(lines)-1])
	}
	return diag.Pos{File: d.file, Line: line, Column: column}
}

// source returns the lines of the text.
func (d *decoder) source() []string {
	if d.lines == nil {
		d.lines = strings.Split(string(d.text), "\n")
	}
	return d.lines
}

// value decodes n into the value that out points to.
func (d *decoder) value(n *yaml.Node, out any) {
	d.depth++
	defer func() { d.depth-- }()
	d.values++
	if d.depth > maxDepth || d.values > maxValues {
		if !d.stopped {
			d.errorf(n, "yaml", "aliases count as often as they are used", "the file has more than %d values or %d levels", maxValues, maxDepth)
		}
		d.stopped = true
	}
	if d.stopped {
		return
	}
	n = d.resolve(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.errorf(n, "empty-value", "write a value", "the value is empty")
		return
	}
	if self, ok := out.(nodeDecoder); ok {
		self.decodeNode(d, n)
		return
	}
	v := reflect.ValueOf(out).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Interface())
	case reflect.Slice:
		items, ok := d.sequence(n)
		if !ok {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
		for i, item := range items {
			d.value(item, v.Index(i).Addr().Interface())
		}
	case reflect.Struct:
		d.structure(n, v)
	default:
		panic(fmt.Sprintf("matrix: no decoder for %s", v.Type()))
	}
}

// structure decodes a mapping with fixed keys.
func (d *decoder) structure(n *yaml.Node, v reflect.Value) {
	fields := map[string]documentField{}
	var names, required []string
	for f := range documentFields(v.Type()) {
		fields[f.name] = f
		names = append(names, f.name)
		if f.required {
			required = append(required, f.name)
		}
	}
	if n.Kind != yaml.MappingNode {
		hint := "its keys are " + strings.Join(names, ", ")
		if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, ":") {
			hint = "put a space after the colon"
		} else if v.Type() == reflect.TypeFor[Python]() {
			hint = "its key is source; Python versions go into a group of matrix:, or into --python"
		}
		d.errorf(n, "type", hint, "want a map, got %s", nodeNoun(n))
		return
	}
	seen, meant := map[string]bool{}, map[string]bool{}
	for key, value := range d.mapping(n) {
		f, known := fields[key.Value]
		switch {
		case known:
			seen[key.Value] = true
			if list := d.resolve(value); f.nonempty && list.Kind == yaml.SequenceNode && len(list.Content) == 0 {
				d.errorf(list, "empty-list", "name at least one value, or leave the key out", "the list %q is empty", key.Value)
			}
			d.value(value, v.FieldByIndex(f.index).Addr().Interface())
		case v.Type() == reflect.TypeFor[Document]() && strings.HasPrefix(key.Value, "x-"):
		default:
			hint := "known keys: " + strings.Join(names, ", ")
			if slices.Contains(names, "axes") {
				hint += "; axes of your own go below axes"
			}
			if s := diag.Suggest(key.Value, names); s != "" {
				hint = fmt.Sprintf("did you mean %q?", s)
				meant[s] = true
			}
			d.errorf(key, "unknown-key", hint, "unknown key %q", key.Value)
		}
	}
	for _, name := range required {
		if !seen[name] && !meant[name] {
			d.errorf(n, "missing-key", "add "+name+":", "the key %q is missing", name)
		}
	}
	if p, ok := reflect.TypeAssert[interface{ setPlace(place) }](v.Addr()); ok {
		p.setPlace(d.place(n))
	}
}

// documentField is one key of a struct of document.go.
type documentField struct {
	name     string
	index    []int
	required bool
	nonempty bool // a list must have an element
	field    reflect.StructField
}

// documentFields yields the keys of a struct, those of embedded structs included,
// in the order of declaration.
func documentFields(t reflect.Type) iter.Seq[documentField] {
	return func(yield func(documentField) bool) {
		for _, f := range reflect.VisibleFields(t) {
			tag := f.Tag.Get("json")
			if tag == "" {
				continue
			}
			name, option, _ := strings.Cut(tag, ",")
			if !yield(documentField{name: name, index: f.Index, required: option != "omitempty", nonempty: f.Tag.Get("list") == "nonempty", field: f}) {
				return
			}
		}
	}
}

// resolve follows an alias to the value it stands for.
func (d *decoder) resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && n.Alias != nil && i < maxDepth; i++ {
		n = n.Alias
	}
	return n
}

// scalar returns the text of a scalar as it is written.
func (d *decoder) scalar(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		hint := "write one value"
		if n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle != 0 {
			hint = `put a text that begins with a brace in quotes: "{version}"`
		}
		d.errorf(n, "type", hint, "want one value, got %s", nodeNoun(n))
		return "", false
	}
	return n.Value, true
}

func (d *decoder) sequence(n *yaml.Node) ([]*yaml.Node, bool) {
	if n.Kind != yaml.SequenceNode {
		hint := "begin each entry with a hyphen"
		if n.Kind == yaml.ScalarNode {
			hint = fmt.Sprintf("write [%q]", n.Value)
		}
		d.errorf(n, "type", hint, "want a list, got %s", nodeNoun(n))
		return nil, false
	}
	return n.Content, true
}

// mapping yields the keys and values of a mapping, with merge keys (<<) expanded
// and repeated keys reported.
func (d *decoder) mapping(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			d.errorf(n, "type", "", "want a map, got %s", nodeNoun(n))
			return
		}
		first := map[string]*yaml.Node{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Tag == "!!merge" {
				continue
			}
			key = d.resolve(key)
			if key.Kind != yaml.ScalarNode {
				d.errorf(key, "type", "", "want a name as key, got %s", nodeNoun(key))
				continue
			}
			if earlier, repeated := first[key.Value]; repeated {
				d.errorf(key, "repeated-key", "", "the key %q is repeated", key.Value)
				d.list[len(d.list)-1].Related = []diag.Related{{Pos: d.place(earlier).pos, Message: "it is first given here"}}
				continue
			}
			first[key.Value] = key
			if !yield(key, value) {
				return
			}
		}
		// Keys of the map itself win over merged ones, wherever `<<` stands.
		d.merged(n, 0, func(key, value *yaml.Node) bool {
			if first[key.Value] != nil {
				return true
			}
			first[key.Value] = key
			return yield(key, value)
		})
	}
}

// merged yields the keys and values of the maps that a map merges, nearest first. It
// reports whether to go on.
func (d *decoder) merged(n *yaml.Node, depth int, yield func(k, v *yaml.Node) bool) bool {
	if depth > maxDepth {
		d.errorf(n, "yaml", "", "maps are merged more than %d levels deep", maxDepth)
		d.stopped = true
		return false
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			continue
		}
		sources := []*yaml.Node{d.resolve(n.Content[i+1])}
		if sources[0].Kind == yaml.SequenceNode {
			sources = sources[0].Content
		}
		for _, source := range sources {
			source = d.resolve(source)
			if source.Kind != yaml.MappingNode {
				d.errorf(source, "type", "", "want a map to merge, got %s", nodeNoun(source))
				continue
			}
			for j := 0; j+1 < len(source.Content); j += 2 {
				key := d.resolve(source.Content[j])
				if d.values++; d.values > maxValues {
					d.errorf(source, "yaml", "", "the file merges more than %d values", maxValues)
					d.stopped = true
					return false
				}
				if key.Kind == yaml.ScalarNode && key.Tag != "!!merge" && !yield(key, source.Content[j+1]) {
					return false
				}
			}
			if !d.merged(source, depth+1, yield) {
				return false
			}
		}
	}
	return true
}

// place returns the position of a node and how far its value reaches.
func (d *decoder) place(n *yaml.Node) place {
	p := place{pos: d.inside(n.Line, n.Column), width: 1, lead: -1}
	if n.Kind != yaml.ScalarNode {
		return p
	}
	value := n.Value
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		value = `"` + value + `"`
	case n.Style&yaml.SingleQuotedStyle != 0:
		value = "'" + value + "'"
	}
	// Escapes, anchors, tags and values of several lines are not written like this.
	if value != "" && strings.HasPrefix(d.from(p.pos), value) {
		p.width = utf8.RuneCountInString(value)
		p.lead = (p.width - utf8.RuneCountInString(n.Value)) / 2
	}
	return p
}

// from returns the rest of a line from a position on.
func (d *decoder) from(pos diag.Pos) string {
	if pos.Line < 1 || pos.Line > len(d.source()) {
		return ""
	}
	line := d.source()[pos.Line-1]
	for range pos.Column - 1 {
		_, n := utf8.DecodeRuneInString(line)
		line = line[n:]
	}
	return line
}

func nodeNoun(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return fmt.Sprintf("the %s %q", tagNoun(n.Tag), n.Value)
	}
	return "something else"
}

// strangeCharacter returns the offset of the first character that YAML does not allow,
// or that it takes for a line end and editors do not, or -1.
func strangeCharacter(text []byte) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == '\t' || r == '\n' || r == '\r' && i+1 < len(text) && text[i+1] == '\n':
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfffe || r == 0xffff || r == 0xfeff && i > 0:
			return i
		}
		i += n
	}
	return -1
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(text []byte) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}
