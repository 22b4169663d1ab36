package engine_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/engine"
)

func loads(cpus int, minutes ...float64) []engine.Load {
	var out []engine.Load
	for _, m := range minutes {
		out = append(out, engine.Load{Wall: time.Duration(m * float64(time.Minute)), CPUs: cpus, MemoryBytes: 12 << 30})
	}
	return out
}

func TestMakespan(t *testing.T) {
	for name, tt := range map[string]struct {
		loads   []engine.Load
		cluster engine.Cluster
		want    engine.Makespan
	}{
		"nothing": {nil, engine.Cluster{Nodes: 2, CPUs: 32}, engine.Makespan{}},
		// Two at a time: 5+3+3 against 4+4 is 11; the bound 19/2.
		"longest first": {
			loads(8, 3, 4, 5, 3, 4),
			engine.Cluster{Nodes: 2, CPUs: 8},
			engine.Makespan{Work: 9*time.Minute + 30*time.Second, Path: 5 * time.Minute, Longest: 11 * time.Minute},
		},
		"one long": {
			loads(8, 60, 1, 1, 1, 1),
			engine.Cluster{Nodes: 4, CPUs: 32},
			engine.Makespan{Work: 4 * time.Minute, Path: time.Hour, Longest: time.Hour},
		},
		// 12 GiB each, so one at a time on a node of 20.
		"memory": {
			loads(8, 10, 10, 10, 10, 10),
			engine.Cluster{Nodes: 1, CPUs: 32, MemoryBytes: 20 << 30},
			engine.Makespan{Work: 12*time.Minute + 30*time.Second, Memory: 30 * time.Minute, Path: 10 * time.Minute, Longest: 50 * time.Minute},
		},
		"too large": {
			loads(8, 10, 20, 15, 15, 15),
			engine.Cluster{Nodes: 5, CPUs: 4},
			engine.Makespan{TooLarge: 5, Work: 15 * time.Minute, Path: 20 * time.Minute, Longest: 20 * time.Minute},
		},
	} {
		if diff := cmp.Diff(tt.want, engine.EstimateMakespan(tt.loads, tt.cluster)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestMakespanBounds: no schedule is shorter than the bound, and starting the longest first is at
// most twice as long where only processors count and all loads ask for the same.
func TestMakespanBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minutes := rapid.SliceOfN(rapid.Float64Range(0.1, 300), 40, 40).Draw(t, "minutes")
		c := engine.Cluster{Nodes: rapid.IntRange(1, 12).Draw(t, "nodes"), CPUs: 4 * rapid.IntRange(1, 4).Draw(t, "cpus")}
		m := engine.EstimateMakespan(loads(4, minutes...), c)
		if m.Longest < m.Bound()-time.Millisecond || m.Longest > 2*m.Bound() {
			t.Fatalf("%+v: bound %v", m, m.Bound())
		}
	})
}
