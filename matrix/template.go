package matrix

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/diag"
)

// template is a text with row values in braces, such as "{toolkit_tag}-torch{torch}".
// Two braces stand for one.
type template struct {
	parts []templatePart
}

type templatePart struct {
	literal  string
	variable string // set if this part is a value
	// separator is what stands between the items of a list, if another than its own is asked for.
	separator    string
	hasSeparator bool
}

// templateVariables are the values a template may use, besides custom axes.
var templateVariables = []string{
	"package", "version", "os", "platform", "python", "python_tag",
	"toolkit", "toolkit_tag", "toolkit_version", "cuda", "cuda_major", "cuda_minor", "cuda_nodot", "rocm",
	"torch", "torch_minor", "torch_nodot", "torch_index", "cxx11abi", "arch", "arch_numbers",
}

// parseTemplate reads a template. Mistakes are reported at their own column.
func parseTemplate(t Text, axes []string, list *diag.List) template {
	var out template
	fail := func(offset, n int, hint, format string, args ...any) {
		p := t.at(utf8.RuneCountInString(t.Value[:offset]), n)
		list.Add(diag.Diagnostic{Rule: "template", Pos: p.pos, Width: p.width, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	s := t.Value
	var literal strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '{' && strings.HasPrefix(s[i:], "{{"), c == '}' && strings.HasPrefix(s[i:], "}}"):
			literal.WriteByte(c)
			i += 2
		case c == '}':
			fail(i, 1, "write }} for a brace", "a closing brace without an opening one")
			return template{}
		case c == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				fail(i, 1, "write {{ for a brace", "the brace is not closed")
				return template{}
			}
			name, separator, hasSeparator := strings.Cut(s[i+1:i+end], ":")
			if hasSeparator && name != "arch_numbers" {
				fail(i, end+1, `write a separator after arch_numbers only, as in {arch_numbers:,}`, "{%s} is no list", name)
				return template{}
			}
			if !slices.Contains(templateVariables, name) && !slices.Contains(axes, name) {
				known := slices.Concat(templateVariables, axes)
				hint := "known values: " + strings.Join(known, ", ") + "; write {{ and }} for braces that are not a value"
				if s := diag.Suggest(name, known); s != "" {
					hint = fmt.Sprintf("did you mean {%s}?", s)
				}
				fail(i, end+1, hint, "unknown value {%s}", name)
				return template{}
			}
			if literal.Len() > 0 {
				out.parts = append(out.parts, templatePart{literal: literal.String()})
				literal.Reset()
			}
			out.parts = append(out.parts, templatePart{variable: name, separator: separator, hasSeparator: hasSeparator})
			i += end + 1
		default:
			literal.WriteByte(c)
			i++
		}
	}
	if literal.Len() > 0 {
		out.parts = append(out.parts, templatePart{literal: literal.String()})
	}
	return out
}

// render fills in the values.
func (t template) render(value func(string) string) string {
	if len(t.parts) == 1 && t.parts[0].variable == "" {
		return t.parts[0].literal
	}
	var b strings.Builder
	for _, p := range t.parts {
		if p.variable == "" {
			b.WriteString(p.literal)
		} else {
			b.WriteString(p.value(value))
		}
	}
	return b.String()
}

// value is that of the row, with the separator that was asked for.
func (p *templatePart) value(value func(string) string) string {
	v := value(p.variable)
	if p.hasSeparator {
		v = strings.ReplaceAll(v, archSeparator, p.separator)
	}
	return v
}

// renderTag fills in the values of a build tag: a part between hyphens is left out
// if a value in it is empty.
func (t template) renderTag(value func(string) string) string {
	var out, part strings.Builder
	empty := false
	flush := func() {
		if !empty && part.Len() > 0 {
			if out.Len() > 0 {
				out.WriteByte('-')
			}
			out.WriteString(part.String())
		}
		part.Reset()
		empty = false
	}
	for _, p := range t.parts {
		if p.variable != "" {
			v := p.value(value)
			empty = empty || v == ""
			part.WriteString(v)
			continue
		}
		for i, piece := range strings.Split(p.literal, "-") {
			if i > 0 {
				flush()
			}
			part.WriteString(piece)
		}
	}
	flush()
	return out.String()
}
