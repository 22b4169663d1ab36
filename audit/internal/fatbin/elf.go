package fatbin

import (
	"encoding/binary"
	"fmt"
	"io"
)

const (
	machineCUDA = 190

	sectionRela       = 4     // type: relocations with addends
	sectionNobits     = 8     // type: no bytes in the file, as in separate debug files
	sectionAllocated  = 0x2   // flag
	sectionCompressed = 0x800 // flag
	extendedIndex     = 0xffff

	// maxELFSections is far above what -ffunction-sections makes of the largest sources.
	maxELFSections = 1 << 22
	maxSectionName = 512
)

// elfSection is a section header of either class.
type elfSection struct {
	name, kind, link uint32
	flags, addr      uint64
	off, size        uint64
}

// elfFile reads section headers one at a time: an object may have a hundred thousand, of
// which three are of interest.
type elfFile struct {
	order   binary.ByteOrder
	is64    bool
	machine uint16
	osABI   byte
	flags   uint32

	size    int64 // of the file
	table   int64 // offset of the section headers
	stride  int64
	count   int64
	headers window
	names   window
}

// openELF reads the file header. A file without section headers has a count of 0.
func openELF(r io.ReaderAt, size int64) (*elfFile, error) {
	head := make([]byte, min(size, 64))
	if err := readAt(r, head, 0); err != nil {
		return nil, err
	}
	if len(head) < 52 || string(head[:4]) != "\x7fELF" {
		return nil, malformed("ELF header of %d bytes", len(head))
	}
	f := &elfFile{size: size, osABI: head[7]}
	switch head[4] {
	case 1:
	case 2:
		f.is64 = true
		if len(head) < 64 {
			return nil, malformed("ELF header of %d bytes", len(head))
		}
	default:
		return nil, malformed("ELF class %d", head[4])
	}
	switch head[5] {
	case 1:
		f.order = binary.LittleEndian
	case 2:
		f.order = binary.BigEndian
	default:
		return nil, malformed("ELF byte order %d", head[5])
	}
	f.machine = f.order.Uint16(head[18:])
	var table uint64
	var rest []byte // e_shentsize, e_shnum, e_shstrndx
	if f.is64 {
		table, f.flags, rest = f.order.Uint64(head[40:]), f.order.Uint32(head[48:]), head[58:]
	} else {
		table, f.flags, rest = uint64(f.order.Uint32(head[32:])), f.order.Uint32(head[36:]), head[46:]
	}
	f.stride = int64(f.order.Uint16(rest))
	f.count = int64(f.order.Uint16(rest[2:]))
	nameIndex := uint32(f.order.Uint16(rest[4:]))
	if table == 0 {
		f.count = 0
		return f, nil
	}
	want := int64(40)
	if f.is64 {
		want = 64
	}
	if table > uint64(size) || f.stride != want || size-int64(table) < f.stride {
		return nil, malformed("section headers of %d bytes at offset %d of %d", f.stride, table, size)
	}
	f.table = int64(table)
	f.headers = window{r: r, end: size}

	// Counts that do not fit in the file header are in the first section header.
	if f.count == 0 || nameIndex == extendedIndex {
		f0, err := f.section(0)
		if err != nil {
			return nil, err
		}
		if f.count == 0 {
			f.count = int64(min(f0.size, maxELFSections+1))
		}
		if nameIndex == extendedIndex {
			nameIndex = f0.link
		}
	}
	if f.count > maxELFSections || f.count > (size-f.table)/f.stride {
		return nil, malformed("%d sections in a file of %d bytes", f.count, size)
	}
	if f.count == 0 {
		return f, nil
	}
	if int64(nameIndex) >= f.count {
		return nil, malformed("section names in section %d of %d", nameIndex, f.count)
	}
	names, err := f.section(int64(nameIndex))
	if err != nil {
		return nil, err
	}
	if !f.inFile(names) {
		return nil, malformed("section names of %d bytes at offset %d of %d", names.size, names.off, size)
	}
	f.names = window{r: io.NewSectionReader(r, int64(names.off), int64(names.size)), end: int64(names.size)}
	return f, nil
}

// section reads a section header.
func (f *elfFile) section(i int64) (elfSection, error) {
	b, err := f.headers.bytes(f.table+i*f.stride, int(f.stride))
	if err != nil {
		return elfSection{}, err
	}
	u32, u64 := f.order.Uint32, f.order.Uint64
	if f.is64 {
		return elfSection{
			name: u32(b), kind: u32(b[4:]), flags: u64(b[8:]), addr: u64(b[16:]),
			off: u64(b[24:]), size: u64(b[32:]), link: u32(b[40:]),
		}, nil
	}
	return elfSection{
		name: u32(b), kind: u32(b[4:]), flags: uint64(u32(b[8:])), addr: uint64(u32(b[12:])),
		off: uint64(u32(b[16:])), size: uint64(u32(b[20:])), link: u32(b[24:]),
	}, nil
}

func (f *elfFile) name(s elfSection) (string, error) {
	return f.names.name(int64(s.name), maxSectionName)
}

func (f *elfFile) inFile(s elfSection) bool {
	return s.off <= uint64(f.size) && s.size <= uint64(f.size)-s.off
}

// parseELF finds the sections of interest of a host file.
func parseELF(r io.ReaderAt, size int64) (*object, error) {
	f, err := openELF(r, size)
	if err != nil {
		return nil, err
	}
	if f.count == 0 {
		return nil, notSupported("ELF file without section headers")
	}
	obj := &object{}
	for i := range f.count {
		s, err := f.section(i)
		if err != nil {
			return nil, err
		}
		if s.kind == sectionNobits || s.kind == 0 {
			continue
		}
		kept := section{off: int64(s.off), size: int64(s.size), addr: s.addr}
		if s.kind == sectionRela && s.flags&sectionAllocated != 0 && f.is64 && f.inFile(s) && len(obj.relocations) < 4 {
			obj.relocations = append(obj.relocations, kept)
			continue
		}
		name, err := f.name(s)
		if err != nil {
			return nil, fmt.Errorf("name of section %d: %w", i, err)
		}
		if kept.name = interesting(name, false); kept.name == "" {
			continue
		}
		if s.flags&sectionCompressed != 0 {
			return nil, notSupported("compressed section %s", kept.name)
		}
		if !f.inFile(s) {
			return nil, malformed("section %s: %d bytes at offset %d of %d", kept.name, s.size, s.off, size)
		}
		if err := obj.addSection(kept); err != nil {
			return nil, err
		}
	}
	return obj, obj.checkOverlap()
}
