package scaffold

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// Limits on what is read of a checkout.
const (
	maxSmallFile = 1 << 20
	maxFile      = 16 << 20
	maxEntries   = 50_000
)

// project is what a checkout says about its package.
type project struct {
	root    string
	found   []Note
	guessed []Note
	script  *script // setup.py, nil without one

	name, description         string
	version                   string
	versionFile, versionRegex string // relative to root, "" if the version stands in none
	scm                       Note   // what takes the version from git, if something does
	requiresPython            string
	requires                  []string // at run time
	buildRequires             []string
	backend                   string
	imports                   []string
	wheelTag                  string
	buildFlags                []string // words in sys.argv that extensions depend on
	archs                     []string // lists that setup.py sets or falls back to

	torch, cuda, native bool
	cmake               bool
	anything            bool // there is a file of a Python project
}

func (p *project) pos(file string, line int) diag.Pos {
	pos := diag.Pos{File: filepath.ToSlash(filepath.Join(p.root, filepath.FromSlash(file)))}
	if line > 0 {
		pos.Line, pos.Column = line, 1
	}
	return pos
}

func (p *project) note(file string, line int, format string, args ...any) {
	p.found = append(p.found, Note{Pos: p.pos(file, line), Text: fmt.Sprintf(format, args...)})
}

func (p *project) guess(format string, args ...any) {
	p.guessed = append(p.guessed, Note{Text: fmt.Sprintf(format, args...)})
}

// read returns a file of the checkout, "" if there is none.
func (p *project) read(file string) string {
	if file == "" || path.IsAbs(file) || !filepath.IsLocal(filepath.FromSlash(file)) {
		return ""
	}
	text, err := fsx.ReadFile(filepath.Join(p.root, filepath.FromSlash(file)), maxSmallFile)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// readProject looks at a checkout. Nothing of it is run.
func readProject(root string) *project {
	p := &project{root: root}
	p.pyproject("pyproject.toml", p.read("pyproject.toml"))
	p.setupCFG("setup.cfg", p.read("setup.cfg"))
	p.setupPy("setup.py", p.read("setup.py"))
	p.cmakeLists("CMakeLists.txt", p.read("CMakeLists.txt"))
	p.cudaFiles()
	p.findVersion()
	p.findImports()
	return p
}

func (p *project) setName(file string, line int, name string) {
	if p.name == "" && wheel.ValidName(name) {
		p.name = name
		p.note(file, line, "the package is %s", name)
	}
}

func (p *project) setVersion(file string, line int, version, regex string) {
	v, err := wheel.ParseVersion(strings.TrimSpace(version))
	if p.version != "" || err != nil {
		return
	}
	p.version = v.Public()
	p.note(file, line, "the version is %s", p.version)
	// A file counts only if the pattern finds the same version in it.
	pattern := cmp.Or(regex, matrix.DefaultVersionPattern)
	if m := regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(p.read(file)); m != nil && m[1] == strings.TrimSpace(version) {
		p.versionFile, p.versionRegex = file, regex
	}
}

func (p *project) pyproject(file, text string) {
	if text == "" {
		return
	}
	t := readTOML(text)
	p.anything = t.has("project") || t.has("build-system") || t.has("tool.poetry")
	for _, key := range []string{"project.name", "tool.poetry.name"} {
		p.setName(file, t[key].line, t[key].text)
	}
	for _, key := range []string{"project.version", "tool.poetry.version"} {
		p.setVersion(file, t[key].line, t[key].text, "")
	}
	p.description = cmp.Or(t["project.description"].text, t["tool.poetry.description"].text)
	if v := t["project.requires-python"]; v.text != "" {
		p.requiresPython = v.text
		p.note(file, v.line, "it needs Python %s", v.text)
	}
	p.addRequires(file, t["project.dependencies"])
	if v, ok := t["build-system.requires"]; ok {
		p.buildRequires = append(p.buildRequires, v.list...)
		p.note(file, v.line, "the build needs %s", strings.Join(v.list, ", "))
	}
	if v := t["build-system.build-backend"]; v.text != "" {
		p.backend = v.text
		p.note(file, v.line, "the build back-end is %s", v.text)
	}
	if v := t["tool.setuptools.dynamic.version.attr"]; v.text != "" {
		p.attribute(file, v.line, v.text)
	}
	for _, key := range []string{"tool.setuptools.dynamic.version.file", "tool.hatch.version.path", "tool.scikit-build.metadata.version.input", "tool.pdm.version.path"} {
		v := t[key]
		for _, name := range append(v.list, v.text) {
			p.versionIn(name)
		}
	}
	for _, table := range []string{"tool.setuptools_scm", "tool.hatch.version.source", "tool.scikit-build.metadata.version.provider", "tool.versioningit", "tool.pdm.version.source"} {
		if v, ok := t[table]; t.has(table) && (!ok || strings.Contains(v.text, "scm") || strings.Contains(v.text, "vcs")) {
			p.scm = Note{Pos: p.pos(file, max(1, v.line)), Text: table}
		}
	}
	for _, req := range p.buildRequires {
		if r, err := wheel.ParseRequirement(req); err == nil && slices.Contains([]string{"setuptools-scm", "hatch-vcs", "versioningit", "setuptools-git-versioning"}, r.Name) && p.scm.Text == "" {
			p.scm = Note{Pos: p.pos(file, t["build-system.requires"].line), Text: r.Name}
		}
	}
	if v := t["tool.scikit-build.wheel.py-api"]; v.text != "" {
		switch api := v.text; {
		case api == "py3" || api == "py2.py3":
			p.wheelTag = "py3-none"
		case strings.HasPrefix(api, "cp"):
			p.wheelTag = api + "-abi3"
		}
		if p.wheelTag != "" {
			p.note(file, v.line, "one wheel serves several Pythons: %s", p.wheelTag)
		}
	}
	for _, folder := range append(t["tool.scikit-build.wheel.packages"].list, t["tool.setuptools.packages"].list...) {
		p.imports = append(p.imports, path.Base(folder))
	}
	switch {
	case strings.HasPrefix(p.backend, "scikit_build_core"):
		p.native, p.cmake = true, true
	case strings.HasPrefix(p.backend, "mesonpy"), strings.HasPrefix(p.backend, "maturin"), t.has("tool.setuptools.ext-modules"):
		p.native = true
	}
}

func (p *project) addRequires(file string, v tomlValue) {
	for i, req := range v.list {
		p.requirement(file, v.lines[i], req)
	}
}

// requirement takes note of what the package needs at run time; torch decides about rows.
func (p *project) requirement(file string, line int, text string) {
	r, err := wheel.ParseRequirement(text)
	if err != nil {
		return
	}
	p.requires = append(p.requires, text)
	if r.Name == "torch" && !r.Specifier.IsEmpty() {
		p.note(file, line, "it needs %s", text)
	}
}

// attribute finds the version in the module that an attribute such as demo.__version__ names.
func (p *project) attribute(file string, line int, attribute string) {
	module, _, _ := cutLast(attribute, ".")
	base := strings.ReplaceAll(module, ".", "/")
	if slices.ContainsFunc([]string{base + ".py", base + "/__init__.py", "src/" + base + ".py", "src/" + base + "/__init__.py"}, p.versionIn) {
		p.note(file, line, "the version is %s", attribute)
	}
}

// bareVersion finds the version in a file that has nothing else.
const bareVersion = `^(\d+\.\S+)`

// versionIn takes the version from a file, if it is in there.
func (p *project) versionIn(file string) bool {
	text := p.read(file)
	if p.version != "" || text == "" {
		return p.version != ""
	}
	for _, regex := range []string{"", bareVersion} {
		if regex == bareVersion && (len(text) > 200 || strings.HasSuffix(file, ".py")) {
			continue
		}
		m := regexp.MustCompile("(?m)" + cmp.Or(regex, matrix.DefaultVersionPattern)).FindStringSubmatchIndex(text)
		if m == nil {
			continue
		}
		p.setVersion(file, 1+strings.Count(text[:m[2]], "\n"), text[m[2]:m[3]], regex)
		if p.version != "" {
			return true
		}
	}
	return false
}

func (p *project) setupCFG(file, text string) {
	if text == "" {
		return
	}
	t := readCFG(text)
	p.anything = p.anything || t.has("metadata")
	p.setName(file, t["metadata.name"].line, t["metadata.name"].text)
	v := t["metadata.version"]
	switch kind, value, ok := strings.Cut(v.text, ":"); {
	case ok && strings.TrimSpace(kind) == "attr":
		p.attribute(file, v.line, strings.TrimSpace(value))
	case ok && strings.TrimSpace(kind) == "file":
		p.versionIn(strings.TrimSpace(value))
	default:
		// Its lines are not those of the default pattern: the value has no quotes.
		p.setVersion(file, v.line, v.text, `^version\s*=\s*(\S+)`)
	}
	p.description = cmp.Or(p.description, t["metadata.description"].text)
	p.requiresPython = cmp.Or(p.requiresPython, t["options.python_requires"].text)
	p.addRequires(file, t["options.install_requires"])
}

// extensionCalls are the calls that make a native module.
var extensionCalls = []string{"Extension", "CUDAExtension", "CppExtension", "SYCLExtension", "CMakeExtension", "Pybind11Extension", "cythonize", "CFFIExtension"}

// buildTools maps what setup.py imports to what must be installed for it.
var buildTools = map[string]string{
	"torch": "torch", "packaging": "packaging", "wheel": "wheel", "numpy": "numpy", "psutil": "psutil", "ninja": "ninja", "pybind11": "pybind11",
	"Cython": "cython", "cmake": "cmake", "skbuild": "scikit-build", "setuptools": "setuptools", "pkg_resources": "setuptools", "distutils": "setuptools",
	"setuptools_scm": "setuptools-scm", "jinja2": "jinja2", "yaml": "pyyaml", "requests": "requests", "tqdm": "tqdm", "einops": "einops",
}

func (p *project) setupPy(file, text string) {
	if text == "" {
		return
	}
	p.anything = true
	s := readScript(text)
	p.script = s
	var needs []string
	for _, in := range s.imports {
		module, _, _ := strings.Cut(in.module, ".")
		if tool := buildTools[module]; tool != "" && !slices.Contains(needs, tool) {
			needs = append(needs, tool)
			if module == "torch" {
				p.torch = true
				p.note(file, in.line, "setup.py imports torch, so the build needs it")
			}
		}
	}
	p.buildRequires = append(p.buildRequires, needs...)
	var extensions []string
	firstLine := 0
	for _, c := range s.calls {
		kind := c.text[strings.LastIndexByte(c.text, '.')+1:]
		if alias := s.assigns[kind]; alias != nil && alias.kind == isName {
			kind = alias.text[strings.LastIndexByte(alias.text, '.')+1:]
		}
		switch {
		case kind == "setup" && (c.text == "setup" || c.text == "setuptools.setup"):
			p.setupCall(file, s, c)
		case slices.Contains(extensionCalls, kind):
			p.native = true
			p.cuda = p.cuda || kind == "CUDAExtension"
			p.cmake = p.cmake || kind == "CMakeExtension"
			firstLine = cmp.Or(firstLine, c.line)
			name := kind
			if n := c.argument("name", 0); n != nil && kind != "cythonize" {
				if text, ok := s.text(n, 0); ok {
					name = kind + " " + text
				}
			}
			extensions = append(extensions, name)
		}
	}
	if len(extensions) > 0 {
		shown := extensions[:min(3, len(extensions))]
		more := ""
		if n := len(extensions) - len(shown); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		p.note(file, firstLine, "setup.py makes %s: %s%s", units.Count(len(extensions), "native module"), strings.Join(shown, ", "), more)
	}
	if slices.ContainsFunc(s.strings, func(n *node) bool { return n.text == "cmake" }) {
		p.native, p.cmake = true, true // it calls CMake
	}
	for _, in := range s.imports {
		p.cmake = p.cmake || in.module == "skbuild"
		if slices.Contains(in.names, "CUDAExtension") {
			p.native = true
			p.cuda = true // also if it is called under another name
		}
	}
	p.settings(file, s, text)
}

// setupCall takes the arguments of setup().
func (p *project) setupCall(file string, s *script, c *node) {
	get := func(name string) (string, int) {
		if n := c.argument(name, -1); n != nil {
			if text, ok := s.text(n, 0); ok {
				return text, n.line
			}
		}
		return "", 0
	}
	name, line := get("name")
	p.setName(file, line, name)
	if version, line := get("version"); version != "" {
		if v := c.argument("version", -1); v.kind == isName { // a constant of the file
			if at := s.assigns[v.text]; at != nil {
				line = at.line
			}
		}
		p.setVersion(file, line, version, "")
	}
	if text, _ := get("description"); p.description == "" && len(text) < 200 {
		p.description = text
	}
	if text, line := get("python_requires"); text != "" && p.requiresPython == "" {
		p.requiresPython = text
		p.note(file, line, "it needs Python %s", text)
	}
	for _, req := range s.list(c.argument("install_requires", -1), 0) {
		p.requirement(file, req.line, req.text)
	}
	for _, req := range s.list(c.argument("setup_requires", -1), 0) {
		p.buildRequires = append(p.buildRequires, req.text)
	}
	for _, pkg := range s.list(c.argument("packages", -1), 0) {
		if !strings.Contains(pkg.text, ".") {
			p.imports = append(p.imports, pkg.text)
		}
	}
	for _, key := range []string{"ext_modules", "distclass", "cmake_source_dir", "cffi_modules", "rust_extensions"} {
		if n := c.argument(key, -1); n != nil && !(n.kind == isList && len(n.items) == 0) {
			p.native = true
			p.cmake = p.cmake || key == "cmake_source_dir"
		}
	}
}

var gencodePattern = regexp.MustCompile(`arch=compute_\d|-gencode`)

// settings finds what the build can be told: variables, words of the command line, architectures.
func (p *project) settings(file string, s *script, text string) {
	for _, f := range s.flags {
		if !slices.Contains(p.buildFlags, f.name) {
			p.buildFlags = append(p.buildFlags, f.name)
			if len(p.buildFlags) == 1 {
				p.note(file, f.line, "setup.py looks for words such as %s on its command line", f.name)
			}
		}
	}
	for _, w := range append(slices.Clone(s.writes), s.reads...) {
		if w.name != "TORCH_CUDA_ARCH_LIST" || w.value == "" {
			continue
		}
		if _, ok := normal(roleArch, w.value); ok && !slices.Contains(p.archs, w.value) {
			p.archs = append(p.archs, w.value)
			p.note(file, w.line, "setup.py knows the architectures %s", w.value)
		}
	}
	asks := slices.ContainsFunc(s.reads, func(r setting) bool { return r.name == "TORCH_CUDA_ARCH_LIST" })
	for _, t := range s.strings {
		if gencodePattern.MatchString(t.text) && !asks {
			p.note(file, t.line, "setup.py passes architectures to nvcc itself; torch then ignores those of a row (`kiln audit` shows what is in a wheel)")
			break
		}
	}
	for i, line := range strings.Split(text, "\n") {
		if strings.Contains(line, "ROCM_HOME") || strings.Contains(line, "version.hip") {
			p.note(file, i+1, "setup.py knows ROCm; rows with rocm: can be added")
			break
		}
	}
}

func (p *project) cmakeLists(file, text string) {
	if text == "" || !p.cmake { // or a package that does not use it
		return
	}
	var conditions []string
	torch, cuda := 0, 0
	under := ""
	for _, c := range readCMake(text) {
		upper := strings.ToUpper(strings.Join(c.args, " "))
		switch c.name {
		case "if":
			conditions = append(conditions, strings.Join(c.args, " "))
		case "endif":
			conditions = conditions[:max(0, len(conditions)-1)]
		case "project", "enable_language":
			if strings.Contains(" "+upper+" ", " CUDA ") && cuda == 0 {
				cuda = c.line
				if len(conditions) > 0 {
					under = conditions[len(conditions)-1]
				}
			}
			if c.name == "project" {
				p.note(file, c.line, "there is a CMake project")
			}
		case "find_package":
			switch {
			case len(c.args) > 0 && c.args[0] == "Torch":
				torch = cmp.Or(torch, c.line)
			case len(c.args) > 0 && (c.args[0] == "CUDAToolkit" || c.args[0] == "CUDA"):
				if cuda == 0 {
					cuda = c.line
					if len(conditions) > 0 {
						under = conditions[len(conditions)-1]
					}
				}
			}
		}
	}
	if torch > 0 {
		p.torch = true
		p.note(file, torch, "CMake looks for torch")
	}
	if cuda > 0 {
		p.cuda = true
		p.note(file, cuda, "CMake uses CUDA")
		if under != "" {
			p.note(file, cuda, "but only if(%s); CMAKE_ARGS in env: can say so", under)
		}
	}
}

// skipFolders have nothing that the project itself wrote.
var skipFolders = []string{"build", "dist", "node_modules", "third_party", "thirdparty", "external", "venv", "__pycache__", "tests", "test", "docs", "benchmarks", "examples"}

// cudaFiles counts the CUDA sources.
func (p *project) cudaFiles() {
	first, count, entries := "", 0, 0
	_ = filepath.WalkDir(p.root, func(name string, e fs.DirEntry, err error) error {
		if entries++; err != nil || entries > maxEntries {
			return fs.SkipAll
		}
		base := e.Name()
		if e.IsDir() && name != p.root && (strings.HasPrefix(base, ".") || slices.Contains(skipFolders, base)) {
			return fs.SkipDir
		}
		if !e.IsDir() && strings.HasSuffix(base, ".cu") {
			if count++; first == "" {
				first = name
			}
		}
		return nil
	})
	if count == 0 {
		return
	}
	relative, err := filepath.Rel(p.root, first)
	if err != nil {
		return
	}
	p.note(filepath.ToSlash(relative), 0, "%s", units.Count(count, "CUDA source file"))
	if !p.cuda && p.native {
		p.cuda = true
	}
	if !p.native {
		p.guess("nothing builds the CUDA sources when the package is built, as far as can be seen: they may be compiled on first use")
	}
}

// findVersion looks in the files that setup.py names, then in the usual places.
func (p *project) findVersion() {
	if p.script != nil {
		for _, c := range p.script.calls {
			file := p.script.path(c, 0)
			if base := strings.ToLower(path.Base(file)); strings.Contains(base, "version") || strings.HasSuffix(base, ".py") {
				p.versionIn(file)
			}
		}
		for _, t := range p.script.strings {
			if strings.HasSuffix(t.text, ".py") || strings.HasSuffix(strings.ToLower(t.text), "version.txt") || t.text == "VERSION" {
				p.versionIn(t.text)
			}
		}
	}
	if p.scm.Text != "" {
		return
	}
	module := strings.ReplaceAll(wheel.NormalizeName(p.name), "-", "_")
	for _, file := range []string{"version.py", "_version.py", "__about__.py", "__init__.py"} {
		p.versionIn(module + "/" + file)
		p.versionIn("src/" + module + "/" + file)
	}
	p.versionIn("version.txt")
	p.versionIn("VERSION")
}

// findImports decides what the test imports.
func (p *project) findImports() {
	usual := strings.ReplaceAll(wheel.NormalizeName(p.name), "-", "_")
	candidates := slices.Concat([]string{usual, p.name}, p.imports)
	if folder := path.Dir(p.versionFile); folder != "." {
		candidates = append(candidates, path.Base(folder))
	}
	p.imports = nil
	for _, name := range candidates {
		for _, place := range []string{name + "/__init__.py", "src/" + name + "/__init__.py", "python/" + name + "/__init__.py", name + ".py", "src/" + name + ".py"} {
			if name == "" || !p.exists(place) {
				continue
			}
			p.note(place, 0, "the test imports %s", name)
			if name != usual {
				p.imports = []string{name}
			}
			return
		}
	}
	if p.name != "" {
		p.guess("the test imports %s: no folder of that name was found", usual)
	}
}

func (p *project) exists(file string) bool {
	if !filepath.IsLocal(filepath.FromSlash(file)) {
		return false
	}
	f, err := fsx.Open(filepath.Join(p.root, filepath.FromSlash(file)))
	if err != nil {
		return false
	}
	return f.Close() == nil
}
