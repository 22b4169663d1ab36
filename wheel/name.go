package wheel

import (
	"strconv"
	"strings"
)

// ValidName reports whether s is a project name as PEP 508 and the core
// metadata define it: ASCII letters, digits, '.', '_' and '-', beginning and
// ending with a letter or digit.
func ValidName(s string) bool {
	if s == "" || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && !isSeparator(s[i]) {
			return false
		}
	}
	return true
}

// NormalizeName returns the PEP 503 form of a project name: lower case, every
// run of '-', '_' and '.' replaced by one '-'. Names are equal if and only if
// their normalized forms are. It does not validate; see [ValidName].
func NormalizeName(s string) string {
	if isNormalizedName(s) {
		return s
	}
	return foldName(s, '-')
}

// FileName returns the form in which a project name stands in the names of
// wheels, sdists and dist-info folders (PEP 427, PEP 625): normalized, with
// '_' in place of '-'.
func FileName(name string) string { return foldName(name, '_') }

// foldName lowers ASCII letters and replaces runs of separators by sep.
func foldName(s string, sep byte) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case !isSeparator(c):
			b.WriteByte(lower(c))
		case i == 0 || !isSeparator(s[i-1]):
			b.WriteByte(sep)
		}
	}
	return b.String()
}

func isNormalizedName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c == '_' || c == '.' || 'A' <= c && c <= 'Z' || c == '-' && i > 0 && s[i-1] == '-' {
			return false
		}
	}
	return true
}

// asciiSpace is the white space PEP 440 lets surround versions and specifiers.
const asciiSpace = " \t\n\r\f\v"

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isAlnum(c byte) bool { return isDigit(c) || isLetter(c) }

func isSeparator(c byte) bool { return c == '-' || c == '_' || c == '.' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// lowerASCII is strings.ToLower without Unicode: no letter outside ASCII may
// turn into one inside it.
func lowerASCII(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for j := i; j < len(b); j++ {
				b[j] = lower(b[j])
			}
			return string(b)
		}
	}
	return s
}

// quote quotes foreign text for an error message and cuts it to a length that
// a terminal and a log can bear.
func quote(s string) string {
	const limit = 256
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "…"
	}
	return strconv.Quote(s)
}
