package audit

import (
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Bounds of what is read of a Windows file, far above what linkers write.
const (
	maxPELibraries = 4096
	maxPEImports   = 1 << 18
	maxPEExports   = 1 << 17
	maxPEName      = 1 << 16
	maxPENames     = 64 << 20 // bytes of all names
)

// The places of tables in the list of directories.
const (
	peExports = pe.IMAGE_DIRECTORY_ENTRY_EXPORT
	peImports = pe.IMAGE_DIRECTORY_ENTRY_IMPORT
	peDelayed = pe.IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT
	peManaged = pe.IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR
)

// A peFile is a Windows library or program. debug/pe reads the headers; it knows nothing of
// imports by ordinal, delayed imports and exports.
type peFile struct {
	machine  uint16
	imports  []peImport
	exports  []string          // names, sorted
	ordinals map[uint32]bool   // of all exports
	forwards map[string]string // exports that stand for those of another library, as "other.name"
	library  bool              // not a program
	managed  bool              // .NET, which has a loader of its own
	rdata    [2]int64          // offset and size of the constants in the file
}

// A peImport is a name that a file takes from a library. Libraries are in lower case, and the
// name is "#12" for what is imported by number.
type peImport struct {
	library, name string
	delayed       bool // looked for when it is first called, not when the file is loaded
}

// errNotPE is about a file that has no headers of a Windows file.
var errNotPE = errors.New("not a Windows library")

// readPE reads the tables of a Windows file.
func readPE(r io.ReaderAt, size int64) (*peFile, error) {
	f, err := pe.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotPE, err)
	}
	defer f.Close()
	out := &peFile{machine: f.Machine, library: f.Characteristics&pe.IMAGE_FILE_DLL != 0}
	img := &peImage{r: r, size: size, sections: f.Sections, names: maxPENames}
	var directories []pe.DataDirectory
	switch h := f.OptionalHeader.(type) {
	case *pe.OptionalHeader64:
		img.wide, img.base, img.headers = true, h.ImageBase, h.SizeOfHeaders
		directories = h.DataDirectory[:min(int(h.NumberOfRvaAndSizes), len(h.DataDirectory))]
	case *pe.OptionalHeader32:
		img.base, img.headers = uint64(h.ImageBase), h.SizeOfHeaders
		directories = h.DataDirectory[:min(int(h.NumberOfRvaAndSizes), len(h.DataDirectory))]
	default:
		return nil, fmt.Errorf("%w: no optional header", errNotPE)
	}
	directory := func(i int) pe.DataDirectory {
		if i < len(directories) {
			return directories[i]
		}
		return pe.DataDirectory{}
	}
	if s := f.Section(".rdata"); s != nil {
		out.rdata = [2]int64{int64(s.Offset), int64(s.Size)}
	}
	out.managed = directory(peManaged).VirtualAddress != 0
	if err := img.readImports(out, directory(peImports).VirtualAddress); err != nil {
		return out, fmt.Errorf("imports: %w", err)
	}
	if err := img.readDelayed(out, directory(peDelayed).VirtualAddress); err != nil {
		return out, fmt.Errorf("delayed imports: %w", err)
	}
	if err := img.readExports(out, directory(peExports)); err != nil {
		return out, fmt.Errorf("exports: %w", err)
	}
	return out, nil
}

// A peImage reads a file by the addresses that its parts have in memory.
type peImage struct {
	r        io.ReaderAt
	size     int64
	sections []*pe.Section
	wide     bool // 64 bits
	base     uint64
	headers  uint32
	names    int // how many more bytes of names may be read

	tables, texts pePage
}

// A pePage is the part of the file that was read last. Tables lie in one piece, and so do names,
// but entries of both are read by turns.
type pePage struct {
	data   []byte
	offset int64
}

// place is where an address is in the file, and how many bytes follow.
func (m *peImage) place(rva uint32) (offset, n int64) {
	for _, s := range m.sections {
		if rva >= s.VirtualAddress && rva-s.VirtualAddress < s.Size {
			skip := int64(rva - s.VirtualAddress)
			offset, n = int64(s.Offset)+skip, int64(s.Size)-skip
			return offset, min(n, m.size-offset)
		}
	}
	if rva < m.headers {
		return int64(rva), min(int64(m.headers), m.size) - int64(rva)
	}
	return 0, 0
}

// bytes are n bytes at an address, or an error. They are valid up to the next call.
func (m *peImage) bytes(rva uint32, n int) ([]byte, error) {
	b, err := m.some(&m.tables, rva, n)
	if err == nil && len(b) < n {
		err = fmt.Errorf("%d bytes at address %#x are not in the file", n, rva)
	}
	return b, err
}

// some are up to n bytes at an address.
func (m *peImage) some(page *pePage, rva uint32, n int) ([]byte, error) {
	offset, have := m.place(rva)
	n = int(min(int64(n), have))
	if n <= 0 {
		return nil, nil
	}
	if offset < page.offset || offset+int64(n) > page.offset+int64(len(page.data)) {
		size := int(min(int64(max(n, 4<<10)), m.size-offset))
		page.data, page.offset = slices.Grow(page.data[:0], size)[:size], offset
		if got, err := m.r.ReadAt(page.data, offset); err != nil && (!errors.Is(err, io.EOF) || got < n) {
			page.data = nil
			return nil, err
		}
	}
	at := offset - page.offset
	return page.data[at : at+int64(n)], nil
}

// text reads a name that ends with a zero.
func (m *peImage) text(rva uint32) (string, error) {
	for n := 256; ; n = maxPEName {
		b, err := m.some(&m.texts, rva, n)
		if err != nil {
			return "", err
		}
		if i := slices.Index(b, 0); i >= 0 {
			if m.names -= i; m.names < 0 {
				return "", errors.New("too many bytes of names")
			}
			return string(b[:i]), nil
		}
		if n == maxPEName || len(b) < n {
			return "", fmt.Errorf("the name at address %#x has no end", rva)
		}
	}
}

// plus is an address with something added, or an error.
func plus(rva uint32, n uint64) (uint32, error) {
	sum := uint64(rva) + n
	if sum > 1<<32-1 {
		return 0, fmt.Errorf("address %#x is beyond the image", sum)
	}
	return uint32(sum), nil
}

// readImports reads the list of libraries with the names taken from each.
func (m *peImage) readImports(f *peFile, at uint32) error {
	if at == 0 {
		return nil
	}
	for i := range uint64(maxPELibraries) {
		rva, err := plus(at, i*20)
		if err != nil {
			return err
		}
		d, err := m.bytes(rva, 20)
		if err != nil {
			return err
		}
		names, name, table := binary.LittleEndian.Uint32(d), binary.LittleEndian.Uint32(d[12:]), binary.LittleEndian.Uint32(d[16:])
		if name == 0 || table == 0 {
			return nil
		}
		if names == 0 {
			names = table // some linkers write the names only where the loader puts the addresses
		}
		if err := m.readNames(f, name, names, 0, false); err != nil {
			return err
		}
	}
	return fmt.Errorf("more than %d libraries", maxPELibraries)
}

// readDelayed reads the list of libraries that are loaded by the first call.
func (m *peImage) readDelayed(f *peFile, at uint32) error {
	if at == 0 {
		return nil
	}
	for i := range uint64(maxPELibraries) {
		rva, err := plus(at, i*32)
		if err != nil {
			return err
		}
		d, err := m.bytes(rva, 32)
		if err != nil {
			return err
		}
		attributes, name, names := binary.LittleEndian.Uint32(d), binary.LittleEndian.Uint32(d[4:]), binary.LittleEndian.Uint32(d[16:])
		if name == 0 {
			return nil
		}
		base := uint64(0)
		if attributes&1 == 0 { // linkers of the last century: addresses in place of distances
			base = m.base
		}
		if err := m.readNames(f, uint32(uint64(name)-base), uint32(uint64(names)-base), base, true); err != nil {
			return err
		}
	}
	return fmt.Errorf("more than %d libraries", maxPELibraries)
}

// readNames reads what is taken from one library. base is what the addresses of names begin with.
func (m *peImage) readNames(f *peFile, nameAt, at uint32, base uint64, delayed bool) error {
	library, err := m.text(nameAt)
	if err != nil {
		return err
	}
	library = strings.ToLower(library)
	step := uint64(4)
	if m.wide {
		step = 8
	}
	before := len(f.imports)
	for i := uint64(0); ; i++ {
		if len(f.imports) > maxPEImports {
			return fmt.Errorf("more than %d names", maxPEImports)
		}
		rva, err := plus(at, i*step)
		if err != nil {
			return err
		}
		b, err := m.bytes(rva, int(step))
		if err != nil {
			return fmt.Errorf("%s: %w", library, err)
		}
		var value uint64
		var byNumber bool
		if m.wide {
			value = binary.LittleEndian.Uint64(b)
			byNumber = value>>63 == 1
		} else {
			value = uint64(binary.LittleEndian.Uint32(b))
			byNumber = value>>31 == 1
		}
		if value == 0 {
			break
		}
		name := fmt.Sprintf("#%d", value&0xffff)
		if !byNumber {
			// Two bytes before the name are a hint where to look.
			if rva, err = plus(uint32(value-base), 2); err != nil {
				return err
			}
			if name, err = m.text(rva); err != nil {
				return fmt.Errorf("%s: %w", library, err)
			}
		}
		f.imports = append(f.imports, peImport{library, name, delayed})
	}
	if len(f.imports) == before { // it is loaded all the same
		f.imports = append(f.imports, peImport{library, "", delayed})
	}
	return nil
}

// readExports reads what the library offers.
func (m *peImage) readExports(f *peFile, dir pe.DataDirectory) error {
	if dir.VirtualAddress == 0 || dir.Size == 0 {
		return nil
	}
	head, err := m.bytes(dir.VirtualAddress, 40)
	if err != nil {
		return err
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(head[at:]) }
	first, functions, names := word(16), word(20), word(24)
	functionsAt, namesAt, numbersAt := word(28), word(32), word(36)
	if functions > maxPEExports || names > maxPEExports {
		return fmt.Errorf("%d functions and %d names", functions, names)
	}
	addresses := make([]uint32, 0, min(functions, 1<<12))
	f.ordinals = map[uint32]bool{}
	for i := range functions {
		b, err := m.bytes(functionsAt+4*i, 4)
		if err != nil {
			return err
		}
		address := binary.LittleEndian.Uint32(b)
		addresses = append(addresses, address)
		if address != 0 {
			f.ordinals[first+i] = true
		}
	}
	for i := range names {
		b, err := m.bytes(namesAt+4*i, 4)
		if err != nil {
			return err
		}
		nameAt := binary.LittleEndian.Uint32(b)
		if b, err = m.bytes(numbersAt+2*i, 2); err != nil {
			return err
		}
		number := int(binary.LittleEndian.Uint16(b))
		if number >= len(addresses) {
			return fmt.Errorf("name %d is of function %d, of %d", i, number, len(addresses))
		}
		name, err := m.text(nameAt)
		if err != nil {
			return err
		}
		if addresses[number] == 0 {
			continue
		}
		f.exports = append(f.exports, name)
		// An address inside this table is that of the name of another library's function.
		if address := addresses[number]; address >= dir.VirtualAddress && address-dir.VirtualAddress < dir.Size {
			target, err := m.text(address)
			if err != nil {
				return err
			}
			if f.forwards == nil {
				f.forwards = map[string]string{}
			}
			f.forwards[name] = target
		}
	}
	slices.Sort(f.exports)
	f.exports = slices.Compact(f.exports)
	return nil
}

// architecture is the machine as platform tags of Windows have it.
func (f *peFile) architecture() string {
	switch f.machine {
	case pe.IMAGE_FILE_MACHINE_AMD64:
		return "amd64"
	case pe.IMAGE_FILE_MACHINE_ARM64:
		return "arm64"
	case pe.IMAGE_FILE_MACHINE_I386:
		return "win32"
	}
	return fmt.Sprintf("machine %#x", f.machine)
}

// platform is the platform tag of files for this machine.
func (f *peFile) platform() string {
	if f.machine == pe.IMAGE_FILE_MACHINE_I386 {
		return "win32"
	}
	return "win_" + f.architecture()
}

// libraries are those the file needs, each once, in the order of the file.
func (f *peFile) libraries(delayed bool) []string {
	var out []string
	seen := map[string]bool{}
	for i := range f.imports {
		if im := &f.imports[i]; im.delayed == delayed && !seen[im.library] {
			seen[im.library] = true
			out = append(out, im.library)
		}
	}
	return out
}

// namesFrom are the names that the file takes from some libraries when it is loaded.
func (f *peFile) namesFrom(library func(string) bool) []string {
	var out []string
	for i := range f.imports {
		if im := &f.imports[i]; !im.delayed && im.name != "" && im.name[0] != '#' && library(im.library) {
			out = append(out, im.name)
		}
	}
	return out
}

// readPE reads the tables of a Windows file; false means that it is none.
func (o *object) readPE(r io.ReaderAt, size int64) (ok bool, problem error) {
	f, err := readPE(r, size)
	if f == nil {
		// Two letters are not much of a magic: other files begin with MZ too.
		switch path.Ext(strings.ToLower(o.Path)) {
		case ".pyd", ".dll", ".exe":
			return true, err
		}
		return false, nil
	}
	o.pe, o.Machine = f, f.architecture()
	if err != nil {
		return true, err
	}
	o.Needed, o.Delayed = f.libraries(false), f.libraries(true)
	o.exports = f.exports
	o.Defined = len(f.ordinals)
	for i := range f.imports {
		if im := &f.imports[i]; !im.delayed && im.name != "" {
			o.Undefined++
		}
	}
	// A .pyd without the function that Python calls is a library that others load, as torch does.
	module := moduleName(o.Path)
	if !strings.EqualFold(path.Ext(o.Path), ".pyd") || !o.has(initFunction(module)) {
		return true, nil
	}
	o.Module = module
	suffix := parseModuleSuffix(path.Base(o.Path))
	pythons := slices.DeleteFunc(slices.Clone(o.Needed), func(lib string) bool { return pythonOfDLL(lib) == "" })
	if o.Python = suffix.python; o.Python == "" && len(pythons) == 1 && pythonOfDLL(pythons[0]) == "abi3" {
		o.Python = "abi3"
	}
	o.Pybind = pybindInternals(r, f.rdata[0], f.rdata[1])
	if use := pythonUseOf(o.pythonNames()); len(use.names) > 0 && len(use.unstable) == 0 {
		o.StableABI = fmt.Sprintf("3.%d", max(use.minor, 2))
	}
	return true, nil
}
