package jit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/wheel"
)

// prebuilt looks for a module that was compiled elsewhere and fits. It returns nil if there is
// none; those that do not fit are in l.rejected.
func (l *loader) prebuilt(ctx context.Context) (*Result, error) {
	for _, file := range l.installed() {
		ok, err := l.accept(ctx, file, l.moduleOf(file))
		if err != nil {
			return nil, err
		}
		if ok {
			return &Result{Name: l.spec.Name, Path: file, Source: SourcePrebuilt, Torch: l.spec.Torch, Rejected: l.rejected}, nil
		}
	}
	for _, w := range l.wheels() {
		file, err := l.unpack(ctx, w)
		if err != nil {
			return nil, err
		}
		if file == "" {
			continue
		}
		touch(l.store.folderOf(file))
		l.watched = append(l.watched, w)
		ok, err := l.accept(ctx, file, l.spec.Name)
		if err != nil {
			return nil, err
		}
		if ok {
			return &Result{Name: l.spec.Name, Path: file, Source: SourcePrebuilt, Torch: l.spec.Torch, Rejected: l.rejected}, nil
		}
	}
	return nil, nil
}

// suffixes are the endings that this Python imports.
func (l *loader) suffixes() []string {
	py := l.machine.Python
	out := []string{py.ExtSuffix, ".abi3.so", ".so"}
	if l.machine.OS == "windows" {
		out = []string{py.ExtSuffix, ".pyd"}
	}
	if py.FreeThreaded {
		out = slices.DeleteFunc(out, func(s string) bool { return s == ".abi3.so" })
	}
	return slices.Compact(slices.DeleteFunc(out, func(s string) bool { return s == "" }))
}

// installed lists the files that the spec and the interpreter would find, the first found first.
// What is looked at and not there is watched too.
func (l *loader) installed() []string {
	modules := l.spec.Prebuilt.Modules
	if len(modules) == 0 {
		modules = []string{l.spec.Name}
	}
	var stems []string
	for _, dir := range l.spec.Prebuilt.Folders {
		l.watched = append(l.watched, l.spec.path(dir))
		stems = append(stems, filepath.Join(l.spec.path(dir), l.spec.Name))
	}
	for _, site := range l.machine.Python.SitePackages {
		for _, m := range modules {
			stem := filepath.Join(site, filepath.Join(strings.Split(m, ".")...))
			l.watched = append(l.watched, filepath.Dir(stem))
			stems = append(stems, stem)
		}
	}
	var out []string
	for _, stem := range stems {
		found := false
		for _, s := range l.suffixes() {
			if isFile(stem + s) {
				out, found = append(out, stem+s), true
				break // the one that Python takes
			}
		}
		// One for another Python explains why there is none.
		if !found {
			others, _ := filepath.Glob(escapeGlob(stem) + ".*.so") // the pattern is ours
			for _, o := range others {
				l.reject(o, newDiagnosis("wrong-machine", fmt.Sprintf("%s is for another Python or machine; this one is %s", filepath.Base(o), l.machine.Python.SOABI), "install the package for this Python"))
			}
		}
	}
	return slices.Compact(out)
}

// moduleOf is the name that the file's init function has.
func (l *loader) moduleOf(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return name
}

func (l *loader) reject(file string, list ...machine.Diagnosis) {
	c := Candidate{Path: file, Diagnoses: list}
	l.rejected = append(l.rejected, c)
	text := file
	if len(list) > 0 {
		text += ": " + list[0].Detail + " [" + list[0].ID + "]"
	}
	l.event(Event{Kind: EventRejected, Text: text})
}

// accept audits a module, then loads it. What was found out is remembered by content.
func (l *loader) accept(ctx context.Context, file, module string) (bool, error) {
	sum, _, err := fsx.SHA256(file)
	if err != nil {
		return false, err
	}
	parts := []string{sum, file, module, l.machine.Python.Path, l.machine.Python.SOABI, l.machine.GLIBC, strconv.FormatBool(l.spec.Torch), l.opts.Host.Getenv("LD_LIBRARY_PATH")}
	if l.spec.Torch {
		torch, files := torchIdentity(l.machine)
		parts = append(parts, torch.Digest())
		l.watched = append(l.watched, files...)
	}
	for _, g := range l.machine.GPUs {
		parts = append(parts, g.ComputeCapability+g.Target)
	}
	known := filepath.Join(l.store.dir(), loadsDir, question(parts...)[:keyLength]+".json")
	if text, err := os.ReadFile(known); err == nil && !l.opts.Retry {
		if string(text) == "true" {
			return true, nil
		}
	}
	diagnoses, err := l.audit(ctx, file)
	if err != nil {
		return false, err
	}
	if len(diagnoses) == 0 {
		err := l.tryLoad(ctx, file, module, true)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if ce, ok := errors.AsType[*commandError](err); ok {
			diagnoses = l.explain(ce)
		} else if err != nil {
			return false, err
		}
	}
	if len(diagnoses) > 0 {
		l.reject(file, diagnoses...)
		return false, nil
	}
	if os.MkdirAll(filepath.Dir(known), 0o777) == nil {
		_ = fsx.WriteFile(known, []byte("true"), 0o666)
	}
	return true, nil
}

// auditRules are those that say that a module will not load here, with the diagnosis that it would
// become.
var auditRules = map[string]string{
	audit.RuleObject: "damaged-module", audit.RuleMachine: "wrong-machine", audit.RuleLibraryMissing: "lib-missing", audit.RuleCUDAMajor: "lib-missing",
	audit.RuleSymbolMissing: "undefined-symbol", audit.RuleCXXABI: "undefined-symbol", audit.RulePythonTag: "wrong-machine", audit.RulePythonSymbol: "undefined-symbol",
	audit.RuleTorchVersion: "undefined-symbol",
}

// audit says, without loading it, why a module does not fit; an empty list means that it does, as
// far as can be seen.
func (l *loader) audit(ctx context.Context, file string) ([]machine.Diagnosis, error) {
	opts := audit.Options{NoTable: true, Python: l.machine.Python.Minor()}
	if l.spec.Torch && l.machine.Torch.Version != "" {
		snap, err := l.snapshot(ctx)
		if err != nil {
			l.event(Event{Kind: EventWarning, Text: "the symbols of torch could not be read: " + err.Error()})
		}
		opts.Torch = snap
	}
	report, err := audit.Check(ctx, file, opts)
	if err != nil {
		return nil, err
	}
	var out []machine.Diagnosis
	for _, f := range report.Findings {
		id := auditRules[f.Rule]
		if id == "" || f.Severity < audit.Error {
			continue
		}
		detail := f.Message
		if len(f.Details) > 0 {
			detail += ": " + strings.Join(f.Details[:min(3, len(f.Details))], ", ")
		}
		out = append(out, newDiagnosis(id, detail, cmp.Or(f.Fix, "install a build of the package for this torch and Python")))
	}
	for _, o := range report.Objects {
		if o.GLIBC != "" && l.machine.GLIBC != "" && versionLess(l.machine.GLIBC, o.GLIBC) {
			out = append(out, newDiagnosis("glibc-too-old", fmt.Sprintf("it needs glibc %s, and this system has %s", o.GLIBC, l.machine.GLIBC), "install a build for this system"))
		}
		out = append(out, l.gpuFit(o)...)
	}
	return out, nil
}

// gpuFit compares the GPU code of a module with the GPUs that are visible.
func (l *loader) gpuFit(o audit.Object) []machine.Diagnosis {
	list, err := compat.ParseArchList(o.Archs())
	if err != nil || list.Empty() {
		return nil
	}
	for _, g := range l.machine.GPUs {
		cc, err := compat.ParseCC(g.ComputeCapability)
		if err != nil || g.Hidden || g.Vendor != "nvidia" {
			continue
		}
		if !list.Covers(cc) {
			return []machine.Diagnosis{newDiagnosis("no-kernel-image", fmt.Sprintf("it has code for %s, and the GPU of this machine is %s", list, cc), "install a build with code for "+cc.String())}
		}
	}
	return nil
}

func versionLess(a, b string) bool {
	x, err1 := wheel.ParseVersion(a)
	y, err2 := wheel.ParseVersion(b)
	return err1 == nil && err2 == nil && x.Compare(y) < 0
}

// snapshot is what the installed torch offers, read once for each torch.
func (l *loader) snapshot(ctx context.Context) (*audit.Snapshot, error) {
	id, _ := torchIdentity(l.machine)
	file := filepath.Join(l.store.dir(), snapshotsDir, id.Digest()[:keyLength])
	if f, err := os.Open(file); err == nil {
		defer f.Close()
		if s, err := audit.ReadSnapshot(f); err == nil {
			return s, nil
		}
	}
	s, err := audit.TakeSnapshot(ctx, l.machine.Torch.Dir, audit.SnapshotOptions{})
	if err != nil {
		return nil, err
	}
	if os.MkdirAll(filepath.Dir(file), 0o777) == nil {
		if f, err := fsx.Create(file); err == nil {
			if _, err := s.WriteTo(f); err == nil {
				_ = f.Commit()
			}
			_ = f.Abort()
		}
	}
	return s, nil
}

// wheelCandidate is a wheel and how near it is to this machine.
type wheelCandidate struct {
	path  string
	name  wheel.Filename
	tag   int  // position in the list of supported tags
	exact bool // built with exactly torch's CUDA
	cuda  int  // CUDA it was built with, as 128
}

// wheels lists the wheels that could hold the module, the nearest first: that of exactly this torch
// and CUDA, then lower minor versions of the same CUDA, then those that do not say.
func (l *loader) wheels() []string {
	tags := map[string]int{}
	if list, err := wheel.SupportedTags(l.interpreter()); err == nil {
		for i, t := range list {
			tags[t.String()] = i
		}
	}
	var list []wheelCandidate
	for _, dir := range l.spec.Prebuilt.Wheels {
		dir = l.spec.path(dir)
		l.watched = append(l.watched, dir)
		found, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "*.whl")) // the pattern is ours
		for _, f := range found {
			name, err := wheel.ParseFilename(filepath.Base(f))
			if err != nil {
				continue
			}
			c := wheelCandidate{path: f, name: name, tag: -1}
			for _, t := range name.Tags() {
				if i, ok := tags[t.String()]; ok && (c.tag < 0 || i < c.tag) {
					c.tag = i
				}
			}
			if c.tag < 0 || !l.fitsLabel(&c) {
				continue
			}
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b wheelCandidate) int {
		switch {
		case a.exact != b.exact:
			return map[bool]int{true: -1, false: 1}[a.exact]
		case a.cuda != b.cuda:
			return b.cuda - a.cuda
		}
		return cmp.Or(b.name.Version.Compare(a.name.Version), a.tag-b.tag)
	})
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = c.path
	}
	return out
}

// fitsLabel compares the local label of a wheel, such as cu128.torch2.9.0, with this torch: another
// minor version of torch or another major version of CUDA has another binary interface.
func (l *loader) fitsLabel(c *wheelCandidate) bool {
	torch := l.machine.Torch
	wantCUDA, _ := strconv.Atoi(strings.ReplaceAll(compat.Minor(torch.CUDA), ".", "")) // none: 0
	label := strings.ReplaceAll(c.name.Version.Local(), "-", ".")
	if _, v, ok := strings.Cut(label, "torch"); ok && l.spec.Torch {
		if !strings.HasPrefix(torch.Public()+".", compat.Minor(v)+".") {
			return false
		}
	}
	if _, digits, ok := strings.Cut(label, "cu"); ok {
		digits = digits[:len(digits)-len(strings.TrimLeft(digits, "0123456789"))]
		if n, err := strconv.Atoi(digits); err == nil {
			c.cuda, c.exact = n, n == wantCUDA
			if wantCUDA != 0 && (n/10 != wantCUDA/10 || n > wantCUDA) {
				return false
			}
		}
	}
	return true
}

func (l *loader) interpreter() wheel.Interpreter {
	m := l.machine
	in := wheel.Interpreter{FreeThreaded: m.Python.FreeThreaded}
	if f := strings.Split(m.Python.Version, "."); len(f) >= 2 {
		in.Major, _ = strconv.Atoi(f[0])
		in.Minor, _ = strconv.Atoi(f[1])
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[m.Arch]
	switch m.OS {
	case "windows":
		in.Platform = wheel.Platform{OS: "win", Arch: m.Arch}
	case "darwin":
		in.Platform = wheel.Platform{OS: "macosx", Arch: map[string]string{"amd64": "x86_64", "arm64": "arm64"}[m.Arch], MacOS: wheel.PlatformVersion{Major: 11}}
	default:
		in.Platform = wheel.Platform{OS: "linux", Arch: arch}
		if major, minor, ok := strings.Cut(m.GLIBC, "."); ok {
			in.Platform.Glibc.Major, _ = strconv.Atoi(major)
			in.Platform.Glibc.Minor, _ = strconv.Atoi(minor)
		}
	}
	return in
}

// unpack puts the native files of a wheel into the store and returns the path of the module, "" if
// the wheel has none of that name.
func (l *loader) unpack(ctx context.Context, file string) (string, error) {
	r, err := wheel.Open(file)
	if err != nil {
		l.reject(file, newDiagnosis("damaged-module", err.Error(), "download the wheel again"))
		return "", nil
	}
	defer r.Close()
	member, native := "", []string{}
	for m := range r.Files() {
		base := path.Base(m.Name)
		if slices.ContainsFunc(l.suffixes(), func(s string) bool { return base == l.spec.Name+s }) {
			member = m.Name
		}
		if strings.Contains(base, ".so") || strings.HasSuffix(base, ".pyd") || strings.HasSuffix(base, ".dll") {
			native = append(native, m.Name)
		}
	}
	if member == "" {
		return "", nil
	}
	sum, _, err := fsx.SHA256(file)
	if err != nil {
		return "", err
	}
	target := filepath.Join(l.store.moduleDir(l.spec.Name), wheelPrefix+sum[:keyLength])
	if _, err := os.Stat(filepath.Join(target, wheelName)); err == nil {
		return filepath.Join(target, filepath.FromSlash(member)), nil
	}
	if err := l.usable(); err != nil {
		return "", err
	}
	work, err := l.store.newWork(l.spec.Name)
	if err != nil {
		return "", err
	}
	defer work.remove()
	for _, name := range native {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return "", fmt.Errorf("%s: member %q leads out of the wheel", file, name)
		}
		if err := extract(r, name, filepath.Join(work.path, "entry", filepath.FromSlash(name))); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
	}
	text, err := json.Marshal(map[string]string{"wheel": filepath.Base(file), "sha256": sum})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(work.path, "entry", wheelName), text, 0o666); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o777); err != nil {
		return "", err
	}
	if err := fsx.RenameDir(filepath.Join(work.path, "entry"), target, fsx.RenameDirOptions{}); err != nil && !errors.Is(err, fsx.ErrNotEmpty) {
		return "", err
	}
	return filepath.Join(target, filepath.FromSlash(member)), nil
}

func extract(r *wheel.Reader, name, target string) error {
	in, err := r.OpenFile(name)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(target), 0o777); err != nil {
		return err
	}
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o777)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
