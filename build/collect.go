package build

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// collect takes what the row promises out of the output folder, and nothing else.
func collect(ctx context.Context, a *attempt) error {
	entries, err := os.ReadDir(a.out())
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if e.Name() != ".gitignore" { // uv keeps its output out of repositories
			names = append(names, e.Name())
		}
	}
	if a.Row.BuildTag != "" && !a.setuptools() {
		if names, err = a.addTag(ctx, names); err != nil {
			return err
		}
	}
	if names, err = a.compareNames(names); err != nil {
		return err
	}
	for _, name := range names {
		file := filepath.Join(a.out(), name)
		if strings.HasSuffix(name, ".whl") {
			if file, err = a.collectWheel(ctx, file); err != nil {
				return err
			}
		}
		sum, size, err := fsx.SHA256(file)
		if err != nil {
			return err
		}
		a.files = append(a.files, file)
		a.record.Files = append(a.record.Files, record.File{Name: name, SHA256: sum, Size: size})
		fmt.Fprintf(a.log, "%s  %s (%d bytes)\n", sum, name, size)
	}
	return nil
}

// addTag gives the wheel its build tag where the back-end could not: the wheel is
// rewritten, so that file name, metadata and RECORD agree.
func (a *attempt) addTag(ctx context.Context, names []string) ([]string, error) {
	for i, name := range names {
		f, err := wheel.ParseFilename(name)
		if err != nil {
			continue
		}
		local := strings.TrimPrefix(a.Row.BuildTag, "+")
		if v := f.Version; v.Local() != "" {
			continue
		}
		made, err := wheel.RewriteFile(ctx, filepath.Join(a.out(), name), a.out(), wheel.RewriteOptions{Local: &local, Time: a.epoch})
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(a.log, "added the build tag: %s\n", made.Name)
		os.Remove(filepath.Join(a.out(), name))
		names[i] = made.Name
	}
	return names, nil
}

// compareNames says what is wrong with the set of files that came out, or returns them in the order
// of the plan.
func (a *attempt) compareNames(names []string) ([]string, error) {
	var made, missing []string
	extra := slices.Clone(names)
	for _, want := range a.Files {
		i := slices.IndexFunc(extra, func(got string) bool { return a.Row.Made(want, got, a.Settings.Repair != "") })
		if i < 0 {
			missing = append(missing, want)
			continue
		}
		made, extra = append(made, extra[i]), slices.Delete(extra, i, i+1)
	}
	switch {
	case len(missing) == 0 && len(extra) == 0:
		return made, nil
	case len(names) == 0:
		return nil, fault("no-wheel", "the build made no file", "look into the log: the front-end ended without an error and without a result", "want %s", strings.Join(a.Files, ", "))
	case len(missing) == 0:
		return nil, fault("several-wheels", "the build made more than its own files",
			"the front-end must not collect dependencies; remove such arguments from build_args", "besides %s there is %s", strings.Join(a.Files, ", "), strings.Join(extra, ", "))
	}
	if len(missing) == 1 && len(extra) == 1 && a.Row.Kind == matrix.KindWheel {
		if err := a.explainName(missing[0], extra[0]); err != nil {
			return nil, err
		}
	}
	return nil, fault("wrong-name", "the build made another file", "correct versions, local_version or wheel_tag in packages.yml", "want %s, got %s", strings.Join(missing, ", "), strings.Join(extra, ", "))
}

// explainName says which part of a wheel's name differs and what that means.
func (a *attempt) explainName(want, got string) error {
	w, err := wheel.ParseFilename(want)
	if err != nil {
		return nil //nolint:nilerr // nothing to explain
	}
	g, err := wheel.ParseFilename(got)
	if err != nil {
		return nil //nolint:nilerr // not a wheel name at all: the caller says so
	}
	switch {
	case a.Native && slices.Equal(g.Platform, []string{"any"}):
		return fault("pure-wheel", "nothing was compiled: the wheel is pure",
			"the package decided to skip its native code; look for the variable that forces a build (FORCE_CUDA, …) and set it in env", "want %s, got %s", want, got)
	case g.Version.Public() != w.Version.Public():
		return fault("wrong-version", "the version of the wheel is not the row's",
			"correct versions: in packages.yml, or version_from", "the row says %s, the metadata say %s", w.Version.Public(), g.Version.Public())
	case g.Version.Local() != w.Version.Local():
		return fault("wrong-tag", "the build tag of the wheel is not the row's",
			"the package sets a local version itself; switch that off with its own variable, or set local_version to what it writes",
			"want +%s, got %q", w.Version.Local(), g.Version.Local())
	case !slices.Equal(g.Python, w.Python) || !slices.Equal(g.ABI, w.ABI):
		return fault("wrong-abi", "the wheel is for another Python", fmt.Sprintf("if that is meant, set wheel_tag: %s-%s in packages.yml", strings.Join(g.Python, "."), strings.Join(g.ABI, ".")),
			"want %s, got %s", want, got)
	case !slices.Equal(g.Platform, w.Platform):
		return fault("wrong-platform", "the wheel is for another platform", "build the row on its own platform, or set platform: in packages.yml", "want %s, got %s", want, got)
	}
	return nil
}

// collectWheel checks the archive, remembers what is in it and ties its metadata to
// the row's torch if that is asked for. It returns the path of the final file.
func (a *attempt) collectWheel(ctx context.Context, file string) (string, error) {
	if clause := a.torchClause(); clause != "" {
		tied := filepath.Join(a.work, "tied")
		if err := os.MkdirAll(tied, 0o777); err != nil {
			return "", err
		}
		made, err := wheel.RewriteFile(ctx, file, tied, wheel.RewriteOptions{Time: a.epoch, EditMetadata: func(m *wheel.Metadata) error {
			n, err := m.SetRequiresDist("torch", clause)
			if err == nil && n == 0 {
				err = m.Add("Requires-Dist", "torch"+clause)
			}
			return err
		}})
		if err != nil {
			return "", err
		}
		fmt.Fprintf(a.log, "tied the metadata to torch%s\n", clause)
		file = filepath.Join(tied, made.Name)
	}
	r, err := wheel.Open(file)
	if err != nil {
		return "", err
	}
	defer r.Close()
	problems, err := r.Check(ctx, wheel.CheckOptions{})
	if err != nil {
		return "", err
	}
	if len(problems) > 0 {
		return "", fault("bad-wheel", "the wheel contradicts itself", "this is a fault of the build back-end; try another version of it in extra_deps", "%s", problems[0])
	}
	m, err := r.Metadata()
	if err != nil {
		return "", err
	}
	v, err := wheel.ParseVersion(m.Version())
	if err != nil {
		return "", err
	}
	if v.Public() != a.Row.Version {
		return "", fault("wrong-version", "the version of the wheel is not the row's", "correct versions: in packages.yml", "the row says %s, the metadata say %s", a.Row.Version, m.Version())
	}
	if strings.HasSuffix(file, ".whl") && (a.Row.Kind == matrix.KindWheel || a.record.TopLevel == nil) {
		a.record.Requires = m.RequiresDist()
		a.record.TopLevel, a.record.NativeModules = modules(r)
	}
	if a.Native && len(a.record.NativeModules) == 0 && !hasNative(r) {
		return "", fault("pure-wheel", "nothing was compiled: the wheel has no native code",
			"look for the variable that forces a build (FORCE_CUDA, …) and set it in env; a package without native code has wheel_tag: py3-none and platform: any",
			"%s contains no shared library", filepath.Base(file))
	}
	return file, nil
}

// torchClause is the requirement that a stable ABI or runtime_torch asks for.
func (a *attempt) torchClause() string {
	if a.Row.Torch == "" || a.Row.Kind != matrix.KindWheel {
		return ""
	}
	if a.Row.TorchStable != "" {
		return ">=" + a.Row.TorchStable
	}
	switch a.Settings.RuntimeTorch {
	case "exact":
		return "==" + a.Row.Torch
	case "minor":
		v, err := wheel.ParseVersion(a.Row.Torch)
		if err != nil || len(v.Release()) < 2 {
			return "==" + a.Row.Torch
		}
		return "==" + strings.Join(v.Release()[:2], ".") + ".*"
	}
	return ""
}

// modules returns the top-level names of a wheel and the dotted names of its compiled
// extension modules.
func modules(r *wheel.Reader) (top, native []string) {
	seen := map[string]bool{}
	data := strings.TrimSuffix(r.DistInfo(), ".dist-info") + ".data/" // files to be installed beside the others
	for m := range r.Files() {
		name := strings.TrimPrefix(strings.TrimPrefix(m.Name, data+"purelib/"), data+"platlib/")
		first, rest, nested := strings.Cut(name, "/")
		if strings.HasSuffix(first, ".dist-info") || strings.HasSuffix(first, ".data") || strings.HasSuffix(first, ".libs") {
			continue
		}
		module := first
		if !nested {
			stem, ok := moduleStem(first)
			if !ok {
				continue
			}
			module = stem
		} else if !strings.Contains(rest, ".") {
			continue
		}
		if !seen[module] {
			seen[module] = true
			top = append(top, module)
		}
		if ext, ok := extensionModule(name); ok {
			native = append(native, ext)
		}
	}
	slices.Sort(top)
	slices.Sort(native)
	return top, native
}

// moduleStem returns the module that a file at the top of a wheel is.
func moduleStem(name string) (string, bool) {
	if stem, ok := strings.CutSuffix(name, ".py"); ok {
		return stem, true
	}
	return extensionModule(name)
}

// extensionModule returns the dotted name of a compiled module by the name of its file.
// A library without the interpreter's mark may be a module too or just a library; it is
// taken for a module only if nothing in its name says otherwise.
func extensionModule(name string) (string, bool) {
	dir, base := path.Split(name)
	ext := path.Ext(base)
	if ext != ".so" && ext != ".pyd" {
		return "", false
	}
	stem, mark, _ := strings.Cut(strings.TrimSuffix(base, ext), ".")
	marked := strings.HasPrefix(mark, "cpython-") || mark == "abi3" || strings.HasPrefix(mark, "cp3")
	if !marked || !isIdentifier(stem) {
		return "", false
	}
	for p := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if p != "" && !isIdentifier(p) {
			return "", false
		}
	}
	return strings.TrimPrefix(strings.ReplaceAll(strings.Trim(dir, "/"), "/", ".")+"."+stem, "."), true
}

func isIdentifier(s string) bool {
	for i, c := range s {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') && c < 0x80 {
			return false
		}
	}
	return s != ""
}

func hasNative(r *wheel.Reader) bool {
	for m := range r.Files() {
		base := path.Base(m.Name)
		if ext := path.Ext(base); ext == ".so" || ext == ".pyd" || ext == ".dll" || ext == ".dylib" || strings.Contains(base, ".so.") {
			return true
		}
	}
	return false
}
