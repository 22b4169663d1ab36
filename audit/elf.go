package audit

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Bounds on what is read of one ELF file. The largest libraries in use, those of torch, stay
// below a fifth of each.
const (
	maxProgramHeaders = 4 << 10
	maxSections       = 64 << 10
	maxDynamic        = 64 << 10
	maxSymbols        = 2 << 20
	maxStrings        = 64 << 20
	maxVersions       = 64 << 10
)

// errNotELF says that a file is no ELF file at all.
var errNotELF = errors.New("not an ELF file")

// An elfFile is what the audit needs of an ELF file: what its dynamic loader would look at,
// and a few sections that say how it was built. Everything is taken from the segments, as the
// loader does; section headers, which may be stripped, only help.
type elfFile struct {
	class   elf.Class
	order   binary.ByteOrder
	machine elf.Machine
	kind    elf.Type
	// complete is false for files of another class or byte order than 64-bit little-endian, of
	// which only the fields above are read.
	complete bool

	interp    string
	needed    []string
	soname    string
	rpath     []string
	runpath   []string
	bindNow   bool
	staticTLS bool
	execStack bool
	x86Level  int // 1 to 4, 0 if not said
	debugSize int64
	sections  []elfSection
	versions  []versionNeed
	symbols   []elfSymbol
}

type elfSection struct {
	name         string
	kind         elf.SectionType
	flags        elf.SectionFlag
	offset, size int64
}

// A versionNeed is one symbol version that a file wants from a library.
type versionNeed struct{ file, version string }

// An elfSymbol is one entry of the dynamic symbol table.
type elfSymbol struct {
	name string
	// file is the library that must have the symbol, if it is undefined and has a version.
	file    string
	bind    uint8
	defined bool
}

// strong says that the loader refuses the file if no library defines the symbol.
func (s *elfSymbol) strong() bool { return !s.defined && elf.SymBind(s.bind) == elf.STB_GLOBAL }

// exported says whether other files can use the symbol.
func (s *elfSymbol) exported() bool {
	return s.defined && s.name != "" && elf.SymBind(s.bind) != elf.STB_LOCAL
}

// dynamic are the entries of the dynamic section that say where the tables are.
type dynamic struct {
	strtab, strsize, symtab, hash, gnuHash uint64
	versym, verneed, verneedNum            uint64
	verdef, verdefNum                      uint64
	needed, rpath, runpath                 []uint64
	soname                                 uint64
	hasSoname                              bool
}

// elfReader reads one file.
type elfReader struct {
	r     io.ReaderAt
	size  int64
	file  *elfFile
	loads []elf.Prog64
	dyn   dynamic
	strs  string
}

// readELF reads an ELF file of the given size. It reads the headers and the tables of the
// dynamic loader, never the code, so the size of the file does not matter. The error is
// errNotELF, or says what is malformed.
func readELF(r io.ReaderAt, size int64) (*elfFile, error) {
	var ident [64]byte
	n, err := r.ReadAt(ident[:min(size, 64)], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if n < elf.EI_NIDENT || string(ident[:4]) != elf.ELFMAG {
		return nil, errNotELF
	}
	f := &elfFile{class: elf.Class(ident[elf.EI_CLASS]), order: binary.LittleEndian}
	if elf.Data(ident[elf.EI_DATA]) == elf.ELFDATA2MSB {
		f.order = binary.BigEndian
	}
	if n < 20 {
		return nil, errors.New("ELF header is cut off")
	}
	f.kind, f.machine = elf.Type(f.order.Uint16(ident[16:])), elf.Machine(f.order.Uint16(ident[18:]))
	if f.class != elf.ELFCLASS64 || f.order != binary.LittleEndian {
		return f, nil
	}
	if n < 64 {
		return nil, errors.New("ELF header is cut off")
	}
	f.complete = true
	e := &elfReader{r: r, size: size, file: f}
	var header elf.Header64
	if _, err := binary.Decode(ident[:], binary.LittleEndian, &header); err != nil {
		return nil, err
	}
	if err := e.segments(&header); err != nil {
		return nil, err
	}
	e.readSections(&header)
	return f, nil
}

// bytes reads n bytes at an offset of the file; what names them in the error.
func (e *elfReader) bytes(what string, offset, n uint64, limit uint64) ([]byte, error) {
	if n > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", what, n, limit)
	}
	if offset > uint64(e.size) || n > uint64(e.size)-offset {
		return nil, fmt.Errorf("%s lies outside the file", what)
	}
	b := make([]byte, n)
	if _, err := e.r.ReadAt(b, int64(offset)); err != nil && (n > 0 || !errors.Is(err, io.EOF)) {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return b, nil
}

// segments reads the program headers and what they lead to.
func (e *elfReader) segments(h *elf.Header64) error {
	if h.Phnum == 0 {
		return nil // an object file
	}
	if h.Phentsize != 56 || h.Phnum > maxProgramHeaders {
		return fmt.Errorf("%d program headers of %d bytes", h.Phnum, h.Phentsize)
	}
	raw, err := e.bytes("program header table", h.Phoff, uint64(h.Phnum)*56, maxProgramHeaders*56)
	if err != nil {
		return err
	}
	progs := make([]elf.Prog64, h.Phnum)
	if _, err := binary.Decode(raw, binary.LittleEndian, progs); err != nil {
		return err
	}
	var dyn *elf.Prog64
	for i := range progs {
		p := &progs[i]
		switch elf.ProgType(p.Type) {
		case elf.PT_LOAD:
			e.loads = append(e.loads, *p)
		case elf.PT_DYNAMIC:
			if dyn == nil {
				dyn = p
			}
		case elf.PT_GNU_STACK:
			e.file.execStack = elf.ProgFlag(p.Flags)&elf.PF_X != 0
		case elf.PT_INTERP:
			if b, err := e.bytes("interpreter", p.Off, p.Filesz, 4096); err == nil {
				e.file.interp = cString(b)
			}
		case elf.PT_NOTE, elf.PT_GNU_PROPERTY:
			if b, err := e.bytes("note", p.Off, p.Filesz, 1<<20); err == nil && e.file.machine == elf.EM_X86_64 {
				e.file.x86Level = max(e.file.x86Level, x86Level(b, p.Align))
			}
		}
	}
	if dyn == nil {
		return nil // a static program
	}
	if err := e.readDynamic(dyn); err != nil {
		return err
	}
	return e.tables(h)
}

func (e *elfReader) readDynamic(p *elf.Prog64) error {
	raw, err := e.bytes("dynamic section", p.Off, p.Filesz, maxDynamic*16)
	if err != nil {
		return err
	}
	d, f := &e.dyn, e.file
	for ; len(raw) >= 16; raw = raw[16:] {
		tag, val := elf.DynTag(binary.LittleEndian.Uint64(raw)), binary.LittleEndian.Uint64(raw[8:])
		switch tag {
		case elf.DT_NULL:
			return nil
		case elf.DT_NEEDED:
			d.needed = append(d.needed, val)
		case elf.DT_SONAME:
			d.soname, d.hasSoname = val, true
		case elf.DT_RPATH:
			d.rpath = append(d.rpath, val)
		case elf.DT_RUNPATH:
			d.runpath = append(d.runpath, val)
		case elf.DT_STRTAB:
			d.strtab = val
		case elf.DT_STRSZ:
			d.strsize = val
		case elf.DT_SYMTAB:
			d.symtab = val
		case elf.DT_HASH:
			d.hash = val
		case elf.DT_GNU_HASH:
			d.gnuHash = val
		case elf.DT_VERSYM:
			d.versym = val
		case elf.DT_VERNEED:
			d.verneed = val
		case elf.DT_VERNEEDNUM:
			d.verneedNum = val
		case elf.DT_VERDEF:
			d.verdef = val
		case elf.DT_VERDEFNUM:
			d.verdefNum = val
		case elf.DT_BIND_NOW:
			f.bindNow = true
		case elf.DT_FLAGS:
			f.bindNow = f.bindNow || elf.DynFlag(val)&elf.DF_BIND_NOW != 0
			f.staticTLS = elf.DynFlag(val)&elf.DF_STATIC_TLS != 0
		case elf.DT_FLAGS_1:
			f.bindNow = f.bindNow || elf.DynFlag1(val)&elf.DF_1_NOW != 0
		}
	}
	return nil
}

// offset turns an address into an offset of the file.
func (e *elfReader) offset(addr uint64) (uint64, bool) {
	for i := range e.loads {
		p := &e.loads[i]
		if addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			off := p.Off + (addr - p.Vaddr)
			return off, off >= p.Off
		}
	}
	return 0, false
}

// at reads n bytes at an address.
func (e *elfReader) at(what string, addr, n, limit uint64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	off, ok := e.offset(addr)
	if !ok {
		return nil, fmt.Errorf("%s lies outside every segment", what)
	}
	return e.bytes(what, off, n, limit)
}

// text is at without a second copy: a string table may have 50 MB.
func (e *elfReader) text(what string, addr, n, limit uint64) (string, error) {
	if n == 0 {
		return "", nil
	}
	off, ok := e.offset(addr)
	switch {
	case !ok:
		return "", fmt.Errorf("%s lies outside every segment", what)
	case n > limit:
		return "", fmt.Errorf("%s has %d bytes, more than %d", what, n, limit)
	case off > uint64(e.size) || n > uint64(e.size)-off:
		return "", fmt.Errorf("%s lies outside the file", what)
	}
	var b strings.Builder
	b.Grow(int(n))
	if _, err := io.CopyN(&b, io.NewSectionReader(e.r, int64(off), int64(n)), int64(n)); err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	return b.String(), nil
}

func (e *elfReader) str(off uint64) string {
	if off >= uint64(len(e.strs)) {
		return ""
	}
	s, _, terminated := strings.Cut(e.strs[off:], "\x00")
	if !terminated {
		return ""
	}
	return s
}

// tables reads strings, symbols and versions.
func (e *elfReader) tables(h *elf.Header64) error {
	d, f := &e.dyn, e.file
	var err error
	if e.strs, err = e.text("dynamic string table", d.strtab, d.strsize, maxStrings); err != nil {
		return err
	}
	for _, off := range d.needed {
		f.needed = append(f.needed, e.str(off))
	}
	if d.hasSoname {
		f.soname = e.str(d.soname)
	}
	for _, off := range d.rpath {
		f.rpath = append(f.rpath, splitPath(e.str(off))...)
	}
	for _, off := range d.runpath {
		f.runpath = append(f.runpath, splitPath(e.str(off))...)
	}
	byIndex := map[uint16]versionNeed{}
	if err := e.versionNeeds(byIndex); err != nil {
		return err
	}
	if err := e.versionDefinitions(byIndex); err != nil {
		return err
	}
	return e.readSymbols(h, byIndex)
}

func splitPath(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ":")
}

// versionNeeds reads the table of versions wanted from other libraries.
func (e *elfReader) versionNeeds(byIndex map[uint16]versionNeed) error {
	d := &e.dyn
	if d.verneed == 0 {
		return nil
	}
	if d.verneedNum > maxVersions {
		return fmt.Errorf("%d libraries with versions", d.verneedNum)
	}
	left := maxVersions
	addr := d.verneed
	for range d.verneedNum {
		head, err := e.at("version needs", addr, 16, 16)
		if err != nil {
			return err
		}
		count := binary.LittleEndian.Uint16(head[2:])
		file := e.str(uint64(binary.LittleEndian.Uint32(head[4:])))
		aux := addr + uint64(binary.LittleEndian.Uint32(head[8:]))
		for range count {
			if left--; left < 0 {
				return fmt.Errorf("more than %d version needs", maxVersions)
			}
			b, err := e.at("version need", aux, 16, 16)
			if err != nil {
				return err
			}
			need := versionNeed{file, e.str(uint64(binary.LittleEndian.Uint32(b[8:])))}
			byIndex[binary.LittleEndian.Uint16(b[6:])&0x7fff] = need
			e.file.versions = append(e.file.versions, need)
			next := binary.LittleEndian.Uint32(b[12:])
			if next == 0 {
				break
			}
			aux += uint64(next)
		}
		next := binary.LittleEndian.Uint32(head[12:])
		if next == 0 {
			break
		}
		addr += uint64(next)
	}
	return nil
}

// versionDefinitions reads the table of versions that the file itself defines.
func (e *elfReader) versionDefinitions(byIndex map[uint16]versionNeed) error {
	d := &e.dyn
	if d.verdef == 0 {
		return nil
	}
	if d.verdefNum > maxVersions {
		return fmt.Errorf("%d version definitions", d.verdefNum)
	}
	addr := d.verdef
	for range d.verdefNum {
		b, err := e.at("version definitions", addr, 20, 20)
		if err != nil {
			return err
		}
		index := binary.LittleEndian.Uint16(b[4:])
		if binary.LittleEndian.Uint16(b[6:]) > 0 {
			aux, err := e.at("version definition", addr+uint64(binary.LittleEndian.Uint32(b[12:])), 8, 8)
			if err != nil {
				return err
			}
			byIndex[index&0x7fff] = versionNeed{"", e.str(uint64(binary.LittleEndian.Uint32(aux)))}
		}
		next := binary.LittleEndian.Uint32(b[16:])
		if next == 0 {
			break
		}
		addr += uint64(next)
	}
	return nil
}

const symbolSize = 24

func (e *elfReader) readSymbols(h *elf.Header64, byIndex map[uint16]versionNeed) error {
	d := &e.dyn
	if d.symtab == 0 {
		return nil
	}
	count, err := e.symbolCount(h)
	if err != nil {
		return err
	}
	if count > maxSymbols {
		return fmt.Errorf("%d dynamic symbols, more than %d", count, maxSymbols)
	}
	raw, err := e.at("dynamic symbol table", d.symtab, count*symbolSize, maxSymbols*symbolSize)
	if err != nil {
		return err
	}
	var versions []byte
	if d.versym != 0 {
		if versions, err = e.at("symbol versions", d.versym, count*2, maxSymbols*2); err != nil {
			return err
		}
	}
	e.file.symbols = make([]elfSymbol, 0, count)
	for i := uint64(1); i < count; i++ {
		b := raw[i*symbolSize:]
		s := elfSymbol{
			name:    e.str(uint64(binary.LittleEndian.Uint32(b))),
			bind:    b[4] >> 4,
			defined: elf.SectionIndex(binary.LittleEndian.Uint16(b[6:])) != elf.SHN_UNDEF,
		}
		visibility := elf.ST_VISIBILITY(b[5])
		if s.name == "" || elf.SymBind(s.bind) == elf.STB_LOCAL || s.defined && (visibility == elf.STV_HIDDEN || visibility == elf.STV_INTERNAL) {
			continue
		}
		if versions != nil {
			if v := binary.LittleEndian.Uint16(versions[i*2:]) & 0x7fff; v > 1 {
				s.file = byIndex[v].file
			}
		}
		e.file.symbols = append(e.file.symbols, s)
	}
	return nil
}

// symbolCount finds out how long the symbol table is, which no entry of the dynamic section
// says: from its section header, else from a hash table.
func (e *elfReader) symbolCount(h *elf.Header64) (uint64, error) {
	off, ok := e.offset(e.dyn.symtab)
	if !ok {
		return 0, errors.New("dynamic symbol table lies outside every segment")
	}
	sections, _ := e.sectionHeaders(h)
	for i := range sections {
		if s := &sections[i]; elf.SectionType(s.Type) == elf.SHT_DYNSYM && s.Off == off {
			return s.Size / symbolSize, nil
		}
	}
	if e.dyn.hash != 0 {
		b, err := e.at("hash table", e.dyn.hash, 8, 8)
		if err != nil {
			return 0, err
		}
		return uint64(binary.LittleEndian.Uint32(b[4:])), nil
	}
	if e.dyn.gnuHash != 0 {
		return e.gnuHashCount()
	}
	return 0, nil
}

// gnuHashCount walks the GNU hash table to its last symbol.
func (e *elfReader) gnuHashCount() (uint64, error) {
	head, err := e.at("GNU hash table", e.dyn.gnuHash, 16, 16)
	if err != nil {
		return 0, err
	}
	buckets, first := uint64(binary.LittleEndian.Uint32(head)), uint64(binary.LittleEndian.Uint32(head[4:]))
	bloom := uint64(binary.LittleEndian.Uint32(head[8:]))
	at := e.dyn.gnuHash + 16 + bloom*8
	raw, err := e.at("GNU hash buckets", at, buckets*4, maxSymbols*4)
	if err != nil {
		return 0, err
	}
	last := uint64(0)
	for ; len(raw) >= 4; raw = raw[4:] {
		last = max(last, uint64(binary.LittleEndian.Uint32(raw)))
	}
	if last < first {
		return first, nil // no exported symbols
	}
	chains := at + buckets*4
	for ; last < maxSymbols; last++ {
		b, err := e.at("GNU hash chain", chains+(last-first)*4, 4, 4)
		if err != nil {
			return 0, err
		}
		if b[0]&1 != 0 {
			return last + 1, nil
		}
	}
	return 0, errors.New("GNU hash chain has no end")
}

func (e *elfReader) sectionHeaders(h *elf.Header64) ([]elf.Section64, error) {
	if h.Shoff == 0 || h.Shnum == 0 || h.Shentsize != 64 {
		return nil, nil
	}
	raw, err := e.bytes("section header table", h.Shoff, uint64(h.Shnum)*64, maxSections*64)
	if err != nil {
		return nil, err
	}
	out := make([]elf.Section64, h.Shnum)
	_, err = binary.Decode(raw, binary.LittleEndian, out)
	return out, err
}

// readSections reads names and places of the sections. The loader does without them, so what
// is wrong with them is ignored.
func (e *elfReader) readSections(h *elf.Header64) {
	headers, err := e.sectionHeaders(h)
	if err != nil || int(h.Shstrndx) >= len(headers) {
		return
	}
	names, err := e.bytes("section names", headers[h.Shstrndx].Off, headers[h.Shstrndx].Size, 16<<20)
	if err != nil {
		return
	}
	for i := range headers {
		s := &headers[i]
		if uint64(s.Name) >= uint64(len(names)) {
			continue
		}
		name := cString(names[s.Name:])
		kind := elf.SectionType(s.Type)
		if name == "" || kind != elf.SHT_NOBITS && (s.Off > uint64(e.size) || s.Size > uint64(e.size)-s.Off) {
			continue
		}
		if strings.HasPrefix(name, ".debug_") || strings.HasPrefix(name, ".zdebug_") {
			e.file.debugSize += int64(s.Size)
		}
		e.file.sections = append(e.file.sections, elfSection{
			name, kind, elf.SectionFlag(s.Flags), int64(s.Off), int64(s.Size), //nolint:gosec // compared with the size above
		})
	}
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// x86Level reads the needed instruction set level from a block of notes: the property
// GNU_PROPERTY_X86_ISA_1_NEEDED of the x86-64 psABI.
func x86Level(b []byte, align uint64) int {
	if align != 8 {
		align = 4
	}
	pad := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	level := 0
	for len(b) >= 12 {
		nameSize, descSize := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
		kind := binary.LittleEndian.Uint32(b[8:])
		descAt := pad(12 + nameSize)
		end := pad(descAt + descSize)
		if descAt+descSize > uint64(len(b)) {
			break
		}
		if kind == 5 && string(b[12:12+nameSize]) == "GNU\x00" {
			level = max(level, x86Property(b[descAt:descAt+descSize]))
		}
		b = b[min(end, uint64(len(b))):]
	}
	return level
}

func x86Property(b []byte) int {
	const isaNeeded = 0xc0008002
	level := 0
	for len(b) >= 8 {
		kind, n := binary.LittleEndian.Uint32(b), uint64(binary.LittleEndian.Uint32(b[4:]))
		if n > uint64(len(b))-8 {
			break
		}
		if kind == isaNeeded && n >= 4 {
			for bit := range 4 {
				if b[8]&(1<<bit) != 0 {
					level = max(level, bit+1)
				}
			}
		}
		b = b[min(8+(n+7)&^7, uint64(len(b))):]
	}
	return level
}

// section returns the first section of a name.
func (f *elfFile) section(name string) (elfSection, bool) {
	i := slices.IndexFunc(f.sections, func(s elfSection) bool { return s.name == name })
	if i < 0 {
		return elfSection{}, false
	}
	return f.sections[i], true
}

// architecture is the name of the machine as platform tags spell it.
func (f *elfFile) architecture() string {
	switch {
	case f.machine == elf.EM_X86_64 && f.class == elf.ELFCLASS64:
		return "x86_64"
	case f.machine == elf.EM_386:
		return "i686"
	case f.machine == elf.EM_AARCH64:
		return "aarch64"
	case f.machine == elf.EM_ARM:
		return "armv7l"
	case f.machine == elf.EM_PPC64 && f.order == binary.LittleEndian:
		return "ppc64le"
	case f.machine == elf.EM_S390:
		return "s390x"
	case f.machine == elf.EM_RISCV && f.class == elf.ELFCLASS64:
		return "riscv64"
	case f.machine == elf.EM_LOONGARCH:
		return "loongarch64"
	}
	return strings.ToLower(strings.TrimPrefix(f.machine.String(), "EM_"))
}
