package jit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/machine"
)

// tokenHIP stands, in a command, for the folder of the translation: below it, a file has the path
// that the original has.
const tokenHIP = "{hip}"

// translation is what torch's hipify made of a project. The folder is in the store, named after
// everything that was translated, and never changed.
type translation struct {
	Dir string `json:"-"`
	// Files are the translated files by the path of the original, both absolute, the former below
	// Dir. A file that needs no change is not among them.
	Files map[string]string `json:"files"`
}

const translationName = "hipify.json"

// path is where a file of the project is for a compiler.
func (t *translation) path(original string) string {
	if to, ok := t.Files[original]; ok {
		return filepath.Join(t.Dir, to)
	}
	return filepath.Join(t.Dir, original)
}

// original is the file of the project that a file of the translation comes from. Others are what
// they are.
func (t *translation) original(file string) string {
	if t == nil {
		return file
	}
	rel, ok := strings.CutPrefix(file, t.Dir)
	if !ok {
		return file
	}
	for from, to := range t.Files {
		if to == rel {
			return from
		}
	}
	return rel
}

// hipifyFiles are the parts of torch that translate.
var hipifyFiles = []string{"hipify_python.py", "cuda_to_hip_mappings.py", "constants.py"}

// hipifyIdentity tells one translator from another; "" if torch has none.
func hipifyIdentity(torch string) string {
	var parts []string
	for _, name := range hipifyFiles {
		sum, _, err := fsx.SHA256(filepath.Join(torch, "utils", "hipify", name))
		if err != nil && name == hipifyFiles[0] {
			return ""
		}
		parts = append(parts, name, sum)
	}
	return question(parts...)[:keyLength]
}

// hipifyScript calls torch's translator as torch's CUDAExtension does. It takes the translator alone
// where it can: importing all of torch takes seconds, and needs a driver's libraries.
const hipifyScript = `import json, os, sys, types
with open(sys.argv[1]) as f:
    asked = json.load(f)
try:
    for name, path in (("torch", asked["torch"]), ("torch.utils", os.path.join(asked["torch"], "utils"))):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]
    from torch.utils.hipify import hipify_python
except ImportError:
    for name in [n for n in sys.modules if n.split(".")[0] == "torch"]:
        del sys.modules[name]
    from torch.utils.hipify import hipify_python
top, root = asked["top"], asked["root"]
result = hipify_python.hipify(
    project_directory=root, output_directory=root, header_include_dirs=asked["include"], includes=[os.path.join(top, "*")],
    extra_files=asked["sources"], show_progress=False, is_pytorch_extension=True, hipify_extra_files_only=True,
)
files = {}
for path, r in result.items():
    if r.hipified_path is not None and r.hipified_path != path:
        files[path[len(top):]] = r.hipified_path[len(top):]
with open(sys.argv[2], "w") as f:
    json.dump({"files": files}, f)
`

// translate fills in the plan's translation, from the store or by torch's hipify.
func (l *loader) translate(ctx context.Context, p *plan) error {
	if !p.translated {
		return nil
	}
	files, err := l.closure(p)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(files))
	parts := []string{hipifyIdentity(l.machine.Torch.Dir), l.spec.Root}
	for _, dir := range l.spec.Include {
		parts = append(parts, l.spec.path(dir))
	}
	for _, name := range names {
		parts = append(parts, name, string(files[name]))
	}
	for _, u := range p.units {
		parts = append(parts, u.source)
	}
	dir := filepath.Join(l.store.dir(), hipDir, question(parts...)[:keyLength])
	if t, err := readTranslation(dir); err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now)
		p.hip = t
		return nil
	}
	work, err := l.store.newWork(hipDir)
	if err != nil {
		return err
	}
	defer work.remove()
	tree := filepath.Join(work.path, "tree")
	for _, name := range names {
		to := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(to, files[name], 0o666); err != nil {
			return err
		}
	}
	if err := l.hipify(ctx, p, work.path, tree); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	err = fsx.RenameDir(tree, dir, fsx.RenameDirOptions{})
	if err != nil && !errors.Is(err, fsx.ErrNotEmpty) { // another process was quicker
		return err
	}
	p.hip, err = readTranslation(dir)
	return err
}

// hipify runs torch's translator over copies of the files.
func (l *loader) hipify(ctx context.Context, p *plan, work, tree string) error {
	asked := struct {
		Torch   string   `json:"torch"`
		Top     string   `json:"top"`
		Root    string   `json:"root"`
		Include []string `json:"include"`
		Sources []string `json:"sources"`
	}{l.machine.Torch.Dir, tree, filepath.Join(tree, l.spec.Root), []string{}, nil}
	for _, dir := range l.spec.Include {
		asked.Include = append(asked.Include, filepath.Join(tree, l.spec.path(dir)))
	}
	for _, u := range p.units {
		asked.Sources = append(asked.Sources, filepath.Join(tree, l.spec.path(u.source)))
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	request := filepath.Join(work, "request.json")
	if err := os.WriteFile(request, text, 0o666); err != nil {
		return err
	}
	if err := os.MkdirAll(asked.Root, 0o777); err != nil {
		return err
	}
	cmd := run.Cmd{
		Argv: []string{l.machine.Python.Path, "-c", hipifyScript, request, filepath.Join(tree, translationName)},
		Dir:  work, Env: append(slices.Clone(l.opts.Env), "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"), TailLines: 40,
	}
	if _, err := cmd.Run(ctx); err != nil {
		ce := &commandError{argv: []string{l.machine.Python.Path, "-m", "torch.utils.hipify.hipify_python"}, stage: machine.StageCompile, err: fmt.Errorf("translate to HIP: %w", err)}
		if re, ok := errors.AsType[*run.Error](err); ok {
			ce.lines = re.Tail
		}
		return ce
	}
	return nil
}

func readTranslation(dir string) (*translation, error) {
	text, err := os.ReadFile(filepath.Join(dir, translationName))
	if err != nil {
		return nil, err
	}
	t := &translation{Dir: dir}
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, translationName), err)
	}
	return t, nil
}

var includeLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]`)

// maxClosure bounds how much a project may include of its own.
const maxClosure = 256 << 20

// closure reads the sources and every file of the project that they may include, whatever the
// conditions around the line.
func (l *loader) closure(p *plan) (map[string][]byte, error) {
	files := map[string][]byte{}
	var queue []string
	total := 0
	add := func(name string) error {
		if _, seen := files[name]; seen {
			return nil
		}
		text, err := fsx.ReadFile(name, maxClosure)
		if err != nil {
			return fmt.Errorf("translate to HIP: %w", err)
		}
		if total += len(text); total > maxClosure {
			return fmt.Errorf("translate to HIP: the sources of %s include more than %d MiB", l.spec.Name, maxClosure>>20)
		}
		files[name] = text
		queue = append(queue, name)
		return nil
	}
	for _, u := range p.units {
		if err := add(l.spec.path(u.source)); err != nil {
			return nil, err
		}
	}
	foreign := []string{l.machine.Torch.Dir + "/", "/usr/include/"}
	if home := l.machine.ROCm[0].Home; home != "/usr" {
		foreign = append(foreign, home+"/")
	}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		for _, m := range includeLine.FindAllSubmatch(files[name], -1) {
			var dirs []string
			if m[1][0] == '"' {
				dirs = append(dirs, filepath.Dir(name))
			}
			for _, dir := range l.spec.Include {
				dirs = append(dirs, l.spec.path(dir))
			}
			for _, dir := range dirs {
				file := filepath.Join(dir, string(m[2]))
				if !isFile(file) || slices.ContainsFunc(foreign, func(f string) bool { return strings.HasPrefix(file, f) }) {
					continue
				}
				if err := add(file); err != nil {
					return nil, err
				}
			}
		}
	}
	return files, nil
}
