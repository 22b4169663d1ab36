package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
	"golang.org/x/sync/errgroup"

	"github.com/kiln-build/kiln/audit/internal/table"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/wheel"
)

// maxSnapshotSize bounds the files that ReadSnapshot reads.
const maxSnapshotSize = 64 << 20

// The kinds of snapshots.
const (
	KindTorch  = "torch"  // an installation of torch
	KindPython = "python" // an interpreter
	KindSystem = "system" // libraries of a system, such as glibc
)

// A Snapshot is what extension modules can link to in one installation of torch, or in one
// Python interpreter: its libraries, what they need, and the names of their symbols. It is
// all that is needed to tell whether a module will load there.
//
// A Snapshot does not change and may be used by several goroutines at once.
type Snapshot struct {
	// Kind is KindTorch, KindPython or KindSystem.
	Kind string `json:"kind"`
	// Version is the version of torch with its local part, such as "2.6.0+cu124", that of
	// Python, such as "3.12", or that of glibc.
	Version string `json:"version"`
	// CUDA and ROCm are the toolkit torch was built with, such as "12.4"; "" if none.
	CUDA string `json:"cuda,omitempty"`
	ROCm string `json:"rocm,omitempty"`
	// CXX11ABI says whether torch was built with libstdc++'s new strings; nil if unknown.
	CXX11ABI *bool `json:"cxx11_abi,omitempty"`
	// Platform is the system and machine, such as "linux_x86_64" or "win_amd64".
	Platform string `json:"platform"`
	// Python is the interpreter torch's own binding is for, such as "cp312".
	Python string `json:"python,omitempty"`
	// Archs are the GPU targets in torch itself, such as "8.0 9.0+PTX"; "" if unknown.
	Archs string `json:"archs,omitempty"`
	// Pybind is the internals id of torch's binding library; see Report.
	Pybind string `json:"pybind11,omitempty"`
	// Libraries are sorted by file name.
	Libraries []SnapshotLibrary `json:"libraries"`

	bySoname map[string]int
}

// A SnapshotLibrary is one library of a snapshot.
type SnapshotLibrary struct {
	File   string   `json:"file"`
	Soname string   `json:"soname"`
	Needed []string `json:"needed,omitempty"`
	// Count is the number of symbols.
	Count int `json:"symbols"`

	names []string // sorted
}

// Has says whether the library defines the symbol.
func (l *SnapshotLibrary) Has(symbol string) bool {
	_, ok := slices.BinarySearch(l.names, symbol)
	return ok
}

// Symbols returns the names the library defines, sorted. They are shared and must not be
// changed.
func (l *SnapshotLibrary) Symbols() []string { return l.names }

// Library returns the library of a SONAME, or nil.
func (s *Snapshot) Library(soname string) *SnapshotLibrary {
	if i, ok := s.bySoname[soname]; ok {
		return &s.Libraries[i]
	}
	return nil
}

// Provider returns the first library that defines the symbol, or nil.
func (s *Snapshot) Provider(symbol string) *SnapshotLibrary {
	for i := range s.Libraries {
		if s.Libraries[i].Has(symbol) {
			return &s.Libraries[i]
		}
	}
	return nil
}

// Title is the snapshot in words: "torch 2.6.0+cu124".
func (s *Snapshot) Title() string { return s.Kind + " " + s.Version }

// index prepares the lookups.
func (s *Snapshot) index() {
	s.bySoname = make(map[string]int, len(s.Libraries))
	for i := range s.Libraries {
		l := &s.Libraries[i]
		if _, ok := s.bySoname[l.File]; !ok {
			s.bySoname[l.File] = i
		}
		s.bySoname[l.Soname] = i
	}
}

// WriteTo writes the snapshot. The bytes depend on its content alone.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	r, err := s.release()
	if err != nil {
		return 0, err
	}
	data, err := table.Encode([]table.Release{r})
	if err != nil {
		return 0, err
	}
	n, err := w.Write(data)
	return int64(n), err
}

// FileName is the name a snapshot is kept under: what it is of, and the beginning of the
// SHA-256 of its content, so that two different ones never have the same.
func (s *Snapshot) FileName() (string, error) {
	r, err := s.release()
	return r.Label + snapshotSuffix, err
}

const snapshotSuffix = ".kilnsnap"

// stem is how the label of a snapshot begins.
func (s *Snapshot) stem() string { return s.Kind + "-" + s.Version + "-" + s.Platform + "-" }

// release is the snapshot as a table has it.
func (s *Snapshot) release() (table.Release, error) {
	r := table.Release{Names: map[string][]string{}}
	var err error
	if r.Description, err = json.Marshal(s); err != nil {
		return r, err
	}
	h := sha256.New()
	h.Write(r.Description)
	for i := range s.Libraries {
		l := &s.Libraries[i]
		r.Names[l.File] = l.names
		for _, name := range l.names {
			_, _ = io.WriteString(h, name+"\n") // a hash does not fail
		}
	}
	if len(r.Names) < len(s.Libraries) {
		return r, fmt.Errorf("%s: two libraries have one file name", s.Title())
	}
	r.Label = s.stem() + hex.EncodeToString(h.Sum(nil))[:12]
	return r, nil
}

// ReadSnapshot reads what [Snapshot.WriteTo] wrote. It reads foreign bytes: sizes are bounded
// and every count is checked.
func ReadSnapshot(r io.Reader) (*Snapshot, error) {
	var data strings.Builder
	n, err := io.Copy(&data, io.LimitReader(r, maxSnapshotSize+1))
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if n > maxSnapshotSize {
		return nil, fmt.Errorf("read snapshot: more than %d bytes", maxSnapshotSize)
	}
	t, err := table.Open(data.String())
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if n := len(t.Labels()); n != 1 {
		return nil, fmt.Errorf("read snapshot: it has %d releases", n)
	}
	list, err := readReleases(t, []int{0}, nil)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return list[0], nil
}

// SnapshotOptions say how TakeSnapshot works.
type SnapshotOptions struct {
	// TempDir is where large members of a wheel are unpacked, one or two at a time. Default
	// os.TempDir.
	TempDir string
}

// A torchFile is one file below the folder torch.
type torchFile struct {
	name string // relative to the folder that holds torch, with slashes
	size int64
	open func() (io.ReadCloser, error)
}

// TakeSnapshot reads an installed torch (the folder torch or the one that holds it) or a torch
// wheel. Nothing is imported or run. The context ends it early.
func TakeSnapshot(ctx context.Context, name string, opts SnapshotOptions) (*Snapshot, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("take snapshot: %w", err)
	}
	var files []torchFile
	switch {
	case info.IsDir():
		files, err = torchFolder(name)
	case strings.HasSuffix(name, ".whl"):
		var r *wheel.Reader
		if r, err = wheel.Open(name); err == nil {
			r.SetInflater(flate.NewReader)
			defer r.Close()
			files = torchMembers(r)
		}
	default:
		return nil, fmt.Errorf("take snapshot of %s: neither a folder nor a wheel", name)
	}
	if err != nil {
		return nil, fmt.Errorf("take snapshot: %w", err)
	}
	s, err := snapshotOf(ctx, files, opts)
	if err != nil {
		return nil, fmt.Errorf("take snapshot of %s: %w", name, err)
	}
	return s, nil
}

func torchFolder(dir string) ([]torchFile, error) {
	if _, err := os.Stat(filepath.Join(dir, "torch", "version.py")); err == nil {
		dir = filepath.Join(dir, "torch")
	}
	var files []torchFile
	elsewhere := map[string]bool{} // real paths of libraries that lib/ only links to
	var system string              // and the folder that they are in
	for _, pattern := range []string{"version.py", "_C.*", "lib/*"} {
		matches, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, match := range matches {
			info, err := os.Stat(match)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			rel, err := filepath.Rel(dir, match)
			if err != nil {
				return nil, err
			}
			if real, err := filepath.EvalSymlinks(match); err == nil && pattern == "lib/*" && filepath.Dir(real) != filepath.Dir(match) {
				elsewhere[real], system = true, filepath.Dir(real)
			}
			files = append(files, torchFile{
				name: "torch/" + filepath.ToSlash(rel), size: info.Size(),
				open: func() (io.ReadCloser, error) { return fsx.Open(match) },
			})
		}
	}
	if system == "" {
		return files, nil
	}
	// A distribution has the libraries among those of the system and links to some of them only.
	for _, pattern := range []string{"libtorch*.so.*", "libc10*.so.*"} {
		matches, err := filepath.Glob(filepath.Join(system, pattern))
		if err != nil {
			return nil, err
		}
		for _, match := range matches {
			info, err := os.Lstat(match)
			if err != nil || !info.Mode().IsRegular() || elsewhere[match] {
				continue
			}
			files = append(files, torchFile{
				name: "torch/lib/" + filepath.Base(match), size: info.Size(),
				open: func() (io.ReadCloser, error) { return fsx.Open(match) },
			})
		}
	}
	return files, nil
}

func torchMembers(r *wheel.Reader) []torchFile {
	var files []torchFile
	for m := range r.Files() {
		dir, base := path.Split(m.Name)
		if dir == "torch/lib/" && base != "" || m.Name == "torch/version.py" || dir == "torch/" && strings.HasPrefix(base, "_C.") {
			files = append(files, torchFile{m.Name, m.Size, func() (io.ReadCloser, error) { return r.OpenFile(m.Name) }})
		}
	}
	return files
}

var (
	versionLine = regexp.MustCompile(`(?m)^__version__\s*=\s*['"]([^'"]+)['"]`)
	cudaLine    = regexp.MustCompile(`(?m)^cuda\b[^=]*=\s*['"]([0-9.]+)['"]`)
	hipLine     = regexp.MustCompile(`(?m)^hip\b[^=]*=\s*['"]([0-9][0-9.]*)`)
	bindingName = regexp.MustCompile(`^torch/_C\.(?:cpython-|cp)(\d+t?)-`)
)

func snapshotOf(ctx context.Context, files []torchFile, opts SnapshotOptions) (*Snapshot, error) {
	s := &Snapshot{Kind: KindTorch}
	var mu, large sync.Mutex // one huge symbol table at a time bounds the memory
	var archs []string
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.GOMAXPROCS(0), 4))
	slices.SortFunc(files, func(a, b torchFile) int { return int(min(max(b.size-a.size, -1), 1)) })
	for _, f := range files {
		if m := bindingName.FindStringSubmatch(f.name); m != nil {
			s.Python = "cp" + m[1]
		}
		if f.name == "torch/version.py" {
			if err := readTorchVersion(f, s); err != nil {
				return nil, err
			}
			continue
		}
		if path.Dir(f.name) != "torch/lib" {
			continue
		}
		g.Go(func() error {
			facts, err := snapshotLibrary(ctx, f, opts, &large)
			if err != nil || facts == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			s.Libraries = append(s.Libraries, facts.lib)
			if facts.lib.Soname == "libtorch_cuda.so" || facts.lib.Soname == "torch_cuda.dll" {
				archs = facts.archs
			}
			if facts.pybind != "" {
				s.Pybind = facts.pybind
			}
			s.Platform = facts.platform
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if len(s.Libraries) == 0 {
		return nil, errors.New("no libraries in torch/lib")
	}
	if s.Version == "" {
		return nil, errors.New("torch/version.py gives no version")
	}
	slices.SortFunc(s.Libraries, func(a, b SnapshotLibrary) int { return strings.Compare(a.File, b.File) })
	s.index()
	s.CXX11ABI = torchABI(s)
	s.Archs = strings.Join(archs, " ")
	return s, nil
}

func readTorchVersion(f torchFile, s *Snapshot) error {
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if err != nil {
		return fmt.Errorf("read %s: %w", f.name, err)
	}
	first := func(re *regexp.Regexp) string {
		if m := re.FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return ""
	}
	s.Version, s.CUDA, s.ROCm = first(versionLine), first(cudaLine), compat.Minor(first(hipLine))
	return nil
}

type libraryFacts struct {
	lib      SnapshotLibrary
	platform string
	pybind   string
	archs    []string
	program  bool
}

// snapshotLibrary reads one file, or returns nil if it is no library.
func snapshotLibrary(ctx context.Context, f torchFile, opts SnapshotOptions, large *sync.Mutex) (*libraryFacts, error) {
	r, err := f.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var at io.ReaderAt
	size := f.size
	if file, ok := r.(*os.File); ok {
		at = file
	} else {
		member, _, err := spooler{dir: opts.TempDir}.spool(ctx, r, f.size, io.Discard)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if member == nil {
			return nil, nil
		}
		defer member.Close()
		at, size = member, member.size
	}
	if size > maxInMemory {
		large.Lock()
		defer large.Unlock()
	}
	facts, err := libraryOf(at, size, path.Base(f.name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	if facts == nil || facts.program {
		return nil, nil
	}
	if facts.lib.File == "torch_cuda.dll" || strings.HasPrefix(facts.lib.File, "libtorch_cuda.so") {
		if gpu, err := readGPU(at, size); err == nil {
			facts.archs = gpu.common()
		}
	}
	return facts, nil
}

// libraryOf reads what a library or a program offers, or returns nil if the file is neither.
func libraryOf(r io.ReaderAt, size int64, name string) (*libraryFacts, error) {
	facts := &libraryFacts{lib: SnapshotLibrary{File: name}}
	l := &facts.lib
	binding := strings.HasPrefix(name, "libtorch_python") || name == "torch_python.dll"
	e, err := readELF(r, size)
	switch {
	case errors.Is(err, errNotELF):
		f, err := readPE(r, size)
		if errors.Is(err, errNotPE) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		facts.program = !f.library || f.managed
		l.File = strings.ToLower(name)
		l.Soname, l.Needed, l.names, facts.platform = l.File, f.libraries(false), f.exports, f.platform()
		if binding {
			facts.pybind = pybindInternals(r, f.rdata[0], f.rdata[1])
		}
	case err != nil:
		return nil, err
	default:
		facts.program = e.kind != elf.ET_DYN
		l.Soname, l.Needed, l.names, facts.platform = cmp.Or(e.soname, name), e.needed, exportedNames(e), "linux_"+e.architecture()
		if s, ok := e.section(".rodata"); ok && binding {
			facts.pybind = pybindInternals(r, s.offset, s.size)
		}
	}
	l.Count = len(l.names)
	return facts, nil
}

// exportedNames are the symbols that other files can use, sorted, each once. They are parts of
// the file's string table, most of which they are.
func exportedNames(e *elfFile) []string {
	n := 0
	for i := range e.symbols {
		if e.symbols[i].exported() {
			n++
		}
	}
	names := make([]string, 0, n)
	for i := range e.symbols {
		if s := &e.symbols[i]; s.exported() {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TakeFiles records what single libraries offer: those of a system, or a Python interpreter,
// which is its executable or its libpython. Of an interpreter only its own symbols are kept.
// version is that of the interpreter, such as "3.12" or "3.13t", or that of the system's glibc.
func TakeFiles(kind, version string, files []string) (*Snapshot, error) {
	s := &Snapshot{Kind: kind, Version: version}
	for _, file := range files {
		l, platform, err := takeFile(kind, file)
		if err != nil {
			return nil, fmt.Errorf("take snapshot of %s: %w", file, err)
		}
		if s.Platform != "" && s.Platform != platform {
			return nil, fmt.Errorf("take snapshot of %s: it is for %s, not %s", file, platform, s.Platform)
		}
		s.Platform = platform
		s.Libraries = append(s.Libraries, l)
	}
	if len(s.Libraries) == 0 {
		return nil, errors.New("take snapshot: no files")
	}
	slices.SortFunc(s.Libraries, func(a, b SnapshotLibrary) int { return strings.Compare(a.File, b.File) })
	s.index()
	return s, nil
}

func takeFile(kind, file string) (SnapshotLibrary, string, error) {
	f, err := fsx.Open(file)
	if err != nil {
		return SnapshotLibrary{}, "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return SnapshotLibrary{}, "", err
	}
	facts, err := libraryOf(f, info.Size(), filepath.Base(file))
	if err == nil && facts == nil {
		err = errors.New("neither a library nor a program")
	}
	if err != nil {
		return SnapshotLibrary{}, "", err
	}
	l := facts.lib
	if kind == KindPython {
		// Interpreters are linked in many ways; what they offer to modules is the same.
		l.File, l.Soname, l.Needed = "python", "python", nil
		l.names = slices.DeleteFunc(l.names, func(name string) bool { return !isPythonSymbol(name) })
		if len(l.names) == 0 {
			return l, "", errors.New("exports no Python symbols; libpython may be a library of its own")
		}
		l.Count = len(l.names)
	}
	return l, facts.platform, nil
}

// OpenSnapshot reads a snapshot from a file, takes one of a torch wheel or folder, or finds
// the builtin one of a version such as "2.6.0".
func OpenSnapshot(ctx context.Context, name string, opts SnapshotOptions) (*Snapshot, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if s, err := Builtin(name); err == nil {
			return s, nil
		} else if _, verr := wheel.ParseVersion(name); verr == nil {
			return nil, err
		}
		return nil, fmt.Errorf("torch %s: %w", name, fs.ErrNotExist)
	case err != nil:
		return nil, err
	case info.IsDir() || strings.HasSuffix(name, ".whl"):
		return TakeSnapshot(ctx, name, opts)
	}
	f, err := fsx.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadSnapshot(f)
}
