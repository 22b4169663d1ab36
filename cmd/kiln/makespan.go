package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/engine"
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

// defaultRowCPUs is what a row uses whose settings do not say it.
const defaultRowCPUs = 8

// planMakespan is how long the rows of a plan take on a cluster, from what earlier builds measured.
// It is an estimate of work, not a promise: times are those of the machine that measured them;
// waiting in queues, downloads of images, and compiles that rows share are not in it.
type planMakespan struct {
	engine.Makespan
	cluster engine.Cluster
	// rows is how many there are, measured how many of them were built before, and guessed how
	// many count with the mean of rows like them. The others count with nothing.
	rows, measured, guessed int
}

// makespan returns nil if the flags do not ask for it.
func (f *clusterFlags) makespan(plan *matrix.Plan, flags *planFlags) (*planMakespan, error) {
	if f.nodes == 0 && f.cpus == 0 {
		if f.memory != "" {
			return nil, errors.New("--node-memory goes with --nodes and --cpus")
		}
		return nil, nil //nolint:nilnil // not asked for
	}
	if f.nodes < 1 || f.cpus < 1 {
		return nil, errors.New("--nodes and --cpus are at least 1")
	}
	c := engine.Cluster{Nodes: f.nodes, CPUs: f.cpus}
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
	return estimateMakespan(plan, history, c), nil
}

func estimateMakespan(plan *matrix.Plan, history *matrix.History, c engine.Cluster) *planMakespan {
	m := &planMakespan{cluster: c, rows: len(plan.Rows)}
	var loads []engine.Load
	for i, e := range history.Expect(plan.Rows) {
		switch e.Basis {
		case matrix.Unknown:
			continue
		case matrix.MeanOf:
			m.guessed++
		case matrix.BuiltOnce:
			m.measured++
		}
		settings, _ := plan.Settings(plan.Rows[i].ID)
		loads = append(loads, engine.Load{
			Wall: time.Duration(e.Seconds * float64(time.Second)),
			CPUs: cmp.Or(settings.Resources.Jobs, min(defaultRowCPUs, c.CPUs)),
			// With a margin: not every build needs as much as the one that was measured.
			MemoryBytes: e.PeakMemoryBytes + e.PeakMemoryBytes/5,
		})
	}
	m.Makespan = engine.EstimateMakespan(loads, c)
	return m
}

// MarshalJSON writes seconds, and null for what is not known.
func (m *planMakespan) MarshalJSON() ([]byte, error) {
	type out struct {
		Nodes        int      `json:"nodes"`
		CPUs         int      `json:"cpus"`
		MemoryBytes  int64    `json:"memory_bytes,omitempty"`
		Rows         int      `json:"rows"`
		Measured     int      `json:"measured_rows"`
		Guessed      int      `json:"guessed_rows"`
		TooLarge     int      `json:"too_large_rows"`
		Bound        *float64 `json:"bound_seconds"`
		Work         *float64 `json:"work_bound_seconds"`
		CriticalPath *float64 `json:"critical_path_seconds"`
		Longest      *float64 `json:"longest_first_seconds"`
	}
	o := out{
		Nodes: m.cluster.Nodes, CPUs: m.cluster.CPUs, MemoryBytes: m.cluster.MemoryBytes,
		Rows: m.rows, Measured: m.measured, Guessed: m.guessed, TooLarge: m.TooLarge,
	}
	if m.measured > 0 {
		seconds := func(d time.Duration) *float64 { s := d.Seconds(); return &s }
		o.Bound, o.Work, o.CriticalPath, o.Longest = seconds(m.Bound()), seconds(m.Work), seconds(m.Path), seconds(m.Longest)
	}
	return json.Marshal(o)
}

// makespanText says what the estimate is, and what is not in it.
func makespanText(m *planMakespan) string {
	where := fmt.Sprintf("on %s with %s each", units.Count(m.cluster.Nodes, "machine"), units.Count(m.cluster.CPUs, "processor"))
	if m.measured == 0 {
		return where + ": unknown until rows have been built\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: estimated %s, longest rows first; not less than %s (the work of all %s, the longest row %s)\n",
		where, ui.Duration(m.Longest), ui.Duration(m.Bound()), ui.Duration(max(m.Work, m.Memory)), ui.Duration(m.Path))
	basis := fmt.Sprintf("%d of %s measured", m.measured, units.Count(m.rows, "row"))
	if m.guessed > 0 {
		basis += fmt.Sprintf(", %d taken for the mean of others", m.guessed)
	}
	if unknown := m.rows - m.measured - m.guessed; unknown > 0 {
		basis += fmt.Sprintf(", %d unknown and not in it", unknown)
	}
	if m.TooLarge > 0 {
		basis += fmt.Sprintf(", %d larger than a machine", m.TooLarge)
	}
	fmt.Fprintf(&b, "  from %s, as long as they took where they were measured; without waiting in queues and without what rows share\n", basis)
	return b.String()
}
