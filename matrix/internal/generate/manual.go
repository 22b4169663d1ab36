package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"unicode"

	"github.com/kiln-build/kiln/matrix"
)

//go:embed packages-yml.md.tmpl
var manualText string

// makeManual returns the reference manual of packages.yml.
func makeManual(src *source, root string) ([]byte, error) {
	reference, err := makeReference(src)
	if err != nil {
		return nil, err
	}
	defaultTag, err := src.text("defaultLocalVersion")
	if err != nil {
		return nil, err
	}
	t, err := template.New("packages-yml.md").Funcs(template.FuncMap{
		"join": strings.Join,
		"code": func(list []string) string { return "`" + strings.Join(list, "`, `") + "`" },
		"plan": plan,
		"example": func(name string) (string, error) {
			text, err := os.ReadFile(filepath.Join(root, "examples", name, "packages.yml"))
			return strings.ReplaceAll(string(text), "\r\n", "\n"), err
		},
		"templateValues": func() ([]templateValue, error) { return explainTemplateValues(src) },
		"slug":           slug,
	}).Parse(manualText)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"Parts": headings(), "Tags": []string{defaultTag, "{toolkit_tag}torch{torch_minor}", "cu{cuda_major}torch{torch_minor}cxx11abi{cxx11abi}", "pt{torch_nodot}cu{cuda_nodot}"},
		"Reference": reference, "DefaultTag": defaultTag,
		"Python": matrix.DefaultPython, "CUDA": matrix.DefaultCUDA, "OS": matrix.DefaultOS,
	})
	if err != nil {
		return nil, err
	}
	text := append(bytes.TrimRight(out.Bytes(), "\n"), '\n')
	return text, checkLinks(string(text))
}

func headings() []string {
	out := make([]string, len(parts))
	for i := range parts {
		out[i] = parts[i].heading
	}
	return out
}

// plan plans a document of the manual. One with a mistake stops the generator.
func plan(text string) (*matrix.Plan, error) {
	file, list := matrix.Parse("packages.yml", []byte(text))
	if err := list.Err(); err != nil {
		return nil, err
	}
	p := file.Plan(matrix.Options{})
	return p, p.Err()
}

type templateValue struct{ Name, Meaning, CUDA, ROCm string }

// explainTemplateValues returns every value that templates may use, with what it is
// in two rows.
func explainTemplateValues(src *source) ([]templateValue, error) {
	var b strings.Builder
	b.WriteString(`packages:
  exllamav2:
    versions: ["0.3.2"]
    arch: {cuda: "8.0 9.0+PTX", rocm: "gfx90a gfx942"}
    matrix:
      - {python: "3.13", torch: "2.9.0", cuda: "12.8.1"}
      - {python: "3.13", torch: "2.9.0", rocm: "6.4"}
    env:
`)
	names := src.strings["templateVariables"]
	for _, name := range names {
		fmt.Fprintf(&b, "      %s: \"{%s}\"\n", name, name)
	}
	p, err := plan(b.String())
	if err != nil {
		return nil, err
	}
	if len(p.Rows) != 2 || len(names) != len(templateValues) {
		return nil, fmt.Errorf("%d rows and %d template values, want 2 and the %d that are explained", len(p.Rows), len(names), len(templateValues))
	}
	cuda, _ := p.Settings(p.Rows[0].ID)
	rocm, _ := p.Settings(p.Rows[1].ID)
	show := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	var out []templateValue
	for _, name := range names {
		meaning, ok := templateValues[name]
		if !ok {
			return nil, fmt.Errorf("the template value %s is not explained", name)
		}
		out = append(out, templateValue{name, meaning, show(cuda.Env[name]), show(rocm.Env[name])})
	}
	return out, nil
}

// makeReference writes one section per struct.
func makeReference(src *source) (string, error) {
	var b strings.Builder
	for i := range parts {
		p := &parts[i]
		t, ok := src.structs[p.name]
		if !ok {
			return "", fmt.Errorf("document.go has no type %s", p.name)
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n\n", p.heading, wrap(describe(t, p)))
		b.WriteString("| key | value | if left out |\n| --- | --- | --- |\n")
		for i := range t.fields {
			f := &t.fields[i]
			words, err := inWords(src, f.typ, rules[f.id()], f.nonempty, false)
			if err != nil {
				return "", fmt.Errorf("%s: %w", f.id(), err)
			}
			otherwise := leftOut[f.id()]
			if d, ok := defaults[f.id()]; ok {
				otherwise = "`" + d + "`"
			}
			if f.required {
				otherwise = "(required)"
			}
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s |\n", f.key, slug(p.prefix+f.key), words, otherwise)
		}
		b.WriteByte('\n')
		for i := range t.fields {
			f := &t.fields[i]
			doc := f.doc
			if f.required {
				doc = "Required. " + doc
			}
			fmt.Fprintf(&b, "#### `%s%s`\n\n%s\n\n```yaml\n%s```\n\n", p.prefix, f.key, wrap(doc), f.example)
		}
	}
	for name := range src.structs {
		if partOf(name) == nil && name != "Shared" {
			return "", fmt.Errorf("the type %s has no section", name)
		}
	}
	return b.String(), nil
}

// inWords describes a type to people.
func inWords(src *source, e ast.Expr, r rule, nonempty, plural bool) (string, error) {
	pick := func(one, many string) (string, error) {
		if plural {
			return many, nil
		}
		return one, nil
	}
	inner := func(plural bool) (string, error) { return inWords(src, element(e), r, r.nonempty, plural) }
	name := typeName(e)
	if _, ok := e.(*ast.StarExpr); ok {
		return inner(plural)
	}
	if words, ok := src.choices[name]; ok {
		last := len(words) - 1
		return "`" + strings.Join(words[:last], "`, `") + "` or `" + words[last] + "`", nil
	}
	switch name {
	case "Text", "Version":
		switch {
		case r.words != "":
			return r.words, nil
		case r.values != "":
			return pick(spellings[r.values].words, spellings[r.values].plural)
		case name == "Version":
			return pick("text in quotes", "texts in quotes")
		}
		return pick("text", "texts")
	case "Scalar":
		return pick("text, number or truth value", "texts, numbers or truth values")
	case "Bool":
		return "`true` or `false`", nil
	case "Int":
		return "whole number from 1 on", nil
	case "Size":
		return "size, such as `4 GiB` or `500 MB`", nil
	case "Duration":
		return "time span, such as `45m` or `2h30m`", nil
	case "ZipSets":
		return "list of axis names, or a list of such lists", nil
	case "[]", "OneOrMany":
		many, err := inner(true)
		if err != nil {
			return "", err
		}
		list := "list of " + many
		if plural {
			list = "lists of " + many
		}
		if name == "OneOrMany" {
			one, err := inner(plural)
			if err != nil {
				return "", err
			}
			list = one + ", or " + map[bool]string{false: "a ", true: ""}[plural] + list
		} else if nonempty {
			list += ", not empty"
		}
		return list, nil
	case "Map":
		keys := "name"
		if r.keys != "" {
			keys = spellings[r.keys].words
		}
		values, err := inner(false)
		return "map from " + keys + " to " + values, err
	case "PerToolkit":
		one, err := inner(false)
		return one + ", or one for each [toolkit](#toolkit-patterns)", err
	}
	if p := partOf(name); p != nil {
		word, _ := pick(p.one, p.many)
		if short, ok := shortForms[name]; ok {
			words, err := inWords(src, shortType(short, r), r, nonempty, false)
			return words + ", or a [" + word + "](#" + slug(p.heading) + ")", err
		}
		return "[" + word + "](#" + slug(p.heading) + ")", nil
	}
	return "", fmt.Errorf("no words for the type %s", name)
}

// wrap fills the lines of each paragraph up to 100 columns.
func wrap(text string) string {
	var out []string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		var lines []string
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			if line != "" && len([]rune(line))+1+len([]rune(word)) > 100 {
				lines = append(lines, line)
				line = ""
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		out = append(out, strings.Join(append(lines, line), "\n"))
	}
	return strings.Join(out, "\n\n")
}

// slug returns the anchor of a heading, as GitHub and most other sites make it.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// checkLinks finds links into the page that lead nowhere, and headings that share an
// anchor.
func checkLinks(page string) error {
	var anchors []string
	code := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if heading := strings.TrimLeft(line, "#"); heading != line && !code {
			anchor := slug(strings.TrimSpace(heading))
			if slices.Contains(anchors, anchor) {
				return fmt.Errorf("two headings have the anchor #%s", anchor)
			}
			anchors = append(anchors, anchor)
		}
	}
	for rest := page; ; {
		_, after, ok := strings.Cut(rest, "](#")
		if !ok {
			return nil
		}
		var anchor string
		anchor, rest, _ = strings.Cut(after, ")")
		if !slices.Contains(anchors, anchor) {
			return fmt.Errorf("no heading has the anchor #%s", anchor)
		}
	}
}
