package exl2

import (
	"bufio"
	"fmt"
	"io"

	"github.com/kiln-build/kiln/internal/units"
)

// WriteText renders the plan for a person: what will be written, what will not, and why.
func (p *Plan) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s → %s (%s mode)\n", p.Architecture, p.Out, p.Mode)
	tensors, converted := 0, 0
	for _, s := range p.Shards {
		tensors += len(s.Tensors)
		for _, t := range s.Tensors {
			if t.Convert != nil {
				converted++
			}
		}
	}
	fmt.Fprintf(b, "  %d tensors, %s: %d converted to half precision, %d copied\n", tensors, units.Bytes(p.TensorBytes), converted, tensors-converted)
	fmt.Fprintf(b, "  %d files read, %s written\n", len(p.Inputs), units.Bytes(p.Bytes))
	for _, s := range p.Shards {
		fmt.Fprintf(b, "  %-40s %12s  %d tensors\n", s.Name, units.Bytes(s.Size), len(s.Tensors))
	}
	for _, f := range p.Files {
		fmt.Fprintf(b, "  %-40s %12s  %s\n", f.Name, units.Bytes(f.Size), f.Action)
	}
	if p.ManifestPath != "" {
		fmt.Fprintf(b, "  %-40s %12s  digests\n", p.ManifestPath, "")
	}
	for _, n := range p.Notices {
		fmt.Fprintf(b, "  note: %s\n", n)
	}
	if len(p.Dropped) > 0 {
		fmt.Fprintf(b, "  not part of the model: %d source tensors\n", len(p.Dropped))
		for _, name := range p.Dropped[:min(len(p.Dropped), 10)] {
			fmt.Fprintf(b, "    %s\n", name)
		}
		if more := len(p.Dropped) - 10; more > 0 {
			fmt.Fprintf(b, "    and %d more\n", more)
		}
	}
	return b.Flush()
}
