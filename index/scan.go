package index

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// scanCache remembers the hashes of files by name, size and time of change, so that a folder
// with many large wheels is read once. It is used only for files that the catalog has
// with that hash; everything else is read.
type scanCache struct {
	catalog *Catalog
	now     time.Time

	mu    sync.Mutex
	lines map[string]scanned // by file name
	dirty bool
}

type scanned struct {
	size   int64
	time   int64 // of change, in nanoseconds
	sha256 Digest
}

// knownFile is what the catalog says of a file.
type knownFile struct {
	sha256, metadata Digest
	requiresPython   string
}

func scanCachePath(dir string) string { return filepath.Join(dir, stateDir, "scanned") }

func readScanCache(dir string, catalog *Catalog) *scanCache {
	c := &scanCache{catalog: catalog, now: time.Now(), lines: map[string]scanned{}}
	data, err := os.ReadFile(scanCachePath(dir))
	if err != nil {
		return c // nothing is lost but time
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			continue
		}
		size, err1 := strconv.ParseInt(f[1], 10, 64)
		when, err2 := strconv.ParseInt(f[2], 10, 64)
		sum, err3 := ParseDigest(f[3])
		if errors.Join(err1, err2, err3) == nil {
			c.lines[f[0]] = scanned{size, when, sum}
		}
	}
	return c
}

func (c *scanCache) get(name string, info fs.FileInfo) (knownFile, bool) {
	if c == nil {
		return knownFile{}, false
	}
	c.mu.Lock()
	line, ok := c.lines[name]
	c.mu.Unlock()
	if !ok || line.size != info.Size() || line.time != info.ModTime().UnixNano() {
		return knownFile{}, false
	}
	project, _, err := ParseName(name)
	if err != nil {
		return knownFile{}, false
	}
	p := c.catalog.Project(project)
	if p == nil {
		return knownFile{}, false
	}
	f := p.File(name)
	if f == nil || f.SHA256 != line.sha256 {
		return knownFile{}, false
	}
	return knownFile{f.SHA256, f.Metadata, f.RequiresPython}, true
}

// put remembers a hash, unless the file is so new that it could change once more within
// the resolution of its time.
func (c *scanCache) put(name string, info fs.FileInfo, sum Digest) {
	if c == nil || c.now.Sub(info.ModTime()) < 2*time.Second {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines[name] = scanned{info.Size(), info.ModTime().UnixNano(), sum}
	c.dirty = true
}

func (c *scanCache) write(dir string) error {
	if !c.dirty {
		return nil
	}
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(c.lines)) {
		l := c.lines[name]
		out = fmt.Appendf(out, "%s\t%d\t%d\t%s\n", name, l.size, l.time, l.sha256)
	}
	return fsx.WriteFile(scanCachePath(dir), out, 0o644)
}

// ScanOptions are options of [Store.AddDir].
type ScanOptions struct {
	AddOptions
	// Base is the URL of the folder, where users find its files. Empty means that the
	// index hosts them.
	Base string
	// WriteMetadata writes the METADATA of each wheel beside it, to be uploaded together.
	// Without it, pages announce metadata only for wheels that have such a file.
	WriteMetadata bool
	// UploadTime is the time that new files get. The default is now.
	UploadTime time.Time
}

// AddDir publishes all wheels and sdists in a folder, not in folders below it. Files that
// were published before and are not in the folder stay in the index. Files of other kinds are
// ignored; those that seem to be distributions but have no valid name are problems.
func (s *Store) AddDir(ctx context.Context, dir string, opts ScanOptions) ([]Change, []Problem, error) {
	files, problems, err := scanDir(dir, opts)
	if err != nil {
		return nil, nil, err
	}
	catalog, err := s.Catalog(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(problems) > 0 && opts.Strict {
		return nil, problems, nil
	}
	cache := readScanCache(s.dir, catalog)
	changes, more, err := s.add(ctx, files, opts.AddOptions, cache)
	problems = append(problems, more...)
	if err != nil {
		return nil, problems, err
	}
	if changes != nil {
		err = cache.write(s.dir)
	}
	return changes, problems, err
}

// scanDir lists the distributions in a folder.
func scanDir(dir string, opts ScanOptions) (files []NewFile, problems []Problem, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	have := map[string]bool{}
	for _, e := range entries {
		have[e.Name()] = true
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case e.IsDir() || strings.HasPrefix(name, "."):
			continue
		case !looksLikeDistribution(name):
			continue
		case e.Type()&fs.ModeSymlink != 0:
			if err := insideDir(dir, name); err != nil {
				problems = append(problems, Problem{name, err})
				continue
			}
		}
		files = append(files, NewFile{
			Path: filepath.Join(dir, name), Base: opts.Base, UploadTime: opts.UploadTime,
			MetadataBeside: opts.WriteMetadata || have[name+".metadata"], writeMetadata: opts.WriteMetadata && opts.Base != "",
		})
	}
	return files, problems, nil
}

// insideDir refuses a link that leads out of the folder.
func insideDir(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("link out of the folder: %w", err)
	}
	return f.Close()
}

// looksLikeDistribution reports whether installers might take the file for a wheel or an sdist,
// or people expect them to.
func looksLikeDistribution(name string) bool {
	name = strings.ToLower(name)
	return strings.HasSuffix(name, ".whl") || strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".zip")
}

// manifestFile is a line of a manifest: a file object of PEP 691 with what kiln adds.
type manifestFile struct {
	Filename string `json:"filename"`
	URL      string `json:"url"`
	Hashes   struct {
		SHA256 Digest `json:"sha256"`
	} `json:"hashes"`
	Size int64 `json:"size"`

	RequiresPython string          `json:"requires-python"`
	CoreMetadata   metadataHash    `json:"core-metadata"`
	UploadTime     time.Time       `json:"upload-time"`
	Yanked         json.RawMessage `json:"yanked"`
	Provenance     string          `json:"provenance"`

	Built *struct {
		Toolkit string   `json:"toolkit"`
		Torch   []string `json:"torch"`
	} `json:"built"`
	Arch   []string `json:"arch"`
	Glibc  string   `json:"glibc"`
	Window []string `json:"window"`

	// What pages of another kiln index say.
	Kiln struct {
		Coordinates
		Arch   []string `json:"arch"`
		Glibc  string   `json:"glibc"`
		Window []string `json:"window"`
	} `json:"_kiln"`
}

// metadataHash is the field "core-metadata": an object with the hash, true or false. Without the
// hash it says nothing that could be passed on.
type metadataHash struct{ sha256 Digest }

// UnmarshalJSON reads the field.
func (h *metadataHash) UnmarshalJSON(data []byte) error {
	if data[0] != '{' {
		return nil
	}
	var hashes struct {
		SHA256 Digest `json:"sha256"`
	}
	if err := json.Unmarshal(data, &hashes); err != nil {
		return fmt.Errorf("core-metadata: %w", err)
	}
	h.sha256 = hashes.SHA256
	return nil
}

// ReadManifest yields the files that a manifest lists: one JSON object a line, of the form that PEP
// 691 gives to files ("filename", "url", "hashes", "size" and so on), so that the pages of another
// index can be used. The last part of "url" must be the file name. "built" adds "toolkit" and a
// list "torch", "arch" a list of GPU architectures; "_kiln" is both, as kiln's own pages have it.
// The sequence ends after an error.
func ReadManifest(r io.Reader) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		scanner := bufio.NewScanner(r)
		scanner.Buffer(nil, maxManifestLine)
		ins := make([]interner, runtime.GOMAXPROCS(0))
		for i := range ins {
			ins[i] = interner{}
		}
		for first, eof := 1, false; !eof; {
			var lines [][]byte
			for len(lines) < 1000 {
				if eof = !scanner.Scan(); eof {
					break
				}
				lines = append(lines, bytes.Clone(scanner.Bytes()))
			}
			files, errs := make([]File, len(lines)), make([]error, len(lines))
			var wg sync.WaitGroup
			for w := range ins {
				wg.Go(func() {
					for i := w; i < len(lines); i += len(ins) {
						if len(bytes.TrimSpace(lines[i])) > 0 {
							files[i], errs[i] = parseManifestLine(lines[i], ins[w])
						}
					}
				})
			}
			wg.Wait()
			for i := range lines {
				switch {
				case errs[i] != nil:
					yield(File{}, fmt.Errorf("manifest line %d: %w", first+i, errs[i]))
					return
				case files[i].Filename == "" && len(bytes.TrimSpace(lines[i])) == 0:
				case !yield(files[i], nil):
					return
				}
			}
			first += len(lines)
		}
		if err := scanner.Err(); err != nil {
			yield(File{}, fmt.Errorf("read manifest: %w", err))
		}
	}
}

// maxManifestLine is the longest line of a manifest in bytes.
const maxManifestLine = 1 << 20

func parseManifestLine(line []byte, in interner) (f File, err error) {
	var m manifestFile
	if err := json.Unmarshal(line, &m); err != nil {
		return f, err
	}
	f = File{
		Filename: m.Filename, Size: m.Size, SHA256: m.Hashes.SHA256, Metadata: m.CoreMetadata.sha256, RequiresPython: in.get(m.RequiresPython),
		Provenance: m.Provenance, Arch: m.Arch, UploadTime: m.UploadTime.UTC().Truncate(time.Microsecond),
	}
	if m.URL != "" {
		base, ok := strings.CutSuffix(m.URL, "/"+escapeName(m.Filename))
		if !ok {
			if base, ok = strings.CutSuffix(m.URL, "/"+m.Filename); !ok {
				return f, fmt.Errorf("url %q does not end in the file name %q", m.URL, m.Filename)
			}
		}
		f.Base = in.get(base + "/")
	}
	if m.Built != nil {
		f.Coordinates = Coordinates{m.Built.Toolkit, m.Built.Torch}
	} else if !m.Kiln.IsZero() && m.Kiln.String() != f.Built().String() {
		f.Coordinates = m.Kiln.Coordinates // the label does not say it
	}
	if f.Arch == nil {
		f.Arch = m.Kiln.Arch
	}
	f.Glibc, f.Window = cmp.Or(m.Glibc, m.Kiln.Glibc), m.Window
	if f.Window == nil {
		f.Window = m.Kiln.Window
	}
	if len(m.Yanked) > 0 && m.Yanked[0] == '"' {
		if err := json.Unmarshal(m.Yanked, &f.YankedReason); err != nil {
			return f, err
		}
		f.Yanked = true
	} else if string(m.Yanked) == "true" {
		f.Yanked = true
	}
	return f, nil
}
