package matrix

import (
	"errors"
	"strings"
)

// splitWords splits a line into words as a POSIX shell does: blanks separate, single
// quotes keep everything, double quotes keep all but \" \\ \$ \`, a backslash keeps
// the next character. Nothing is expanded.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t', '\n', '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		case '\'':
			inWord = true
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				return nil, errors.New("the single quote is not closed")
			}
			word.WriteString(s[i+1 : i+1+end])
			i += end + 1
		case '"':
			inWord = true
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
			if i++; i >= len(s) {
				return nil, errors.New("a backslash at the end keeps nothing")
			}
			if s[i] == '\n' {
				continue // the line goes on
			}
			inWord = true
			word.WriteByte(s[i])
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
