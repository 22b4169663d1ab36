package index

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// Errors that a caller may want to tell apart.
var (
	// ErrExists is the error for a file name that was published with other bytes, or
	// was published and removed.
	ErrExists = errors.New("file already exists with other content")
	// ErrClosed is the error for a project whose status does not allow new files.
	ErrClosed = errors.New("project does not accept files")
	// ErrNotFound is the error for a project or file that the index does not have.
	ErrNotFound = errors.New("not in the index")
)

// StoreOptions are how a [Store] works. The zero value is ready to use.
type StoreOptions struct {
	// Log gets what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Store is an index in a folder. The pages of all views lie in it as files; the folder
// .kiln has the catalog. Any number of processes may read and write one index: writers wait for
// each other through a lock, readers never wait.
//
// A Store may be used by several goroutines.
type Store struct {
	dir string
	log *slog.Logger
	// fault, in tests, is asked before every change to a file. Its error ends the operation there,
	// as a kill would.
	fault func(path string) error
	bulk  int // bulkPages, or less in tests

	mu      sync.Mutex // guards what follows, the last state that was read
	seen    stamp
	offsets map[string]position
	catalog *Catalog
}

// stamp recognizes a state without reading it.
type stamp struct {
	state, config pathStamp
}

type pathStamp struct {
	size int64
	time time.Time
	info os.FileInfo
}

// position says which block of which log a project was read from.
type position struct {
	log    string
	offset int64
}

// Open opens the index in dir, which need not exist yet. It reads nothing but the
// configuration.
func Open(dir string, opts StoreOptions) (*Store, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("open index %s: not a folder", dir)
	}
	s := &Store{dir: dir, log: opts.Log, bulk: bulkPages}
	if _, _, err := s.readConfig(); err != nil {
		return nil, err
	}
	return s, nil
}

// Dir returns the folder, as an absolute path.
func (s *Store) Dir() string { return s.dir }

// Files counts the files of the index without reading what is known of them.
func (s *Store) Files() (int, error) {
	data, err := fsx.ReadFile(filepath.Join(s.dir, stateDir, stateFile), stateLimit)
	n := 0
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err == nil:
		n, err = countFiles(data)
	}
	if err != nil {
		return 0, fmt.Errorf("read index %s: %w", s.dir, err)
	}
	return n, nil
}

// Exists reports whether the folder has an index in it.
func (s *Store) Exists() bool {
	_, err := os.Stat(filepath.Join(s.dir, stateDir, stateFile))
	return err == nil
}

func (s *Store) configPath() string { return filepath.Join(s.dir, stateDir, "config.json") }

// Config reads the configuration of the index.
func (s *Store) Config() (Config, error) {
	config, _, err := s.readConfig()
	return config, err
}

// readConfig also returns a checksum of what pages depend on.
func (s *Store) readConfig() (config Config, sum uint32, err error) {
	data, err := fsx.ReadFile(s.configPath(), stateLimit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return config, 0, err
	default:
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&config); err != nil {
			return config, 0, fmt.Errorf("read %s: %w", s.configPath(), err)
		}
	}
	if err := config.validate(); err != nil {
		return config, 0, fmt.Errorf("read %s: %w", s.configPath(), err)
	}
	return config, config.sum(), nil
}

// validate checks a configuration.
func (c *Config) validate() error {
	switch c.Web {
	case "", WebOn, WebOff:
	default:
		return fmt.Errorf("web: %q is neither %q nor %q", c.Web, WebOn, WebOff)
	}
	if c.BaseURL != "" {
		if err := validBase(c.BaseURL); err != nil {
			return fmt.Errorf("base_url: %w", err)
		}
	}
	if !c.Default.IsZero() {
		if err := c.Default.validate(); err != nil {
			return fmt.Errorf("default: %w", err)
		}
	}
	return nil
}

// sum is a checksum of what pages depend on.
func (c *Config) sum() uint32 {
	pages := *c
	pages.BaseURL = "" // each file has its own
	pages.Web = ""
	text, _ := json.Marshal(pages) // plain values, cannot fail
	return crc32.Checksum(append(text, pageFormat...), castagnoli)
}

func stampOf(path string) pathStamp {
	info, err := os.Stat(path)
	if err != nil {
		return pathStamp{}
	}
	return pathStamp{info.Size(), info.ModTime(), info}
}

func (a pathStamp) equal(b pathStamp) bool {
	return a.size == b.size && a.time.Equal(b.time) && (a.info == nil) == (b.info == nil) && (a.info == nil || os.SameFile(a.info, b.info))
}

// Catalog returns the current state. The first call reads everything, later ones only what
// this or another process changed; without changes it costs two stats.
func (s *Store) Catalog(ctx context.Context) (*Catalog, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A writer may replace the log between reading the state and opening the log.
	for attempt := 0; ; attempt++ {
		c, err := s.refresh(ctx)
		if !errors.Is(err, fs.ErrNotExist) || attempt == 10 {
			if err != nil {
				return nil, fmt.Errorf("read index %s: %w", s.dir, err)
			}
			return c, nil
		}
	}
}

func (s *Store) refresh(ctx context.Context) (*Catalog, error) {
	now := stamp{stampOf(filepath.Join(s.dir, stateDir, stateFile)), stampOf(s.configPath())}
	if s.catalog != nil && now.state.equal(s.seen.state) && now.config.equal(s.seen.config) {
		return s.catalog, nil
	}
	config, sum, err := s.readConfig()
	if err != nil {
		return nil, err
	}
	st, err := readState(s.dir)
	if err != nil {
		return nil, err
	}
	var old *Catalog
	if s.catalog != nil && s.catalog.config.sum() == sum {
		old = s.catalog
	}
	names := st.names()
	projects := make([]*Project, len(names))
	var missing []int
	for i, name := range names {
		e := st.entries[name]
		if old != nil && s.offsets[name] == (position{st.log, e.offset}) && old.byName[name] != nil {
			projects[i] = old.byName[name]
		} else {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		log, err := os.Open(filepath.Join(s.dir, stateDir, st.log))
		if err != nil {
			return nil, err
		}
		defer log.Close()
		if err := loadProjects(ctx, log, st, names, projects, missing, &config); err != nil {
			return nil, err
		}
	}
	s.catalog = NewCatalog(config, projects)
	s.offsets = make(map[string]position, len(names))
	for name, e := range st.entries {
		s.offsets[name] = position{st.log, e.offset}
	}
	s.seen = now
	return s.catalog, nil
}

// loadProjects reads the blocks of the projects whose indexes are in missing.
func loadProjects(ctx context.Context, log io.ReaderAt, st *state, names []string, projects []*Project, missing []int, config *Config) error {
	// In the order of the log, so that the disk reads forwards.
	slices.SortFunc(missing, func(a, b int) int { return int(st.entries[names[a]].offset - st.entries[names[b]].offset) })
	workers := min(runtime.GOMAXPROCS(0), 4, 1+len(missing)/64)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			in := interner{}
			var buf []byte
			for k := w; k < len(missing); k += workers {
				if errs[w] = ctx.Err(); errs[w] != nil {
					return
				}
				i := missing[k]
				if projects[i], buf, errs[w] = readBlock(log, st.entries[names[i]], buf, in); errs[w] != nil {
					return
				}
				projects[i].prepare(config)
				projects[i].revision = fmt.Sprintf("%s:%d", strings.TrimSuffix(st.log, ".jsonl"), st.entries[names[i]].offset)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// OpenFile opens a hosted file, or its METADATA or a paper by their suffix, for reading. The error
// wraps [fs.ErrNotExist] for files that are elsewhere.
func (s *Store) OpenFile(f *File, suffix string) (io.ReadSeekCloser, error) {
	if f.Base != "" || f.Paper(suffix).IsZero() {
		return nil, fmt.Errorf("open %s: not hosted: %w", f.Filename, fs.ErrNotExist)
	}
	// The name was checked, but nothing below the folder may lead out of it.
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(filepath.FromSlash(f.HostedPath() + suffix))
}

// touch is called before every change to a file.
func (s *Store) touch(path string) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(path)
}

// lock waits for the right to write and prepares the folder.
func (s *Store) lock(ctx context.Context) (*fsx.FileLock, error) {
	if err := os.MkdirAll(filepath.Join(s.dir, stateDir), 0o777); err != nil {
		return nil, err
	}
	return fsx.Lock(ctx, filepath.Join(s.dir, stateDir, "lock"))
}
