package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
)

func (a *app) quantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "quant",
		Short:   "Look into quantized matrices (EXL2, GPTQ), dequantize them, and measure products with them",
		Example: "  kiln quant inspect model-00001-of-00002.safetensors",
	}
	cmd.AddCommand(a.quantInspectCommand(), a.quantDequantizeCommand(), a.quantBenchCommand())
	return cmd
}

func (a *app) quantInspectCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "inspect FILE",
		Short:   "List the quantized layers of a safetensors file",
		Example: "  kiln quant inspect model.safetensors --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := safetensors.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			layers := quant.Inspect(file)
			var bad []error
			for _, l := range layers {
				bad = append(bad, l.Err)
			}
			if asJSON {
				if err := a.printJSON(map[string]any{"layers": layers}); err != nil {
					return err
				}
			} else if err := a.printLayers(layers); err != nil {
				return err
			}
			if err := errors.Join(bad...); err != nil {
				return rowsFailedError{err}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) printLayers(layers []quant.LayerInfo) error {
	if len(layers) == 0 {
		_, err := fmt.Fprintln(a.stdout, "No quantized layers.")
		return err
	}
	table := ui.NewTable("LAYER", "FORMAT", ">ROWS", ">COLUMNS", ">BITS", "WIDTHS", ">GROUPS", "ORDER", "BIAS")
	for _, l := range layers {
		var widths []string
		for _, w := range l.Widths {
			widths = append(widths, fmt.Sprintf("%d:%d", w.Bits, w.Rows))
		}
		order, bias := "natural", "-"
		if l.Permuted {
			order = "permuted"
		}
		if l.Bias {
			bias = "yes"
		}
		table.Add(l.Key, fmt.Sprint(l.Format), fmt.Sprint(l.Rows), fmt.Sprint(l.Cols), fmt.Sprintf("%.2f", l.BitsPerWeight),
			strings.Join(widths, " "), fmt.Sprint(l.Groups), order, bias)
	}
	if err := table.Write(a.stdout, a.out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "\n%s; widths are bits:rows\n", ui.Count(len(layers), "layer"))
	return err
}

func (a *app) quantDequantizeCommand() *cobra.Command {
	var opts quant.DequantizeOptions
	var out string
	cmd := &cobra.Command{
		Use:   "dequantize FILE",
		Short: "Write quantized layers in half precision",
		Long: `Writes the weight of every quantized layer, or of those given with --key, as F16 [K, N]:
bit for bit what exllamav2 reconstructs. EXL2 or GPTQ is recognised from the tensors.`,
		Example: "  kiln quant dequantize model.safetensors --key model.layers.0.self_attn.q_proj --out q.safetensors",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := safetensors.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			if err := quant.DequantizeFile(cmd.Context(), out, file, opts); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, "written to", out)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&opts.Keys, "key", nil, "only these layers")
	flags.StringVar(&out, "out", "", "the `file` to write (required)")
	flags.BoolVar(&opts.Transpose, "transpose", false, "write [N, K], the layout of a PyTorch Linear layer")
	flags.BoolVar(&opts.CopyOthers, "copy-others", false, "copy all other tensors of the file too")
	_ = cmd.MarkFlagRequired("out")
	return cmd
}

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
	quant.Measurement
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
			opts := quant.BenchmarkOptions{Rows: shape[0], Cols: shape[1], Bits: bits, GroupRows: f.groupRows}
			if f.keepInCaches {
				opts.CacheBytes = 1
			}
			b, err := quant.NewBenchmark(ctx, cpu, opts)
			if err != nil {
				return err
			}
			for _, m := range f.rows {
				r, err := b.Run(ctx, m, f.time, quant.GemmOptions{Path: paths[path]})
				if err != nil {
					b.Close()
					return err
				}
				rows = append(rows, benchRow{shape[0], shape[1], bits, m, r})
				table.Add(fmt.Sprint(shape[0]), fmt.Sprint(shape[1]), fmt.Sprint(bits), fmt.Sprint(m), fmt.Sprintf("%.3f ms", 1e3*r.Seconds),
					fmt.Sprintf("%.2f", r.BytesPerSecond/1e9), fmt.Sprintf("%.0f %%", 100*r.BytesPerSecond/read), fmt.Sprintf("%.1f", r.FlopsPerSecond/1e9))
			}
			b.Close()
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
