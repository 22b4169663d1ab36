package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// makeSchema returns the JSON Schema of packages.yml.
//
// The schema checks what can be seen at one place of the file: keys, types, words to
// choose from, spelling. What needs two places, such as a row with both toolkits, is
// left to kiln.
func makeSchema(src *source) ([]byte, error) {
	b := &schemaBuilder{src: src, defs: map[string]*jsonschema.Schema{}}
	if err := b.check(); err != nil {
		return nil, err
	}
	root, err := b.object("Document")
	if err != nil {
		return nil, err
	}
	root.Title = "packages.yml"
	root.Comment = "Generated from the types in matrix/document.go by `make generate`. Do not edit."
	root.PatternProperties = map[string]*jsonschema.Schema{"^x-": {
		Description: "Ignored, so that YAML anchors have a place to live.",
	}}
	root.Defs = b.defs
	text, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	// Readers and editors look for $schema first.
	text = append([]byte(`{"$schema":"https://json-schema.org/draft/2020-12/schema",`), text[1:]...)
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return unescapeHTML(out.Bytes()), nil
}

type schemaBuilder struct {
	src  *source
	defs map[string]*jsonschema.Schema
}

// check finds rules that fit nothing.
func (b *schemaBuilder) check() error {
	for id, r := range rules {
		if b.src.field(id) == nil {
			return fmt.Errorf("rules: document.go has no field %s", id)
		}
		for _, name := range []string{r.values, r.keys} {
			if _, ok := spellings[name]; !ok && name != "" {
				return fmt.Errorf("rules: %s: no spelling %q", id, name)
			}
		}
	}
	for id, value := range defaults {
		f := b.src.field(id)
		if f == nil || !strings.Contains(f.doc, value) {
			return fmt.Errorf("defaults: no field %s whose comment names %s", id, value)
		}
	}
	for id := range leftOut {
		if b.src.field(id) == nil {
			return fmt.Errorf("leftOut: document.go has no field %s", id)
		}
	}
	return nil
}

// object makes the schema of a struct.
func (b *schemaBuilder) object(name string) (*jsonschema.Schema, error) {
	t, p := b.src.structs[name], partOf(name)
	if t == nil || p == nil {
		return nil, fmt.Errorf("%s is not a struct of document.go with a section in the manual", name)
	}
	s := &jsonschema.Schema{
		Type: "object", Description: plain(describe(t, p)), Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for i := range t.fields {
		f := &t.fields[i]
		value, err := b.typ(f.typ, rules[f.id()], f.nonempty)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.id(), err)
		}
		value.Description = plain(f.doc)
		if value.Examples, err = examples(f); err != nil {
			return nil, fmt.Errorf("example of %s: %w", f.id(), err)
		}
		if d, ok := defaults[f.id()]; ok {
			if value.Default, err = defaultValue(f, d); err != nil {
				return nil, err
			}
		}
		s.Properties[f.key] = value
		s.PropertyOrder = append(s.PropertyOrder, f.key)
		if f.required {
			s.Required = append(s.Required, f.key)
		}
	}
	return s, nil
}

// typ makes the schema of a type expression. The caller may add to the result.
func (b *schemaBuilder) typ(e ast.Expr, r rule, nonempty bool) (*jsonschema.Schema, error) {
	inner := func() (*jsonschema.Schema, error) { return b.typ(element(e), r, r.nonempty) }
	list := func() (*jsonschema.Schema, error) {
		items, err := b.typ(element(e), r, r.nonempty)
		s := &jsonschema.Schema{Type: "array", Items: items}
		if nonempty {
			s.MinItems = new(1)
		}
		return s, err
	}
	name := typeName(e)
	if _, ok := e.(*ast.StarExpr); ok {
		return inner()
	}
	if words, ok := b.src.choices[name]; ok {
		s := &jsonschema.Schema{Type: "string"}
		for _, w := range words {
			s.Enum = append(s.Enum, w)
		}
		return s, nil
	}
	switch name {
	case "Text", "Version":
		if r.values == "" {
			return &jsonschema.Schema{Type: "string"}, nil
		}
		return b.spelled(r.values)
	case "Scalar":
		return &jsonschema.Schema{Types: []string{"string", "number", "boolean"}}, nil
	case "Bool":
		return &jsonschema.Schema{Type: "boolean"}, nil
	case "Int":
		return &jsonschema.Schema{Type: "integer", Minimum: new(1.0)}, nil
	case "Size":
		return b.spelled("size")
	case "Duration":
		return b.spelled("duration")
	case "[]":
		return list()
	case "OneOrMany":
		one, err := inner()
		if err != nil {
			return nil, err
		}
		many, err := list()
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{one, many}}, err
	case "ZipSets":
		set := func() *jsonschema.Schema {
			return &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "string"}, MinItems: new(2)}
		}
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{set(), {Type: "array", Items: set(), MinItems: new(1)}}}, nil
	case "Map":
		return b.mapOf(r.keys, inner)
	case "PerToolkit":
		one, err := inner()
		if err != nil {
			return nil, err
		}
		each, err := b.mapOf("toolkitPattern", inner)
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{one, each}}, err
	}
	if _, ok := b.src.structs[name]; !ok {
		return nil, fmt.Errorf("no schema for the type %s", name)
	}
	if _, ok := b.defs[name]; !ok {
		b.defs[name] = nil // a type may refer to itself
		s, err := b.object(name)
		if err != nil {
			return nil, err
		}
		b.defs[name] = s
	}
	if short, ok := shortForms[name]; ok {
		word, err := b.typ(shortType(short, r), r, nonempty)
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{word, ref(name)}}, err
	}
	return ref(name), nil
}

// shortType is a type of shortForms.
func shortType(text string, r rule) ast.Expr {
	if r.one {
		text = strings.TrimSuffix(strings.TrimPrefix(text, "OneOrMany["), "]")
	}
	e, err := parser.ParseExpr(text)
	if err != nil {
		panic(err) // a mistake in rules.go
	}
	return e
}

func (b *schemaBuilder) mapOf(keys string, inner func() (*jsonschema.Schema, error)) (*jsonschema.Schema, error) {
	values, err := inner()
	if err != nil {
		return nil, err
	}
	s := &jsonschema.Schema{Type: "object", AdditionalProperties: values}
	if keys != "" {
		s.PropertyNames, err = b.spelled(keys)
	}
	return s, err
}

// spelled refers to a spelling.
func (b *schemaBuilder) spelled(name string) (*jsonschema.Schema, error) {
	if _, ok := b.defs[name]; ok {
		return ref(name), nil
	}
	sp := spellings[name]
	pattern := sp.pattern
	if sp.from != "" {
		var err error
		if pattern, err = b.src.text(sp.from); err != nil {
			return nil, err
		}
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	b.defs[name] = &jsonschema.Schema{Type: "string", Description: plain(sp.describe), Pattern: pattern}
	return ref(name), nil
}

func ref(name string) *jsonschema.Schema { return &jsonschema.Schema{Ref: "#/$defs/" + name} }

// describe returns the comment of a struct in words for its user.
func describe(t *structure, p *part) string {
	rest, ok := strings.CutPrefix(t.doc, t.name+" ")
	if !ok {
		return t.doc
	}
	return p.subject + " " + rest
}

// plain joins the lines of each paragraph.
func plain(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.Join(strings.Fields(p), " ")
	}
	return strings.Join(paragraphs, "\n\n")
}

// examples returns the value that a field has in its example.
func examples(f *field) ([]any, error) {
	v, err := jsonValue([]byte(f.example))
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if _, has := m[f.key]; !ok || !has {
		return nil, fmt.Errorf("the key %q is not in it", f.key)
	}
	return []any{m[f.key]}, nil
}

func defaultValue(f *field, text string) (json.RawMessage, error) {
	if typeName(f.typ) == "Bool" {
		return json.RawMessage(text), nil
	}
	return json.Marshal(text)
}

// unescapeHTML undoes what encoding/json does to three characters for the sake of
// web pages. It only touches escapes, not the same letters after a backslash.
func unescapeHTML(text []byte) []byte {
	replace := map[string]byte{`\u003c`: '<', `\u003e`: '>', `\u0026`: '&'}
	names := slices.Collect(maps.Keys(replace))
	var out bytes.Buffer
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			out.WriteByte(text[i])
			i++
			continue
		}
		n := slices.IndexFunc(names, func(s string) bool { return bytes.HasPrefix(text[i:], []byte(s)) })
		if n >= 0 {
			out.WriteByte(replace[names[n]])
			i += len(names[n])
			continue
		}
		out.Write(text[i : i+2])
		i += 2
	}
	return out.Bytes()
}
