package matrix

import (
	"errors"
	"strings"
)

// shellWord is one word of a line, with the bytes of the line that it was written with.
type shellWord struct {
	text       string
	start, end int
}

// splitWords splits a line into words as a POSIX shell does: blanks separate, single
// quotes keep everything, double quotes keep all but \" \\ \$ \`, a backslash keeps
// the next character. Nothing is expanded.
func splitWords(s string) ([]shellWord, error) {
	var words []shellWord
	var word strings.Builder
	start := -1 // where the word began, or -1 between words
	end := func(at int) {
		if start >= 0 {
			words = append(words, shellWord{word.String(), start, at})
			word.Reset()
			start = -1
		}
	}
	begin := func(at int) {
		if start < 0 {
			start = at
		}
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t', '\n', '\r':
			end(i)
		case '\'':
			begin(i)
			n := strings.IndexByte(s[i+1:], '\'')
			if n < 0 {
				return nil, errors.New("the single quote is not closed")
			}
			word.WriteString(s[i+1 : i+1+n])
			i += n + 1
		case '"':
			begin(i)
			for i++; ; i++ {
				if i >= len(s) {
					return nil, errors.New("the double quote is not closed")
				}
				if s[i] == '"' {
					break
				}
				if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("\"\\$`\n", s[i+1]) >= 0 {
					if i++; s[i] == '\n' {
						continue
					}
				}
				word.WriteByte(s[i])
			}
		case '\\':
			at := i
			if i++; i >= len(s) {
				return nil, errors.New("a backslash at the end keeps nothing")
			}
			if s[i] == '\n' {
				continue // the line goes on
			}
			begin(at)
			word.WriteByte(s[i])
		default:
			begin(i)
			word.WriteByte(c)
		}
	}
	end(len(s))
	return words, nil
}

// wordTexts returns the words alone.
func wordTexts(words []shellWord) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w.text
	}
	return out
}
