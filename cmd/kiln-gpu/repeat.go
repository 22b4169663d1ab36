package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/quant/quanttest"
	"github.com/kiln-build/kiln/model/tensor"
)

// operands are a weight on a device with activations and room for a product.
type operands struct {
	b      quant.Backend
	w      quant.Weight
	x, dst quant.Matrix
	poison []byte
}

func newOperands(b quant.Backend, w quant.Weight, rows int) (*operands, error) {
	x, err := b.NewMatrix(rows, w.Rows())
	if err != nil {
		return nil, err
	}
	dst, err := b.NewMatrix(rows, w.Cols())
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return &operands{b, w, x, dst, bytes.Repeat([]byte{0xFF, 0x7F}, rows*w.Cols())}, nil
}

func (o *operands) close() error { return errors.Join(o.x.Close(), o.dst.Close()) }

// run fills the result with NaN, calls f and reads the result into out.
func (o *operands) run(out []byte, f func() error) error {
	return errors.Join(o.dst.CopyFrom(o.poison), f(), o.dst.CopyTo(out))
}

func (o *operands) gemm(ctx context.Context) error {
	return o.b.Gemm(ctx, o.dst, o.x, o.w, quant.GemmOptions{})
}

// product runs the product of finite activations, of which every element must be written.
func (o *operands) product(ctx context.Context, out []byte) error {
	if err := o.run(out, func() error { return o.gemm(ctx) }); err != nil {
		return err
	}
	for i := 1; i < len(out); i += 2 {
		if out[i]&0x7C == 0x7C {
			return fmt.Errorf("element %d, %d is not written, or not finite", i/2/o.w.Cols(), i/2%o.w.Cols())
		}
	}
	return nil
}

// conditionRows are numbers of rows that take different kernels.
var conditionRows = []int{1, 2, 8, 16, 32, 64, 128, 200, 1100}

// onEach uploads matrices of three kinds and calls f for each and for each number of rows.
func onEach(ctx context.Context, b quant.Backend, k, n int, f func(name string, o *operands) error) error {
	var errs []error
	for _, format := range []string{"exl2-4", "exl2-8/6/5/4/3/2", "gptq"} {
		m, err := randomMatrix(k, n, format)
		if err != nil {
			return err
		}
		w, err := b.Upload(ctx, m)
		if err != nil {
			return err
		}
		for _, rows := range conditionRows {
			o, err := newOperands(b, w, rows)
			if err != nil {
				return errors.Join(err, w.Close())
			}
			name := fmt.Sprintf("%d×%d %s, %d rows", k, n, format, rows)
			if err := errors.Join(f(name, o), o.close()); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// checkRepeats compares the bits of the same product so many times.
func checkRepeats(ctx context.Context, out io.Writer, b quant.Backend, k, n, times int) error {
	rng := rand.New(rand.NewPCG(7, 8))
	err := onEach(ctx, b, k, n, func(_ string, o *operands) error {
		first, again := make([]byte, len(o.poison)), make([]byte, len(o.poison))
		if err := o.x.CopyFrom(quanttest.Normal(rng, o.x.Rows()*k, 1)); err != nil {
			return err
		}
		for i := range times {
			to := again
			if i == 0 {
				to = first
			}
			if err := o.product(ctx, to); err != nil {
				return err
			}
			if i > 0 && !bytes.Equal(first, again) {
				return fmt.Errorf("time %d gives other bits", i+1)
			}
		}
		return nil
	})
	if err == nil {
		fmt.Fprintf(out, "products repeated %d times: the same bits\n", times)
	}
	return err
}

// checkSpecial holds that an activation that is not finite makes its own row of the result so, all
// of it, and leaves the bits of others alone.
func checkSpecial(ctx context.Context, out io.Writer, b quant.Backend, k, n int) error {
	rng := rand.New(rand.NewPCG(9, 10))
	err := onEach(ctx, b, k, n, func(_ string, o *operands) error {
		rows := o.x.Rows()
		plain := quanttest.Normal(rng, rows*k, 1)
		want, got := make([]byte, len(o.poison)), make([]byte, len(o.poison))
		if err := errors.Join(o.x.CopyFrom(plain), o.product(ctx, want)); err != nil {
			return err
		}
		for name, bits := range map[string][2]byte{"NaN": {0x00, 0x7E}, "+Inf": {0x00, 0x7C}, "-Inf": {0x00, 0xFC}} {
			row, at := rng.IntN(rows), rng.IntN(k)
			x := bytes.Clone(plain)
			copy(x[2*(row*k+at):], bits[:])
			if err := errors.Join(o.x.CopyFrom(x), o.run(got, func() error { return o.gemm(ctx) })); err != nil {
				return err
			}
			values := make([]float32, n)
			tensor.DecodeF16(values, got[2*row*n:][:2*n])
			for j, v := range values {
				if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
					return fmt.Errorf("%s at %d, %d gives %v at %d, %d", name, row, at, v, row, j)
				}
			}
			copy(got[2*row*n:][:2*n], want[2*row*n:])
			if i := firstDifference(got, want); i >= 0 {
				return fmt.Errorf("%s in row %d changes row %d", name, row, i/2/n)
			}
		}
		return nil
	})
	if err == nil {
		fmt.Fprintln(out, "NaN and infinities: in their rows and nowhere else")
	}
	return err
}

// checkGraphs records products and compares what the graph computes from new activations with what
// the call does, also after scratch memory had to grow.
func checkGraphs(ctx context.Context, out io.Writer, d *cuda.Device, k, n int) error {
	rng := rand.New(rand.NewPCG(11, 12))
	err := onEach(ctx, d, k, n, func(_ string, o *operands) (err error) {
		g, err := d.Record(func() error { return o.gemm(ctx) })
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		want, got := make([]byte, len(o.poison)), make([]byte, len(o.poison))
		compare := func(when string) error {
			err := errors.Join(
				o.x.CopyFrom(quanttest.Normal(rng, o.x.Rows()*k, 1)),
				o.product(ctx, want),
				o.run(got, g.Launch))
			if err == nil && !bytes.Equal(want, got) {
				err = fmt.Errorf("the graph gives other bits%s", when)
			}
			return err
		}
		if err := errors.Join(compare(""), compare(" the second time")); err != nil {
			return err
		}
		large, err := newOperands(d, o.w, 7*o.x.Rows()+5)
		if err != nil {
			return err
		}
		return errors.Join(large.gemm(ctx), compare(" after a larger product"), large.close())
	})
	if err == nil {
		fmt.Fprintln(out, "recorded products: the same bits as calls")
	}
	return err
}
