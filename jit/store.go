package jit

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/machine"
)

// Store keeps compiled modules in a folder:
//
//	v1/NAME/KEY/         one module with its manifest, inputs and log; never changed
//	v1/NAME/wheel.SUM/   the native files of a wheel that a prebuilt module is in
//	v1/NAME/….used       its time is that of the last use of the folder
//	v1/NAME/BASE.lock    held by the process that compiles; never removed
//	v1/tmp/              work folders, each with a lock: without a holder it is a leftover
//	v1/failed/           what did not compile, for ten minutes
//	v1/memory/, loads/   answers that hold as long as nothing changes
//	v1/inline/SUM/       sources that came as text
//	v1/hip/SUM/          sources that torch's hipify translated, with their headers
//
// A KEY is the digest of all inputs but the headers (BASE) and that of the headers. Several
// processes, also of several containers or machines, may use one store at the same time.
type Store struct {
	// Dir is the folder. It is made when something is to be kept.
	Dir string
}

func (s *Store) dir() string { return filepath.Join(s.Dir, "v1") }

// Folders of the store that have no modules.
const (
	tmpDir       = "tmp"
	failedDir    = "failed"
	memoryDir    = "memory"
	loadsDir     = "loads"
	snapshotsDir = "snapshots"
	inlineDir    = "inline" // sources that came as text
	hipDir       = "hip"    // what torch's hipify made of .cu files
)

// moduleDir is the folder of the modules of a name. A module may be called as one of the store's own
// folders.
func (s *Store) moduleDir(name string) string {
	switch name {
	case tmpDir, failedDir, memoryDir, loadsDir, snapshotsDir, inlineDir, hipDir:
		name += ".module" // a name that no module can have
	}
	return filepath.Join(s.dir(), name)
}

const (
	manifestName = "manifest.json"
	inputsName   = "key.json"
	logName      = "build.log"
	usedSuffix   = ".used"
	wheelPrefix  = "wheel." // without a dash: it is no entry, and has no inputs
	wheelName    = "complete.json"

	manifestFormat = "kiln-jit/1"
)

// Manifest describes an entry.
type Manifest struct {
	Format string `json:"format"`
	Name   string `json:"name"`
	// Module is the file name of the module, in the entry's folder.
	Module string `json:"module"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Archs  string `json:"archs,omitempty"`
	// Headers are all files that compilers read besides the sources, with their digests.
	Headers []Header      `json:"headers"`
	Made    time.Time     `json:"made"`
	Wall    time.Duration `json:"wall"`
}

// Header is a file that was included.
type Header struct {
	Path   string `json:"path"` // absolute, or with {root}, {torch}, {python} or {cuda} in front
	SHA256 string `json:"sha256"`
}

// Entry is a module in the store.
type Entry struct {
	Manifest
	// Key is the name of its folder, Dir its path.
	Key string `json:"key"`
	Dir string `json:"dir"`
	// Used is when it was last asked for.
	Used time.Time `json:"used"`
	// Bytes is what the folder takes.
	Bytes int64 `json:"bytes"`
}

// Path is that of the module.
func (e Entry) Path() string { return filepath.Join(e.Dir, e.Module) }

// Inputs reads what the entry was made of.
func (e Entry) Inputs() (Inputs, error) {
	var in Inputs
	text, err := os.ReadFile(filepath.Join(e.Dir, inputsName))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(e.Dir, inputsName), err)
	}
	return in, nil
}

// Entries lists the modules of a name, the last used first; of all names if name is empty. A folder
// that is no entry is left out.
func (s *Store) Entries(name string) ([]Entry, error) {
	parent := filepath.Join(escapeGlob(s.dir()), "*")
	if name != "" {
		parent = escapeGlob(s.moduleDir(name))
	}
	found, err := filepath.Glob(filepath.Join(parent, "*-*", manifestName))
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, f := range found {
		if e, err := readEntry(filepath.Dir(f)); err == nil {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Entry) int { return b.Used.Compare(a.Used) })
	return out, nil
}

// escapeGlob keeps a folder name from being a pattern.
func escapeGlob(dir string) string {
	if filepath.Separator == '\\' {
		return dir // has no escapes
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func readEntry(dir string) (Entry, error) {
	e := Entry{Key: filepath.Base(dir), Dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(text, &e.Manifest); err != nil {
		return e, fmt.Errorf("%s: %w", filepath.Join(dir, manifestName), err)
	}
	if e.Format != manifestFormat || e.Module == "" || e.Module != filepath.Base(e.Module) {
		return e, fmt.Errorf("%s: not a manifest of this version", filepath.Join(dir, manifestName))
	}
	return e, e.measure(e.Made)
}

// measure fills in the size and the last use, which is made where none was noted.
func (e *Entry) measure(made time.Time) error {
	e.Used = made
	if info, err := os.Stat(e.Dir + usedSuffix); err == nil {
		e.Used = info.ModTime()
	}
	return filepath.WalkDir(e.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil {
			e.Bytes += info.Size()
		}
		return nil
	})
}

// wheels lists the wheels that were unpacked, as entries without a module of their own.
func (s *Store) wheels() ([]Entry, error) {
	found, err := filepath.Glob(filepath.Join(escapeGlob(s.dir()), "*", wheelPrefix+"*", wheelName))
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, f := range found {
		dir := filepath.Dir(f)
		e := Entry{Manifest: Manifest{Name: filepath.Base(filepath.Dir(dir))}, Key: filepath.Base(dir), Dir: dir}
		info, err := os.Stat(f)
		if err != nil || e.measure(info.ModTime()) != nil {
			continue // another process removes it
		}
		e.Made = info.ModTime()
		out = append(out, e)
	}
	return out, nil
}

// folderOf is the folder of the store, of an entry or a wheel, that a module is in; empty if it is
// elsewhere.
func (s *Store) folderOf(module string) string {
	rel, err := filepath.Rel(s.dir(), module)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	parts := strings.Split(rel, string(filepath.Separator))
	if len(parts) < 3 {
		return ""
	}
	return filepath.Join(s.dir(), parts[0], parts[1])
}

// places are the folders that tokens in header paths stand for.
type places map[string]string

// token makes a path independent of where the project and the installations are.
func (p places) token(path string) string {
	best := ""
	for name, dir := range p {
		if len(dir) > len("/usr") && strings.HasPrefix(path, dir+string(filepath.Separator)) && (best == "" || len(dir) > len(p[best])) {
			best = name
		}
	}
	if best == "" {
		return path
	}
	return best + filepath.ToSlash(path[len(p[best]):])
}

func (p places) path(token string) string {
	if strings.HasPrefix(token, "{") {
		if i := strings.IndexByte(token, '}'); i > 0 && p[token[:i+1]] != "" {
			return p[token[:i+1]] + filepath.FromSlash(token[i+1:])
		}
	}
	return token
}

// find returns the entry for these inputs whose headers are those of now. digests remembers what
// was read.
func (s *Store) find(name, base string, where places, digests map[string]string) (Entry, bool) {
	dirs, err := filepath.Glob(filepath.Join(escapeGlob(s.moduleDir(name)), base+"-*"))
	if err != nil {
		return Entry{}, false
	}
	for _, dir := range dirs {
		e, err := readEntry(dir)
		if err != nil {
			continue // unfinished, or another version's
		}
		if !slices.ContainsFunc(e.Headers, func(h Header) bool { return digestOf(where.path(h.Path), digests) != h.SHA256 }) {
			return e, true
		}
	}
	return Entry{}, false
}

// digestOf is the digest of a file, "" if it cannot be read.
func digestOf(path string, digests map[string]string) string {
	sum, ok := digests[path]
	if !ok {
		sum, _, _ = fsx.SHA256(path)
		digests[path] = sum
	}
	return sum
}

// intact reports whether the module of an entry is what was written.
func (e Entry) intact() bool {
	info, err := os.Stat(e.Path())
	if err != nil || info.Size() != e.Size {
		return false
	}
	sum, _, err := fsx.SHA256(e.Path())
	return err == nil && sum == e.SHA256
}

// usedEvery is how exactly the last use is known; a store should not be written to at every call.
const usedEvery = time.Hour

// touch notes that a folder of the store was used; "" is none. A store that cannot be written to
// works too.
func touch(dir string) {
	if dir == "" {
		return
	}
	path := dir + usedSuffix
	now := time.Now()
	if info, err := os.Stat(path); err == nil {
		if now.Sub(info.ModTime()) > usedEvery {
			_ = os.Chtimes(path, now, now)
		}
		return
	}
	_ = os.WriteFile(path, nil, 0o666)
}

// Explain says what is different between the inputs of now and the newest entry of the same name,
// for the question why a module is compiled again. Headers count as far as they are those of that
// entry. entry is nil if there is none.
func (s *Store) Explain(name string, now Inputs, where map[string]string) (entry *Entry, changes []Change, err error) {
	list, err := s.Entries(name)
	if err != nil || len(list) == 0 {
		return nil, nil, err
	}
	newest := slices.MaxFunc(list, func(a, b Entry) int { return a.Made.Compare(b.Made) })
	old, err := newest.Inputs()
	if err != nil {
		return nil, nil, err
	}
	digests := map[string]string{}
	for _, h := range newest.Headers {
		now = append(slices.Clip(now), Input{"header " + h.Path, digestOf(places(where).path(h.Path), digests)})
		old = append(old, Input{"header " + h.Path, h.SHA256})
	}
	return &newest, old.Compare(now), nil
}

// workDir is a private folder of one build.
type workDir struct {
	path string
	lock *fsx.FileLock
}

func (s *Store) newWork(name string) (*workDir, error) {
	tmp := filepath.Join(s.dir(), tmpDir)
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return nil, err
	}
	for {
		path := filepath.Join(tmp, name+"-"+strings.ToLower(rand.Text()[:12]))
		lock, err := fsx.TryLock(path + ".lock")
		switch {
		case errors.Is(err, fsx.ErrLocked):
			continue // a sweep was quicker
		case err != nil && !errors.Is(err, errors.ErrUnsupported):
			return nil, err
		}
		if err := os.Mkdir(path, 0o777); err != nil {
			return nil, err
		}
		return &workDir{path, lock}, nil
	}
}

func (w *workDir) remove() {
	_ = os.RemoveAll(w.path)
	_ = os.Remove(w.path + ".lock")
	if w.lock != nil {
		_ = w.lock.Unlock()
	}
}

// sweep removes the work folders of processes that are gone.
func (s *Store) sweep() (removed int) {
	locks, err := filepath.Glob(filepath.Join(escapeGlob(s.dir()), tmpDir, "*.lock"))
	if err != nil {
		return 0
	}
	for _, path := range locks {
		dir := strings.TrimSuffix(path, ".lock")
		if _, err := os.Stat(dir); err != nil {
			// A lock is made before its folder and removed after it. This one may belong to a
			// process that begins or ends, which would then hold a lock that no other process sees.
			// Only an old one has no owner.
			if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) < time.Hour {
				continue
			}
		}
		lock, err := fsx.TryLock(path)
		if err != nil {
			continue // at work
		}
		_, err = os.Stat(dir)
		there := err == nil // another sweep may have been quicker
		if os.RemoveAll(dir) == nil {
			_ = os.Remove(path)
			if there {
				removed++
			}
		}
		_ = lock.Unlock()
	}
	return removed
}

// failure is a build that did not work.
type failure struct {
	Format    string              `json:"format"`
	Time      time.Time           `json:"time"`
	Diagnoses []machine.Diagnosis `json:"diagnoses"`
	Command   []string            `json:"command,omitempty"`
	Tail      []string            `json:"tail,omitempty"`
	Log       string              `json:"log,omitempty"`
	// Lasting says that the same inputs fail again, whatever is installed meanwhile.
	Lasting bool `json:"lasting"`
	// Watch are files that may have been at fault and are not in the inputs.
	Watch []fileStat `json:"watch,omitempty"`
}

// failureTime is how long a failure is remembered.
const failureTime = 10 * time.Minute

func (s *Store) failurePath(name, base string) string {
	return filepath.Join(s.dir(), failedDir, name+"-"+base+".json")
}

// failed returns a failure of the same inputs that still holds: one of the last minutes, or one
// that another process had while this one waited.
func (s *Store) failed(name, base string, since time.Time) (*failure, bool) {
	text, err := os.ReadFile(s.failurePath(name, base))
	if err != nil {
		return nil, false
	}
	var f failure
	if json.Unmarshal(text, &f) != nil || f.Format != manifestFormat || time.Since(f.Time) > failureTime {
		return nil, false
	}
	if f.Time.Before(since) && !f.Lasting {
		return nil, false
	}
	for _, w := range f.Watch {
		if !w.same() {
			return nil, false
		}
	}
	return &f, true
}

// GCOptions say what may go.
type GCOptions struct {
	// MaxBytes is what the entries may take together. Zero means 5 GiB, a negative value none at
	// all.
	MaxBytes int64
	// Keep is how recently an entry must have been used to stay whatever the size. Zero means 24
	// hours, a negative value that none is too recent.
	Keep time.Duration
	// DryRun removes nothing.
	DryRun bool
}

// GCReport says what went and what stayed.
type GCReport struct {
	Removed      []Entry `json:"removed"`
	Kept         int     `json:"kept"`
	RemovedBytes int64   `json:"removed_bytes"`
	KeptBytes    int64   `json:"kept_bytes"`
	// Leftovers counts work folders of processes that are gone.
	Leftovers int `json:"leftovers"`
}

const (
	defaultMaxBytes = 5 << 30
	defaultKeep     = 24 * time.Hour
)

// GC removes the entries and unpacked wheels that were not used for longest until the rest fits,
// leftovers of killed processes, and old failures. An entry that is being compiled stays. Several
// may run at the same time.
func (s *Store) GC(ctx context.Context, opts GCOptions) (*GCReport, error) {
	if opts.MaxBytes == 0 {
		opts.MaxBytes = defaultMaxBytes
	}
	if opts.Keep == 0 {
		opts.Keep = defaultKeep
	}
	list, err := s.Entries("")
	if err != nil {
		return nil, err
	}
	wheels, err := s.wheels()
	if err != nil {
		return nil, err
	}
	list = append(list, wheels...)
	slices.SortStableFunc(list, func(a, b Entry) int { return b.Used.Compare(a.Used) })
	r := &GCReport{Removed: []Entry{}}
	now := time.Now()
	for _, e := range list { // the last used first
		fits := opts.MaxBytes >= 0 && r.KeptBytes+e.Bytes <= opts.MaxBytes
		if !fits && now.Sub(e.Used) >= opts.Keep && ctx.Err() == nil {
			gone := opts.DryRun
			if !gone {
				gone, err = s.removeEntry(e)
				if err != nil {
					return r, err
				}
			}
			if gone {
				r.Removed, r.RemovedBytes = append(r.Removed, e), r.RemovedBytes+e.Bytes
				continue
			}
			if _, err := os.Stat(e.Dir); errors.Is(err, fs.ErrNotExist) {
				continue // another process removed it
			}
		}
		r.Kept, r.KeptBytes = r.Kept+1, r.KeptBytes+e.Bytes
	}
	if opts.DryRun {
		return r, context.Cause(ctx)
	}
	r.Leftovers = s.sweep()
	for _, old := range []struct {
		dir string
		age time.Duration
	}{{failedDir, 7 * 24 * time.Hour}, {memoryDir, 30 * 24 * time.Hour}, {loadsDir, 30 * 24 * time.Hour}, {snapshotsDir, 30 * 24 * time.Hour}, {inlineDir, 30 * 24 * time.Hour}, {hipDir, 30 * 24 * time.Hour}} {
		removeOld(filepath.Join(s.dir(), old.dir), old.age)
	}
	return r, context.Cause(ctx)
}

// removeEntry removes an entry unless a process compiles the same inputs, and reports whether this
// call removed it. It is out of sight before its files go.
func (s *Store) removeEntry(e Entry) (bool, error) {
	if base, _, ok := strings.Cut(e.Key, "-"); ok { // wheels have no inputs, and no lock
		lock, err := fsx.TryLock(filepath.Join(filepath.Dir(e.Dir), base+".lock"))
		switch {
		case errors.Is(err, fsx.ErrLocked):
			return false, nil
		case err != nil && !errors.Is(err, errors.ErrUnsupported):
			return false, err
		}
		if lock != nil {
			defer lock.Unlock() //nolint:errcheck // It ends with the file.
		}
	}
	work, err := s.newWork(e.Name)
	if err != nil {
		return false, err
	}
	defer work.remove()
	if err := os.Rename(e.Dir, filepath.Join(work.path, "entry")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, err
	}
	_ = os.Remove(e.Dir + usedSuffix)
	return true, nil
}

func removeOld(dir string, age time.Duration) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, n := range names {
		if info, err := n.Info(); err == nil && time.Since(info.ModTime()) > age {
			_ = os.RemoveAll(filepath.Join(dir, n.Name()))
		}
	}
}
