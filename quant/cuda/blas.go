package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// BLAS is cuBLAS on a stream, with half-precision matrices and float32 sums. It is what dense products are compared with.
type BLAS struct {
	s         *Stream
	handle    uintptr
	workspace uintptr

	create, destroy, setStream, setWorkspace, gemmEx uintptr
}

const blasWorkspace = 64 << 20

// NewBLAS loads cuBLAS: the library at the path, or the one that the loader finds. Without one the error is
// ErrNotSupported.
func (d *Device) NewBLAS(path string) (*BLAS, error) {
	names := blasLibraries()
	if path != "" {
		names = []string{path}
	}
	lib, found, err := openFirst(names)
	if err != nil {
		return nil, fmt.Errorf("cuBLAS: %w: %w", ErrNotSupported, err)
	}
	b := &BLAS{s: d.main}
	err = symbols(lib, map[string]*uintptr{
		"cublasCreate_v2":       &b.create,
		"cublasDestroy_v2":      &b.destroy,
		"cublasSetStream_v2":    &b.setStream,
		"cublasSetWorkspace_v2": &b.setWorkspace,
		"cublasGemmEx":          &b.gemmEx,
	})
	if err != nil {
		return nil, fmt.Errorf("cuBLAS %s: %w: %w", found, ErrNotSupported, err)
	}
	return b, d.do(func() error {
		// cublasStatus_t cublasCreate(cublasHandle_t *handle)
		r, _, _ := purego.SyscallN(b.create, uintptr(unsafe.Pointer(&b.handle)))
		if err := blasError("cublasCreate", r); err != nil {
			return err
		}
		// cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
		r, _, _ = purego.SyscallN(b.setStream, b.handle, b.s.handle)
		if err := blasError("cublasSetStream", r); err != nil {
			return err
		}
		if b.workspace, err = d.drv.alloc(blasWorkspace); err != nil {
			return err
		}
		// cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
		r, _, _ = purego.SyscallN(b.setWorkspace, b.handle, b.workspace, blasWorkspace)
		return blasError("cublasSetWorkspace", r)
	})
}

func blasError(name string, result uintptr) error {
	if code := int(int32(result)); code != 0 {
		return &Error{Func: name, Code: code}
	}
	return nil
}

// gemm queues out[m, n] = x[m, k]·w[k, n], all row-major.
//
// cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
// const void *alpha, const void *A, cudaDataType Atype, int lda, const void *B, cudaDataType Btype, int ldb,
// const void *beta, void *C, cudaDataType Ctype, int ldc, cublasComputeType_t computeType, cublasGemmAlgo_t algo)
func (b *BLAS) gemm(out, x, w uintptr, m, n, k int) error {
	const half, compute32F = 2, 68
	alpha, beta := float32(1), float32(0)
	defaultAlgo := int32(-1)
	r, _, _ := purego.SyscallN(b.gemmEx, b.handle, 0, 0, uintptr(n), uintptr(m), uintptr(k),
		uintptr(unsafe.Pointer(&alpha)), w, half, uintptr(n), x, half, uintptr(k),
		uintptr(unsafe.Pointer(&beta)), out, half, uintptr(n), compute32F, uintptr(uint32(defaultAlgo)))
	return blasError("cublasGemmEx", r)
}

// Close gives the handle and its memory back.
func (b *BLAS) Close() error {
	return b.s.d.do(func() error {
		// cublasStatus_t cublasDestroy(cublasHandle_t handle)
		r, _, _ := purego.SyscallN(b.destroy, b.handle)
		return errors.Join(blasError("cublasDestroy", r), b.s.d.drv.free(b.workspace))
	})
}
