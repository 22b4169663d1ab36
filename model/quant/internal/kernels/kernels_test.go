package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-build/kiln/model/tensor"
)

var widths = []int{2, 3, 4, 5, 6, 8}

// code is the definition: bit by bit.
func code(p Piece, row, col int) int {
	v := 0
	for i := range p.Bits {
		bit := row*p.Bits + i
		v |= int(p.Words[bit/32*p.Cols+col]>>(bit%32)&1) << i
	}
	return v - 1<<(p.Bits-1)
}

// randomPiece has scales between 0.01 and 0.03, one subnormal and one zero, and shifts from −8 to
// 8.
func randomPiece(rng *rand.Rand, bits, rows, cols int, shifted bool) Piece {
	p := Piece{Bits: bits, Rows: rows, Cols: cols, Shifted: shifted}
	p.Words = make([]uint32, p.Size())
	for i := range p.codes() {
		p.Words[i] = rng.Uint32()
	}
	scales, shifts := p.Scales()
	for j := range cols {
		scale := tensor.Float16FromFloat32(0.01 + 0.02*rng.Float32())
		switch j {
		case 1:
			scale = 3
		case 2:
			scale = 0
		}
		scales[j/2] |= uint32(scale) << (j % 2 * 16)
		if shifted {
			shifts[j/2] |= uint32(tensor.Float16FromFloat32(float32(rng.IntN(17)-8))) << (j % 2 * 16)
		}
	}
	return p
}

func random(rng *rand.Rand, n int, scale float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = scale * float32(rng.NormFloat64())
	}
	return out
}

// columns of the blocks that a set is tested with.
func columns(s *Set) []int {
	if s.StepCols == s.BlockCols {
		return []int{s.BlockCols}
	}
	return []int{8, 248, 264}
}

// guard is appended to what kernels write, to see that they write nothing more.
const guard = 64

func checkGuard(t *testing.T, what string, data []float32, n int) {
	t.Helper()
	for i, v := range data[n:] {
		if v != 12345 {
			t.Fatalf("%s wrote %v behind its result, at %d", what, v, i)
		}
	}
}

func guarded(data []float32) []float32 {
	data = slices.Clone(data)
	for range guard {
		data = append(data, 12345)
	}
	return data
}

func TestKernels(t *testing.T) {
	for _, set := range Sets() {
		for _, bits := range widths {
			for _, cols := range columns(set) {
				for _, shifted := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%d bit/%d columns/shifted=%v", set.Name, bits, cols, shifted), func(t *testing.T) {
						rng := rand.New(rand.NewPCG(uint64(bits), uint64(cols)))
						testPiece(t, set, rng, randomPiece(rng, bits, 128, cols, shifted), 1)
						testPiece(t, set, rng, randomPiece(rng, bits, 96, cols, shifted), 3e4)
						testPiece(t, set, rng, randomPiece(rng, bits, 32, cols, shifted), 0)
					})
				}
			}
		}
	}
}

func testPiece(t *testing.T, set *Set, rng *rand.Rand, p Piece, scale float32) {
	t.Helper()
	const m = 8
	words := slices.Clone(p.Words)
	scales, shifts := p.Scales()
	shift := func(j int) float64 {
		if shifts == nil {
			return 0
		}
		return float64(half(shifts, j))
	}
	x := random(rng, m*p.Rows, scale) // [m][rows]
	start := random(rng, m*p.Cols, scale)
	sums := make([]float32, m)
	for i := range m {
		sum := 0.0
		for _, v := range x[i*p.Rows:][:p.Rows] {
			sum += float64(v)
		}
		sums[i] = float32(sum)
	}

	want := make([]float64, p.Rows*p.Cols) // code by code
	scale64 := make([]float64, p.Cols)
	for i := range want {
		want[i] = float64(code(p, i/p.Cols, i%p.Cols))
	}
	for j := range scale64 {
		scale64[j] = float64(half(scales, j))
	}
	codes := guarded(make([]float32, p.Rows*p.Cols))
	set.Unpack(codes, p)
	checkGuard(t, "unpack", codes, p.Rows*p.Cols)
	weights := slices.Clone(codes)
	set.Round(weights, p)
	checkGuard(t, "round", weights, p.Rows*p.Cols)
	for r := range p.Rows {
		for j := range p.Cols {
			if got := codes[r*p.Cols+j]; float64(got) != want[r*p.Cols+j] {
				t.Fatalf("unpack: element %d, %d is %v, want %v", r, j, got, want[r*p.Cols+j])
			}
			exact := scale64[j] * (want[r*p.Cols+j] + shift(j))
			rounded := tensor.Float16FromFloat32(float32(exact)).Float32()
			if got := weights[r*p.Cols+j]; math.Float32bits(got) != math.Float32bits(rounded) {
				t.Fatalf("round: element %d, %d is %v, want %v", r, j, got, rounded)
			}
		}
	}

	fused := func(r, j int) float64 { return scale64[j] * (want[r*p.Cols+j] + shift(j)) }
	rounded := func(r, j int) float64 { return float64(weights[r*p.Cols+j]) }
	type product struct{ value, bound float64 }
	reference := func(weight func(r, j int) float64) []product {
		out := make([]product, m*p.Cols)
		for i := range out {
			row, j := i/p.Cols, i%p.Cols
			sum := float64(start[i])
			size := math.Abs(sum)
			extra := math.Abs(scale64[j] * shift(j)) // a shift is multiplied with the sum of the row
			for r := range p.Rows {
				v, weight := float64(x[row*p.Rows+r]), weight(r, j)
				sum += v * weight
				size += math.Abs(v) * (math.Abs(weight) + extra)
			}
			// Each sum of float32 errs by at most its additions times 2⁻²⁴ of the magnitudes.
			out[i] = product{sum, size * float64(p.Rows+4) * 0x1p-23}
		}
		return out
	}
	wantFused, wantRounded := reference(fused), reference(rounded)
	check := func(what string, got []float32, i int, want []product) {
		t.Helper()
		for j, w := range want[i*p.Cols:][:p.Cols] {
			if math.Abs(float64(got[j])-w.value) > w.bound {
				t.Fatalf("%s: element %d, %d is %v, want %v ± %v", what, i, j, got[j], w.value, w.bound)
			}
		}
	}

	single := make([][]float32, m)
	for i := range m {
		single[i] = guarded(start[i*p.Cols:][:p.Cols])
		set.MulCodes(single[i], x[i*p.Rows:][:p.Rows], p, sumsOf(sums[i:i+1], p))
		checkGuard(t, "one row", single[i], p.Cols)
		check("one row", single[i], i, wantFused)
	}
	for rows := 1; rows <= m; rows++ {
		a := make([]float32, rows*p.Rows)
		for i := range rows {
			for r := range p.Rows {
				a[r*rows+i] = x[i*p.Rows+r]
			}
		}
		s := sumsOf(sums[:rows], p)
		if set.PanelRows > 0 && rows > set.PanelRows {
			continue
		}
		y, z := guarded(start[:rows*p.Cols]), guarded(start[:rows*p.Cols])
		set.MulPanel(y, a, codes, rows, p, true, s)
		set.MulPanel(z, a, weights, rows, p, false, nil)
		checkGuard(t, "scaled panel", y, rows*p.Cols)
		checkGuard(t, "panel", z, rows*p.Cols)
		for i := range rows {
			check("scaled panel", y[i*p.Cols:], i, wantFused)
			check("panel", z[i*p.Cols:], i, wantRounded)
			if set.PanelRows > 0 && !slices.Equal(y[i*p.Cols:][:p.Cols], single[i][:p.Cols]) {
				t.Fatalf("row %d of %d is another than alone", i, rows)
			}
		}
	}
	if !slices.Equal(p.Words, words) {
		t.Fatal("a kernel changed its piece")
	}
}

func sumsOf(sums []float32, p Piece) []float32 {
	if !p.Shifted {
		return nil
	}
	return sums
}

func TestConvert(t *testing.T) {
	all := make([]byte, 2<<16) // every float16
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(all[2*i:], uint16(i))
	}
	wide, want := make([]float32, 1<<16), make([]float32, 1<<16)
	tensor.DecodeF16(want, all)
	// Between two neighbors: exactly the middle, and next to it.
	var hard []float32
	for i := range 0x7BFF {
		lo, hi := float64(want[i]), float64(want[i+1])
		mid := float32((lo + hi) / 2)
		for _, v := range []float32{mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, 1e9)} {
			hard = append(hard, v, -v)
		}
	}
	hard = append(hard, 65519, 65520, 1e9, float32(math.Inf(1)), float32(math.Inf(-1)), 0x1p-149, -0x1p-130)
	for _, set := range Sets() {
		set.Decode(wide, all)
		for i := range wide {
			nan := wide[i] != wide[i] && want[i] != want[i]
			if math.Float32bits(wide[i]) != math.Float32bits(want[i]) && !nan {
				t.Fatalf("%s: decoding %#04x gives %v, want %v", set.Name, i, wide[i], want[i])
			}
		}
		for _, n := range []int{len(hard), 0, 1, 31, 32, 33} {
			got, expected := make([]byte, 2*n), make([]byte, 2*n)
			set.Encode(got, hard[:n])
			tensor.EncodeF16(expected, hard[:n])
			for i := range n {
				g, w := binary.LittleEndian.Uint16(got[2*i:]), binary.LittleEndian.Uint16(expected[2*i:])
				if g != w {
					t.Fatalf("%s: encoding %v gives %#04x, want %#04x", set.Name, hard[i], g, w)
				}
			}
		}
	}
}

func TestRead(t *testing.T) {
	for _, set := range Sets() {
		for _, n := range []int{0, 1, 127, 128, 1000} {
			for at := range n {
				words := make([]uint32, n)
				words[at] = 1 << (at % 32)
				if at%128 != 0 && at < 896 {
					continue // a whole turn ends up in one register of several
				}
				if set.Read(words) == 0 {
					t.Fatalf("%s does not read word %d of %d", set.Name, at, n)
				}
			}
		}
	}
}

func BenchmarkMulCodes(b *testing.B) {
	for _, set := range Sets() {
		for _, bits := range widths {
			b.Run(fmt.Sprintf("%s/bits=%d", set.Name, bits), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 2))
				p := randomPiece(rng, bits, 128, set.BlockCols, false)
				x, y := random(rng, p.Rows, 1), make([]float32, p.Cols)
				for b.Loop() {
					set.MulCodes(y, x, p, nil)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*p.Rows*p.Cols), "ns/weight")
			})
		}
	}
}

func BenchmarkUnpack(b *testing.B) {
	for _, set := range Sets() {
		for _, bits := range widths {
			b.Run(fmt.Sprintf("%s/bits=%d", set.Name, bits), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 2))
				p := randomPiece(rng, bits, 128, set.BlockCols, false)
				panel := make([]float32, p.Rows*p.Cols)
				for b.Loop() {
					set.Unpack(panel, p)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*p.Rows*p.Cols), "ns/weight")
			})
		}
	}
}

func BenchmarkMulPanel(b *testing.B) {
	for _, set := range Sets() {
		for _, rows := range []int{1, 2, 4, 6} {
			b.Run(fmt.Sprintf("%s/rows=%d", set.Name, rows), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 2))
				p := randomPiece(rng, 4, 128, set.BlockCols, false)
				panel := random(rng, p.Rows*p.Cols, 1)
				a, y := random(rng, rows*p.Rows, 1), make([]float32, rows*p.Cols)
				for b.Loop() {
					set.MulPanel(y, a, panel, rows, p, true, nil)
				}
				b.ReportMetric(2*float64(rows*p.Rows*p.Cols)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}
