package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/kiln-build/kiln/internal/diag"
)

// Limits on what is read: far above any real file, low enough that a hostile one
// costs little. Aliases can make a small file large, so values are counted after
// they are expanded.
const (
	maxFileBytes = 4 << 20
	maxValues    = 1 << 17
	maxDepth     = 32
)

// decode reads the YAML of packages.yml into a Document. It reports every mistake
// that can be seen without knowing what the values mean.
func decode(name string, text []byte) (*Document, diag.List) {
	d := &decoder{file: name}
	if len(text) > maxFileBytes {
		d.list.Add(diag.Diagnostic{Rule: "yaml", Pos: diag.Pos{File: name}, Message: fmt.Sprintf("file is larger than %d MiB", maxFileBytes>>20)})
		return nil, d.list
	}
	if i := invalidUTF8(text); i >= 0 {
		line := 1 + bytes.Count(text[:i], []byte("\n"))
		column := 1 + utf8.RuneCount(text[bytes.LastIndexByte(text[:i], '\n')+1:i])
		d.list.Add(diag.Diagnostic{
			Rule: "yaml", Pos: diag.Pos{File: name, Line: line, Column: column},
			Message: "the file is not UTF-8 text", Hint: "save it as UTF-8",
		})
		return nil, d.list
	}
	loader := yaml.NewDecoder(bytes.NewReader(text))
	var root, next yaml.Node
	switch err := load(loader, &root); {
	case errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0:
		d.list.Add(diag.Diagnostic{
			Rule: "yaml", Pos: diag.Pos{File: name, Line: 1, Column: 1},
			Message: "the file has no content", Hint: "it needs a map `packages`",
		})
		return nil, d.list
	case err != nil:
		d.syntaxError(err)
		return nil, d.list
	}
	switch err := load(loader, &next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.syntaxError(err)
		return nil, d.list
	default:
		d.errorf(&next, "yaml", "put everything below one `packages`", "a second document begins here, and only one is read")
		return nil, d.list
	}
	var doc Document
	d.value(root.Content[0], &doc)
	if d.stopped {
		return nil, d.list
	}
	return &doc, d.list
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
	list   diag.List
	values int
	depth  int
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
		out.Pos.Line, out.Pos.Column = le.Mark.Line, le.Mark.Column
		if le.ContextMark.Line > 0 && le.ContextMark.Line != le.Mark.Line {
			// The opening bracket or quote is where the mistake is.
			out.Related = []diag.Related{{
				Pos: diag.Pos{File: d.file, Line: le.ContextMark.Line, Column: le.ContextMark.Column}, Message: "it began here",
			}}
		}
		if strings.Contains(le.Message, "cannot start any token") {
			out.Hint = "indent with spaces, not tabs, and quote texts that begin with a special character"
		}
	}
	d.list.Add(out)
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
		d.errorf(n, "empty-value", "write a value, or leave the key out", "the value is empty")
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
		d.errorf(n, "type", "its keys are "+strings.Join(names, ", "), "want a map, got %s", nodeNoun(n))
		return
	}
	seen := map[string]bool{}
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
			if s := diag.Suggest(key.Value, names); s != "" {
				hint = fmt.Sprintf("did you mean %q?", s)
			}
			d.errorf(key, "unknown-key", hint, "unknown key %q", key.Value)
		}
	}
	for _, name := range required {
		if !seen[name] {
			d.errorf(n, "missing-key", "", "the key %q is missing", name)
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
		d.errorf(n, "type", "", "want one value, got %s", nodeNoun(n))
		return "", false
	}
	return n.Value, true
}

func (d *decoder) sequence(n *yaml.Node) ([]*yaml.Node, bool) {
	if n.Kind != yaml.SequenceNode {
		d.errorf(n, "type", "write it as a list: [ … ]", "want a list, got %s", nodeNoun(n))
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
	p := place{pos: diag.Pos{File: d.file, Line: n.Line, Column: n.Column}, width: 1}
	if n.Kind != yaml.ScalarNode || strings.ContainsAny(n.Value, "\n\\\"'") {
		p.lead = -1
		return p
	}
	p.width = utf8.RuneCountInString(n.Value)
	switch {
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		p.lead = 1
		p.width += 2
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0:
		p.lead, p.width = -1, 1
	}
	return p
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
