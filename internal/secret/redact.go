package secret

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
)

const redacted = "***"

// Shorter values than these are words that logs are full of. They are replaced only where what
// stands around them says what they are.
const (
	minValue = 6
	minToken = 12 // a user without a password: more often a name than a token
)

// forms returns how a credential may appear in the output of a program: as it is, with the escapes
// of addresses, and as a header has it.
func (u URL) forms() []string {
	var out []string
	add := func(value string, least int, before, after string) {
		if value == "" {
			return
		}
		for _, form := range escapes(value) {
			if len(value) < least {
				form = before + form + after
			}
			out = append(out, form)
		}
	}
	if u.password != "" {
		add(u.password, minValue, ":", "@")
	} else {
		add(u.user, minToken, "//", "@")
	}
	if u.user != "" || u.password != "" {
		out = append(out, base64.StdEncoding.EncodeToString([]byte(u.user+":"+u.password)))
	}
	for _, m := range secretQuery().FindAllStringSubmatch(u.full, -1) {
		add(unescape(m[3]), minValue, m[2], "")
	}
	return out
}

// Forms returns how the secrets of a text may appear in the output of a program: those of the
// addresses in it or, if there are none, the text itself. It is for a [Redactor].
func Forms(text string) []string {
	_, found := Extract(text)
	if len(found) == 0 {
		if len(text) < minValue {
			return nil
		}
		return escapes(text)
	}
	var out []string
	for _, u := range found {
		out = append(out, u.forms()...)
	}
	return out
}

// escapes returns the value and the ways in which programs write it into an address.
func escapes(value string) []string {
	forms := []string{value, url.PathEscape(value), url.QueryEscape(value), url.UserPassword("", value).String()[1:], quote(value, ""), quote(value, "/")}
	for _, f := range forms {
		forms = append(forms, lowerEscapes(f))
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

// quote is Python's: all but letters, digits, _.-~ and what is safe becomes %XX.
func quote(s, safe string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_.-~"+safe, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', hex[c>>4], hex[c&15]})
	}
	return b.String()
}

// lowerEscapes writes %3A as %3a.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// Redactor replaces secrets in a stream of bytes.
type Redactor struct {
	secrets [][]byte // longest first
	first   [256]bool
}

// NewRedactor returns one for these secrets. Empty ones are ignored.
func NewRedactor(secrets []string) *Redactor {
	r := &Redactor{}
	for _, s := range secrets {
		if s != "" {
			r.secrets = append(r.secrets, []byte(s))
			r.first[s[0]] = true
		}
	}
	slices.SortFunc(r.secrets, func(a, b []byte) int { return len(b) - len(a) })
	return r
}

// Empty reports whether there is nothing to replace.
func (r *Redactor) Empty() bool { return len(r.secrets) == 0 }

// Text returns a text with every secret replaced.
func (r *Redactor) Text(text string) string {
	if r.Empty() {
		return text
	}
	clean, _ := r.Append(nil, []byte(text), true)
	return string(clean)
}

// Append appends p to dst with every secret replaced. Unless final, it stops where the rest of p
// could be the beginning of a secret and returns that rest, which is shorter than the longest
// secret.
func (r *Redactor) Append(dst, p []byte, final bool) (out, rest []byte) {
	for len(p) > 0 {
		i := 0
		for i < len(p) && !r.first[p[i]] {
			i++
		}
		dst, p = append(dst, p[:i]...), p[i:]
		if len(p) == 0 {
			break
		}
		n := 1
		for _, s := range r.secrets {
			if bytes.HasPrefix(p, s) {
				n = len(s)
				break
			}
			// A longer secret could still come, so this is asked before the shorter ones.
			if !final && bytes.HasPrefix(s, p) {
				return dst, p
			}
		}
		if n > 1 || r.isSecret(p[:1]) {
			dst = append(dst, redacted...)
		} else {
			dst = append(dst, p[0])
		}
		p = p[n:]
	}
	return dst, nil
}

func (r *Redactor) isSecret(p []byte) bool {
	return slices.ContainsFunc(r.secrets, func(s []byte) bool { return bytes.Equal(s, p) })
}
