package compat

import (
	"bytes"
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Confidence says how well a row of the table is founded.
type Confidence string

// The three levels, best first.
const (
	Verified   Confidence = "verified"   // seen by running the tool or reading the published file
	Documented Confidence = "documented" // from the vendor's or project's own table
	Inferred   Confidence = "inferred"   // derived; a hint, never grounds for an error
)

// systems are the generic machines that rows speak about.
var systems = []string{"linux", "linux-arm", "windows", "windows-arm", "macos", "macos-intel"}

// systemOf finds the generic machine of a wheel platform tag.
func systemOf(tag string) (string, bool) {
	switch tag {
	case "linux_x86_64":
		return "linux", true
	case "linux_aarch64":
		return "linux-arm", true
	case "win_amd64":
		return "windows", true
	case "win_arm64":
		return "windows-arm", true
	}
	if v, ok := strings.CutPrefix(tag, "macosx_"); ok {
		if v, ok := strings.CutSuffix(v, "_arm64"); ok && strings.Trim(v, "0123456789_") == "" {
			return "macos", true
		}
		if v, ok := strings.CutSuffix(v, "_x86_64"); ok && strings.Trim(v, "0123456789_") == "" {
			return "macos-intel", true
		}
	}
	return "", false
}

// A Platform is what an os value of a matrix stands for.
type Platform struct {
	OS     string // the name asked for
	Tag    string // the platform tag of wheels built there, such as linux_x86_64
	System string // "linux", "linux-arm", "windows", "windows-arm", "macos" or "macos-intel"
	GLIBC  string // "" if unknown or none
	GCC    int    // major of the default gcc; 0 if unknown or none
	MSC    int    // _MSC_VER of the default MSVC; 0 if unknown or none
	// Exact is false if the name is not in the table and was taken for the runner
	// it begins with: "ubuntu-22.04-large" for "ubuntu-22.04".
	Exact      bool
	Confidence Confidence
}

// HostCompilers are the compilers that an nvcc accepts, lowest and highest.
// {0, 0} is unknown.
type HostCompilers struct {
	GCC, Clang [2]int // majors, both inclusive
	MSC        [2]int // _MSC_VER; the upper bound is the first one refused
	Confidence Confidence
}

// A GPU is what is known of one compute capability.
type GPU struct {
	CC         CC
	Family     string   // "Ampere"
	Embedded   bool     // a part for cars, consoles or robots
	RenamedTo  CC       // zero unless a later toolkit gave it another number
	Devices    []string // well-known products; shared, not to be changed
	Confidence Confidence
}

// A Driver says which drivers go with a CUDA version. Fields are "" if unknown.
type Driver struct {
	// MinLinux and MinWindows are the oldest drivers that run programs of this
	// CUDA major at all, without PTX and without newer features.
	MinLinux, MinWindows string
	// Linux and Windows are the drivers that came with exactly this toolkit: full
	// features, and its PTX compiles.
	Linux, Windows string
}

// Rows. All are immutable after build.

// where says on which systems something exists. A system in neither list is
// unknown.
type where struct {
	conf      Confidence
	on, notOn []string
}

type torchRow struct {
	where
	series    release
	released  string
	published []release
	open      bool // may get further patch releases
	partial   bool // the lists of builds are incomplete
	python    []python
	unsure    []python // announced, not seen
	holes     []hole
	cuda      map[release]*buildRow
	rocm      map[release]*buildRow
	cxxStd    int
	cxxConf   Confidence
	abi       map[string]map[string]bool // system, then toolkit tag or "*"
	builder   *builderRow
}

// A hole is a Python that a release has in general but not there.
type hole struct {
	conf     Confidence
	python   []python
	on       []string  // empty: everywhere
	versions []release // empty: all
}

type builderRow struct {
	conf   Confidence
	archs  ArchList
	native bool
	names  map[string]string // of laterNames, those it knows
}

type buildRow struct {
	where
	channel string
	archs   map[string]archRow // by CPU
}

type archRow struct {
	conf Confidence
	list ArchList
}

type driverRow struct {
	conf           Confidence
	linux, windows string
}

type cudaRow struct {
	conf       Confidence
	series     release
	published  []release
	open       bool
	emit       archRow
	ptxISA     release
	deprecated archRow
	host       *HostCompilers
	shipped    map[release][]string
	defaults   archRow
}

// gfxRow is what PyTorch's own wheels for a ROCm series are built for.
type gfxRow struct {
	conf Confidence
	list GfxList
}

// A Table is the knowledge of one date. It does not change and may be used by
// several goroutines at once.
type Table struct {
	date    string
	root    *node
	changes []Change
	torch   map[release]*torchRow
	cuda    map[release]*cudaRow
	drivers map[int]driverRow
	kits    map[string]where
	os      map[string]Platform
	gpus    map[CC]GPU
	gfx     map[string]Confidence
	rocm    map[release]gfxRow

	// Derived by finish: the keys in order.
	torchSeries, cudaSeries []release
	pythons                 []python
	osNames                 []string
	devices                 []CC

	memo memo
}

//go:embed compat.json
var compatJSON []byte

// defaultTable is read on first use.
var defaultTable = sync.OnceValue(func() *Table {
	t, err := Load(bytes.NewReader(compatJSON))
	if err != nil {
		panic("compat: embedded " + err.Error()) // a test loads it
	}
	return t
})

// Default returns the table that was current when kiln was built. It is read
// once and shared.
func Default() *Table { return defaultTable() }

func (t *Table) finish() {
	t.torchSeries = slices.SortedFunc(maps.Keys(t.torch), release.compare)
	t.cudaSeries = slices.SortedFunc(maps.Keys(t.cuda), release.compare)
	t.osNames = slices.Sorted(maps.Keys(t.os))
	t.devices = slices.SortedFunc(maps.Keys(t.gpus), CC.compare)
	seen := map[python]bool{}
	for _, r := range t.torch {
		slices.SortFunc(r.published, release.compare)
		for _, p := range r.python {
			seen[p] = true
		}
	}
	for _, r := range t.cuda {
		slices.SortFunc(r.published, release.compare)
	}
	t.pythons = slices.SortedFunc(maps.Keys(seen), comparePython)
}

// comparePython puts all free-threaded versions after the others, so that each
// kind reads as a range.
func comparePython(a, b python) int {
	if a.free != b.free {
		if b.free {
			return -1
		}
		return 1
	}
	return a.rel.compare(b.rel)
}

// Date is the day the table describes, as 2026-11-15.
func (t *Table) Date() string { return t.date }

// Changes lists what overrides did to the table, in order. The caller owns it.
func (t *Table) Changes() []Change { return slices.Clone(t.changes) }

// KnownOS are the os names of the table, sorted.
func (t *Table) KnownOS() []string { return slices.Clone(t.osNames) }

// TorchSeries are the torch minors of the table, oldest first.
func (t *Table) TorchSeries() []string { return texts(t.torchSeries) }

// CUDASeries are the CUDA minors of the table that were published, oldest first.
func (t *Table) CUDASeries() []string {
	return texts(slices.DeleteFunc(slices.Clone(t.cudaSeries), func(r release) bool { return len(t.cuda[r].published) == 0 }))
}

// CUDAVersions are the published releases of a CUDA series, oldest first.
func (t *Table) CUDAVersions(series string) []string {
	r, err := parseRelease(series)
	if err != nil || t.cuda[r.series()] == nil {
		return nil
	}
	return texts(t.cuda[r.series()].published)
}

// TorchVersions are the published releases of a torch series, oldest first.
func (t *Table) TorchVersions(series string) []string {
	if r := t.torchRow(series); r != nil {
		return texts(r.published)
	}
	return nil
}

// TorchBuilds are the toolkits a torch series or version is published for, as
// index folders: "cu126", "cu130", "rocm6.4". It is nil if the series is unknown.
func (t *Table) TorchBuilds(torch string) []string {
	r := t.torchRow(torch)
	if r == nil {
		return nil
	}
	var out []string
	for _, v := range slices.SortedFunc(maps.Keys(r.cuda), release.compare) {
		out = append(out, ToolkitTag(v.String(), ""))
	}
	for _, v := range slices.SortedFunc(maps.Keys(r.rocm), release.compare) {
		out = append(out, ToolkitTag("", v.String()))
	}
	return out
}

func texts(rs []release) []string {
	out := make([]string, len(rs))
	for i, r := range rs {
		out[i] = r.String()
	}
	return out
}

func (t *Table) torchRow(version string) *torchRow {
	r, err := parseRelease(version)
	if err != nil {
		return nil
	}
	return t.torch[r.series()]
}

func (t *Table) cudaRow(version string) *cudaRow {
	r, err := parseRelease(version)
	if err != nil {
		return nil
	}
	return t.cuda[r.series()]
}

// Platform looks an os name up. A name that is not in the table but begins with
// one that is, such as a custom runner label, counts as that one unless the rest
// hints at another CPU; Exact tells the difference.
func (t *Table) Platform(os string) (Platform, bool) {
	if p, ok := t.os[os]; ok {
		return p, true
	}
	for base := os; ; {
		at := strings.LastIndexByte(base, '-')
		if at < 0 {
			return Platform{}, false
		}
		base = base[:at]
		// A generic name says too little: "linux-mint" is not "linux".
		if p, ok := t.os[base]; ok && !slices.Contains(systems, base) {
			rest := strings.ToLower(os[at:])
			for _, cpu := range []string{"arm", "aarch", "x86", "amd64", "intel", "ppc", "s390", "riscv"} {
				if strings.Contains(rest, cpu) {
					return Platform{}, false
				}
			}
			p.OS, p.Exact = os, false
			return p, true
		}
	}
}

// CXX11ABI says whether the torch wheel for a toolkit (cuda, rocm, or both empty
// for CPU) and an os was built with libstdc++'s new ABI. known is false off
// Linux, where there is no such choice, and where the table has no row. Where a
// torch is installed, read it from there instead.
func (t *Table) CXX11ABI(torch, cuda, rocm, os string) (val, known bool) {
	r := t.torchRow(torch)
	p, ok := t.Platform(os)
	if r == nil || !ok {
		return false, false
	}
	tags := r.abi[p.System]
	if v, ok := tags[TorchIndexSuffix(cuda, rocm)]; ok {
		return v, true
	}
	val, known = tags["*"]
	return val, known
}

// CXXStandard is the C++ standard that PyTorch's extension builder asks for: 17
// or 20.
func (t *Table) CXXStandard(torch string) (int, bool) {
	r := t.torchRow(torch)
	if r == nil || r.cxxStd == 0 {
		return 0, false
	}
	return r.cxxStd, true
}

// DefaultArchs is the arch list kiln uses for a CUDA version when a row, its
// group and its package name none.
func (t *Table) DefaultArchs(cuda string) (ArchList, bool) {
	r := t.cudaRow(cuda)
	if r == nil || r.defaults.list.Empty() {
		return ArchList{}, false
	}
	return r.defaults.list, true
}

// DefaultGfx is DefaultArchs for a ROCm version: the targets of PyTorch's own wheels for it.
func (t *Table) DefaultGfx(rocm string) (GfxList, bool) {
	v, err := parseRelease(rocm)
	if err != nil {
		return GfxList{}, false
	}
	r, ok := t.rocm[v.series()]
	return r.list, ok && len(r.list.items) > 0
}

// Emits are the targets, with "a" and "f" ones, that nvcc of a CUDA version can
// make code for.
func (t *Table) Emits(cuda string) (ArchList, bool) {
	r := t.cudaRow(cuda)
	if r == nil || r.emit.list.Empty() {
		return ArchList{}, false
	}
	return r.emit.list, true
}

// PTXISA is the PTX version that a CUDA version writes, such as "8.7". A driver
// compiles PTX up to the version of its own CUDA.
func (t *Table) PTXISA(cuda string) (string, bool) {
	r := t.cudaRow(cuda)
	if r == nil || r.ptxISA.n == 0 {
		return "", false
	}
	return r.ptxISA.String(), true
}

// HostCompilers are the compilers that nvcc of a CUDA version accepts.
func (t *Table) HostCompilers(cuda string) (HostCompilers, bool) {
	r := t.cudaRow(cuda)
	if r == nil || r.host == nil {
		return HostCompilers{}, false
	}
	return *r.host, true
}

// Driver looks up the drivers for a CUDA version. For a series without a patch,
// Linux and Windows are those of its first release.
func (t *Table) Driver(cuda string) (Driver, bool) {
	v, err := parseRelease(cuda)
	if err != nil {
		return Driver{}, false
	}
	var d Driver
	m, ok := t.drivers[v.major()]
	d.MinLinux, d.MinWindows = m.linux, m.windows
	if r := t.cuda[v.series()]; r != nil {
		if v.n == 2 && len(r.published) > 0 {
			v = r.published[0]
		}
		if s := r.shipped[v]; s != nil {
			ok = true
			if d.Linux = s[0]; len(s) > 1 {
				d.Windows = s[1]
			}
		}
	}
	return d, ok
}

// GPU looks a compute capability up.
func (t *Table) GPU(cc CC) (GPU, bool) {
	g, ok := t.gpus[cc]
	return g, ok
}

// TorchArchs are the targets inside the torch wheel itself for a CUDA version
// and an os.
func (t *Table) TorchArchs(torch, cuda, os string) (ArchList, bool) {
	p, ok := t.Platform(os)
	r, v := t.torchRow(torch), t.cudaRow(cuda)
	if !ok || r == nil || v == nil {
		return ArchList{}, false
	}
	b := r.cuda[v.series]
	if b == nil {
		return ArchList{}, false
	}
	return b.archsOn(p.System)
}

// archsOn is the list of a build for a system. PyTorch adds PTX to its Linux
// builds only.
func (b *buildRow) archsOn(system string) (ArchList, bool) {
	cpu := "x86_64"
	if system == "linux-arm" || system == "windows-arm" {
		cpu = "aarch64"
	}
	a, ok := b.archs[cpu]
	if !ok {
		return ArchList{}, false
	}
	l := a.list
	if strings.HasPrefix(system, "windows") {
		l.items = slices.Clone(l.items)
		for i := range l.items {
			l.items[i].PTX = false
		}
		l.text = l.String()
	}
	return l, true
}

// ArchList reads an arch list with the family names meaning what they mean to
// the extension builder of a torch version. An unknown or empty torch gives
// [ParseArchList].
func (t *Table) ArchList(s, torch string) (ArchList, error) {
	if r := t.torchRow(torch); r != nil && r.builder != nil {
		return parseArchList(s, r.builder.names)
	}
	return ParseArchList(s)
}
