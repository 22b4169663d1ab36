package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// MaxPayload is the size after decompression up to which [Entry.Payload] reads.
const MaxPayload = 512 << 20

// Payload reads the image of an entry and decompresses it. r is the file that the entry
// was read from. PTX is text that ends with a NUL byte and padding, SASS is an ELF file.
// LTO-IR is obfuscated from toolkit 12 on, which is [ErrNotSupported].
//
// It is an error if the data does not have exactly the size that the header claims.
func (e Entry) Payload(r io.ReaderAt) ([]byte, error) {
	if e.RawSize > MaxPayload || e.Size > MaxPayload {
		return nil, malformed("payload of %d bytes, at most %d are read", e.RawSize, MaxPayload)
	}
	if e.Flags&flagObfuscated != 0 {
		return nil, notSupported("payload at offset %d: obfuscated", e.Offset)
	}
	data, err := readGrowing(io.NewSectionReader(r, e.Offset, e.Size), e.Size)
	if err != nil {
		return nil, fmt.Errorf("payload at offset %d: %w", e.Offset, err)
	}
	switch e.Compression {
	case "":
	case LZ4:
		data, err = decodeLZ4(data, int(e.RawSize))
	case Zstd:
		data, err = decodeZstd(data, e.RawSize)
	default:
		err = notSupported("compression with flags %#x", e.Flags&flagCompression)
	}
	if err != nil {
		return nil, fmt.Errorf("payload at offset %d: %w", e.Offset, err)
	}
	return data, nil
}

// readGrowing reads exactly size bytes, without trusting that there are so many.
func readGrowing(r io.Reader, size int64) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.CopyN(&b, r, size)
	if errors.Is(err, io.EOF) {
		return nil, malformed("%d bytes, of which %d are there", size, n)
	}
	return b.Bytes(), err
}

// decodeZstd decompresses one frame of exactly size bytes.
func decodeZstd(src []byte, size int64) ([]byte, error) {
	d, err := zstd.NewReader(bytes.NewReader(src),
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(max(size, 1<<20))))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	defer d.Close()
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(d, size+1))
	if err != nil {
		return nil, malformed("zstd: %v", err)
	}
	if n != size {
		return nil, malformed("zstd: not the %d bytes that the header claims", size)
	}
	return b.Bytes(), nil
}

// decodeLZ4 decompresses an LZ4 block, which has no header, of exactly size bytes. See
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md.
func decodeLZ4(src []byte, size int) ([]byte, error) {
	const minMatch = 4
	// A byte of length stands for at most 255 bytes, so what the header claims can be
	// held against the size of the block before anything is allocated.
	if int64(size) > 255*int64(len(src))+64 {
		return nil, malformed("lz4: a block of %d bytes cannot hold %d", len(src), size)
	}
	dst := make([]byte, 0, size)

	// length adds the bytes that follow a field of 15.
	length := func(n int) (int, bool) {
		if n != 15 {
			return n, true
		}
		for len(src) > 0 {
			c := src[0]
			src = src[1:]
			if n += int(c); n > size {
				return 0, false
			}
			if c != 255 {
				return n, true
			}
		}
		return 0, false
	}
	for len(src) > 0 {
		token := int(src[0])
		src = src[1:]
		literals, ok := length(token >> 4)
		if !ok || literals > len(src) || literals > size-len(dst) {
			return nil, malformed("lz4: literals run out of the block")
		}
		dst = append(dst, src[:literals]...)
		src = src[literals:]
		if len(src) == 0 {
			break // the last sequence has no match
		}
		if len(src) < 2 {
			return nil, malformed("lz4: cut in an offset")
		}
		offset := int(binary.LittleEndian.Uint16(src))
		src = src[2:]
		match, ok := length(token & 15)
		match += minMatch
		if !ok || offset == 0 || offset > len(dst) || match > size-len(dst) {
			return nil, malformed("lz4: match of %d bytes at distance %d after %d of %d", match, offset, len(dst), size)
		}
		// The match may overlap what it produces: then it repeats.
		for from := len(dst) - offset; match > 0; {
			n := min(match, len(dst)-from)
			dst = append(dst, dst[from:from+n]...)
			match -= n
		}
	}
	if len(dst) != size {
		return nil, malformed("lz4: %d bytes, the header claims %d", len(dst), size)
	}
	return dst, nil
}
