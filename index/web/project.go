package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
)

// release is the files of one public version, whatever their labels.
type release struct {
	version string
	first   *index.File // for the order of versions
	files   []build
}

// build is a file with what it was built for, as people say it.
type build struct {
	file     *index.File
	platform string // Linux x86_64
	python   string // 3.12, 3.13t, ≥3.9, any
	toolkit  string // cu128
	torch    string // 2.9
	view     string // path of the narrowest view that has it
	sdist    bool
}

// releasesOf groups the files of a project, newest release first and pre-releases last.
func releasesOf(p *index.Project) []release {
	byVersion := map[string]*release{}
	for i := range p.Files {
		f := &p.Files[i]
		v := f.Version()
		r := byVersion[v.Public()]
		if r == nil {
			r = &release{version: v.Public(), first: f}
			byVersion[v.Public()] = r
		}
		r.files = append(r.files, buildsOf(f)...)
	}
	out := make([]release, 0, len(byVersion))
	for _, r := range byVersion {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b release) int {
		// Labels differ only where public versions are equal, which they are not here.
		va, vb := a.first.Version(), b.first.Version()
		return cmp.Or(compareBool(va.IsPrerelease(), vb.IsPrerelease()), vb.Compare(va), cmp.Compare(a.version, b.version))
	})
	return out
}

// buildsOf returns a file once for every platform, Python and torch it is for.
func buildsOf(f *index.File) []build {
	built := f.Built()
	torches := built.Torch
	if len(torches) == 0 {
		torches = []string{""}
	}
	w, ok := f.Wheel()
	if !ok {
		return []build{{file: f, sdist: true, platform: "Source", python: "any", toolkit: built.Toolkit, torch: torches[0]}}
	}
	var out []build
	var platforms []string
	for _, p := range w.Platform {
		if name := platformName(p); !slices.Contains(platforms, name) {
			platforms = append(platforms, name)
		}
	}
	var pythons []string
	for _, p := range w.Python {
		if name := pythonLabel(p, w.ABI); !slices.Contains(pythons, name) {
			pythons = append(pythons, name)
		}
	}
	toolkit := built.Toolkit
	if toolkit == "" && len(f.Audit) > 0 && len(f.Arch) == 0 && !slices.Contains(w.Platform, "any") {
		toolkit = "cpu" // looked into: no code for a GPU
	}
	for _, platform := range platforms {
		for _, python := range pythons {
			for _, torch := range torches {
				out = append(out, build{file: f, platform: platform, python: python, toolkit: toolkit, torch: torch, view: viewPath(built.Toolkit, torch)})
			}
		}
	}
	return out
}

// viewPath is the view from which a build is installed.
func viewPath(toolkit, torch string) string {
	switch {
	case toolkit == "":
		return "all"
	case torch == "":
		return toolkit
	}
	return toolkit + "/torch" + torch
}

// platformName writes a platform tag as people do: "Linux x86_64".
func platformName(tag string) string {
	switch {
	case tag == "any":
		return "Any system"
	case tag == "win_amd64":
		return "Windows x64"
	case tag == "win_arm64":
		return "Windows ARM64"
	case tag == "win32":
		return "Windows 32-bit"
	}
	for _, f := range []struct{ prefix, name string }{{"manylinux", "Linux"}, {"musllinux", "Linux musl"}, {"linux", "Linux"}, {"macosx", "macOS"}} {
		if strings.HasPrefix(tag, f.prefix) {
			for _, arch := range []string{"x86_64", "aarch64", "arm64", "universal2", "i686", "armv7l", "ppc64le", "s390x", "riscv64"} {
				if strings.HasSuffix(tag, "_"+arch) {
					return f.name + " " + arch
				}
			}
		}
	}
	return tag
}

// pythonLabel writes Python and ABI tags as people do: "3.12", "3.13t", "≥3.9".
func pythonLabel(tag string, abi []string) string {
	name := index.PythonName(tag)
	switch {
	case slices.Contains(abi, "abi3"), slices.Contains(abi, "abi3t"):
		return "≥" + name
	case slices.ContainsFunc(abi, func(a string) bool { return strings.HasPrefix(a, "cp") && strings.HasSuffix(a, "t") }):
		return name + "t"
	case slices.Contains(abi, "none") && (tag == "py3" || tag == "py2"):
		return "any"
	}
	return name
}

// projectPage is the page of a project.
type projectPage struct {
	frame
	Name, Display string
	Status        index.Status
	StatusReason  string
	Summary       summary
	Bytes         int64
	Picker        *picker
	Releases      []releaseView
	Hidden        bool
}

// releaseView is a version with its matrix and files.
type releaseView struct {
	Version string
	ID      string
	Date    time.Time
	Open    bool
	Matrix  matrix
	Files   []fileRow
	Yanked  bool // every file is
}

type fileRow struct {
	Filename, URL string
	Built         string
	Python        string
	Platform      string
	Size          int64
	Uploaded      time.Time
	Yanked        bool
	YankedReason  string
}

// matrix shows which builds of a version there are.
type matrix struct {
	Platforms []matrixPlatform
	Rows      []matrixRow
}

type matrixPlatform struct {
	Name    string
	Pythons []string
}

type matrixRow struct {
	Toolkit, Torch string // as people say it
	Cells          []matrixCell
}

type matrixCell struct {
	URL      string // of the file page; empty if there is no such build
	Text     string // for readers that do not see the table
	Yanked   bool
	First    bool // first column of its platform
	Platform string
}

func (p *pages) project(base string, project *index.Project, query url.Values) ([]byte, error) {
	data := projectPage{
		frame: p.frame(cmp.Or(project.DisplayName, project.Name), base, 2, "project"),
		Name:  project.Name, Display: cmp.Or(project.DisplayName, project.Name),
		Status: project.Status, StatusReason: project.StatusReason, Hidden: hidden(project),
	}
	if !data.Hidden {
		data.Summary = summarize(project)
		releases := releasesOf(project)
		var err error
		if data.Picker, err = p.picker(base, project, releases, query); err != nil {
			return nil, err
		}
		for i, r := range releases {
			data.Releases = append(data.Releases, viewRelease(r, i == 0))
		}
		for i := range project.Files {
			data.Bytes += project.Files[i].Size
		}
	}
	return p.site.execute("project.html", data)
}

func viewRelease(r release, open bool) releaseView {
	v := releaseView{Version: r.version, ID: "v" + r.version, Open: open, Matrix: makeMatrix(r), Yanked: true}
	seen := map[*index.File]bool{}
	for _, b := range r.files {
		if b.file.UploadTime.After(v.Date) {
			v.Date = b.file.UploadTime
		}
		v.Yanked = v.Yanked && b.file.Yanked
		if seen[b.file] {
			continue
		}
		seen[b.file] = true
		v.Files = append(v.Files, fileRow{
			Filename: b.file.Filename, URL: fileURL(b.file), Built: builtName(b.toolkit, b.torch), Python: b.python, Platform: b.platform,
			Size: b.file.Size, Uploaded: b.file.UploadTime, Yanked: b.file.Yanked, YankedReason: b.file.YankedReason,
		})
	}
	return v
}

// fileURL is relative to the page of the project.
func fileURL(f *index.File) string {
	return strings.ReplaceAll(url.PathEscape(f.Filename), "+", "%2B") + "/" // some stores read + as a space
}

func builtName(toolkit, torch string) string {
	switch {
	case toolkit == "" && torch == "":
		return "any"
	case torch == "":
		return index.ToolkitName(toolkit)
	case toolkit == "":
		return "torch " + torch
	}
	return index.ToolkitName(toolkit) + " · torch " + torch
}

func makeMatrix(r release) matrix {
	type rowKey struct{ toolkit, torch string }
	type columnKey struct{ platform, python string }
	cells := map[rowKey]map[columnKey]*index.File{}
	columns := map[string]map[string]bool{}
	for _, b := range r.files {
		if b.sdist {
			continue
		}
		row, col := rowKey{b.toolkit, b.torch}, columnKey{b.platform, b.python}
		if cells[row] == nil {
			cells[row] = map[columnKey]*index.File{}
		}
		if old := cells[row][col]; old == nil || old.Yanked {
			cells[row][col] = b.file
		}
		if columns[b.platform] == nil {
			columns[b.platform] = map[string]bool{}
		}
		columns[b.platform][b.python] = true
	}
	var m matrix
	for _, platform := range slices.SortedFunc(maps.Keys(columns), comparePlatforms) {
		m.Platforms = append(m.Platforms, matrixPlatform{platform, slices.SortedFunc(maps.Keys(columns[platform]), compareNumbers)})
	}
	rows := slices.SortedFunc(maps.Keys(cells), func(a, b rowKey) int {
		return cmp.Or(compareToolkits(a.toolkit, b.toolkit), compareNumbers(b.torch, a.torch))
	})
	for _, key := range rows {
		row := matrixRow{Toolkit: cmp.Or(index.ToolkitName(key.toolkit), "any"), Torch: cmp.Or(key.torch, "any")}
		for _, platform := range m.Platforms {
			for i, python := range platform.Pythons {
				cell := matrixCell{First: i == 0, Platform: platform.Name}
				where := fmt.Sprintf("Python %s on %s", python, platform.Name)
				if f := cells[key][columnKey{platform.Name, python}]; f != nil {
					cell.URL, cell.Yanked = fileURL(f), f.Yanked
					cell.Text = builtName(key.toolkit, key.torch) + ", " + where
				} else {
					cell.Text = "no build"
				}
				row.Cells = append(row.Cells, cell)
			}
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

// picker chooses a build by version, system, Python, toolkit and torch, in this order: a choice
// limits those after it.
type picker struct {
	Groups   []pickGroup
	Filename string
	URL      string // of the file's page
	Lines    index.Install
	Torch    string // command that installs the torch it needs
	Data     template.JS
}

type pickGroup struct {
	Name, Label string
	Options     []pickOption
}

type pickOption struct {
	Value, Label        string
	Checked, Impossible bool
}

// groupNames are the names of the fields of the form, in order.
var groupNames = [5]string{"version", "os", "python", "toolkit", "torch"}

var groupLabels = [5]string{"Version", "System", "Python", "Compute", "torch"}

func (b *build) value(version string, group int) string {
	return [5]string{version, b.platform, b.python, cmp.Or(b.toolkit, "any"), cmp.Or(b.torch, "any")}[group]
}

// candidate is a build that can be chosen.
type candidate struct {
	build
	values [5]string
}

func (p *pages) picker(base string, project *index.Project, releases []release, query url.Values) (*picker, error) {
	var all []candidate
	for _, r := range releases {
		for _, b := range r.files {
			if b.sdist || b.file.Yanked {
				continue
			}
			c := candidate{build: b}
			for g := range groupNames {
				c.values[g] = b.value(r.version, g)
			}
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	out := &picker{}
	left := all
	for g, name := range groupNames {
		group := pickGroup{Name: name, Label: groupLabels[g]}
		possible := map[string]bool{}
		for _, c := range left {
			possible[c.values[g]] = true
		}
		// All that the version has are shown, so that what is missing is seen to be missing.
		shown := map[string]bool{}
		for _, c := range all {
			if g == 0 || c.values[0] == left[0].values[0] {
				shown[c.values[g]] = true
			}
		}
		order := slices.SortedFunc(maps.Keys(shown), groupOrder(g, releases))
		choice := query.Get(name)
		if !possible[choice] {
			choice = order[slices.IndexFunc(order, func(v string) bool { return possible[v] })]
		}
		for _, value := range order {
			label := value
			if g == 3 {
				label = index.ToolkitName(value)
			}
			group.Options = append(group.Options, pickOption{Value: value, Label: label, Checked: value == choice, Impossible: !possible[value]})
		}
		out.Groups = append(out.Groups, group)
		left = slices.DeleteFunc(slices.Clone(left), func(c candidate) bool { return c.values[g] != choice })
	}
	chosen := left[0]
	out.Filename, out.URL = chosen.file.Filename, fileURL(chosen.file)
	out.Lines = p.install(base, project, chosen.build, all)
	out.Torch = torchLine(chosen.build)
	var err error
	out.Data, err = pickerData(project.Name, base, all)
	return out, err
}

// install returns the commands for a build; its requirements have the hashes for every Python.
func (p *pages) install(base string, project *index.Project, b build, all []candidate) index.Install {
	files := []*index.File{b.file}
	for _, c := range all {
		if c.file.Version().String() == b.file.Version().String() && c.toolkit == b.toolkit && !slices.Contains(files, c.file) {
			files = append(files, c.file)
		}
	}
	return index.InstallLines(project.Name, base+b.view+"/simple/", files...)
}

// torchLine is how to install the torch that a build needs.
func torchLine(b build) string {
	if b.torch == "" || b.toolkit == "" {
		return ""
	}
	return "pip install torch==" + b.torch + ".* --index-url " + index.TorchIndex(b.toolkit)
}

// groupOrder is the order in which the options of a group are shown; the first possible one is
// the default.
func groupOrder(group int, releases []release) func(a, b string) int {
	switch group {
	case 0:
		place := map[string]int{}
		for i, r := range releases {
			place[r.version] = i
		}
		return func(a, b string) int { return cmp.Compare(place[a], place[b]) }
	case 1:
		return comparePlatforms
	case 3:
		return compareToolkits
	}
	return func(a, b string) int { return compareNumbers(b, a) }
}

// pickerData is what the script needs to choose without asking the server: tables of values and
// one short row a build.
func pickerData(project, base string, all []candidate) (template.JS, error) {
	var tables [5][]string
	var places [5]map[string]int
	for g := range places {
		places[g] = map[string]int{}
	}
	at := func(g int, value string) int {
		i, ok := places[g][value]
		if !ok {
			i = len(tables[g])
			places[g][value] = i
			tables[g] = append(tables[g], value)
		}
		return i
	}
	rows := make([][]any, 0, len(all))
	for _, c := range all {
		row := make([]any, 0, 8)
		for g := range groupNames {
			row = append(row, at(g, c.values[g]))
		}
		rows = append(rows, append(row, c.file.Filename, c.file.SHA256.String(), c.view))
	}
	text, err := json.Marshal(map[string]any{"project": project, "base": base, "tables": tables, "rows": rows})
	if err != nil {
		return "", fmt.Errorf("page of %s: %w", project, err)
	}
	// json.Marshal escapes <, > and &, so that the text cannot end the element it is in.
	return template.JS(text), nil //nolint:gosec // see above
}

// filePage is the page of one file.
type filePage struct {
	frame
	Name, Display string
	File          *index.File
	Version       string
	Kind          string
	Built         string
	Toolkit       string
	TorchVersions []string
	Window        string
	Pythons       []string
	Platforms     []platformDetail
	BuildTag      string
	Download      string
	Metadata      string
	Lines         *index.Install
	Torch         string
	Arch          []archDetail
	Findings      []index.AuditResult
	View          string
}

type platformDetail struct{ Tag, Name, Needs string }

type archDetail struct{ Arch, Name, GPU string }

func (p *pages) file(base string, project *index.Project, f *index.File) ([]byte, error) {
	data := filePage{
		frame: p.frame(f.Filename, base, 3, "project"), Name: project.Name, Display: cmp.Or(project.DisplayName, project.Name),
		File: f, Version: f.Version().String(), Kind: "source distribution", Findings: f.Audit,
	}
	data.Download = f.URL(data.Root)
	if !f.Metadata.IsZero() {
		data.Metadata = data.Download + ".metadata"
	}
	builds := buildsOf(f)
	data.Built = builtName(builds[0].toolkit, builds[0].torch)
	built := f.Built()
	data.Toolkit, data.TorchVersions, data.Window = index.ToolkitName(built.Toolkit), built.Torch, strings.Join(f.Window, ", ")
	if w, ok := f.Wheel(); ok {
		data.Kind = "wheel"
		data.BuildTag = w.Build.String()
		for _, b := range builds {
			if !slices.Contains(data.Pythons, b.python) {
				data.Pythons = append(data.Pythons, b.python)
			}
		}
		for _, tag := range w.Platform {
			data.Platforms = append(data.Platforms, platformDetail{tag, platformName(tag), platformNeeds(tag)})
		}
		lines := index.InstallLines(project.Name, base+builds[0].view+"/simple/", f)
		data.Lines, data.Torch, data.View = &lines, torchLine(builds[0]), builds[0].view
	}
	for _, a := range f.Arch {
		data.Arch = append(data.Arch, newArchDetail(a))
	}
	return p.site.execute("file.html", data)
}

// newArchDetail describes an architecture as people do: "sm_90 and PTX", of Hopper.
func newArchDetail(text string) archDetail {
	d := archDetail{Arch: text, Name: text}
	arch, err := compat.ParseArch(text)
	if err != nil {
		return d // AMD's
	}
	number := strings.ReplaceAll(arch.Target(), ".", "")
	switch {
	case arch.SASS && arch.PTX:
		d.Name = "sm_" + number + " and PTX"
	case arch.SASS:
		d.Name = "sm_" + number
	default:
		d.Name = "compute_" + number + " (PTX)"
	}
	gpu, _ := compat.Default().GPU(arch.CC())
	d.GPU = gpu.Family
	return d
}

func platformNeeds(tag string) string {
	var major, minor int
	if n, _ := fmt.Sscanf(tag, "manylinux_%d_%d_", &major, &minor); n == 2 {
		return fmt.Sprintf("glibc %d.%d or newer", major, minor)
	}
	for alias, glibc := range map[string]string{"manylinux1_": "2.5", "manylinux2010_": "2.12", "manylinux2014_": "2.17"} {
		if strings.HasPrefix(tag, alias) {
			return "glibc " + glibc + " or newer"
		}
	}
	if strings.HasPrefix(tag, "linux_") {
		return "makes no promise about the C library"
	}
	return ""
}

// Orders of values on pages.

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// compareNumbers orders texts such as 3.9, 3.10, 3.13t by their numbers.
func compareNumbers(a, b string) int {
	na, nb := numbers(a), numbers(b)
	return cmp.Or(slices.Compare(na, nb), cmp.Compare(a, b))
}

func numbers(s string) []int {
	var out []int
	for _, field := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(field)
		if err != nil {
			n = 1 << 30
		}
		out = append(out, n)
	}
	return out
}

var platformOrder = []string{"Linux", "Windows", "macOS", "Any system"}

func comparePlatforms(a, b string) int {
	rank := func(s string) int {
		for i, prefix := range platformOrder {
			if strings.HasPrefix(s, prefix) {
				return i
			}
		}
		return len(platformOrder)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), compareBool(!strings.Contains(a, "x86_64"), !strings.Contains(b, "x86_64")), cmp.Compare(a, b))
}

// compareToolkits puts the newest CUDA first, then ROCm, then others, then none.
func compareToolkits(a, b string) int {
	rank := func(s string) int {
		switch {
		case strings.HasPrefix(s, "cu"):
			return 0
		case strings.HasPrefix(s, "rocm"):
			return 1
		case s == "" || s == "any":
			return 3
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), compareNumbers(strings.TrimPrefix(index.ToolkitName(b), "CUDA "), strings.TrimPrefix(index.ToolkitName(a), "CUDA ")))
}
