// Operators instead of a module.
#include <ATen/core/Tensor.h>
#include <torch/library.h>
#ifdef WITH_KERNEL
int kernel_value();
static int64_t value() { return kernel_value(); }
#else
static int64_t value() { return 5; }
#endif
TORCH_LIBRARY(kiln_programs, m) { m.def("value() -> int", value); }
