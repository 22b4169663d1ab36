package kernels

// Portable returns the kernels in plain Go.
func Portable() *Set { return &portable }

var portable = Set{
	Name:     "portable",
	MulCodes: mulCodes,
	Unpack:   unpack,
	MulDense: mulDense,
	MulAdd:   mulAdd,
	MinCols:  256,
}

// mulCodes looks products up instead of computing them. Without vector instructions a multiplication costs as much as a
// load, so it pays to take several codes at once: a field of 8 bits is four codes of 2 bits, and a table with 256 entries
// has the sum of their products with four activations. The table is filled once for all columns.
//
//	width   field    codes in a field   fields in
//	2 4 8   8 bits   4 2 1              1 word: 4
//	3 6     6 bits   2 1                3 words: 16
//	5       5 bits   1                  5 words: 32
func mulCodes(acc, x Dense, codes Codes) {
	var t tables
	for i := range x.Rows {
		sum, row := acc.Row(i)[:codes.Cols], x.Row(i)[:codes.Rows]
		words := codes.Words
		for len(row) > 0 {
			switch codes.Bits {
			case 2, 4, 8:
				// Two words of each column at a time: 8 fields.
				n := 64 / codes.Bits
				for f := range t.of8 {
					fillTable(t.of8[f][:], row[f*n/8:][:n/8], codes.Bits)
				}
				addFields8(sum, words, words[codes.Stride:], &t.of8)
				row, words = row[n:], advance(words, 2*codes.Stride)
			case 3, 6:
				n := 96 / codes.Bits
				for f := range t.of6 {
					fillTable(t.of6[f][:], row[f*n/16:][:n/16], codes.Bits)
				}
				addFields6(sum, words, words[codes.Stride:], words[2*codes.Stride:], &t.of6)
				row, words = row[n:], advance(words, 3*codes.Stride)
			case 5:
				for f := range t.of5 {
					fillTable(t.of5[f][:], row[f:f+1], codes.Bits)
				}
				addFields5(sum, words, codes.Stride, &t.of5)
				row, words = row[32:], advance(words, 5*codes.Stride)
			default:
				panic("kernels: no such width")
			}
		}
	}
}

// advance drops n words, or all at the end of the last row, which may be cut.
func advance(words []uint32, n int) []uint32 { return words[min(n, len(words)):] }

// tables has room for the tables of each kind of field; a product uses one of them.
type tables struct {
	of8 [8][256]float32
	of6 [16][64]float32
	of5 [32][32]float32
}

// fillTable writes, for every value of a field of len(x) codes, the sum of x times code − 2^(bits−1). The first code is
// in the lowest bits.
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

func unpack(dst Dense, codes Codes) {
	mask := uint32(1)<<codes.Bits - 1
	center := int32(1) << (codes.Bits - 1)
	for r := range codes.Rows {
		bit := r * codes.Bits
		shift := bit % 32
		line := dst.Row(r)[:codes.Cols]
		low := codes.Words[bit/32*codes.Stride:][:codes.Cols]
		if shift+codes.Bits <= 32 {
			for j, w := range low {
				line[j] = float32(int32(w>>shift&mask) - center)
			}
			continue
		}
		high := codes.Words[(bit/32+1)*codes.Stride:][:codes.Cols]
		for j, w := range low {
			line[j] = float32(int32((w>>shift|high[j]<<(32-shift))&mask) - center)
		}
	}
}

func mulDense(acc, x, w Dense) {
	for r := 0; r+4 <= w.Rows; r += 4 {
		w0, w1, w2, w3 := w.Row(r), w.Row(r+1), w.Row(r+2), w.Row(r+3)
		for i := range x.Rows {
			sum, v := acc.Row(i)[:len(w0)], x.Data[i*x.Stride+r:][:4]
			w1, w2, w3 := w1[:len(sum)], w2[:len(sum)], w3[:len(sum)]
			for j, a := range w0 {
				sum[j] += (v[0]*a + v[1]*w1[j]) + (v[2]*w2[j] + v[3]*w3[j])
			}
		}
	}
}

func mulAdd(y, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] += a[i] * b[i]
	}
}
