package quant

import "github.com/kiln-build/kiln/model/tensor"

// Words returns the packed codes as in the file: q_weight of EXL2, qweight of GPTQ, [packed
// row][column]. It is the matrix's own memory: a backend reads it to make its own form and must not
// change it.
func (m *QMatrix) Words() []uint32 { return m.words }

// CodeBit returns where the code of a stored row begins in the stream of bits of its column: bit i
// of a stream is bit i mod 32 of the word in packed row i / 32.
func (m *QMatrix) CodeBit(stored int) int {
	if m.format == GPTQ {
		natural := stored
		if m.perm != nil {
			natural = int(m.perm[stored])
		}
		return natural * m.groups[0].Bits
	}
	g := m.groupOf(stored)
	return m.starts[g]*32 + (stored-m.groups[g].FirstRow)*m.groups[g].Bits
}

// Scales writes the scale of group g in every column to dst, which must have N elements. A weight
// is rounded code minus zero point times scale.
func (m *QMatrix) Scales(dst []tensor.Float16, g int) {
	if m.format == GPTQ {
		copy(dst, m.scales[g*m.cols:][:m.cols])
		return
	}
	line := make([]float32, m.cols)
	m.scaleOf(line, g, 0)
	for i, v := range line {
		dst[i] = tensor.Float16FromFloat32(v) // exact: scales are half precision
	}
}

// Zeros writes the zero point of group g in every column to dst, which must have N elements. In
// EXL2 all are 1 << (Bits − 1).
func (m *QMatrix) Zeros(dst []int32, g int) { m.zeroOf(dst[:m.cols], g, 0) }
