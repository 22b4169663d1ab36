package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/model/exl2"
)

func (a *app) modelDiffCommand(links *exl2.Links) *cobra.Command {
	var asJSON, all bool
	var opts exl2.DiffOptions
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Say what differs between two models: tensors, widths, configuration, other files",
		Long: `Compares two models in safetensors files, quantized or not: which tensors only one has, which
have another type, shape or content, the widths of quantized layers, config.json by value, and the
other files. How tensors are divided into shards does not matter. Exit code 1 means that something
differs.`,
		Example: "  kiln model diff llama-3-8b-4.0bpw llama-3-8b-5.0bpw --structure",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, dir := range args {
				if _, err := os.Stat(dir); err != nil {
					return err
				}
			}
			progress := ui.NewProgress(a.stderr, a.err, filepath.Base(args[0]))
			opts.Progress = func(p exl2.Progress) { progress.Set(p.Done, p.Total) }
			opts.Links = *links
			d, err := exl2.Diff(cmd.Context(), args[0], args[1], opts)
			progress.Close()
			if err != nil {
				return err
			}
			if asJSON {
				err = a.printJSON(d)
			} else {
				err = a.printDiff(d, opts.Structure, all)
			}
			if err != nil || d.Same() {
				return err
			}
			return rowsFailedError{fmt.Errorf("%s and %s differ", args[0], args[1])}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&all, "all", false, "print every difference instead of the first 20 of each kind")
	cmd.Flags().BoolVar(&opts.Structure, "structure", false, "compare names, types, shapes and widths only: other weights are not noticed")
	return cmd
}

func (a *app) printDiff(d *exl2.Difference, structure, all bool) error {
	section := func(title string, n int, headings []string, row func(i int) []string) error {
		if n == 0 {
			return nil
		}
		show := n
		if show > 20 && !all {
			show = 20
		}
		fmt.Fprintf(a.stdout, "%s\n", title)
		table := ui.NewTable(headings...)
		for i := range show {
			table.Add(row(i)...)
		}
		if err := table.Write(a.stdout, a.out); err != nil {
			return err
		}
		if n > show {
			fmt.Fprintf(a.stdout, "and %d more (--all prints them)\n", n-show)
		}
		_, err := fmt.Fprintln(a.stdout)
		return err
	}
	// The tensors of a layer with other widths all differ; the layer says it.
	other := map[string]bool{}
	for _, w := range d.Widths {
		other[w.Key] = true
	}
	var tensors []exl2.TensorDiff
	for _, t := range d.Tensors {
		if t.Layer == "" || !other[t.Layer] {
			tensors = append(tensors, t)
		}
	}
	err := section("Layers with other widths", len(d.Widths), []string{"LAYER", ">A", ">B", "WIDTHS OF A", "WIDTHS OF B"}, func(i int) []string {
		w := d.Widths[i]
		return []string{w.Key, layerBits(w.A), layerBits(w.B), layerWidths(w.A), layerWidths(w.B)}
	})
	if err == nil {
		err = section("Tensors", len(tensors), []string{"TENSOR", "A", "B", "DIFFERENCE"}, func(i int) []string {
			t := tensors[i]
			return []string{t.Name, tensorForm(t.A), tensorForm(t.B), tensorDifference(t)}
		})
	}
	if err == nil {
		err = section("config.json", len(d.Config), []string{"VALUE", "A", "B"}, func(i int) []string {
			return []string{d.Config[i].Path, orDash(d.Config[i].A), orDash(d.Config[i].B)}
		})
	}
	if err == nil {
		err = section("Other files", len(d.Files), []string{"FILE", ">A", ">B"}, func(i int) []string {
			return []string{d.Files[i].Name, fileSize(d.Files[i].ASize), fileSize(d.Files[i].BSize)}
		})
	}
	if err != nil {
		return err
	}
	verdict := fmt.Sprintf("%d of %s equal", d.Equal, units.Count(d.Compared, "common tensor"))
	if structure {
		verdict = units.Count(d.Compared, "tensor") + " of the same type and shape; contents not compared"
	}
	if d.Same() && !structure {
		verdict = "the same model: " + verdict
	}
	_, err = fmt.Fprintf(a.stdout, "%s (A: %s in %s; B: %s in %s)\n", verdict,
		units.Bytes(d.A.TensorBytes), units.Count(d.A.Shards, "file"), units.Bytes(d.B.TensorBytes), units.Count(d.B.Shards, "file"))
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func fileSize(n int64) string {
	if n < 0 {
		return "-"
	}
	return units.Bytes(n)
}

func layerBits(l *exl2.LayerForm) string {
	switch {
	case l == nil:
		return "-"
	case l.Problem != "":
		return "damaged"
	}
	return fmt.Sprintf("%.2f", l.BitsPerWeight)
}

func layerWidths(l *exl2.LayerForm) string {
	switch {
	case l == nil:
		return "-"
	case l.Problem != "":
		return l.Problem
	case len(l.Widths) == 0:
		return l.Format
	}
	var parts []string
	for _, w := range l.Widths {
		parts = append(parts, fmt.Sprintf("%d:%d", w.Bits, w.Rows))
	}
	return strings.Join(parts, " ")
}

func tensorForm(f *exl2.TensorForm) string {
	if f == nil {
		return "-"
	}
	return f.DType.String() + " " + strings.ReplaceAll(fmt.Sprint(f.Shape), " ", ",")
}

func tensorDifference(t exl2.TensorDiff) string {
	switch {
	case t.B == nil:
		return "only in A"
	case t.A == nil:
		return "only in B"
	case t.Elements == 0:
		return "type or shape"
	}
	text := fmt.Sprintf("%d of %d values, the first at %d", t.Elements, t.Of, t.First)
	if t.Largest > 0 {
		text += fmt.Sprintf(", by up to %.3g", t.Largest)
	}
	return text
}
