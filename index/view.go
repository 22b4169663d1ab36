package index

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// Coordinates say for which toolkit and torch versions a file was built.
type Coordinates struct {
	// Toolkit is "cu128", "rocm6.4", "cpu" or "xpu".
	Toolkit string `json:"toolkit,omitempty"`
	// Torch are minor versions such as "2.9", usually one. Wheels built on torch's
	// stable ABI have several.
	Torch []string `json:"torch,omitempty"`
}

// IsZero reports whether neither is set.
func (c Coordinates) IsZero() bool { return c.Toolkit == "" && len(c.Torch) == 0 }

// String returns what [ParseCoordinates] reads, such as "cu128/torch2.9", which for a
// toolkit and one torch version is the path of their view.
func (c Coordinates) String() string {
	torch := ""
	if len(c.Torch) > 0 {
		torch = "torch" + strings.Join(c.Torch, ",")
	}
	if c.Toolkit == "" || torch == "" {
		return c.Toolkit + torch
	}
	return c.Toolkit + "/" + torch
}

// ParseCoordinates reads "cu128/torch2.9", or with one part only, "cu128" or "torch2.9".
// Several torch versions are separated by commas: "cu128/torch2.9,2.10".
func ParseCoordinates(s string) (Coordinates, error) {
	toolkit, torch, ok := strings.Cut(s, "/")
	if !ok && strings.HasPrefix(s, "torch") {
		toolkit, torch = "", s
	}
	c := Coordinates{Toolkit: toolkit}
	if list, found := strings.CutPrefix(torch, "torch"); found {
		c.Torch = strings.Split(list, ",")
	} else if torch != "" {
		return Coordinates{}, fmt.Errorf("%q: after the toolkit comes a torch version, as in cu128/torch2.9", s)
	}
	if err := c.validate(); err != nil {
		return Coordinates{}, fmt.Errorf("%q: %w", s, err)
	}
	return c, nil
}

// validate refuses coordinates that could not be part of a path: it accepts what
// [ParseLabel] yields.
func (c Coordinates) validate() error {
	if c.IsZero() {
		return fmt.Errorf("neither a toolkit nor a torch version")
	}
	if c.Toolkit != "" && ParseLabel(c.Toolkit).Toolkit != c.Toolkit {
		return fmt.Errorf("toolkit %q is none of the form cu128, rocm6.4, cpu or xpu", c.Toolkit)
	}
	for i, t := range c.Torch {
		if p := ParseLabel("torch" + t).Torch; len(p) != 1 || p[0] != t {
			return fmt.Errorf("torch version %q is none of the form 2.9", t)
		}
		if slices.Contains(c.Torch[:i], t) {
			return fmt.Errorf("torch version %q twice", t)
		}
	}
	return nil
}

// ParseLabel reads the coordinates from a local version label in any of the spellings in use:
// cu128.torch2.9.0, cu.12.8.torch.2.9, cu128torch2.9, cu12torch2.8cxx11abitrue, rocm6.4.torch2.9,
// pt28.cu128, cpu. What it does not know it leaves out. The label must be in its normal form.
func ParseLabel(local string) Coordinates {
	var c Coordinates
	for local != "" {
		word := leading(local, isLetter)
		if word == "" {
			local = local[1:]
			continue
		}
		local = local[len(word):]
		switch word {
		case "cpu", "xpu":
			if c.Toolkit == "" {
				c.Toolkit = word
			}
			continue
		case "cu", "cuda", "rocm", "torch", "pt":
		default:
			continue
		}
		var numbers []string
		numbers, local = leadingNumbers(local)
		switch {
		case len(numbers) == 0:
		case word == "rocm":
			if c.Toolkit == "" && len(numbers) > 1 {
				c.Toolkit = "rocm" + strings.Join(numbers, ".")
			}
		case word == "torch" || word == "pt":
			if t := torchMinor(numbers); t != "" && c.Torch == nil {
				c.Torch = []string{t}
			}
		case c.Toolkit == "":
			c.Toolkit = "cu" + cudaDigits(numbers)
		}
	}
	return c
}

// cudaDigits joins 12 and 8 to 128. A patch level is left out.
func cudaDigits(numbers []string) string {
	if n := numbers[0]; len(n) == 2 && n[0] < '7' && len(numbers) > 1 { // 12.8, but not 92.1
		return n + numbers[1]
	}
	return numbers[0]
}

// torchMinor returns major and minor of 2.9.0, or of 29 and 210.
func torchMinor(numbers []string) string {
	if n := numbers[0]; len(numbers) == 1 && len(n) > 1 {
		return n[:1] + "." + n[1:]
	}
	if len(numbers) < 2 {
		return ""
	}
	return numbers[0] + "." + numbers[1]
}

// leadingNumbers cuts numbers separated by dots off, also with a dot before them.
func leadingNumbers(s string) (numbers []string, rest string) {
	for {
		n := leading(strings.TrimPrefix(s, "."), isDigit)
		if n == "" {
			return numbers, s
		}
		numbers = append(numbers, n)
		s = strings.TrimPrefix(s, ".")[len(n):]
	}
}

func leading(s string, is func(byte) bool) string {
	i := 0
	for i < len(s) && is(s[i]) {
		i++
	}
	return s[:i]
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }

// combination is a toolkit and a torch version, which have a view.
type combination struct{ toolkit, torch string }

func (c combination) path() string { return c.toolkit + "/torch" + c.torch }

// parseViewPath splits the path of a view of a toolkit. It is not ok for other views.
func parseViewPath(path string) (c combination, ok bool) {
	if path == defaultView || path == allView || path == variantsView {
		return c, false
	}
	c.toolkit, c.torch, _ = strings.Cut(path, "/torch")
	return c, true
}

// The views that are there whatever the toolkits.
const (
	defaultView  = ""
	allView      = "all"
	variantsView = "variants"
)

// membership says which files of one project the views show, as indexes into its files.
type membership map[string][]int32

func (m membership) add(view string, file int) { m[view] = append(m[view], int32(file)) }

// prepare computes which views show which files of the project, as far as it depends on
// the project alone.
func (p *Project) prepare(config *Config) {
	m := membership{allView: make([]int32, 0, len(p.Files)), defaultView: nil}
	p.built = make([]Coordinates, len(p.Files))
	labels := map[string]Coordinates{}
	hasVariants := false
	for i := range p.Files {
		f := &p.Files[i]
		c, known := f.Coordinates, !f.Coordinates.IsZero()
		if !known {
			label := f.label()
			if c, known = labels[label]; !known {
				c = ParseLabel(label)
				labels[label] = c
			}
		}
		p.built[i] = c
		m.add(allView, i)
		hasVariants = hasVariants || f.Variant != nil
	}
	p.floating = false
	torchOf := map[string]bool{} // toolkits with files for one torch version
	for i := range p.Files {
		if c := p.built[i]; p.inSubIndex(i) && len(c.Torch) > 0 {
			torchOf[c.Toolkit] = true
		}
	}
	p.loose = nil
	for i := range p.Files {
		c := p.built[i]
		switch {
		case !p.inSubIndex(i):
		case c.IsZero() && !p.Shared:
		case c.Toolkit != "" && len(c.Torch) > 0:
			m.add(c.Toolkit, i)
			for _, t := range c.Torch {
				m.add(combination{c.Toolkit, t}.path(), i)
			}
		default:
			if c.Toolkit != "" {
				m.add(c.Toolkit, i)
				if torchOf[c.Toolkit] {
					continue // the more specific files have that view
				}
			}
			p.loose = append(p.loose, int32(i))
			p.floating = true
		}
	}
	if hasVariants && config.Variants {
		for i := range p.Files {
			if p.Files[i].IsWheel() {
				m.add(variantsView, i)
			}
		}
	}
	if files, ok := p.defaultFiles(config); ok {
		m[defaultView] = files
	} else {
		delete(m, defaultView)
	}
	p.own = m
}

// inSubIndex reports whether a file may be in the view of a toolkit. An sdist there
// would invite builds from source, and a variant wheel has a view of its own.
func (p *Project) inSubIndex(i int) bool {
	return p.Files[i].IsWheel() && p.Files[i].Variant == nil
}

// defaultFiles returns what the default view shows of the project: files of one combination and
// those that were built for none, so that one more build hides nothing that was there. A version
// that has nothing of the combination for some Python and platform keeps its build for the CPU
// there, which runs everywhere. It is not ok if the project has files, but none to show.
func (p *Project) defaultFiles(config *Config) (files []int32, ok bool) {
	var all []int32
	var only Coordinates
	several, some := false, false
	for i := range p.Files {
		c := p.built[i]
		switch {
		case p.Files[i].Variant != nil:
			continue
		case c.IsZero():
		case !some:
			only, some = c, true
		default:
			several = several || c.String() != only.String()
		}
		all = append(all, int32(i))
	}
	want := cmp.Or(nonZero(&p.Default), nonZero(&config.Default))
	if !some || several && want == nil {
		return all, true
	}
	if !several {
		want = &only
	}
	var spare []int32 // for the CPU, and the right torch
	for _, i := range all {
		c := p.built[i]
		switch {
		case len(want.Torch) > 0 && len(c.Torch) > 0 && !slices.ContainsFunc(want.Torch, func(t string) bool { return slices.Contains(c.Torch, t) }):
		case want.Toolkit == "" || c.Toolkit == "" || c.Toolkit == want.Toolkit:
			files = append(files, i)
		case c.Toolkit == "cpu":
			spare = append(spare, i)
		}
	}
	files = p.fillPlaces(files, spare)
	return files, len(files) > 0
}

// fillPlaces adds those spare files that are for a version, Python and platform of which there is
// no other file. A final release stays out where the others have only pre-releases: installers
// would take it before them.
func (p *Project) fillPlaces(files, spare []int32) []int32 {
	if len(spare) == 0 {
		return files
	}
	taken, final, early := map[string]bool{}, map[string]bool{}, map[string]bool{}
	isFinal := func(i int32) bool {
		_, version, _ := ParseName(p.Files[i].Filename)
		return !version.IsPrerelease()
	}
	for _, i := range files {
		places := early
		if isFinal(i) {
			places = final
		}
		for _, place := range newIdentity(p.Files[i].Filename).places {
			places[place] = true
		}
	}
	free := func(i int32) (some bool) {
		id := newIdentity(p.Files[i].Filename)
		for _, place := range id.places {
			key := id.version + " " + place
			some = some || !taken[key] && !(isFinal(i) && early[place] && !final[place])
			taken[key] = taken[key] || !p.Files[i].Yanked
		}
		return some
	}
	for _, i := range files {
		free(i)
	}
	for _, i := range spare {
		if free(i) {
			files = append(files, i)
		}
	}
	slices.Sort(files)
	return files
}

func nonZero(c *Coordinates) *Coordinates {
	if c.IsZero() {
		return nil
	}
	return c
}

// members returns all views of a prepared project, given the combinations that exist in
// the index: files built for any torch or any toolkit are in all that fit.
func (p *Project) members(combinations []combination) membership {
	if !p.floating {
		return p.own
	}
	m := maps.Clone(p.own)
	seen := map[string]bool{}
	for _, c := range combinations {
		for _, path := range []string{c.toolkit, c.path()} {
			if seen[path] {
				continue
			}
			seen[path] = true
			files := slices.Clone(m[path])
			for _, i := range p.loose {
				b := p.built[i]
				fits := (b.Toolkit == "" || b.Toolkit == c.toolkit) && (path == c.toolkit || p.Files[i].fitsTorch(b, c.torch))
				if fits && !slices.Contains(files, i) {
					files = append(files, i)
				}
			}
			if len(files) > 0 {
				slices.Sort(files)
				m[path] = files
			}
		}
	}
	return m
}

// fitsTorch reports whether a file is for a minor version of torch: by what it was built for, or if
// that is not known, by the names that it uses.
func (f *File) fitsTorch(built Coordinates, torch string) bool {
	if len(built.Torch) > 0 {
		return slices.Contains(built.Torch, torch)
	}
	return len(f.Window) == 0 || slices.Contains(f.Window, torch)
}

// conflict returns two files that a view of one toolkit and torch cannot show together,
// because installers would choose between them by the text of a label: same public
// version, build number and tags. Yanked files do not count.
func (p *Project) conflict() (view string, a, b *File) {
	seen := map[string]*File{}
	for _, path := range slices.Sorted(maps.Keys(p.own)) {
		if c, ok := parseViewPath(path); !ok || c.torch == "" {
			continue
		}
		clear(seen)
		for _, i := range p.own[path] {
			f := &p.Files[i]
			if f.Yanked {
				continue
			}
			id := newIdentity(f.Filename)
			for _, place := range id.places {
				key := id.version + " " + place
				if seen[key] != nil {
					return path, seen[key], f
				}
				seen[key] = f
			}
		}
	}
	return "", nil, nil
}

// View is a part of the catalog that is a complete repository of its own, at
// {root}/{Path}/simple/.
type View struct {
	// Path is "" for the default view, "all", a toolkit such as "cu128", or a toolkit and
	// torch version such as "cu128/torch2.9".
	Path string
	// Aliases are other paths of the same view, such as "cu128-torch2.9".
	Aliases []string
	// Toolkit and Torch are what the view is for; empty means any.
	Toolkit, Torch string

	catalog  *Catalog
	projects []*Project
}

// Projects iterates over the projects of the view by name.
func (v *View) Projects() iter.Seq[*Project] { return slices.Values(v.projects) }

// Has reports whether the project with this normalized name is in the view.
func (v *View) Has(project string) bool {
	p := v.catalog.byName[project]
	if p == nil {
		return false
	}
	_, ok := v.catalog.membersOf(p)[v.Path]
	return ok
}

// Files returns the files that the view shows of the project with this normalized
// name, sorted by version and name. It is not ok if the project is not in the view; a
// project in quarantine is, without files. The files must not be modified.
func (v *View) Files(project string) (files []*File, ok bool) {
	p := v.catalog.byName[project]
	if p == nil {
		return nil, false
	}
	members, ok := v.catalog.membersOf(p)[v.Path]
	if !ok || p.Status == Quarantined {
		return nil, ok
	}
	files = make([]*File, len(members))
	for k, i := range members {
		files[k] = &p.Files[i]
	}
	return files, true
}

// rootURL returns the relative URL of the root of the index from a page of a view, which
// is reached at path: depth 0 is the list of projects, 1 the page of a project.
func rootURL(path string, depth int) string {
	if path != "" {
		depth += 1 + strings.Count(path, "/")
	}
	return strings.Repeat("../", depth+1)
}

// membersOf returns the views of a project.
func (c *Catalog) membersOf(p *Project) membership {
	if m, ok := c.floating[p]; ok {
		return m
	}
	return p.own
}

func (c *Catalog) makeViews() {
	explicit := map[combination]bool{}
	for _, p := range c.projects {
		for path := range p.own {
			if v, ok := parseViewPath(path); ok && v.torch != "" {
				explicit[v] = true
			}
		}
	}
	combinations := sortCombinations(explicit)
	c.floating = map[*Project]membership{}
	byPath := map[string]*View{
		defaultView: {Path: defaultView, catalog: c},
		allView:     {Path: allView, catalog: c},
	}
	for _, p := range c.projects {
		if p.floating {
			c.floating[p] = p.members(combinations)
		}
		for path := range c.membersOf(p) {
			v := byPath[path]
			if v == nil {
				v = &View{Path: path, catalog: c}
				if at, ok := parseViewPath(path); ok {
					v.Toolkit, v.Torch = at.toolkit, at.torch
				}
				byPath[path] = v
			}
			v.projects = append(v.projects, p)
		}
	}
	c.views = slices.SortedFunc(maps.Values(byPath), func(a, b *View) int { return compareViews(a.Path, b.Path) })
	c.byPath = byPath
	for path, names := range aliases(combinations) {
		v := byPath[path]
		v.Aliases = names
		for _, name := range names {
			byPath[name] = v
		}
	}
}

func sortCombinations(set map[combination]bool) []combination {
	return slices.SortedFunc(maps.Keys(set), func(a, b combination) int { return compareViews(a.path(), b.path()) })
}

// compareViews orders paths of views: the general ones first, numbers by value.
func compareViews(a, b string) int {
	rank := func(path string) int {
		return slices.Index([]string{variantsView, allView, defaultView}, path)
	}
	return cmp.Or(-cmp.Compare(rank(a), rank(b)), compareNatural(a, b))
}

// compareNatural compares texts in which runs of digits count as numbers.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		if isDigit(a[0]) && isDigit(b[0]) {
			m, n := leading(a, isDigit), leading(b, isDigit)
			x, y := strings.TrimLeft(m, "0"), strings.TrimLeft(n, "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y), strings.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[len(m):], b[len(n):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// aliases gives the views of combinations their other names. The one without a dot is left out
// where two torch versions would share it, as 2.11 and 21.1 do.
func aliases(combinations []combination) map[string][]string {
	short := func(c combination) string { return c.toolkit + "-torch" + strings.ReplaceAll(c.torch, ".", "") }
	uses := map[string]int{}
	for _, c := range combinations {
		uses[short(c)]++
	}
	out := make(map[string][]string, len(combinations))
	for _, c := range combinations {
		names := []string{c.toolkit + "-torch" + c.torch}
		if uses[short(c)] == 1 {
			names = append(names, short(c))
		}
		out[c.path()] = names
	}
	return out
}

// pythonVersion turns a Python tag into a version: cp312 into 3.12.
func pythonVersion(tag string) string {
	if len(tag) < 4 || !strings.HasPrefix(tag, "cp") && !strings.HasPrefix(tag, "py") {
		return tag
	}
	if _, err := strconv.Atoi(tag[2:]); err != nil {
		return tag
	}
	return tag[2:3] + "." + tag[3:]
}

// ToolkitName writes a toolkit as people do: "CUDA 12.8" for cu128, "ROCm 6.4", "CPU".
func ToolkitName(toolkit string) string {
	cuda, rocm := compat.ParseToolkitTag(toolkit)
	switch {
	case cuda != "":
		return "CUDA " + cuda
	case rocm != "":
		return "ROCm " + rocm
	case toolkit == "cpu":
		return "CPU"
	case toolkit == "xpu":
		return "Intel XPU"
	}
	return toolkit
}

// PythonName writes a Python tag as people do: "3.12" for cp312, "3" for py3.
func PythonName(tag string) string {
	for _, prefix := range []string{"cp", "py"} {
		if digits, ok := strings.CutPrefix(tag, prefix); ok && digits != "" && strings.Trim(digits, "0123456789") == "" {
			if len(digits) == 1 {
				return digits
			}
			return digits[:1] + "." + digits[1:]
		}
	}
	return tag
}
