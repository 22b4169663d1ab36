// What a compiler of C++ was told, as a module.
#include <pybind11/pybind11.h>
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

int kernel_value();
int other_value();

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "a module";
  m.def("name", [] { return TEXT(TORCH_EXTENSION_NAME); }, "its name");
  m.def("standard", [] { return __cplusplus; });
  m.def("openmp", [] {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
  });
  m.def("fast_math", [] {
#ifdef __FAST_MATH__
    return true;
#else
    return false;
#endif
  });
  m.def("abi", [] { return _GLIBCXX_USE_CXX11_ABI; });
#ifdef NVDR_TORCH
  m.def("nvdr", [] { return true; });
#endif
#ifdef HIDDEN_SIZE
  m.def("hidden_size", [] { return HIDDEN_SIZE; });
#endif
#ifdef WITH_KERNEL
  m.def("kernel", &kernel_value);
#endif
#ifdef WITH_OTHER
  m.def("other", &other_value);
#endif
  m.def("fail", [] { throw std::invalid_argument("no such value"); });
}
