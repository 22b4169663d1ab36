package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep JSON may be nested; one more is an error in the reference
// library's parser.
const maxDepth = 127

// scanner reads one JSON document with the reference library's limits. The syntax is that
// of jsontext, which refuses what is not RFC 8259: other than encoding/json it takes no
// half surrogates and no bytes that are not UTF-8, and it leaves numbers as they are written.
//
// The first error stays; after it every method returns at once with a zero value.
type scanner struct {
	dec    *jsontext.Decoder
	within string // name of the tensor being read, for messages
	err    error
}

func newScanner(text []byte) *scanner {
	// Names that occur twice are looked for where they matter.
	return &scanner{dec: jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true))}
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

// syntax fails with an error of the decoder.
func (s *scanner) syntax(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s.fail("byte %d: the JSON text ends too early", s.dec.InputOffset())
		return
	}
	at := s.dec.InputOffset()
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		at, err = syntactic.ByteOffset, syntactic.Err
	}
	s.fail("byte %d: %s", at, strings.TrimPrefix(err.Error(), "jsontext: "))
}

// next reports whether the next token is of a kind. what and want are for the message if not.
func (s *scanner) next(what, want string, kind jsontext.Kind) bool {
	if s.err != nil {
		return false
	}
	switch got := s.dec.PeekKind(); got {
	case kind:
		return true
	case jsontext.KindInvalid:
		_, err := s.dec.ReadToken()
		s.syntax(err)
	default:
		s.fail("byte %d: %s must be %s, not %s", s.dec.InputOffset(), what, want, got)
	}
	return false
}

// value returns the text of the next value, which stays valid until the next read.
func (s *scanner) value() []byte {
	v, err := s.dec.ReadValue()
	if err != nil {
		s.syntax(err)
	}
	return v
}

// document reads an object and nothing behind it. member must consume the value.
func (s *scanner) document(member func(key string)) {
	s.object("header", member)
	if s.err != nil {
		return
	}
	if _, err := s.dec.ReadToken(); !errors.Is(err, io.EOF) {
		s.fail("byte %d: data after the end", s.dec.InputOffset())
	}
}

func (s *scanner) object(what string, member func(key string)) {
	if s.open(what, "an object", jsontext.KindBeginObject) {
		for s.err == nil && s.dec.PeekKind() != jsontext.KindEndObject {
			key := s.string("name")
			if s.err == nil {
				member(key)
			}
		}
		s.token()
	}
}

func (s *scanner) array(what string, element func()) {
	if s.open(what, "an array", jsontext.KindBeginArray) {
		for s.err == nil && s.dec.PeekKind() != jsontext.KindEndArray {
			element()
		}
		s.token()
	}
}

func (s *scanner) open(what, want string, kind jsontext.Kind) bool {
	if s.next(what, want, kind) {
		s.token()
	}
	return s.err == nil
}

// token reads a token and checks what the decoder does not: depth, and the range of numbers.
func (s *scanner) token() {
	if s.err != nil {
		return
	}
	t, err := s.dec.ReadToken()
	switch {
	case err != nil:
		s.syntax(err)
	case s.dec.StackDepth() > maxDepth:
		s.fail("byte %d: nested deeper than %d", s.dec.InputOffset(), maxDepth)
	case t.Kind() == jsontext.KindNumber:
		if _, err := strconv.ParseFloat(t.String(), 64); err != nil {
			s.fail("number %s is out of range", t.String())
		}
	}
}

// skip reads a value of any kind and checks it.
func (s *scanner) skip() {
	depth := s.dec.StackDepth()
	for s.token(); s.err == nil && s.dec.StackDepth() > depth; {
		s.token()
	}
}

func (s *scanner) null() bool {
	if s.err != nil || s.dec.PeekKind() != jsontext.KindNull {
		return false
	}
	s.token()
	return s.err == nil
}

// string reads a string. what is used in the message if something else is there.
func (s *scanner) string(what string) string {
	if !s.next(what, "a string", jsontext.KindString) {
		return ""
	}
	quoted := s.value()
	if s.err != nil {
		return ""
	}
	if bytes.IndexByte(quoted, '\\') >= 0 {
		text, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			s.syntax(err)
		}
		return string(text)
	}
	return common(quoted[1 : len(quoted)-1])
}

// common makes a string of b, without allocating it for the words of every entry.
func common(b []byte) string {
	for _, word := range [...]string{"dtype", "shape", "data_offsets", "F16", "BF16", "F32", "I32", "I16"} {
		if string(b) == word {
			return word
		}
	}
	return string(b)
}

// number reads a number and reports whether it was written as an integer without sign.
func (s *scanner) number(what string) (text string, natural bool) {
	if !s.next(what, "a number", jsontext.KindNumber) {
		return "", false
	}
	text = string(s.value())
	return text, !strings.ContainsAny(text, "-.eE")
}

// integer reads an integer from 0 to 2⁶³−1.
func (s *scanner) integer(what string) int64 {
	text, natural := s.number(what)
	if s.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case !natural:
		s.fail("%s %s is not an unsigned integer", what, text)
	case err != nil:
		s.fail("%s %s is above %d", what, text, int64(math.MaxInt64))
	}
	return n
}
