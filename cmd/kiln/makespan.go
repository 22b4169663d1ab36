package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
)

// clusterFlags ask how long a plan takes on a cluster.
type clusterFlags struct {
	nodes, cpus int
	memory      string
}

func (f *clusterFlags) register(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.nodes, "nodes", 0, "estimate how long the rows take on so many machines, with --cpus")
	cmd.Flags().IntVar(&f.cpus, "cpus", 0, "processors of one machine, for --nodes")
	cmd.Flags().StringVar(&f.memory, "node-memory", "", "memory of one machine, such as 256GiB, for --nodes (default: memory is not looked at)")
	cmd.MarkFlagsRequiredTogether("nodes", "cpus")
}

// makespan returns nil if nobody asked.
func (f *clusterFlags) makespan(plan *matrix.Plan, flags *planFlags) (*matrix.Makespan, error) {
	if f.nodes == 0 && f.cpus == 0 {
		if f.memory != "" {
			return nil, errors.New("--node-memory goes with --nodes and --cpus")
		}
		return nil, nil //nolint:nilnil // nobody asked
	}
	if f.nodes < 1 || f.cpus < 1 {
		return nil, errors.New("--nodes and --cpus are at least 1")
	}
	c := matrix.Cluster{Nodes: f.nodes, CPUs: f.cpus}
	if f.memory != "" {
		var err error
		if c.MemoryBytes, err = units.ParseBytes(f.memory); err != nil {
			return nil, fmt.Errorf("--node-memory: %w", err)
		}
	}
	history, err := flags.readHistory()
	if err != nil {
		return nil, err
	}
	m := plan.Makespan(history, c)
	return &m, nil
}

// makespanText says what the estimate is, and what is not in it.
func makespanText(m *matrix.Makespan) string {
	where := fmt.Sprintf("on %s with %s each", ui.Count(m.Cluster.Nodes, "machine"), ui.Count(m.Cluster.CPUs, "processor"))
	if m.Measured == 0 {
		return where + ": unknown until rows have been built\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: estimated %s, longest rows first; not less than %s (the work of all %s, the longest row %s)\n",
		where, ui.Duration(m.Longest), ui.Duration(m.Bound()), ui.Duration(max(m.Work, m.Memory)), ui.Duration(m.Path))
	basis := fmt.Sprintf("%d of %s measured", m.Measured, ui.Count(m.Rows, "row"))
	if m.Guessed > 0 {
		basis += fmt.Sprintf(", %d taken for the mean of others", m.Guessed)
	}
	if unknown := m.Rows - m.Measured - m.Guessed; unknown > 0 {
		basis += fmt.Sprintf(", %d unknown and not in it", unknown)
	}
	if m.TooLarge > 0 {
		basis += fmt.Sprintf(", %d larger than a machine", m.TooLarge)
	}
	fmt.Fprintf(&b, "  from %s, as long as they took where they were measured; without waiting in queues and without what rows share\n", basis)
	return b.String()
}
