package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"

	"github.com/kiln-build/kiln/internal/fsx"
)

// The names of pages in their folders. Besides index.html, which every web server finds, they
// are those that bandersnatch uses, and servers with content negotiation look for.
const (
	htmlPage = "index.html"
	jsonPage = "index.v1_json"
	gzSuffix = ".gz"
)

// bulkPages is the number of pages from which on they are not made durable one by one. Pages
// can be made again from the catalog at any time; a crash of the machine right after a
// bulk change may damage some, which `kiln index check` finds.
const bulkPages = 400

// tree writes pages below a folder. Every file is replaced in one step, and only if its
// content changes. A tree is used by one goroutine.
type tree struct {
	store   *Store
	dir     string
	durable bool
	temp    *atomic.Int64 // numbers for temporary names, shared by all trees of a change
	written int
	gz      *gzip.Writer
	packed  bytes.Buffer
	made    map[string]bool // folders that are there

	// A staged tree writes everything under temporary names, which may fail for want of space, and
	// gives all of it its names in publish.
	staged  bool
	steps   []step
	at      map[string]string // temporary names of what publish puts somewhere
	folders []string          // that it made
}

// step is one change that readers of pages see.
type step struct {
	from, to string // from is "" to remove to
}

func newTree(store *Store, durable bool, temp *atomic.Int64) *tree {
	// Pages consist of hashes, which nothing compresses, and of repetition, which the first
	// level finds: higher ones gain a few percent for several times the work.
	gz, _ := gzip.NewWriterLevel(nil, 1) // the level is valid
	return &tree{store: store, dir: store.dir, durable: durable, temp: temp, gz: gz, made: map[string]bool{}, at: map[string]string{}}
}

// do makes a step, or in a staged tree keeps it for publish.
func (t *tree) do(s step) error {
	if t.staged {
		t.steps = append(t.steps, s)
		if s.from != "" {
			t.at[s.to] = s.from
		}
		return nil
	}
	if err := t.store.touch(s.to); err != nil {
		return err
	}
	if s.from == "" {
		return os.Remove(s.to)
	}
	return os.Rename(s.from, s.to)
}

// publish makes the steps of a staged tree, which is an ordinary one from then on.
func (t *tree) publish() error {
	t.staged = false
	synced := ""
	for _, s := range t.steps {
		if err := t.do(s); err != nil {
			return err
		}
		dir := filepath.Dir(s.to)
		if t.durable && synced != "" && synced != dir {
			if err := fsx.SyncDir(synced); err != nil {
				return err
			}
		}
		synced = dir
	}
	t.steps, t.at = nil, map[string]string{}
	if t.durable && synced != "" {
		return fsx.SyncDir(synced)
	}
	return nil
}

// present is where the file that will be at path is now.
func (t *tree) present(path string) string {
	if temp, ok := t.at[path]; ok {
		return temp
	}
	if temp, ok := t.at[filepath.Dir(path)]; ok {
		return filepath.Join(temp, filepath.Base(path))
	}
	return path
}

// tempDir is where pages are written before they get their name. What a change that was cut short
// left there is removed by the next.
func tempDir(dir string) string { return filepath.Join(dir, stateDir, "tmp") }

func (t *tree) tempPath() string {
	return filepath.Join(tempDir(t.dir), strconv.FormatInt(t.temp.Add(1), 10))
}

func (t *tree) path(rel string) string { return filepath.Join(t.dir, filepath.FromSlash(rel)) }

// pageFile is a file to write.
type pageFile struct {
	name   string
	data   []byte
	packed []byte // the same, compressed; nil if that was not done yet
}

// pack compresses a page once, however often it is written.
func (t *tree) pack(p *pageFile) error {
	if p.packed != nil {
		return nil
	}
	packed, err := t.compress(p.data)
	p.packed = bytes.Clone(packed)
	return err
}

// putFolder writes the pages of one folder, each with its compressed twin. In bulk, a folder that
// is not there yet appears with all of them at once. like, if not "", is a folder that has the same
// pages: they are linked, which costs no space and a fraction of the time. Pages are only ever
// replaced as a whole, so that no change of one reaches the other.
func (t *tree) putFolder(rel, like string, pages []pageFile) error {
	dir := t.path(rel)
	if like != "" {
		like = t.path(like)
	}
	if t.made[dir] || t.durable {
		return t.putPages(dir, like, pages)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return t.putPages(dir, like, pages)
	}
	temp := t.tempPath()
	if err := os.MkdirAll(temp, 0o777); err != nil {
		return err
	}
	for i := range pages {
		p := &pages[i]
		if err := t.pack(p); err != nil {
			return err
		}
		for _, f := range []struct {
			name string
			data []byte
		}{{p.name, p.data}, {p.name + gzSuffix, p.packed}} {
			path := filepath.Join(temp, f.name)
			if like != "" && os.Link(t.present(filepath.Join(like, f.name)), path) == nil {
				continue
			}
			if err := os.WriteFile(path, f.data, 0o644); err != nil {
				return err
			}
		}
		t.written += 2
	}
	if err := t.mkdir(filepath.Dir(dir)); err != nil {
		return err
	}
	return t.do(step{temp, dir})
}

func (t *tree) putPages(dir, like string, pages []pageFile) error {
	if err := t.mkdir(dir); err != nil {
		return err
	}
	before := t.written
	for i := range pages {
		if err := t.put(dir, like, &pages[i]); err != nil {
			return err
		}
	}
	if t.durable && !t.staged && t.written > before {
		return fsx.SyncDir(dir)
	}
	return nil
}

// put writes a page and its compressed twin into a folder. Each is compared by itself: a change
// that was cut short may have written one of them only. The old twin goes first, so that at no
// moment there are two that differ: web servers send the page where there is no twin.
func (t *tree) put(dir, like string, p *pageFile) error {
	path, from := filepath.Join(dir, p.name), ""
	if like != "" {
		from = filepath.Join(like, p.name)
	}
	twin := isTwin(path+gzSuffix, p.data)
	if !same(path, p.data) {
		if !twin && exists(path+gzSuffix) {
			if err := t.do(step{to: path + gzSuffix}); err != nil {
				return err
			}
		}
		if err := t.replace(path, from, p.data); err != nil {
			return err
		}
	}
	if twin {
		return nil
	}
	if err := t.pack(p); err != nil {
		return err
	}
	if from != "" {
		from += gzSuffix
	}
	return t.replace(path+gzSuffix, from, p.packed)
}

// isTwin reports whether a compressed page is that of data, by what gzip notes at the end of the
// file: checksum and length. Reading it costs a fraction of compressing data to compare.
func isTwin(path string, data []byte) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	var trailer [8]byte
	if err != nil || !info.Mode().IsRegular() || info.Size() < int64(len(trailer)) {
		return false
	}
	if _, err := f.ReadAt(trailer[:], info.Size()-int64(len(trailer))); err != nil {
		return false
	}
	return binary.LittleEndian.Uint32(trailer[4:]) == uint32(len(data)) && binary.LittleEndian.Uint32(trailer[:4]) == crc32.ChecksumIEEE(data)
}

func same(path string, data []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(data)) {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, data)
}

// replace makes data the content of path in one step, as a link to from if that is not "". What is
// durable about it is the content; the folder has to be synced by the caller.
func (t *tree) replace(path, from string, data []byte) error {
	t.written++
	temp := t.tempPath()
	if from == "" || os.Link(t.present(from), temp) != nil {
		if err := t.write(temp, data); err != nil {
			return err
		}
	}
	return t.do(step{temp, path})
}

func (t *tree) write(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && t.durable {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// compress returns the gzip form of data, without a time in it. It is valid until the next call.
func (t *tree) compress(data []byte) ([]byte, error) {
	t.packed.Reset()
	t.gz.Reset(&t.packed)
	if _, err := t.gz.Write(data); err != nil {
		return nil, err
	}
	if err := t.gz.Close(); err != nil {
		return nil, err
	}
	return t.packed.Bytes(), nil
}

func (t *tree) mkdir(dir string) error {
	if t.made[dir] {
		return nil
	}
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		t.made[dir] = true
		return nil
	}
	if dir != t.dir {
		if err := t.mkdir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	if err := t.store.touch(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	t.made[dir] = true
	t.folders = append(t.folders, dir)
	if t.durable {
		return fsx.SyncDir(filepath.Dir(dir))
	}
	return nil
}

// removePages removes the pages in a folder and the folder, if nothing else is in it,
// and then the folders above that have become empty.
func (t *tree) removePages(rel string) error {
	dir := t.path(rel)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range slices.Backward(entries) { // twins before their pages
		if isPage(e.Name()) || fsx.IsTemp(e.Name()) {
			if err := t.store.touch(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
			t.written++
		}
	}
	if err := t.store.touch(dir); err != nil {
		return err
	}
	return removeEmpty(t.dir, dir)
}

// isPage reports whether the index writes files of that name into folders of pages.
func isPage(name string) bool {
	name = strings.TrimSuffix(name, gzSuffix)
	return name == htmlPage || name == jsonPage || strings.HasSuffix(name, "-variants.json")
}

// removeEmpty removes dir and the folders above it, up to root, as long as they are empty.
func removeEmpty(root, dir string) error {
	for dir != root && strings.HasPrefix(dir, root) {
		// Whether the folder is empty is known only by removing it.
		if err := os.Remove(dir); err != nil {
			if entries, readErr := os.ReadDir(dir); readErr == nil && len(entries) > 0 || errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return fmt.Errorf("remove empty folder: %w", err)
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

// pageFolder is the folder of a page: of the list, or with a project of its page.
func pageFolder(root, project string) string {
	folder := "simple"
	if root != "" {
		folder = root + "/simple"
	}
	if project != "" {
		folder += "/" + project
	}
	return folder
}

// gunzip unpacks a file, up to limit bytes.
func gunzip(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, limit))
}
