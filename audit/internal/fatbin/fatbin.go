// Package fatbin lists the GPU code inside a binary: for which NVIDIA architectures it
// holds machine code or PTX, and for which AMD targets it holds code objects. It serves
// the audit's question "will this run on that GPU", so it reads headers and leaves the
// code alone: a library of a gigabyte costs a few thousand small reads.
//
// Everything read is foreign. Sizes are checked before they are used, memory does not
// grow with what a header claims, and the number of entries has a limit. What was read
// before a fault is returned together with the error.
//
// No public specification of NVIDIA's container exists. The layout was taken from the
// output of nvcc 11.8, 12.4 and 13.0 and is held against cuobjdump by the tests. AMD's is
// clang's offload bundle: https://clang.llvm.org/docs/ClangOffloadBundler.html.
package fatbin

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// MaxEntries is the number of entries, and of ROCm targets, after which reading one file
// stops with an error. libtorch_cuda has less than 3,000.
const MaxEntries = 100_000

// maxText bounds the identifiers and options kept of one file. They name source files, so
// most are equal and are kept once.
const maxText = 16 << 20

// Errors that a caller may want to tell apart; test with [errors.Is].
var (
	// ErrMalformed means that the bytes contradict themselves: the file is cut, damaged
	// or hostile. Entries returned with it are those before and between the damage.
	ErrMalformed = errors.New("malformed")

	// ErrNotSupported means a form that is known to exist and is not read: a thin
	// archive, a compressed ELF section, an ELF file without section headers, or a
	// payload packed in a way that no toolkit at hand produces.
	ErrNotSupported = errors.New("not supported")

	// ErrUnknownFormat means that the file is none of the formats of this package.
	ErrUnknownFormat = errors.New("unknown file format")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

func notSupported(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrNotSupported)
}

// Kind says what the payload of an [Entry] is. The values are those of the file.
type Kind uint16

// The kinds that cuobjdump 13.2 has a name for. Of these only PTX, SASS and LTOIR have
// been seen in files.
const (
	PTX            Kind = 1   // PTX text, compiled by the driver when it is loaded
	SASS           Kind = 2   // a cubin: machine code of one architecture
	OldCubin       Kind = 4   // a cubin of the time before ELF
	LTOIR          Kind = 8   // NVVM intermediate code for link-time optimization
	Index          Kind = 32  // bookkeeping
	RelocatablePTX Kind = 64  // PTX for the device linker
	TileIR         Kind = 128 // intermediate code of the tile compiler
	Concatenated   Kind = 256 // several images in one
)

// String returns the name of the kind in messages: "SASS", "PTX", "LTO-IR".
func (k Kind) String() string {
	switch k {
	case PTX:
		return "PTX"
	case SASS:
		return "SASS"
	case OldCubin:
		return "old cubin"
	case LTOIR:
		return "LTO-IR"
	case Index:
		return "index"
	case RelocatablePTX:
		return "relocatable PTX"
	case TileIR:
		return "tile IR"
	case Concatenated:
		return "concatenated"
	default:
		return fmt.Sprintf("kind %d", uint16(k))
	}
}

// What [Entry.Compression] and [ROCmTarget.Compression] can be beside "", not compressed.
const (
	LZ4     = "lz4"
	Zstd    = "zstd"
	Zlib    = "zlib"
	Unknown = "unknown"
)

// Bits of [Entry.Flags].
const (
	flagLZ4         = 0x2000
	flagZstd        = 0x8000
	flagCompression = 0xf000 // cuobjdump calls an entry with any of these compressed
	flagArchSuffix  = 0x100000
	flagFamSuffix   = 0x200000
)

// Entry is one image: code of one kind for one architecture.
type Entry struct {
	Kind Kind

	// Arch is the architecture as a number, 90 for sm_90 or compute_90, and Suffix the
	// letter after it: "a" for code that runs on this architecture only, "f" for code
	// that runs in its family, or "".
	Arch   int
	Suffix string

	// Compression of the payload: "", "lz4", "zstd", or "unknown".
	Compression string

	// Size is the length of the payload in the file without padding behind compressed
	// data, RawSize its length after decompression. Both are what the header claims.
	Size, RawSize int64

	// Ident is the path of the source file as it was given to nvcc, present in code
	// built with -lineinfo or -g; else "".
	Ident string

	// Options are those for ptxas, of PTX, or for libnvvm, of LTO-IR.
	Options string

	// Major and Minor are the PTX ISA version of PTX; of SASS a version of the format.
	Major, Minor int

	// Flags are the bits of the entry header that the fields above come from.
	Flags uint64

	// Section is the section that holds the container, by its full name also where
	// Windows cuts it: ".nv_fatbin", or "__nv_relfatbin" for relocatable code. It is ""
	// in a file that is itself a container or a cubin.
	Section string

	// Member is the member of a static archive, else "".
	Member string

	// Container counts the containers of the file from 0. nvcc writes one for each
	// source file.
	Container int

	// DeviceLink is set in the container that nvcc's device link step adds. In a library
	// built with -rdc=true its images are the code of all sources, and those of
	// __nv_relfatbin were its input. In a library without relocatable code they are empty
	// and say nothing about what the sources were built for. It is known for linked files
	// only.
	DeviceLink bool

	// Offset is where the payload begins in the file.
	Offset int64
}

// Target returns the architecture as nvcc's option -code names it: "sm_90a",
// "compute_120f", "lto_80".
func (e Entry) Target() string {
	prefix := "sm_"
	switch e.Kind {
	case PTX, RelocatablePTX, TileIR:
		prefix = "compute_"
	case LTOIR:
		prefix = "lto_"
	}
	return fmt.Sprintf("%s%d%s", prefix, e.Arch, e.Suffix)
}

// Relocatable reports whether the image is input of the device linker (nvcc -dc or
// -rdc=true). Such images stay in a linked library and are not loaded from there.
func (e Entry) Relocatable() bool { return e.Section == sectionRelocatable }

// Loadable returns the entries of one linked file that the driver loads and that tell
// which GPUs its sources were built for. Left out are relocatable images and, unless there
// are relocatable images that it was made from, what the device link step added. A library
// built with -rdc=true has nothing but the device link step's container to load from.
func Loadable(entries []Entry) []Entry {
	linked := slices.ContainsFunc(entries, Entry.Relocatable)
	var list []Entry
	for _, e := range entries {
		if !e.Relocatable() && (linked || !e.DeviceLink) {
			list = append(list, e)
		}
	}
	return list
}

// Format is a file format that [Scan] recognizes.
type Format string

// The formats of this package.
const (
	FormatELF     Format = "ELF"
	FormatPE      Format = "PE"      // .dll, .pyd, .exe
	FormatCOFF    Format = "COFF"    // .obj of Windows
	FormatArchive Format = "archive" // .a, .lib
	FormatFatbin  Format = "fatbin"  // a bare container
	FormatCubin   Format = "cubin"   // bare machine code for an NVIDIA GPU
	FormatBundle  Format = "bundle"  // a bare offload bundle, compressed or not
)

// Contents is what [Scan] found.
type Contents struct {
	Format  Format
	Entries []Entry
	ROCm    []ROCmTarget
}

// Detect returns the format of a file by its first bytes, "" if it is none of them.
func Detect(r io.ReaderAt, size int64) (Format, error) {
	head := make([]byte, max(min(size, 64), 0))
	if err := readAt(r, head, 0); err != nil {
		return "", err
	}
	switch {
	case bytes.HasPrefix(head, []byte("\x7fELF")):
		if len(head) >= 20 && binary.LittleEndian.Uint16(head[18:]) == machineCUDA && head[5] == 1 {
			return FormatCubin, nil
		}
		return FormatELF, nil
	case bytes.HasPrefix(head, []byte("MZ")):
		return FormatPE, nil
	case bytes.HasPrefix(head, []byte(archiveMagic)), bytes.HasPrefix(head, []byte(thinMagic)):
		return FormatArchive, nil
	case len(head) >= 4 && binary.LittleEndian.Uint32(head) == containerMagic:
		return FormatFatbin, nil
	case bytes.HasPrefix(head, []byte(bundleMagic)), bytes.HasPrefix(head, []byte(compressedMagic)):
		return FormatBundle, nil
	case isCOFF(head, size):
		return FormatCOFF, nil
	}
	return "", nil
}

// Scan reads the NVIDIA and the AMD code of a file in any of the formats, which it knows
// by their first bytes and not by a name. The error of any other file is
// [ErrUnknownFormat].
func Scan(r io.ReaderAt, size int64) (Contents, error) {
	format, err := Detect(r, size)
	if err != nil {
		return Contents{}, err
	}
	s := newScanner(r, size)
	err = s.file(format)
	return Contents{Format: format, Entries: s.entries, ROCm: s.targets}, err
}

// A scanner collects what is in one file.
type scanner struct {
	r    io.ReaderAt
	size int64

	entries    []Entry
	targets    []ROCmTarget
	containers int
	bundles    int
	inflated   int64
	member     string

	// fault is the first contradiction; the search goes on behind it.
	fault error

	interned map[string]string
	text     int
	buf      []byte

	// Kept from one bundle to the next.
	in   *bufio.Reader
	zstd *zstd.Decoder
}

func newScanner(r io.ReaderAt, size int64) *scanner {
	return &scanner{r: r, size: size, interned: map[string]string{}}
}

// file reads a whole file of a format.
func (s *scanner) file(format Format) error {
	defer func() {
		if s.zstd != nil {
			s.zstd.Close()
		}
	}()
	var err error
	switch format {
	case FormatArchive:
		err = s.archive()
	case FormatFatbin:
		err = s.walk(section{size: s.size}, nil)
	case FormatBundle:
		err = s.walkBundles(section{size: s.size})
	case "":
		return ErrUnknownFormat
	default:
		err = s.object(format, 0, s.size)
	}
	if err == nil {
		err = s.fault
	}
	return err
}

// object reads one object or image that lies at base and has the given size.
func (s *scanner) object(format Format, base, size int64) error {
	r := io.NewSectionReader(s.r, base, size)
	var (
		obj *object
		err error
	)
	switch format {
	case FormatELF:
		obj, err = parseELF(r, size)
	case FormatPE, FormatCOFF:
		obj, err = parsePE(r, size, format == FormatPE)
	case FormatCubin:
		e, err := readCubin(r, size)
		if err != nil {
			return err
		}
		e.Offset, e.Member = base, s.member
		e.Container = s.containers
		s.containers++
		return s.add(e)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	named := false
	defer func() {
		if named {
			s.bundles++
		}
	}()
	for _, sec := range obj.sections {
		var err error
		switch sec.name {
		case sectionFatbin, sectionRelocatable:
			var linked map[uint64]bool
			if linked, err = obj.deviceLinked(r); err != nil {
				s.note(err)
			}
			sec.off += base
			err = s.walk(sec, linked)
		case sectionHIP:
			sec.off += base
			err = s.walkBundles(sec)
		default:
			if id, ok := strings.CutPrefix(sec.name, bundleMagic); ok {
				named = true // clang -fgpu-rdc: one bundle, spread over sections
				err = s.addTarget(id, sec.size, "")
			}
		}
		if err != nil {
			return fmt.Errorf("section %s: %w", sec.name, err)
		}
	}
	return nil
}

// note keeps the first contradiction and lets the search go on.
func (s *scanner) note(err error) {
	if s.fault == nil {
		if s.member != "" {
			err = fmt.Errorf("member %s: %w", s.member, err)
		}
		s.fault = err
	}
}

func (s *scanner) add(e Entry) error {
	if len(s.entries) >= MaxEntries {
		return malformed("more than %d entries", MaxEntries)
	}
	s.entries = append(s.entries, e)
	return nil
}

// intern returns a string that is kept once for all entries.
func (s *scanner) intern(b []byte) (string, error) {
	if len(b) == 0 {
		return "", nil
	}
	if kept, ok := s.interned[string(b)]; ok {
		return kept, nil
	}
	if s.text += len(b); s.text > maxText {
		return "", malformed("more than %d bytes of identifiers and options", maxText)
	}
	kept := string(b)
	s.interned[kept] = kept
	return kept, nil
}

// readAt fills b from the bytes at off. A file that ends before is malformed: all offsets
// were checked against its size.
func readAt(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return malformed("%d of %d bytes at offset %d: %v", n, len(b), off, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read %d bytes at offset %d: %w", len(b), off, err)
}
