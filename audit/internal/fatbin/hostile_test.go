package fatbin_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// image is an entry to be written.
type image struct {
	kind    uint16
	arch    uint32
	flags   uint64
	ident   string
	payload []byte
	raw     int // before compression; 0 if the payload is not compressed
}

// makeEntry writes an entry as nvcc 13 does.
func makeEntry(i image) []byte {
	le := binary.LittleEndian
	ident := []byte(i.ident)
	if len(ident) > 0 {
		ident = pad(append(ident, 0))
	}
	payload := pad(bytes.Clone(i.payload))
	head := make([]byte, 64, 64+len(ident)+len(payload))
	le.PutUint16(head, i.kind)
	le.PutUint16(head[2:], 0x101)
	le.PutUint32(head[4:], uint32(64+len(ident)))
	le.PutUint64(head[8:], uint64(len(payload)))
	le.PutUint32(head[28:], i.arch)
	if len(ident) > 0 {
		le.PutUint32(head[32:], 64)
		le.PutUint32(head[36:], uint32(len(i.ident)))
	}
	le.PutUint64(head[40:], i.flags|0x11)
	if i.raw > 0 {
		le.PutUint32(head[16:], uint32(len(i.payload)))
		le.PutUint64(head[56:], uint64(i.raw))
	}
	return append(append(head, ident...), payload...)
}

func pad(b []byte) []byte {
	return append(b, make([]byte, (8-len(b)%8)%8)...)
}

// makeContainer writes a container.
func makeContainer(images ...image) []byte {
	var body []byte
	for _, i := range images {
		body = append(body, makeEntry(i)...)
	}
	head := []byte{0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0}
	return append(binary.LittleEndian.AppendUint64(head, uint64(len(body))), body...)
}

// elfSection is a section to be written.
type elfSection struct {
	name  string
	kind  uint32
	flags uint64
	data  []byte
}

// makeELF writes an ELF file with sections and nothing else.
func makeELF(sections ...elfSection) []byte {
	le := binary.LittleEndian
	sections = append([]elfSection{{}}, sections...)
	sections = append(sections, elfSection{name: ".shstrtab", kind: 3})
	last := &sections[len(sections)-1]
	names := make([]uint32, len(sections))
	for i, s := range sections {
		names[i] = uint32(len(last.data))
		last.data = append(append(last.data, s.name...), 0)
	}
	file := make([]byte, 64)
	offsets := make([]int, len(sections))
	for i, s := range sections {
		file = pad(file)
		offsets[i] = len(file)
		file = append(file, s.data...)
	}
	file = pad(file)
	copy(file, "\x7fELF\x02\x01\x01")
	le.PutUint16(file[16:], 3)
	le.PutUint16(file[18:], 62)
	le.PutUint64(file[40:], uint64(len(file)))
	le.PutUint16(file[52:], 64)
	le.PutUint16(file[58:], 64)
	le.PutUint16(file[60:], uint16(len(sections)))
	le.PutUint16(file[62:], uint16(len(sections)-1))
	for i, s := range sections {
		head := make([]byte, 64)
		le.PutUint32(head, names[i])
		le.PutUint32(head[4:], s.kind)
		le.PutUint64(head[8:], s.flags)
		le.PutUint64(head[24:], uint64(offsets[i]))
		le.PutUint64(head[32:], uint64(len(s.data)))
		file = append(file, head...)
	}
	return file
}

func progbits(name string, data []byte) elfSection {
	return elfSection{name: name, kind: 1, data: data}
}

// names returns the targets of entries.
func names(entries []fatbin.Entry) []string {
	var list []string
	for _, e := range entries {
		list = append(list, e.Target())
	}
	return list
}

var (
	sass80  = image{kind: 2, arch: 80, payload: []byte("machine code")}
	sass90a = image{kind: 2, arch: 90, flags: 0x100000, payload: []byte("more of it")}
	ptx90   = image{kind: 1, arch: 90, ident: "a.cu", payload: []byte(".version")}
)

// TestDamage: damage is told, and what is before and behind it is still found.
func TestDamage(t *testing.T) {
	le := binary.LittleEndian
	good := makeContainer(sass80, ptx90)
	change := func(f func(b []byte)) []byte {
		b := makeContainer(sass80, ptx90)
		f(b)
		return b
	}
	const first, second = 16, 16 + 64 + 16
	for _, test := range []struct {
		name   string
		middle []byte
		want   []string // between two good containers
	}{
		{"nothing", nil, nil},
		{"padding", make([]byte, 4096), nil},
		{"other bytes", bytes.Repeat([]byte("any text"), 1000), nil},
		{"container without entries", makeContainer(), nil},
		{"container header too small", change(func(b []byte) { le.PutUint16(b[6:], 8) }), nil},
		{"container too long", change(func(b []byte) { le.PutUint64(b[8:], 1<<40) }), nil},
		{"container size of all ones", change(func(b []byte) { le.PutUint64(b[8:], math.MaxUint64) }), nil},
		{"entry header too small", change(func(b []byte) { le.PutUint32(b[first+4:], 56) }), nil},
		{"entry header not aligned", change(func(b []byte) { le.PutUint32(b[first+4:], 65) }), nil},
		{"entry header too long", change(func(b []byte) { le.PutUint32(b[first+4:], math.MaxUint32-7) }), nil},
		{"payload too long", change(func(b []byte) { le.PutUint64(b[first+8:], 1<<40) }), nil},
		{"payload of all ones", change(func(b []byte) { le.PutUint64(b[first+8:], math.MaxUint64) }), nil},
		{"architecture out of range", change(func(b []byte) { le.PutUint32(b[first+28:], 1<<20) }), nil},
		{"second entry damaged", change(func(b []byte) { le.PutUint64(b[second+8:], 1<<63) }), []string{"sm_80"}},
		{"identifier outside the header", change(func(b []byte) { le.PutUint32(b[second+36:], 1000) }), []string{"sm_80"}},
		{"identifier inside the fixed part", change(func(b []byte) { le.PutUint32(b[second+32:], 8) }), []string{"sm_80"}},
		{"options outside the header", change(func(b []byte) { le.PutUint32(b[second+20:], 4096) }), []string{"sm_80"}},
		{"options of all ones", change(func(b []byte) { le.PutUint32(b[second+20:], math.MaxUint32) }), []string{"sm_80"}},
		{"compressed size beyond the payload", change(func(b []byte) {
			le.PutUint64(b[second+40:], 0x2011)
			le.PutUint32(b[second+16:], 1<<30)
		}), []string{"sm_80"}},
		{"bytes behind the last entry", func() []byte {
			b := append(makeContainer(sass80), "trailing"...)
			le.PutUint64(b[8:], uint64(len(b)-16))
			return b
		}(), []string{"sm_80"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			harmless := map[string]bool{"nothing": true, "padding": true, "other bytes": true, "container without entries": true}[test.name]
			for format, wrap := range map[string]func([]byte) []byte{
				"fatbin": func(b []byte) []byte { return b },
				"ELF":    func(b []byte) []byte { return makeELF(progbits(".text", []byte("x")), progbits(".nv_fatbin", b)) },
			} {
				file := wrap(append(append(bytes.Clone(good), test.middle...), makeContainer(sass90a)...))
				got, err := scan(file)
				if harmless && err != nil || !harmless && !errors.Is(err, fatbin.ErrMalformed) {
					t.Errorf("%s: error %v", format, err)
				}
				want := append(append([]string{"sm_80", "compute_90"}, test.want...), "sm_90a")
				if test.name == "container too long" || test.name == "container size of all ones" {
					// Behind its header the entries look like nothing.
					want = []string{"sm_80", "compute_90", "sm_90a"}
				}
				if diff := cmp.Diff(want, names(got.Entries)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", format, diff)
				}
			}
		})
	}
}

// TestCut: a file that ends early is an error or, cut in padding, the same. No length of
// any file is read beyond.
func TestCut(t *testing.T) {
	for _, name := range []string{"nvcc130-speed.fatbin", "nvcc124.so", "nvcc130.a", "windows.dll", "clang22.o"} {
		data := golden(t, name)
		whole, err := scan(data)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(data); n += 1 + n/64 {
			got, err := scan(data[:n])
			if len(got.Entries) > len(whole.Entries) || len(got.ROCm) > len(whole.ROCm) {
				t.Errorf("%s cut at %d has more entries than the whole", name, n)
			}
			if err != nil && !errors.Is(err, fatbin.ErrMalformed) && !errors.Is(err, fatbin.ErrUnknownFormat) {
				t.Errorf("%s cut at %d: %v", name, n, err)
			}
		}
	}
}

// failing is a file with an error in the middle.
type failing struct {
	io.ReaderAt
	from int64
	err  error
}

func (f failing) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > f.from {
		return 0, f.err
	}
	return f.ReaderAt.ReadAt(b, off)
}

// TestReadError: an error of the disk is not damage of the file.
func TestReadError(t *testing.T) {
	broken := errors.New("input/output error")
	for _, name := range []string{"nvcc130-speed.fatbin", "nvcc124.so", "nvcc130.a", "windows.dll", "clang17.o", "clang22.o"} {
		data := golden(t, name)
		for _, from := range []int64{0, 10, 100, 1000, 2000} {
			_, err := fatbin.Scan(failing{bytes.NewReader(data), from, broken}, int64(len(data)))
			if !errors.Is(err, broken) || errors.Is(err, fatbin.ErrMalformed) {
				t.Errorf("%s from %d: %v", name, from, err)
			}
		}
	}
}

// TestELF: what is not to be read, and what cannot be.
func TestELF(t *testing.T) {
	le := binary.LittleEndian
	container := makeContainer(sass80)
	edit := func(b []byte, f func(b []byte)) []byte {
		f(b)
		return b
	}
	plain := func() []byte { return makeELF(progbits(".nv_fatbin", container)) }
	header := func(b []byte, i int) []byte { return b[int(le.Uint64(b[40:]))+64*i:] }
	for _, test := range []struct {
		name string
		file []byte
		want []string
		err  error
	}{
		{"plain", plain(), []string{"sm_80"}, nil},
		{"no device code", makeELF(progbits(".text", container)), nil, nil},
		{"separate debug file", makeELF(elfSection{name: ".nv_fatbin", kind: 8}, progbits(".debug_info", nil)), nil, nil},
		{"both sections", makeELF(progbits("__nv_relfatbin", container), progbits(".nv_fatbin", makeContainer(ptx90))), []string{"sm_80", "compute_90"}, nil},
		{"same section twice", makeELF(progbits(".nv_fatbin", container), progbits(".nv_fatbin", container)), []string{"sm_80", "sm_80"}, nil},
		{"compressed section", makeELF(elfSection{".nv_fatbin", 1, 0x800, container}), nil, fatbin.ErrNotSupported},
		{"no section headers", edit(plain(), func(b []byte) { le.PutUint64(b[40:], 0) }), nil, fatbin.ErrNotSupported},
		{"section headers outside", edit(plain(), func(b []byte) { le.PutUint64(b[40:], 1<<40) }), nil, fatbin.ErrMalformed},
		{"section headers of another size", edit(plain(), func(b []byte) { le.PutUint16(b[58:], 40) }), nil, fatbin.ErrMalformed},
		{"too many sections", edit(plain(), func(b []byte) { le.PutUint16(b[60:], 60000) }), nil, fatbin.ErrMalformed},
		{"count in the first section", edit(plain(), func(b []byte) {
			le.PutUint64(header(b, 0)[32:], uint64(le.Uint16(b[60:])))
			le.PutUint32(header(b, 0)[40:], uint32(le.Uint16(b[62:])))
			le.PutUint16(b[60:], 0)
			le.PutUint16(b[62:], 0xffff)
		}), []string{"sm_80"}, nil},
		{"huge count in the first section", edit(plain(), func(b []byte) {
			le.PutUint64(header(b, 0)[32:], math.MaxUint64)
			le.PutUint16(b[60:], 0)
		}), nil, fatbin.ErrMalformed},
		{"names nowhere", edit(plain(), func(b []byte) { le.PutUint16(b[62:], 77) }), nil, fatbin.ErrMalformed},
		{"name outside the table", edit(plain(), func(b []byte) { le.PutUint32(header(b, 1), 1<<30) }), nil, fatbin.ErrMalformed},
		{"section outside the file", edit(plain(), func(b []byte) { le.PutUint64(header(b, 1)[24:], 1<<50) }), nil, fatbin.ErrMalformed},
		{"section of all ones", edit(plain(), func(b []byte) { le.PutUint64(header(b, 1)[32:], math.MaxUint64) }), nil, fatbin.ErrMalformed},
		{"sections overlap", edit(makeELF(progbits(".nv_fatbin", container), progbits("__nv_relfatbin", container)), func(b []byte) {
			copy(header(b, 2)[24:40], header(b, 1)[24:40])
		}), nil, fatbin.ErrMalformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := scan(test.file)
			if !errors.Is(err, test.err) || test.err == nil && err != nil {
				t.Errorf("error %v, want %v", err, test.err)
			}
			if diff := cmp.Diff(test.want, names(got.Entries)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestELF32: both classes and byte orders are files without surprise.
func TestELF32(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		data := append([]byte{}, makeContainer(sass80)...)
		table := ".nv_fatbin\x00.shstrtab\x00"
		file := []byte{0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		if order == binary.AppendByteOrder(binary.BigEndian) {
			file[5] = 2
		}
		file = order.AppendUint16(file, 3)
		file = order.AppendUint16(file, 40)
		for _, v := range []int{1, 0, 0, 56 + len(data) + 24, 0} {
			file = order.AppendUint32(file, uint32(v))
		}
		for _, v := range []int{52, 0, 0, 40, 3, 2} {
			file = order.AppendUint16(file, uint16(v))
		}
		file = append(append(file, 0, 0, 0, 0), data...)
		file = append(append(file, table...), 0, 0, 0)
		for _, s := range [][10]int{{}, {0, 1, 2, 0, 56, len(data)}, {11, 3, 0, 0, 56 + len(data), len(table)}} {
			for _, v := range s {
				file = order.AppendUint32(file, uint32(v))
			}
		}
		got, err := scan(file)
		if err != nil {
			t.Errorf("%v: %v", order, err)
		}
		if diff := cmp.Diff([]string{"sm_80"}, names(got.Entries)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", order, diff)
		}
	}
}

// member writes a member of an archive under a name as it stands in the header.
func member(name string, data []byte) []byte {
	b := fmt.Appendf(nil, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", name, 0, 0, 0, 0o644, len(data))
	b = append(b, data...)
	if len(data)%2 != 0 {
		b = append(b, '\n')
	}
	return b
}

func TestArchive(t *testing.T) {
	object := makeELF(progbits(".nv_fatbin", makeContainer(sass80)))
	damaged := makeELF(progbits(".nv_fatbin", makeContainer(sass80)))
	binary.LittleEndian.PutUint64(damaged[40:], 1<<40)
	bsd := func(name string, data []byte) []byte {
		return member(fmt.Sprintf("#1/%d", len(name)), append([]byte(name), data...))
	}
	for _, test := range []struct {
		name  string
		parts [][]byte
		want  []string
		err   error
	}{
		{"empty", nil, nil, nil},
		{"GNU", [][]byte{
			member("/", []byte("symbols")), member("//", []byte("first_long_name.o/\nsecond_long_name.o/\n")),
			member("/0", object), member("/19", object), member("short.o/", object),
		}, []string{"first_long_name.o:sm_80", "second_long_name.o:sm_80", "short.o:sm_80"}, nil},
		{"GNU, 64-bit symbols", [][]byte{member("/SYM64/", []byte("odd")), member("a.o/", object)}, []string{"a.o:sm_80"}, nil},
		{"BSD", [][]byte{
			bsd("__.SYMDEF\x00\x00\x00", []byte("symbols")), bsd("a name with blanks.o\x00\x00\x00\x00", object), member("short.o", object),
		}, []string{"a name with blanks.o:sm_80", "short.o:sm_80"}, nil},
		{"no objects", [][]byte{member("README/", []byte("text")), member("empty/", nil)}, nil, nil},
		{"damaged member", [][]byte{member("a.o/", object), member("b.o/", damaged), member("c.o/", object)}, []string{"a.o:sm_80", "c.o:sm_80"}, fatbin.ErrMalformed},
		{"size beyond the end", [][]byte{member("a.o/", object), member("b.o/", object)[:100]}, []string{"a.o:sm_80"}, fatbin.ErrMalformed},
		{"long name without a table", [][]byte{member("/12", object)}, nil, fatbin.ErrMalformed},
		{"BSD name longer than the member", [][]byte{member("#1/99", []byte("x"))}, nil, fatbin.ErrMalformed},
		{"not a header", [][]byte{bytes.Repeat([]byte("x"), 70)}, nil, fatbin.ErrMalformed},
		{"padding at the end", [][]byte{member("a.o/", object), []byte("\n")}, []string{"a.o:sm_80"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := append([]byte("!<arch>\n"), bytes.Join(test.parts, nil)...)
			contents, err := scan(file)
			if !errors.Is(err, test.err) || test.err == nil && err != nil {
				t.Errorf("error %v, want %v", err, test.err)
			}
			var got []string
			for _, e := range contents.Entries {
				got = append(got, e.Member+":"+e.Target())
				if !bytes.HasPrefix(file[e.Offset:], sass80.payload) {
					t.Errorf("no payload at %d", e.Offset)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := scan([]byte("!<thin>\nanything")); !errors.Is(err, fatbin.ErrNotSupported) {
		t.Errorf("thin archive: %v", err)
	}
}

// TestLibrary: static libraries of Windows hold COFF objects.
func TestLibrary(t *testing.T) {
	file := append([]byte("!<arch>\n"), member("a.obj/", golden(t, "windows.obj"))...)
	got, err := scan(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"sm_80", "compute_80", "sm_120f", "compute_120f"}, names(got.Entries)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// zeros is a file that is too large to exist: zeros, but for what is laid over them.
type zeros struct {
	size  int64
	parts map[int64][]byte // at multiples of 4096, no longer than that
	read  int64
	calls int
}

func (z *zeros) ReadAt(b []byte, off int64) (int, error) {
	z.calls++
	n := int(min(int64(len(b)), max(z.size-off, 0)))
	clear(b[:n])
	for at := off &^ 4095; at < off+int64(n); at += 4096 {
		part := z.parts[at]
		if lo, hi := max(at, off), min(at+int64(len(part)), off+int64(n)); lo < hi {
			copy(b[lo-off:], part[lo-at:hi-at])
		}
	}
	z.read += int64(n)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// TestLimits: sizes that a header claims cost no memory, and repetition has an end.
func TestLimits(t *testing.T) {
	le := binary.LittleEndian
	hugeELF := func(f func(b []byte)) *zeros {
		b := makeELF(progbits(".nv_fatbin", makeContainer(sass80)))
		f(b[le.Uint64(b[40:])+64:])
		return &zeros{size: 1 << 50, parts: map[int64][]byte{0: b}}
	}
	bundle := compressBundle(t, makeBundle(sample...), 3, fatbin.Zstd)
	le.PutUint64(bundle[8:], 1<<40)  // the whole
	le.PutUint64(bundle[16:], 1<<50) // before compression
	for _, test := range []struct {
		name    string
		file    io.ReaderAt
		size    int64
		entries int // at most; all if 0
		fails   bool
	}{
		{"bundle of a terabyte", &zeros{size: 1 << 40, parts: map[int64][]byte{0: bundle}}, 1 << 40, 6, false},
		{"section names of a petabyte", hugeELF(func(b []byte) { le.PutUint64(b[64+32:], 1<<49) }), 1 << 50, 1, false},
		{"container of a petabyte", &zeros{size: 1 << 50, parts: map[int64][]byte{0: func() []byte {
			b := makeContainer(sass80)
			le.PutUint64(b[8:], 1<<50-16)
			le.PutUint64(b[16+8:], 1<<50-16-64)
			return b
		}()}}, 1 << 50, 1, false},
		{"nothing but container magics", repeat(1<<26, []byte{0x50, 0xed, 0x55, 0xba, 0xff, 0xff, 0xff, 0xff}), 1 << 26, 0, true},
		{"nothing but empty containers", repeat(1<<26, makeContainer()), 1 << 26, 0, true},
		{"nothing but entries", repeat(1<<26, makeContainer(image{kind: 2, arch: 80})), 1 << 26, fatbin.MaxEntries, true},
		{"nothing but compressed bundles", repeat(1<<26, []byte("CCOB\x03\x00\x01\x00\xff\xff\xff\xff")), 1 << 26, 0, true},
		{"nothing but bundles", repeat(1<<26, []byte("__CLANG_OFFLOAD_BUNDLE__\xff\xff\xff\xff\xff\xff\xff\xff")), 1 << 26, 0, true},
		{"nothing but empty bundles", repeat(1<<26, makeBundle()), 1 << 26, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var (
				got fatbin.Contents
				err error
			)
			used := kilntest.Allocated(func() { got, err = fatbin.Scan(test.file, test.size) })
			if test.fails != errors.Is(err, fatbin.ErrMalformed) || !test.fails && err != nil {
				t.Errorf("error %v", err)
			}
			if n := len(got.Entries) + len(got.ROCm); n != test.entries {
				t.Errorf("%d entries, want %d", n, test.entries)
			}
			// Growing slices to MaxEntries takes the most.
			if limit := uint64(32 << 20); test.entries < 100 && used > limit || used > 8*limit {
				t.Errorf("%d bytes allocated", used)
			}
		})
	}
}

// repeated is a file of one part, over and over.
type repeated struct{ page []byte }

func repeat(_ int64, part []byte) repeated {
	return repeated{bytes.Repeat(part, (128<<10)/len(part))}
}

func (r repeated) ReadAt(b []byte, off int64) (int, error) {
	for n := 0; n < len(b); {
		n += copy(b[n:], r.page[(off+int64(n))%int64(len(r.page)):])
	}
	return len(b), nil
}

// BenchmarkScan reads a library of a gigabyte with as many images as libtorch_cuda has,
// and reports what part of the file it looks at.
func BenchmarkScan(b *testing.B) {
	le := binary.LittleEndian
	const size, images = 1 << 30, 2800
	const each = (size - 8192) / images &^ 4095
	head := makeELF(progbits(".text", nil), progbits(".nv_fatbin", nil))
	section := head[le.Uint64(head[40:])+2*64:]
	le.PutUint64(section[24:], 4096)
	le.PutUint64(section[32:], images*each)
	file := &zeros{size: size, parts: map[int64][]byte{0: head}}
	for i := range int64(images) {
		c := makeContainer(sass80)[:16+64]
		le.PutUint64(c[8:], each-16)
		le.PutUint64(c[16+8:], each-16-64)
		file.parts[4096+i*each] = c
	}
	b.ReportAllocs()
	for b.Loop() {
		file.read, file.calls = 0, 0
		got, err := fatbin.Scan(file, size)
		if err != nil || len(got.Entries) != images {
			b.Fatalf("%d entries, %v", len(got.Entries), err)
		}
	}
	b.ReportMetric(float64(file.read)/size, "read/size")
	b.ReportMetric(float64(file.calls)/images, "reads/entry")
}
