#include <pybind11/pybind11.h>

void bind_arithmetic(pybind11::module_& m);
void bind_functions(pybind11::module_& m);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "elementwise products of a build matrix";
  bind_arithmetic(m);
  bind_functions(m);
  m.def("python", [] { return PY_VERSION; });
}
