package cuda

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/kiln-build/kiln/quant"
	"github.com/kiln-build/kiln/tensor"
)

// Bench measures products with one matrix, from memory: copies of the weight that together exceed the cache are used in
// turn, as the layers of a model are. Times are of replayed CUDA graphs, without the cost of launching from the host.
type Bench struct {
	d       *Device
	weights []*Weight
	bytes   int64 // of the matrix as in the file
}

// defaultCacheBytes is more than the cache of any GPU holds.
const defaultCacheBytes = 200 << 20

// NewBench uploads copies of a matrix. cacheBytes 0 means 200 MiB.
func (d *Device) NewBench(ctx context.Context, m *quant.QMatrix, cacheBytes int64) (*Bench, error) {
	if cacheBytes == 0 {
		cacheBytes = defaultCacheBytes
	}
	first, err := d.Upload(ctx, m)
	if err != nil {
		return nil, err
	}
	b := &Bench{d: d, weights: []*Weight{first.(*Weight)}, bytes: m.Bytes()}
	for total := b.bytes; total < cacheBytes; total += b.bytes {
		c, err := b.weights[0].clone(d.main)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		b.weights = append(b.weights, c)
	}
	return b, nil
}

// Close gives the weights back.
func (b *Bench) Close() error {
	var errs []error
	for _, w := range slices.Backward(b.weights) { // the copies use tables of the first
		errs = append(errs, w.Close())
	}
	b.weights = nil
	return errors.Join(errs...)
}

// Timing is the speed of a product.
type Timing struct {
	Seconds        float64 `json:"seconds"` // median
	Best           float64 `json:"best_seconds"`
	BytesPerSecond float64 `json:"bytes_per_second"` // of the matrix as in the file
	FlopsPerSecond float64 `json:"flops_per_second"`
	Kernel         string  `json:"kernel"`
}

// Run measures a product with m rows. With tune all sensible ways are measured and the fastest is returned.
func (b *Bench) Run(ctx context.Context, m int, path quant.Path, tune bool) (Timing, error) {
	w := b.weights[0]
	chosen, err := b.d.choose(m, w, path, true)
	if err != nil {
		return Timing{}, err
	}
	plans := []plan{chosen}
	if tune {
		plans = b.d.candidates(m, w)
	}
	x, out, err := b.operands(m, w.Rows(), w.Cols())
	if err != nil {
		return Timing{}, err
	}
	defer x.Close()
	defer out.Close()
	var best Timing
	for _, p := range plans {
		if err := context.Cause(ctx); err != nil {
			return Timing{}, err
		}
		i := 0
		median, least, err := b.d.time(len(b.weights), func() error {
			i++
			call := product{m: m, w: b.weights[i%len(b.weights)], x: x.at, out: out.at}
			return b.d.main.run(call, p)
		})
		if err != nil {
			return Timing{}, fmt.Errorf("%v: %w", p, err)
		}
		if best.Kernel == "" || median < best.Seconds {
			best = Timing{Seconds: median, Best: least, Kernel: p.String()}
		}
	}
	return best.rates(b.bytes, m, w.Rows(), w.Cols()), nil
}

func (t Timing) rates(bytes int64, m, k, n int) Timing {
	t.BytesPerSecond = float64(bytes) / t.Seconds
	t.FlopsPerSecond = 2 * float64(m) * float64(k) * float64(n) / t.Seconds
	return t
}

// operands returns random activations and a result.
func (b *Bench) operands(m, k, n int) (x, out *Matrix, err error) {
	a, err := b.d.NewMatrix(m, k)
	if err != nil {
		return nil, nil, err
	}
	c, err := b.d.NewMatrix(m, n)
	if err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	rng := rand.New(rand.NewPCG(3, 4))
	values, half := make([]float32, m*k), make([]byte, 2*m*k)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	tensor.EncodeF16(half, values)
	return a.(*Matrix), c.(*Matrix), a.CopyFrom(half)
}

// RunBLAS measures the dense product of the same shape with cuBLAS.
func (b *Bench) RunBLAS(blas *BLAS, m int) (Timing, error) {
	k, n := b.weights[0].Rows(), b.weights[0].Cols()
	x, out, err := b.operands(m, k, n)
	if err != nil {
		return Timing{}, err
	}
	defer x.Close()
	defer out.Close()
	size := 2 * int64(k) * int64(n)
	dense := make([]*Matrix, max(1, int(defaultCacheBytes/size)))
	for i := range dense {
		w, err := b.d.NewMatrix(k, n)
		if err != nil {
			return Timing{}, err
		}
		defer w.Close()
		if err := b.d.main.Dequantize(w, b.weights[0]); err != nil {
			return Timing{}, err
		}
		dense[i] = w.(*Matrix)
	}
	i := 0
	median, least, err := b.d.time(len(dense), func() error {
		i++
		return b.d.do(func() error { return blas.gemm(out.at, x.at, dense[i%len(dense)].at, m, n, k) })
	})
	return Timing{Seconds: median, Best: least, Kernel: "cuBLAS"}.rates(size, m, k, n), err
}

// time returns the median and the least time of one call of f, which is recorded for a multiple of count calls.
func (d *Device) time(count int, f func() error) (median, least float64, err error) {
	if err := errors.Join(f(), d.Synchronize()); err != nil {
		return 0, 0, err
	}
	calls := count * max(1, (20+count-1)/count)
	err = d.do(func() (err error) {
		graph, err := d.drv.record(d.main.handle, func() error {
			for range calls {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.drv.destroyExec(graph)) }()
		start, err := d.drv.newEvent()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.drv.destroyEvent(start)) }()
		end, err := d.drv.newEvent()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.drv.destroyEvent(end)) }()
		var times []float64
		for total := 0.0; len(times) < 5 || total < 0.006 && len(times) < 40; {
			err := errors.Join(d.drv.recordEvent(start, d.main.handle), d.drv.replay(graph, d.main.handle), d.drv.recordEvent(end, d.main.handle))
			if err != nil {
				return err
			}
			seconds, err := d.drv.elapsed(start, end)
			if err != nil {
				return err
			}
			total += seconds
			times = append(times, seconds/float64(calls))
		}
		times = times[1:] // the first warms up
		slices.Sort(times)
		median, least = times[len(times)/2], times[0]
		return nil
	})
	return median, least, err
}

// copyArgs is the structure Copy of kernels/pack.cu.
type copyArgs struct {
	from, to uintptr
	count    uint64
}

// CopyBandwidth returns the bytes that a large copy within the device's memory reads and writes in a second.
func (d *Device) CopyBandwidth() (float64, error) {
	const bytes = 1 << 30
	var from, to uintptr
	err := d.do(func() (err error) {
		if from, err = d.drv.alloc(bytes); err != nil {
			return err
		}
		to, err = d.drv.alloc(bytes)
		return errors.Join(err, d.drv.clear(from, bytes, d.main.handle))
	})
	defer func() {
		_ = d.do(func() error { return errors.Join(d.drv.free(from), d.drv.free(to)) })
	}()
	if err != nil {
		return 0, err
	}
	median, _, err := d.time(1, func() error {
		args := &copyArgs{from, to, bytes / 16}
		return d.do(func() error {
			return d.main.launch("kiln_copy", [3]uint32{uint32(16 * d.info.Multiprocessors), 1, 1}, 256, 0, unsafe.Pointer(args), 0)
		})
	})
	return 2 * bytes / median, err
}
