package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
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
	_, err := fmt.Fprintf(a.stdout, "\n%s; widths are bits:rows\n", units.Count(len(layers), "layer"))
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
