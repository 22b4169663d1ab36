package cuda

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// weightArgs is the structure Weight of kernels/kiln.cuh.
type weightArgs struct {
	words, blocks, scales, zeros, perm uintptr
	rows, columns, blockCount, strips  int32
	stride                             uint32
	maxWidth                           int32
	wider, fours                       int32
}

type packArgs struct {
	weight       weightArgs
	source, bits uintptr
	words        uintptr
}

type dequantizeArgs struct {
	weight weightArgs
	out    uintptr
}

// block is the structure Block of kernels/kiln.cuh.
type block struct {
	place uint32
	part  uint32
}

const (
	blockRows    = 32
	stripColumns = 32
	unitBytes    = 128 // of a unit, for each bit of width

	// wordsMargin is what a warp of four strips reads, and does not use, where there is only one
	// left.
	wordsMargin = 3 * 8 * unitBytes
)

// layout is what a matrix becomes on a device; see kernels/kiln.cuh. It is made without one.
type layout struct {
	blocks []block
	perm   []int32  // by padded row; nil if nothing is moved or padded
	order  []uint16 // perm in 16 bits, the number of rows for padding; nil also where that is too little
	bits   []int32  // by padded row: bit in the stream of a column, −1 for padding
	scales []tensor.Float16
	zeros  []tensor.Float16 // nil if all are those of EXL2
	strips int
	stride int // 128 bytes
	width  int // the one width, 0 for several
	widest int
	wider  int32 // how many blocks have more than four bits
	fours  int32 // and how many have four
}

// newLayout plans the repacking of a matrix.
func newLayout(m *quant.QMatrix) (*layout, error) {
	groups, k, n := m.Groups(), m.Rows(), m.Cols()
	l := &layout{strips: (n + stripColumns - 1) / stripColumns}
	natural := m.Perm()
	moved, mixed := m.Permuted() || k%blockRows != 0, false
	for g, group := range groups {
		if group.Rows%blockRows != 0 {
			moved = true
		}
		for first := 0; first < group.Rows; first += blockRows {
			rest := (group.Rows - first + blockRows - 1) / blockRows
			l.blocks = append(l.blocks, block{uint32(l.stride<<4 | group.Bits), uint32(rest<<16 | g)})
			l.stride += group.Bits
			if group.Bits > 4 {
				l.wider++
			} else if group.Bits == 4 {
				l.fours++
			}
			for i := first; i < first+blockRows; i++ {
				if i >= group.Rows {
					l.perm, l.bits = append(l.perm, -1), append(l.bits, -1)
					continue
				}
				bit := m.CodeBit(group.FirstRow + i)
				if bit > math.MaxInt32 {
					return nil, fmt.Errorf("%d rows are too many", k)
				}
				l.perm, l.bits = append(l.perm, natural[group.FirstRow+i]), append(l.bits, int32(bit))
			}
		}
		if group.Rows > 0 {
			mixed = mixed || l.widest != 0 && group.Bits != l.widest
			l.widest = max(l.widest, group.Bits)
		}
	}
	if !mixed {
		l.width = l.widest
	}
	if l.stride >= 1<<28 || len(groups) > math.MaxUint16 || len(l.blocks) > math.MaxUint16 {
		return nil, fmt.Errorf("%d rows are too many", k)
	}
	if !moved {
		l.perm = nil
	} else if k <= math.MaxUint16 && k%8 == 0 {
		for _, row := range l.perm {
			if row < 0 {
				row = int32(k)
			}
			l.order = append(l.order, uint16(row))
		}
	}
	l.tables(m, groups)
	return l, nil
}

// tables makes the scales and zero points, [group][strip][32], in the order of kernels/kiln.cuh.
func (l *layout) tables(m *quant.QMatrix, groups []quant.Group) {
	n := m.Cols()
	l.scales = make([]tensor.Float16, len(groups)*l.strips*stripColumns)
	line, zero := make([]tensor.Float16, n), make([]int32, n)
	symmetric := true
	if m.Format() == quant.GPTQ {
		l.zeros = make([]tensor.Float16, len(l.scales))
	}
	for g := range groups {
		m.Scales(line, g)
		to := l.scales[g*l.strips*stripColumns:]
		for c, v := range line {
			to[place(c)] = v
		}
		if l.zeros == nil {
			continue
		}
		m.Zeros(zero, g)
		to = l.zeros[g*l.strips*stripColumns:]
		for c, v := range zero {
			to[place(c)] = tensor.Float16FromFloat32(float32(v))
			symmetric = symmetric && v == 1<<(groups[g].Bits-1)
		}
	}
	if symmetric {
		l.zeros = nil
	}
}

// words returns the size of all units in bytes, with the margin.
func (l *layout) words() int64 { return int64(l.strips)*int64(l.stride)*unitBytes + wordsMargin }

// place returns where the scale of a column is in the line of its group.
func place(column int) int {
	strip, c := column/stripColumns, column%stripColumns
	f, h, g := c/16, c/8%2, c%8
	return strip*stripColumns + 4*g + 2*f + h
}

// Weight is a quantized matrix on a device.
type Weight struct {
	d     *Device
	args  weightArgs
	order uintptr // u16 for each padded row, see kernels/gemm.cu; 0 if there is no permutation, or too many rows
	width int
	// permHash is that of perm, to find weights that want the same order of activations.
	permHash [sha256.Size]byte
	bytes    int64
	bias     uintptr
	memory   []uintptr
	// wordsLent and scalesLent say that these are in memory of the caller.
	wordsLent, scalesLent bool

	mu     sync.Mutex
	closed bool
	plans  map[planKey]plan
}

// moves reports whether activations have to be brought into another order, or padded.
func (w *Weight) moves() bool { return w.args.perm != 0 || w.args.blockCount*blockRows != w.args.rows }

// Region is memory on a device.
type Region struct {
	At    uintptr
	Bytes int64
}

// fits says whether so many bytes can be there; copies in kernels want the alignment.
func (r Region) fits(bytes int64) bool { return r.At != 0 && r.At%256 == 0 && r.Bytes >= bytes }

// Place is memory of the caller that a weight may use instead of its own: the memory that the
// tensors of the matrix are in, for instance, which are then lost. It must stay until the weight is
// closed. If the words do not fit, nothing of it is used. Source is where the words of the tensors are
// on the device, for a matrix that has none; it may be the same memory as Words.
type Place struct{ Words, Scales, Source Region }

// Upload implements [quant.Backend]. The matrix is repacked on the device; when Upload returns that
// is done.
func (s *Stream) Upload(ctx context.Context, m *quant.QMatrix) (quant.Weight, error) {
	w, err := s.uploadInto(ctx, m, Place{})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// UploadInto is Upload into memory of the caller, where that is large enough; [Weight.InPlace] says
// what is there. After an error it may have been written to only if the device failed, not for want
// of memory.
func (d *Device) UploadInto(ctx context.Context, m *quant.QMatrix, place Place) (*Weight, error) {
	return d.main.uploadInto(ctx, m, place)
}

func (s *Stream) uploadInto(ctx context.Context, m *quant.QMatrix, place Place) (*Weight, error) {
	if m == nil {
		return nil, errors.New("upload: no matrix")
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	l, err := newLayout(m)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	w := &Weight{d: s.d, width: l.width}
	if l.perm != nil {
		w.permHash = sha256.Sum256(unsafe.Slice((*byte)(unsafe.Pointer(&l.perm[0])), 4*len(l.perm)))
	}
	err = s.d.do(func() error { return w.fill(s, m, l, place) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("upload: %w", err), s.d.do(w.release))
	}
	return w, nil
}

// fill allocates and packs. What was allocated is in w.memory also after an error.
func (w *Weight) fill(s *Stream, m *quant.QMatrix, l *layout, place Place) error {
	drv := s.d.drv
	var temporary []uintptr
	defer func() {
		for _, p := range temporary {
			_ = drv.free(p)
		}
	}()
	var errs []error
	alloc := func(keep bool, bytes int64) uintptr {
		p, err := drv.alloc(bytes)
		errs = append(errs, err)
		if keep {
			w.memory = append(w.memory, p)
			w.bytes += bytes
		} else {
			temporary = append(temporary, p)
		}
		return p
	}
	put := func(keep bool, data unsafe.Pointer, bytes int64) uintptr {
		if bytes == 0 {
			return 0
		}
		p := alloc(keep, bytes)
		if errors.Join(errs...) == nil {
			errs = append(errs, drv.upload(p, data, bytes, s.handle))
		}
		return p
	}
	words, bias := m.Words(), m.Bias()
	scales, scaleBytes := unsafe.Pointer(unsafe.SliceData(l.scales)), 2*int64(len(l.scales))
	w.args = weightArgs{
		blocks:     put(true, unsafe.Pointer(unsafe.SliceData(l.blocks)), 8*int64(len(l.blocks))),
		zeros:      put(true, unsafe.Pointer(unsafe.SliceData(l.zeros)), 2*int64(len(l.zeros))),
		perm:       put(true, unsafe.Pointer(unsafe.SliceData(l.perm)), 4*int64(len(l.perm))),
		rows:       int32(m.Rows()),
		columns:    int32(m.Cols()),
		blockCount: int32(len(l.blocks)),
		strips:     int32(l.strips),
		stride:     uint32(l.stride),
		maxWidth:   int32(l.widest),
		wider:      l.wider,
		fours:      l.fours,
	}
	// Without a margin only where no warp reads it.
	if size := l.words() - wordsMargin; l.strips%4 == 0 && place.Words.fits(size) {
		w.args.words, w.wordsLent = place.Words.At, true
		w.bytes += size
	} else {
		w.args.words = alloc(true, l.words())
	}
	if w.wordsLent && place.Scales.fits(scaleBytes) {
		w.args.scales, w.scalesLent = place.Scales.At, true
		w.bytes += scaleBytes
	} else {
		w.args.scales = put(true, scales, scaleBytes)
	}
	w.order = put(true, unsafe.Pointer(unsafe.SliceData(l.order)), 2*int64(len(l.order)))
	w.bias = put(true, unsafe.Pointer(unsafe.SliceData(bias)), int64(len(bias)))
	source := place.Source.At
	switch {
	case words != nil:
		source = put(false, unsafe.Pointer(unsafe.SliceData(words)), 4*int64(len(words)))
	case source == 0:
		errs = append(errs, errors.New("the matrix has no words"))
	case w.wordsLent: // packing must not overwrite what it reads
		source = alloc(false, place.Source.Bytes)
		if errors.Join(errs...) == nil {
			errs = append(errs, drv.copy(source, place.Source.At, place.Source.Bytes, s.handle))
		}
	}
	args := &packArgs{
		weight: w.args,
		source: source,
		bits:   put(false, unsafe.Pointer(unsafe.SliceData(l.bits)), 4*int64(len(l.bits))),
		words:  w.args.words,
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// Nothing is written to memory of the caller before all other memory is there.
	if w.scalesLent {
		if err := drv.upload(w.args.scales, scales, scaleBytes, s.handle); err != nil {
			return err
		}
	}
	if err := s.launch("kiln_pack", w.unitGrid(), 256, 0, unsafe.Pointer(args), 0); err != nil {
		return err
	}
	return drv.synchronize(s.handle)
}

// InPlace says which parts of the weight are in memory of the caller.
func (w *Weight) InPlace() (words, scales bool) { return w.wordsLent, w.scalesLent }

// unitGrid is a grid of blocks with 8 warps, a warp for each unit.
func (w *Weight) unitGrid() [3]uint32 {
	return [3]uint32{uint32(w.args.strips), uint32(w.args.blockCount+7) / 8, 1}
}

// clone returns a copy in other memory, for measurements that must not hit the cache.
func (w *Weight) clone(s *Stream) (*Weight, error) {
	c := &Weight{d: w.d, args: w.args, order: w.order, width: w.width, permHash: w.permHash}
	size := int64(w.args.strips)*int64(w.args.stride)*unitBytes + wordsMargin
	err := w.d.do(func() (err error) {
		if c.args.words, err = w.d.drv.alloc(size); err != nil {
			return err
		}
		c.memory = []uintptr{c.args.words}
		return w.d.drv.copy(c.args.words, w.args.words, size, s.handle)
	})
	return c, err
}

// Rows implements [quant.Weight].
func (w *Weight) Rows() int { return int(w.args.rows) }

// Cols implements [quant.Weight].
func (w *Weight) Cols() int { return int(w.args.columns) }

// Bytes implements [quant.Weight].
func (w *Weight) Bytes() int64 { return w.bytes }

// Dequantize writes the weights into dst, [K, N] in natural order, bit for bit as
// [quant.QMatrix.Dequantize] does. Like Gemm it only queues the work.
func (s *Stream) Dequantize(dst quant.Matrix, w quant.Weight) error {
	weight, err := s.weight(w)
	if err != nil {
		return fmt.Errorf("dequantize: %w", err)
	}
	to, err := s.matrix(dst, "result")
	if err != nil {
		return fmt.Errorf("dequantize: %w", err)
	}
	if dst.Rows() != weight.Rows() || dst.Cols() != weight.Cols() {
		return fmt.Errorf("dequantize: result is %d×%d: want %d×%d", dst.Rows(), dst.Cols(), weight.Rows(), weight.Cols())
	}
	if to%4 != 0 {
		return fmt.Errorf("dequantize: result at %#x is not aligned to 4 bytes", to)
	}
	args := &dequantizeArgs{weight.args, to}
	return s.d.do(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.launch("kiln_dequantize", weight.unitGrid(), 256, 0, unsafe.Pointer(args), 0)
	})
}

// Close implements [quant.Weight]. It waits for products with the weight.
func (w *Weight) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("weight: %w", quant.ErrClosed)
	}
	w.closed = true
	return w.d.do(w.release)
}

func (w *Weight) release() error {
	var errs []error
	for _, p := range w.memory {
		errs = append(errs, w.d.drv.free(p))
	}
	w.memory = nil
	return errors.Join(errs...)
}

// Dequantize is [Stream.Dequantize] on the device's own stream.
func (d *Device) Dequantize(dst quant.Matrix, w quant.Weight) error { return d.main.Dequantize(dst, w) }
