// Package table keeps the symbol names of many releases of a library in one file.
//
// Releases that follow each other have most names in common, so every name is written once,
// together with the set of releases that have it. A file with one release is a snapshot on its
// own. The package knows nothing of what is in the releases' descriptions.
//
// The format, in which numbers are unsigned varints and a text is its length and its bytes:
//
//	"kiln-snapshots/1\n"
//	the label of each release, a line each, and an empty line
//	frames: each a length and a zstd frame of that length
//
// The first frame has the descriptions of all releases (texts), then three lists that begin with
// their length: the names of the library files (texts); the sets, each a list of a file and a bit
// set of releases; and the blocks, each its number of names and its first name. Each further frame
// is a block of names, sorted: the lengths of three columns, the columns and the text. The columns
// have a number per name: how many bytes it shares with the name before, how many follow in the
// text, and its set.
package table

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const format = "kiln-snapshots/1\n"

// blockNames is the number of names in a block. Larger blocks compress better; one block at a
// time is in memory.
const blockNames = 1 << 15

// Bounds of what Read accepts: a table may come from a stranger.
const (
	maxReleases = 4096
	maxFiles    = 4096
	maxLists    = 1 << 18   // sets, and blocks
	maxFrame    = 32 << 20  // bytes of a frame when it is decoded
	maxContent  = 256 << 20 // bytes of all names
)

// A Release is one column of a table.
type Release struct {
	// Label is a line that identifies the release.
	Label string
	// Description is the caller's.
	Description []byte
	// Names are those of each library file, sorted. Files without names may be left out.
	Names map[string][]string
}

// Encode writes a table. The bytes depend on the releases and their order alone.
func Encode(releases []Release) ([]byte, error) {
	out := []byte(format)
	var head bytes.Buffer
	files := map[string]bool{}
	for _, r := range releases {
		if r.Label == "" || strings.Contains(r.Label, "\n") {
			return nil, fmt.Errorf("label %q is not a line", r.Label)
		}
		out = append(append(out, r.Label...), '\n')
		text(&head, string(r.Description))
		for file, names := range r.Names {
			files[file] = true
			if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
				return nil, fmt.Errorf("names of %s of %s are not sorted", file, r.Label)
			}
		}
	}
	out = append(out, '\n')

	// For each name, the cells that have it: file × release.
	sortedFiles := slices.Sorted(maps.Keys(files))
	cells := map[string][]int{}
	number(&head, len(sortedFiles))
	for f, file := range sortedFiles {
		text(&head, file)
		for r := range releases {
			for _, name := range releases[r].Names[file] {
				cells[name] = append(cells[name], f*len(releases)+r)
			}
		}
	}
	setOf := make(map[string]string, len(cells)) // the set of a name, encoded
	used := map[string]int{}                     // how many names have a set
	for name, list := range cells {
		set := encodeSet(list, len(releases))
		setOf[name] = set
		used[set]++
	}
	// Frequent sets get small numbers.
	sets := slices.SortedFunc(maps.Keys(used), func(a, b string) int {
		return cmp.Or(cmp.Compare(used[b], used[a]), strings.Compare(a, b))
	})
	ids := make(map[string]int, len(sets))
	number(&head, len(sets))
	for i, set := range sets {
		ids[set] = i
		head.WriteString(set)
	}
	blocks := slices.Collect(slices.Chunk(slices.Sorted(maps.Keys(cells)), blockNames))
	number(&head, len(blocks))
	for _, block := range blocks {
		number(&head, len(block))
		text(&head, block[0])
	}

	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	contents := [][]byte{head.Bytes()}
	for _, block := range blocks {
		contents = append(contents, encodeBlock(block, func(name string) int { return ids[setOf[name]] }))
	}
	for _, content := range contents {
		if len(content) > maxFrame {
			return nil, fmt.Errorf("a frame of %d bytes is too large", len(content))
		}
		data := enc.EncodeAll(content, nil)
		out = append(binary.AppendUvarint(out, uint64(len(data))), data...)
	}
	return out, nil
}

func encodeSet(cells []int, releases int) string {
	var libraries int
	var list bytes.Buffer
	for len(cells) > 0 {
		file := cells[0] / releases
		bits := make([]byte, (releases+7)/8)
		for len(cells) > 0 && cells[0]/releases == file {
			r := cells[0] % releases
			bits[r/8] |= 1 << (r % 8)
			cells = cells[1:]
		}
		number(&list, file)
		list.Write(bits)
		libraries++
	}
	var set bytes.Buffer
	number(&set, libraries)
	set.Write(list.Bytes())
	return set.String()
}

func encodeBlock(names []string, set func(string) int) []byte {
	var shared, length, sets, rest, out bytes.Buffer
	last := ""
	for _, name := range names {
		n := 0
		for n < min(len(last), len(name)) && last[n] == name[n] {
			n++
		}
		number(&shared, n)
		number(&length, len(name)-n)
		number(&sets, set(name))
		rest.WriteString(name[n:])
		last = name
	}
	columns := []*bytes.Buffer{&shared, &length, &sets}
	for _, c := range columns {
		number(&out, c.Len())
	}
	for _, c := range append(columns, &rest) {
		out.Write(c.Bytes())
	}
	return out.Bytes()
}

func number(b *bytes.Buffer, n int) {
	b.Write(binary.AppendUvarint(b.AvailableBuffer(), uint64(n)))
}

func text(b *bytes.Buffer, s string) {
	number(b, len(s))
	b.WriteString(s)
}

// A Table is an encoded table, of which only the labels were read. It does not change and may be
// used by several goroutines at once.
type Table struct {
	labels []string
	frames string
}

// Open reads the labels of a table.
func Open(data string) (*Table, error) {
	rest, ok := strings.CutPrefix(data, format)
	if !ok {
		return nil, errors.New("not a snapshot of this format")
	}
	t := new(Table)
	for {
		line, after, ok := strings.Cut(rest, "\n")
		if !ok || len(t.labels) == maxReleases {
			return nil, errors.New("the list of releases has no end")
		}
		rest = after
		if line == "" {
			t.frames = rest
			return t, nil
		}
		t.labels = append(t.labels, line)
	}
}

// Labels are those of the releases, in order. The slice is shared.
func (t *Table) Labels() []string { return t.labels }

// Read decodes some of the releases, by their places in Labels, in one pass. Of their names it
// gives only those that are wanted, which are sorted; nil means all. Releases share the memory
// of their names.
func (t *Table) Read(which []int, wanted []string) ([]Release, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	frames := cursor{rest: []byte(t.frames)}
	content, err := dec.DecodeAll(frames.text(), nil)
	if err != nil {
		return nil, err
	}
	rd := reader{table: t, wanted: wanted, names: make([][][]string, len(which))}
	out, err := rd.head(content, which)
	if err != nil {
		return nil, err
	}
	for i, b := range rd.blocks {
		data := frames.text()
		if frames.err != nil {
			return nil, frames.err
		}
		if next := i + 1; wanted != nil {
			from, _ := slices.BinarySearch(wanted, b.first)
			to := len(wanted)
			if next < len(rd.blocks) {
				to, _ = slices.BinarySearch(wanted, rd.blocks[next].first)
			}
			if from >= to {
				continue
			}
			rd.wanted = wanted[from:to]
		}
		if content, err = dec.DecodeAll(data, content[:0]); err != nil {
			return nil, err
		}
		if err := rd.block(b, content); err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
	}
	if len(frames.rest) > 0 {
		return nil, fmt.Errorf("%d bytes after the last block", len(frames.rest))
	}
	for r := range out {
		for f, names := range rd.names[r] {
			if len(names) > 0 {
				out[r].Names[rd.files[f]] = names
			}
		}
	}
	return out, nil
}

// A reader decodes the frames for one call of Read.
type reader struct {
	table  *Table
	wanted []string
	files  []string
	sets   [][]cell // of each set, the cells that were asked for
	blocks []block
	names  [][][]string // by release and file
	last   []byte       // the name before
	total  int          // bytes of all names
}

type cell struct{ release, file int }

type block struct {
	count int
	first string
}

// head reads the first frame.
func (rd *reader) head(content []byte, which []int) ([]Release, error) {
	c := cursor{rest: content}
	descriptions := make([][]byte, len(rd.table.labels))
	for i := range descriptions {
		descriptions[i] = bytes.Clone(c.text())
	}
	rd.files = make([]string, c.count(maxFiles))
	for i := range rd.files {
		rd.files[i] = string(c.text())
	}
	rd.sets = make([][]cell, c.count(maxLists))
	for i := range rd.sets {
		for range c.count(maxFiles) {
			file := c.number()
			bits := c.take((len(rd.table.labels) + 7) / 8)
			if c.err == nil && file >= len(rd.files) {
				return nil, errors.New("a set of an unknown file")
			}
			for r, release := range which {
				if c.err == nil && bits[release/8]>>(release%8)&1 == 1 {
					rd.sets[i] = append(rd.sets[i], cell{r, file})
				}
			}
		}
	}
	rd.blocks = make([]block, c.count(maxLists))
	for i := range rd.blocks {
		rd.blocks[i] = block{count: c.number(), first: string(c.text())}
	}
	if c.err != nil {
		return nil, c.err
	}
	out := make([]Release, len(which))
	for r, release := range which {
		out[r] = Release{Label: rd.table.labels[release], Description: descriptions[release], Names: map[string][]string{}}
		rd.names[r] = make([][]string, len(rd.files))
	}
	return out, nil
}

// block reads the names of one frame.
func (rd *reader) block(b block, content []byte) error {
	c := cursor{rest: content}
	sizes := [3]int{c.number(), c.number(), c.number()}
	var columns [3]cursor
	for i, size := range sizes {
		columns[i].rest = c.take(size)
	}
	if c.err != nil {
		return c.err
	}
	shared, length, sets := &columns[0], &columns[1], &columns[2]
	var kept strings.Builder // all names in one piece of memory
	type keptName struct{ end, set int }
	var ends []keptName
	if string(rd.last) >= b.first && b.count > 0 && rd.total > 0 {
		return errUnsorted
	}
	last, wanted := rd.last[:0], rd.wanted
	for i := range b.count {
		n, set := shared.number(), sets.number()
		suffix := c.take(length.number())
		switch {
		case shared.err != nil || length.err != nil || sets.err != nil || c.err != nil:
			return errCutOff
		case n > len(last):
			return errors.New("bad prefix")
		case i > 0 && bytes.Compare(suffix, last[n:]) <= 0: // what they share need not be compared
			return errUnsorted
		case set >= len(rd.sets):
			return errors.New("unknown set")
		}
		last = append(last[:n], suffix...)
		if i == 0 && string(last) != b.first {
			return errors.New("another first name than announced")
		}
		if rd.total += len(last); rd.total > maxContent {
			return errors.New("too many bytes of names")
		}
		if len(rd.sets[set]) == 0 {
			continue
		}
		if rd.wanted != nil {
			for len(wanted) > 0 && wanted[0] < string(last) {
				wanted = wanted[1:]
			}
			if len(wanted) == 0 {
				break
			}
			if wanted[0] != string(last) {
				continue
			}
		}
		kept.Write(last)
		ends = append(ends, keptName{kept.Len(), set})
	}
	rd.last = last
	all, start := kept.String(), 0
	for _, k := range ends {
		for _, at := range rd.sets[k.set] {
			rd.names[at.release][at.file] = append(rd.names[at.release][at.file], all[start:k.end])
		}
		start = k.end
	}
	return nil
}

var (
	errCutOff   = errors.New("cut off")
	errUnsorted = errors.New("names are not sorted")
)

// A cursor reads numbers and texts. After an error, which it keeps, it gives zeros.
type cursor struct {
	rest []byte
	err  error
}

func (c *cursor) number() int {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 || v > 1<<31-1 {
		c.rest, c.err = nil, errCutOff
		return 0
	}
	c.rest = c.rest[n:]
	return int(v)
}

// count is the length of a list. Every element takes at least one byte.
func (c *cursor) count(limit int) int {
	n := c.number()
	if n > min(limit, len(c.rest)) {
		c.rest, c.err = nil, errCutOff
		return 0
	}
	return n
}

func (c *cursor) take(n int) []byte {
	if n > len(c.rest) {
		c.rest, c.err = nil, errCutOff
		return nil
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) text() []byte { return c.take(c.number()) }
