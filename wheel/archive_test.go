package wheel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	klauspost "github.com/klauspost/compress/flate"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/wheel"
)

// countingReaderAt counts what is read from an archive.
type countingReaderAt struct {
	io.ReaderAt
	bytes int64
}

func (c *countingReaderAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, off)
	c.bytes += int64(n)
	return n, err
}

func extraField(id uint16, value ...byte) []byte {
	b := binary.LittleEndian.AppendUint16(nil, id)
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(value))), value...)
}

func u64(values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func unicodePath(headerName, name string) []byte {
	value := binary.LittleEndian.AppendUint32([]byte{1}, crc32.ChecksumIEEE([]byte(headerName)))
	return extraField(0x7075, append(value, name...)...)
}

// hostile is an archive that must be refused when it is opened.
type hostile struct {
	name   string
	member string // named by the error; empty if the archive as a whole is refused
	reason string
	data   func(t testing.TB) []byte
}

// first returns a wheel whose first member is changed by edit.
func first(edit func(m *zipMember)) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		return makeWheel(t, wheelOptions{entries: func(members []zipMember) []zipMember {
			edit(&members[0])
			return members
		}}).data
	}
}

func inContainer(c zipContainer) func(testing.TB) []byte {
	return func(t testing.TB) []byte { return makeWheel(t, wheelOptions{container: c}).data }
}

func withMembers(more ...zipMember) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		return makeWheel(t, wheelOptions{entries: func(members []zipMember) []zipMember { return append(members, more...) }}).data
	}
}

func put16(at int, v uint16) func([]byte) {
	return func(h []byte) { binary.LittleEndian.PutUint16(h[at:], v) }
}

func put32(at int, v uint32) func([]byte) {
	return func(h []byte) { binary.LittleEndian.PutUint32(h[at:], v) }
}

const (
	demoFile     = "demo/__init__.py"
	demoMetadata = "demo-1.0.dist-info/METADATA"
	demoRecord   = "demo-1.0.dist-info/RECORD"
)

func hostileArchives() []hostile {
	named := func(name string) func(testing.TB) []byte { return withMembers(zipMember{name: name, mode: 0o100644}) }
	valid := func(t testing.TB) []byte { return makeWheel(t, wheelOptions{}).data }
	descriptor := func(crc, packed, size uint32) []byte {
		b := binary.LittleEndian.AppendUint32(nil, 0x08074b50)
		for _, v := range []uint32{crc, packed, size} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		return b
	}
	cases := []hostile{
		// Size.
		{"zip bomb", "big.bin", "exceed 50 times", func(t testing.TB) []byte {
			packed, crc := deflatedZeros(128)
			return withMembers(zipMember{name: "big.bin", method: 8, packed: packed, size: 128 << 20, crc: crc})(t)
		}},
		{"zip bomb of many members", "big0.bin", "exceed 50 times", func(t testing.TB) []byte {
			packed, crc := deflatedZeros(8)
			var members []zipMember
			for i := range 16 {
				members = append(members, zipMember{name: fmt.Sprintf("big%d.bin", i), method: 8, packed: packed, size: 8 << 20, crc: crc})
			}
			return withMembers(members...)(t)
		}},
		{"overlapping bomb", "a.bin", "overlaps", func(t testing.TB) []byte {
			return withMembers(zipMember{name: "a.bin", content: bytes.Repeat([]byte("x"), 1000)}, zipMember{name: "b.bin", centralOnly: true, headerAt: 20})(t)
		}},
		{"METADATA of 1 GiB zeros", demoMetadata, "1073741824 bytes, limit 4194304", func(t testing.TB) []byte {
			packed, crc := deflatedZeros(1024)
			return makeWheel(t, wheelOptions{entries: func(m []zipMember) []zipMember {
				i := slices.IndexFunc(m, func(m zipMember) bool { return m.name == demoMetadata })
				m[i] = zipMember{name: demoMetadata, method: 8, packed: packed, size: 1 << 30, crc: crc}
				return m
			}}).data
		}},
		{"WHEEL too large", "demo-1.0.dist-info/WHEEL", "limit 65536", func(t testing.TB) []byte {
			return makeWheel(t, wheelOptions{info: strings.Repeat("x", 64<<10+1)}).data
		}},
		{"variant.json too large", "demo-1.0.dist-info/variant.json", "limit 1048576", withMembers(zipMember{name: "demo-1.0.dist-info/variant.json", content: make([]byte, 1<<20+1)})},
		{"200,000 entries", "", "200000 entries, limit 100000", func(testing.TB) []byte { return manyMembers(200_000, true) }},
		{"200,000 entries, 3392 announced", "", "bytes after its 3392 entries", func(testing.TB) []byte {
			return manyMembers(200_000, false) // the number modulo 65536
		}},
		{"more entries announced than there are", "", "ends after 4 of 5 entries", inContainer(zipContainer{end: func(b []byte) { put16(8, 5)(b); put16(10, 5)(b) }})},
		{"directory of 65 MiB", "", "limit 67108864", func(t testing.TB) []byte {
			return inContainer(zipContainer{beforeDir: make([]byte, 65<<20), end: func(b []byte) {
				grow := uint32(65 << 20)
				put32(12, binary.LittleEndian.Uint32(b[12:])+grow)(b)
				put32(16, binary.LittleEndian.Uint32(b[16:])-grow)(b)
			}})(t)
		}},

		// The container.
		{"empty file", "", "not a ZIP archive", func(testing.TB) []byte { return nil }},
		{"not an archive", "", "not a ZIP archive", func(testing.TB) []byte { return bytes.Repeat([]byte("wheel"), 1000) }},
		{"cut short", "", "not a ZIP archive", func(t testing.TB) []byte { d := valid(t); return d[:len(d)-1] }},
		{"cut in the middle", "", "not a ZIP archive", func(t testing.TB) []byte { d := valid(t); return d[:len(d)/2] }},
		{"prepended data", "", "prepended data", inContainer(zipContainer{prefix: []byte("#!/bin/sh\n")})},
		{"prepended data, offsets right", "", "prepended data", inContainer(zipContainer{prefix: []byte("#!/bin/sh\n"), fixOffsets: true})},
		{"trailing data", "", "4 bytes of trailing data", inContainer(zipContainer{suffix: []byte("tail")})},
		{"archive comment", "", "archive comment", inContainer(zipContainer{end: put16(20, 4), suffix: []byte("note")})},
		{"announced comment missing", "", "archive comment", inContainer(zipContainer{end: put16(20, 4)})},
		{"data before the directory", demoRecord, "belong to no member", inContainer(zipContainer{beforeDir: []byte("gap")})},
		{"data between members", demoFile, "3 bytes after it belong to no member", first(func(m *zipMember) { m.after = []byte("gap") })},
		{"data after the directory", "", "between the central directory and its end record", inContainer(zipContainer{beforeEnd: []byte("gap")})},
		{"two end records", "", "several end records", func(t testing.TB) []byte {
			d := valid(t)
			return append(d, d[len(d)-22:]...)
		}},
		{"two archives", "", "several end records", func(t testing.TB) []byte { return append(valid(t), valid(t)...) }},
		{"second end record hides the first", "", "archive comment", func(t testing.TB) []byte {
			d := valid(t)
			end := bytes.Clone(d[len(d)-22:])
			put16(20, 22)(d[len(d)-22:])
			put16(20, 1)(end)
			return append(d, end...)
		}},
		{"multi-disk", "", "multi-disk", inContainer(zipContainer{end: put16(4, 1)})},
		{"directory on another disk", "", "multi-disk", inContainer(zipContainer{end: put16(6, 1)})},
		{"entries on another disk", "", "multi-disk", inContainer(zipContainer{end: put16(8, 1)})},
		{"member on another disk", demoFile, "multi-disk", first(func(m *zipMember) { m.central = put16(34, 1) })},
		{"directory offset beyond the file", "", "reaches over", inContainer(zipContainer{end: put32(16, 0xfffffff0)})},
		{"directory size beyond the file", "", "reaches over", inContainer(zipContainer{end: put32(12, 0xfffffff0)})},
		{"malformed central header", "", "central directory entry 1 is malformed", first(func(m *zipMember) { m.central = put16(0, 0) })},
		{"name longer than the directory", "", "ends inside entry 4", func(t testing.TB) []byte {
			return makeWheel(t, wheelOptions{entries: func(m []zipMember) []zipMember { m[3].central = put16(28, 60000); return m }}).data
		}},

		// ZIP64.
		{"locator points elsewhere", "", "not where its locator says", inContainer(zipContainer{zip64: true, end64: func(b []byte) { copy(b[64:], u64(7)) }})},
		{"two disks by the locator", "", "multi-disk", inContainer(zipContainer{zip64: true, end64: put32(72, 2)})},
		{"disk in the ZIP64 record", "", "multi-disk", inContainer(zipContainer{zip64: true, end64: put32(16, 1)})},
		{"long ZIP64 record", "", "malformed ZIP64 end record", inContainer(zipContainer{zip64: true, end64: put32(4, 60)})},
		{"records disagree about entries", "", "disagree", inContainer(zipContainer{zip64: true, end64: func(b []byte) { copy(b[24:], u64(3, 3)) }})},
		{"records disagree about the offset", "", "disagree", inContainer(zipContainer{zip64: true, end64: func(b []byte) { copy(b[48:], u64(0)) }})},
		{"impossible number of entries", "", "18446744073709551615 entries", inContainer(zipContainer{
			zip64: true, end: func(b []byte) { put32(8, 0xffffffff)(b) },
			end64: func(b []byte) { copy(b[24:], u64(1<<64-1, 1<<64-1)) },
		})},
		{"impossible offset", "", "reaches over", inContainer(zipContainer{zip64: true, end: put32(16, 0xffffffff), end64: func(b []byte) { copy(b[48:], u64(1<<64-10)) }})},
		{"ZIP64 record without its locator", "", "several end records", inContainer(zipContainer{beforeEnd: append([]byte("PK\x06\x06"), make([]byte, 52)...)})},
		{"ZIP64 field twice", demoFile, "duplicate ZIP64", first(func(m *zipMember) {
			m.extra = append(extraField(1, u64(12)...), extraField(1, u64(12)...)...)
			m.central = put32(24, 0xffffffff)
		})},
		{"ZIP64 field twice in the local header", demoFile, "duplicate ZIP64", first(func(m *zipMember) {
			m.localExtra = append(extraField(1, u64(12, 12)...), extraField(1, u64(12, 12)...)...)
		})},
		{"ZIP64 field without need", demoFile, "ZIP64 field does not match", first(func(m *zipMember) { m.extra = extraField(1, u64(12)...) })},
		{"ZIP64 field too short", demoFile, "ZIP64 field too short", first(func(m *zipMember) { m.extra = extraField(1, 1, 2, 3); m.central = put32(24, 0xffffffff) })},
		{"ZIP64 field empty", demoFile, "ZIP64 field does not match", first(func(m *zipMember) { m.extra = extraField(1) })},
		{"ZIP64 field too long", demoFile, "ZIP64 field does not match", first(func(m *zipMember) { m.extra = extraField(1, u64(12, 12)...); m.central = put32(24, 0xffffffff) })},
		{"ZIP64 size differs locally", demoFile, "ZIP64 field does not match", first(func(m *zipMember) { m.localExtra = extraField(1, u64(13, 13)...) })},
		{"ZIP64 size impossible", demoFile, "impossible size", first(func(m *zipMember) { m.extra = extraField(1, u64(1<<63)...); m.central = put32(24, 0xffffffff) })},

		// Members.
		{"zip-slip", "../evil.py", `".." in name`, named("../evil.py")},
		{"zip-slip inside", "demo/../../evil.py", `".." in name`, named("demo/../../evil.py")},
		{"absolute name", "/etc/passwd", "absolute name", named("/etc/passwd")},
		{"drive", "C:evil.py", "absolute name", named("C:evil.py")},
		{"backslash", `demo\evil.py`, "backslash", named(`demo\evil.py`)},
		{"dot", "demo/./x.py", `"." in name`, named("demo/./x.py")},
		{"double slash", "demo//x.py", "empty part", named("demo//x.py")},
		{"NUL", "a.py\x00.txt", "control character", named("a.py\x00.txt")},
		{"line break", "a\nb.py", "control character", named("a\nb.py")},
		{"C1 control", "a\u0085b.py", "control character", named("a\u0085b.py")},
		{"empty name", "", "empty name", named("")},
		{"long name", strings.Repeat("a", 1025), "limit 1024", named(strings.Repeat("a", 1025))},
		{"name not UTF-8", "a\xff.py", "not UTF-8", withMembers(zipMember{name: "a\xff.py", flags: 1 << 11})},
		{"name in an unknown encoding", "é.py", "not marked as UTF-8", withMembers(zipMember{name: "é.py", noFlags: true})},
		{"duplicate entry", demoFile, "duplicate name", named(demoFile)},
		{"duplicate METADATA", demoMetadata, "duplicate name", named(demoMetadata)},
		{"file and folder", "demo/__init__.py", "both a file and a folder", named("demo/__init__.py/x")},
		{"file and folder entry", "demo/__init__.py", "both a file and a folder", withMembers(zipMember{name: "demo/__init__.py/"})},
		{"folder with content", "x/", "folder with content", withMembers(zipMember{name: "x/", content: []byte("x")})},
		{"symbolic link", demoFile, "symbolic link", first(func(m *zipMember) { m.mode = 0o120777 })},
		{"symbolic link from DOS", demoFile, "symbolic link", first(func(m *zipMember) {
			m.mode = 0o120777
			m.central = func(h []byte) { h[5] = 0 }
		})},
		{"device", demoFile, "not a regular file", first(func(m *zipMember) { m.mode = 0o020666 })},
		{"folder by mode", demoFile, "file type and name disagree", first(func(m *zipMember) { m.mode = 0o040755 })},
		{"encrypted", demoFile, "encrypted", first(func(m *zipMember) { m.flags = 1 })},
		{"strongly encrypted", demoFile, "encrypted", first(func(m *zipMember) { m.flags = 1 << 6 })},
		{"masked header", demoFile, "encrypted", first(func(m *zipMember) { m.flags = 1 << 13 })},
		{"patch data", demoFile, "unknown flags", first(func(m *zipMember) { m.flags = 1 << 5 })},
		{"bzip2", demoFile, "method 12 is neither", first(func(m *zipMember) { m.method = 12 })},
		{"zstd", demoFile, "method 93 is neither", first(func(m *zipMember) { m.method = 93 })},
		{"comment", demoFile, "comment", first(func(m *zipMember) { m.comment = "note" })},
		{"stored with two sizes", demoFile, "two different sizes", first(func(m *zipMember) { m.size = 13 })},
		{"extra field cut", demoFile, "malformed extra field", first(func(m *zipMember) { m.extra = []byte{1, 0, 9, 0, 1} })},
		{"local extra field cut", demoFile, "malformed extra field", first(func(m *zipMember) { m.localExtra = []byte{1, 2, 3} })},
		{"Unicode path twice", demoFile, "duplicate Unicode path", first(func(m *zipMember) {
			m.extra = append(unicodePath(demoFile, demoFile), unicodePath(demoFile, demoFile)...)
		})},
		{"Unicode path elsewhere", demoFile, "gives another name", first(func(m *zipMember) { m.extra = unicodePath(demoFile, "evil.py") })},
		{"local Unicode path elsewhere", demoFile, "gives another name", first(func(m *zipMember) { m.localExtra = unicodePath(demoFile, "evil.py") })},

		// Local against central headers.
		{"local name differs", demoFile, "disagree about the name", first(func(m *zipMember) { m.localName = "demo/__evil__.py" })},
		{"local name longer", demoFile, "disagree about the name", first(func(m *zipMember) { m.localName = demoFile + "x" })},
		{"local flags differ", demoFile, "disagree about the flags", first(func(m *zipMember) { m.local = put16(6, 1<<11) })},
		{"local method differs", demoFile, "disagree about the compression method", first(func(m *zipMember) { m.local = put16(8, 8) })},
		{"local checksum differs", demoFile, "disagree about size or checksum", first(func(m *zipMember) { m.local = put32(14, 1) })},
		{"local compressed size differs", demoFile, "disagree about size or checksum", first(func(m *zipMember) { m.local = put32(18, 11) })},
		{"local size differs", demoFile, "disagree about size or checksum", first(func(m *zipMember) { m.local = put32(22, 11) })},
		{"no local header", demoFile, "no local header", first(func(m *zipMember) { m.local = put32(0, 0) })},
		{"missing from the directory", demoRecord, "belong to no member", withMembers(zipMember{name: "hidden.py", content: []byte("import os"), localOnly: true})},
		{"first is missing from the directory", "", "prepended data", first(func(m *zipMember) { m.localOnly = true })},
		{"missing from the members", "ghost.py", "beyond the central directory", func(t testing.TB) []byte {
			return withMembers(zipMember{name: "ghost.py", centralOnly: true, headerAt: 1 << 20})(t)
		}},
		{"two names for one member", "", "overlaps", withMembers(zipMember{name: "ghost.py", centralOnly: true, headerAt: 0})},
		{"stored with a descriptor", demoFile, "stored with a data descriptor", first(func(m *zipMember) {
			m.flags = 8
			m.descriptor = descriptor(crc32.ChecksumIEEE(m.content), 12, 12)
		})},
		{"descriptor missing", demoFile, "malformed data descriptor", first(func(m *zipMember) { m.flags, m.method = 8, 8 })},
		{"descriptor of odd length", demoFile, "malformed data descriptor", first(func(m *zipMember) { m.flags, m.method, m.descriptor = 8, 8, make([]byte, 17) })},
		{"descriptor without its signature", demoFile, "malformed data descriptor", first(func(m *zipMember) { m.flags, m.method, m.descriptor = 8, 8, make([]byte, 16) })},
		{"descriptor differs", demoFile, "data descriptor and central directory disagree", first(func(m *zipMember) {
			m.flags, m.method = 8, 8
			m.descriptor = descriptor(1, 2, 3)
		})},
	}
	return cases
}

// manyMembers makes an archive of n empty members.
func manyMembers(n int, zip64 bool) []byte {
	members := make([]zipMember, n)
	for i := range members {
		members[i] = zipMember{name: fmt.Sprintf("%06d", i), crc: 1}
	}
	c := zipContainer{zip64: zip64}
	if !zip64 {
		c.end = func(b []byte) { put16(8, uint16(n))(b); put16(10, uint16(n))(b) }
	}
	return makeZip(members, c)
}

func TestHostileArchives(t *testing.T) {
	for _, test := range hostileArchives() {
		t.Run(test.name, func(t *testing.T) {
			data := test.data(t)
			in := &countingReaderAt{ReaderAt: bytes.NewReader(data)}
			var err error
			memory := kilntest.Allocated(func() {
				_, err = wheel.NewReader(in, int64(len(data)), "demo-1.0-py3-none-any.whl", wheel.Limits{})
			})
			var format *wheel.FormatError
			if !errors.As(err, &format) {
				t.Fatalf("error %v, want a FormatError with %q", err, test.reason)
			}
			if !strings.Contains(format.Detail, test.reason) {
				t.Errorf("refused with %q, want %q", format.Detail, test.reason)
			}
			if format.Member != test.member && test.reason != "overlaps" {
				t.Errorf("error names member %q, want %q", format.Member, test.member)
			}
			if !strings.Contains(err.Error(), "demo-1.0-py3-none-any.whl") {
				t.Errorf("error %q does not name the file", err)
			}
			if memory > 8<<20 {
				t.Errorf("allocated %d bytes", memory)
			}
			if in.bytes > 2<<20 {
				t.Errorf("read %d bytes of %d", in.bytes, len(data))
			}
		})
	}
}

// TestLyingMembers: the headers agree with each other but not with the data. Such
// archives open, because members are not read then; reading stops at the lie.
func TestLyingMembers(t *testing.T) {
	zeros, crc := deflatedZeros(1024)
	for _, test := range []struct {
		name, reason string
		read         int64 // at most, from the archive
		edit         func(m *zipMember)
	}{
		{"1 GiB announced as 100 bytes", "more than the announced 100 bytes", 256 << 10, func(m *zipMember) { m.packed, m.size, m.crc = zeros, 100, crc }},
		{"1 GiB announced as 4 MiB", "more than the announced 4194304 bytes", 256 << 10, func(m *zipMember) { m.packed, m.size, m.crc = zeros, 4<<20, crc }},
		{"less than announced", "inflates to 3 of the announced 100 bytes", 4 << 10, func(m *zipMember) { m.packed, m.size = deflate([]byte("abc")), 100 }},
		{"wrong checksum", "checksum mismatch", 4 << 10, func(m *zipMember) { m.crc = 1 }},
		{"corrupt deflate", "corrupt deflate data", 4 << 10, func(m *zipMember) { m.packed = []byte{0xff, 0xff, 0xff} }},
		{"deflate cut short", "corrupt deflate data", 4 << 10, func(m *zipMember) { m.packed = deflate(m.content)[:10] }},
		{"bytes after the deflate stream", "unused bytes", 4 << 10, func(m *zipMember) { m.packed = append(deflate(m.content), "hidden"...) }},
	} {
		lie := func(t *testing.T, inflater func(io.Reader) io.ReadCloser) {
			w := makeWheel(t, wheelOptions{entries: func(members []zipMember) []zipMember {
				i := slices.IndexFunc(members, func(m zipMember) bool { return m.name == demoMetadata })
				test.edit(&members[i])
				return members
			}})
			in := &countingReaderAt{ReaderAt: bytes.NewReader(w.data)}
			r, err := wheel.NewReader(in, int64(len(w.data)), w.name, wheel.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if inflater != nil {
				r.SetInflater(inflater)
			}
			in.bytes = 0
			memory := kilntest.Allocated(func() { _, err = r.Metadata() })
			var format *wheel.FormatError
			if !errors.As(err, &format) || !strings.Contains(format.Detail, test.reason) || format.Member != demoMetadata {
				t.Fatalf("error %v, want %q of %s", err, test.reason, demoMetadata)
			}
			if memory > 32<<20 || in.bytes > test.read {
				t.Errorf("allocated %d bytes, read %d", memory, in.bytes)
			}
			memory = kilntest.Allocated(func() {
				problems, err := r.Check(t.Context(), wheel.CheckOptions{})
				if err != nil || !slices.ContainsFunc(problems, func(p wheel.Problem) bool { return p.Kind == wheel.KindCorrupt && p.Path == demoMetadata }) {
					t.Errorf("Check: %v, %v", problems, err)
				}
			})
			if memory > 64<<20 {
				t.Errorf("Check allocated %d bytes", memory)
			}
			if _, err := wheel.Rewrite(t.Context(), r, io.Discard, wheel.RewriteOptions{}); err == nil {
				t.Error("Rewrite accepted it")
			}
		}
		t.Run(test.name, func(t *testing.T) { lie(t, nil) })
		t.Run(test.name+", another inflater", func(t *testing.T) { lie(t, klauspost.NewReader) })
	}
}

// TestSetInflater: members are read with the inflater that was set, once for all of them if it can
// be reset.
func TestSetInflater(t *testing.T) {
	w := makeWheel(t, wheelOptions{entries: func(members []zipMember) []zipMember {
		for i := range members {
			members[i].method = 8
		}
		return members
	}})
	for name, test := range map[string]struct {
		open  func(io.Reader) io.ReadCloser
		calls int // of a Check with contents: one for RECORD, METADATA and WHEEL each
	}{
		"one that can be reset": {klauspost.NewReader, 1},
		"one that cannot":       {func(r io.Reader) io.ReadCloser { return io.NopCloser(struct{ io.Reader }{klauspost.NewReader(r)}) }, 4},
	} {
		r, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, wheel.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		r.SetInflater(func(in io.Reader) io.ReadCloser { calls++; return test.open(in) })
		names, err := r.Check(t.Context(), wheel.CheckOptions{NamesOnly: true})
		if err != nil || len(names) > 0 {
			t.Fatalf("%s: %v, %v", name, names, err)
		}
		before := calls
		calls = 0
		problems, err := r.Check(t.Context(), wheel.CheckOptions{})
		if err != nil || len(problems) > 0 {
			t.Fatalf("%s: %v, %v", name, problems, err)
		}
		if calls-before < test.calls || before == 0 || test.calls == 1 && calls-before != 1 {
			t.Errorf("%s: %d calls for names, %d with contents", name, before, calls)
		}
		var out bytes.Buffer
		if _, err := wheel.Rewrite(t.Context(), r, &out, wheel.RewriteOptions{}); err != nil {
			t.Errorf("%s: Rewrite: %v", name, err)
		}
	}
}

// TestStored: what is not compressed can be read in its place.
func TestStored(t *testing.T) {
	w := makeWheel(t, wheelOptions{entries: func(members []zipMember) []zipMember {
		for i := range members {
			if members[i].method = 0; members[i].name == demoMetadata {
				members[i].method = 8
			}
		}
		return members
	}})
	r, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, wheel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	stored := 0
	for m := range r.Files() {
		section, ok := r.Stored(m.Name)
		if want := m.Name != demoMetadata && !strings.HasSuffix(m.Name, "/"); ok != want {
			t.Errorf("%s: stored %v, want %v", m.Name, ok, want)
		}
		if !ok {
			continue
		}
		stored++
		in, err := r.OpenFile(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(section)
		if err != nil || !bytes.Equal(got, want) || section.Size() != m.Size {
			t.Errorf("%s: %q, want %q (%v)", m.Name, got, want, err)
		}
	}
	if _, ok := r.Stored("nowhere"); ok || stored == 0 {
		t.Errorf("a member that is not there: %v; %d stored", ok, stored)
	}
}

// TestHostileRecord: a RECORD of short rows must not multiply in memory.
func TestHostileRecord(t *testing.T) {
	var rows bytes.Buffer
	for i := 0; rows.Len() < 8<<20; i++ {
		fmt.Fprintf(&rows, "%d,,\n", i)
	}
	w := makeWheel(t, wheelOptions{entries: func(m []zipMember) []zipMember {
		m[len(m)-1] = zipMember{name: demoRecord, method: 8, content: rows.Bytes()}
		return m
	}})
	rows = bytes.Buffer{}
	r := w.open(t)
	var err error
	memory := kilntest.Allocated(func() { _, err = r.Record() })
	if err == nil || !strings.Contains(err.Error(), "more than 100000 entries") {
		t.Errorf("error %v", err)
	}
	if memory > 64<<20 {
		t.Errorf("allocated %d bytes", memory)
	}
}

// TestAcceptedArchives: irregular but harmless, and written by programs in use.
func TestAcceptedArchives(t *testing.T) {
	content := []byte("answer = 42\n")
	packed := deflate(content)
	sum := crc32.ChecksumIEEE(content)
	le := binary.LittleEndian
	short := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, sum), uint32(len(packed))), 12)
	long := append(le.AppendUint32(nil, sum), u64(uint64(len(packed)), 12)...)
	sig := le.AppendUint32(nil, 0x08074b50)
	streamed := func(descriptor ...[]byte) func(*zipMember) {
		return func(m *zipMember) {
			m.flags, m.method, m.packed, m.descriptor = 8, 8, packed, bytes.Join(descriptor, nil)
			m.local = func(h []byte) { clear(h[14:26]) }
		}
	}
	for name, edit := range map[string]func(*zipMember){
		"plain":                              func(*zipMember) {},
		"no mode":                            func(m *zipMember) { m.mode = 0 },
		"compression level flags":            func(m *zipMember) { m.flags = 2; m.method = 8 },
		"data descriptor":                    streamed(sig, short),
		"data descriptor without signature":  streamed(short),
		"ZIP64 descriptor":                   streamed(sig, long),
		"ZIP64 descriptor without signature": streamed(long),
		"timestamps": func(m *zipMember) {
			m.extra, m.localExtra = extraField(0x5455, 1, 2, 3, 4, 5), extraField(0x5455, 3, 2, 3, 4, 5, 6, 7, 8, 9)
		},
		"long local extra":  func(m *zipMember) { m.localExtra = extraField(0xcafe, make([]byte, 5000)...) },
		"same Unicode path": func(m *zipMember) { m.extra = unicodePath(m.name, m.name) },
		"ZIP64 sizes": func(m *zipMember) {
			m.extra, m.localExtra = extraField(1, u64(12, 12)...), extraField(1, u64(12, 12)...)
			m.central = func(h []byte) { put32(20, 0xffffffff)(h); put32(24, 0xffffffff)(h) }
			m.local = func(h []byte) { put32(18, 0xffffffff)(h); put32(22, 0xffffffff)(h) }
		},
		"ZIP64 local field of old Python": func(m *zipMember) { m.localExtra = extraField(1, u64(12, 12)...) },
		"ZIP64 disk":                      func(m *zipMember) { m.extra = extraField(1, 0, 0, 0, 0); m.central = put16(34, 0xffff) },
	} {
		for _, container := range []zipContainer{{}, {zip64: true}} {
			w := makeWheel(t, wheelOptions{container: container, entries: func(m []zipMember) []zipMember { edit(&m[0]); return m }})
			r, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, wheel.Limits{})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if problems, err := r.Check(t.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
				t.Errorf("%s: %v, %v", name, problems, err)
			}
		}
	}
}

func TestReader(t *testing.T) {
	w := makeWheel(t, wheelOptions{
		name: "Flash.Attn", version: "2.8.3+cu128.torch2.9", tag: "cp312-cp312-linux_x86_64", build: "1",
		files: []file{
			{name: "flash_attn/", content: ""},
			{name: "flash_attn/__init__.py", content: "x = 1\n", deflate: true},
			{name: "flash_attn/run.sh", content: "#!/bin/sh\n", executable: true},
			{name: "Flash.Attn-2.8.3+cu128.torch2.9.data/scripts/tool", content: "#!python\n"},
			{name: "flash_attn/a, b \"c\".txt", content: "quoted\n"},
		},
	})
	path := filepath.Join(t.TempDir(), w.name)
	if err := os.WriteFile(path, w.data, 0o666); err != nil {
		t.Fatal(err)
	}
	r, err := wheel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := r.Filename(); got.Name != "flash-attn" || got.Build.String() != "1" {
		t.Errorf("Filename: %+v", got)
	}
	if got := r.DistInfo(); got != "Flash.Attn-2.8.3+cu128.torch2.9.dist-info" {
		t.Errorf("DistInfo: %q", got)
	}
	if r.Size() != int64(len(w.data)) {
		t.Errorf("Size: %d", r.Size())
	}
	if problems, err := r.Check(t.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
		t.Errorf("Check: %v, %v", problems, err)
	}
	var names []string
	for m := range r.Files() {
		names = append(names, m.Name)
		if m.Executable != (m.Name == "flash_attn/run.sh") {
			t.Errorf("%s: executable %t", m.Name, m.Executable)
		}
		if strings.HasSuffix(m.Name, "/") {
			continue
		}
		f, err := r.OpenFile(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(iotest.OneByteReader(f))
		if err != nil || int64(len(content)) != m.Size || crc32.ChecksumIEEE(content) != m.CRC32 {
			t.Errorf("%s: %q, %v", m.Name, content, err)
		}
		f.Close()
	}
	if len(names) != 8 || names[0] != "flash_attn/" {
		t.Errorf("Files: %q", names)
	}
	for range r.Files() {
		break
	}
	for _, name := range []string{"nothing", "flash_attn/", "flash_attn", ""} {
		if _, err := r.OpenFile(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("OpenFile(%q): %v", name, err)
		}
	}
	m, err := r.Metadata()
	if err != nil || m.Name() != "Flash.Attn" || m.Version() != "2.8.3+cu128.torch2.9" {
		t.Errorf("Metadata: %v, %v", m, err)
	}
	info, err := r.Info()
	if err != nil || info.Build != "1" {
		t.Errorf("Info: %+v, %v", info, err)
	}
	rec, err := r.Record()
	if err != nil || rec.Lookup(`flash_attn/a, b "c".txt`) == nil {
		t.Errorf("Record: %+v, %v", rec, err)
	}
	if _, err := wheel.Open(filepath.Dir(path)); err == nil {
		t.Error("opened a folder")
	}
	if _, err := wheel.Open(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened nothing: %v", err)
	}
	if _, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), "flash-attn-2.8.3-cp312-cp312-linux_x86_64.whl", wheel.Limits{}); err == nil {
		t.Error("opened under an invalid name")
	}
}

func TestLimits(t *testing.T) {
	w := makeWheel(t, wheelOptions{files: []file{{name: "a.py", content: strings.Repeat("x", 5000), deflate: true}}})
	for name, limits := range map[string]wheel.Limits{
		"file size": {FileSize: 100}, "entries": {Entries: 3}, "directory": {Directory: 100}, "metadata": {Metadata: 10},
		"info": {Info: 10}, "record": {Record: 10}, "ratio": {Inflated: 100, Ratio: 2},
	} {
		_, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, limits)
		if _, ok := errors.AsType[*wheel.FormatError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, wheel.Limits{Inflated: 100}); err != nil {
		t.Errorf("within the ratio: %v", err)
	}
}

func TestCheck(t *testing.T) {
	type problems []wheel.Problem
	only := func(kind wheel.Kind, path string) problems { return problems{{Kind: kind, Path: path}} }
	drop := func(name string) func([]zipMember) []zipMember {
		return func(m []zipMember) []zipMember {
			return slices.DeleteFunc(m, func(m zipMember) bool { return m.name == name })
		}
	}
	for _, test := range []struct {
		name string
		o    wheelOptions
		as   string // file name, if not the one made
		want problems
	}{
		{"valid", wheelOptions{}, "", nil},
		{"valid with data", wheelOptions{files: []file{{name: "demo-1.0.data/purelib/x.py"}, {name: "demo-1.0.data/"}, {name: "demo-1.0.data/scripts/"}}}, "", nil},
		{"signatures are ignored", wheelOptions{entries: func(m []zipMember) []zipMember { return append(m, zipMember{name: "demo-1.0.dist-info/RECORD.jws"}) }}, "", nil},
		{"sha512", wheelOptions{record: func(r []string) []string {
			r[0] = demoFile + ",sha512=9DiZZTN3uMXG_NhS1RmgYUc9ofQYRyjcyxLvPqAE7rSOIl7cohU3xwK8WxGFCRWezVYYAzbI7-Rj3RfYUtAwBw,12"
			return r
		}}, "", only(wheel.KindDigest, demoFile)},
		{"another spelling", wheelOptions{metadata: "Metadata-Version: 2.1\nName: DEMO\nVersion: 1.0.0\n"}, "", nil},
		{"no dist-info", wheelOptions{entries: func(m []zipMember) []zipMember { return m[:1] }}, "", only(wheel.KindDistInfo, "")},
		{"second dist-info", wheelOptions{files: []file{{name: "evil-9.dist-info/METADATA", content: "x"}}}, "", only(wheel.KindDistInfo, "evil-9.dist-info")},
		{
			"two that match",
			wheelOptions{files: []file{{name: "Demo-1.0.dist-info/METADATA", content: "x"}}},
			"",
			problems{{Kind: wheel.KindDistInfo, Path: "Demo-1.0.dist-info"}, {Kind: wheel.KindDistInfo, Path: "demo-1.0.dist-info"}, {Kind: wheel.KindClash, Path: demoMetadata}},
		},
		{"no METADATA", wheelOptions{entries: drop(demoMetadata)}, "", problems{{Kind: wheel.KindMissing, Path: demoMetadata}, {Kind: wheel.KindRecord, Path: demoMetadata}}},
		{
			"no WHEEL",
			wheelOptions{entries: drop("demo-1.0.dist-info/WHEEL")},
			"",
			problems{{Kind: wheel.KindMissing, Path: "demo-1.0.dist-info/WHEEL"}, {Kind: wheel.KindRecord, Path: "demo-1.0.dist-info/WHEEL"}},
		},
		{"no RECORD", wheelOptions{entries: drop(demoRecord)}, "", only(wheel.KindMissing, demoRecord)},
		{"renamed to a label", wheelOptions{}, "demo-1.0+cu128-py3-none-any.whl", problems{{Kind: wheel.KindLocal, Path: "demo-1.0.dist-info"}, {Kind: wheel.KindLocal, Path: demoMetadata}}},
		{"renamed to a version", wheelOptions{}, "demo-1.1-py3-none-any.whl", problems{{Kind: wheel.KindVersion, Path: "demo-1.0.dist-info"}, {Kind: wheel.KindVersion, Path: demoMetadata}}},
		{"renamed to a project", wheelOptions{}, "other-1.0-py3-none-any.whl", problems{{Kind: wheel.KindName, Path: "demo-1.0.dist-info"}, {Kind: wheel.KindName, Path: demoMetadata}}},
		{"renamed to a tag", wheelOptions{}, "demo-1.0-py2.py3-none-any.whl", only(wheel.KindTag, "demo-1.0.dist-info/WHEEL")},
		{"renamed to a build", wheelOptions{}, "demo-1.0-1-py3-none-any.whl", only(wheel.KindTag, "demo-1.0.dist-info/WHEEL")},
		{"tags missing", wheelOptions{info: "Wheel-Version: 1.0\n"}, "", only(wheel.KindTag, "demo-1.0.dist-info/WHEEL")},
		{"another METADATA version", wheelOptions{metadata: "Metadata-Version: 2.1\nName: demo\nVersion: 1.0+x\n"}, "", only(wheel.KindLocal, demoMetadata)},
		{"invalid METADATA version", wheelOptions{metadata: "Metadata-Version: 2.1\nName: demo\nVersion: one\n"}, "", only(wheel.KindName, demoMetadata)},
		{"METADATA without version", wheelOptions{metadata: "Metadata-Version: 2.1\nName: demo\n"}, "", only(wheel.KindMetadata, demoMetadata)},
		{"METADATA with two names", wheelOptions{metadata: "Metadata-Version: 2.1\nName: demo\nName: demo\nVersion: 1.0\n"}, "", only(wheel.KindMetadata, demoMetadata)},
		{"METADATA 3.0", wheelOptions{metadata: "Metadata-Version: 3.0\nName: demo\nVersion: 1.0\n"}, "", only(wheel.KindMetadata, demoMetadata)},
		{"METADATA unreadable", wheelOptions{metadata: " x"}, "", only(wheel.KindMetadata, demoMetadata)},
		{"WHEEL unreadable", wheelOptions{info: "Wheel-Version: 2.0\n"}, "", only(wheel.KindInfo, "demo-1.0.dist-info/WHEEL")},
		{"RECORD unreadable", wheelOptions{record: func([]string) []string { return []string{"../x,,"} }}, "", only(wheel.KindRecord, demoRecord)},
		{"unlisted file", wheelOptions{record: func(r []string) []string { return r[1:] }}, "", only(wheel.KindRecord, demoFile)},
		{"listed file missing", wheelOptions{record: func(r []string) []string { return append(r, recordRow("ghost.py", "")) }}, "", only(wheel.KindRecord, "ghost.py")},
		{"no hash", wheelOptions{record: func(r []string) []string { r[0] = demoFile + ",,"; return r }}, "", only(wheel.KindRecord, demoFile)},
		{"wrong hash", wheelOptions{record: func(r []string) []string { r[0] = recordRow(demoFile, "answer = 43\n"); return r }}, "", only(wheel.KindDigest, demoFile)},
		{"wrong size", wheelOptions{record: func(r []string) []string { r[0] = strings.TrimSuffix(r[0], ",12") + ",13"; return r }}, "", only(wheel.KindDigest, demoFile)},
		{"no size", wheelOptions{record: func(r []string) []string { r[0] = strings.TrimSuffix(r[0], ",12") + ","; return r }}, "", nil},
		{"RECORD not in itself", wheelOptions{record: func(r []string) []string { return r[:len(r)-1] }}, "", nil},
		{
			"RECORD with a hash of itself",
			wheelOptions{record: func(r []string) []string {
				r[len(r)-1] = strings.TrimSuffix(recordRow(demoRecord, ""), ",0") + ","
				return r
			}},
			"",
			problems{{Kind: wheel.KindRecord, Path: demoRecord}, {Kind: wheel.KindDigest, Path: demoRecord}},
		},
		{"data of another version", wheelOptions{files: []file{{name: "demo-2.0.data/data/x"}}}, "", only(wheel.KindVersion, "demo-2.0.data")},
		{"data of another project", wheelOptions{files: []file{{name: "evil-1.0.data/data/x"}}}, "", only(wheel.KindName, "evil-1.0.data")},
		{"two data folders", wheelOptions{files: []file{{name: "demo-1.0.data/data/x"}, {name: "Demo-1.0.data/data/y"}}}, "", only(wheel.KindData, "Demo-1.0.data")},
		{"unknown data scheme", wheelOptions{files: []file{{name: "demo-1.0.data/bin/x"}}}, "", only(wheel.KindData, "demo-1.0.data/bin/x")},
		{"data file without scheme", wheelOptions{files: []file{{name: "demo-1.0.data/x"}}}, "", only(wheel.KindData, "demo-1.0.data/x")},
		{"data scheme is a file", wheelOptions{files: []file{{name: "demo-1.0.data/data"}}}, "", only(wheel.KindData, "demo-1.0.data/data")},
		{"case", wheelOptions{files: []file{{name: "a.py"}, {name: "A.py"}}}, "", only(wheel.KindClash, "A.py")},
		{"case beyond ASCII", wheelOptions{files: []file{{name: "\u212aelvin\u00e5.py"}, {name: "Kelvin\u212b.py"}}}, "", only(wheel.KindClash, "Kelvin\u212b.py")},
		{"accents composed and not", wheelOptions{files: []file{{name: "caf\u00e9.py"}, {name: "cafe\u0301.py"}}}, "", only(wheel.KindClash, "cafe\u0301.py")},
		{"different accents", wheelOptions{files: []file{{name: "caf\u00e9.py"}, {name: "caf\u00e8.py"}, {name: "cafe.py"}}}, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := makeWheel(t, test.o)
			if test.as != "" {
				w.name = test.as
			}
			got, err := w.open(t).Check(t.Context(), wheel.CheckOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var bare problems
			for _, p := range got {
				if p.Detail == "" || p.String() == "" {
					t.Errorf("%v has no detail", p)
				}
				bare = append(bare, wheel.Problem{Kind: p.Kind, Path: p.Path})
			}
			if diff := cmp.Diff(test.want, bare); diff != "" {
				t.Errorf("%s\n%v", diff, got)
			}
		})
	}
}

// TestCheckNamesOnly: a wrong digest goes unseen, everything else does not, and
// the large members are not read.
func TestCheckNamesOnly(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	w := makeWheel(t, wheelOptions{
		files:  []file{{name: "big.bin", content: big}},
		record: func(r []string) []string { return append(r, recordRow("ghost.py", "")) },
		entries: func(m []zipMember) []zipMember {
			m[0].content[0] = 'y'
			return m
		},
	})
	in := &countingReaderAt{ReaderAt: bytes.NewReader(w.data)}
	r, err := wheel.NewReader(in, int64(len(w.data)), w.name, wheel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	problems, err := r.Check(t.Context(), wheel.CheckOptions{NamesOnly: true})
	if err != nil || len(problems) != 1 || problems[0].Path != "ghost.py" {
		t.Errorf("%v, %v", problems, err)
	}
	if in.bytes > 64<<10 {
		t.Errorf("read %d bytes", in.bytes)
	}
}

// failingReaderAt fails once the counter has run down.
type failingReaderAt struct {
	io.ReaderAt
	reads int
}

var errDisk = errors.New("disk on fire")

func (f *failingReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if f.reads--; f.reads < 0 {
		return 0, errDisk
	}
	return f.ReaderAt.ReadAt(p, off)
}

// TestReadErrors: wherever reading fails, the error says so and is not mistaken
// for a fault of the wheel.
func TestReadErrors(t *testing.T) {
	w := makeWheel(t, wheelOptions{})
	for reads := 0; ; reads++ {
		in := &failingReaderAt{bytes.NewReader(w.data), reads}
		r, err := wheel.NewReader(in, int64(len(w.data)), w.name, wheel.Limits{})
		if err == nil {
			_, err = r.Check(t.Context(), wheel.CheckOptions{})
		}
		if err == nil {
			if reads < 8 {
				t.Errorf("only %d reads", reads)
			}
			return
		}
		var format *wheel.FormatError
		if !errors.Is(err, errDisk) || errors.As(err, &format) {
			t.Fatalf("read %d: %v", reads, err)
		}
	}
}

func TestCheckCancelled(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := makeWheel(t, wheelOptions{}).open(t).Check(ctx, wheel.CheckOptions{}); !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
}

func largeWheel(b *testing.B) madeWheel {
	var files []file
	for i := range 2000 {
		files = append(files, file{name: fmt.Sprintf("demo/sub%02d/module%04d.py", i%40, i), content: strings.Repeat(fmt.Sprintf("x%d = %d\n", i, i*i), 200), deflate: true})
	}
	return makeWheel(b, wheelOptions{files: files})
}

func BenchmarkOpen(b *testing.B) {
	w := largeWheel(b)
	path := filepath.Join(b.TempDir(), w.name)
	if err := os.WriteFile(path, w.data, 0o666); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, err := wheel.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
}

func inflatedSize(r *wheel.Reader) (n int64) {
	for m := range r.Files() {
		n += m.Size
	}
	return n
}

func BenchmarkCheck(b *testing.B) {
	r := largeWheel(b).open(b)
	b.SetBytes(inflatedSize(r))
	for b.Loop() {
		if problems, err := r.Check(b.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
			b.Fatal(problems, err)
		}
	}
}
