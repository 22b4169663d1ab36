package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
	"github.com/kiln-build/kiln/model/tensor"
)

var exl2Widths = []int{8, 6, 5, 4, 3, 2}

// freshMatrix is a matrix that no other run has, with the rows of activations to multiply it with.
type freshMatrix struct {
	name   string
	matrix *quant.QMatrix
	rows   []int
}

// freshMatrices yields matrices with every mixture of widths, groups of 32, 64 and 128 rows and a
// last one that may be shorter, with and without permutation and bias; GPTQ of every width; and
// sizes that no tile divides.
func freshMatrices(rng *rand.Rand, yield func(freshMatrix) error) error {
	exl2 := func(n int, groups []quant.Group, rows ...int) error {
		tensors := quanttest.EXL2(rng, n, groups)
		var notes []string
		if rng.IntN(4) == 0 {
			delete(tensors, "q_invperm")
			notes = append(notes, "natural order")
		}
		if rng.IntN(3) == 0 {
			tensors["bias"] = quant.Tensor{DType: tensor.F16, Shape: []int64{int64(n)}, Data: quanttest.Normal(rng, n, 1)}
			notes = append(notes, "bias")
		}
		m, err := quant.LoadEXL2(tensors, "", quant.EXL2Options{})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("exl2 %d×%d %s", m.Rows(), n, widthsOf(groups))
		if notes != nil {
			name += " (" + strings.Join(notes, ", ") + ")"
		}
		return yield(freshMatrix{name, m, rows})
	}
	few := func() []int {
		return []int{1, 1 + rng.IntN(8), 9 + rng.IntN(24), 33 + rng.IntN(32), 65 + rng.IntN(200)}
	}
	for mix := 1; mix < 1<<len(exl2Widths); mix++ {
		var groups []quant.Group
		for i, bits := range exl2Widths {
			if mix>>i&1 == 0 {
				continue
			}
			size := 32 << rng.IntN(3)
			for range 1 + rng.IntN(4) {
				groups = append(groups, quant.Group{Bits: bits, Rows: size})
			}
		}
		last := &groups[len(groups)-1]
		last.Rows = 32 * (1 + rng.IntN(last.Rows/32))
		if err := exl2(32*(1+rng.IntN(20)), groups, few()...); err != nil {
			return err
		}
	}
	for _, bits := range []int{2, 3, 4, 8} {
		for _, actOrder := range []bool{false, true} {
			k, n, size := 32*(1+rng.IntN(30)), 32*(1+rng.IntN(20)), 32<<rng.IntN(3)
			m, err := quant.LoadGPTQ(quanttest.GPTQ(rng, k, n, bits, size, actOrder), "", quant.GPTQOptions{GroupSize: size})
			if err != nil {
				return err
			}
			name := fmt.Sprintf("gptq %d×%d %d bit, groups of %d, act-order %v", k, n, bits, size, actOrder)
			if err := yield(freshMatrix{name, m, few()}); err != nil {
				return err
			}
		}
	}
	many := []int{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 51, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 1000, 1024, 2047, 4096}
	for _, s := range []struct{ k, n int }{{32, 32}, {32, 4128}, {96, 2080}, {4128, 32}, {1056, 1056}, {2080, 352}, {11008, 96}} {
		groups, err := quant.MixGroups(s.k, quant.Share{Bits: 5, GroupRows: 64, Fraction: 0.2}, quant.Share{Bits: 4, GroupRows: 128, Fraction: 1})
		if err != nil {
			return err
		}
		if err := exl2(s.n, groups, many...); err != nil {
			return err
		}
	}
	return nil
}

func widthsOf(groups []quant.Group) string {
	var out []string
	last := 0
	for _, g := range groups {
		if g.Bits != last {
			out = append(out, strconv.Itoa(g.Bits))
		}
		last = g.Bits
	}
	return strings.Join(out, "/")
}

// checkFresh compares weights bit for bit, if the backend can give them, and products with float64.
func checkFresh(ctx context.Context, out io.Writer, b quant.Backend, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	fmt.Fprintf(out, "fresh matrices, seed %d\n", seed)
	var errs []error
	err := freshMatrices(rng, func(f freshMatrix) error {
		worst, err := checkMatrix(ctx, b, f, rng)
		if err != nil {
			err = fmt.Errorf("%s: %w", f.name, err)
			errs = append(errs, err)
			fmt.Fprintln(out, err)
			return context.Cause(ctx)
		}
		fmt.Fprintf(out, "%s, %d to %d rows: error at most %.1e\n", f.name, f.rows[0], f.rows[len(f.rows)-1], worst)
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// dequantizer is a backend that can write the weights it multiplies with.
type dequantizer interface {
	Dequantize(dst quant.Matrix, w quant.Weight) error
}

// ways is a backend with several kernels for one product.
type ways interface {
	CheckWays(ctx context.Context, w quant.Weight, rows int) (count int, worst float64, err error)
}

func checkMatrix(ctx context.Context, b quant.Backend, f freshMatrix, rng *rand.Rand) (worst float64, err error) {
	k, n := f.matrix.Rows(), f.matrix.Cols()
	half := make([]byte, 2*k*n)
	if err := f.matrix.Dequantize(half); err != nil {
		return 0, err
	}
	w, err := b.Upload(ctx, f.matrix)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if d, ok := b.(dequantizer); ok {
		got, err := dequantize(b, d, w)
		if err != nil {
			return 0, err
		}
		if at := firstDifference(got, half); at >= 0 {
			return 0, fmt.Errorf("reconstruction differs first at row %d, column %d", at/2/n, at/2%n)
		}
	}
	weights := references(f.matrix, half)
	bias := make([]float32, n)
	if own := f.matrix.Bias(); own != nil {
		tensor.DecodeF16(bias, own)
	}
	for i, rows := range f.rows {
		x := quanttest.Normal(rng, rows*k, 1)
		if i%2 == 1 {
			// Sums of numbers with one sign lose the most if anything is added and taken off again.
			for j := 1; j < len(x); j += 2 {
				x[j] &^= 0x80
			}
		}
		for _, path := range []quant.Path{quant.PathAuto, quant.PathFused, quant.PathReconstruct} {
			got, err := product(ctx, b, w, x, path)
			if err != nil {
				return 0, fmt.Errorf("%d rows, %v: %w", rows, path, err)
			}
			e := weights.error(got, x, bias, path)
			if !(e <= quanttest.MaxRelError) {
				return 0, fmt.Errorf("%d rows, %v: error of the product is %.1e", rows, path, e)
			}
			worst = max(worst, e)
		}
		if d, ok := b.(ways); ok && rows < 300 && (i%4 == 0 || len(f.rows) < 10) {
			if _, _, err := d.CheckWays(ctx, w, rows); err != nil {
				return 0, err
			}
		}
	}
	return worst, nil
}

// reference has the weights that a path may multiply with.
type reference struct{ exact, rounded []float32 }

// references returns the weights of a matrix, of which half are the rounded ones.
func references(m *quant.QMatrix, half []byte) reference {
	r := reference{quanttest.Exact(m), make([]float32, m.Rows()*m.Cols())}
	tensor.DecodeF16(r.rounded, half)
	return r
}

// error returns the error of a product to the one with the weights that the path multiplies with;
// PathAuto may take either. The weights differ by up to 2^-11, and where the products of a row happen
// to cancel, the two results differ by more than the rounding of one.
func (r reference) error(got []float32, x []byte, bias []float32, path quant.Path) float64 {
	switch path {
	case quant.PathFused:
		return sampledError(got, x, r.exact, bias)
	case quant.PathReconstruct:
		return sampledError(got, x, r.rounded, bias)
	}
	// NaN is larger than any number.
	if e := sampledError(got, x, r.exact, bias); e <= quanttest.MaxRelError {
		return e
	}
	return sampledError(got, x, r.rounded, bias)
}

// firstDifference returns where two texts of one length differ first, −1 if nowhere.
func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// sampledError returns ‖got − x·W − bias‖ / ‖x·W + bias‖ over some rows and columns, and NaN if any
// element at all is NaN.
func sampledError(got []float32, x []byte, weights, bias []float32) float64 {
	n := len(bias)
	k := len(weights) / n
	rows := len(got) / n
	for _, v := range got {
		if v != v {
			return math.NaN()
		}
	}
	in := make([]float32, rows*k)
	tensor.DecodeF16(in, x)
	var diff, norm float64
	// The steps are odd, so that the samples meet every place of a tile. Of few rows there are more
	// columns: the scales of some are many times those of others, and an error must not be that of a
	// few elements.
	rowStep := max(1, rows/48) | 1
	columnStep := max(1, n*min(rows, 48)/2304) | 1
	for i := 0; i < rows; i += rowStep {
		for j := i % columnStep; j < n; j += columnStep {
			want := float64(bias[j])
			for r, v := range in[i*k:][:k] {
				want += float64(v) * float64(weights[r*n+j])
			}
			delta := float64(got[i*n+j]) - want
			diff += delta * delta
			norm += want * want
		}
	}
	return math.Sqrt(diff / norm)
}
