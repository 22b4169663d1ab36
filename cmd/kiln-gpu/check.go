package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// maxGoldenError is the largest relative error of a product with a golden matrix.
const maxGoldenError = 3e-4

func newCheck() *cobra.Command {
	var (
		device  deviceFlags
		golden  string
		seed    uint64
		repeats int
		quick   bool
		kernels bool
	)
	c := &cobra.Command{
		Use:   "check",
		Short: "Compare the kernels with the reference and with results of exllamav2",
		Long: `Check runs the suite that every backend of kiln has to pass on a device, and what only a device can show: fresh random
matrices of every mixture of widths with 1 to 4096 rows of activations, products of the sizes that models have, recorded
graphs, repeated products and activations that are not finite. With --golden it also reconstructs the matrices in
exl2.safetensors and gptq.safetensors of that folder, bit for bit, and compares products with the recorded ones. --quick leaves
out what takes long under compute-sanitizer: large sizes, most repeats and the suite.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := device.open()
			if err != nil {
				return err
			}
			defer d.Close()
			fmt.Fprintln(c.OutOrStdout(), d.Name())
			if golden != "" {
				if err := checkGolden(c.Context(), c.OutOrStdout(), d, golden); err != nil {
					return err
				}
			}
			if kernels {
				return checkKernels(c.Context(), c.OutOrStdout(), d)
			}
			if seed == 0 {
				seed = uint64(time.Now().UnixNano())
			}
			if err := checkConditions(c.Context(), c.OutOrStdout(), d, seed, repeats, quick); err != nil || quick {
				return err
			}
			conformance(device.open)
			return nil
		},
	}
	device.add(c)
	c.Flags().StringVar(&golden, "golden", "", "folder with exl2.safetensors and gptq.safetensors")
	c.Flags().Uint64Var(&seed, "seed", 0, "of the fresh matrices (default: the time)")
	c.Flags().IntVar(&repeats, "repeats", 1000, "how often a product is repeated")
	c.Flags().BoolVar(&quick, "quick", false, "leave out what takes long under compute-sanitizer")
	c.Flags().BoolVar(&kernels, "each-kernel", false, "only two small products with each kernel, for compute-sanitizer's racecheck")
	return c
}

// checkConditions runs all checks with random matrices.
func checkConditions(ctx context.Context, out io.Writer, d *cuda.Device, seed uint64, repeats int, quick bool) error {
	if quick {
		const k, n = 1056, 544
		return errors.Join(
			checkWays(ctx, out, d, k, n),
			checkGraphs(ctx, out, d, k, n),
			checkRepeats(ctx, out, d, k, n, 3),
			checkSpecial(ctx, out, d, k, n))
	}
	const k, n = 4096, 4096
	return errors.Join(
		checkFresh(ctx, out, d, seed),
		checkLarge(ctx, out, d),
		checkGraphs(ctx, out, d, k, n),
		checkRepeats(ctx, out, d, k, n, repeats),
		checkSpecial(ctx, out, d, k, n))
}

// checkWays computes products in every way that there is, which checkFresh does with other
// matrices.
func checkWays(ctx context.Context, out io.Writer, d *cuda.Device, k, n int) error {
	for _, format := range []string{"exl2-4", "exl2-8/6/5/4/3/2", "gptq"} {
		m, err := randomMatrix(k, n, format)
		if err != nil {
			return err
		}
		w, err := d.Upload(ctx, m)
		if err != nil {
			return err
		}
		count, worst, err := d.CheckWays(ctx, w, 300)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d×%d %s, 300 rows in %d ways: differ by at most %.1e\n", k, n, format, count, worst)
	}
	return nil
}

// checkKernels computes two products with each kernel.
func checkKernels(ctx context.Context, out io.Writer, d *cuda.Device) error {
	const k, n = 416, 320
	for _, format := range []string{"exl2-4", "exl2-8/6/5/4/3/2", "gptq"} {
		m, err := randomMatrix(k, n, format)
		if err != nil {
			return err
		}
		w, err := d.Upload(ctx, m)
		if err != nil {
			return err
		}
		count, worst, err := d.CheckKernels(ctx, w)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d×%d %s in %d ways: differ by at most %.1e\n", k, n, format, count, worst)
	}
	return nil
}

// checkGolden compares with all cases in a folder.
func checkGolden(ctx context.Context, out io.Writer, d *cuda.Device, dir string) error {
	var errs []error
	for _, format := range []string{"exl2", "gptq"} {
		f, err := safetensors.Open(filepath.Join(dir, format+".safetensors"))
		if err != nil {
			return err
		}
		defer f.Close()
		for _, t := range f.Header().Tensors {
			key, ok := strings.CutSuffix(t.Name, ".recon")
			if !ok {
				continue
			}
			fused, rounded, err := checkCase(ctx, d, f, format, key)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", format, key, err))
				fmt.Fprintf(out, "%-5s %-28s %v\n", format, key, err)
				continue
			}
			fmt.Fprintf(out, "%-5s %-28s exact; errors of products %.1e, %.1e\n", format, key, fused, rounded)
		}
	}
	return errors.Join(errs...)
}

// checkCase returns the errors of products with unrounded and with rounded weights.
func checkCase(ctx context.Context, d *cuda.Device, f *safetensors.File, format, key string) (fused, rounded float64, err error) {
	src := quant.Files(f)
	read := func(suffix string) []byte {
		r, openErr := src.Open(key + "." + suffix)
		if openErr != nil {
			err = errors.Join(err, openErr)
			return nil
		}
		data, readErr := io.ReadAll(r)
		err = errors.Join(err, readErr)
		return data
	}
	x, recon, exact, dense := read("x"), read("recon"), read("y_exact"), read("y_recon")
	if err != nil {
		return 0, 0, err
	}
	var m *quant.QMatrix
	if format == "exl2" {
		m, err = quant.LoadEXL2(src, key, quant.EXL2Options{})
	} else {
		m, err = quant.LoadGPTQ(src, key, quant.GPTQOptions{})
	}
	if err != nil {
		return 0, 0, err
	}
	w, err := d.Upload(ctx, m)
	if err != nil {
		return 0, 0, err
	}
	defer w.Close()
	got, err := dequantize(d, d, w)
	if err != nil {
		return 0, 0, err
	}
	if at := firstDifference(got, recon); at >= 0 {
		return 0, 0, fmt.Errorf("reconstruction differs first at row %d, column %d", at/2/m.Cols(), at/2%m.Cols())
	}
	if fused, err = multiply(ctx, d, w, x, exact, quant.PathAuto); err != nil {
		return 0, 0, err
	}
	if rounded, err = multiply(ctx, d, w, x, dense, quant.PathReconstruct); err != nil {
		return 0, 0, err
	}
	if !(fused <= maxGoldenError && rounded <= maxGoldenError) {
		return 0, 0, fmt.Errorf("errors of products are %.1e and %.1e: want at most %.0e", fused, rounded, maxGoldenError)
	}
	return fused, rounded, nil
}

func dequantize(b quant.Backend, d dequantizer, w quant.Weight) ([]byte, error) {
	dense, err := b.NewMatrix(w.Rows(), w.Cols())
	if err != nil {
		return nil, err
	}
	defer dense.Close()
	out := make([]byte, 2*w.Rows()*w.Cols())
	if err := d.Dequantize(dense, w); err != nil {
		return nil, err
	}
	return out, dense.CopyTo(out)
}

// multiply returns ‖x·W − want‖ / ‖want‖.
func multiply(ctx context.Context, d *cuda.Device, w quant.Weight, x, want []byte, path quant.Path) (float64, error) {
	got, err := product(ctx, d, w, x, path)
	if err != nil {
		return 0, err
	}
	exact := make([]float32, len(got))
	tensor.DecodeF32(exact, want)
	var diff, norm float64
	for i, v := range exact {
		delta := float64(got[i]) - float64(v)
		diff += delta * delta
		norm += float64(v) * float64(v)
	}
	return math.Sqrt(diff / norm), nil
}

// product returns x·W. What is not written is NaN.
func product(ctx context.Context, d quant.Backend, w quant.Weight, x []byte, path quant.Path) ([]float32, error) {
	rows := len(x) / 2 / w.Rows()
	in, err := d.NewMatrix(rows, w.Rows())
	if err != nil {
		return nil, err
	}
	defer in.Close()
	dst, err := d.NewMatrix(rows, w.Cols())
	if err != nil {
		return nil, err
	}
	defer dst.Close()
	half := bytes.Repeat([]byte{0xFF, 0x7F}, rows*w.Cols())
	if err := errors.Join(in.CopyFrom(x), dst.CopyFrom(half)); err != nil {
		return nil, err
	}
	if err := d.Gemm(ctx, dst, in, w, quant.GemmOptions{Path: path}); err != nil {
		return nil, err
	}
	if err := dst.CopyTo(half); err != nil {
		return nil, err
	}
	got := make([]float32, len(half)/2)
	tensor.DecodeF16(got, half)
	return got, nil
}
