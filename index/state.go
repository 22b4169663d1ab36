package index

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/internal/fsx"
)

// state says where in the log the project blocks are and in which views the projects are
// shown. It is the part of a catalog that every change needs whole, so it is small and
// quick to read: lines of fields separated by tabs. It is replaced in one step when all pages of a
// change are written; blocks in the log after its end belong to a change that was cut short.
type state struct {
	log     string // file name
	logLen  int64
	config  uint32 // checksum of the configuration that pages were made with
	entries map[string]*entry

	known []combination // what combinations returned
}

// entry is a project in the state.
type entry struct {
	name, display  string
	offset, length int64
	files          int
	floating       bool
	views          []viewEntry // sorted by path
}

// viewEntry is a view that a project is in. The summary is for catalog.json.
type viewEntry struct {
	path     string
	explicit bool   // not only through loose files
	summary  string // pythons, platforms, versions and archs, each separated by commas
}

const (
	stateMagic = "kiln-index 1"
	stateFile  = "projects"
	stateDir   = ".kiln"
	stateLimit = 1 << 40 // more than any index has
)

func newState() *state { return &state{entries: map[string]*entry{}} }

func (v *viewEntry) parseSummary() (s viewSummary) {
	rest := v.summary
	for _, field := range []*string{&s.pythons, &s.platforms, &s.versions, &s.arch} {
		*field, rest, _ = strings.Cut(rest, "\t")
	}
	return s
}

func (s viewSummary) text() string {
	return s.pythons + "\t" + s.platforms + "\t" + s.versions + "\t" + s.arch
}

func (e *entry) view(path string) *viewEntry {
	i, ok := slices.BinarySearchFunc(e.views, path, func(v viewEntry, path string) int { return strings.Compare(v.path, path) })
	if !ok {
		return nil
	}
	return &e.views[i]
}

// newEntry describes a prepared project in the views it is in.
func newEntry(p *Project, members membership, at *entry) *entry {
	e := &entry{name: p.Name, display: p.DisplayName, files: len(p.Files), floating: p.floating}
	if at != nil {
		e.offset, e.length = at.offset, at.length
	}
	for _, path := range slices.Sorted(maps.Keys(members)) {
		_, explicit := p.own[path]
		v := viewEntry{path: path, explicit: explicit}
		if _, ok := parseViewPath(path); ok {
			v.summary = p.summarize(members[path]).text()
		}
		e.views = append(e.views, v)
	}
	return e
}

func (st *state) names() []string { return slices.Sorted(maps.Keys(st.entries)) }

// combinations returns those that projects have files for. Entries that change the answer must not
// be set afterwards.
func (st *state) combinations() []combination {
	if st.known != nil {
		return st.known
	}
	paths := map[string]bool{}
	for _, e := range st.entries {
		for i := range e.views {
			if e.views[i].explicit {
				paths[e.views[i].path] = true
			}
		}
	}
	set := map[combination]bool{}
	for path := range paths {
		if c, ok := parseViewPath(path); ok && c.torch != "" {
			set[c] = true
		}
	}
	st.known = append([]combination{}, sortCombinations(set)...)
	return st.known
}

// roots returns the paths at which each view lies.
func (st *state) roots(config *Config) map[string][]string {
	out := map[string][]string{defaultView: {defaultView}, allView: {allView}}
	for _, e := range st.entries {
		for i := range e.views {
			if path := e.views[i].path; out[path] == nil {
				out[path] = []string{path}
			}
		}
	}
	if config.Aliases {
		for path, names := range aliases(st.combinations()) {
			out[path] = append(out[path], names...)
		}
	}
	return out
}

func (st *state) append(dst []byte) []byte {
	size := 0
	for _, e := range st.entries {
		size += 2*len(e.name) + 64
		for i := range e.views {
			size += len(e.views[i].path) + len(e.views[i].summary) + 8
		}
	}
	body := make([]byte, 0, size)
	for _, name := range st.names() {
		e := st.entries[name]
		body = append(append(append(append(append(body, "P\t"...), name...), '\t'), e.display...), '\t')
		body = strconv.AppendInt(body, e.offset, 10)
		body = append(body, '\t')
		body = strconv.AppendInt(body, e.length, 10)
		body = append(body, '\t')
		body = strconv.AppendInt(body, int64(e.files), 10)
		body = append(body, "\t"+flag(e.floating, "f")+"\n"...)
		for i := range e.views {
			v := &e.views[i]
			body = append(append(append(body, "V\t"...), v.path...), '\t')
			body = append(append(append(append(body, flag(v.explicit, "e")...), '\t'), v.summary...), '\n')
		}
	}
	dst = slices.Grow(dst, len(body)+100)
	dst = fmt.Appendf(dst, "%s\t%s\t%d\t%08x\t%08x\n", stateMagic, st.log, st.logLen, st.config, crc32.Checksum(body, castagnoli))
	return append(dst, body...)
}

func flag(b bool, s string) string {
	if b {
		return s
	}
	return "-"
}

var errState = errors.New("list of projects is damaged; `kiln index check --repair` makes it anew")

// parseState reads what append wrote. The checksum makes sure of that, so that the rest is
// checked for form only.
func parseState(data []byte) (*state, error) {
	head, body, ok := bytes.Cut(data, []byte("\n"))
	fields := strings.Split(string(head), "\t")
	if !ok || len(fields) != 5 || fields[0] != stateMagic {
		return nil, errState
	}
	st := newState()
	st.log = fields[1]
	length, err1 := strconv.ParseInt(fields[2], 10, 64)
	config, err2 := strconv.ParseUint(fields[3], 16, 32)
	sum, err3 := strconv.ParseUint(fields[4], 16, 32)
	if errors.Join(err1, err2, err3) != nil || length < 0 || filepath.Base(st.log) != st.log || crc32.Checksum(body, castagnoli) != uint32(sum) {
		return nil, errState
	}
	st.logLen, st.config = length, uint32(config)
	var e *entry
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSuffix(line, "\n")
		kind, rest, _ := strings.Cut(line, "\t")
		switch {
		case kind == "P":
			f := strings.Split(rest, "\t")
			if len(f) != 6 {
				return nil, errState
			}
			e = &entry{name: f[0], display: f[1], floating: f[5] == "f"}
			var errs [3]error
			e.offset, errs[0] = strconv.ParseInt(f[2], 10, 64)
			e.length, errs[1] = strconv.ParseInt(f[3], 10, 64)
			e.files, errs[2] = strconv.Atoi(f[4])
			if errors.Join(errs[:]...) != nil || e.offset < 0 || e.length < 0 || e.offset > st.logLen-e.length {
				return nil, errState
			}
			st.entries[e.name] = e
		case kind == "V" && e != nil:
			path, rest, _ := strings.Cut(rest, "\t")
			explicit, summary, ok := strings.Cut(rest, "\t")
			if !ok {
				return nil, errState
			}
			e.views = append(e.views, viewEntry{path, explicit == "e", summary})
		default:
			return nil, errState
		}
	}
	return st, nil
}

// countFiles is the number of files that a state lists, without reading the rest of it.
func countFiles(data []byte) (n int, err error) {
	for line := range bytes.Lines(data) {
		if !bytes.HasPrefix(line, []byte("P\t")) {
			continue
		}
		f := bytes.Split(line, []byte("\t"))
		if len(f) != 7 {
			return 0, errState
		}
		files, err := strconv.Atoi(string(f[5]))
		if err != nil {
			return 0, errState
		}
		n += files
	}
	return n, nil
}

// readState reads the state in dir; a missing one is empty.
func readState(dir string) (*state, error) {
	data, err := fsx.ReadFile(filepath.Join(dir, stateDir, stateFile), stateLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(), nil
	}
	if err != nil {
		return nil, err
	}
	return parseState(data)
}

func (st *state) write(s *Store) error {
	path := filepath.Join(s.dir, stateDir, stateFile)
	if err := s.touch(path); err != nil {
		return err
	}
	return fsx.WriteFile(path, st.append(nil), 0o644)
}

// readBlock reads and parses the block of an entry.
func readBlock(log io.ReaderAt, e *entry, buf []byte, in interner) (*Project, []byte, error) {
	buf = slices.Grow(buf[:0], int(e.length))[:e.length]
	if _, err := log.ReadAt(buf, e.offset); err != nil {
		return nil, buf, fmt.Errorf("read project %s: %w", e.name, err)
	}
	p, err := parseBlock(buf, in)
	if err == nil && p.Name != e.name {
		err = fmt.Errorf("read project %s: %w", e.name, errState)
	}
	return p, buf, err
}

// tail reads the blocks of a log from offset on, up to the first that is not whole, and
// returns where that is.
func tail(log io.ReaderAt, offset int64, yield func(p *Project, offset, length int64) error) (end int64, err error) {
	const step = 1 << 20
	var buf []byte
	in := interner{}
	for eof := false; ; {
		block, ok := cutBlock(buf)
		if ok {
			p, err := parseBlock(block, in)
			if err != nil {
				return offset, err
			}
			if err := yield(p, offset, int64(len(block))); err != nil {
				return offset, err
			}
			offset += int64(len(block))
			buf = buf[len(block):]
			continue
		}
		if eof {
			return offset, nil
		}
		chunk := make([]byte, step)
		n, err := log.ReadAt(chunk, offset+int64(len(buf)))
		if err != nil && !errors.Is(err, io.EOF) {
			return offset, err
		}
		eof = errors.Is(err, io.EOF)
		buf = append(slices.Clip(buf), chunk[:n]...)
	}
}
