package fatbin

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	bundleMagic     = "__CLANG_OFFLOAD_BUNDLE__"
	compressedMagic = "CCOB"

	// maxBundleHeader bounds what is read of a bundle: the list of its code objects,
	// some 70 bytes each.
	maxBundleHeader = 1 << 20
	maxBundleID     = 4096

	// maxInflated bounds what is decompressed only to find the end of a bundle.
	maxInflated int64 = 2 << 30
)

// ROCmTarget is one code object for AMD GPUs.
type ROCmTarget struct {
	// Triple is the LLVM target, without an empty environment: "amdgcn-amd-amdhsa".
	Triple string

	// GFX is the processor: "gfx90a", "gfx9-4-generic", or "amdgcnspirv" for code that
	// is compiled when it is loaded.
	GFX string

	// Features that the code was built for, in the order of the file: "sramecc+",
	// "xnack-". A feature that is not listed may be on or off.
	Features []string

	// Size of the code object in bytes, before compression.
	Size int64

	// Offload is the kind of the bundle's entry: "hipv4", "hip", "openmp".
	Offload string

	// Compression of the bundle: "", "zlib" or "zstd".
	Compression string

	// Bundle counts the bundles of the file from 0; clang writes one for each source
	// file. Member is the member of a static archive, else "".
	Bundle int
	Member string
}

// ID returns the target as the HIP compiler's option --offload-arch takes it:
// "gfx90a:sramecc+:xnack-".
func (t ROCmTarget) ID() string {
	return strings.Join(append([]string{t.GFX}, t.Features...), ":")
}

// parseBundleID splits "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+": the kind, a triple of
// three or four parts and the target. The target may have dashes of its own.
func parseBundleID(id string) (offload, triple, gfx string, features []string, err error) {
	offload, rest, ok := strings.Cut(id, "-")
	parts := strings.SplitN(rest, "-", 5)
	if !ok || offload == "" || len(parts) < 3 {
		return "", "", "", nil, malformed("bundle entry %q", id)
	}
	target := ""
	if len(parts) >= 4 && strings.HasPrefix(parts[3], "gfx") {
		target = strings.Join(parts[3:], "-")
		parts = parts[:3]
	} else if len(parts) == 5 {
		target = parts[4]
		parts = parts[:4]
	}
	if len(parts) == 4 && (parts[3] == "" || parts[3] == "unknown") {
		parts = parts[:3]
	}
	gfx, list, ok := strings.Cut(target, ":")
	if ok {
		features = strings.Split(list, ":")
	}
	return offload, strings.Join(parts, "-"), gfx, features, nil
}

// addTarget keeps an entry of a bundle, unless it is the host's, which is empty, or one of
// SYCL, which names Intel's targets in a way of its own: "sycl-spir64_gen".
func (s *scanner) addTarget(id string, size int64, compression string) error {
	if strings.HasPrefix(id, "sycl-") {
		return nil
	}
	kept, err := s.intern([]byte(id))
	if err != nil {
		return err
	}
	offload, triple, gfx, features, err := parseBundleID(kept)
	if err != nil {
		return err
	}
	if offload == "host" {
		return nil
	}
	if len(s.targets) >= MaxEntries {
		return malformed("more than %d ROCm targets", MaxEntries)
	}
	s.targets = append(s.targets, ROCmTarget{
		Triple: triple, GFX: gfx, Features: features, Size: size, Offload: offload,
		Compression: compression, Bundle: s.bundles, Member: s.member,
	})
	return nil
}

// walkBundles lists the code objects of all bundles of a section.
func (s *scanner) walkBundles(sec section) error {
	p, end := sec.off, sec.off+sec.size
	for faults := 0; ; {
		at, compressed, err := s.findBundle(p, end)
		if err != nil || at < 0 {
			return err
		}
		p = at
		if s.bundles >= MaxEntries {
			return malformed("more than %d bundles", MaxEntries)
		}
		var size int64
		if compressed {
			size, err = s.compressedBundle(p, end)
		} else {
			size, err = s.bundle(io.NewSectionReader(s.r, p, end-p), end-p, "")
		}
		s.bundles++
		if errors.Is(err, ErrMalformed) {
			s.note(fmt.Errorf("bundle at offset %d: %w", p, err))
			if faults++; faults == maxFaults || len(s.targets) >= MaxEntries {
				return nil
			}
			size, err = max(size, int64(len(compressedMagic))), nil
		}
		if err != nil {
			return fmt.Errorf("bundle at offset %d: %w", p, err)
		}
		p += size
	}
}

// findBundle returns the offset of the next bundle at or after p, or -1. Linkers put
// bundles on pages and fill up with zeros.
func (s *scanner) findBundle(p, end int64) (at int64, compressed bool, err error) {
	for n := int64(64); p < end; n = min(4*n, 64<<10) {
		b := s.buffer(int(min(n, end-p)))
		if err := readAt(s.r, b, p); err != nil {
			return 0, false, err
		}
		plain, packed := bytes.Index(b, []byte(bundleMagic)), bytes.Index(b, []byte(compressedMagic))
		if packed >= 0 && (plain < 0 || packed < plain) {
			return p + int64(packed), true, nil
		}
		if plain >= 0 {
			return p + int64(plain), false, nil
		}
		if int64(len(b)) == end-p {
			break
		}
		p += int64(len(b) - len(bundleMagic) + 1) // a magic may lie across the border
	}
	return -1, false, nil
}

// bundle lists the code objects of a bundle of at most limit bytes and returns the size of
// the bundle. Behind the magic are the number of entries and for each its offset and size,
// the length of its name and the name, numbers of eight bytes.
func (s *scanner) bundle(r io.Reader, limit int64, compression string) (size int64, err error) {
	if s.in == nil {
		s.in = bufio.NewReaderSize(nil, 4<<10)
	}
	s.in.Reset(io.LimitReader(r, maxBundleHeader))
	in, read := s.in, int64(0)
	take := func(b []byte) error {
		n, err := io.ReadFull(in, b)
		read += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return malformed("the list of code objects is cut after %d bytes", read)
		}
		return err
	}
	head := make([]byte, len(bundleMagic)+8)
	if err := take(head); err != nil {
		return 0, err
	}
	if string(head[:len(bundleMagic)]) != bundleMagic {
		return 0, malformed("no bundle in the compressed data")
	}
	count := binary.LittleEndian.Uint64(head[len(bundleMagic):])
	size = int64(len(head))
	for i := range count { // every entry takes 24 bytes of a limited reader
		var fields [24]byte
		if err := take(fields[:]); err != nil {
			return size, err
		}
		offset, length := binary.LittleEndian.Uint64(fields[:]), binary.LittleEndian.Uint64(fields[8:])
		if offset > uint64(limit) || length > uint64(limit)-offset {
			return size, malformed("code object %d: %d bytes at offset %d of %d", i, length, offset, limit)
		}
		nameLength := binary.LittleEndian.Uint64(fields[16:])
		if nameLength > maxBundleID {
			return size, malformed("code object %d: name of %d bytes", i, nameLength)
		}
		name := make([]byte, nameLength)
		if err := take(name); err != nil {
			return size, err
		}
		if err := s.addTarget(string(name), int64(length), compression); err != nil {
			return size, err
		}
		size = max(size, int64(offset+length), read)
	}
	return size, nil
}

// compressedBundle lists the code objects of the compressed bundle at p and returns its
// size. Behind the magic are the version and the method, two bytes each; then, as four
// bytes in version 2 and eight in version 3, the size of the whole, missing in version 1;
// the size before compression, in the same width; a hash of eight bytes.
func (s *scanner) compressedBundle(p, end int64) (size int64, err error) {
	le := binary.LittleEndian
	head := make([]byte, min(32, end-p))
	if err := readAt(s.r, head, p); err != nil {
		return 0, err
	}
	if len(head) < 20 {
		return 0, malformed("compressed bundle of %d bytes", len(head))
	}
	var (
		version    = le.Uint16(head[4:])
		method     = le.Uint16(head[6:])
		headerSize int64
		total, raw uint64
	)
	switch {
	case version == 1:
		headerSize, raw = 20, uint64(le.Uint32(head[8:]))
	case version == 2 && len(head) >= 24:
		headerSize, total, raw = 24, uint64(le.Uint32(head[8:])), uint64(le.Uint32(head[12:]))
	case version == 3 && len(head) >= 32:
		headerSize, total, raw = 32, le.Uint64(head[8:]), le.Uint64(head[16:])
	default:
		return 0, malformed("compressed bundle of version %d", version)
	}
	if version == 1 {
		total = uint64(end - p) // an upper bound for now
	}
	if total < uint64(headerSize) || total > uint64(end-p) || raw > 1<<62 {
		return 0, malformed("%d bytes, of which %d are there; %d before compression", total, end-p, raw)
	}
	data := io.NewSectionReader(s.r, p+headerSize, int64(total)-headerSize)
	var (
		text        io.Reader
		compression string
	)
	switch method {
	case 0:
		compression = Zlib
		z, err := zlib.NewReader(data)
		if err != nil {
			return 0, malformed("zlib: %v", err)
		}
		text = z
	case 1:
		compression = Zstd
		if text, err = s.zstdPrefix(data); err != nil {
			return 0, err
		}
	default:
		return int64(total), malformed("compression method %d", method)
	}
	_, err = s.bundle(decompressed{text}, int64(raw), compression)
	if version != 1 || err != nil {
		return int64(total), err
	}
	data = io.NewSectionReader(s.r, p+headerSize, end-p-headerSize)
	if method == 0 {
		if s.inflated += int64(raw); s.inflated > maxInflated {
			return int64(total), malformed("more than %d bytes in old bundles of zlib", maxInflated)
		}
		size, err = zlibSize(data, int64(raw))
	} else {
		size, err = zstdSize(data)
	}
	return headerSize + size, err
}

// decompressed makes the errors of a decompressor say that the data is at fault.
type decompressed struct{ r io.Reader }

func (d decompressed) Read(b []byte) (int, error) {
	n, err := d.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = malformed("decompress: %v", err)
	}
	return n, err
}

// zstdFrame reads a frame header and returns its descriptor and size.
func zstdFrame(r io.ReaderAt) (descriptor byte, size int64, err error) {
	var head [5]byte
	if err := readAt(r, head[:], 0); err != nil {
		return 0, 0, err
	}
	if binary.LittleEndian.Uint32(head[:]) != 0xfd2fb528 {
		return 0, 0, malformed("no zstd frame")
	}
	descriptor = head[4]
	single := descriptor&0x20 != 0
	size = 5 + []int64{0, 1, 2, 4}[descriptor&3] + []int64{0, 2, 4, 8}[descriptor>>6]
	if !single {
		size++ // window
	} else if descriptor>>6 == 0 {
		size++ // content size of one byte
	}
	return descriptor, size, nil
}

// zstdPrefix decompresses the beginning of a frame, at least maxBundleHeader bytes. The
// frame asks for a window as large as the bundle, which is allocated at once; for its
// beginning a window of that length is enough. So the frame gets another header.
func (s *scanner) zstdPrefix(r *io.SectionReader) (io.Reader, error) {
	descriptor, size, err := zstdFrame(r)
	if err != nil {
		return nil, err
	}
	if descriptor&3 != 0 {
		return nil, malformed("zstd: frame with a dictionary")
	}
	const exponent = 10 // a window of 2^(10+exponent) bytes
	if s.zstd == nil {
		s.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxBundleHeader))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	}
	head := []byte{0x28, 0xb5, 0x2f, 0xfd, descriptor & 0x04, exponent << 3}
	blocks := io.NewSectionReader(r, size, max(r.Size()-size, 0))
	if err := s.zstd.Reset(io.MultiReader(bytes.NewReader(head), blocks)); err != nil {
		return nil, malformed("zstd: %v", err)
	}
	return s.zstd, nil
}

// zstdSize returns the size of the frame at the beginning of r. Block headers tell it:
// three bytes with a flag for the last one, a type and a size.
func zstdSize(r *io.SectionReader) (int64, error) {
	descriptor, at, err := zstdFrame(r)
	if err != nil {
		return 0, err
	}
	w := window{r: r, end: r.Size(), size: 64}
	for {
		b, err := w.bytes(at, 3)
		if err != nil {
			return 0, err
		}
		head := int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16
		size := head >> 3
		if head>>1&3 == 1 { // one byte, repeated
			size = 1
		}
		at += 3 + size
		if head&1 != 0 {
			break
		}
	}
	if descriptor&0x04 != 0 {
		at += 4 // checksum
	}
	if at > r.Size() {
		return 0, malformed("zstd: frame of %d bytes, of which %d are there", at, r.Size())
	}
	return at, nil
}

// zlibSize returns the size of the stream at the beginning of r by decompressing it.
func zlibSize(r *io.SectionReader, raw int64) (int64, error) {
	in := &countingReader{r: bufio.NewReader(r)}
	z, err := zlib.NewReader(in)
	if err != nil {
		return 0, malformed("zlib: %v", err)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(z, raw+1))
	if err != nil || n != raw {
		return 0, malformed("zlib: %d bytes of %d: %v", n, raw, err)
	}
	return in.n, nil
}

// countingReader counts what is taken from it. It is an io.ByteReader, so a decompressor
// takes nothing that it does not need.
type countingReader struct {
	r *bufio.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func (c *countingReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}
