package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// benchFlags say what "quant bench" measures.
type benchFlags struct {
	shapes       []string
	rows, bits   []int
	groupRows    int
	cpu          quant.CPUOptions
	path         string
	time         time.Duration
	keepInCaches bool
	asJSON       bool
}

func (a *app) quantBenchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure products with quantized matrices on this processor",
		Long: `Multiplies random activations with random EXL2 matrices and prints the fastest product of
each size: the quantized bytes read in a second, also as a share of what this machine reads
from memory, and the operations in a second. Matrices of one shape are used in turn so that
their weights come from memory and not from a cache, as in a model.`,
		Example: "  kiln quant bench --shape 4096x14336 --m 1,8 --bits 4,3",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.quantBench(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.shapes, "shape", []string{"4096x4096", "4096x14336", "14336x4096"}, "rows and columns of the matrix, `KxN`")
	flags.IntSliceVar(&f.rows, "m", []int{1, 8, 64, 512}, "rows of activations")
	flags.IntSliceVar(&f.bits, "bits", []int{4}, "widths of the codes: 2, 3, 4, 5, 6 or 8")
	flags.IntVar(&f.groupRows, "group-rows", 128, "rows that share a scale")
	flags.IntVar(&f.cpu.Threads, "threads", 0, "threads to compute with (default: all processors)")
	flags.StringVar(&f.cpu.Kernels, "kernels", "", "one of "+strings.Join(quant.Features().Available, ", ")+" (default: the last)")
	flags.BoolVar(&f.cpu.Exact, "exact", false, "multiply with activations in half precision, never in integers")
	flags.StringVar(&f.path, "path", "auto", "auto, fused or reconstruct: whether weights are rounded to half precision")
	flags.DurationVar(&f.time, "time", 2*time.Second, "how long each size is measured")
	flags.BoolVar(&f.keepInCaches, "keep-in-caches", false, "use one matrix over and over")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// benchRow is one line of "quant bench".
type benchRow struct {
	K    int `json:"k"`
	N    int `json:"n"`
	Bits int `json:"bits"`
	M    int `json:"m"`
	measurement
}

func (a *app) quantBench(ctx context.Context, f benchFlags) error {
	paths := []quant.Path{quant.PathAuto, quant.PathFused, quant.PathReconstruct}
	path := slices.IndexFunc(paths, func(p quant.Path) bool { return p.String() == f.path })
	if path < 0 {
		return fmt.Errorf("no path %q: want auto, fused or reconstruct", f.path)
	}
	var shapes [][2]int
	for _, s := range f.shapes {
		k, n, ok := strings.Cut(s, "x")
		rows, err1 := strconv.Atoi(k)
		cols, err2 := strconv.Atoi(n)
		if !ok || err1 != nil || err2 != nil || rows <= 0 || cols <= 0 {
			return fmt.Errorf("shape %q: want rows and columns, as in 4096x14336", s)
		}
		shapes = append(shapes, [2]int{rows, cols})
	}
	for _, m := range f.rows {
		if m < 1 {
			return fmt.Errorf("%d rows of activations: want at least 1", m)
		}
	}
	cpu, err := quant.NewCPU(f.cpu)
	if err != nil {
		return err
	}
	read, err := quant.ReadBandwidth(ctx, f.cpu.Threads, f.time)
	if err != nil {
		return err
	}
	table := ui.NewTable(">ROWS", ">COLUMNS", ">BITS", ">M", ">TIME", ">GB/S", ">OF READ", ">GFLOP/S")
	var rows []benchRow
	for _, shape := range shapes {
		for _, bits := range f.bits {
			b, err := f.benchmark(ctx, cpu, shape, bits)
			if err != nil {
				return err
			}
			for _, m := range f.rows {
				r, err := b.run(ctx, m, f.time, quant.GemmOptions{Path: paths[path]})
				if err != nil {
					b.close()
					return err
				}
				rows = append(rows, benchRow{shape[0], shape[1], bits, m, r})
				table.Add(fmt.Sprint(shape[0]), fmt.Sprint(shape[1]), fmt.Sprint(bits), fmt.Sprint(m), fmt.Sprintf("%.3f ms", 1e3*r.Seconds),
					fmt.Sprintf("%.2f", r.BytesPerSecond/1e9), fmt.Sprintf("%.0f %%", 100*r.BytesPerSecond/read), fmt.Sprintf("%.1f", r.FlopsPerSecond/1e9))
			}
			b.close()
		}
	}
	if f.asJSON {
		return a.printJSON(map[string]any{
			"backend": cpu.Name(), "features": quant.Features(), "read_bytes_per_second": read, "results": rows,
		})
	}
	fmt.Fprintf(a.stdout, "%s; memory is read at %.1f GB/s\n\n", cpu.Name(), read/1e9)
	return table.Write(a.stdout, a.out)
}

// benchmark is a number of random EXL2 matrices of one shape.
type benchmark struct {
	backend quant.Backend
	matrix  *quant.QMatrix // all weights are made of it
	weights []quant.Weight
	next    int
}

// benchmark uploads one matrix so often that its copies are more than caches hold. Used in turn, as
// in a model with many layers, each comes from memory.
func (f *benchFlags) benchmark(ctx context.Context, backend quant.Backend, shape [2]int, bits int) (*benchmark, error) {
	if shape[1]%32 != 0 {
		return nil, fmt.Errorf("%d columns: want a multiple of 32", shape[1])
	}
	groups, err := quant.MixGroups(shape[0], quant.Share{Bits: bits, GroupRows: f.groupRows})
	if err != nil {
		return nil, err
	}
	b := &benchmark{backend: backend}
	if b.matrix, err = quant.LoadEXL2(randomEXL2(groups, shape[1]), "", quant.EXL2Options{}); err != nil {
		return nil, err
	}
	inTurn := int64(256 << 20)
	if f.keepInCaches {
		inTurn = 1
	}
	for total := int64(0); total < inTurn; total += b.matrix.Bytes() {
		w, err := backend.Upload(ctx, b.matrix)
		if err != nil {
			b.close()
			return nil, err
		}
		b.weights = append(b.weights, w)
	}
	return b, nil
}

// randomEXL2 returns the tensors of a matrix of n columns with random codes, in natural order.
func randomEXL2(groups []quant.Group, n int) quant.TensorMap {
	rng := rand.NewChaCha8([32]byte{})
	random := func(rows, cols int) quant.Tensor {
		t := quant.Tensor{DType: tensor.I32, Shape: []int64{int64(rows), int64(cols)}, Data: make([]byte, 4*rows*cols)}
		_, _ = rng.Read(t.Data) // never fails
		return t
	}
	var table, largest []byte
	packed := 0
	for _, g := range groups {
		table = binary.LittleEndian.AppendUint16(table, uint16(g.Bits))
		table = binary.LittleEndian.AppendUint16(table, uint16(packed))
		largest = binary.LittleEndian.AppendUint16(largest, uint16(tensor.Float16FromFloat32(0.02)))
		packed += g.Rows / 32 * g.Bits
	}
	count := int64(len(groups))
	return quant.TensorMap{
		"q_weight":    random(packed, n),
		"q_scale":     random(len(groups), n/8),
		"q_scale_max": {DType: tensor.F16, Shape: []int64{count}, Data: largest},
		"q_groups":    {DType: tensor.I16, Shape: []int64{2 * count}, Data: table},
	}
}

func (b *benchmark) close() {
	for _, w := range b.weights {
		_ = w.Close()
	}
}

// measurement is the speed of a product.
type measurement struct {
	// Seconds is the time of the fastest product and Median that of the one in the middle.
	Seconds float64 `json:"seconds"`
	Median  float64 `json:"median_seconds"`
	Count   int     `json:"products"`
	// BytesPerSecond are the quantized bytes of the matrix over Seconds.
	BytesPerSecond float64 `json:"bytes_per_second"`
	// FlopsPerSecond counts 2·M·K·N operations.
	FlopsPerSecond float64 `json:"flops_per_second"`
}

// run multiplies m rows of activations with the matrices in turn for about the given time, at least
// three times.
func (b *benchmark) run(ctx context.Context, m int, d time.Duration, opts quant.GemmOptions) (measurement, error) {
	k, n := b.matrix.Rows(), b.matrix.Cols()
	x, err := b.backend.NewMatrix(m, k)
	if err != nil {
		return measurement{}, err
	}
	defer x.Close()
	dst, err := b.backend.NewMatrix(m, n)
	if err != nil {
		return measurement{}, err
	}
	defer dst.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	values := make([]float32, m*k)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	half := make([]byte, 2*len(values))
	tensor.EncodeF16(half, values)
	if err := x.CopyFrom(half); err != nil {
		return measurement{}, err
	}
	// The first product is not measured: it allocates.
	var times []float64
	for start, i := time.Now(), 0; time.Since(start) < d || i < 4; i++ {
		w := b.weights[b.next%len(b.weights)]
		b.next++
		begin := time.Now()
		if err := b.backend.Gemm(ctx, dst, x, w, opts); err != nil {
			return measurement{}, err
		}
		if i > 0 {
			times = append(times, time.Since(begin).Seconds())
		}
	}
	slices.Sort(times)
	best := times[0]
	return measurement{
		Seconds: best, Median: times[len(times)/2], Count: len(times),
		BytesPerSecond: float64(b.matrix.Bytes()) / best,
		FlopsPerSecond: 2 * float64(m) * float64(k) * float64(n) / best,
	}, nil
}
