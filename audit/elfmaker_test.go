package audit_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
)

// An elfMaker makes small shared libraries with just the tables that a loader reads.
type elfMaker struct {
	soname    string
	needed    []string
	runpath   string
	defined   []string
	undefined []string // "name", or "name@VERSION@library"
	weak      []string
	machine   elf.Machine // x86-64 if zero
	execStack bool
	level     int    // x86-64 level to ask for
	rodata    string // constants, in a section of their own
	noHeaders bool   // strip the section headers
	sections  map[string][]byte
}

// bytes lays the file out: headers, tables, one segment that maps all of it at its offset.
func (m elfMaker) bytes() []byte {
	strs := []byte{0}
	str := func(s string) uint32 {
		at := len(strs)
		strs = append(append(strs, s...), 0)
		return uint32(at)
	}
	le := binary.LittleEndian
	symbols := make([]byte, 24)
	versym := []byte{0, 0}
	type need struct{ lib, version string }
	var needs []need
	addSymbol := func(name string, info byte, section, version uint16) {
		sym := make([]byte, 24)
		le.PutUint32(sym, str(name))
		sym[4] = info
		le.PutUint16(sym[6:], section)
		symbols = append(symbols, sym...)
		versym = le.AppendUint16(versym, version)
	}
	const function = byte(elf.STT_FUNC)
	for _, name := range m.undefined {
		parts := strings.Split(name, "@")
		version := uint16(1)
		if len(parts) == 3 {
			n := need{parts[2], parts[1]}
			version = 0
			for i, have := range needs {
				if have == n {
					version = uint16(i + 2)
				}
			}
			if version == 0 {
				needs = append(needs, n)
				version = uint16(len(needs) + 1)
			}
		}
		addSymbol(parts[0], byte(elf.STB_GLOBAL)<<4|function, 0, version)
	}
	for _, name := range m.weak {
		addSymbol(name, byte(elf.STB_WEAK)<<4|function, 0, 1)
	}
	for _, name := range m.defined {
		addSymbol(name, byte(elf.STB_GLOBAL)<<4|function, 1, 1)
	}
	var verneed []byte
	for i, n := range needs {
		head := make([]byte, 32)
		le.PutUint16(head, 1)
		le.PutUint16(head[2:], 1)
		le.PutUint32(head[4:], str(n.lib))
		le.PutUint32(head[8:], 16)
		if i < len(needs)-1 {
			le.PutUint32(head[12:], 32)
		}
		le.PutUint16(head[22:], uint16(i+2))
		le.PutUint32(head[24:], str(n.version))
		verneed = append(verneed, head...)
	}
	type entry struct {
		tag elf.DynTag
		val uint64
	}
	var dyn []entry
	for _, lib := range m.needed {
		dyn = append(dyn, entry{elf.DT_NEEDED, uint64(str(lib))})
	}
	if m.soname != "" {
		dyn = append(dyn, entry{elf.DT_SONAME, uint64(str(m.soname))})
	}
	if m.runpath != "" {
		dyn = append(dyn, entry{elf.DT_RUNPATH, uint64(str(m.runpath))})
	}
	hash := make([]byte, 8, 16)
	le.PutUint32(hash, 1)
	le.PutUint32(hash[4:], uint32(len(symbols)/24))

	note := make([]byte, 32)
	if m.level > 0 {
		le.PutUint32(note, 4)
		le.PutUint32(note[4:], 16)
		le.PutUint32(note[8:], 5)
		copy(note[12:], "GNU\x00")
		le.PutUint32(note[16:], 0xc0008002)
		le.PutUint32(note[20:], 4)
		note[24] = 1<<m.level - 1
	}

	const headers = 64 + 4*56
	body := bytes.NewBuffer(make([]byte, headers))
	place := func(b []byte) uint64 {
		for body.Len()%8 != 0 {
			body.WriteByte(0)
		}
		at := uint64(body.Len())
		body.Write(b)
		return at
	}
	strAt, symAt := place(strs), place(symbols)
	hashAt, versymAt := place(hash), place(versym)
	verneedAt, rodataAt, noteAt := place(verneed), place([]byte(m.rodata)), place(note)
	dyn = append(dyn, entry{elf.DT_STRTAB, strAt}, entry{elf.DT_STRSZ, uint64(len(strs))}, entry{elf.DT_SYMTAB, symAt}, entry{elf.DT_HASH, hashAt})
	if len(needs) > 0 {
		dyn = append(dyn, entry{elf.DT_VERSYM, versymAt}, entry{elf.DT_VERNEED, verneedAt}, entry{elf.DT_VERNEEDNUM, uint64(len(needs))})
	}
	dyn = append(dyn, entry{})
	var table []byte
	for _, e := range dyn {
		table = le.AppendUint64(le.AppendUint64(table, uint64(e.tag)), e.val)
	}
	dynAt := place(table)
	names := "\x00"
	sections := []elf.Section64{{}}
	addSection := func(name string, kind elf.SectionType, at, size uint64) {
		sections = append(sections, elf.Section64{Name: uint32(len(names)), Type: uint32(kind), Off: at, Size: size})
		names += name + "\x00"
	}
	addSection(".rodata", elf.SHT_PROGBITS, rodataAt, uint64(len(m.rodata)))
	for _, name := range slices.Sorted(maps.Keys(m.sections)) {
		addSection(name, elf.SHT_PROGBITS, place(m.sections[name]), uint64(len(m.sections[name])))
	}
	sectionsAt := place(nil)
	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(m.machine), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 4, Shentsize: 64,
	}
	if m.machine == 0 {
		header.Machine = uint16(elf.EM_X86_64)
	}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	if !m.noHeaders {
		namesAt := sectionsAt + uint64(len(sections)+1)*64
		header.Shoff, header.Shnum, header.Shstrndx = sectionsAt, uint16(len(sections)+1), uint16(len(sections))
		addSection(".shstrtab", elf.SHT_STRTAB, namesAt, uint64(len(names)+len(".shstrtab")+1))
		_ = binary.Write(body, le, sections)
		body.WriteString(names)
	}
	file := body.Bytes()
	size := uint64(len(file))
	stack := uint32(elf.PF_R | elf.PF_W)
	if m.execStack {
		stack |= uint32(elf.PF_X)
	}
	progs := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Filesz: size, Memsz: size, Flags: uint32(elf.PF_R)},
		{Type: uint32(elf.PT_DYNAMIC), Off: dynAt, Vaddr: dynAt, Filesz: uint64(len(table))},
		{Type: uint32(elf.PT_GNU_STACK), Flags: stack},
		{Type: uint32(elf.PT_NOTE), Off: noteAt, Filesz: 32, Align: 8},
	}
	var head bytes.Buffer
	_ = binary.Write(&head, le, header)
	_ = binary.Write(&head, le, progs)
	copy(file, head.Bytes())
	return file
}
