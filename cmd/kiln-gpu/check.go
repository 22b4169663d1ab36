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

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/quant"
	"github.com/kiln-build/kiln/quant/cuda"
	"github.com/kiln-build/kiln/safetensors"
	"github.com/kiln-build/kiln/tensor"
)

// maxGoldenError is the largest relative error of a product with a golden matrix.
const maxGoldenError = 3e-4

func newCheck() *cobra.Command {
	var (
		device deviceFlags
		golden string
	)
	c := &cobra.Command{
		Use:   "check",
		Short: "Compare the kernels with the reference and with results of exllamav2",
		Long: `Check runs the suite that every backend of kiln has to pass on a device. With --golden it also reconstructs the matrices
in exl2.safetensors and gptq.safetensors of that folder, bit for bit, and compares products with the recorded ones.`,
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
			if err := checkLarge(c.Context(), c.OutOrStdout(), d); err != nil {
				return err
			}
			conformance(device.open)
			return nil
		},
	}
	device.add(c)
	c.Flags().StringVar(&golden, "golden", "", "folder with exl2.safetensors and gptq.safetensors")
	return c
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
	got, err := dequantize(d, w)
	if err != nil {
		return 0, 0, err
	}
	if !bytes.Equal(got, recon) {
		at := 0
		for got[at] == recon[at] {
			at++
		}
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

func dequantize(d *cuda.Device, w quant.Weight) ([]byte, error) {
	dense, err := d.NewMatrix(w.Rows(), w.Cols())
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
func product(ctx context.Context, d *cuda.Device, w quant.Weight, x []byte, path quant.Path) ([]float32, error) {
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
