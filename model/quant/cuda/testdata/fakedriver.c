// A driver without a GPU: it allocates ordinary memory, copies, and writes down launches instead of
// running them. It keeps the rules of recording: while a stream is recorded, a thread in the global
// mode must not allocate, free or wait.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <malloc.h>
#define posix_memalign(p, alignment, n) ((*(void **)(p) = _aligned_malloc(n, alignment)) == 0)
#define aligned_free _aligned_free
#else
#define aligned_free free
#endif

typedef int32_t CUresult;
enum { outOfMemory = 2, invalidValue = 1, captureUnsupported = 900, captureInvalidated = 901 };
enum { maxStreams = 64, maxFunctions = 256 };

static char text[1 << 20];
static size_t used;
static int live, contexts, failing, failAfter, mode;
static struct { int open, recorded, invalid; } streams[maxStreams];
static char names[maxFunctions][64];
static int functions;

static void note(const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (used < sizeof text - 512) used += vsnprintf(text + used, 512, format, args);
  va_end(args);
}

// What a test asks. fake_fail lets the allocation after so many others fail.
const char *fake_log(void) { return text; }
void fake_clear(void) { used = 0, text[0] = 0; }
int fake_live(void) { return live; }
int fake_contexts(void) { return contexts; }
void fake_fail(int after) { failing = 1, failAfter = after; }
void fake_work(void) { failing = 0; }

static CUresult forbidden(void) {
  int bad = 0;
  for (int i = 0; i < maxStreams; i++)
    if (streams[i].recorded && mode != 2) streams[i].invalid = bad = 1;
  return bad ? captureUnsupported : 0;
}
static int isRecorded(uintptr_t s) { return s < maxStreams && streams[s].recorded; }

CUresult cuInit(unsigned flags) { return (void)flags, 0; }
CUresult cuDriverGetVersion(int *v) { return *v = 13000, 0; }
CUresult cuDeviceGetCount(int *n) { return *n = 1, 0; }
CUresult cuDeviceGet(int *d, int ordinal) { return *d = ordinal, 0; }
CUresult cuDeviceGetName(char *name, int n, int d) { return (void)d, snprintf(name, n, "Fake"), 0; }
CUresult cuDeviceGetAttribute(int *v, int attribute, int d) {
  (void)d;
  switch (attribute) {
  case 16: *v = 132; break;
  case 38: *v = 60 << 20; break;
  case 75: *v = 9; break;
  case 76: *v = 0; break;
  case 97: *v = 227 << 10; break;
  default: return invalidValue;
  }
  return 0;
}
CUresult cuDeviceTotalMem_v2(size_t *n, int d) { return (void)d, *n = (size_t)1 << 37, 0; }
CUresult cuDevicePrimaryCtxRetain(void **ctx, int d) { return (void)d, *ctx = text, 0; }
CUresult cuDevicePrimaryCtxRelease_v2(int d) { return (void)d, 0; }
CUresult cuCtxPushCurrent_v2(void *ctx) { return (void)ctx, contexts++, 0; }
CUresult cuCtxPopCurrent_v2(void **ctx) { return *ctx = text, contexts--, 0; }
CUresult cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *options, void **values) {
  (void)n, (void)options, (void)values;
  note("load %s\n", memcmp(image, "\177ELF", 4) ? "ptx" : "cubin");
  return *m = text, 0;
}
CUresult cuModuleUnload(void *m) { return (void)m, 0; }
CUresult cuModuleGetFunction(void **f, void *m, const char *name) {
  (void)m;
  if (functions == maxFunctions) return outOfMemory;
  snprintf(names[functions], sizeof names[0], "%s", name);
  return *f = names[functions++], 0;
}
CUresult cuFuncSetAttribute(void *f, int attribute, int v) { return (void)f, (void)attribute, (void)v, 0; }

#ifndef CUDA_11
CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dimensions,
                                const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,
                                int promotion, int fill) {
  if ((uintptr_t)map % 64 || type != 6 || rank != 2 || (uintptr_t)address % 16 || strides[0] % 16 || dimensions[0] * 2 != strides[0] ||
      box[0] != 64 || box[1] > 256 || steps[0] != 1 || steps[1] != 1 || interleave || swizzle != 3 || promotion > 3 || fill)
    return invalidValue;
  return memset(map, 1, 128), 0;
}
#endif

struct attribute { uint32_t id, pad, value[16]; };
struct config { uint32_t grid[3], block[3], shared; uintptr_t stream; struct attribute *attributes; uint32_t count; };
_Static_assert(sizeof(struct attribute) == 72, "CUlaunchAttribute");
_Static_assert(offsetof(struct config, stream) == 32, "CUlaunchConfig");

CUresult cuLaunchKernelEx(const struct config *c, void *f, void **params, void **extra) {
  (void)extra;
  if (!params || !params[0]) return invalidValue;
  note("%s %s stream %d grid %u %u %u block %u shared %u", isRecorded(c->stream) ? "record" : "launch", (char *)f, (int)c->stream,
       c->grid[0], c->grid[1], c->grid[2], c->block[0], c->shared);
  for (uint32_t i = 0; i < c->count; i++) {
    const struct attribute *a = &c->attributes[i];
    if (a->id == 4) note(" cluster %u", a->value[0]);
    if (a->id == 6) note(" overlapped %u", a->value[0]);
  }
  note("\n");
  return 0;
}

CUresult cuMemAlloc_v2(void **p, size_t n) {
  CUresult r = forbidden();
  if (r) return r;
  if (failing && failAfter-- <= 0) return outOfMemory;
  if (posix_memalign(p, 512, n)) return outOfMemory;
  memset(*p, 0xA5, n);
  note("alloc\n");
  return live++, 0;
}
CUresult cuMemFree_v2(void *p) {
  CUresult r = forbidden();
  if (r) return r;
  note("free\n");
  return aligned_free(p), live--, 0;
}
CUresult cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, uintptr_t s) {
  note("%s upload stream %d\n", isRecorded(s) ? "record" : "do", (int)s);
  if (!isRecorded(s)) memcpy(to, from, n);
  return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t n, uintptr_t s) { return cuMemcpyHtoDAsync_v2(to, from, n, s); }
CUresult cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t n, uintptr_t s) { return cuMemcpyHtoDAsync_v2(to, from, n, s); }
CUresult cuMemsetD8Async(void *to, unsigned char v, size_t n, uintptr_t s) {
  note("%s clear stream %d\n", isRecorded(s) ? "record" : "do", (int)s);
  if (!isRecorded(s)) memset(to, v, n);
  return 0;
}
CUresult cuStreamCreate(uintptr_t *s, unsigned flags) {
  (void)flags;
  for (int i = 1; i < maxStreams; i++)
    if (!streams[i].open) return streams[i].open = 1, *s = i, 0;
  return outOfMemory;
}
CUresult cuStreamDestroy_v2(uintptr_t s) { return streams[s].open = 0, 0; }
CUresult cuStreamSynchronize(uintptr_t s) {
  if (isRecorded(s)) return streams[s].invalid = 1, captureUnsupported;
  note("wait stream %d\n", (int)s);
  return 0;
}
// The modes of threads are kept only for the one thread of a test; a recording sets it, as that of
// PyTorch does.
CUresult cuStreamBeginCapture_v2(uintptr_t s, int how) { return streams[s].recorded = 1, streams[s].invalid = 0, mode = how, 0; }
CUresult cuStreamEndCapture(uintptr_t s, void **graph) {
  streams[s].recorded = 0;
  *graph = text;
  return streams[s].invalid ? captureInvalidated : 0;
}
CUresult cuStreamIsCapturing(uintptr_t s, int *status) { return *status = isRecorded(s), 0; }
CUresult cuThreadExchangeStreamCaptureMode(int *how) {
  int old = mode;
  return mode = *how, *how = old, 0;
}
CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { return (void)flags, *exec = graph, 0; }
CUresult cuGraphLaunch(void *exec, uintptr_t s) { return (void)exec, (void)s, 0; }
CUresult cuGraphExecDestroy(void *exec) { return (void)exec, 0; }
CUresult cuGraphDestroy(void *graph) { return (void)graph, 0; }
CUresult cuEventCreate(void **e, unsigned flags) { return (void)flags, *e = text, 0; }
CUresult cuEventRecord(void *e, uintptr_t s) { return (void)e, (void)s, 0; }
CUresult cuEventElapsedTime(float *ms, void *a, void *b) { return (void)a, (void)b, *ms = 1, 0; }
CUresult cuEventSynchronize(void *e) { return (void)e, 0; }
CUresult cuEventDestroy_v2(void *e) { return (void)e, 0; }
CUresult cuGetErrorName(CUresult r, const char **name) {
  *name = r == outOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : r == captureUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" : NULL;
  return *name ? 0 : invalidValue;
}
