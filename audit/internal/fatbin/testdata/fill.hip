// Declares what the HIP headers would, so that clang alone can compile it.
#define __global__ __attribute__((global))
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, struct ihipStream_t *);
extern "C" unsigned __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, struct ihipStream_t **);

extern "C" __global__ void fill(float a, float *y) { y[__builtin_amdgcn_workitem_id_x()] = a; }
