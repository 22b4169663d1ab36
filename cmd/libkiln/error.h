#include <stdint.h>

/* The text of the last error of the calling thread. */
__attribute__((visibility("hidden"))) void kiln_error_set(const char *text, int64_t length);
__attribute__((visibility("hidden"))) void kiln_error_get(char *out, int64_t out_bytes);
