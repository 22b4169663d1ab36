package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/run"
)

func noopJobs(n int) []engine.Job {
	jobs := make([]engine.Job, n)
	for i := range jobs {
		jobs[i] = engine.Job{ID: fmt.Sprintf("flash-attn-2.8.3-cu128-torch2.7-cp312-%05d", i), Digest: "sha256:0123456789abcdef"}
		jobs[i].Resources.MemoryBytes = int64(i%100+1) << 20
	}
	return jobs
}

func perRow(b *testing.B, rows int) {
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(rows), "µs/row")
}

// BenchmarkRun is what the engine adds to a row: scheduling, journal, folder, events.
func BenchmarkRun(b *testing.B) {
	for _, rows := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			jobs := noopJobs(rows)
			for b.Loop() {
				opts := engine.Options{Dir: b.TempDir(), Runner: engine.Local(nothing), MemoryBytes: 16 * gb, OnEvent: func(engine.Event) {}}
				if report, err := engine.Run(b.Context(), jobs, opts); err != nil || !report.OK() {
					b.Fatal(err)
				}
			}
			perRow(b, rows)
		})
	}
}

// BenchmarkReuse is a run in which everything is done already.
func BenchmarkReuse(b *testing.B) {
	const rows = 10_000
	jobs := noopJobs(rows)
	opts := engine.Options{Dir: b.TempDir(), Runner: engine.Local(nothing), MemoryBytes: 16 * gb}
	for i := 0; b.Loop(); i++ {
		if _, err := engine.Run(b.Context(), jobs, opts); err != nil {
			b.Fatal(err)
		}
	}
	perRow(b, rows)
}

// BenchmarkReplay reads the journal of 10,000 rows.
func BenchmarkReplay(b *testing.B) {
	const rows = 10_000
	opts := engine.Options{Dir: b.TempDir(), MemoryBytes: 16 * gb, Runner: engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		for _, stage := range []string{"fetch", "prepare", "compile", "repair", "audit", "test", "collect"} {
			a.Stage(stage)(nil)
		}
		return engine.Result{PeakMemoryBytes: 1 << 20}, nil
	})}
	if _, err := engine.Run(b.Context(), noopJobs(rows), opts); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(opts.Dir, "journal.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	for b.Loop() {
		if s, err := engine.ReadState(opts.Dir); err != nil || len(s.Jobs) != rows {
			b.Fatal(err)
		}
	}
	perRow(b, rows)
}

// BenchmarkChild is a process with its supervisor, against which the engine's part is small.
func BenchmarkChild(b *testing.B) {
	cmd := run.Cmd{Argv: []string{"/bin/true"}}
	for b.Loop() {
		if _, err := cmd.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
