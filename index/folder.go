package index

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Folder is an index of the wheels and sdists that lie in a folder, as a build leaves them. It
// writes nothing. Files may be added, replaced and removed at any time; unlike in a [Store], what
// was published once is not remembered.
//
// A Folder may be used by several goroutines.
type Folder struct {
	dir  string
	opts AddOptions
	log  *slog.Logger

	scan    sync.Mutex // held while files are read, which may take minutes; guards catalog
	catalog *Catalog

	mu    sync.Mutex // guards files, which is replaced and never changed
	files map[string]*folderFile
}

// settled is how long a file that cannot be read must have been left alone to be called broken:
// before, it may be on its way into the folder.
const settled = 5 * time.Second

// folderFile is a file as it was when it was read.
type folderFile struct {
	stamp pathStamp
	*candidate
	err error // why it is not in the index; candidate is nil
}

// OpenFolder returns the index of the files in dir.
func OpenFolder(dir string, opts AddOptions, log *slog.Logger) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Folder{dir: dir, opts: opts, log: log, files: map[string]*folderFile{}}, nil
}

// Dir returns the folder, as an absolute path.
func (f *Folder) Dir() string { return f.dir }

// CountDistributions counts the files in a folder that are wheels or sdists by their names.
func CountDistributions(dir string) (int, error) {
	files, _, err := scanDir(dir, ScanOptions{})
	return len(files), err
}

// Catalog returns the current state. Files that have not changed since the last call are not read
// again; without changes it costs a stat of each.
func (f *Folder) Catalog(ctx context.Context) (*Catalog, error) {
	f.scan.Lock()
	defer f.scan.Unlock()
	known := f.known()
	listed, problems, err := scanDir(f.dir, ScanOptions{})
	if err != nil {
		return nil, err
	}
	changed := f.catalog == nil
	files := make(map[string]*folderFile, len(listed))
	for i := range listed {
		name := listed[i].filename()
		stamp := stampOf(listed[i].Path)
		if have := known[name]; have != nil && have.stamp.equal(stamp) {
			files[name] = have
			continue
		}
		files[name] = &folderFile{stamp: stamp}
		changed = true
	}
	if !changed && len(files) == len(known) {
		return f.catalog, nil
	}
	var config Config
	_ = fanOut(runtime.GOMAXPROCS(0), len(listed), func(_, i int) error {
		n := &listed[i]
		if at := files[n.filename()]; at.candidate == nil && at.err == nil && ctx.Err() == nil {
			if at.stamp.info != nil {
				n.UploadTime = at.stamp.time
			}
			at.candidate, at.err = inspect(ctx, n, &config, &f.opts, nil)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	lists := map[string][]*candidate{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch at := files[name]; {
		case at.err == nil:
			lists[at.project] = append(lists[at.project], at.candidate)
		case time.Since(at.stamp.time) < settled:
			at.stamp = pathStamp{} // looked at again, without a word until then
		case known[name] != at: // said once
			problems = append(problems, Problem{name, at.err})
		}
	}
	var projects []*Project
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		m := newMerge(nil, name, &config, len(lists[name]))
		m.addAll(lists[name])
		p := m.project
		p.revision = revisionOf(p)
		if old := f.project(name); old != nil && old.revision == p.revision {
			projects = append(projects, old) // with the pages that were made of it
			continue
		}
		problems = append(problems, m.problems...)
		p.prepare(&config)
		projects = append(projects, p)
	}
	for _, p := range problems {
		f.log.Warn("left out", "file", p.Filename, "reason", p.Err)
	}
	f.mu.Lock()
	f.files = files
	f.mu.Unlock()
	f.catalog = NewCatalog(config, projects)
	return f.catalog, nil
}

func (f *Folder) known() map[string]*folderFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.files
}

func (f *Folder) project(name string) *Project {
	if f.catalog == nil {
		return nil
	}
	return f.catalog.Project(name)
}

// revisionOf is the same for the same files.
func revisionOf(p *Project) string {
	h := sha256.New()
	for i := range p.Files {
		fmt.Fprintln(h, p.Files[i].Filename, p.Files[i].SHA256, p.Files[i].UploadTime.UnixNano())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// OpenFile opens a file of the index, or its METADATA by its suffix, for reading. The error wraps
// [fs.ErrNotExist] for a file that is gone or was replaced since the index was read.
func (f *Folder) OpenFile(file *File, suffix string) (io.ReadSeekCloser, error) {
	at := f.known()[file.Filename]
	if at == nil || at.candidate == nil || at.file.SHA256 != file.SHA256 {
		return nil, fmt.Errorf("open %s: %w", file.Filename, fs.ErrNotExist)
	}
	if suffix == MetadataSuffix {
		return nopCloser{bytes.NewReader(at.metadata)}, nil
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	content, err := root.Open(file.Filename)
	if err != nil {
		return nil, err
	}
	info, err := content.Stat()
	if err != nil {
		return nil, errors.Join(err, content.Close())
	}
	if !at.stamp.equal(pathStamp{info.Size(), info.ModTime(), info}) {
		return nil, errors.Join(fmt.Errorf("open %s: replaced: %w", file.Filename, fs.ErrNotExist), content.Close())
	}
	return content, nil
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }
