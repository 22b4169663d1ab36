// The device code, alone: no include, no host code, no launch. nvcc sees it through
// saxpy.cu; NVRTC compiles this very file, on a machine without nvcc or a GPU.
#pragma once

// y[i] = a * x[i] + y[i], rounded once. fmaf is not left to the compiler's choice of
// contraction: saxpy_cpu.cpp makes the same call, so both give the same bits.
//
// The stride lets any grid cover any n. extern "C" keeps the name findable in a cubin.
extern "C" __global__ void hello_saxpy(unsigned long long n, float a, const float *x, float *y)
{
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        y[i] = fmaf(a, x[i], y[i]);
}
