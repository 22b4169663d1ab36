package safetensors

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep JSON may be nested; one more is an error in the reference
// library's parser.
const maxDepth = 127

// scanner reads one JSON document, which must be valid UTF-8, exactly as
// RFC 8259 has it and with the reference library's limits. Package encoding/json is too lax:
// it takes names twice, replaces half surrogates, and does not tell 1 from 1.0.
//
// The first error stays; after it every method returns at once with a zero value.
type scanner struct {
	text   []byte
	pos    int
	depth  int
	within string // name of the tensor being read, for messages
	err    error
}

func (s *scanner) fail(format string, args ...any) {
	if s.err != nil {
		return
	}
	s.err = fmt.Errorf(format, args...)
	if s.within != "" {
		s.err = fmt.Errorf("tensor %q: %w", s.within, s.err)
	}
}

// unexpected fails with what is at the current position.
func (s *scanner) unexpected(want string) {
	if s.pos >= len(s.text) {
		s.fail("byte %d: %s expected, but the header ends", s.pos, want)
		return
	}
	r, _ := utf8.DecodeRune(s.text[s.pos:])
	s.fail("byte %d: %s expected, not %q", s.pos, want, r)
}

// document reads an object and nothing behind it. member must consume the value.
func (s *scanner) document(member func(key string)) {
	s.object("header", member)
	s.space()
	if s.pos < len(s.text) {
		s.unexpected("end")
	}
}

func (s *scanner) object(what string, member func(key string)) {
	if !s.open('{', what, "an object") {
		return
	}
	for more := !s.closed('}'); more && s.err == nil; more = s.more('}') {
		key := s.string("name")
		s.space()
		if !s.accept(':') {
			s.unexpected("':'")
		}
		s.space()
		if s.err == nil {
			member(key)
		}
	}
	s.depth--
}

func (s *scanner) array(what string, element func()) {
	if !s.open('[', what, "an array") {
		return
	}
	for more := !s.closed(']'); more && s.err == nil; more = s.more(']') {
		element()
	}
	s.depth--
}

func (s *scanner) open(c byte, what, kind string) bool {
	s.space()
	if s.err == nil && !s.accept(c) {
		s.unexpected(what + " must be " + kind + ": " + string(rune(c)))
	}
	if s.depth++; s.depth > maxDepth {
		s.fail("byte %d: nested deeper than %d", s.pos, maxDepth)
	}
	return s.err == nil
}

func (s *scanner) closed(c byte) bool {
	s.space()
	return s.accept(c)
}

// more reports whether another element follows, and consumes what is between.
func (s *scanner) more(end byte) bool {
	s.space()
	switch {
	case s.err != nil || s.accept(end):
		return false
	case s.accept(','):
		s.space()
		return true
	}
	s.unexpected("',' or '" + string(end) + "'")
	return false
}

func (s *scanner) space() {
	for s.pos < len(s.text) {
		switch s.text[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) accept(c byte) bool {
	if s.err != nil || s.pos >= len(s.text) || s.text[s.pos] != c {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) word(w string) bool {
	if s.err != nil || len(s.text)-s.pos < len(w) || string(s.text[s.pos:s.pos+len(w)]) != w {
		return false
	}
	s.pos += len(w)
	return true
}

func (s *scanner) null() bool {
	s.space()
	return s.word("null")
}

// string reads a string. what is used in the message if something else is there.
func (s *scanner) string(what string) string {
	s.space()
	if !s.accept('"') {
		s.unexpected(what + ": a string is")
		return ""
	}
	start := s.pos
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == '"':
			s.pos++
			return common(s.text[start : s.pos-1])
		case c == '\\':
			return s.escaped(append([]byte(nil), s.text[start:s.pos]...))
		case c < ' ':
			s.fail("byte %d: control character %q in a string", s.pos, c)
			return ""
		}
		s.pos++
	}
	s.unexpected("'\"'")
	return ""
}

// common makes a string of b, without allocating it for the words of every entry.
func common(b []byte) string {
	switch string(b) {
	case "dtype":
		return "dtype"
	case "shape":
		return "shape"
	case "data_offsets":
		return "data_offsets"
	case "F16":
		return "F16"
	case "BF16":
		return "BF16"
	case "F32":
		return "F32"
	case "I32":
		return "I32"
	case "I16":
		return "I16"
	}
	return string(b)
}

// escaped reads the rest of a string from its first backslash.
func (s *scanner) escaped(out []byte) string {
	for s.pos < len(s.text) && s.err == nil {
		c := s.text[s.pos]
		s.pos++
		switch {
		case c == '"':
			return string(out)
		case c < ' ':
			s.fail("byte %d: control character %q in a string", s.pos-1, c)
		case c == '\\':
			out = s.escape(out)
		default:
			out = append(out, c)
		}
	}
	s.unexpected("'\"'")
	return ""
}

func (s *scanner) escape(out []byte) []byte {
	if s.pos >= len(s.text) {
		s.unexpected("escape")
		return out
	}
	c := s.text[s.pos]
	s.pos++
	switch c {
	case '"', '\\', '/':
		return append(out, c)
	case 'b':
		return append(out, '\b')
	case 'f':
		return append(out, '\f')
	case 'n':
		return append(out, '\n')
	case 'r':
		return append(out, '\r')
	case 't':
		return append(out, '\t')
	case 'u':
		r := s.hex4()
		if utf16.IsSurrogate(r) {
			high := r
			r = utf8.RuneError
			if s.word(`\u`) {
				r = utf16.DecodeRune(high, s.hex4())
			}
			if r == utf8.RuneError {
				s.fail("byte %d: half of a surrogate pair", s.pos)
			}
		}
		return utf8.AppendRune(out, r)
	}
	s.pos--
	s.unexpected("escape")
	return out
}

func (s *scanner) hex4() rune {
	if len(s.text)-s.pos >= 4 {
		digits := s.text[s.pos : s.pos+4]
		var r rune
		for _, c := range digits {
			switch {
			case '0' <= c && c <= '9':
				r = r<<4 | rune(c-'0')
			case 'a' <= c|0x20 && c|0x20 <= 'f':
				r = r<<4 | rune(c|0x20-'a'+10)
			default:
				s.unexpected("four hexadecimal digits")
				return 0
			}
		}
		s.pos += 4
		return r
	}
	s.unexpected("four hexadecimal digits")
	return 0
}

// number reads a number and reports whether it was written as an integer without sign.
func (s *scanner) number() (text []byte, natural bool) {
	start := s.pos
	natural = !s.accept('-')
	if !s.accept('0') && s.digits() == 0 {
		s.unexpected("number")
	}
	if s.accept('.') {
		natural = false
		if s.digits() == 0 {
			s.unexpected("digit")
		}
	}
	if s.accept('e') || s.accept('E') {
		natural = false
		if !s.accept('+') {
			s.accept('-')
		}
		if s.digits() == 0 {
			s.unexpected("digit")
		}
	}
	return s.text[start:s.pos], natural
}

func (s *scanner) digits() int {
	start := s.pos
	for s.err == nil && s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		s.pos++
	}
	return s.pos - start
}

// integer reads an integer from 0 to 2⁶³−1.
func (s *scanner) integer(what string) int64 {
	s.space()
	text, natural := s.number()
	if s.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case !natural:
		s.fail("%s %s is not an unsigned integer", what, text)
	case err != nil:
		s.fail("%s %s is above %d", what, text, int64(math.MaxInt64))
	}
	return n
}

// skip reads a value of any kind and checks it.
func (s *scanner) skip() {
	s.space()
	if s.err != nil {
		return
	}
	if s.pos >= len(s.text) {
		s.unexpected("value")
		return
	}
	switch c := s.text[s.pos]; {
	case c == '{':
		s.object("value", func(string) { s.skip() })
	case c == '[':
		s.array("value", s.skip)
	case c == '"':
		s.string("value")
	case c == '-' || '0' <= c && c <= '9':
		if text, _ := s.number(); s.err == nil {
			if _, err := strconv.ParseFloat(string(text), 64); err != nil {
				s.fail("number %s is out of range", text)
			}
		}
	default:
		if !s.word("null") && !s.word("true") && !s.word("false") {
			s.unexpected("value")
		}
	}
}
