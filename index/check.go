package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kiln-build/kiln/internal/fsx"
)

// CheckOptions are options of [Store.Check].
type CheckOptions struct {
	// NoHash compares the sizes of hosted files only.
	NoHash bool
	// Repair writes the pages anew that are not right and removes what belongs to
	// no file. It cannot bring lost files back.
	Repair bool
	// WheelsDir, if set, is a folder to compare with: files in it that the index does not
	// have, or has with another hash, are findings.
	WheelsDir string
}

// Finding is something that is wrong with an index, or a warning.
type Finding struct {
	// Rule is a stable short name: "page", "stray", "missing", "size", "hash", "metadata",
	// "orphan", "unpublished", "differs", "views", "default", "linux-tag", "upload-time" or
	// "catalog".
	Rule string `json:"rule"`
	// Path is the file concerned, relative to the index, or a project.
	Path string `json:"path"`
	// Message says what is wrong.
	Message string `json:"message"`
	// Warning says that the index works nevertheless.
	Warning bool `json:"warning,omitempty"`
	// Repaired says that it is no longer so.
	Repaired bool `json:"repaired,omitempty"`
}

// String returns the finding on one line.
func (f Finding) String() string {
	kind := "error"
	switch {
	case f.Repaired:
		kind = "repaired"
	case f.Warning:
		kind = "warning"
	}
	return fmt.Sprintf("%s: %s: %s", f.Path, kind, f.Message)
}

// Report is the result of [Store.Check].
type Report struct {
	Projects int       `json:"projects"`
	Files    int       `json:"files"`
	Hosted   int       `json:"hosted"`
	Pages    int       `json:"pages"`
	Findings []Finding `json:"findings"`
}

// OK reports whether there is nothing wrong that was not repaired.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Warning && !f.Repaired })
}

// Check compares the catalog with the pages, the hosted files and optionally a folder of
// wheels. It holds the lock, so that it sees no half of a change, and completes one that was
// interrupted. The error is about the index as a whole, for example a damaged catalog.
func (s *Store) Check(ctx context.Context, opts CheckOptions) (*Report, error) {
	r := &Report{}
	if opts.Repair {
		if err := s.repairState(ctx); err != nil {
			return nil, err
		}
	}
	err := s.update(ctx, func(u *update) error {
		// A commit in front of this callback has completed what was interrupted.
		c := &checker{store: s, u: u, opts: opts, report: r, tree: newTree(s, true, new(atomic.Int64)), expected: map[string]bool{}}
		return c.run(ctx)
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return strings.Compare(a.Path, b.Path) })
	return r, nil
}

// repairState makes a damaged list of projects anew from the log.
func (s *Store) repairState(ctx context.Context) error {
	if _, err := readState(s.dir); !errors.Is(err, errState) {
		return err
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // nothing was written through it
	logs, err := logs(s.dir)
	if err != nil || len(logs) == 0 {
		return fmt.Errorf("repair index %s: no catalog: %w", s.dir, errState)
	}
	// The last one is complete: a log gets its name when it is.
	st := newState()
	st.log = logs[len(logs)-1]
	f, err := os.Open(filepath.Join(s.dir, stateDir, st.log))
	if err != nil {
		return err
	}
	defer f.Close()
	st.logLen, err = tail(f, 0, func(p *Project, offset, length int64) error {
		p.prepare(&Config{})
		st.entries[p.Name] = newEntry(p, p.own, &entry{offset: offset, length: length})
		return nil
	})
	if err != nil {
		return err
	}
	st.config = ^uint32(0) // makes the next change write all pages
	return st.write(s)
}

type checker struct {
	store    *Store
	u        *update
	opts     CheckOptions
	report   *Report
	tree     *tree
	expected map[string]bool // pages and hosted files, relative
}

func (c *checker) find(rule, path, format string, args ...any) *Finding {
	c.report.Findings = append(c.report.Findings, Finding{Rule: rule, Path: path, Message: fmt.Sprintf(format, args...)})
	return &c.report.Findings[len(c.report.Findings)-1]
}

func (c *checker) warn(rule, path, format string, args ...any) {
	c.find(rule, path, format, args...).Warning = true
}

func (c *checker) run(ctx context.Context) error {
	st, config := c.u.st, &c.u.config
	roots, combinations := st.roots(config), st.combinations()
	published := map[string]*File{}
	for _, name := range st.names() {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		p, err := c.u.project(name)
		if err != nil {
			return err
		}
		p.prepare(config)
		c.report.Projects++
		c.report.Files += len(p.Files)
		for i := range p.Files {
			f := &p.Files[i]
			published[f.Filename] = f
			if f.Base == "" {
				c.checkHosted(f)
			}
		}
		c.checkProject(p)
		if err := c.checkPages(p, roots, combinations); err != nil {
			return err
		}
	}
	for path, r := range roots {
		entries := st.list(path)
		for _, root := range r {
			if err := c.checkFolder(pageFolder(root, ""), listPages(entries)); err != nil {
				return err
			}
		}
	}
	if c.report.Projects > 0 {
		if err := c.checkFolder(".", []pageFile{{name: "catalog.json", data: st.appendCatalog(nil, config)}}); err != nil {
			return err
		}
	}
	if err := c.checkStray(); err != nil {
		return err
	}
	if c.opts.WheelsDir != "" {
		return c.checkDir(ctx, published)
	}
	return nil
}

// checkHosted compares a file that the index has with what the catalog says.
func (c *checker) checkHosted(f *File) {
	c.report.Hosted++
	rel := f.HostedPath()
	c.expected[rel] = true
	path := filepath.Join(c.store.dir, filepath.FromSlash(rel))
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		c.find("missing", rel, "is listed and not there; remove or publish it again")
		return
	case !info.Mode().IsRegular():
		c.find("missing", rel, "is not a regular file")
		return
	case info.Size() != f.Size:
		c.find("size", rel, "has %d bytes, not %d", info.Size(), f.Size)
	case !c.opts.NoHash:
		if sum, err := digestFile(path); err != nil {
			c.find("hash", rel, "%v", err)
		} else if sum != f.SHA256 {
			c.find("hash", rel, "has sha256 %s, not %s", sum, f.SHA256)
		}
	}
	for suffix, want := range f.Papers {
		c.expected[rel+suffix] = true
		if sum, err := digestFile(path + suffix); err != nil || sum != want {
			c.find("paper", rel+suffix, "is missing or has another hash than was published")
		}
	}
	if f.Metadata.IsZero() {
		return
	}
	c.expected[rel+MetadataSuffix] = true
	if sum, err := digestFile(path + MetadataSuffix); err != nil || sum != f.Metadata {
		c.find("metadata", rel+MetadataSuffix, "is missing or has another hash; installers stop at it")
	}
}

// checkProject warns about what users will stumble over.
func (c *checker) checkProject(p *Project) {
	if view, a, b := p.conflict(); a != nil {
		c.find("views", p.Name, "view %s shows two builds of one version, %s and %s; yank one", view, a.Filename, b.Filename)
	}
	if _, ok := p.own[defaultView]; !ok {
		c.warn("default", p.Name, "has no files for the default combination %s, so /simple/ does not list it", c.u.config.Default)
	}
	if c.u.config.Default.IsZero() && p.Default.IsZero() {
		kinds := map[string]bool{}
		for i := range p.Files {
			if b := p.built[i]; !b.IsZero() {
				kinds[b.String()] = true
			}
		}
		if len(kinds) > 1 {
			c.warn("default", p.Name, "has %d combinations (%s) and none is declared the default, so /simple/ shows all of them and installers choose by label",
				len(kinds), strings.Join(slices.SortedFunc(maps.Keys(kinds), compareNatural), ", "))
		}
	}
	plain := map[string]string{}
	for i := range p.Files {
		f := &p.Files[i]
		if f.UploadTime.IsZero() {
			c.warn("upload-time", p.Name, "%s has no upload time: pip --uploaded-prior-to stops, uv --exclude-newer leaves it out", f.Filename)
		}
		name, ok := f.Wheel()
		if !ok || f.Yanked {
			continue
		}
		for _, platform := range name.Platform {
			for _, libc := range []string{"linux_", "manylinux"} {
				if !strings.HasPrefix(platform, libc) {
					continue
				}
				arch := platform[strings.LastIndex(strings.TrimSuffix(platform, "_64"), "_")+1:]
				key := name.Version.String() + " " + name.Build.String() + strings.Join(name.Python, ".") + strings.Join(name.ABI, ".") + arch
				if other, ok := plain[key]; ok && strings.HasPrefix(other, "linux_") != strings.HasPrefix(platform, "linux_") {
					c.warn("linux-tag", p.Name, "%s is there as %s and as %s: old and new pip choose differently", name.Version, other, platform)
				}
				plain[key] = platform
			}
		}
	}
}

// checkPages compares the pages of a project with what they should be.
func (c *checker) checkPages(p *Project, roots map[string][]string, combinations []combination) error {
	members := p.members(combinations)
	r := newRenderer(p, &c.u.config, members[allView])
	for path, files := range members {
		for _, root := range roots[path] {
			if err := c.checkFolder(pageFolder(root, p.Name), r.pages(path, root, files)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *checker) checkFolder(rel string, pages []pageFile) error {
	t := c.tree
	for _, p := range pages {
		c.report.Pages++
		name := filepath.ToSlash(filepath.Join(rel, p.name))
		c.expected[name], c.expected[name+gzSuffix] = true, true
		packed, err := t.compress(p.data)
		if err != nil {
			return err
		}
		path := t.path(name)
		if same(path, p.data) && (same(path+gzSuffix, packed) || unpacksTo(path+gzSuffix, p.data)) {
			continue
		}
		f := c.find("page", name, "is missing or does not say what the catalog says")
		if !c.opts.Repair {
			continue
		}
		if err := os.MkdirAll(tempDir(c.store.dir), 0o777); err != nil {
			return err
		}
		if err := os.Remove(path + gzSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := t.putPages(filepath.Dir(path), "", []pageFile{p}); err != nil {
			return err
		}
		f.Repaired = true
	}
	return nil
}

// WebFolders are the folders in an index that are left to pages for people. No view has such a
// name.
var WebFolders = []string{"pick", "project", "static"}

// checkStray looks for pages and hosted files that belong to nothing.
func (c *checker) checkStray() error {
	return filepath.WalkDir(c.store.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.store.dir, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if e.IsDir() {
			if rel == stateDir || strings.HasPrefix(e.Name(), ".git") || slices.Contains(WebFolders, rel) {
				return fs.SkipDir
			}
			return nil
		}
		hosted := strings.HasPrefix(rel, "files/")
		inPages := strings.HasPrefix(rel, "simple/") || strings.Contains(rel, "/simple/")
		switch {
		case fsx.IsTemp(e.Name()):
			c.stray("stray", path, rel, "was left by an interrupted change")
		case c.expected[rel]:
		case hosted:
			c.stray("orphan", path, rel, "is not listed; it was left by an interrupted change")
		case inPages && isPage(e.Name()):
			c.stray("stray", path, rel, "is a page of nothing in the catalog")
		}
		return nil
	})
}

func (c *checker) stray(rule, path, rel, message string) {
	f := c.find(rule, rel, "%s", message)
	// Bytes that are not listed mislead no client.
	f.Warning = rule == "orphan" || fsx.IsTemp(filepath.Base(path))
	if c.opts.Repair && os.Remove(path) == nil {
		f.Repaired = true
		_ = removeEmpty(c.store.dir, filepath.Dir(path)) // an empty folder does no harm
	}
}

// checkDir compares a folder of wheels with the index.
func (c *checker) checkDir(ctx context.Context, published map[string]*File) error {
	files, problems, err := scanDir(c.opts.WheelsDir, ScanOptions{})
	if err != nil {
		return err
	}
	for _, p := range problems {
		c.find("unpublished", p.Filename, "%v", p.Err)
	}
	for i := range files {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		name := files[i].filename()
		f := published[name]
		if f == nil {
			c.find("unpublished", name, "is in the folder and not in the index")
			continue
		}
		if sum, err := digestFile(files[i].Path); err != nil {
			c.find("differs", name, "%v", err)
		} else if sum != f.SHA256 {
			c.find("differs", name, "has sha256 %s, published was %s", sum, f.SHA256)
		}
	}
	return nil
}

// unpacksTo reports whether a compressed page has this content. Another version of the program may
// have compressed it differently.
func unpacksTo(path string, data []byte) bool {
	got, err := gunzip(path, int64(len(data))+1)
	return err == nil && bytes.Equal(got, data)
}
