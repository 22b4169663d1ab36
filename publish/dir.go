package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// manifestName is the file in which targets without releases of their own keep what is said about
// one.
const manifestName = "kiln-release.json"

const manifestFormat = "kiln-release/1"

// maxManifest bounds what is read of it.
const maxManifest = 64 << 20

// manifest is what a folder or bucket knows of a release.
type manifest struct {
	Format string `json:"format"`
	Release
}

// join fills in what the manifest knows of the files that are there. Of files whose size changed
// it knows nothing.
func (m *manifest) join(tag string, files []RemoteFile) Release {
	r := Release{Tag: tag, Title: m.Title, Notes: m.Notes, Created: m.Created, Changes: m.Changes}
	for _, f := range files {
		if known := m.File(f.Name); known != nil && known.Size == f.Size {
			f.SHA256 = known.SHA256
			if !known.Uploaded.IsZero() {
				f.Uploaded = known.Uploaded
			}
		}
		r.Files = append(r.Files, f)
	}
	slices.SortFunc(r.Files, func(a, b RemoteFile) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// next is the manifest after Finish: changes only ever grow.
func (m *manifest) next(r Release) ([]byte, error) {
	out := manifest{Format: manifestFormat, Release: r}
	out.Changes = mergeChanges(m.Changes, r.Changes)
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

// mergeChanges keeps everything of old and adds what is new.
func mergeChanges(old, now []Change) []Change {
	out := slices.Clone(old)
	for _, c := range now {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

func parseManifest(text []byte) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("format %q, want %q", m.Format, manifestFormat)
	}
	return &m, nil
}

// DirOptions are options of [NewDir].
type DirOptions struct {
	// URL is where users find the folder; empty means by its path, as a file: URL.
	URL string
}

// dirTarget is a folder with a folder for each release.
type dirTarget struct {
	dir  string
	base string
}

// NewDir returns a folder as a target. Each release is a folder in it, named after its tag, with
// the files and kiln-release.json. The folder is made when something is published.
func NewDir(dir string, opts DirOptions) (Target, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	base := opts.URL
	if base == "" {
		path := filepath.ToSlash(abs)
		if !strings.HasPrefix(path, "/") {
			path = "/" + path // C:/…
		}
		base = (&url.URL{Scheme: "file", Path: path}).String()
	}
	return &dirTarget{dir: abs, base: slash(base)}, nil
}

func (t *dirTarget) String() string { return "dir:" + t.dir }
func (t *dirTarget) Limits() Limits { return Limits{} }

func (t *dirTarget) Base(tag string) string { return t.base + url.PathEscape(tag) + "/" }

func (t *dirTarget) path(tag, name string) (string, error) {
	if !validTag(tag) || name != filepath.Base(name) || name == manifestName || fsx.IsTemp(name) || name == "." || name == ".." {
		return "", fmt.Errorf("%s/%s is no path of a published file", tag, name)
	}
	return filepath.Join(t.dir, tag, name), nil
}

func (t *dirTarget) List(ctx context.Context, match func(string) bool) ([]Release, error) {
	entries, err := os.ReadDir(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", t, err)
	}
	var out []Release
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !e.IsDir() || !validTag(e.Name()) || !match(e.Name()) {
			continue
		}
		r, err := t.release(e.Name())
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", t, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func (t *dirTarget) release(tag string) (Release, error) {
	m, err := t.manifest(tag)
	if err != nil {
		return Release{}, err
	}
	entries, err := os.ReadDir(filepath.Join(t.dir, tag))
	if err != nil {
		return Release{}, err
	}
	var files []RemoteFile
	for _, e := range entries {
		if e.Name() == manifestName || fsx.IsTemp(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return Release{}, err
		}
		files = append(files, RemoteFile{Name: e.Name(), Size: info.Size(), Uploaded: info.ModTime().UTC().Truncate(time.Second)})
	}
	return m.join(tag, files), nil
}

// manifest returns an empty one for a release that was only begun.
func (t *dirTarget) manifest(tag string) (*manifest, error) {
	path := filepath.Join(t.dir, tag, manifestName)
	text, err := fsx.ReadFile(path, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return &manifest{}, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return m, nil
}

func (t *dirTarget) Begin(_ context.Context, r Release) error {
	if !validTag(r.Tag) {
		return fmt.Errorf("%q is no tag", r.Tag)
	}
	return os.MkdirAll(filepath.Join(t.dir, r.Tag), 0o777)
}

func (t *dirTarget) Upload(ctx context.Context, tag string, f LocalFile, progress func(int64)) (RemoteFile, error) {
	path, err := t.path(tag, f.Name)
	if err != nil {
		return RemoteFile{}, err
	}
	sum, size, err := fsx.SHA256(path)
	switch {
	case err == nil && sum == f.SHA256 && size == f.Size:
		return t.Stat(ctx, tag, f.Name)
	case err == nil:
		return RemoteFile{}, fmt.Errorf("%s: %w", f.Name, ErrExists)
	case !errors.Is(err, fs.ErrNotExist):
		return RemoteFile{}, err
	}
	from, err := f.open()
	if err != nil {
		return RemoteFile{}, err
	}
	defer from.Close()
	to, err := fsx.Create(path)
	if err != nil {
		return RemoteFile{}, err
	}
	defer to.Abort() //nolint:errcheck // nothing to do after Commit
	if _, err := io.CopyBuffer(to, &progressReader{Reader: contextReader{ctx, from}, tell: progress}, make([]byte, 1<<20)); err != nil {
		return RemoteFile{}, fmt.Errorf("copy %s: %w", f.Name, err)
	}
	if err := to.Commit(); err != nil {
		return RemoteFile{}, err
	}
	return t.Stat(ctx, tag, f.Name)
}

// contextReader stops when its context does.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as one copy
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}

// Stat has no hash: a folder does not compute one, so the file is read back.
func (t *dirTarget) Stat(_ context.Context, tag, name string) (RemoteFile, error) {
	path, err := t.path(tag, name)
	if err != nil {
		return RemoteFile{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return RemoteFile{}, err
	}
	return RemoteFile{Name: name, Size: info.Size(), Uploaded: info.ModTime().UTC().Truncate(time.Second)}, nil
}

func (t *dirTarget) Open(_ context.Context, tag, name string) (io.ReadCloser, error) {
	path, err := t.path(tag, name)
	if err != nil {
		return nil, err
	}
	return fsx.Open(path)
}

func (t *dirTarget) Remove(_ context.Context, tag, name string) error {
	path, err := t.path(tag, name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fsx.SyncDir(filepath.Dir(path))
}

func (t *dirTarget) Finish(_ context.Context, r Release) error {
	m, err := t.manifest(r.Tag)
	if err != nil {
		return err
	}
	text, err := m.next(r)
	if err != nil {
		return err
	}
	return fsx.WriteFile(filepath.Join(t.dir, r.Tag, manifestName), text, 0o666)
}

func (t *dirTarget) Lock(_ context.Context, owner Owner) (func() error, error) {
	if err := os.MkdirAll(filepath.Join(t.dir, ".kiln"), 0o777); err != nil {
		return nil, err
	}
	// The lock is that of the system, freed however this process ends; the name beside it is for
	// people.
	who := filepath.Join(t.dir, ".kiln", "publish.owner")
	var lock *fsx.FileLock
	var err error
	for range 20 {
		lock, err = fsx.TryLock(filepath.Join(t.dir, ".kiln", "publish.lock"))
		locked, ok := errors.AsType[*fsx.LockedError](err)
		if !ok {
			break
		}
		holder := Owner{Name: fmt.Sprintf("process %d on %s", locked.Owner.PID, locked.Owner.Host), Time: locked.Owner.Time}
		text, readErr := os.ReadFile(who)
		named := readErr == nil && json.Unmarshal(text, &holder) == nil
		err = &LockedError{Target: t.String(), Owner: holder}
		if named {
			break
		}
		time.Sleep(10 * time.Millisecond) // the holder is about to write its name, or has just ended
	}
	if err != nil {
		return nil, err
	}
	if text, err := json.Marshal(owner); err == nil {
		_ = fsx.WriteFile(who, text, 0o666) // only for the message of others
	}
	return func() error {
		os.Remove(who)
		return lock.Unlock()
	}, nil
}
