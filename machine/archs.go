package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// ErrArchUnsupported is the error of [SelectArchs] for a GPU or an entry that the
// toolkit cannot make code for.
var ErrArchUnsupported = errors.New("not supported by this nvcc")

// ArchRequest is what decides for which GPUs to compile.
type ArchRequest struct {
	// List is what the user said: TORCH_CUDA_ARCH_LIST or an option. Blank means
	// nothing; "native" in it stands for Devices.
	List string
	// Flags are the user's own flags for nvcc. One that chooses an architecture turns
	// the whole selection off.
	Flags []string
	// Devices are the visible GPUs.
	Devices []compat.CC
	// NVCC is what this nvcc can make, as probed. If empty, the table says it for CUDA.
	NVCC compat.ArchList
	CUDA string // version of the toolkit
	// Torch is the installed or wanted torch; it gives family names their meaning.
	Torch string
	// TorchArchs is the code inside torch itself. If empty, the table is asked.
	TorchArchs compat.ArchList
	// JIT says that the module is for this machine alone. Without a GPU, one target is
	// chosen then instead of the list for wheels, which takes six times as long.
	JIT   bool
	Table *compat.Table // default compat.Default()
}

// The sources of an arch list.
const (
	ArchFromUser     = "user"     // the list that was given
	ArchFromDevices  = "devices"  // the GPUs of this machine
	ArchFromFallback = "fallback" // no list, no GPU
	ArchFromFlags    = "flags"    // nvcc's own flags; the list is empty
)

// ArchChoice is for which GPUs to compile.
type ArchChoice struct {
	List     compat.ArchList
	Source   string   // one of the ArchFrom constants
	Warnings []string // one line each
}

// SelectArchs decides for which GPUs to compile: the user's list if there is one, else
// the GPUs of the machine, each clamped to what this nvcc can make, the highest with
// PTX; else a list for wheels or one target. It is a pure function. Where it differs
// from PyTorch's builder: docs/doctor.md has the list.
func SelectArchs(r ArchRequest) (ArchChoice, error) {
	if r.Table == nil {
		r.Table = compat.Default()
	}
	if f := archFlag(r.Flags); f != "" {
		return ArchChoice{Source: ArchFromFlags, Warnings: []string{"the flag " + f + " chooses the architecture; nothing is added to it"}}, nil
	}
	nvcc := r.NVCC
	if nvcc.Empty() {
		nvcc, _ = r.Table.Emits(r.CUDA)
	}
	var c ArchChoice
	user, err := r.Table.ArchList(r.List, r.Torch)
	if err != nil {
		return c, fmt.Errorf("arch list %q: %w", r.List, err)
	}
	var items []compat.Arch
	switch {
	case !user.Empty():
		c.Source = ArchFromUser
		items = user.Items()
		if user.Native() {
			if len(r.Devices) == 0 {
				return c, fmt.Errorf("arch list %q: native stands for the GPUs of this machine, and none is visible", r.List)
			}
			native, warnings, err := deviceArchs(r.Devices, nvcc)
			if err != nil {
				return c, err
			}
			items, c.Warnings = append(items, native...), append(c.Warnings, warnings...)
		}
	case len(r.Devices) > 0:
		c.Source = ArchFromDevices
		if items, c.Warnings, err = deviceArchs(r.Devices, nvcc); err != nil {
			return c, err
		}
		slices.SortFunc(items, compareArchs)
		items[len(items)-1].PTX = true
	default:
		c.Source = ArchFromFallback
		var warning string
		items, warning = r.fallback(nvcc)
		if len(items) == 0 {
			return c, fmt.Errorf("no GPU is visible, no arch list is set, and none is known for CUDA %s", cmp.Or(r.CUDA, "of this version"))
		}
		c.Warnings = append(c.Warnings, warning)
	}
	if err := r.checkTargets(&c, items, nvcc); err != nil {
		return c, err
	}
	c.List = listOf(items)
	err = r.checkDevices(&c)
	return c, err
}

// checkTargets refuses targets that nvcc does not make, or not together.
func (r ArchRequest) checkTargets(c *ArchChoice, items []compat.Arch, nvcc compat.ArchList) error {
	for _, a := range items {
		if !nvcc.Empty() && !nvcc.Has(a) {
			return fmt.Errorf("arch %s: %w (CUDA %s makes %s)", a.Target(), ErrArchUnsupported, cmp.Or(compat.Minor(r.CUDA), "here"), rangeOf(nvcc))
		}
	}
	for _, a := range items {
		if a.Suffix == "f" && slices.ContainsFunc(items, func(o compat.Arch) bool { return o.CC() == a.CC() && o.Suffix == "" }) {
			return fmt.Errorf("arch list has both %s and %s: nvcc refuses it, as both give the same code", a.CC(), a.Target())
		}
		if a.PTX && a.Suffix != "" {
			c.Warnings = append(c.Warnings, fmt.Sprintf("PTX of %s runs on no later GPU: put +PTX on a plain target", a.Target()))
		}
	}
	return nil
}

// checkDevices compares the list, and the code inside torch, with the GPUs of the machine.
func (r ArchRequest) checkDevices(c *ArchChoice) error {
	for _, d := range r.Devices {
		if !c.List.Covers(d) {
			msg := fmt.Sprintf("the GPU of this machine (%s) can't use anything in the list %s", d, c.List)
			if c.Source == ArchFromUser {
				return fmt.Errorf("%s: add %s or an earlier one with +PTX", msg, d)
			}
			c.Warnings = append(c.Warnings, msg)
		} else if !c.List.SASSCovers(d) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the GPU of this machine (%s) will use PTX, which the driver compiles at the first start", d))
		}
	}
	torch := r.TorchArchs
	if torch.Empty() && r.Torch != "" {
		torch, _ = r.Table.TorchArchs(r.Torch, r.CUDA, "linux")
	}
	for _, d := range r.Devices {
		if !torch.Empty() && !torch.Covers(d) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("torch itself has no code for the GPU of this machine (%s): it has %s", d, torch))
		}
	}
	return nil
}

// deviceArchs gives each device the best target that nvcc can make for it: its own,
// else the highest lower one whose machine code it runs, else PTX.
func deviceArchs(devices []compat.CC, nvcc compat.ArchList) (items []compat.Arch, warnings []string, err error) {
	for _, d := range devices {
		own := compat.Arch{Major: d.Major, Minor: d.Minor, SASS: true}
		best := own
		if !nvcc.Empty() && !nvcc.Has(own) {
			best = compat.Arch{}
			for _, n := range nvcc.Items() { // ascending
				if n.Suffix == "" && !ccLess(d, n.CC()) {
					sass := compat.Arch{Major: n.Major, Minor: n.Minor, SASS: true}
					switch {
					case sass.SASSRunsOn(d):
						best = sass
					case !best.SASS:
						best = compat.Arch{Major: n.Major, Minor: n.Minor, PTX: true}
					}
				}
			}
			if best == (compat.Arch{}) {
				return nil, nil, fmt.Errorf("GPU of compute capability %s: %w: it makes %s", d, ErrArchUnsupported, rangeOf(nvcc))
			}
			warnings = append(warnings, fmt.Sprintf("this nvcc can't make code for %s; %s is made instead", d, best))
		}
		items = append(items, best)
	}
	return items, warnings, nil
}

// fallback is what is built where there is neither a list nor a GPU.
func (r ArchRequest) fallback(nvcc compat.ArchList) ([]compat.Arch, string) {
	if r.JIT {
		torch := r.TorchArchs
		if torch.Empty() {
			torch, _ = r.Table.TorchArchs(r.Torch, r.CUDA, "linux")
		}
		candidates := torch.Items()
		if len(candidates) == 0 {
			candidates = nvcc.Items()
		}
		for _, a := range slices.Backward(candidates) {
			if a.Suffix == "" && (nvcc.Empty() || nvcc.Has(a)) {
				a.SASS, a.PTX = true, true
				return []compat.Arch{a}, fmt.Sprintf("no GPU is visible and no arch list is set: compiling for %s and later", a.CC())
			}
		}
	}
	list, _ := r.Table.DefaultArchs(r.CUDA)
	items := slices.DeleteFunc(list.Items(), func(a compat.Arch) bool { return !nvcc.Empty() && !nvcc.Has(a) })
	return items, "no GPU is visible and no arch list is set: compiling for " + listOf(items).String()
}

// listOf makes a list of entries, sorted by number, each target once.
func listOf(items []compat.Arch) compat.ArchList {
	var words []string
	for _, a := range items {
		words = append(words, a.String())
	}
	l, _ := compat.ParseArchList(strings.Join(words, " ")) // entries of parsed lists
	return l
}

// rangeOf is the span of plain targets of a list.
func rangeOf(l compat.ArchList) string {
	items := slices.DeleteFunc(l.Items(), func(a compat.Arch) bool { return a.Suffix != "" })
	if len(items) == 0 {
		return "nothing known"
	}
	return items[0].Target() + " to " + items[len(items)-1].Target()
}

func compareArchs(a, b compat.Arch) int {
	switch {
	case ccLess(a.CC(), b.CC()):
		return -1
	case ccLess(b.CC(), a.CC()):
		return 1
	}
	return strings.Compare(a.Suffix, b.Suffix)
}

// archFlag finds an option of nvcc that chooses an architecture. PyTorch's builder takes
// every flag with "arch" in it for one.
func archFlag(flags []string) string {
	for _, f := range flags {
		name, _, _ := strings.Cut(f, "=")
		switch name {
		case "-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code":
			return f
		}
	}
	return ""
}
