package matrix

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/wheel"
)

// Options are the inputs of a run. The zero value plans every package of the file
// with the defaults below.
type Options struct {
	// Python is the list for packages and groups that do not give one. Default
	// 3.12 and 3.13.
	Python []string
	// CUDA is the list for packages in the base form. Default 12.9.1 and 13.0.2.
	CUDA []string
	// OS is used where none is given. Default ubuntu-22.04.
	OS string
	// Packages limits the plan to these. Default all.
	Packages []string
	// Versions are the versions of packages with version_from; see
	// [File.ReadVersions].
	Versions map[string]string
	// Select keeps only the rows that match. Default all.
	Select *Selection
	// SkipIncompatible turns rows that cannot work into skips instead of errors.
	SkipIncompatible bool
	// Compat is the knowledge that rows are checked against. Default
	// [compat.Default].
	Compat *compat.Table
	// History is what earlier builds measured. Default nothing.
	History *History
	// MaxRows is the largest plan that is made. Default 1,000,000.
	MaxRows int
}

// Defaults of [Options].
var (
	DefaultPython = []string{"3.12", "3.13"}
	DefaultCUDA   = []string{"12.9.1", "13.0.2"}
)

// DefaultOS is where rows are built that do not say.
const DefaultOS = "ubuntu-22.04"

// Plan is the answer to "which wheels will be built, which not, and why". It is
// immutable, and a pure function of the file and the options.
type Plan struct {
	// Rows to build, in the order of the file. No row follows another of the
	// same ID.
	Rows []Row
	// Skipped are the rows that the file describes and that are not built.
	Skipped []Skip
	// Unselected counts the rows that Options.Select left out.
	Unselected int
	// Findings are errors, warnings and notes, in the order of the file. A plan
	// with errors must not be built.
	Findings diag.List
	// Estimate is what building the rows will take, as far as it is known.
	Estimate Estimate

	settings map[string]origin
	parts    map[string][]Row
	workflow WorkflowSettings
}

// Skip is a row that is not built, and why.
type Skip struct {
	Row Row `json:"row"`
	// Rule is "exclude", "duplicate" or the name of a compatibility rule.
	Rule string `json:"rule"`
	// Reason is the rule as text.
	Reason string `json:"reason"`
	// Pos is the line that removed the row.
	Pos diag.Pos `json:"pos"`
}

// origin says where a row came from: a group, and which of its rows.
type origin struct {
	group *boundGroup
	n     int
}

// boundGroup is a group with the inputs of the run filled in.
type boundGroup struct {
	*group
	pkg    *pkg
	axes   []axis
	sizes  []int // of each dim
	total  int
	compat *compat.Table
}

// publishedTorch are the rules about the builds of torch that PyTorch publishes.
var publishedTorch = []string{compat.RuleTorchVersion, compat.RuleTorchOS, compat.RuleTorchCUDA, compat.RuleTorchROCm, compat.RuleTorchPython}

// ownTorch reports whether the row's torch is one that others built.
func (o origin) ownTorch() bool {
	torch := torchSource(o.group.pkg, o.group.shared)
	return torch.System.Value || torch.Path.IsSet()
}

// otherCUDA reports whether the row is meant to have a torch of another CUDA version than its own.
func (o origin) otherCUDA() bool {
	return o.group.pkg.spec.Build.CUDACheck.Value == "bypass" && torchSource(o.group.pkg, o.group.shared).Index.IsSet()
}

// value returns the row's value of an axis as written.
func (o origin) value(name string) Text {
	i := slices.IndexFunc(o.group.axes, func(a axis) bool { return a.name == name })
	if i < 0 {
		return Text{}
	}
	n := o.n
	for d, axes := range slices.Backward(o.group.dims) {
		if slices.Contains(axes, i) {
			return o.group.axes[i].values[n%o.group.sizes[d]]
		}
		n /= o.group.sizes[d]
	}
	return Text{}
}

// place returns where the row's value of the first axis is written that is written at
// all, else where its group is.
func (o origin) place(axes ...string) place {
	for _, name := range axes {
		if v := o.value(name); v.IsSet() {
			return v.place
		}
		if name == "arch" {
			if v, ok := o.arch(); ok {
				return v.place
			}
		}
	}
	if o.group.group.place.IsSet() {
		return o.group.group.place
	}
	return o.group.pkg.key.place
}

// arch returns the architecture setting that the row's value comes from.
func (o origin) arch() (v Version, ok bool) {
	cuda, rocm := o.value("cuda").Value, o.value("rocm").Value
	if v, ok = o.group.shared.Arch.pick(cuda, rocm); !ok {
		v, ok = o.group.pkg.spec.Arch.pick(cuda, rocm)
	}
	return v, ok
}

func (o origin) archIsWritten() bool {
	_, ok := o.arch()
	return ok
}

// Plan expands the file into rows and checks them.
func (f *File) Plan(opts Options) *Plan {
	opts.OS = cmp.Or(opts.OS, DefaultOS)
	opts.MaxRows = cmp.Or(opts.MaxRows, 1_000_000)
	if opts.Compat == nil {
		opts.Compat = compat.Default()
	}
	p := &planner{
		opts: opts, file: f, plan: &Plan{settings: map[string]origin{}, parts: map[string][]Row{}, workflow: f.workflow},
		ids: map[string]int{}, files: map[string]int{}, hits: map[*rule]int{},
		findings: map[findingKey]int{}, rows: map[int]int{},
	}
	p.inputs()
	if p.runPython == nil {
		p.runPython = plain(DefaultPython)
	}
	if p.runCUDA == nil {
		p.runCUDA = plain(DefaultCUDA)
	}
	if opts.Select != nil {
		if err := opts.Select.Check(f.CustomAxes()); err != nil {
			p.list = append(p.list, err.(*diag.ListError).Diagnostics...) //nolint:errorlint,forcetypeassert // documented type
		}
	}
	if !p.list.HasErrors() {
		p.expand()
	}
	p.finish()
	return p.plan
}

// planner is the state of one expansion.
type planner struct {
	checker
	opts    Options
	file    *File
	plan    *Plan
	origins []origin       // of plan.Rows
	ids     map[string]int // row ID → index into plan.Rows
	files   map[string]int // file name → index into plan.Rows
	hits    map[*rule]int  // rows that an exclude rule removed

	candidates []candidate // of packages with rows that merge others

	runPython, runCUDA []Text // the lists of the run, with their places on the command line

	findings map[findingKey]int // → index into list
	rows     map[int]int        // index into list → rows concerned
}

// findingKey makes one finding of what is said of many rows.
type findingKey struct {
	rule, message string
	pos           diag.Pos
}

// inputs checks the options as if they were written in the file.
func (p *planner) inputs() {
	// The text of a flag is its values with commas between them.
	flag := func(name string, values []string, i int) Text {
		column := 1
		for _, v := range values[:i] {
			column += utf8.RuneCountInString(v) + 1
		}
		return Text{Value: values[i], place: place{pos: diag.Pos{File: name, Line: 1, Column: column}, width: utf8.RuneCountInString(values[i])}}
	}
	for i := range p.opts.Python {
		p.runPython = append(p.runPython, flag("--python", p.opts.Python, i))
		p.python(p.runPython[i])
	}
	for i := range p.opts.CUDA {
		p.runCUDA = append(p.runCUDA, flag("--cuda", p.opts.CUDA, i))
		p.dotted(p.runCUDA[i], "CUDA", 2, 3, "12.8.1")
	}
	for i, name := range p.opts.Packages {
		if known := p.file.Packages(); !slices.Contains(known, wheel.NormalizeName(name)) {
			p.errorf(flag("--package", p.opts.Packages, i).place, "package-name", "the file has "+strings.Join(known, ", "), "no package %q%s", name, diag.DidYouMean(name, known))
		}
	}
}

func (p *planner) selected(pkg *pkg) bool {
	return len(p.opts.Packages) == 0 || slices.ContainsFunc(p.opts.Packages, func(n string) bool { return wheel.NormalizeName(n) == pkg.name })
}

func (p *planner) expand() {
	var groups []*boundGroup
	total := 0
	for _, pkg := range p.file.packages {
		if !p.selected(pkg) {
			continue
		}
		for _, g := range pkg.groups {
			b := p.bind(pkg, g)
			if b == nil {
				continue
			}
			if total += b.total; total > p.opts.MaxRows || b.total > p.opts.MaxRows {
				p.errorf(g.place, "too-many-rows", "use fewer values, or zip axes that belong together", "the plan would have more than %d rows", p.opts.MaxRows)
				return
			}
			groups = append(groups, b)
		}
	}
	for _, g := range groups {
		before := len(p.plan.Rows) + p.plan.Unselected
		p.group(g)
		if len(g.exclude)+len(g.pkg.exclude) > 0 && before == len(p.plan.Rows)+p.plan.Unselected && !p.list.HasErrors() {
			p.warnf(g.place, "exclude-all", "", "every row of this group is skipped")
		}
	}
	p.deadRules(groups)
}

// bind fills in the inputs of the run.
func (p *planner) bind(pkg *pkg, g *group) *boundGroup {
	b := &boundGroup{group: g, pkg: pkg, axes: slices.Clone(g.axes), total: 1, compat: p.opts.Compat}
	for i := range b.axes {
		a := &b.axes[i]
		if len(a.values) > 0 {
			continue
		}
		switch a.name {
		case "version":
			a.values = pkg.versions
			if v, ok := p.opts.Versions[pkg.name]; ok && pkg.spec.VersionFrom != nil {
				a.values = []Text{{Value: v, place: pkg.spec.VersionFrom.File.place}}
			}
			if len(a.values) == 0 {
				p.errorf(pkg.key.place, "no-version", "", "the version of %q is not known", pkg.name)
				return nil
			}
		case "os":
			a.values = []Text{{Value: p.opts.OS}}
		case "python":
			a.values = p.runPython
		case "cuda":
			a.values = p.runCUDA
		}
	}
	for _, dim := range b.dims {
		n := len(b.axes[dim[0]].values)
		b.sizes = append(b.sizes, n)
		if b.total > p.opts.MaxRows { // the product must not overflow
			return b
		}
		b.total *= n
	}
	unknown := false
	for _, a := range b.axes {
		if a.name != "os" || g.shared.Platform.IsSet() {
			continue
		}
		for _, v := range a.values {
			if _, ok := p.opts.Compat.Platform(v.Value); ok {
				continue
			}
			known := p.opts.Compat.KnownOS()
			at := v.place
			if !at.IsSet() {
				at = g.place
			}
			hint := "use one of " + strings.Join(known, ", ") + "."
			if near := diag.Suggest(v.Value, known); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			p.errorf(at, "os", hint+" A name of your own needs a platform", "unknown operating system %q", v.Value)
			unknown = true
		}
	}
	if unknown {
		return nil
	}
	return b
}

func plain(values []string) []Text {
	out := make([]Text, len(values))
	for i, v := range values {
		out[i] = Text{Value: v}
	}
	return out
}

// boundRule is an exclude rule with its verdict on each value of a group's axes.
type boundRule struct {
	*rule
	verdicts []boundVerdict
	dead     bool // a key that no row of the group can match
}

type boundVerdict struct {
	dim     int
	matches []bool
}

func (g *boundGroup) bindRule(r *rule) boundRule {
	out := boundRule{rule: r}
	for _, k := range r.keys {
		matches := func(value string) bool {
			return slices.ContainsFunc(k.any, func(p pattern) bool { return p.matches(value) })
		}
		if k.axis == "kind" {
			out.dead = out.dead || !matches(g.kind)
			continue
		}
		i := slices.IndexFunc(g.axes, func(a axis) bool { return a.name == k.axis })
		if i < 0 {
			out.dead = true
			continue
		}
		v := boundVerdict{dim: slices.IndexFunc(g.dims, func(d []int) bool { return slices.Contains(d, i) })}
		for _, value := range g.axes[i].values {
			v.matches = append(v.matches, matches(value.Value))
		}
		out.verdicts = append(out.verdicts, v)
	}
	return out
}

// group appends the rows of one group.
func (p *planner) group(g *boundGroup) {
	var rules []boundRule
	if !g.single {
		for _, r := range slices.Concat(g.exclude, g.pkg.exclude) {
			if b := g.bindRule(r); !b.dead {
				rules = append(rules, b)
			}
		}
	}
	build := newRowBuilder(g)
	at := make([]int, len(g.dims)) // the index in each dim
	p.plan.Rows = slices.Grow(p.plan.Rows, g.total)
	p.origins = slices.Grow(p.origins, g.total)
	for n := range g.total {
		from := origin{g, n}
		row, problem := build.row(at)
		switch r := firstMatch(rules, at); {
		case r != nil:
			p.hits[r]++
			p.skip(row, "exclude", "exclude "+r.text, r.place)
		case problem != nil:
			p.finding(*problem)
		default:
			p.add(row, from)
		}
		for d := len(at) - 1; d >= 0; d-- {
			if at[d]++; at[d] < g.sizes[d] {
				break
			}
			at[d] = 0
		}
	}
}

func firstMatch(rules []boundRule, at []int) *rule {
	for i := range rules {
		matches := true
		for _, v := range rules[i].verdicts {
			if !v.matches[at[v.dim]] {
				matches = false
				break
			}
		}
		if matches {
			return rules[i].rule
		}
	}
	return nil
}

// add checks one row and appends it.
func (p *planner) add(row Row, from origin) {
	if from.group.pkg.merges {
		p.candidates = append(p.candidates, candidate{row, from.group.shared.Merge.IsSet()})
	}
	if p.opts.Select != nil && !p.opts.Select.Match(&row) {
		p.plan.Unselected++
		return
	}
	if i, taken := p.ids[row.ID]; taken {
		p.repeated(row, from, i)
		return
	}
	files := row.Files()
	for _, name := range files {
		if i, taken := p.files[name]; taken {
			p.collision(row, from, i)
			return
		}
	}
	combo := compat.Combo{OS: row.OS, Python: row.Python, CUDA: row.CUDA, ROCm: row.ROCm, Torch: row.Torch, Arch: row.Arch, Kind: row.Kind}
	if row.Torch == "" {
		combo.Torch, combo.AnyTorch = from.looseTorch()
	}
	findings := p.opts.Compat.Check(combo)
	if from.otherCUDA() {
		findings = slices.DeleteFunc(findings, func(f compat.Finding) bool { return f.Rule == compat.RuleTorchCUDA })
	}
	if from.ownTorch() {
		findings = slices.DeleteFunc(findings, func(f compat.Finding) bool { return slices.Contains(publishedTorch, f.Rule) })
	}
	if p.opts.SkipIncompatible {
		for _, f := range findings {
			if f.Severity == compat.Error {
				p.skip(row, f.Rule, f.Message, from.place(f.Axes...))
				return
			}
		}
	}
	for _, f := range findings {
		if f.Severity != compat.Error && slices.Contains(f.Axes, "arch") && !from.archIsWritten() {
			continue // about kiln's own default, which the user did not choose
		}
		at := from.place(f.Axes...)
		d := diag.Diagnostic{Severity: f.Severity, Rule: f.Rule, Message: f.Message, Hint: f.Fix, Pos: at.pos, Width: at.width}
		if len(f.Axes) > 1 {
			if other := from.place(f.Axes[1:]...); other != at {
				d.Related = []diag.Related{{Pos: other.pos, Message: f.Axes[1] + " is given here"}}
			}
		}
		p.finding(d)
	}
	for _, name := range files {
		p.files[name] = len(p.plan.Rows)
	}
	if row.Torch == "" && row.Kind == KindWheel {
		p.looseTorch(from)
	}
	p.ids[row.ID] = len(p.plan.Rows)
	p.plan.settings[row.ID] = from
	p.plan.Rows = append(p.plan.Rows, row)
	p.origins = append(p.origins, from)
}

// looseTorch reports whether a row that fixes no torch is built against one, and the version that
// its requirement pins, if it does.
func (o origin) looseTorch() (version string, needed bool) {
	deps := slices.Concat(o.group.pkg.extraDeps, o.group.extraDeps)
	for _, req := range deps {
		if wheel.NormalizeName(req.Name) != "torch" {
			continue
		}
		if v, ok := strings.CutPrefix(strings.ReplaceAll(req.Specifier.String(), " ", ""), "=="); ok && !strings.ContainsAny(v, ",*=") {
			version = v
		}
		return version, true
	}
	return "", false
}

// looseTorch notes a package that builds against torch without saying which.
func (p *planner) looseTorch(from origin) {
	for i, req := range from.group.pkg.extraDeps {
		if wheel.NormalizeName(req.Name) == "torch" {
			at := from.group.pkg.spec.ExtraDeps[i].place
			p.finding(diag.Diagnostic{
				Severity: diag.Note, Rule: "loose-torch", Pos: at.pos, Width: at.width,
				Message: "the torch to build against is not fixed, and a wheel works only with the torch minor it was built with",
				Hint:    "add a matrix with a torch axis",
			})
		}
	}
}

func (p *planner) skip(row Row, rule, reason string, at place) {
	if p.opts.Select == nil || p.opts.Select.Match(&row) {
		p.plan.Skipped = append(p.plan.Skipped, Skip{Row: row, Rule: rule, Reason: reason, Pos: at.pos})
	}
}

// finding reports something about a row. The same thing about many rows is one
// diagnostic with their number.
func (p *planner) finding(d diag.Diagnostic) {
	key := findingKey{d.Rule, d.Message, d.Pos}
	i, known := p.findings[key]
	if !known {
		i = len(p.list)
		p.findings[key] = i
		p.list.Add(d)
	}
	p.rows[i]++
}

// repeated reports a row that the plan already has.
func (p *planner) repeated(row Row, from origin, i int) {
	if p.plan.Rows[i] != row {
		p.collision(row, from, i)
		return
	}
	at, first := from.place(), p.origins[i].place()
	p.skip(row, "duplicate", "the same row is described at "+first.pos.String(), at)
	p.finding(diag.Diagnostic{
		Severity: diag.Warning, Rule: "duplicate-row", Pos: at.pos, Width: at.width,
		Message: "the row is in the plan already", Hint: "it is built once; remove one of the two",
		Related: []diag.Related{{Pos: first.pos, Message: row.ID + " is first described here"}},
	})
}

// collision reports two different rows that would write one file.
func (p *planner) collision(row Row, from origin, i int) {
	earlier := &p.plan.Rows[i]
	axes, text := differences(earlier, &row)
	at, first := from.place(axes...), p.origins[i].place(axes...)
	p.finding(diag.Diagnostic{
		Rule: "same-file", Pos: at.pos, Width: at.width,
		Message: "two rows would write one file: they differ in " + text,
		Hint:    separatingTag(earlier, &row),
		Related: []diag.Related{{Pos: first.pos, Message: "the other row is described here; the file is " + row.Files()[0]}},
	})
}

// differences returns the axes in which two rows differ, and a text that names them
// with their values.
func differences(a, b *Row) (axes []string, text string) {
	var parts []string
	for _, name := range slices.Concat([]string{"kind", "os", "cuda", "rocm", "torch", "python", "arch", "tag"}, slices.Sorted(maps.Keys(a.Axes.Map()))) {
		if va, vb := a.Axis(name), b.Axis(name); va != vb {
			axes = append(axes, name)
			parts = append(parts, fmt.Sprintf("%s (%s, %s)", name, cmp.Or(va, "none"), cmp.Or(vb, "none")))
		}
	}
	return axes, cmp.Or(strings.Join(parts, " and "), "their settings")
}

// separatingTag suggests a build tag that tells two rows apart.
func separatingTag(a, b *Row) string {
	switch {
	case a.Kind == KindSdist && b.Kind == KindSdist:
		return "an sdist is the same for every Python and operating system: keep one of the rows"
	case a.OS != b.OS:
		return "one file cannot serve two operating systems of one platform: remove one, or set platform"
	case a.Axes != b.Axes:
		for name, value := range a.Axes.Map() {
			if b.Axes.Get(name) != value {
				return fmt.Sprintf(`tell them apart with local_version: "{toolkit_tag}-torch{torch}-{%s}"`, name)
			}
		}
	case a.Python != b.Python:
		return "a wheel with this wheel_tag serves both: build it with one Python"
	case compat.ToolkitTag(a.CUDA, a.ROCm) == compat.ToolkitTag(b.CUDA, b.ROCm) && a.CUDA != b.CUDA:
		return "the build tag leaves out the patch version of CUDA: remove one of the two, or write {cuda} in local_version"
	case a.CUDA != b.CUDA || a.ROCm != b.ROCm || a.Torch != b.Torch:
		return `tell them apart with local_version: "{toolkit_tag}-torch{torch}"`
	case a.Arch != b.Arch:
		return "name both architecture lists in one row"
	}
	return "give one of the groups a local_version of its own"
}

// deadRules warns of exclude entries that remove nothing: most are misspelt.
func (p *planner) deadRules(groups []*boundGroup) {
	seen := map[*rule]bool{}
	for _, g := range groups {
		if g.single {
			continue
		}
		for _, r := range slices.Concat(g.exclude, g.pkg.exclude) {
			if p.hits[r] == 0 && !seen[r] {
				seen[r] = true
				p.warnf(r.place, "exclude-nothing", "check its values against the axes, or remove it", "the entry %s removes no row%s", r.text, r.whyDead(groups))
			}
		}
	}
}

// whyDead names the first key that no row matches, as text to append.
func (r *rule) whyDead(groups []*boundGroup) string {
	for _, k := range r.keys {
		matched := false
		for _, g := range groups {
			if !slices.Contains(g.exclude, r) && !slices.Contains(g.pkg.exclude, r) {
				continue
			}
			values := []Text{{Value: g.kind}}
			if i := slices.IndexFunc(g.axes, func(a axis) bool { return a.name == k.axis }); i >= 0 {
				values = g.axes[i].values
			} else if k.axis != "kind" {
				values = nil
			}
			matched = matched || slices.ContainsFunc(values, func(v Text) bool {
				return slices.ContainsFunc(k.any, func(p pattern) bool { return p.matches(v.Value) })
			})
		}
		if !matched {
			return ": no row has that " + k.axis
		}
	}
	return ""
}

// finish orders the findings and adds the numbers.
func (p *planner) finish() {
	p.merges()
	for i, n := range p.rows {
		if n > 1 {
			p.list[i].Message += fmt.Sprintf(" (%d rows)", n)
		}
	}
	p.list.Sort()
	p.plan.Findings = p.list
	p.plan.Estimate = p.opts.History.estimate(p.plan.Rows, p.opts.Compat)
}

// candidate is a row whose files may be merged into another one's.
type candidate struct {
	Row
	merges bool // others into its own
}

// merges finds the rows of each merge, also those that were not selected.
func (p *planner) merges() {
	for i := range p.plan.Rows {
		row, text := &p.plan.Rows[i], p.origins[i].group.shared.Merge
		if !text.IsSet() {
			continue
		}
		selection, err := ParseSelection(text.Value)
		if err != nil {
			continue // reported
		}
		var parts []Row
		for _, c := range p.candidates {
			if c.ID != row.ID && !c.merges && c.Kind == KindWheel && c.Package == row.Package && c.Version == row.Version && c.Platform == row.Platform && c.WheelTag == row.WheelTag && selection.Match(&c.Row) {
				parts = append(parts, c.Row)
			}
		}
		if len(parts) == 0 {
			p.errorf(text.place, "merge", "the rows must be of the same version, platform and wheel tag", "merge: %s selects no row to merge into %s", text.Value, row.ID)
		}
		p.plan.parts[row.ID] = parts
		sum := sha256.New()
		fmt.Fprintln(sum, row.Digest)
		for i := range parts {
			fmt.Fprintln(sum, parts[i].ID, parts[i].Digest)
		}
		row.Digest = hex.EncodeToString(sum.Sum(nil))[:len(row.Digest)]
	}
}

// Parts returns the rows whose native libraries the wheel of a row contains too, also those that the
// plan does not have because they were not selected.
func (p *Plan) Parts(id string) []Row { return p.parts[id] }

// Merged returns the rows of the plan that are parts of others, with those.
func (p *Plan) Merged() map[string]string {
	out := map[string]string{}
	for id, parts := range p.parts {
		for i := range parts {
			out[parts[i].ID] = id
		}
	}
	return out
}

// Err returns the plan's errors, or nil.
func (p *Plan) Err() error { return p.Findings.Err() }

// Counts returns how many rows each value of an axis has. The empty value stands
// for rows without one.
func (p *Plan) Counts(axis string) map[string]int {
	counts := map[string]int{}
	for i := range p.Rows {
		counts[p.Rows[i].Axis(axis)]++
	}
	return counts
}

// CountedToolkits returns how many rows each toolkit version has, by names such as
// "cuda 12.8.1", "rocm 6.4" and "none".
func (p *Plan) CountedToolkits() map[string]int {
	counts := map[string]int{}
	for i := range p.Rows {
		name, version := p.Rows[i].Toolkit()
		counts[strings.TrimSpace(name+" "+version)]++
	}
	return counts
}

// SortedValues returns the keys of a count in the order people expect: versions by
// number, names by letter, the empty value last.
func SortedValues(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), compareValues)
}

func compareValues(a, b string) int {
	if (a == "") != (b == "") {
		return cmp.Compare(b, a)
	}
	// "cuda 12.8.1" sorts by its word, then by its number.
	wordA, versionA, _ := strings.Cut(a, " ")
	wordB, versionB, _ := strings.Cut(b, " ")
	if versionA != "" && versionB != "" && wordA == wordB {
		a, b = versionA, versionB
	}
	ra, okA := parseRelease(a)
	rb, okB := parseRelease(b)
	if okA && okB {
		return cmp.Or(slices.Compare(ra.parts, rb.parts), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}
