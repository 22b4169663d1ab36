package quanttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// MaxRelError is the largest error of a product that TestBackend accepts, as the norm of the
// difference to the product in float64 over the norm of that product. Sums in float32 and one
// rounding of the result give about 2e-4, and about 3e-4 where weights are not rounded though those
// of the reference are.
const MaxRelError = 5e-4

// TestBackend runs the suite. newBackend is called once for each test; what it has to release it
// registers with Cleanup.
func TestBackend(t *testing.T, newBackend func(t testing.TB) quant.Backend) {
	t.Helper()
	all, err := samples()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("accuracy", func(t *testing.T) {
		b := newBackend(t)
		for _, s := range all {
			t.Run(s.name, func(t *testing.T) { testAccuracy(t, b, s.matrix) })
		}
	})
	t.Run("bias and accumulate", func(t *testing.T) {
		b := newBackend(t)
		for _, s := range all {
			t.Run(s.name, func(t *testing.T) { testOptions(t, b, s.matrix) })
		}
	})
	t.Run("extremes", func(t *testing.T) { testExtremes(t, newBackend(t)) })
	t.Run("deterministic", func(t *testing.T) { testDeterministic(t, newBackend(t), all) })
	t.Run("misuse", func(t *testing.T) { testMisuse(t, newBackend(t), newBackend(t), all[0].matrix, all[1].matrix) })
	t.Run("inputs stay", func(t *testing.T) { testInputs(t, newBackend(t), all) })
	t.Run("no rows", func(t *testing.T) {
		b := newBackend(t)
		p := upload(t, b, all[0].matrix)
		p.gemm(t, nil, nil, quant.GemmOptions{})
	})
	t.Run("cancelled", func(t *testing.T) {
		b := newBackend(t)
		p := upload(t, b, all[0].matrix)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		cancel(cause)
		x, dst := newMatrix(t, b, 3, p.k), newMatrix(t, b, 3, p.n)
		if err := b.Gemm(ctx, dst, x, p.w, quant.GemmOptions{}); !errors.Is(err, cause) {
			t.Errorf("product after the context ended: error %v, want its cause", err)
		}
	})
}

// BenchmarkBackend measures products with 4096×4096 matrices. GB/s are of quantized bytes; the
// number of rows is m.
func BenchmarkBackend(b *testing.B, newBackend func(t testing.TB) quant.Backend) {
	rng := rand.New(rand.NewPCG(1, 2))
	const k, n = 4096, 4096
	for _, bits := range []int{4, 2, 3, 5, 6, 8} {
		groups, err := quant.MixGroups(k, quant.Share{Bits: bits, GroupRows: 128, Fraction: 1})
		if err != nil {
			b.Fatal(err)
		}
		m, err := quant.LoadEXL2(EXL2(rng, n, groups), "", quant.EXL2Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, rows := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("bits=%d/m=%d", bits, rows), func(b *testing.B) {
				backend := newBackend(b)
				p := upload(b, backend, m)
				x, dst := newMatrix(b, backend, rows, k), newMatrix(b, backend, rows, n)
				if err := x.CopyFrom(Normal(rng, rows*k, 1)); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if err := backend.Gemm(b.Context(), dst, x, p.w, quant.GemmOptions{}); err != nil {
						b.Fatal(err)
					}
				}
				perOp := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(float64(m.Bytes())/perOp/1e9, "GB/s")
				b.ReportMetric(2*float64(rows)*k*n/perOp/1e9, "GFLOP/s")
			})
		}
	}
}

// uploaded is a weight with what is needed to judge products.
type uploaded struct {
	b       quant.Backend
	w       quant.Weight
	k, n    int
	weights []float32 // dequantized
	bias    []float32 // zeros if there is none
}

func upload(t testing.TB, b quant.Backend, m *quant.QMatrix) *uploaded {
	t.Helper()
	w, err := b.Upload(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	p := &uploaded{b: b, w: w, k: m.Rows(), n: m.Cols(), bias: make([]float32, m.Cols())}
	if w.Rows() != p.k || w.Cols() != p.n || w.Bytes() <= 0 {
		t.Fatalf("weight of %d rows, %d columns and %d bytes: want %d rows, %d columns", w.Rows(), w.Cols(), w.Bytes(), p.k, p.n)
	}
	half := make([]byte, 2*p.k*p.n)
	if err := m.Dequantize(half); err != nil {
		t.Fatal(err)
	}
	p.weights = decode(half)
	if bias := m.Bias(); bias != nil {
		p.bias = decode(bias)
	}
	return p
}

func newMatrix(t testing.TB, b quant.Backend, rows, cols int) quant.Matrix {
	t.Helper()
	m, err := b.NewMatrix(rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	if m.Rows() != rows || m.Cols() != cols {
		t.Fatalf("new matrix has %d rows and %d columns: want %d, %d", m.Rows(), m.Cols(), rows, cols)
	}
	return m
}

// gemm returns what is in dst after a product; old is in it before.
func (p *uploaded) gemm(t testing.TB, x, old []byte, opts quant.GemmOptions) []byte {
	t.Helper()
	rows := len(x) / 2 / p.k
	in, dst := newMatrix(t, p.b, rows, p.k), newMatrix(t, p.b, rows, p.n)
	if err := errors.Join(in.CopyFrom(x), dst.CopyFrom(old)); err != nil {
		t.Fatal(err)
	}
	if err := p.b.Gemm(t.Context(), dst, in, p.w, opts); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, len(old))
	if err := dst.CopyTo(out); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Close(), dst.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

// reference is a product in float64, without bias.
type reference struct {
	rows   int
	want   []float64 // [rows, N]
	size   []float64 // the same with the magnitudes of all factors
	inputs []float64 // sum of the magnitudes of each row of x
}

func (p *uploaded) reference(x []byte) *reference {
	in := decode(x)
	r := &reference{rows: len(in) / p.k}
	r.want, r.size, r.inputs = make([]float64, r.rows*p.n), make([]float64, r.rows*p.n), make([]float64, r.rows)
	for i := range r.rows {
		want, size := r.want[i*p.n:][:p.n], r.size[i*p.n:][:p.n]
		for k, v := range in[i*p.k:][:p.k] {
			r.inputs[i] += math.Abs(float64(v))
			for j, w := range p.weights[k*p.n:][:p.n] {
				product := float64(v) * float64(w)
				want[j] += product
				size[j] += math.Abs(product)
			}
		}
	}
	return r
}

// check compares a result with the reference. old is nil when it was overwritten, and so is bias
// for none.
func (p *uploaded) check(t testing.TB, r *reference, got []byte, old, bias []float32, path quant.Path) {
	t.Helper()
	var diff, norm float64
	for i, value := range decode(got) {
		want, size := r.want[i], r.size[i]
		if bias != nil {
			want += float64(bias[i%p.n])
			size += math.Abs(float64(bias[i%p.n]))
		}
		if old != nil {
			want += float64(old[i])
			size += math.Abs(float64(old[i]))
		}
		// One rounding of the result; sums in float32; and unless the path has rounded weights,
		// those of the reference differ by half a unit each, which for subnormal ones is 2⁻²⁵.
		bound := math.Abs(want)*0x1p-11 + size*float64(p.k+2)*0x1p-24 + 0x1p-24
		if path != quant.PathReconstruct {
			bound += (size*0x1p-11 + r.inputs[i/p.n]*0x1p-25) * (1 + 0x1p-10)
		}
		delta := math.Abs(float64(value) - want)
		if !(delta <= bound) {
			t.Fatalf("element %d, %d of %d rows is %v: want %v ± %v", i/p.n, i%p.n, r.rows, value, want, bound)
		}
		diff += delta * delta
		norm += want * want
	}
	// A bias or an old value may cancel the product and leave its error; then only the bound above
	// says something.
	if e := math.Sqrt(diff / norm); old == nil && bias == nil && e > MaxRelError {
		t.Errorf("%d rows: relative error %.2e, want at most %.0e", r.rows, e, MaxRelError)
	}
}

// poison returns n NaN: whatever is not written shows.
func poison(n int) []byte { return bytes.Repeat([]byte{0xFF, 0x7F}, n) }

func decode(half []byte) []float32 {
	out := make([]float32, len(half)/2)
	tensor.DecodeF16(out, half)
	return out
}

var paths = []quant.Path{quant.PathAuto, quant.PathFused, quant.PathReconstruct}

func testAccuracy(t *testing.T, b quant.Backend, m *quant.QMatrix) {
	p := upload(t, b, m)
	rng := rand.New(rand.NewPCG(3, 4))
	// Around the sizes where implementations change their way: powers of two, 32 and 50.
	rows := []int{1, 2, 3, 4, 5, 8, 17, 31, 32, 33, 50, 51, 65, 130}
	if testing.Short() {
		rows = []int{1, 3, 33, 65}
	}
	for _, count := range rows {
		x := Normal(rng, count*p.k, 1)
		r := p.reference(x)
		for _, path := range paths {
			got := p.gemm(t, x, poison(count*p.n), quant.GemmOptions{Path: path, NoBias: true})
			p.check(t, r, got, nil, nil, path)
		}
	}
}

func testOptions(t *testing.T, b quant.Backend, m *quant.QMatrix) {
	p := upload(t, b, m)
	rng := rand.New(rand.NewPCG(5, 6))
	bias := Normal(rng, p.n, 2)
	for _, rows := range []int{1, 35} {
		x, old := Normal(rng, rows*p.k, 1), Normal(rng, rows*p.n, 2)
		r := p.reference(x)
		for _, path := range paths {
			for _, accumulate := range []bool{false, true} {
				before, kept := poison(rows*p.n), []float32(nil)
				if accumulate {
					before, kept = old, decode(old)
				}
				opts := quant.GemmOptions{Accumulate: accumulate, Path: path}
				p.check(t, r, p.gemm(t, x, before, opts), kept, p.bias, path)
				opts.Bias = bias
				p.check(t, r, p.gemm(t, x, before, opts), kept, decode(bias), path)
				opts.NoBias = true
				p.check(t, r, p.gemm(t, x, before, opts), kept, nil, path)
			}
		}
	}
}

func testExtremes(t *testing.T, b quant.Backend) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, bits := range []int{8, 6, 5, 4, 3, 2} {
		tensors := EXL2(rng, 288, []quant.Group{{Bits: bits, Rows: 64}, {Bits: bits, Rows: 64}})
		// Scales: the smallest and the largest code, of a subnormal maximum and of an ordinary one.
		for i := range tensors["q_scale"].Data {
			tensors["q_scale"].Data[i] = []byte{0x00, 0xFF, 0xF0, 0x0F}[i%4]
		}
		copy(tensors["q_scale_max"].Data, []byte{0x01, 0x02, 0x00, 0x10})
		m, err := quant.LoadEXL2(tensors, "", quant.EXL2Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := upload(t, b, m)
		for _, path := range paths {
			// Activations that overflow half-precision sums: all ±3e4, the signs those of the first
			// column.
			x := make([]byte, 0, 2*p.k)
			for k := range p.k {
				x = appendHalf(x, float32(math.Copysign(3e4, float64(p.weights[k*p.n]))))
			}
			// Those that overflow the result itself are cut in half.
			r := p.reference(x)
			for slices.Max(r.size) > 6e4 {
				half := decode(x)
				x = x[:0]
				for _, v := range half {
					x = appendHalf(x, v/2)
				}
				r = p.reference(x)
			}
			got := p.gemm(t, x, poison(p.n), quant.GemmOptions{Path: path})
			p.check(t, r, got, nil, nil, path)
			zeros := p.gemm(t, make([]byte, 6*p.k), poison(3*p.n), quant.GemmOptions{Path: path})
			for i, v := range decode(zeros) {
				if v != 0 {
					t.Fatalf("%d bit, %v: zeros give %v in element %d", bits, path, v, i)
				}
			}
			// What is not finite stays in its row.
			x = Normal(rng, 3*p.k, 1)
			copy(x[2*p.k:], []byte{0x00, 0x7C, 0x00, 0x7E})
			got = p.gemm(t, x, poison(3*p.n), quant.GemmOptions{Path: path})
			p.check(t, p.reference(x[:2*p.k]), got[:2*p.n], nil, nil, path)
			p.check(t, p.reference(x[4*p.k:]), got[4*p.n:], nil, nil, path)
			for i, v := range decode(got[2*p.n : 4*p.n]) {
				if v == v && !math.IsInf(float64(v), 0) {
					t.Fatalf("%d bit, %v: a row with NaN gives %v in element %d", bits, path, v, i)
				}
			}
		}
	}
}

func testDeterministic(t *testing.T, b quant.Backend, all []sample) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, s := range all {
		p := upload(t, b, s.matrix)
		for _, rows := range []int{1, 37} {
			x := Normal(rng, rows*p.k, 1)
			want := p.gemm(t, x, poison(rows*p.n), quant.GemmOptions{})
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() {
					if got := p.gemm(t, x, poison(rows*p.n), quant.GemmOptions{}); !bytes.Equal(got, want) {
						t.Errorf("%s: two products of %d rows differ", s.name, rows)
					}
				})
			}
			group.Wait()
		}
	}
}

func testInputs(t *testing.T, b quant.Backend, all []sample) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, s := range all {
		before := make([]byte, 2*s.matrix.Rows()*s.matrix.Cols())
		after := bytes.Clone(before)
		if err := s.matrix.Dequantize(before); err != nil {
			t.Fatal(err)
		}
		first, second := upload(t, b, s.matrix), upload(t, b, s.matrix)
		content, bias := Normal(rng, 5*first.k, 1), Normal(rng, first.n, 1)
		x, dst := newMatrix(t, b, 5, first.k), newMatrix(t, b, 5, first.n)
		kept := bytes.Clone(bias)
		if err := x.CopyFrom(content); err != nil {
			t.Fatal(err)
		}
		var results [2][]byte
		for i, p := range []*uploaded{first, second} {
			if err := b.Gemm(t.Context(), dst, x, p.w, quant.GemmOptions{Bias: bias}); err != nil {
				t.Fatal(err)
			}
			results[i] = make([]byte, 10*p.n)
			if err := errors.Join(dst.CopyTo(results[i]), p.w.Close()); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, len(content))
		if err := errors.Join(x.CopyTo(got), s.matrix.Dequantize(after)); err != nil {
			t.Fatal(err)
		}
		switch {
		case !bytes.Equal(got, content):
			t.Errorf("%s: the product changed the activations", s.name)
		case !bytes.Equal(bias, kept):
			t.Errorf("%s: the product changed the bias", s.name)
		case !bytes.Equal(before, after):
			t.Errorf("%s: the backend changed the matrix", s.name)
		case !bytes.Equal(results[0], results[1]):
			t.Errorf("%s: two uploads give different products", s.name)
		}
	}
}

func testMisuse(t *testing.T, b, foreign quant.Backend, m, other *quant.QMatrix) {
	p := upload(t, b, m)
	closedWeight := upload(t, b, m)
	if err := closedWeight.w.Close(); err != nil {
		t.Fatal(err)
	}
	closedMatrix := newMatrix(t, b, 2, p.k)
	if err := closedMatrix.Close(); err != nil {
		t.Fatal(err)
	}
	x, dst := newMatrix(t, b, 2, p.k), newMatrix(t, b, 2, p.n)
	before := poison(2 * p.n)
	if err := dst.CopyFrom(before); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		dst, x quant.Matrix
		w      quant.Weight
		opts   quant.GemmOptions
		want   error // nil for any
	}{
		{"wrong K", dst, newMatrix(t, b, 2, p.k+1), p.w, quant.GemmOptions{}, nil},
		{"wrong N", newMatrix(t, b, 2, p.n-1), x, p.w, quant.GemmOptions{}, nil},
		{"wrong M", dst, newMatrix(t, b, 3, p.k), p.w, quant.GemmOptions{}, nil},
		{"wrong weight", dst, x, upload(t, b, other).w, quant.GemmOptions{}, nil},
		{"foreign weight", dst, x, upload(t, foreign, m).w, quant.GemmOptions{}, nil},
		{"closed weight", dst, x, closedWeight.w, quant.GemmOptions{}, quant.ErrClosed},
		{"closed activations", dst, closedMatrix, p.w, quant.GemmOptions{}, quant.ErrClosed},
		{"no weight", dst, x, nil, quant.GemmOptions{}, nil},
		{"no activations", dst, nil, p.w, quant.GemmOptions{}, nil},
		{"no result", nil, x, p.w, quant.GemmOptions{}, nil},
		{"short bias", dst, x, p.w, quant.GemmOptions{Bias: make([]byte, 2*p.n-2)}, nil},
		{"no such path", dst, x, p.w, quant.GemmOptions{Path: 77}, nil},
	} {
		err := b.Gemm(t.Context(), test.dst, test.x, test.w, test.opts)
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
	}
	after := make([]byte, len(before))
	if err := dst.CopyTo(after); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("a refused product wrote to its result")
	}
	if err := closedWeight.w.Close(); !errors.Is(err, quant.ErrClosed) {
		t.Errorf("closing a weight twice: error %v, want ErrClosed", err)
	}
	if err := x.CopyFrom(make([]byte, 2)); err == nil {
		t.Error("copying too few elements into a matrix is no error")
	}
	if err := closedMatrix.CopyTo(make([]byte, 4*p.k)); !errors.Is(err, quant.ErrClosed) {
		t.Errorf("copying from a closed matrix: error %v, want ErrClosed", err)
	}
	if _, err := b.NewMatrix(-1, 2); err == nil {
		t.Error("a matrix of −1 rows is no error")
	}
	if _, err := b.Upload(t.Context(), nil); err == nil {
		t.Error("uploading nothing is no error")
	}
}
