// Package library is what libkiln does, without C: quantized matrices that callers know by number,
// on the CPU and on GPUs, and products with them in memory of the caller.
//
// It serves cmd/libkiln, whose exported functions only convert arguments. Tensors are given as
// addresses, of main memory or of a GPU; they are read while a matrix is made, not changed, and not
// needed afterwards, unless the caller asks for a matrix in place.
package library

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/tensor"
)

// Status is how a call ended, as C sees it.
type Status int32

// The statuses. Their numbers are part of the ABI.
const (
	OK           Status = iota
	Argument            // an argument is wrong
	Format              // a tensor breaks the rules of its format
	NotSupported        // there is no NVIDIA driver, or no such device
	Memory              // there is not enough memory
	Handle              // there is no such matrix, or it was freed
	CUDA                // the driver reports an error
	Internal            // a fault of the library
)

// StatusOf returns the status of an error.
func StatusOf(err error) Status {
	var (
		format *quant.FormatError
		driver *cuda.Error
	)
	switch {
	case err == nil:
		return OK
	case errors.Is(err, errHandle), errors.Is(err, quant.ErrClosed):
		return Handle
	case errors.As(err, &format):
		return Format
	case errors.Is(err, cuda.ErrNotSupported):
		return NotSupported
	case errors.As(err, &driver):
		const outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY
		if driver.Code == outOfMemory {
			return Memory
		}
		return CUDA
	}
	return Argument
}

var errHandle = errors.New("never made, or freed")

// Host is the device number of main memory, and of the CPU backend.
const Host = -1

// Tensor is a tensor in memory of the caller.
type Tensor struct {
	Data   unsafe.Pointer // nil means that there is no such tensor
	DType  tensor.DType
	Shape  []int64
	Device int // number of the GPU whose memory Data is in, or Host
}

// Request says where a matrix is made from and for.
type Request struct {
	// Tensors are those of the format, by their names on disk.
	Tensors map[string]Tensor
	// Device is where products are computed: a GPU, or Host.
	Device int
	// Stream is the CUDA stream that wrote the tensors: they are read after what it has queued. 0
	// is the default stream.
	Stream uintptr
	// InPlace lets a matrix on the GPU of its tensors use the memory of q_weight, or of qweight and
	// scales, where its packed form fits there.
	InPlace bool
}

// Info describes a matrix.
type Info struct {
	Format     quant.Format
	Rows, Cols int
	Device     int
	Groups     int
	Bits       float64 // per weight
	Bytes      int64   // on the device
	Permuted   bool
	Bias       bool
	// WeightInPlace and ScalesInPlace say what is in memory of the caller.
	WeightInPlace, ScalesInPlace bool
}

// matrix is one entry of the table.
type matrix struct {
	info   Info
	device *cuda.Device   // nil on the CPU
	source *quant.QMatrix // for Dequantize on the CPU
	weight quant.Weight
	lent   []cuda.Region // memory of the caller that the weight uses

	// use is held for reading by calls that use the weight, so that it is not freed under them.
	use   sync.RWMutex
	freed bool
}

// Library is a table of matrices with the devices they are on. Its methods may be called by several
// threads at once.
type Library struct {
	// CPU says how products on the CPU are computed. It is set before the first use.
	CPU quant.CPUOptions

	mu       sync.RWMutex
	last     uint64
	matrices map[uint64]*matrix

	packing sync.Mutex // held while a matrix is made in place
	opening sync.Mutex // serializes Open, which is slow
	cpu     *quant.CPU
	devices map[int]*cuda.Device
}

// New returns an empty library. Devices are opened when they are first used, and stay open.
func New() *Library {
	return &Library{matrices: map[uint64]*matrix{}, devices: map[int]*cuda.Device{}}
}

// host returns the CPU backend.
func (l *Library) host() (*quant.CPU, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.cpu == nil {
		c, err := quant.NewCPU(l.CPU)
		if err != nil {
			return nil, err
		}
		l.cpu = c
	}
	return l.cpu, nil
}

// device returns an open GPU.
func (l *Library) device(ordinal int) (*cuda.Device, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	if d := l.devices[ordinal]; d != nil {
		return d, nil
	}
	d, err := cuda.Open(cuda.Options{Ordinal: ordinal, BLAS: "loaded"})
	if err != nil {
		return nil, noDriver(err)
	}
	l.devices[ordinal] = d
	return d, nil
}

// noDriver says it in words that people search for.
func noDriver(err error) error {
	if !errors.Is(err, cuda.ErrNotSupported) {
		return err
	}
	return fmt.Errorf("no NVIDIA driver or no usable GPU: %w", err)
}

// Devices returns the GPUs of this machine.
func (l *Library) Devices() ([]cuda.Info, error) {
	devices, _, err := cuda.Probe()
	if err != nil {
		return nil, noDriver(err)
	}
	return devices, nil
}

// Describe returns the name of the backend for a device.
func (l *Library) Describe(device int) (string, error) {
	if device == Host {
		c, err := l.host()
		if err != nil {
			return "", err
		}
		return c.Name(), nil
	}
	d, err := l.device(device)
	if err != nil {
		return "", err
	}
	return d.Name(), nil
}

// MakeEXL2 makes a matrix of q_weight, q_groups, q_scale, q_scale_max and, where they are given,
// q_invperm and bias.
func (l *Library) MakeEXL2(r Request, opts quant.EXL2Options) (uint64, error) {
	return l.make(r, func(src quant.Source) (*quant.QMatrix, error) { return quant.LoadEXL2(src, "", opts) })
}

// MakeGPTQ makes a matrix of qweight, qzeros, scales and, where they are given, g_idx and bias.
func (l *Library) MakeGPTQ(r Request, opts quant.GPTQOptions) (uint64, error) {
	return l.make(r, func(src quant.Source) (*quant.QMatrix, error) { return quant.LoadGPTQ(src, "", opts) })
}

func (l *Library) make(r Request, load func(quant.Source) (*quant.QMatrix, error)) (uint64, error) {
	if r.InPlace {
		// Another call must not read the tensors while they are overwritten.
		l.packing.Lock()
		defer l.packing.Unlock()
	}
	src, err := l.read(r)
	if err != nil {
		return 0, err
	}
	m, err := load(src)
	if err != nil {
		return 0, err
	}
	return l.add(r, m)
}

// read returns the tensors in main memory: those that are there already without a copy, as loading
// makes one anyway.
func (l *Library) read(r Request) (quant.TensorMap, error) {
	src := quant.TensorMap{}
	for name, t := range r.Tensors {
		if t.Data == nil {
			continue
		}
		size, err := tensor.Size(t.DType, t.Shape)
		if err != nil {
			return nil, &quant.FormatError{Tensor: name, Index: -1, Reason: err.Error()}
		}
		const most = 1 << 40
		if size > most {
			return nil, &quant.FormatError{Tensor: name, Index: -1, Reason: fmt.Sprintf("%d bytes", size)}
		}
		if err := l.overwritten(name, t, size); err != nil {
			return nil, err
		}
		if (name == "q_weight" || name == "qweight") && t.Device != Host && t.Device == r.Device {
			// The words stay where they are; what the caller's stream still does with them comes first.
			d, err := l.device(t.Device)
			if err != nil {
				return nil, err
			}
			if err := d.On(r.Stream).Synchronize(); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			src[name] = quant.Tensor{DType: t.DType, Shape: t.Shape, Elsewhere: true}
			continue
		}
		data, err := l.bytes(t, int(size), r.Stream)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		src[name] = quant.Tensor{DType: t.DType, Shape: t.Shape, Data: data}
	}
	return src, nil
}

// overwritten returns an error for a tensor whose memory holds a matrix that was made in place: its
// bytes are no longer the tensor's.
func (l *Library) overwritten(name string, t Tensor, size int64) error {
	if t.Device == Host {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for handle, m := range l.matrices {
		for _, lent := range m.lent {
			if m.info.Device == t.Device && uintptr(t.Data) < lent.At+uintptr(lent.Bytes) && lent.At < uintptr(t.Data)+uintptr(size) {
				return fmt.Errorf("%s is in the memory of matrix %d, which was made in place: load the tensor again", name, handle)
			}
		}
	}
	return nil
}

// bytes returns the data of a tensor, whose bytes are an even number as every type here has two or
// four.
func (l *Library) bytes(t Tensor, size int, stream uintptr) ([]byte, error) {
	if t.Device == Host {
		return unsafe.Slice((*byte)(t.Data), size), nil
	}
	d, err := l.device(t.Device)
	if err != nil {
		return nil, err
	}
	m, err := d.On(stream).Borrow(uintptr(t.Data), 1, size/2)
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	return data, m.CopyTo(data)
}

// add brings a matrix to its device and gives it a number. Numbers are never used again.
func (l *Library) add(r Request, m *quant.QMatrix) (uint64, error) {
	entry := &matrix{info: Info{
		Format: m.Format(), Rows: m.Rows(), Cols: m.Cols(), Device: r.Device, Groups: len(m.Groups()),
		Bits: m.BitsPerWeight(), Permuted: m.Permuted(), Bias: m.Bias() != nil,
	}}
	if r.Device == Host {
		c, err := l.host()
		if err != nil {
			return 0, err
		}
		entry.source = m
		entry.weight, err = c.Upload(context.Background(), m)
		if err != nil {
			return 0, err
		}
	} else {
		d, err := l.device(r.Device)
		if err != nil {
			return 0, err
		}
		place := r.place()
		w, err := d.UploadInto(context.Background(), m, place)
		if err != nil {
			return 0, err
		}
		entry.device, entry.weight = d, w
		entry.info.WeightInPlace, entry.info.ScalesInPlace = w.InPlace()
		if entry.info.WeightInPlace {
			entry.lent = append(entry.lent, place.Words)
		}
		if entry.info.ScalesInPlace {
			entry.lent = append(entry.lent, place.Scales)
		}
	}
	entry.info.Bytes = entry.weight.Bytes()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.matrices[l.last] = entry
	return l.last, nil
}

// place returns the memory that a matrix may be packed into. What the tensors are was checked when
// they were read.
func (r Request) place() cuda.Place {
	region := func(name string, wanted bool) cuda.Region {
		t := r.Tensors[name]
		if !wanted || t.Data == nil || t.Device != r.Device {
			return cuda.Region{}
		}
		size, err := tensor.Size(t.DType, t.Shape)
		if err != nil {
			return cuda.Region{}
		}
		return cuda.Region{At: uintptr(t.Data), Bytes: size}
	}
	if _, ok := r.Tensors["q_weight"]; ok {
		return cuda.Place{Words: region("q_weight", r.InPlace), Source: region("q_weight", true)}
	}
	return cuda.Place{Words: region("qweight", r.InPlace), Scales: region("scales", r.InPlace), Source: region("qweight", true)}
}

// find returns a matrix that stays until the caller calls use.RUnlock.
func (l *Library) find(handle uint64) (*matrix, error) {
	l.mu.RLock()
	m := l.matrices[handle]
	l.mu.RUnlock()
	if m == nil {
		return nil, fmt.Errorf("matrix %d: %w", handle, errHandle)
	}
	m.use.RLock()
	if m.freed {
		m.use.RUnlock()
		return nil, fmt.Errorf("matrix %d: %w", handle, errHandle)
	}
	return m, nil
}

// Info describes a matrix.
func (l *Library) Info(handle uint64) (Info, error) {
	m, err := l.find(handle)
	if err != nil {
		return Info{}, err
	}
	defer m.use.RUnlock()
	return m.info, nil
}

// Free gives the memory of a matrix back. It waits for products with it.
func (l *Library) Free(handle uint64) error {
	l.mu.Lock()
	m := l.matrices[handle]
	delete(l.matrices, handle)
	l.mu.Unlock()
	if m == nil {
		return fmt.Errorf("matrix %d: %w", handle, errHandle)
	}
	m.use.Lock()
	defer m.use.Unlock()
	m.freed = true
	return m.weight.Close()
}

// Half is a dense, row-major half-precision matrix in memory of the caller, on the device of the
// quantized one.
type Half struct {
	Data       unsafe.Pointer
	Rows, Cols int64
}

// bytes returns a matrix in main memory.
func (h Half) bytes() (*quant.Half, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	return quant.NewHalf(int(h.Rows), int(h.Cols), unsafe.Slice((*byte)(h.Data), 2*h.Rows*h.Cols))
}

func (h Half) check() error {
	const most = 1 << 31
	if h.Rows < 0 || h.Cols < 0 || h.Rows >= most || h.Cols >= most {
		return fmt.Errorf("matrix of %d rows and %d columns", h.Rows, h.Cols)
	}
	if h.Data == nil && h.Rows > 0 && h.Cols > 0 {
		return fmt.Errorf("matrix of %d rows and %d columns without data", h.Rows, h.Cols)
	}
	return nil
}

// Gemm computes out = x·W as [quant.Backend] says. On a GPU it queues the product on the stream and
// returns.
func (l *Library) Gemm(handle uint64, out, x Half, opts quant.GemmOptions, stream uintptr) error {
	m, err := l.find(handle)
	if err != nil {
		return err
	}
	defer m.use.RUnlock()
	if err := m.check(out, x); err != nil {
		return err
	}
	if m.device == nil {
		return l.gemmHost(m, out, x, opts)
	}
	s := m.device.On(stream)
	from, err := borrow(s, x)
	if err != nil {
		return fmt.Errorf("activations: %w", err)
	}
	to, err := borrow(s, out)
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return s.Gemm(context.Background(), to, from, m.weight, opts)
}

// check compares the sizes of a product, before anything is read: the size of the memory follows
// from these numbers.
func (m *matrix) check(out, x Half) error {
	switch {
	case x.Cols != int64(m.info.Rows):
		return fmt.Errorf("activations have %d columns: the matrix has %d rows", x.Cols, m.info.Rows)
	case out.Cols != int64(m.info.Cols):
		return fmt.Errorf("result has %d columns: the matrix has %d", out.Cols, m.info.Cols)
	case out.Rows != x.Rows:
		return fmt.Errorf("result has %d rows: the activations have %d", out.Rows, x.Rows)
	}
	return nil
}

func (l *Library) gemmHost(m *matrix, out, x Half, opts quant.GemmOptions) error {
	from, err := x.bytes()
	if err != nil {
		return fmt.Errorf("activations: %w", err)
	}
	to, err := out.bytes()
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return l.cpu.Gemm(context.Background(), to, from, m.weight, opts)
}

// Product is one of several with the same activations.
type Product struct {
	Handle uint64
	Out    Half
}

// GemmMany computes the products of one x with several matrices of one device. Nothing is computed
// if one of them is refused.
func (l *Library) GemmMany(products []Product, x Half, opts quant.GemmOptions, stream uintptr) error {
	matrices := make([]*matrix, len(products))
	for i, p := range products {
		m, err := l.find(p.Handle)
		if err != nil {
			return err
		}
		defer m.use.RUnlock()
		if err := m.check(p.Out, x); err != nil {
			return fmt.Errorf("product %d: %w", i, err)
		}
		matrices[i] = m
		if m.device != matrices[0].device {
			return fmt.Errorf("product %d: the matrices are on several devices", i)
		}
	}
	if len(products) == 0 {
		return nil
	}
	if matrices[0].device == nil {
		for i, p := range products {
			if err := l.gemmHost(matrices[i], p.Out, x, opts); err != nil {
				return fmt.Errorf("product %d: %w", i, err)
			}
		}
		return nil
	}
	s := matrices[0].device.On(stream)
	from, err := borrow(s, x)
	if err != nil {
		return fmt.Errorf("activations: %w", err)
	}
	results, weights := make([]quant.Matrix, len(products)), make([]quant.Weight, len(products))
	for i, p := range products {
		to, err := borrow(s, p.Out)
		if err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
		results[i], weights[i] = to, matrices[i].weight
	}
	return s.GemmMany(context.Background(), results, from, weights, opts)
}

func borrow(s *cuda.Stream, h Half) (*cuda.Matrix, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	return s.Borrow(uintptr(h.Data), int(h.Rows), int(h.Cols))
}

// Dequantize writes the weights, [K, N] in natural order. On a GPU it queues that on the stream and
// returns.
func (l *Library) Dequantize(handle uint64, out Half, stream uintptr) error {
	m, err := l.find(handle)
	if err != nil {
		return err
	}
	defer m.use.RUnlock()
	if out.Rows != int64(m.info.Rows) || out.Cols != int64(m.info.Cols) {
		return fmt.Errorf("result is %d×%d: want %d×%d", out.Rows, out.Cols, m.info.Rows, m.info.Cols)
	}
	if err := out.check(); err != nil {
		return err
	}
	if m.device == nil {
		return m.source.Dequantize(unsafe.Slice((*byte)(out.Data), 2*out.Rows*out.Cols))
	}
	s := m.device.On(stream)
	to, err := borrow(s, out)
	if err != nil {
		return err
	}
	return s.Dequantize(to, m.weight)
}
