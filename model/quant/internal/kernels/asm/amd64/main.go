// Command amd64 writes the kernels for AVX2 and AVX-512: kernels_amd64.s and its declarations.
//
// All kernels of one instruction set work on blocks of columns, one vector register for every 8 or
// 16 of them and four registers a block. See package kernels for the layout.
package main

import (
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vecs is the number of registers that hold one row of a block: enough chains of additions to hide
// their latency.
const vecs = 4

// maxRows is the most rows of activations that a panel is multiplied with at once.
const maxRows = 6

var widths = []int{2, 3, 4, 5, 6, 8}

// isa is one instruction set.
type isa struct {
	name  string
	lanes int   // float32 in a register
	rows  []int // that mulInts takes at once
	wide  int   // the most rows of a whole block that mulInts has registers for
	vnni  bool  // products of pairs are added in one instruction
}

func (s isa) bytes() int { return 4 * s.lanes }

// line is the number of bytes of one row of a block.
func (s isa) line() int { return vecs * s.bytes() }

func (s isa) vec() reg.VecVirtual {
	if s.lanes == 16 {
		return ZMM()
	}
	return YMM()
}

func (s isa) several(n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for c := range v {
		v[c] = s.vec()
	}
	return v
}

func (s isa) zero(v reg.VecVirtual) {
	if s.lanes == 16 {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
}

// at is the memory of vector c of a row.
func (s isa) at(base Mem, row, c int) Mem { return base.Offset(row*s.line() + c*s.bytes()) }

// constants are vectors in read-only memory, made as they are asked for.
var constants = map[string]Mem{}

func constant(name string, words ...uint32) Mem {
	m, ok := constants[name]
	if !ok {
		m = GLOBL(name, 8|16) // RODATA|NOPTR
		for i, w := range words {
			DATA(4*i, U32(w))
		}
		constants[name] = m
	}
	return m
}

func repeat(w uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = w
	}
	return out
}

// decoder turns the codes of a block into float32, a row at a time.
type decoder interface {
	// begin is called once, before the loop.
	begin()
	// loop is called at the start of each turn: registers hold nothing of the last.
	loop()
	// code returns as many registers as a row has, with code − 2^(bits−1) of row k of the turn.
	// They may be changed.
	code(k int) []reg.VecVirtual
}

// turn is the number of rows that the loop body handles: whole words, and divisors of 32.
func turn(bits int) int {
	switch bits {
	case 3, 5:
		return 32
	case 4, 8:
		return 8
	}
	return 16
}

// decoder512 looks codes up to 5 bits up in a register or two; a lookup ignores the higher bits of
// its index, so neighboring codes need not be masked. Longer codes become the low bits of 2²³ +
// code.
type decoder512 struct {
	isa
	bits               int
	words              Mem
	table, upper       reg.VecVirtual
	mask, magic, minus reg.VecVirtual
	cur                []reg.VecVirtual
	at                 int // the packed row that cur holds
}

func (d *decoder512) begin() {
	center := 1 << (d.bits - 1)
	switch {
	case d.bits <= 5:
		var entries []uint32
		for i := range 32 {
			entries = append(entries, float(float32(i&(1<<d.bits-1)-center)))
		}
		table := constant(fmt.Sprintf("codes%d", d.bits), entries...)
		d.table = ZMM()
		VMOVUPS(table, d.table)
		if d.bits == 5 {
			d.upper = ZMM()
			VMOVUPS(table.Offset(64), d.upper)
		}
	default:
		d.mask, d.magic, d.minus = ZMM(), ZMM(), ZMM()
		VPBROADCASTD(constant(fmt.Sprintf("mask%d", d.bits), 1<<d.bits-1), d.mask)
		VPBROADCASTD(constant("magic", float(1<<23)), d.magic)
		VBROADCASTSS(constant(fmt.Sprintf("minus%d", d.bits), float(float32(1<<23+center))), d.minus)
	}
}

func (d *decoder512) loop() { d.at = -1 }

func (d *decoder512) load(row int) {
	d.at = row
	d.cur = d.several(vecs)
	for c, v := range d.cur {
		m := d.isa.at(d.words, row, c)
		VMOVDQU32(m, v)
		prefetch(m)
	}
}

func (d *decoder512) code(k int) []reg.VecVirtual {
	row, shift := k*d.bits/32, k*d.bits%32
	if d.at != row {
		d.load(row)
	}
	out := d.several(vecs)
	low := d.cur
	straddles := shift+d.bits > 32
	if straddles {
		d.load(row + 1)
	}
	for c, t := range out {
		index := t
		switch {
		case shift == 0 && d.bits <= 4:
			index = low[c]
		case shift == 0:
			VMOVDQA32(low[c], t)
		default:
			VPSRLD(Imm(uint64(shift)), low[c], t)
		}
		if straddles {
			u := ZMM()
			VPSLLD(Imm(uint64(32-shift)), d.cur[c], u)
			VPORD(u, t, t)
		}
		switch {
		case d.bits <= 4:
			VPERMPS(d.table, index, t)
		case d.bits == 5:
			VPERMI2PS(d.upper, d.table, t)
		default:
			VPTERNLOGD(Imm(0xEA), d.magic, d.mask, t) // t&mask | magic
			VSUBPS(d.minus, t, t)
		}
	}
	return out
}

// decoder2 looks codes up to 3 bits up in a register. Others are masked where they are in the word
// and given the exponent that makes their last bit 1: the number is 2^(23−shift) + code. That works
// below bit 23, so words are shifted once.
type decoder2 struct {
	isa
	bits  int
	words Mem
	table reg.VecVirtual
	cur   []reg.VecVirtual
	at    int
	moved int // bits that cur is shifted by
}

func (d *decoder2) begin() {
	if d.bits <= 3 {
		var entries []uint32
		for i := range 8 {
			entries = append(entries, float(float32(i&(1<<d.bits-1)-1<<(d.bits-1))))
		}
		d.table = YMM()
		VMOVUPS(constant(fmt.Sprintf("short%d", d.bits), entries...), d.table)
	}
}

func (d *decoder2) loop() { d.at = -1 }

func (d *decoder2) load(row int) {
	d.at, d.moved = row, 0
	d.cur = d.several(vecs)
	for c, v := range d.cur {
		m := d.isa.at(d.words, row, c)
		VMOVDQU(m, v)
		if c%2 == 0 {
			prefetch(m)
		}
	}
}

func (d *decoder2) code(k int) []reg.VecVirtual {
	row, bit := k*d.bits/32, k*d.bits%32
	if d.at != row {
		d.load(row)
	}
	shift := bit - d.moved
	out := make([]reg.VecVirtual, vecs)
	low := d.cur
	switch {
	case bit+d.bits > 32:
		d.load(row + 1)
		for c := range out {
			out[c] = YMM()
			VPSRLD(Imm(uint64(shift)), low[c], low[c])
			VPSLLD(Imm(uint64(32-bit)), d.cur[c], out[c])
			VPOR(low[c], out[c], out[c])
		}
		low, shift = out, 0
	case d.bits <= 3:
		for c := range out {
			out[c] = low[c]
			if shift > 0 {
				out[c] = YMM()
				VPSRLD(Imm(uint64(shift)), low[c], out[c])
			}
		}
		low = out
	case shift+d.bits > 23:
		for _, v := range d.cur {
			VPSRLD(Imm(16), v, v)
		}
		d.moved = 16
		shift -= 16
	}
	if d.bits <= 3 {
		for c := range out {
			index := low[c]
			out[c] = YMM()
			VPERMPS(d.table, index, out[c])
		}
		return out
	}
	mask, magic, minus := YMM(), YMM(), YMM()
	VMOVDQU(constant(fmt.Sprintf("mask%dx%d", d.bits, shift), repeat((1<<d.bits-1)<<shift, 8)...), mask)
	VMOVDQU(constant(fmt.Sprintf("magicx%d", shift), repeat(float(float32(uint32(1)<<(23-shift))), 8)...), magic)
	VMOVUPS(constant(fmt.Sprintf("minus%dx%d", d.bits, shift), repeat(float(float32(uint32(1)<<(23-shift)+1<<(d.bits-1))), 8)...), minus)
	for c := range out {
		t := YMM()
		VPAND(mask, low[c], t)
		VPOR(magic, t, t)
		VSUBPS(minus, t, t)
		out[c] = t
	}
	return out
}

// distance is an operand to add to a pointer or to take from a count.
func distance(n int) Op {
	if n < 128 {
		return U8(n)
	}
	return U32(n)
}

// ahead is how far before its use memory is asked for.
const ahead = 4096

func prefetch(m Mem) { PREFETCHT0(m.Offset(ahead)) }

func (s isa) decoder(bits int, words Mem) decoder {
	if s.lanes == 16 {
		return &decoder512{isa: s, bits: bits, words: words}
	}
	return &decoder2{isa: s, bits: bits, words: words}
}

// mulCodes adds the product of one row and the codes to y.
func (s isa) mulCodes(bits int) {
	TEXT(fmt.Sprintf("mulCodes%d%s", bits, s.name), NOSPLIT, "func(y, x *float32, words *uint32, depth int, sums *float32)")
	Pragma("noescape")
	y, sums := Mem{Base: Load(Param("y"), GP64())}, Mem{Base: Load(Param("sums"), GP64())}
	x, words := Mem{Base: Load(Param("x"), GP64())}, Mem{Base: Load(Param("words"), GP64())}
	depth := Load(Param("depth"), GP64())
	d := s.decoder(bits, words)
	d.begin()
	acc := s.several(vecs)
	for _, v := range acc {
		s.zero(v)
	}
	loop := label("loop")
	Label(loop)
	d.loop()
	n := turn(bits)
	for k := range n {
		t := d.code(k)
		v := s.vec()
		VBROADCASTSS(x.Offset(4*k), v)
		for c := range t {
			VFMADD231PS(v, t[c], acc[c])
		}
	}
	ADDQ(distance(n*bits/32*s.line()), words.Base)
	ADDQ(distance(4*n), x.Base)
	SUBQ(distance(n), depth)
	JNZ(LabelRef(loop))
	s.finish(y, words, sums, [][]reg.VecVirtual{acc}, 0)
	VZEROUPPER()
	RET()
}

var labels int

func label(name string) string {
	labels++
	return fmt.Sprintf("%s%d", name, labels)
}

// finish adds acc to y: as it is, or times the scales at scales, with the shifts behind them times
// sums added before. first is the first vector of a row that acc has.
func (s isa) finish(y, scales, sums Mem, acc [][]reg.VecVirtual, first int) {
	count := len(acc[0])
	plain, add, done := label("plain"), label("add"), label("done")
	TESTQ(scales.Base, scales.Base)
	JZ(LabelRef(plain))
	TESTQ(sums.Base, sums.Base)
	JZ(LabelRef(add))
	for i := range acc {
		sum := s.vec()
		VBROADCASTSS(sums.Offset(4*i), sum)
		for c := range count {
			t := s.vec()
			VCVTPH2PS(scales.Offset(s.line()/2+(first+c)*s.bytes()/2), t)
			VFMADD231PS(t, sum, acc[i][c])
		}
	}
	Label(add)
	for c := range count {
		t := s.vec()
		VCVTPH2PS(scales.Offset((first+c)*s.bytes()/2), t)
		for i := range acc {
			u := s.vec()
			VMOVUPS(s.at(y, i, first+c), u)
			VFMADD231PS(t, acc[i][c], u)
			VMOVUPS(u, s.at(y, i, first+c))
		}
	}
	JMP(LabelRef(done))
	Label(plain)
	for i := range acc {
		for c := range count {
			VADDPS(s.at(y, i, first+c), acc[i][c], acc[i][c])
			VMOVUPS(acc[i][c], s.at(y, i, first+c))
		}
	}
	Label(done)
}

// unpack writes codes as float32.
func (s isa) unpack(bits int) {
	TEXT(fmt.Sprintf("unpack%d%s", bits, s.name), NOSPLIT, "func(panel *float32, words *uint32, rows int)")
	Pragma("noescape")
	panel, words := Mem{Base: Load(Param("panel"), GP64())}, Mem{Base: Load(Param("words"), GP64())}
	rows := Load(Param("rows"), GP64())
	d := s.decoder(bits, words)
	d.begin()
	loop := label("loop")
	Label(loop)
	d.loop()
	n := turn(bits)
	for k := range n {
		for c, t := range d.code(k) {
			VMOVUPS(t, s.at(panel, k, c))
		}
	}
	ADDQ(distance(n*bits/32*s.line()), words.Base)
	ADDQ(distance(n*s.line()), panel.Base)
	SUBQ(distance(n), rows)
	JNZ(LabelRef(loop))
	VZEROUPPER()
	RET()
}

// round replaces a panel by scale · (panel + shift), rounded to half precision.
func (s isa) round() {
	TEXT("round"+s.name, NOSPLIT, "func(panel *float32, scales *uint32, rows, shifted int)")
	Pragma("noescape")
	panel, scales := Mem{Base: Load(Param("panel"), GP64())}, Mem{Base: Load(Param("scales"), GP64())}
	rows, shifted := Load(Param("rows"), GP64()), Load(Param("shifted"), GP64())
	scale, shift := s.several(vecs), s.several(vecs)
	for c := range vecs {
		VCVTPH2PS(scales.Offset(c*s.bytes()/2), scale[c])
		s.zero(shift[c])
	}
	loop := label("loop")
	TESTQ(shifted, shifted)
	JZ(LabelRef(loop))
	for c := range vecs {
		VCVTPH2PS(scales.Offset(s.line()/2+c*s.bytes()/2), shift[c])
	}
	Label(loop)
	for c := range vecs {
		t := s.vec()
		VADDPS(s.at(panel, 0, c), shift[c], t)
		VMULPS(scale[c], t, t)
		if s.lanes == 16 {
			h := YMM()
			VCVTPS2PH(Imm(0), t, h)
			VCVTPH2PS(h, t)
		} else {
			h := XMM()
			VCVTPS2PH(Imm(0), t, h)
			VCVTPH2PS(h, t)
		}
		VMOVUPS(t, s.at(panel, 0, c))
	}
	ADDQ(distance(s.line()), panel.Base)
	DECQ(rows)
	JNZ(LabelRef(loop))
	VZEROUPPER()
	RET()
}

// mulPanel adds the product of rows rows, interleaved, with a panel to y.
func (s isa) mulPanel(rows int) {
	TEXT(fmt.Sprintf("mulPanel%d%s", rows, s.name), NOSPLIT, "func(y, a, panel *float32, depth int, scales *uint32, sums *float32)")
	Pragma("noescape")
	y, scales := Mem{Base: Load(Param("y"), GP64())}, Mem{Base: Load(Param("scales"), GP64())}
	sums := Mem{Base: Load(Param("sums"), GP64())}
	// 16 registers hold the sums of 6 rows and half a block; 32 hold those of 6 rows and a block.
	count := vecs
	if s.lanes == 8 {
		count = vecs / 2
	}
	const unroll = 4
	for first := 0; first < vecs; first += count {
		a, panel := Mem{Base: Load(Param("a"), GP64())}, Mem{Base: Load(Param("panel"), GP64())}
		depth := Load(Param("depth"), GP64())
		acc := make([][]reg.VecVirtual, rows)
		for i := range acc {
			acc[i] = s.several(count)
			for _, v := range acc[i] {
				s.zero(v)
			}
		}
		loop := label("loop")
		Label(loop)
		for k := range unroll {
			var b [vecs]reg.VecVirtual
			for c := range count {
				b[c] = s.vec()
				VMOVUPS(s.at(panel, k, first+c), b[c])
			}
			for i := range rows {
				t := s.vec()
				VBROADCASTSS(a.Offset(4*(k*rows+i)), t)
				for c := range count {
					VFMADD231PS(t, b[c], acc[i][c])
				}
			}
		}
		ADDQ(distance(4*unroll*rows), a.Base)
		ADDQ(distance(unroll*s.line()), panel.Base)
		SUBQ(distance(unroll), depth)
		JNZ(LabelRef(loop))
		s.finish(y, scales, sums, acc, first)
	}
	VZEROUPPER()
	RET()
}

// convert writes the two conversions of half precision. Both sets use them.
func convert() {
	const n = 32
	TEXT("encodeAVX2", NOSPLIT, "func(dst *byte, src *float32, n int)")
	Pragma("noescape")
	dst, src, count := Mem{Base: Load(Param("dst"), GP64())}, Mem{Base: Load(Param("src"), GP64())}, Load(Param("n"), GP64())
	Label("encode")
	for i := 0; i < n; i += 8 {
		t := YMM()
		VMOVUPS(src.Offset(4*i), t)
		VCVTPS2PH(Imm(0), t, dst.Offset(2*i))
	}
	ADDQ(distance(2*n), dst.Base)
	ADDQ(distance(4*n), src.Base)
	SUBQ(distance(n), count)
	JNZ(LabelRef("encode"))
	VZEROUPPER()
	RET()

	TEXT("decodeAVX2", NOSPLIT, "func(dst *float32, src *byte, n int)")
	Pragma("noescape")
	dst, src, count = Mem{Base: Load(Param("dst"), GP64())}, Mem{Base: Load(Param("src"), GP64())}, Load(Param("n"), GP64())
	Label("decode")
	for i := 0; i < n; i += 8 {
		t := YMM()
		VCVTPH2PS(src.Offset(2*i), t)
		VMOVUPS(t, dst.Offset(4*i))
	}
	ADDQ(distance(4*n), dst.Base)
	ADDQ(distance(2*n), src.Base)
	SUBQ(distance(n), count)
	JNZ(LabelRef("decode"))
	VZEROUPPER()
	RET()
}

// read touches every word, as fast as the memory gives them.
func read() {
	const n = 128 // words a turn
	TEXT("readAVX2", NOSPLIT, "func(words *uint32, n int) uint32")
	Pragma("noescape")
	words, count := Mem{Base: Load(Param("words"), GP64())}, Load(Param("n"), GP64())
	var acc [4]reg.VecVirtual
	for i := range acc {
		acc[i] = YMM()
		VXORPS(acc[i], acc[i], acc[i])
	}
	Label("read")
	for i := 0; i < n/8; i++ {
		m := words.Offset(32 * i)
		VPOR(m, acc[i%4], acc[i%4])
		if i%2 == 0 {
			prefetch(m)
		}
	}
	ADDQ(distance(4*n), words.Base)
	SUBQ(distance(n), count)
	JNZ(LabelRef("read"))
	for _, v := range acc[1:] {
		VPOR(v, acc[0], acc[0])
	}
	out := GP32()
	VMOVD(acc[0].AsX(), out)
	Store(out, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func main() {
	for _, s := range []isa{{name: "AVX2", lanes: 8}, {name: "AVX512", lanes: 16}} {
		for _, bits := range widths {
			s.mulCodes(bits)
			s.unpack(bits)
		}
		s.round()
		for rows := 1; rows <= maxRows; rows++ {
			s.mulPanel(rows)
		}
	}
	for _, s := range []isa{
		{name: "AVX2", lanes: 8, rows: []int{1, 2, 4}, wide: 1},
		{name: "AVXVNNI", lanes: 8, rows: []int{1, 4}, wide: 1, vnni: true}, // two rows at once are no faster than one by one
		{name: "VNNI", lanes: 16, rows: []int{1, 2, 4, 8}, wide: 4, vnni: true},
	} {
		for _, bits := range widths {
			for _, rows := range s.rows {
				s.mulInts(bits, rows)
			}
		}
	}
	quantize()
	convert()
	read()
	if err := generate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
