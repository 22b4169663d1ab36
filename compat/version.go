package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A release is a dotted number of one to four parts, as toolkits, torch and
// Python use them. It keeps how many parts were written: "12.8" names a series,
// "12.8.1" one member of it.
type release struct {
	part [4]int
	n    int
}

// parseRelease reads "12.8.1". Leading zeros, signs, empty parts and anything
// that is not a digit are refused.
func parseRelease(s string) (release, error) {
	var r release
	rest, more := s, true
	for more {
		var p string
		p, rest, more = strings.Cut(rest, ".")
		if r.n == len(r.part) {
			return release{}, fmt.Errorf("version %q has more than four parts", clip(s))
		}
		if p == "" || len(p) > 6 || len(p) > 1 && p[0] == '0' || strings.Trim(p, "0123456789") != "" {
			return release{}, fmt.Errorf("%q is not a version such as 12.8 or 12.8.1", clip(s))
		}
		r.part[r.n], _ = strconv.Atoi(p)
		r.n++
	}
	return r, nil
}

// series is the first two parts: what tables are keyed by.
func (r release) series() release {
	return release{part: [4]int{r.part[0], r.part[1]}, n: min(r.n, 2)}
}

func (r release) major() int { return r.part[0] }

// compare orders by value; a series sorts before its members.
func (r release) compare(o release) int {
	return cmp.Or(slices.Compare(r.part[:], o.part[:]), cmp.Compare(r.n, o.n))
}

func (r release) String() string {
	var b []byte
	for i, p := range r.part[:r.n] {
		if i > 0 {
			b = append(b, '.')
		}
		b = strconv.AppendInt(b, int64(p), 10)
	}
	return string(b)
}

// A python is a CPython minor version, free-threaded or not.
type python struct {
	rel  release
	free bool
}

// parsePython reads "3.13", "3.13t" and "3.13.2"; the patch is dropped because
// neither wheels nor torch depend on it.
func parsePython(s string) (python, error) {
	num, free := strings.CutSuffix(s, "t")
	r, err := parseRelease(num)
	if err != nil || r.n < 2 || r.n > 3 || r.major() != 3 {
		return python{}, fmt.Errorf("%q is not a CPython version such as 3.13 or 3.13t", clip(s))
	}
	return python{r.series(), free}, nil
}

func (p python) String() string {
	if p.free {
		return p.rel.String() + "t"
	}
	return p.rel.String()
}

// Minor returns the first two parts of a dotted version: "12.8.1" gives "12.8".
// A string that is not a dotted version, or has one part only, comes back
// unchanged.
func Minor(version string) string {
	r, err := parseRelease(version)
	if err != nil || r.n < 3 {
		return version
	}
	return r.series().String()
}

// ToolkitTag is the toolkit part of a build tag: "cu128" for CUDA 12.8.1,
// "rocm6.2.4" for ROCm 6.2.4, and "" for neither. CUDA keeps major and minor
// without the dot, ROCm stays as written.
func ToolkitTag(cuda, rocm string) string {
	switch {
	case cuda != "":
		return "cu" + strings.ReplaceAll(Minor(cuda), ".", "")
	case rocm != "":
		return "rocm" + rocm
	}
	return ""
}

// ParseToolkitTag reads what [ToolkitTag] writes: "12.8" and "" for cu128. A tag of two digits is a
// major version alone, cu12, unless CUDA never had it: cu92 is 9.2. Both are "" for anything else.
func ParseToolkitTag(tag string) (cuda, rocm string) {
	if n, ok := strings.CutPrefix(tag, "cu"); ok && strings.Trim(n, "0123456789") == "" {
		switch {
		case len(n) > 2:
			return n[:2] + "." + n[2:], ""
		case len(n) == 2 && n[0] >= '7':
			return n[:1] + "." + n[1:], ""
		}
		return n, ""
	}
	rocm, ok := strings.CutPrefix(tag, "rocm")
	if _, err := parseRelease(rocm); !ok || err != nil {
		return "", ""
	}
	return "", rocm
}

// TorchIndexSuffix is the folder of the PyTorch index that holds the builds for
// a toolkit: the [ToolkitTag], or "cpu" for neither.
func TorchIndexSuffix(cuda, rocm string) string {
	return cmp.Or(ToolkitTag(cuda, rocm), "cpu")
}

// ranges renders sorted members of an ordered universe, joining neighbours:
// 2.2, 2.3, 2.4, 2.6 of all torch series gives "2.2-2.4, 2.6".
func ranges[T comparable](members, universe []T, name func(T) string) string {
	var out []string
	for i := 0; i < len(members); {
		at := slices.Index(universe, members[i])
		j := i + 1
		for at >= 0 && j < len(members) && at+(j-i) < len(universe) && universe[at+(j-i)] == members[j] {
			j++
		}
		switch first, last := name(members[i]), name(members[j-1]); j - i {
		case 1:
			out = append(out, first)
		case 2:
			out = append(out, first, last)
		default:
			out = append(out, first+"-"+last)
		}
		i = j
	}
	return strings.Join(out, ", ")
}

// orList joins as "a", "a or b", "a, b or c".
func orList(s []string) string {
	if n := len(s); n > 1 {
		return strings.Join(s[:n-1], ", ") + " or " + s[n-1]
	}
	return strings.Join(s, "")
}

// clip shortens foreign text for messages.
func clip(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}
