// An extension on libtorch's stable ABI: no C++ name of torch, no Python, one operator.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <dlfcn.h>

static void check(AOTITorchError e, int *bad) { *bad |= e != 0; }

// Returns 0 if what torch says of a tensor that it made itself is true.
extern "C" int stable_check(void) {
  int bad = 0;
  int64_t sizes[] = {2, 3, 4}, strides[] = {12, 4, 1}, n = 0, dim = 0, *got = nullptr;
  AtenTensorHandle t = nullptr;
  check(aoti_torch_empty_strided(3, sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &t), &bad);
  if (bad) return 1;
  check(aoti_torch_get_numel(t, &n), &bad);
  check(aoti_torch_get_dim(t, &dim), &bad);
  check(aoti_torch_get_sizes(t, &got), &bad);
  if (bad || n != 24 || dim != 3 || got[0] != 2 || got[1] != 3 || got[2] != 4) return 2;
  void *data = nullptr;
  check(aoti_torch_get_data_ptr(t, &data), &bad);
  float *values = static_cast<float *>(data);
  for (int i = 0; i < 24; i++) values[i] = i;
  check(aoti_torch_delete_tensor_object(t), &bad);
#ifdef NEWER
  // A function that came with a later release.
  uint64_t version = torch_get_abi_version();
  if (version == 0) return 3;
#endif
  return bad ? 4 : 0;
}
