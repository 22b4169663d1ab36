package serve

import (
	"encoding/binary"
	"hash"
	"math/bits"
)

// blake2b256 is unkeyed BLAKE2b with a digest of 32 bytes (RFC 7693), which twine and uv send
// with an upload. The standard library has no BLAKE2.
type blake2b256 struct {
	h      [8]uint64
	length uint64 // bytes compressed; a file never needs the upper half of the counter
	block  [blake2bBlock]byte
	used   int // of block; a full block waits, because the last one is compressed differently
}

const blake2bBlock = 128

var blake2bIV = [8]uint64{
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
}

var blake2bSigma = [10][16]uint8{
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	{14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
	{11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
	{7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
	{9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
	{2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
	{12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
	{13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
	{6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
	{10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}

func newBlake2b256() hash.Hash {
	b := new(blake2b256)
	b.Reset()
	return b
}

func (b *blake2b256) Reset() {
	*b = blake2b256{h: blake2bIV}
	b.h[0] ^= 0x01010000 | 32 // no key, fan-out and depth 1, 32 bytes
}

func (*blake2b256) Size() int      { return 32 }
func (*blake2b256) BlockSize() int { return blake2bBlock }

func (b *blake2b256) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if b.used == blake2bBlock {
			b.length += blake2bBlock
			b.compress(&b.block, false)
			b.used = 0
		}
		if b.used == 0 {
			for len(p) > blake2bBlock {
				b.length += blake2bBlock
				b.compress((*[blake2bBlock]byte)(p), false)
				p = p[blake2bBlock:]
			}
		}
		k := copy(b.block[b.used:], p)
		b.used += k
		p = p[k:]
	}
	return n, nil
}

func (b *blake2b256) Sum(in []byte) []byte {
	c := *b
	clear(c.block[c.used:])
	c.length += uint64(c.used)
	c.compress(&c.block, true)
	for _, word := range c.h[:4] {
		in = binary.LittleEndian.AppendUint64(in, word)
	}
	return in
}

func (b *blake2b256) compress(block *[blake2bBlock]byte, last bool) {
	var m, v [16]uint64
	for i := range m {
		m[i] = binary.LittleEndian.Uint64(block[8*i:])
	}
	copy(v[:8], b.h[:])
	copy(v[8:], blake2bIV[:])
	v[12] ^= b.length
	if last {
		v[14] = ^v[14]
	}
	for round := range 12 {
		s := &blake2bSigma[round%10]
		mix(&v[0], &v[4], &v[8], &v[12], m[s[0]], m[s[1]])
		mix(&v[1], &v[5], &v[9], &v[13], m[s[2]], m[s[3]])
		mix(&v[2], &v[6], &v[10], &v[14], m[s[4]], m[s[5]])
		mix(&v[3], &v[7], &v[11], &v[15], m[s[6]], m[s[7]])
		mix(&v[0], &v[5], &v[10], &v[15], m[s[8]], m[s[9]])
		mix(&v[1], &v[6], &v[11], &v[12], m[s[10]], m[s[11]])
		mix(&v[2], &v[7], &v[8], &v[13], m[s[12]], m[s[13]])
		mix(&v[3], &v[4], &v[9], &v[14], m[s[14]], m[s[15]])
	}
	for i := range b.h {
		b.h[i] ^= v[i] ^ v[i+8]
	}
}

func mix(a, b, c, d *uint64, x, y uint64) {
	*a += *b + x
	*d = bits.RotateLeft64(*d^*a, -32)
	*c += *d
	*b = bits.RotateLeft64(*b^*c, -24)
	*a += *b + y
	*d = bits.RotateLeft64(*d^*a, -16)
	*c += *d
	*b = bits.RotateLeft64(*b^*c, -63)
}
