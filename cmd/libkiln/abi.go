// Command libkiln is kiln's quantized products as a library for C and for everything that can call
// C:
//
//	CGO_ENABLED=1 go build -buildmode=c-shared -o libkiln.so ./cmd/libkiln
//
// This file is the ABI. The header kiln.h and the Python declarations are made from it by `go
// generate`: the types from the comment above import "C", a function from each that is exported.
// What the functions do is in internal/library.
package main

/*
#include <stdint.h>
#include "error.h"
#cgo linux LDFLAGS: -lpthread -ldl

// What functions return. Everything but KILN_OK has a text, see kiln_last_error.
enum kiln_status {
	KILN_OK = 0,
	KILN_ERROR_ARGUMENT = 1, // an argument is wrong
	KILN_ERROR_FORMAT = 2, // a tensor breaks the rules of its format
	KILN_ERROR_NOT_SUPPORTED = 3, // no NVIDIA driver, or no such device
	KILN_ERROR_MEMORY = 4, // not enough memory
	KILN_ERROR_HANDLE = 5, // no such matrix, or it was freed
	KILN_ERROR_CUDA = 6, // the driver reports an error
	KILN_ERROR_INTERNAL = 7, // a fault of the library
};

// Types of the elements of a tensor.
enum kiln_dtype {
	KILN_F16 = 1,
	KILN_BF16 = 2,
	KILN_F32 = 3,
	KILN_I16 = 4,
	KILN_I32 = 5,
};

// Whose reading of the formats is followed where programs differ.
enum kiln_dialect {
	KILN_EXLLAMAV2 = 0,
	KILN_LORAX = 1,
};

// How the zero points of GPTQ tensors are stored.
enum kiln_zero {
	KILN_ZERO_DIALECT = 0, // as the dialect reads them
	KILN_ZERO_PLUS_ONE = 1, // less one: all ones stand for 2^bits
	KILN_ZERO_PLUS_ONE_WRAP = 2, // less one: all ones stand for 0
	KILN_ZERO_AS_STORED = 3, // as they are (checkpoint_format "gptq_v2")
};

// Flags of kiln_gemm and kiln_gemm_many.
enum kiln_gemm_flags {
	KILN_ACCUMULATE = 1, // add to the result instead of overwriting it
	KILN_NO_BIAS = 2, // leave out the bias of the matrix
	KILN_FUSED = 4, // multiply with weights that were never rounded to half precision
	KILN_RECONSTRUCT = 8, // multiply with weights rounded to half precision
};

// Flags of kiln_exl2 and kiln_gptq.
enum kiln_make_flags {
	// Use the memory of q_weight (of qweight and scales) for the matrix, which is on the same GPU and
	// reads it until it is freed. Where the packed weights do not fit there, and on the CPU, the
	// matrix has memory of its own and the tensors stay as they are; see in_place of kiln_info.
	KILN_IN_PLACE = 1,
};

// What in_place of kiln_info is made of.
enum kiln_in_place_parts {
	KILN_WEIGHT_IN_PLACE = 1,
	KILN_SCALES_IN_PLACE = 2,
};

// The device number of main memory and of the CPU. GPUs are 0, 1, … as the driver counts.
enum kiln_place {
	KILN_HOST = -1,
};

// A matrix. 0 is none. A number is never used again, so one that was freed is noticed.
typedef uint64_t kiln_matrix;

// A tensor, dense and row-major, in memory of the caller. It is read while the call runs and not
// changed, unless the caller asks for KILN_IN_PLACE.
typedef struct kiln_tensor {
	const void *data; // NULL: there is no such tensor
	int64_t shape[2];
	int32_t dims; // 1 or 2
	int32_t dtype; // kiln_dtype
	int32_t device; // where data is
	int32_t reserved; // 0
} kiln_tensor;

// What an EXL2 matrix is made of. All of it 0 but for size, device and the tensors is what
// exllamav2 does with tensors from disk.
typedef struct kiln_exl2 {
	int64_t size; // sizeof(kiln_exl2)
	int32_t device; // where products are computed
	int32_t dialect; // kiln_dialect
	const void *stream; // CUDA stream that wrote the tensors
	float prescale; // factor on all scales, 0 for 1; 256 for a q_scale_max that was divided by 256
	int32_t flags; // kiln_make_flags
	kiln_tensor q_weight;
	kiln_tensor q_groups;
	kiln_tensor q_scale;
	kiln_tensor q_scale_max;
	kiln_tensor q_invperm; // may be absent
	kiln_tensor bias; // may be absent
} kiln_exl2;

// What a GPTQ matrix is made of. All of it 0 but for size, device and the tensors is what exllamav2
// does.
typedef struct kiln_gptq {
	int64_t size; // sizeof(kiln_gptq)
	int32_t device; // where products are computed
	int32_t dialect; // kiln_dialect
	const void *stream; // CUDA stream that wrote the tensors
	int32_t bits; // 2, 3, 4 or 8; 0 for what the shapes imply
	int32_t group_size; // 0 for the smallest power of two that fits
	int32_t zero; // kiln_zero
	int32_t flags; // kiln_make_flags
	kiln_tensor qweight;
	kiln_tensor qzeros;
	kiln_tensor scales;
	kiln_tensor g_idx; // may be absent
	kiln_tensor bias; // may be absent
} kiln_gptq;

// One product of kiln_gemm_many.
typedef struct kiln_product {
	kiln_matrix matrix;
	void *out;
	int64_t out_cols;
} kiln_product;

// What kiln_matrix_info says.
typedef struct kiln_info {
	int64_t size; // sizeof(kiln_info), set by the caller
	int64_t rows; // K
	int64_t cols; // N
	int64_t bytes; // on the device
	double bits_per_weight;
	int32_t device;
	int32_t groups;
	int32_t gptq; // 1 for GPTQ, 0 for EXL2
	int32_t permuted;
	int32_t bias;
	int32_t in_place; // kiln_in_place_parts: what the caller's memory holds
} kiln_info;

// What kiln_device says.
typedef struct kiln_device_info {
	int64_t size; // sizeof(kiln_device_info), set by the caller
	int64_t memory_bytes;
	int32_t major; // compute capability
	int32_t minor;
	int32_t multiprocessors;
	int32_t reserved;
	char name[256];
} kiln_device_info;
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/kiln-build/kiln/cmd/libkiln/internal/library"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// version is set when the library is built for a release.
var version = "devel"

// abiVersion grows when a program that was compiled with an older header would no longer work.
const abiVersion = 1

// lib is the one table of the process: a library has no main to hand it on from.
var lib = newLibrary()

func newLibrary() *library.Library {
	l := library.New()
	l.CPU.Exact = os.Getenv("KILN_CPU_EXACT") == "1"
	return l
}

func main() {}

// guard calls f and turns its error, or a panic, into a status and the text of the thread.
func guard(f func() error) (status C.int32_t) {
	defer func() {
		if r := recover(); r != nil {
			status = fail(library.Internal, fmt.Sprintf("internal error: %v", r))
		}
	}()
	if err := f(); err != nil {
		return fail(library.StatusOf(err), err.Error())
	}
	return 0
}

func fail(status library.Status, text string) C.int32_t {
	b := append([]byte(text), 0)
	C.kiln_error_set((*C.char)(unsafe.Pointer(&b[0])), C.int64_t(len(text)))
	return C.int32_t(status)
}

// put writes a text into a buffer of the caller, cut where it does not fit.
func put(out *C.char, size C.int64_t, text string) error {
	if out == nil || size <= 0 {
		return fmt.Errorf("buffer of %d bytes for a text", size)
	}
	to := unsafe.Slice((*byte)(unsafe.Pointer(out)), size)
	to[copy(to[:size-1], text)] = 0
	return nil
}

// kiln_abi_version returns the version of this interface. A program that was compiled with
// KILN_ABI_VERSION works with a library that returns the same.
//
//export kiln_abi_version
func kiln_abi_version() C.int32_t { return abiVersion }

// kiln_version writes the version of the library. Texts always end in NUL and are cut where the
// buffer ends.
//
//export kiln_version
func kiln_version(out *C.char, out_bytes C.int64_t) C.int32_t {
	return guard(func() error { return put(out, out_bytes, version) })
}

// kiln_last_error writes the text of the last error of the calling thread. It is at most 4095
// bytes.
//
//export kiln_last_error
func kiln_last_error(out *C.char, out_bytes C.int64_t) C.int32_t {
	C.kiln_error_get(out, out_bytes)
	return 0
}

// kiln_describe writes the name of the backend for a device, for people.
//
//export kiln_describe
func kiln_describe(device C.int32_t, out *C.char, out_bytes C.int64_t) C.int32_t {
	return guard(func() error {
		name, err := lib.Describe(int(device))
		if err != nil {
			return err
		}
		return put(out, out_bytes, name)
	})
}

// kiln_device_count counts the GPUs. Without an NVIDIA driver it returns KILN_ERROR_NOT_SUPPORTED.
//
//export kiln_device_count
func kiln_device_count(out *C.int32_t) C.int32_t {
	return guard(func() error {
		devices, err := lib.Devices()
		if err != nil {
			return err
		}
		*out = C.int32_t(len(devices))
		return nil
	})
}

// kiln_device describes a GPU.
//
//export kiln_device
func kiln_device(device C.int32_t, out *C.kiln_device_info) C.int32_t {
	return guard(func() error {
		if out == nil || out.size != C.sizeof_kiln_device_info {
			return errors.New("kiln_device_info has another size here: the header is of another version")
		}
		devices, err := lib.Devices()
		if err != nil {
			return err
		}
		if device < 0 || int(device) >= len(devices) {
			return fmt.Errorf("device %d: there are %d", device, len(devices))
		}
		d := devices[device]
		out.memory_bytes, out.major, out.minor = C.int64_t(d.MemoryBytes), C.int32_t(d.Major), C.int32_t(d.Minor)
		out.multiprocessors = C.int32_t(d.Multiprocessors)
		return put(&out.name[0], C.int64_t(len(out.name)), d.Name)
	})
}

// kiln_make_exl2 makes a matrix from EXL2 tensors. Nothing of them is needed afterwards, but for
// what is in place. Free it with kiln_free.
//
//export kiln_make_exl2
func kiln_make_exl2(in *C.kiln_exl2, out *C.kiln_matrix) C.int32_t {
	return guard(func() error {
		if in == nil || out == nil || in.size != C.sizeof_kiln_exl2 {
			return errors.New("kiln_exl2 has another size here: the header is of another version")
		}
		r, err := request(in.device, in.flags, in.stream, map[string]*C.kiln_tensor{
			"q_weight": &in.q_weight, "q_groups": &in.q_groups, "q_scale": &in.q_scale,
			"q_scale_max": &in.q_scale_max, "q_invperm": &in.q_invperm, "bias": &in.bias,
		})
		if err != nil {
			return err
		}
		dialect, err := dialectOf(in.dialect)
		if err != nil {
			return err
		}
		handle, err := lib.MakeEXL2(r, quant.EXL2Options{Prescale: float32(in.prescale), Dialect: dialect, Joined: true})
		if err != nil {
			return err
		}
		*out = C.kiln_matrix(handle)
		return nil
	})
}

// kiln_make_gptq makes a matrix from GPTQ tensors. Nothing of them is needed afterwards, but for
// what is in place. Free it with kiln_free.
//
//export kiln_make_gptq
func kiln_make_gptq(in *C.kiln_gptq, out *C.kiln_matrix) C.int32_t {
	return guard(func() error {
		if in == nil || out == nil || in.size != C.sizeof_kiln_gptq {
			return errors.New("kiln_gptq has another size here: the header is of another version")
		}
		r, err := request(in.device, in.flags, in.stream, map[string]*C.kiln_tensor{
			"qweight": &in.qweight, "qzeros": &in.qzeros, "scales": &in.scales, "g_idx": &in.g_idx, "bias": &in.bias,
		})
		if err != nil {
			return err
		}
		opts := quant.GPTQOptions{Bits: int(in.bits), GroupSize: int(in.group_size), Zero: quant.ZeroPoint(in.zero)}
		if in.zero < 0 || in.zero > C.KILN_ZERO_AS_STORED {
			return fmt.Errorf("zero point convention %d", in.zero)
		}
		if opts.Dialect, err = dialectOf(in.dialect); err != nil {
			return err
		}
		handle, err := lib.MakeGPTQ(r, opts)
		if err != nil {
			return err
		}
		*out = C.kiln_matrix(handle)
		return nil
	})
}

// kiln_matrix_info describes a matrix.
//
//export kiln_matrix_info
func kiln_matrix_info(matrix C.kiln_matrix, out *C.kiln_info) C.int32_t {
	return guard(func() error {
		if out == nil || out.size != C.sizeof_kiln_info {
			return errors.New("kiln_info has another size here: the header is of another version")
		}
		i, err := lib.Info(uint64(matrix))
		if err != nil {
			return err
		}
		out.rows, out.cols, out.bytes = C.int64_t(i.Rows), C.int64_t(i.Cols), C.int64_t(i.Bytes)
		out.bits_per_weight, out.device, out.groups = C.double(i.Bits), C.int32_t(i.Device), C.int32_t(i.Groups)
		out.gptq, out.permuted, out.bias = truth(i.Format == quant.GPTQ), truth(i.Permuted), truth(i.Bias)
		out.in_place = C.KILN_WEIGHT_IN_PLACE*truth(i.WeightInPlace) + C.KILN_SCALES_IN_PLACE*truth(i.ScalesInPlace)
		return nil
	})
}

// kiln_free gives the memory of a matrix back, after products with it are done.
//
//export kiln_free
func kiln_free(matrix C.kiln_matrix) C.int32_t {
	return guard(func() error { return lib.Free(uint64(matrix)) })
}

// kiln_gemm computes out = x·W + bias for x of M×K and out of M×N, both half precision, dense,
// row-major and in memory of the device of the matrix. Sums are float32. On a GPU the product is
// queued on the CUDA stream (NULL is the default stream) and the call returns; on the CPU the
// stream is not used. x and out must not overlap.
//
//export kiln_gemm
func kiln_gemm(matrix C.kiln_matrix, x unsafe.Pointer, x_rows, x_cols C.int64_t, out unsafe.Pointer, out_rows, out_cols C.int64_t,
	flags C.uint32_t, stream unsafe.Pointer,
) C.int32_t {
	return guard(func() error {
		opts, err := gemmOptions(flags)
		if err != nil {
			return err
		}
		return lib.Gemm(uint64(matrix), library.Half{Data: out, Rows: int64(out_rows), Cols: int64(out_cols)},
			library.Half{Data: x, Rows: int64(x_rows), Cols: int64(x_cols)}, opts, uintptr(stream))
	})
}

// kiln_gemm_many computes the products of one x with several matrices of one device, each as
// kiln_gemm does, with as many rows as x. Matrices that have the same order of rows, as those of one
// layer do, share the work of bringing x into it. Nothing is computed if one of them is refused.
//
//export kiln_gemm_many
func kiln_gemm_many(products *C.kiln_product, count C.int64_t, x unsafe.Pointer, x_rows, x_cols C.int64_t, flags C.uint32_t,
	stream unsafe.Pointer,
) C.int32_t {
	return guard(func() error {
		opts, err := gemmOptions(flags)
		if err != nil {
			return err
		}
		const most = 1 << 20
		if count < 0 || count > most || products == nil && count > 0 {
			return fmt.Errorf("%d products", count)
		}
		list := make([]library.Product, count)
		for i, p := range unsafe.Slice(products, count) {
			list[i] = library.Product{Handle: uint64(p.matrix), Out: library.Half{Data: p.out, Rows: int64(x_rows), Cols: int64(p.out_cols)}}
		}
		return lib.GemmMany(list, library.Half{Data: x, Rows: int64(x_rows), Cols: int64(x_cols)}, opts, uintptr(stream))
	})
}

// kiln_dequantize writes the weights, half precision, K×N, rows in the layer's own order. Memory
// and stream are as for kiln_gemm.
//
//export kiln_dequantize
func kiln_dequantize(matrix C.kiln_matrix, out unsafe.Pointer, out_rows, out_cols C.int64_t, stream unsafe.Pointer) C.int32_t {
	return guard(func() error {
		return lib.Dequantize(uint64(matrix), library.Half{Data: out, Rows: int64(out_rows), Cols: int64(out_cols)}, uintptr(stream))
	})
}

func gemmOptions(flags C.uint32_t) (quant.GemmOptions, error) {
	opts := quant.GemmOptions{Accumulate: flags&C.KILN_ACCUMULATE != 0, NoBias: flags&C.KILN_NO_BIAS != 0}
	switch flags &^ (C.KILN_ACCUMULATE | C.KILN_NO_BIAS) {
	case 0:
	case C.KILN_FUSED:
		opts.Path = quant.PathFused
	case C.KILN_RECONSTRUCT:
		opts.Path = quant.PathReconstruct
	default:
		return opts, fmt.Errorf("flags %#x", uint32(flags))
	}
	return opts, nil
}

func truth(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

func dialectOf(d C.int32_t) (quant.Dialect, error) {
	switch d {
	case C.KILN_EXLLAMAV2:
		return quant.Exllamav2, nil
	case C.KILN_LORAX:
		return quant.LoRAX, nil
	}
	return 0, fmt.Errorf("dialect %d", d)
}

func request(device, flags C.int32_t, stream unsafe.Pointer, tensors map[string]*C.kiln_tensor) (library.Request, error) {
	r := library.Request{
		Device: int(device), Stream: uintptr(stream), Tensors: map[string]library.Tensor{}, InPlace: flags&C.KILN_IN_PLACE != 0,
	}
	if device < C.KILN_HOST {
		return r, fmt.Errorf("device %d", device)
	}
	if flags&^C.KILN_IN_PLACE != 0 {
		return r, fmt.Errorf("flags %#x", uint32(flags))
	}
	for name, t := range tensors {
		if t.data == nil {
			continue
		}
		to := library.Tensor{Data: t.data, Device: int(t.device)}
		switch t.dtype {
		case C.KILN_F16:
			to.DType = tensor.F16
		case C.KILN_BF16:
			to.DType = tensor.BF16
		case C.KILN_F32:
			to.DType = tensor.F32
		case C.KILN_I16:
			to.DType = tensor.I16
		case C.KILN_I32:
			to.DType = tensor.I32
		default:
			return r, fmt.Errorf("%s: type %d", name, t.dtype)
		}
		if t.dims < 1 || int(t.dims) > len(t.shape) {
			return r, fmt.Errorf("%s: %d dimensions: want 1 or 2", name, t.dims)
		}
		if t.device < C.KILN_HOST {
			return r, fmt.Errorf("%s: device %d", name, t.device)
		}
		for i := range t.dims {
			to.Shape = append(to.Shape, int64(t.shape[i]))
		}
		r.Tensors[name] = to
	}
	return r, nil
}
