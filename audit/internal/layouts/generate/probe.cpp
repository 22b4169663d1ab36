// What extensions of torch inline: the classes and enumerations whose layout a compiler builds into
// them. Compiled with debug information against the headers of one release; never linked or run.
#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#ifdef KILN_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

// A parameter by value makes a compiler describe the type whole.
#define KILN_TYPE(n, ...)                \
  using kiln_type_##n = __VA_ARGS__;     \
  unsigned long kiln_size_##n(kiln_type_##n* x) { return sizeof(*x) + alignof(kiln_type_##n); }

KILN_TYPE(1, c10::intrusive_ptr_target)
KILN_TYPE(2, c10::TensorImpl)
KILN_TYPE(3, c10::StorageImpl)
KILN_TYPE(4, c10::Storage)
KILN_TYPE(5, at::TensorBase)
KILN_TYPE(6, at::Tensor)
KILN_TYPE(7, c10::TensorOptions)
KILN_TYPE(8, c10::IValue)
KILN_TYPE(9, c10::Scalar)
KILN_TYPE(10, c10::ArrayRef<long>)
KILN_TYPE(11, c10::SymInt)
KILN_TYPE(12, c10::Device)
KILN_TYPE(13, c10::Stream)
KILN_TYPE(14, c10::DataPtr)
KILN_TYPE(15, c10::Allocator)
KILN_TYPE(16, c10::impl::SizesAndStrides)
KILN_TYPE(17, c10::DispatchKeySet)
KILN_TYPE(18, caffe2::TypeMeta)
KILN_TYPE(19, c10::Error)
KILN_TYPE(20, c10::OperatorHandle)
KILN_TYPE(21, c10::FunctionSchema)
KILN_TYPE(22, c10::KernelFunction)
KILN_TYPE(23, c10::GeneratorImpl)
KILN_TYPE(24, at::TensorIteratorBase)
KILN_TYPE(25, torch::Library)
KILN_TYPE(26, torch::CppFunction)
KILN_TYPE(27, c10::Half)
KILN_TYPE(28, c10::BFloat16)
KILN_TYPE(29, c10::ScalarType)
KILN_TYPE(30, c10::DeviceType)
KILN_TYPE(31, c10::DispatchKey)
KILN_TYPE(32, c10::Layout)
KILN_TYPE(33, c10::MemoryFormat)
#ifdef KILN_CUDA
KILN_TYPE(40, c10::cuda::CUDAStream)
KILN_TYPE(41, c10::cuda::CUDAGuard)
KILN_TYPE(42, c10::cuda::OptionalCUDAGuard)
#endif
