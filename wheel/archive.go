package wheel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

// Limits bound what [NewReader] accepts and how much it reads. The zero value of
// each field stands for its default; to all but lift a limit, set it high. They
// are chosen so that no published wheel comes near them while a hostile one is
// refused after little work.
//
// There is no limit on time: give the operations that read whole members a
// context with a deadline.
type Limits struct {
	// FileSize is the size of the archive in bytes. Default 4 GiB.
	FileSize int64

	// Entries is the number of members. Default 100,000.
	Entries int

	// Directory is the size of the central directory in bytes. Default 64 MiB.
	Directory int64

	// Metadata, Info, Record and Variant are the sizes, after inflation, of the
	// members METADATA, WHEEL, RECORD and variant.json of a .dist-info folder.
	// Defaults 4 MiB, 64 KiB, 64 MiB, 1 MiB.
	Metadata, Info, Record, Variant int64

	// Inflated is the sum of the announced sizes of all members up to which the
	// ratio is not looked at. Default 64 MiB.
	Inflated int64

	// Ratio is the largest quotient of that sum and the size of the archive.
	// Default 50, which is also the rule of PyPI.
	Ratio int64
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int64
		value int64
	}{
		{&l.FileSize, 4 << 30},
		{&l.Directory, 64 << 20},
		{&l.Metadata, MaxMetadataSize},
		{&l.Info, MaxInfoSize},
		{&l.Record, MaxRecordSize},
		{&l.Variant, 1 << 20},
		{&l.Inflated, 64 << 20},
		{&l.Ratio, 50},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	if l.Entries == 0 {
		l.Entries = MaxRecordEntries
	}
	return l
}

// inflated is the largest sum of member sizes in an archive of the given size.
func (l *Limits) inflated(size int64) int64 {
	if size > (1<<62)/l.Ratio {
		return 1 << 62
	}
	return max(l.Inflated, size*l.Ratio)
}

// member is the largest size of the member called name.
func (l *Limits) member(name string) int64 {
	folder, file, _ := strings.Cut(name, "/")
	if strings.HasSuffix(folder, distInfoSuffix) {
		switch file {
		case "METADATA":
			return l.Metadata
		case "WHEEL":
			return l.Info
		case "RECORD":
			return l.Record
		case "variant.json":
			return l.Variant
		}
	}
	return 1 << 62
}

const (
	distInfoSuffix = ".dist-info"
	dataSuffix     = ".data"
)

// A Member is one file or folder of a wheel, as the archive describes it.
type Member struct {
	// Name is relative to the root of the archive, with forward slashes. The
	// name of a folder ends with one.
	Name string

	// Size is the announced length of the content in bytes. Reading fails if the
	// content is longer or shorter.
	Size int64

	// CompressedSize is the length of the data in the archive.
	CompressedSize int64

	// CRC32 is the announced checksum of the content.
	CRC32 uint32

	// Executable reports whether any execute permission is set.
	Executable bool
}

// Reader reads a wheel without unpacking it. Opening one checks the container
// completely, so that every program sees the same members in it, but none of
// their contents: that is [Reader.Check].
//
// A Reader may be used by several goroutines at once.
type Reader struct {
	r        io.ReaderAt
	size     int64
	closer   io.Closer
	name     string
	filename Filename
	limits   Limits
	entries  []entry
	byName   map[string]int
	distInfo string // the folder of this wheel, "" if that is not clear

	makeFlate func(io.Reader) io.ReadCloser
}

// SetInflater makes r read deflated members with another implementation than
// compress/flate, for instance a faster one. It must read no byte after the
// last block from a reader that is an [io.ByteReader]. If what it returns is a
// [flate.Resetter], it is used for several members. It is called before r is used
// for anything else.
func (r *Reader) SetInflater(open func(io.Reader) io.ReadCloser) { r.makeFlate = open }

// Open opens a wheel with the default limits. The caller closes it.
func Open(path string) (*Reader, error) {
	// Looked at first, since opening a named pipe waits for a writer.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open wheel %s: not a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err = f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open wheel %s: not a regular file", path)
	}
	if err != nil {
		_ = f.Close() // the error at hand matters more
		return nil, err
	}
	r, err := NewReader(f, info.Size(), filepath.Base(path), Limits{})
	if err != nil {
		_ = f.Close() // the error at hand matters more
		return nil, err
	}
	r.closer = f
	return r, nil
}

// NewReader reads a wheel of the given size from r. A wheel cannot be judged
// without its file name, which says what is in it; name is that name without a
// folder and must be a valid one.
//
// An error that wraps a [*FormatError] says that the archive is malformed,
// hostile or larger than the limits. NewReader reads the end records, the central
// directory and the header of each member, and keeps little more than their
// names in memory. The Reader does not own r.
func NewReader(r io.ReaderAt, size int64, name string, limits Limits) (*Reader, error) {
	filename, err := ParseFilename(name)
	if err != nil {
		return nil, fmt.Errorf("open wheel: %w", err)
	}
	w := &Reader{r: r, size: size, name: name, filename: filename, limits: limits.withDefaults()}
	if w.entries, err = readZip(r, size, &w.limits); err != nil {
		return nil, fmt.Errorf("open wheel %s: %w", name, err)
	}
	w.byName = make(map[string]int, len(w.entries))
	for i := range w.entries {
		w.byName[w.entries[i].name] = i
	}
	w.distInfo = w.findDistInfo()
	return w, nil
}

// Close closes the file if [Open] opened it.
func (r *Reader) Close() error {
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

// topFolders returns the first parts of member names that end in suffix, each
// once, in the order of the archive.
func (r *Reader) topFolders(suffix string) []string {
	var folders []string
	seen := make(map[string]bool)
	for i := range r.entries {
		// A file at the top counts too: pip looks at names only.
		top, _, _ := strings.Cut(r.entries[i].name, "/")
		if strings.HasSuffix(top, suffix) && !seen[top] {
			seen[top] = true
			folders = append(folders, top)
		}
	}
	return folders
}

// findDistInfo returns the only .dist-info folder or, among several, the one
// that is named like the file.
func (r *Reader) findDistInfo() string {
	folders := r.topFolders(distInfoSuffix)
	if len(folders) == 1 {
		return folders[0]
	}
	found := ""
	for _, folder := range folders {
		if agreement(r.filename, strings.TrimSuffix(folder, distInfoSuffix)) == agree {
			if found != "" {
				return ""
			}
			found = folder
		}
	}
	return found
}

// Filename returns the parsed name of the file.
func (r *Reader) Filename() Filename { return r.filename }

// Size returns the size of the archive in bytes.
func (r *Reader) Size() int64 { return r.size }

// DistInfo returns the name of the .dist-info folder, without a slash. It is
// empty if there is none, or several of which not exactly one is named like the
// file.
func (r *Reader) DistInfo() string { return r.distInfo }

// Files iterates over the members in the order of the central directory, folders
// included.
func (r *Reader) Files() iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for i := range r.entries {
			e := &r.entries[i]
			if !yield(Member{e.name, e.size, e.packed, e.crc, e.executable}) {
				return
			}
		}
	}
}

// OpenFile opens the member called name for reading. The reader returns at most
// the announced size and fails at the end if length or checksum are wrong, or if
// compressed bytes are left over; a caller that stops early has verified
// nothing. The error wraps [fs.ErrNotExist] if there is no such member.
func (r *Reader) OpenFile(name string) (io.ReadCloser, error) {
	e, err := r.lookup(name)
	if err != nil {
		return nil, err
	}
	return r.inflater().open(r.r, e, nil), nil
}

// Stored returns the content of the member called name as it lies in the archive,
// for reading at any place, if it is not compressed. Nothing compares it with its
// checksum; that is for [Reader.OpenFile].
func (r *Reader) Stored(name string) (*io.SectionReader, bool) {
	e, err := r.lookup(name)
	if err != nil || e.method != methodStored {
		return nil, false
	}
	return io.NewSectionReader(r.r, e.data, e.size), true
}

func (r *Reader) lookup(name string) (*entry, error) {
	i, ok := r.byName[name]
	if !ok || r.entries[i].isFolder() {
		return nil, fmt.Errorf("wheel %s: open member %q: %w", r.name, name, fs.ErrNotExist)
	}
	return &r.entries[i], nil
}

// errNoDistInfo is a fs.ErrNotExist with its reason.
var errNoDistInfo = fmt.Errorf("no %s folder, or several: %w", distInfoSuffix, fs.ErrNotExist)

// distInfoFile opens a member of the .dist-info folder.
func (r *Reader) distInfoFile(name string) (*memberReader, error) {
	if r.distInfo == "" {
		return nil, fmt.Errorf("wheel %s: open %s: %w", r.name, name, errNoDistInfo)
	}
	e, err := r.lookup(r.distInfo + "/" + name)
	if err != nil {
		return nil, err
	}
	return r.inflater().open(r.r, e, nil), nil
}

// readDistInfo reads a member of the .dist-info folder whole. Its size was
// compared with the limit when the archive was opened.
func (r *Reader) readDistInfo(name string) ([]byte, error) {
	m, err := r.distInfoFile(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(m)
	if err != nil {
		return nil, fmt.Errorf("wheel %s: %w", r.name, err)
	}
	return data, nil
}

// Metadata reads and parses METADATA. The bytes of the result are those of the
// member. Each call returns a new document, which the caller may change.
func (r *Reader) Metadata() (*Metadata, error) {
	data, err := r.readDistInfo("METADATA")
	if err != nil {
		return nil, err
	}
	m, err := parseFields("METADATA", string(data))
	return m, r.wrap(err)
}

// Info reads and parses the WHEEL file.
func (r *Reader) Info() (*WheelInfo, error) {
	data, err := r.readDistInfo("WHEEL")
	if err != nil {
		return nil, err
	}
	info, err := parseWheelInfo(data)
	return info, r.wrap(err)
}

// Record reads and parses RECORD. What it says is compared with the archive by
// [Reader.Check] only.
func (r *Reader) Record() (*Record, error) {
	m, err := r.distInfoFile("RECORD")
	if err != nil {
		return nil, err
	}
	rec, err := readRecord(m, r.limits.Record, r.limits.Entries)
	if m.err != nil && !errors.Is(m.err, io.EOF) { // the cause, if the parser saw only the consequence
		err = m.err
	}
	return rec, r.wrap(err)
}

func (r *Reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("wheel %s: %w", r.name, err)
}

// readFailed reports whether err is about reading the file, not about what the
// file says.
func readFailed(err error) bool {
	var read *memberError
	return errors.As(err, &read)
}

// A nameAgreement compares a name and version with those of the file.
type nameAgreement int

const (
	agree         nameAgreement = iota
	otherLocal                  // equal but for the local label of the version
	otherVersion                // equal but for the version
	otherName                   // another project
	notNameAndVer               // not of the form name-version
)

// agreement compares the stem of a .dist-info or .data folder with the file name.
func agreement(f Filename, stem string) nameAgreement {
	i := strings.LastIndexByte(stem, '-')
	if i < 0 {
		return notNameAndVer
	}
	return compareNames(f, stem[:i], stem[i+1:])
}

func compareNames(f Filename, name, version string) nameAgreement {
	if !ValidName(name) {
		return notNameAndVer
	}
	if NormalizeName(name) != f.Name {
		return otherName
	}
	v, err := ParseVersion(version)
	switch {
	case err != nil:
		return notNameAndVer
	case v.Compare(f.Version) == 0:
		return agree
	}
	a, errA := v.WithLocal("")
	b, errB := f.Version.WithLocal("")
	if errA == nil && errB == nil && a.Compare(b) == 0 {
		return otherLocal
	}
	return otherVersion
}
