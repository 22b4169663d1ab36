package audit

import (
	"debug/elf"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/wheel"
)

// torchName matches mangled names in the namespaces of torch: functions, vtables, type
// information, thunks and guards.
var torchName = regexp.MustCompile(`^_Z(?:T[VTIS]|GV|T[hv][n0-9_]+)?N?[VKRO]*(?:3c10|2at|5torch|6caffe2)`)

// torchSymbol says whether a symbol can come from torch only.
func torchSymbol(name string) bool {
	return torchName.MatchString(name) || strings.HasPrefix(name, "THP") || stableTorchName(name)
}

// torchHome is the library that has had symbols like this one in every torch so far.
func torchHome(name string) string {
	cuda := strings.Contains(name, "4cuda")
	switch {
	case strings.Contains(name, "3c10") && cuda:
		return "libc10_cuda.so"
	case strings.HasPrefix(name, "_ZN3c10") || strings.HasPrefix(name, "_ZNK3c10"):
		return "libc10.so"
	case strings.HasPrefix(name, "THP"):
		return "libtorch_python.so"
	case cuda:
		return "libtorch_cuda.so"
	}
	return "libtorch_cpu.so"
}

// chooseTorch finds the torch to compare with.
func (c *checker) chooseTorch() {
	c.torch = c.opts.Torch
	if c.torch == nil && !c.opts.NoTorch && c.isWheel && slices.ContainsFunc(c.objects, (*object).needsTorch) {
		if version := c.namedTorch(); version != "" {
			if s, err := builtin(KindTorch, version, c.system()); err == nil {
				c.torch, c.guessed = s, true
			} else {
				c.find(RuleTorchVersion, "", "names torch %s, of which there is no snapshot", version)
			}
		}
	}
	if c.torch != nil && !strings.HasPrefix(c.torch.Platform, c.system()[:3]) && slices.ContainsFunc(c.objects, (*object).needsTorch) {
		// A version on record stands for the one of every system.
		public, _, _ := strings.Cut(c.torch.Version, "+")
		s, err := builtin(KindTorch, public, c.system())
		if err != nil {
			c.find(RuleTorchVersion, "", "%s is for %s, and there is no snapshot for %s", c.torch.Title(), c.torch.Platform, c.system())
		}
		c.torch, c.guessed = s, true
	}
	if c.torch != nil {
		c.report.Torch = c.torch.Version
	}
}

// system is the platform of the files that need torch.
func (c *checker) system() string {
	for _, o := range c.objects {
		if o.linked() && o.needsTorch() {
			return o.platform()
		}
	}
	return "linux_x86_64"
}

// namedTorch is the exact torch version in the local label or in the requirements.
func (c *checker) namedTorch() string {
	local := c.filename.Version.Local()
	if i := strings.Index("."+local, ".torch"); i >= 0 {
		version := strings.TrimPrefix(local[i:], "torch")
		digits := strings.FieldsFunc(version, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if len(digits) > 0 && strings.HasPrefix(version, digits[0]) {
			version = strings.Trim(digits[0], ".")
			if strings.Count(version, ".") == 1 {
				version += ".0"
			}
			return version
		}
	}
	for _, req := range c.torchRequirements() {
		for _, spec := range req.Specifier.Specifiers() {
			if v, ok := spec.Version(); ok && spec.Operator() == "==" && !strings.HasSuffix(spec.Text(), ".*") {
				return v.Public()
			}
		}
	}
	return ""
}

func (c *checker) torchRequirements() []wheel.Requirement {
	if c.metadata == nil {
		return nil
	}
	var out []wheel.Requirement
	for _, text := range c.metadata.RequiresDist() {
		if req, err := wheel.ParseRequirement(text); err == nil && req.Name == "torch" {
			out = append(out, req)
		}
	}
	return out
}

// A scope is where the loader looks for the symbols of one file: what is loaded for the whole
// process, then everything the file needs, directly or not.
type scope struct {
	objects   []*object
	libraries []*SnapshotLibrary
	// unknown are libraries in scope of which no symbols are known.
	unknown []string
	// missing are needed by the wheel's own files and cannot be there.
	missing []string
}

func (s *scope) has(symbol string) bool {
	for _, o := range s.objects {
		if o.has(symbol) {
			return true
		}
	}
	for _, l := range s.libraries {
		if l.Has(symbol) {
			return true
		}
	}
	return false
}

// scopeOf walks the needed libraries of o, breadth first, with a torch that may be nil.
func (c *checker) scopeOf(o *object, torch *Snapshot) *scope {
	s := new(scope)
	seen := map[string]bool{}
	type item struct {
		lib string
		own bool // asked for by a file of the wheel
	}
	var queue []item
	push := func(libs []string, own bool) {
		for _, lib := range libs {
			queue = append(queue, item{lib, own})
		}
	}
	push(o.Needed, true)
	if torch != nil {
		// torch opens this library for the whole process when it is imported.
		if deps := torch.Library("libtorch_global_deps.so"); deps != nil {
			push(deps.Needed, false)
		}
	}
	for len(queue) > 0 {
		it := queue[0]
		queue = queue[1:]
		if seen[it.lib] {
			continue
		}
		seen[it.lib] = true
		if own := c.byName[it.lib]; own != nil {
			s.objects = append(s.objects, own)
			push(own.Needed, true)
			continue
		}
		if torch != nil {
			if l := torch.Library(it.lib); l != nil {
				s.libraries = append(s.libraries, l)
				push(l.Needed, false)
				continue
			}
		}
		switch {
		case isLoader(it.lib) || systemLibrary(it.lib) || strings.HasPrefix(it.lib, "libpython3"):
		case torch != nil && it.own && torchLibrary(it.lib),
			torch != nil && it.own && cudaLibrary(it.lib) && !brings(torch, it.lib) && len(originPaths(o)) == 0:
			s.missing = append(s.missing, it.lib)
		default:
			s.unknown = append(s.unknown, it.lib)
		}
	}
	return s
}

// systemLibrary says whether every Linux system has the library, under this name.
func systemLibrary(soname string) bool {
	if s := systemNames(); s != nil && s.Library(soname) != nil {
		return true
	}
	list := policies("x86_64")
	return list[len(list)-1].libraries[soname]
}

// brings says whether importing torch loads a library that is not its own, such as
// libcudart.so.12.
func brings(torch *Snapshot, soname string) bool {
	for i := range torch.Libraries {
		if slices.Contains(torch.Libraries[i].Needed, soname) {
			return true
		}
	}
	return false
}

// unresolved are the strong symbols of o that nothing in scope defines. Symbols of the
// interpreter are left to checkPython.
func (c *checker) unresolved(o *object, s *scope) []string {
	var out []string
	for i := range o.undefined {
		sym := &o.undefined[i]
		if sym.file != "" && c.byName[sym.file] == nil && !torchLibrary(sym.file) {
			continue // versions are the business of the platform
		}
		if isPythonSymbol(sym.name) || s.has(sym.name) {
			continue
		}
		if system := systemNames(); system != nil && system.Provider(sym.name) != nil {
			continue
		}
		out = append(out, sym.name)
	}
	return out
}

// loadable are the files whose symbols are looked up: extension modules, and libraries that
// need torch.
func (c *checker) loadable() []*object {
	var out []*object
	for _, o := range c.objects {
		if o.elf != nil && o.elf.complete && o.elf.kind == elf.ET_DYN && (o.Module != "" || o.needsTorch()) {
			out = append(out, o)
		}
	}
	return out
}

// A lookup is a symbol that was not found, to be looked for in other versions of torch.
type lookup struct {
	file, symbol string
	finding      int // index in the report, -1 if none
}

// checkTorch looks up all symbols the way the loader does.
func (c *checker) checkTorch() {
	list := c.loadable()
	usesTorch := slices.ContainsFunc(list, (*object).needsTorch)
	if usesTorch {
		c.checkDeclared()
	}
	var lookups []lookup
	for _, o := range list {
		s := c.scopeOf(o, c.torch)
		c.reportLibraries(o, s)
		c.reportABI(o)
		lookups = append(lookups, c.reportSymbols(o, s)...)
	}
	if c.filename.Name == "torch" || c.opts.NoTable {
		return
	}
	if !usesTorch && len(lookups) == 0 {
		if !slices.ContainsFunc(c.objects, func(o *object) bool { return o.Kind == "pe" }) {
			c.report.TorchABI = c.torchABI(list, nil)
		}
		return
	}
	platform := "linux_" + list[0].Machine
	versions := make([][]string, len(lookups)) // that have the symbol
	homes := make([]string, len(lookups))
	try := func(torch *Snapshot) {
		if usesTorch {
			c.report.WorksWith = append(c.report.WorksWith, c.verdict(list, torch))
		}
		for i := range lookups {
			if l := torch.Provider(lookups[i].symbol); l != nil {
				versions[i] = append(versions[i], torch.Version)
				homes[i] = l.Soname
			}
		}
	}
	wanted := []string{} // the names that will be asked for
	for _, o := range list {
		for i := range o.undefined {
			wanted = append(wanted, o.undefined[i].name)
		}
	}
	slices.Sort(wanted)
	tried := false
	torches := builtinTorches(platform, slices.Compact(wanted))
	for i, torch := range torches {
		if c.torch != nil && torch.Version == c.torch.Version {
			tried = true
			torch, torches[i] = c.torch, c.torch
		}
		try(torch)
	}
	c.report.TorchABI = c.torchABI(list, torches)
	if c.torch != nil && !tried {
		torches = append(torches, c.torch)
		try(c.torch)
	}
	c.explain(torches)
	for i := range lookups {
		if lookups[i].finding < 0 {
			continue
		}
		f := &c.report.Findings[lookups[i].finding]
		if homes[i] != "" {
			f.Message += fmt.Sprintf("; %s of torch %s has it", homes[i], ranges(versions[i], Builtins()))
		} else {
			f.Message += "; no torch on record has it"
		}
	}
}

// checkDeclared looks for torch among the requirements of a wheel that needs it.
func (c *checker) checkDeclared() {
	if c.isWheel && c.metadata != nil && len(c.torchRequirements()) == 0 && c.filename.Name != "torch" {
		c.find(RuleTorchUndeclared, "", "no Requires-Dist on torch")
	}
}

// ranges joins versions that follow each other in the list of all: "2.6.0 to 2.8.0".
func ranges(have, all []string) string {
	public := func(v string) string {
		v, _, _ = strings.Cut(v, "+")
		return v
	}
	var parts []string
	for i := 0; i < len(have); {
		j := i
		for k := slices.Index(all, have[i]); j+1 < len(have) && k >= 0 && k+1 < len(all) && all[k+1] == have[j+1]; k++ {
			j++
		}
		if j-i < 2 {
			for ; i <= j; i++ {
				parts = append(parts, public(have[i]))
			}
			continue
		}
		parts = append(parts, public(have[i])+" to "+public(have[j]))
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// verdict says whether all files load with a torch.
func (c *checker) verdict(list []*object, torch *Snapshot) TorchVerdict {
	v := TorchVerdict{Torch: torch.Version}
	fail := func(n int, format string, args ...any) {
		if v.Missing == 0 {
			v.Reason = fmt.Sprintf(format, args...)
		}
		v.Missing += n
	}
	for _, o := range list {
		if !o.needsTorch() {
			continue
		}
		s := c.scopeOf(o, torch)
		if c.opts.SameCUDA {
			s.missing = slices.DeleteFunc(slices.Clone(s.missing), func(lib string) bool {
				if cudaLibrary(lib) {
					s.unknown = append(s.unknown, lib)
				}
				return cudaLibrary(lib)
			})
		}
		if len(s.missing) > 0 {
			fail(len(s.missing), "no %s", s.missing[0])
		}
		if differs(o.CXXABI, torch) {
			fail(1, "has the %s C++ ABI", strings.TrimSuffix(abiName(*torch.CXX11ABI), " one"))
		}
		var symbols []string
		for _, name := range c.unresolved(o, s) {
			if torchSymbol(name) || len(s.unknown) == 0 || torch.Provider(name) != nil {
				symbols = append(symbols, name)
			}
		}
		if len(symbols) > 0 {
			if v.Missing == 0 {
				v.File, v.Symbol = o.Path, symbols[0]
			}
			fail(len(symbols), "no %s", shortName(symbols[0]))
		}
	}
	v.OK = v.Missing == 0
	return v
}

func abiName(isNew bool) string {
	if isNew {
		return "new one"
	}
	return "old one"
}

// differs says that an object was compiled with the other C++ ABI than torch.
func differs(abi CXXABI, torch *Snapshot) bool {
	if torch == nil || torch.CXX11ABI == nil {
		return false
	}
	return abi == CXXABINew && !*torch.CXX11ABI || abi == CXXABIOld && *torch.CXX11ABI
}

// shortName is a demangled name without parameters, or as it is.
func shortName(name string) string {
	if text := qualifiedName(name); text != name {
		return text
	}
	return name
}

func (c *checker) reportLibraries(o *object, s *scope) {
	for _, lib := range s.missing {
		stem, _, _ := strings.Cut(lib, ".so")
		other := ""
		for i := range c.torch.Libraries {
			for _, need := range c.torch.Libraries[i].Needed {
				if strings.HasPrefix(need, stem+".so.") {
					other = need
				}
			}
		}
		switch {
		case cudaLibrary(lib) && other != "":
			c.find(RuleCUDAMajor, o.Path, "needs %s, but %s brings %s", lib, c.torch.Title(), other).with(lib)
		case cudaLibrary(lib):
			c.find(RuleLibraryMissing, o.Path, "needs %s, which %s does not bring", lib, c.torch.Title()).with(lib)
		default:
			f := c.find(RuleLibraryMissing, o.Path, "needs %s, which %s does not have", lib, c.torch.Title()).with(lib)
			if strings.Contains(lib, "cuda") && c.torch.CUDA == "" {
				f.because("The module was built for CUDA, and this torch was not.").repair("Use a torch with CUDA, or build the module for the CPU.")
			}
		}
	}
	if o.Module != "" && o.needsTorch() && len(o.RunPath) == 0 {
		c.find(RuleImportOrder, o.Path, "no run path to torch's libraries")
	}
	if o.needsTorch() && c.otherPybind(o) {
		c.find(RulePybind, o.Path, "%s, but %s has %s", o.Pybind, c.torch.Title(), c.torch.Pybind).with(o.Pybind, c.torch.Pybind)
	}
}

var pybindVersion = regexp.MustCompile(`_v\d+`)

// otherPybind says whether torch does not recognize the types of a module. The number in
// pybind11's internals id also depends on the version of Python, and the torch on record is one
// for a single Python, so for another one the rest of the id has to do.
func (c *checker) otherPybind(o *object) bool {
	if c.torch == nil || o.Pybind == "" || c.torch.Pybind == "" {
		return false
	}
	python := o.Python
	if python == "" {
		python, _ = wheelPython(c.filename)
	}
	mine, torch := o.Pybind, c.torch.Pybind
	if python != c.torch.Python {
		mine, torch = pybindVersion.ReplaceAllString(mine, ""), pybindVersion.ReplaceAllString(torch, "")
	}
	return mine != torch
}

func (c *checker) reportABI(o *object) {
	if o.needsTorch() && differs(o.CXXABI, c.torch) {
		c.find(RuleCXXABI, o.Path, "compiled with the %s C++ ABI, but %s has the %s", o.CXXABI, c.torch.Title(), abiName(*c.torch.CXX11ABI))
	}
}

// reportSymbols adds the findings about undefined symbols and returns what to look for in other
// versions of torch.
func (c *checker) reportSymbols(o *object, s *scope) []lookup {
	var missing, unlinked, unknown []string
	for _, name := range c.unresolved(o, s) {
		switch {
		case c.torch == nil && (o.needsTorch() || torchSymbol(name)):
			// Without a torch there is nothing to say; the table tells.
		case c.torch != nil && c.torch.Provider(name) != nil:
			unlinked = append(unlinked, name)
		case torchSymbol(name), len(s.unknown) == 0 && len(s.missing) == 0:
			missing = append(missing, name)
		default:
			unknown = append(unknown, name)
		}
	}
	var out []lookup
	if len(missing) > 0 {
		f := c.find(RuleSymbolMissing, o.Path, "undefined symbol: %s%s%s", demangled(missing[0]), c.hint(missing[0]), more(missing)).with(missing...)
		if o.Module == "" && !o.needsTorch() {
			f.Severity = min(f.Severity, Warning)
		}
		if torchSymbol(missing[0]) && f.Severity != Off {
			out = append(out, lookup{o.Path, missing[0], len(c.report.Findings) - 1})
		}
	}
	if len(unlinked) > 0 {
		home := c.torch.Provider(unlinked[0]).Soname
		severity := Error
		if o.Module == "" {
			severity = Note // the program that loads it may have loaded the library before
		}
		c.findAs(severity, RuleSymbolUnlinked, o.Path, "undefined symbol: %s; %s has it, but is not among the needed libraries%s",
			demangled(unlinked[0]), home, more(unlinked)).with(unlinked...)
	}
	if len(unknown) > 0 {
		c.find(RuleSymbolUnknown, o.Path, "%s may come from %s: %s", units.Count(len(unknown), "symbol"), firstFew(s.unknown, 3), firstFew(unknown, 3)).
			with(unknown...)
	}
	return out
}

func more(list []string) string {
	if len(list) < 2 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", len(list)-1)
}

// hint says what torch has in place of a symbol, if something is close.
func (c *checker) hint(name string) string {
	if c.torch == nil || !torchSymbol(name) {
		return ""
	}
	if other := abiVariant(name); other != "" && c.torch.Provider(other) != nil {
		return "; " + c.torch.Title() + " has it with the other C++ ABI"
	}
	if prefix := mangledPrefix(name); prefix != "" {
		for i := range c.torch.Libraries {
			names := c.torch.Libraries[i].names
			if at, _ := slices.BinarySearch(names, prefix); at < len(names) && strings.HasPrefix(names[at], prefix) {
				return fmt.Sprintf("; %s has %s in %s", c.torch.Title(), demangled(names[at]), c.torch.Libraries[i].Soname)
			}
		}
	}
	return "; it should be in " + torchHome(name)
}

// mangledPrefix is the part of a mangled name that gives the qualified name: all functions of
// that name begin with it, whatever their parameters. It is "" for names it cannot take apart.
func mangledPrefix(name string) string {
	rest, ok := strings.CutPrefix(name, "_ZN")
	if !ok {
		return ""
	}
	at := len(name) - len(rest)
	for at < len(name) && strings.IndexByte("KVRO", name[at]) >= 0 {
		at++
	}
	for at < len(name) && name[at] >= '1' && name[at] <= '9' {
		n, digits := 0, at
		for digits < len(name) && name[digits] >= '0' && name[digits] <= '9' && n < 1<<16 {
			n = n*10 + int(name[digits]-'0')
			digits++
		}
		if digits+n > len(name) {
			return ""
		}
		at = digits + n
	}
	if at < len(name) && name[at] == 'E' {
		return name[:at+1]
	}
	return ""
}
