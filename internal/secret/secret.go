// Package secret keeps credentials out of everything that kiln writes, prints or hands to others.
// An address enters kiln in one of a few places (a flag, a variable, packages.yml, pip's settings);
// there its credentials are taken out and kept in a [Store], and what travels on is the address
// without them. Where the credentials are used, the store gives them back, as a [URL].
//
// The package also owns which variables of the environment are secrets ([Main]), and the
// [Redactor], the second line of defence, for the output of programs that were given one.
package secret

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// URL is an address with its credentials apart. Every way to write it down (String, JSON, log, fmt)
// gives the address alone; the credentials come from [URL.Full] and [URL.Credentials].
type URL struct {
	address        string
	user, password string
	full           string // "" if there is nothing to hide
}

// Parse takes the credentials out of one address. What is not an address stays as it is.
func Parse(text string) URL {
	clean, found := Extract(text)
	if len(found) == 1 && found[0].address == clean {
		return found[0]
	}
	return URL{address: clean}
}

// String returns the address without credentials.
func (u URL) String() string { return u.address }

// Format implements [fmt.Formatter]: no verb shows the fields.
func (u URL) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(f, "%q", u.address)
		return
	}
	fmt.Fprint(f, u.address)
}

// LogValue implements [slog.LogValuer].
func (u URL) LogValue() slog.Value { return slog.StringValue(u.address) }

// MarshalText implements [encoding.TextMarshaler], and with it JSON.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.address), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (u *URL) UnmarshalText(text []byte) error {
	*u = Parse(string(text))
	return nil
}

// Full returns the address with its credentials. It may be given to the program that connects, in
// its environment or its input; never in its arguments, and never to a file.
func (u URL) Full() string {
	if u.full == "" {
		return u.address
	}
	return u.full
}

// Hidden reports whether Full has anything that String has not.
func (u URL) Hidden() bool { return u.full != "" }

// Credentials returns user and password, decoded; ok is false if there are none.
func (u URL) Credentials() (user, password string, ok bool) {
	return u.user, u.password, u.user != "" || u.password != ""
}

// Basic returns the credentials as the value of an Authorization header, "" if there are none.
func (u URL) Basic() string {
	if user, password, ok := u.Credentials(); ok {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	return ""
}

// reference finds addresses in a text. They end where no address goes on in a log, a command line,
// a YAML or a JSON file.
var reference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("[A-Za-z][A-Za-z0-9+.-]*://[^\\s\"'<>`|\\\\]*(?:\\\\u0026[^\\s\"'<>`|\\\\]*)*")
})

// secretQuery are the parameters of addresses that are credentials: signatures of stores, tokens of
// forges and indexes. A JSON text has \u0026 for &.
var secretQuery = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)([?&]|\\u0026)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|token|(?:access|auth|private|job|api|id|session)[_-]?token|api[_-]?key|password|passwd|pwd|secret|client[_-]secret)=)([^&#\\]+)`)
})

// keptUser are schemes whose user is part of the address: ssh finds the account and the key by it.
var keptUser = []string{"ssh", "git+ssh", "svn+ssh", "sftp"}

// Extract takes the credentials out of all addresses in a text, such as a requirement or an
// argument, and returns the text without them and the addresses that had some.
func Extract(text string) (clean string, found []URL) {
	if !strings.Contains(text, "://") {
		return text, nil
	}
	clean = reference().ReplaceAllStringFunc(text, func(full string) string {
		u := split(full)
		if u.full != "" {
			found = append(found, u)
		}
		return u.address
	})
	return clean, found
}

// Addresses returns the addresses in a text, as they stand there.
func Addresses(text string) []string {
	if !strings.Contains(text, "://") {
		return nil
	}
	return reference().FindAllString(text, -1)
}

// Clean returns a text without the credentials of addresses in it.
func Clean(text string) string {
	clean, _ := Extract(text)
	return clean
}

// Mask returns a text with a * for every character of a credential in an address, so that places in
// it stay the same. It is for showing a line of a file.
func Mask(text []byte) []byte {
	return reference().ReplaceAllFunc(text, func(full []byte) []byte {
		u := split(string(full))
		if u.full == "" {
			return full
		}
		start := bytes.Index(full, []byte("://")) + 3
		end := start + 1 + userinfoEnd(string(full[start:]))
		masked := slices.Concat(full[:start], bytes.Repeat([]byte("*"), max(0, utf8.RuneCount(full[start:end])-1)), full[max(start, end-1):])
		return secretQuery().ReplaceAllFunc(masked, func(m []byte) []byte {
			name, value, _ := bytes.Cut(m, []byte("="))
			return slices.Concat(name, []byte("="), bytes.Repeat([]byte("*"), utf8.RuneCount(value)))
		})
	})
}

// split takes one address apart. What cannot be an address by the rules, with a bare slash in its
// password, is still taken for one: it must not be shown either.
func split(full string) URL {
	scheme, rest, _ := strings.Cut(full, "://")
	u := URL{address: full}
	if at := userinfoEnd(rest); at >= 0 {
		user, password, hasPassword := strings.Cut(rest[:at], ":")
		u.user, u.password = unescape(user), unescape(password)
		kept := ""
		if slices.Contains(keptUser, strings.ToLower(scheme)) {
			kept = user + "@"
		}
		if kept == "" || hasPassword {
			host := rest[at+1:]
			u.full = full
			if hasPassword && strings.ContainsAny(password, "/?#") {
				u.full = scheme + "://" + url.UserPassword(u.user, u.password).String() + "@" + host
			}
			for more := userinfoEnd(host); more >= 0; more = userinfoEnd(host) {
				host = host[more+1:] // no address, so nothing of it is shown
			}
			u.address = scheme + "://" + kept + host
		} else {
			u.user = ""
		}
	}
	if clean := secretQuery().ReplaceAllString(u.address, "${1}${2}"+redacted); clean != u.address {
		u.address, u.full = clean, full
	}
	return u
}

// userinfoEnd returns where the @ behind the credentials is, or -1.
func userinfoEnd(rest string) int {
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		return at
	}
	// user:pass/word@host: by the rules a host with a port that is no number.
	host, port, ok := strings.Cut(authority, ":")
	if !ok || strings.HasPrefix(host, "[") || strings.Trim(port, "0123456789") == "" {
		return -1
	}
	return strings.LastIndexByte(rest, '@')
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
