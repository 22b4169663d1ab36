package launcher

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// This is the little of JSON that a launcher needs. encoding/json goes by reflection, which in a new process takes longer than all
// else that a launcher does, and would have this package initialized after most of the program.

// object writes one JSON object.
type object struct{ text []byte }

func (o *object) key(name string) {
	if len(o.text) == 0 {
		o.text = append(make([]byte, 0, 4096), '{')
	} else {
		o.text = append(o.text, ',')
	}
	o.text = append(appendString(o.text, name), ':')
}

func (o *object) raw(name, value string) {
	o.key(name)
	o.text = append(o.text, value...)
}

func (o *object) string(name, value string) {
	o.key(name)
	o.text = appendString(o.text, value)
}

// optional writes a string unless it is empty.
func (o *object) optional(name, value string) {
	if value != "" {
		o.string(name, value)
	}
}

func (o *object) int(name string, value int64) {
	o.key(name)
	o.text = strconv.AppendInt(o.text, value, 10)
}

func (o *object) float(name string, value float64) {
	o.key(name)
	o.text = strconv.AppendFloat(o.text, value, 'f', -1, 64)
}

func (o *object) strings(name string, values []string) {
	o.key(name)
	if values == nil {
		o.text = append(o.text, "null"...)
		return
	}
	o.text = append(o.text, '[')
	for i, value := range values {
		if i > 0 {
			o.text = append(o.text, ',')
		}
		o.text = appendString(o.text, value)
	}
	o.text = append(o.text, ']')
}

// end returns the object as a line.
func (o *object) end() []byte { return append(o.text, '}', '\n') }

// appendString writes a string. Bytes that are no text become U+FFFD, as with encoding/json.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
		i++
	}
	return append(b, '"')
}

// value is one value of JSON.
type value struct {
	kind   byte // as it begins: { [ " t f n, and 0 for numbers
	text   string
	list   []value // of an array, or the values of an object
	names  []string
	number int64
}

// field returns the value of a field; of several, the last one.
func (v *value) field(name string) *value {
	for i := len(v.names) - 1; i >= 0; i-- {
		if v.names[i] == name {
			return &v.list[i]
		}
	}
	return new(value)
}

// parseJSON reads a value. Numbers are whole.
func parseJSON(text string) (v value, err error) {
	p := parser{text: text}
	v, ok := p.value(0)
	p.blanks()
	if !ok || p.at < len(text) {
		return value{}, errors.New("this is not the JSON of a launcher, at byte " + strconv.Itoa(p.at))
	}
	return v, nil
}

type parser struct {
	text string
	at   int
}

func (p *parser) blanks() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// take consumes a byte, if it is the next after blanks.
func (p *parser) take(c byte) bool {
	p.blanks()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

// deepest is more than a configuration has.
const deepest = 16

func (p *parser) value(depth int) (v value, ok bool) {
	p.blanks()
	if p.at >= len(p.text) || depth > deepest {
		return v, false
	}
	switch c := p.text[p.at]; c {
	case '{', '[':
		return p.group(c, depth)
	case '"':
		v.kind = c
		v.text, ok = p.string()
		return v, ok
	case 't', 'f', 'n':
		word := "null"
		if c == 't' {
			word = "true"
		} else if c == 'f' {
			word = "false"
		}
		if len(p.text)-p.at < len(word) || p.text[p.at:p.at+len(word)] != word {
			return v, false
		}
		p.at += len(word)
		return value{kind: c}, true
	}
	start := p.at
	if p.text[p.at] == '-' {
		p.at++
	}
	first := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	if p.at > first+1 && p.text[first] == '0' {
		return v, false
	}
	n, err := strconv.ParseInt(p.text[start:p.at], 10, 64)
	v.number = n
	return v, err == nil
}

// group reads an array or an object.
func (p *parser) group(kind byte, depth int) (v value, ok bool) {
	v.kind = kind
	last := kind + 2 // ] and }
	p.at++
	if p.take(last) {
		return v, true
	}
	for {
		if kind == '{' {
			p.blanks()
			name, ok := p.string()
			if !ok || !p.take(':') {
				return v, false
			}
			v.names = append(v.names, name)
		}
		item, ok := p.value(depth + 1)
		if !ok {
			return v, false
		}
		v.list = append(v.list, item)
		if p.take(last) {
			return v, true
		}
		if !p.take(',') {
			return v, false
		}
	}
}

func (p *parser) string() (string, bool) {
	if p.at >= len(p.text) || p.text[p.at] != '"' {
		return "", false
	}
	p.at++
	start := p.at
	var out []byte // what came before start
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			rest := p.text[start:p.at]
			p.at++
			if out == nil {
				return rest, true
			}
			return string(append(out, rest...)), true
		case c < ' ':
			return "", false
		case c != '\\':
			p.at++
			continue
		}
		out = append(out, p.text[start:p.at]...)
		r, ok := p.escape()
		if !ok {
			return "", false
		}
		out = utf8.AppendRune(out, r)
		start = p.at
	}
	return "", false
}

// escape reads what follows a backslash.
func (p *parser) escape() (rune, bool) {
	if p.at+1 >= len(p.text) {
		return 0, false
	}
	c := p.text[p.at+1]
	p.at += 2
	switch c {
	case '"', '\\', '/':
		return rune(c), true
	case 'b':
		return '\b', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	case 'u':
	default:
		return 0, false
	}
	r, ok := p.unit()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if p.at+1 < len(p.text) && p.text[p.at] == '\\' && p.text[p.at+1] == 'u' {
		before := p.at
		p.at += 2
		second, ok := p.unit()
		if !ok {
			return 0, false
		}
		if both := utf16.DecodeRune(r, second); both != utf8.RuneError {
			return both, true
		}
		p.at = before
	}
	return utf8.RuneError, true
}

// unit reads four hexadecimal digits.
func (p *parser) unit() (rune, bool) {
	if p.at+4 > len(p.text) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(p.text[p.at : p.at+4]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	p.at += 4
	return r, true
}
