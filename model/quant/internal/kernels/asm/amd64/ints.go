package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels for integers multiply pairs of 16-bit numbers and add both products to a 32-bit sum:
// a register holds the codes of two rows for every 8 or 16 columns. Which rows form a pair is
// chosen so that unpacking is cheap.

// place is where a code is in the words of a turn.
type place struct{ row, word, offset int }

// pair is two codes that share a 32-bit lane, low half first.
type pair struct{ low, high place }

// pairs returns the pairs of the rows of a turn, in the order in which the kernels unpack them.
func pairs(bits int) []pair {
	n := turn(bits)
	var out []pair
	var rest []place // codes that cross a half of a word, or have no partner
	for word := range n * bits / 32 {
		var low, high []place
		for row := range n {
			p := place{row, row * bits / 32, row * bits % 32}
			switch {
			case p.word != word:
			case p.offset+bits <= 16:
				low = append(low, p)
			case p.offset >= 16 && p.offset+bits <= 32:
				high = append(high, p)
			default:
				rest = append(rest, p)
			}
		}
		// The same shift for both is best, and a shift of one alone costs more than two that
		// differ.
		cost := func(l, h place) int {
			a, b := l.offset, h.offset-16
			switch {
			case a == b:
				return 0
			case a == 0 || b == 0:
				return 2
			}
			return 1
		}
		for limit := range 3 {
			for i := 0; i < len(low); i++ {
				for j := range high {
					if cost(low[i], high[j]) <= limit {
						out = append(out, pair{low[i], high[j]})
						low = append(low[:i], low[i+1:]...)
						high = append(high[:j], high[j+1:]...)
						i--
						break
					}
				}
			}
		}
		rest = append(append(rest, low...), high...)
	}
	for i := 0; i < len(rest); i += 2 {
		out = append(out, pair{rest[i], rest[i+1]})
	}
	return out
}

// unpacker turns codes into pairs of 16-bit numbers.
type unpacker struct {
	isa
	bits, count int
	words       Mem
	mask        reg.VecVirtual
	upper       reg.VecVirtual // the high halves, for AVX-512
	cur         []reg.VecVirtual
	at          int // the packed row that cur holds
}

func (s isa) unpacker(bits, count int, words Mem) *unpacker {
	u := &unpacker{isa: s, bits: bits, count: count, words: words, mask: s.vec()}
	VPBROADCASTD(constant(fmt.Sprintf("pair%d", bits), (1<<bits-1)*0x10001), u.mask)
	if s.lanes == 16 {
		u.upper = ZMM()
		VPBROADCASTD(constant("upper", 0xFFFF0000), u.upper)
	}
	return u
}

func (u *unpacker) move(m Mem, v reg.VecVirtual) {
	if u.lanes == 16 {
		VMOVDQU32(m, v)
	} else {
		VMOVDQU(m, v)
	}
}

// load makes cur the words of a packed row.
func (u *unpacker) load(word int) {
	if u.at == word {
		return
	}
	u.at, u.cur = word, u.several(u.count)
	for c, v := range u.cur {
		m := u.isa.at(u.words, word, c)
		u.move(m, v)
		if c%(64/u.bytes()) == 0 {
			prefetch(m)
		}
	}
}

func (u *unpacker) and(v, out reg.VecVirtual) {
	if u.lanes == 16 {
		VPANDD(u.mask, v, out)
	} else {
		VPAND(u.mask, v, out)
	}
}

// blend replaces the high halves of low by those of high.
func (u *unpacker) blend(low, high reg.VecVirtual) {
	if u.lanes == 16 {
		VPTERNLOGD(Imm(0xD8), u.upper, high, low)
	} else {
		VPBLENDW(Imm(0xAA), high, low, low)
	}
}

// shift moves a word so that a bit at from comes to bit to.
func shift(from, to int, v, out reg.VecVirtual) {
	if from > to {
		VPSRLD(Imm(uint64(from-to)), v, out)
	} else {
		VPSLLD(Imm(uint64(to-from)), v, out)
	}
}

// field returns a register with a code at bit to. Other bits are undefined.
func (u *unpacker) field(p place, c, to int) reg.VecVirtual {
	v := u.vec()
	u.move(u.isa.at(u.words, p.word, c), v)
	if p.offset != to {
		shift(p.offset, to, v, v)
	}
	if p.offset+u.bits > 32 {
		next := u.vec()
		u.move(u.isa.at(u.words, p.word+1, c), next)
		shift(0, to+32-p.offset, next, next)
		if u.lanes == 16 {
			VPORD(next, v, v)
		} else {
			VPOR(next, v, v)
		}
	}
	return v
}

// get returns the registers of a pair, which may be changed.
func (u *unpacker) get(p pair) []reg.VecVirtual {
	a, b := p.low.offset, p.high.offset-16
	out := u.several(u.count)
	if p.low.word != p.high.word || a+u.bits > 16 || b < 0 || b+u.bits > 16 {
		for c := range out {
			out[c] = u.field(p.low, c, 0)
			u.blend(out[c], u.field(p.high, c, 16))
			u.and(out[c], out[c])
		}
		return out
	}
	u.load(p.low.word)
	var counts reg.VecVirtual
	if a != b && (u.lanes == 16 || a != 0 && b != 0) {
		counts = u.vec()
		if u.lanes == 16 {
			VPBROADCASTD(constant(fmt.Sprintf("shift%dx%d", a, b), uint32(a|b<<16)), counts)
		} else { // the high half of a product
			VPBROADCASTD(constant(fmt.Sprintf("times%dx%d", a, b), uint32(1)<<(16-a)|uint32(1)<<(32-b)), counts)
		}
	}
	for c, t := range out {
		from := u.cur[c]
		switch {
		case a == b && a == 0:
			u.and(from, t)
			continue
		case a == b:
			VPSRLW(Imm(uint64(a)), from, t)
			if a+u.bits == 16 {
				continue
			}
		case u.lanes == 16:
			VPSRLVW(counts, from, t)
		case counts != nil:
			VPMULHUW(counts, from, t)
		case a == 0:
			VPSRLW(Imm(uint64(b)), from, t)
			VPBLENDW(Imm(0x55), from, t, t)
		default:
			VPSRLW(Imm(uint64(a)), from, t)
			VPBLENDW(Imm(0xAA), from, t, t)
		}
		u.and(t, t)
	}
	return out
}

// dot adds the products of pairs to sums.
func (s isa) dot(a, b, acc reg.VecVirtual) {
	if s.vnni {
		VPDPWSSD(a, b, acc)
		return
	}
	t := s.vec()
	VPMADDWD(a, b, t)
	VPADDD(t, acc, acc)
}

// mulInts adds the products of some rows with several pieces to y. Where registers are few, a piece
// is read twice, each time for half of the columns.
func (s isa) mulInts(bits, rows int) {
	TEXT(fmt.Sprintf("mulInts%dx%d%s", bits, rows, s.name), NOSPLIT, "func(y *float32, x, words *uint32, depth, pieces, shifted int)")
	Pragma("noescape")
	count := vecs
	if rows > s.wide {
		count = vecs / 2
	}
	y, head := Mem{Base: Load(Param("y"), GP64())}, Mem{Base: Load(Param("x"), GP64())}
	start, pieces := Mem{Base: Load(Param("words"), GP64())}, Load(Param("pieces"), GP64())
	shifted := Load(Param("shifted"), GP64())
	x, words, depth := Mem{Base: GP64()}, Mem{Base: GP64()}, GP64()
	u := s.unpacker(bits, count, words)
	next, half, done := label("piece"), label("half"), label("done")
	first := GP64() // bytes before the columns of this half
	Label(next)
	XORQ(first, first)
	Label(half)
	LEAQ(Mem{Base: start.Base, Index: first, Scale: 1}, words.Base)
	LEAQ(head.Offset(header*rows), x.Base)
	Load(Param("depth"), depth)
	acc := make([][]reg.VecVirtual, rows)
	for i := range acc {
		acc[i] = s.several(count)
		for _, v := range acc[i] {
			VPBROADCASTD(head.Offset(4*(rows+i)), v)
		}
	}
	loop := label("loop")
	Label(loop)
	u.at = -1
	for k, p := range pairs(bits) {
		t := u.get(p)
		for i := range rows {
			v := s.vec()
			VPBROADCASTD(x.Offset(4*(k*rows+i)), v)
			for c := range t {
				s.dot(v, t[c], acc[i][c])
			}
		}
	}
	n := turn(bits)
	ADDQ(distance(n*bits/32*s.line()), words.Base)
	ADDQ(distance(2*n*rows), x.Base)
	SUBQ(distance(n), depth)
	JNZ(LabelRef(loop))
	SUBQ(first, words.Base)
	part, scales := Mem{Base: GP64()}, Mem{Base: GP64()}
	LEAQ(Mem{Base: y.Base, Index: first, Scale: 1}, part.Base)
	MOVQ(first, scales.Base)
	SHRQ(Imm(1), scales.Base)
	ADDQ(words.Base, scales.Base)
	s.scale(part, head, scales, shifted, acc)
	if count < vecs {
		TESTQ(first, first)
		JNZ(LabelRef(done))
		MOVQ(U32(count*s.bytes()), first)
		JMP(LabelRef(half))
		Label(done)
	}
	LEAQ(words.Offset(s.line()/2), start.Base)
	same := label("same")
	TESTQ(shifted, shifted)
	JZ(LabelRef(same))
	ADDQ(distance(s.line()/2), start.Base)
	Label(same)
	MOVQ(x.Base, head.Base)
	DECQ(pieces)
	JNZ(LabelRef(next))
	VZEROUPPER()
	RET()
}

// header is the bytes of what comes before the pairs of one row of activations: a scale (float32),
// what sums begin with (int32) and the sum of the row (float32). They are in three arrays, one
// element a row.
const header = 12

// scale adds sums to y, with shifts added and times the scales of weights and activations.
func (s isa) scale(y, head, scales Mem, shifted reg.Register, acc [][]reg.VecVirtual) {
	rows := len(acc)
	for i := range acc {
		for _, v := range acc[i] {
			VCVTDQ2PS(v, v)
		}
	}
	add := label("add")
	TESTQ(shifted, shifted)
	JZ(LabelRef(add))
	for c := range acc[0] {
		t := s.vec()
		VCVTPH2PS(scales.Offset(s.line()/2+c*s.bytes()/2), t)
		for i := range acc {
			sum := s.vec()
			VBROADCASTSS(head.Offset(4*(2*rows+i)), sum)
			VFMADD231PS(t, sum, acc[i][c])
		}
	}
	Label(add)
	for c := range acc[0] {
		t := s.vec()
		VCVTPH2PS(scales.Offset(c*s.bytes()/2), t)
		for i := range acc {
			u := s.vec()
			VBROADCASTSS(head.Offset(4*i), u)
			VMULPS(t, u, u) // exact: the scale of a row is a power of two
			VFMADD213PS(s.at(y, i, c), u, acc[i][c])
			VMOVUPS(acc[i][c], s.at(y, i, c))
		}
	}
}

// quantize writes the function that turns numbers in half precision into 16-bit integers, for all
// sets.
func quantize() {
	TEXT("quantizeAVX2", NOSPLIT, "func(dst *uint32, src *uint16, n int) (largest, sum uint32)")
	Pragma("noescape")
	const n = 16 // numbers a turn
	src, count := Mem{Base: Load(Param("src"), GP64())}, Load(Param("n"), GP64())
	mask, most := YMM(), YMM()
	VPBROADCASTD(constant("magnitude", 0x7FFF7FFF), mask)
	VPXOR(most, most, most)
	Label("largest")
	t := YMM()
	VPAND(src, mask, t)
	VPMAXUW(t, most, most)
	ADDQ(distance(2*n), src.Base)
	SUBQ(distance(n), count)
	JNZ(LabelRef("largest"))
	// The smallest of the complements, in 8 lanes.
	u, ones := XMM(), XMM()
	VEXTRACTI128(Imm(1), most, u)
	VPMAXUW(most.AsX(), u, u)
	VPCMPEQW(ones, ones, ones)
	VPXOR(ones, u, u)
	VPHMINPOSUW(u, u)
	largest := GP32()
	VMOVD(u, largest)
	NOTL(largest)
	ANDL(U32(0xFFFF), largest)
	Store(largest, Return("largest"))
	// The largest number comes between 2¹⁴ and 2¹⁵. Exponent 0 means subnormal numbers, with the
	// scale of exponent 1.
	exponent, one := GP32(), GP32()
	MOVL(largest, exponent)
	SHRL(Imm(10), exponent)
	MOVL(U32(1), one)
	CMPL(exponent, one)
	CMOVLLT(one, exponent)
	bits := GP32()
	MOVL(U32(127+29), bits)
	SUBL(exponent, bits)
	SHLL(Imm(23), bits)
	scale := YMM()
	VMOVD(bits, scale.AsX())
	VBROADCASTSS(scale.AsX(), scale)

	Load(Param("src"), src.Base)
	Load(Param("n"), count)
	dst := Mem{Base: Load(Param("dst"), GP64())}
	unit, sum := YMM(), YMM()
	VPBROADCASTD(constant("units", 0x00010001), unit)
	VPXOR(sum, sum, sum)
	Label("quantize")
	a, b := YMM(), YMM()
	VCVTPH2PS(src, a)
	VCVTPH2PS(src.Offset(n), b)
	VMULPS(scale, a, a)
	VMULPS(scale, b, b)
	VCVTPS2DQ(a, a)
	VCVTPS2DQ(b, b)
	VPACKSSDW(b, a, a)
	VPERMQ(Imm(0xD8), a, a)
	VMOVDQU(a, dst)
	VPMADDWD(unit, a, a)
	VPADDD(a, sum, sum)
	ADDQ(distance(2*n), src.Base)
	ADDQ(distance(2*n), dst.Base)
	SUBQ(distance(n), count)
	JNZ(LabelRef("quantize"))
	v, w := XMM(), XMM()
	VEXTRACTI128(Imm(1), sum, v)
	VPADDD(sum.AsX(), v, v)
	for _, order := range []uint64{0x4E, 0xB1} {
		VPSHUFD(Imm(order), v, w)
		VPADDD(w, v, v)
	}
	total := GP32()
	VMOVD(v, total)
	Store(total, Return("sum"))
	VZEROUPPER()
	RET()
}

// generate writes the assembly, and beside it a file with the order of pairs.
func generate() error {
	Generate()
	name := flag.Lookup("out").Value.String()
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	data = spaces.ReplaceAll(data, []byte(" ")) // a sixth of the file
	if data, err = encodeVEX(data); err != nil {
		return err
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprint(&b, "// Code generated by asm/amd64. DO NOT EDIT.\n\npackage kernels\n\n")
	fmt.Fprint(&b, "// pairOrder has, by width, which of the next 32 rows comes where among the pairs of the kernels for integers.\n")
	fmt.Fprint(&b, "var pairOrder = [9][StepRows]uint8{\n")
	for _, bits := range widths {
		fmt.Fprintf(&b, "%d: {", bits)
		for first := 0; first < 32; first += turn(bits) {
			for _, p := range pairs(bits) {
				fmt.Fprintf(&b, "%d, %d, ", first+p.low.row, first+p.high.row)
			}
		}
		fmt.Fprint(&b, "},\n")
	}
	fmt.Fprint(&b, "}\n")
	text, err := format.Source(b.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(filepath.Dir(name), "pairs_amd64.go"), text, 0o644)
}

var (
	spaces  = regexp.MustCompile(` +`)
	product = regexp.MustCompile(`^\tVPDPWSSD Y(\d+), Y(\d+), Y(\d+)$`)
)

// encodeVEX replaces products of 256 bits by their bytes: Go's assembler would encode those of
// AVX-512, which processors with AVX-VNNI alone do not have.
func encodeVEX(source []byte) ([]byte, error) {
	lines := bytes.Split(source, []byte("\n"))
	for i, line := range lines {
		m := product.FindSubmatch(line)
		if m == nil {
			continue
		}
		var r [3]int
		for j := range r {
			r[j], _ = strconv.Atoi(string(m[j+1]))
			if r[j] > 15 {
				return nil, fmt.Errorf("line %d: %s: needs AVX-512", i+1, line)
			}
		}
		b := []int{0xC4, 0x42 | (r[2]>>3^1)<<7 | (r[0]>>3^1)<<5, 0x05 | (r[1]^15)<<3, 0x52, 0xC0 | r[2]&7<<3 | r[0]&7}
		lines[i] = fmt.Appendf(nil, "\tLONG $0x%02x%02x%02x%02x; BYTE $0x%02x // %s", b[3], b[2], b[1], b[0], b[4], bytes.TrimSpace(line))
	}
	return bytes.Join(lines, []byte("\n")), nil
}
