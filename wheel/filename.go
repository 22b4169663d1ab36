package wheel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Filename is the parsed name of a wheel (PEP 427, PEP 491).
type Filename struct {
	// Name is the normalized project name.
	Name string
	// RawName is the name as the file spells it. The dist-info folder inside
	// the wheel is named after RawName and Version.Raw.
	RawName string
	Version Version
	// Build is the build tag, which breaks ties between wheels of one version.
	Build BuildTag
	// Python, ABI and Platform are the members of the compressed tag set, in
	// lower case, in the order written, each once.
	Python, ABI, Platform []string
	// Label is the variant label of PEP 825 (a draft), empty for ordinary wheels.
	Label string
}

// FilenameOptions changes how [ParseFilenameOptions] reads a name.
type FilenameOptions struct {
	// Variants accepts a variant label as last part (PEP 825). The format is a
	// draft; without the option such names are errors, as they are to pip.
	Variants bool
}

// maxFilename leaves room for the suffixes .metadata and .provenance below the
// 255 bytes file systems allow.
const maxFilename = 240

// ParseFilename reads the name of a wheel. It accepts what the reference
// implementation accepts, within stricter limits that keep a name safe to use
// in a path, a URL and a page: ASCII letters, digits and "._+!-" only, at most
// 240 bytes, a valid project name, at most 1000 tags.
//
// A name that can be read need not be one to produce; a file is named properly
// if its name equals the String of the result.
func ParseFilename(s string) (Filename, error) {
	return ParseFilenameOptions(s, FilenameOptions{})
}

// ParseFilenameOptions is [ParseFilename] with options.
func ParseFilenameOptions(s string, o FilenameOptions) (Filename, error) {
	f, err := parseFilename(s, o)
	if err != nil {
		return Filename{}, fmt.Errorf("wheel name %s: %w", quote(s), err)
	}
	return f, nil
}

func parseFilename(s string, o FilenameOptions) (f Filename, err error) {
	if err := checkFilename(s); err != nil {
		return f, err
	}
	stem, ok := strings.CutSuffix(s, ".whl")
	if !ok {
		return f, errors.New(`does not end in ".whl"`)
	}
	parts := strings.Split(stem, "-")
	f, err = parseParts(parts, o)
	if err != nil || f.Label != "" {
		if meant := misplacedDash(parts); meant != nil {
			return f, meant
		}
	}
	return f, err
}

// parseParts assigns the parts of a name that stand between its dashes.
func parseParts(parts []string, o FilenameOptions) (f Filename, err error) {
	if len(parts) < 5 {
		return f, fmt.Errorf("has %d parts separated by '-', not name, version, python tag, abi tag and platform tag", len(parts))
	}
	tags := parts[2:]
	if isBuildTag := tags[0] != "" && isDigit(tags[0][0]); isBuildTag && len(tags) > 3 {
		if f.Build, err = parseBuildTag(tags[0]); err != nil {
			return f, err
		}
		tags = tags[1:]
	}
	switch {
	case len(tags) == 4 && o.Variants:
		if f.Label, err = parseLabel(tags[3]); err != nil {
			return f, err
		}
	case len(tags) == 4 && f.Build.IsZero():
		return f, fmt.Errorf("build tag %s does not start with a digit", quote(tags[0]))
	case len(tags) != 3:
		return f, fmt.Errorf("has %d parts separated by '-', more than a name can have", len(parts))
	}

	f.RawName = parts[0]
	switch {
	case f.RawName == "":
		return f, errors.New("project name is empty")
	case strings.Contains(f.RawName, "__"):
		return f, fmt.Errorf("project name %s contains \"__\"", quote(f.RawName))
	case !ValidName(f.RawName):
		return f, fmt.Errorf("project name %s is not valid", quote(f.RawName))
	}
	f.Name = NormalizeName(f.RawName)
	if f.Version, err = ParseVersion(parts[1]); err != nil {
		return f, err
	}
	set, err := parseTagSet(tags[0], tags[1], tags[2])
	if err != nil {
		return f, err
	}
	f.Python, f.ABI, f.Platform = set.python, set.abi, set.platform
	return f, nil
}

// checkFilename applies the rules that make a foreign name harmless, before
// anything else looks at it.
func checkFilename(s string) error {
	if len(s) > maxFilename {
		return fmt.Errorf("has %d bytes, more than %d", len(s), maxFilename)
	}
	for i, r := range s {
		if r > 'z' || !isAlnum(byte(r)) && !strings.ContainsRune("._+!-", r) {
			return fmt.Errorf("character %q at byte %d", r, i)
		}
	}
	if s == "" {
		return errors.New("empty")
	}
	if s[0] == '.' || s[0] == '-' {
		return fmt.Errorf("starts with %q", s[0])
	}
	if device, _, _ := strings.Cut(lowerASCII(s), "."); isDeviceName(device) {
		return fmt.Errorf("%q is a device on Windows", s[:len(device)])
	}
	return nil
}

// isDeviceName reports whether Windows takes every file called s, whatever its
// extension, for a device.
func isDeviceName(s string) bool {
	switch s {
	case "con", "prn", "aux", "nul":
		return true
	}
	return len(s) == 4 && (s[:3] == "com" || s[:3] == "lpt") && isDigit(s[3])
}

// misplacedDash recognizes the two common ways of shifting the parts of a name
// by a '-' too many, and gives the name that was meant. Installers skip such
// files without a word, so the message has to be better than "invalid".
func misplacedDash(parts []string) error {
	n := len(parts)
	if n < 6 || !looksLikeTag(parts[n-3], parts[n-1]) {
		return nil
	}
	// Before the tags stand the version and perhaps a build tag, in pieces.
	ends := []int{n - 3}
	if last := parts[n-4]; n > 6 && isDigit(first(last)) && !strings.Contains(last, ".") {
		ends = []int{n - 4, n - 3}
	}
	inLocal := strings.Contains(parts[1], "+") && !isDigit(first(parts[2]))
	inName := !isDigit(first(parts[1]))
	for _, end := range ends {
		switch {
		case inLocal:
			version := strings.Join(parts[1:end], "-")
			if meant := rightName(parts[0], version, parts[end:]); meant != "" {
				return fmt.Errorf("'-' inside the local version of %s; the right name is %s", quote(version), quote(meant))
			}
		case inName:
			name := strings.Join(parts[:end-1], "-")
			if meant := rightName(name, parts[end-1], parts[end:]); meant != "" {
				return fmt.Errorf("'-' inside the project name %s; the right name is %s", quote(name), quote(meant))
			}
		}
	}
	return nil
}

// rightName returns the canonical wheel name made of the parts, or "" if they
// do not make one.
func rightName(name, version string, tail []string) string {
	v, err := ParseVersion(version)
	if err != nil {
		return ""
	}
	f, err := parseParts(append([]string{FileName(name), v.String()}, tail...), FilenameOptions{})
	if err != nil || len(f.String()) > maxFilename {
		return ""
	}
	return f.String()
}

// looksLikeTag reports whether two parts are surely a Python and a platform
// tag, which with variants keeps a platform from being taken for a label. Case
// and order in a set do not count, so that a name and its canonical form are
// judged alike.
func looksLikeTag(python, platform string) bool {
	return anyMember(python, func(tag string) bool {
		return len(tag) > 2 && isDigit(tag[2]) && slices.Contains([]string{"py", "cp", "pp", "ip", "jy"}, tag[:2])
	}) && anyMember(platform, func(tag string) bool {
		system, _, ok := strings.Cut(tag, "_")
		return tag == "any" || tag == "win32" ||
			ok && slices.Contains([]string{"linux", "win", "macosx", "manylinux", "manylinux1", "manylinux2010", "manylinux2014", "musllinux"}, system)
	})
}

func anyMember(set string, is func(string) bool) bool {
	return slices.ContainsFunc(strings.Split(strings.ToLower(set), "."), is)
}

func first(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

func parseLabel(s string) (string, error) {
	if s == "" {
		return "", errors.New("variant label is empty")
	}
	if strings.ContainsFunc(s, func(r rune) bool { return 'A' <= r && r <= 'Z' || r == '+' || r == '!' }) {
		return "", fmt.Errorf("variant label %s has a character other than lower-case letters, digits, '_' and '.'", quote(s))
	}
	return s, nil
}

// String returns the canonical name: the project name in its file form, the
// version in normal form, the members of each tag set sorted.
func (f Filename) String() string {
	name := FileName(f.Name) + "-" + f.Version.String()
	if !f.Build.IsZero() {
		name += "-" + f.Build.String()
	}
	name += "-" + joinSorted(f.Python) + "-" + joinSorted(f.ABI) + "-" + joinSorted(f.Platform)
	if f.Label != "" {
		name += "-" + f.Label
	}
	return name + ".whl"
}

func joinSorted(members []string) string {
	if slices.IsSorted(members) {
		return strings.Join(members, ".")
	}
	return strings.Join(slices.Sorted(slices.Values(members)), ".")
}

// Tags expands the compressed tag set, Python tag outermost. A parsed name has
// at most 1000. The caller owns the slice.
func (f Filename) Tags() []Tag { return tagSet{f.Python, f.ABI, f.Platform}.expand() }

// BuildTag is the optional third part of a wheel name, a number and an
// arbitrary rest. The zero value means that there is none.
type BuildTag struct {
	// Number is decimal digits as written; it has no upper bound.
	Number string
	// Suffix is what follows the number.
	Suffix string
}

func parseBuildTag(s string) (BuildTag, error) {
	number, suffix := cutDigits(s)
	if strings.ContainsAny(suffix, "+!") {
		return BuildTag{}, fmt.Errorf("build tag %s has a character other than letters, digits, '_' and '.'", quote(s))
	}
	return BuildTag{number, suffix}, nil
}

// IsZero reports whether there is no build tag.
func (b BuildTag) IsZero() bool { return b == BuildTag{} }

// String returns the tag as written.
func (b BuildTag) String() string { return b.Number + b.Suffix }

// Compare orders build tags by number, then by suffix; no tag sorts lowest.
func (b BuildTag) Compare(c BuildTag) int {
	return cmp.Or(
		compareBool(!b.IsZero(), !c.IsZero()),
		compareDigits(b.Number, c.Number),
		strings.Compare(b.Suffix, c.Suffix),
	)
}

// SdistName is the parsed name of a source distribution (PEP 625).
type SdistName struct {
	// Name is the normalized project name, RawName the one the file spells.
	Name, RawName string
	Version       Version
	// Ext is ".tar.gz", or ".zip" for archives older than PEP 625. Empty means
	// ".tar.gz".
	Ext string
}

// ParseSdistName reads the name of a source distribution. Old files may have a
// '-' in their project name, so the version begins after the last one.
// The limits of [ParseFilename] apply.
func ParseSdistName(s string) (SdistName, error) {
	n, err := parseSdistName(s)
	if err != nil {
		return SdistName{}, fmt.Errorf("sdist name %s: %w", quote(s), err)
	}
	return n, nil
}

func parseSdistName(s string) (n SdistName, err error) {
	if err := checkFilename(s); err != nil {
		return n, err
	}
	stem := s
	for _, ext := range []string{".tar.gz", ".zip"} {
		if rest, ok := strings.CutSuffix(s, ext); ok {
			stem, n.Ext = rest, ext
		}
	}
	if n.Ext == "" {
		return n, errors.New(`does not end in ".tar.gz" or ".zip"`)
	}
	dash := strings.LastIndexByte(stem, '-')
	if dash < 0 {
		return n, errors.New("no '-' between name and version")
	}
	n.RawName = stem[:dash]
	if name, version, ok := cutAtLocal(stem); ok {
		return n, fmt.Errorf("'-' inside the local version of %s; the right name is %s",
			quote(version.Raw()), quote(SdistName{Name: name, Version: version, Ext: n.Ext}.String()))
	}
	if !ValidName(n.RawName) {
		return n, fmt.Errorf("project name %s is not valid", quote(n.RawName))
	}
	n.Name = NormalizeName(n.RawName)
	n.Version, err = ParseVersion(stem[dash+1:])
	return n, err
}

// cutAtLocal splits a stem whose version has a local part with a '-' in it.
func cutAtLocal(stem string) (name string, v Version, ok bool) {
	plus := strings.IndexByte(stem, '+')
	if plus < 0 || !strings.Contains(stem[plus:], "-") {
		return "", Version{}, false
	}
	dash := strings.LastIndexByte(stem[:plus], '-')
	if dash < 0 || !ValidName(stem[:dash]) {
		return "", Version{}, false
	}
	v, err := ParseVersion(stem[dash+1:])
	return stem[:dash], v, err == nil
}

// String returns the canonical name, such as "flash_attn-2.8.3.tar.gz".
func (n SdistName) String() string {
	return FileName(n.Name) + "-" + n.Version.String() + cmp.Or(n.Ext, ".tar.gz")
}
