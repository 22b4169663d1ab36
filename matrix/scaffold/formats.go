package scaffold

import (
	"strings"
)

// tomlTable is a TOML file as dotted keys with their values. It knows the forms that pyproject.toml
// files use; a value that it does not know is left out.
type tomlTable map[string]tomlValue

type tomlValue struct {
	text  string   // a text, or any other scalar as written
	list  []string // the texts of an array
	lines []int    // of each text in list
	line  int
}

// readTOML reads TOML. It never fails: lines that it does not understand are skipped.
func readTOML(text string) tomlTable {
	t := tomlTable{}
	r := &tomlReader{text: text, line: 1}
	prefix := ""
	for r.space(true); r.at < len(r.text); r.space(true) {
		start := r.at
		switch {
		case r.next("[["), r.next("["):
			prefix = strings.Join(r.key(), ".") + "."
			r.skipLine()
		default:
			line := r.line
			key := r.key()
			r.space(false)
			if len(key) == 0 || !r.next("=") {
				r.skipLine()
				break
			}
			r.space(false)
			r.value(t, prefix+strings.Join(key, "."), line, 0)
			r.skipLine()
		}
		if r.at == start {
			r.at++
		}
	}
	return t
}

type tomlReader struct {
	text     string
	at, line int
}

func (r *tomlReader) next(s string) bool {
	if strings.HasPrefix(r.text[r.at:], s) {
		r.at += len(s)
		return true
	}
	return false
}

// space skips blanks, and with lines also comments and newlines.
func (r *tomlReader) space(lines bool) {
	for r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case c == ' ' || c == '\t' || c == '\r':
			r.at++
		case c == '\n' && lines:
			r.line++
			r.at++
		case c == '#' && lines:
			for r.at < len(r.text) && r.text[r.at] != '\n' {
				r.at++
			}
		default:
			return
		}
	}
}

func (r *tomlReader) skipLine() {
	for r.at < len(r.text) && r.text[r.at] != '\n' {
		r.at++
	}
}

// key reads a dotted key.
func (r *tomlReader) key() []string {
	var parts []string
	for r.at < len(r.text) {
		r.space(false)
		switch c := r.text[min(r.at, len(r.text)-1)]; {
		case r.at >= len(r.text):
			return parts
		case c == '"' || c == '\'':
			part, n := pythonText(r.text[r.at:], "")
			r.at += n
			parts = append(parts, part.text)
		case nameByte(c) || c == '-':
			start := r.at
			for r.at < len(r.text) && (nameByte(r.text[r.at]) || r.text[r.at] == '-') {
				r.at++
			}
			parts = append(parts, r.text[start:r.at])
		default:
			return parts
		}
		r.space(false)
		if !r.next(".") {
			return parts
		}
	}
	return parts
}

// scalar reads a text, a number, a date or a truth value.
func (r *tomlReader) scalar() (string, bool) {
	if r.at >= len(r.text) {
		return "", false
	}
	if c := r.text[r.at]; c == '"' || c == '\'' {
		prefix := ""
		if c == '\'' {
			prefix = "r" // no escapes
		}
		t, n := pythonText(r.text[r.at:], prefix)
		r.line += strings.Count(r.text[r.at:r.at+n], "\n")
		r.at += n
		return strings.TrimPrefix(t.text, "\n"), true
	}
	start := r.at
	for r.at < len(r.text) && (nameByte(r.text[r.at]) || strings.IndexByte("+-.:", r.text[r.at]) >= 0) {
		r.at++
	}
	return r.text[start:r.at], r.at > start
}

// value reads a value and puts it, or the values of an inline table, under its key.
func (r *tomlReader) value(t tomlTable, key string, line, depth int) {
	switch {
	case depth > maxNesting:
		r.at = len(r.text)
	case r.next("["):
		v := tomlValue{line: line}
		for r.space(true); r.at < len(r.text) && !r.next("]"); r.space(true) {
			before, at := r.at, r.line
			if c := r.text[r.at]; c == '[' || c == '{' {
				r.value(tomlTable{}, key, r.line, depth+1)
			} else if s, ok := r.scalar(); ok {
				v.list, v.lines = append(v.list, s), append(v.lines, at)
			}
			r.space(true)
			if !r.next(",") && r.at == before {
				r.at++
			}
		}
		t[key] = v
	case r.next("{"):
		for r.space(true); r.at < len(r.text) && !r.next("}"); r.space(true) {
			before := r.at
			name := r.key()
			r.space(false)
			if r.next("=") {
				r.space(false)
				r.value(t, key+"."+strings.Join(name, "."), r.line, depth+1)
			}
			r.space(true)
			if !r.next(",") && r.at == before {
				r.at++
			}
		}
	default:
		if s, ok := r.scalar(); ok {
			t[key] = tomlValue{text: s, line: line}
		}
	}
}

// has reports whether any key is in a table.
func (t tomlTable) has(table string) bool {
	for key := range t {
		if key == table || strings.HasPrefix(key, table+".") {
			return true
		}
	}
	return false
}

// readCFG reads setup.cfg: sections of keys whose values may go on in indented lines.
func readCFG(text string) tomlTable {
	t := tomlTable{}
	section, key := "", ""
	n := 0
	for line := range strings.Lines(text) {
		n++
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';' {
			continue
		}
		if trimmed[0] == '[' {
			section, key = strings.Trim(trimmed, "[]")+".", ""
			continue
		}
		if (line[0] == ' ' || line[0] == '\t') && key != "" {
			v := t[key]
			v.list, v.lines = append(v.list, trimmed), append(v.lines, n)
			t[key] = v
			continue
		}
		i := strings.IndexAny(trimmed, "=:")
		if i < 0 {
			continue
		}
		key = section + strings.ToLower(strings.TrimSpace(trimmed[:i]))
		t[key] = tomlValue{text: strings.TrimSpace(trimmed[i+1:]), line: n}
	}
	return t
}

// cmakeCommand is one command of a CMakeLists.txt.
type cmakeCommand struct {
	name string // in lower case
	args []string
	line int
}

// readCMake reads the commands of a CMake file. It never fails.
func readCMake(text string) []cmakeCommand {
	var out []cmakeCommand
	line := 1
	var open *cmakeCommand
	depth := 0
	word := ""
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r' || c == ';':
			i++
		case c == '#':
			end, skip := "\n", 0
			if strings.HasPrefix(text[i:], "#[[") {
				end, skip = "]]", 2
			}
			n := strings.Index(text[i:], end)
			if n < 0 {
				n = len(text) - i
				skip = 0
			}
			line += strings.Count(text[i:i+n], "\n")
			i += n + skip
		case c == '(':
			i++
			if open == nil {
				open = &cmakeCommand{name: strings.ToLower(word), line: line}
			} else {
				depth++
			}
			word = ""
		case c == ')':
			i++
			if open != nil && depth == 0 {
				out = append(out, *open)
				open = nil
			}
			depth = max(0, depth-1)
		case c == '"':
			start := i + 1
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			i = min(i, len(text))
			if open != nil {
				open.args = append(open.args, text[start:i])
			}
			line += strings.Count(text[start:i], "\n")
			i = min(i+1, len(text))
		default:
			start := i
			for i < len(text) && strings.IndexByte(" \t\r\n;()#\"", text[i]) < 0 {
				i++
			}
			if word = text[start:i]; open != nil {
				open.args = append(open.args, word)
			}
		}
	}
	return out
}
