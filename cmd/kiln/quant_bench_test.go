package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-build/kiln/model/quant"
)

func TestQuantBenchmark(t *testing.T) {
	cpu, err := quant.NewCPU(quant.CPUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	flags := benchFlags{groupRows: 32, keepInCaches: true}
	b, err := flags.benchmark(t.Context(), cpu, [2]int{64, 96}, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	// 3 bits a weight, 4 a column and group, tables: the sizes of the tensors on disk.
	const bytes = 64*96*3/8 + 2*96/2 + 2*6 + 4*64
	for _, m := range []int{1, 9} {
		r, err := b.run(t.Context(), m, time.Millisecond, quant.GemmOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Count < 3 || r.Seconds <= 0 || r.Median < r.Seconds {
			t.Errorf("%d rows: %+v", m, r)
		}
		want := 2 * 64 * 96 * float64(m) / bytes
		if ratio := r.FlopsPerSecond / r.BytesPerSecond; ratio < 0.999*want || ratio > 1.001*want {
			t.Errorf("%d rows: %v operations for %v bytes", m, r.FlopsPerSecond, r.BytesPerSecond)
		}
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := b.run(ctx, 1, time.Hour, quant.GemmOptions{}); !errors.Is(err, cause) {
		t.Errorf("cancelled: error %v", err)
	}
	for _, shape := range [][2]int{{33, 32}, {32, 33}} {
		if _, err := flags.benchmark(t.Context(), cpu, shape, 4); err == nil {
			t.Errorf("%v: no error", shape)
		}
	}
}
