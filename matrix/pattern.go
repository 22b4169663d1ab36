package matrix

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// release is a version split for comparing: "2.9.0rc1" has the parts 2, 9 and 0; "3.13t" is
// free-threaded.
type release struct {
	version wheel.Version
	parts   []int
	free    bool
}

func parseRelease(s string) (release, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return release{}, false
	}
	var r release
	if strings.HasPrefix(s, "3.") {
		s, r.free = strings.CutSuffix(s, "t")
	}
	var err error
	if r.version, err = wheel.ParseVersion(s); err != nil {
		return release{}, false
	}
	for _, digits := range r.version.Release() {
		n, err := strconv.Atoi(digits)
		if err != nil {
			return release{}, false
		}
		r.parts = append(r.parts, n)
	}
	return r, true
}

// compareTo compares a version with a bound that is as precise as it is written:
// against 12.8 every 12.8.x is equal.
func (r release) compareTo(bound release) int {
	for i, want := range bound.parts {
		have := 0
		if i < len(r.parts) {
			have = r.parts[i]
		}
		if c := cmp.Compare(have, want); c != 0 {
			return c
		}
	}
	if bound.version.String() == bound.version.Base() {
		return 0
	}
	return r.version.Compare(bound.version)
}

// comparison is an operator and its bound, for example >=12.8.
type comparison struct {
	op    string
	bound release
}

func (c comparison) holds(r release) bool {
	v := r.compareTo(c.bound)
	switch c.op {
	case "==":
		return v == 0 && r.free == c.bound.free
	case "!=":
		return v != 0 || r.free != c.bound.free
	case "<":
		return v < 0
	case "<=":
		return v <= 0
	case ">":
		return v > 0
	}
	return v >= 0
}

// pattern decides about one value of one axis: a version range, or a name with
// wildcards. An empty value never matches.
type pattern struct {
	glob    string
	version []comparison
}

// parsePattern reads a pattern for a version axis ("12.8", ">=2.5,<2.7") or for a
// name axis ("ubuntu-*").
func parsePattern(s string, version bool) (pattern, error) {
	if s == "" {
		return pattern{}, errors.New("the pattern is empty")
	}
	if !version {
		if _, err := path.Match(s, ""); err != nil || strings.ContainsAny(s, "[]\\") {
			return pattern{}, fmt.Errorf("%q is not a name or a name with *", s)
		}
		return pattern{glob: s}, nil
	}
	var p pattern
	for term := range strings.SplitSeq(s, ",") {
		term = strings.TrimSpace(term)
		op := "=="
		for _, candidate := range []string{"==", "!=", "<=", ">=", "<", ">", "="} {
			if rest, ok := strings.CutPrefix(term, candidate); ok {
				op, term = candidate, strings.TrimSpace(rest)
				break
			}
		}
		if op == "=" {
			op = "=="
		}
		bound, ok := parseRelease(strings.TrimSuffix(term, ".*"))
		if !ok {
			return pattern{}, fmt.Errorf("%q is not a version or a range such as >=2.5,<2.7", s)
		}
		p.version = append(p.version, comparison{op, bound})
	}
	return p, nil
}

func (p pattern) matches(value string) bool {
	if value == "" {
		return false
	}
	if p.version == nil {
		ok, _ := path.Match(p.glob, value)
		return ok
	}
	r, ok := parseRelease(value)
	if !ok {
		return false
	}
	for _, c := range p.version {
		if !c.holds(r) {
			return false
		}
	}
	return true
}

// toolkitPattern is the key of a [PerToolkit]. The zero value matches every row.
type toolkitPattern struct {
	kind    string // "cuda", "rocm", "none", or "" for any
	version *pattern
}

func parseToolkitPattern(s string) (toolkitPattern, error) {
	s = strings.TrimSpace(s)
	switch s {
	case "default":
		return toolkitPattern{}, nil
	case "cuda", "rocm", "none":
		return toolkitPattern{kind: s}, nil
	}
	kind, rest := "cuda", s
	for _, k := range []string{"cuda", "rocm"} {
		if r, ok := strings.CutPrefix(s, k); ok {
			kind, rest = k, strings.TrimSpace(r)
		}
	}
	p, err := parsePattern(rest, true)
	if err != nil {
		return toolkitPattern{}, fmt.Errorf("%q is not a toolkit or a range of toolkit versions", s)
	}
	return toolkitPattern{kind: kind, version: &p}, nil
}

func (t toolkitPattern) matches(cuda, rocm string) bool {
	value := ""
	switch t.kind {
	case "":
		return true
	case "none":
		return cuda == "" && rocm == ""
	case "cuda":
		value = cuda
	case "rocm":
		value = rocm
	}
	if t.version == nil {
		return value != ""
	}
	return t.version.matches(value)
}
