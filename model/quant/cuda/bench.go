package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// Bench measures products with one matrix, from memory: copies of the weight that together exceed
// the cache are used in turn, as the layers of a model are. Times are of replayed CUDA graphs,
// without the cost of launching from the host.
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
	if err := b.fill(cacheBytes); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// maxCopies bounds the copies of a small weight, most of which a cache holds in a model too.
const maxCopies = 256

// fill makes copies of the first weight until all together have so many bytes.
func (b *Bench) fill(cacheBytes int64) error {
	for total := b.bytes; total < cacheBytes && len(b.weights) < maxCopies; total += b.bytes {
		c, err := b.weights[0].clone(b.d.main)
		if err != nil {
			return err
		}
		b.weights = append(b.weights, c)
	}
	return nil
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

// Run measures a product with m rows. With tune all sensible ways are measured; the fastest is
// returned, and all of them.
func (b *Bench) Run(ctx context.Context, m int, path quant.Path, tune bool) (best Timing, all []Timing, err error) {
	w := b.weights[0]
	chosen, err := w.plan(m, path, true, false)
	if err != nil {
		return Timing{}, nil, err
	}
	plans := []plan{chosen}
	if tune {
		plans = append(plans, b.d.candidates(m, w)...)
	}
	all, _, err = b.fastest(ctx, m, plans)
	if err != nil {
		return Timing{}, nil, err
	}
	for i := range all {
		all[i] = all[i].rates(b.bytes, m, w.Rows(), w.Cols())
	}
	return all[0], all, nil
}

// fastest measures all plans and returns their times, the least first, and its plan.
func (b *Bench) fastest(ctx context.Context, m int, plans []plan) (all []Timing, chosen plan, err error) {
	w := b.weights[0]
	x, out, err := b.operands(m, w.Rows(), w.Cols())
	if err != nil {
		return nil, chosen, err
	}
	defer x.Close()
	defer out.Close()
	lowest := 0.0
	for _, p := range plans {
		if err := context.Cause(ctx); err != nil {
			return nil, chosen, err
		}
		i := 0
		median, least, err := b.d.time(len(b.weights), func() error {
			i++
			call := product{m: m, w: b.weights[i%len(b.weights)], x: x.at, out: out.at}
			return b.d.main.run(call, p)
		})
		if err != nil {
			return nil, chosen, fmt.Errorf("%v: %w", p, err)
		}
		all = append(all, Timing{Seconds: median, Best: least, Kernel: p.String()})
		if len(all) == 1 || median < lowest {
			chosen, lowest = p, median
		}
	}
	slices.SortStableFunc(all, faster)
	return all, chosen, nil
}

func faster(a, b Timing) int { return cmp.Compare(a.Seconds, b.Seconds) }

// tuneKey is what the fastest way to compute a product depends on.
type tuneKey struct {
	rows, columns, blocks, stride int32
	width                         int
	zeros, moved                  bool
	m                             int
}

func (w *Weight) tuneKey(m int) tuneKey {
	a := &w.args
	return tuneKey{a.rows, a.columns, a.blockCount, int32(a.stride), w.width, a.zeros != 0, a.perm != 0, m}
}

// Tune measures all sensible ways to compute products with the weight and each number of rows, and
// lets the device use the fastest from then on, with all weights of the same shape and widths. It
// takes up to a second for each number of rows and needs 200 MiB for a while; nothing else should
// run on the device. Without it a table decides, made on an H200.
//
// Products may have other bits after Tune than before: sums are then added up in another order.
// Only products that leave the path to the backend are tuned.
func (d *Device) Tune(ctx context.Context, w quant.Weight, rows ...int) error {
	weight, err := d.main.weight(w)
	if err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	b := &Bench{d: d, weights: []*Weight{weight}, bytes: weight.bytes}
	if err := b.fill(defaultCacheBytes); err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	for _, m := range rows {
		if m <= 0 {
			err = fmt.Errorf("%d rows", m)
			break
		}
		var p plan
		if p, err = d.choose(m, weight, quant.PathAuto, true); err != nil {
			break
		}
		if _, p, err = b.fastest(ctx, m, append([]plan{p}, d.candidates(m, weight)...)); err != nil {
			break
		}
		d.mu.Lock()
		if d.tuned == nil {
			d.tuned = map[tuneKey]plan{}
		}
		d.tuned[weight.tuneKey(m)] = p
		d.mu.Unlock()
	}
	b.weights = b.weights[1:] // the first is the caller's
	if err = errors.Join(err, b.Close()); err != nil {
		return fmt.Errorf("tune: %w", err)
	}
	return nil
}

// tunedPlan returns the plan that Tune found.
func (d *Device) tunedPlan(key tuneKey) (plan, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.tuned[key]
	return p, ok
}

// maxWayError is how far the products of two kernels may be from each other, relative to their
// norm: both are rounded to half precision, and one may have rounded its weights too.
const maxWayError = 1e-3

// CheckWays computes one product with m rows in every way that the device can, sensible or not, and
// compares the results. It returns how many ways there are and the largest relative difference. It
// is an error if that is more than rounding explains.
func (d *Device) CheckWays(ctx context.Context, w quant.Weight, m int) (count int, worst float64, err error) {
	weight, err := d.main.weight(w)
	if err != nil {
		return 0, 0, fmt.Errorf("check ways: %w", err)
	}
	count, worst, err = d.checkPlans(ctx, weight, m, d.ways(m, weight))
	if err != nil {
		err = fmt.Errorf("check ways: %w", err)
	}
	return count, worst, err
}

// CheckKernels compares two plans of each kernel that can multiply the weight, of those that divide
// the product most and least, with as few rows of activations as need two tiles. It is CheckWays for
// tools that make a kernel a thousand times slower.
func (d *Device) CheckKernels(ctx context.Context, w quant.Weight) (count int, worst float64, err error) {
	weight, err := d.main.weight(w)
	if err != nil {
		return 0, 0, fmt.Errorf("check kernels: %w", err)
	}
	for _, m := range []int{2, 5, 9, 17, 33, 65, 129, 193, 257} {
		plans := d.ways(m, weight)
		if len(plans) == 0 {
			continue
		}
		chosen, first, last := plans[:1:1], map[string]plan{}, map[string]plan{}
		for _, p := range plans[1:] {
			if p.dense || p.tileRows() != m-1 {
				continue
			}
			if _, ok := first[p.kernel]; !ok {
				first[p.kernel] = p
			}
			last[p.kernel] = p
		}
		for _, kernel := range slices.Sorted(maps.Keys(first)) {
			chosen = append(chosen, first[kernel])
			if last[kernel] != first[kernel] {
				chosen = append(chosen, last[kernel])
			}
		}
		n, difference, err := d.checkPlans(ctx, weight, m, chosen)
		count, worst = count+n, max(worst, difference)
		if err != nil {
			return count, worst, fmt.Errorf("check kernels: %w", err)
		}
	}
	return count, worst, nil
}

// checkPlans compares the results of plans with that of the first.
func (d *Device) checkPlans(ctx context.Context, w *Weight, m int, plans []plan) (count int, worst float64, err error) {
	b := &Bench{d: d}
	x, out, err := b.operands(m, w.Rows(), w.Cols())
	if err != nil {
		return 0, 0, err
	}
	defer x.Close()
	defer out.Close()
	half := make([]byte, 2*m*w.Cols())
	first, values := make([]float32, m*w.Cols()), make([]float32, m*w.Cols())
	for i, p := range plans {
		if err := context.Cause(ctx); err != nil {
			return i, worst, err
		}
		for j := range half {
			half[j] = 0xFF // NaN: no product writes it
		}
		err := errors.Join(out.CopyFrom(half), d.main.run(product{m: m, w: w, x: x.at, out: out.at}, p), out.CopyTo(half))
		if err != nil {
			return i, worst, fmt.Errorf("%v: %w", p, err)
		}
		tensor.DecodeF16(values, half)
		if i == 0 {
			copy(first, values)
		}
		difference := relativeError(values, first)
		worst = max(worst, difference)
		if !(difference <= maxWayError) {
			return i, worst, fmt.Errorf("%d rows, %v: differs by %.1e from %v", m, p, difference, plans[0])
		}
	}
	return len(plans), worst, nil
}

// relativeError returns ‖got − want‖ / ‖want‖, NaN if an element is.
func relativeError(got, want []float32) float64 {
	var diff, norm float64
	for i, v := range want {
		delta := float64(got[i]) - float64(v)
		diff += delta * delta
		norm += float64(v) * float64(v)
	}
	return math.Sqrt(diff / norm)
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
	// A million numbers, again and again: an odd number of them, so that no two rows are the same.
	rng := rand.New(rand.NewPCG(3, 4))
	values, half := make([]float32, min(m*k, 1<<20-1)), make([]byte, 2*m*k)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	tensor.EncodeF16(half[:2*len(values)], values)
	for done := 2 * len(values); done < len(half); {
		done += copy(half[done:], half[:2*len(values)])
	}
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
		return b.d.do(func() error { return blas.gemm(out.at, x.at, dense[i%len(dense)].at, m, n, k, false) })
	})
	return Timing{Seconds: median, Best: least, Kernel: "cuBLAS"}.rates(size, m, k, n), err
}

// time returns the median and the least time of one call of f, which is recorded for a multiple of
// count calls.
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

// CopyBandwidth returns the bytes that a large copy within the device's memory reads and writes in
// a second: by a kernel or by the driver, whichever is faster.
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
	byKernel, _, err := d.time(1, func() error {
		args := &copyArgs{from, to, bytes / 16}
		return d.do(func() error {
			return d.main.launch("kiln_copy", [3]uint32{uint32(16 * d.info.Multiprocessors), 1, 1}, 256, 0, unsafe.Pointer(args), 0)
		})
	})
	if err != nil {
		return 0, err
	}
	byDriver, _, err := d.time(1, func() error {
		return d.do(func() error { return d.drv.copy(to, from, bytes, d.main.handle) })
	})
	return 2 * bytes / min(byKernel, byDriver), err
}

// DenseFlops returns the floating-point operations in a second of a large half-precision product
// with cuBLAS, on random numbers.
func (d *Device) DenseFlops(blas *BLAS) (float64, error) {
	const size = 8192
	rng := rand.New(rand.NewPCG(5, 6))
	half := make([]byte, 2*size*size)
	line := half[:2*size] // one random line, shifted from row to row, is as good as all
	values := make([]float32, size)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	tensor.EncodeF16(line, values)
	for i := 1; i < size; i++ {
		shift := 2 * (i * 37 % size)
		copy(half[2*size*i:], line[shift:])
		copy(half[2*size*(i+1)-shift:], line[:shift])
	}
	var operands [3]*Matrix
	for i := range operands {
		m, err := d.NewMatrix(size, size)
		if err != nil {
			return 0, err
		}
		defer m.Close()
		if err := m.CopyFrom(half); err != nil {
			return 0, err
		}
		operands[i] = m.(*Matrix)
	}
	median, _, err := d.time(1, func() error {
		return d.do(func() error {
			return blas.gemm(operands[0].at, operands[1].at, operands[2].at, size, size, size, false)
		})
	})
	return 2 * size * size * size / median, err
}
