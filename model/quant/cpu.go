package quant

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant/internal/kernels"
	"github.com/kiln-build/kiln/model/tensor"
)

// FeatureSet says what the CPU backend computes with.
type FeatureSet struct {
	// Kernels is the name of the kernels that [NewCPU] uses unless told otherwise. "portable" is
	// plain Go.
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
	for _, set := range kernels.Sets() {
		f.Available = append(f.Available, set.Name)
	}
	return f
}

// CPUOptions change how the CPU backend works. The zero value is the fastest.
type CPUOptions struct {
	// Threads is the number of goroutines that compute at once. 0 means GOMAXPROCS. It does not
	// change results.
	Threads int
	// Kernels is one of [FeatureSet.Available]. "" means the best.
	Kernels string
	// Exact multiplies with activations as they are, in half precision, also where products in
	// integers are faster.
	Exact bool
}

// CPU is the [Backend] for the processor that the program runs on.
//
// Upload makes a copy of the matrix in the order in which the kernels read it, a few percent larger
// than the QMatrix. A product takes scratch memory for at most 256 rows of x at a time, which the
// backend keeps for the next one.
//
// With kernels that compute in integers, activations are rounded to 16 bits, with one scale for at
// most 128 of a row; sums of their products are exact. The others, [PathReconstruct] and rows that
// are not finite use the activations as they are.
//
// An element of a result depends on its row of x and its column of weights only, and sums are
// always in the same order. So results are the same for any number of threads and any other rows in
// the same call, though not on other architectures or with other kernels. With [PathAuto] it
// computes as with [PathFused].
type CPU struct {
	kernels *kernels.Set
	ints    *kernels.Ints // nil for exact products
	threads int
	helpers helpers
	scratch sync.Pool // of *cpuScratch
	inputs  sync.Pool // of *cpuInput
}

var _ Backend = (*CPU)(nil)

// NewCPU returns a backend. It has nothing to close.
func NewCPU(opts CPUOptions) (*CPU, error) {
	c := &CPU{threads: opts.Threads}
	if c.threads < 0 {
		return nil, fmt.Errorf("cpu backend: %d threads", c.threads)
	}
	if c.threads == 0 {
		c.threads = runtime.GOMAXPROCS(0)
	}
	c.helpers.slots = make([]atomic.Pointer[call], c.threads-1)
	for _, set := range kernels.Sets() {
		if set.Name == opts.Kernels || opts.Kernels == "" && !(opts.Exact && set.Ints != nil) {
			c.kernels = set
		}
	}
	if c.kernels == nil {
		return nil, fmt.Errorf("cpu backend: no kernels %q: this build and processor have %q", opts.Kernels, Features().Available)
	}
	if !opts.Exact {
		c.ints = c.kernels.Ints
	}
	return c, nil
}

// Name implements [Backend].
func (c *CPU) Name() string {
	products := "in integers"
	if c.ints == nil {
		products = "exact"
	}
	return fmt.Sprintf("cpu (%s, %s, %s, threads: %d)", runtime.GOARCH, c.kernels.Name, products, c.threads)
}

// Half is a dense matrix of half-precision numbers in main memory, the [Matrix] of the CPU backend.
type Half struct {
	rows, cols int
	data       []byte
	closed     atomic.Bool
}

// NewHalf returns a matrix over data: float16, 2·rows·cols bytes. The matrix uses data itself, so
// the caller can look at results there.
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

// cpuWeight is a matrix in blocks of columns and pieces of rows, as package kernels has them.
type cpuWeight struct {
	rows, cols int
	owner      *CPU
	bias       []byte   // nil for none
	words      []uint32 // [block][piece]
	blockCols  int
	blocks     int
	blockWords int
	pieces     []cpuPiece // the same in all blocks
	shifted    bool
	gather     []int32 // natural row of each row of the pieces, K for padding; nil for the natural order
	pairs      []int32 // the same in the order of the kernels for integers; nil for exact products
	runs       []cpuRun
	depth      int // rows of all pieces
	closed     atomic.Bool
}

// cpuPiece is a part of a group, of at most kernels.MaxPieceRows rows.
type cpuPiece struct {
	group, bits int
	first, rows int      // of the gathered activations
	offset      int      // in the words of a block
	source      []uint32 // codes as in QMatrix; only while the weight is made
}

// cpuRun is pieces of equal width and size, one after the other, that are multiplied with in one
// call.
type cpuRun struct{ first, count int }

// runWords is the most of a run: they stay in the second-level cache while all rows are multiplied
// with them.
const runWords = 128 << 10 / 4

// rowWords returns the words of a row of activations for products in integers.
func (w *cpuWeight) rowWords() int { return w.depth/2 + 3*len(w.pieces) }

// piece returns what the kernels need to know.
func (w *cpuWeight) piece(block int, p *cpuPiece) kernels.Piece {
	return kernels.Piece{
		Words: w.words[block*w.blockWords+p.offset:], Bits: p.bits, Rows: p.rows, Cols: w.blockCols, Shifted: w.shifted,
	}
}

// Upload implements [Backend].
func (c *CPU) Upload(ctx context.Context, m *QMatrix) (Weight, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if m == nil || m.rows == 0 {
		return nil, errors.New("upload: no matrix")
	}
	w := &cpuWeight{rows: m.rows, cols: m.cols, owner: c, shifted: m.format == GPTQ, bias: m.Bias()}
	w.divide(m)

	set := c.kernels
	w.blockCols = set.BlockCols
	if set.StepCols < set.BlockCols {
		// The kernels leave the choice: every thread gets a block, if they are not too narrow, and
		// all are alike.
		blocks := max((m.cols+set.BlockCols-1)/set.BlockCols, min(c.threads, m.cols/minBlockCols))
		w.blockCols = roundUp((m.cols+blocks-1)/blocks, set.StepCols)
	}
	w.blocks = (m.cols + w.blockCols - 1) / w.blockCols
	for i := range w.pieces {
		p := &w.pieces[i]
		p.offset = w.blockWords
		w.blockWords += kernels.Piece{Bits: p.bits, Rows: p.rows, Cols: w.blockCols, Shifted: w.shifted}.Size()
	}
	if c.ints != nil {
		w.pair(c.ints.Order)
	}
	w.words = make([]uint32, w.blocks*w.blockWords)
	largePages(w.words)
	err := c.parallel(ctx, c.threads, w.blocks, func(block int, s *cpuScratch) { w.fill(m, block, s) })
	for i := range w.pieces {
		w.pieces[i].source = nil
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

func roundUp(n, step int) int { return (n + step - 1) / step * step }

// divide makes the pieces. The codes of GPTQ matrices are sorted by group where they are not yet,
// and groups that are no multiple of 32 rows get rows that are multiplied with nothing.
func (w *cpuWeight) divide(m *QMatrix) {
	direct := m.format == EXL2 || m.perm == nil
	for _, g := range m.groups {
		direct = direct && g.Rows%kernels.StepRows == 0
	}
	if direct {
		w.gather = m.perm
	} else {
		w.gather = []int32{}
	}
	for g, group := range m.groups {
		rows, source := group.Rows, m.words
		switch {
		case m.format == EXL2:
			source = source[m.starts[g]*m.cols:]
		case direct:
			source = source[group.FirstRow*group.Bits/32*m.cols:]
		default:
			rows = roundUp(group.Rows, kernels.StepRows)
			source = make([]uint32, rows/32*group.Bits*m.cols)
			for i := range rows {
				if i >= group.Rows {
					w.gather = append(w.gather, int32(m.rows))
					continue
				}
				k := group.FirstRow + i
				if m.perm != nil {
					k = int(m.perm[k])
				}
				w.gather = append(w.gather, int32(k))
				moveRow(source, i*group.Bits, m.words, k*group.Bits, group.Bits, m.cols)
			}
		}
		for rows > 0 {
			p := cpuPiece{group: g, bits: group.Bits, first: w.depth, rows: min(rows, kernels.MaxPieceRows)}
			n := p.rows / 32 * p.bits * m.cols
			p.source, source = source[:n], source[n:]
			w.pieces = append(w.pieces, p)
			w.depth += p.rows
			rows -= p.rows
		}
	}
}

// pair prepares what products in integers need.
func (w *cpuWeight) pair(order *[9][kernels.StepRows]uint8) {
	w.pairs = make([]int32, w.depth)
	for i := range w.pieces {
		p := &w.pieces[i]
		for k := range p.rows {
			from := p.first + k/kernels.StepRows*kernels.StepRows + int(order[p.bits][k%kernels.StepRows])
			if w.gather != nil {
				from = int(w.gather[from])
			}
			w.pairs[p.first+k] = int32(from)
		}
		if run := len(w.runs) - 1; run >= 0 && w.pieces[i-1].bits == p.bits && w.pieces[i-1].rows == p.rows &&
			p.offset-w.pieces[w.runs[run].first].offset < runWords {
			w.runs[run].count++
		} else {
			w.runs = append(w.runs, cpuRun{first: i, count: 1})
		}
	}
}

// fill writes one block.
func (w *cpuWeight) fill(m *QMatrix, block int, s *cpuScratch) {
	col := block * w.blockCols
	cols := min(w.blockCols, m.cols-col)
	scale, zero := grow(&s.scale, cols), grow(&s.zero, cols)
	for i := range w.pieces {
		p := &w.pieces[i]
		out := w.piece(block, p)
		for r := range p.rows / 32 * p.bits {
			copy(out.Words[r*w.blockCols:], p.source[r*m.cols+col:][:cols])
		}
		scales, shifts := out.Scales()
		m.scaleOf(scale, p.group, col)
		for j, v := range scale { // exact: they are half-precision numbers
			scales[j/2] |= uint32(tensor.Float16FromFloat32(v)) << (j % 2 * 16)
		}
		if w.shifted {
			m.zeroOf(zero, p.group, col)
			for j, z := range zero {
				shift := tensor.Float16FromFloat32(float32(int32(1)<<(p.bits-1) - z))
				shifts[j/2] |= uint32(shift) << (j % 2 * 16)
			}
		}
	}
}

// moveRow copies the codes of one row, which start at bit from of every stream of src, to bit to of
// the streams of dst, where there must be zeros.
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

// Rows implements [Weight].
func (w *cpuWeight) Rows() int { return w.rows }

// Cols implements [Weight].
func (w *cpuWeight) Cols() int { return w.cols }

// Bytes implements [Weight].
func (w *cpuWeight) Bytes() int64 {
	return 4*int64(len(w.words)) + 4*int64(len(w.gather)+len(w.pairs)) + int64(len(w.bias))
}

// Close implements [Weight].
func (w *cpuWeight) Close() error {
	if w.closed.Swap(true) {
		return ErrClosed
	}
	return nil
}

const (
	chunkRows    = 256 // of x, converted and multiplied at a time
	minBlockCols = 256 // where blocks may have any size
	smallWork    = 1 << 16
)

// cpuInput is a chunk of x, converted and in stored order, for all workers.
type cpuInput struct {
	// x is divided by pieces and then by strips of rows: [piece][strip][rows of the piece][rows of
	// the strip].
	x []float32
	// sums are the sums of the activations of a piece, [piece][rows]; only for GPTQ.
	sums []float32
	// pairs is divided by strips of rows and then by pieces, as package kernels has them.
	pairs []uint32
	// skip has for each row whether its activations are not all finite.
	skip []bool
}

// cpuScratch is the memory of one worker.
type cpuScratch struct {
	line      []uint16 // a row of x in natural order, as it is
	halves    [kernels.MaxPieceRows]uint16
	pairs     [kernels.MaxPieceRows / 2]uint32
	lines     []float32 // rows of x in natural order
	y         []float32 // [rows, columns of a block]
	panel     []float32 // [rows of a piece, columns of a block]
	scale     []float32 // [columns of a block]
	bias, old []float32
	zero      []int32
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
	chunks := (p.x.rows + chunkRows - 1) / chunkRows
	for i := range chunks {
		first, last := p.x.rows*i/chunks, p.x.rows*(i+1)/chunks
		if err := p.compute(ctx, in, first, last-first); err != nil {
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
	if p.bias = opts.Bias; p.bias == nil {
		p.bias = p.w.bias
	}
	if opts.NoBias {
		p.bias = nil
	}
	if p.bias != nil && len(p.bias) != 2*p.w.cols {
		return nil, fmt.Errorf("bias has %d bytes: want %d", len(p.bias), 2*p.w.cols)
	}
	p.round = opts.Path == PathReconstruct
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

// strips divides rows into strips that one call of a kernel takes: the first row of each, and the
// number of all rows.
type strips []int

func (s strips) count() int { return len(s) - 1 }

// rows returns the number of all rows.
func (s strips) rows() int { return s[len(s)-1] }

// strips divides rows for exact products, and says whether weights are unpacked first. One row is
// multiplied with the codes as they are. For more it pays to unpack.
func (p *product) strips(rows int) (s strips, unpack bool) {
	count := rows
	unpack = p.round
	if n := p.kernels.PanelRows; n > 0 && (rows > 1 || p.round) {
		count, unpack = (rows+n-1)/n, true
	}
	for i := range count + 1 {
		s = append(s, rows*i/max(count, 1))
	}
	return s, unpack
}

// intStrips divides rows for products in integers, into as many as there is a kernel for.
func (p *product) intStrips(rows int) strips {
	s := strips{0}
	for _, n := range slices.Backward(p.ints.Rows) {
		for s.rows()+n <= rows {
			s = append(s, s.rows()+n)
		}
	}
	return s
}

// compute computes some rows of the result. Those with activations that are not finite have no
// integers.
func (p *product) compute(ctx context.Context, in *cpuInput, first, rows int) error {
	if p.ints == nil || p.round {
		return p.chunk(ctx, in, first, rows, false)
	}
	if err := p.chunk(ctx, in, first, rows, true); err != nil {
		return err
	}
	for i := range rows {
		if in.skip[i] {
			if err := p.chunk(ctx, in, first+i, 1, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunk computes some rows of the result, in integers or exactly.
func (p *product) chunk(ctx context.Context, in *cpuInput, first, rows int, ints bool) error {
	w := p.w
	c := &chunk{product: p, first: first}
	convert := c.convert
	if ints {
		c.strips = p.intStrips(rows)
		c.pairs, c.skip = grow(&in.pairs, rows*w.rowWords()), grow(&in.skip, rows)
		convert = c.quantize
	} else {
		c.strips, c.unpack = p.strips(rows)
		c.x = grow(&in.x, rows*w.depth)
		if w.shifted {
			c.sums = grow(&in.sums, rows*len(w.pieces))
		}
	}
	threads := p.threads
	if int64(rows)*int64(w.depth)*int64(w.cols) < smallWork {
		threads = 1
	}
	if err := p.parallel(ctx, threads, c.count(), convert); err != nil {
		return err
	}
	parts := min(c.count(), (threads+w.blocks-1)/w.blocks) // where there are too few blocks, strips are divided too
	return p.parallel(ctx, threads, w.blocks*parts, func(job int, s *cpuScratch) {
		part := job % parts
		c.block(s, job/parts, c.count()*part/parts, c.count()*(part+1)/parts)
	})
}

// chunk is a number of rows of a product.
type chunk struct {
	*product
	strips
	first int // of all rows
	// For exact products:
	x, sums []float32
	unpack  bool
	// For products in integers, nil otherwise:
	pairs []uint32
	skip  []bool
}

// strip returns the activations of a strip for a piece, and their sums for each row.
func (c *chunk) strip(i, piece int) (x, sums []float32) {
	lo, hi := c.strips[i], c.strips[i+1]
	p := &c.w.pieces[piece]
	x = c.x[c.strips.rows()*p.first+lo*p.rows:][:(hi-lo)*p.rows]
	if c.sums != nil {
		sums = c.sums[c.strips.rows()*piece+lo:][:hi-lo]
	}
	return x, sums
}

// stripPairs returns the pairs of a strip from a piece on.
func (c *chunk) stripPairs(i, piece int) []uint32 {
	lo, hi := c.strips[i], c.strips[i+1]
	return c.pairs[lo*c.w.rowWords() : hi*c.w.rowWords()][(hi-lo)*(c.w.pieces[piece].first/2+3*piece):]
}

// quantize makes pairs of one strip of x.
func (c *chunk) quantize(strip int, s *cpuScratch) {
	lo, hi := c.strips[strip], c.strips[strip+1]
	cols := c.product.x.cols
	line := grow(&s.line, cols+1)
	line[cols] = 0 // for padding
	for r := lo; r < hi; r++ {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&line[0])), 2*cols), c.product.x.data[2*(c.first+r)*cols:])
		c.skip[r] = false
		for i := range c.w.pieces {
			p := &c.w.pieces[i]
			halves := s.halves[:p.rows]
			for k, from := range c.w.pairs[p.first:][:len(halves)] {
				halves[k] = line[from]
			}
			scale, sum, ok := c.ints.Quantize(s.pairs[:], halves)
			if !ok {
				c.skip[r] = true
			}
			kernels.PutInts(c.stripPairs(strip, i), hi-lo, r-lo, p.bits, s.pairs[:p.rows/2], scale, sum)
		}
	}
}

// convert widens one strip of x and puts it into stored order.
func (c *chunk) convert(strip int, s *cpuScratch) {
	lo, hi := c.strips[strip], c.strips[strip+1]
	cols, n := c.product.x.cols, hi-lo
	stride := cols + 1 // and a zero, for padding
	lines := grow(&s.lines, n*stride)
	for r := range n {
		line := lines[r*stride:][:stride]
		c.kernels.Decode(line[:cols], c.product.x.data[2*(c.first+lo+r)*cols:][:2*cols])
		line[cols] = 0
	}
	for i := range c.w.pieces {
		p := &c.w.pieces[i]
		x, sums := c.strip(strip, i)
		for r := range n {
			line := lines[r*stride:][:stride]
			switch {
			case c.w.gather != nil:
				for k, from := range c.w.gather[p.first:][:p.rows] {
					x[k*n+r] = line[from]
				}
			case n == 1:
				copy(x, line[p.first:])
			default:
				for k, v := range line[p.first:][:p.rows] {
					x[k*n+r] = v
				}
			}
		}
		for r := range sums {
			sum := 0.0
			for k := range p.rows {
				sum += float64(x[k*n+r])
			}
			sums[r] = float32(sum)
		}
	}
}

// block computes some strips of one block of the result.
func (c *chunk) block(s *cpuScratch, block, firstStrip, lastStrip int) {
	first := c.strips[firstStrip]
	y := grow(&s.y, (c.strips[lastStrip]-first)*c.w.blockCols)
	clear(y)
	if c.pairs != nil {
		c.multiplyInts(y, block, firstStrip, lastStrip)
	} else {
		c.multiply(s, y, block, firstStrip, lastStrip)
	}
	c.store(s, y, block, first, c.strips[lastStrip]-first)
}

// multiply adds the products of some strips with a block to y.
func (c *chunk) multiply(s *cpuScratch, y []float32, block, firstStrip, lastStrip int) {
	w := c.w
	var panel []float32
	if c.unpack {
		panel = grow(&s.panel, kernels.MaxPieceRows*w.blockCols)
	}
	for i := range w.pieces {
		piece := w.piece(block, &w.pieces[i])
		if c.unpack {
			c.kernels.Unpack(panel, piece)
			if c.round {
				c.kernels.Round(panel, piece)
			}
		}
		for strip := firstStrip; strip < lastStrip; strip++ {
			x, sums := c.strip(strip, i)
			out := y[(c.strips[strip]-c.strips[firstStrip])*w.blockCols:]
			if c.unpack {
				c.kernels.MulPanel(out, x, panel, c.strips[strip+1]-c.strips[strip], piece, !c.round, sums)
			} else {
				c.kernels.MulCodes(out, x, piece, sums)
			}
		}
	}
}

// multiplyInts is multiply in integers.
func (c *chunk) multiplyInts(y []float32, block, firstStrip, lastStrip int) {
	w := c.w
	for _, run := range w.runs {
		piece := w.piece(block, &w.pieces[run.first])
		for strip := firstStrip; strip < lastStrip; strip++ {
			lo, hi := c.strips[strip], c.strips[strip+1]
			c.ints.Mul(y[(lo-c.strips[firstStrip])*w.blockCols:], c.stripPairs(strip, run.first), hi-lo, piece, run.count)
		}
	}
}

// store adds bias and old values and rounds.
func (c *chunk) store(s *cpuScratch, y []float32, block, first, rows int) {
	col := block * c.w.blockCols
	cols := min(c.w.blockCols, c.w.cols-col)
	var bias []float32
	if c.bias != nil {
		bias = grow(&s.bias, cols)
		c.kernels.Decode(bias, c.bias[2*col:][:2*cols])
	}
	for i := range rows {
		if c.skip != nil && c.skip[first+i] {
			continue
		}
		line := y[i*c.w.blockCols:][:cols]
		dst := c.dst.data[2*((c.first+first+i)*c.dst.cols+col):][:2*cols]
		for j, v := range bias {
			line[j] += v
		}
		if c.accumulate {
			old := grow(&s.old, cols)
			c.kernels.Decode(old, dst)
			for j, v := range old {
				line[j] += v
			}
		}
		c.kernels.Encode(dst, line)
	}
}
