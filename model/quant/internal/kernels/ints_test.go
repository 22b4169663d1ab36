package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-build/kiln/model/tensor"
)

// quantize is the definition of [Ints.Quantize].
func quantize(src []uint16) (ints []int32, scale float64) {
	largest := 0.0
	for _, h := range src {
		largest = max(largest, math.Abs(float64(tensor.Float16(h).Float32())))
	}
	scale = 0x1p-28 // of subnormal numbers
	for largest >= 0x1p15*scale {
		scale *= 2
	}
	for _, h := range src {
		ints = append(ints, int32(math.RoundToEven(float64(tensor.Float16(h).Float32())/scale)))
	}
	return ints, scale
}

func intSets() (out []*Set) {
	for _, set := range Sets() {
		if set.Ints != nil {
			out = append(out, set)
		}
	}
	return out
}

// activations returns random numbers in half precision: of one size, of many sizes, all the same
// extreme, or zeros.
func activations(rng *rand.Rand, n, kind int) []uint16 {
	out := make([]uint16, n)
	for i := range out {
		v := float32(rng.NormFloat64())
		switch kind {
		case 1:
			v *= float32(math.Exp2(float64(rng.IntN(30) - 20)))
		case 2:
			v = -65504
		case 3:
			v = 0
		case 4:
			v *= 0x1p-24
		}
		out[i] = uint16(tensor.Float16FromFloat32(v))
	}
	return out
}

func TestQuantize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, set := range intSets() {
		for kind := range 5 {
			for n := StepRows; n <= MaxPieceRows; n += StepRows {
				src := activations(rng, n, kind)
				want, wantScale := quantize(src)
				dst := make([]uint32, n/2+1)
				dst[n/2] = 12345
				scale, sum, ok := set.Ints.Quantize(dst, src)
				if !ok || float64(scale) != wantScale || dst[n/2] != 12345 {
					t.Fatalf("%s: scale %v, %v: want %v", set.Name, scale, ok, wantScale)
				}
				total := int32(0)
				for i, w := range want {
					total += w
					if got := int32(int16(dst[i/2] >> (i % 2 * 16))); got != w {
						t.Fatalf("%s: number %d of %d is %d: want %d", set.Name, i, n, got, w)
					}
				}
				if sum != total {
					t.Fatalf("%s: sum %d: want %d", set.Name, sum, total)
				}
				for _, bad := range []uint16{0x7C00, 0xFC00, 0x7E00, 0xFFFF} {
					src[rng.IntN(n)] = bad
					if _, _, ok := set.Ints.Quantize(dst, src); ok {
						t.Fatalf("%s: %#x is finite", set.Name, bad)
					}
				}
			}
		}
	}
}

func TestInts(t *testing.T) {
	for _, set := range intSets() {
		for _, bits := range widths {
			for _, shifted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d bit/shifted=%v", set.Name, bits, shifted), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(uint64(bits), 3))
					for kind := range 5 {
						testInts(t, set, rng, bits, []int{128, 96, 32}[kind%3], 1+kind, shifted, kind)
					}
				})
			}
		}
	}
}

// testInts compares products with count pieces with exact sums.
func testInts(t *testing.T, set *Set, rng *rand.Rand, bits, depth, count int, shifted bool, kind int) {
	t.Helper()
	const m = 8
	ints, cols := set.Ints, set.BlockCols
	var words []uint32
	for range count {
		p := randomPiece(rng, bits, depth, cols, shifted)
		if kind == 2 { // the largest sums
			for i := range p.codes() {
				p.Words[i] = math.MaxUint32
			}
		}
		words = append(words, p.Words...)
	}
	first := Piece{Words: words, Bits: bits, Rows: depth, Cols: cols, Shifted: shifted}
	before := slices.Clone(words)
	start := random(rng, m*cols, 1)
	src := activations(rng, m*count*depth, kind) // [m][count][depth]
	want := make([]float32, m*cols)
	for i := range m {
		for j := range cols {
			y := start[i*cols+j]
			for c := range count {
				p := first
				p.Words = words[c*first.Size():]
				scales, shifts := p.Scales()
				q, scale := quantize(src[(i*count+c)*depth:][:depth])
				dot, sum := 0, 0
				for r, v := range q {
					dot += int(v) * code(p, r, j)
					sum += int(v)
				}
				f := float64(float32(dot))
				if shifted {
					f = float64(float32(f + float64(half(shifts, j))*float64(sum))) // exact before it is rounded
				}
				y = float32(float64(y) + f*float64(half(scales, j))*scale)
			}
			want[i*cols+j] = y
		}
	}
	for _, rows := range ints.Rows {
		x := make([]uint32, count*IntWords(rows, depth))
		pairs, ordered := make([]uint32, depth/2), make([]uint16, depth)
		for c := range count {
			for i := range rows {
				from := src[(i*count+c)*depth:][:depth]
				for k := range ordered {
					ordered[k] = from[k/StepRows*StepRows+int(ints.Order[bits][k%StepRows])]
				}
				scale, sum, _ := ints.Quantize(pairs, ordered)
				PutInts(x[c*IntWords(rows, depth):], rows, i, bits, pairs, scale, sum)
			}
		}
		y := guarded(start[:rows*cols])
		ints.Mul(y, x, rows, first, count)
		checkGuard(t, "integers", y, rows*cols)
		for i, v := range y[:rows*cols] {
			if v != want[i] {
				t.Fatalf("element %d, %d of %d rows is %v: want %v", i/cols, i%cols, rows, v, want[i])
			}
		}
	}
	if !slices.Equal(words, before) {
		t.Fatal("a kernel changed its piece")
	}
}

// BenchmarkInts multiplies one row, or several, with a block that is in a cache ("near") or comes
// from memory ("far").
func BenchmarkInts(b *testing.B) {
	for _, set := range intSets() {
		for _, bits := range widths {
			for _, rows := range set.Ints.Rows {
				for name, total := range map[string]int{"near": 256 << 10, "far": 256 << 20} {
					b.Run(fmt.Sprintf("%s/bits=%d/rows=%d/%s", set.Name, bits, rows, name), func(b *testing.B) {
						p := Piece{Bits: bits, Rows: 128, Cols: set.BlockCols}
						const count = 16
						p.Words = make([]uint32, total/4)
						for i := range p.Words {
							p.Words[i] = uint32(i)
						}
						x, y := make([]uint32, count*IntWords(rows, p.Rows)), make([]float32, rows*p.Cols)
						b.SetBytes(int64(4 * count * p.Size()))
						at := 0
						for b.Loop() {
							one := p
							one.Words = p.Words[at:]
							set.Ints.Mul(y, x, rows, one, count)
							if at += count * p.Size(); at+count*p.Size() > len(p.Words) {
								at = 0
							}
						}
						b.ReportMetric(float64(b.N*count*p.Rows*p.Cols*rows)/float64(b.Elapsed().Nanoseconds()), "MAC/ns")
					})
				}
			}
		}
	}
}
