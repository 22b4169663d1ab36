package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// sets are all that this build and processor have.
func sets() []*Set {
	all := []*Set{Portable()}
	if b := Best(); b != all[0] {
		all = append(all, b)
	}
	return all
}

var widths = []int{2, 3, 4, 5, 6, 8}

// code is the definition: bit by bit.
func code(c Codes, row, col int) int {
	v := 0
	for i := range c.Bits {
		bit := row*c.Bits + i
		v |= int(c.Words[bit/32*c.Stride+col]>>(bit%32)&1) << i
	}
	return v - 1<<(c.Bits-1)
}

func randomCodes(rng *rand.Rand, bits, rows, cols, extra int) Codes {
	c := Codes{Bits: bits, Rows: rows, Cols: cols, Stride: cols + extra}
	// The last row is cut where the columns end, as in a tile of a larger matrix.
	c.Words = make([]uint32, (rows*bits/32-1)*c.Stride+cols)
	for i := range c.Words {
		c.Words[i] = rng.Uint32()
	}
	return c
}

func randomDense(rng *rand.Rand, rows, cols, extra int) Dense {
	d := Dense{Rows: rows, Cols: cols, Stride: cols + extra, Data: make([]float32, rows*(cols+extra))}
	for i := range d.Data {
		d.Data[i] = float32(rng.NormFloat64())
	}
	return d
}

func TestKernels(t *testing.T) {
	for _, set := range sets() {
		for _, bits := range widths {
			for _, cols := range []int{1, 7, 8, 31, 64, 257} {
				for _, m := range []int{1, 2, 3, 5} {
					t.Run(fmt.Sprintf("%s/%d bit/%d columns/%d rows", set.Name, bits, cols, m), func(t *testing.T) {
						rng := rand.New(rand.NewPCG(uint64(bits), uint64(cols)))
						testProduct(t, set, rng, bits, 96, cols, m, 1)
						testProduct(t, set, rng, bits, 32, cols, m, 0)
						testProduct(t, set, rng, bits, 32, cols, m, 3e4)
					})
				}
			}
		}
	}
}

func testProduct(t *testing.T, set *Set, rng *rand.Rand, bits, rows, cols, m int, scale float32) {
	t.Helper()
	codes := randomCodes(rng, bits, rows, cols, 5)
	x := randomDense(rng, m, rows, 3)
	for i := range x.Data {
		x.Data[i] *= scale
	}
	start := randomDense(rng, m, cols, 2)
	fused, dense := start, start
	fused.Data, dense.Data = slices.Clone(start.Data), slices.Clone(start.Data)
	w := randomDense(rng, rows, cols, 4)

	set.MulCodes(fused, x, codes)
	set.Unpack(w, codes)
	set.MulDense(dense, x, w)

	for r := range rows {
		for j := range cols {
			if got, want := w.Row(r)[j], float32(code(codes, r, j)); got != want {
				t.Fatalf("unpack: element %d, %d is %v, want %v", r, j, got, want)
			}
		}
	}
	for i := range m {
		for j := range cols {
			want, size := float64(start.Row(i)[j]), math.Abs(float64(start.Row(i)[j]))
			for r := range rows {
				p := float64(x.Row(i)[r]) * float64(code(codes, r, j))
				want += p
				size += math.Abs(p)
			}
			// Each sum of float32 errs by at most its additions times 2⁻²⁴ of the magnitudes.
			bound := size * float64(rows) * 0x1p-24
			if got := float64(fused.Row(i)[j]); math.Abs(got-want) > bound {
				t.Fatalf("fused: element %d, %d is %v, want %v", i, j, got, want)
			}
			if got := float64(dense.Row(i)[j]); math.Abs(got-want) > bound {
				t.Fatalf("dense: element %d, %d is %v, want %v", i, j, got, want)
			}
		}
	}
	for i := range start.Data { // nothing beside the columns
		if i%start.Stride >= cols && (fused.Data[i] != start.Data[i] || dense.Data[i] != start.Data[i]) {
			t.Fatalf("element %d beside the matrix was written", i)
		}
	}
}

// TestColumnsAlone holds that an element does not depend on the other columns and rows of the call.
func TestColumnsAlone(t *testing.T) {
	for _, set := range sets() {
		for _, bits := range widths {
			rng := rand.New(rand.NewPCG(1, uint64(bits)))
			const rows, cols, m = 64, 77, 3
			codes, x := randomCodes(rng, bits, rows, cols, 0), randomDense(rng, m, rows, 0)
			all := Dense{Data: make([]float32, m*cols), Stride: cols, Rows: m, Cols: cols}
			set.MulCodes(all, x, codes)
			for i := range m {
				for _, part := range [][2]int{{0, 1}, {3, 40}, {40, 77}} {
					c := codes
					c.Words, c.Cols = codes.Words[part[0]:], part[1]-part[0]
					one := Dense{Data: make([]float32, c.Cols), Stride: c.Cols, Rows: 1, Cols: c.Cols}
					set.MulCodes(one, Dense{Data: x.Row(i), Stride: rows, Rows: 1, Cols: rows}, c)
					for j, got := range one.Data {
						if want := all.Row(i)[part[0]+j]; got != want {
							t.Fatalf("%s, %d bit: element %d, %d is %v alone and %v with others", set.Name, bits, i, part[0]+j, got, want)
						}
					}
				}
			}
		}
	}
}

func BenchmarkMulCodes(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, set := range sets() {
		for _, bits := range widths {
			b.Run(fmt.Sprintf("%s/bits=%d", set.Name, bits), func(b *testing.B) {
				const rows, cols = 128, 2048
				codes, x := randomCodes(rng, bits, rows, cols, 0), randomDense(rng, 1, rows, 0)
				acc := Dense{Data: make([]float32, cols), Stride: cols, Rows: 1, Cols: cols}
				for b.Loop() {
					set.MulCodes(acc, x, codes)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(rows*cols), "ns/weight")
			})
		}
	}
}

func BenchmarkMulDense(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, set := range sets() {
		b.Run(set.Name, func(b *testing.B) {
			const rows, cols, m = 32, 512, 8
			w, x, acc := randomDense(rng, rows, cols, 0), randomDense(rng, m, rows, 0), randomDense(rng, m, cols, 0)
			for b.Loop() {
				set.MulDense(acc, x, w)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(rows*cols*m), "ns/product")
		})
	}
}
