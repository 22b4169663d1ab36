package wheel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Tag is one compatibility tag of PEP 425, such as cp312-cp312-linux_x86_64.
// All three parts are lower case.
type Tag struct {
	Python   string
	ABI      string
	Platform string
}

// String returns the parts joined by '-'.
func (t Tag) String() string { return t.Python + "-" + t.ABI + "-" + t.Platform }

// maxTags bounds what a compressed tag set may expand to. Real wheels have a
// few dozen tags at most; a short hostile name could ask for millions.
const maxTags = 1000

// ParseTag reads a tag or a compressed tag set: "py2.py3-none-any" gives two
// tags. The order is that of PEP 425, Python tag outermost.
func ParseTag(s string) ([]Tag, error) {
	parts := strings.SplitN(s, "-", 4)
	if len(parts) != 3 {
		return nil, fmt.Errorf("tag %s: not three parts separated by '-'", quote(s))
	}
	set, err := parseTagSet(parts[0], parts[1], parts[2])
	if err != nil {
		return nil, fmt.Errorf("tag %s: %w", quote(s), err)
	}
	return set.expand(), nil
}

// tagSet is a compressed tag set, one list of members per part.
type tagSet struct{ python, abi, platform []string }

func parseTagSet(python, abi, platform string) (set tagSet, err error) {
	total := 1
	for _, part := range []string{python, abi, platform} {
		if total *= strings.Count(part, ".") + 1; total > maxTags {
			return tagSet{}, fmt.Errorf("compressed tag set stands for more than %d tags", maxTags)
		}
	}
	if set.python, err = parseTagMembers("python tag", python); err != nil {
		return tagSet{}, err
	}
	for _, p := range set.python {
		// A digit here would make the third field of a file name ambiguous:
		// only a build tag begins with one.
		switch {
		case isDigit(p[0]):
			return tagSet{}, fmt.Errorf("python tag %s starts with a digit", quote(python))
		case !isLetter(p[0]):
			return tagSet{}, fmt.Errorf("python tag %s does not start with a letter", quote(python))
		}
	}
	if set.abi, err = parseTagMembers("abi tag", abi); err != nil {
		return tagSet{}, err
	}
	if set.platform, err = parseTagMembers("platform tag", platform); err != nil {
		return tagSet{}, err
	}
	return set, nil
}

// parseTagMembers splits one part of a compressed set, lower-cased and without
// repetitions.
func parseTagMembers(what, text string) ([]string, error) {
	members := strings.Split(lowerASCII(text), ".")
	unique := members[:0]
	for _, m := range members {
		switch {
		case text == "":
			return nil, errors.New(what + " is empty")
		case m == "":
			return nil, fmt.Errorf("%s %s has an empty member", what, quote(text))
		case strings.ContainsFunc(m, func(r rune) bool { return r != '_' && (r > 'z' || !isAlnum(byte(r))) }):
			return nil, fmt.Errorf("%s %s has a character other than letters, digits and '_'", what, quote(text))
		}
		if !slices.Contains(unique, m) {
			unique = append(unique, m)
		}
	}
	return unique, nil
}

func (s tagSet) expand() []Tag {
	tags := make([]Tag, 0, len(s.python)*len(s.abi)*len(s.platform))
	for _, python := range s.python {
		for _, abi := range s.abi {
			for _, platform := range s.platform {
				tags = append(tags, Tag{python, abi, platform})
			}
		}
	}
	return tags
}

// manylinuxAliases are the glibc minors behind the names that preceded PEP 600.
var manylinuxAliases = []struct {
	name  string
	minor int
}{
	{"manylinux2014", 17}, // PEP 599
	{"manylinux2010", 12}, // PEP 571
	{"manylinux1", 5},     // PEP 513
}

// ManylinuxVersion returns the glibc version a manylinux platform tag asks for
// and the architecture: manylinux_2_28_x86_64 gives 2, 28, "x86_64" (PEP 600).
// The older aliases manylinux1, manylinux2010 and manylinux2014 are understood.
func ManylinuxVersion(platform string) (major, minor int, arch string, ok bool) {
	for _, alias := range manylinuxAliases {
		if arch, ok := strings.CutPrefix(platform, alias.name+"_"); ok && arch != "" {
			return 2, alias.minor, arch, true
		}
	}
	rest, ok := strings.CutPrefix(platform, "manylinux_")
	if !ok {
		return 0, 0, "", false
	}
	parts := strings.SplitN(rest, "_", 3)
	if len(parts) != 3 || parts[2] == "" {
		return 0, 0, "", false
	}
	major, okMajor := smallNumber(parts[0])
	minor, okMinor := smallNumber(parts[1])
	if !okMajor || !okMinor {
		return 0, 0, "", false
	}
	return major, minor, parts[2], true
}

// smallNumber reads a decimal number without superfluous zeros, up to 9999.
func smallNumber(s string) (int, bool) {
	if !isNumber(s) || len(s) > 4 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// PlatformAliases returns the platform tags that mean the same as platform,
// the PEP 600 spelling first: manylinux2014_x86_64 and manylinux_2_17_x86_64
// each give both. Other tags have no alias and are returned alone.
func PlatformAliases(platform string) []string {
	major, minor, arch, ok := ManylinuxVersion(platform)
	if !ok {
		return []string{platform}
	}
	names := []string{fmt.Sprintf("manylinux_%d_%d_%s", major, minor, arch)}
	for _, alias := range manylinuxAliases {
		if major == 2 && minor == alias.minor {
			names = append(names, alias.name+"_"+arch)
		}
	}
	return names
}

// Interpreter describes a Python installation as far as its tags depend on it.
type Interpreter struct {
	// Implementation is "cp" for CPython (the default) or another prefix of a
	// Python tag, such as "pp".
	Implementation string
	// Major and Minor are the Python version, 3 and 12 for Python 3.12.
	Major, Minor int
	// FreeThreaded says that CPython was built without the global lock.
	FreeThreaded bool
	// ABI replaces the ABI tag derived from the above. It is needed for
	// implementations other than CPython, for example "pypy311_pp73".
	ABI string
	// Platform is the machine.
	Platform Platform
}

// Platform describes an operating system as far as platform tags depend on it.
type Platform struct {
	// OS is "linux", "win" or "macosx".
	OS string
	// Arch is the architecture as tags of that system spell it: x86_64 or
	// aarch64 on Linux, amd64, arm64 or 32 on Windows, x86_64 or arm64 on macOS.
	Arch string
	// Glibc is the version of the GNU C library, zero if Linux has none.
	Glibc PlatformVersion
	// Musl is the version of musl, zero if Linux has none.
	Musl PlatformVersion
	// MacOS is the version of macOS.
	MacOS PlatformVersion
}

// PlatformVersion is the version of a C library or operating system.
type PlatformVersion struct{ Major, Minor int }

func (v PlatformVersion) isZero() bool { return v == PlatformVersion{} }

// maxMinor bounds every version that is counted down from. It only serves to
// turn nonsense into an error instead of a list of a million tags.
const maxMinor = 200

func (v PlatformVersion) check(what string) error {
	if v.Major < 0 || v.Minor < 0 || v.Major > maxMinor || v.Minor > maxMinor {
		return fmt.Errorf("%s %d.%d: no such version", what, v.Major, v.Minor)
	}
	return nil
}

// SupportedTags returns every tag the interpreter accepts, best first: an
// installer prefers, among the wheels of one version, the one whose best tag
// comes earliest. The order is that of the reference implementation since 26.3,
// where linux_x86_64 precedes every manylinux tag; older installers have it last.
func SupportedTags(in Interpreter) ([]Tag, error) {
	impl := in.Implementation
	if impl == "" {
		impl = "cp"
	}
	if in.Major < 1 || in.Major > 9 || in.Minor < 0 || in.Minor > maxMinor {
		return nil, fmt.Errorf("python %d.%d: no such version", in.Major, in.Minor)
	}
	abi := in.ABI
	if abi == "" {
		if impl != "cp" || in.Major != 3 {
			return nil, fmt.Errorf("%s %d.%d: ABI tag not given", impl, in.Major, in.Minor)
		}
		abi = cpythonABI(in)
	}
	platforms, err := in.Platform.Tags()
	if err != nil {
		return nil, err
	}

	var tags []Tag
	addAll := func(python, abi string) {
		for _, p := range platforms {
			tags = append(tags, Tag{python, abi, p})
		}
	}
	nodot := func(prefix string, minor int) string {
		return prefix + strconv.Itoa(in.Major) + strconv.Itoa(minor)
	}
	python := nodot(impl, in.Minor)
	addAll(python, abi)
	stable := ""
	if impl == "cp" && in.Major == 3 && in.Minor >= 2 { // PEP 384
		stable = "abi3"
		if in.FreeThreaded { // PEP 803
			stable = "abi3t"
		}
		addAll(python, stable)
	}
	addAll(python, "none")
	if stable != "" {
		for minor := in.Minor - 1; minor >= 2; minor-- {
			addAll(nodot("cp", minor), stable)
		}
	}

	pure := []string{nodot("py", in.Minor), "py" + strconv.Itoa(in.Major)}
	for minor := in.Minor - 1; minor >= 0; minor-- {
		pure = append(pure, nodot("py", minor))
	}
	for _, py := range pure {
		addAll(py, "none")
	}
	switch impl {
	case "cp":
		tags = append(tags, Tag{python, "none", "any"})
	case "pp":
		tags = append(tags, Tag{"pp3", "none", "any"})
	}
	for _, py := range pure {
		tags = append(tags, Tag{py, "none", "any"})
	}
	return tags, nil
}

func cpythonABI(in Interpreter) string {
	abi := "cp" + strconv.Itoa(in.Major) + strconv.Itoa(in.Minor)
	switch {
	case in.FreeThreaded:
		return abi + "t" // PEP 703
	case in.Minor < 8:
		return abi + "m" // the pymalloc flag, gone since 3.8
	default:
		return abi
	}
}

// Tags returns the platform tags the system accepts, best first.
func (p Platform) Tags() ([]string, error) {
	if p.Arch == "" {
		return nil, fmt.Errorf("platform %s: no architecture", quote(p.OS))
	}
	switch p.OS {
	case "linux":
		return p.linuxTags()
	case "macosx":
		return p.macTags()
	case "win":
		if p.Arch == "32" {
			return []string{"win32"}, nil
		}
		return []string{"win_" + p.Arch}, nil
	default:
		return nil, fmt.Errorf("platform %s: not linux, win or macosx", quote(p.OS))
	}
}

// manylinuxArchs are the architectures for which PEP 600 tags are accepted.
var manylinuxArchs = []string{
	"x86_64", "i686", "aarch64", "armv7l", "ppc64", "ppc64le", "s390x", "loongarch64", "riscv64",
}

func (p Platform) linuxTags() ([]string, error) {
	if err := p.Glibc.check("glibc"); err != nil {
		return nil, err
	}
	if err := p.Musl.check("musl"); err != nil {
		return nil, err
	}
	if !p.Glibc.isZero() && p.Glibc.Major != 2 {
		return nil, fmt.Errorf("glibc %d.%d: only major version 2 is known", p.Glibc.Major, p.Glibc.Minor)
	}
	archs := []string{p.Arch}
	if p.Arch == "armv8l" { // a 32-bit process on a 64-bit ARM kernel
		archs = append(archs, "armv7l")
	}
	var tags []string
	for _, arch := range archs {
		tags = append(tags, "linux_"+arch)
	}
	oldest := 17
	if p.Arch == "x86_64" || p.Arch == "i686" {
		oldest = 5
	}
	if slices.ContainsFunc(archs, func(a string) bool { return slices.Contains(manylinuxArchs, a) }) {
		for _, arch := range archs {
			for minor := p.Glibc.Minor; minor >= oldest; minor-- {
				tags = append(tags, PlatformAliases(fmt.Sprintf("manylinux_2_%d_%s", minor, arch))...)
			}
		}
	}
	if !p.Musl.isZero() {
		for _, arch := range archs {
			for minor := p.Musl.Minor; minor >= 0; minor-- {
				tags = append(tags, fmt.Sprintf("musllinux_%d_%d_%s", p.Musl.Major, minor, arch))
			}
		}
	}
	return tags, nil
}

func (p Platform) macTags() ([]string, error) {
	if err := p.MacOS.check("macOS"); err != nil {
		return nil, err
	}
	var formats []string // what a machine of this kind can load, fat binaries last
	switch p.Arch {
	case "arm64":
		formats = []string{"arm64", "universal2"}
	case "x86_64":
		formats = []string{"x86_64", "intel", "fat64", "fat3", "universal2", "universal"}
	default:
		return nil, fmt.Errorf("macOS architecture %s: not arm64 or x86_64", quote(p.Arch))
	}
	var tags []string
	add := func(major, minor int, formats ...string) {
		for _, f := range formats {
			tags = append(tags, fmt.Sprintf("macosx_%d_%d_%s", major, minor, f))
		}
	}
	// Since macOS 11 the minor version says nothing about compatibility.
	for major := p.MacOS.Major; major >= 11; major-- {
		add(major, 0, formats...)
	}
	last := 16 // 10.16 is what macOS 11 calls itself to programs built before it
	switch {
	case p.MacOS.Major < 10 || p.MacOS.Major == 10 && p.Arch == "arm64":
		return nil, fmt.Errorf("macOS %d.%d: no such version for %s", p.MacOS.Major, p.MacOS.Minor, p.Arch)
	case p.MacOS.Major == 10:
		last = p.MacOS.Minor
	case p.Arch == "arm64":
		// No arm64 existed before 11, but the other half of a fat binary may
		// name an older system.
		formats = []string{"universal2"}
	}
	for minor := last; minor >= 4; minor-- { // the first with 64-bit code
		add(10, minor, formats...)
	}
	return tags, nil
}
