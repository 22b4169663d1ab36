package fatbin

import (
	"cmp"
	"encoding/binary"
	"io"
	"slices"
	"strings"
)

// Names of sections, as ELF has them.
const (
	sectionFatbin      = ".nv_fatbin"
	sectionRelocatable = "__nv_relfatbin"
	sectionWrappers    = ".nvFatBinSegment"
	sectionHIP         = ".hip_fatbin"
)

// maxSections bounds the sections of interest in one object. Linked files have one of
// each name.
const maxSections = 4096

// A section that is of interest here.
type section struct {
	name      string
	off, size int64
	addr      uint64
}

// An object is a host file with sections: an ELF or PE file.
type object struct {
	sections []section

	// relocations are tables in which the address of a container is found if it is not
	// in its wrapper.
	relocations []section

	linked     map[uint64]bool
	linkedErr  error
	linkedRead bool
}

// interesting returns the full name of a section to be kept, or "". Windows cuts names to
// eight bytes in images and sorts parts of a section by what follows a dollar sign.
func interesting(name string, windows bool) string {
	if windows {
		name, _, _ = strings.Cut(name, "$")
	}
	for _, full := range []string{sectionFatbin, sectionRelocatable, sectionWrappers, sectionHIP} {
		if name == full || windows && name == full[:8] {
			return full
		}
	}
	if strings.HasPrefix(name, bundleMagic) {
		return name
	}
	return ""
}

// addSection keeps a section. Its place in the file has been checked.
func (o *object) addSection(sec section) error {
	if sec.size == 0 {
		return nil
	}
	if len(o.sections) >= maxSections {
		return malformed("more than %d sections with device code", maxSections)
	}
	o.sections = append(o.sections, sec)
	return nil
}

// checkOverlap makes sure that no byte is walked twice.
func (o *object) checkOverlap() error {
	sorted := slices.Clone(o.sections)
	slices.SortFunc(sorted, func(a, b section) int { return cmp.Compare(a.off, b.off) })
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; b.off < a.off+a.size {
			return malformed("sections %s and %s overlap", a.name, b.name)
		}
	}
	return nil
}

// Wrappers, the elements of .nvFatBinSegment: 0 magic, 4 version, 8 address of the
// container, 16 address of a list.
const (
	wrapperMagic  = 0x466243b1
	wrapperSize   = 24
	wrapperLinked = 2 // version of the device link step
)

// deviceLinked returns the addresses of containers that were made by the device link
// step, according to their wrappers.
func (o *object) deviceLinked(r io.ReaderAt) (map[uint64]bool, error) {
	if !o.linkedRead {
		o.linkedRead = true
		o.linked, o.linkedErr = o.readWrappers(r)
	}
	err := o.linkedErr
	o.linkedErr = nil // reported once
	return o.linked, err
}

func (o *object) readWrappers(r io.ReaderAt) (map[uint64]bool, error) {
	linked := map[uint64]bool{}
	relocated := map[uint64]bool{} // places whose value is in a relocation table
	for _, sec := range o.sections {
		if sec.name != sectionWrappers {
			continue
		}
		table := window{r: r, end: sec.off + sec.size}
		for off := int64(0); off+wrapperSize <= sec.size; off += wrapperSize {
			w, err := table.bytes(sec.off+off, wrapperSize)
			if err != nil {
				return linked, err
			}
			if binary.LittleEndian.Uint32(w) != wrapperMagic || binary.LittleEndian.Uint32(w[4:]) != wrapperLinked {
				continue
			}
			if len(linked)+len(relocated) >= MaxEntries {
				return linked, malformed("more than %d device link wrappers", MaxEntries)
			}
			if addr := binary.LittleEndian.Uint64(w[8:]); addr != 0 {
				linked[addr] = true
			} else if sec.addr != 0 {
				relocated[sec.addr+uint64(off)+8] = true
			}
		}
	}
	if len(relocated) == 0 {
		return linked, nil
	}
	// Some linkers leave the address to the relocation alone, which has the place, a type
	// and the address.
	for _, sec := range o.relocations {
		table := window{r: r, end: sec.off + sec.size}
		for off := int64(0); off+24 <= sec.size; off += 24 {
			entry, err := table.bytes(sec.off+off, 24)
			if err != nil {
				return linked, err
			}
			if relocated[binary.LittleEndian.Uint64(entry)] {
				linked[binary.LittleEndian.Uint64(entry[16:])] = true
			}
		}
	}
	return linked, nil
}

// A window reads small pieces of a file that lie close together through one buffer.
type window struct {
	r    io.ReaderAt
	end  int64 // no byte at or behind it is read
	buf  []byte
	off  int64
	size int // of the buffer; 16 KiB if 0
}

// bytes returns n bytes at off, valid until the next call.
func (w *window) bytes(off int64, n int) ([]byte, error) {
	if off < 0 || int64(n) > w.end-off {
		return nil, malformed("%d bytes at offset %d of %d", n, off, w.end)
	}
	if off < w.off || off+int64(n) > w.off+int64(len(w.buf)) {
		size := w.size
		if size == 0 {
			size = 16 << 10
		}
		size = int(min(int64(max(size, n)), w.end-off))
		if cap(w.buf) < size {
			w.buf = make([]byte, size)
		}
		w.buf, w.off = w.buf[:size], off
		if err := readAt(w.r, w.buf, off); err != nil {
			w.buf = w.buf[:0]
			return nil, err
		}
	}
	return w.buf[off-w.off:][:n], nil
}

// name returns the string at off that ends with a NUL byte, at most limit bytes of it.
func (w *window) name(off int64, limit int) (string, error) {
	b, err := w.bytes(off, int(min(int64(limit), max(w.end-off, 0))))
	if err != nil {
		return "", err
	}
	for i, c := range b {
		if c == 0 {
			return string(b[:i]), nil
		}
	}
	return string(b), nil
}
