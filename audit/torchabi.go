package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/internal/units"
)

// How a wheel is bound to torch.
const (
	TorchAny      = "any"      // it uses nothing of torch's libraries
	TorchStable   = "stable"   // only C functions that later releases keep
	TorchReleases = "releases" // C++ names, which each release may change
)

// A TorchABI says which releases of torch a wheel loads with, as far as kiln has them on record.
type TorchABI struct {
	// Kind is TorchAny, TorchStable or TorchReleases.
	Kind string `json:"kind"`
	// From is the first release that has all the functions, if Kind is TorchStable: "2.10".
	From string `json:"from,omitempty"`
	// Unstable are the names that keep it off the stable ABI, sorted, as the linker has them.
	Unstable []string `json:"unstable,omitempty"`
	// Summary is all of it in a line: "2.9 to 2.12 (2.8 lacks at::native::foo; 2.13 unknown)".
	Summary string `json:"summary"`

	places map[string][]string // of unstable names, if Options.Places
}

// stableTorchName says whether a name is one of the C functions that libtorch promises to keep:
// the shim that AOTInductor began, and its extension for libraries of others.
func stableTorchName(name string) bool {
	return strings.HasPrefix(name, "aoti_torch_") || strings.HasPrefix(name, "torch_") && !strings.HasPrefix(name, "torch_c_")
}

// fromTorch are the names that the files take from torch: those that neither the wheel itself nor
// the system has and that a torch on record has, or that can come from nowhere else.
func (c *checker) fromTorch(list []*object, torches []*Snapshot) []string {
	var names []string
	for _, o := range list {
		if o.pe != nil {
			names = append(names, o.pe.namesFrom(torchLibrary)...)
			continue
		}
		names = append(names, c.unresolved(o, c.scopeOf(o, nil))...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		if !torchSymbol(name) && standardName(name) {
			return true
		}
		return !torchSymbol(name) && name[0] != '?' && !slices.ContainsFunc(torches, func(t *Snapshot) bool { return t.Provider(name) != nil })
	})
}

// standardName says whether a name is one of the C++ library, of which some torch libraries have a
// copy.
func standardName(name string) bool {
	return slices.ContainsFunc([]string{"_ZSt", "_ZNSt", "_ZNKSt", "_ZTISt", "_ZTVSt", "_ZTSSt", "_ZTINSt", "_ZTVNSt", "_ZTSNSt"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// torchABI draws the conclusion from the names and from the verdicts in the report.
func (c *checker) torchABI(list []*object, torches []*Snapshot) *TorchABI {
	names := c.fromTorch(list, torches)
	out := &TorchABI{Kind: TorchReleases}
	if len(names) == 0 && !slices.ContainsFunc(list, (*object).needsTorch) {
		out.Kind, out.Summary = TorchAny, "any"
		return out
	}
	for _, name := range names {
		if !stableTorchName(name) {
			out.Unstable = append(out.Unstable, name)
		}
	}
	out.places = map[string][]string{}
	for _, o := range list {
		for name, places := range o.places {
			out.places[name] = append(out.places[name], places...)
		}
	}
	c.checkStable(out, names, torches)
	if len(torches) == 0 {
		out.Summary = "unknown: no torch on record for this platform"
		return out
	}
	if len(out.Unstable) == 0 {
		if from := firstWithAll(names, torches); from != "" {
			out.Kind, out.From = TorchStable, from
			out.Summary = "stable ABI, " + from + " and later"
			if major := c.cudaMajor(list); major != "" {
				out.Summary += ", with CUDA " + major
			}
			return out
		}
	}
	c.judgeLayouts(names)
	out.Summary = torchWindow(c.report.WorksWith)
	return out
}

// checkStable refuses what a wheel for the stable ABI must not use.
func (c *checker) checkStable(abi *TorchABI, names []string, torches []*Snapshot) {
	from := c.opts.TorchStable
	if from == "" {
		return
	}
	list := func(names []string) []string {
		out := make([]string, len(names))
		for i, name := range names {
			out[i] = windowsName(name)
		}
		return out
	}
	if len(abi.Unstable) > 0 {
		details := list(abi.Unstable)
		c.find(RuleTorchStable, "", "uses %s of torch outside of the stable ABI: %s", units.Count(len(details), "name"), firstFew(details, 3)).with(details...)
	}
	// The last patch release: no function comes with one.
	at := -1
	for i, torch := range torches {
		if minorOf(torch.Version) == minorOf(from) {
			at = i
		}
	}
	if at < 0 {
		return
	}
	var newer []string
	for _, name := range names {
		if stableTorchName(name) && torches[at].Provider(name) == nil {
			newer = append(newer, name)
		}
	}
	if len(newer) > 0 {
		since := cmp.Or(firstWithAll(newer, torches), "no release on record")
		c.find(RuleTorchStable, "", "uses %s that torch %s does not have: %s (%s)", units.Count(len(newer), "function"), from, firstFew(newer, 3), since).with(newer...)
	}
}

// firstWithAll is the release from which on every torch on record has all the names.
func firstWithAll(names []string, torches []*Snapshot) string {
	from := ""
	for _, torch := range slices.Backward(torches) {
		if slices.ContainsFunc(names, func(name string) bool { return torch.Provider(name) == nil }) {
			break
		}
		from = minorOf(torch.Version)
	}
	return from
}

// cudaMajor is the CUDA that the files need a library of, such as "12"; "" if they need none.
func (c *checker) cudaMajor(list []*object) string {
	for _, o := range list {
		for _, lib := range o.Needed {
			if major := cudaMajor(lib); major != "" {
				return major
			}
		}
	}
	return ""
}

// torchWindow is the verdicts in a line.
func torchWindow(verdicts []TorchVerdict) string {
	var runs []string
	lacks := func(v *TorchVerdict) string {
		if what, ok := strings.CutPrefix(v.Reason, "no "); ok {
			return minorOf(v.Torch) + " lacks " + what
		}
		return minorOf(v.Torch) + " " + v.Reason
	}
	if len(verdicts) == 0 {
		return "unknown"
	}
	var around []string // the neighbors of the first and of the last run
	for i := 0; i < len(verdicts); {
		if !verdicts[i].OK {
			i++
			continue
		}
		j := i
		for j+1 < len(verdicts) && verdicts[j+1].OK {
			j++
		}
		if len(runs) == 0 && i > 0 {
			around = append(around, lacks(&verdicts[i-1]))
		}
		first, last := releaseName(verdicts, i, -1), releaseName(verdicts, j, 1)
		switch {
		case minorOf(first) != minorOf(last):
			runs = append(runs, first+" to "+last)
		case first == minorOf(first) && last == first || i == j:
			runs = append(runs, last)
		default:
			runs = append(runs, publicOf(verdicts[i].Torch)+" to "+publicOf(verdicts[j].Torch))
		}
		i = j + 1
	}
	newest := &verdicts[len(verdicts)-1]
	if len(runs) == 0 {
		return "none on record (" + lacks(newest) + ")"
	}
	if newest.OK {
		around = append(around, nextMinor(newest.Torch)+" unknown")
	} else {
		at := len(verdicts) - 1
		for !verdicts[at].OK {
			at--
		}
		around = append(around, lacks(&verdicts[at+1]))
	}
	return strings.Join(runs, ", ") + " (" + strings.Join(around, "; ") + ")"
}

// releaseName is "2.9" for a verdict that is the last one of its minor release in a direction,
// else "2.9.1".
func releaseName(verdicts []TorchVerdict, i, step int) string {
	minor := minorOf(verdicts[i].Torch)
	if next := i + step; next >= 0 && next < len(verdicts) && minorOf(verdicts[next].Torch) == minor {
		return publicOf(verdicts[i].Torch)
	}
	return minor
}

func publicOf(version string) string {
	public, _, _ := strings.Cut(version, "+")
	return public
}

// minorOf is "2.9" of "2.9.1+cu128".
func minorOf(version string) string {
	parts := strings.SplitN(publicOf(version), ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}

func nextMinor(version string) string {
	major, minor, _ := strings.Cut(minorOf(version), ".")
	n, err := strconv.Atoi(minor)
	if err != nil {
		return "the next"
	}
	return fmt.Sprintf("%s.%d", major, n+1)
}

// explain adds to the verdicts what is known about the first name that is missing: all of it, and
// the releases that have it.
func (c *checker) explain(torches []*Snapshot) {
	all := make([]string, len(torches))
	for i, t := range torches {
		all[i] = t.Version
	}
	for i := range c.report.WorksWith {
		v := &c.report.WorksWith[i]
		if v.Symbol == "" {
			continue
		}
		v.Name = windowsName(v.Symbol)
		var have []string
		for _, t := range torches {
			if t.Provider(v.Symbol) != nil {
				have = append(have, t.Version)
			}
		}
		v.Has = ranges(have, all)
		at := slices.Index(all, v.Torch)
		for k := at; k >= 0 && at >= 0; k-- {
			if k > 0 && slices.Contains(have, all[k-1]) {
				v.Removed = publicOf(all[k])
				break
			}
		}
	}
}

// VerdictOf is the verdict on a release of torch, "2.13" or "2.13.0+cu130"; nil if it is not on
// record. Of several patch releases the last one counts.
func (r *Report) VerdictOf(version string) *TorchVerdict {
	for i := range slices.Backward(r.WorksWith) {
		v := &r.WorksWith[i]
		if v.Torch == version || publicOf(v.Torch) == version || minorOf(v.Torch) == version {
			return v
		}
	}
	return nil
}
