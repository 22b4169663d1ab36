package fatbin

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
)

const (
	// cubinABI8 is the OS ABI of cubins of toolkit 13 on; older ones have 0x33.
	cubinABI8 = 0x41

	// cubinArchSpecific is the flag of older toolkits for the suffix "a".
	cubinArchSpecific = 0x800

	// maxNotes bounds what is read of the sections that tell a suffix.
	maxNotes = 64 << 10
)

// readCubin describes a bare cubin: an ELF file of machine code, as nvcc -cubin writes it. The
// suffix comes from the file header before toolkit 13 and from there on from what ptxas noted about
// its target; a cubin without notes has none.
func readCubin(r io.ReaderAt, size int64) (Entry, error) {
	f, err := openELF(r, size)
	if err != nil {
		return Entry{}, err
	}
	if f.machine != machineCUDA {
		return Entry{}, fmt.Errorf("%w: ELF machine %d, a cubin has %d", ErrUnknownFormat, f.machine, machineCUDA)
	}
	e := Entry{Kind: SASS, Size: size, RawSize: size}
	if f.osABI != cubinABI8 {
		e.Arch = int(f.flags & 0xff)
		if f.flags&cubinArchSpecific != 0 {
			e.Suffix = "a"
		}
		return e, nil
	}
	e.Arch = int(f.flags >> 8 & 0xff)
	for i := range f.count {
		s, err := f.section(i)
		if err != nil {
			return Entry{}, err
		}
		if s.kind == 0 || s.kind == sectionNobits {
			continue
		}
		name, err := f.name(s)
		if err != nil {
			return Entry{}, fmt.Errorf("name of section %d: %w", i, err)
		}
		if name != ".note.nv.tkinfo" && name != ".nv.compat" {
			continue
		}
		if !f.inFile(s) || s.size > maxNotes {
			return Entry{}, malformed("section %s: %d bytes at offset %d of %d", name, s.size, s.off, size)
		}
		b := make([]byte, s.size)
		if err := readAt(r, b, int64(s.off)); err != nil {
			return Entry{}, err
		}
		if name == ".nv.compat" {
			if e.Suffix == "" && archSpecific(b) {
				e.Suffix = "a"
			}
			continue
		}
		// The note ends with the command line of ptxas: "-arch sm_100f -m 64".
		want := "sm_" + strconv.Itoa(e.Arch)
		if _, rest, ok := bytes.Cut(b, []byte(want)); ok && len(rest) > 0 && (rest[0] == 'a' || rest[0] == 'f') {
			e.Suffix = string(rest[:1])
		}
	}
	return e, nil
}

// archSpecific reads the attributes of .nv.compat: a byte that says how long the value is
// (2: one byte, 3: two, 4: a length of two bytes and the value), a byte that names the
// attribute, the value. Attribute 9 is 1 in code with the suffix "a".
func archSpecific(b []byte) bool {
	for len(b) >= 4 {
		if b[0] == 2 && b[1] == 9 {
			return b[2] == 1
		}
		n := 4
		if b[0] == 4 {
			n += int(b[2]) | int(b[3])<<8
		}
		if n > len(b) {
			break
		}
		b = b[n:]
	}
	return false
}
