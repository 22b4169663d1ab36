package cuda

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant"
)

// Stream is a device seen through one of its streams. It is a [quant.Backend] whose work is queued
// on that stream.
type Stream struct {
	d      *Device
	handle uintptr

	// mu orders the launches of a product, which share the scratch memory: what follows on the
	// stream may use it again.
	mu                                    sync.Mutex
	gathered, work, arrivals, bias, dense scratch
	blas                                  *BLAS // for dense plans, nil before the first
	// outgrown is scratch memory that became too small. Recorded graphs may still use it.
	outgrown []uintptr
}

var _ quant.Backend = (*Stream)(nil)

// scratch is device memory that grows.
type scratch struct {
	at    uintptr
	bytes int64
}

// need returns at least so many bytes. New memory is zero. It does not wait for the stream, and may
// be called while the stream is recorded: the memory is there, and cleared, before the graph runs.
// Memory grows by half, so what is outgrown is at most twice what is in use.
func (s *Stream) need(m *scratch, bytes int64) (uintptr, error) {
	if bytes <= m.bytes {
		return m.at, nil
	}
	drv := s.d.drv
	bytes = (bytes + bytes/2 + 0xFFFF) &^ 0xFFFF
	var p uintptr
	err := drv.outsideCapture(func() (err error) {
		if p, err = drv.alloc(bytes); err != nil {
			return err
		}
		return errors.Join(drv.clear(p, bytes, s.d.side), drv.synchronize(s.d.side))
	})
	if err != nil {
		return 0, errors.Join(err, drv.free(p))
	}
	if m.at != 0 {
		s.outgrown = append(s.outgrown, m.at)
	}
	*m = scratch{p, bytes}
	return p, nil
}

func (s *Stream) release() error {
	var errs []error
	for _, m := range []*scratch{&s.gathered, &s.work, &s.arrivals, &s.bias, &s.dense} {
		errs = append(errs, s.d.drv.free(m.at))
		*m = scratch{}
	}
	for _, p := range s.outgrown {
		errs = append(errs, s.d.drv.free(p))
	}
	s.outgrown = nil
	if s.blas != nil {
		errs = append(errs, s.blas.Close())
		s.blas = nil
	}
	return errors.Join(errs...)
}

// Name implements [quant.Backend].
func (s *Stream) Name() string { return s.d.Name() }

// Synchronize waits for everything on the stream.
func (s *Stream) Synchronize() error {
	return s.d.do(func() error { return s.d.drv.synchronize(s.handle) })
}

// launch queues a kernel. cluster 0 means that it does not know of overlap: it starts when all
// before it has ended.
func (s *Stream) launch(name string, grid [3]uint32, threads, shared int, args unsafe.Pointer, cluster int) error {
	f, ok := s.d.functions[name]
	if !ok {
		return fmt.Errorf("no kernel %s", name)
	}
	var attributes []launchAttribute
	if cluster > 0 && s.d.overlap {
		attributes = append(attributes, overlapped())
		if cluster > 1 {
			attributes = append(attributes, clustered(cluster))
		}
	}
	config := &launchConfig{grid: grid, block: [3]uint32{uint32(threads), 1, 1}, shared: uint32(shared), stream: s.handle}
	if err := s.d.drv.launch(f, config, args, attributes); err != nil {
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	return nil
}

func (s *Stream) weight(w quant.Weight) (*Weight, error) {
	weight, ok := w.(*Weight)
	if !ok || weight == nil || weight.d != s.d {
		return nil, errors.New("weight is not of this device")
	}
	weight.mu.Lock()
	defer weight.mu.Unlock()
	if weight.closed {
		return nil, fmt.Errorf("weight: %w", quant.ErrClosed)
	}
	return weight, nil
}

func (s *Stream) matrix(m quant.Matrix, what string) (uintptr, error) {
	matrix, ok := m.(*Matrix)
	if !ok || matrix == nil || matrix.s.d != s.d {
		return 0, fmt.Errorf("%s is not of this device", what)
	}
	at, err := matrix.address()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return at, nil
}

// Gemm implements [quant.Backend]. It queues the product and returns.
func (s *Stream) Gemm(ctx context.Context, dst, x quant.Matrix, w quant.Weight, opts quant.GemmOptions) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p, plan, err := s.planned(dst, x, w, opts)
	if err == nil && p.m > 0 {
		err = s.run(p, plan)
	}
	if err != nil {
		return fmt.Errorf("product: %w", err)
	}
	return nil
}

// GemmMany computes the products of one matrix of activations with several weights, dst[i] = x·w[i],
// and gives the same bits as Gemm for one after the other. Activations are brought into the order of
// a permutation once for all weights that follow each other and want the same, as those of the
// projections of one layer do. Nothing is queued if any of them is refused. A bias of
// the options must fit all weights.
func (s *Stream) GemmMany(ctx context.Context, dst []quant.Matrix, x quant.Matrix, w []quant.Weight, opts quant.GemmOptions) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if len(dst) != len(w) {
		return fmt.Errorf("products: %d results for %d weights", len(dst), len(w))
	}
	products, plans := make([]product, len(w)), make([]plan, len(w))
	for i := range w {
		var err error
		if products[i], plans[i], err = s.planned(dst[i], x, w[i], opts); err != nil {
			return fmt.Errorf("product %d of %d: %w", i+1, len(w), err)
		}
		for j := range i {
			if overlap(products[i].out, dst[i], products[j].out, dst[j]) {
				return fmt.Errorf("product %d of %d: result and that of product %d share memory", i+1, len(w), j+1)
			}
		}
	}
	if x.Rows() == 0 || len(w) == 0 {
		return nil
	}
	err := s.d.do(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var last ordered
		for i, p := range products {
			if err := s.queue(p, plans[i], &last); err != nil {
				return fmt.Errorf("product %d of %d: %w", i+1, len(w), err)
			}
		}
		return nil
	})
	return err
}

// planned returns a checked call of Gemm and how it is computed.
func (s *Stream) planned(dst, x quant.Matrix, w quant.Weight, opts quant.GemmOptions) (product, plan, error) {
	p, err := s.product(dst, x, w, opts)
	if err != nil || p.m == 0 {
		return p, plan{}, err
	}
	how, err := p.w.plan(p.m, opts.Path, p.x%16 == 0, p.bias != nil || p.ownBias && p.w.bias != 0)
	return p, how, err
}

// overlap reports whether matrices at two addresses share memory.
func overlap(a uintptr, m quant.Matrix, b uintptr, n quant.Matrix) bool {
	size := func(m quant.Matrix) uintptr { return uintptr(2 * m.Rows() * m.Cols()) }
	return a < b+size(n) && b < a+size(m)
}

// product is a checked call of Gemm.
type product struct {
	m          int
	w          *Weight
	x, out     uintptr
	bias       []byte // of the call
	ownBias    bool
	accumulate bool
}

func (s *Stream) product(dst, x quant.Matrix, w quant.Weight, opts quant.GemmOptions) (product, error) {
	var p product
	var err error
	if p.w, err = s.weight(w); err != nil {
		return p, err
	}
	if p.x, err = s.matrix(x, "activations"); err != nil {
		return p, err
	}
	if p.out, err = s.matrix(dst, "result"); err != nil {
		return p, err
	}
	p.m = x.Rows()
	k, n := p.w.Rows(), p.w.Cols()
	switch {
	case x.Cols() != k:
		return p, fmt.Errorf("activations have %d columns: the weight has %d rows", x.Cols(), k)
	case dst.Cols() != n:
		return p, fmt.Errorf("result has %d columns: the weight has %d", dst.Cols(), n)
	case dst.Rows() != p.m:
		return p, fmt.Errorf("result has %d rows: the activations have %d", dst.Rows(), p.m)
	case opts.Bias != nil && len(opts.Bias) != 2*n:
		return p, fmt.Errorf("bias has %d bytes: want %d", len(opts.Bias), 2*n)
	case opts.Path > quant.PathReconstruct:
		return p, fmt.Errorf("no path %v", opts.Path)
	}
	if p.m > 0 && overlap(p.x, x, p.out, dst) {
		return p, errors.New("result and activations share memory")
	}
	if !opts.NoBias {
		p.bias, p.ownBias = opts.Bias, opts.Bias == nil
	}
	p.accumulate = opts.Accumulate
	return p, nil
}

type gatherArgs struct {
	x, out, perm    uintptr
	order           uintptr
	m, rows, padded int32
}

type gemmArgs struct {
	weight                             weightArgs
	x, out, bias, work, arrivals       uintptr
	order                              uintptr
	m, columnWarps, splits, accumulate int32
}

// A structure with a tensorMap has a multiple of 64 bytes in C++.
type wideArgs struct {
	x                               tensorMap
	weight                          weightArgs
	out, bias                       uintptr
	m, splits, accumulate, rowTiles int32
	_                               [24]byte
}

type tallArgs struct {
	x                             tensorMap
	weight                        weightArgs
	out, bias, work, arrivals     uintptr
	m, accumulate, rowTiles, slab int32
	tiles, sharedTiles, stages    int32
	_                             [60]byte
}

// tallSlab is how many tiles of rows are computed for all columns before the next: their
// activations stay in the cache.
const tallSlab = 8

// run launches the kernels of a product.
func (s *Stream) run(p product, plan plan) error {
	return s.d.do(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.queue(p, plan, &ordered{})
	})
}

// queue is run for a caller that holds the context and the lock. last says what the scratch memory
// for activations has.
func (s *Stream) queue(p product, plan plan, last *ordered) error {
	if plan.dense {
		return s.runDense(p)
	}
	bias, err := s.biasOf(p)
	if err != nil {
		return err
	}
	x, err := s.stored(p, plan, last)
	if err != nil {
		return err
	}
	var accumulate int32
	if p.accumulate {
		accumulate = 1
	}
	var tiles tensorMap
	if plan.wide || plan.tall {
		rows := plan.tileRows()
		if plan.tall {
			rows /= 2 // each thread block of a cluster fetches a half
		}
		if tiles, err = s.d.drv.encodeTiles(x, p.m, int(p.w.args.blockCount)*blockRows, rows); err != nil {
			return err
		}
	}
	if plan.tall {
		args := &tallArgs{
			x: tiles, weight: p.w.args, out: p.out, bias: bias, m: int32(p.m), accumulate: accumulate, rowTiles: int32(plan.rowTiles(p.m)),
			slab: tallSlab, tiles: int32(plan.tiles(p.m)), sharedTiles: int32(plan.sharedTiles), stages: int32(plan.stages),
		}
		if plan.sharedTiles > 0 {
			if args.work, err = s.need(&s.work, plan.workBytes(p.m)); err != nil {
				return err
			}
			if args.arrivals, err = s.need(&s.arrivals, 16*int64(plan.sharedTiles)); err != nil {
				return err
			}
		}
		return s.launch(plan.kernel, plan.grid(p.m), plan.warps*32, plan.shared, unsafe.Pointer(args), 2)
	}
	if plan.wide {
		args := &wideArgs{
			x: tiles, weight: p.w.args, out: p.out, bias: bias,
			m: int32(p.m), splits: int32(plan.splits), accumulate: accumulate, rowTiles: int32(plan.rowTiles(p.m)),
		}
		return s.launch(plan.kernel, plan.grid(p.m), plan.warps*32, plan.shared, unsafe.Pointer(args), plan.splits)
	}
	args := &gemmArgs{
		weight: p.w.args, x: x, out: p.out, bias: bias, order: p.w.order,
		m: int32(p.m), columnWarps: int32(plan.columnWarps), splits: int32(plan.splits), accumulate: accumulate,
	}
	cluster := 1
	if plan.splits > 1 && s.d.clusters {
		cluster = plan.splits
	} else if plan.splits > 1 {
		if args.work, err = s.need(&s.work, plan.workBytes(p.m)); err != nil {
			return err
		}
		if args.arrivals, err = s.need(&s.arrivals, 4*int64(plan.tiles(p.m))); err != nil {
			return err
		}
	}
	return s.launch(plan.kernel, plan.grid(p.m), plan.warps*32, plan.shared, unsafe.Pointer(args), cluster)
}

// runDense dequantizes the weight and calls cuBLAS.
func (s *Stream) runDense(p product) (err error) {
	if s.blas == nil {
		err := s.d.drv.outsideCapture(func() (err error) {
			s.blas, err = s.d.blas.on(s)
			return err
		})
		if err != nil {
			return err
		}
	}
	args := &dequantizeArgs{weight: p.w.args}
	k, n := p.w.Rows(), p.w.Cols()
	if args.out, err = s.need(&s.dense, 2*int64(k)*int64(n)); err != nil {
		return err
	}
	if err := s.launch("kiln_dequantize", p.w.unitGrid(), 256, 0, unsafe.Pointer(args), 0); err != nil {
		return err
	}
	return s.blas.gemm(p.out, p.x, args.out, p.m, n, k, p.accumulate)
}

// biasOf returns the bias on the device, 0 for none.
func (s *Stream) biasOf(p product) (uintptr, error) {
	if p.ownBias || p.bias == nil {
		if p.ownBias {
			return p.w.bias, nil
		}
		return 0, nil
	}
	// A graph would read the caller's memory when it runs, long after the call.
	if recorded, err := s.d.drv.capturing(s.handle); recorded || err != nil {
		return 0, errors.Join(err, errors.New("the bias of a product that is recorded must be that of the weight"))
	}
	at, err := s.need(&s.bias, int64(len(p.bias)))
	if err != nil {
		return 0, err
	}
	return at, s.d.drv.upload(at, unsafe.Pointer(unsafe.SliceData(p.bias)), int64(len(p.bias)), s.handle)
}

// ordered says in which order activations are in scratch memory.
type ordered struct {
	valid    bool
	permHash [sha256.Size]byte
	padded   int32
}

// stored returns the activations as the kernel of the plan wants them: in stored order, padded, and
// aligned for copies of 16 bytes.
func (s *Stream) stored(p product, plan plan, last *ordered) (uintptr, error) {
	padded := p.w.args.blockCount * blockRows
	if plan.direct || !p.w.moves() && p.x%16 == 0 {
		return p.x, nil
	}
	args := gatherArgs{x: p.x, perm: p.w.args.perm, order: p.w.order, rows: p.w.args.rows, padded: padded}
	now := ordered{true, p.w.permHash, padded}
	if *last == now {
		return s.gathered.at, nil
	}
	out, err := s.need(&s.gathered, 2*int64(p.m)*int64(padded))
	if err != nil {
		return 0, err
	}
	*last = now
	// How many thread blocks cover a row, and how many rows one has.
	kernel, threads, shared, columns, each := "kiln_gather", 128, 0, (int(padded)/8+127)/128, 1
	if line := 2 * (int(p.w.args.rows) + 8); p.m >= permuteRows && p.w.order != 0 && p.x%16 == 0 && line <= s.d.info.SharedBytes-maxStaticShared {
		kernel, threads, shared = "kiln_permute", 256, line
		if p.m >= pairRows && 2*line <= s.d.info.SharedBytes-maxStaticShared {
			// As many threads as are busy in every turn.
			pieces := (int(padded) + 7) / 8
			turns := (pieces + maxThreads - 1) / maxThreads
			kernel, threads, shared, each = "kiln_permute_pairs", (pieces/turns+31)&^31, 2*line, 2
		}
		columns = max(1, min(8*s.d.info.Multiprocessors/p.m, (int(padded)/8+threads-1)/threads))
	}
	const chunk = maxGridY &^ 1
	for first := 0; first < p.m; first += chunk {
		part := args
		part.x = p.x + uintptr(2*int64(first)*int64(p.w.args.rows))
		part.out = out + uintptr(2*int64(first)*int64(padded))
		part.m = int32(min(p.m-first, chunk))
		grid := [3]uint32{uint32(columns), uint32((int(part.m) + each - 1) / each), 1}
		if err := s.launch(kernel, grid, threads, shared, unsafe.Pointer(&part), 1); err != nil {
			return 0, err
		}
	}
	return out, nil
}

const (
	maxGridY   = 65535
	maxThreads = 1024

	// permuteRows is from how many rows on kiln_permute is faster than kiln_gather, and pairRows from
	// how many on kiln_permute_pairs is.
	permuteRows, pairRows = 16, 32
)
