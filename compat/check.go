package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/internal/diag"
)

// A Combo is one row of a matrix as far as compatibility goes, all values as the
// author wrote them. Empty means "not said" and is not checked; CUDA and ROCm
// both empty is a CPU row.
type Combo struct {
	OS       string // "ubuntu-22.04", "linux-arm", …
	Python   string // "3.13", "3.13t"
	CUDA     string // "12.8.1" or "12.8"
	ROCm     string // "6.2.4"
	Torch    string // "2.9.0" or "2.9"
	AnyTorch bool   // the row is built against a torch that it does not fix
	Arch     string // CUDA targets or, with ROCm, gfx targets
	Kind     string // "wheel" (also if empty) or "sdist"; nothing is compiled for an sdist
}

// Severity says how bad a finding is.
type Severity = diag.Severity

// The severities. A Warning may also contradict an inferred row.
const (
	Note    = diag.Note
	Warning = diag.Warning
	Error   = diag.Error
)

// The rules, as they stand in [Finding.Rule]. They are part of kiln's output and
// do not change.
const (
	RuleOSUnknown      = "os-unknown"         // the os name is not in the table
	RuleToolkitBoth    = "toolkit-both"       // CUDA and ROCm in one row
	RuleCUDAVersion    = "cuda-version"       // no such CUDA release
	RuleCUDAOS         = "cuda-os"            // no CUDA on this os
	RuleROCmVersion    = "rocm-version"       // not a version
	RuleROCmOS         = "rocm-os"            // no ROCm wheels on this os
	RuleTorchVersion   = "torch-version"      // no such torch release
	RuleTorchOS        = "torch-os"           // no torch wheels for this os
	RuleTorchCUDA      = "torch-cuda-build"   // torch has no build for this CUDA
	RuleTorchROCm      = "torch-rocm-build"   // torch has no build for this ROCm
	RulePythonVersion  = "python-version"     // not a version
	RuleTorchPython    = "torch-python"       // torch has no wheel for this Python
	RuleArchSyntax     = "arch-syntax"        // the arch list cannot be read
	RuleArchUnused     = "arch-unused"        // an arch list without a toolkit
	RuleArchNVCC       = "arch-nvcc"          // nvcc cannot make code for it
	RuleArchFamilyMix  = "arch-family-mix"    // nvcc refuses X.Y beside X.Yf
	RuleArchBuilder    = "arch-torch-builder" // PyTorch's extension builder does not know it
	RuleArchUnreached  = "arch-unreachable"   // code that can never run in this torch
	RuleArchDeprecated = "arch-deprecated"    // nvcc will drop it
	RuleArchGfx        = "arch-gfx"           // the gfx target is not in the table
	RuleArchGfxNew     = "arch-gfx-new"       // the gfx target came with a later ROCm
	RuleHostCompiler   = "host-compiler"      // the os's default compiler does not suit nvcc
	RuleCXXStandard    = "cxx-standard"       // the os's default compiler is too old for torch
)

// A Finding is one thing to say about a [Combo].
type Finding struct {
	Rule     string   `json:"rule"`            // stable id, one of the Rule constants
	Severity Severity `json:"severity"`        // written as its name
	Axes     []string `json:"axes"`            // the axes that contradict, most specific first: "torch", "cuda"
	Archs    []string `json:"archs,omitempty"` // the targets meant, for rules about archs
	Message  string   `json:"message"`         // one line: both values, and what does exist
	Fix      string   `json:"fix,omitempty"`   // one line: what to change, or ""
}

func (f Finding) String() string {
	s := f.Severity.String() + ": " + f.Message + " [" + f.Rule + "]"
	if f.Fix != "" {
		s += "; " + f.Fix
	}
	return s
}

// memo remembers what a table was asked, so that a matrix of many rows costs one
// look-up per row after the first of its kind. When full it starts afresh.
type memo struct {
	mu     sync.Mutex
	combos map[Combo][]Finding
	archs  map[archKey]archVal
}

type archKey struct {
	text  string
	torch release
}

type archVal struct {
	list ArchList
	err  error
}

const memoLimit = 1 << 17 // distinct combinations; a few hundred bytes each

// Check says everything that speaks against a combination, worst first; nil
// means that nothing does. Results are remembered, so asking about the same
// combination again is cheap. The caller owns the slice but not what its
// elements point to.
func (t *Table) Check(c Combo) []Finding {
	t.memo.mu.Lock()
	out, ok := t.memo.combos[c]
	t.memo.mu.Unlock()
	if ok {
		return slices.Clone(out)
	}
	k := checker{t: t, c: c}
	k.run()
	slices.SortStableFunc(k.out, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	t.memo.mu.Lock()
	defer t.memo.mu.Unlock()
	if t.memo.combos == nil || len(t.memo.combos) == memoLimit {
		t.memo.combos = map[Combo][]Finding{}
	}
	t.memo.combos[c] = k.out
	return slices.Clone(k.out)
}

// archList is Table.ArchList, remembered.
func (t *Table) archList(text, torch string) (ArchList, error) {
	key := archKey{text: text}
	if r := t.torchRow(torch); r != nil {
		key.torch = r.series
	}
	t.memo.mu.Lock()
	v, ok := t.memo.archs[key]
	t.memo.mu.Unlock()
	if !ok {
		v.list, v.err = t.ArchList(text, torch)
		t.memo.mu.Lock()
		defer t.memo.mu.Unlock()
		if t.memo.archs == nil || len(t.memo.archs) == memoLimit {
			t.memo.archs = map[archKey]archVal{}
		}
		t.memo.archs[key] = v
	}
	return v.list, v.err
}

// A checker holds one combination while its rules run.
type checker struct {
	t   *Table
	c   Combo
	out []Finding

	platform Platform // System is "" if unknown
	cuda     release  // n is 0 if none or unreadable
	rocm     release
	torch    release
	cudaRow  *cudaRow // nil if none or unknown
	torchRow *torchRow
}

func (k *checker) add(sev Severity, rule string, axes []string, fix, format string, args ...any) *Finding {
	k.out = append(k.out, Finding{Rule: rule, Severity: sev, Axes: axes, Message: fmt.Sprintf(format, args...), Fix: fix})
	return &k.out[len(k.out)-1]
}

// against is the severity of contradicting a row.
func against(c Confidence) Severity {
	if c == Inferred {
		return Warning
	}
	return Error
}

// run applies the rules, most basic first: later ones need what earlier ones
// found out.
func (k *checker) run() {
	k.checkOS()
	k.checkToolkit()
	k.checkTorch()
	k.checkTorchToolkit()
	k.checkAnyTorch()
	k.checkPython()
	if k.c.Kind != "sdist" {
		k.checkArchs()
		k.checkCompiler()
	}
}

func (k *checker) checkOS() {
	if k.c.OS == "" {
		return
	}
	p, ok := k.t.Platform(k.c.OS)
	k.platform = p
	switch {
	case !ok:
		fix := "known: " + strings.Join(k.t.osNames, ", ")
		if near := diag.Suggest(k.c.OS, k.t.osNames); near != "" {
			fix = fmt.Sprintf("did you mean %s?", near)
		}
		k.add(Warning, RuleOSUnknown, []string{"os"}, fix, "os %q is not in the table, nothing about it was checked", clip(k.c.OS))
	case !p.Exact:
		base := k.c.OS
		for k.t.os[base].OS == "" {
			base = base[:strings.LastIndexByte(base, '-')]
		}
		k.add(Warning, RuleOSUnknown, []string{"os"}, "", "os %q is not in the table, taken for %s", clip(k.c.OS), base)
	}
}

func (k *checker) checkToolkit() {
	if k.c.CUDA != "" && k.c.ROCm != "" {
		k.add(Error, RuleToolkitBoth, []string{"cuda", "rocm"}, "drop one of the two", "a row cannot have both CUDA %s and ROCm %s", k.c.CUDA, k.c.ROCm)
	}
	if k.c.CUDA != "" {
		v, err := parseRelease(k.c.CUDA)
		if err != nil || v.n < 2 || v.n > 3 {
			k.add(Error, RuleCUDAVersion, []string{"cuda"}, "write it as 12.8 or 12.8.1", "cuda %q is not a CUDA version", clip(k.c.CUDA))
		} else {
			k.cuda, k.cudaRow = v, k.t.cuda[v.series()]
			if k.cudaRow == nil {
				k.unknownSeries(RuleCUDAVersion, "cuda", "CUDA", v, k.t.cudaSeries)
			} else {
				k.published(RuleCUDAVersion, "cuda", "CUDA", v, k.cudaRow.published, k.cudaRow.open, k.cudaRow.conf, k.t.cudaSeries)
			}
			k.toolkitOS("cuda", "CUDA", RuleCUDAOS, k.c.CUDA)
		}
	}
	if k.c.ROCm != "" {
		v, err := parseRelease(k.c.ROCm)
		if err != nil || v.n < 2 || v.n > 3 {
			k.add(Error, RuleROCmVersion, []string{"rocm"}, "write it as 6.4 or 6.2.4", "rocm %q is not a ROCm version", clip(k.c.ROCm))
		} else {
			k.rocm = v
			k.toolkitOS("rocm", "ROCm", RuleROCmOS, k.c.ROCm)
		}
	}
}

func (k *checker) toolkitOS(axis, name, rule, version string) {
	w, ok := k.t.kits[axis]
	if !ok || k.platform.System == "" {
		return
	}
	switch sys := k.platform.System; {
	case slices.Contains(w.notOn, sys):
		k.add(against(w.conf), rule, []string{axis, "os"}, "use "+orList(w.on)+", or no toolkit",
			"%s %s does not exist for %s (%s wheels of torch are for %s)", name, version, k.c.OS, name, orList(w.on))
	case !slices.Contains(w.on, sys):
		k.add(Warning, rule, []string{axis, "os"}, "", "whether %s %s exists for %s is not known (known: %s)", name, version, k.c.OS, orList(w.on))
	}
}

// unknownSeries warns about a series the table does not have.
func (k *checker) unknownSeries(rule, axis, name string, v release, series []release) {
	var near string
	if i, _ := slices.BinarySearchFunc(series, v.series(), release.compare); len(series) > 0 {
		near = fmt.Sprintf(" (nearest: %s)", strings.Join(texts(series[max(0, i-1):min(len(series), i+1)]), ", "))
	}
	k.add(Warning, rule, []string{axis}, "", "%s %s is not in the table of %s%s, nothing about it was checked", name, v, k.t.date, near)
}

// published checks a version against the releases of its series.
func (k *checker) published(rule, axis, name string, v release, have []release, open bool, conf Confidence, series []release) {
	if len(have) == 0 {
		i := slices.Index(series, v.series())
		near := slices.Concat(series[max(0, i-1):i], series[i+1:min(len(series), i+2)])
		k.add(against(conf), rule, []string{axis}, "use "+axis+" "+orList(texts(near)), "%s %s was never published", name, v)
		return
	}
	if v.n < 3 || slices.Contains(have, v) {
		return
	}
	list := strings.Join(texts(have), ", ")
	if open && v.compare(have[len(have)-1]) > 0 {
		k.add(Warning, rule, []string{axis}, "", "%s %s is newer than the table of %s (published until then: %s)", name, v, k.t.date, list)
		return
	}
	k.add(against(conf), rule, []string{axis}, "use "+axis+" "+have[len(have)-1].String(), "%s %s was never published (published: %s)", name, v, list)
}

func (k *checker) checkTorch() {
	if k.c.Torch == "" {
		return
	}
	axis := []string{"torch"}
	num, local, hasLocal := strings.Cut(k.c.Torch, "+")
	if hasLocal {
		k.add(Error, RuleTorchVersion, axis, "write torch "+num+"; the toolkit decides the rest", "torch %q names a build (+%s)", clip(k.c.Torch), clip(local))
	}
	// Nightlies and candidates (2.16.0.dev20261101, 2.16.0rc1) count as their series.
	stable := num
	if i := strings.IndexFunc(num, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }); i >= 0 {
		stable = strings.TrimRight(num[:i], ".")
	}
	v, err := parseRelease(stable)
	if err != nil || v.n < 2 || v.n > 3 {
		k.add(Error, RuleTorchVersion, axis, "write it as 2.9.0 or 2.9", "torch %q is not a torch version", clip(k.c.Torch))
		return
	}
	k.torch, k.torchRow = v, k.t.torch[v.series()]
	switch {
	case k.torchRow == nil:
		k.unknownSeries(RuleTorchVersion, "torch", "torch", v, k.t.torchSeries)
		return
	case stable != num:
		k.add(Warning, RuleTorchVersion, axis, "", "torch %s is a pre-release, checked as torch %s", clip(num), v.series())
	default:
		k.published(RuleTorchVersion, "torch", "torch", v, k.torchRow.published, k.torchRow.open, k.torchRow.conf, k.t.torchSeries)
	}
	if sys := k.platform.System; sys != "" {
		switch r := k.torchRow; {
		case slices.Contains(r.notOn, sys):
			k.add(against(r.conf), RuleTorchOS, []string{"torch", "os"}, "use "+orList(r.on), "torch %s has no wheels for %s (published: %s)", v, k.c.OS, strings.Join(r.on, ", "))
		case len(r.on) > 0 && !slices.Contains(r.on, sys):
			k.add(Warning, RuleTorchOS, []string{"torch", "os"}, "", "whether torch %s has wheels for %s is not known (known: %s)", v, k.c.OS, strings.Join(r.on, ", "))
		}
	}
}

func (k *checker) checkTorchToolkit() {
	if k.torchRow == nil {
		return
	}
	if k.cuda.n > 0 {
		k.torchBuild(RuleTorchCUDA, "cuda", "CUDA", k.cuda.series(), k.c.CUDA, k.torchRow.cuda, func(r *torchRow) map[release]*buildRow { return r.cuda })
	}
	if k.rocm.n > 0 {
		k.torchBuild(RuleTorchROCm, "rocm", "ROCm", k.rocm, k.c.ROCm, k.torchRow.rocm, func(r *torchRow) map[release]*buildRow { return r.rocm })
	}
}

// torchBuild checks that torch is published for a toolkit. Folders of the index
// are named after key: the series of CUDA, the whole version of ROCm.
func (k *checker) torchBuild(rule, axis, name string, key release, written string, builds map[release]*buildRow, of func(*torchRow) map[release]*buildRow) {
	axes := []string{"torch", axis}
	if len(builds) == 0 {
		k.add(Warning, rule, axes, "", "which %s builds torch %s has is not known", name, k.torch)
		return
	}
	b := builds[key]
	if b == nil {
		have := slices.SortedFunc(maps.Keys(builds), release.compare)
		// The row is contradicted as soon as one of its builds is better than
		// inferred.
		sev := Error
		if k.torchRow.partial || !slices.ContainsFunc(have, func(r release) bool { return builds[r].conf != Inferred }) {
			sev = Warning
		}
		var series []release
		for _, s := range k.t.torchSeries {
			if of(k.t.torch[s])[key] != nil {
				series = append(series, s)
			}
		}
		var fixes []string
		if near := sameMajor(have, key.major()); len(near) > 0 {
			names := texts(near)
			if axis == "cuda" {
				for i := range names {
					names[i] += ".x"
				}
			}
			fixes = append(fixes, axis+" "+orList(names))
		}
		if len(series) > 0 {
			fixes = append(fixes, "torch "+ranges(series, k.t.torchSeries, release.String))
		}
		fix := ""
		if len(fixes) > 0 {
			fix = "use " + strings.Join(fixes, ", or ")
		}
		if sev == Warning {
			k.add(sev, rule, axes, fix, "torch %s is not known to have a %s %s build (known: %s)", k.torch, name, key, strings.Join(texts(have), ", "))
		} else {
			k.add(sev, rule, axes, fix, "torch %s has no %s %s build (published: %s)", k.torch, name, key, strings.Join(texts(have), ", "))
		}
		return
	}
	if sys := k.platform.System; sys != "" && !slices.Contains(k.t.kits[axis].notOn, sys) && !slices.Contains(k.torchRow.notOn, sys) {
		switch {
		case slices.Contains(b.notOn, sys):
			k.add(against(b.conf), rule, append(axes, "os"), k.otherBuilds(axis, builds, sys),
				"torch %s for %s %s is not published for %s (only for %s)", k.torch, name, key, k.c.OS, strings.Join(b.on, ", "))
		case len(b.on) > 0 && !slices.Contains(b.on, sys):
			k.add(Warning, rule, append(axes, "os"), k.otherBuilds(axis, builds, sys),
				"whether torch %s for %s %s is published for %s is not known (known: %s)", k.torch, name, key, k.c.OS, strings.Join(b.on, ", "))
		}
	}
	if b.channel == "extra" {
		k.add(Note, rule, axes, "", "torch %s for %s %s is an extra build that PyTorch's release table does not list", k.torch, name, key)
	}
}

// checkAnyTorch checks a row that builds against some torch without saying which: there must be
// one for its toolkit and its Python.
func (k *checker) checkAnyTorch() {
	if !k.c.AnyTorch || k.c.Torch != "" {
		return
	}
	builds := func(r *torchRow) map[release]*buildRow { return r.cuda }
	axis, name, key, written := "cuda", "CUDA", k.cuda.series(), k.c.CUDA
	if k.rocm.n > 0 {
		builds = func(r *torchRow) map[release]*buildRow { return r.rocm }
		axis, name, key, written = "rocm", "ROCm", k.rocm, k.c.ROCm
	}
	var fitting []release // series of torch that have the toolkit
	var toolkits []release
	for _, s := range k.t.torchSeries {
		for v := range builds(k.t.torch[s]) {
			toolkits = append(toolkits, v)
		}
		if written == "" || builds(k.t.torch[s])[key] != nil {
			fitting = append(fitting, s)
		}
	}
	slices.SortFunc(toolkits, release.compare)
	toolkits = slices.Compact(toolkits)
	if len(toolkits) == 0 {
		return // the table has no torch at all
	}
	if len(fitting) == 0 {
		rule := RuleTorchCUDA
		if axis == "rocm" {
			rule = RuleTorchROCm
		}
		sev, unless := Error, ""
		if last := toolkits[len(toolkits)-1]; key.compare(last) > 0 {
			sev, unless = Warning, " in the table of "+k.t.date
		}
		i, _ := slices.BinarySearchFunc(toolkits, key, release.compare)
		near := texts(toolkits[max(0, i-1):min(len(toolkits), i+1)])
		if axis == "cuda" {
			for i := range near {
				near[i] += ".x"
			}
		}
		k.add(sev, rule, []string{axis}, "use "+axis+" "+orList(near)+", or torch_source for a torch from elsewhere",
			"no torch is published for %s %s%s (published: %s)", name, key, unless, strings.Join(texts(toolkits), ", "))
		return
	}
	p, err := parsePython(k.c.Python)
	if err != nil {
		return
	}
	var pythons []python
	for _, s := range fitting {
		pythons = append(pythons, k.t.torch[s].python...)
		pythons = append(pythons, k.t.torch[s].unsure...)
	}
	if len(pythons) == 0 || slices.Contains(pythons, p) {
		return
	}
	pythons = slices.SortedFunc(slices.Values(pythons), comparePython)
	pythons = slices.CompactFunc(pythons, func(a, b python) bool { return comparePython(a, b) == 0 })
	with := ""
	if written != "" {
		with = fmt.Sprintf(" with %s %s", name, key)
	}
	sev := Error
	if !slices.ContainsFunc(k.t.pythons, func(q python) bool { return q.rel.compare(p.rel) >= 0 }) {
		sev = Warning // newer than the table
	}
	k.add(sev, RuleTorchPython, []string{"python"}, "use python "+nearestPython(pythons, p),
		"no torch%s has wheels for CPython %s (published: %s)", with, p, ranges(pythons, k.t.pythons, python.String))
}

// otherBuilds suggests the toolkits that torch is published for on a system.
func (k *checker) otherBuilds(axis string, builds map[release]*buildRow, sys string) string {
	var on []release
	for v, b := range builds {
		if slices.Contains(b.on, sys) {
			on = append(on, v)
		}
	}
	if len(on) == 0 {
		return ""
	}
	slices.SortFunc(on, release.compare)
	return "use " + axis + " " + orList(texts(on))
}

// sameMajor narrows to one major if it has any.
func sameMajor(rs []release, major int) []release {
	same := slices.DeleteFunc(slices.Clone(rs), func(r release) bool { return r.major() != major })
	if len(same) == 0 {
		return rs
	}
	return same
}

func (k *checker) checkPython() {
	if k.c.Python == "" {
		return
	}
	p, err := parsePython(k.c.Python)
	if err != nil {
		k.add(Error, RulePythonVersion, []string{"python"}, "write it as 3.13 or 3.13t", "%s", "python "+err.Error())
		return
	}
	r := k.torchRow
	if r == nil || len(r.python) == 0 {
		return
	}
	all := func() string {
		have := slices.SortedFunc(slices.Values(r.python), comparePython)
		return ranges(have, k.t.pythons, python.String)
	}
	switch {
	case slices.Contains(r.python, p):
	case slices.Contains(r.unsure, p):
		k.add(Warning, RuleTorchPython, []string{"torch", "python"}, "",
			"torch %s announced CPython %s but no such wheel was seen by %s (published: %s)", k.torch, p, k.t.date, all())
		return
	default:
		fix := "use python " + nearestPython(r.python, p)
		var series []release
		for _, s := range k.t.torchSeries {
			if slices.Contains(k.t.torch[s].python, p) {
				series = append(series, s)
			}
		}
		if len(series) > 0 {
			fix += ", or torch " + ranges(series, k.t.torchSeries, release.String)
		}
		k.add(against(r.conf), RuleTorchPython, []string{"torch", "python"}, fix,
			"torch %s has no wheels for CPython %s (published: %s)", k.torch, p, all())
		return
	}
	for _, h := range r.holes {
		if !slices.Contains(h.python, p) ||
			len(h.on) > 0 && !slices.Contains(h.on, k.platform.System) ||
			len(h.versions) > 0 && !slices.Contains(h.versions, k.torch) {
			continue
		}
		axes, on := []string{"torch", "python"}, ""
		if len(h.on) > 0 {
			axes, on = append(axes, "os"), " on "+k.c.OS
		}
		others := slices.DeleteFunc(slices.Clone(r.python), func(q python) bool { return slices.Contains(h.python, q) })
		k.add(against(h.conf), RuleTorchPython, axes, "use python "+nearestPython(others, p),
			"torch %s has no wheels for CPython %s%s", k.torch, p, on)
	}
}

// nearestPython is the published version closest to p, of the same kind if there
// is one.
func nearestPython(have []python, p python) string {
	have = slices.SortedFunc(slices.Values(have), comparePython)
	same := slices.DeleteFunc(slices.Clone(have), func(q python) bool { return q.free != p.free })
	if len(same) == 0 {
		same = have
	}
	if len(same) == 0 {
		return "another version"
	}
	i, _ := slices.BinarySearchFunc(same, p, func(a, b python) int { return a.rel.compare(b.rel) })
	return same[min(i, len(same)-1)].String()
}

func (k *checker) checkArchs() {
	switch {
	case k.c.Arch == "":
	case k.c.CUDA == "" && k.c.ROCm == "":
		k.add(Warning, RuleArchUnused, []string{"arch"}, "drop it", "an arch list has no effect without CUDA or ROCm")
	case k.c.CUDA == "":
		k.checkGfx()
	default:
		l, err := k.t.archList(k.c.Arch, k.c.Torch)
		if err != nil {
			k.add(Error, RuleArchSyntax, []string{"arch"}, "", "%s", oneLine(err))
			return
		}
		k.checkNVCC(l)
		k.checkBuilder(l)
		k.checkReach(l)
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (k *checker) checkGfx() {
	l, err := ParseGfxList(k.c.Arch)
	if err != nil {
		k.add(Error, RuleArchSyntax, []string{"arch"}, "", "%s", oneLine(err))
		return
	}
	var unknown []string
	for _, g := range l.items {
		if _, ok := k.t.gfx[gfxProcessor(g)]; !ok && !strings.HasSuffix(gfxProcessor(g), "-generic") {
			unknown = append(unknown, g)
		}
	}
	if len(unknown) > 0 && len(k.t.gfx) > 0 {
		k.add(Warning, RuleArchGfx, []string{"arch"}, "", "%s not in the table (known: %s)",
			isAre(unknown), strings.Join(slices.Sorted(maps.Keys(k.t.gfx)), ", ")).Archs = unknown
	}
	own, ok := k.t.rocm[k.rocm.series()]
	if !ok {
		return
	}
	later := map[release][]string{}
	for _, g := range l.items {
		processor := gfxProcessor(g)
		if slices.Contains(own.list.items, processor) {
			continue
		}
		first := release{}
		for series, r := range k.t.rocm {
			if slices.Contains(r.list.items, processor) && (first.n == 0 || series.compare(first) < 0) {
				first = series
			}
		}
		if first.n > 0 && first.compare(k.rocm.series()) > 0 {
			later[first] = append(later[first], g)
		}
	}
	for _, first := range slices.SortedFunc(maps.Keys(later), release.compare) {
		k.add(Warning, RuleArchGfxNew, []string{"arch", "rocm"}, fmt.Sprintf("use rocm %s or newer, or drop it", first),
			"%s in PyTorch's own builds from ROCm %s on, and hipcc of %s may not know it", isAre(later[first]), first, k.c.ROCm).Archs = later[first]
	}
}

// isAre makes "a is" or "a, b are".
func isAre(s []string) string {
	if len(s) == 1 {
		return s[0] + " is"
	}
	return strings.Join(s, ", ") + " are"
}

// checkNVCC compares a list with what nvcc can make.
func (k *checker) checkNVCC(l ArchList) {
	r := k.cudaRow
	if r == nil || r.emit.list.Empty() {
		return
	}
	axes := []string{"arch", "cuda"}
	var missing, deprecated, mixed []string
	var why, fixes []string
	say := func(to *[]string, s string) {
		if !slices.Contains(*to, s) {
			*to = append(*to, s)
		}
	}
	for _, a := range l.items {
		switch {
		case !r.emit.list.Has(a):
			missing = append(missing, a.Target())
			if g := k.t.gpus[a.CC()]; g.RenamedTo != (CC{}) && r.emit.list.Has(Arch{Major: g.RenamedTo.Major, Minor: g.RenamedTo.Minor, Suffix: a.Suffix}) {
				say(&why, fmt.Sprintf("%s is called %s there", a.CC(), g.RenamedTo))
				say(&fixes, fmt.Sprintf("write %s%s", g.RenamedTo, a.Suffix))
				continue
			}
			first, last := k.t.emitters(a)
			switch {
			case first == nil:
				say(&why, a.Target()+" is a target of no CUDA in the table")
			case first.series.compare(r.series) > 0:
				say(&why, fmt.Sprintf("%s came with CUDA %s", a.Target(), first.series))
				say(&fixes, fmt.Sprintf("use cuda %s or newer", first.series))
			default:
				say(&why, fmt.Sprintf("%s was last in CUDA %s", a.Target(), last.series))
				say(&fixes, fmt.Sprintf("use cuda %s or older", last.series))
			}
		case r.deprecated.list.Has(a):
			deprecated = append(deprecated, a.Target())
		}
		if a.Suffix == "f" && l.Has(Arch{Major: a.Major, Minor: a.Minor}) {
			mixed = append(mixed, a.CC().String(), a.Target())
		}
	}
	if len(missing) > 0 {
		fixes = append([]string{"drop " + strings.Join(missing, " ")}, fixes...)
		k.add(against(r.emit.conf), RuleArchNVCC, axes, strings.Join(fixes, ", or "),
			"nvcc of CUDA %s cannot make code for %s (%s)", k.cuda, strings.Join(missing, ", "), strings.Join(why, "; ")).Archs = missing
	}
	if len(mixed) > 0 {
		k.add(against(r.emit.conf), RuleArchFamilyMix, axes, "keep one of them",
			"nvcc refuses a target and its family form in one call: %s", strings.Join(mixed, ", ")).Archs = mixed
	}
	if len(deprecated) > 0 {
		k.add(Note, RuleArchDeprecated, axes, "", "CUDA %s deprecates %s", k.cuda, strings.Join(deprecated, ", ")).Archs = deprecated
	}
}

// emitters are the oldest and the newest CUDA that can make code for a target.
func (t *Table) emitters(a Arch) (first, last *cudaRow) {
	for _, s := range t.cudaSeries {
		if r := t.cuda[s]; r.emit.list.Has(a) {
			if last = r; first == nil {
				first = r
			}
		}
	}
	return first, last
}

// checkBuilder compares a list with what PyTorch's extension builder accepts.
func (k *checker) checkBuilder(l ArchList) {
	if k.torchRow == nil || k.torchRow.builder == nil {
		return
	}
	axes := []string{"arch", "torch"}
	b := k.torchRow.builder
	unknown := b.unknown(l)
	if len(unknown) > 0 {
		fix := "drop " + strings.Join(unknown, " ")
		if i := slices.IndexFunc(k.t.torchSeries, func(s release) bool {
			r := k.t.torch[s]
			return r.builder != nil && s.compare(k.torch) > 0 && len(r.builder.unknown(l)) == 0
		}); i >= 0 {
			fix = fmt.Sprintf("%s, or use torch %s or newer", fix, k.t.torchSeries[i])
		}
		newest := b.archs.items[len(b.archs.items)-1]
		k.add(against(b.conf), RuleArchBuilder, axes, fix, "the extension builder of torch %s does not know %s (its newest is %s)",
			k.torch, strings.Join(unknown, ", "), newest.Target()).Archs = unknown
	}
	if _, ok := l.TorchEnv(); !ok {
		k.add(against(b.conf), RuleArchBuilder, axes, "ask for machine code too, and for native alone",
			"%q cannot be said in TORCH_CUDA_ARCH_LIST", clip(l.String()))
	}
}

// unknown are the targets and names of a list that the builder refuses.
func (b *builderRow) unknown(l ArchList) []string {
	var out []string
	for _, n := range l.names {
		if _, old := familyNames[n]; !old && b.names[n] == "" {
			out = append(out, n)
		}
	}
	if l.native && !b.native {
		out = append(out, "native")
	}
	if len(out) > 0 {
		return out // what it would expand to is anyone's guess
	}
	for _, a := range l.items {
		if !b.archs.Has(a) {
			out = append(out, a.Target())
		}
	}
	return out
}

// checkReach finds code that no process will ever use: on every GPU that would
// choose it, torch itself has neither machine code nor PTX, so the extension is
// never reached. A GPU chooses the newest machine code that runs on it: beside
// 7.5, code for 7.0 serves 7.0 alone.
func (k *checker) checkReach(l ArchList) {
	if k.torchRow == nil || k.cuda.n == 0 {
		return
	}
	b := k.torchRow.cuda[k.cuda.series()]
	if b == nil {
		return
	}
	torch, ok := b.archsOn(k.platform.System)
	if !ok {
		return
	}
	var lost []string
	for i, a := range l.items {
		if k.cudaRow != nil && !k.cudaRow.emit.list.Empty() && !k.cudaRow.emit.list.Has(a) {
			continue // cannot be made at all, see checkNVCC
		}
		used := func(d CC) bool {
			if !a.SASS {
				return a.PTXRunsOn(d) && torch.Covers(d)
			}
			return a.SASSRunsOn(d) && torch.Covers(d) && !slices.ContainsFunc(l.items[i+1:], func(b Arch) bool {
				return b.CC() != a.CC() && b.SASSRunsOn(d)
			})
		}
		if !used(a.CC()) && !slices.ContainsFunc(k.t.devices, used) {
			lost = append(lost, a.Target())
		}
	}
	if len(lost) > 0 {
		k.add(Warning, RuleArchUnreached, []string{"arch", "torch", "cuda"}, "drop "+strings.Join(lost, " "),
			"code for %s can never run: torch %s for CUDA %s has nothing for such GPUs (it has %s)",
			strings.Join(lost, ", "), k.torch, k.cuda.series(), torch).Archs = lost
	}
}

// The oldest gcc whose library is good enough for torch's headers, by standard.
var gccForStandard = map[int]int{17: 9, 20: 11}

// checkCompiler looks at the default compiler of the os. Others can be installed
// there, so it never gives an error.
func (k *checker) checkCompiler() {
	p := k.platform
	if k.cudaRow != nil && k.cudaRow.host != nil {
		h := k.cudaRow.host
		axes := []string{"os", "cuda"}
		if p.GCC > 0 && h.GCC[1] > 0 && (p.GCC < h.GCC[0] || p.GCC > h.GCC[1]) {
			k.add(Warning, RuleHostCompiler, axes, fmt.Sprintf("install gcc %d there and name it as host compiler%s", h.GCC[1], k.fittingOS(func(q Platform) bool {
				return q.GCC >= h.GCC[0] && q.GCC <= h.GCC[1]
			})), "CUDA %s accepts gcc %d to %d, the default of %s is gcc %d", k.cuda, h.GCC[0], h.GCC[1], k.c.OS, p.GCC)
		}
		if p.MSC > 0 && h.MSC[1] > 0 && (p.MSC < h.MSC[0] || p.MSC >= h.MSC[1]) {
			k.add(Warning, RuleHostCompiler, axes, fmt.Sprintf("install a toolset with _MSC_VER below %d there%s", h.MSC[1], k.fittingOS(func(q Platform) bool {
				return q.MSC >= h.MSC[0] && q.MSC < h.MSC[1]
			})), "CUDA %s accepts MSVC with _MSC_VER %d to %d, the default of %s is %d", k.cuda, h.MSC[0], h.MSC[1]-1, k.c.OS, p.MSC)
		}
	}
	if k.torchRow != nil && p.GCC > 0 {
		if need := gccForStandard[k.torchRow.cxxStd]; p.GCC < need {
			k.add(Warning, RuleCXXStandard, []string{"os", "torch"}, fmt.Sprintf("install gcc %d or newer there", need),
				"torch %s is built as C++%d, which needs gcc %d, the default of %s is gcc %d", k.torch, k.torchRow.cxxStd, need, k.c.OS, p.GCC)
		}
	}
}

// fittingOS suggests runners of the same kind whose default compiler fits.
func (k *checker) fittingOS(fits func(Platform) bool) string {
	kind, _, _ := strings.Cut(k.c.OS, "-")
	var names []string
	for _, n := range k.t.osNames {
		if q := k.t.os[n]; q.System == k.platform.System && strings.HasPrefix(n, kind+"-") && fits(q) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", or use " + orList(names)
}
