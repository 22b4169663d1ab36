package cuda

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant"
)

// Info describes a device.
type Info struct {
	Ordinal         int    `json:"ordinal"`
	Name            string `json:"name"`
	Major           int    `json:"major"`
	Minor           int    `json:"minor"`
	Multiprocessors int    `json:"multiprocessors"`
	MemoryBytes     int64  `json:"memory_bytes"`
	L2Bytes         int64  `json:"l2_bytes"`
	SharedBytes     int    `json:"shared_bytes"` // the most that a thread block can have
}

// Probe returns the devices of this machine and the version of CUDA that the driver supports, 13000
// for 13.0.
func Probe() (devices []Info, driverVersion int, err error) {
	drv, err := loadDriver()
	if err != nil {
		return nil, 0, err
	}
	n, err := drv.count()
	if err != nil {
		return nil, drv.version, err
	}
	for i := range n {
		_, info, err := drv.describe(i)
		if err != nil {
			return nil, drv.version, err
		}
		devices = append(devices, info)
	}
	return devices, drv.version, nil
}

func (d *driver) describe(ordinal int) (int32, Info, error) {
	info := Info{Ordinal: ordinal}
	dev, err := d.device(ordinal)
	if err != nil {
		return 0, info, err
	}
	info.Name, err = d.deviceName(dev)
	errs := []error{err}
	get := func(attribute int) int {
		v, err := d.attribute(dev, attribute)
		errs = append(errs, err)
		return v
	}
	info.Major, info.Minor = get(attrMajor), get(attrMinor)
	info.Multiprocessors = get(attrMultiprocessors)
	info.L2Bytes = int64(get(attrL2Bytes))
	info.SharedBytes = get(attrSharedOptin)
	info.MemoryBytes, err = d.totalMem(dev)
	return dev, info, errors.Join(append(errs, err)...)
}

// Options say which device to use. The zero value is the first one.
type Options struct {
	// Ordinal is the number of the device, as the driver counts.
	Ordinal int
	// PTX loads the portable kernels also where there is machine code for the device; for tests.
	PTX bool
	// Capability, 75 for instance, treats the device as one of that compute capability, with its
	// kernels and no more shared memory than it has; for tests. 0 means that of the device, and more
	// than that is an error. JIT must be nil.
	Capability int
	// BLAS lets cuBLAS compute products of thousands of rows, with weights that are dequantized for
	// each call into scratch memory of 2·K·N bytes. Empty means no; "auto" is the library that the
	// loader finds; "loaded" is one that the process has loaded already, if it has one; anything
	// else is its path. Products with a bias and those with PathFused are computed as without it.
	BLAS string
	// JIT compiles the kernels for exactly this device instead of loading the embedded ones. Nil
	// means no.
	JIT *JIT
	// Kernels has compiled kernels, with images.json, to use instead of the embedded ones; for work
	// on kernels.
	Kernels fs.FS
}

// Device is a GPU with the kernels loaded. It is a [quant.Backend] that computes on a stream of its
// own; products are queued, and reading a matrix waits for them. It shares the device's primary
// context with the CUDA runtime, PyTorch for instance, so memory of one is valid for the other.
type Device struct {
	info Info
	drv  *driver
	dev  int32
	ctx  uintptr

	modules   []uintptr
	functions map[string]uintptr
	clusters  bool // whether thread blocks of gemm.cu add up as a cluster
	overlap   bool // whether kernels wait themselves for those before them

	main *Stream
	side uintptr // a stream that is never captured into a graph

	mu      sync.Mutex
	closed  bool
	streams map[uintptr]*Stream
	tuned   map[tuneKey]plan

	blas *blasLibrary // nil unless Options.BLAS is set
}

var _ quant.Backend = (*Device)(nil)

// Open prepares a device. Close it after all weights and matrices on it.
func Open(opts Options) (*Device, error) {
	drv, err := loadDriver()
	if err != nil {
		return nil, err
	}
	return drv.open(opts)
}

func (drv *driver) open(opts Options) (*Device, error) {
	n, err := drv.count()
	if err != nil && !isCode(err, errNoDevice) {
		return nil, err
	}
	if opts.Ordinal < 0 || opts.Ordinal >= n {
		return nil, fmt.Errorf("CUDA device %d: %w: the driver %s has %d devices", opts.Ordinal, ErrNotSupported, drv.path, n)
	}
	dev, info, err := drv.describe(opts.Ordinal)
	if err != nil {
		return nil, err
	}
	if info, err = info.as(opts.Capability); err != nil {
		return nil, fmt.Errorf("CUDA device %d: %w", opts.Ordinal, err)
	}
	if opts.Capability != 0 && opts.JIT != nil {
		return nil, fmt.Errorf("CUDA device %d: kernels compiled for this device are not those of capability %d", opts.Ordinal, opts.Capability)
	}
	d := &Device{info: info, drv: drv, dev: dev, functions: map[string]uintptr{}, streams: map[uintptr]*Stream{}}
	if opts.BLAS != "" {
		d.blas, err = loadBLAS(strings.TrimPrefix(opts.BLAS, "auto"))
		if err != nil && (opts.BLAS != "loaded" || !errors.Is(err, ErrNotSupported)) {
			return nil, err
		}
	}
	if d.ctx, err = drv.retainPrimary(dev); err != nil {
		return nil, fmt.Errorf("CUDA device %d (%s): %w", opts.Ordinal, info.Name, err)
	}
	err = d.do(func() error {
		if err := d.load(opts); err != nil {
			return err
		}
		s, err := drv.newStream()
		if err != nil {
			return err
		}
		d.main = &Stream{d: d, handle: s}
		d.side, err = drv.newStream()
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("CUDA device %d (%s): %w", opts.Ordinal, info.Name, err), d.Close())
	}
	return d, nil
}

// as returns the device as one of an older compute capability.
func (i Info) as(capability int) (Info, error) {
	if capability == 0 {
		return i, nil
	}
	if own := 10*i.Major + i.Minor; capability > own || capability < 10*minMajor+minMinor {
		return i, fmt.Errorf("compute capability %d.%d of %s taken for %d.%d: %w",
			i.Major, i.Minor, i.Name, capability/10, capability%10, ErrNotSupported)
	}
	i.Major, i.Minor = capability/10, capability%10
	shared := 227 << 10
	switch {
	case capability < 70:
		shared = 48 << 10
	case capability < 75:
		shared = 96 << 10
	case capability < 80:
		shared = 64 << 10
	case capability < 90:
		shared = 99 << 10
	}
	i.SharedBytes = min(i.SharedBytes, shared)
	return i, nil
}

func isCode(err error, code int) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// load loads, for each module, the first image that the device takes.
func (d *Device) load(opts Options) error {
	from := opts.Kernels
	if from == nil {
		from = embedded()
	}
	images, err := readImages(from)
	if err != nil {
		return err
	}
	loaded := map[string]bool{}
	if opts.JIT != nil {
		compiled, err := opts.JIT.compileFor(d.info.Major, d.info.Minor)
		if err != nil {
			return err
		}
		for _, c := range compiled {
			if tileRows[c.module] != nil && d.drv.tensorMapEncodeTiled == 0 {
				continue
			}
			image := Image{Name: "compiled " + c.module, Module: c.module, Major: d.info.Major, Minor: d.info.Minor}
			if err := d.loadModule(image, c.image); err != nil {
				return err
			}
			loaded[c.module] = true
		}
	}
	wanted := required(d.info.Major, d.info.Minor)
	for _, image := range images.Files {
		useful := slices.Contains(wanted, image.Module) || tileRows[image.Module] != nil && d.drv.tensorMapEncodeTiled != 0
		if loaded[image.Module] || !useful || opts.PTX && !image.PTX || !image.runsOn(d.info.Major, d.info.Minor) {
			continue
		}
		data, err := readImage(from, image)
		if err != nil {
			return err
		}
		err = d.loadModule(image, data)
		if isCode(err, errInvalidImage) || isCode(err, errNoBinary) || isCode(err, errPTXVersion) {
			continue // made by a newer toolkit than the driver knows; there may be another
		}
		if err != nil {
			return err
		}
		loaded[image.Module] = true
	}
	d.overlap = d.overlap && d.clusters
	for _, module := range wanted {
		if !loaded[module] {
			return fmt.Errorf("%w: no embedded kernels for compute capability %d.%d and driver %d (have %d.%d and later)",
				ErrNotSupported, d.info.Major, d.info.Minor, d.drv.version, minMajor, minMinor)
		}
	}
	// Once, so that no launch has to.
	for name, f := range d.functions {
		if !slices.ContainsFunc([]string{"kiln_gemm_", "kiln_wide_", "kiln_tall_", "kiln_permute"}, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		}) {
			continue
		}
		if err := d.drv.setShared(f, d.info.SharedBytes-maxStaticShared); err != nil {
			return err
		}
	}
	return nil
}

// loadModule loads one image and finds its kernels.
func (d *Device) loadModule(image Image, data []byte) error {
	handle, err := d.drv.loadModule(data)
	if err != nil {
		return fmt.Errorf("load %s: %w", image.Name, err)
	}
	d.modules = append(d.modules, handle)
	for _, kernel := range image.kernels() {
		if d.functions[kernel], err = d.drv.function(handle, kernel); err != nil {
			return err
		}
	}
	switch image.Module {
	case "gemm":
		d.clusters = image.Major >= 9
	case "pack":
		d.overlap = image.Major >= 9
	}
	return nil
}

func (d *Device) do(f func() error) error { return d.drv.with(d.ctx, f) }

// Info describes the device.
func (d *Device) Info() Info { return d.info }

// Name returns the name of the device and its capability.
func (d *Device) Name() string {
	return fmt.Sprintf("CUDA %d: %s (compute capability %d.%d)", d.info.Ordinal, d.info.Name, d.info.Major, d.info.Minor)
}

// Close gives the kernels and the stream back. Weights and matrices must be closed before.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return quant.ErrClosed
	}
	d.closed = true
	err := d.do(func() error {
		var errs []error
		for _, s := range d.streams {
			errs = append(errs, s.release())
		}
		if d.main != nil {
			errs = append(errs, d.drv.synchronize(d.main.handle), d.main.release(), d.drv.destroyStream(d.main.handle))
		}
		if d.side != 0 {
			errs = append(errs, d.drv.destroyStream(d.side))
		}
		for _, m := range d.modules {
			errs = append(errs, d.drv.unloadModule(m))
		}
		return errors.Join(errs...)
	})
	return errors.Join(err, d.drv.releasePrimary(d.dev))
}

// On returns the backend for a stream of the caller (a CUstream or cudaStream_t as a number; 0 is
// the legacy default stream). It must not be used after the stream is destroyed. Scratch memory is
// kept for each stream, so work on different streams may overlap.
func (d *Device) On(stream uintptr) *Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.streams[stream]
	if s == nil {
		s = &Stream{d: d, handle: stream}
		d.streams[stream] = s
	}
	return s
}

// Synchronize waits for everything on the device's own stream.
func (d *Device) Synchronize() error { return d.main.Synchronize() }

// Upload implements [quant.Backend].
func (d *Device) Upload(ctx context.Context, m *quant.QMatrix) (quant.Weight, error) {
	return d.main.Upload(ctx, m)
}

// NewMatrix implements [quant.Backend].
func (d *Device) NewMatrix(rows, cols int) (quant.Matrix, error) { return d.main.NewMatrix(rows, cols) }

// Gemm implements [quant.Backend].
func (d *Device) Gemm(ctx context.Context, dst, x quant.Matrix, w quant.Weight, opts quant.GemmOptions) error {
	return d.main.Gemm(ctx, dst, x, w, opts)
}

// Kernels returns the names of the kernels that are loaded, sorted.
func (d *Device) Kernels() []string { return slices.Sorted(maps.Keys(d.functions)) }

// Matrix is a dense half-precision matrix on a device.
type Matrix struct {
	s          *Stream
	rows, cols int

	mu       sync.Mutex
	at       uintptr
	borrowed bool
	closed   bool
}

// NewMatrix implements [quant.Backend].
func (s *Stream) NewMatrix(rows, cols int) (quant.Matrix, error) {
	if rows < 0 || cols < 0 {
		return nil, fmt.Errorf("matrix of %d rows and %d columns", rows, cols)
	}
	m := &Matrix{s: s, rows: rows, cols: cols}
	err := s.d.do(func() (err error) {
		if m.at, err = s.d.drv.alloc(m.bytes()); err != nil {
			return err
		}
		return s.d.drv.clear(m.at, m.bytes(), s.handle)
	})
	if err != nil {
		return nil, fmt.Errorf("matrix of %d rows and %d columns: %w", rows, cols, err)
	}
	return m, nil
}

// Borrow returns a matrix in memory of the caller: float16, dense, row-major, at an address on this
// device. Closing it leaves the memory alone.
func (s *Stream) Borrow(address uintptr, rows, cols int) (*Matrix, error) {
	if rows < 0 || cols < 0 || address == 0 && rows*cols > 0 || address%2 != 0 {
		return nil, fmt.Errorf("matrix of %d rows and %d columns at %#x", rows, cols, address)
	}
	return &Matrix{s: s, rows: rows, cols: cols, at: address, borrowed: true}, nil
}

func (m *Matrix) bytes() int64 { return 2 * int64(m.rows) * int64(m.cols) }

// Rows implements [quant.Matrix].
func (m *Matrix) Rows() int { return m.rows }

// Cols implements [quant.Matrix].
func (m *Matrix) Cols() int { return m.cols }

// address returns where the matrix is.
func (m *Matrix) address() (uintptr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, quant.ErrClosed
	}
	return m.at, nil
}

// CopyFrom implements [quant.Matrix].
func (m *Matrix) CopyFrom(src []byte) error {
	if int64(len(src)) != m.bytes() {
		return fmt.Errorf("copy %d bytes into a matrix of %d rows and %d columns: want %d", len(src), m.rows, m.cols, m.bytes())
	}
	at, err := m.address()
	if err != nil {
		return fmt.Errorf("matrix: %w", err)
	}
	return m.s.d.do(func() error {
		err := m.s.d.drv.upload(at, unsafe.Pointer(unsafe.SliceData(src)), m.bytes(), m.s.handle)
		return errors.Join(err, m.s.d.drv.synchronize(m.s.handle))
	})
}

// CopyTo implements [quant.Matrix]. It waits for the products that write to the matrix.
func (m *Matrix) CopyTo(dst []byte) error {
	if int64(len(dst)) != m.bytes() {
		return fmt.Errorf("copy a matrix of %d rows and %d columns to %d bytes: want %d", m.rows, m.cols, len(dst), m.bytes())
	}
	at, err := m.address()
	if err != nil {
		return fmt.Errorf("matrix: %w", err)
	}
	return m.s.d.do(func() error {
		return m.s.d.drv.download(unsafe.Pointer(unsafe.SliceData(dst)), at, m.bytes(), m.s.handle)
	})
}

// Close implements [quant.Matrix].
func (m *Matrix) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("matrix: %w", quant.ErrClosed)
	}
	m.closed = true
	if m.borrowed {
		return nil
	}
	return m.s.d.do(func() error { return m.s.d.drv.free(m.at) })
}

// GemmMany is [Stream.GemmMany] on the device's own stream.
func (d *Device) GemmMany(ctx context.Context, dst []quant.Matrix, x quant.Matrix, w []quant.Weight, opts quant.GemmOptions) error {
	return d.main.GemmMany(ctx, dst, x, w, opts)
}
