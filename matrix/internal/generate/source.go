package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// source is what the generator knows of package matrix.
type source struct {
	structs map[string]*structure // the types of document.go
	choices map[string][]string   // enumerated type → its words
	strings map[string][]string   // package-level variable or constant → the strings in its value
}

// structure is a struct of document.go.
type structure struct {
	name   string
	doc    string
	fields []field // those of embedded structs too
}

// field is one key of packages.yml.
type field struct {
	owner    string // the struct that declares it
	name     string // in Go
	key      string // in YAML
	doc      string // the comment without its example
	example  string // YAML
	typ      ast.Expr
	required bool
	nonempty bool
}

// id names the field in rules.go.
func (f *field) id() string { return f.owner + "." + f.name }

// readSource parses the files of package matrix.
func readSource(dir string) (*source, error) {
	src := &source{structs: map[string]*structure{}, choices: map[string][]string{}, strings: map[string][]string{}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	embedded := map[string][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Base(name), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "choices" && d.Recv != nil {
					src.choices[typeName(d.Recv.List[0].Type)] = stringsIn(d.Body)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.ValueSpec:
						for i, name := range s.Names {
							if i < len(s.Values) {
								src.strings[name.Name] = stringsIn(s.Values[i])
							}
						}
					case *ast.TypeSpec:
						t, ok := s.Type.(*ast.StructType)
						if !ok || filepath.Base(name) != "document.go" {
							continue
						}
						out := &structure{name: s.Name.Name, doc: strings.TrimSpace(d.Doc.Text())}
						if out.fields, embedded[out.name], err = readFields(out.name, t); err != nil {
							return nil, err
						}
						src.structs[out.name] = out
					}
				}
			}
		}
	}
	for name, list := range embedded {
		for _, e := range list {
			if s, ok := src.structs[e]; ok {
				src.structs[name].fields = append(src.structs[name].fields, s.fields...)
			}
		}
	}
	if len(src.structs) == 0 {
		return nil, errors.New("document.go has no types")
	}
	return src, nil
}

func readFields(owner string, t *ast.StructType) (fields []field, embedded []string, err error) {
	for _, f := range t.Fields.List {
		if len(f.Names) == 0 {
			embedded = append(embedded, typeName(f.Type))
			continue
		}
		out := field{owner: owner, name: f.Names[0].Name, typ: f.Type}
		if f.Tag == nil {
			return nil, nil, fmt.Errorf("%s has no tag", out.id())
		}
		text, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", out.id(), err)
		}
		tag := reflect.StructTag(text)
		var option string
		out.key, option, _ = strings.Cut(tag.Get("json"), ",")
		out.required = option != "omitempty"
		out.nonempty = tag.Get("list") == "nonempty"
		out.doc, out.example = splitComment(f.Doc.Text())
		if out.key == "" || out.doc == "" || out.example == "" {
			return nil, nil, fmt.Errorf("%s needs a key, a comment and an indented example", out.id())
		}
		fields = append(fields, out)
	}
	return fields, embedded, nil
}

// splitComment separates the text of a comment from its indented example.
func splitComment(comment string) (text, example string) {
	var prose, code []string
	for line := range strings.Lines(comment) {
		line = strings.TrimRight(line, "\n")
		if rest, ok := strings.CutPrefix(line, "\t"); ok {
			code = append(code, rest)
		} else {
			prose = append(prose, line)
		}
	}
	text = strings.TrimSpace(strings.Join(prose, "\n"))
	if len(code) > 0 {
		example = strings.Join(code, "\n") + "\n"
	}
	return text, example
}

// typeName returns the name of a type without its parameters.
func typeName(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.ArrayType:
		return "[]"
	}
	return ""
}

// element returns what a list, map or pointer type is of, or nil.
func element(e ast.Expr) ast.Expr {
	switch t := e.(type) {
	case *ast.StarExpr:
		return t.X
	case *ast.IndexExpr:
		return t.Index
	case *ast.ArrayType:
		return t.Elt
	}
	return nil
}

// stringsIn returns all string literals below a node, in order.
func stringsIn(n ast.Node) []string {
	var out []string
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

// text returns the one string of a variable or constant of package matrix.
func (s *source) text(name string) (string, error) {
	if len(s.strings[name]) != 1 {
		return "", fmt.Errorf("package matrix has no %s with one string", name)
	}
	return s.strings[name][0], nil
}

// field returns a field by its id.
func (s *source) field(id string) *field {
	owner, _, _ := strings.Cut(id, ".")
	t, ok := s.structs[owner]
	if !ok {
		return nil
	}
	i := slices.IndexFunc(t.fields, func(f field) bool { return f.id() == id })
	if i < 0 {
		return nil
	}
	return &t.fields[i]
}
