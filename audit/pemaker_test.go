package audit_test

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// A peMaker makes Windows libraries of one section, with the tables that a loader reads.
type peMaker struct {
	machine uint16   // default AMD64
	imports []string // "library:name", "library:#7", or "library:"
	delayed []string
	exports []string // "name", or "name=other.name" for one that stands for another library's
	rdata   string   // constants
	managed bool
	program bool
}

const (
	peMakerBase   = 0x1000 // where the section is in memory
	peMakerOffset = 0x400  // and in the file
)

func (m peMaker) bytes() []byte {
	var body bytes.Buffer
	at := func() uint32 { return uint32(peMakerBase + body.Len()) }
	u32 := func(list ...uint32) {
		for _, v := range list {
			_ = binary.Write(&body, binary.LittleEndian, v)
		}
	}
	text := func(s string) uint32 {
		rva := at()
		body.WriteString(s + "\x00")
		for body.Len()%8 != 0 {
			body.WriteByte(0)
		}
		return rva
	}
	text(m.rdata)

	// thunks writes the names of one library and returns where they are.
	thunks := func(names []string) uint32 {
		var values []uint64
		for _, name := range names {
			if number, ok := strings.CutPrefix(name, "#"); ok {
				n, err := strconv.Atoi(number)
				if err != nil {
					panic(err)
				}
				values = append(values, 1<<63|uint64(n))
			} else if name != "" {
				values = append(values, uint64(text("\x00\x00"+name)))
			}
		}
		rva := at()
		for _, v := range append(values, 0) {
			_ = binary.Write(&body, binary.LittleEndian, v)
		}
		return rva
	}
	var directories [16]pe.DataDirectory
	table := func(list []string, place int, entry func(library, names uint32)) {
		if len(list) == 0 {
			return
		}
		var order []string
		names := map[string][]string{}
		for _, item := range list {
			library, name, _ := strings.Cut(item, ":")
			if !slices.Contains(order, library) {
				order = append(order, library)
			}
			names[library] = append(names[library], name)
		}
		type pair struct{ library, names uint32 }
		var pairs []pair
		for _, library := range order {
			pairs = append(pairs, pair{text(library), thunks(names[library])})
		}
		start := at()
		for _, p := range append(pairs, pair{}) {
			entry(p.library, p.names)
		}
		directories[place] = pe.DataDirectory{VirtualAddress: start, Size: at() - start}
	}
	table(m.imports, pe.IMAGE_DIRECTORY_ENTRY_IMPORT, func(library, names uint32) { u32(names, 0, 0, library, names) })
	table(m.delayed, pe.IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT, func(library, names uint32) { u32(1, library, 0, names, names, 0, 0, 0) })
	if len(m.exports) > 0 {
		list := slices.Sorted(slices.Values(m.exports))
		var names, targets []uint32
		start := at()
		// The strings of names that stand for others are inside of the table.
		head := body.Len()
		body.Write(make([]byte, 40))
		for _, item := range list {
			name, target, forward := strings.Cut(item, "=")
			names = append(names, text(name))
			if forward {
				targets = append(targets, text(target))
			} else {
				targets = append(targets, peMakerBase) // an address outside of the table
			}
		}
		functionsAt := at()
		u32(targets...)
		namesAt := at()
		u32(names...)
		numbersAt := at()
		for i := range list {
			_ = binary.Write(&body, binary.LittleEndian, uint16(i))
		}
		n := uint32(len(list))
		for i, v := range []uint32{0, 0, 0, start, 1, n, n, functionsAt, namesAt, numbersAt} {
			binary.LittleEndian.PutUint32(body.Bytes()[head+4*i:], v)
		}
		directories[pe.IMAGE_DIRECTORY_ENTRY_EXPORT] = pe.DataDirectory{VirtualAddress: start, Size: at() - start}
	}
	if m.managed {
		directories[pe.IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR] = pe.DataDirectory{VirtualAddress: peMakerBase, Size: 72}
	}

	machine, flags := m.machine, uint16(pe.IMAGE_FILE_EXECUTABLE_IMAGE|pe.IMAGE_FILE_DLL)
	if machine == 0 {
		machine = pe.IMAGE_FILE_MACHINE_AMD64
	}
	if m.program {
		flags = pe.IMAGE_FILE_EXECUTABLE_IMAGE
	}
	var out bytes.Buffer
	write := func(v any) { _ = binary.Write(&out, binary.LittleEndian, v) }
	out.WriteString("MZ" + strings.Repeat("\x00", 0x3a))
	write(uint32(0x40))
	out.WriteString("PE\x00\x00")
	write(pe.FileHeader{Machine: machine, NumberOfSections: 1, SizeOfOptionalHeader: 240, Characteristics: flags})
	write(pe.OptionalHeader64{
		Magic: 0x20b, ImageBase: 0x180000000, SectionAlignment: 0x1000, FileAlignment: 0x200, SizeOfHeaders: peMakerOffset,
		SizeOfImage: peMakerBase + uint32(body.Len()), NumberOfRvaAndSizes: 16, DataDirectory: directories,
	})
	name := [8]uint8{}
	copy(name[:], ".rdata")
	write(pe.SectionHeader32{
		Name: name, VirtualSize: uint32(body.Len()), VirtualAddress: peMakerBase,
		SizeOfRawData: uint32(body.Len()), PointerToRawData: peMakerOffset,
	})
	out.Write(make([]byte, peMakerOffset-out.Len()))
	out.Write(body.Bytes())
	return out.Bytes()
}
