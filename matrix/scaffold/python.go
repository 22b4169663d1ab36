package scaffold

import (
	"path"
	"slices"
	"strings"
)

// script is what a Python file says, as far as it can be known without running it.
type script struct {
	imports []imported
	assigns map[string]*node // the last value of each name
	calls   []*node
	reads   []setting // environment variables
	flags   []setting // words that are looked for in sys.argv
	writes  []setting // environment variables that the file sets, with the value
	strings []*node   // every text
}

type imported struct {
	module string // with its dots
	names  []string
	line   int
}

// setting is a name that the file looks up, with the text that is used without it.
type setting struct {
	name, value string
	line        int
}

// node is an expression.
type node struct {
	kind  nodeKind
	text  string // of a text; the dotted name of a name or of what is called
	items []*node
	// keywords are the names of the last items of a call, or the keys of a map.
	keywords []string
	partial  bool // a text with values that are not known, and left out
	line     int
}

type nodeKind int

const (
	isUnknown nodeKind = iota
	isText
	isName
	isList
	isMap
	isCall
	isJoin  // items with + between them
	isSlash // items with / between them
)

type token struct {
	kind byte // 'n' name, 's' text, 'f' text with values in braces, '0' number, 'o' operator, '\n'
	text string
	line int
}

// maxNesting bounds how deep expressions are followed; deeper ones are unknown.
const maxNesting = 100

// readScript reads Python. It never fails: what it does not understand is unknown.
func readScript(text string) *script {
	s := &script{assigns: map[string]*node{}}
	tokens := pythonTokens(text)
	for len(tokens) > 0 {
		end := slices.IndexFunc(tokens, func(t token) bool { return t.kind == '\n' })
		if end < 0 {
			end = len(tokens)
		}
		s.statement(tokens[:end])
		tokens = tokens[min(end+1, len(tokens)):]
	}
	return s
}

// pythonTokens splits a file. Newlines inside brackets are left out, as are comments.
func pythonTokens(text string) []token {
	var out []token
	line, depth := 1, 0
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '\n':
			if depth == 0 {
				out = append(out, token{'\n', "", line})
			}
			line++
			i++
		case c == '\\' && i+1 < len(text) && text[i+1] == '\n':
			line++
			i += 2
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\\':
			i++
		case c == '#':
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case nameByte(c) && !digit(c):
			start := i
			for i < len(text) && nameByte(text[i]) {
				i++
			}
			word := text[start:i]
			if i < len(text) && (text[i] == '"' || text[i] == '\'') && len(word) <= 2 && strings.Trim(strings.ToLower(word), "rbuft") == "" {
				t, n := pythonText(text[i:], strings.ToLower(word))
				t.line = line
				out = append(out, t)
				line += strings.Count(text[i:i+n], "\n")
				i += n
				continue
			}
			out = append(out, token{'n', word, line})
		case digit(c):
			start := i
			for i < len(text) && (nameByte(text[i]) || text[i] == '.') {
				i++
			}
			out = append(out, token{'0', text[start:i], line})
		case c == '"' || c == '\'':
			t, n := pythonText(text[i:], "")
			t.line = line
			out = append(out, t)
			line += strings.Count(text[i:i+n], "\n")
			i += n
		default:
			op := text[i : i+1]
			if i+1 < len(text) && text[i+1] == '=' && strings.IndexByte("=!<>+-*/%&|^@:", c) >= 0 {
				op = text[i : i+2]
			}
			switch c {
			case '(', '[', '{':
				depth++
			case ')', ']', '}':
				depth = max(0, depth-1)
			}
			out = append(out, token{'o', op, line})
			i += len(op)
		}
	}
	return out
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func nameByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || digit(c) || c >= 0x80
}

// pythonText reads a text that begins with a quote, and says how many bytes it took. A text that
// is not closed ends with its line, or with the file.
func pythonText(text, prefix string) (token, int) {
	quote := text[:1]
	if strings.HasPrefix(text, strings.Repeat(quote, 3)) {
		quote = text[:3]
	}
	raw := strings.Contains(prefix, "r")
	var b strings.Builder
	i := len(quote)
	for i < len(text) && !strings.HasPrefix(text[i:], quote) {
		c := text[i]
		if c == '\n' && len(quote) == 1 {
			break
		}
		if c == '\\' && i+1 < len(text) {
			i++
			switch next := text[i]; {
			case next == '\n':
			case raw:
				b.WriteByte('\\')
				b.WriteByte(next)
			case next == 'n':
				b.WriteByte('\n')
			case next == 't':
				b.WriteByte('\t')
			default:
				b.WriteByte(next)
			}
			i++
			continue
		}
		b.WriteByte(c)
		i++
	}
	if strings.HasPrefix(text[i:], quote) {
		i += len(quote)
	}
	kind := byte('s')
	if strings.Contains(prefix, "f") && strings.ContainsAny(b.String(), "{}") {
		kind = 'f'
	}
	return token{kind, b.String(), 0}, i
}

// statement takes what one logical line says.
func (s *script) statement(tokens []token) {
	if len(tokens) == 0 {
		return
	}
	if tokens[0].kind == 'n' {
		switch tokens[0].text {
		case "import", "from":
			s.importLine(tokens)
			return
		case "def", "class":
			// Names and annotations; a body on the same line is rare.
			return
		}
	}
	p := &pythonParser{script: s, tokens: tokens}
	for p.at < len(tokens) {
		before := p.at
		target := p.expression(0)
		op := p.peek()
		switch {
		case op.kind == 'o' && (op.text == "=" || op.text == "+="):
			p.at++
			p.assign(target, p.expression(0), op.text)
		case op.kind == 'o' && op.text == ":" && target.kind == isName:
			// Either the end of a compound statement, or an annotation before "=".
			if eq := slices.IndexFunc(tokens[p.at:], func(t token) bool { return t.kind == 'o' && t.text == "=" }); eq >= 0 {
				p.at += eq + 1
				p.assign(target, p.expression(0), "=")
			}
		}
		if p.at == before || p.at < len(tokens) && tokens[p.at].kind == 'o' {
			p.at++ // a separator, or something unknown
		}
	}
}

func (p *pythonParser) assign(target, value *node, op string) {
	switch {
	case target.kind == isName && op == "=":
		p.script.assigns[target.text] = value
	case target.kind == isName:
		if old := p.script.assigns[target.text]; old != nil {
			value = &node{kind: isJoin, items: []*node{old, value}, line: old.line}
		}
		p.script.assigns[target.text] = value
	case target.kind == isCall && isEnviron(strings.TrimSuffix(target.text, "[]")) && len(target.items) == 1 && value.kind == isText:
		p.script.writes = append(p.script.writes, setting{target.items[0].text, value.text, target.line})
	}
}

func (s *script) importLine(tokens []token) {
	dotted := func(i int) (string, int) {
		var b strings.Builder
		for i < len(tokens) && (tokens[i].kind == 'n' || tokens[i].text == ".") && tokens[i].text != "import" && tokens[i].text != "as" {
			b.WriteString(tokens[i].text)
			i++
		}
		return b.String(), i
	}
	if tokens[0].text == "from" {
		module, i := dotted(1)
		in := imported{module: module, line: tokens[0].line}
		for ; i < len(tokens); i++ {
			if t := tokens[i]; t.kind == 'n' && t.text != "import" && tokens[i-1].text != "as" && t.text != "as" {
				in.names = append(in.names, t.text)
			}
		}
		s.imports = append(s.imports, in)
		return
	}
	for i := 1; i < len(tokens); {
		module, next := dotted(i)
		if module != "" {
			s.imports = append(s.imports, imported{module: module, line: tokens[i].line})
		}
		for i = max(next, i+1); i < len(tokens) && tokens[i-1].text != ","; i++ {
		}
	}
}

type pythonParser struct {
	script *script
	tokens []token
	at     int
}

func (p *pythonParser) peek() token {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return token{}
}

func (p *pythonParser) is(op string) bool {
	t := p.peek()
	return t.kind == 'o' && t.text == op
}

// pythonWords stand between expressions and are none.
var pythonWords = []string{
	"if", "elif", "else", "for", "while", "with", "return", "assert", "raise", "in", "is", "and", "or", "not", "lambda", "yield", "await",
	"del", "global", "try", "except", "finally", "as", "async", "pass", "break", "continue", "nonlocal",
}

// expression reads operands with operators between them. What joins texts, lists and paths is
// kept; of any other operation the parts are looked at and the value is unknown.
func (p *pythonParser) expression(depth int) *node {
	first := p.operand(depth)
	for p.at < len(p.tokens) {
		t := p.peek()
		switch {
		case t.kind == 'o' && (t.text == "+" || t.text == "/"):
			p.at++
			kind := isJoin
			if t.text == "/" {
				kind = isSlash
			}
			next := p.operand(depth)
			if first.kind == kind {
				first.items = append(first.items, next)
			} else {
				first = &node{kind: kind, items: []*node{first, next}, line: first.line}
			}
		case t.kind == 'n' && t.text == "if":
			// The value of `a if b else c` is taken to be a.
			p.at++
			p.expression(depth + 1)
			if e := p.peek(); e.kind == 'n' && e.text == "else" {
				p.at++
				p.expression(depth + 1)
			}
			return first
		case t.kind == 'n' && (t.text == "in" || t.text == "not"):
			p.at++
			if t.text == "not" {
				if p.peek().text != "in" {
					continue
				}
				p.at++
			}
			in := p.operand(depth)
			if first.kind == isText && in.kind == isName && isEnviron(in.text) {
				p.script.reads = append(p.script.reads, setting{first.text, "", first.line})
			}
			if first.kind == isText && in.kind == isName && in.text == "sys.argv" {
				p.script.flags = append(p.script.flags, setting{first.text, "", first.line})
			}
			first = &node{line: first.line}
		case t.kind == 'n' && (t.text == "and" || t.text == "or"):
			p.at++
			p.expression(depth + 1)
			return &node{line: first.line}
		case t.kind == 'n' && slices.Contains(pythonWords, t.text),
			t.kind == 'o' && slices.Contains([]string{"-", "*", "%", "<", ">", "==", "!=", "<=", ">=", "|", "&", "^", "~", "@", ":="}, t.text):
			p.at++
			p.operand(depth)
			first = &node{line: first.line}
		default:
			return first
		}
	}
	return first
}

// operand reads a value with what follows it: attributes, arguments, subscripts.
func (p *pythonParser) operand(depth int) *node {
	t := p.peek()
	out := &node{line: t.line}
	if p.at >= len(p.tokens) || depth > maxNesting {
		p.at = min(p.at+1, len(p.tokens))
		return out
	}
	switch {
	case t.kind == 's' || t.kind == 'f':
		out.kind = isText
		for p.peek().kind == 's' || p.peek().kind == 'f' { // neighbours are joined
			part := p.peek()
			p.at++
			if part.kind == 'f' {
				known := false
				part.text, known = p.braces(part.text)
				out.partial = out.partial || !known
			}
			out.text += part.text
		}
		p.script.strings = append(p.script.strings, out)
	case t.kind == 'n':
		p.at++
		if slices.Contains(pythonWords, t.text) {
			if t.text == "lambda" {
				for p.at < len(p.tokens) && !p.is(":") {
					p.at++
				}
				p.at = min(p.at+1, len(p.tokens))
			}
			return p.operand(depth + 1)
		}
		out.kind, out.text = isName, t.text
	case t.kind == '0':
		p.at++
	case p.is("(") || p.is("["):
		p.at++
		items, _, comma := p.items(map[string]string{"(": ")", "[": "]"}[t.text], depth+1)
		if t.text == "(" && len(items) == 1 && !comma {
			out = items[0]
			break
		}
		out.kind, out.items = isList, items
	case p.is("{"):
		p.at++
		items, keys, _ := p.items("}", depth+1)
		out.kind, out.items, out.keywords = isMap, items, keys
	case p.is("-") || p.is("+") || p.is("*") || p.is("~"):
		p.at++
		return p.operand(depth + 1)
	default:
		return out // the caller moves on
	}
	return p.trailers(out, depth)
}

// braces fills the names that are known into an f-string; unknown values become empty.
func (p *pythonParser) braces(text string) (filled string, known bool) {
	var b strings.Builder
	known = true
	for {
		before, rest, ok := strings.Cut(text, "{")
		b.WriteString(before)
		if !ok {
			return b.String(), known
		}
		name, after, _ := strings.Cut(rest, "}")
		if v := p.script.assigns[name]; v != nil && v.kind == isText && !v.partial && b.Len() < maxSmallFile {
			b.WriteString(v.text)
		} else {
			known = false
		}
		text = after
	}
}

func (p *pythonParser) trailers(out *node, depth int) *node {
	for p.at < len(p.tokens) {
		switch {
		case p.is("."):
			p.at++
			if name := p.peek(); name.kind == 'n' {
				p.at++
				if out.kind == isName {
					out.text += "." + name.text
				} else {
					// An attribute of a value: the value is still looked at by name.
					out = &node{kind: isName, text: "." + name.text, items: []*node{out}, line: out.line}
				}
			}
		case p.is("("):
			p.at++
			items, keys, _ := p.items(")", depth+1)
			callee := ""
			if out.kind == isName {
				callee = out.text
			}
			call := &node{kind: isCall, text: callee, items: items, keywords: keys, line: out.line}
			if strings.HasPrefix(callee, ".") && len(out.items) > 0 {
				call.items = append([]*node{out.items[0]}, items...)
				call.keywords = append([]string{""}, keys...)
			}
			p.script.call(call)
			out = call
		case p.is("["):
			p.at++
			items, _, _ := p.items("]", depth+1)
			if out.kind == isName && isEnviron(out.text) && len(items) == 1 && items[0].kind == isText {
				sub := &node{kind: isCall, text: out.text + "[]", items: items, keywords: []string{""}, line: out.line}
				if !p.is("=") {
					p.script.reads = append(p.script.reads, setting{items[0].text, "", out.line})
				}
				out = sub
				continue
			}
			out = &node{line: out.line}
		default:
			return out
		}
	}
	return out
}

func isEnviron(name string) bool { return name == "os.environ" || name == "environ" }

// call takes note of a call.
func (s *script) call(c *node) {
	s.calls = append(s.calls, c)
	switch c.text {
	case "os.getenv", "getenv", "os.environ.get", "environ.get", "os.environ.setdefault", "environ.setdefault", "os.environ.pop":
		if len(c.items) == 0 || c.items[0].kind != isText {
			return
		}
		value := ""
		if len(c.items) > 1 && c.keywords[1] == "" {
			value, _ = s.text(c.items[1], 0)
		}
		s.reads = append(s.reads, setting{c.items[0].text, value, c.line})
		if strings.HasSuffix(c.text, "setdefault") && value != "" {
			s.writes = append(s.writes, setting{c.items[0].text, value, c.line})
		}
	}
}

// items reads values up to a closing bracket: arguments, entries of a list or of a map.
func (p *pythonParser) items(end string, depth int) (items []*node, keys []string, comma bool) {
	for p.at < len(p.tokens) && !p.is(end) {
		before := p.at
		value, key := p.expression(depth), ""
		switch {
		case p.is("="), p.is(":") && end == "}":
			p.at++
			key = value.text
			value = p.expression(depth)
		}
		items, keys = append(items, value), append(keys, key)
		for p.at < len(p.tokens) && !p.is(end) && !p.is(",") {
			// A comprehension, a slice, or something unknown: look at its parts.
			at := p.at
			p.expression(depth)
			if p.at == at {
				p.at++
			}
		}
		if p.is(",") {
			p.at++
			comma = true
		} else if p.at == before {
			p.at++
		}
	}
	if p.at < len(p.tokens) {
		p.at++
	}
	return items, keys, comma
}

// text returns the text that an expression stands for.
func (s *script) text(n *node, depth int) (string, bool) {
	if depth > 10 {
		return "", false
	}
	switch n.kind {
	case isText:
		return n.text, !n.partial
	case isName:
		if v := s.assigns[n.text]; v != nil && v != n {
			return s.text(v, depth+1)
		}
	case isJoin:
		var b strings.Builder
		for _, item := range n.items {
			part, ok := s.text(item, depth+1)
			if !ok {
				return "", false
			}
			b.WriteString(part)
		}
		return b.String(), true
	case isCall:
		if n.text == "str" && len(n.items) == 1 {
			return s.text(n.items[0], depth+1)
		}
	}
	return "", false
}

// list returns the texts of a list; what is not known of it is left out.
func (s *script) list(n *node, depth int) []*node {
	if n == nil || depth > 10 {
		return nil
	}
	switch n.kind {
	case isText:
		return []*node{n}
	case isList:
		var out []*node
		for _, item := range n.items {
			if text, ok := s.text(item, 0); ok {
				out = append(out, &node{kind: isText, text: text, line: item.line})
			}
		}
		return out
	case isName:
		if v := s.assigns[n.text]; v != nil && v != n {
			return s.list(v, depth+1)
		}
	case isJoin:
		var out []*node
		for _, item := range n.items {
			out = append(out, s.list(item, depth+1)...)
		}
		return out
	}
	return nil
}

// path returns the relative path that an expression stands for. Folders that are not known, such
// as that of the file itself, count as the root of the project.
func (s *script) path(n *node, depth int) string {
	if n == nil || depth > 10 {
		return ""
	}
	var parts []string
	switch n.kind {
	case isText:
		return n.text
	case isName:
		if v := s.assigns[n.text]; v != nil && v != n {
			return s.path(v, depth+1)
		}
		return ""
	case isSlash:
		for _, item := range n.items {
			parts = append(parts, s.path(item, depth+1))
		}
	case isCall:
		switch last := n.text[strings.LastIndexByte(n.text, '.')+1:]; last {
		case "join", "joinpath", "Path", "PurePath", "open", "read_text", "abspath", "resolve", "glob", "str":
			for i, item := range n.items {
				if n.keywords[i] == "" && !(last == "open" && i > 0) {
					parts = append(parts, s.path(item, depth+1))
				}
			}
		default:
			return ""
		}
	default:
		return ""
	}
	return strings.TrimPrefix(path.Join(parts...), "/")
}

// argument returns an argument of a call by its name, or by its place if place is not negative.
func (n *node) argument(name string, place int) *node {
	for i, item := range n.items {
		if n.keywords[i] == name || place >= 0 && i == place && n.keywords[i] == "" {
			return item
		}
	}
	return nil
}
