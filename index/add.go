package index

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/wheel"
)

// NewFile is a file to publish.
type NewFile struct {
	// Path is where the bytes are, a regular file.
	Path string
	// Filename is the name to publish it under; the default is the last part of Path.
	Filename string
	// Move lets Add take the file at Path instead of copying it, if the index hosts it.
	// Path must then be on the same file system for it to be quick.
	Move bool

	// Base is the URL of the folder where users find the file, ending in "/", when that
	// is elsewhere. Empty means the base URL of the index, and if it has none either, the
	// file is copied into the index.
	Base string
	// MetadataBeside says that the METADATA of a wheel that is elsewhere can be fetched
	// there, at the URL of the wheel with ".metadata" appended. Pages then say so. Hosted
	// wheels always have it.
	MetadataBeside bool

	// SHA256, if not zero, must be the hash of the bytes.
	SHA256 Digest
	// UploadTime is when the file entered the index. The default is now.
	UploadTime time.Time
	// Coordinates, Arch and Provenance go to the File.
	Coordinates Coordinates
	Arch        []string
	Provenance  string
	// Facts are what is known of a wheel for a platform, if no Audit looks at it.
	Facts Facts

	writeMetadata bool // beside Path
}

func (n *NewFile) filename() string { return cmp.Or(n.Filename, filepath.Base(n.Path)) }

// AddOptions are options of [Store.Add].
type AddOptions struct {
	// Strict publishes nothing if there is a problem with any file.
	Strict bool
	// NamesOnly compares RECORD with the names and sizes in a wheel, instead of with the
	// hashes of all members too.
	NamesOnly bool
	// Audit, if not nil, looks into a wheel for a platform. It is asked about files that are new.
	// Arch and Coordinates of the NewFile count more.
	Audit func(ctx context.Context, path string, sum Digest) Facts
	// Config, if not nil, replaces the configuration of the index in the same step.
	Config *Config
	// Limits bound what wheels may hold.
	Limits wheel.Limits
}

// Change says what an operation did with one file.
type Change struct {
	Filename string `json:"filename"`
	Project  string `json:"project"`
	// Action is "added", "unchanged", "moved" (to another base URL), "removed", "yanked" or
	// "unyanked".
	Action string `json:"action"`
	SHA256 Digest `json:"sha256"`
}

// Problem is a reason not to publish one file.
type Problem struct {
	Filename string
	Err      error
}

// Error returns the name of the file and what is wrong with it.
func (p Problem) Error() string { return p.Filename + ": " + p.Err.Error() }

// Unwrap returns the reason.
func (p Problem) Unwrap() error { return p.Err }

// candidate is a file that has been read.
type candidate struct {
	file     File
	project  string
	version  wheel.Version
	display  string
	metadata []byte
	source   *NewFile // nil for listed files
}

// Add adds files to the index and updates the pages concerned. Files that are there already with
// the same bytes are left alone. A file that must not be published is in the problems and does not
// hinder the others, unless strict; the error is about the index itself.
//
// Every file is read, hashed and checked: the archive is well-formed, name and version
// are those of its metadata, and RECORD lists its content. The wheels are read before the
// lock is taken, so publishing large files does not hold up others.
func (s *Store) Add(ctx context.Context, files []NewFile, opts AddOptions) ([]Change, []Problem, error) {
	return s.add(ctx, files, opts, nil)
}

func (s *Store) add(ctx context.Context, files []NewFile, opts AddOptions, cache *scanCache) ([]Change, []Problem, error) {
	config, err := s.Config()
	if err != nil {
		return nil, nil, err
	}
	if opts.Config != nil {
		config = *opts.Config
	}
	found := make([]*candidate, len(files))
	errs := make([]error, len(files))
	_ = fanOut(runtime.GOMAXPROCS(0), len(files), func(_, i int) error {
		if ctx.Err() == nil {
			found[i], errs[i] = inspect(ctx, &files[i], &config, &opts, cache)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	var problems []Problem
	candidates := map[string][]*candidate{}
	for i, c := range found {
		if errs[i] != nil {
			problems = append(problems, Problem{files[i].filename(), errs[i]})
			continue
		}
		candidates[c.project] = append(candidates[c.project], c)
	}
	changes, more, err := s.accept(ctx, candidates, opts, len(problems) > 0)
	return changes, append(problems, more...), err
}

// AddListed adds files that are elsewhere and are known only by what files yields, for
// example from a manifest. Their hashes are taken as given. Files without an upload time
// get the present one.
func (s *Store) AddListed(ctx context.Context, files iter.Seq2[File, error], opts AddOptions) ([]Change, []Problem, error) {
	config, err := s.Config()
	if err != nil {
		return nil, nil, err
	}
	if opts.Config != nil {
		config = *opts.Config
	}
	now := time.Now().UTC().Truncate(time.Second)
	var problems []Problem
	candidates := map[string][]*candidate{}
	batch := make([]File, 0, 4096)
	flush := func() {
		found, errs := make([]candidate, len(batch)), make([]error, len(batch))
		_ = fanOut(runtime.GOMAXPROCS(0), len(batch), func(_, i int) error {
			found[i], errs[i] = listed(&batch[i], &config, now)
			return nil
		})
		for i := range found {
			if errs[i] != nil {
				problems = append(problems, Problem{batch[i].Filename, errs[i]})
				continue
			}
			candidates[found[i].project] = append(candidates[found[i].project], &found[i])
		}
		batch = batch[:0]
	}
	for f, err := range files {
		if err != nil {
			return nil, nil, err
		}
		if batch = append(batch, f); len(batch) == cap(batch) {
			flush()
		}
	}
	flush()
	changes, more, err := s.accept(ctx, candidates, opts, len(problems) > 0)
	return changes, append(problems, more...), err
}

// listed decides whether a file that is known by what a list says may be published at all.
func listed(f *File, config *Config, now time.Time) (c candidate, err error) {
	c.file = *f
	f = &c.file
	f.Base = cmp.Or(f.Base, config.BaseURL)
	if f.UploadTime.IsZero() {
		f.UploadTime = now
	}
	if c.project, c.version, err = checkName(f.Filename, config); err != nil {
		return c, err
	}
	c.display = c.project
	if err := errors.Join(f.normalizeArch(), f.validate()); err != nil {
		return c, err
	}
	if f.Base == "" {
		return c, errors.New("is listed without its bytes and without a URL")
	}
	if config.Variants && f.Variant == nil {
		if w, ok := f.Wheel(); ok && w.Label != "" {
			return c, errors.New("is a variant, which is known only from the wheel itself")
		}
	}
	return c, nil
}

// checkName checks a file name and returns its project and version.
func checkName(filename string, config *Config) (project string, version wheel.Version, err error) {
	if strings.HasSuffix(filename, ".whl") {
		w, err := wheel.ParseFilenameOptions(filename, wheel.FilenameOptions{Variants: config.Variants})
		if err != nil {
			return "", version, err
		}
		return w.Name, w.Version, validProject(w.Name, w.Name)
	}
	sdist, err := wheel.ParseSdistName(filename)
	if err != nil {
		return "", version, err
	}
	return sdist.Name, sdist.Version, validProject(sdist.Name, sdist.Name)
}

// accept adds candidates, which it consumes, by project to the index under its lock.
func (s *Store) accept(ctx context.Context, candidates map[string][]*candidate, opts AddOptions, failed bool) (changes []Change, problems []Problem, err error) {
	if failed && opts.Strict {
		return nil, nil, nil
	}
	err = s.update(ctx, func(u *update) error {
		if opts.Config != nil {
			if err := u.setConfig(*opts.Config); err != nil {
				return err
			}
		}
		names := slices.Sorted(maps.Keys(candidates))
		lists := make([][]*candidate, len(names))
		for i, name := range names {
			lists[i] = candidates[name]
		}
		clear(candidates) // frees the memory, project by project
		merges := make([]*merge, len(names))
		err := fanOut(runtime.GOMAXPROCS(0), len(names), func(_, i int) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			p, err := u.project(names[i])
			if err != nil {
				return err
			}
			merges[i] = newMerge(p, names[i], &u.config, len(lists[i]))
			merges[i].addAll(lists[i])
			if !merges[i].changed {
				merges[i].project = nil
				u.forget(names[i])
			}
			lists[i] = nil
			return nil
		})
		if err != nil {
			return err
		}
		var place []*candidate
		var updated []*merge
		for _, m := range merges {
			changes, problems, place = append(changes, m.changes...), append(problems, m.problems...), append(place, m.place...)
			if m.changed {
				updated = append(updated, m)
			}
		}
		if len(problems) > 0 && opts.Strict {
			changes, place, updated = nil, nil, nil
		}
		for _, c := range place {
			if err := u.place(c); err != nil {
				return err
			}
		}
		for _, m := range updated {
			u.set(m.project)
		}
		return nil
	})
	if err != nil {
		return nil, problems, err
	}
	return changes, problems, nil
}

// merge adds files to a copy of a project.
type merge struct {
	project  *Project
	config   *Config
	versions []wheel.Version  // of project.Files, from sorted on
	sorted   int              // how many of project.Files were there
	byName   map[string]int   // in project.Files
	byPlace  map[string][]int // the same by public version and place of their identities
	removed  map[string]Digest
	gone     []string // the names in removed
	changed  bool

	changes  []Change
	problems []Problem
	place    []*candidate // to copy into the index
}

// newMerge begins a merge of n files into p, which it changes; nil stands for a new project.
func newMerge(p *Project, name string, config *Config, n int) *merge {
	if p == nil {
		p = &Project{Name: name, DisplayName: name}
	}
	m := &merge{project: p, config: config, sorted: len(p.Files), versions: make([]wheel.Version, 0, n)}
	if len(p.Files) == 0 {
		p.Files = make([]File, 0, n)
	}
	m.byName, m.byPlace = make(map[string]int, len(p.Files)+n), make(map[string][]int, len(p.Files)+n)
	for i := range p.Files {
		id := newIdentity(p.Files[i].Filename)
		m.note(i, &id)
	}
	m.removed = make(map[string]Digest, len(p.Removed))
	for _, t := range p.Removed {
		m.removed[t.Filename] = t.SHA256
		m.gone = append(m.gone, t.Filename)
	}
	return m
}

func (m *merge) note(i int, id *identity) {
	m.byName[m.project.Files[i].Filename] = i
	for _, place := range id.places {
		key := id.version + " " + place
		m.byPlace[key] = append(m.byPlace[key], i)
	}
}

// addAll adds files, and orders those of the project.
func (m *merge) addAll(list []*candidate) {
	for _, c := range list {
		change, err := m.add(c)
		if err != nil {
			m.problems = append(m.problems, Problem{c.file.Filename, err})
			continue
		}
		m.changes = append(m.changes, change)
		if change.Action == "added" && c.source != nil && c.file.Base == "" {
			m.place = append(m.place, c)
		}
	}
	m.sort()
	m.versions, m.byName, m.byPlace, m.removed, m.gone = nil, nil, nil, nil, nil
}

// sort orders the files of the project after some were added.
func (m *merge) sort() {
	p := m.project
	if len(m.versions) > 16 {
		versions := make([]wheel.Version, m.sorted, len(p.Files))
		for i := range versions {
			versions[i] = p.Files[i].Version()
		}
		p.Files = sortFiles(p.Files, append(versions, m.versions...))
		return
	}
	// Few are inserted, without a look at most of the others.
	for k, version := range m.versions {
		f := p.Files[m.sorted+k]
		at, _ := slices.BinarySearchFunc(p.Files[:m.sorted+k], f, func(a, _ File) int {
			return cmp.Or(a.Version().Compare(version), strings.Compare(a.Filename, f.Filename))
		})
		copy(p.Files[at+1:m.sorted+k+1], p.Files[at:m.sorted+k])
		p.Files[at] = f
	}
}

// add decides about one file.
func (m *merge) add(c *candidate) (Change, error) {
	p, f := m.project, &c.file
	change := Change{Filename: f.Filename, Project: p.Name, Action: "added", SHA256: f.SHA256}
	if i, ok := m.byName[f.Filename]; ok {
		have := &p.Files[i]
		switch {
		case have.SHA256 != f.SHA256:
			return change, fmt.Errorf("%w: published with sha256 %s, now %s", ErrExists, have.SHA256, f.SHA256)
		case have.Base == f.Base && (have.Metadata == f.Metadata || f.Metadata.IsZero()):
			change.Action = "unchanged"
			return change, nil
		case have.Base == "":
			change.Action = "unchanged" // stays hosted
			return change, nil
		case f.Base == "":
			return change, fmt.Errorf("%w: published at %s, cannot become hosted", ErrExists, have.Base)
		}
		have.Base, have.Metadata = f.Base, f.Metadata
		change.Action = "moved"
		m.changed = true
		return change, nil
	}
	if _, ok := m.removed[f.Filename]; ok {
		return change, fmt.Errorf("%w: the name was used before and was removed", ErrExists)
	}
	if !p.AcceptsUploads() {
		return change, fmt.Errorf("%w: it is %s", ErrClosed, p.Status)
	}
	id := newIdentity(f.Filename)
	if err := m.taken(f, &id); err != nil {
		return change, err
	}
	if _, err := wheel.ParseSpecifierSet(f.RequiresPython); err != nil {
		return change, fmt.Errorf("field Requires-Python: %w", err)
	}
	if view, other := m.rival(f, &id); other != nil {
		return change, fmt.Errorf("view %s has this build already, as %s; yank that or give this one another version", view, other.Filename)
	}
	if f.Variant != nil {
		if err := m.checkVariant(f); err != nil {
			return change, err
		}
	}
	if len(p.Files) == 0 && c.display != "" {
		p.DisplayName = c.display
	}
	p.Files, m.versions = append(p.Files, *f), append(m.versions, c.version)
	m.note(len(p.Files)-1, &id)
	m.changed = true
	return change, nil
}

// checkVariant refuses a variant that contradicts those of the same version.
func (m *merge) checkVariant(f *File) error {
	variants := []*Variant{f.Variant}
	for i := range m.project.Files {
		if o := &m.project.Files[i]; o.Variant != nil && o.versionText() == f.versionText() {
			variants = append(variants, o.Variant)
		}
	}
	_, err := mergeVariants(variants)
	return err
}

// inspect reads a file and decides whether it may be published at all.
func inspect(ctx context.Context, n *NewFile, config *Config, opts *AddOptions, cache *scanCache) (c *candidate, err error) {
	name := n.filename()
	c = &candidate{source: n}
	if c.project, c.version, err = checkName(name, config); err != nil {
		return nil, err
	}
	c.file = File{
		Filename: name, Base: cmp.Or(n.Base, config.BaseURL), UploadTime: n.UploadTime.UTC().Truncate(time.Microsecond),
		Coordinates: n.Coordinates, Arch: n.Arch, Provenance: n.Provenance,
	}
	if n.UploadTime.IsZero() {
		c.file.UploadTime = time.Now().UTC().Truncate(time.Second)
	}
	f, err := fsx.Open(n.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	c.file.Size = info.Size()
	if known, ok := cache.get(name, info); ok && (!n.writeMetadata || exists(n.Path+".metadata")) {
		// Read before, under the same name, size and time, and published with this hash.
		c.file.SHA256, c.file.Metadata, c.file.RequiresPython, c.display = known.sha256, known.metadata, known.requiresPython, c.project
		if c.file.Base != "" && !n.MetadataBeside {
			c.file.Metadata = Digest{}
		}
		return c, c.file.validate()
	}
	h := sha256.New()
	if _, err := io.Copy(h, contextReader{ctx, io.NewSectionReader(f, 0, info.Size())}); err != nil {
		return nil, err
	}
	h.Sum(c.file.SHA256[:0])
	if !n.SHA256.IsZero() && n.SHA256 != c.file.SHA256 {
		return nil, fmt.Errorf("sha256 is %s, not %s", c.file.SHA256, n.SHA256)
	}
	if c.file.IsWheel() {
		err = c.readWheel(ctx, f, info.Size(), opts)
	} else {
		err = c.readSdist(ctx, f, info.Size())
	}
	if err != nil {
		return nil, err
	}
	if c.file.IsWheel() && (c.file.Base == "" || n.MetadataBeside) {
		if err := c.checkSibling(n); err != nil {
			return nil, err
		}
		c.file.Metadata = sha256.Sum256(c.metadata)
	}
	if opts.Audit != nil && c.native() {
		c.file.Learn(opts.Audit(ctx, n.Path, c.file.SHA256))
	} else if c.native() {
		c.file.Learn(n.Facts)
	}
	cache.put(name, info, c.file.SHA256)
	if err := c.file.normalizeArch(); err != nil {
		return nil, err
	}
	return c, c.file.validate()
}

// normalizeArch writes the architectures of a file in kiln's spelling.
func (f *File) normalizeArch() error {
	list := make([]string, len(f.Arch))
	for i, a := range f.Arch {
		var err error
		if list[i], err = compat.NormalArch(a); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		f.Arch = list
	}
	return nil
}

// native reports whether the file is a wheel for certain platforms.
func (c *candidate) native() bool {
	name, ok := c.file.Wheel()
	return ok && !slices.Contains(name.Platform, "any")
}

// checkSibling compares the METADATA beside a wheel that stays elsewhere with the one in it, as
// installers refuse a wheel where they differ.
func (c *candidate) checkSibling(n *NewFile) error {
	if c.file.Base == "" {
		return nil
	}
	path := n.Path + MetadataSuffix
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.writeMetadata:
		return fsx.WriteFile(path, c.metadata, 0o644)
	case errors.Is(err, fs.ErrNotExist):
		return nil // the caller vouches for it
	case err != nil:
		return err
	case !bytes.Equal(data, c.metadata):
		return fmt.Errorf("%s is not the METADATA of the wheel", filepath.Base(path))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// contextReader ends a long read when ctx does.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as the call it is made in
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

func (c *candidate) readWheel(ctx context.Context, r io.ReaderAt, size int64, opts *AddOptions) error {
	name, err := wheel.ParseFilenameOptions(c.file.Filename, wheel.FilenameOptions{Variants: true})
	if err != nil {
		return err
	}
	// A label is nothing that the archive knows, apart from variant.json.
	label, plain := name.Label, c.file.Filename
	if label != "" {
		plain = strings.TrimSuffix(plain, "-"+label+".whl") + ".whl"
	}
	w, err := wheel.NewReader(r, size, plain, opts.Limits)
	if err != nil {
		return err
	}
	found, err := w.Check(ctx, wheel.CheckOptions{NamesOnly: opts.NamesOnly})
	if err != nil {
		return err
	}
	// Installers do not look at the tags in WHEEL, and a name that clashes on some file
	// systems installs on others.
	found = slices.DeleteFunc(found, func(p wheel.Problem) bool { return p.Kind == wheel.KindTag || p.Kind == wheel.KindClash })
	if len(found) > 0 {
		return &wheel.CheckError{Problems: found}
	}
	metadata, err := w.Metadata()
	if err != nil {
		return err
	}
	if label != "" {
		data, err := readMember(w, w.DistInfo()+"/variant.json")
		if err != nil {
			return err
		}
		if c.file.Variant, err = ParseVariant(data, label); err != nil {
			return err
		}
	}
	c.take(metadata)
	return nil
}

func readMember(w *wheel.Reader, name string) ([]byte, error) {
	m, err := w.OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return io.ReadAll(m)
}

// take notes what pages say of the metadata.
func (c *candidate) take(m *wheel.Metadata) {
	c.metadata = m.Bytes()
	c.file.RequiresPython = m.RequiresPython()
	c.display = c.project
	if wheel.ValidName(m.Name()) {
		c.display = m.Name()
	}
}

// readSdist reads an sdist whole and takes its PKG-INFO.
func (c *candidate) readSdist(ctx context.Context, r io.ReaderAt, size int64) error {
	m, err := wheel.ReadSdist(ctx, r, size, c.file.Filename, wheel.Limits{})
	if err != nil {
		return err
	}
	c.take(m)
	return nil
}

// place puts a file and its metadata into the index, before anything lists it.
func (u *update) place(c *candidate) error {
	s := u.store
	path := filepath.Join(s.dir, filepath.FromSlash(c.file.HostedPath()))
	if !exists(path) {
		u.placed = append(u.placed, path)
	}
	dir := filepath.Dir(path)
	if err := s.touch(dir); err != nil {
		return err
	}
	if err := mkdirDurable(s.dir, dir); err != nil {
		return err
	}
	if err := s.touch(path + ".metadata"); err != nil {
		return err
	}
	if !c.file.Metadata.IsZero() {
		if err := fsx.WriteFile(path+".metadata", c.metadata, 0o644); err != nil {
			return err
		}
	}
	if sum, err := digestFile(path); err == nil && sum == c.file.SHA256 {
		return nil // left by an interrupted change
	}
	if err := s.touch(path); err != nil {
		return err
	}
	if c.source.Move && s.move(c, path) {
		return nil
	}
	src, err := os.Open(c.source.Path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := fsx.Create(path)
	if err != nil {
		return err
	}
	defer dst.Abort() //nolint:errcheck // cleaning up after an error that is returned
	_, sum, err := fsx.CopyHash(dst, src, make([]byte, 1<<20))
	if err != nil {
		return err
	}
	if Digest(sum) != c.file.SHA256 {
		return fmt.Errorf("%s changed while it was being published", c.source.Path)
	}
	return dst.Commit()
}

// move renames the source to its place, if it can be done durably.
func (s *Store) move(c *candidate, path string) bool {
	f, err := os.OpenFile(c.source.Path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	err = f.Sync()
	if err := errors.Join(err, f.Close()); err != nil {
		return false
	}
	_ = os.Chmod(c.source.Path, 0o644) // temporary files are often private
	if sum, err := digestFile(c.source.Path); err != nil || sum != c.file.SHA256 {
		return false
	}
	if os.Rename(c.source.Path, path) != nil {
		return false
	}
	return fsx.SyncDir(filepath.Dir(path)) == nil
}

func mkdirDurable(root, dir string) error {
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		return nil
	}
	if dir != root {
		if err := mkdirDurable(root, filepath.Dir(dir)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsx.SyncDir(filepath.Dir(dir))
}

func digestFile(path string) (Digest, error) {
	sum, _, err := fsx.SHA256(path)
	if err != nil {
		return Digest{}, err
	}
	return ParseDigest(sum)
}

// Yank marks the matching files of a project as not to be taken by new installs, or with undo
// takes the mark back. The error wraps [ErrNotFound] if none matches.
func (s *Store) Yank(ctx context.Context, project string, match func(*File) bool, reason string, undo bool) ([]Change, error) {
	if !plainText(reason, 2000) {
		return nil, errors.New("the reason for yanking is not one line of text")
	}
	return s.edit(ctx, project, func(p *Project) (changes []Change, _ []*File) {
		action := "yanked"
		if undo {
			action, reason = "unyanked", ""
		}
		for i := range p.Files {
			f := &p.Files[i]
			if !match(f) {
				continue
			}
			c := Change{f.Filename, p.Name, action, f.SHA256}
			if f.Yanked == !undo && f.YankedReason == reason {
				c.Action = "unchanged"
			}
			f.Yanked, f.YankedReason = !undo, reason
			changes = append(changes, c)
		}
		return changes, nil
	})
}

// Remove removes the matching files of a project, and their bytes if the index hosts them.
// Their names stay taken: published is published. The error wraps [ErrNotFound] if none matches.
func (s *Store) Remove(ctx context.Context, project string, match func(*File) bool) ([]Change, error) {
	return s.edit(ctx, project, func(p *Project) (changes []Change, unlink []*File) {
		var kept []File
		for i := range p.Files {
			f := &p.Files[i]
			if !match(f) {
				kept = append(kept, *f)
				continue
			}
			changes = append(changes, Change{f.Filename, p.Name, "removed", f.SHA256})
			p.Removed = append(p.Removed, Tombstone{f.Filename, f.SHA256})
			if f.Base == "" {
				unlink = append(unlink, f)
			}
		}
		slices.SortFunc(p.Removed, func(a, b Tombstone) int { return strings.Compare(a.Filename, b.Filename) })
		p.Files = kept
		return changes, unlink
	})
}

func (s *Store) edit(ctx context.Context, project string, change func(p *Project) ([]Change, []*File)) (changes []Change, err error) {
	err = s.update(ctx, func(u *update) error {
		p, err := u.project(project)
		if err != nil {
			return err
		}
		if p == nil {
			return fmt.Errorf("project %q: %w", project, ErrNotFound)
		}
		var unlink []*File
		changes, unlink = change(p)
		if len(changes) == 0 {
			return fmt.Errorf("project %s has no such file: %w", project, ErrNotFound)
		}
		if slices.ContainsFunc(changes, func(c Change) bool { return c.Action != "unchanged" }) {
			u.set(p)
			u.unlink = unlink
		}
		return nil
	})
	return changes, err
}

// Settings are what can be decided for a project. Nil fields keep what is there.
type Settings struct {
	DisplayName  *string
	Status       *Status
	StatusReason *string
	Shared       *bool
	Default      *Coordinates
}

// SetProject changes the settings of a project. One that is not there is made, without
// files, which reserves its name.
func (s *Store) SetProject(ctx context.Context, project string, settings Settings) error {
	return s.update(ctx, func(u *update) error {
		p, err := u.project(project)
		if err != nil {
			return err
		}
		if p == nil {
			p = &Project{Name: project, DisplayName: project}
		}
		set(&p.DisplayName, settings.DisplayName)
		set(&p.Status, settings.Status)
		set(&p.StatusReason, settings.StatusReason)
		set(&p.Shared, settings.Shared)
		set(&p.Default, settings.Default)
		if !plainText(p.StatusReason, 2000) {
			return errors.New("the reason for the status is not one line of text")
		}
		if err := p.validate(); err != nil {
			return err
		}
		u.set(p)
		return nil
	})
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// SetConfig changes the configuration of the index, and with it all pages that depend on it.
func (s *Store) SetConfig(ctx context.Context, config Config) error {
	return s.update(ctx, func(u *update) error { return u.setConfig(config) })
}

// validBase checks the URL of a folder of files: absolute with http, https or file, or a path.
// It has no query, as clients append ".metadata" in different places of one.
func validBase(s string) error {
	if !strings.HasSuffix(s, "/") {
		return fmt.Errorf("URL %q does not end in /", s)
	}
	return validURL(s)
}

func validURL(s string) error {
	if len(s) > 2000 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'<>\^{|}`+"`", r) }) {
		return fmt.Errorf("URL %q has characters that must be percent-encoded", s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	switch {
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return fmt.Errorf("URL %q has a query or fragment", s)
	case u.User != nil:
		return fmt.Errorf("URL of %s has a user name in it, which pages would publish", u.Host)
	case u.Scheme == "" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return nil
	case u.Scheme == "file" && u.Path != "":
		return nil
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("URL %q is neither http, https or file, nor a path on the same host", s)
	}
	return nil
}

// plainText reports whether s is one line of readable text.
func plainText(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
