package wheel

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The ZIP container, read strictly. Programs disagree about what an irregular
// archive contains: some believe the directory at its end, some the headers
// before each member, some search for an end record forwards, some backwards.
// An archive that passes here leaves no room for two opinions: members, central
// directory and end records follow each other without a gap, an overlap or a
// byte before or after, and both headers of a member say the same. archive/zip
// allows all of that, so this file does not use it.
//
// Layout: APPNOTE.TXT 6.3.10, sections 4.3 to 4.5.

const (
	sigLocal      = 0x04034b50
	sigCentral    = 0x02014b50
	sigEnd        = 0x06054b50
	sigEnd64      = 0x06064b50
	sigLocator    = 0x07064b50
	sigDescriptor = 0x08074b50

	lenLocal   = 30
	lenCentral = 46
	lenEnd     = 22
	lenEnd64   = 56
	lenLocator = 20

	methodStored  = 0
	methodDeflate = 8

	flagEncrypted  = 1 << 0
	flagLevel      = 1<<1 | 1<<2 // how hard the compressor tried
	flagDescriptor = 1 << 3      // sizes and checksum follow the data
	flagPatch      = 1 << 5
	flagStrong     = 1 << 6
	flagUTF8       = 1 << 11
	flagMasked     = 1 << 13

	extraZip64       = 0x0001
	extraUnicodePath = 0x7075

	max16 = 1<<16 - 1
	max32 = 1<<32 - 1

	hostUnix     = 3
	modeTypeMask = 0o170000
	modeRegular  = 0o100000
	modeFolder   = 0o040000
	modeLink     = 0o120000
)

// maxMemberName is the longest name of a member in bytes. File systems stop at
// 255 for a part and at 4096 for a path.
const maxMemberName = 1024

// A FormatError says why an archive was refused. It means that the file is not a
// wheel this package will read, as opposed to a file that could not be read.
type FormatError struct {
	Member string // name of the member concerned; empty for the archive as a whole
	Detail string
}

func (e *FormatError) Error() string {
	if e.Member == "" {
		return e.Detail
	}
	return fmt.Sprintf("member %q: %s", e.Member, e.Detail)
}

func refuse(member, format string, args ...any) error {
	return &FormatError{Member: member, Detail: fmt.Sprintf(format, args...)}
}

// entry is a member as the container describes it.
type entry struct {
	name       string
	flags      uint16
	method     uint16
	mode       uint16 // Unix type and permissions, 0 if the archive has none
	crc        uint32
	size       int64
	packed     int64 // size of the data in the archive
	header     int64 // offset of the local header
	data       int64 // offset of the data
	executable bool
}

func (e *entry) isFolder() bool { return strings.HasSuffix(e.name, "/") }

// directory locates the central directory.
type directory struct {
	entries      uint64
	offset, size uint64
}

func readZip(r io.ReaderAt, size int64, limits *Limits) ([]entry, error) {
	if size > limits.FileSize {
		return nil, refuse("", "%d bytes, limit %d", size, limits.FileSize)
	}
	dir, err := readEnd(r, size)
	if err != nil {
		return nil, err
	}
	if dir.entries > uint64(limits.Entries) {
		return nil, refuse("", "%d entries, limit %d", dir.entries, limits.Entries)
	}
	if dir.size > uint64(limits.Directory) {
		return nil, refuse("", "central directory of %d bytes, limit %d", dir.size, limits.Directory)
	}
	entries, err := readDirectory(r, dir, size, limits)
	if err != nil {
		return nil, err
	}
	if err := readLocalHeaders(r, entries, int64(dir.offset)); err != nil {
		return nil, err
	}
	return entries, nil
}

// readEnd reads the end record and its ZIP64 twin, and proves that the central
// directory ends where they begin.
func readEnd(r io.ReaderAt, size int64) (directory, error) {
	tail := make([]byte, min(size, lenLocator+lenEnd))
	if err := readFull(r, tail, size-int64(len(tail))); err != nil {
		return directory{}, err
	}
	if len(tail) < lenEnd || le32(tail[len(tail)-lenEnd:]) != sigEnd {
		return directory{}, diagnoseEnd(r, size)
	}
	end := tail[len(tail)-lenEnd:]
	endAt := uint64(size - lenEnd)
	if le16(end[20:]) != 0 {
		return directory{}, refuse("", "archive comment")
	}
	if le16(end[4:]) != 0 && le16(end[4:]) != max16 || le16(end[6:]) != 0 && le16(end[6:]) != max16 {
		return directory{}, refuse("", "multi-disk archive")
	}
	dir := directory{
		entries: uint64(le16(end[10:])),
		size:    uint64(le32(end[12:])),
		offset:  uint64(le32(end[16:])),
	}
	if le16(end[8:]) != le16(end[10:]) {
		return directory{}, refuse("", "multi-disk archive")
	}
	if len(tail) == lenLocator+lenEnd && le32(tail) == sigLocator {
		var err error
		if dir, endAt, err = readEnd64(r, size, tail, dir); err != nil {
			return directory{}, err
		}
	} else if le16(end[4:]) != 0 || le16(end[6:]) != 0 {
		return directory{}, refuse("", "multi-disk archive")
	}
	if dir.offset > endAt || dir.size > endAt-dir.offset {
		return directory{}, refuse("", "central directory reaches over the end record")
	}
	if stop := dir.offset + dir.size; stop != endAt {
		sig := make([]byte, 4)
		if endAt-stop >= 4 {
			if err := readFull(r, sig, int64(stop)); err != nil {
				return directory{}, err
			}
		}
		if s := le32(sig); s == sigEnd || s == sigEnd64 || s == sigLocator {
			return directory{}, refuse("", "several end records")
		}
		return directory{}, refuse("", "%d bytes between the central directory and its end record (prepended data or a wrong offset)", endAt-stop)
	}
	return dir, nil
}

// readEnd64 reads the ZIP64 end record that tail, a locator and an end record,
// points to. Values the plain record can express must be equal in both.
func readEnd64(r io.ReaderAt, size int64, tail []byte, plain directory) (directory, uint64, error) {
	none := directory{}
	at := size - lenEnd - lenLocator - lenEnd64
	if at < 0 || le64(tail[8:]) != uint64(at) {
		return none, 0, refuse("", "ZIP64 end record is not where its locator says")
	}
	if le32(tail[4:]) != 0 || le32(tail[16:]) > 1 {
		return none, 0, refuse("", "multi-disk archive")
	}
	rec := make([]byte, lenEnd64)
	if err := readFull(r, rec, at); err != nil {
		return none, 0, err
	}
	if le32(rec) != sigEnd64 || le64(rec[4:]) != lenEnd64-12 {
		return none, 0, refuse("", "malformed ZIP64 end record")
	}
	if le32(rec[16:]) != 0 || le32(rec[20:]) != 0 || le64(rec[24:]) != le64(rec[32:]) {
		return none, 0, refuse("", "multi-disk archive")
	}
	dir := directory{entries: le64(rec[32:]), size: le64(rec[40:]), offset: le64(rec[48:])}
	if plain.entries != max16 && plain.entries != dir.entries ||
		plain.size != max32 && plain.size != dir.size ||
		plain.offset != max32 && plain.offset != dir.offset {
		return none, 0, refuse("", "end record and ZIP64 end record disagree")
	}
	return dir, uint64(at), nil
}

// diagnoseEnd explains why there is no end record at the end of the file.
func diagnoseEnd(r io.ReaderAt, size int64) error {
	tail := make([]byte, min(size, lenEnd+max16))
	if err := readFull(r, tail, size-int64(len(tail))); err != nil {
		return err
	}
	at := bytes.LastIndex(tail, binary.LittleEndian.AppendUint32(nil, sigEnd))
	switch {
	case at < 0 || len(tail)-at < lenEnd:
		return refuse("", "not a ZIP archive, or cut short")
	case int(le16(tail[at+20:])) == len(tail)-at-lenEnd:
		return refuse("", "archive comment")
	}
	return refuse("", "%d bytes of trailing data after the end record", len(tail)-at-lenEnd)
}

// readDirectory reads the central directory through a small buffer, so that
// memory follows the number of accepted entries and not the announced size.
func readDirectory(r io.ReaderAt, dir directory, size int64, limits *Limits) ([]entry, error) {
	in := bufio.NewReaderSize(io.NewSectionReader(r, int64(dir.offset), int64(dir.size)), 64<<10)
	left := dir.size
	// The announced number is a hint only: each entry takes lenCentral bytes.
	entries := make([]entry, 0, min(dir.entries, dir.size/lenCentral))
	seen := make(map[string]struct{}, cap(entries))
	var total, largest int64
	var largestName string
	var fixed [lenCentral]byte
	var variable []byte
	for range dir.entries {
		if left < lenCentral {
			return nil, refuse("", "central directory ends after %d of %d entries", len(entries), dir.entries)
		}
		if err := readMore(in, fixed[:]); err != nil {
			return nil, err
		}
		left -= lenCentral
		if le32(fixed[:]) != sigCentral {
			return nil, refuse("", "central directory entry %d is malformed", len(entries)+1)
		}
		nameLen, extraLen := int(le16(fixed[28:])), int(le16(fixed[30:]))
		if uint64(nameLen+extraLen) > left {
			return nil, refuse("", "central directory ends inside entry %d", len(entries)+1)
		}
		left -= uint64(nameLen + extraLen)
		variable = slices.Grow(variable[:0], nameLen+extraLen)[:nameLen+extraLen]
		if err := readMore(in, variable); err != nil {
			return nil, err
		}
		e, err := parseCentral(fixed[:], variable[:nameLen], variable[nameLen:])
		if err != nil {
			return nil, err
		}
		if _, dup := seen[e.name]; dup {
			return nil, refuse(e.name, "duplicate name")
		}
		seen[e.name] = struct{}{}
		if limit := limits.member(e.name); e.size > limit {
			return nil, refuse(e.name, "%d bytes, limit %d", e.size, limit)
		}
		if e.size > largest {
			largest, largestName = e.size, e.name
		}
		// Each term is below 2^63 and the sum is tested at once: no overflow.
		if e.size > limits.inflated(size)-total {
			return nil, refuse(largestName, "inflates to %d bytes: contents exceed %d times the archive's %d bytes", largest, limits.Ratio, size)
		}
		total += e.size
		entries = append(entries, e)
	}
	if left != 0 {
		return nil, refuse("", "central directory has %d bytes after its %d entries", left, dir.entries)
	}
	for i := range entries {
		// "a" and "a/b": one of them is lost, which one depends on the installer.
		name := strings.TrimSuffix(entries[i].name, "/")
		if entries[i].isFolder() {
			if _, both := seen[name]; both {
				return nil, refuse(name, "both a file and a folder")
			}
		}
		for j := strings.LastIndexByte(name, '/'); j >= 0; j = strings.LastIndexByte(name[:j], '/') {
			if _, both := seen[name[:j]]; both {
				return nil, refuse(name[:j], "both a file and a folder")
			}
		}
	}
	return entries, nil
}

func parseCentral(fixed, rawName, rawExtra []byte) (entry, error) {
	e := entry{
		name:   string(rawName),
		flags:  le16(fixed[8:]),
		method: le16(fixed[10:]),
		crc:    le32(fixed[16:]),
		mode:   le16(fixed[40:]),
	}
	if err := checkMemberName(e.name); err != nil {
		return e, refuse(e.name, "%v", err)
	}
	switch {
	case e.flags&(flagEncrypted|flagStrong|flagMasked) != 0:
		return e, refuse(e.name, "encrypted")
	case e.flags&flagPatch != 0 || e.flags&^(flagLevel|flagDescriptor|flagUTF8) != 0:
		return e, refuse(e.name, "unknown flags %#04x", e.flags)
	case e.method != methodStored && e.method != methodDeflate:
		return e, refuse(e.name, "compression method %d is neither stored nor deflate", e.method)
	case le16(fixed[32:]) != 0:
		return e, refuse(e.name, "comment")
	case e.flags&flagUTF8 == 0 && !isASCII(e.name):
		return e, refuse(e.name, "name is not ASCII and not marked as UTF-8")
	}
	switch kind := e.mode & modeTypeMask; {
	case kind == modeLink:
		return e, refuse(e.name, "symbolic link")
	case kind == modeFolder && !e.isFolder(), kind == modeRegular && e.isFolder():
		return e, refuse(e.name, "file type and name disagree")
	case kind != 0 && kind != modeFolder && kind != modeRegular:
		return e, refuse(e.name, "not a regular file (type %#o)", kind)
	}
	e.executable = e.mode&0o111 != 0 && !e.isFolder()

	ext, err := parseExtras(e.name, rawExtra)
	if err != nil {
		return e, err
	}
	size, packed, header := uint64(le32(fixed[24:])), uint64(le32(fixed[20:])), uint64(le32(fixed[42:]))
	disk := uint32(le16(fixed[34:]))
	zip64 := ext.zip64
	for _, v := range []*uint64{&size, &packed, &header} {
		if *v == max32 && ext.hasZip64 {
			if len(zip64) < 8 {
				return e, refuse(e.name, "ZIP64 field too short")
			}
			*v, zip64 = le64(zip64), zip64[8:]
		}
	}
	if disk == max16 && ext.hasZip64 && len(zip64) == 4 {
		disk, zip64 = le32(zip64), nil
	}
	if len(zip64) != 0 || ext.hasZip64 && len(ext.zip64) == 0 {
		return e, refuse(e.name, "ZIP64 field does not match the header")
	}
	if disk != 0 {
		return e, refuse(e.name, "multi-disk archive")
	}
	const limit = 1 << 62
	if size > limit || packed > limit || header > limit {
		return e, refuse(e.name, "impossible size or offset")
	}
	e.size, e.packed, e.header = int64(size), int64(packed), int64(header)
	if e.method == methodStored && e.size != e.packed {
		return e, refuse(e.name, "stored with two different sizes")
	}
	if e.isFolder() && e.size != 0 {
		return e, refuse(e.name, "folder with content")
	}
	return e, nil
}

type extras struct {
	zip64    []byte
	hasZip64 bool
}

// parseExtras reads the extra fields of either header.
func parseExtras(name string, b []byte) (extras, error) {
	var ext extras
	unicodePath := false
	for len(b) > 0 {
		if len(b) < 4 || int(le16(b[2:])) > len(b)-4 {
			return ext, refuse(name, "malformed extra field")
		}
		id, value := le16(b), b[4:4+le16(b[2:])]
		b = b[4+len(value):]
		switch id {
		case extraZip64:
			if ext.hasZip64 {
				return ext, refuse(name, "duplicate ZIP64 field")
			}
			ext.zip64, ext.hasZip64 = value, true
		case extraUnicodePath:
			if unicodePath {
				return ext, refuse(name, "duplicate Unicode path field")
			}
			unicodePath = true
			if len(value) < 5 || string(value[5:]) != name {
				return ext, refuse(name, "Unicode path field gives another name")
			}
		}
	}
	return ext, nil
}

// readLocalHeaders compares the header in front of each member with the central
// directory and proves that the members fill the file up to stop.
func readLocalHeaders(r io.ReaderAt, entries []entry, stop int64) error {
	order := make([]*entry, len(entries))
	for i := range entries {
		order[i] = &entries[i]
	}
	slices.SortFunc(order, func(a, b *entry) int { return cmp.Compare(a.header, b.header) })
	if len(order) == 0 {
		if stop != 0 {
			return refuse("", "%d bytes before the central directory belong to no member", stop)
		}
		return nil
	}
	if first := order[0]; first.header != 0 {
		return refuse("", "%d bytes of prepended data before the first member %q", first.header, first.name)
	}
	var buf []byte
	for i, e := range order {
		next := stop
		if i+1 < len(order) {
			next = order[i+1].header
		}
		if next > stop {
			return refuse(order[i+1].name, "local header lies beyond the central directory")
		}
		var err error
		if buf, err = readLocalHeader(r, e, next, buf); err != nil {
			return err
		}
	}
	return nil
}

// readLocalHeader checks the member that must end at next, and returns buf for
// reuse.
func readLocalHeader(r io.ReaderAt, e *entry, next int64, buf []byte) ([]byte, error) {
	if next-e.header < lenLocal+int64(len(e.name)) {
		return buf, refuse(e.name, "local header overlaps the next member")
	}
	// Most headers have a short extra field or none: one read is enough.
	n := int(min(next-e.header, int64(lenLocal+len(e.name)+32)))
	buf = slices.Grow(buf[:0], n)[:n]
	if err := readFull(r, buf, e.header); err != nil {
		return buf, err
	}
	if le32(buf) != sigLocal {
		return buf, refuse(e.name, "no local header where the central directory says")
	}
	nameLen, extraLen := int(le16(buf[26:])), int(le16(buf[28:]))
	e.data = e.header + lenLocal + int64(nameLen) + int64(extraLen)
	if e.data > next || e.packed > next-e.data {
		return buf, refuse(e.name, "data overlaps the next member")
	}
	if nameLen != len(e.name) || string(buf[lenLocal:lenLocal+nameLen]) != e.name {
		return buf, refuse(e.name, "local header and central directory disagree about the name")
	}
	if need := lenLocal + nameLen + extraLen; need > len(buf) {
		buf = slices.Grow(buf[:0], need)[:need]
		if err := readFull(r, buf, e.header); err != nil {
			return buf, err
		}
	}
	ext, err := parseExtras(e.name, buf[lenLocal+nameLen:lenLocal+nameLen+extraLen])
	if err != nil {
		return buf, err
	}
	crc, packed, size := le32(buf[14:]), uint64(le32(buf[18:])), uint64(le32(buf[22:]))
	if ext.hasZip64 {
		if len(ext.zip64) != 16 {
			return buf, refuse(e.name, "ZIP64 field does not match the header")
		}
		size64, packed64 := le64(ext.zip64), le64(ext.zip64[8:])
		if size != max32 && size != size64 || packed != max32 && packed != packed64 {
			return buf, refuse(e.name, "ZIP64 field does not match the header")
		}
		size, packed = size64, packed64
	}
	agree := crc == e.crc && packed == uint64(e.packed) && size == uint64(e.size)
	if e.flags&flagDescriptor != 0 {
		agree = agree || crc == 0 && packed == 0 && size == 0
	}
	switch {
	case le16(buf[6:]) != e.flags:
		return buf, refuse(e.name, "local header and central directory disagree about the flags")
	case le16(buf[8:]) != e.method:
		return buf, refuse(e.name, "local header and central directory disagree about the compression method")
	case !agree:
		return buf, refuse(e.name, "local header and central directory disagree about size or checksum")
	}
	gap := next - e.data - e.packed
	if e.flags&flagDescriptor == 0 {
		if gap != 0 {
			return buf, refuse(e.name, "%d bytes after it belong to no member", gap)
		}
		return buf, nil
	}
	if e.method == methodStored && e.packed != 0 {
		return buf, refuse(e.name, "stored with a data descriptor: its end cannot be found from the front")
	}
	return buf, checkDescriptor(r, e, gap)
}

// checkDescriptor reads the data descriptor that fills the gap after a member:
// an optional signature, the checksum, and two sizes of 4 or 8 bytes.
func checkDescriptor(r io.ReaderAt, e *entry, gap int64) error {
	if gap != 12 && gap != 16 && gap != 20 && gap != 24 {
		return refuse(e.name, "malformed data descriptor")
	}
	b := make([]byte, gap)
	if err := readFull(r, b, e.data+e.packed); err != nil {
		return err
	}
	if gap == 16 || gap == 24 {
		if le32(b) != sigDescriptor {
			return refuse(e.name, "malformed data descriptor")
		}
		b = b[4:]
	}
	crc, packed, size := le32(b), uint64(0), uint64(0)
	if len(b) == 12 {
		packed, size = uint64(le32(b[4:])), uint64(le32(b[8:]))
	} else {
		packed, size = le64(b[4:]), le64(b[12:])
	}
	if crc != e.crc || packed != uint64(e.packed) || size != uint64(e.size) {
		return refuse(e.name, "data descriptor and central directory disagree")
	}
	return nil
}

// checkMemberName refuses names that mean different files to different programs
// or that leave the folder they are unpacked into.
func checkMemberName(name string) error {
	switch {
	case name == "":
		return errors.New("empty name")
	case len(name) > maxMemberName:
		return fmt.Errorf("name of %d bytes, limit %d", len(name), maxMemberName)
	case !utf8.ValidString(name):
		return errors.New("name is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("control character in name")
	case strings.Contains(name, `\`):
		return errors.New("backslash in name")
	case name[0] == '/' || len(name) > 1 && name[1] == ':' && isLetter(name[0]):
		return errors.New("absolute name")
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "/"), "/") {
		switch part {
		case "":
			return errors.New("empty part in name")
		case ".", "..":
			return fmt.Errorf("%q in name", part)
		}
	}
	return nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// watchedReader remembers why reading failed.
type watchedReader struct {
	io.Reader
	err error
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF { // Readers return io.EOF itself.
		r.err = err
	}
	return n, err
}

// memberReader inflates one member. It never returns more bytes than the headers
// announced, and at the end it has compared length, checksum and the number of
// compressed bytes used.
type memberReader struct {
	e    *entry
	src  *watchedReader
	in   *bufio.Reader // compressed data, of src
	out  io.Reader     // in, or an inflater on it
	left int64         // announced bytes not yet returned
	crc  hash.Hash32
	err  error
}

// inflater holds what one memberReader after another can share.
type inflater struct {
	in        *bufio.Reader
	flate     io.Reader
	makeFlate func(io.Reader) io.ReadCloser // nil: that of the standard library
	buf       []byte
}

// inflater returns a new one for the members of r.
func (r *Reader) inflater() *inflater { return &inflater{makeFlate: r.makeFlate} }

// copy reads src to its end, or until ctx ends.
func (s *inflater) copy(ctx context.Context, dst io.Writer, src io.Reader) error {
	if s.buf == nil {
		s.buf = make([]byte, 64<<10)
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := src.Read(s.buf)
		if _, werr := dst.Write(s.buf[:n]); werr != nil {
			return werr
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open starts reading e. The compressed bytes pass through tee, if not nil, as
// they are consumed; when the reader returns io.EOF, all of them have.
func (s *inflater) open(r io.ReaderAt, e *entry, tee io.Writer) *memberReader {
	var src io.Reader = io.NewSectionReader(r, e.data, e.packed)
	if tee != nil {
		src = io.TeeReader(src, tee)
	}
	watched := &watchedReader{Reader: src}
	src = watched
	if s.in == nil {
		s.in = bufio.NewReaderSize(src, 64<<10)
	} else {
		s.in.Reset(src)
	}
	m := &memberReader{e: e, src: watched, in: s.in, out: s.in, left: e.size, crc: crc32.NewIEEE()}
	if e.method == methodDeflate {
		again, ok := s.flate.(flate.Resetter)
		switch {
		case ok && again.Reset(s.in, nil) == nil:
		case s.makeFlate != nil:
			s.flate = s.makeFlate(s.in)
		default:
			s.flate = flate.NewReader(s.in)
		}
		m.out = s.flate
	}
	return m
}

func (m *memberReader) Read(p []byte) (int, error) {
	if m.err != nil || len(p) == 0 {
		return 0, m.err
	}
	// One byte more than announced is asked for, to see the end or the lie.
	if int64(len(p))-1 > m.left {
		p = p[:m.left+1]
	}
	n, err := m.out.Read(p)
	if int64(n) > m.left {
		m.err = refuse(m.e.name, "inflates to more than the announced %d bytes", m.e.size)
		return 0, m.err
	}
	m.crc.Write(p[:n])
	m.left -= int64(n)
	if err != nil {
		m.err = m.finish(err)
	}
	return n, m.err
}

func (m *memberReader) finish(err error) error {
	switch {
	case m.src.err != nil:
		return &memberError{m.e.name, m.src.err}
	case !errors.Is(err, io.EOF):
		// The bytes could be read, so they are at fault, whatever the inflater calls it.
		return refuse(m.e.name, "corrupt deflate data")
	case m.left != 0:
		return refuse(m.e.name, "inflates to %d of the announced %d bytes", m.e.size-m.left, m.e.size)
	case m.crc.Sum32() != m.e.crc:
		return refuse(m.e.name, "checksum mismatch: got %08x, want %08x", m.crc.Sum32(), m.e.crc)
	}
	if _, err := m.in.Peek(1); err == nil {
		return refuse(m.e.name, "unused bytes after the compressed data")
	} else if err != io.EOF {
		return &memberError{m.e.name, err}
	}
	return io.EOF
}

func (m *memberReader) Close() error { return nil }

// memberError says that the file could not be read, as opposed to a FormatError.
type memberError struct {
	name string
	err  error
}

func (e *memberError) Error() string { return fmt.Sprintf("read member %q: %v", e.name, e.err) }
func (e *memberError) Unwrap() error { return e.err }

// readFull is ReadAt that treats a short file as a refused one: the size was
// given, so the archive changed while it was read.
func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at offset %d: %w", len(b), at, err)
}

func readMore(r io.Reader, b []byte) error {
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("read the central directory: %w", err)
	}
	return nil
}

// zipWriter writes a container that this package reads back: no comments, no
// extra fields but ZIP64 where it is needed, sizes in front of the data, one time
// for all members. Equal calls give equal bytes.
type zipWriter struct {
	w       io.Writer
	date    uint16 // MS-DOS
	time    uint16
	offset  int64 // bytes written
	central []byte
	entries int
}

func (z *zipWriter) Write(p []byte) (int, error) {
	n, err := z.w.Write(p)
	z.offset += int64(n)
	return n, err
}

// begin writes the local header of e and notes it for the central directory. The
// caller then writes e.packed bytes of data.
func (z *zipWriter) begin(e *entry) error {
	le := binary.LittleEndian
	flags, version := uint16(0), uint16(20)
	if !isASCII(e.name) {
		flags |= flagUTF8
	}
	size, packed, header := uint64(e.size), uint64(e.packed), uint64(z.offset)
	var local64, central64 []byte
	if size >= max32 || packed >= max32 {
		// Both sizes, whichever is too large: the local header needs them so.
		local64 = le.AppendUint64(le.AppendUint64(le.AppendUint32(nil, extraZip64|16<<16), size), packed)
		size, packed = max32, max32
	}
	central64 = slices.Clone(local64)
	if header >= max32 {
		if central64 == nil {
			central64 = le.AppendUint32(nil, extraZip64)
		}
		central64 = le.AppendUint64(central64, header)
		le.PutUint16(central64[2:], uint16(len(central64)-4))
		header = max32
	}
	if central64 != nil {
		version = 45
	}
	mode := uint32(modeRegular | 0o644)
	if e.executable {
		mode = modeRegular | 0o755
	}

	common := le.AppendUint16(nil, version)
	common = le.AppendUint16(common, flags)
	common = le.AppendUint16(common, e.method)
	common = le.AppendUint16(common, z.time)
	common = le.AppendUint16(common, z.date)
	common = le.AppendUint32(common, e.crc)
	common = le.AppendUint32(common, uint32(packed))
	common = le.AppendUint32(common, uint32(size))
	common = le.AppendUint16(common, uint16(len(e.name)))

	c := le.AppendUint32(z.central, sigCentral)
	c = le.AppendUint16(c, hostUnix<<8|version)
	c = append(c, common...)
	c = le.AppendUint16(c, uint16(len(central64)))
	c = append(c, 0, 0, 0, 0, 0, 0) // comment, disk, text flag
	c = le.AppendUint32(c, mode<<16)
	c = le.AppendUint32(c, uint32(header))
	c = append(c, e.name...)
	z.central = append(c, central64...)
	z.entries++

	l := le.AppendUint32(nil, sigLocal)
	l = append(l, common...)
	l = le.AppendUint16(l, uint16(len(local64)))
	l = append(l, e.name...)
	_, err := z.Write(append(l, local64...))
	return err
}

// finish writes the central directory and the end records.
func (z *zipWriter) finish() error {
	le := binary.LittleEndian
	offset, size, entries := uint64(z.offset), uint64(len(z.central)), uint64(z.entries)
	if _, err := z.Write(z.central); err != nil {
		return err
	}
	var b []byte
	if offset >= max32 || size >= max32 || entries >= max16 {
		at := uint64(z.offset)
		b = le.AppendUint32(b, sigEnd64)
		b = le.AppendUint64(b, lenEnd64-12)
		b = le.AppendUint16(b, hostUnix<<8|45)
		b = le.AppendUint16(b, 45)
		b = le.AppendUint64(b, 0) // disks
		b = le.AppendUint64(b, entries)
		b = le.AppendUint64(b, entries)
		b = le.AppendUint64(b, size)
		b = le.AppendUint64(b, offset)
		b = le.AppendUint32(b, sigLocator)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, at)
		b = le.AppendUint32(b, 1)
	}
	entries, size, offset = min(entries, max16), min(size, max32), min(offset, max32)
	b = le.AppendUint32(b, sigEnd)
	b = le.AppendUint32(b, 0) // disks
	b = le.AppendUint16(b, uint16(entries))
	b = le.AppendUint16(b, uint16(entries))
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, uint32(offset))
	b = le.AppendUint16(b, 0) // comment
	_, err := z.Write(b)
	return err
}

func le16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
