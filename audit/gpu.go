package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
	"github.com/kiln-build/kiln/compat"
)

// GPUCode is the code of one kind for one GPU target in a native file.
type GPUCode struct {
	// Target is the compute capability with its suffix, such as "9.0a", or an AMD target such
	// as "gfx90a:xnack-".
	Target string `json:"target"`
	// Kind is "sass" for machine code, "ptx", or "amdgpu".
	Kind string `json:"kind"`
	// Count is the number of images. A file compiled from many sources has one for each.
	Count int `json:"count"`
	// Units is how many translation units have such code, of Object.GPUUnits.
	Units int `json:"units"`
	// Compressed is how many images are compressed.
	Compressed int `json:"compressed,omitempty"`
	// Bytes is the size of all of them in the file.
	Bytes int64 `json:"bytes"`
}

// gpuCode is what one file has for GPUs.
type gpuCode struct {
	code  []GPUCode
	units int // translation units with device code
	// problem says that not all could be read.
	problem error
}

// readGPU lists the code of a native file that can be loaded on a GPU. Damage is in
// gpuCode.problem; the error is about reading the file.
func readGPU(r io.ReaderAt, size int64) (gpuCode, error) {
	contents, err := fatbin.Scan(r, size)
	switch {
	case errors.Is(err, fatbin.ErrUnknownFormat):
		return gpuCode{}, nil
	case err != nil && !errors.Is(err, fatbin.ErrMalformed) && !errors.Is(err, fatbin.ErrNotSupported):
		return gpuCode{}, err
	}
	g := gpuCode{problem: err}
	type key struct{ kind, target string }
	sums := map[key]*GPUCode{}
	units := map[int]bool{}
	in := map[key]map[int]bool{}
	add := func(k key, unit int, bytes int64, compressed bool) {
		sum := sums[k]
		if sum == nil {
			sum = &GPUCode{Target: k.target, Kind: k.kind}
			sums[k], in[k] = sum, map[int]bool{}
		}
		sum.Count++
		sum.Bytes += bytes
		if compressed {
			sum.Compressed++
		}
		units[unit], in[k][unit] = true, true
	}
	for _, e := range fatbin.Loadable(contents.Entries) {
		kind := ""
		switch e.Kind {
		case fatbin.SASS:
			kind = "sass"
		case fatbin.PTX:
			kind = "ptx"
		default:
			continue // for linkers and compilers
		}
		target := fmt.Sprintf("%d.%d%s", e.Arch/10, e.Arch%10, e.Suffix)
		add(key{kind, target}, e.Container, e.Size, e.Compression != "")
	}
	for _, t := range contents.ROCm {
		if t.GFX == "" || !strings.Contains(t.Triple, "-amd-") {
			continue // OpenMP code for others comes in bundles too
		}
		add(key{"amdgpu", t.ID()}, -1-t.Bundle, t.Size, t.Compression != "")
	}
	g.units = len(units)
	for k, sum := range sums {
		sum.Units = len(in[k])
	}
	for _, k := range slices.SortedFunc(maps.Keys(sums), func(a, b key) int {
		x, y := parseTarget(a.target), parseTarget(b.target)
		return cmp.Or(strings.Compare(a.kind, b.kind), x.Major-y.Major, x.Minor-y.Minor, strings.Compare(a.target, b.target))
	}) {
		g.code = append(g.code, *sums[k])
	}
	return g, nil
}

// parseTarget reads "9.0a"; the zero Arch stands for AMD targets.
func parseTarget(s string) compat.Arch {
	list, err := compat.ParseArchList(s)
	if err != nil || len(list.Items()) != 1 {
		return compat.Arch{}
	}
	return list.Items()[0]
}

// archList is the code as an arch list; AMD targets are not in it.
func (g *gpuCode) archList() []compat.Arch {
	var out []compat.Arch
	for _, c := range g.code {
		if c.Kind == "amdgpu" {
			continue
		}
		a := parseTarget(c.Target)
		i := slices.IndexFunc(out, func(b compat.Arch) bool { return a.Target() == b.Target() })
		if i < 0 {
			a.SASS, a.PTX = false, false
			out = append(out, a)
			i = len(out) - 1
		}
		out[i].SASS = out[i].SASS || c.Kind == "sass"
		out[i].PTX = out[i].PTX || c.Kind == "ptx"
	}
	slices.SortFunc(out, func(a, b compat.Arch) int {
		return cmp.Or(a.Major-b.Major, a.Minor-b.Minor, strings.Compare(a.Suffix, b.Suffix))
	})
	return out
}

// targets is the code in words, as an arch list has them: "8.0", "9.0+PTX".
func (g *gpuCode) targets() []string {
	var out []string
	for _, a := range g.archList() {
		out = append(out, a.String())
	}
	for _, c := range g.code {
		if c.Kind == "amdgpu" {
			out = append(out, c.Target)
		}
	}
	return out
}

// common are the targets that at least half of the translation units have: what the file as a
// whole was compiled for, without the few parts that use features of one GPU.
func (g *gpuCode) common() []string {
	most := gpuCode{units: g.units}
	for _, c := range g.code {
		if c.Units*2 >= g.units {
			most.code = append(most.code, c)
		}
	}
	return most.targets()
}

// checkGPU compares the GPU code of a file with the lists asked for. What is not linked is not
// judged by itself: an archive is not loaded, and of single images there is one for each GPU.
func (c *checker) checkGPU(o *object) {
	switch {
	case errors.Is(o.gpu.problem, fatbin.ErrNotSupported):
		c.findAs(Note, RuleGPUCode, o.Path, "GPU code was not looked for: %v", o.gpu.problem)
	case o.gpu.problem != nil:
		c.find(RuleGPUCode, o.Path, "not all GPU code could be read: %v", o.gpu.problem)
	}
	if len(o.gpu.code) == 0 || !o.linked() {
		return
	}
	c.compareGPU(o)
	if have := o.gpu.archList(); len(have) > 0 {
		if !slices.ContainsFunc(have, func(a compat.Arch) bool { return a.PTX }) {
			c.find(RuleNoPTX, o.Path, "machine code only, for %s", strings.Join(o.gpu.targets(), " "))
		}
		c.checkUneven(o)
		c.checkReachable(o, have)
	}
}

// checkImages compares the lists with all single images together, in a wheel where no library
// has GPU code.
func (c *checker) checkImages() {
	all := new(object)
	for _, o := range c.objects {
		if o.linked() && len(o.gpu.code) > 0 {
			return
		}
		if o.Kind != "archive" {
			all.gpu.code = append(all.gpu.code, o.gpu.code...)
		}
	}
	c.compareGPU(all)
}

func (c *checker) compareGPU(o *object) {
	// What "native" stands for only the machine that built it knows.
	if have := o.gpu.archList(); len(have) > 0 && !c.opts.Archs.Empty() && !c.opts.Archs.Native() {
		c.compareArchs(o, have)
	}
	if items := c.opts.Gfx.Items(); len(items) > 0 {
		c.compareGfx(o, items)
	}
}

func (c *checker) compareArchs(o *object, have []compat.Arch) {
	want := c.opts.Archs.Items()
	find := func(list []compat.Arch, target string) (compat.Arch, bool) {
		i := slices.IndexFunc(list, func(a compat.Arch) bool { return a.Target() == target })
		if i < 0 {
			return compat.Arch{}, false
		}
		return list[i], true
	}
	// Machine code for 9.0a runs on every GPU of 9.0, so it is what an entry 9.0 asks for, and
	// what packages make of it. Its PTX is for that GPU only.
	same := func(list []compat.Arch, a compat.Arch, suffixed bool) bool {
		return slices.ContainsFunc(list, func(b compat.Arch) bool {
			return a.CC() == b.CC() && b.SASS && (b.Suffix != "") == suffixed
		})
	}
	var missing, extra []string
	for _, w := range want {
		h, _ := find(have, w.Target())
		if w.SASS && !h.SASS && (w.Suffix != "" || !same(have, w, true)) {
			missing = append(missing, w.Target())
		}
		if w.PTX && !h.PTX {
			missing = append(missing, "PTX of "+w.Target())
		}
	}
	for _, h := range have {
		w, _ := find(want, h.Target())
		if h.SASS && !w.SASS && (h.Suffix == "" || !same(want, h, false)) {
			extra = append(extra, h.Target())
		}
		if h.PTX && !w.PTX {
			extra = append(extra, "PTX of "+h.Target())
		}
	}
	if len(missing) > 0 {
		c.find(RuleArchMissing, o.Path, "no code for %s; it has %s", strings.Join(missing, ", "), strings.Join(o.gpu.targets(), " ")).
			with(missing...)
	}
	if len(extra) > 0 {
		c.find(RuleArchExtra, o.Path, "code for %s, which the list %q does not ask for", strings.Join(extra, ", "), c.opts.Archs.String()).
			with(extra...)
	}
}

// checkUneven reports targets that only some translation units have. Suffixed targets are left
// out: they are meant for the few files that use features of one GPU.
func (c *checker) checkUneven(o *object) {
	var uneven []string
	for _, code := range o.gpu.code {
		if code.Kind == "amdgpu" || code.Units == o.gpu.units || strings.TrimRight(code.Target, "af") != code.Target {
			continue
		}
		uneven = append(uneven, fmt.Sprintf("%s %s in %d of %d", code.Kind, code.Target, code.Units, o.gpu.units))
	}
	if len(uneven) > 0 {
		c.find(RuleArchUneven, o.Path, "translation units differ: %s", strings.Join(uneven, ", ")).with(uneven...)
	}
}

// checkReachable reports machine code for GPUs that the torch in question has no code for.
func (c *checker) checkReachable(o *object, have []compat.Arch) {
	torch := c.torch
	if torch == nil || torch.Archs == "" || !o.needsTorch() {
		return
	}
	list, err := compat.ParseArchList(torch.Archs)
	if err != nil {
		return
	}
	var unreachable []string
	for _, a := range have {
		if a.SASS && !list.Covers(a.CC()) {
			unreachable = append(unreachable, a.Target())
		}
	}
	if len(unreachable) > 0 {
		c.find(RuleArchUnreachable, o.Path, "code for %s, but %s itself has none (%s)", strings.Join(unreachable, ", "), torch.Title(), torch.Archs).
			with(unreachable...)
	}
}

func (c *checker) compareGfx(o *object, want []string) {
	var have []string
	for _, code := range o.gpu.code {
		if code.Kind == "amdgpu" {
			have = append(have, code.Target)
		}
	}
	if len(have) == 0 {
		return
	}
	// A plain target is satisfied by code for any of its features.
	plain := func(list []string) []string {
		out := slices.Clone(list)
		for _, t := range list {
			base, _, _ := strings.Cut(t, ":")
			out = append(out, base)
		}
		return out
	}
	var missing, extra []string
	for _, w := range want {
		if !slices.Contains(plain(have), w) {
			missing = append(missing, w)
		}
	}
	for _, h := range have {
		base, _, _ := strings.Cut(h, ":")
		if !slices.Contains(want, h) && !slices.Contains(want, base) {
			extra = append(extra, h)
		}
	}
	if len(missing) > 0 {
		c.find(RuleArchMissing, o.Path, "no code for %s; it has %s", strings.Join(missing, ", "), strings.Join(have, " ")).with(missing...).
			because("PYTORCH_ROCM_ARCH was not passed to the compiler, or the package sets its own flags. The first kernel fails with `invalid device function`.").
			repair("Look for fixed --offload-arch flags in setup.py; build again with the list.")
	}
	if len(extra) > 0 {
		c.find(RuleArchExtra, o.Path, "code for %s, which the list %q does not ask for", strings.Join(extra, ", "), c.opts.Gfx.String()).with(extra...).
			because("The package adds its own --offload-arch flags. The wheel is larger than it has to be.")
	}
}
