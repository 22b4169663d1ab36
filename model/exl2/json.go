package exl2

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// config.json goes through a reader and a writer of our own, because the output must be what Python's
// json.load and json.dumps(indent=4) make of the file: key order kept, 1e-5 as 1e-05, integers of any length,
// lone surrogates. encoding/json keeps none of these.

// value is one JSON value. Strings are UTF-8, with lone surrogates in their three-byte form.
type value struct {
	kind    byte   // one of the k… constants
	text    string // string contents; digits of an integer
	num     float64
	members []member // object
	items   []value  // array
}

type member struct {
	key string
	val value
}

const (
	kNull   = 'n'
	kTrue   = 't'
	kFalse  = 'f'
	kInt    = 'i'
	kFloat  = 'd'
	kString = 's'
	kArray  = 'a'
	kObject = 'o'
)

const maxJSONDepth = 500

func str(s string) value { return value{kind: kString, text: s} }

// get returns the member of an object, or nil if v is no object or has none of that name.
func (v *value) get(key string) *value {
	if v == nil || v.kind != kObject {
		return nil
	}
	for i := range v.members {
		if v.members[i].key == key {
			return &v.members[i].val
		}
	}
	return nil
}

// set replaces the member where it stands or appends it.
func (v *value) set(key string, val value) {
	for i := range v.members {
		if v.members[i].key == key {
			v.members[i].val = val
			return
		}
	}
	v.members = append(v.members, member{key, val})
}

// truthy is Python's bool(v).
func (v *value) truthy() bool {
	if v == nil {
		return false
	}
	switch v.kind {
	case kTrue:
		return true
	case kInt:
		return v.text != "0"
	case kFloat:
		return v.num != 0
	case kString:
		return v.text != ""
	case kArray:
		return len(v.items) > 0
	case kObject:
		return len(v.members) > 0
	}
	return false
}

type jsonParser struct {
	data []byte
	pos  int
}

// parseJSON reads one JSON document. It accepts what Python's json.load accepts, except NaN, Infinity and numbers that
// overflow, which have no JSON form.
func parseJSON(data []byte) (value, error) {
	if !utf8.Valid(data) {
		return value{}, errors.New("not UTF-8")
	}
	p := &jsonParser{data: data}
	var v value
	if err := p.value(&v, 0); err != nil {
		return value{}, err
	}
	return v, p.end()
}

// parseJSONMembers reads a document that must be an object and keeps only the members for which keep is true; the others
// are checked and skipped without being built.
func parseJSONMembers(data []byte, keep func(string) bool) (value, error) {
	if !utf8.Valid(data) {
		return value{}, errors.New("not UTF-8")
	}
	p := &jsonParser{data: data}
	if p.space(); p.peek() != '{' {
		return value{}, p.errorf("want an object")
	}
	v := value{kind: kObject}
	if err := p.object(&v, 0, keep); err != nil {
		return value{}, err
	}
	return v, p.end()
}

func (p *jsonParser) errorf(format string, args ...any) error {
	line := 1 + strings.Count(string(p.data[:min(p.pos, len(p.data))]), "\n")
	if p.pos >= len(p.data) {
		return fmt.Errorf("line %d: unexpected end of file", line)
	}
	return fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...))
}

func (p *jsonParser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	if p.pos < len(p.data) {
		return p.data[p.pos]
	}
	return 0
}

func (p *jsonParser) end() error {
	if p.space(); p.pos < len(p.data) {
		return p.errorf("data after the end of the document")
	}
	return nil
}

// value parses into v, or only checks when v is nil.
func (p *jsonParser) value(v *value, depth int) error {
	if depth > maxJSONDepth {
		return p.errorf("nested too deeply")
	}
	p.space()
	switch c := p.peek(); {
	case c == '{':
		if v != nil {
			v.kind = kObject
		}
		return p.object(v, depth, nil)
	case c == '[':
		return p.array(v, depth)
	case c == '"':
		s, err := p.string(v != nil)
		if err == nil && v != nil {
			*v = str(s)
		}
		return err
	case c == '-' || c >= '0' && c <= '9':
		return p.number(v)
	}
	for word, kind := range map[string]byte{"null": kNull, "true": kTrue, "false": kFalse} {
		if p.pos+len(word) <= len(p.data) && string(p.data[p.pos:p.pos+len(word)]) == word {
			p.pos += len(word)
			if v != nil {
				v.kind = kind
			}
			return nil
		}
	}
	return p.errorf("invalid JSON value")
}

func (p *jsonParser) object(v *value, depth int, keep func(string) bool) error {
	p.pos++
	if p.space(); p.peek() == '}' {
		p.pos++
		return nil
	}
	var index map[string]int // only objects that are built
	if v != nil {
		index = make(map[string]int)
	}
	for {
		p.space()
		if p.peek() != '"' {
			return p.errorf("want a member name")
		}
		key, err := p.string(v != nil)
		if err != nil {
			return err
		}
		if p.space(); p.peek() != ':' {
			return p.errorf("want a colon")
		}
		p.pos++
		if v != nil && (keep == nil || keep(key)) {
			var m value
			if err := p.value(&m, depth+1); err != nil {
				return err
			}
			if i, dup := index[key]; dup {
				v.members[i].val = m
			} else {
				index[key] = len(v.members)
				v.members = append(v.members, member{key, m})
			}
		} else if err := p.value(nil, depth+1); err != nil {
			return err
		}
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
		case '}':
			p.pos++
			return nil
		default:
			return p.errorf("want a comma or the end of the object")
		}
	}
}

func (p *jsonParser) array(v *value, depth int) error {
	p.pos++
	if v != nil {
		v.kind = kArray
	}
	if p.space(); p.peek() == ']' {
		p.pos++
		return nil
	}
	for {
		var item *value
		if v != nil {
			v.items = append(v.items, value{})
			item = &v.items[len(v.items)-1]
		}
		if err := p.value(item, depth+1); err != nil {
			return err
		}
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
		case ']':
			p.pos++
			return nil
		default:
			return p.errorf("want a comma or the end of the array")
		}
	}
}

func (p *jsonParser) number(v *value) error {
	start := p.pos
	digits := func() bool {
		from := p.pos
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.pos++
		}
		return p.pos > from
	}
	if p.peek() == '-' {
		p.pos++
	}
	if p.peek() == '0' {
		p.pos++
	} else if !digits() {
		return p.errorf("invalid number")
	}
	integer := true
	if p.peek() == '.' {
		integer = false
		if p.pos++; !digits() {
			return p.errorf("invalid number")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		integer = false
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if !digits() {
			return p.errorf("invalid number")
		}
	}
	text := string(p.data[start:p.pos])
	if integer {
		if text == "-0" {
			text = "0"
		}
		if v != nil {
			*v = value{kind: kInt, text: text}
		}
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && math.IsInf(f, 0) {
		return fmt.Errorf("number %s is out of range", text)
	}
	if v != nil {
		*v = value{kind: kFloat, num: f}
	}
	return nil
}

// string parses a string; unless build is set it only checks.
func (p *jsonParser) string(build bool) (string, error) {
	p.pos++
	start := p.pos
	for p.pos < len(p.data) && p.data[p.pos] != '"' && p.data[p.pos] != '\\' && p.data[p.pos] >= 0x20 {
		p.pos++
	}
	if p.peek() == '"' {
		s := p.data[start:p.pos]
		p.pos++
		if build {
			return string(s), nil
		}
		return "", nil
	}
	out := append([]byte(nil), p.data[start:p.pos]...)
	for {
		if p.pos >= len(p.data) {
			return "", p.errorf("")
		}
		c := p.data[p.pos]
		switch {
		case c == '"':
			p.pos++
			return string(out), nil
		case c < 0x20:
			return "", p.errorf("control character in a string")
		case c != '\\':
			out = append(out, c)
			p.pos++
			continue
		}
		p.pos++
		esc := p.peek()
		p.pos++
		switch esc {
		case '"', '\\', '/':
			out = append(out, esc)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			u, ok := p.hex4()
			if !ok {
				return "", p.errorf(`invalid \u escape`)
			}
			if u >= 0xD800 && u < 0xDC00 && p.peek() == '\\' && p.pos+1 < len(p.data) && p.data[p.pos+1] == 'u' {
				back := p.pos
				p.pos += 2
				low, ok := p.hex4()
				if !ok {
					return "", p.errorf(`invalid \u escape`)
				}
				if low >= 0xDC00 && low < 0xE000 {
					u = 0x10000 + (u-0xD800)<<10 + (low - 0xDC00)
				} else {
					p.pos = back
				}
			}
			out = appendWTF8(out, u)
		default:
			p.pos--
			return "", p.errorf("invalid escape in a string")
		}
	}
}

func (p *jsonParser) hex4() (rune, bool) {
	if p.pos+4 > len(p.data) {
		return 0, false
	}
	var u rune
	for _, c := range p.data[p.pos : p.pos+4] {
		switch {
		case c >= '0' && c <= '9':
			u = u<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			u = u<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			u = u<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	p.pos += 4
	return u, true
}

// appendWTF8 is utf8.AppendRune that also encodes surrogates.
func appendWTF8(b []byte, r rune) []byte {
	if r >= 0xD800 && r < 0xE000 {
		return append(b, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
	}
	return utf8.AppendRune(b, r)
}

func decodeWTF8(s string) (rune, int) {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 && len(s) >= 3 && s[0] == 0xED {
		return rune(s[0]&0x0F)<<12 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F), 3
	}
	return r, n
}

// appendPython writes v as Python's json.dumps(v, indent=4) does.
func appendPython(b []byte, v value, level int) []byte {
	newline := func(b []byte, level int) []byte {
		b = append(b, '\n')
		for range level {
			b = append(b, "    "...)
		}
		return b
	}
	switch v.kind {
	case kNull:
		return append(b, "null"...)
	case kTrue:
		return append(b, "true"...)
	case kFalse:
		return append(b, "false"...)
	case kInt:
		return append(b, v.text...)
	case kFloat:
		return appendPythonFloat(b, v.num)
	case kString:
		return appendPythonString(b, v.text)
	case kArray:
		if len(v.items) == 0 {
			return append(b, "[]"...)
		}
		b = append(b, '[')
		for i, item := range v.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendPython(newline(b, level+1), item, level+1)
		}
		return append(newline(b, level), ']')
	}
	if len(v.members) == 0 {
		return append(b, "{}"...)
	}
	b = append(b, '{')
	for i, m := range v.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendPythonString(newline(b, level+1), m.key)
		b = appendPython(append(b, ": "...), m.val, level+1)
	}
	return append(newline(b, level), '}')
}

func appendPythonString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	unit := func(b []byte, u rune) []byte {
		return append(b, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	b = append(b, '"')
	for len(s) > 0 {
		r, n := decodeWTF8(s)
		s = s[n:]
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r >= 0x20 && r < 0x7F:
			b = append(b, byte(r))
		case r >= 0x10000:
			b = unit(unit(b, 0xD800+(r-0x10000)>>10), 0xDC00+(r-0x10000)&0x3FF)
		default:
			b = unit(b, r)
		}
	}
	return append(b, '"')
}

// appendPythonFloat is repr(f): shortest digits, exponent form below 1e-4 and from 1e16.
func appendPythonFloat(b []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	n := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !strings.Contains(string(b[n:]), ".") {
		b = append(b, ".0"...)
	}
	return b
}
