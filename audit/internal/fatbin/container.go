package fatbin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

const (
	containerMagic  = 0xba55ed50
	containerHeader = 16

	// entryHeader is the fixed part. What follows it varies: toolkits wrote headers of
	// 64 to 144 bytes, more with a long source path.
	entryHeader    = 64
	maxEntryHeader = 64 << 10

	// headerRead covers nearly every header in one read.
	headerRead = 256

	// maxFaults is how often the search for the next container starts again behind a
	// contradiction. Without it, a file of nothing but damaged containers would cost
	// reads for every eight bytes.
	maxFaults = 64
)

// walk lists the entries of all containers of a section. linked holds the addresses of
// the containers that the device link step made.
func (s *scanner) walk(sec section, linked map[uint64]bool) error {
	end := sec.off + sec.size
	p := sec.off
	for faults := 0; ; {
		var err error
		if p, err = s.findContainer(p, end); err != nil || p < 0 {
			return err
		}
		if s.containers >= MaxEntries {
			return malformed("more than %d containers", MaxEntries)
		}
		next, err := s.container(p, end, sec.name, linked[sec.addr+uint64(p-sec.off)])
		if errors.Is(err, ErrMalformed) {
			s.note(fmt.Errorf("container at offset %d: %w", p, err))
			if faults++; faults == maxFaults || len(s.entries) >= MaxEntries {
				return nil
			}
			err = nil
		}
		if err != nil {
			return err
		}
		p = next
	}
}

// findContainer returns the offset of the next container at or after p, in steps of 8,
// or -1. Between containers there is padding, usually of no more than 8 bytes.
func (s *scanner) findContainer(p, end int64) (int64, error) {
	for n := int64(64); end-p >= containerHeader; n = min(4*n, 64<<10) {
		b := s.buffer(int(min(n, end-p)))
		if err := readAt(s.r, b, p); err != nil {
			return 0, err
		}
		for len(b) >= 8 {
			if binary.LittleEndian.Uint32(b) == containerMagic {
				if end-p < containerHeader {
					return -1, nil
				}
				return p, nil
			}
			b = b[8:]
			p += 8
		}
	}
	return -1, nil
}

// container lists the entries of the container at p and returns where to look for the
// next one, also with an error that wraps ErrMalformed.
func (s *scanner) container(p, end int64, name string, linked bool) (next int64, err error) {
	head := s.buffer(containerHeader)
	if err := readAt(s.r, head, p); err != nil {
		return p + 8, err
	}
	headerSize := int64(binary.LittleEndian.Uint16(head[6:]))
	if headerSize < containerHeader || headerSize > end-p {
		return p + 8, malformed("header of %d bytes", headerSize)
	}
	size := binary.LittleEndian.Uint64(head[8:])
	if size > uint64(end-p-headerSize) {
		return p + 8, malformed("%d bytes, of which %d are there", size, end-p-headerSize)
	}
	q := p + headerSize
	stop := q + int64(size)
	number := s.containers
	s.containers++
	for stop-q >= entryHeader {
		e, after, err := s.entry(q, stop)
		if err != nil {
			return stop, fmt.Errorf("entry at offset %d: %w", q, err)
		}
		e.Section, e.Member, e.Container, e.DeviceLink = name, s.member, number, linked
		if err := s.add(e); err != nil {
			return stop, err
		}
		q = after
	}
	if q != stop {
		tail := make([]byte, stop-q)
		if err := readAt(s.r, tail, q); err != nil {
			return stop, err
		}
		if slices.ContainsFunc(tail, func(b byte) bool { return b != 0 }) {
			return stop, malformed("%d bytes behind the last entry", len(tail))
		}
	}
	return stop, nil
}

// entry reads the entry header at q, in a container that ends at stop, and returns where
// the next one begins.
//
// Offsets: 0 kind, 4 header size, 8 payload size with padding, 16 compressed size,
// 20 offset of the options, 24 minor, 26 major, 28 architecture, 32 offset and 36 length
// of the identifier, 40 flags, 56 size before compression.
func (s *scanner) entry(q, stop int64) (e Entry, next int64, err error) {
	head := s.buffer(int(min(headerRead, stop-q)))
	if err := readAt(s.r, head, q); err != nil {
		return e, 0, err
	}
	le := binary.LittleEndian
	headerSize := int64(le.Uint32(head[4:]))
	if headerSize < entryHeader || headerSize%8 != 0 || headerSize > maxEntryHeader || headerSize > stop-q {
		return e, 0, malformed("header of %d bytes", headerSize)
	}
	padded := le.Uint64(head[8:])
	if padded > uint64(stop-q-headerSize) {
		return e, 0, malformed("payload of %d bytes, of which %d are there", padded, stop-q-headerSize)
	}
	arch := le.Uint32(head[28:])
	if arch > 0xffff {
		return e, 0, malformed("architecture %d", arch)
	}
	e = Entry{
		Kind:    Kind(le.Uint16(head)),
		Arch:    int(arch),
		Size:    int64(padded),
		RawSize: int64(padded),
		Minor:   int(le.Uint16(head[24:])),
		Major:   int(le.Uint16(head[26:])),
		Flags:   le.Uint64(head[40:]),
		Offset:  q + headerSize,
	}
	switch {
	case e.Flags&flagArchSuffix != 0:
		e.Suffix = "a"
	case e.Flags&flagFamSuffix != 0:
		e.Suffix = "f"
	}
	if e.Flags&flagCompression != 0 {
		compressed, raw := le.Uint32(head[16:]), le.Uint64(head[56:])
		if uint64(compressed) > padded || raw > 1<<62 {
			return e, 0, malformed("%d compressed bytes in a payload of %d, %d before compression", compressed, padded, raw)
		}
		e.Size, e.RawSize = int64(compressed), int64(raw)
		switch e.Flags & flagCompression {
		case flagLZ4:
			e.Compression = LZ4
		case flagZstd:
			e.Compression = Zstd
		default:
			e.Compression = Unknown
		}
	}

	if headerSize <= int64(len(head)) {
		head = head[:headerSize]
	} else {
		head = s.buffer(int(headerSize))
		if err := readAt(s.r, head, q); err != nil {
			return e, 0, err
		}
	}
	if e.Ident, err = s.field(head, le.Uint32(head[32:]), le.Uint32(head[36:])); err != nil {
		return e, 0, fmt.Errorf("identifier: %w", err)
	}
	// What SASS has there is not text.
	if at := le.Uint32(head[20:]); at != 0 && e.Kind != SASS {
		if at < entryHeader || int64(at)+8 > headerSize {
			return e, 0, malformed("options at %d in a header of %d bytes", at, headerSize)
		}
		if e.Options, err = s.field(head, le.Uint32(head[at:]), le.Uint32(head[at+4:])); err != nil {
			return e, 0, fmt.Errorf("options: %w", err)
		}
	}
	return e, q + headerSize + int64(padded), nil
}

// field returns text inside an entry header.
func (s *scanner) field(head []byte, off, size uint32) (string, error) {
	if size == 0 {
		return "", nil
	}
	if off < entryHeader || uint64(off)+uint64(size) > uint64(len(head)) {
		return "", malformed("%d bytes at %d in a header of %d bytes", size, off, len(head))
	}
	return s.intern(head[off : off+size])
}

// buffer returns n bytes that are valid until the next call.
func (s *scanner) buffer(n int) []byte {
	if cap(s.buf) < n {
		s.buf = make([]byte, max(n, 1024))
	}
	return s.buf[:n]
}
