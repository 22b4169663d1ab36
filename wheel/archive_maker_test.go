package wheel_test

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/wheel"
)

// wheelOptions describe a wheel for makeWheel. The zero value is a small, valid
// one: demo 1.0, py3-none-any.
type wheelOptions struct {
	name, version, tag, build string

	files     []file                                // besides .dist-info; default one module
	metadata  string                                // default made from name and version
	info      string                                // default made from tag and build
	record    func(rows []string) []string          // changes RECORD
	entries   func(members []zipMember) []zipMember // changes the archive
	container zipContainer
}

type file struct {
	name, content string
	deflate       bool
	executable    bool
}

// madeWheel is a wheel in memory.
type madeWheel struct {
	name string
	data []byte
}

func (w madeWheel) open(t testing.TB) *wheel.Reader {
	t.Helper()
	r, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, wheel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// makeWheel makes a wheel byte by byte, so that each can be wrong.
func makeWheel(t testing.TB, o wheelOptions) madeWheel {
	t.Helper()
	or := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	or(&o.name, "demo")
	or(&o.version, "1.0")
	or(&o.tag, "py3-none-any")
	or(&o.metadata, fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\nRequires-Dist: torch>=2.2.0\n\nA demo.\n", o.name, o.version))
	filename := o.name + "-" + o.version
	distInfo := filename + ".dist-info"
	if o.build != "" {
		filename += "-" + o.build
	}
	filename += "-" + o.tag + ".whl"
	if o.info == "" {
		o.info = "Wheel-Version: 1.0\nGenerator: maker (1)\nRoot-Is-Purelib: true\n"
		tags, err := wheel.ParseTag(o.tag)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			o.info += "Tag: " + tag.String() + "\n"
		}
		if o.build != "" {
			o.info += "Build: " + o.build + "\n"
		}
		o.info += "\n"
	}
	if o.files == nil {
		o.files = []file{{name: "demo/__init__.py", content: "answer = 42\n"}}
	}
	files := append(slices.Clip(o.files),
		file{name: distInfo + "/METADATA", content: o.metadata, deflate: true},
		file{name: distInfo + "/WHEEL", content: o.info})
	var members []zipMember
	var rows []string
	for _, f := range files {
		m := zipMember{name: f.name, content: []byte(f.content), mode: 0o100644}
		if f.executable {
			m.mode = 0o100755
		}
		if f.deflate {
			m.method = 8
		}
		members = append(members, m)
		if !strings.HasSuffix(f.name, "/") {
			rows = append(rows, recordRow(f.name, f.content))
		} else {
			members[len(members)-1].mode = 0o040755
		}
	}
	rows = append(rows, distInfo+"/RECORD,,")
	if o.record != nil {
		rows = o.record(rows)
	}
	members = append(members, zipMember{name: distInfo + "/RECORD", content: []byte(strings.Join(rows, "\n") + "\n"), mode: 0o100644})
	if o.entries != nil {
		members = o.entries(members)
	}
	return madeWheel{filename, makeZip(members, o.container)}
}

func recordRow(name, content string) string {
	sum := sha256.Sum256([]byte(content))
	if strings.ContainsAny(name, `",`) {
		name = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	return fmt.Sprintf("%s,sha256=%s,%d", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(content))
}

// zipMember is a member of an archive. What is not set follows from the rest.
type zipMember struct {
	name    string
	content []byte
	method  uint16
	mode    uint32

	packed     []byte // compressed data; default from content and method
	size       uint64 // announced size; default that of content
	crc        uint32 // default that of content
	flags      uint16 // default the UTF-8 flag if needed
	noFlags    bool
	extra      []byte
	localExtra []byte
	comment    string
	descriptor []byte // follows the data
	after      []byte // follows the descriptor

	central func(header []byte) // patches the 46 bytes of the central header
	local   func(header []byte) // patches the 30 bytes of the local header
	// centralName and localName replace the name; localOnly and centralOnly leave
	// the other header out.
	centralName, localName string
	localOnly, centralOnly bool
	headerAt               uint64 // offset the central header gives, if centralOnly
}

// zipContainer adds to an archive what does not belong there.
type zipContainer struct {
	prefix, beforeDir, beforeEnd, suffix []byte

	fixOffsets bool             // offsets count the prefix
	zip64      bool             // write the ZIP64 records
	end64      func(rec []byte) // patches the ZIP64 end record and locator
	end        func(rec []byte) // patches the end record
}

func makeZip(members []zipMember, c zipContainer) []byte {
	le := binary.LittleEndian
	var out, dir []byte
	base := 0
	out = append(out, c.prefix...)
	if !c.fixOffsets {
		base = len(c.prefix)
	}
	count := 0
	for _, m := range members {
		packed := m.packed
		if packed == nil {
			packed = m.content
			if m.method == 8 {
				packed = deflate(m.content)
			}
		}
		if m.crc == 0 {
			m.crc = crc32.ChecksumIEEE(m.content)
		}
		if m.size == 0 {
			m.size = uint64(len(m.content))
		}
		if m.flags == 0 && !m.noFlags && strings.ContainsFunc(m.name, func(r rune) bool { return r > 127 }) {
			m.flags = 1 << 11
		}
		common := func(b []byte, extra int) []byte {
			b = le.AppendUint16(b, 20)
			b = le.AppendUint16(b, m.flags)
			b = le.AppendUint16(b, m.method)
			b = le.AppendUint32(b, 0x5a_21_6b_42) // some time in 2025
			b = le.AppendUint32(b, m.crc)
			b = le.AppendUint32(b, uint32(len(packed)))
			b = le.AppendUint32(b, uint32(m.size))
			b = le.AppendUint16(b, 0) // name
			return le.AppendUint16(b, uint16(extra))
		}
		at := len(out) - base
		if m.centralOnly {
			at = int(m.headerAt)
		} else {
			name := m.name
			if m.localName != "" {
				name = m.localName
			}
			h := common(le.AppendUint32(nil, 0x04034b50), len(m.localExtra))
			le.PutUint16(h[26:], uint16(len(name)))
			if m.local != nil {
				m.local(h)
			}
			for _, part := range [][]byte{h, []byte(name), m.localExtra, packed, m.descriptor, m.after} {
				out = append(out, part...)
			}
		}
		if m.localOnly {
			continue
		}
		name := m.name
		if m.centralName != "" {
			name = m.centralName
		}
		h := common(le.AppendUint16(le.AppendUint32(nil, 0x02014b50), 3<<8|20), len(m.extra))
		le.PutUint16(h[28:], uint16(len(name)))
		h = le.AppendUint16(h, uint16(len(m.comment)))
		h = le.AppendUint32(h, 0)
		h = le.AppendUint32(h, m.mode<<16)
		h = le.AppendUint32(h, uint32(at))
		if m.central != nil {
			m.central(h)
		}
		dir = append(append(append(append(dir, h...), name...), m.extra...), m.comment...)
		count++
	}
	out = append(out, c.beforeDir...)
	start := len(out) - base
	out = append(append(out, dir...), c.beforeEnd...)
	if c.zip64 {
		rec := le.AppendUint64(le.AppendUint32(nil, 0x06064b50), 44)
		rec = le.AppendUint32(rec, 45|45<<16)
		rec = le.AppendUint64(rec, 0)
		rec = le.AppendUint64(rec, uint64(count))
		rec = le.AppendUint64(rec, uint64(count))
		rec = le.AppendUint64(rec, uint64(len(dir)))
		rec = le.AppendUint64(rec, uint64(start))
		rec = le.AppendUint64(le.AppendUint64(rec, 0x07064b50), uint64(len(out)-base))
		rec = le.AppendUint32(rec, 1)
		if c.end64 != nil {
			c.end64(rec)
		}
		out = append(out, rec...)
	}
	end := le.AppendUint64(nil, 0x06054b50)
	end = le.AppendUint16(end, uint16(min(count, 0xffff)))
	end = le.AppendUint16(end, uint16(min(count, 0xffff)))
	end = le.AppendUint32(end, uint32(len(dir)))
	end = le.AppendUint32(end, uint32(start))
	end = le.AppendUint16(end, 0)
	if c.end != nil {
		c.end(end)
	}
	return append(append(out, end...), c.suffix...)
}

func deflate(content []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.DefaultCompression)
	_, _ = w.Write(content)
	w.Close()
	return b.Bytes()
}

// deflatedZeros returns a deflate stream of n MiB of zeros, and their checksum,
// without holding them.
func deflatedZeros(n int) ([]byte, uint32) {
	chunk := make([]byte, 1<<20)
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestCompression)
	_, _ = w.Write(chunk)
	_ = w.Flush() // the stream is at a byte boundary and can be repeated
	once := bytes.Clone(b.Bytes())
	b.Reset()
	w.Reset(&b)
	w.Close()
	crc := crc32.NewIEEE()
	for range n {
		crc.Write(chunk)
	}
	return append(bytes.Repeat(once, n), b.Bytes()...), crc.Sum32()
}
