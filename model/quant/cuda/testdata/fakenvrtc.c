// A compiler that compiles nothing: the machine code is the beginning of an ELF file, the target
// and the number of compilations so far. Nothing is compiled for sm_86.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program { char out[256]; const char *source; int headers; };
static int compiled, minorVersion;

int fake_compiled(void) { return compiled; }
void fake_version(int minor) { minorVersion = minor; }

const char *nvrtcGetErrorString(int r) { return r == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INVALID_INPUT"; }
int nvrtcVersion(int *major, int *minor) { return *major = 99, *minor = minorVersion, 0; }
int nvrtcGetNumSupportedArchs(int *n) { return *n = 2, 0; }
int nvrtcGetSupportedArchs(int *list) { return list[0] = 80, list[1] = 90, 0; }
int nvrtcCreateProgram(struct program **p, const char *source, const char *name, int n, const char **headers, const char **names) {
  if (n != 3 || strcmp(names[0], "hopper.cuh") || strcmp(names[1], "kiln.cuh") || strcmp(names[2], "wgmma.cuh") || !strstr(headers[0], "#pragma once") || !strstr(headers[2], "#pragma once") ||
      !strstr(source, ".cuh\"") || !strstr(name, ".cu"))
    return 3;
  *p = calloc(1, sizeof **p);
  return 0;
}
int nvrtcCompileProgram(struct program *p, int n, const char **options) {
  for (int i = 0; i < n; i++)
    if (!strcmp(options[i], "--gpu-architecture=sm_86")) return 6;
  snprintf(p->out, sizeof p->out, "\177ELF %s %d", options[n - 1], ++compiled);
  return 0;
}
int nvrtcDestroyProgram(struct program **p) { return free(*p), *p = NULL, 0; }
int nvrtcGetProgramLogSize(struct program *p, size_t *n) { return (void)p, *n = 18, 0; }
int nvrtcGetProgramLog(struct program *p, char *log) { return (void)p, strcpy(log, "no such processor"), 0; }
int nvrtcGetCUBINSize(struct program *p, size_t *n) { return *n = strlen(p->out), 0; }
int nvrtcGetCUBIN(struct program *p, char *out) { return memcpy(out, p->out, strlen(p->out)), 0; }
int nvrtcGetPTXSize(struct program *p, size_t *n) { return *n = strlen(p->out) + 1, 0; }
int nvrtcGetPTX(struct program *p, char *out) { return strcpy(out, p->out), 0; }
