package wheel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Specifier is one clause of PEP 440 such as ">=2.2" or "==2.9.*".
type Specifier struct {
	operator string
	text     string // the version as written
	version  Version
	wildcard bool // text ends in ".*", which version lacks
}

// SpecifierSet is a comma-separated list of clauses, all of which must hold.
// It is immutable; the zero value has no clauses and contains every version.
type SpecifierSet struct {
	clauses []Specifier
}

// operators lists the longer ones before their prefixes.
var operators = []string{"===", "~=", "==", "!=", "<=", ">=", "<", ">"}

// ParseSpecifierSet reads clauses separated by commas. Empty clauses are
// skipped, as the reference implementation does: "" and ">=1," are valid.
func ParseSpecifierSet(s string) (SpecifierSet, error) {
	var set SpecifierSet
	for part := range strings.SplitSeq(s, ",") {
		part = strings.Trim(part, asciiSpace)
		if part == "" {
			continue
		}
		operator, text := cutOperator(part)
		clause, err := newSpecifier(operator, strings.TrimLeft(text, asciiSpace))
		if err != nil {
			return SpecifierSet{}, fmt.Errorf("specifier %s: %w", quote(part), err)
		}
		set.clauses = append(set.clauses, clause)
	}
	return set, nil
}

// cutOperator splits the operator off s; it is empty if s begins with none.
func cutOperator(s string) (operator, rest string) {
	for _, op := range operators {
		if rest, ok := strings.CutPrefix(s, op); ok {
			return op, rest
		}
	}
	return "", s
}

// newSpecifier makes a clause of an operator and the text that follows it.
func newSpecifier(operator, text string) (Specifier, error) {
	c := Specifier{operator: operator, text: text}
	switch operator {
	case "":
		return c, errors.New("does not begin with one of " + strings.Join(operators, " "))
	case "===":
		if i := strings.IndexFunc(text, notArbitrary); i >= 0 {
			return c, fmt.Errorf("%s cannot stand in a version", quote(text[i:]))
		}
		return c, nil
	}
	v, rest := scanVersion(text)
	switch equality := operator == "==" || operator == "!="; {
	case v.IsZero():
		return c, errors.New("no version after " + operator)
	case rest == ".*" && !equality:
		return c, errors.New(`".*" needs == or !=`)
	case rest == ".*" && (v.hasSuffix() || v.local != ""):
		return c, errors.New(`".*" may follow release numbers only`)
	case rest != "" && rest != ".*":
		return c, versionProblem(v, text, rest)
	case v.local != "" && !equality:
		return c, errors.New("a local version needs == or !=")
	case operator == "~=" && !strings.Contains(v.release, "."):
		return c, errors.New("~= needs at least two release numbers")
	}
	c.version, c.wildcard = v, rest == ".*"
	return c, nil
}

// notArbitrary reports whether r cannot be part of the text after ===: white
// space, control characters, and what ends a clause inside a requirement.
func notArbitrary(r rune) bool {
	return r == ';' || r == ')' || unicode.IsSpace(r) || unicode.IsControl(r)
}

// Operator returns the comparison, for example "~=".
func (c Specifier) Operator() string { return c.operator }

// Text returns what follows the operator as it was written, wildcard included.
func (c Specifier) Text() string { return c.text }

// Version returns the version of the clause without its wildcard. It is not ok
// for "===", whose text need not be a version.
func (c Specifier) Version() (v Version, ok bool) { return c.version, c.operator != "===" }

// String returns operator and version as written, without white space.
func (c Specifier) String() string { return c.operator + c.text }

// Contains reports whether v satisfies the clause, pre-release or not.
func (c Specifier) Contains(v Version) bool { return c.contains(&v) }

func (c *Specifier) contains(v *Version) bool {
	want := &c.version
	switch c.operator {
	case "===":
		return lowerASCII(c.text) == v.String()
	case "==":
		return c.equal(v)
	case "!=":
		return !c.equal(v)
	case ">=":
		return v.comparePublic(want) >= 0
	case "<=":
		return v.comparePublic(want) <= 0
	case "~=":
		prefix := want.release[:strings.LastIndexByte(want.release, '.')]
		return v.comparePublic(want) >= 0 && v.inRelease(want.epoch, prefix)
	case "<":
		// Pre-releases of the version named are not "before" it, unless it is
		// one itself: 2.0rc1 does not satisfy <2.0.
		bound := *want
		if !bound.IsPrerelease() {
			bound.dev = true
		}
		return v.comparePublic(&bound) < 0
	default: // ">"
		if v.comparePublic(want) <= 0 {
			return false // local versions of want included
		}
		// Nor are post-releases "after" the version they belong to.
		return want.post || want.dev || !v.samePost(want)
	}
}

// equal is == : a prefix match, or equality in which the candidate's local
// version counts only if the clause names one.
func (c *Specifier) equal(v *Version) bool {
	switch want := &c.version; {
	case c.wildcard:
		return v.inRelease(want.epoch, want.release)
	case want.local != "":
		return v.Compare(*want) == 0
	default:
		return v.comparePublic(want) == 0
	}
}

// inRelease reports whether v's release begins with prefix, after padding with
// zeros: 1 is in 1.0.
func (v *Version) inRelease(epoch, prefix string) bool {
	if compareDigits(v.epoch, epoch) != 0 {
		return false
	}
	for release := v.release; prefix != ""; {
		var have, want string
		have, release, _ = strings.Cut(release, ".")
		want, prefix, _ = strings.Cut(prefix, ".")
		if compareDigits(have, want) != 0 {
			return false
		}
	}
	return true
}

// samePost reports whether v is w or belongs to its post-releases.
func (v *Version) samePost(w *Version) bool {
	return compareDigits(v.epoch, w.epoch) == 0 && compareRelease(v.release, w.release) == 0 &&
		v.pre == w.pre && compareDigits(v.preN, w.preN) == 0
}

// Contains reports whether v satisfies every clause.
//
// Local versions follow PEP 440: a clause without one ignores the candidate's,
// so 2.8.3+cu128 satisfies ==2.8.3 and >=2.8.3 but not >2.8.3; "===" compares
// the normal form of v as text, ignoring ASCII case.
//
// Pre-releases are accepted unless a single false is passed. That is the rule
// for one candidate on its own; to choose among several, see [SpecifierSet.Filter].
func (s SpecifierSet) Contains(v Version, prereleases ...bool) bool {
	if len(prereleases) > 0 && !prereleases[0] && v.IsPrerelease() {
		return false
	}
	for i := range s.clauses {
		if !s.clauses[i].contains(&v) {
			return false
		}
	}
	return true
}

// Filter returns the versions that satisfy s, in the order given.
//
// Without a policy it follows the recommendation of PEP 440: pre-releases are
// returned if a clause names one, or if nothing else satisfies s. Pass true to
// accept them always and false to accept them never.
func (s SpecifierSet) Filter(versions []Version, prereleases ...bool) []Version {
	accept, fallback := s.AllowsPrereleases(), true
	if len(prereleases) > 0 {
		accept, fallback = prereleases[0], false
	}
	var final, all []Version
	for _, v := range versions {
		if !s.Contains(v) {
			continue
		}
		all = append(all, v)
		if !v.IsPrerelease() {
			final = append(final, v)
		}
	}
	if accept || fallback && len(final) == 0 {
		return all
	}
	return final
}

// AllowsPrereleases reports whether a clause, other than an exclusion, names a
// pre-release and so asks for them.
func (s SpecifierSet) AllowsPrereleases() bool {
	return slices.ContainsFunc(s.clauses, func(c Specifier) bool {
		v := c.version
		if c.operator == "===" {
			v, _ = ParseVersion(c.text)
		}
		return c.operator != "!=" && v.IsPrerelease()
	})
}

// Specifiers returns the clauses in the order they were written. The caller
// owns the slice.
func (s SpecifierSet) Specifiers() []Specifier { return slices.Clone(s.clauses) }

// IsEmpty reports whether s has no clauses.
func (s SpecifierSet) IsEmpty() bool { return len(s.clauses) == 0 }

// Equal reports whether s and t have the same clauses, in any order and any
// spelling of their versions. It does not decide whether they contain the same
// versions.
func (s SpecifierSet) Equal(t SpecifierSet) bool {
	return slices.Equal(s.canonicalKeys(), t.canonicalKeys())
}

func (s SpecifierSet) canonicalKeys() []string {
	keys := make([]string, len(s.clauses))
	for i := range s.clauses {
		keys[i] = s.clauses[i].canonical()
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// String returns the clauses sorted as text, each once, versions as written.
func (s SpecifierSet) String() string {
	if len(s.clauses) == 1 {
		return s.clauses[0].String()
	}
	texts := make([]string, 0, len(s.clauses))
	sorted := slices.SortedFunc(slices.Values(s.clauses), func(a, b Specifier) int {
		return strings.Compare(a.String(), b.String())
	})
	seen := make(map[string]bool, len(sorted))
	for i := range sorted {
		if key := sorted[i].canonical(); !seen[key] {
			seen[key] = true
			texts = append(texts, sorted[i].String())
		}
	}
	return strings.Join(texts, ",")
}

// canonical returns text that clauses share if they differ in spelling only.
// The zeros of ~= mean something: ~=1.0 and ~=1.0.0 are different clauses.
func (c *Specifier) canonical() string {
	if c.operator == "===" || c.wildcard {
		return c.String()
	}
	b := append([]byte(nil), c.operator...)
	return string(c.version.appendLocal(c.version.appendPublic(b, c.operator != "~=")))
}
