package kernels

import "github.com/kiln-build/kiln/model/tensor"

// Portable returns the kernels in plain Go.
func Portable() *Set { return &portable }

const portableCols = 2048 // sums, words and tables of a block fit the first-level cache

var portable = Set{
	Name:      "portable",
	BlockCols: portableCols,
	StepCols:  8,
	MulCodes:  mulCodes,
	Unpack:    unpack,
	Round:     round,
	MulPanel:  mulPanel,
	Encode:    func(dst []byte, src []float32) { tensor.EncodeF16(dst, src) },
	Decode:    tensor.DecodeF16,
	Read:      read,
}

func half(words []uint32, i int) float32 {
	return tensor.Float16(words[i/2] >> (i % 2 * 16)).Float32()
}

// finish adds acc, scaled, to y.
func finish(y, acc []float32, p Piece, sum []float32) {
	scales, shifts := p.Scales()
	if shifts != nil {
		for j := range acc {
			acc[j] += half(shifts, j) * sum[0]
		}
	}
	y = y[:len(acc)]
	for j, v := range acc {
		y[j] += half(scales, j) * v
	}
}

func mulCodes(y, x []float32, p Piece, sums []float32) {
	var buffer [portableCols]float32
	acc := buffer[:p.Cols]
	// Filling tables pays when many columns use them.
	if p.Cols >= 256 {
		mulTables(acc, x[:p.Rows], p)
	} else {
		for r := range p.Rows {
			v, line := x[r], rowOf(p, r)
			for j := range acc {
				acc[j] += v * line.code(j)
			}
		}
	}
	finish(y, acc, p, sums)
}

// mulTables looks products up instead of computing them. Without vector instructions a
// multiplication costs as much as a load, so it pays to take several codes at once: a field of 8
// bits is four codes of 2 bits, and a table with 256 entries has the sum of their products with
// four activations. The table is filled once for all columns.
//
//	width   field    codes in a field   fields in
//	2 4 8   8 bits   4 2 1              1 word: 4
//	3 6     6 bits   2 1                3 words: 16
//	5       5 bits   1                  5 words: 32
func mulTables(acc, x []float32, p Piece) {
	var t tables
	words := p.Words
	for len(x) > 0 {
		switch p.Bits {
		case 2, 4, 8:
			// Two words of each column at a time: 8 fields.
			n := 64 / p.Bits
			for f := range t.of8 {
				fillTable(t.of8[f][:], x[f*n/8:][:n/8], p.Bits)
			}
			addFields8(acc, words, words[p.Cols:], &t.of8)
			x, words = x[n:], words[2*p.Cols:]
		case 3, 6:
			n := 96 / p.Bits
			for f := range t.of6 {
				fillTable(t.of6[f][:], x[f*n/16:][:n/16], p.Bits)
			}
			addFields6(acc, words, words[p.Cols:], words[2*p.Cols:], &t.of6)
			x, words = x[n:], words[3*p.Cols:]
		case 5:
			for f := range t.of5 {
				fillTable(t.of5[f][:], x[f:f+1], p.Bits)
			}
			addFields5(acc, words, p.Cols, &t.of5)
			x, words = x[32:], words[5*p.Cols:]
		default:
			panic("kernels: no such width")
		}
	}
}

// tables has room for the tables of each kind of field; a product uses one of them.
type tables struct {
	of8 [8][256]float32
	of6 [16][64]float32
	of5 [32][32]float32
}

// fillTable writes, for every value of a field of len(x) codes, the sum of x times code −
// 2^(bits−1). The first code is in the lowest bits.
func fillTable(t, x []float32, bits int) {
	n := 1 << bits
	center := float32(n / 2)
	for c := range n {
		t[c] = (float32(c) - center) * x[0]
	}
	have := n
	for _, v := range x[1:] {
		for c := n - 1; c >= 0; c-- { // downwards: the part for code 0 is the source
			p := (float32(c) - center) * v
			low, dst := t[:have], t[c*have:][:have]
			for i := range low {
				dst[i] = low[i] + p
			}
		}
		have *= n
	}
}

func addFields8(sum []float32, w0, w1 []uint32, t *[8][256]float32) {
	w0, w1 = w0[:len(sum)], w1[:len(sum)]
	for j := range sum {
		a, b := w0[j], w1[j]
		s := (t[0][a&255] + t[1][a>>8&255]) + (t[2][a>>16&255] + t[3][a>>24])
		u := (t[4][b&255] + t[5][b>>8&255]) + (t[6][b>>16&255] + t[7][b>>24])
		sum[j] += s + u
	}
}

func addFields6(sum []float32, w0, w1, w2 []uint32, t *[16][64]float32) {
	w0, w1, w2 = w0[:len(sum)], w1[:len(sum)], w2[:len(sum)]
	for j := range sum {
		a, b := uint64(w0[j])|uint64(w1[j])<<32, w2[j]
		s := (t[0][a&63] + t[1][a>>6&63]) + (t[2][a>>12&63] + t[3][a>>18&63])
		u := (t[4][a>>24&63] + t[5][a>>30&63]) + (t[6][a>>36&63] + t[7][a>>42&63])
		v := (t[8][a>>48&63] + t[9][a>>54&63]) + (t[10][a>>60|uint64(b&3)<<4] + t[11][b>>2&63])
		w := (t[12][b>>8&63] + t[13][b>>14&63]) + (t[14][b>>20&63] + t[15][b>>26])
		sum[j] += (s + u) + (v + w)
	}
}

func addFields5(sum []float32, words []uint32, stride int, t *[32][32]float32) {
	n := len(sum)
	w0, w1, w2, w3, w4 := words[:n], words[stride:][:n], words[2*stride:][:n], words[3*stride:][:n], words[4*stride:][:n]
	for j := range sum {
		// 160 bits: 12 fields, one that straddles, 12, one that straddles, 6.
		a, m := uint64(w0[j])|uint64(w1[j])<<32, w2[j]
		b, e := uint64(m>>1)|uint64(w3[j])<<31, w4[j]
		s := (t[0][a&31] + t[1][a>>5&31]) + (t[2][a>>10&31] + t[3][a>>15&31])
		u := (t[4][a>>20&31] + t[5][a>>25&31]) + (t[6][a>>30&31] + t[7][a>>35&31])
		v := (t[8][a>>40&31] + t[9][a>>45&31]) + (t[10][a>>50&31] + t[11][a>>55&31])
		w := (t[12][a>>60|uint64(m&1)<<4] + t[13][b&31]) + (t[14][b>>5&31] + t[15][b>>10&31])
		s += (t[16][b>>15&31] + t[17][b>>20&31]) + (t[18][b>>25&31] + t[19][b>>30&31])
		u += (t[20][b>>35&31] + t[21][b>>40&31]) + (t[22][b>>45&31] + t[23][b>>50&31])
		v += (t[24][b>>55&31] + t[25][b>>60&7|uint64(e&3)<<3]) + (t[26][e>>2&31] + t[27][e>>7&31])
		w += (t[28][e>>12&31] + t[29][e>>17&31]) + (t[30][e>>22&31] + t[31][e>>27])
		sum[j] += (s + u) + (v + w)
	}
}

// codeRow finds the codes of one row of a piece.
type codeRow struct {
	low, high    []uint32 // high is nil where no code straddles two words
	shift        int
	mask, center uint32
}

func rowOf(p Piece, r int) codeRow {
	bit := r * p.Bits
	c := codeRow{shift: bit % 32, mask: 1<<p.Bits - 1, center: 1 << (p.Bits - 1)}
	c.low = p.Words[bit/32*p.Cols:][:p.Cols]
	if c.shift+p.Bits > 32 {
		c.high = p.Words[(bit/32+1)*p.Cols:][:p.Cols]
	}
	return c
}

func (c *codeRow) code(j int) float32 {
	w := c.low[j] >> c.shift
	if c.high != nil {
		w |= c.high[j] << (32 - c.shift)
	}
	return float32(int32(w&c.mask) - int32(c.center))
}

func unpack(panel []float32, p Piece) {
	for r := range p.Rows {
		row, line := rowOf(p, r), panel[r*p.Cols:][:p.Cols]
		for j := range line {
			line[j] = row.code(j)
		}
	}
}

func round(panel []float32, p Piece) {
	var shift, scale [portableCols]float32
	scales, shifts := p.Scales()
	for j := range p.Cols {
		scale[j] = half(scales, j)
		if shifts != nil {
			shift[j] = half(shifts, j)
		}
	}
	var narrow [2 * portableCols]byte
	for r := range p.Rows {
		line := panel[r*p.Cols:][:p.Cols]
		for j := range line {
			line[j] = (line[j] + shift[j]) * scale[j] // exact
		}
		tensor.EncodeF16(narrow[:2*p.Cols], line)
		tensor.DecodeF16(line, narrow[:2*p.Cols])
	}
}

func mulPanel(y, a, panel []float32, rows int, p Piece, scaled bool, sums []float32) {
	var buffer [portableCols]float32
	for i := range rows {
		acc := buffer[:p.Cols]
		clear(acc)
		for r := 0; r < p.Rows; r += 4 {
			w0, w1 := panel[r*p.Cols:][:len(acc)], panel[(r+1)*p.Cols:][:len(acc)]
			w2, w3 := panel[(r+2)*p.Cols:][:len(acc)], panel[(r+3)*p.Cols:][:len(acc)]
			v0, v1, v2, v3 := a[r*rows+i], a[(r+1)*rows+i], a[(r+2)*rows+i], a[(r+3)*rows+i]
			for j := range acc {
				acc[j] += (v0*w0[j] + v1*w1[j]) + (v2*w2[j] + v3*w3[j])
			}
		}
		line := y[i*p.Cols:][:p.Cols]
		switch {
		case !scaled:
			for j, v := range acc {
				line[j] += v
			}
		case p.Shifted:
			finish(line, acc, p, sums[i:])
		default:
			finish(line, acc, p, nil)
		}
	}
}

func read(words []uint32) uint32 {
	var a, b, c, d uint32
	for ; len(words) >= 8; words = words[8:] {
		a |= words[0] | words[4]
		b |= words[1] | words[5]
		c |= words[2] | words[6]
		d |= words[3] | words[7]
	}
	for _, w := range words {
		a |= w
	}
	return a | b | c | d
}
