// Package scaffold writes the first packages.yml of a project, for `kiln init`: from a checkout,
// of which nothing is run, or from the matrix of a GitHub workflow. The file is planned before
// anything is written; one made from a workflow has exactly the rows of the workflow, or there is
// no file.
package scaffold

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// Options say what to look at.
type Options struct {
	// Dir is the root of the checkout.
	Dir string
	// Output is where the file will be; paths in it are relative to its folder.
	Output string
	// Workflow is a workflow of GitHub Actions whose matrix is taken, or "".
	Workflow string
	// Jobs are the jobs of the workflow to take. Default the one that builds wheels.
	Jobs []string
	// Name and Version are used instead of what the checkout says.
	Name, Version string
	// Source is "git", "path" or "" to choose.
	Source string
	// Compat is what rows are checked against. Default [compat.Default].
	Compat *compat.Table
}

// Note is something that was found at a place, or guessed.
type Note struct {
	Pos  diag.Pos `json:"pos"`
	Text string   `json:"text"`
}

// Result is a packages.yml that is ready to be written.
type Result struct {
	// Text is the file.
	Text []byte
	// Package and Version are what it builds.
	Package, Version string
	// Found and Guessed say where the values come from.
	Found, Guessed []Note
	// Plan is that of the file. Its findings may have errors: rows of a workflow that cannot work.
	Plan *matrix.Plan
	// Jobs counts the jobs of the workflow that became the rows of the plan.
	Jobs int
	// Workflows are workflows of the checkout whose matrix could be taken.
	Workflows []Note
	// Sources are texts that errors and findings point into.
	Sources map[string][]byte
}

// New looks at a checkout and a workflow and makes the file. Mistakes in the workflow are a
// [*diag.ListError]. The result has the sources for showing them even then.
func New(opts Options) (*Result, error) {
	if opts.Compat == nil {
		opts.Compat = compat.Default()
	}
	p := readProject(opts.Dir)
	if opts.Workflow != "" && opts.Name != "" && wheel.NormalizeName(opts.Name) != wheel.NormalizeName(p.name) {
		p = &project{root: opts.Dir} // the workflow builds something else than its own repository
	}
	s := &scaffold{opts: opts, project: p, result: &Result{Sources: map[string][]byte{}}}
	s.doc.name = cmp.Or(opts.Name, p.name)
	repo := readRepository(opts.Dir)
	if s.doc.name == "" && (p.anything || opts.Workflow != "") {
		s.guessName(repo)
	}
	if opts.Workflow == "" && !p.anything {
		return s.result, fmt.Errorf("%s has no pyproject.toml, setup.py or setup.cfg of a Python project\n  name its folder: kiln init FOLDER", opts.Dir)
	}
	if !wheel.ValidName(s.doc.name) {
		return s.result, fmt.Errorf("the name of the package is not known\n  give it: kiln init --name NAME")
	}
	if err := s.source(repo); err != nil {
		return s.result, err
	}
	s.settings()
	var err error
	if opts.Workflow != "" {
		err = s.fromWorkflow()
	} else {
		err = s.fromProject()
	}
	if err != nil {
		return s.result, err
	}
	r := s.result
	r.Package, r.Version = s.doc.name, s.version
	r.Found = slices.Concat(p.found, r.Found)
	r.Guessed = slices.Concat(p.guessed, r.Guessed)
	return r, nil
}

// scaffold is the work on one file.
type scaffold struct {
	opts    Options
	project *project
	doc     document
	version string
	result  *Result
	places  map[row]diag.Pos // where the rows of a workflow are described
}

func (s *scaffold) found(pos diag.Pos, format string, args ...any) {
	s.result.Found = append(s.result.Found, Note{pos, fmt.Sprintf(format, args...)})
}

func (s *scaffold) guess(format string, args ...any) {
	s.result.Guessed = append(s.result.Guessed, Note{Text: fmt.Sprintf(format, args...)})
}

// guessName names the package after the repository, or after the folder.
func (s *scaffold) guessName(repo repository) {
	base := repo.remote[strings.LastIndexByte(repo.remote, '/')+1:]
	if abs, err := filepath.Abs(s.opts.Dir); base == "" && err == nil {
		base = filepath.Base(abs)
	}
	if wheel.ValidName(base) {
		s.doc.name = wheel.NormalizeName(base)
		s.guess("the package is named %s, as its folder or repository is (--name)", s.doc.name)
	}
}

// source decides where the code comes from, and the version with it.
func (s *scaffold) source(repo repository) error {
	p := s.project
	s.version = p.version
	if s.opts.Version != "" {
		v, err := wheel.ParseVersion(s.opts.Version)
		if err != nil || v.Local() != "" {
			return fmt.Errorf("--version %s is not a version such as 1.2.3", s.opts.Version)
		}
		s.version = v.String()
	}
	if s.version == "" {
		if newest := newestTag(repo.tags); newest != "" {
			s.version = newest
			s.guess("the version is %s: the newest tag of the repository", s.version)
		}
	}
	if s.version == "" {
		if p.scm.Text != "" {
			return fmt.Errorf("%s: the version comes from git (%s), and the checkout has no version tag\n  give it: kiln init --version 1.2.3", p.scm.Pos, p.scm.Text)
		}
		return errors.New("no version found in pyproject.toml, setup.cfg, setup.py, version files or git tags\n  give it: kiln init --version 1.2.3")
	}
	ref := ""
	for _, prefix := range []string{"v", ""} {
		if repo.tags[prefix+s.version] && ref == "" {
			ref = prefix + "{version}"
		}
	}
	useGit := repo.remote != "" && ref != "" || s.opts.Source == "git"
	switch {
	case s.opts.Source == "git" && repo.remote == "":
		return errors.New("--source git: the checkout has no remote that others can fetch from\n  add one with git remote add, or use --source path")
	case s.opts.Source == "path" || !useGit:
		folder, err := relative(filepath.Dir(s.opts.Output), s.opts.Dir)
		if err != nil {
			return err
		}
		if !p.anything {
			// A workflow without its project: the public index has the source.
			s.doc.versions = []string{s.version}
			s.guess("the source is %s %s on the public index", s.doc.name, s.version)
			return nil
		}
		s.doc.path = folder
		if s.version == p.version && p.versionFile != "" {
			s.doc.versionFile, s.doc.versionRegex = p.versionFile, p.versionRegex
		} else {
			s.doc.versions = []string{s.version}
		}
		switch {
		case s.opts.Source == "path":
		case repo.remote == "":
			s.guess("the source is this folder: it has no git remote")
		default:
			s.guess("the source is this folder, because the repository has no tag for %s (--source git)", s.version)
		}
	default:
		s.doc.git, s.doc.ref, s.doc.versions = repo.remote, cmp.Or(ref, "v{version}"), []string{s.version}
		pos := repo.pos
		pos.File = filepath.ToSlash(pos.File)
		s.found(pos, "the source is %s", repo.remote)
		if ref == "" {
			s.guess("the tag of version %s is v%s; the checkout does not have it", s.version, s.version)
		}
	}
	return nil
}

func relative(from, to string) (string, error) {
	a, err := filepath.Abs(from)
	if err != nil {
		return "", err
	}
	b, err := filepath.Abs(to)
	if err != nil {
		return "", err
	}
	out, err := filepath.Rel(a, b)
	return filepath.ToSlash(out), err
}

// newestTag returns the highest final version among the tags.
func newestTag(tags map[string]bool) string {
	var best wheel.Version
	name := ""
	for tag := range tags {
		v, err := wheel.ParseVersion(strings.TrimPrefix(tag, "v"))
		if err != nil || v.Local() != "" || v.String() != v.Base() {
			continue
		}
		if name == "" || v.Compare(best) > 0 {
			best, name = v, v.String()
		}
	}
	return name
}

// kilnSets are variables that a build gets from kiln or that are about the machine.
var kilnSets = []string{
	"TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH", "MAX_JOBS", "NVCC_THREADS", "CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "ROCM_PATH", "HIP_PATH", "PATH", "HOME",
	"CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CONDA_PREFIX", "CI", "GITHUB_REF", "PYTORCH_NVCC", "USER", "LD_LIBRARY_PATH", "CUDAHOSTCXX", "PYTHONPATH",
}

// settings takes what the build needs from the project.
func (s *scaffold) settings() {
	p := s.project
	s.doc.testImport, s.doc.wheelTag = p.imports, p.wheelTag
	seen := map[string]bool{}
	add := func(text string) {
		r, err := wheel.ParseRequirement(text)
		if err == nil && !seen[r.Name] {
			seen[r.Name] = true
			s.doc.extraDeps = append(s.doc.extraDeps, text)
		}
	}
	for _, text := range p.buildRequires {
		add(text)
	}
	if p.script != nil && p.backend == "" {
		add("setuptools")
		add("wheel")
	}
	if p.torch || p.cmake {
		add("ninja")
	}
	if p.cmake {
		add("cmake")
	}
	p.torch = p.torch || seen["torch"]
	if p.script == nil {
		return
	}
	for _, v := range p.script.reads {
		if slices.Contains(kilnSets, v.name) || seen["$"+v.name] || !variableName(v.name) {
			continue
		}
		seen["$"+v.name] = true
		on := "1"
		if strings.EqualFold(v.value, "false") {
			on = "TRUE"
		}
		switch {
		case strings.HasSuffix(v.name, "FORCE_BUILD"):
			s.doc.env = append(s.doc.env, variable{name: v.name, value: on})
			s.found(p.pos("setup.py", v.line), "%s: without it, setup.py may download a wheel instead of building one", v.name)
		case v.name == "FORCE_CUDA" && p.cuda:
			s.doc.env = append(s.doc.env, variable{v.name, "1", true})
			s.found(p.pos("setup.py", v.line), "FORCE_CUDA: without it, setup.py leaves CUDA out where there is no GPU")
		default:
			s.doc.alsoReads = append(s.doc.alsoReads, v.name)
		}
	}
	var words []string
	for _, flag := range p.buildFlags {
		if flag == "--cpp_ext" || flag == "--cuda_ext" {
			words = append(words, "-C--build-option="+flag)
		}
	}
	if s.doc.buildArgs = strings.Join(words, " "); words != nil {
		s.guess("the extensions that %s asks for are built (build_args)", strings.ReplaceAll(s.doc.buildArgs, "-C--build-option=", ""))
	}
}

func variableName(name string) bool {
	return name != "" && !digit(name[0]) && !slices.ContainsFunc([]byte(name), func(c byte) bool { return !nameByte(c) || c >= 0x80 })
}

// fromProject proposes rows for a project.
func (s *scaffold) fromProject() error {
	p := s.project
	s.doc.comment = "The first rows of a matrix. docs/packages-yml.md explains the keys; `kiln plan` shows the rows."
	s.doc.description = strings.Join(strings.Fields(p.description), " ")
	pythons := s.pythons()
	g := group{kind: matrix.KindWheel}
	axisOf := func(name string, values ...string) { g.axes = append(g.axes, axis{name: name, values: values}) }
	switch {
	case !p.native:
		g.kind = matrix.KindSdist
		pythons = pythons[:1]
		s.guess("the package has no native code: one source distribution, and the wheel that is made from it")
	case p.torch:
		cuda, torch := s.torchBuild(pythons)
		if p.cuda && cuda != "" {
			axisOf("cuda", cuda)
		}
		axisOf("torch", torch)
		s.doc.extraDeps = slices.DeleteFunc(s.doc.extraDeps, func(d string) bool {
			r, err := wheel.ParseRequirement(d)
			return err == nil && r.Name == "torch" // the row's
		})
		s.guess("%s: one row for each Python to begin with; more versions can be listed", strings.TrimPrefix(rowTitle(row{cuda: cuda, torch: torch}), "wheel "))
	case p.cuda:
		axisOf("cuda", matrix.DefaultCUDA...)
		s.doc.env = append(s.doc.env, variable{"CMAKE_ARGS", "-DCMAKE_CUDA_ARCHITECTURES={arch_numbers}", true})
		if !p.cmake {
			s.doc.env = s.doc.env[:len(s.doc.env)-1]
		}
		s.guess("CUDA %s: the versions that kiln uses by default", strings.Join(matrix.DefaultCUDA, " and "))
	}
	if p.wheelTag != "" {
		pythons = pythons[:1]
	}
	axisOf("python", pythons...)
	s.guess("Python %s%s", strings.Join(pythons, " and "), map[bool]string{true: ", of those that it allows"}[p.requiresPython != ""])
	s.doc.groups = []group{g}
	if len(p.archs) == 1 && p.cuda {
		s.doc.arch = []archCase{{"", p.archs[0]}}
		if plan, err := s.plan(); err != nil || plan.Err() != nil {
			s.doc.arch = nil
			s.guess("the architectures %s are left out, because CUDA or torch of the rows cannot make them all", p.archs[0])
		}
	}
	plan, err := s.plan()
	if err != nil {
		return err
	}
	s.result.Plan = plan
	s.workflows()
	return nil
}

// pythons returns the default Python versions that the project allows, else the newest it allows.
func (s *scaffold) pythons() []string {
	allowed := func(python string) bool {
		set, err := wheel.ParseSpecifierSet(s.project.requiresPython)
		v, errV := wheel.ParseVersion(python + ".99") // ">3.12" allows 3.12.1
		return err != nil || errV != nil || set.Contains(v)
	}
	out := slices.DeleteFunc(slices.Clone(matrix.DefaultPython), func(v string) bool { return !allowed(v) })
	for minor := 14; minor > 7 && len(out) == 0; minor-- {
		if v := fmt.Sprintf("3.%d", minor); allowed(v) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		return matrix.DefaultPython[:1]
	}
	return out
}

// torchBuild chooses a torch that the project allows and that is published for a usual CUDA.
func (s *scaffold) torchBuild(pythons []string) (cuda, torch string) {
	var allowed wheel.SpecifierSet
	for _, text := range slices.Concat(s.project.requires, s.project.buildRequires) {
		if r, err := wheel.ParseRequirement(text); err == nil && r.Name == "torch" && !r.Specifier.IsEmpty() {
			allowed = r.Specifier
			break
		}
	}
	usual := true // the CUDA versions that kiln uses by default, before others
	choose := func(fits func(wheel.Version) bool) (string, string) {
		for _, series := range slices.Backward(s.opts.Compat.TorchSeries()) {
			for _, version := range slices.Backward(s.opts.Compat.TorchVersions(series)) {
				v, err := wheel.ParseVersion(version)
				if err != nil || !fits(v) {
					continue
				}
				candidates := slices.Clone(matrix.DefaultCUDA)
				slices.Reverse(candidates)
				if !usual {
					candidates = nil
					for _, build := range slices.Backward(s.opts.Compat.TorchBuilds(version)) {
						if c, _ := compat.ParseToolkitTag(build); c != "" {
							candidates = append(candidates, patchOf(s.opts.Compat, c))
						}
					}
				}
				if !s.project.cuda {
					candidates = []string{""}
				}
				for _, cuda := range candidates {
					if s.works(version, cuda, pythons) {
						return cuda, version
					}
				}
			}
		}
		return "", ""
	}
	for _, usual = range []bool{true, false} {
		if cuda, torch = choose(func(v wheel.Version) bool { return allowed.Contains(v) }); torch != "" {
			return cuda, torch
		}
	}
	for _, usual = range []bool{true, false} {
		if torch != "" {
			break
		}
		cuda, torch = choose(func(wheel.Version) bool { return true })
	}
	s.guess("no torch that kiln knows satisfies %s with Python %s; %s may not work", allowed, strings.Join(pythons, ", "), torch)
	return cuda, torch
}

// works reports whether a torch build exists for all Python versions.
func (s *scaffold) works(torch, cuda string, pythons []string) bool {
	for _, python := range pythons {
		for _, f := range s.opts.Compat.Check(compat.Combo{OS: matrix.DefaultOS, Python: python, CUDA: cuda, Torch: torch, Kind: matrix.KindWheel}) {
			if f.Severity == compat.Error || f.Severity == diag.Warning && !slices.Contains(f.Axes, "arch") {
				return false
			}
		}
	}
	return true
}

// workflows looks for pipelines that could be taken instead.
func (s *scaffold) workflows() {
	dir := filepath.Join(s.opts.Dir, ".github", "workflows")
	for _, pattern := range []string{"*.yml", "*.yaml"} {
		names, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, name := range names {
			text, err := fsx.ReadFile(name, maxYAML)
			if err != nil {
				continue
			}
			w := readWorkflow(filepath.ToSlash(name), text)
			if w.list.HasErrors() {
				continue
			}
			if job, err := s.chooseJob(w); err == nil && s.score(job) == 3 {
				s.result.Workflows = append(s.result.Workflows, Note{job.pos, fmt.Sprintf("the job %s has a matrix of %s", job.id, units.Count(len(job.combos), "row"))})
			}
		}
	}
}

// plan expands the file as it is.
func (s *scaffold) plan() (*matrix.Plan, error) {
	text := s.doc.bytes()
	name := cmp.Or(s.opts.Output, "packages.yml")
	s.result.Text = text
	s.result.Sources[name] = text
	file, list := matrix.Parse(name, text)
	if file == nil {
		return nil, list.Err()
	}
	versions, more := file.ReadVersions()
	if list = append(list, more...); list.HasErrors() {
		return nil, list.Err()
	}
	plan := file.Plan(matrix.Options{Versions: versions, Compat: s.opts.Compat})
	plan.Findings = append(list, plan.Findings...)
	return plan, nil
}
