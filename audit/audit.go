package audit

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
	"golang.org/x/sync/errgroup"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/wheel"
)

// Options say what a wheel is to be compared with. The zero value compares it with itself and
// with the torch that its own metadata names.
type Options struct {
	// Torch is the torch that symbols are compared with. By default it is the builtin
	// snapshot of the version that the local label (torch2.9.0) or the requirement
	// (torch==2.9.0) names, if there is one.
	Torch *Snapshot
	// BuiltFor is the release of torch whose headers the wheel was compiled with, such as "2.9.0":
	// releases that lay out its classes differently do not do. By default it is the one that the
	// local label or the requirement names.
	BuiltFor string
	// TorchStable is the first torch release that the wheel is said to be for, with all later ones,
	// such as "2.10": it may use nothing but libtorch's stable ABI as of that release.
	TorchStable string
	// SameCUDA says that the torch releases in Report.WorksWith are those for the CUDA of the wheel,
	// so that its libraries are there. The builtin ones are those of PyPI, for one CUDA each.
	SameCUDA bool
	// NoTorch compares with no torch, where that of the metadata is not the one that the wheel was
	// built for.
	NoTorch bool
	// NoTable leaves out Report.WorksWith, which reads every builtin snapshot.
	NoTable bool

	// Places looks in debug information for the lines that call functions of torch, for
	// [TorchABI.Advice].
	Places bool

	// Archs is the list of CUDA targets the wheel is to have code for; empty: not compared.
	Archs compat.ArchList
	// Gfx is the list of AMD targets, likewise.
	Gfx compat.GfxList

	// Python is the interpreter of the row, such as "3.12" or "3.13t"; "" takes it from the
	// tags.
	Python string
	// Platform is a platform tag that the wheel must be good for, such as
	// "manylinux_2_28_x86_64"; "" takes those of the file name.
	Platform string
	// Modules are extension modules that must be there, by the last part of their name, such
	// as "exllamav2_ext".
	Modules []string

	// Severity changes the severity of rules; Off drops their findings.
	Severity map[string]Severity
	// SkipDigests leaves members that are not native unread, so that their content is not
	// compared with RECORD.
	SkipDigests bool
	// Limits bound what is read of the archive; see [wheel.Limits].
	Limits wheel.Limits
	// TempDir is where large native members are unpacked while they are looked at. Default
	// os.TempDir.
	TempDir string

	inMemory int64 // in place of maxInMemory, if not 0
}

// Check audits a wheel or a single native library. The error is about reading the file or
// about ctx; what is wrong with the file is in the report.
func Check(ctx context.Context, file string, opts Options) (*Report, error) {
	f, err := fsx.Open(file)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return CheckReader(ctx, f, info.Size(), filepath.Base(file), opts)
}

// CheckReader is [Check] of a file that is open already. name is its name without a folder.
func CheckReader(ctx context.Context, r io.ReaderAt, size int64, name string, opts Options) (*Report, error) {
	c := &checker{
		opts:   opts,
		report: &Report{Format: ReportFormat, File: name, Size: size, Findings: []Finding{}, Objects: []Object{}},
	}
	var err error
	if strings.HasSuffix(name, ".whl") {
		err = c.wheel(ctx, r, size, name)
	} else {
		err = c.single(r, size, name)
	}
	if err != nil {
		return nil, fmt.Errorf("audit %s: %w", name, err)
	}
	c.report.sort()
	return c.report, nil
}

// A checker audits one file.
type checker struct {
	opts     Options
	report   *Report
	filename wheel.Filename
	isWheel  bool
	metadata *wheel.Metadata
	info     *wheel.WheelInfo
	torch    *Snapshot
	// guessed says that torch is the build on record, where the wheel names only a version.
	guessed bool
	objects []*object
	// searches says that Python code in the wheel tells Windows where to look for libraries.
	searches bool
	byName   map[string]*object
}

// An object is a native file with what the report does not show.
type object struct {
	Object
	elf       *elfFile
	undefined []elfSymbol // strong ones
	exports   []string    // sorted
	gpu       gpuCode
	places    map[string][]string
	pe        *peFile
}

func (o *object) has(symbol string) bool {
	_, ok := slices.BinarySearch(o.exports, symbol)
	return ok
}

func (o *object) needsTorch() bool { return slices.ContainsFunc(o.Needed, torchLibrary) }

// find adds a finding. Rules that are off give a finding that is not reported.
func (c *checker) find(rule, file, format string, args ...any) *Finding {
	r, ok := LookupRule(rule)
	if !ok {
		panic("audit: no rule " + rule)
	}
	return c.findAs(r.Severity, rule, file, format, args...)
}

// findAs is find with another default severity, for cases that are milder than the rule.
func (c *checker) findAs(severity Severity, rule, file, format string, args ...any) *Finding {
	r, _ := LookupRule(rule)
	if s, ok := c.opts.Severity[rule]; ok {
		severity = s
	}
	f := Finding{Rule: rule, Severity: severity, File: file, Message: fmt.Sprintf(format, args...), Cause: r.Cause, Fix: r.Fix}
	if severity == Off {
		return &f
	}
	c.report.Findings = append(c.report.Findings, f)
	return &c.report.Findings[len(c.report.Findings)-1]
}

// wheel audits a wheel.
func (c *checker) wheel(ctx context.Context, r io.ReaderAt, size int64, name string) error {
	filename, err := wheel.ParseFilename(name)
	if err != nil {
		c.find(RuleName, "", "%v", err)
		return nil
	}
	c.filename, c.isWheel = filename, true
	w, err := wheel.NewReader(r, size, name, c.opts.Limits)
	var format *wheel.FormatError
	switch {
	case errors.As(err, &format):
		c.find(RuleArchive, format.Member, "%s", format.Detail)
		return nil
	case err != nil:
		return err
	}
	w.SetInflater(flate.NewReader) // twice as fast as the standard library's
	problems, err := w.Check(ctx, wheel.CheckOptions{NamesOnly: true})
	if err != nil {
		return err
	}
	for _, p := range problems {
		c.find(ruleOf(p.Kind), p.Path, "%s", p.Detail)
	}
	// What is missing has been reported.
	c.metadata, _ = w.Metadata()
	c.info, _ = w.Info()
	if err := c.members(ctx, w); err != nil {
		return err
	}
	c.judge()
	return ctx.Err()
}

// ruleOf maps the problems that package wheel finds.
func ruleOf(kind wheel.Kind) string {
	switch kind {
	case wheel.KindName, wheel.KindVersion, wheel.KindLocal:
		return RuleName
	case wheel.KindTag:
		return RuleTag
	case wheel.KindMetadata, wheel.KindInfo, wheel.KindMissing, wheel.KindDistInfo, wheel.KindData:
		return RuleMetadata
	case wheel.KindDigest:
		return RuleDigest
	case wheel.KindCorrupt:
		return RuleCorrupt
	case wheel.KindClash:
		return RuleClash
	}
	return RuleRecord
}

// single audits a native file on its own.
func (c *checker) single(r io.ReaderAt, size int64, name string) error {
	head := make([]byte, 8)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	kind := magicOf(head[:n])
	if kind == "" {
		c.find(RuleObject, "", "neither a wheel nor a native library")
		return nil
	}
	o, problem := c.readObject(r, size, name, kind)
	if problem != nil {
		c.find(RuleObject, name, "%v", problem)
	}
	if o != nil {
		c.objects = append(c.objects, o)
	}
	c.judge()
	return nil
}

// members reads every member once: compares it with RECORD and, if it is native, looks into
// it. Large ones that are not compressed are looked into where they are.
func (c *checker) members(ctx context.Context, w *wheel.Reader) error {
	entries := map[string]*wheel.RecordEntry{}
	if record, err := w.Record(); err == nil { // what is wrong with it has been reported
		for i := range record.Entries {
			entries[record.Entries[i].Path] = &record.Entries[i]
		}
	}
	type result struct {
		object  *object
		problem error  // with the object
		digest  string // the algorithm, if it does not agree
		corrupt string
		search  finder
	}
	var list []wheel.Member
	for m := range w.Files() {
		if !strings.HasSuffix(m.Name, "/") {
			list = append(list, m)
		}
	}
	windows := slices.ContainsFunc(c.filename.Platform, func(tag string) bool { return strings.HasPrefix(tag, "win") })
	p := spooler{dir: c.opts.TempDir, inMemory: c.opts.inMemory}
	results := make([]result, len(list))
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	// Large members first, so that no worker is left with one at the end.
	slices.SortStableFunc(order, func(a, b int) int { return int(max(min(list[b].Size-list[a].Size, 1), -1)) })
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.GOMAXPROCS(0), 4))
	var large sync.Mutex // one huge symbol table at a time bounds the memory
	for _, i := range order {
		g.Go(func() error {
			m := list[i]
			entry := entries[m.Name]
			src, err := w.OpenFile(m.Name)
			if err != nil {
				return err
			}
			defer src.Close()
			var sum hash.Hash
			out := io.Discard
			if entry != nil && !c.opts.SkipDigests {
				if sum = wheel.RecordHash(entry.Algorithm); sum != nil {
					out = sum
				}
			}
			var member *spooled
			var kind string
			var in io.Reader = src
			python := windows && path.Ext(m.Name) == ".py"
			if python {
				out = io.MultiWriter(out, &results[i].search)
			}
			section, stored := w.Stored(m.Name)
			stored = stored && p.isLarge(m.Size)
			switch {
			case stored && c.opts.SkipDigests:
				member, kind, err = inPlace(section)
			case stored:
				if _, err = p.copy(gctx, out, src, m.Size); err == nil {
					member, kind, err = inPlace(section)
				}
			case c.opts.SkipDigests && !python:
				var native bool
				if in, native, err = peek(src); err != nil || !native {
					return err
				}
				fallthrough
			default:
				member, kind, err = p.spool(gctx, in, m.Size, out)
			}
			if format, ok := errors.AsType[*wheel.FormatError](err); ok {
				results[i].corrupt = format.Detail
				return nil
			}
			if err != nil {
				return err
			}
			if sum != nil && !bytes.Equal(sum.Sum(nil), entry.Digest) {
				results[i].digest = entry.Algorithm
			}
			if member == nil {
				return nil
			}
			defer member.Close()
			if p.isLarge(m.Size) {
				large.Lock()
				defer large.Unlock()
			}
			results[i].object, results[i].problem = c.readObject(member, member.size, m.Name, kind)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i := range results {
		r := &results[i]
		c.searches = c.searches || r.search.found
		if r.corrupt != "" {
			c.find(RuleCorrupt, list[i].Name, "%s", r.corrupt)
		}
		if r.digest != "" {
			c.find(RuleDigest, list[i].Name, "its %s is not the one in RECORD", r.digest)
		}
		if r.problem != nil {
			c.find(RuleObject, list[i].Name, "%v", r.problem)
		}
		if r.object != nil {
			c.objects = append(c.objects, r.object)
		}
	}
	return nil
}

// peek says whether a stream begins like a native file, and gives it back whole.
func peek(r io.Reader) (io.Reader, bool, error) {
	head := make([]byte, 8)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, false, err
	}
	return io.MultiReader(bytes.NewReader(head[:n]), r), magicOf(head[:n]) != "", nil
}

// readObject looks into a native file. Both results may be set.
func (c *checker) readObject(r io.ReaderAt, size int64, name, kind string) (*object, error) {
	o := &object{Object: Object{Path: name, Kind: kind, Size: size}}
	var problem error
	switch kind {
	case "elf":
		problem = o.readELF(r, size)
	case "pe":
		var ok bool
		if ok, problem = o.readPE(r, size); !ok {
			return nil, nil // text that begins with MZ
		}
	}
	if c.opts.Places && kind == "elf" && problem == nil {
		o.places = callSites(r, torchSymbol)
	}
	gpu, err := readGPU(r, size)
	if problem != nil {
		gpu.problem = nil // the whole file is damaged
	} else {
		problem = err
	}
	o.gpu = gpu
	o.GPU, o.GPUUnits = gpu.code, gpu.units
	return o, problem
}

func (o *object) readELF(r io.ReaderAt, size int64) error {
	e, err := readELF(r, size)
	if err != nil {
		return err
	}
	o.elf = e
	o.Machine = e.architecture()
	switch {
	case e.machine == elf.EM_CUDA:
		o.Kind = "gpu"
		return nil
	case e.kind != elf.ET_DYN && e.kind != elf.ET_EXEC:
		o.Kind = "object"
		return nil
	}
	o.Soname, o.Needed = e.soname, e.needed
	o.RunPath = e.runpath
	if len(e.runpath) == 0 {
		o.RunPath = e.rpath
	}
	own := newRequirements()
	own.addVersions(e.versions)
	o.GLIBC, o.GLIBCXX = own.highest("GLIBC"), own.highest("GLIBCXX")
	var abi, torch abiOf
	for i := range e.symbols {
		s := &e.symbols[i]
		switch {
		case s.strong():
			o.undefined = append(o.undefined, *s)
			abi.add(s.name)
			if torchSymbol(s.name) {
				torch.add(s.name)
			}
		case s.exported():
			o.exports = append(o.exports, s.name)
		}
	}
	e.symbols = nil
	// What is exchanged with torch matters more than what libraries inside were built with.
	if o.CXXABI = torch.verdict(); o.CXXABI == CXXABIUnknown {
		o.CXXABI = abi.verdict()
	}
	slices.Sort(o.exports)
	o.exports = slices.Compact(o.exports)
	o.Defined, o.Undefined = len(o.exports), len(o.undefined)
	if module := moduleName(o.Path); e.kind == elf.ET_DYN && o.has(initFunction(module)) {
		o.Module = module
		suffix := parseModuleSuffix(path.Base(o.Path))
		if o.Python = suffix.python; suffix.abi3 {
			o.Python = "abi3"
		}
		if s, ok := e.section(".rodata"); ok {
			o.Pybind = pybindInternals(r, s.offset, s.size)
		}
		if use := pythonUseOf(o.pythonNames()); len(use.names) > 0 && len(use.unstable) == 0 {
			o.StableABI = fmt.Sprintf("3.%d", max(use.minor, 2))
		}
	}
	return nil
}

// pythonNames are the names a module takes from the interpreter.
func (o *object) pythonNames() []string {
	var names []string
	if o.pe != nil {
		for i := range o.pe.imports {
			if im := &o.pe.imports[i]; pythonDLL.MatchString(im.library) && im.name != "" {
				names = append(names, im.name)
			}
		}
	}
	for i := range o.undefined {
		if name := o.undefined[i].name; isPythonSymbol(name) && !strings.HasPrefix(name, "PyInit_") {
			names = append(names, name)
		}
	}
	return names
}

// judge draws the conclusions from what was read.
func (c *checker) judge() {
	c.byName = map[string]*object{}
	for _, o := range c.objects {
		if o.Kind != "elf" {
			continue
		}
		c.byName[path.Base(o.Path)] = o
		if o.Soname != "" {
			c.byName[o.Soname] = o
		}
	}
	c.chooseTorch()
	c.checkLayout()
	c.checkPlatform()
	for _, o := range c.objects {
		c.checkHardening(o)
		c.checkBundled(o)
		c.checkPython(o)
		c.checkGPU(o)
	}
	c.checkImages()
	c.checkTorch()
	c.checkWindows()
	c.checkLocalVersion()
	for _, o := range c.objects {
		c.report.Objects = append(c.report.Objects, o.Object)
	}
}

// linked says whether the file is a library or a program that a CPU runs.
func (o *object) linked() bool { return o.Kind == "pe" || o.Kind == "elf" && o.elf != nil }

// platform is the system and machine of a snapshot that the file can be compared with.
func (o *object) platform() string {
	if o.pe != nil {
		return o.pe.platform()
	}
	return "linux_" + o.Machine
}

// native are the objects that make a wheel depend on a platform.
func (c *checker) native() []*object {
	return slices.DeleteFunc(slices.Clone(c.objects), func(o *object) bool { return !o.linked() })
}

// checkLayout compares the kind of wheel with what is in it.
func (c *checker) checkLayout() {
	native := c.native()
	for _, module := range c.opts.Modules {
		if !slices.ContainsFunc(native, func(o *object) bool { return o.Module == module }) {
			c.find(RuleModuleMissing, "", "no extension module %s", module).with(module)
		}
	}
	has := func(amd bool) bool {
		return slices.ContainsFunc(c.objects, func(o *object) bool {
			return slices.ContainsFunc(o.gpu.code, func(code GPUCode) bool { return (code.Kind == "amdgpu") == amd })
		})
	}
	if !c.opts.Archs.Empty() && !has(false) {
		c.find(RuleNothingToRunOnGPU, "", "no file has code for NVIDIA GPUs")
	}
	if len(c.opts.Gfx.Items()) > 0 && !has(true) {
		c.find(RuleNothingToRunOnGPU, "", "no file has code for AMD GPUs")
	}
	if !c.isWheel {
		return
	}
	anywhere := slices.Contains(c.filename.Platform, "any")
	if len(native) == 0 {
		unread := slices.ContainsFunc(c.objects, func(o *object) bool { return o.Kind == "elf" })
		// Code for macOS is not read.
		mac := slices.ContainsFunc(c.filename.Platform, func(tag string) bool { return strings.HasPrefix(tag, "macosx_") })
		if !anywhere && !unread && !mac {
			c.find(RuleNoNative, "", "tagged %s, but without native code", strings.Join(c.filename.Platform, "."))
		}
		return
	}
	if anywhere {
		c.find(RuleNativeInAny, native[0].Path, "native code in a wheel tagged any")
	}
	if c.info != nil && c.info.RootIsPurelib && !anywhere {
		c.find(RulePurelib, native[0].Path, "Root-Is-Purelib is true")
	}
	for _, o := range native {
		if parts := strings.Split(o.Path, "/"); len(parts) > 2 && strings.HasSuffix(parts[0], ".data") && parts[1] == "purelib" {
			c.find(RulePurelib, o.Path, "below purelib")
		}
	}
}

// checkHardening looks at flags of the loader.
func (c *checker) checkHardening(o *object) {
	e := o.elf
	if e == nil || e.kind != elf.ET_DYN {
		return
	}
	for _, dir := range slices.Concat(e.rpath, e.runpath) {
		if strings.HasPrefix(dir, "/") {
			c.find(RuleRunPath, o.Path, "run path %s", dir).with(dir)
		}
	}
	if e.execStack {
		c.find(RuleExecStack, o.Path, "asks for an executable stack")
	}
	if e.staticTLS && o.Module != "" {
		c.find(RuleStaticTLS, o.Path, "uses static thread-local storage")
	}
	if e.debugSize > 1<<20 {
		c.find(RuleDebugInfo, o.Path, "%d MB of debug information", e.debugSize>>20)
	}
}

// checkBundled looks for libraries that a wheel must not bring. Wheels whose purpose it is to
// bring them may.
func (c *checker) checkBundled(o *object) {
	if !c.isWheel || o.Module != "" {
		return
	}
	if o.pe != nil {
		c.checkBundledDLL(o)
		return
	}
	base := path.Base(o.Path)
	stem, _, ok := strings.Cut(base, ".so")
	if !ok {
		return
	}
	// A repair tool adds a hash: libcudart-9c2e4f17.so.12.
	plain := stem
	if i := strings.LastIndexByte(stem, '-'); i > 0 && isHex(stem[i+1:]) {
		plain = stem[:i]
	}
	soname := plain + ".so"
	project := c.filename.Name
	vendor := strings.HasPrefix(project, "nvidia-") || strings.HasPrefix(project, "rocm")
	switch {
	case driverLibrary(soname) && !vendor:
		c.find(RuleBundled, o.Path, "%s comes with the driver and must match it", soname).with(base)
	case torchLibrary(soname) && project != "torch" && !strings.HasPrefix(project, "torch-"):
		c.find(RuleBundled, o.Path, "%s comes with torch; a second copy does not share its state", soname).with(base)
	case slices.Contains([]string{"libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so"}, soname):
		c.find(RuleBundled, o.Path, "%s belongs to the system and must match its loader", soname).with(base)
	case cudaLibrary(soname) && !vendor && project != "torch":
		c.findAs(Warning, RuleBundled, o.Path, "%s comes with torch's CUDA packages; a second copy doubles the download and its state", soname).with(base)
	}
}

func isHex(s string) bool {
	return len(s) >= 6 && strings.Trim(s, "0123456789abcdef") == ""
}

// checkPython compares a module with the Python it is for.
func (c *checker) checkPython(o *object) {
	for _, lib := range o.Needed {
		if strings.HasPrefix(lib, "libpython3") && strings.Contains(lib, ".so") {
			c.find(RulePythonLibrary, o.Path, "needs %s", lib).with(lib)
		}
	}
	if o.Module == "" {
		return
	}
	if o.pe != nil {
		c.checkPythonDLL(o)
	}
	tag, abi3 := "", false
	if c.isWheel {
		tag, abi3 = wheelPython(c.filename)
	}
	if p := c.opts.Python; p != "" {
		want := "cp" + strings.ReplaceAll(p, ".", "")
		if c.isWheel && tag != "" && !abi3 && tag != want {
			c.find(RulePythonTag, "", "tagged %s, but the row is for Python %s", tag, p)
		}
		if tag == "" {
			tag = want
		}
	}
	if c.isWheel && o.Python != "" && o.Python != "abi3" {
		switch {
		case abi3:
			c.find(RulePythonTag, o.Path, "only %s can import it, but the wheel is tagged abi3", o.Python)
		case tag != "" && o.Python != tag:
			c.find(RulePythonTag, o.Path, "is for %s, but the wheel is tagged %s", o.Python, tag)
		}
	}
	use := pythonUseOf(o.pythonNames())
	switch {
	case abi3 || o.Python == "abi3":
		if len(use.unstable) > 0 {
			c.find(RuleABI3, o.Path, "uses %s outside of the stable ABI: %s", units.Count(len(use.unstable), "name"), firstFew(use.unstable, 5)).
				with(use.unstable...)
		}
		if minor := pythonMinor(tag); abi3 && minor > 0 && use.minor > minor {
			c.find(RuleABI3Version, o.Path, "%s came with Python 3.%d, but the wheel is tagged %s", use.newest, use.minor, tag).with(use.newest)
		}
		if abi3 {
			return
		}
	case tag == "":
		tag = o.Python
	}
	c.checkPythonSymbols(o, tag, use)
}

// checkPythonSymbols compares the names with those of the interpreter, if kiln knows it.
func (c *checker) checkPythonSymbols(o *object, tag string, use pythonUse) {
	minor := pythonMinor(tag)
	if minor == 0 || strings.HasSuffix(tag, "t") {
		return
	}
	python, err := builtin(KindPython, fmt.Sprintf("3.%d", minor), o.platform())
	if err != nil {
		return
	}
	var missing []string
	for _, name := range use.names {
		if !python.Libraries[0].Has(name) && !slices.ContainsFunc(c.objects, func(p *object) bool { return p.has(name) }) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		c.find(RulePythonSymbol, o.Path, "undefined symbol: %s, which Python 3.%d does not have", firstFew(missing, 3), minor).with(missing...)
	}
}

// checkLocalVersion compares the label of the version with what is inside.
func (c *checker) checkLocalVersion() {
	if !c.isWheel {
		return
	}
	for part := range strings.SplitSeq(c.filename.Version.Local(), ".") {
		digits, ok := strings.CutPrefix(part, "cu")
		if !ok || len(digits) < 3 || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		want := digits[:len(digits)-1]
		for _, o := range c.objects {
			for _, lib := range o.Needed {
				if major := cudaMajor(lib); major != "" && major != want {
					c.find(RuleLocalVersion, o.Path, "labeled %s, but needs %s", part, lib).with(lib)
				}
			}
		}
	}
}

// firstFew lists the beginning of a list.
func firstFew(list []string, n int) string {
	if len(list) <= n {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:n], ", "), len(list)-n)
}
