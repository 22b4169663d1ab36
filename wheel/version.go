package wheel

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Version is a PEP 440 version. It is immutable; the zero value is no version
// and sorts as "0" would.
//
// Numbers have no upper bound: they are kept as the digits that were read and
// never pass through a machine integer. All parts are slices of the text given
// to [ParseVersion], so parsing does not allocate.
//
// The == operator compares spellings. Use [Version.Equal] to compare versions:
// 1.0, v1 and 1.0.0 are equal.
type Version struct {
	raw     string
	epoch   string // digits as written, "" if absent
	release string // dotted digits as written
	local   string // as written, without the '+', "" if absent
	preN    string // digits as written, "" means 0
	postN   string
	devN    string
	pre     preKind
	post    bool
	dev     bool
}

// preKind is the pre-release phase, in the order of PEP 440.
type preKind uint8

const (
	preNone preKind = iota
	preAlpha
	preBeta
	preCandidate
)

var preNames = [...]string{preAlpha: "a", preBeta: "b", preCandidate: "rc"}

// marker is one spelling of a suffix. Longer spellings come before their
// prefixes because the first match is taken.
type marker struct {
	text string
	pre  preKind
}

var (
	preMarkers = []marker{
		{"alpha", preAlpha},
		{"a", preAlpha},
		{"beta", preBeta},
		{"b", preBeta},
		{"preview", preCandidate},
		{"pre", preCandidate},
		{"rc", preCandidate},
		{"c", preCandidate},
	}
	postMarkers = []marker{{text: "post"}, {text: "rev"}, {text: "r"}}
	devMarkers  = []marker{{text: "dev"}}
)

// ParseVersion reads a version in any spelling PEP 440 permits, such as
// "1.0-RC.1" or " v2.9.0+cu128-torch2.9 ".
func ParseVersion(s string) (Version, error) {
	text := strings.Trim(s, asciiSpace)
	v, rest := scanVersion(text)
	if rest == "" && v.release != "" {
		return v, nil
	}
	return Version{}, fmt.Errorf("version %s: %w", quote(s), versionProblem(v, text, rest))
}

// scanVersion reads the longest version at the start of s and returns what
// follows it. Without a version, rest is s.
//
// Each part takes its longest match and never gives it back, which is what the
// grammar means: "1.0a-1" is alpha 1, not the first post-release of alpha 0.
func scanVersion(s string) (v Version, rest string) {
	body := s
	if body != "" && lower(body[0]) == 'v' {
		body = body[1:]
	}
	number, rest := cutDigits(body)
	if number != "" && strings.HasPrefix(rest, "!") {
		v.epoch, body = number, rest[1:]
		number, rest = cutDigits(body)
	}
	if number == "" {
		return Version{}, s
	}
	for len(rest) > 1 && rest[0] == '.' && isDigit(rest[1]) {
		_, rest = cutDigits(rest[1:])
	}
	v.release = body[:len(body)-len(rest)]

	if rest != "" { // most versions end here
		if m, n, after, ok := cutMarker(rest, preMarkers); ok {
			v.pre, v.preN, rest = m.pre, n, after
		}
		if len(rest) > 1 && rest[0] == '-' && isDigit(rest[1]) {
			v.post = true
			v.postN, rest = cutDigits(rest[1:])
		} else if _, n, after, ok := cutMarker(rest, postMarkers); ok {
			v.post, v.postN, rest = true, n, after
		}
		if _, n, after, ok := cutMarker(rest, devMarkers); ok {
			v.dev, v.devN, rest = true, n, after
		}
		if len(rest) > 1 && rest[0] == '+' && isAlnum(rest[1]) {
			end := 2
			for end < len(rest) && (isAlnum(rest[end]) ||
				isSeparator(rest[end]) && end+1 < len(rest) && isAlnum(rest[end+1])) {
				end++
			}
			v.local, rest = rest[1:end], rest[end:]
		}
	}
	v.raw = s[:len(s)-len(rest)]
	return v, rest
}

// cutMarker reads [sep] marker [sep] [digits].
func cutMarker(s string, markers []marker) (m marker, number, rest string, ok bool) {
	rest = s
	if rest != "" && isSeparator(rest[0]) {
		rest = rest[1:]
	}
	for _, m := range markers {
		if !hasPrefixFold(rest, m.text) {
			continue
		}
		rest = rest[len(m.text):]
		if rest != "" && isSeparator(rest[0]) {
			rest = rest[1:]
		}
		number, rest = cutDigits(rest)
		return m, number, rest, true
	}
	return marker{}, "", s, false
}

func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// hasPrefixFold reports whether s begins with prefix, which is lower case.
func hasPrefixFold(s, prefix string) bool {
	if len(s) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if lower(s[i]) != prefix[i] {
			return false
		}
	}
	return true
}

// versionProblem says why text, of which rest was left over, is no version.
func versionProblem(v Version, text, rest string) error {
	switch {
	case text == "":
		return errors.New("empty")
	case v.release == "":
		return errors.New("does not begin with a number")
	case rest == ".*":
		return errors.New(`".*" belongs in a specifier, not in a version`)
	case strings.HasPrefix(rest, "+") && v.local == "":
		return fmt.Errorf("local version %s is not made of letters and digits separated by '.', '-' or '_'", quote(rest))
	case len(rest) > 1 && rest[0] == '_' && isDigit(rest[1]):
		return fmt.Errorf("%s: a post-release without \"post\" is written with '-'", quote(rest))
	default:
		return fmt.Errorf("unexpected %s after %s", quote(rest), quote(v.raw))
	}
}

// IsZero reports whether v is the zero Version, which no text parses to.
func (v Version) IsZero() bool { return v.release == "" }

// Raw returns the text v was read from, without surrounding white space.
// Folders inside a wheel are named after it, not after the normal form.
func (v Version) Raw() string { return v.raw }

// String returns the normal form of PEP 440, such as "1!2.0rc1.post3.dev4+cu128.torch2.9".
// Trailing zeros of the release stay, so equal versions may have two normal forms.
func (v Version) String() string {
	var buf [64]byte
	return v.text(v.appendLocal(v.appendPublic(buf[:0], false)))
}

// Public returns the normal form without the local version.
func (v Version) Public() string {
	var buf [64]byte
	return v.text(v.appendPublic(buf[:0], false))
}

// Base returns the normal form of epoch and release alone.
func (v Version) Base() string {
	var buf [64]byte
	return v.text(v.appendBase(buf[:0], false))
}

// Local returns the normal form of the local version without its '+', or "".
func (v Version) Local() string {
	var buf [64]byte
	b := v.appendLocal(buf[:0])
	if len(b) == 0 {
		return ""
	}
	if string(b[1:]) == v.local {
		return v.local
	}
	return string(b[1:])
}

// text converts b, avoiding the copy if the raw text already reads so.
func (v Version) text(b []byte) string {
	if len(b) <= len(v.raw) && v.raw[:len(b)] == string(b) {
		return v.raw[:len(b)]
	}
	return string(b)
}

// appendBase appends epoch and release; with trim it omits the release's
// trailing zeros, which gives equal versions equal text.
func (v Version) appendBase(b []byte, trim bool) []byte {
	if v.IsZero() {
		return b
	}
	if epoch := significant(v.epoch); epoch != "" {
		b = append(append(b, epoch...), '!')
	}
	number, rest, more := strings.Cut(v.release, ".")
	b = appendNumber(b, number)
	end := len(b)
	for more {
		number, rest, more = strings.Cut(rest, ".")
		b = appendNumber(append(b, '.'), number)
		if significant(number) != "" {
			end = len(b)
		}
	}
	if trim {
		b = b[:end]
	}
	return b
}

func (v Version) appendPublic(b []byte, trim bool) []byte {
	b = v.appendBase(b, trim)
	if v.pre != preNone {
		b = appendNumber(append(b, preNames[v.pre]...), v.preN)
	}
	if v.post {
		b = appendNumber(append(b, ".post"...), v.postN)
	}
	if v.dev {
		b = appendNumber(append(b, ".dev"...), v.devN)
	}
	return b
}

func (v Version) appendLocal(b []byte) []byte {
	sep := byte('+')
	for rest := v.local; rest != ""; sep = '.' {
		var segment string
		segment, rest = cutSegment(rest)
		b = append(b, sep)
		if isNumber(segment) {
			b = appendNumber(b, segment)
			continue
		}
		for i := range len(segment) {
			b = append(b, lower(segment[i]))
		}
	}
	return b
}

// Epoch returns the digits of the epoch, "0" if none was written.
func (v Version) Epoch() string { return decimal(v.epoch) }

// Release returns the numbers of the release, each as digits without leading
// zeros. The caller owns the slice.
func (v Version) Release() []string {
	if v.IsZero() {
		return nil
	}
	parts := strings.Split(v.release, ".")
	for i, p := range parts {
		parts[i] = decimal(p)
	}
	return parts
}

// Pre returns the pre-release phase ("a", "b" or "rc") and its number.
func (v Version) Pre() (phase, digits string, ok bool) {
	if v.pre == preNone {
		return "", "", false
	}
	return preNames[v.pre], decimal(v.preN), true
}

// Post returns the number of the post-release.
func (v Version) Post() (digits string, ok bool) {
	if !v.post {
		return "", false
	}
	return decimal(v.postN), true
}

// Dev returns the number of the development release.
func (v Version) Dev() (digits string, ok bool) {
	if !v.dev {
		return "", false
	}
	return decimal(v.devN), true
}

// IsPrerelease reports whether v is an alpha, beta, candidate or development
// release, which installers take only when asked to.
func (v Version) IsPrerelease() bool { return v.pre != preNone || v.dev }

// IsPostrelease reports whether v has a post-release part.
func (v Version) IsPostrelease() bool { return v.post }

// IsDevrelease reports whether v has a development part.
func (v Version) IsDevrelease() bool { return v.dev }

// WithLocal returns the normal form of v with its local version replaced, or
// removed if local is empty. Any separator is accepted, so a build tag such as
// "cu128-torch2.9.0" becomes "+cu128.torch2.9.0", the only spelling that is
// legal inside a file name.
func (v Version) WithLocal(local string) (Version, error) {
	if v.IsZero() {
		return Version{}, errors.New("local version of an empty version")
	}
	text := v.Public()
	if local != "" {
		labelled, rest := scanVersion(text + "+" + local)
		if rest != "" || labelled.local == "" {
			return Version{}, fmt.Errorf("local version %s is not made of letters and digits separated by '.', '-' or '_'", quote(local))
		}
		text = labelled.String()
	}
	return ParseVersion(text)
}

// MarshalText returns the normal form.
func (v Version) MarshalText() ([]byte, error) {
	return v.appendLocal(v.appendPublic(nil, false)), nil
}

// UnmarshalText is [ParseVersion].
func (v *Version) UnmarshalText(text []byte) error {
	parsed, err := ParseVersion(string(text))
	if err == nil {
		*v = parsed
	}
	return err
}

// Equal reports whether v and w are the same version in possibly different
// spellings.
func (v Version) Equal(w Version) bool { return v.Compare(w) == 0 }

// Compare orders versions as PEP 440 does and returns -1, 0 or +1.
//
// The local version takes part in the order, as text unless a segment is all
// digits: 1.0 < 1.0+cu128 < 1.0+cu92 < 1.0+rocm6.4 < 1.0+1.
func (v Version) Compare(w Version) int {
	if c := v.comparePublic(&w); c != 0 {
		return c
	}
	return compareLocal(v.local, w.local)
}

// comparePublic compares all but the local versions.
func (v *Version) comparePublic(w *Version) int {
	if c := compareDigits(v.epoch, w.epoch); c != 0 {
		return c
	}
	if c := compareRelease(v.release, w.release); c != 0 {
		return c
	}
	return v.compareSuffix(w)
}

// compareSuffix compares what follows the release.
func (v *Version) compareSuffix(w *Version) int {
	if !v.hasSuffix() && !w.hasSuffix() { // most versions
		return 0
	}
	return cmp.Or(
		cmp.Compare(v.preRank(), w.preRank()), compareDigits(v.preN, w.preN),
		compareBool(v.post, w.post), compareDigits(v.postN, w.postN),
		compareBool(w.dev, v.dev), compareDigits(v.devN, w.devN), // having dev sorts first
	)
}

func (v *Version) hasSuffix() bool { return v.pre != preNone || v.post || v.dev }

// preRank places a bare development release before every pre-release and a
// version without either after them: 1.0.dev1 < 1.0a1 < 1.0rc1 < 1.0.
func (v *Version) preRank() int {
	switch {
	case v.pre != preNone:
		return int(v.pre)
	case v.dev && !v.post:
		return 0
	default:
		return int(preCandidate) + 1
	}
}

// compareRelease treats missing components as zeros.
func compareRelease(a, b string) int {
	if a == b {
		return 0
	}
	for a != "" || b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, ".")
		y, b, _ = strings.Cut(b, ".")
		if c := compareDigits(x, y); c != 0 {
			return c
		}
	}
	return 0
}

// compareLocal compares local versions segment by segment: numbers after
// words, numbers as numbers, words as ASCII, a prefix before what it begins.
func compareLocal(a, b string) int {
	for a != "" && b != "" {
		var x, y string
		x, a = cutSegment(a)
		y, b = cutSegment(b)
		xn, yn := isNumber(x), isNumber(y)
		var c int
		switch {
		case xn != yn:
			c = compareBool(xn, yn)
		case xn:
			c = compareDigits(x, y)
		default:
			c = compareFold(x, y)
		}
		if c != 0 {
			return c
		}
	}
	return compareBool(a != "", b != "")
}

// compareDigits compares decimal numbers of any length; "" is 0.
func compareDigits(a, b string) int {
	a, b = significant(a), significant(b)
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

func compareFold(a, b string) int {
	for i := range min(len(a), len(b)) {
		if c := cmp.Compare(lower(a[i]), lower(b[i])); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// significant removes leading zeros; zero itself becomes "".
func significant(digits string) string {
	i := 0
	for i < len(digits) && digits[i] == '0' {
		i++
	}
	return digits[i:]
}

// decimal removes leading zeros; zero becomes "0".
func decimal(digits string) string {
	if s := significant(digits); s != "" {
		return s
	}
	return "0"
}

func appendNumber(b []byte, digits string) []byte { return append(b, decimal(digits)...) }

func isNumber(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// cutSegment splits a local version after its first segment.
func cutSegment(local string) (segment, rest string) {
	for i := range len(local) {
		if isSeparator(local[i]) {
			return local[:i], local[i+1:]
		}
	}
	return local, ""
}
