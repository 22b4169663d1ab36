package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/wheel"
)

// Settings is everything a build needs to know of a row that is not one of its axes,
// with templates filled in.
type Settings struct {
	Source         SourceSettings      `json:"source"`
	Image          string              `json:"image,omitempty"`
	ImageSetup     [][]string          `json:"image_setup,omitempty"`  // one argv each
	BeforeBuild    [][]string          `json:"before_build,omitempty"` // likewise
	AfterBuild     [][]string          `json:"after_build,omitempty"`
	PythonSource   string              `json:"python_source,omitempty"` // image, managed, or the first that there is
	TorchSource    TorchSettings       `json:"torch_source"`
	Env            map[string]string   `json:"env"`
	ExtraDeps      []string            `json:"extra_deps"`
	Frontend       string              `json:"frontend"`
	BuildArgs      []string            `json:"build_args"`
	Isolation      bool                `json:"isolation"`
	Network        bool                `json:"network,omitempty"`
	ConfigSettings map[string][]string `json:"config_settings,omitempty"`
	Patches        []PatchSettings     `json:"patches,omitempty"`
	CUDACheck      string              `json:"cuda_check"` // strict or bypass
	RuntimeTorch   string              `json:"runtime_torch"`
	Repair         string              `json:"repair,omitempty"` // "" or auto
	Merge          string              `json:"merge,omitempty"`  // the rows of [Plan.Parts]

	// What follows does not affect the built files.

	// Reuse says how a wheel of another row is proven to serve this one: import, tests, or "" if it
	// must be compiled.
	Reuse string `json:"reuse,omitempty"`
	// ArchWritten says that the architectures of the row are in packages.yml; otherwise they are
	// kiln's default.
	ArchWritten bool         `json:"arch_written,omitempty"`
	Description string       `json:"description,omitempty"`
	Test        TestSettings `json:"test"`
	// Audit is the severity of audit rules, by id.
	Audit     map[string]string `json:"audit,omitempty"`
	Resources ResourceSettings  `json:"resources"`
}

// SourceSettings says where the code is. Kind is "index", "git", "path" or "sdist".
type SourceSettings struct {
	Kind       string `json:"kind"`
	Location   string `json:"location,omitempty"` // empty means the public index
	Ref        string `json:"ref,omitempty"`
	Submodules bool   `json:"submodules,omitempty"`
	SHA256     string `json:"sha256,omitempty"`
}

// TorchSettings says where torch comes from. Kind is "index", "path" or "system".
type TorchSettings struct {
	Kind     string `json:"kind"`
	Location string `json:"location,omitempty"` // empty means PyTorch's own index
}

// PatchSettings replaces text in one file. Count 0 means at least once.
type PatchSettings struct {
	File    string `json:"file"`
	Find    string `json:"find"`
	Replace string `json:"replace"`
	Count   int    `json:"count,omitempty"`
}

// How a row is tested: see [TestSettings].
const (
	TestImport  = "import"
	TestInstall = "install"
	TestSdist   = "sdist"
	TestNone    = "none"
)

// TestSettings is the test of a row. Kind is one of the constants above.
type TestSettings struct {
	Kind        string   `json:"kind"`
	Image       string   `json:"image,omitempty"`
	Imports     []string `json:"imports"`
	Expressions []string `json:"expressions,omitempty"`
	Requires    []string `json:"requires,omitempty"`
	RequiresGPU bool     `json:"requires_gpu,omitempty"`
	Timeout     Seconds  `json:"timeout_seconds"`
	// Before and Command are commands, one argv each; Files are what they need of the source.
	Before  [][]string `json:"before,omitempty"`
	Command [][]string `json:"command,omitempty"`
	Files   []string   `json:"files,omitempty"`
	Extras  []string   `json:"extras,omitempty"`
}

// ResourceSettings limits one build. Zero means not set.
type ResourceSettings struct {
	MemoryPerJobBytes int64   `json:"memory_per_job_bytes,omitempty"`
	Jobs              int     `json:"jobs,omitempty"`
	NVCCThreads       int     `json:"nvcc_threads,omitempty"`
	DiskBytes         int64   `json:"disk_bytes,omitempty"`
	WallTime          Seconds `json:"wall_time_seconds,omitempty"`
}

// Seconds is a time span that JSON shows as a number of seconds.
type Seconds time.Duration

// MarshalJSON writes the number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON reads a number of seconds.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	var n float64
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	*s = Seconds(n * float64(time.Second))
	return nil
}

// Settings returns the settings of a row of this plan.
func (p *Plan) Settings(id string) (Settings, bool) {
	from, ok := p.settings[id]
	if !ok {
		return Settings{}, false
	}
	b := newRowBuilder(from.group)
	row, _ := b.row(from.indexes())
	return b.settings(&row), true
}

// indexes returns the index of the row in each dim of its group.
func (o origin) indexes() []int {
	at := make([]int, len(o.group.dims))
	n := o.n
	for d := len(at) - 1; d >= 0; d-- {
		at[d] = n % o.group.sizes[d]
		n /= o.group.sizes[d]
	}
	return at
}

// rowBuilder makes the rows of one group. What all rows share is made once.
type rowBuilder struct {
	g      *boundGroup
	dimOf  []int // of each axis
	shared Settings
	custom []int // indexes of custom axes, by name
	// arch and numbers remember what few distinct values give.
	arch    map[[4]string]string
	numbers map[string]string
	// fixed is the part of the digest that all rows share.
	fixed []byte
}

func newRowBuilder(g *boundGroup) *rowBuilder {
	b := &rowBuilder{g: g, dimOf: make([]int, len(g.axes)), arch: map[[4]string]string{}, numbers: map[string]string{}}
	for d, axes := range g.dims {
		for _, i := range axes {
			b.dimOf[i] = d
		}
	}
	for i, a := range g.axes {
		if !slices.Contains(selectAxes, a.name) {
			b.custom = append(b.custom, i)
		}
	}
	slices.SortFunc(b.custom, func(i, j int) int { return strings.Compare(g.axes[i].name, g.axes[j].name) })
	b.shared = sharedSettings(g)
	// Only what affects the files: a new description or test is no new wheel.
	digested := b.shared
	digested.Reuse, digested.Description, digested.Test, digested.Audit, digested.Resources = "", "", TestSettings{}, nil, ResourceSettings{}
	b.fixed, _ = json.Marshal(digested) // plain data, cannot fail
	return b
}

// row makes the row at the given index of each dim. The diagnostic is not nil if
// a template gives the row no valid build tag or image.
func (b *rowBuilder) row(at []int) (Row, *diag.Diagnostic) {
	g := b.g
	r := Row{Package: g.pkg.name, Kind: g.kind, TorchStable: g.stable, ABI3: g.abi3}
	for i := range g.axes {
		v := g.axes[i].values[at[b.dimOf[i]]].Value
		switch g.axes[i].name {
		case "version":
			r.Version = v
		case "os":
			r.OS = v
		case "python":
			r.Python = v
		case "cuda":
			r.CUDA = v
		case "rocm":
			r.ROCm = v
		case "torch":
			r.Torch = v
		}
	}
	for n, i := range b.custom {
		if n > 0 {
			r.Axes += ","
		}
		r.Axes += Axes(g.axes[i].name + "=" + g.axes[i].values[at[b.dimOf[i]]].Value)
	}
	if r.Platform = g.shared.Platform.Value; r.Platform == "" {
		p, _ := g.compat.Platform(r.OS)
		r.Platform = p.Tag
	}
	if r.Kind == KindSdist && g.shared.WheelTag.Value == NoWheel {
		r.WheelTag = NoWheel
	}
	var problem *diag.Diagnostic
	if r.Kind == KindWheel {
		r.Arch = b.archOf(&r)
		r.WheelTag = firstSet(g.shared.WheelTag, g.pkg.spec.WheelTag)
		switch {
		case g.abi3 != "":
			r.WheelTag = abi3Tag(g.abi3)
		case r.WheelTag == "":
			r.WheelTag = wheelTag(r.Python)
		}
		if g.tagIsOwn || r.CUDA != "" || r.ROCm != "" {
			r.BuildTag, problem = b.buildTag(&r)
		}
	}
	r.ID = r.makeID()
	r.Digest = b.digest(&r)
	if problem == nil {
		problem = b.imageProblem(&r)
	}
	return r, problem
}

// imageProblem reports an image whose name lacks a value that the row does not have.
func (b *rowBuilder) imageProblem(r *Row) *diag.Diagnostic {
	t, at, _ := b.g.image.pick(r)
	for _, part := range t.parts {
		if part.variable != "" && b.value(r, part.variable) == "" {
			return &diag.Diagnostic{
				Rule: "image", Pos: at.pos, Width: at.width,
				Message: fmt.Sprintf("the image needs {%s}, which not every row has", part.variable),
				Hint:    "give one image per toolkit: image: {cuda: …, default: …}",
				Related: []diag.Related{{Pos: b.g.group.place.pos, Message: "for example " + r.ID}},
			}
		}
	}
	return nil
}

func firstSet(texts ...Text) string {
	for _, t := range texts {
		if t.IsSet() {
			return t.Value
		}
	}
	return ""
}

// buildTag renders the tag and checks that it is a local version.
func (b *rowBuilder) buildTag(r *Row) (string, *diag.Diagnostic) {
	unknown := false
	tag := b.g.tag.renderTag(func(name string) string {
		v := b.value(r, name)
		if r.TorchStable != "" && strings.HasPrefix(name, "torch") {
			v = "" // the wheel is for others, too
		}
		unknown = unknown || name == "cxx11abi" && v == ""
		return v
	})
	if unknown {
		return "", &diag.Diagnostic{
			Rule: "build-tag", Pos: b.g.tagPlace.pos, Width: b.g.tagPlace.width,
			Message: "the C++ ABI of torch " + r.Torch + " is not known, and the build tag needs it",
			Hint:    "set local_version of that group with TRUE or FALSE written out",
		}
	}
	if tag == "" {
		return "", nil
	}
	if !localVersion.MatchString(tag) {
		return "", &diag.Diagnostic{
			Rule: "build-tag", Pos: b.g.tagPlace.pos, Width: b.g.tagPlace.width,
			Message: fmt.Sprintf("the build tag %q is not a local version (PEP 440)", tag), Hint: "use letters, digits and single . _ - between them",
		}
	}
	return "+" + tag, nil
}

var localVersion = regexp.MustCompile(`^[A-Za-z0-9]+([-_.][A-Za-z0-9]+)*$`)

// archOf resolves the architectures: of the group, of the package for this toolkit,
// else the default for the version of CUDA or ROCm.
func (b *rowBuilder) archOf(r *Row) string {
	if r.CUDA == "" && r.ROCm == "" {
		return ""
	}
	key := [4]string{r.CUDA, r.ROCm, r.Torch, r.OS}
	if text, known := b.arch[key]; known {
		return text
	}
	text, written := b.writtenArch(r)
	if !written {
		text = b.defaultArch(r)
	}
	b.arch[key] = text
	return text
}

// writtenArch returns the architectures of a row that packages.yml gives.
func (b *rowBuilder) writtenArch(r *Row) (text string, ok bool) {
	for _, s := range []PerToolkit[Version]{b.g.pkg.spec.Arch, b.g.shared.Arch} {
		v, found := s.pick(r.CUDA, r.ROCm)
		if !found {
			continue
		}
		own := v.Value
		if list := b.g.pkg.archList(own); list != nil {
			own = list.Value
		}
		// A list for the other vendor is not meant for this row.
		if strings.HasPrefix(own, "gfx") == (r.ROCm != "") {
			text, ok = own, true
		}
	}
	return text, ok
}

// defaultArch returns kiln's own list for the CUDA version, less what no GPU could run
// inside the row's torch, or the list of PyTorch's own builds for the ROCm version.
func (b *rowBuilder) defaultArch(r *Row) string {
	if r.ROCm != "" {
		list, _ := b.g.compat.DefaultGfx(r.ROCm) // empty where it is unknown: torch's builder then takes its own
		return list.String()
	}
	list, ok := b.g.compat.DefaultArchs(r.CUDA)
	if !ok {
		return ""
	}
	keep := strings.Fields(list.String())
	for _, f := range b.g.compat.Check(compat.Combo{OS: r.OS, Python: r.Python, CUDA: r.CUDA, Torch: r.Torch, Arch: list.Text(), Kind: r.Kind}) {
		if f.Rule == compat.RuleArchUnreached {
			keep = slices.DeleteFunc(keep, func(a string) bool { return slices.Contains(f.Archs, a) })
		}
	}
	return strings.Join(keep, " ")
}

// value returns a template value of the row.
func (b *rowBuilder) value(r *Row, name string) string {
	switch name {
	case "python_tag":
		return pythonTag(r.Python)
	case "toolkit_tag":
		return compat.ToolkitTag(r.CUDA, r.ROCm)
	case "toolkit_version":
		_, version := r.Toolkit()
		return version
	case "cuda_major":
		major, _, _ := strings.Cut(r.CUDA, ".")
		return major
	case "cuda_minor":
		return compat.Minor(r.CUDA)
	case "cuda_nodot":
		return strings.ReplaceAll(compat.Minor(r.CUDA), ".", "")
	case "torch_minor":
		return compat.Minor(r.Torch)
	case "torch_nodot":
		return strings.ReplaceAll(compat.Minor(r.Torch), ".", "")
	case "torch_index":
		return r.TorchIndex()
	case "cxx11abi":
		if abi, known := b.g.compat.CXX11ABI(r.Torch, r.CUDA, r.ROCm, r.OS); known {
			if abi {
				return "TRUE"
			}
			return "FALSE"
		}
		return ""
	case "arch_numbers":
		numbers, known := b.numbers[r.Arch]
		if !known {
			numbers = archNumbers(r.Arch)
			b.numbers[r.Arch] = numbers
		}
		return numbers
	}
	return r.Axis(name)
}

// digest hashes everything that affects the built files.
func (b *rowBuilder) digest(r *Row) string {
	buf := make([]byte, 0, 1024)
	field := func(s string) {
		buf = append(buf, s...)
		buf = append(buf, 0)
	}
	buf = append(buf, "kiln-row/1\x00"...)
	for _, s := range []string{
		r.Package, r.Version, r.Kind, r.OS, r.Platform, r.Python, r.CUDA, r.ROCm, r.Torch, r.Arch,
		string(r.Axes), r.BuildTag, r.WheelTag,
	} {
		field(s)
	}
	if r.TorchStable != "" || r.ABI3 != "" {
		field("stable " + r.TorchStable + " abi3 " + r.ABI3)
	}
	field(b.pick(r, b.g.image))
	field(b.ref(r))
	for _, e := range b.g.env {
		if t, _, ok := e.value.pick(r); ok {
			field(e.name)
			field(b.render(r, t))
		}
	}
	buf = append(buf, b.fixed...)
	sum := sha256.Sum256(buf)
	return hex.EncodeToString(sum[:])
}

func (b *rowBuilder) render(r *Row, t template) string {
	return t.render(func(name string) string { return b.value(r, name) })
}

// pick renders the value for the row's toolkit, or returns "".
func (b *rowBuilder) pick(r *Row, values perToolkit) string {
	t, _, _ := values.pick(r)
	return b.render(r, t)
}

// ref renders the git ref of the source.
func (b *rowBuilder) ref(r *Row) string {
	ref := b.g.pkg.spec.Source.Ref
	if !ref.IsSet() {
		return ""
	}
	return b.render(r, parseTemplate(ref, nil, &diag.List{}))
}

// settings completes the shared settings for one row.
func (b *rowBuilder) settings(r *Row) Settings {
	s := b.shared
	s.Source.Ref = b.ref(r)
	s.Image = b.pick(r, b.g.image)
	s.Test.Image = b.pick(r, b.g.testImage)
	if r.Arch != "" {
		_, s.ArchWritten = b.writtenArch(r)
	}
	s.ImageSetup = b.commands(r, b.g.imageSetup)
	s.BeforeBuild, s.AfterBuild = b.commands(r, b.g.beforeBuild), b.commands(r, b.g.afterBuild)
	s.Test.Before, s.Test.Command = b.commands(r, b.g.beforeTest), b.commands(r, b.g.testCommand)
	if s.TorchSource.Kind == "index" && s.TorchSource.Location != "" {
		s.TorchSource.Location = b.render(r, b.g.torchIndex)
	}
	s.Env = map[string]string{}
	for _, e := range b.g.env {
		if t, _, ok := e.value.pick(r); ok {
			s.Env[e.name] = b.render(r, t)
		}
	}
	s.ConfigSettings = map[string][]string{}
	for _, e := range b.g.pkg.spec.Build.ConfigSettings {
		for _, v := range e.Value {
			s.ConfigSettings[e.Key.Value] = append(s.ConfigSettings[e.Key.Value], b.render(r, parseTemplate(v, b.g.pkg.customAxes, &diag.List{})))
		}
	}
	for _, e := range b.g.buildArgs.config {
		s.ConfigSettings[e.Key.Value] = slices.Concat(s.ConfigSettings[e.Key.Value], e.Value)
	}
	return s
}

// commands fills in the values of commands.
func (b *rowBuilder) commands(r *Row, list [][]template) (out [][]string) {
	for _, words := range list {
		argv := make([]string, len(words))
		for i, w := range words {
			argv[i] = b.render(r, w)
		}
		out = append(out, argv)
	}
	return out
}

// sharedSettings returns the settings that do not depend on the row.
func sharedSettings(g *boundGroup) Settings {
	spec := g.pkg.spec
	s := Settings{
		Env: map[string]string{}, ExtraDeps: append(values(spec.ExtraDeps), values(g.shared.ExtraDeps)...), BuildArgs: orEmpty(g.buildArgs.words),
		Frontend: frontendOf(spec), Isolation: spec.Build.Isolation.Value, Network: spec.Build.Network.Value, RuntimeTorch: "any", CUDACheck: "strict", Description: spec.Description.Value,
		Test: TestSettings{
			Kind: g.test.Kind.Value, Imports: values(g.testImport), Expressions: values(g.test.Expressions), Requires: values(g.test.Requires),
			RequiresGPU: g.test.RequiresGPU.Value, Timeout: Seconds(10 * time.Minute), Files: values(g.test.Files), Extras: values(g.test.Extras),
		},
	}
	if len(s.Test.Imports) == 0 {
		s.Test.Imports = []string{wheel.FileName(g.pkg.name)}
	}
	if g.test.Timeout.IsSet() {
		s.Test.Timeout = Seconds(g.test.Timeout.Value)
	}
	if spec.RuntimeTorch.IsSet() {
		s.RuntimeTorch = spec.RuntimeTorch.Value
	}
	if s.Repair = firstSet(g.shared.Repair.Text, spec.Repair.Text); s.Repair == "off" {
		s.Repair = ""
	}
	s.Merge = g.shared.Merge.Value
	if spec.Build.CUDACheck.IsSet() {
		s.CUDACheck = spec.Build.CUDACheck.Value
	}
	s.PythonSource = spec.Python.Source.Value
	if g.kind == KindWheel && g.axis("torch") != nil {
		s.Reuse = spec.Reuse.Torch.Value
	}
	// Templates as written: part of the digest.
	s.ImageSetup, s.BeforeBuild, s.AfterBuild = asWritten(commandsOf(g.shared.ImageSetup, g.pkg.spec.ImageSetup)), asWritten(commandsOf(g.shared.BeforeBuild, g.pkg.spec.BeforeBuild)), asWritten(commandsOf(g.shared.AfterBuild, g.pkg.spec.AfterBuild))
	switch torch := torchSource(g.pkg, g.shared); {
	case torch.System.Value:
		s.TorchSource.Kind = "system"
	case torch.Path.IsSet():
		s.TorchSource = TorchSettings{"path", torch.Path.Value}
	default:
		s.TorchSource = TorchSettings{"index", torch.Index.Value}
	}
	for _, e := range spec.Build.ConfigSettings {
		if s.ConfigSettings == nil {
			s.ConfigSettings = map[string][]string{}
		}
		s.ConfigSettings[e.Key.Value] = values(e.Value) // templates as written: part of the digest
	}
	for _, e := range g.buildArgs.config {
		if s.ConfigSettings == nil {
			s.ConfigSettings = map[string][]string{}
		}
		s.ConfigSettings[e.Key.Value] = slices.Concat(s.ConfigSettings[e.Key.Value], e.Value)
	}
	for _, rule := range spec.Audit {
		if s.Audit == nil {
			s.Audit = map[string]string{}
		}
		s.Audit[rule.Key.Value] = rule.Value.Value
	}
	for _, p := range spec.Build.Patches {
		s.Patches = append(s.Patches, PatchSettings{p.File.Value, p.Find.Value, p.Replace.Value, p.Count.Value})
	}
	source := &spec.Source
	switch {
	case source.Git.IsSet():
		s.Source = SourceSettings{Kind: "git", Location: source.Git.Value, Submodules: !source.Submodules.IsSet() || source.Submodules.Value}
	case source.Path.IsSet():
		s.Source = SourceSettings{Kind: "path", Location: source.Path.Value}
	case source.Sdist.IsSet():
		s.Source = SourceSettings{Kind: "sdist", Location: source.Sdist.Value, SHA256: strings.ToLower(source.SHA256.Value)}
	default:
		s.Source = SourceSettings{Kind: "index", Location: source.Index.Value}
	}
	for _, r := range []Resources{spec.Resources, g.shared.Resources} {
		if r.MemoryPerJob.IsSet() {
			s.Resources.MemoryPerJobBytes = r.MemoryPerJob.Bytes
		}
		if r.Jobs.IsSet() {
			s.Resources.Jobs = r.Jobs.Value
		}
		if r.NVCCThreads.IsSet() {
			s.Resources.NVCCThreads = r.NVCCThreads.Value
		}
		if r.Disk.IsSet() {
			s.Resources.DiskBytes = r.Disk.Bytes
		}
		if r.WallTime.IsSet() {
			s.Resources.WallTime = Seconds(r.WallTime.Value)
		}
	}
	return s
}

// torchSource is the setting of the group, else of the package.
func torchSource(p *pkg, s *Shared) TorchSource {
	if s.TorchSource.IsSet() {
		return s.TorchSource
	}
	return p.spec.TorchSource
}

// commandsOf are the commands of the group, else those of the package.
func commandsOf(group, pkg []Text) []Text {
	if group != nil {
		return group
	}
	return pkg
}

// asWritten splits commands into words and fills nothing in.
func asWritten(commands []Text) (out [][]string) {
	for _, command := range commands {
		words, _ := splitWords(command.Value)
		out = append(out, wordTexts(words))
	}
	return out
}

func values(texts []Text) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = t.Value
	}
	return out
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
