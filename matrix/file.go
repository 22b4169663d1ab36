package matrix

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/wheel"
)

// maxVersionFile bounds the file that a version is taken from.
const maxVersionFile = 64 << 20

// File is a packages.yml that was read and checked as far as it can be without the
// inputs of a run. It is immutable.
type File struct {
	// Name is the path that diagnostics show.
	Name string
	// Text is the file as read, for showing source lines.
	Text []byte

	document *Document
	packages []*pkg
	cache    CacheSettings
	publish  PublishSettings
	workflow WorkflowSettings

	credentials []secret.URL
}

// Parse reads packages.yml. It reports every mistake it finds, not only the first;
// the File is nil if one of them is an error.
func Parse(name string, text []byte) (*File, diag.List) {
	doc, credentials, unreadable := decode(name, text)
	if doc == nil {
		return nil, unreadable
	}
	c := &checker{}
	f := &File{Name: name, Text: secret.Mask(text), document: doc, credentials: credentials}
	first := map[string]Text{}
	for i := range doc.Packages {
		e := &doc.Packages[i]
		if !wheel.ValidName(e.Key.Value) {
			c.errorf(e.Key.place, "package-name", "use letters, digits and single . _ - between them", "%q is not a distribution name", e.Key.Value)
			continue
		}
		name := wheel.NormalizeName(e.Key.Value)
		if earlier, repeated := first[name]; repeated {
			c.errorf(e.Key.place, "package-name", "", "%q and %q are the same package", e.Key.Value, earlier.Value)
			c.related(earlier.place, "it is first given here")
			continue
		}
		first[name] = e.Key
		f.packages = append(f.packages, c.pkg(name, e.Key, &e.Value))
	}
	f.cache = c.cache(&doc.Cache)
	f.publish = c.publish(&doc.Publish)
	f.workflow = c.workflow(&doc.Workflow, &doc.Cache, f.CustomAxes())
	list := withoutEchoes(unreadable, c.list)
	list.Sort()
	if list.HasErrors() {
		return nil, list
	}
	return f, list
}

// withoutEchoes joins what could not be read with what is wrong in meaning, less what
// only follows from the former or was said before.
func withoutEchoes(unreadable, meaning diag.List) diag.List {
	type said struct {
		pos     diag.Pos
		message string
	}
	list := unreadable
	blind, seen := map[diag.Pos]bool{}, map[said]bool{}
	for _, d := range unreadable {
		blind[d.Pos] = true
	}
	for _, d := range meaning {
		// A misspelt key is not also a missing version or an empty rule, and a value
		// that could not be read has no meaning to complain about.
		if len(unreadable) > 0 && (!d.Pos.IsValid() || d.Rule == "no-version" || d.Rule == "exclude-everything") || blind[d.Pos] {
			continue
		}
		// What the package sets is looked at once for every group.
		if key := (said{d.Pos, d.Message}); !seen[key] {
			seen[key] = true
			list.Add(d)
		}
	}
	return list
}

// Packages returns the normalised names of the packages in the order of the file.
func (f *File) Packages() []string {
	names := make([]string, len(f.packages))
	for i, p := range f.packages {
		names[i] = p.name
	}
	return names
}

// CustomAxes returns the names of all custom axes in the file, sorted.
func (f *File) CustomAxes() []string {
	var names []string
	for _, p := range f.packages {
		names = append(names, p.customAxes...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// DefaultVersionPattern finds __version__ = "1.2.3" in Python and version = "1.2.3"
// in TOML and cfg files.
const DefaultVersionPattern = `^\s*(?:__version__|version)\s*(?::\s*str\s*)?=\s*["']([^"']+)["']`

// ReadVersions reads the version of every package that has version_from, from the
// files named there. The result is an input of [File.Plan].
func (f *File) ReadVersions() (map[string]string, diag.List) {
	versions := map[string]string{}
	c := &checker{}
	for _, p := range f.packages {
		from := p.spec.VersionFrom
		if from == nil {
			continue
		}
		source := p.spec.Source.Path.Value
		if !filepath.IsAbs(source) {
			source = filepath.Join(filepath.Dir(f.Name), source)
		}
		name := filepath.Join(source, filepath.FromSlash(from.File.Value))
		text, err := fsx.ReadFile(name, maxVersionFile)
		if err != nil {
			message := err.Error()
			if errors.Is(err, fs.ErrNotExist) {
				message = "there is no file " + filepath.ToSlash(name)
			}
			c.errorf(from.File.place, "version-file", "it is relative to source.path, which is relative to packages.yml", "%s", message)
			continue
		}
		m := p.versionPattern.FindSubmatch(text)
		if m == nil {
			at := from.File.place
			if from.Pattern.IsSet() {
				at = from.Pattern.place
			}
			c.errorf(at, "version-file", "the file begins: "+firstLines(text), "no version in %s: the pattern %s matches nothing", filepath.ToSlash(name), from.pattern())
			continue
		}
		v, err := wheel.ParseVersion(string(m[1]))
		if err != nil {
			c.errorf(from.File.place, "version-file", "", "%s: %v", filepath.ToSlash(name), err)
			continue
		}
		versions[p.name] = v.String()
	}
	return versions, c.list
}

func firstLines(text []byte) string {
	lines := strings.SplitN(strings.ToValidUTF8(string(text[:min(len(text), 300)]), "?"), "\n", 4)
	return strings.Join(lines[:min(3, len(lines))], " ⏎ ")
}

// pkg is a checked package: what its texts say, parsed.
type pkg struct {
	name           string
	key            Text
	spec           *Package
	versions       []Text // normal form, place of the text
	versionPattern *regexp.Regexp
	buildArgs      buildArgs
	extraDeps      []wheel.Requirement
	customAxes     []string
	exclude        []*rule
	groups         []*group // with include rows as groups of one
	base           bool     // no matrix and no include: axes come from the run
	merges         bool     // a group merges rows
}

// group is a checked group: axes with their values, in the order in which they vary.
type group struct {
	axes []axis
	// dims are the factors of the product, slowest first; each lists the axes
	// that advance together.
	dims    [][]int
	exclude []*rule
	kind    string
	shared  *Shared
	place   place
	single  bool // from include
	// stable and abi3 are the first torch and Python that a row is for, in place of these axes.
	stable, abi3 string

	tag      template
	tagPlace place
	tagIsOwn bool // local_version was written, on the group or on the package
	image    perToolkit
	env      []envVar

	testImage  perToolkit
	test       Test // the package's, with what the group sets
	testImport []Text
	buildArgs  buildArgs
	extraDeps  []wheel.Requirement // besides the package's
	torchIndex template
	// The words of each command.
	imageSetup, beforeBuild, afterBuild, beforeTest, testCommand [][]template
}

// axis is a name with its values.
type axis struct {
	name   string
	values []Text
}

type envVar struct {
	name  string
	value perToolkit
}

// perToolkit is a [PerToolkit] with its templates parsed.
type perToolkit []struct {
	match toolkitPattern
	value template
	place place
}

func templates[T any](p *pkg, s PerToolkit[T], text func(T) Text, list *diag.List) perToolkit {
	out := make(perToolkit, len(s.Cases))
	for i, tc := range s.Cases {
		t := text(tc.Value)
		out[i].match, out[i].value, out[i].place = tc.match, parseTemplate(t, p.customAxes, list), t.place
	}
	return out
}

// pick returns the template for a row's toolkit.
func (c perToolkit) pick(r *Row) (t template, at place, ok bool) {
	for i := range c {
		if c[i].match.matches(r.CUDA, r.ROCm) {
			return c[i].value, c[i].place, true
		}
	}
	return template{}, place{}, false
}

// rule is a checked entry of exclude.
type rule struct {
	keys  []ruleKey
	place place
	text  string // for showing: {python: 3.13, os: windows-2022}
}

type ruleKey struct {
	axis string
	any  []pattern
}

// checker collects what is wrong with the meaning of a document.
type checker struct {
	list diag.List
}

func (c *checker) errorf(p place, rule, hint, format string, args ...any) {
	c.list.Add(diag.Diagnostic{Rule: rule, Pos: p.pos, Width: p.width, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (c *checker) warnf(p place, rule, hint, format string, args ...any) {
	c.errorf(p, rule, hint, format, args...)
	c.list[len(c.list)-1].Severity = diag.Warning
}

func (c *checker) notef(p place, rule, hint, format string, args ...any) {
	c.errorf(p, rule, hint, format, args...)
	c.list[len(c.list)-1].Severity = diag.Note
}

// related adds a second place to the last diagnostic.
func (c *checker) related(p place, message string) {
	last := &c.list[len(c.list)-1]
	last.Related = append(last.Related, diag.Related{Pos: p.pos, Message: message})
}

func (c *checker) pkg(name string, key Text, spec *Package) *pkg {
	p := &pkg{name: name, key: key, spec: spec, base: len(spec.Matrix) == 0 && len(spec.Include) == 0}
	p.versions = c.versions(spec.Versions)
	p.buildArgs = c.buildArgs(p, spec.BuildArgs)
	p.extraDeps = c.requirements(spec.ExtraDeps)
	c.tests(&spec.Test, spec.TestImport)
	c.source(&spec.Source)
	c.versionFrom(p)
	if len(spec.Versions) == 0 && spec.VersionFrom == nil && !everyRowHasVersion(spec) {
		c.errorf(key.place, "no-version", `add versions: ["1.2.3"], or version_from with a local source`, "the package %q has no version", key.Value)
	}
	for _, g := range spec.Matrix {
		for _, a := range g.Axes {
			p.customAxes = append(p.customAxes, a.Key.Value)
		}
	}
	for _, s := range spec.Include {
		for _, a := range s.Axes {
			p.customAxes = append(p.customAxes, a.Key.Value)
		}
	}
	slices.Sort(p.customAxes)
	p.customAxes = slices.Compact(p.customAxes)
	for _, list := range spec.ArchLists {
		c.archList(list.Value.Value, list.Value.place)
	}
	c.arch(p, spec.Arch)
	c.wheelTag(spec.WheelTag)
	p.exclude = c.rules(p, spec.Exclude)
	for i := range spec.Matrix {
		p.groups = append(p.groups, c.group(p, &spec.Matrix[i]))
	}
	for i := range spec.Include {
		p.groups = append(p.groups, c.single(p, &spec.Include[i]))
	}
	if p.base {
		g := &group{kind: KindWheel, shared: &Shared{}, place: key.place}
		for _, name := range []string{"version", "os", "cuda", "python"} {
			g.add(name, nil)
		}
		c.zip(g, nil)
		c.settings(p, g)
		p.groups = append(p.groups, g)
	}
	c.reuse(p)
	for _, patch := range spec.Build.Patches {
		if patch.Find.Value == "" {
			c.errorf(patch.Find.place, "patch", "", "the text to find is empty")
		}
	}
	for _, setting := range spec.Build.ConfigSettings {
		for _, v := range setting.Value {
			parseTemplate(v, p.customAxes, &c.list)
		}
	}
	return p
}

// reuse checks that a wheel can serve other rows and be proven to.
func (c *checker) reuse(p *pkg) {
	at := p.spec.Reuse.Torch.place
	if !at.IsSet() {
		return
	}
	if tie := p.spec.RuntimeTorch; tie.IsSet() && tie.Value != "any" {
		c.errorf(at, "reuse", "write runtime_torch: any", "a wheel whose metadata require one torch serves no other")
		c.related(tie.place, "runtime_torch is given here")
	}
	torch := false
	for _, g := range p.groups {
		if g.kind != KindWheel || g.axis("torch") == nil {
			continue
		}
		torch = true
		if kind := g.test.Kind.Value; kind != TestImport {
			c.errorf(at, "reuse", "a test of kind import proves it", "rows with test: %s cannot be proven", kind)
			return
		}
	}
	if !torch {
		c.warnf(at, "reuse", "give the groups a torch axis", "no row has a torch, so no wheel serves another")
	}
}

// everyRowHasVersion reports whether no row of the package asks for its versions.
func everyRowHasVersion(spec *Package) bool {
	for _, g := range spec.Matrix {
		if len(g.Version) == 0 {
			return false
		}
	}
	for _, s := range spec.Include {
		if !s.Version.IsSet() {
			return false
		}
	}
	return len(spec.Matrix)+len(spec.Include) > 0
}

// versions checks package versions and returns them in normal form.
func (c *checker) versions(list []Version) []Text {
	var out []Text
	first := map[string]Version{}
	for _, v := range list {
		if !v.IsSet() {
			continue // it could not be read
		}
		parsed, err := wheel.ParseVersion(v.Value)
		if err != nil {
			c.errorf(v.place, "version", "", "%v", err)
			continue
		}
		if parsed.Local() != "" {
			c.errorf(v.place, "version", "write the version alone; local_version sets the build tag", "%s has a local part", v.Value)
			continue
		}
		normal := parsed.String()
		if earlier, repeated := first[normal]; repeated {
			c.errorf(v.place, "version", "", "the version %s is repeated", normal)
			c.related(earlier.place, "it is first given here")
			continue
		}
		first[normal] = v
		out = append(out, Text{Value: normal, place: v.place})
	}
	return out
}

// tests checks what a package or a group says about its test.
func (c *checker) tests(test *Test, imports []Text) {
	c.requirements(test.Requires)
	for _, name := range test.Files {
		if !filepath.IsLocal(filepath.FromSlash(name.Value)) {
			c.errorf(name.place, "test", "give a path relative to the source", "%q is outside of the source", name.Value)
		}
	}
	for _, extra := range test.Extras {
		if !wheel.ValidName(extra.Value) {
			c.errorf(extra.place, "test", "", "%q is not the name of an extra", extra.Value)
		}
	}
	for _, module := range imports {
		if !isModule(module.Value) {
			hint := ""
			if near := strings.ReplaceAll(module.Value, "-", "_"); isModule(near) {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			c.errorf(module.place, "test-import", hint, "%q is not a module name", module.Value)
		}
	}
}

func (c *checker) requirements(deps []Text) []wheel.Requirement {
	out := make([]wheel.Requirement, len(deps))
	for i, dep := range deps {
		var err error
		if out[i], err = wheel.ParseRequirement(dep.Value); err != nil {
			c.errorf(dep.place, "requirement", "", "%v", err)
		}
	}
	return out
}

func (c *checker) source(s *Source) {
	var given []string
	for name, t := range map[string]Text{"index": s.Index, "git": s.Git, "path": s.Path, "sdist": s.Sdist} {
		if t.IsSet() {
			given = append(given, name)
			if t.Value == "" {
				c.errorf(t.place, "source", "", "%q is empty", name)
			}
		}
	}
	slices.Sort(given)
	if len(given) > 1 {
		c.errorf(s.place, "source", "keep one of them", "the source has %s", strings.Join(given, " and "))
	}
	switch {
	case s.Ref.IsSet() && s.Ref.Value == "":
		c.errorf(s.Ref.place, "source", "", `"ref" is empty`)
	case s.Git.IsSet() && !s.Ref.IsSet():
		c.errorf(s.Git.place, "source", "add ref: with a tag or commit, so that every build gets the same code", "a git source needs a ref")
	case s.Ref.IsSet() && !s.Git.IsSet():
		c.errorf(s.Ref.place, "source", "", "ref is for git sources")
	case s.Submodules.IsSet() && !s.Git.IsSet():
		c.errorf(s.Submodules.place, "source", "", "submodules is for git sources")
	case s.Sdist.IsSet() && !s.SHA256.IsSet():
		c.errorf(s.Sdist.place, "source", "add sha256:, the hash of the file", "an sdist source needs a hash")
	case s.SHA256.IsSet() && !s.Sdist.IsSet():
		c.errorf(s.SHA256.place, "source", "", "sha256 is for sdist sources")
	}
	if s.Ref.IsSet() {
		parseTemplate(s.Ref, nil, &c.list)
	}
	if s.SHA256.IsSet() && (len(s.SHA256.Value) != 64 || strings.Trim(strings.ToLower(s.SHA256.Value), "0123456789abcdef") != "") {
		c.errorf(s.SHA256.place, "source", "write the digits alone", "want 64 hexadecimal digits, got %s", units.Count(len(s.SHA256.Value), "character"))
	}
}

func (c *checker) torchSource(s TorchSource) {
	var given []string
	if s.Index.IsSet() {
		given = append(given, "index")
	}
	if s.Path.IsSet() {
		given = append(given, "path")
	}
	if s.System.Value {
		given = append(given, "system")
	}
	switch {
	case len(given) > 1:
		c.errorf(s.place, "torch-source", "keep one of them", "torch comes from %s", strings.Join(given, " and from "))
	case s.Index.IsSet() && s.Index.Value == "", s.Path.IsSet() && s.Path.Value == "":
		c.errorf(s.place, "torch-source", "", "%q is empty", given[0])
	}
}

// pattern returns the regular expression to look for.
func (v *VersionFrom) pattern() string {
	if v.Pattern.IsSet() {
		return v.Pattern.Value
	}
	return DefaultVersionPattern
}

func (c *checker) versionFrom(p *pkg) {
	from := p.spec.VersionFrom
	if from == nil {
		return
	}
	re, err := regexp.Compile("(?m)" + from.pattern())
	var syntax *syntax.Error
	switch {
	case errors.As(err, &syntax):
		c.errorf(from.Pattern.place, "version-pattern", "", "the pattern is not a regular expression: %s: %s", syntax.Code, strings.TrimPrefix(syntax.Expr, "(?m)"))
	case re.NumSubexp() < 1:
		c.errorf(from.Pattern.place, "version-pattern", "put the version in parentheses", "the pattern has no group")
	}
	p.versionPattern = re
	if len(p.spec.Versions) > 0 {
		c.errorf(from.File.place, "version-from", "keep one of the two", "the package has versions and version_from")
	}
	if !p.spec.Source.Path.IsSet() {
		c.errorf(from.File.place, "version-from", "add source: {path: …}, or give versions", "version_from needs a source on this machine, because planning fetches nothing")
	}
	if from.File.Value == "" {
		c.errorf(from.File.place, "version-from", "", "the file name is empty")
	}
	if from.File.Value != "" && !filepath.IsLocal(filepath.FromSlash(from.File.Value)) {
		c.errorf(from.File.place, "version-from", "", "%q is not inside the source", from.File.Value)
	}
}

func (c *checker) group(p *pkg, spec *Group) *group {
	g := &group{kind: KindWheel, shared: &spec.Shared, place: spec.place}
	if spec.Kind.IsSet() {
		g.kind = spec.Kind.Value
	}
	g.add("version", c.versions(spec.Version))
	g.add("os", spec.OS)
	g.addGiven("cuda", texts(spec.CUDA))
	g.addGiven("rocm", texts(spec.ROCm))
	g.addGiven("torch", c.torchAxis(g, &spec.Torch))
	for _, a := range spec.Axes {
		if !c.axisName(a.Key) {
			continue
		}
		if len(a.Value) == 0 {
			c.errorf(a.Key.place, "axis", "", "the axis %q has no values", a.Key.Value)
		}
		g.add(a.Key.Value, a.Value)
	}
	g.add("python", c.pythonAxis(g, &spec.Python))
	c.axes(g)
	c.zip(g, spec.Zip)
	g.exclude = c.rules(p, spec.Exclude)
	c.settings(p, g)
	return g
}

func (c *checker) single(p *pkg, spec *Single) *group {
	g := &group{kind: KindWheel, shared: &spec.Shared, place: spec.place, single: true}
	if spec.Kind.IsSet() {
		g.kind = spec.Kind.Value
	}
	one := func(t Text) []Text {
		if t.IsSet() {
			return []Text{t}
		}
		return nil
	}
	if spec.Version.IsSet() {
		g.add("version", c.versions([]Version{spec.Version}))
	} else {
		g.add("version", nil)
	}
	g.add("os", one(spec.OS))
	g.addGiven("cuda", one(spec.CUDA.Text))
	g.addGiven("rocm", one(spec.ROCm.Text))
	g.addGiven("torch", c.onlyOne(spec.Torch.place, spec.Torch.Stable.IsSet(), c.torchAxis(g, &spec.Torch)))
	for _, a := range spec.Axes {
		if c.axisName(a.Key) {
			g.add(a.Key.Value, []Text{a.Value})
		}
	}
	g.add("python", c.onlyOne(spec.Python.place, spec.Python.ABI3.IsSet(), c.pythonAxis(g, &spec.Python)))
	c.axes(g)
	c.zip(g, nil)
	c.settings(p, g)
	return g
}

// onlyOne reports a list where a row has one value.
func (c *checker) onlyOne(axis place, isMap bool, values []Text) []Text {
	if !isMap && len(values) > 0 && values[0].pos != axis.pos {
		c.errorf(axis, "type", "write one value", "want one value, got a list")
		return nil
	}
	return values
}

// torchAxis is the torch versions of a group. A row for the stable ABI is built with the first
// release that it is for.
func (c *checker) torchAxis(g *group, axis *TorchAxis) []Text {
	v := axis.Stable.Text
	if !v.IsSet() {
		return texts(axis.OneOrMany)
	}
	if !torchRelease.MatchString(v.Value) {
		c.errorf(v.place, "torch", `write it like "2.10"`, "%q is not a torch release", v.Value)
		return nil
	}
	g.stable = v.Value
	if strings.Count(v.Value, ".") == 1 {
		v.Value += ".0"
	}
	return []Text{v}
}

// pythonAxis is the Python versions of a group.
func (c *checker) pythonAxis(g *group, axis *PythonAxis) []Text {
	v := axis.ABI3.Text
	if !v.IsSet() {
		return texts(axis.OneOrMany)
	}
	if release, ok := strings.CutSuffix(v.Value, "t"); ok {
		c.errorf(v.place, "python", fmt.Sprintf("write %q", release), "free-threaded Python has no stable ABI")
		return nil
	}
	g.abi3 = v.Value
	return []Text{v}
}

var torchRelease = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`)

func texts(list []Version) []Text {
	out := make([]Text, len(list))
	for i, v := range list {
		out[i] = v.Text
	}
	return out
}

// add appends an axis. One without values is filled in from the run's inputs.
func (g *group) add(name string, values []Text) { g.axes = append(g.axes, axis{name, values}) }

// addGiven appends an axis that rows do without if it is not given.
func (g *group) addGiven(name string, values []Text) {
	if len(values) > 0 {
		g.add(name, values)
	}
}

func (g *group) axis(name string) *axis {
	for i := range g.axes {
		if g.axes[i].name == name {
			return &g.axes[i]
		}
	}
	return nil
}

// ReservedAxis reports whether a name means something already, so that a custom axis cannot have it.
func ReservedAxis(name string) bool {
	return slices.Contains(selectAxes, name) || slices.Contains(templateVariables, name) || slices.Contains(selectWords, name)
}

// selectWords are the words of selection expressions.
var selectWords = []string{"and", "or", "not", "in"}

// axisName checks the name of a custom axis.
func (c *checker) axisName(t Text) bool {
	before := len(c.list)
	ok := t.Value != "" && t.Value[0] >= 'a' && t.Value[0] <= 'z' && strings.Trim(t.Value, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
	switch {
	case !ok:
		c.errorf(t.place, "axis", "use small letters, digits and _", "%q is not a name for an axis", t.Value)
	case slices.Contains(selectWords, t.Value):
		c.errorf(t.place, "axis", "", "%q is a word of selection expressions", t.Value)
	case ReservedAxis(t.Value):
		c.errorf(t.place, "axis", "", "%q is a built-in name", t.Value)
	}
	return len(c.list) == before
}

// axes checks the values of every axis of a group.
func (c *checker) axes(g *group) {
	for _, a := range g.axes {
		first := map[string]Text{}
		for _, v := range a.values {
			if !v.IsSet() {
				continue // it could not be read
			}
			if earlier, repeated := first[v.Value]; repeated {
				c.errorf(v.place, "repeated-value", "", "the value %q is repeated", v.Value)
				c.related(earlier.place, "it is first given here")
			}
			first[v.Value] = v
			switch a.name {
			case "python":
				c.python(v)
			case "cuda":
				c.dotted(v, "CUDA", 2, 3, "12.8.1")
			case "rocm":
				c.dotted(v, "ROCm", 2, 3, "6.4")
			case "torch":
				c.torch(v)
			case "os":
				if v.Value == "" || strings.Trim(v.Value, axisValueChars) != "" {
					c.errorf(v.place, "os", "use letters, digits and . _ + -", "%q is not a name for an operating system", v.Value)
				}
			case "version":
			default:
				if v.Value == "" || strings.Trim(v.Value, axisValueChars) != "" {
					c.errorf(v.place, "axis", "use letters, digits and . _ + -", "%q is not a value for a custom axis", v.Value)
				}
			}
		}
	}
	if cuda, rocm := g.axis("cuda"), g.axis("rocm"); cuda != nil && rocm != nil {
		c.errorf(rocm.values[0].place, "two-toolkits", "split it into two groups", "a row has CUDA or ROCm, not both")
		c.related(cuda.values[0].place, "CUDA is given here")
	}
	for _, name := range []string{"torch", "python"} {
		if one := map[string]string{"torch": g.stable, "python": g.abi3}[name]; one != "" && g.kind == KindSdist {
			c.errorf(g.axis(name).values[0].place, "sdist-abi", "write the version alone", "an sdist row has no ABI")
		}
	}
	if g.kind == KindSdist {
		for _, name := range []string{"cuda", "rocm"} {
			if a := g.axis(name); a != nil {
				c.errorf(a.values[0].place, "sdist-toolkit", "leave it out, or make it a wheel row", "an sdist row has no toolkit")
			}
		}
	}
}

const axisValueChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-"

var pythonPattern = regexp.MustCompile(`^3\.[0-9]{1,2}t?$`)

func (c *checker) python(v Text) {
	if pythonPattern.MatchString(v.Value) {
		return
	}
	hint := `write the minor version of Python 3, such as "3.12", or "3.13t" for the free-threaded build`
	if m := regexp.MustCompile(`^(3\.[0-9]{1,2})\.[0-9]+$`).FindStringSubmatch(v.Value); m != nil {
		hint = fmt.Sprintf("wheels are made for a minor version: write %q", m[1])
	}
	c.errorf(v.place, "python", hint, "%q is not a Python version", v.Value)
}

func (c *checker) dotted(v Text, name string, least, most int, example string) {
	r, ok := parseRelease(v.Value)
	if !ok || strings.Trim(v.Value, "0123456789.") != "" || len(r.parts) < least || len(r.parts) > most {
		c.errorf(v.place, strings.ToLower(name), fmt.Sprintf("write it like %q", example), "%q is not a %s version", v.Value, name)
	}
}

func (c *checker) torch(v Text) {
	parsed, err := wheel.ParseVersion(v.Value)
	switch {
	case err != nil:
		c.errorf(v.place, "torch", `write it like "2.9.0"`, "%q is not a torch version", v.Value)
	case parsed.Local() != "":
		c.errorf(v.place, "torch", fmt.Sprintf("write %q; the toolkit is an axis of its own", parsed.Public()), "%q has a local part", v.Value)
	case parsed.String() != v.Value:
		c.errorf(v.place, "torch", fmt.Sprintf("write %q", parsed), "%q is not in normal form", v.Value)
	}
}

// zip sets the factors of the product.
func (c *checker) zip(g *group, sets ZipSets) {
	index := map[string]int{}
	var names []string
	for i, a := range g.axes {
		if len(a.values) > 0 {
			index[a.name] = i
			names = append(names, a.name)
		}
	}
	dimOf := make([]int, len(g.axes)) // 1 + index into sets
	for n, set := range sets {
		if len(set) < 2 {
			at := g.place
			if len(set) == 1 {
				at = set[0].place
			}
			c.errorf(at, "zip", "name at least two axes", "nothing to advance together")
		}
		var first Text
		size := 0
		for _, name := range set {
			i, ok := index[name.Value]
			switch {
			case !ok:
				c.errorf(name.place, "zip", "axes of this group: "+strings.Join(names, ", "), "no axis %q in this group%s", name.Value, diag.DidYouMean(name.Value, names))
				continue
			case dimOf[i] != 0:
				c.errorf(name.place, "zip", "", "the axis %q advances with others already", name.Value)
				continue
			}
			dimOf[i] = n + 1
			if values := len(g.axes[i].values); size == 0 {
				size, first = values, name
			} else if values != size {
				c.errorf(name.place, "zip", "", "%q has %s and %q has %d: axes that advance together need equally many", first.Value, units.Count(size, "value"), name.Value, values)
			}
		}
	}
	placed := map[int]int{}
	for i := range g.axes {
		if set := dimOf[i]; set != 0 {
			if d, ok := placed[set]; ok {
				g.dims[d] = append(g.dims[d], i)
				continue
			}
			placed[set] = len(g.dims)
		}
		g.dims = append(g.dims, []int{i})
	}
}

// rules checks exclude entries.
func (c *checker) rules(p *pkg, matches []Match) []*rule {
	var out []*rule
	for i := range matches {
		m := &matches[i]
		r := &rule{place: m.place}
		var shown []string
		key := func(name string, values []Text) {
			if len(values) == 0 {
				return
			}
			k := ruleKey{axis: name}
			var texts []string
			for _, v := range values {
				parsed, err := parsePattern(v.Value, isVersionAxis(name))
				if err != nil {
					hint := ""
					if strings.Contains(strings.TrimSpace(v.Value), " ") {
						hint = "separate conditions with a comma"
					}
					c.errorf(v.place, "pattern", hint, "%v", err)
				}
				k.any = append(k.any, parsed)
				texts = append(texts, v.Value)
			}
			r.keys = append(r.keys, k)
			value := texts[0]
			if len(texts) > 1 {
				value = "[" + strings.Join(texts, ", ") + "]"
			}
			shown = append(shown, name+": "+value)
		}
		key("kind", m.Kind)
		key("version", texts(m.Version))
		key("os", m.OS)
		key("python", texts(m.Python))
		key("cuda", texts(m.CUDA))
		key("rocm", texts(m.ROCm))
		key("torch", texts(m.Torch))
		for _, a := range m.Axes {
			if !slices.Contains(p.customAxes, a.Key.Value) {
				c.errorf(a.Key.place, "axis", "", "the package has no axis %q%s", a.Key.Value, diag.DidYouMean(a.Key.Value, p.customAxes))
			}
			if len(a.Value) == 0 {
				c.errorf(a.Key.place, "empty-list", "name at least one value, or leave the key out", "the list %q is empty", a.Key.Value)
			}
			key(a.Key.Value, a.Value)
		}
		if len(r.keys) == 0 {
			c.errorf(m.place, "exclude-everything", "name at least one axis", "the entry would remove every row")
		}
		r.text = "{" + strings.Join(shown, ", ") + "}"
		out = append(out, r)
	}
	return out
}

// merge checks the expression for rows whose files are added.
func (c *checker) merge(p *pkg, g *group) {
	at := g.shared.Merge
	if !at.IsSet() {
		return
	}
	p.merges = true
	if g.kind == KindSdist {
		c.errorf(at.place, "merge", "", "a source distribution has no native libraries to merge")
	}
	selection, err := ParseSelection(at.Value)
	if err == nil {
		err = selection.Check(p.customAxes)
	}
	if list, ok := errors.AsType[*diag.ListError](err); ok {
		c.errorf(at.place, "merge", list.Diagnostics[0].Hint, "merge: %s", list.Diagnostics[0].Message)
	}
}

// settings checks what a group sets besides its axes.
func (c *checker) settings(p *pkg, g *group) {
	s := g.shared
	c.arch(p, s.Arch)
	c.archFits(p, g)
	if g.kind != KindSdist || s.WheelTag.Value != NoWheel {
		c.wheelTag(s.WheelTag)
	}
	for _, tag := range []Text{s.WheelTag, p.spec.WheelTag} {
		if g.abi3 != "" && tag.IsSet() {
			c.errorf(tag.place, "wheel-tag", "remove one of them", "python: {abi3: %q} has its own tag, %s", g.abi3, abi3Tag(g.abi3))
		}
	}
	if s.Platform.IsSet() {
		if tags, err := wheel.ParseTag("py3-none-" + s.Platform.Value); err != nil || len(tags) != 1 || tags[0].Platform != s.Platform.Value {
			c.errorf(s.Platform.place, "platform", `write it like "linux_x86_64"`, "%q is not a wheel platform tag", s.Platform.Value)
		}
	}
	c.merge(p, g)
	tag := p.spec.LocalVersion
	if s.LocalVersion.IsSet() {
		tag = s.LocalVersion
	}
	g.tagIsOwn, g.tagPlace = tag.IsSet(), tag.place
	if !g.tagIsOwn {
		tag.Value = defaultLocalVersion
		g.tagPlace = g.place
	}
	tag.Value = strings.TrimPrefix(tag.Value, "+")
	g.tag = parseTemplate(tag, p.customAxes, &c.list)
	g.image = templates(p, p.spec.Image, func(t Text) Text { return t }, &c.list)
	if s.Image.IsSet() {
		g.image = templates(p, s.Image, func(t Text) Text { return t }, &c.list)
	}
	c.tests(&s.Test, s.TestImport)
	g.test, g.testImport, g.buildArgs = p.spec.Test.with(s.Test), p.spec.TestImport, p.buildArgs
	if len(s.TestImport) > 0 {
		g.testImport = s.TestImport
	}
	if s.BuildArgs.IsSet() {
		g.buildArgs = c.buildArgs(p, s.BuildArgs)
	}
	c.testKind(g)
	g.testImage = templates(p, g.test.Image, func(t Text) Text { return t }, &c.list)
	g.imageSetup = c.commands(p, commandsOf(s.ImageSetup, p.spec.ImageSetup), "image-setup")
	g.beforeBuild, g.afterBuild = c.commands(p, commandsOf(s.BeforeBuild, p.spec.BeforeBuild), "command"), c.commands(p, commandsOf(s.AfterBuild, p.spec.AfterBuild), "command")
	g.beforeTest, g.testCommand = c.commands(p, commandsOf(s.BeforeTest, p.spec.BeforeTest), "command"), c.commands(p, g.test.Command, "command")
	c.torchSource(torchSource(p, s))
	if source := p.spec.Python.Source; source.Value == "managed" && torchSource(p, s).System.Value {
		c.errorf(source.place, "python-source", "remove one of them", "the torch of the image is for the Python of the image, and this asks for another one")
	}
	g.torchIndex = parseTemplate(torchSource(p, s).Index, p.customAxes, &c.list)
	g.extraDeps = c.requirements(s.ExtraDeps)
	g.env = c.env(p, p.spec.Env)
	for _, own := range c.env(p, s.Env) {
		g.env = slices.DeleteFunc(g.env, func(e envVar) bool { return e.name == own.name })
		g.env = append(g.env, own)
	}
	slices.SortFunc(g.env, func(a, b envVar) int { return strings.Compare(a.name, b.name) })
}

// commands splits commands into the templates of their words.
func (c *checker) commands(p *pkg, list []Text, rule string) (out [][]template) {
	for _, command := range list {
		words, err := splitWords(command.Value)
		if err != nil || len(words) == 0 {
			c.errorf(command.place, rule, "write a program and its arguments; for pipes and && use sh -c '…'", "%q is not a command", command.Value)
			continue
		}
		argv := make([]template, len(words))
		for i, w := range words {
			t := command
			if t.place = command.at(utf8.RuneCountInString(command.Value[:w.start]), utf8.RuneCountInString(w.text)); w.end-w.start != len(w.text) {
				t.lead = -1 // quotes and escapes shift the columns
			}
			t.Value = w.text
			argv[i] = parseTemplate(t, p.customAxes, &c.list)
		}
		out = append(out, argv)
	}
	return out
}

// testKind settles how the rows of a group are tested, and reports what cannot be.
func (c *checker) testKind(g *group) {
	switch kind := &g.test.Kind; {
	case !kind.IsSet():
		kind.Value = TestImport
		if g.kind == KindSdist {
			kind.Value = TestSdist
		}
	case kind.Value == TestSdist && g.kind != KindSdist:
		c.errorf(kind.place, "test", "wheels are tested by import, install or none", "a wheel row has no source distribution to test")
	case kind.Value != TestImport && g.test.Expressions != nil:
		c.warnf(g.test.Expressions[0].place, "test", "", "nothing is imported in a test of kind %s, so no expression is evaluated", kind.Value)
	case kind.Value != TestImport && kind.Value != TestInstall && g.test.Command != nil:
		c.warnf(g.test.Command[0].place, "test", "", "a test of kind %s runs no command", kind.Value)
	}
}

// defaultLocalVersion is the build tag of rows with a toolkit.
const defaultLocalVersion = "{toolkit_tag}-torch{torch}"

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// mistakenVariables are names that build scripts in the wild set and nothing reads.
var mistakenVariables = map[string]string{
	"FLASH_ATTENTION_CUDA_ARCHS": "FLASH_ATTN_CUDA_ARCHS",
	"FLASH_ATTN_FORCE_BUILD":     "FLASH_ATTENTION_FORCE_BUILD",
	"TORCH_CUDA_ARCHS":           "TORCH_CUDA_ARCH_LIST",
	"CUDA_ARCH_LIST":             "TORCH_CUDA_ARCH_LIST",
}

// rowVariables are set by kiln from the row and must not be set twice.
var rowVariables = map[string]string{"TORCH_CUDA_ARCH_LIST": "arch", "PYTORCH_ROCM_ARCH": "arch"}

func (c *checker) env(p *pkg, env Map[PerToolkit[Scalar]]) []envVar {
	var out []envVar
	for _, e := range env {
		if !envName.MatchString(e.Key.Value) {
			c.errorf(e.Key.place, "env", "use letters, digits and _", "%q is not a name for a variable", e.Key.Value)
		}
		if field, ok := rowVariables[e.Key.Value]; ok {
			c.errorf(e.Key.place, "env", "set "+field+" instead", "kiln sets %s from the row", e.Key.Value)
		}
		if right, ok := mistakenVariables[e.Key.Value]; ok {
			c.warnf(e.Key.place, "env-unread", "did you mean "+right+"?", "nothing reads %s", e.Key.Value)
		}
		out = append(out, envVar{e.Key.Value, templates(p, e.Value, func(s Scalar) Text { return s.Text }, &c.list)})
	}
	return out
}

func (c *checker) wheelTag(t Text) {
	if !t.IsSet() {
		return
	}
	if tags, err := wheel.ParseTag(t.Value + "-any"); err != nil || len(tags) != 1 || tags[0].String() != t.Value+"-any" {
		c.errorf(t.place, "wheel-tag", `write a python and an abi tag, such as "cp39-abi3"`, "%q is not a wheel tag", t.Value)
	}
}

// arch checks every architecture list of a setting.
func (c *checker) arch(p *pkg, s PerToolkit[Version]) {
	for _, tc := range s.Cases {
		if p.archList(tc.Value.Value) != nil {
			continue
		}
		c.archText(p, tc.Value)
	}
}

// archFits reports architectures of a group whose rows have no use for them.
func (c *checker) archFits(p *pkg, g *group) {
	cuda, rocm := g.axis("cuda") != nil, g.axis("rocm") != nil
	for _, tc := range g.shared.Arch.Cases {
		text := tc.Value.Value
		if list := p.archList(text); list != nil {
			text = list.Value
		}
		gfx := strings.HasPrefix(text, "gfx")
		switch {
		case !cuda && !rocm:
			c.warnf(tc.Value.place, "arch-unused", "remove it, or add cuda or rocm", "rows without a toolkit have no architectures")
		case cuda && gfx:
			c.errorf(tc.Value.place, "arch", "", "%s is for ROCm, and these rows have CUDA", tc.Value.Value)
		case rocm && !gfx:
			c.errorf(tc.Value.place, "arch", `write ROCm targets, such as "gfx90a;gfx942"`, "%s is for CUDA, and these rows have ROCm", tc.Value.Value)
		}
	}
}

func (p *pkg) archList(name string) *Text {
	for i := range p.spec.ArchLists {
		if p.spec.ArchLists[i].Key.Value == name {
			return &p.spec.ArchLists[i].Value
		}
	}
	return nil
}

func (c *checker) archText(p *pkg, v Version) {
	before := len(c.list)
	c.archList(v.Value, v.place)
	if len(c.list) == before || len(p.spec.ArchLists) == 0 || strings.ContainsAny(v.Value, " ;,.") {
		return
	}
	// One word that is no architecture: most likely the name of a list.
	var names []string
	for _, e := range p.spec.ArchLists {
		names = append(names, e.Key.Value)
	}
	c.list = c.list[:before]
	hint := "arch_lists has " + strings.Join(names, ", ")
	if s := diag.Suggest(v.Value, names); s != "" {
		hint = fmt.Sprintf("did you mean %q?", s)
	}
	c.errorf(v.place, "arch", hint, "%q is neither an architecture nor one of arch_lists", v.Value)
}

func (c *checker) archList(text string, at place) {
	var err error
	if strings.TrimSpace(text) == "" {
		c.errorf(at, "arch", "leave arch out for the default", "the architecture list is empty")
		return
	}
	if strings.HasPrefix(text, "gfx") {
		_, err = compat.ParseGfxList(text)
	} else {
		_, err = compat.ParseArchList(text)
	}
	if err != nil {
		c.archErrors(text, at, err)
	}
}

func isModule(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !envName.MatchString(part) || !utf8.ValidString(part) {
			return false
		}
	}
	return true
}
