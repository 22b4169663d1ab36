// Package pick chooses the file of a project that runs on a machine, and says of the others why
// they do not. It looks at nothing but what it is given: package machine looks at machines.
package pick

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/wheel"
)

// Target is what decides which file of a project runs on a machine. Empty fields are not known
// and exclude nothing.
type Target struct {
	// OS is "linux", "windows" or "macos".
	OS string `json:"os,omitempty"`
	// Arch is x86_64 or aarch64; the spellings amd64 and arm64 mean the same.
	Arch string `json:"arch,omitempty"`
	// Glibc, Musl and MacOS are versions such as "2.39" of what the system has of them.
	Glibc string `json:"glibc,omitempty"`
	Musl  string `json:"musl,omitempty"`
	MacOS string `json:"macos,omitempty"`

	// Python is a version such as "3.12" or "3.12.4".
	Python string `json:"python,omitempty"`
	// FreeThreaded says that it has no global lock.
	FreeThreaded bool `json:"free_threaded,omitempty"`

	// Torch is the installed version with its label, "2.9.0+cu128". Empty means that there
	// is none and that any may be installed.
	Torch string `json:"torch,omitempty"`
	// TorchCUDA and TorchROCm are what it was built with, "12.8" or "6.4". Both are empty for
	// a build for the CPU.
	TorchCUDA string `json:"torch_cuda,omitempty"`
	TorchROCm string `json:"torch_rocm,omitempty"`
	// TorchABI is the C++ ABI of torch, "0" or "1" as in _GLIBCXX_USE_CXX11_ABI, or empty.
	TorchABI string `json:"torch_cxx11_abi,omitempty"`

	// Driver is the version of the NVIDIA driver, and DriverCUDA the newest CUDA it runs in
	// full, "12.8". NoDriver says that there is none.
	Driver     string `json:"driver,omitempty"`
	DriverCUDA string `json:"driver_cuda,omitempty"`
	NoDriver   bool   `json:"no_driver,omitempty"`

	// GPUs are the devices.
	GPUs []GPU `json:"gpus,omitempty"`

	// Toolkit asks for builds of one toolkit, "cu128" or "cpu", whatever the machine has.
	Toolkit string `json:"toolkit,omitempty"`
}

// GPU is one device of a [Target].
type GPU struct {
	Name string `json:"name,omitempty"`
	// Arch is the compute capability of an NVIDIA device, "9.0", or the target of an AMD
	// one, "gfx90a".
	Arch string `json:"arch"`
}

// Options narrow the choice of [Rank]. The zero value takes the newest release.
type Options struct {
	// Specifier restricts the version.
	Specifier wheel.SpecifierSet
	// Prereleases accepts them also when there is a release.
	Prereleases bool
}

// Reason says in one sentence what keeps a file from fitting a machine.
type Reason struct {
	// Kind is stable: "os", "arch", "libc", "python", "requires-python", "torch", "abi", "toolkit",
	// "accelerator", "driver", "gpu", "yanked", "sdist", "version".
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Choice is a file as [Rank] judged it.
type Choice struct {
	File *index.File `json:"-"`
	// Filename and Version repeat the file's.
	Filename string `json:"filename"`
	Version  string `json:"version"`
	// Built is for what the file was built.
	Built index.Coordinates `json:"built,omitzero"`
	// Misses are what does not fit, the weightiest first. It is empty for a file that fits.
	Misses []Reason `json:"misses,omitempty"`
	// Notes are what a user should know about a file that fits.
	Notes []string `json:"notes,omitempty"`

	v     wheel.Version
	torch int   // rank of the torch version, higher is better
	rank  []int // higher is better, compared in order
	tag   int   // place in the list of supported tags, lower is better
}

// Fits reports whether nothing speaks against the file.
func (c *Choice) Fits() bool { return len(c.Misses) == 0 }

// Result is the answer of [Rank].
type Result struct {
	// Fits are the files that fit, best first.
	Fits []Choice `json:"fits"`
	// Near are the others, those with the fewest and lightest misses first.
	Near []Choice `json:"near"`
}

// Best returns the best file that fits, or nil.
func (p *Result) Best() *Choice {
	if len(p.Fits) == 0 {
		return nil
	}
	return &p.Fits[0]
}

// Rank ranks the files of a project for a machine. It looks at nothing but its arguments.
//
// A file fits if its tags and Requires-Python accept the interpreter and system, and the system has
// the glibc that its libraries ask for; if it was built for the minor version of the installed
// torch, or, where that is not known, uses no names that this torch lacks; for its C++ ABI; for the CUDA major that
// this torch has, or else one the driver runs; and if it has code for every GPU, or PTX that the
// driver can compile. Among those that fit the newest version wins, then the CUDA minor of
// the installed torch, else what the driver runs in full, then the newest torch, the newest CUDA,
// and last the order of the tags.
func Rank(files []*index.File, m Target, opts Options) (*Result, error) {
	j, err := newJudge(m, opts)
	if err != nil {
		return nil, err
	}
	p := &Result{Fits: []Choice{}, Near: []Choice{}}
	for _, f := range files {
		c := j.judge(f)
		if c.Fits() {
			p.Fits = append(p.Fits, c)
		} else {
			p.Near = append(p.Near, c)
		}
	}
	p.Fits = withoutPrereleases(p.Fits, opts)
	slices.SortStableFunc(p.Fits, func(a, b Choice) int {
		return cmp.Or(comparePublic(b.v, a.v), slices.Compare(b.rank, a.rank), cmp.Compare(a.tag, b.tag),
			b.v.Compare(a.v), cmp.Compare(b.Filename, a.Filename))
	})
	slices.SortStableFunc(p.Near, func(a, b Choice) int {
		return cmp.Or(cmp.Compare(missWeight(a.Misses), missWeight(b.Misses)), comparePublic(b.v, a.v), slices.Compare(b.rank, a.rank),
			cmp.Compare(a.Filename, b.Filename))
	})
	return p, nil
}

// withoutPrereleases drops them if a release fits and the caller did not ask for them.
func withoutPrereleases(list []Choice, opts Options) []Choice {
	if opts.Prereleases || opts.Specifier.AllowsPrereleases() || !slices.ContainsFunc(list, func(c Choice) bool { return !c.v.IsPrerelease() }) {
		return list
	}
	return slices.DeleteFunc(list, func(c Choice) bool { return c.v.IsPrerelease() })
}

// comparePublic orders versions without their labels, which say nothing about age.
func comparePublic(a, b wheel.Version) int {
	pa, errA := wheel.ParseVersion(a.Public())
	pb, errB := wheel.ParseVersion(b.Public())
	if errA != nil || errB != nil {
		return a.Compare(b)
	}
	return pa.Compare(pb)
}

// weights say how far away a miss is: what a user cannot change weighs more than what an
// installation changes.
var weights = map[string]int{
	"torch": 2, "driver": 4, "requires-python": 5, "python": 5, "toolkit": 6, "abi": 6, "yanked": 7,
	"gpu": 8, "libc": 10, "accelerator": 30, "version": 40, "arch": 50, "os": 60, "sdist": 200,
}

func missWeight(misses []Reason) int {
	n := 0
	for _, m := range misses {
		n += weights[m.Kind] + 10
	}
	return n
}

// judge compares files with a machine.
type judge struct {
	m          Target
	opts       Options
	in         wheel.Interpreter
	tags       map[wheel.Tag]int // nil if the interpreter is not known
	python     wheel.Version
	torchMinor string
	platforms  []string      // nil if the platform is not known
	driver     wheel.Version // newest CUDA of the driver; zero if not known
}

func newJudge(m Target, opts Options) (*judge, error) {
	j := &judge{m: m, opts: opts}
	var err error
	if m.Python != "" {
		if j.python, err = wheel.ParseVersion(m.Python); err != nil {
			return nil, fmt.Errorf("python: %w", err)
		}
		if len(j.python.Release()) < 2 {
			return nil, fmt.Errorf("python %q: give a minor version too, such as 3.12", m.Python)
		}
		j.in.Major, j.in.Minor = number(j.python, 0), number(j.python, 1)
		j.in.FreeThreaded = m.FreeThreaded
	}
	if m.Torch != "" {
		v, err := wheel.ParseVersion(m.Torch)
		if err != nil {
			return nil, fmt.Errorf("torch: %w", err)
		}
		j.torchMinor = compat.Minor(v.Base())
		if v.Local() != "" && m.TorchCUDA == "" && m.TorchROCm == "" {
			j.m.TorchCUDA, j.m.TorchROCm = compat.ParseToolkitTag(index.ParseLabel(v.Local()).Toolkit)
		}
	}
	if m.DriverCUDA != "" {
		var ok bool
		if j.driver, ok = parseVersion(m.DriverCUDA); !ok {
			return nil, fmt.Errorf("CUDA of the driver: %q is no version such as 12.8", m.DriverCUDA)
		}
	}
	if err := j.setPlatform(); err != nil {
		return nil, err
	}
	if m.Python != "" && j.platforms != nil {
		tags, err := wheel.SupportedTags(j.in)
		if err != nil {
			return nil, fmt.Errorf("tags of this machine: %w", err)
		}
		j.tags = make(map[wheel.Tag]int, len(tags))
		for i, tag := range tags {
			j.tags[tag] = i
		}
	}
	return j, nil
}

// setPlatform fills in the platform tags.
func (j *judge) setPlatform() error {
	m := j.m
	if m.OS == "" {
		return nil
	}
	arch := m.Arch
	p := wheel.Platform{}
	switch m.OS {
	case "linux":
		p.OS = "linux"
		arch = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "": "x86_64"}[arch]
	case "windows":
		p.OS = "win"
		arch = map[string]string{"x86_64": "amd64", "aarch64": "arm64", "": "amd64"}[arch]
	case "macos":
		p.OS = "macosx"
		arch = map[string]string{"amd64": "x86_64", "aarch64": "arm64", "": "arm64"}[arch]
	default:
		return fmt.Errorf("system %q: use linux, windows or macos", m.OS)
	}
	if p.Arch = arch; arch == "" {
		p.Arch = m.Arch
	}
	for _, v := range []struct {
		text string
		to   *wheel.PlatformVersion
		what string
	}{{m.Glibc, &p.Glibc, "glibc"}, {m.Musl, &p.Musl, "musl"}, {m.MacOS, &p.MacOS, "macOS"}} {
		if v.text == "" {
			continue
		}
		version, ok := parseVersion(v.text)
		if !ok {
			return fmt.Errorf("%s %q: give a version such as 2.39", v.what, v.text)
		}
		*v.to = wheel.PlatformVersion{Major: number(version, 0), Minor: number(version, 1)}
	}
	switch {
	case p.OS == "linux" && m.Glibc == "" && m.Musl == "":
		p.Glibc = wheel.PlatformVersion{Major: 2, Minor: 99} // not known excludes nothing
	case p.OS == "macosx" && m.MacOS == "":
		p.MacOS = wheel.PlatformVersion{Major: 26}
	}
	tags, err := p.Tags()
	if err != nil {
		return fmt.Errorf("platform of this machine: %w", err)
	}
	j.platforms, j.in.Platform = tags, p
	return nil
}

func (j *judge) judge(f *index.File) Choice {
	built := f.Built()
	c := Choice{File: f, Filename: f.Filename, v: f.Version(), Built: built}
	c.Version = c.v.String()
	miss := func(kind, format string, args ...any) {
		c.Misses = append(c.Misses, Reason{kind, fmt.Sprintf(format, args...)})
	}
	if !j.opts.Specifier.Contains(c.v) {
		miss("version", "is version %s, not %s", c.v, j.opts.Specifier)
	}
	if f.Yanked && !exactPin(j.opts.Specifier) {
		text := "was yanked"
		if f.YankedReason != "" {
			text += ": " + f.YankedReason
		}
		miss("yanked", "%s", text)
	}
	if w, ok := f.Wheel(); ok {
		j.judgeTags(&c, w, miss)
	} else {
		miss("sdist", "is source code that has to be compiled")
	}
	if f.RequiresPython != "" && !j.python.IsZero() {
		if set, err := wheel.ParseSpecifierSet(f.RequiresPython); err == nil && !j.pythonIn(set) {
			miss("requires-python", "needs Python %s, this is %s", f.RequiresPython, j.m.Python)
		}
	}
	j.judgeLibc(&c, f, miss)
	j.judgeTorch(&c, f, miss)
	j.judgeToolkit(&c, f, miss)
	return c
}

// pythonIn reports whether the interpreter satisfies Requires-Python. Of "3.12" without a patch
// the last is assumed, since ">=3.12.1" should not exclude it.
func (j *judge) pythonIn(set wheel.SpecifierSet) bool {
	v := j.python
	if len(v.Release()) == 2 && !v.IsPrerelease() {
		if last, err := wheel.ParseVersion(v.String() + ".99"); err == nil && set.Contains(last) {
			return true
		}
	}
	return set.Contains(v)
}

func exactPin(set wheel.SpecifierSet) bool {
	return slices.ContainsFunc(set.Specifiers(), func(s wheel.Specifier) bool {
		return s.Operator() == "===" || s.Operator() == "==" && !strings.HasSuffix(s.Text(), "*")
	})
}

func (j *judge) judgeTags(c *Choice, w wheel.Filename, miss func(string, string, ...any)) {
	c.tag = 1 << 30
	for _, tag := range w.Tags() {
		if i, ok := j.tags[tag]; ok {
			c.tag = min(c.tag, i)
		}
	}
	if j.tags != nil && c.tag < 1<<30 {
		return
	}
	if j.platforms != nil && !slices.ContainsFunc(w.Platform, func(p string) bool { return p == "any" || slices.Contains(j.platforms, p) }) {
		kind, text := j.platformReason(w.Platform)
		miss(kind, "%s", text)
		if j.in.Major == 0 {
			return
		}
	}
	if j.in.Major == 0 {
		return
	}
	if !j.pythonFits(w) {
		this := fmt.Sprintf("%d.%d", j.in.Major, j.in.Minor)
		if j.in.FreeThreaded {
			this += " free-threaded"
		}
		miss("python", "is for Python %s, this is %s", pythonNames(w), this)
	}
}

// pythonFits compares the Python and ABI tags alone.
func (j *judge) pythonFits(w wheel.Filename) bool {
	in := j.in
	in.Platform = wheel.Platform{OS: "linux", Arch: "x86_64"}
	tags, err := wheel.SupportedTags(in)
	if err != nil {
		return true
	}
	type pair struct{ python, abi string }
	known := map[pair]bool{}
	for _, t := range tags {
		known[pair{t.Python, t.ABI}] = true
	}
	for _, p := range w.Python {
		for _, a := range w.ABI {
			if known[pair{p, a}] {
				return true
			}
		}
	}
	return false
}

// pythonNames writes the interpreters of a wheel as people do: "3.12", "3.13 free-threaded".
func pythonNames(w wheel.Filename) string {
	var names []string
	for _, p := range w.Python {
		name := index.PythonName(p)
		if slices.ContainsFunc(w.ABI, func(a string) bool { return strings.HasPrefix(a, "cp") && strings.HasSuffix(a, "t") }) {
			name += " free-threaded"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// platformReason says why no platform tag of a wheel fits: system, processor or C library.
func (j *judge) platformReason(platforms []string) (kind, text string) {
	for _, p := range platforms {
		family, arch := splitPlatform(p)
		if family != j.in.Platform.OS {
			continue
		}
		if arch != j.in.Platform.Arch {
			kind, text = "arch", fmt.Sprintf("is for %s, this is %s", arch, j.in.Platform.Arch)
			continue
		}
		if major, minor, _, ok := wheel.ManylinuxVersion(p); ok {
			if g := j.in.Platform.Glibc; g.Major != 0 {
				return "libc", fmt.Sprintf("needs glibc %d.%d, this has %d.%d", major, minor, g.Major, g.Minor)
			}
			return "libc", fmt.Sprintf("needs glibc %d.%d, this has musl", major, minor)
		}
		if strings.HasPrefix(p, "musllinux") {
			return "libc", "needs musl, this has glibc"
		}
		return "os", fmt.Sprintf("is for %s, which is newer than this system", p)
	}
	if text != "" {
		return kind, text
	}
	family, _ := splitPlatform(platforms[0])
	return "os", fmt.Sprintf("is for %s, this is %s", osName(family), osName(j.in.Platform.OS))
}

// splitPlatform returns the system and the processor of a platform tag.
func splitPlatform(tag string) (family, arch string) {
	for _, f := range []struct{ prefix, family string }{
		{"manylinux", "linux"}, {"musllinux", "linux"}, {"linux", "linux"}, {"win", "win"}, {"macosx", "macosx"},
	} {
		if strings.HasPrefix(tag, f.prefix) {
			if tag == "win32" {
				return "win", "32"
			}
			for _, arch := range []string{"x86_64", "aarch64", "amd64", "arm64", "universal2", "i686", "armv7l", "ppc64le", "s390x", "riscv64"} {
				if strings.HasSuffix(tag, "_"+arch) {
					return f.family, arch
				}
			}
			return f.family, tag[strings.LastIndexByte(tag, '_')+1:]
		}
	}
	return tag, ""
}

// osName writes the system of a platform tag as people do.
func osName(family string) string {
	switch family {
	case "linux":
		return "Linux"
	case "win":
		return "Windows"
	case "macosx":
		return "macOS"
	case "any":
		return "any system"
	}
	return family
}

// judgeLibc compares the glibc that the wheel asks for with that of the machine, whatever the tag
// promises.
func (j *judge) judgeLibc(c *Choice, f *index.File, miss func(string, string, ...any)) {
	need, ok := parseVersion(f.Glibc)
	if !ok || f.Glibc == "" || j.in.Platform.OS != "linux" || slices.ContainsFunc(c.Misses, func(r Reason) bool { return r.Kind == "libc" || r.Kind == "os" }) {
		return
	}
	have, known := parseVersion(j.m.Glibc)
	switch {
	case j.m.Glibc != "" && known && need.Compare(have) > 0:
		miss("libc", "needs glibc %s, this has %s", need, have)
	case j.m.Glibc == "" && j.m.Musl != "":
		miss("libc", "needs glibc %s, this has musl", need)
	}
}

// judgeWindow is judgeTorch for a file of which it is not known what torch it was built for, but
// in which ones its names are.
func (j *judge) judgeWindow(c *Choice, window []string, miss func(string, string, ...any)) {
	switch {
	case len(window) == 0:
	case j.torchMinor == "":
		c.Notes = append(c.Notes, "it uses torch: the names it needs are in "+versionRange(window))
	case !slices.Contains(window, j.torchMinor):
		miss("torch", "uses names of torch that were found in %s, this has %s", versionRange(window), j.m.Torch)
	default:
		c.Notes = append(c.Notes, "the torch it was built for is not known; the names it needs are in "+versionRange(window))
	}
}

// versionRange names the first and last of some minor versions.
func versionRange(list []string) string {
	list = slices.SortedFunc(slices.Values(list), compareMinor)
	if len(list) == 1 {
		return "torch " + list[0]
	}
	return "torch " + list[0] + " to " + list[len(list)-1]
}

func (j *judge) judgeTorch(c *Choice, f *index.File, miss func(string, string, ...any)) {
	if len(c.Built.Torch) == 0 {
		j.judgeWindow(c, f.Window, miss)
		return
	}
	newest := slices.MaxFunc(c.Built.Torch, func(a, b string) int { return compareMinor(a, b) })
	if j.torchMinor == "" {
		// With none installed any will do, the newest best.
		if v, ok := parseVersion(newest); ok {
			c.torch = number(v, 0)*1000 + number(v, 1)
		}
		c.Notes = append(c.Notes, "torch "+newest+" has to be installed with it")
		return
	}
	if !slices.Contains(c.Built.Torch, j.torchMinor) {
		more := ""
		if slices.Contains(f.Window, j.torchMinor) {
			more = "; the names it needs are in " + versionRange(f.Window) + ", so it may load, but it was not built for that"
		}
		miss("torch", "was built for torch %s, this has %s%s", strings.Join(c.Built.Torch, ", "), j.m.Torch, more)
		c.torch = -distance(newest, j.torchMinor)
		return
	}
	label := index.ParseLabel(f.Version().Local()).Torch
	switch {
	case len(c.Built.Torch) < 2 || slices.Contains(label, j.torchMinor):
	case len(label) > 0:
		c.Notes = append(c.Notes, fmt.Sprintf("it was built for torch %s; it serves torch %s too, which the build proved", label[0], j.torchMinor))
	default:
		c.Notes = append(c.Notes, "one file for "+versionRange(c.Built.Torch))
	}
	if abi := labelABI(f.Version().Local()); abi != "" && j.m.TorchABI != "" && abi != j.m.TorchABI {
		miss("abi", "was built with _GLIBCXX_USE_CXX11_ABI %s, the installed torch with %s", abi, j.m.TorchABI)
	}
}

// distance is how many minor versions lie between two, for ordering near misses.
func distance(a, b string) int {
	v, ok := parseVersion(a)
	w, ok2 := parseVersion(b)
	if !ok || !ok2 {
		return 0
	}
	d := (number(v, 0)-number(w, 0))*100 + number(v, 1) - number(w, 1)
	return max(d, -d)
}

func compareMinor(a, b string) int {
	va, _ := parseVersion(a)
	vb, _ := parseVersion(b)
	return va.Compare(vb)
}

// labelABI returns what a label such as cu12torch2.8cxx11abitrue says of the C++ ABI.
func labelABI(local string) string {
	_, value, ok := strings.Cut(strings.ToLower(local), "cxx11abi")
	switch {
	case ok && strings.HasPrefix(value, "true"):
		return "1"
	case ok && strings.HasPrefix(value, "false"):
		return "0"
	}
	return ""
}

// judgeToolkit compares CUDA, ROCm and CPU builds with torch, the driver and the GPUs.
func (j *judge) judgeToolkit(c *Choice, f *index.File, miss func(string, string, ...any)) {
	toolkit := c.Built.Toolkit
	if j.m.Toolkit != "" && toolkit != "" && toolkit != j.m.Toolkit {
		miss("toolkit", "was built for %s, not %s", index.ToolkitName(toolkit), index.ToolkitName(j.m.Toolkit))
		return
	}
	exact, version := 0, 0
	cuda, rocm := compat.ParseToolkitTag(toolkit)
	if v, ok := parseVersion(cuda); ok {
		exact, version = j.judgeCUDA(c, f, v, miss)
	} else if rocm != "" {
		exact = j.judgeROCm(c, f, rocm, miss)
	} else if toolkit == "cpu" {
		if j.m.Toolkit == "" && (j.m.TorchCUDA != "" || j.m.TorchROCm != "") {
			miss("accelerator", "was built for a torch without GPUs, this has torch %s", j.m.Torch)
		}
		if j.m.NoDriver {
			exact = 1
		}
	}
	full := 1
	if version < 0 {
		full = 0
	}
	c.rank = []int{exact, full, c.torch, version}
}

func (j *judge) judgeCUDA(c *Choice, f *index.File, cuda wheel.Version, miss func(string, string, ...any)) (exact, version int) {
	major, minor := number(cuda, 0), number(cuda, 1)
	version = major*100 + minor
	torch, hasTorch := parseVersion(j.m.TorchCUDA)
	switch {
	case hasTorch && major != number(torch, 0):
		miss("toolkit", "was built for CUDA %s, the installed torch has %s", cuda, torch)
	case hasTorch && cuda.Equal(torch):
		exact = 1
	case hasTorch && len(cuda.Release()) > 1:
		c.Notes = append(c.Notes, fmt.Sprintf("built for CUDA %s, the installed torch has %s: usually works within one major version", cuda, torch))
		version = -distance(cuda.String(), torch.String())
	case j.m.TorchROCm != "":
		miss("accelerator", "was built for CUDA %s, the installed torch has ROCm %s", cuda, j.m.TorchROCm)
	case j.m.Torch != "" && !hasTorch && j.m.Toolkit == "" && j.torchIsCPU():
		miss("accelerator", "was built for CUDA %s, the installed torch has no CUDA", cuda)
	}
	if j.m.NoDriver {
		if !hasTorch && j.m.Toolkit == "" {
			miss("driver", "needs an NVIDIA driver for CUDA %d, this machine has none", major)
		} else {
			c.Notes = append(c.Notes, "this machine has no NVIDIA driver; it will not run here")
		}
		return exact, version
	}
	if !j.driver.IsZero() && major > number(j.driver, 0) {
		miss("driver", "needs a driver for CUDA %d, this one%s runs CUDA up to %s", major, j.driverName(), j.driver)
		return exact, version
	}
	newer := !j.driver.IsZero() && cuda.Compare(j.driver) > 0
	if newer && !hasTorch {
		version = -version // the newest the driver has in full comes first
	}
	j.judgeGPUs(c, f.Arch, newer, miss)
	return exact, version
}

func (j *judge) driverName() string {
	if j.m.Driver == "" {
		return ""
	}
	return " (" + j.m.Driver + ")"
}

// torchIsCPU reports whether the installed torch is known to be without CUDA.
func (j *judge) torchIsCPU() bool {
	v, err := wheel.ParseVersion(j.m.Torch)
	return err == nil && index.ParseLabel(v.Local()).Toolkit == "cpu"
}

func (j *judge) judgeROCm(c *Choice, f *index.File, rocm string, miss func(string, string, ...any)) (exact int) {
	switch {
	case j.m.TorchCUDA != "":
		miss("accelerator", "was built for ROCm %s, the installed torch has CUDA %s", rocm, j.m.TorchCUDA)
		return 0
	case j.m.TorchROCm != "" && !sameMinor(rocm, j.m.TorchROCm):
		miss("toolkit", "was built for ROCm %s, the installed torch has %s", rocm, j.m.TorchROCm)
		return 0
	case j.m.TorchROCm == "" && j.m.Toolkit == "" && !slices.ContainsFunc(j.m.GPUs, func(g GPU) bool { return strings.HasPrefix(g.Arch, "gfx") }) &&
		(len(j.m.GPUs) > 0 || j.m.NoDriver || !j.driver.IsZero()):
		miss("accelerator", "was built for ROCm, this machine has no AMD GPU")
		return 0
	}
	for _, g := range j.m.GPUs {
		if strings.HasPrefix(g.Arch, "gfx") && len(f.Arch) > 0 && !slices.Contains(f.Arch, g.Arch) {
			miss("gpu", "has no code for %s; it has %s", g.Arch, strings.Join(f.Arch, ", "))
			return 0
		}
	}
	return 1
}

func sameMinor(a, b string) bool {
	va, ok := parseVersion(a)
	vb, ok2 := parseVersion(b)
	return ok && ok2 && va.Equal(vb)
}

// judgeGPUs looks for code for every GPU. newer says that the file's CUDA is newer than the
// driver's, which then cannot compile its PTX.
func (j *judge) judgeGPUs(c *Choice, archs []string, newer bool, miss func(string, string, ...any)) {
	if len(archs) == 0 {
		return
	}
	for _, g := range j.m.GPUs {
		cc, err := compat.ParseCC(g.Arch)
		if err != nil {
			continue
		}
		sass, ptx := false, false
		for _, a := range archs {
			arch, _ := compat.ParseArch(a) // what is none runs nowhere
			sass, ptx = sass || arch.SASSRunsOn(cc), ptx || arch.PTXRunsOn(cc)
		}
		name := g.Arch
		if g.Name != "" {
			name = g.Name + " (" + g.Arch + ")"
		}
		switch {
		case sass:
		case ptx && newer:
			miss("gpu", "has only PTX for %s, which a driver for CUDA %s cannot compile", name, j.driver)
		case ptx:
			c.Notes = append(c.Notes, "has only PTX for "+name+": the driver compiles it at the first start")
		default:
			miss("gpu", "has no code for %s; it has %s", name, strings.Join(archs, ", "))
		}
	}
}

// parseVersion reads "12.8", "12.8.1", of which the last part does not count, or "12".
func parseVersion(s string) (wheel.Version, bool) {
	v, err := wheel.ParseVersion(compat.Minor(s))
	return v, err == nil
}

// number returns a part of a version as a number, 0 if the version has fewer.
func number(v wheel.Version, part int) int {
	r := v.Release()
	if part >= len(r) {
		return 0
	}
	n, _ := strconv.Atoi(r[part])
	return n
}
