// The runtime that saxpy.cu calls: CUDA's, or HIP's under the same names if hipcc compiles it.
#pragma once

#ifdef __HIP__

#include <hip/hip_runtime.h>

#define HELLO_VERSION (HIP_VERSION_MAJOR * 1000 + HIP_VERSION_MINOR * 10)
#define HELLO_DRIVER "AMD driver"

#define cudaDeviceProp hipDeviceProp_t
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaDriverGetVersion hipDriverGetVersion
#define cudaErrorInsufficientDriver hipErrorInsufficientDriver
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaErrorNoDevice hipErrorNoDevice
#define cudaErrorNoKernelImageForDevice hipErrorNoBinaryForGpu
#define cudaErrorUnsupportedPtxVersion hipErrorInvalidImage
#define cudaError_t hipError_t
#define cudaFree(p) (void)hipFree(p)
#define cudaFuncAttributes hipFuncAttributes
#define cudaFuncGetAttributes hipFuncGetAttributes
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaGetErrorName hipGetErrorName
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaMalloc hipMalloc
#define cudaMemcpy hipMemcpy
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaSuccess hipSuccess

#else

#include <cuda_runtime.h>

#define HELLO_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)
#define HELLO_DRIVER "NVIDIA driver"

#endif
