package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/kiln-build/kiln/quant"
	"github.com/kiln-build/kiln/quant/cuda"
	"github.com/kiln-build/kiln/quant/quanttest"
	"github.com/kiln-build/kiln/tensor"
)

// checkLarge compares products of the sizes that models have, which the suite has not, with float64 in every 61st column:
// there a product is split in other ways.
func checkLarge(ctx context.Context, out io.Writer, d *cuda.Device) error {
	rng := rand.New(rand.NewPCG(5, 6))
	var errs []error
	for _, c := range []struct {
		k, n   int
		format string
	}{{4096, 4096, "exl2-4"}, {512, 28672, "exl2-4"}, {2048, 20480, "exl2-8/5/4"}, {2048, 8192, "gptq"}} {
		m, err := randomMatrix(c.k, c.n, c.format)
		if err != nil {
			return err
		}
		half := make([]byte, 2*c.k*c.n)
		if err := m.Dequantize(half); err != nil {
			return err
		}
		weights := make([]float32, c.k*c.n)
		tensor.DecodeF16(weights, half)
		w, err := d.Upload(ctx, m)
		if err != nil {
			return err
		}
		for _, rows := range []int{1, 8, 16, 32, 64, 128, 300} {
			e, err := largeError(ctx, d, w, weights, quanttest.Normal(rng, rows*c.k, 1))
			if err == nil && !(e <= quanttest.MaxRelError) {
				err = fmt.Errorf("error of the product is %.1e", e)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%d×%d %s, %d rows: %w", c.k, c.n, c.format, rows, err))
			}
			fmt.Fprintf(out, "%d×%d %s, %d rows: error %.1e\n", c.k, c.n, c.format, rows, e)
		}
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

func largeError(ctx context.Context, d *cuda.Device, w quant.Weight, weights []float32, x []byte) (float64, error) {
	k, n := w.Rows(), w.Cols()
	rows := len(x) / 2 / k
	got, err := product(ctx, d, w, x, quant.PathAuto)
	if err != nil {
		return 0, err
	}
	in := make([]float32, rows*k)
	tensor.DecodeF16(in, x)
	var diff, norm float64
	for i := range rows {
		for j := 0; j < n; j += 61 {
			var want float64
			for r, v := range in[i*k:][:k] {
				want += float64(v) * float64(weights[r*n+j])
			}
			delta := float64(got[i*n+j]) - want
			diff += delta * delta
			norm += want * want
		}
	}
	return math.Sqrt(diff / norm), nil
}
