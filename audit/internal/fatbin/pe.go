package fatbin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
)

const (
	coffHeader  = 20
	coffSection = 40
	coffSymbol  = 18

	coffUninitialized = 0x80 // flag of a section without bytes in the file
)

// isCOFF reports whether a file of the given size begins like an object file for x86-64 or
// ARM64. Such files have no magic, so all of the header has to be plausible.
func isCOFF(head []byte, size int64) bool {
	if len(head) < coffHeader {
		return false
	}
	le := binary.LittleEndian
	machine, sections := le.Uint16(head), int64(le.Uint16(head[2:]))
	symbols, symbolCount := int64(le.Uint32(head[8:])), int64(le.Uint32(head[12:]))
	return (machine == 0x8664 || machine == 0xaa64) &&
		sections > 0 && coffHeader+sections*coffSection <= size &&
		symbols+symbolCount*coffSymbol <= size &&
		le.Uint16(head[16:]) == 0 // the optional header is for images
}

// parsePE finds the sections of interest of a PE image or of a COFF object.
func parsePE(r io.ReaderAt, size int64, image bool) (*object, error) {
	le := binary.LittleEndian
	file := window{r: r, end: size}
	var at int64
	if image {
		b, err := file.bytes(0x3c, 4)
		if err != nil {
			return nil, fmt.Errorf("DOS header: %w", err)
		}
		at = int64(le.Uint32(b))
		if b, err = file.bytes(at, 4); err != nil {
			return nil, fmt.Errorf("PE header: %w", err)
		}
		if string(b) != "PE\x00\x00" {
			return nil, malformed("no PE header at offset %d", at)
		}
		at += 4
	}
	head, err := file.bytes(at, coffHeader)
	if err != nil {
		return nil, fmt.Errorf("COFF header: %w", err)
	}
	count := int64(le.Uint16(head[2:]))
	symbols, symbolCount := int64(le.Uint32(head[8:])), int64(le.Uint32(head[12:]))
	optional := int64(le.Uint16(head[16:]))
	at += coffHeader

	// Addresses in the file are those of an image at its preferred place.
	var imageBase uint64
	if image {
		b, err := file.bytes(at, int(optional))
		if err != nil {
			return nil, fmt.Errorf("optional header: %w", err)
		}
		switch {
		case len(b) >= 32 && le.Uint16(b) == 0x20b:
			imageBase = le.Uint64(b[24:])
		case len(b) >= 32 && le.Uint16(b) == 0x10b:
			imageBase = uint64(le.Uint32(b[28:]))
		default:
			return nil, malformed("optional header of %d bytes", optional)
		}
	}
	at += optional

	// Names of more than eight bytes are in the string table behind the symbols.
	var names window
	if symbols != 0 {
		if table := symbols + symbolCount*coffSymbol; table < size {
			names = window{r: io.NewSectionReader(r, table, size-table), end: size - table}
		}
	}
	obj := &object{}
	for i := range count {
		b, err := file.bytes(at+i*coffSection, coffSection)
		if err != nil {
			return nil, fmt.Errorf("header of section %d: %w", i, err)
		}
		name := string(bytes.TrimRight(b[:8], "\x00"))
		kept := section{
			addr: imageBase + uint64(le.Uint32(b[12:])),
			size: int64(le.Uint32(b[16:])),
			off:  int64(le.Uint32(b[20:])),
		}
		if le.Uint32(b[36:])&coffUninitialized != 0 {
			continue
		}
		// Bytes behind the virtual size pad the section to a boundary of the file.
		if virtual := int64(le.Uint32(b[8:])); image && virtual > 0 {
			kept.size = min(kept.size, virtual)
		}
		if off, ok := longName(name); ok && names.r != nil {
			if name, err = names.name(off, maxSectionName); err != nil {
				return nil, fmt.Errorf("name of section %d: %w", i, err)
			}
		}
		if kept.name = interesting(name, true); kept.name == "" {
			continue
		}
		if kept.off > size || kept.size > size-kept.off {
			return nil, malformed("section %s: %d bytes at offset %d of %d", kept.name, kept.size, kept.off, size)
		}
		if err := obj.addSection(kept); err != nil {
			return nil, err
		}
	}
	return obj, obj.checkOverlap()
}

// longName parses "/123", an offset in the string table.
func longName(name string) (int64, bool) {
	if len(name) < 2 || name[0] != '/' {
		return 0, false
	}
	off, err := strconv.ParseUint(name[1:], 10, 31)
	return int64(off), err == nil
}
