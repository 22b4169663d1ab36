package quanttest

import (
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// Exact returns the weights of a matrix before they are rounded to half precision, [K, N] in natural
// order: code minus zero point times scale, which float32 has without loss. Products with
// [quant.PathFused] are products with these.
func Exact(m *quant.QMatrix) []float32 {
	n, words, perm := m.Cols(), m.Words(), m.Perm()
	out := make([]float32, m.Rows()*n)
	scales, zeros := make([]tensor.Float16, n), make([]int32, n)
	for g, group := range m.Groups() {
		m.Scales(scales, g)
		m.Zeros(zeros, g)
		for row := group.FirstRow; row < group.FirstRow+group.Rows; row++ {
			bit := m.CodeBit(row)
			line := out[int(perm[row])*n:][:n]
			for c := range line {
				code := uint64(words[bit/32*n+c]) >> (bit % 32)
				if bit%32+group.Bits > 32 {
					code |= uint64(words[(bit/32+1)*n+c]) << (32 - bit%32)
				}
				code &= 1<<group.Bits - 1
				line[c] = float32(int32(code)-zeros[c]) * scales[c].Float32()
			}
		}
	}
	return out
}
