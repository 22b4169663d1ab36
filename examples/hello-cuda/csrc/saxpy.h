// What module.cpp needs from the two implementations. Plain types only: it is read by
// the C++ compiler and by nvcc.
#pragma once

#include <cstddef>

namespace hello {

// saxpy_cpu computes y[i] = fmaf(a, x[i], y[i]). x may equal y.
void saxpy_cpu(std::size_t n, float a, const float *x, float *y);

#ifdef HELLO_WITH_CUDA

// Probe is the state of the GPU at the moment of asking.
struct Probe {
    bool usable;
    char device[320]; // name and compute capability; empty if there is none
    char reason[320]; // why it is not usable; empty if it is
};

// probe asks the driver for a device, and the device for an image of our kernel.
// It never fails: whatever goes wrong is the reason.
Probe probe();

enum class Status { ok, out_of_memory, failed };

// saxpy_cuda does the work of saxpy_cpu on the current device and waits for it. If it
// does not return ok, y is as it was and message says what happened.
Status saxpy_cuda(std::size_t n, float a, const float *x, float *y, char *message, std::size_t size);

// toolkit_version is the version of the nvcc or hipcc that compiled saxpy.cu: 1000 * major + 10 * minor.
int toolkit_version();

#endif

} // namespace hello
