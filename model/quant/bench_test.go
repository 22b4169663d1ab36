package quant_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-build/kiln/model/quant"
)

func TestBenchmark(t *testing.T) {
	cpu := newCPU(t, quant.CPUOptions{})
	b, err := quant.NewBenchmark(t.Context(), cpu, quant.BenchmarkOptions{Rows: 64, Cols: 96, Bits: 3, GroupRows: 32, CacheBytes: 1 << 14})
	if err != nil {
		t.Fatal(err)
	}
	// 3 bits a weight, 4 a column and group, tables: the sizes of the tensors on disk.
	if want := int64(64*96*3/8 + 2*96/2 + 2*6 + 4*64); b.Bytes() != want {
		t.Errorf("%d bytes, want %d", b.Bytes(), want)
	}
	for _, m := range []int{1, 9} {
		r, err := b.Run(t.Context(), m, time.Millisecond, quant.GemmOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Count < 3 || r.Seconds <= 0 || r.Median < r.Seconds {
			t.Errorf("%d rows: %+v", m, r)
		}
		if ratio := r.FlopsPerSecond / r.BytesPerSecond * float64(b.Bytes()); ratio < 2*64*96*float64(m)*0.999 || ratio > 2*64*96*float64(m)*1.001 {
			t.Errorf("%d rows: %v operations for %v bytes", m, r.FlopsPerSecond, r.BytesPerSecond)
		}
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := b.Run(ctx, 1, time.Hour, quant.GemmOptions{}); !errors.Is(err, cause) {
		t.Errorf("cancelled: error %v", err)
	}
	if _, err := quant.ReadBandwidth(ctx, 1, time.Hour); !errors.Is(err, cause) {
		t.Errorf("reading, cancelled: error %v", err)
	}
	b.Close()
	for _, opts := range []quant.BenchmarkOptions{{Rows: 33}, {Cols: 33}, {Cols: -32}, {Bits: 7}, {GroupRows: 20}} {
		if _, err := quant.NewBenchmark(t.Context(), cpu, opts); err == nil {
			t.Errorf("%+v: no error", opts)
		}
	}
	if speed, err := quant.ReadBandwidth(t.Context(), 0, time.Millisecond); err != nil || speed <= 0 {
		t.Errorf("memory is read at %v bytes a second, error %v", speed, err)
	}
}
