package quant

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kiln-build/kiln/quant/internal/kernels"
	"github.com/kiln-build/kiln/tensor"
)

// FeatureSet says what the CPU backend computes with.
type FeatureSet struct {
	// Kernels is the name of the kernels that [NewCPU] uses unless told otherwise. "portable" is plain Go.
	Kernels string `json:"kernels"`
	// Available are all that this build and processor have, the best last.
	Available []string `json:"available"`
	// Arch is the architecture of this build, such as "amd64".
	Arch string `json:"arch"`
	// Threads is how many threads NewCPU uses unless told otherwise.
	Threads int `json:"threads"`
}

// Features returns what this program on this machine has.
func Features() FeatureSet {
	f := FeatureSet{Kernels: kernels.Best().Name, Arch: runtime.GOARCH, Threads: runtime.GOMAXPROCS(0)}
	for _, set := range kernelSets() {
		f.Available = append(f.Available, set.Name)
	}
	return f
}

// kernelSets returns all sets, the best last.
func kernelSets() []*kernels.Set {
	all := []*kernels.Set{kernels.Portable()}
	if best := kernels.Best(); best != all[0] {
		all = append(all, best)
	}
	return all
}

// CPUOptions change how the CPU backend works. The zero value is the fastest.
type CPUOptions struct {
	// Threads is the number of goroutines that compute at once. 0 means GOMAXPROCS. It does not change results.
	Threads int
	// Kernels is one of [FeatureSet.Available]. "" means the best.
	Kernels string
}

// CPU is the [Backend] for the processor that the program runs on.
//
// Upload uses the memory of the QMatrix as it is, and makes a copy in another order only for GPTQ with act-order or with
// groups that are no multiple of 32 rows. A product takes scratch memory for at most 64 rows of x at a time, which the
// backend keeps for the next one.
//
// An element of a result depends on its row of x and its column of weights only, and sums are always in the same order.
// So results are the same for any number of threads and any other rows in the same call, though not on other
// architectures or with other kernels. With [PathAuto] it computes as with [PathFused].
type CPU struct {
	kernels *kernels.Set
	threads int
	scratch sync.Pool // of *cpuScratch
	inputs  sync.Pool // of *cpuInput
}

var _ Backend = (*CPU)(nil)

// NewCPU returns a backend. It has nothing to close.
func NewCPU(opts CPUOptions) (*CPU, error) {
	c := &CPU{kernels: kernels.Best(), threads: opts.Threads}
	if c.threads < 0 {
		return nil, fmt.Errorf("cpu backend: %d threads", c.threads)
	}
	if c.threads == 0 {
		c.threads = runtime.GOMAXPROCS(0)
	}
	if opts.Kernels != "" {
		c.kernels = nil
		for _, set := range kernelSets() {
			if set.Name == opts.Kernels {
				c.kernels = set
			}
		}
		if c.kernels == nil {
			return nil, fmt.Errorf("cpu backend: no kernels %q: this build and processor have %q", opts.Kernels, Features().Available)
		}
	}
	return c, nil
}

// Name implements [Backend].
func (c *CPU) Name() string {
	return fmt.Sprintf("cpu (%s, %s, threads: %d)", runtime.GOARCH, c.kernels.Name, c.threads)
}

// Half is a dense matrix of half-precision numbers in main memory, the [Matrix] of the CPU backend.
type Half struct {
	rows, cols int
	data       []byte
	closed     atomic.Bool
}

// NewHalf returns a matrix over data: float16, 2·rows·cols bytes. The matrix uses data itself, so the caller can look at
// results there.
func NewHalf(rows, cols int, data []byte) (*Half, error) {
	if !validSize(rows, cols) {
		return nil, fmt.Errorf("matrix of %d rows and %d columns", rows, cols)
	}
	if want := 2 * int64(rows) * int64(cols); int64(len(data)) != want {
		return nil, fmt.Errorf("matrix of %d rows and %d columns over %d bytes: want %d", rows, cols, len(data), want)
	}
	return &Half{rows: rows, cols: cols, data: data}, nil
}

// validSize reports whether a matrix of half-precision numbers can be that large.
func validSize(rows, cols int) bool {
	return rows >= 0 && cols >= 0 && rows <= maxDimension && cols <= maxDimension &&
		int64(rows)*int64(cols) <= min(math.MaxInt, 1<<46)/2 // NewMatrix must not panic for want of address space
}

// NewMatrix implements [Backend]; the result is a *[Half].
func (c *CPU) NewMatrix(rows, cols int) (Matrix, error) {
	if !validSize(rows, cols) {
		return nil, fmt.Errorf("matrix of %d rows and %d columns", rows, cols)
	}
	return NewHalf(rows, cols, make([]byte, 2*rows*cols))
}

// Rows implements [Matrix].
func (h *Half) Rows() int { return h.rows }

// Cols implements [Matrix].
func (h *Half) Cols() int { return h.cols }

// CopyFrom implements [Matrix].
func (h *Half) CopyFrom(src []byte) error {
	if err := h.usable(len(src)); err != nil {
		return err
	}
	copy(h.data, src)
	return nil
}

// CopyTo implements [Matrix].
func (h *Half) CopyTo(dst []byte) error {
	if err := h.usable(len(dst)); err != nil {
		return err
	}
	copy(dst, h.data)
	return nil
}

func (h *Half) usable(n int) error {
	if h.closed.Load() {
		return fmt.Errorf("matrix of %d rows and %d columns: %w", h.rows, h.cols, ErrClosed)
	}
	if n != len(h.data) {
		return fmt.Errorf("matrix of %d rows and %d columns: %d bytes: want %d", h.rows, h.cols, n, len(h.data))
	}
	return nil
}

// Close implements [Matrix]. Memory that was given to NewHalf stays the caller's.
func (h *Half) Close() error {
	if h.closed.Swap(true) {
		return ErrClosed
	}
	return nil
}

// cpuWeight is a matrix whose groups all have a multiple of 32 rows and lie in stored order.
type cpuWeight struct {
	*QMatrix
	owner  *CPU
	runs   []cpuRun
	gather []int32 // natural row of each row of the runs, −1 for padding; nil for the natural order
	depth  int     // rows of all runs
	copied int64   // bytes in addition to those of the QMatrix
	closed atomic.Bool
}

// cpuRun is the part of a group that is computed at once.
type cpuRun struct {
	group, bits int
	first, rows int // of the gathered activations
	words       []uint32
}

// Upload implements [Backend].
func (c *CPU) Upload(ctx context.Context, m *QMatrix) (Weight, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if m == nil || m.rows == 0 {
		return nil, errors.New("upload: no matrix")
	}
	w := &cpuWeight{QMatrix: m, owner: c}
	direct := m.format == EXL2 || m.perm == nil
	for _, g := range m.groups {
		direct = direct && g.Rows%kernels.BlockRows == 0
	}
	if direct {
		w.gather = m.perm
	} else {
		w.gather = []int32{}
	}
	for g, group := range m.groups {
		if group.Rows == 0 {
			continue
		}
		run := cpuRun{group: g, bits: group.Bits, first: w.depth, rows: group.Rows}
		switch {
		case m.format == EXL2:
			run.words = m.words[m.starts[g]*m.cols:]
		case direct:
			run.words = m.words[group.FirstRow*group.Bits/32*m.cols:]
		default:
			run.rows = (group.Rows + kernels.BlockRows - 1) / kernels.BlockRows * kernels.BlockRows
			run.words = make([]uint32, run.rows/32*group.Bits*m.cols)
			for i := range run.rows {
				if i >= group.Rows {
					w.gather = append(w.gather, -1)
					continue
				}
				k := group.FirstRow + i
				if m.perm != nil {
					k = int(m.perm[k])
				}
				w.gather = append(w.gather, int32(k))
				moveRow(run.words, i*group.Bits, m.words, k*group.Bits, group.Bits, m.cols)
			}
			w.copied += 4 * int64(len(run.words))
		}
		run.words = run.words[:run.rows/32*run.bits*m.cols]
		w.runs = append(w.runs, run)
		w.depth += run.rows
	}
	return w, nil
}

// moveRow copies the codes of one row, which start at bit from of every stream of src, to bit to of the streams of
// dst, where there must be zeros.
func moveRow(dst []uint32, to int, src []uint32, from, bits, cols int) {
	mask := uint32(1)<<bits - 1
	for j := range cols {
		v := src[from/32*cols+j] >> (from % 32)
		if from%32+bits > 32 {
			v |= src[(from/32+1)*cols+j] << (32 - from%32)
		}
		v &= mask
		dst[to/32*cols+j] |= v << (to % 32)
		if to%32+bits > 32 {
			dst[(to/32+1)*cols+j] |= v >> (32 - to%32)
		}
	}
}

// Bytes implements [Weight].
func (w *cpuWeight) Bytes() int64 {
	return w.QMatrix.Bytes() + w.copied + 4*int64(len(w.gather)) + 2*int64(len(w.bias))
}

// Close implements [Weight].
func (w *cpuWeight) Close() error {
	if w.closed.Swap(true) {
		return ErrClosed
	}
	return nil
}

const (
	chunkRows = 64   // of x, converted and multiplied at a time
	tileCols  = 2048 // at most; sums, words and tables of a tile fit the first-level cache
	tileStep  = 32   // columns of tiles are multiples, except in the last
	panelRows = kernels.BlockRows
	panelCols = 512 // of dense panels: 64 KiB
	smallWork = 1 << 16
)

// cpuInput is a chunk of x, converted and in stored order, for all workers.
type cpuInput struct {
	x    []float32 // [rows, depth]
	sums []float32 // [rows, runs]: of the activations of a run; only for GPTQ
}

// cpuScratch is the memory of one worker.
type cpuScratch struct {
	line         []float32 // one row of x in natural order
	y, acc       []float32 // [rows, cols]
	panel        []float32 // [panelRows, cols]
	scale, shift []float32 // [cols]
	bias, old    []float32 // [cols]
	zero         []int32
	half         []byte
}

func grow[T any](s *[]T, n int) []T {
	if cap(*s) < n {
		*s = make([]T, n)
	}
	return (*s)[:n]
}

// Gemm implements [Backend].
func (c *CPU) Gemm(ctx context.Context, dst, x Matrix, weight Weight, opts GemmOptions) error {
	p, err := c.newProduct(dst, x, weight, opts)
	if err != nil {
		return fmt.Errorf("gemm: %w", err)
	}
	in, _ := c.inputs.Get().(*cpuInput)
	if in == nil {
		in = &cpuInput{}
	}
	defer c.inputs.Put(in)
	for first := 0; first < p.x.rows; first += chunkRows {
		rows := min(chunkRows, p.x.rows-first)
		if err := p.chunk(ctx, in, first, rows); err != nil {
			return err
		}
	}
	return nil
}

// product is one call of Gemm with checked arguments.
type product struct {
	*CPU
	dst, x     *Half
	w          *cpuWeight
	bias       []byte // nil for none
	accumulate bool
	round      bool // weights to half precision
	dense      bool // multiply with unpacked weights
}

func (c *CPU) newProduct(dst, x Matrix, weight Weight, opts GemmOptions) (*product, error) {
	p := &product{CPU: c, accumulate: opts.Accumulate}
	var ok bool
	if p.dst, ok = dst.(*Half); !ok || p.dst == nil {
		return nil, fmt.Errorf("result is a %T, not a matrix of the cpu backend", dst)
	}
	if p.x, ok = x.(*Half); !ok || p.x == nil {
		return nil, fmt.Errorf("activations are a %T, not a matrix of the cpu backend", x)
	}
	if p.w, ok = weight.(*cpuWeight); !ok || p.w == nil || p.w.owner != c {
		return nil, fmt.Errorf("weight is a %T that this cpu backend did not make", weight)
	}
	switch {
	case p.w.closed.Load():
		return nil, fmt.Errorf("weight: %w", ErrClosed)
	case p.x.closed.Load():
		return nil, fmt.Errorf("activations: %w", ErrClosed)
	case p.dst.closed.Load():
		return nil, fmt.Errorf("result: %w", ErrClosed)
	case p.x.cols != p.w.rows:
		return nil, fmt.Errorf("activations have %d columns: the weight has %d rows", p.x.cols, p.w.rows)
	case p.dst.cols != p.w.cols:
		return nil, fmt.Errorf("result has %d columns: the weight has %d", p.dst.cols, p.w.cols)
	case p.dst.rows != p.x.rows:
		return nil, fmt.Errorf("result has %d rows: the activations have %d", p.dst.rows, p.x.rows)
	case overlap(p.dst.data, p.x.data):
		return nil, errors.New("result and activations share memory")
	case opts.Path > PathReconstruct:
		return nil, fmt.Errorf("no such path: %v", opts.Path)
	}
	if p.bias = opts.Bias; p.bias == nil && p.w.bias != nil {
		p.bias = halfBytes(p.w.bias)
	}
	if opts.NoBias {
		p.bias = nil
	}
	if p.bias != nil && len(p.bias) != 2*p.w.cols {
		return nil, fmt.Errorf("bias has %d bytes: want %d", len(p.bias), 2*p.w.cols)
	}
	p.round = opts.Path == PathReconstruct
	p.dense = p.round || p.w.cols < c.kernels.MinCols
	return p, nil
}

// overlap reports whether two slices share memory.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	return uintptr(unsafe.Pointer(&a[0])) <= uintptr(unsafe.Pointer(&b[len(b)-1])) &&
		uintptr(unsafe.Pointer(&b[0])) <= uintptr(unsafe.Pointer(&a[len(a)-1]))
}

// chunk computes some rows of the result.
func (p *product) chunk(ctx context.Context, in *cpuInput, first, rows int) error {
	x := grow(&in.x, rows*p.w.depth)
	sums := grow(&in.sums, rows*len(p.w.runs))
	threads := p.threads
	if int64(rows)*int64(p.w.depth)*int64(p.w.cols) < smallWork {
		threads = 1
	}
	err := p.parallel(ctx, threads, rows, func(i int, s *cpuScratch) {
		p.convert(s, first+i, x[i*p.w.depth:][:p.w.depth], sums[i*len(p.w.runs):][:len(p.w.runs)])
	})
	if err != nil {
		return err
	}

	// Tiles are as wide as fits, but so narrow that every thread has the same number of them.
	widest := tileCols
	if p.dense {
		widest = panelCols
	}
	tiles := (p.w.cols + widest - 1) / widest
	if tiles%threads != 0 && p.w.cols/threads >= 2*p.kernels.MinCols {
		tiles += threads - tiles%threads
	}
	width := (p.w.cols + tiles - 1) / tiles
	width = (width + tileStep - 1) / tileStep * tileStep
	tiles = (p.w.cols + width - 1) / width
	parts := min(rows, (threads+tiles-1)/tiles) // where there are too few tiles, rows are divided too
	return p.parallel(ctx, threads, tiles*parts, func(job int, s *cpuScratch) {
		col, part := job/parts*width, job%parts
		lo, hi := rows*part/parts, rows*(part+1)/parts
		t := tile{
			row: first + lo, rows: hi - lo, col: col, cols: min(width, p.w.cols-col),
			x:    kernels.Dense{Data: x[lo*p.w.depth:], Stride: p.w.depth, Rows: hi - lo, Cols: p.w.depth},
			sums: sums[lo*len(p.w.runs):],
		}
		p.compute(s, t)
	})
}

// parallel calls f for 0 to n − 1, on several goroutines, and waits for all. When ctx ends it starts no further call.
func (p *product) parallel(ctx context.Context, threads, n int, f func(i int, s *cpuScratch)) error {
	var next atomic.Int64
	work := func() {
		s, _ := p.scratch.Get().(*cpuScratch)
		if s == nil {
			s = &cpuScratch{}
		}
		defer p.scratch.Put(s)
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			f(i, s)
		}
	}
	var group sync.WaitGroup
	for range min(threads, n) - 1 {
		group.Go(work)
	}
	work()
	group.Wait()
	return context.Cause(ctx)
}

// convert widens one row of x and puts it into stored order.
func (p *product) convert(s *cpuScratch, row int, x, sums []float32) {
	src := p.x.data[2*row*p.x.cols:][:2*p.x.cols]
	if p.w.gather == nil {
		tensor.DecodeF16(x, src)
	} else {
		line := grow(&s.line, p.x.cols)
		tensor.DecodeF16(line, src)
		for i, k := range p.w.gather {
			if k < 0 {
				x[i] = 0
			} else {
				x[i] = line[k]
			}
		}
	}
	if p.w.format != GPTQ {
		return
	}
	for r, run := range p.w.runs {
		sum := 0.0
		for _, v := range x[run.first:][:run.rows] {
			sum += float64(v)
		}
		sums[r] = float32(sum)
	}
}

// tile is a part of the result with what is needed to compute it.
type tile struct {
	row, rows int // of the whole result
	col, cols int
	x         kernels.Dense
	sums      []float32
}

// compute computes one tile of the result.
func (p *product) compute(s *cpuScratch, t tile) {
	y := kernels.Dense{Data: grow(&s.y, t.rows*t.cols), Stride: t.cols, Rows: t.rows, Cols: t.cols}
	clear(y.Data)
	scale, zero := grow(&s.scale, t.cols), grow(&s.zero, t.cols)
	for r, run := range p.w.runs {
		p.w.scaleOf(scale, run.group, t.col)
		if p.w.format == GPTQ {
			p.w.zeroOf(zero, run.group, t.col)
		}
		codes := kernels.Codes{Words: run.words[t.col:], Stride: p.w.cols, Bits: run.bits, Rows: run.rows, Cols: t.cols}
		x := t.x
		x.Data, x.Cols = x.Data[run.first:], run.rows
		if p.dense {
			p.mulDense(s, y, x, codes, scale, zero)
		} else {
			p.mulCodes(s, y, x, codes, scale, zero, t.sums[r:])
		}
	}
	p.store(s, t, y)
}

// mulCodes adds the product of one run: integers first, then the scales.
func (p *product) mulCodes(s *cpuScratch, y, x kernels.Dense, codes kernels.Codes, scale []float32, zero []int32, sums []float32) {
	acc := y
	acc.Data = grow(&s.acc, len(y.Data))
	center := int32(1) << (codes.Bits - 1)
	shift := grow(&s.shift, len(zero))
	if p.w.format == GPTQ {
		for j, z := range zero {
			shift[j] = float32(center - z)
		}
	}
	for i := range y.Rows {
		// The kernels know the middle of the codes as the zero point; the rest is a multiple of the sum of the row.
		line := acc.Row(i)
		clear(line)
		if p.w.format == GPTQ {
			sum := sums[i*len(p.w.runs)]
			for j, v := range shift {
				line[j] = v * sum
			}
		}
	}
	p.kernels.MulCodes(acc, x, codes)
	for i := range y.Rows {
		p.kernels.MulAdd(y.Row(i), scale, acc.Row(i))
	}
}

// mulDense adds the product of one run with unpacked weights, which are the same as those of QMatrix.Dequantize if
// they are to be rounded.
func (p *product) mulDense(s *cpuScratch, y, x kernels.Dense, codes kernels.Codes, scale []float32, zero []int32) {
	panel := kernels.Dense{Data: grow(&s.panel, panelRows*codes.Cols), Stride: codes.Cols, Rows: panelRows, Cols: codes.Cols}
	half := grow(&s.half, 2*codes.Cols)
	center := int32(1) << (codes.Bits - 1)
	for first := 0; first < codes.Rows; first += panelRows {
		part := codes
		part.Words, part.Rows = codes.Words[first/32*codes.Bits*codes.Stride:], panelRows
		p.kernels.Unpack(panel, part)
		for r := range panelRows {
			line := panel.Row(r)
			if p.w.format == GPTQ {
				for j := range line {
					line[j] += float32(center - zero[j])
				}
			}
			for j := range line {
				line[j] *= scale[j]
			}
			if p.round {
				tensor.EncodeF16(half, line)
				tensor.DecodeF16(line, half)
			}
		}
		in := x
		in.Data, in.Cols = x.Data[first:], panelRows
		p.kernels.MulDense(y, in, panel)
	}
}

// store adds bias and old values and rounds.
func (p *product) store(s *cpuScratch, t tile, y kernels.Dense) {
	var bias []float32
	if p.bias != nil {
		bias = grow(&s.bias, t.cols)
		tensor.DecodeF16(bias, p.bias[2*t.col:][:2*t.cols])
	}
	for i := range t.rows {
		line := y.Row(i)
		dst := p.dst.data[2*((t.row+i)*p.dst.cols+t.col):][:2*t.cols]
		for j, v := range bias {
			line[j] += v
		}
		if p.accumulate {
			old := grow(&s.old, t.cols)
			tensor.DecodeF16(old, dst)
			for j, v := range old {
				line[j] += v
			}
		}
		tensor.EncodeF16(dst, line)
	}
}
