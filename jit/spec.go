package jit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
)

// Spec says what a module is made of. [ParseSpec] reads one from YAML, of which JSON is a part.
type Spec struct {
	// Name is what Python imports, a plain identifier; it is also TORCH_EXTENSION_NAME.
	Name string
	// Root is the folder that relative paths begin at: the folder of the spec, or what it says.
	Root string
	// Kind is what is made; empty means [KindModule].
	Kind string
	// Sources are patterns of files below Root: * within a folder, ** over folders. Objects are
	// linked in their order.
	Sources []string
	// Inline are sources that are no files yet, instead of Sources: their text by file name. The
	// store keeps them as files.
	Inline map[string]string
	// CAsCXX compiles .c files as C++, as torch's builder does.
	CAsCXX bool
	// Include are folders for headers of the project.
	Include []string
	// Flags are added after kiln's own.
	Flags Flags
	// Libraries are linked, as -lNAME; LibraryDirs are where they are looked for first.
	Libraries, LibraryDirs []string
	// Torch says that the module is an extension of torch.
	Torch bool
	// CUDA says that the module needs CUDA's libraries although none of its sources is a .cu file.
	CUDA bool
	// Archs is a list of GPU targets for this module alone; [Options.Archs] goes before it.
	Archs string
	// Prebuilt is where a compiled module may be.
	Prebuilt Prebuilt

	file string // for messages and positions; empty for a spec without a file
	text []byte
}

// What a spec makes.
const (
	KindModule  = "module"  // a module that Python imports
	KindLibrary = "library" // a shared library that is loaded for what it registers
	KindProgram = "program" // an executable
)

// Flags are those of each compiler.
type Flags struct {
	CXX, NVCC, HIP, Link []string
}

// Prebuilt says where modules may be that were compiled elsewhere.
type Prebuilt struct {
	// Off looks nowhere. Otherwise the interpreter's site-packages are always looked at.
	Off bool
	// Modules are the names under which the module may be installed; default Spec.Name. A name with
	// dots is inside of a package: "exllamav2.exllamav2_ext".
	Modules []string
	// Folders may hold the module's file.
	Folders []string
	// Wheels are folders of wheels, any of which may hold the module.
	Wheels []string
}

var (
	moduleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	fileName   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`) // of libraries and programs
)

const (
	maxSpecBytes = 8 << 20
	maxSpecNodes = 1 << 14
)

// ParseSpec reads a spec. file is its path, for messages and as the place where relative paths
// begin; dir is that place for a spec that is no file. The list has every mistake; with an error in
// it the spec is nil.
func ParseSpec(file, dir string, text []byte) (*Spec, diag.List) {
	d := &specDecoder{file: file, text: text}
	if file != "" {
		dir = filepath.Dir(file)
	}
	spec := &Spec{Root: dir, file: file, text: bytes.Clone(text)}
	if node := d.document(); node != nil {
		d.spec(node, spec)
	}
	d.list.Sort()
	if d.list.HasErrors() {
		return nil, d.list
	}
	if !filepath.IsAbs(spec.Root) {
		if abs, err := filepath.Abs(spec.Root); err == nil {
			spec.Root = abs
		}
	}
	return spec, d.list
}

type specDecoder struct {
	file  string
	text  []byte
	list  diag.List
	nodes int
}

func (d *specDecoder) add(line, column, width int, message, hint string) {
	// The YAML library adds a line end to a last line without one, and reports what is missing
	// there.
	if lines := strings.Split(string(d.text), "\n"); line > len(lines) {
		line, column = len(lines), 1+utf8.RuneCountInString(lines[len(lines)-1])
	}
	d.list.Add(diag.Diagnostic{Rule: "spec", Pos: diag.Pos{File: d.file, Line: line, Column: column}, Width: width, Message: message, Hint: hint})
}

func (d *specDecoder) errorf(n *yaml.Node, hint, format string, args ...any) {
	width := 1
	if n.Kind == yaml.ScalarNode && !strings.Contains(n.Value, "\n") {
		width = max(1, utf8.RuneCountInString(n.Value))
		if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			width += 2
		}
	}
	d.add(n.Line, n.Column, width, fmt.Sprintf(format, args...), hint)
}

// document reads the one document of the file, nil after an error.
func (d *specDecoder) document() *yaml.Node {
	switch {
	case len(d.text) > maxSpecBytes:
		d.add(0, 0, 0, fmt.Sprintf("file is larger than %d MiB", maxSpecBytes>>20), "")
		return nil
	case !utf8.Valid(d.text):
		d.add(1, 1, 1, "the file is not UTF-8 text", "save it as UTF-8")
		return nil
	}
	loader := yaml.NewDecoder(bytes.NewReader(d.text))
	var root, next yaml.Node
	err := loadYAML(loader, &root)
	if errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0 {
		d.add(1, 1, 1, "the file has no content", "it needs name and sources")
		return nil
	}
	if err == nil {
		switch err = loadYAML(loader, &next); {
		case errors.Is(err, io.EOF):
			return root.Content[0]
		case err == nil:
			d.errorf(&next, "write one file for each module", "a second document begins here, and only one is read")
			return nil
		}
	}
	if le, ok := errors.AsType[*yaml.LoadError](err); ok {
		hint := ""
		if strings.Contains(le.Message, "mapping values are not allowed") {
			hint = `quote a text with ": " in it, or look for wrong indentation on the line above`
		}
		d.add(le.Mark.Line, le.Mark.Column, 1, strings.TrimSpace(le.Message+" "+le.ContextMsg), hint)
		return nil
	}
	d.add(1, 1, 1, err.Error(), "")
	return nil
}

// loadYAML reads one document. This is foreign input: a panic inside of the library becomes an
// error.
func loadYAML(loader *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML reader stopped: %v", r)
		}
	}()
	return loader.Decode(n)
}

// field is one key of a map and what takes its value.
type field struct {
	name string
	read func(n *yaml.Node)
}

// fields reads a map with fixed keys.
func (d *specDecoder) fields(n *yaml.Node, list ...field) (seen map[string]*yaml.Node) {
	seen = map[string]*yaml.Node{}
	names := make([]string, len(list))
	for i, f := range list {
		names[i] = f.name
	}
	if n = d.resolve(n); n.Kind != yaml.MappingNode {
		d.errorf(n, "its keys are "+strings.Join(names, ", "), "want a map")
		return seen
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := d.resolve(n.Content[i]), d.resolve(n.Content[i+1])
		k := slices.Index(names, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || k < 0:
			hint := "known keys: " + strings.Join(names, ", ")
			if s := diag.Suggest(key.Value, names); s != "" {
				hint = fmt.Sprintf("did you mean %q?", s)
			}
			d.errorf(key, hint, "unknown key %q", key.Value)
		case seen[key.Value] != nil:
			d.errorf(key, "", "the key %q is repeated", key.Value)
		case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
			d.errorf(key, "write a value, or leave the key out", "the key %q has no value", key.Value)
			seen[key.Value] = key
		default:
			seen[key.Value] = key
			list[k].read(value)
		}
	}
	return seen
}

func (d *specDecoder) resolve(n *yaml.Node) *yaml.Node {
	for range 32 {
		if n.Kind != yaml.AliasNode || n.Alias == nil {
			break
		}
		n = n.Alias
	}
	return n
}

func (d *specDecoder) text1(out *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode {
			d.errorf(n, "write one value", "want one value")
			return
		}
		*out = n.Value
	}
}

func (d *specDecoder) boolean(out *bool) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" {
			d.errorf(n, "write true or false", "want true or false")
			return
		}
		*out = n.Value == "true"
	}
}

// texts reads a list of texts; a single text is a list of one.
func (d *specDecoder) texts(out *[]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		items := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			items = n.Content
		}
		for _, item := range items {
			item = d.resolve(item)
			if d.nodes++; d.nodes > maxSpecNodes {
				if d.nodes == maxSpecNodes+1 {
					d.errorf(n, "", "the file has more than %d values", maxSpecNodes)
				}
				return
			}
			if item.Kind != yaml.ScalarNode || item.Value == "" || strings.ContainsRune(item.Value, 0) {
				d.errorf(item, "each entry is one text", "want a text")
				continue
			}
			*out = append(*out, item.Value)
		}
	}
}

func (d *specDecoder) spec(n *yaml.Node, s *Spec) {
	var root string
	var name *yaml.Node
	seen := d.fields(
		n,
		field{"name", func(n *yaml.Node) {
			d.text1(&s.Name)(n)
			name = n
		}},
		field{"root", d.text1(&root)},
		field{"sources", func(n *yaml.Node) {
			d.texts(&s.Sources)(n)
			for _, item := range items(n) {
				if item.Kind == yaml.ScalarNode && !strings.Contains(item.Value, "*") && sourceKind(item.Value) == "" {
					d.errorf(item, "sources end in .c, .cc, .cpp, .cxx, .cu or .hip", "%q is no source that kiln compiles", item.Value)
				}
			}
		}},
		field{"inline", d.inline(s)},
		field{"kind", func(n *yaml.Node) {
			d.text1(&s.Kind)(n)
			if n.Kind == yaml.ScalarNode && s.Kind != KindModule && s.Kind != KindLibrary && s.Kind != KindProgram {
				d.errorf(n, "write module, library or program", "%q is nothing that kiln makes", s.Kind)
			}
		}},
		field{"c_as_cxx", d.boolean(&s.CAsCXX)},
		field{"include", d.texts(&s.Include)},
		field{"flags", func(n *yaml.Node) {
			d.fields(n, field{"cxx", d.texts(&s.Flags.CXX)}, field{"nvcc", d.texts(&s.Flags.NVCC)}, field{"hip", d.texts(&s.Flags.HIP)}, field{"link", d.texts(&s.Flags.Link)})
		}},
		field{"libraries", d.texts(&s.Libraries)},
		field{"library_dirs", d.texts(&s.LibraryDirs)},
		field{"torch", d.boolean(&s.Torch)},
		field{"cuda", d.boolean(&s.CUDA)},
		field{"archs", func(n *yaml.Node) {
			d.text1(&s.Archs)(n)
			if _, err := compat.ParseArchList(s.Archs); err != nil {
				d.errorf(n, `write a list such as "8.0 9.0+PTX"`, "%v", err)
			}
		}},
		field{"prebuilt", func(n *yaml.Node) {
			if n.Kind == yaml.ScalarNode {
				var on bool
				d.boolean(&on)(n)
				s.Prebuilt.Off = !on
				return
			}
			d.fields(n, field{"modules", d.texts(&s.Prebuilt.Modules)}, field{"folders", d.texts(&s.Prebuilt.Folders)}, field{"wheels", d.texts(&s.Prebuilt.Wheels)})
			for _, m := range s.Prebuilt.Modules {
				for part := range strings.SplitSeq(m, ".") {
					if !moduleName.MatchString(part) {
						d.errorf(n, "", "%q is not the name of a Python module", m)
						break
					}
				}
			}
		}},
	)
	switch {
	case name == nil || name.Kind != yaml.ScalarNode:
	case s.isModule() && !moduleName.MatchString(s.Name):
		d.errorf(name, "use letters, digits and _", "%q is not the name of a Python module", s.Name)
	case !fileName.MatchString(s.Name):
		d.errorf(name, "use letters, digits, dots, dashes and _", "%q is not the name of a %s", s.Name, s.Kind)
	}
	for _, name := range []string{"name", "sources"} {
		if seen[name] == nil && n.Kind == yaml.MappingNode && (name != "sources" || seen["inline"] == nil) {
			d.errorf(n, "add "+name+":", "the key %q is missing", name)
		}
	}
	if len(s.Sources) == 0 && seen["sources"] != nil && !d.list.HasErrors() {
		d.errorf(seen["sources"], "name at least one file", "the list of sources is empty")
	}
	if seen["inline"] != nil && seen["sources"] != nil {
		d.errorf(seen["inline"], "leave one of them out", "a module has sources or inline texts, not both")
	}
	if root != "" {
		s.Root = s.path(root)
	}
}

// inline reads a map of file names and texts.
func (d *specDecoder) inline(s *Spec) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
			d.errorf(n, "write the text of each file under its name", "want a map of files")
			return
		}
		s.Inline = map[string]string{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := d.resolve(n.Content[i]), d.resolve(n.Content[i+1])
			switch {
			case key.Kind != yaml.ScalarNode || sourceKind(key.Value) == "" || strings.ContainsAny(key.Value, "/\\\x00*?["):
				d.errorf(key, "use a plain name such as main.cpp", "%q is not the name of a source", key.Value)
			case value.Kind != yaml.ScalarNode:
				d.errorf(value, "write its text", "want a text")
			default:
				s.Inline[key.Value] = value.Value
			}
		}
	}
}

func items(n *yaml.Node) []*yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return n.Content
	}
	return []*yaml.Node{n}
}

// path makes a path of the spec absolute, or relative to where kiln runs.
func (s *Spec) path(p string) string {
	p = filepath.FromSlash(p)
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(s.Root, p)
}

// The kinds of sources.
const (
	kindCXX  = "cxx"
	kindC    = "c"
	kindCUDA = "cuda"
	kindHIP  = "hip"
)

// sourceKind says by which compiler a file is compiled, "" for none.
func sourceKind(name string) string {
	switch strings.ToLower(path.Ext(filepath.ToSlash(name))) {
	case ".cc", ".cpp", ".cxx", ".c++":
		return kindCXX
	case ".c":
		return kindC
	case ".cu":
		return kindCUDA
	case ".hip":
		return kindHIP
	}
	return ""
}

// files are the sources that the patterns find, in the order of the patterns and sorted within one,
// as slash-separated paths relative to Root where they are below it. folders are those that were
// searched: a new file in one of them may be a source.
func (s *Spec) files() (files, folders []string, err error) {
	var faults []error
	seen, dirs := map[string]bool{}, map[string]bool{}
	add := func(p string) {
		if rel, err := filepath.Rel(s.Root, p); err == nil && filepath.IsLocal(rel) {
			p = filepath.ToSlash(rel)
		}
		if !seen[p] {
			seen[p] = true
			files = append(files, p)
		}
	}
	for _, pattern := range s.Sources {
		full := s.path(pattern)
		info, err := os.Stat(full) // a file may have the characters of a pattern in its name
		if err == nil || !strings.ContainsAny(pattern, "*?[") {
			switch {
			case err != nil:
				faults = append(faults, fmt.Errorf("source %s: %w", pattern, reason(err)))
			case info.IsDir():
				faults = append(faults, fmt.Errorf("source %s is a folder: write %s/*.cpp", pattern, strings.TrimRight(pattern, "/")))
			default:
				add(full)
			}
			continue
		}
		found, searched, err := glob(full)
		if err != nil {
			faults = append(faults, fmt.Errorf("sources %s: %w", pattern, err))
			continue
		}
		for _, dir := range searched {
			if !dirs[dir] {
				dirs[dir] = true
				folders = append(folders, dir)
			}
		}
		n := len(files)
		slices.Sort(found)
		for _, f := range found {
			if sourceKind(f) != "" {
				add(f)
			}
		}
		if len(files) == n {
			faults = append(faults, fmt.Errorf("sources %s: no file of that name below %s", pattern, s.Root))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, nil, err
	}
	slices.Sort(folders)
	return files, folders, nil
}

// reason is an error without the path and operation, which the caller names.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// maxGlob bounds how many files a pattern looks at: a root such as / is a mistake.
const maxGlob = 200_000

// glob finds files. ** stands for any number of folders.
func glob(pattern string) (files, folders []string, err error) {
	pattern = filepath.ToSlash(pattern)
	if _, err := path.Match(strings.ReplaceAll(pattern, "**", "*"), ""); err != nil {
		return nil, nil, err
	}
	fixed := pattern[:strings.IndexAny(pattern, "*?[")]
	base := filepath.FromSlash(fixed[:strings.LastIndexByte(fixed, '/')+1])
	if base == "" {
		base = "."
	}
	want := strings.Split(pattern[strings.LastIndexByte(fixed, '/')+1:], "/")
	deep := slices.Contains(want, "**")
	n := 0
	err = filepath.WalkDir(filepath.Clean(base), func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if n++; n > maxGlob {
			return fmt.Errorf("more than %d files below %s", maxGlob, base)
		}
		rel, err := filepath.Rel(filepath.Clean(base), p)
		if err != nil {
			return err
		}
		have := strings.Split(filepath.ToSlash(rel), "/")
		if entry.IsDir() {
			if rel != "." && (strings.HasPrefix(entry.Name(), ".") || !deep && len(have) >= len(want)) {
				return fs.SkipDir
			}
			folders = append(folders, p)
			return nil
		}
		if matchParts(want, have) {
			files = append(files, p)
		}
		return nil
	})
	return files, folders, err
}

func matchParts(want, have []string) bool {
	switch {
	case len(want) == 0:
		return len(have) == 0
	case want[0] == "**":
		return matchParts(want[1:], have) || len(have) > 0 && matchParts(want, have[1:])
	case len(have) == 0:
		return false
	}
	ok, _ := path.Match(want[0], have[0]) // looked at before
	return ok && matchParts(want[1:], have[1:])
}
