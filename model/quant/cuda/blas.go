package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// blasLibrary has the entry points of cuBLAS.
type blasLibrary struct {
	create, destroy, setStream, setWorkspace, gemmEx uintptr
}

// BLAS is cuBLAS on a stream, with half-precision matrices and float32 sums.
type BLAS struct {
	lib       *blasLibrary
	s         *Stream
	handle    uintptr
	workspace uintptr
}

const blasWorkspace = 64 << 20

// loadBLAS loads the library at the path, or the one that the loader finds. The name "loaded" is
// one that the process has.
func loadBLAS(path string) (*blasLibrary, error) {
	names, open := blasLibraries(), openLibrary
	switch path {
	case "":
	case "loaded":
		open = loadedLibrary
	default:
		names = []string{path}
	}
	lib, found, err := openFirst(names, open)
	if err != nil {
		return nil, fmt.Errorf("cuBLAS: %w: %w", ErrNotSupported, err)
	}
	l := &blasLibrary{}
	err = symbols(lib, map[string]*uintptr{
		"cublasCreate_v2":       &l.create,
		"cublasDestroy_v2":      &l.destroy,
		"cublasSetStream_v2":    &l.setStream,
		"cublasSetWorkspace_v2": &l.setWorkspace,
		"cublasGemmEx":          &l.gemmEx,
	})
	if err != nil {
		return nil, fmt.Errorf("cuBLAS %s: %w: %w", found, ErrNotSupported, err)
	}
	return l, nil
}

// NewBLAS loads cuBLAS for the device's own stream: the library at the path, or the one that the
// loader finds. Without one the error is ErrNotSupported. It is what dense products are compared
// with.
func (d *Device) NewBLAS(path string) (*BLAS, error) {
	lib, err := loadBLAS(path)
	if err != nil {
		return nil, err
	}
	var b *BLAS
	err = d.do(func() (err error) {
		b, err = lib.on(d.main)
		return err
	})
	return b, err
}

// on returns a handle for a stream. The workspace is its own, so that the same call gives the same
// bits also beside other streams, and a recorded one needs no memory of cuBLAS.
func (l *blasLibrary) on(s *Stream) (*BLAS, error) {
	b := &BLAS{lib: l, s: s}
	// cublasStatus_t cublasCreate(cublasHandle_t *handle)
	r, _, _ := purego.SyscallN(l.create, uintptr(unsafe.Pointer(&b.handle)))
	if err := blasError("cublasCreate", r); err != nil {
		return nil, err
	}
	// cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
	r, _, _ = purego.SyscallN(l.setStream, b.handle, s.handle)
	err := blasError("cublasSetStream", r)
	if err == nil {
		b.workspace, err = s.d.drv.alloc(blasWorkspace)
	}
	if err == nil {
		// cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
		r, _, _ = purego.SyscallN(l.setWorkspace, b.handle, b.workspace, blasWorkspace)
		err = blasError("cublasSetWorkspace", r)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func blasError(name string, result uintptr) error {
	if code := int(int32(result)); code != 0 {
		return &Error{Func: name, Code: code}
	}
	return nil
}

// gemm queues out[m, n] = x[m, k]·w[k, n], all row-major, or adds that to out.
//
// cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t
// transb, int m, int n, int k, const void *alpha, const void *A, cudaDataType Atype, int lda, const
// void *B, cudaDataType Btype, int ldb, const void *beta, void *C, cudaDataType Ctype, int ldc,
// cublasComputeType_t computeType, cublasGemmAlgo_t algo)
func (b *BLAS) gemm(out, x, w uintptr, m, n, k int, accumulate bool) error {
	const half, compute32F = 2, 68
	alpha, beta := float32(1), float32(0)
	if accumulate {
		beta = 1
	}
	defaultAlgo := int32(-1)
	r, _, _ := purego.SyscallN(b.lib.gemmEx, b.handle, 0, 0, uintptr(n), uintptr(m), uintptr(k),
		uintptr(unsafe.Pointer(&alpha)), w, half, uintptr(n), x, half, uintptr(k),
		uintptr(unsafe.Pointer(&beta)), out, half, uintptr(n), compute32F, uintptr(uint32(defaultAlgo)))
	return blasError("cublasGemmEx", r)
}

// Close gives the handle and its memory back.
func (b *BLAS) Close() error {
	return b.s.d.do(func() error {
		// cublasStatus_t cublasDestroy(cublasHandle_t handle)
		r, _, _ := purego.SyscallN(b.lib.destroy, b.handle)
		return errors.Join(blasError("cublasDestroy", r), b.s.d.drv.free(b.workspace))
	})
}
