package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// ErrNotSupported is the error where there is no usable NVIDIA driver, no such device, or a device
// that is too old. The text names the library that was tried.
var ErrNotSupported = errors.New("not supported")

// Error is the error of a call into the CUDA driver or cuBLAS.
type Error struct {
	Func string // as in C, cuMemAlloc for instance
	Code int    // CUresult or cublasStatus_t
	Name string // CUDA_ERROR_OUT_OF_MEMORY for instance; empty if the library has no name for the code
}

// Error names the function and the code.
func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: error %d", e.Func, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d)", e.Func, e.Name, e.Code)
}

// The results that the package branches on.
const (
	errNoDevice     = 100
	errInvalidImage = 200
	errNoBinary     = 209
	errPTXVersion   = 222
)

// driver holds the entry points of the driver library. Addresses are called through SyscallN, which
// allocates less than functions registered with purego.
type driver struct {
	path    string
	version int // 13000 is CUDA 13.0

	init, driverGetVersion                                                          uintptr
	deviceGetCount, deviceGet, deviceGetName, deviceGetAttribute, deviceTotalMem    uintptr
	primaryCtxRetain, primaryCtxRelease, ctxPushCurrent, ctxPopCurrent              uintptr
	moduleLoadDataEx, moduleUnload, moduleGetFunction, funcSetAttribute             uintptr
	launchKernelEx                                                                  uintptr
	memAlloc, memFree, memcpyHtoDAsync, memcpyDtoHAsync, memcpyDtoDAsync, memsetD8  uintptr
	streamCreate, streamDestroy, streamSynchronize, streamBeginCapture              uintptr
	streamIsCapturing, exchangeCaptureMode                                          uintptr
	streamEndCapture, graphInstantiate, graphLaunch, graphExecDestroy, graphDestroy uintptr
	eventCreate, eventRecord, eventElapsedTime, eventSynchronize, eventDestroy      uintptr
	getErrorName                                                                    uintptr
	tensorMapEncodeTiled                                                            uintptr // 0 before CUDA 12.0
}

// loadDriver loads the driver library once.
var loadDriver = sync.OnceValues(func() (*driver, error) { return openDriver(driverLibraries(runtime.GOOS)) })

// driverLibraries are the names that the driver has on an operating system.
func driverLibraries(goos string) []string {
	if goos == "windows" {
		return []string{"nvcuda.dll"}
	}
	return []string{"libcuda.so.1", "libcuda.so"}
}

// openDriver loads the first of the libraries that there is.
func openDriver(names []string) (*driver, error) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return nil, fmt.Errorf("CUDA on %s: %w", runtime.GOARCH, ErrNotSupported)
	}
	lib, path, err := openFirst(names, openLibrary)
	if err != nil {
		return nil, fmt.Errorf("CUDA driver: %w: %w", ErrNotSupported, err)
	}
	d := &driver{path: path}
	err = symbols(lib, map[string]*uintptr{
		"cuInit":                            &d.init,
		"cuDriverGetVersion":                &d.driverGetVersion,
		"cuDeviceGetCount":                  &d.deviceGetCount,
		"cuDeviceGet":                       &d.deviceGet,
		"cuDeviceGetName":                   &d.deviceGetName,
		"cuDeviceGetAttribute":              &d.deviceGetAttribute,
		"cuDeviceTotalMem_v2":               &d.deviceTotalMem,
		"cuDevicePrimaryCtxRetain":          &d.primaryCtxRetain,
		"cuDevicePrimaryCtxRelease_v2":      &d.primaryCtxRelease,
		"cuCtxPushCurrent_v2":               &d.ctxPushCurrent,
		"cuCtxPopCurrent_v2":                &d.ctxPopCurrent,
		"cuModuleLoadDataEx":                &d.moduleLoadDataEx,
		"cuModuleUnload":                    &d.moduleUnload,
		"cuModuleGetFunction":               &d.moduleGetFunction,
		"cuFuncSetAttribute":                &d.funcSetAttribute,
		"cuLaunchKernelEx":                  &d.launchKernelEx,
		"cuMemAlloc_v2":                     &d.memAlloc,
		"cuMemFree_v2":                      &d.memFree,
		"cuMemcpyHtoDAsync_v2":              &d.memcpyHtoDAsync,
		"cuMemcpyDtoHAsync_v2":              &d.memcpyDtoHAsync,
		"cuMemcpyDtoDAsync_v2":              &d.memcpyDtoDAsync,
		"cuMemsetD8Async":                   &d.memsetD8,
		"cuStreamCreate":                    &d.streamCreate,
		"cuStreamDestroy_v2":                &d.streamDestroy,
		"cuStreamSynchronize":               &d.streamSynchronize,
		"cuStreamBeginCapture_v2":           &d.streamBeginCapture,
		"cuStreamEndCapture":                &d.streamEndCapture,
		"cuStreamIsCapturing":               &d.streamIsCapturing,
		"cuThreadExchangeStreamCaptureMode": &d.exchangeCaptureMode,
		"cuGraphInstantiateWithFlags":       &d.graphInstantiate,
		"cuGraphLaunch":                     &d.graphLaunch,
		"cuGraphExecDestroy":                &d.graphExecDestroy,
		"cuGraphDestroy":                    &d.graphDestroy,
		"cuEventCreate":                     &d.eventCreate,
		"cuEventRecord":                     &d.eventRecord,
		"cuEventElapsedTime":                &d.eventElapsedTime,
		"cuEventSynchronize":                &d.eventSynchronize,
		"cuEventDestroy_v2":                 &d.eventDestroy,
		"cuGetErrorName":                    &d.getErrorName,
	})
	if err != nil {
		return nil, fmt.Errorf("CUDA driver %s is too old: %w: %w", path, ErrNotSupported, err)
	}
	if address, err := findSymbol(lib, "cuTensorMapEncodeTiled"); err == nil {
		d.tensorMapEncodeTiled = address
	}
	// CUresult cuInit(unsigned int flags)
	r, _, _ := purego.SyscallN(d.init, 0)
	if err := d.check("cuInit", r); err != nil {
		return nil, fmt.Errorf("CUDA driver %s: %w: %w", path, ErrNotSupported, err)
	}
	// CUresult cuDriverGetVersion(int *version)
	var version int32
	r, _, _ = purego.SyscallN(d.driverGetVersion, uintptr(unsafe.Pointer(&version)))
	d.version = int(version)
	return d, d.check("cuDriverGetVersion", r)
}

// openFirst opens the first library of the list that there is.
func openFirst(names []string, open func(string) (uintptr, error)) (lib uintptr, path string, err error) {
	var errs []error
	for _, name := range names {
		lib, err := open(name)
		if err == nil {
			return lib, name, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	return 0, "", errors.Join(errs...)
}

// symbols finds all entry points, or names those that are missing.
func symbols(lib uintptr, want map[string]*uintptr) error {
	var missing []string
	for name, at := range want {
		address, err := findSymbol(lib, name)
		if err != nil {
			missing = append(missing, name)
			continue
		}
		*at = address
	}
	if missing != nil {
		return fmt.Errorf("no %s", strings.Join(missing, ", "))
	}
	return nil
}

func (d *driver) check(name string, result uintptr) error {
	code := int(int32(result))
	if code == 0 {
		return nil
	}
	// CUresult cuGetErrorName(CUresult error, const char **str)
	var text *byte
	r, _, _ := purego.SyscallN(d.getErrorName, uintptr(code), uintptr(unsafe.Pointer(&text)))
	e := &Error{Func: name, Code: code}
	if r == 0 && text != nil {
		e.Name = goString(text)
	}
	return e
}

// call calls a C function. What arguments point to stays where it is until it returns.
//
//go:uintptrescapes
func call(f uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(f, args...)
	return r
}

func goString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// CUresult cuDeviceGetCount(int *count)
func (d *driver) count() (int, error) {
	var n int32
	r, _, _ := purego.SyscallN(d.deviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), d.check("cuDeviceGetCount", r)
}

// CUresult cuDeviceGet(CUdevice *device, int ordinal)
func (d *driver) device(ordinal int) (int32, error) {
	var dev int32
	r, _, _ := purego.SyscallN(d.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return dev, d.check("cuDeviceGet", r)
}

// CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
func (d *driver) deviceName(dev int32) (string, error) {
	var name [256]byte
	r, _, _ := purego.SyscallN(d.deviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(dev))
	return goString(&name[0]), d.check("cuDeviceGetName", r)
}

// Device attributes.
const (
	attrMultiprocessors = 16
	attrL2Bytes         = 38
	attrMajor           = 75
	attrMinor           = 76
	attrSharedOptin     = 97
)

// CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
func (d *driver) attribute(dev int32, attribute int) (int, error) {
	var v int32
	r, _, _ := purego.SyscallN(d.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(attribute), uintptr(dev))
	return int(v), d.check("cuDeviceGetAttribute", r)
}

// CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev)
func (d *driver) totalMem(dev int32) (int64, error) {
	var n uint64
	r, _, _ := purego.SyscallN(d.deviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(dev))
	return int64(n), d.check("cuDeviceTotalMem", r)
}

// CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
func (d *driver) retainPrimary(dev int32) (uintptr, error) {
	var ctx uintptr
	r, _, _ := purego.SyscallN(d.primaryCtxRetain, uintptr(unsafe.Pointer(&ctx)), uintptr(dev))
	return ctx, d.check("cuDevicePrimaryCtxRetain", r)
}

// CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
func (d *driver) releasePrimary(dev int32) error {
	r, _, _ := purego.SyscallN(d.primaryCtxRelease, uintptr(dev))
	return d.check("cuDevicePrimaryCtxRelease", r)
}

// with calls f with the context current on a locked thread, and leaves the thread as it was.
func (d *driver) with(ctx uintptr, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// CUresult cuCtxPushCurrent(CUcontext ctx)
	r, _, _ := purego.SyscallN(d.ctxPushCurrent, ctx)
	if err := d.check("cuCtxPushCurrent", r); err != nil {
		return err
	}
	err := f()
	// CUresult cuCtxPopCurrent(CUcontext *ctx)
	var old uintptr
	r, _, _ = purego.SyscallN(d.ctxPopCurrent, uintptr(unsafe.Pointer(&old)))
	return errors.Join(err, d.check("cuCtxPopCurrent", r))
}

// loadModule loads a cubin, or PTX with a NUL at its end. What the driver's compiler says is in the
// error.
//
// CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
// CUjit_option *options, void **optionValues)
func (d *driver) loadModule(image []byte) (uintptr, error) {
	const errorLog, errorLogBytes = 5, 6
	var (
		module  uintptr
		log     = make([]byte, 8192)
		options = [2]int32{errorLog, errorLogBytes}
		values  = [2]uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log))}
	)
	r, _, _ := purego.SyscallN(d.moduleLoadDataEx, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&image[0])), 2,
		uintptr(unsafe.Pointer(&options)), uintptr(unsafe.Pointer(&values)))
	runtime.KeepAlive(log)
	err := d.check("cuModuleLoadDataEx", r)
	if text := strings.TrimSpace(goString(&log[0])); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return module, err
}

// CUresult cuModuleUnload(CUmodule module)
func (d *driver) unloadModule(module uintptr) error {
	r, _, _ := purego.SyscallN(d.moduleUnload, module)
	return d.check("cuModuleUnload", r)
}

// CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
func (d *driver) function(module uintptr, name string) (uintptr, error) {
	var f uintptr
	text := append([]byte(name), 0)
	r, _, _ := purego.SyscallN(d.moduleGetFunction, uintptr(unsafe.Pointer(&f)), module, uintptr(unsafe.Pointer(&text[0])))
	if err := d.check("cuModuleGetFunction", r); err != nil {
		return 0, fmt.Errorf("kernel %s: %w", name, err)
	}
	return f, nil
}

// setShared allows a kernel so much dynamic shared memory.
//
// CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
func (d *driver) setShared(function uintptr, bytes int) error {
	const maxDynamicShared = 8
	r, _, _ := purego.SyscallN(d.funcSetAttribute, function, maxDynamicShared, uintptr(bytes))
	return d.check("cuFuncSetAttribute", r)
}

// launchConfig is CUlaunchConfig.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      uintptr
	attributes  unsafe.Pointer
	count       uint32
}

// launchAttribute is CUlaunchAttribute. The value is a union of 64 bytes that begins at value[1].
type launchAttribute struct {
	id    uint32
	value [16]uint32
	_     uint32
}

// overlapped is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel may begin before
// the one in front of it has ended, and waits for that itself.
func overlapped() launchAttribute { return launchAttribute{id: 6, value: [16]uint32{1: 1}} }

// clustered is CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, in x.
func clustered(n int) launchAttribute {
	return launchAttribute{id: 4, value: [16]uint32{1: uint32(n), 2: 1, 3: 1}}
}

// launch starts a kernel that takes one structure.
//
// CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void
// **extra)
func (d *driver) launch(f uintptr, config *launchConfig, args unsafe.Pointer, attributes []launchAttribute) error {
	config.attributes, config.count = unsafe.Pointer(unsafe.SliceData(attributes)), uint32(len(attributes))
	params := [1]unsafe.Pointer{args}
	r, _, _ := purego.SyscallN(d.launchKernelEx, uintptr(unsafe.Pointer(config)), f, uintptr(unsafe.Pointer(&params)), 0)
	runtime.KeepAlive(args)
	runtime.KeepAlive(attributes)
	return d.check("cuLaunchKernelEx", r)
}

// tensorMap is CUtensorMap, which the driver wants at a multiple of 64.
type tensorMap [16]uint64

// encodeTiles describes a matrix of half precision, [rows][columns], whose copies take boxes of so
// many rows and 64 columns, in 128-byte lines with the 128-byte swizzle. What is behind the last row
// or column is zero.
//
// CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void
// *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box, const
// cuuint32_t *elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
// CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
func (d *driver) encodeTiles(matrix uintptr, rows, columns, boxRows int) (tensorMap, error) {
	const float16, rank, swizzle128, promote256 = 6, 2, 3, 3
	var (
		room       [2 * unsafe.Sizeof(tensorMap{})]byte
		dimensions = [rank]uint64{uint64(columns), uint64(rows)}
		strides    = [rank - 1]uint64{2 * uint64(columns)}
		box        = [rank]uint32{2 * blockRows, uint32(boxRows)}
		steps      = [rank]uint32{1, 1}
	)
	at := unsafe.Add(unsafe.Pointer(&room), -uintptr(unsafe.Pointer(&room))&63)
	r := call(d.tensorMapEncodeTiled, uintptr(at), float16, rank, matrix,
		uintptr(unsafe.Pointer(&dimensions)), uintptr(unsafe.Pointer(&strides)), uintptr(unsafe.Pointer(&box)),
		uintptr(unsafe.Pointer(&steps)), 0, swizzle128, promote256, 0)
	return *(*tensorMap)(at), d.check("cuTensorMapEncodeTiled", r)
}

// alloc returns device memory; 0 bytes are the null pointer.
//
// CUresult cuMemAlloc(CUdeviceptr *ptr, size_t bytes)
func (d *driver) alloc(bytes int64) (uintptr, error) {
	if bytes == 0 {
		return 0, nil
	}
	var p uintptr
	r, _, _ := purego.SyscallN(d.memAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	if err := d.check("cuMemAlloc", r); err != nil {
		return 0, fmt.Errorf("%d bytes on the device: %w", bytes, err)
	}
	return p, nil
}

// free waits for all work that uses the memory.
//
// CUresult cuMemFree(CUdeviceptr ptr)
func (d *driver) free(p uintptr) error {
	if p == 0 {
		return nil
	}
	r, _, _ := purego.SyscallN(d.memFree, p)
	return d.check("cuMemFree", r)
}

// upload copies from ordinary memory, which is read before the call returns.
//
// CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
func (d *driver) upload(dst uintptr, src unsafe.Pointer, bytes int64, stream uintptr) error {
	if bytes == 0 {
		return nil
	}
	r, _, _ := purego.SyscallN(d.memcpyHtoDAsync, dst, uintptr(src), uintptr(bytes), stream)
	return d.check("cuMemcpyHtoDAsync", r)
}

// download copies to ordinary memory and waits.
//
// CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
func (d *driver) download(dst unsafe.Pointer, src uintptr, bytes int64, stream uintptr) error {
	if bytes == 0 {
		return nil
	}
	r, _, _ := purego.SyscallN(d.memcpyDtoHAsync, uintptr(dst), src, uintptr(bytes), stream)
	if err := d.check("cuMemcpyDtoHAsync", r); err != nil {
		return err
	}
	return d.synchronize(stream)
}

// CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
func (d *driver) copy(dst, src uintptr, bytes int64, stream uintptr) error {
	if bytes == 0 {
		return nil
	}
	r, _, _ := purego.SyscallN(d.memcpyDtoDAsync, dst, src, uintptr(bytes), stream)
	return d.check("cuMemcpyDtoDAsync", r)
}

// CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
func (d *driver) clear(dst uintptr, bytes int64, stream uintptr) error {
	if bytes == 0 {
		return nil
	}
	r, _, _ := purego.SyscallN(d.memsetD8, dst, 0, uintptr(bytes), stream)
	return d.check("cuMemsetD8Async", r)
}

// CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
func (d *driver) newStream() (uintptr, error) {
	const nonBlocking = 1
	var s uintptr
	r, _, _ := purego.SyscallN(d.streamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, d.check("cuStreamCreate", r)
}

// CUresult cuStreamDestroy(CUstream stream)
func (d *driver) destroyStream(s uintptr) error {
	r, _, _ := purego.SyscallN(d.streamDestroy, s)
	return d.check("cuStreamDestroy", r)
}

// CUresult cuStreamSynchronize(CUstream stream)
func (d *driver) synchronize(s uintptr) error {
	r, _, _ := purego.SyscallN(d.streamSynchronize, s)
	return d.check("cuStreamSynchronize", r)
}

// captureRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED.
const captureRelaxed = 2

// record captures what f puts into the stream as a graph that can be launched often.
//
// CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
// CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
// CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
func (d *driver) record(stream uintptr, f func() error) (exec uintptr, err error) {
	r, _, _ := purego.SyscallN(d.streamBeginCapture, stream, captureRelaxed)
	if err := d.check("cuStreamBeginCapture", r); err != nil {
		return 0, err
	}
	ferr := f()
	var graph uintptr
	r, _, _ = purego.SyscallN(d.streamEndCapture, stream, uintptr(unsafe.Pointer(&graph)))
	if err := errors.Join(ferr, d.check("cuStreamEndCapture", r)); err != nil {
		return 0, err
	}
	r, _, _ = purego.SyscallN(d.graphInstantiate, uintptr(unsafe.Pointer(&exec)), graph, 0)
	err = d.check("cuGraphInstantiateWithFlags", r)
	// CUresult cuGraphDestroy(CUgraph graph)
	r, _, _ = purego.SyscallN(d.graphDestroy, graph)
	return exec, errors.Join(err, d.check("cuGraphDestroy", r))
}

// capturing reports whether work put into the stream is recorded instead of done.
//
// CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
func (d *driver) capturing(stream uintptr) (bool, error) {
	var status int32
	r, _, _ := purego.SyscallN(d.streamIsCapturing, stream, uintptr(unsafe.Pointer(&status)))
	return status != 0, d.check("cuStreamIsCapturing", r)
}

// outsideCapture calls f so that it may allocate and wait although the thread, or another one,
// records a stream. None of what it does may be on that stream.
//
// CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
func (d *driver) outsideCapture(f func() error) error {
	mode := int32(captureRelaxed)
	r, _, _ := purego.SyscallN(d.exchangeCaptureMode, uintptr(unsafe.Pointer(&mode)))
	if err := d.check("cuThreadExchangeStreamCaptureMode", r); err != nil {
		return err
	}
	err := f()
	r, _, _ = purego.SyscallN(d.exchangeCaptureMode, uintptr(unsafe.Pointer(&mode)))
	return errors.Join(err, d.check("cuThreadExchangeStreamCaptureMode", r))
}

// CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
func (d *driver) replay(exec, stream uintptr) error {
	r, _, _ := purego.SyscallN(d.graphLaunch, exec, stream)
	return d.check("cuGraphLaunch", r)
}

// CUresult cuGraphExecDestroy(CUgraphExec exec)
func (d *driver) destroyExec(exec uintptr) error {
	r, _, _ := purego.SyscallN(d.graphExecDestroy, exec)
	return d.check("cuGraphExecDestroy", r)
}

// CUresult cuEventCreate(CUevent *event, unsigned int flags)
func (d *driver) newEvent() (uintptr, error) {
	var e uintptr
	r, _, _ := purego.SyscallN(d.eventCreate, uintptr(unsafe.Pointer(&e)), 0)
	return e, d.check("cuEventCreate", r)
}

// CUresult cuEventRecord(CUevent event, CUstream stream)
func (d *driver) recordEvent(e, stream uintptr) error {
	r, _, _ := purego.SyscallN(d.eventRecord, e, stream)
	return d.check("cuEventRecord", r)
}

// elapsed waits for the second event and returns the seconds between the two.
//
// CUresult cuEventSynchronize(CUevent event)
// CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
func (d *driver) elapsed(start, end uintptr) (float64, error) {
	r, _, _ := purego.SyscallN(d.eventSynchronize, end)
	if err := d.check("cuEventSynchronize", r); err != nil {
		return 0, err
	}
	var ms float32
	r, _, _ = purego.SyscallN(d.eventElapsedTime, uintptr(unsafe.Pointer(&ms)), start, end)
	return float64(ms) / 1e3, d.check("cuEventElapsedTime", r)
}

// CUresult cuEventDestroy(CUevent event)
func (d *driver) destroyEvent(e uintptr) error {
	r, _, _ := purego.SyscallN(d.eventDestroy, e)
	return d.check("cuEventDestroy", r)
}
