package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
)

// AutoLimit is the number of files up to which an index gets pages unless its configuration says
// otherwise. Every file has a page of its own; beyond this number they cost more than all that
// installers read, and a server makes them when they are asked for.
const AutoLimit = 5000

// written says which pages are in an index, and what they were made from.
type written struct {
	Format string `json:"format"`
	// Revision is that of [Revision]; another one makes other pages.
	Revision string `json:"revision"`
	// Pages are those of the index as a whole.
	Pages    []string                  `json:"pages"`
	Projects map[string]writtenProject `json:"projects"`
}

type writtenProject struct {
	Revision string   `json:"revision"`
	Pages    []string `json:"pages"`
}

const writtenFormat = "kiln-web/1"

// homePages may have been there before; then kiln leaves them alone.
var homePages = []string{"404.html", "index.html"}

// writer brings the pages of an index up to date.
type writer struct {
	dir      string
	old, now written
	foreign  map[string]bool // home pages that kiln did not write
}

// Write brings the pages in the folder of an index up to date, or removes them if its configuration
// does not want them. It looks only at pages of projects that changed, unless all is set. It
// returns the home pages that it left alone because kiln did not write them.
func Write(ctx context.Context, store *index.Store, all bool) (foreign []string, err error) {
	config, err := store.Config()
	if err != nil {
		return nil, err
	}
	files, err := store.Files()
	if err != nil {
		return nil, err
	}
	wanted := config.Web == index.WebOn || config.Web == "" && files <= AutoLimit
	name := filepath.Join(store.Dir(), ".kiln", "web.json")
	if _, err := os.Lstat(name); !wanted && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	// The last to get the lock reads the latest catalog, so that its pages are the newest.
	lock, err := fsx.Lock(ctx, filepath.Join(store.Dir(), ".kiln", "web.lock"))
	if err != nil {
		return nil, fmt.Errorf("write pages: %w", err)
	}
	w := &writer{dir: store.Dir(), foreign: map[string]bool{}}
	err = w.update(ctx, store, name, wanted, all)
	if err := errors.Join(err, lock.Unlock()); err != nil {
		return nil, fmt.Errorf("write pages: %w", err)
	}
	return slices.Sorted(maps.Keys(w.foreign)), nil
}

func (w *writer) update(ctx context.Context, store *index.Store, name string, wanted, all bool) error {
	w.now = written{Format: writtenFormat, Revision: Revision(), Projects: map[string]writtenProject{}}
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && (json.Unmarshal(data, &w.old) != nil || w.old.Format != writtenFormat) {
		w.old = written{Pages: homePages} // of a later version of kiln, or damaged
	}
	if !wanted {
		if err := w.removeOld(); err != nil {
			return err
		}
		return os.Remove(name)
	}
	catalog, err := store.Catalog(ctx)
	if err != nil {
		return err
	}
	if err := w.begin(name); err != nil {
		return err
	}
	var opts Options
	if !all && w.old.Revision == w.now.Revision {
		opts.Skip = w.unchanged
	}
	err = Render(catalog, opts, func(page string, data []byte) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return w.write(catalog, page, data)
	})
	if err != nil {
		return err
	}
	if err := w.removeOld(); err != nil {
		return err
	}
	return w.save(name, w.now)
}

// begin notes which pages may be written from now on, for the case that the end is not reached.
func (w *writer) begin(name string) error {
	claimed := slices.Clone(w.old.Pages)
	for _, page := range homePages {
		_, err := os.Lstat(filepath.Join(w.dir, page))
		switch {
		case slices.Contains(claimed, page):
		case errors.Is(err, fs.ErrNotExist):
			claimed = append(claimed, page)
		default:
			w.foreign[page] = true
		}
	}
	return w.save(name, written{Format: writtenFormat, Pages: claimed, Projects: w.old.Projects})
}

func (w *writer) save(name string, r written) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return fsx.WriteFile(name, append(data, '\n'), 0o644)
}

// unchanged reports whether the pages of a project are as they should be, and keeps them.
func (w *writer) unchanged(p *index.Project) bool {
	have, ok := w.old.Projects[p.Name]
	if !ok || have.Revision == "" || have.Revision != p.Revision() {
		return false
	}
	w.now.Projects[p.Name] = have
	return true
}

// write writes one page, if it is not there. Pages can be made again at any time, so that they are
// not forced to the disk one by one.
func (w *writer) write(catalog *index.Catalog, page string, data []byte) error {
	if w.foreign[page] {
		return nil
	}
	if rest, ok := strings.CutPrefix(page, "project/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		p := w.now.Projects[name]
		p.Revision, p.Pages = catalog.Project(name).Revision(), append(p.Pages, page)
		w.now.Projects[name] = p
	} else {
		w.now.Pages = append(w.now.Pages, page)
	}
	target := filepath.Join(w.dir, filepath.FromSlash(page))
	if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o777); err != nil {
		return err
	}
	temp := filepath.Join(w.dir, ".kiln", "web.tmp") // the lock is held
	if err := os.WriteFile(temp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temp, target)
}

// removeOld removes the pages that were written before and not again.
func (w *writer) removeOld() error {
	keep := map[string]bool{}
	for _, page := range w.now.all() {
		keep[page] = true
	}
	for _, page := range w.old.all() {
		// The record is a file that may have been edited.
		if keep[page] || !fs.ValidPath(page) || !slices.Contains(homePages, page) && !slices.Contains(index.WebFolders, strings.Split(page, "/")[0]) {
			continue
		}
		if err := os.Remove(filepath.Join(w.dir, filepath.FromSlash(page))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for dir := path.Dir(page); dir != "."; dir = path.Dir(dir) {
			if os.Remove(filepath.Join(w.dir, filepath.FromSlash(dir))) != nil {
				break // not empty
			}
		}
	}
	return nil
}

func (r *written) all() []string {
	out := slices.Clone(r.Pages)
	for _, p := range r.Projects {
		out = append(out, p.Pages...)
	}
	return out
}
