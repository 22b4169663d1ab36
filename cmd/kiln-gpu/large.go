package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

// checkLarge compares products of the sizes that models have, which the suite has not, with float64
// in some places: there a product is split in other ways.
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
		weights := references(m, half)
		w, err := d.Upload(ctx, m)
		if err != nil {
			return err
		}
		for _, rows := range []int{1, 8, 16, 32, 64, 128, 300, 1024, 4096} {
			x := quanttest.Normal(rng, rows*c.k, 1)
			got, err := product(ctx, d, w, x, quant.PathAuto)
			if err != nil {
				return errors.Join(err, w.Close())
			}
			e := weights.error(got, x, make([]float32, c.n), quant.PathAuto)
			if !(e <= quanttest.MaxRelError) {
				errs = append(errs, fmt.Errorf("%d×%d %s, %d rows: error of the product is %.1e", c.k, c.n, c.format, rows, e))
			}
			fmt.Fprintf(out, "%d×%d %s, %d rows: error %.1e\n", c.k, c.n, c.format, rows, e)
		}
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}
