package audit

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/wheel"
)

// Python loads extension modules so that Windows looks for the libraries they need among those
// that are loaded already, in the folder of the module, in that of python.exe, in those that Python
// code added with os.add_dll_directory, and in System32; not in PATH and not in the working folder.

// windowsText says where libraries come from.
//
//go:embed data/windows.txt
var windowsText string

// The sections of windowsText.
const (
	fromWindows            = "windows"
	fromPython             = "python"
	fromRedistributable    = "redistributable"
	fromOldRedistributable = "old-redistributable"
	fromDebug              = "debug"
	fromDriver             = "driver"
	fromLoader             = "loader"
	fromTorch              = "torch"
	fromCUDA               = "cuda"
)

type dllList struct {
	names    map[string]string
	prefixes []string // each with a star after it in the list
}

var dllSources = sync.OnceValue(func() dllList {
	list := dllList{names: map[string]string{}}
	section := ""
	for line := range strings.Lines(windowsText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			for name := range strings.FieldsSeq(line) {
				if prefix, ok := strings.CutSuffix(name, "*"); ok {
					list.prefixes = append(list.prefixes, prefix)
					name = prefix
				}
				list.names[name] = section
			}
		}
	}
	return list
})

// dllSource says where a library comes from; "" if it may be anyone's.
func dllSource(name string) string {
	name = strings.ToLower(name)
	list := dllSources()
	if from, ok := list.names[name]; ok {
		return from
	}
	for _, prefix := range list.prefixes {
		if strings.HasPrefix(name, prefix) {
			return list.names[prefix]
		}
	}
	return ""
}

// isDLL says whether a library is one of Windows, by its name.
func isDLL(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".dll") }

// pythonDLL matches the library of an interpreter: python3.dll is the one of the stable ABI.
var pythonDLL = regexp.MustCompile(`^python3(\d*t?)(_d)?\.dll$`)

// pythonOfDLL is the tag of the interpreter that has a library, "abi3" for the stable ABI's, "" for
// other libraries.
func pythonOfDLL(name string) string {
	m := pythonDLL.FindStringSubmatch(name)
	switch {
	case m == nil:
		return ""
	case strings.TrimSuffix(m[1], "t") == "":
		return "abi3"
	}
	return "cp3" + m[1]
}

var cudartDLL = regexp.MustCompile(`^cudart64_(\d+)\.dll$`)

// cudaMajor is the CUDA major of a CUDA runtime: "12" for libcudart.so.12 and cudart64_12.dll, "11"
// for cudart64_110.dll; "" for other libraries.
func cudaMajor(library string) string {
	if version, ok := strings.CutPrefix(library, "libcudart.so."); ok {
		major, _, _ := strings.Cut(version, ".")
		return major
	}
	if m := cudartDLL.FindStringSubmatch(strings.ToLower(library)); m != nil {
		return m[1][:min(len(m[1]), 2)]
	}
	return ""
}

// A finder looks in Python code for calls that make libraries of other folders known to Windows.
type finder struct {
	found bool
	tail  []byte
}

var searchCalls = [][]byte{[]byte("add_dll_directory"), []byte("LoadLibrary"), []byte("CDLL("), []byte("WinDLL("), []byte("load_library(")}

func (f *finder) Write(p []byte) (int, error) {
	const longest = len("add_dll_directory")
	if !f.found {
		text := append(f.tail, p...)
		f.found = slices.ContainsFunc(searchCalls, func(call []byte) bool { return bytes.Contains(text, call) })
		f.tail = bytes.Clone(text[max(0, len(text)-longest):])
	}
	return len(p), nil
}

// installed is where a member of a wheel is put, below the folder of packages.
func (c *checker) installed(member string) string {
	if data, rest, ok := strings.Cut(member, ".data/"); ok && !strings.Contains(data, "/") {
		for _, scheme := range []string{"platlib/", "purelib/"} {
			if name, ok := strings.CutPrefix(rest, scheme); ok {
				return name
			}
		}
	}
	return member
}

// dlls looks up the Windows libraries of the wheel by their name in lower case.
func (c *checker) dlls() map[string][]*object {
	out := map[string][]*object{}
	for _, o := range c.objects {
		if o.pe != nil && o.pe.library {
			name := strings.ToLower(path.Base(o.Path))
			out[name] = append(out[name], o)
		}
	}
	return out
}

// checkWindows looks up the libraries and names that Windows files need, as the loader does.
func (c *checker) checkWindows() {
	var files []*object
	for _, o := range c.objects {
		if o.pe != nil && !o.pe.managed {
			files = append(files, o)
		}
	}
	if len(files) == 0 {
		return
	}
	w := &windowsCheck{checker: c, dlls: c.dlls(), reported: map[string]bool{}, others: map[string][]string{}}
	w.checkMachines(files)
	w.checkModules(files)
	usesTorch := slices.ContainsFunc(files, (*object).needsTorch)
	if usesTorch {
		c.checkDeclared()
	}
	// Modules first: what they load is known to be loaded.
	reached := map[*object]bool{}
	for _, weak := range []bool{false, true} {
		for _, o := range files {
			if !o.pe.library || weak == (o.Module != "" || o.needsTorch()) || reached[o] || !w.fits(o) {
				continue
			}
			w.load(o, weak, reached)
		}
	}
	slices.Sort(w.report.External)
	w.reportRuntimes()
	for _, file := range slices.Sorted(maps.Keys(w.others)) {
		w.findAs(Note, RuleLibraryMissing, file, "needs %s, which other packages must bring", strings.Join(w.others[file], ", ")).with(w.others[file]...).
			because("Neither the wheel, nor Windows, nor Python has it, but other packages are required.").
			repair("Make sure that one of them brings it and makes its folder known.")
	}
	if usesTorch && c.filename.Name != "torch" && !c.opts.NoTable {
		w.compareTorches(slices.Collect(func(yield func(*object) bool) {
			for _, o := range files {
				if o.needsTorch() && !yield(o) {
					return
				}
			}
		}))
	}
}

// A windowsCheck is the part of a check that is about Windows files.
type windowsCheck struct {
	*checker
	dlls     map[string][]*object
	reported map[string]bool // file and library, file and name
	runtimes []runtimeUse
	others   map[string][]string // libraries that other packages may bring, by file
	lookups  []lookup
}

type runtimeUse struct{ library, file string }

// claims are the platform tags for Windows.
func (c *checker) claims() []string {
	claimed := c.filename.Platform
	if c.opts.Platform != "" {
		claimed = []string{c.opts.Platform}
	}
	return slices.DeleteFunc(slices.Clone(claimed), func(tag string) bool { return !strings.HasPrefix(tag, "win") })
}

// fits says whether the file is for a machine of the tags.
func (w *windowsCheck) fits(o *object) bool {
	claimed := w.claims()
	return len(claimed) == 0 || slices.Contains(claimed, o.pe.platform())
}

// checkMachines compares modules, and libraries that they need, with the tags. Programs and libraries
// for other machines are there on purpose, for tools that start or debug other programs.
func (w *windowsCheck) checkMachines(files []*object) {
	needed := map[string]bool{}
	for _, o := range files {
		if o.Module != "" {
			for _, lib := range o.Needed {
				needed[path.Join(path.Dir(o.Path), lib)] = true
			}
		}
	}
	for _, o := range files {
		if !w.isWheel || w.fits(o) || o.Module == "" && !needed[strings.ToLower(o.Path)] && !needed[o.Path] {
			continue
		}
		w.find(RuleMachine, o.Path, "is for %s, but the wheel is tagged %s", o.Machine, strings.Join(w.claims(), ".")).
			because("Windows says `%1 is not a valid Win32 application`.")
	}
}

// checkModules looks for modules under another name than their own, which only code that names the
// file can load.
func (w *windowsCheck) checkModules(files []*object) {
	for _, o := range files {
		if o.Module != "" || !strings.EqualFold(path.Ext(o.Path), ".pyd") {
			continue
		}
		i := slices.IndexFunc(o.exports, func(name string) bool { return strings.HasPrefix(name, "PyInit_") })
		if name := initFunction(moduleName(o.Path)); i >= 0 && name != "" {
			w.findAs(Note, RuleModuleMissing, o.Path, "exports %s, not %s: it cannot be imported under the name of the file", o.exports[i], name).with(name).
				because("The file was renamed, or the module has another name in its source.").repair("Give the file the name that its source has.")
		}
	}
}

// A found library is one that a file needs: in the wheel, in torch, or neither.
type foundDLL struct {
	object  *object
	library *SnapshotLibrary
	from    string // see dllSource; "python", "elsewhere"
}

// search finds a library for a file that was loaded from a folder.
func (w *windowsCheck) search(folder, lib, machine string) (found foundDLL, beside bool) {
	var other *object
	for _, o := range w.dlls[lib] {
		if o.Machine != machine {
			continue
		}
		if path.Dir(w.installed(o.Path)) == folder {
			return foundDLL{object: o}, true
		}
		if other == nil {
			other = o
		}
	}
	from := dllSource(lib)
	switch {
	case other != nil && from != fromWindows:
		return foundDLL{object: other}, false
	case pythonDLL.MatchString(lib):
		return foundDLL{from: fromPython}, true
	case w.torch != nil && strings.HasPrefix(w.torch.Platform, "win"):
		if l := w.torch.Library(lib); l != nil && (from == fromTorch || from == fromCUDA || w.usesTorch()) {
			return foundDLL{library: l, from: fromTorch}, true
		}
	}
	return foundDLL{from: from}, true
}

// usesTorch says whether torch is imported before the wheel's modules are.
func (c *checker) usesTorch() bool {
	return len(c.torchRequirements()) > 0 || slices.ContainsFunc(c.objects, (*object).needsTorch)
}

// load goes through everything that is loaded with a file. weak is for libraries that no module
// needs: they may be for programs that load them in their own way.
func (w *windowsCheck) load(root *object, weak bool, reached map[*object]bool) {
	folder := path.Dir(w.installed(root.Path))
	seen := map[*object]bool{root: true}
	queue := []*object{root}
	for len(queue) > 0 {
		o := queue[0]
		queue = queue[1:]
		found := map[string]foundDLL{}
		for _, lib := range o.Needed {
			f, beside := w.search(folder, lib, root.Machine)
			found[lib] = f
			if f.object != nil && !seen[f.object] {
				seen[f.object] = true
				if !reached[f.object] {
					queue = append(queue, f.object)
				}
			}
			if f.object != nil && !beside {
				w.reportElsewhere(o, root, f.object, lib, weak)
			}
			if f.object == nil && f.from != fromWindows && f.from != fromPython && !slices.Contains(w.report.External, lib) {
				w.report.External = append(w.report.External, lib)
			}
			if f.object == nil && f.library == nil {
				w.reportLibrary(o, lib, f.from, weak)
			}
		}
		w.reportNames(o, folder, found, weak)
		reached[o] = true
	}
}

// once says whether a thing is said for the first time.
func (w *windowsCheck) once(about ...string) bool {
	key := strings.Join(about, "\x00")
	defer func() { w.reported[key] = true }()
	return !w.reported[key]
}

// lighter is a severity for files that may never be loaded.
func lighter(s Severity, weak bool) Severity {
	if weak {
		return min(s, Warning)
	}
	return s
}

const notFound = "Import fails with `DLL load failed: The specified module could not be found`."

// reportElsewhere is about a library in a folder of the wheel where Windows does not look.
func (w *windowsCheck) reportElsewhere(o, root, dll *object, lib string, weak bool) {
	if w.searches || !w.isWheel || !w.once(o.Path, lib) {
		return // code that tells Windows where to look, or a file on its own
	}
	severity := lighter(Error, weak)
	// A module in that folder loads it for the whole process, if it is imported before.
	for _, other := range w.objects {
		if other.Module != "" && path.Dir(w.installed(other.Path)) == path.Dir(w.installed(dll.Path)) && slices.Contains(other.Needed, lib) {
			severity = Note
		}
	}
	where := "in the folder of the module"
	if o != root {
		where = "in the folder of " + root.Path
	}
	w.findAs(severity, RuleLibraryMissing, o.Path, "needs %s, which is not %s but at %s", lib, where, dll.Path).with(lib).
		because(notFound + " Nothing in the wheel calls os.add_dll_directory.").
		repair("Put the library beside the module, or call os.add_dll_directory in the package's __init__.py.")
}

// reportLibrary is about a library that is neither in the wheel nor in torch.
func (w *windowsCheck) reportLibrary(o *object, lib, from string, weak bool) {
	miss := func(severity Severity, format string, args ...any) *Finding {
		return w.findAs(lighter(severity, weak), RuleLibraryMissing, o.Path, format, args...).with(lib).because(notFound)
	}
	if !w.once(o.Path, lib) {
		return
	}
	switch from {
	case fromWindows, fromDriver, fromLoader:
	case fromPython:
		if m := pythonDLL.FindStringSubmatch(lib); m != nil && m[2] != "" {
			miss(Error, "needs %s, which only a debug build of Python has", lib).repair("Build for release: without --debug, with /MD.")
		}
	case fromRedistributable, fromOldRedistributable:
		w.runtimes = append(w.runtimes, runtimeUse{lib, o.Path})
	case fromDebug:
		miss(Error, "needs %s, which only machines with Visual Studio have", lib).
			because("It was compiled with /MDd, for debugging. " + notFound).repair("Build for release: /MD in place of /MDd.")
	case fromTorch:
		switch {
		case w.torch == nil || w.guessed && w.torch.CUDA == "" && strings.Contains(lib, "cuda"):
			// The builds with CUDA are not on PyPI, so there is no record of them.
		default:
			f := miss(Error, "needs %s, which %s does not have", lib, w.torch.Title())
			if strings.Contains(lib, "cuda") && w.torch.CUDA == "" {
				f.because("The module was built for CUDA, and this torch was not.").repair("Use a torch with CUDA, or build the module for the CPU.")
			}
		}
	case fromCUDA:
		w.reportCUDA(o, lib, weak)
	default:
		if w.requires("") && (w.searches || weak) {
			w.others[o.Path] = append(w.others[o.Path], lib)
			return
		}
		miss(Error, "needs %s, which neither the wheel, nor Windows, nor Python has", lib)
	}
}

// reportCUDA is about a library of a CUDA toolkit.
func (w *windowsCheck) reportCUDA(o *object, lib string, weak bool) {
	stem, _, _ := strings.Cut(lib, "64_")
	other := ""
	if w.torch != nil && !w.guessed && w.torch.CUDA != "" {
		for i := range w.torch.Libraries {
			if name := w.torch.Libraries[i].File; strings.HasPrefix(name, stem+"64_") {
				other = name
			}
		}
	}
	vendor := strings.HasPrefix(w.filename.Name, "nvidia-")
	switch {
	case vendor || w.requires("nvidia-") || w.requires("cuda-toolkit"):
	case other != "":
		w.findAs(lighter(Error, weak), RuleCUDAMajor, o.Path, "needs %s, but %s brings %s", lib, w.torch.Title(), other).with(lib)
	case w.torch != nil && !w.guessed:
		w.findAs(lighter(Error, weak), RuleLibraryMissing, o.Path, "needs %s, which %s does not bring", lib, w.torch.Title()).with(lib).because(notFound)
	case w.usesTorch():
		// A torch with CUDA brings it.
	case w.searches:
		w.findAs(Note, RuleLibraryMissing, o.Path, "needs %s of a CUDA toolkit, which no requirement brings", lib).with(lib).
			because("Code in the wheel looks for the toolkit.").repair("Require NVIDIA's package that brings it.")
	default:
		w.findAs(lighter(Error, weak), RuleLibraryMissing, o.Path, "needs %s of a CUDA toolkit, which no requirement brings", lib).with(lib).
			because(notFound).repair("Require torch or NVIDIA's package that brings it, and add its folder with os.add_dll_directory.")
	}
}

// requires says whether the wheel depends on a package whose name begins so, on Windows and without
// an extra.
func (c *checker) requires(prefix string) bool {
	if c.metadata == nil {
		return false
	}
	return slices.ContainsFunc(c.metadata.RequiresDist(), func(text string) bool {
		req, err := wheel.ParseRequirement(text)
		return err == nil && strings.HasPrefix(req.Name, prefix)
	})
}

// reportRuntimes says once for each library which files need the redistributable.
func (w *windowsCheck) reportRuntimes() {
	files := map[string][]string{}
	var order []string
	for _, use := range w.runtimes {
		if files[use.library] == nil {
			order = append(order, use.library)
		}
		files[use.library] = append(files[use.library], use.file)
	}
	for _, lib := range order {
		severity := Warning
		if w.usesTorch() && dllSource(lib) == fromRedistributable {
			severity = Note // torch asks for it, and says so
		}
		w.findAs(severity, RuleVCRuntime, files[lib][0], "needs %s%s", lib, moreFiles(files[lib])).with(lib)
	}
}

func moreFiles(list []string) string {
	if len(list) < 2 {
		return ""
	}
	return ", as do " + units.Count(len(list)-1, "other file")
}

// reportNames looks up the names that a file takes from each library.
func (w *windowsCheck) reportNames(o *object, folder string, found map[string]foundDLL, weak bool) {
	missing := map[string][]string{}
	var order []string
	for i := range o.pe.imports {
		im := &o.pe.imports[i]
		f, ok := found[im.library]
		if im.delayed || !ok || w.offers(f, im.name, folder, 0) {
			continue
		}
		if missing[im.library] == nil {
			order = append(order, im.library)
		}
		missing[im.library] = append(missing[im.library], im.name)
	}
	for _, lib := range order {
		names := missing[lib]
		home, hint := lib+" of the wheel", ""
		if l := found[lib].library; l != nil {
			if w.guessed && w.torch.CUDA == "" && w.needsCUDA() {
				w.find(RuleSymbolUnknown, o.Path, "%s not in %s, and the build with CUDA is not on record: %s",
					units.Count(len(names), "name"), w.torch.Title(), firstFew(names, 3)).with(names...)
				continue
			}
			home = lib + " of " + w.torch.Title()
			hint = nearName(l, names[0], w.torch)
		}
		f := w.findAs(lighter(Error, weak), RuleSymbolMissing, o.Path, "%s does not export %s%s%s", home, windowsName(names[0]), hint, more(names)).with(names...).
			because("The library was replaced by another version than the file was linked with. Import fails with `DLL load failed: The specified procedure could not be found`.")
		if found[lib].library != nil && f.Severity != Off {
			w.lookups = append(w.lookups, lookup{lib, names[0], len(w.report.Findings) - 1})
		}
	}
}

// needsCUDA says whether a file of the wheel needs the CUDA half of torch.
func (c *checker) needsCUDA() bool {
	return slices.ContainsFunc(c.objects, func(o *object) bool {
		return slices.ContainsFunc(o.Needed, func(lib string) bool {
			return isDLL(lib) && (dllSource(lib) == fromCUDA || dllSource(lib) == fromTorch && strings.Contains(lib, "cuda"))
		})
	})
}

// maxForwards bounds the exports that stand for exports that stand for others.
const maxForwards = 8

// offers says whether a library that was found has a name, as far as that is known.
func (w *windowsCheck) offers(f foundDLL, name, folder string, depth int) bool {
	switch {
	case name == "":
		return true
	case f.library != nil:
		return name[0] == '#' || f.library.Has(name)
	case f.object == nil || f.object.pe.ordinals == nil && len(f.object.Needed) == 0:
		return true // not a file of the wheel, or one that could not be read
	}
	dll := f.object.pe
	if name[0] == '#' {
		var n uint32
		_, err := fmt.Sscanf(name, "#%d", &n)
		return err == nil && dll.ordinals[n]
	}
	if !f.object.has(name) {
		return false
	}
	target, ok := dll.forwards[name]
	if !ok {
		return true
	}
	at := strings.LastIndexByte(target, '.')
	if at < 0 || depth == maxForwards {
		return false
	}
	next, _ := w.search(folder, strings.ToLower(target[:at])+".dll", f.object.Machine)
	if next.object == nil && next.library == nil {
		return next.from != ""
	}
	return w.offers(next, target[at+1:], folder, depth+1)
}

// nearName says what a library has in place of a name.
func nearName(l *SnapshotLibrary, name string, torch *Snapshot) string {
	if home := torch.Provider(name); home != nil {
		return "; " + home.File + " does"
	}
	i := strings.Index(name, "@@")
	if !strings.HasPrefix(name, "?") || i < 0 {
		return ""
	}
	prefix := name[:i+2]
	if at, _ := slices.BinarySearch(l.names, prefix); at < len(l.names) && strings.HasPrefix(l.names[at], prefix) {
		return "; it has that function with other parameters: " + l.names[at]
	}
	return ""
}

var plainMSVC = regexp.MustCompile(`^\?(\w+)((?:@\w+)+)@@`)

// windowsName is a name as MSVC writes it, with the plain one in front where that is easy to read.
func windowsName(name string) string {
	m := plainMSVC.FindStringSubmatch(name)
	if m == nil {
		return demangled(name)
	}
	parts := strings.Split(m[2], "@")[1:]
	slices.Reverse(parts)
	return strings.Join(append(parts, m[1]), "::") + " (" + name + ")"
}

// compareTorches fills the table of torch versions.
func (w *windowsCheck) compareTorches(list []*object) {
	if len(list) == 0 {
		return
	}
	platform := list[0].platform()
	var wanted []string
	for _, o := range list {
		wanted = append(wanted, o.pe.namesFrom(isDLL)...)
	}
	slices.Sort(wanted)
	cuda := w.needsCUDA()
	torches := builtinTorches(platform, slices.Compact(wanted))
	if w.torch != nil {
		i := slices.IndexFunc(torches, func(t *Snapshot) bool { return t.Version == w.torch.Version })
		if i < 0 {
			i, torches = len(torches), append(torches, nil)
		}
		torches[i] = w.torch
	}
	versions := make([][]string, len(w.lookups))
	for _, torch := range torches {
		w.report.WorksWith = append(w.report.WorksWith, windowsVerdict(list, torch, cuda))
		for i, l := range w.lookups {
			if lib := torch.Library(l.file); lib != nil && lib.Has(l.symbol) {
				versions[i] = append(versions[i], torch.Version)
			}
		}
	}
	w.report.TorchABI = w.torchABI(list, torches)
	w.explain(torches)
	for i, l := range w.lookups {
		f := &w.report.Findings[l.finding]
		if len(versions[i]) > 0 {
			f.Message += fmt.Sprintf("; that of torch %s does", ranges(versions[i], builtinVersions(platform)))
		} else {
			f.Message += "; no torch on record does"
		}
	}
}

// windowsVerdict says whether all files load with a torch. cuda says that they are for a torch with
// CUDA, of which a build without says little.
func windowsVerdict(list []*object, torch *Snapshot, cuda bool) TorchVerdict {
	v := TorchVerdict{Torch: torch.Version}
	fail := func(format string, args ...any) {
		if v.Missing == 0 {
			v.Reason = fmt.Sprintf(format, args...)
		}
		v.Missing++
	}
	other := cuda && torch.CUDA == ""
	for _, o := range list {
		for _, lib := range o.Needed {
			if torchLibrary(lib) && torch.Library(lib) == nil && !(other && strings.Contains(lib, "cuda")) {
				fail("no %s", lib)
			}
		}
		for i := range o.pe.imports {
			im := &o.pe.imports[i]
			lib := torch.Library(im.library)
			if im.delayed || im.name == "" || im.name[0] == '#' || lib == nil || !torchLibrary(im.library) || lib.Has(im.name) {
				continue
			}
			if other && strings.Contains(strings.ToLower(im.name), "cuda") {
				continue
			}
			if v.Missing == 0 {
				v.File, v.Symbol = o.Path, im.name
			}
			plain, _, _ := strings.Cut(windowsName(im.name), " (?")
			fail("no %s in %s", plain, im.library)
		}
	}
	v.OK = v.Missing == 0
	return v
}

// checkBundledDLL looks for libraries that a wheel must not bring.
func (c *checker) checkBundledDLL(o *object) {
	base := strings.ToLower(path.Base(o.Path))
	project := c.filename.Name
	vendor := strings.HasPrefix(project, "nvidia-")
	from := dllSource(base)
	switch {
	case from == fromDriver && !vendor:
		c.find(RuleBundled, o.Path, "%s comes with the driver and must match it", base).with(base)
	case from == fromTorch && project != "torch" && !strings.HasPrefix(project, "torch-"):
		c.find(RuleBundled, o.Path, "%s comes with torch; a second copy does not share its state", base).with(base)
	case from == fromCUDA && !vendor && project != "torch":
		c.findAs(Warning, RuleBundled, o.Path, "%s comes with torch and with NVIDIA's packages; a second copy doubles the download and its state", base).with(base)
	}
}

// checkPythonDLL compares the interpreter that a module is linked with, and the end of its name,
// with the tags.
func (c *checker) checkPythonDLL(o *object) {
	base := path.Base(o.Path)
	if stem, _, _ := strings.Cut(base, "."); !strings.EqualFold(base, stem+".pyd") && parseModuleSuffix(base).python == "" {
		c.find(RulePythonTag, o.Path, "Python on Windows imports %s.pyd, not %s", stem, base).
			because("Its importers know the endings .pyd and .cp312-win_amd64.pyd, with the version at hand; not .abi3.pyd.").
			repair("Name it " + stem + ".pyd.")
	}
	tag, abi3 := "", false
	if c.isWheel {
		tag, abi3 = wheelPython(c.filename)
	}
	if tag == "" && c.opts.Python != "" {
		tag = "cp" + strings.ReplaceAll(c.opts.Python, ".", "")
	}
	if tag == "" {
		tag = o.Python
	}
	for _, lib := range o.Needed {
		python := pythonOfDLL(lib)
		switch {
		case python == "" || python == "abi3":
		case abi3:
			c.find(RuleABI3, o.Path, "needs %s, which only Python 3.%d has", lib, pythonMinor(python)).with(lib).
				because("It was compiled without Py_LIMITED_API, and so linked with the library of one Python in place of python3.dll.")
		case tag != "" && tag != "abi3" && python != tag:
			c.find(RulePythonTag, o.Path, "needs %s, but is for %s", lib, tag).with(lib)
		}
	}
}
