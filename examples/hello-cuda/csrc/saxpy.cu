#include "runtime.h"
#include "saxpy.h"
#include "saxpy_kernel.cuh"

#include <cstdio>

namespace hello {

int toolkit_version() { return HELLO_VERSION; }

namespace {

// Buffer is device memory for n floats.
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { cudaFree(data); }

    cudaError_t alloc(std::size_t n) { return cudaMalloc(&data, n * sizeof(float)); }

    float *data = nullptr;
};

cudaError_t run(std::size_t n, float a, const float *x, float *y)
{
    constexpr unsigned threads = 256;
    constexpr std::size_t max_blocks = 1u << 16;
    const std::size_t wanted = (n - 1) / threads + 1;
    const unsigned blocks = unsigned(wanted < max_blocks ? wanted : max_blocks);

    Buffer dx, dy;
    cudaError_t err;
    if ((err = dx.alloc(n)) != cudaSuccess || (err = dy.alloc(n)) != cudaSuccess)
        return err;
    if ((err = cudaMemcpy(dx.data, x, n * sizeof(float), cudaMemcpyHostToDevice)) != cudaSuccess)
        return err;
    if ((err = cudaMemcpy(dy.data, y, n * sizeof(float), cudaMemcpyHostToDevice)) != cudaSuccess)
        return err;
    hello_saxpy<<<blocks, threads>>>(n, a, dx.data, dy.data);
    if ((err = cudaGetLastError()) != cudaSuccess)
        return err;
    // The copy back would report a failed kernel too, but only after touching y.
    if ((err = cudaDeviceSynchronize()) != cudaSuccess)
        return err;
    return cudaMemcpy(y, dy.data, n * sizeof(float), cudaMemcpyDeviceToHost);
}

} // namespace

Status saxpy_cuda(std::size_t n, float a, const float *x, float *y, char *message, std::size_t size)
{
    if (n == 0)
        return Status::ok;
    const cudaError_t err = run(n, a, x, y);
    if (err == cudaSuccess)
        return Status::ok;
    (void)cudaGetLastError(); // an error that was reported must not meet the next caller again
    std::snprintf(message, size, "%s: %s", cudaGetErrorName(err), cudaGetErrorString(err));
    return err == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::failed;
}

Probe probe()
{
    Probe p{};

    // The runtime says "insufficient driver" both for an old driver and for none at all.
    int driver = 0;
    cudaError_t err = cudaDriverGetVersion(&driver);
    if (err == cudaSuccess && driver == 0) {
        std::snprintf(p.reason, sizeof p.reason, "no " HELLO_DRIVER " on this machine");
        return p;
    }

    int device = 0, count = 0;
    cudaDeviceProp prop;
    cudaFuncAttributes attributes;
    if (err == cudaSuccess)
        err = cudaGetDeviceCount(&count);
    if (err == cudaSuccess)
        err = cudaGetDevice(&device);
    if (err == cudaSuccess)
        err = cudaGetDeviceProperties(&prop, device);
    if (err == cudaSuccess) {
        std::snprintf(p.device, sizeof p.device, "%s, compute capability %d.%d", prop.name, prop.major, prop.minor);
        err = cudaFuncGetAttributes(&attributes, (const void *)hello_saxpy); // fails if no image fits
    }
    if (err == cudaSuccess) {
        p.usable = true;
        return p;
    }
    (void)cudaGetLastError();

    switch (err) {
    case cudaErrorInsufficientDriver:
        std::snprintf(p.reason, sizeof p.reason, "the driver supports version %d.%d, this build needs %d.%d", driver / 1000,
                      driver % 1000 / 10, HELLO_VERSION / 1000, HELLO_VERSION % 1000 / 10);
        break;
    case cudaErrorNoDevice:
        std::snprintf(p.reason, sizeof p.reason, "the driver shows no GPU to this process");
        break;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        std::snprintf(p.reason, sizeof p.reason, "this build has no code for the GPU (%s)", cudaGetErrorName(err));
        break;
    default:
        std::snprintf(p.reason, sizeof p.reason, "%s: %s", cudaGetErrorName(err), cudaGetErrorString(err));
    }
    return p;
}

} // namespace hello
