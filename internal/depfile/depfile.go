// Package depfile reads and writes the dependency lists of compilers: rules of make that name an
// object and the files that were read for it.
package depfile

// Parse returns the files of a dependency list, without the targets, in order and without
// repetitions. Text that is no such list gives whatever can be read in it.
//
// Names are escaped as GCC, clang and nvcc do it, which is how GNU make and ninja read them: before
// a blank, 2N+1 backslashes are N and the blank, 2N are N and the end of the name; a backslash
// before # or : goes; elsewhere a backslash is itself, as in paths on Windows; $$ is $.
func Parse(text []byte) []string {
	var files []string
	seen := map[string]bool{}
	var word []byte
	inFiles := false
	end := func() {
		if len(word) == 0 {
			return
		}
		name := string(word)
		word = word[:0]
		switch {
		case !inFiles:
			inFiles = name[len(name)-1] == ':' // "a.o:", and "a.o :" of nvcc
		case !seen[name]:
			seen[name] = true
			files = append(files, name)
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			slashes := 1
			for i+slashes < len(text) && text[i+slashes] == '\\' {
				slashes++
			}
			i += slashes - 1
			next := at(text, i+1)
			switch {
			case next == ' ' || next == '\t':
				word = appendSlashes(word, slashes/2)
				if slashes%2 == 1 {
					word = append(word, next)
					i++
				}
			case next == '#', next == ':' && !isBlank(at(text, i+2)):
				word = append(appendSlashes(word, slashes-1), next)
				i++
			case next == '\n', next == '\r' && at(text, i+2) == '\n':
				word = appendSlashes(word, slashes-1)
				end() // the rule goes on in the next line
				if i++; next == '\r' {
					i++
				}
			default:
				word = appendSlashes(word, slashes)
			}
		case c == '$' && at(text, i+1) == '$':
			word = append(word, '$')
			i++
		case c == '\n':
			end()
			inFiles = false // another rule: the empty ones of -MP
		case isBlank(c):
			end()
		default:
			word = append(word, c)
		}
	}
	end()
	return files
}

// Escape writes a name as [Parse] reads it, with a blank or a colon behind it.
func Escape(name string) string {
	var out []byte
	slashes := 0
	for i := range len(name) {
		switch c := name[i]; c {
		case '\\':
			slashes++
			out = append(out, c)
			continue
		case ' ', '\t':
			out = append(appendSlashes(out, slashes), '\\', c)
		case '#':
			out = append(out, '\\', c)
		case '$':
			out = append(out, '$', c)
		default:
			out = append(out, c)
		}
		slashes = 0
	}
	return string(out)
}

// at returns a byte, a blank behind the end.
func at(text []byte, i int) byte {
	if i < len(text) {
		return text[i]
	}
	return '\n'
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func appendSlashes(b []byte, n int) []byte {
	for range n {
		b = append(b, '\\')
	}
	return b
}
