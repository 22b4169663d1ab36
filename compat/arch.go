package compat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/internal/diag"
)

// A CC is the compute capability of a GPU, such as 8.6.
type CC struct{ Major, Minor int }

// ParseCC reads "8.6" or "12.0".
func ParseCC(s string) (CC, error) {
	a, form := parseTarget(s)
	if form != dotted || a.Suffix != "" {
		return CC{}, fmt.Errorf("%q is not a compute capability such as 8.6", clip(s))
	}
	return a.CC(), nil
}

func (c CC) String() string { return strconv.Itoa(c.Major) + "." + strconv.Itoa(c.Minor) }

func (c CC) compare(o CC) int {
	return cmp.Or(cmp.Compare(c.Major, o.Major), cmp.Compare(c.Minor, o.Minor))
}

// canonical maps 10.1 to 11.0: CUDA 13.0 renamed that one device, both numbers
// mean the same silicon.
func (c CC) canonical() CC {
	if c == (CC{10, 1}) {
		return CC{11, 0}
	}
	return c
}

// An Arch is one entry of an arch list: a target and what is made for it.
type Arch struct {
	Major, Minor int
	// Suffix is "" for a plain target, "a" for one that uses features of exactly
	// this GPU, "f" for one that uses features of its family.
	Suffix string
	// SASS says that machine code is made, PTX that PTX is. One is always set in
	// a parsed list.
	SASS, PTX bool
}

// CC is the compute capability the target is named after.
func (a Arch) CC() CC { return CC{a.Major, a.Minor} }

// Target is the name without what is made for it: "9.0a".
func (a Arch) Target() string { return a.CC().String() + a.Suffix }

// String is the entry as kiln writes it: "8.6", "9.0a+PTX", or "8.6-virtual"
// for PTX without machine code.
func (a Arch) String() string {
	switch {
	case a.PTX && a.SASS:
		return a.Target() + "+PTX"
	case a.PTX:
		return a.Target() + "-virtual"
	}
	return a.Target()
}

// number is the target as compilers spell it: "90a" in sm_90a.
func (a Arch) number() string {
	return strconv.Itoa(a.Major) + strconv.Itoa(a.Minor) + a.Suffix
}

// compareTarget orders by major, minor, suffix.
func (a Arch) compareTarget(b Arch) int {
	return cmp.Or(a.CC().compare(b.CC()), cmp.Compare(a.Suffix, b.Suffix))
}

// embedded says whether c is one of the parts for cars, consoles and robots (Tegra).
func (c CC) embedded() bool {
	gpu, _ := Default().GPU(c)
	return gpu.Embedded
}

// SASSRunsOn says whether the entry has machine code that runs on device. The rule is that of
// "Binary Compatibility" in NVIDIA's CUDA C++ Programming Guide: code for X.y runs on X.z if z ≥ y,
// on desktop and server GPUs; neither among Tegra parts nor between them and others. torch 2.14
// has the same in its table of devices. So code for 8.0 does not run on 8.7, and code for 10.1 runs
// on 11.0, which is the same part. From CUDA 13.2 on, code for 7.0, 8.0 and 8.6 is good for Tegra
// as well; not relying on that is the safe assumption. An "a" target runs on exactly its GPU, an
// "f" target within its major like a plain one ("Feature Set Compiler Targets" in the same guide).
func (a Arch) SASSRunsOn(device CC) bool {
	if !a.SASS {
		return false
	}
	code := a.CC().canonical()
	device = device.canonical()
	if code.Major != device.Major || code.Minor > device.Minor {
		return false
	}
	return code == device || a.Suffix != "a" && !code.embedded() && !device.embedded()
}

// PTXRunsOn says whether the entry has PTX that a driver can compile for device:
// any device from the target up, for an "f" target inside its major only, for an
// "a" target only on exactly its GPU. That the driver knows the PTX version is
// another question; see [Table.PTXISA].
func (a Arch) PTXRunsOn(device CC) bool {
	if !a.PTX {
		return false
	}
	switch a.Suffix {
	case "a":
		return a.CC().canonical() == device.canonical()
	case "f":
		a.SASS = true
		return a.SASSRunsOn(device)
	}
	return a.CC().compare(device) <= 0
}

// RunsOn says whether device can use the entry, as machine code or through PTX.
func (a Arch) RunsOn(device CC) bool { return a.SASSRunsOn(device) || a.PTXRunsOn(device) }

// ParseArch reads one entry of a list, and two spellings more that binaries and indexes use:
// "compute_90" for PTX alone, and "+ptx".
func ParseArch(s string) (Arch, error) {
	item := s
	if num, ok := strings.CutPrefix(item, "compute_"); ok {
		item = num + "-virtual"
	}
	if target, ok := strings.CutSuffix(item, "+ptx"); ok {
		item = target + "+PTX"
	}
	a, _, err := parseItem(item)
	if err != nil {
		return Arch{}, fmt.Errorf("%q is not a GPU architecture such as 9.0", clip(s))
	}
	return a, nil
}

// NormalArch returns the one spelling in which kiln writes a GPU architecture: that of
// [Arch.String] for NVIDIA's, and AMD's, gfx90a, as they are.
func NormalArch(s string) (string, error) {
	if strings.HasPrefix(s, "gfx") {
		if err := checkGfx(s); err != nil {
			return "", err
		}
		return s, nil
	}
	a, err := ParseArch(s)
	return a.String(), err
}

// An ArchList is a parsed list of GPU targets. The zero value is an empty list.
type ArchList struct {
	text   string
	items  []Arch
	native bool
	names  []string // family names used, in order, without repeats
	plain  bool     // PyTorch's builder reads text as it stands
}

// Text is the list as the author wrote it.
func (l ArchList) Text() string { return l.text }

// Items returns the entries sorted by major, minor and suffix, each target once:
// X+PTX swallows X. Family names are expanded; "native" is not among them, see
// [ArchList.Native]. The caller owns the slice.
func (l ArchList) Items() []Arch { return slices.Clone(l.items) }

// Native says whether the list contains "native", the targets of the GPUs of
// the machine that builds.
func (l ArchList) Native() bool { return l.native }

// Names are the family names, such as "Hopper", that the author used.
func (l ArchList) Names() []string { return slices.Clone(l.names) }

// Empty says whether the list asks for nothing.
func (l ArchList) Empty() bool { return len(l.items) == 0 && !l.native }

// String is the normalised list: sorted, separated by spaces, "native" last.
// Parsing it gives the same items again.
func (l ArchList) String() string {
	out := make([]string, 0, len(l.items)+1)
	for _, a := range l.items {
		out = append(out, a.String())
	}
	if l.native {
		out = append(out, "native")
	}
	return strings.Join(out, " ")
}

// TorchEnv is the value for TORCH_CUDA_ARCH_LIST: the author's text where
// PyTorch's builder can read it, else the normalised list. It is false if the
// builder has no way to say it: PTX without machine code, or "native" together
// with something else.
func (l ArchList) TorchEnv() (string, bool) {
	if l.native && len(l.items) > 0 || slices.ContainsFunc(l.items, func(a Arch) bool { return !a.SASS }) {
		return "", false
	}
	if l.plain {
		return l.text, true
	}
	return l.String(), true
}

// Covers says whether device can use some entry, as machine code or through PTX.
func (l ArchList) Covers(device CC) bool {
	return slices.ContainsFunc(l.items, func(a Arch) bool { return a.RunsOn(device) })
}

// SASSCovers says whether some entry has machine code for device. A device that
// is covered without it waits for the driver to compile PTX on first use.
func (l ArchList) SASSCovers(device CC) bool {
	return slices.ContainsFunc(l.items, func(a Arch) bool { return a.SASSRunsOn(device) })
}

// Has says whether the target of a is in the list, whatever is made for it.
func (l ArchList) Has(a Arch) bool {
	_, ok := slices.BinarySearchFunc(l.items, a, Arch.compareTarget)
	return ok
}

// GencodeFlags are nvcc's options for the list, in the order of Items. It says
// nothing about "native".
func (l ArchList) GencodeFlags() []string {
	var flags []string
	for _, a := range l.items {
		n := a.number()
		if a.SASS {
			flags = append(flags, "-gencode=arch=compute_"+n+",code=sm_"+n)
		}
		if a.PTX {
			flags = append(flags, "-gencode=arch=compute_"+n+",code=compute_"+n)
		}
	}
	return flags
}

// An ArchError is one unreadable entry of an arch list.
type ArchError struct {
	Item       string // the entry as written
	Offset     int    // its first byte in the text
	Msg        string // what is wrong with it
	Suggestion string // what was probably meant, or ""
}

func (e *ArchError) Error() string {
	s := fmt.Sprintf("arch list: byte %d: %q %s", e.Offset, clip(e.Item), e.Msg)
	if e.Suggestion != "" {
		s += fmt.Sprintf(", did you mean %q?", e.Suggestion)
	}
	return s
}

const (
	maxListBytes  = 4096 // far above any real list; keeps hostile input cheap
	maxListErrors = 10
)

// familyNames are the names that mean the same in every PyTorch release that has
// them. laterNames changed over time; given here is their newest meaning, the
// table has the older ones.
var familyNames = map[string]string{
	"Kepler": "3.5+PTX", "Kepler+Tesla": "3.7",
	"Maxwell": "5.0;5.2+PTX", "Maxwell+Tegra": "5.3",
	"Pascal": "6.0;6.1+PTX",
	"Volta":  "7.0+PTX", "Volta+Tegra": "7.2",
	"Turing": "7.5+PTX",
	"Ampere": "8.0;8.6+PTX", "Ampere+Tegra": "8.7",
	"Ada":    "8.9+PTX",
	"Hopper": "9.0+PTX",
}

var laterNames = map[string]string{
	"Blackwell": "10.0;10.3;12.0;12.1+PTX", "Blackwell+Tegra": "11.0",
	"Rubin": "10.7+PTX",
}

// ParseArchList reads a list of CUDA targets: entries separated by spaces,
// semicolons or commas, each one of
//
//	8.6  9.0a  10.0f     machine code
//	8.6+PTX              machine code and PTX
//	8.6-real 8.6-virtual machine code only, PTX only
//	sm_86  86  120       other spellings of the number
//	Ampere  Volta+Tegra  PyTorch's names, in their newest meaning
//	native               the GPUs of the building machine
//
// Whether such a GPU or compiler exists is not its business. The error joins one
// [*ArchError] per bad entry, at most ten.
func ParseArchList(s string) (ArchList, error) { return parseArchList(s, nil) }

// parseArchList expands names by meaning, and by their newest meaning where it
// has no entry.
func parseArchList(s string, meaning map[string]string) (ArchList, error) {
	if len(s) > maxListBytes {
		return ArchList{}, &ArchError{Item: clip(s), Msg: fmt.Sprintf("is longer than %d bytes", maxListBytes)}
	}
	l := ArchList{text: s, plain: true}
	var errs []error
	end := 0
	for off, item := range splitList(s) {
		// PyTorch splits at every single space or semicolon, so two in a row, or
		// one at either end, leave an empty entry that it refuses.
		gap := s[end:off]
		if end == 0 && gap != "" || end > 0 && gap != " " && gap != ";" {
			l.plain = false
		}
		end = off + len(item)

		if item == "native" {
			l.native = true
			continue
		}
		if exp, ok := expandName(item, meaning); ok {
			if !slices.Contains(l.names, item) {
				l.names = append(l.names, item)
			}
			for part := range strings.SplitSeq(exp, ";") {
				a, _, _ := parseItem(part)
				l.items = append(l.items, a)
			}
			continue
		}
		a, form, err := parseItem(item)
		if err != nil {
			if err.Offset = off; len(errs) < maxListErrors {
				errs = append(errs, err)
			}
			continue
		}
		l.plain = l.plain && form == dotted
		l.items = append(l.items, a)
	}
	if len(errs) > 0 {
		return ArchList{}, errors.Join(errs...)
	}
	l.plain = l.plain && end == len(s)
	l.items = mergeTargets(l.items)
	return l, nil
}

// mergeTargets sorts and unites entries of one target.
func mergeTargets(items []Arch) []Arch {
	slices.SortFunc(items, Arch.compareTarget)
	out := items[:0]
	for _, a := range items {
		if n := len(out); n > 0 && out[n-1].compareTarget(a) == 0 {
			out[n-1].SASS = out[n-1].SASS || a.SASS
			out[n-1].PTX = out[n-1].PTX || a.PTX
			continue
		}
		out = append(out, a)
	}
	return out
}

// splitList yields the entries of a list with their offsets.
func splitList(s string) func(yield func(int, string) bool) {
	sep := func(r rune) bool { return strings.ContainsRune(" ;,\t\r\n", r) }
	return func(yield func(int, string) bool) {
		for at := 0; at < len(s); {
			if sep(rune(s[at])) {
				at++
				continue
			}
			n := strings.IndexFunc(s[at:], sep)
			if n < 0 {
				n = len(s) - at
			}
			if !yield(at, s[at:at+n]) {
				return
			}
			at += n
		}
	}
}

func expandName(name string, meaning map[string]string) (string, bool) {
	for _, m := range []map[string]string{meaning, familyNames, laterNames} {
		if exp, ok := m[name]; ok {
			return exp, true
		}
	}
	return "", false
}

// A spelling says how a target was written.
type spelling int

const (
	bad    spelling = iota
	dotted          // 8.6
	bare            // 86, sm_86
)

// parseTarget reads a target without what is made for it.
func parseTarget(s string) (Arch, spelling) {
	var a Arch
	num, form := strings.CutPrefix(s, "sm_")
	if n := len(num); n > 0 && (num[n-1] == 'a' || num[n-1] == 'f') {
		num, a.Suffix = num[:n-1], num[n-1:]
	}
	major, minor, hasDot := strings.Cut(num, ".")
	if !hasDot && len(num) >= 2 {
		major, minor = num[:len(num)-1], num[len(num)-1:]
	}
	if hasDot && form || len(major) < 1 || len(major) > 2 || len(minor) != 1 || major[0] == '0' ||
		strings.Trim(major+minor, "0123456789") != "" {
		return Arch{}, bad
	}
	a.Major, _ = strconv.Atoi(major)
	a.Minor, _ = strconv.Atoi(minor)
	if hasDot {
		return a, dotted
	}
	return a, bare
}

// parseItem reads one entry that is neither a name nor "native". The offset of
// the error is the caller's to fill in.
func parseItem(item string) (Arch, spelling, *ArchError) {
	target, sass, ptx, form := item, true, false, bad
	if t, ok := strings.CutSuffix(item, "+PTX"); ok {
		target, ptx = t, true
	} else if t, ok := strings.CutSuffix(item, "-virtual"); ok {
		target, sass, ptx, form = t, false, true, bare
	} else if t, ok := strings.CutSuffix(item, "-real"); ok {
		target, form = t, bare
	}
	a, spelt := parseTarget(target)
	if spelt == bad {
		return Arch{}, bad, badItem(item)
	}
	a.SASS, a.PTX = sass, ptx
	return a, max(form, spelt), nil
}

// badItem explains an unreadable entry and guesses what was meant.
func badItem(item string) *ArchError {
	e := &ArchError{Item: item, Msg: "is not a GPU architecture"}
	if name, ok := strings.CutSuffix(item, "+PTX"); ok {
		if exp, ok := expandName(name, nil); ok {
			e.Msg = "cannot take +PTX: the name already decides what gets PTX"
			if e.Suggestion = name; !strings.Contains(exp, "+PTX") {
				e.Suggestion = exp + "+PTX"
			}
			return e
		}
	}
	if num, ok := strings.CutPrefix(item, "compute_"); ok {
		if a, form := parseTarget(num); form != bad {
			e.Suggestion = a.Target() + "-virtual"
			return e
		}
	}
	// The longest readable target the entry starts with, and what follows it.
	for n := min(len(item), 8); n > 0; n-- {
		a, form := parseTarget(item[:n])
		if form == bad {
			continue
		}
		rest := item[n:]
		switch c := diag.Suggest(rest, []string{"+PTX", "-real", "-virtual"}); {
		case c != "":
			e.Msg, e.Suggestion = fmt.Sprintf("has an unknown ending %q", clip(rest)), a.Target()+c
		case rest[0] == '.':
			e.Msg, e.Suggestion = "has too many parts for a compute capability", a.Target()
		case form == bare:
			continue
		default:
			e.Msg = fmt.Sprintf("has an unknown ending %q", clip(rest))
		}
		return e
	}
	switch digits := strings.TrimLeft(strings.TrimSuffix(item, "."), "0"); {
	case digits != "" && len(digits) <= 2 && strings.Trim(digits, "0123456789") == "":
		e.Suggestion = digits + ".0"
		if len(digits) == 2 && digits[0] != '1' {
			e.Suggestion = digits[:1] + "." + digits[1:]
		}
	case len(item) > 2:
		names := []string{"native"}
		for _, m := range []map[string]string{familyNames, laterNames} {
			for n := range m {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		e.Suggestion = diag.Suggest(item, names)
	}
	return e
}

// A GfxList is a parsed list of AMD targets. The zero value is an empty list.
type GfxList struct{ items []string }

// ParseGfxList reads a list of AMD targets for PYTORCH_ROCM_ARCH, separated by
// spaces, semicolons or commas: processors such as gfx90a and gfx1100, with
// features (gfx90a:xnack-), and generic ones such as gfx11-generic. The error
// joins one [*ArchError] per bad entry, at most ten.
func ParseGfxList(s string) (GfxList, error) {
	if len(s) > maxListBytes {
		return GfxList{}, &ArchError{Item: clip(s), Msg: fmt.Sprintf("is longer than %d bytes", maxListBytes)}
	}
	var l GfxList
	var errs []error
	for off, item := range splitList(s) {
		if err := checkGfx(item); err != nil {
			if err.Offset = off; len(errs) < maxListErrors {
				errs = append(errs, err)
			}
			continue
		}
		l.items = append(l.items, item)
	}
	if len(errs) > 0 {
		return GfxList{}, errors.Join(errs...)
	}
	slices.SortFunc(l.items, func(a, b string) int {
		// gfx90a before gfx1030: the major is all but the last two digits.
		return cmp.Or(cmp.Compare(len(gfxProcessor(a)), len(gfxProcessor(b))), cmp.Compare(a, b))
	})
	l.items = slices.Compact(l.items)
	return l, nil
}

// Items returns the targets, oldest generation first, each once. The caller owns
// the slice.
func (l GfxList) Items() []string { return slices.Clone(l.items) }

// String is the normalised list as PYTORCH_ROCM_ARCH takes it, separated by
// semicolons.
func (l GfxList) String() string { return strings.Join(l.items, ";") }

// OffloadFlags are hipcc's options for the list.
func (l GfxList) OffloadFlags() []string {
	var flags []string
	for _, g := range l.items {
		flags = append(flags, "--offload-arch="+g)
	}
	return flags
}

func gfxProcessor(item string) string {
	p, _, _ := strings.Cut(item, ":")
	return p
}

// checkGfx accepts gfx + major (decimal) + minor and stepping (one hexadecimal
// digit each) and features, or gfx + numbers + "-generic".
func checkGfx(item string) *ArchError {
	e := &ArchError{Item: item, Msg: "is not an AMD GPU target such as gfx90a or gfx1100"}
	proc, features, hasFeatures := strings.Cut(item, ":")
	id, ok := strings.CutPrefix(proc, "gfx")
	if !ok {
		if lower := strings.ToLower(proc); lower != proc && checkGfx(lower) == nil {
			e.Suggestion = lower
		} else if checkShort("gfx" + proc) {
			e.Suggestion = "gfx" + proc
		}
		return e
	}
	if g, ok := strings.CutSuffix(id, "-generic"); ok {
		if g == "" || len(g) > 6 || strings.Trim(g, "0123456789-") != "" || strings.Contains("-"+g+"-", "--") {
			return e
		}
	} else if n := len(id); n < 3 || n > 4 || id[0] == '0' ||
		strings.Trim(id[:n-2], "0123456789") != "" || strings.Trim(id[n-2:], "0123456789abcdef") != "" {
		if lower := strings.ToLower(proc); lower != proc && checkShort(lower) {
			e.Suggestion = lower
		}
		return e
	}
	for hasFeatures {
		var f string
		f, features, hasFeatures = strings.Cut(features, ":")
		if name := strings.TrimRight(f, "+-"); len(f) != len(name)+1 || name != "xnack" && name != "sramecc" {
			e.Msg = fmt.Sprintf("has an unknown feature %q (known: xnack+ xnack- sramecc+ sramecc-)", clip(f))
			return e
		}
	}
	return nil
}

func checkShort(s string) bool {
	return strings.HasPrefix(s, "gfx") && !strings.Contains(s, ":") && checkGfx(s) == nil
}
