package secret

import (
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// AddNetRC keeps the credentials that ~/.netrc, or the file in NETRC, has for the host of an
// address without any of its own. A file that cannot be read has none, as for other programs.
func (s *Store) AddNetRC(address string) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || s.URL(address).Hidden() {
		return
	}
	path := os.Getenv("NETRC")
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return
		}
		name := ".netrc"
		if runtime.GOOS == "windows" {
			name = "_netrc"
		}
		path = filepath.Join(home, name)
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if user, password, ok := netrc(string(text), u.Hostname()); ok {
		u.User = url.UserPassword(user, password)
		s.Add(Parse(u.String()))
	}
}

// netrc finds the entry of a host: the first that names it, else the default one, which ends the
// file. Words may be quoted; what follows # where a keyword could be is a comment.
func netrc(text, host string) (user, password string, ok bool) {
	here, macro := false, false
	word := ""
	for line := range strings.Lines(text) {
		if macro { // until an empty line
			macro = strings.TrimSpace(line) != ""
			continue
		}
		for rest := strings.TrimSpace(line); rest != "" && (rest[0] != '#' || word != ""); rest = strings.TrimSpace(rest) {
			var value string
			value, rest = netrcWord(rest)
			switch word {
			case "machine":
				here, word = strings.EqualFold(value, host), ""
				continue
			case "login", "password", "account", "macdef":
				if here && word == "login" {
					user = value
				}
				if here && word == "password" {
					password = value
				}
				macro = word == "macdef"
				word = ""
				continue
			}
			word = value
			if (value == "machine" || value == "default") && here && (user != "" || password != "") {
				return user, password, true
			}
			if value == "default" {
				here, word = true, ""
			}
		}
	}
	return user, password, here && (user != "" || password != "")
}

func netrcWord(text string) (word, rest string) {
	if text[0] != '"' {
		if at := strings.IndexAny(text, " \t\r\n"); at >= 0 {
			return text[:at], text[at:]
		}
		return text, ""
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return b.String(), text[i+1:]
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}
