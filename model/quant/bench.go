package quant

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kiln-build/kiln/model/quant/internal/kernels"
	"github.com/kiln-build/kiln/model/tensor"
)

// BenchmarkOptions say what a [Benchmark] multiplies with. The zero value is a matrix of 4096 rows and columns in 4 bits.
type BenchmarkOptions struct {
	// Rows is K, Cols is N. 0 means 4096.
	Rows, Cols int
	// Bits is the width of the codes. 0 means 4.
	Bits int
	// GroupRows is the number of rows of a group. 0 means 128.
	GroupRows int
	// CacheBytes is more than what the caches of the device hold. So many bytes of weights are used in turn, as in a
	// model with many layers, and each comes from memory. 0 means 256 MiB; 1 means that one matrix is used over and
	// over.
	CacheBytes int64
}

// Benchmark measures products with random EXL2 matrices of one shape.
type Benchmark struct {
	backend Backend
	rows    int
	cols    int
	bytes   int64
	weights []Weight
	next    int
}

// NewBenchmark brings matrices to a backend. Close gives their memory back.
func NewBenchmark(ctx context.Context, b Backend, opts BenchmarkOptions) (*Benchmark, error) {
	for _, o := range []struct {
		value    *int
		fallback int
	}{{&opts.Rows, 4096}, {&opts.Cols, 4096}, {&opts.Bits, 4}, {&opts.GroupRows, 128}} {
		if *o.value == 0 {
			*o.value = o.fallback
		}
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 256 << 20
	}
	if opts.Cols < 0 || opts.Cols%32 != 0 || opts.Cols > maxDimension {
		return nil, fmt.Errorf("benchmark: %d columns: want a multiple of 32", opts.Cols)
	}
	groups, err := MixGroups(opts.Rows, Share{Bits: opts.Bits, GroupRows: opts.GroupRows})
	if err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	m := randomEXL2(groups, opts.Rows, opts.Cols)
	out := &Benchmark{backend: b, rows: opts.Rows, cols: opts.Cols, bytes: m.Bytes()}
	for total := int64(0); total < opts.CacheBytes; total += m.Bytes() {
		w, err := b.Upload(ctx, m)
		if err != nil {
			out.Close()
			return nil, fmt.Errorf("benchmark: %w", err)
		}
		out.weights = append(out.weights, w)
	}
	return out, nil
}

// randomEXL2 returns a matrix of random codes with scales of ordinary size, in natural order.
func randomEXL2(groups []Group, rows, cols int) *QMatrix {
	rng := rand.New(rand.NewPCG(1, 2))
	m := &QMatrix{format: EXL2, rows: rows, cols: cols, groups: groups}
	packed := 0
	for _, g := range groups {
		m.starts = append(m.starts, packed)
		m.scaleMax = append(m.scaleMax, tensor.Float16FromFloat32(0.002+0.048*rng.Float32()))
		packed += g.Rows / 32 * g.Bits
	}
	fill := func(n int) []uint32 {
		words := make([]uint32, n)
		for i := range words {
			words[i] = rng.Uint32()
		}
		return words
	}
	m.words, m.scaleCodes = fill(packed*cols), fill(len(groups)*cols/8)
	m.setScales(1)
	return m
}

// Close gives the memory of the weights back.
func (b *Benchmark) Close() {
	for _, w := range b.weights {
		_ = w.Close()
	}
	b.weights = nil
}

// Measurement is the speed of a product.
type Measurement struct {
	// Seconds is the time of the fastest product and Median that of the one in the middle.
	Seconds float64 `json:"seconds"`
	Median  float64 `json:"median_seconds"`
	Count   int     `json:"products"`
	// BytesPerSecond are the quantized bytes of the matrix over Seconds.
	BytesPerSecond float64 `json:"bytes_per_second"`
	// FlopsPerSecond counts 2·M·K·N operations.
	FlopsPerSecond float64 `json:"flops_per_second"`
}

// Bytes returns the quantized bytes of one matrix.
func (b *Benchmark) Bytes() int64 { return b.bytes }

// Run multiplies m rows of activations with the matrices in turn for about the given time, at least three times.
func (b *Benchmark) Run(ctx context.Context, m int, d time.Duration, opts GemmOptions) (Measurement, error) {
	x, err := b.backend.NewMatrix(m, b.rows)
	if err != nil {
		return Measurement{}, fmt.Errorf("benchmark: %w", err)
	}
	defer x.Close()
	dst, err := b.backend.NewMatrix(m, b.cols)
	if err != nil {
		return Measurement{}, fmt.Errorf("benchmark: %w", err)
	}
	defer dst.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	values := make([]float32, m*b.rows)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	half := make([]byte, 2*len(values))
	tensor.EncodeF16(half, values)
	if err := x.CopyFrom(half); err != nil {
		return Measurement{}, fmt.Errorf("benchmark: %w", err)
	}
	// The result is read within the measured time: a backend may compute in the background.
	last := make([]byte, 2*m*b.cols)
	product := func() error {
		w := b.weights[b.next%len(b.weights)]
		b.next++
		if err := b.backend.Gemm(ctx, dst, x, w, opts); err != nil {
			return err
		}
		return dst.CopyTo(last)
	}
	if err := product(); err != nil {
		return Measurement{}, fmt.Errorf("benchmark: %w", err)
	}
	var times []float64
	for start := time.Now(); time.Since(start) < d || len(times) < 3; {
		begin := time.Now()
		if err := product(); err != nil {
			return Measurement{}, fmt.Errorf("benchmark: %w", err)
		}
		times = append(times, time.Since(begin).Seconds())
	}
	slices.Sort(times)
	best := times[0]
	return Measurement{
		Seconds: best, Median: times[len(times)/2], Count: len(times),
		BytesPerSecond: float64(b.bytes) / best,
		FlopsPerSecond: 2 * float64(m) * float64(b.rows) * float64(b.cols) / best,
	}, nil
}

// ReadBandwidth returns how many bytes a second this machine reads from main memory with a number of threads (0 means
// GOMAXPROCS). It reads 32 MiB at a time, in turn from 256 MiB, for about the given time; the fastest counts.
func ReadBandwidth(ctx context.Context, threads int, d time.Duration) (float64, error) {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	const part, parts = 32 << 20 / 4, 8
	words := make([]uint32, parts*part)
	for i := range words {
		words[i] = uint32(i) // pages that were never written to are all the same one
	}
	set := kernels.Best()
	best := 0.0
	start := time.Now()
	for i := 0; time.Since(start) < d || i < parts; i++ {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		from := words[i%parts*part:][:part]
		begin := time.Now()
		var group sync.WaitGroup
		for t := range threads {
			group.Go(func() { set.Read(from[part*t/threads : part*(t+1)/threads]) })
		}
		group.Wait()
		best = max(best, 4*part/time.Since(begin).Seconds())
	}
	return best, nil
}
