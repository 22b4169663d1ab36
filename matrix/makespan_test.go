package matrix_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/matrix"
)

// flavors plans so many rows that differ in one axis.
func flavors(t interface {
	Helper()
	Fatalf(string, ...any)
}, n int, resources string,
) *matrix.Plan {
	t.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("r%03d", i)
	}
	text := fmt.Sprintf(`packages:
  demo:
    versions: ["1.0"]
    local_version: "{flavor}"
    resources: {%s}
    matrix:
      - {os: debian-12, python: "3.11", axes: {flavor: [%s]}}
`, resources, strings.Join(names, ", "))
	file, list := matrix.Parse("packages.yml", []byte(text))
	if file == nil || list.HasErrors() {
		t.Fatalf("%v", list)
	}
	plan := file.Plan(matrix.Options{})
	if len(plan.Rows) != n {
		t.Fatalf("%d rows: %v", len(plan.Rows), plan.Findings)
	}
	return plan
}

func history(plan *matrix.Plan, minutes ...float64) *matrix.History {
	h := &matrix.History{Rows: map[string]matrix.Measured{}}
	for i, m := range minutes {
		h.Rows[plan.Rows[i].ID] = matrix.Measured{Seconds: m * 60, PeakMemoryBytes: 10 << 30}
	}
	return h
}

func TestMakespan(t *testing.T) {
	plan := flavors(t, 5, "jobs: 8")
	tests := []struct {
		name    string
		history *matrix.History
		cluster matrix.Cluster
		want    matrix.Makespan
	}{
		{"nothing known", nil, matrix.Cluster{Nodes: 2, CPUs: 32}, matrix.Makespan{Rows: 5}},
		{
			// Two at a time: 5+3+3 against 4+4 is 11; the bound 19/2.
			"longest first", history(plan, 3, 4, 5, 3, 4),
			matrix.Cluster{Nodes: 2, CPUs: 8},
			matrix.Makespan{Rows: 5, Measured: 5, Work: 9*time.Minute + 30*time.Second, Path: 5 * time.Minute, Longest: 11 * time.Minute},
		},
		{
			"one long row", history(plan, 60, 1, 1, 1, 1),
			matrix.Cluster{Nodes: 4, CPUs: 32},
			matrix.Makespan{Rows: 5, Measured: 5, Work: 4 * time.Minute, Path: time.Hour, Longest: time.Hour},
		},
		{
			// 12 GiB each, with the margin, so one at a time on a node of 20.
			"memory", history(plan, 10, 10, 10, 10, 10),
			matrix.Cluster{Nodes: 1, CPUs: 32, MemoryBytes: 20 << 30},
			matrix.Makespan{
				Rows: 5, Measured: 5, Work: 12*time.Minute + 30*time.Second, Memory: 30 * time.Minute, Path: 10 * time.Minute, Longest: 50 * time.Minute,
			},
		},
		{
			"guessed, and too large", history(plan, 10, 20),
			matrix.Cluster{Nodes: 5, CPUs: 4},
			matrix.Makespan{Rows: 5, Measured: 2, Guessed: 3, TooLarge: 5, Work: 15 * time.Minute, Path: 20 * time.Minute, Longest: 20 * time.Minute},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Cluster = tt.cluster
			if diff := cmp.Diff(tt.want, plan.Makespan(tt.history, tt.cluster)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMakespanBounds: no schedule is shorter than the bound, and starting the longest first is at most twice as long where only
// processors count and all rows ask for the same.
func TestMakespanBounds(t *testing.T) {
	plan := flavors(t, 40, "jobs: 4")
	rapid.Check(t, func(t *rapid.T) {
		minutes := rapid.SliceOfN(rapid.Float64Range(0.1, 300), 40, 40).Draw(t, "minutes")
		c := matrix.Cluster{Nodes: rapid.IntRange(1, 12).Draw(t, "nodes"), CPUs: 4 * rapid.IntRange(1, 4).Draw(t, "cpus")}
		m := plan.Makespan(history(plan, minutes...), c)
		if m.Longest < m.Bound()-time.Millisecond || m.Longest > 2*m.Bound() {
			t.Fatalf("%+v: bound %v", m, m.Bound())
		}
	})
}
