package audit

import (
	"cmp"
	"slices"
	"strings"
)

// ReportFormat is the value of "format" in a report.
const ReportFormat = "kiln-audit/1"

// A Report is everything the audit found out about one wheel or library.
type Report struct {
	Format string `json:"format"`
	// File is the name of the file, without its folder.
	File string `json:"file"`
	Size int64  `json:"size"`
	// Findings are sorted, worst first.
	Findings []Finding `json:"findings"`
	// Platform is nil if there is no native Linux code.
	Platform *Platform `json:"platform,omitempty"`
	// External are the libraries that Windows files need and that neither the wheel, nor Windows,
	// nor Python has, sorted: those of torch, CUDA, drivers and the C++ runtime, and missing ones.
	External []string `json:"external,omitempty"`
	// Torch is the torch that symbols were compared with, such as "2.6.0+cu124"; "" if none.
	Torch string `json:"torch,omitempty"`
	// WorksWith has a line for every torch that was tried; empty if the wheel does not use
	// torch.
	WorksWith []TorchVerdict `json:"works_with,omitempty"`
	// TorchABI is the conclusion; nil where it was not asked for or cannot be told.
	TorchABI *TorchABI `json:"torch_abi,omitempty"`
	// Objects are the native files, in the order of the archive.
	Objects []Object `json:"objects"`
}

// A Finding is one thing to say about a wheel.
type Finding struct {
	Rule     string   `json:"rule"` // see Rules
	Severity Severity `json:"severity"`
	// File is the member concerned, "" for the whole wheel.
	File    string `json:"file,omitempty"`
	Message string `json:"message"`
	// Cause and Fix are the rule's, or better ones for this case.
	Cause string `json:"cause,omitempty"`
	Fix   string `json:"fix,omitempty"`
	// Details are the symbols, libraries or targets meant.
	Details []string `json:"details,omitempty"`
}

// with sets the details.
func (f *Finding) with(details ...string) *Finding {
	f.Details = details
	return f
}

// because replaces the cause of the rule.
func (f *Finding) because(cause string) *Finding {
	f.Cause = cause
	return f
}

// repair replaces the fix of the rule.
func (f *Finding) repair(fix string) *Finding {
	f.Fix = fix
	return f
}

// An Object is one native file of a wheel.
type Object struct {
	Path string `json:"path"`
	// Kind is "elf" or "pe" for libraries and programs; "object", "archive" or "gpu" for what
	// no loader takes: object files, static libraries, bare GPU code.
	Kind    string `json:"kind"`
	Size    int64  `json:"size"`
	Machine string `json:"machine,omitempty"`
	// Module is the name the file is imported under, if it is an extension module.
	Module string   `json:"module,omitempty"`
	Soname string   `json:"soname,omitempty"`
	Needed []string `json:"needed,omitempty"`
	// Delayed are libraries that a Windows file loads when it first calls them.
	Delayed []string `json:"delayed,omitempty"`
	RunPath []string `json:"run_path,omitempty"`
	GLIBC   string   `json:"glibc,omitempty"`
	GLIBCXX string   `json:"glibcxx,omitempty"`
	CXXABI  CXXABI   `json:"cxx_abi,omitempty"`
	// Defined and Undefined count the dynamic symbols, weak undefined ones left out.
	Defined   int `json:"defined"`
	Undefined int `json:"undefined"`
	// Python is the interpreter the file name asks for, "cp312" or "abi3".
	Python string `json:"python,omitempty"`
	// StableABI is the oldest Python with all the names used, if these are all in the stable
	// ABI, such as "3.8"; "" otherwise.
	StableABI string    `json:"stable_abi,omitempty"`
	Pybind    string    `json:"pybind11,omitempty"`
	GPU       []GPUCode `json:"gpu,omitempty"`
	GPUUnits  int       `json:"gpu_units,omitempty"`
}

// Archs is the GPU code of the object as an arch list, such as "8.0 9.0+PTX".
func (o *Object) Archs() string {
	g := gpuCode{code: o.GPU}
	return strings.Join(g.targets(), " ")
}

// A TorchVerdict says whether a wheel loads with one torch and finds there what it was built for.
type TorchVerdict struct {
	Torch string `json:"torch"`
	OK    bool   `json:"ok"`
	// Reason is the first thing that is missing, if not OK.
	Reason string `json:"reason,omitempty"`
	// Missing counts libraries and symbols.
	Missing int `json:"missing,omitempty"`
	// File, Symbol and Name are the first symbol that is missing: where it is used, as the linker
	// has it, and as people write it; "" if something else is missing first.
	File   string `json:"file,omitempty"`
	Symbol string `json:"symbol,omitempty"`
	Name   string `json:"name,omitempty"`
	// Has are the releases that have the symbol, and Removed is the one from which on it is
	// missing, if an older one has it.
	Has string `json:"has,omitempty"`
	// Layout is the class that this torch lays out differently from the one that the wheel was
	// built for, if all names are there.
	Layout  string `json:"layout,omitempty"`
	Removed string `json:"removed,omitempty"`
}

// Worst is the highest severity of the findings, Off if there are none.
func (r *Report) Worst() Severity {
	worst := Off
	for i := range r.Findings {
		worst = max(worst, r.Findings[i].Severity)
	}
	return worst
}

// Archs is the GPU code that every library with such code has, as an arch list; those for
// NVIDIA and for AMD are looked at apart.
func (r *Report) Archs() string {
	common := map[bool][]string{}
	seen := map[bool]bool{}
	for i := range r.Objects {
		o := &r.Objects[i]
		if o.Kind != "elf" && o.Kind != "pe" {
			continue
		}
		for _, amd := range []bool{false, true} {
			g := gpuCode{code: slices.DeleteFunc(slices.Clone(o.GPU), func(c GPUCode) bool { return (c.Kind == "amdgpu") != amd })}
			targets := g.targets()
			switch {
			case len(targets) == 0:
			case !seen[amd]:
				common[amd], seen[amd] = targets, true
			default:
				common[amd] = slices.DeleteFunc(common[amd], func(t string) bool { return !slices.Contains(targets, t) })
			}
		}
	}
	return strings.Join(slices.Concat(common[false], common[true]), " ")
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(int(b.Severity)-int(a.Severity), strings.Compare(a.File, b.File), strings.Compare(a.Rule, b.Rule))
	})
}
