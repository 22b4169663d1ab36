package index

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kiln-build/kiln/internal/fsx"
)

// update is a change of an index, made by the holder of its lock. What it writes, in this order,
// keeps every page true at any moment, also if the process is killed:
//
//  1. hosted files and their metadata, not listed anywhere yet (before commit), and the pages under
//     temporary names
//  2. blocks of the changed projects, at the end of the log
//  3. pages of projects
//  4. lists of projects, then catalog.json
//  5. removal of pages that no list names any more
//  6. the state, which says that the pages are done
//  7. removal of hosted files that no page names any more
//
// What can fail for want of space comes before 2 is done, and is taken back; only a very large
// change writes its pages later. A change that was cut short between 2 and 6 is found by the next
// one as blocks after the end of the log that the state knows; a change of the configuration, which
// is written before all of this, by its checksum. It is completed before the next one begins: only
// it knows which pages it wrote.
type update struct {
	store  *Store
	st     *state // as found
	config Config
	sum    uint32 // of config

	log      *os.File            // nil if there is none yet
	projects map[string]*Project // changed ones
	blocks   map[string]*entry   // where the log has blocks that the state does not know
	rebuild  bool                // write all pages
	mu       sync.Mutex          // guards before
	before   map[string]*Project // what projects were that may have changed since
	unlink   []*File             // hosted files to remove

	begin    int64           // length of the log before the change; -1 if it is not known
	encoded  []byte          // blocks that are not in the log yet
	recorded bool            // the log has the change
	trees    []*tree         // what writes pages
	placed   []string        // hosted files that were not there before
	written  *fsx.AtomicFile // the next state, without its name

	pages int // files written or removed
}

// update runs change under the lock and writes what it changed.
func (s *Store) update(ctx context.Context, change func(u *update) error) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return fmt.Errorf("write index %s: %w", s.dir, err)
	}
	u := &update{store: s, begin: -1, before: map[string]*Project{}, projects: map[string]*Project{}, blocks: map[string]*entry{}}
	if err = u.run(ctx, change); err != nil {
		u.undo()
	}
	if u.written != nil {
		_ = u.written.Abort() // the change failed
	}
	if u.log != nil {
		err = errors.Join(err, u.log.Close())
	}
	if err := errors.Join(err, lock.Unlock()); err != nil {
		return fmt.Errorf("write index %s: %w", s.dir, err)
	}
	return nil
}

func (u *update) run(ctx context.Context, change func(u *update) error) error {
	if err := u.open(); err != nil {
		return err
	}
	if len(u.projects) > 0 || u.rebuild && len(u.st.entries) > 0 {
		// The pages that it wrote are known only from its own blocks, or its own configuration.
		u.store.log.Warn("completing an interrupted change", "projects", len(u.projects), "all", u.rebuild)
		u.recorded = true
		if err := u.commit(); err != nil {
			return err
		}
		u.projects, u.blocks, u.before, u.rebuild = map[string]*Project{}, map[string]*entry{}, map[string]*Project{}, false
		if err := u.reopen(); err != nil {
			return err
		}
	}
	u.begin, u.recorded, u.trees = u.st.logLen, false, nil
	if err := change(u); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return u.commit()
}

// open reads the state and what an interrupted change left.
func (u *update) open() (err error) {
	s := u.store
	if err := os.RemoveAll(tempDir(s.dir)); err != nil {
		return err
	}
	if u.config, u.sum, err = s.readConfig(); err != nil {
		return err
	}
	if u.st, err = readState(s.dir); err != nil {
		return err
	}
	if u.st.log == "" {
		// A log without a state is a first change that was cut short.
		u.st.log = logName(1)
	}
	u.rebuild = u.st.config != u.sum
	u.log, err = os.OpenFile(u.logPath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) && u.st.logLen == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := u.log.Stat()
	if err != nil {
		return err
	}
	if info.Size() < u.st.logLen {
		return fmt.Errorf("%s has %d bytes, not %d: it was damaged from outside", u.logPath(), info.Size(), u.st.logLen)
	}
	if err := u.removeLogs(); err != nil || info.Size() == u.st.logLen {
		return err
	}
	end, err := tail(u.log, u.st.logLen, func(p *Project, offset, length int64) error {
		u.projects[p.Name] = p
		u.blocks[p.Name] = &entry{offset: offset, length: length}
		return nil
	})
	if err != nil {
		return err
	}
	if end < info.Size() {
		if err := u.log.Truncate(end); err != nil {
			return err
		}
	}
	u.st.logLen = end
	return nil
}

// removeLogs removes logs that are not the one of the state, which a rewriting that was cut short
// left. [Store.repairState] would take a newer one for the catalog.
func (u *update) removeLogs() error {
	logs, err := logs(u.store.dir)
	if err != nil {
		return err
	}
	for _, name := range logs {
		if name != u.st.log {
			if err := os.Remove(filepath.Join(u.store.dir, stateDir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func logName(n int) string { return fmt.Sprintf("catalog-%06d.jsonl", n) }

// logs returns the names of all logs, the newest last.
func logs(dir string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, stateDir))
	for _, e := range entries {
		if ok, _ := filepath.Match("catalog-*.jsonl", e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (u *update) logPath() string { return filepath.Join(u.store.dir, stateDir, u.st.log) }

// project returns a project, nil if there is none. It may be called by several goroutines.
func (u *update) project(name string) (*Project, error) {
	if p := u.projects[name]; p != nil {
		return p, nil
	}
	e := u.st.entries[name]
	if e == nil {
		return nil, nil //nolint:nilnil // not being there is not an error
	}
	p, _, err := readBlock(u.log, e, nil, interner{})
	if err != nil {
		return nil, err
	}
	if !u.rebuild {
		was := *p
		was.Files = slices.Clone(p.Files)
		u.mu.Lock()
		u.before[name] = &was
		u.mu.Unlock()
	}
	return p, nil
}

// forget says that a project which was read does not change.
func (u *update) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.before, name)
}

// set makes p the new state of its project.
func (u *update) set(p *Project) {
	u.projects[p.Name] = p
	delete(u.blocks, p.Name)
}

// setConfig changes the configuration.
func (u *update) setConfig(config Config) error {
	if err := config.validate(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if !same(u.store.configPath(), text) {
		if err := u.store.touch(u.store.configPath()); err != nil {
			return err
		}
		if err := fsx.WriteFile(u.store.configPath(), text, 0o644); err != nil {
			return err
		}
	}
	u.config, u.sum = config, config.sum()
	u.rebuild = u.rebuild || u.st.config != u.sum
	return nil
}

// commit writes the changes.
func (u *update) commit() error {
	if len(u.projects) == 0 && !u.rebuild && u.st.logLen > 0 {
		return nil
	}
	if u.rebuild {
		for _, name := range u.st.names() {
			p, err := u.project(name)
			if err != nil {
				return err
			}
			if _, changed := u.projects[name]; !changed {
				e := u.st.entries[name]
				u.projects[name], u.blocks[name] = p, &entry{offset: e.offset, length: e.length}
			}
		}
	}
	if len(u.projects) > 0 && u.fileCount() > maxStagedFiles {
		if err := u.appendBlocks(); err != nil {
			return err
		}
	} else if err := u.encodeBlocks(slices.Sorted(maps.Keys(u.projects))); err != nil {
		return err
	}
	next, old := u.nextState()
	render, err := u.toRender(old, next)
	if err != nil {
		return err
	}
	pages := 0
	for name := range render {
		pages += 4 * len(next.entries[name].views)
	}
	u.trees = u.newTrees(pages)
	if !u.recorded && pages > maxStagedPages {
		if err := u.writeBlocks(); err != nil {
			return err
		}
	}
	if err := u.writePages(old, next, render); err != nil {
		return err
	}
	if err := u.finish(next); err != nil {
		return err
	}
	u.st = next
	if err := u.removeHosted(); err != nil {
		return err
	}
	if err := u.compact(); err != nil {
		// The change is done. What a rewriting left is removed by the next one.
		u.store.log.Warn("catalog not made smaller", "error", err)
	}
	return nil
}

// finish makes the next state the present one.
func (u *update) finish(next *state) error {
	if u.written == nil {
		return next.write(u.store)
	}
	if err := u.store.touch(u.written.Path()); err != nil {
		return err
	}
	err := u.written.Commit()
	u.written = nil
	return err
}

// What is staged at most, which takes memory for the blocks and for the names of the pages. A
// larger change is recorded first and completed by the next one if it fails.
const (
	maxStagedFiles = 20_000
	maxStagedPages = 40_000
)

func (u *update) fileCount() (n int) {
	for _, p := range u.projects {
		n += len(p.Files)
	}
	return n
}

// newTrees returns what writes so many pages: under temporary names until the change is recorded.
func (u *update) newTrees(pages int) []*tree {
	var temp atomic.Int64
	trees := make([]*tree, runtime.GOMAXPROCS(0))
	for i := range trees {
		trees[i] = newTree(u.store, pages < u.store.bulk, &temp)
		trees[i].staged = !u.recorded && pages <= maxStagedPages
	}
	return trees
}

// appendBlocks writes the changed projects to the log, some at a time, so that they need not all be
// in memory.
func (u *update) appendBlocks() error {
	for names := range slices.Chunk(slices.Sorted(maps.Keys(u.projects)), 16) {
		if err := u.encodeBlocks(names); err != nil {
			return err
		}
		if err := u.writeEncoded(); err != nil {
			return err
		}
	}
	u.recorded = true
	return u.log.Sync()
}

// encodeBlocks makes the blocks of projects that changed, and gives them their places.
func (u *update) encodeBlocks(names []string) error {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return u.blocks[name] != nil })
	blocks := make([][]byte, len(names))
	err := fanOut(runtime.GOMAXPROCS(0), len(names), func(_, i int) (err error) {
		p := u.projects[names[i]]
		if err := p.validate(); err != nil {
			return fmt.Errorf("project %s: %w", p.Name, err) // a mistake of this package, but never on disk
		}
		blocks[i], err = appendBlock(make([]byte, 0, 512+400*len(p.Files)), p)
		return err
	})
	if err != nil {
		return err
	}
	u.encoded = slices.Concat(blocks...)
	for i, block := range blocks {
		u.blocks[names[i]] = &entry{offset: u.st.logLen, length: int64(len(block))}
		u.st.logLen += int64(len(block))
	}
	return nil
}

// writeBlocks records the change: from here on the next change completes it, if this one does not.
func (u *update) writeBlocks() error {
	if err := u.writeEncoded(); err != nil {
		return err
	}
	if err := u.log.Sync(); err != nil {
		return err
	}
	u.recorded = true
	return nil
}

// writeEncoded writes the blocks that were made last to the end of the log.
func (u *update) writeEncoded() error {
	if u.log == nil {
		log, err := os.OpenFile(u.logPath(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		u.log = log
		if err := fsx.SyncDir(filepath.Dir(u.logPath())); err != nil {
			return err
		}
	}
	if err := u.store.touch(u.logPath()); err != nil {
		return err
	}
	_, err := u.log.WriteAt(u.encoded, u.st.logLen-int64(len(u.encoded)))
	u.encoded = nil
	return err
}

// undo takes back a change that failed before it was recorded, so that no later one completes what
// its caller was told has failed. It needs no space.
func (u *update) undo() {
	if u.begin < 0 || u.recorded || u.store.fault != nil {
		return // a test stops here as a kill would
	}
	if u.log != nil {
		if err := u.log.Truncate(u.begin); err != nil {
			u.store.log.Error("a change that failed is completed by the next one", "error", err)
			return
		}
		_ = u.log.Sync() // an old end is dropped by the next change, unless all of it was written
	}
	var folders []string
	for _, t := range u.trees {
		folders = append(folders, t.folders...)
	}
	slices.Sort(folders)
	for _, dir := range slices.Backward(folders) {
		_ = os.Remove(dir) // if it is empty
	}
	_ = os.RemoveAll(tempDir(u.store.dir)) // the next change does too
	for _, path := range u.placed {
		_ = os.Remove(path)
		_ = os.Remove(path + ".metadata")
		_ = removeEmpty(u.store.dir, filepath.Dir(path))
	}
}

// nextState returns the state after the change and the one before.
func (u *update) nextState() (next, old *state) {
	old = u.st
	next = &state{log: old.log, logLen: old.logLen, config: u.sum, entries: maps.Clone(old.entries)}
	names := slices.Sorted(maps.Keys(u.projects))
	entries := make([]*entry, len(names))
	_ = fanOut(runtime.GOMAXPROCS(0), len(names), func(_, i int) error {
		p := u.projects[names[i]]
		p.prepare(&u.config)
		entries[i] = newEntry(p, p.own, u.blocks[p.Name])
		return nil
	})
	for i, name := range names {
		next.entries[name] = entries[i]
	}
	combinations := next.combinations()
	for name, p := range u.projects {
		if p.floating {
			next.entries[name] = newEntry(p, p.members(combinations), u.blocks[name])
		}
	}
	return next, old
}

// toRender returns the projects whose pages have to be looked at: those that changed, and where
// views have come or gone, those that are in them by virtue of loose files.
func (u *update) toRender(old, next *state) (map[string]*Project, error) {
	render := maps.Clone(u.projects)
	combinations := next.combinations()
	load := func(name string) error {
		if render[name] != nil {
			return nil
		}
		p, err := u.project(name)
		if err != nil {
			return err
		}
		p.prepare(&u.config)
		render[name] = p
		next.entries[name] = newEntry(p, p.members(combinations), next.entries[name])
		return nil
	}
	if !slices.Equal(combinations, old.combinations()) {
		for _, name := range next.names() {
			if next.entries[name].floating {
				if err := load(name); err != nil {
					return nil, err
				}
			}
		}
	}
	// Views that get another name need all their pages there.
	had := old.roots(&u.config)
	for path, roots := range next.roots(&u.config) {
		if slices.Equal(had[path], roots) {
			continue
		}
		for name, e := range next.entries {
			if e.view(path) != nil {
				if err := load(name); err != nil {
					return nil, err
				}
			}
		}
	}
	return render, nil
}

// writePages brings the pages from one state to the next.
func (u *update) writePages(old, next *state, render map[string]*Project) error {
	oldRoots, roots := old.roots(&u.config), next.roots(&u.config)
	if u.rebuild {
		// Aliases may have been made under another configuration.
		oldRoots = old.roots(&Config{Aliases: true})
	}
	lists := map[string]bool{} // views whose list changes
	for name := range render {
		e := next.entries[name]
		for _, path := range changedViews(old.entries[name], e) {
			lists[path] = true
		}
	}
	for path, r := range roots {
		if u.rebuild || old.log == "" || len(old.entries) == 0 || !slices.Equal(oldRoots[path], r) {
			lists[path] = true
		}
	}
	if err := os.MkdirAll(tempDir(u.store.dir), 0o777); err != nil {
		return err
	}
	if err := u.writeProjects(old, next, oldRoots, roots, render, u.trees); err != nil {
		return err
	}
	t := newTree(u.store, u.trees[0].durable, u.trees[0].temp) // lists come after the pages of all projects
	t.staged = u.trees[0].staged
	u.trees = append(u.trees, t)
	for _, path := range slices.Sorted(maps.Keys(lists)) {
		if len(roots[path]) == 0 {
			continue
		}
		pages, like := listPages(next.list(path)), ""
		for _, root := range roots[path] {
			folder := t.path(pageFolder(root, ""))
			if err := t.putPages(folder, like, pages); err != nil {
				return err
			}
			like = folder
		}
	}
	// GitHub Pages leaves out folders it takes for Jekyll's without this file.
	if _, err := os.Lstat(t.path(".nojekyll")); err != nil {
		if err := t.replace(t.path(".nojekyll"), "", nil); err != nil {
			return err
		}
	}
	if err := t.putPages(t.dir, "", []pageFile{{name: "catalog.json", data: next.appendCatalog(nil, &u.config)}}); err != nil {
		return err
	}
	if t.staged {
		if err := u.publishPages(next); err != nil {
			return err
		}
	}
	if err := u.removeStale(t, old, next, oldRoots, roots, render); err != nil {
		return err
	}
	for _, t := range u.trees {
		u.pages += t.written
	}
	return os.RemoveAll(tempDir(u.store.dir))
}

// publishPages records the change and gives staged pages their names.
func (u *update) publishPages(next *state) error {
	// The state gets its name last, and must not fail for want of space then.
	f, err := fsx.Create(filepath.Join(u.store.dir, stateDir, stateFile))
	if err != nil {
		return err
	}
	u.written = f
	if _, err := f.Write(next.append(nil)); err != nil {
		return err
	}
	if err := f.File().Sync(); err != nil {
		return err
	}
	if err := u.writeBlocks(); err != nil {
		return err
	}
	for _, t := range u.trees {
		if err := t.publish(); err != nil {
			return err
		}
	}
	return nil
}

// changedViews returns the views whose lists differ between two states of a project.
func changedViews(old, next *entry) []string {
	var out []string
	has := func(e *entry, path string) bool { return e != nil && e.view(path) != nil }
	for _, e := range []*entry{old, next} {
		if e == nil {
			continue
		}
		for i := range e.views {
			path := e.views[i].path
			if has(old, path) != has(next, path) || old.display != next.display {
				out = append(out, path)
			}
		}
	}
	return out
}

// writeProjects writes the pages of projects, in the views where they are not what they were.
func (u *update) writeProjects(old, next *state, oldRoots, roots map[string][]string, render map[string]*Project, trees []*tree) error {
	names := slices.Sorted(maps.Keys(render))
	had, combinations := old.combinations(), next.combinations()
	return fanOut(len(trees), len(names), func(w, i int) error {
		p := render[names[i]]
		members := p.members(combinations)
		if was := u.before[p.Name]; was != nil && !u.rebuild && p.sameHead(was) {
			was.prepare(&u.config)
			before := was.members(had)
			changed := membership{}
			for path, files := range members {
				if !slices.Equal(oldRoots[path], roots[path]) || !p.sameFiles(files, was, before[path]) {
					changed[path] = files
				}
			}
			members = changed
		}
		return writeProject(trees[w], p, &u.config, members, roots)
	})
}

// sameHead reports whether pages say the same of two states of a project, apart from its files. Of
// a project with variants they never do, as the pages of one version depend on all its files.
func (p *Project) sameHead(was *Project) bool {
	variant := func(f File) bool { return f.Variant != nil }
	return p.DisplayName == was.DisplayName && p.status() == was.status() && p.StatusReason == was.StatusReason &&
		!slices.ContainsFunc(p.Files, variant) && !slices.ContainsFunc(was.Files, variant)
}

// sameFiles reports whether pages say the same of files of two states of a project.
func (p *Project) sameFiles(files []int32, was *Project, before []int32) bool {
	return before != nil && slices.EqualFunc(files, before, func(i, k int32) bool { return p.Files[i].samePage(&was.Files[k]) })
}

// samePage reports whether pages say the same of two files.
func (f *File) samePage(o *File) bool {
	return f.Filename == o.Filename && f.Base == o.Base && f.SHA256 == o.SHA256 && f.Size == o.Size && f.Metadata == o.Metadata &&
		f.RequiresPython == o.RequiresPython && f.UploadTime.Equal(o.UploadTime) && f.Yanked == o.Yanked && f.YankedReason == o.YankedReason &&
		f.Provenance == o.Provenance && f.Coordinates.Toolkit == o.Coordinates.Toolkit && slices.Equal(f.Coordinates.Torch, o.Coordinates.Torch) &&
		slices.Equal(f.Arch, o.Arch) && f.Glibc == o.Glibc && slices.Equal(f.Window, o.Window) && maps.Equal(f.Papers, o.Papers)
}

// writeProject writes the pages of a project in the given views.
func writeProject(t *tree, p *Project, config *Config, members membership, roots map[string][]string) error {
	if len(members) == 0 {
		return nil
	}
	// Every file is on some page; one that is on a page at all is usually on the page of all.
	shown := members[allView]
	if shown == nil {
		set := map[int32]bool{}
		for _, files := range members {
			for _, i := range files {
				set[i] = true
			}
		}
		shown = slices.Sorted(maps.Keys(set))
	}
	r := newRenderer(p, config, shown)
	// Many views show the same files in the same way.
	type rendered struct {
		root   string
		files  []int32
		pages  []pageFile
		folder string // where they were written
	}
	var done []rendered
	for _, path := range slices.Sorted(maps.Keys(members)) {
		for _, root := range roots[path] {
			files := members[path]
			key := r.rootKey(root, files)
			i := slices.IndexFunc(done, func(d rendered) bool {
				return path != variantsView && len(r.variants) == 0 && d.root == key && slices.Equal(d.files, files)
			})
			folder := pageFolder(root, p.Name)
			if i < 0 {
				done = append(done, rendered{key, files, r.pages(path, root, files), ""})
				i = len(done) - 1
			}
			if err := t.putFolder(folder, done[i].folder, done[i].pages); err != nil {
				return err
			}
			done[i].folder = folder
		}
	}
	return nil
}

// removeStale removes pages of projects from views they left, and views that nothing is in.
func (u *update) removeStale(t *tree, old, next *state, oldRoots, roots map[string][]string, render map[string]*Project) error {
	keep := map[string]bool{}
	for _, r := range roots {
		for _, root := range r {
			keep[root] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(oldRoots)) {
		for _, root := range oldRoots[path] {
			gone := !keep[root]
			left := func(name string) bool {
				e := old.entries[name]
				return e != nil && e.view(path) != nil && (gone || next.entries[name].view(path) == nil)
			}
			// Only a view that is gone loses projects that did not change.
			names := maps.Keys(render)
			if gone {
				names = maps.Keys(old.entries)
			}
			for name := range names {
				if !left(name) {
					continue
				}
				if err := t.removePages(pageFolder(root, name)); err != nil {
					return err
				}
			}
			if gone {
				if err := t.removePages(pageFolder(root, "")); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// list returns the projects of a view.
func (st *state) list(path string) []listEntry {
	var out []listEntry
	for _, name := range st.names() {
		if e := st.entries[name]; e.view(path) != nil {
			out = append(out, listEntry{name, e.display})
		}
	}
	return out
}

// appendCatalog is [Catalog.AppendCatalog] without a catalog in memory.
func (st *state) appendCatalog(dst []byte, config *Config) []byte {
	roots := st.roots(config)
	byPath := map[string]*catalogView{}
	size := 4096
	for path, r := range roots {
		if _, ok := parseViewPath(path); ok {
			v := newCatalogView(path, r[1:])
			byPath[path] = &v
		}
	}
	for _, name := range st.names() {
		e := st.entries[name]
		for i := range e.views {
			if v := byPath[e.views[i].path]; v != nil {
				v.add(name, e.views[i].parseSummary())
				size += 64 + len(name) + len(e.views[i].summary)*3/2
			}
		}
	}
	var views []catalogView
	for _, path := range slices.SortedFunc(maps.Keys(byPath), compareViews) {
		views = append(views, *byPath[path])
	}
	return appendCatalog(slices.Grow(dst, size), config, views)
}

// removeHosted removes the bytes of files that are no longer listed.
func (u *update) removeHosted() error {
	for _, f := range u.unlink {
		path := filepath.Join(u.store.dir, filepath.FromSlash(f.HostedPath()))
		for _, p := range []string{path + MetadataSuffix, path + SBOMSuffix, path + ProvenanceSuffix, path} {
			if err := u.store.touch(p); err != nil {
				return err
			}
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := removeEmpty(u.store.dir, filepath.Dir(path)); err != nil {
			return err
		}
	}
	return nil
}

// compact writes the log anew when most of it is old. Readers that have the old state find
// the old log gone and read the state again.
func (u *update) compact() error {
	var live int64
	for _, e := range u.st.entries {
		live += e.length
	}
	if u.st.logLen < 2*live+1<<20 {
		return nil
	}
	return u.rewriteLog()
}

func (u *update) rewriteLog() error {
	number, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(u.st.log, "catalog-"), ".jsonl"))
	next := &state{log: logName(number + 1), config: u.st.config, entries: map[string]*entry{}}
	f, err := fsx.Create(filepath.Join(u.store.dir, stateDir, next.log))
	if err != nil {
		return err
	}
	defer f.Abort() //nolint:errcheck // cleaning up after an error that is returned
	w := bufio.NewWriterSize(f, 1<<20)
	var block []byte
	for _, name := range u.st.names() {
		e := *u.st.entries[name]
		block = slices.Grow(block[:0], int(e.length))[:e.length]
		if _, err := u.log.ReadAt(block, e.offset); err != nil {
			return err
		}
		if err := checkBlock(block); err != nil {
			return fmt.Errorf("project %s in the catalog %w", name, err)
		}
		if _, err := w.Write(block); err != nil {
			return err
		}
		e.offset = next.logLen
		next.entries[name] = &e
		next.logLen += e.length
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := u.store.touch(f.Path()); err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		return err
	}
	if err := next.write(u.store); err != nil {
		return err
	}
	old := u.logPath()
	u.st = next
	if err := u.log.Close(); err != nil {
		return err
	}
	u.log = nil
	if err := u.store.touch(old); err != nil {
		return err
	}
	return os.Remove(old)
}

// reopen opens the log again after it was rewritten.
func (u *update) reopen() (err error) {
	if u.log == nil {
		u.log, err = os.OpenFile(u.logPath(), os.O_RDWR, 0)
	}
	return err
}

// fanOut calls do for the numbers below n on so many goroutines, whose own number it gets too.
// After an error it begins no more calls.
func fanOut(workers, n int, do func(worker, i int) error) error {
	workers = min(workers, n)
	if workers == 1 {
		for i := range n {
			if err := do(0, i); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, workers)
	var position atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(position.Add(1)) - 1
				if i >= n {
					return
				}
				if errs[w] = do(w, i); errs[w] != nil {
					position.Store(int64(n))
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
