package launcher

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strings"
)

// DepTarget stands for the name of the object in dependency lists while they are in the cache: the name is another one
// for each Python, and the list is part of the result.
const DepTarget = "kiln"

// depFile is the dependency list of one call.
type depFile struct {
	path   string // where the compiler writes it
	kept   string // a copy for the record
	target string // what the caller wants to read in it; "" if the caller wants no list
}

// dependencies says where the list of a call goes.
func (c *call) dependencies(cwd, kept string) depFile {
	d := depFile{path: kept, kept: kept}
	if !c.wantDeps {
		return d
	}
	d.path = c.depPath
	if d.path == "" {
		d.path = strings.TrimSuffix(c.output, path.Ext(c.output)) + ".d"
	}
	d.path = absolute(cwd, d.path)
	if d.target = strings.Join(c.targets, " "); d.target == "" {
		d.target = strings.NewReplacer("$", "$$", " ", `\ `, "#", `\#`).Replace(c.output)
	}
	return d
}

// finish gives the caller the list as it was asked for, and keeps one.
func (d depFile) finish() error {
	text, err := os.ReadFile(d.path)
	if err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(text, " \n"), []byte(DepTarget))
	if !ok || !bytes.HasPrefix(bytes.TrimLeft(rest, " "), []byte(":")) {
		return errors.New(d.path + " does not begin with its target")
	}
	if d.target == "" {
		return nil
	}
	if err := os.WriteFile(d.kept, text, 0o666); err != nil {
		return err
	}
	// Never half a list: what reads it does so when the call has ended, and a killed call is no call.
	temp := d.path + ".kiln"
	if err := os.WriteFile(temp, append([]byte(d.target), rest...), 0o666); err != nil {
		return err
	}
	return os.Rename(temp, d.path)
}

// ParseDeps returns the files of a dependency list in make's syntax, without the target, in order and without repetitions.
func ParseDeps(text []byte) []string {
	var files []string
	seen := map[string]bool{}
	var word []byte
	target := true
	end := func() {
		if len(word) == 0 {
			return
		}
		name := string(word)
		word = word[:0]
		if target {
			if strings.HasSuffix(name, ":") {
				target = false
			}
			return
		}
		if !seen[name] {
			seen[name] = true
			files = append(files, name)
		}
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		next := byte(0)
		if i+1 < len(text) {
			next = text[i+1]
		}
		switch {
		case c == '\\' && next == '\n':
			end()
			i++
		case c == '\\' && next == '\r' && i+2 < len(text) && text[i+2] == '\n':
			end()
			i += 2
		case c == '\\' && (next == ' ' || next == '#' || next == '\\'):
			word = append(word, next)
			i++
		case c == '$' && next == '$':
			word = append(word, '$')
			i++
		case c == '\n':
			end()
			target = true // another rule: the empty ones of -MP
		case c == ' ' || c == '\t' || c == '\r':
			end()
			if target && len(files) == 0 && next == ':' {
				target, i = false, i+1 // "target : files"
			}
		default:
			word = append(word, c)
		}
	}
	end()
	return files
}
