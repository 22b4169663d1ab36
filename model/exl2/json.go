package exl2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// config.json goes through a tree and a writer of our own, because the output must be what Python's
// json.load and json.dumps(indent=4) make of the file: key order kept, 1e-5 as 1e-05, integers of
// any length, lone surrogates. encoding/json keeps none of these.

// value is one JSON value.
type value struct {
	kind    byte   // one of the k… constants
	text    string // contents of a string; digits of an integer
	literal string // of a string: what Python writes, with the quotes
	num     float64
	members []member // object
	items   []value  // array
}

type member struct {
	key string // as Python writes it, without the quotes
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

func str(s string) value {
	quoted, _ := jsontext.AppendQuote(nil, s) // what is not UTF-8 becomes U+FFFD
	return value{kind: kString, text: s, literal: pythonLiteral(quoted)}
}

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

// parseJSON reads one JSON document. It accepts what Python's json.load accepts, except NaN,
// Infinity and numbers that overflow, which have no JSON form.
func parseJSON(data []byte) (value, error) { return parseJSONMembers(data, nil) }

// parseJSONMembers is parseJSON for an object of which only the members are kept for which keep is
// true. The syntax of the others is checked, but they are not built.
func parseJSONMembers(data []byte, keep func(string) bool) (value, error) {
	if !utf8.Valid(data) {
		return value{}, errors.New("not UTF-8")
	}
	// As in Python, the last of several members of one name counts, and half a surrogate pair is a
	// character.
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	v, err := readJSON(dec, keep)
	if err == nil {
		if _, end := dec.ReadToken(); !errors.Is(end, io.EOF) {
			err = errors.New("data after the end of the document")
		}
	}
	if err == nil {
		return v, nil
	}
	at, text := dec.InputOffset(), err.Error()
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		at, text = int64(len(data)), "unexpected end of file"
	case errors.As(err, &syntactic):
		at, text = syntactic.ByteOffset, syntactic.Err.Error()
	}
	return value{}, fmt.Errorf("line %d: %s", 1+bytes.Count(data[:at], []byte("\n")), text)
}

func readJSON(dec *jsontext.Decoder, keep func(string) bool) (value, error) {
	if dec.StackDepth() > maxJSONDepth {
		return value{}, errors.New("nested too deeply")
	}
	kind := dec.PeekKind()
	switch kind {
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		if _, err := dec.ReadToken(); err != nil {
			return value{}, err
		}
	default:
		text, err := dec.ReadValue()
		if err != nil {
			return value{}, err
		}
		return scalar(kind, text)
	}
	v := value{kind: kObject}
	if kind == jsontext.KindBeginArray {
		v.kind = kArray
	}
	index := map[string]int{}
	for end := dec.PeekKind(); end != jsontext.KindEndObject && end != jsontext.KindEndArray; end = dec.PeekKind() {
		if v.kind == kArray {
			item, err := readJSON(dec, nil)
			if err != nil {
				return value{}, err
			}
			v.items = append(v.items, item)
			continue
		}
		name, err := dec.ReadValue()
		if err != nil {
			return value{}, err
		}
		key := pythonLiteral(name)
		key = key[1 : len(key)-1]
		if keep != nil && !keep(key) {
			if err := dec.SkipValue(); err != nil {
				return value{}, err
			}
			continue
		}
		m, err := readJSON(dec, nil)
		if err != nil {
			return value{}, err
		}
		if i, again := index[key]; again {
			v.members[i].val = m
			continue
		}
		index[key] = len(v.members)
		v.members = append(v.members, member{key, m})
	}
	_, err := dec.ReadToken()
	return v, err
}

func scalar(kind jsontext.Kind, text []byte) (value, error) {
	switch kind {
	case jsontext.KindString:
		plain, _ := jsontext.AppendUnquote(nil, text) // half surrogate pairs become U+FFFD
		return value{kind: kString, text: string(plain), literal: pythonLiteral(text)}, nil
	case jsontext.KindNumber:
		if s := string(text); !strings.ContainsAny(s, ".eE") {
			if s == "-0" {
				s = "0"
			}
			return value{kind: kInt, text: s}, nil
		}
		f, err := strconv.ParseFloat(string(text), 64)
		if err != nil && math.IsInf(f, 0) {
			return value{}, fmt.Errorf("number %s is out of range", text)
		}
		return value{kind: kFloat, num: f}, nil
	}
	return value{kind: text[0]}, nil // null, true and false: their first letter is the kind
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
		return append(b, v.literal...)
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
		b = append(append(newline(b, level+1), '"'), m.key...)
		b = appendPython(append(b, `": `...), m.val, level+1)
	}
	return append(newline(b, level), '}')
}

// pythonLiteral returns what Python writes for a string that is given as JSON has it: ASCII only,
// and everything that has a short escape with it. Surrogates stay what they are, also without their
// other half.
func pythonLiteral(quoted []byte) string {
	out := []byte{'"'}
	unit := func(u rune) {
		if i := strings.IndexRune("\"\\\n\r\t\b\f", u); i >= 0 {
			out = append(out, '\\', `"\nrtbf`[i])
		} else if u >= 0x20 && u < 0x7F {
			out = append(out, byte(u))
		} else {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	for s := string(quoted[1 : len(quoted)-1]); len(s) > 0; {
		r, n := utf8.DecodeRuneInString(s)
		if r == '\\' {
			r, n = unescape(s)
		}
		s = s[n:]
		if r >= 0x10000 {
			high, low := utf16.EncodeRune(r)
			unit(high)
			r = low
		}
		unit(r)
	}
	return string(append(out, '"'))
}

// unescape decodes the escape at the start of s, whose syntax was checked.
func unescape(s string) (r rune, n int) {
	if s[1] == 'u' {
		u, _ := strconv.ParseUint(s[2:6], 16, 16)
		return rune(u), 6
	}
	if i := strings.IndexByte("nrtbf", s[1]); i >= 0 {
		return rune("\n\r\t\b\f"[i]), 2
	}
	return rune(s[1]), 2
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
