package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

// measurement is one line of the table.
type measurement struct {
	K      int         `json:"k"`
	N      int         `json:"n"`
	Format string      `json:"format"`
	M      int         `json:"m"`
	Kiln   cuda.Timing `json:"kiln"`
	// CopyFraction is the rate at which the quantized bytes are read over that of a copy.
	CopyFraction float64      `json:"copy_fraction"`
	BLAS         *cuda.Timing `json:"cublas,omitempty"`
	// DenseFraction is the rate of arithmetic over the best that cuBLAS reaches in the same run, 0
	// without cuBLAS.
	DenseFraction float64 `json:"dense_fraction,omitempty"`
	// Ways are all that were measured, with --tune.
	Ways []cuda.Timing `json:"ways,omitempty"`
}

type benchReport struct {
	Made          time.Time     `json:"made"`
	DriverVersion int           `json:"driver_version"` // 13000 for CUDA 13.0
	Device        cuda.Info     `json:"device"`
	CopyBandwidth float64       `json:"copy_bytes_per_second"`
	DenseFlops    float64       `json:"dense_flops_per_second,omitempty"` // the best of cuBLAS
	Measurements  []measurement `json:"measurements"`
}

type benchFlags struct {
	device  deviceFlags
	json    bool
	tune    bool
	shapes  []string
	rows    []int
	formats []string
	blas    string
	noBLAS  bool
	report  string
}

func newBench() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure products with random matrices",
		Long: `Bench measures products with random matrices that come from memory, not from the cache. Formats are exl2-B for
one width of B bits in groups of 128 rows, exl2-8/5/4 for a mixture with a tenth in each width but the last, and gptq.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.device.add(c)
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
	c.Flags().BoolVar(&f.tune, "tune", false, "measure all ways to run a kernel and show the fastest")
	c.Flags().StringSliceVar(&f.shapes, "shape", []string{"4096x4096", "4096x14336", "14336x4096", "8192x8192", "8192x28672"}, "K×N of the matrices")
	c.Flags().IntSliceVar(&f.rows, "m", []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096}, "rows of activations")
	c.Flags().StringSliceVar(&f.formats, "format", []string{"exl2-4"}, "formats of the matrices")
	c.Flags().StringVar(&f.blas, "cublas", "", "path of libcublas (default: where the loader finds it)")
	c.Flags().StringVar(&f.report, "report", "", "file that gets the JSON too")
	c.Flags().BoolVar(&f.noBLAS, "no-cublas", false, "leave out cuBLAS")
	return c
}

func (f *benchFlags) run(c *cobra.Command) error {
	d, err := f.device.open()
	if err != nil {
		return err
	}
	defer d.Close()
	var blas *cuda.BLAS
	if !f.noBLAS {
		blas, err = d.NewBLAS(f.blas)
		switch {
		case errors.Is(err, cuda.ErrNotSupported) && f.blas == "":
			fmt.Fprintln(c.ErrOrStderr(), "without cuBLAS:", err)
		case err != nil:
			return err
		default:
			defer blas.Close()
		}
	}
	report := benchReport{Made: time.Now().UTC().Truncate(time.Second), Device: d.Info()}
	if _, report.DriverVersion, err = cuda.Probe(); err != nil {
		return err
	}
	if blas != nil {
		if report.DenseFlops, err = d.DenseFlops(blas); err != nil {
			return err
		}
	}
	if report.CopyBandwidth, err = d.CopyBandwidth(); err != nil {
		return err
	}
	out := c.OutOrStdout()
	if !f.json {
		fmt.Fprintf(out, "%s, driver for CUDA %d.%d, %s\ncopy %.0f GB/s, cuBLAS %.0f TFLOP/s\n", d.Name(), report.DriverVersion/1000,
			report.DriverVersion%1000/10, report.Made.Format(time.RFC3339), report.CopyBandwidth/1e9, report.DenseFlops/1e12)
		fmt.Fprintf(out, "%5s %5s %-10s %5s %9s %7s %8s %6s %7s %9s %6s\n", "K", "N", "format", "m", "µs", "GB/s", "TFLOP/s", "% copy", "% dense", "cuBLAS µs", "ratio")
	}
	for _, shape := range f.shapes {
		k, n, err := parseShape(shape)
		if err != nil {
			return err
		}
		for _, format := range f.formats {
			one := func(m measurement) {
				m.K, m.N, m.Format = k, n, format
				m.CopyFraction = m.Kiln.BytesPerSecond / report.CopyBandwidth
				if report.DenseFlops > 0 {
					m.DenseFraction = m.Kiln.FlopsPerSecond / report.DenseFlops
				}
				report.Measurements = append(report.Measurements, m)
				if !f.json {
					m.print(out, f.tune)
				}
			}
			if err := f.measure(c.Context(), d, blas, k, n, format, one); err != nil {
				return fmt.Errorf("%s, %s: %w", shape, format, err)
			}
		}
	}
	if f.report != "" {
		var text bytes.Buffer
		if err := writeJSON(&text, report); err != nil {
			return err
		}
		if err := fsx.WriteFile(f.report, text.Bytes(), 0o666); err != nil {
			return err
		}
	}
	if f.json {
		return writeJSON(out, report)
	}
	return nil
}

func (m measurement) print(out io.Writer, tune bool) {
	fmt.Fprintf(out, "%5d %5d %-10s %5d %9.2f %7.0f %8.1f %5.0f%%", m.K, m.N, m.Format, m.M,
		m.Kiln.Seconds*1e6, m.Kiln.BytesPerSecond/1e9, m.Kiln.FlopsPerSecond/1e12, 100*m.CopyFraction)
	if m.BLAS != nil {
		fmt.Fprintf(out, " %6.0f%% %9.2f %6.2f", 100*m.DenseFraction, m.BLAS.Seconds*1e6, m.BLAS.Seconds/m.Kiln.Seconds)
	}
	if tune {
		fmt.Fprintf(out, "  %s", m.Kiln.Kernel)
	}
	fmt.Fprintln(out)
}

func (f *benchFlags) measure(ctx context.Context, d *cuda.Device, blas *cuda.BLAS, k, n int, format string, one func(measurement)) error {
	m, err := randomMatrix(k, n, format)
	if err != nil {
		return err
	}
	b, err := d.NewBench(ctx, m, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	for _, rows := range f.rows {
		line := measurement{M: rows}
		var ways []cuda.Timing
		if line.Kiln, ways, err = b.Run(ctx, rows, quant.PathAuto, f.tune); err != nil {
			return err
		}
		if f.tune {
			line.Ways = ways
		}
		if blas != nil {
			t, err := b.RunBLAS(blas, rows)
			if err != nil {
				return err
			}
			line.BLAS = &t
		}
		one(line)
	}
	return nil
}

func parseShape(s string) (k, n int, err error) {
	a, b, ok := strings.Cut(strings.ReplaceAll(s, "×", "x"), "x")
	if ok {
		k, err = strconv.Atoi(a)
	}
	if ok && err == nil {
		n, err = strconv.Atoi(b)
	}
	if !ok || err != nil || k <= 0 || n <= 0 || k%32 != 0 || n%32 != 0 {
		return 0, 0, fmt.Errorf("shape %q: want K×N, both multiples of 32", s)
	}
	return k, n, nil
}

// randomMatrix returns a matrix of a format as the flag --format names it.
func randomMatrix(k, n int, format string) (*quant.QMatrix, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	if format == "gptq" {
		return quant.LoadGPTQ(quanttest.GPTQ(rng, k, n, 4, 128, false), "", quant.GPTQOptions{})
	}
	widths, ok := strings.CutPrefix(format, "exl2-")
	if !ok {
		return nil, fmt.Errorf("format %q: want exl2-… or gptq", format)
	}
	var shares []quant.Share
	parts := strings.Split(widths, "/")
	for i, part := range parts {
		bits, err := strconv.Atoi(part)
		if err != nil {
			return nil, fmt.Errorf("format %q: %w", format, err)
		}
		share := quant.Share{Bits: bits, GroupRows: 128, Fraction: 0.1}
		if i == len(parts)-1 {
			share.Fraction = 1
		}
		shares = append(shares, share)
	}
	groups, err := quant.MixGroups(k, shares...)
	if err != nil {
		return nil, err
	}
	return quant.LoadEXL2(quanttest.EXL2(rng, n, groups), "", quant.EXL2Options{})
}
