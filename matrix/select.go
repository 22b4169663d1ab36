package matrix

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/diag"
)

// Selection is a parsed selection expression over the axes of a row:
//
//	cuda>=12.8 and python in (3.12, 3.13) and not os=windows-*
//
// Comparisons are joined by and, or, not and parentheses. A version is compared as
// precisely as it is written, so cuda=12.8 selects every 12.8.x; names may use *. An
// axis alone asks whether the row has a value for it: "rocm" selects ROCm rows.
type Selection struct {
	text string
	root selectNode
	axes []selectedAxis
}

type selectedAxis struct {
	name   string
	offset int
}

// selectAxes are the axes of every row. Custom axes come from the file.
var selectAxes = []string{
	"package", "version", "kind", "os", "platform", "python", "toolkit", "cuda", "rocm", "torch", "arch", "tag", "id",
}

// isVersionAxis says which axes compare as versions.
func isVersionAxis(name string) bool {
	switch name {
	case "version", "python", "cuda", "rocm", "torch":
		return true
	}
	return false
}

// SelectionSource is the file name in diagnostics about a selection expression.
const SelectionSource = "--select"

// ParseSelection reads an expression. The error is a [diag.ListError].
func ParseSelection(text string) (*Selection, error) {
	p := &selectParser{text: text}
	if len(text) > 1<<16 {
		p.fail(0, 1, "", "the expression is longer than 64 KiB")
		return nil, p.list.Err()
	}
	p.next()
	root := p.or(0)
	if len(p.list) == 0 && p.token.kind != tokenEnd {
		p.fail(p.token.offset, len(p.token.text), `join comparisons with "and" or "or"`, "unexpected %q", p.token.text)
	}
	if len(p.list) > 0 {
		return nil, p.list[:1].Err() // what follows the first mistake is noise
	}
	return &Selection{text: text, root: root, axes: p.axes}, nil
}

// String returns the expression as written.
func (s *Selection) String() string { return s.text }

// Check reports axes that neither every row has nor the given custom axes name.
func (s *Selection) Check(custom []string) error {
	p := &selectParser{text: s.text}
	for _, a := range s.axes {
		if slices.Contains(selectAxes, a.name) || slices.Contains(custom, a.name) {
			continue
		}
		known := slices.Concat(selectAxes, custom)
		hint := "axes: " + strings.Join(known, ", ")
		if near := diag.Suggest(a.name, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		p.fail(a.offset, len(a.name), hint, "unknown axis %q", a.name)
	}
	return p.list.Err()
}

// Match reports whether the row is selected.
func (s *Selection) Match(r *Row) bool { return s.root.match(r) }

// selectNode is a node of the expression tree.
type selectNode interface{ match(r *Row) bool }

type (
	selectAnd  []selectNode
	selectOr   []selectNode
	selectNot  struct{ node selectNode }
	selectHas  struct{ axis string }
	selectTest struct {
		axis   string
		any    []pattern // one of them must match
		negate bool
	}
)

func (n selectAnd) match(r *Row) bool {
	for _, c := range n {
		if !c.match(r) {
			return false
		}
	}
	return true
}

func (n selectOr) match(r *Row) bool {
	for _, c := range n {
		if c.match(r) {
			return true
		}
	}
	return false
}

func (n selectNot) match(r *Row) bool { return !n.node.match(r) }
func (n selectHas) match(r *Row) bool { return r.Axis(n.axis) != "" }

func (n selectTest) match(r *Row) bool {
	value := r.Axis(n.axis)
	return slices.ContainsFunc(n.any, func(p pattern) bool { return p.matches(value) }) != n.negate
}

type tokenKind int

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenString
	tokenOperator // = == != < <= > >=
	tokenPunct    // ( ) ,
)

type selectToken struct {
	kind   tokenKind
	text   string
	offset int
}

type selectParser struct {
	text   string
	offset int
	token  selectToken
	axes   []selectedAxis
	list   diag.List
}

func (p *selectParser) fail(offset, width int, hint, format string, args ...any) {
	p.list.Add(diag.Diagnostic{
		Rule: "select", Message: fmt.Sprintf(format, args...), Hint: hint, Width: max(width, 1),
		Pos: diag.Pos{File: SelectionSource, Line: 1, Column: 1 + utf8.RuneCountInString(p.text[:offset])},
	})
}

// next reads one token.
func (p *selectParser) next() {
	for p.offset < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.offset]) >= 0 {
		p.offset++
	}
	start := p.offset
	rest := p.text[start:]
	switch {
	case rest == "":
		p.token = selectToken{tokenEnd, "", start}
		return
	case strings.IndexByte("(),", rest[0]) >= 0:
		p.token = selectToken{tokenPunct, rest[:1], start}
	case strings.IndexByte("=!<>", rest[0]) >= 0:
		n := 1
		if len(rest) > 1 && rest[1] == '=' {
			n = 2
		}
		p.token = selectToken{tokenOperator, rest[:n], start}
		if rest[:n] == "!" {
			p.token = selectToken{tokenWord, "not", start}
			p.offset++
			return
		}
	case strings.HasPrefix(rest, "&&"):
		p.token = selectToken{tokenWord, "and", start}
		p.offset += 2
		return
	case strings.HasPrefix(rest, "||"):
		p.token = selectToken{tokenWord, "or", start}
		p.offset += 2
		return
	case rest[0] == '"' || rest[0] == '\'':
		end := strings.IndexByte(rest[1:], rest[0])
		if end < 0 {
			p.fail(start, 1, "", "the quote is not closed")
			p.offset = len(p.text)
			p.token = selectToken{tokenEnd, "", p.offset}
			return
		}
		p.token = selectToken{tokenString, rest[1 : 1+end], start}
		p.offset += end + 2
		return
	default:
		n := strings.IndexAny(rest, " \t\r\n(),=!<>&|\"'")
		switch {
		case n < 0:
			n = len(rest)
		case n == 0: // a lone & or |
			n = 1
			p.fail(start, 1, `write "and" or "or"`, "unexpected %q", rest[:1])
		}
		p.token = selectToken{tokenWord, rest[:n], start}
	}
	p.offset += len(p.token.text)
}

func (p *selectParser) word(w string) bool {
	return p.token.kind == tokenWord && strings.EqualFold(p.token.text, w)
}

// maxSelectDepth bounds recursion, not what people write.
const maxSelectDepth = 200

func (p *selectParser) or(depth int) selectNode {
	nodes := selectOr{p.and(depth)}
	for p.word("or") && len(p.list) == 0 {
		p.next()
		nodes = append(nodes, p.and(depth))
	}
	if len(nodes) == 1 {
		return nodes[0]
	}
	return nodes
}

func (p *selectParser) and(depth int) selectNode {
	nodes := selectAnd{p.not(depth)}
	for p.word("and") && len(p.list) == 0 {
		p.next()
		nodes = append(nodes, p.not(depth))
	}
	if len(nodes) == 1 {
		return nodes[0]
	}
	return nodes
}

func (p *selectParser) not(depth int) selectNode {
	if depth > maxSelectDepth {
		p.fail(p.token.offset, 1, "", "the expression is nested too deeply")
		return selectHas{}
	}
	switch {
	case p.word("not"):
		p.next()
		return selectNot{p.not(depth + 1)}
	case p.token.kind == tokenPunct && p.token.text == "(":
		open := p.token.offset
		p.next()
		n := p.or(depth + 1)
		if p.token.kind != tokenPunct || p.token.text != ")" {
			if len(p.list) == 0 {
				p.fail(open, 1, "", "the parenthesis is not closed")
			}
			return n
		}
		p.next()
		return n
	}
	return p.comparison()
}

func (p *selectParser) comparison() selectNode {
	if p.token.kind != tokenWord {
		what := "the end of the expression"
		if p.token.kind != tokenEnd {
			what = fmt.Sprintf("%q", p.token.text)
		}
		p.fail(p.token.offset, len(p.token.text), "an example: cuda>=12.8 and python=3.12", "want the name of an axis, got %s", what)
		return selectHas{}
	}
	axis := strings.ToLower(p.token.text)
	p.axes = append(p.axes, selectedAxis{axis, p.token.offset})
	p.next()
	test := selectTest{axis: axis}
	switch {
	case p.token.kind == tokenOperator:
		op, at := p.token.text, p.token.offset
		p.next()
		if op == "==" {
			op = "="
		}
		if op != "=" && op != "!=" && !isVersionAxis(axis) {
			p.fail(at, len(op), "use = or != with * for names", "%s compares versions, and %q is not one", op, axis)
			return selectHas{}
		}
		test.negate = op == "!="
		if op == "!=" {
			op = "="
		}
		prefix := ""
		if isVersionAxis(axis) {
			prefix = op
		}
		test.any = append(test.any, p.value(axis, prefix))
		return test
	case p.word("in"), p.word("not"):
		if test.negate = p.word("not"); test.negate {
			p.next()
			if !p.word("in") {
				p.fail(p.token.offset, len(p.token.text), "", `want "in" after "not"`)
				return selectHas{}
			}
		}
		p.next()
		if p.token.text != "(" || p.token.kind != tokenPunct {
			p.fail(p.token.offset, len(p.token.text), "", `want a list in parentheses after "in"`)
			return selectHas{}
		}
		for {
			p.next()
			test.any = append(test.any, p.value(axis, ""))
			if len(p.list) > 0 || p.token.kind != tokenPunct || p.token.text != "," {
				break
			}
		}
		if p.token.text != ")" || p.token.kind != tokenPunct {
			if len(p.list) == 0 {
				p.fail(p.token.offset, len(p.token.text), "", `want "," or ")" in the list`)
			}
			return selectHas{}
		}
		p.next()
		return test
	}
	return selectHas{axis}
}

// value reads one value and makes it a pattern. The empty text asks for rows
// without a value.
func (p *selectParser) value(axis, op string) pattern {
	if p.token.kind == tokenOperator && op == "" && isVersionAxis(axis) { // in (>=3.13)
		op = p.token.text
		p.next()
	}
	t := p.token
	if t.kind != tokenWord && t.kind != tokenString {
		p.fail(t.offset, len(t.text), "", "want a value for %q", axis)
		return pattern{}
	}
	p.next()
	if t.text == "" {
		p.fail(t.offset, 2, fmt.Sprintf("write \"not %s\" for rows without a value", axis), "the value is empty")
		return pattern{}
	}
	out, err := parsePattern(op+t.text, isVersionAxis(axis))
	if err != nil {
		p.fail(t.offset, len(t.text), "write a version such as 12.8, or >= and a version", "%q is not a version", t.text)
	}
	return out
}
