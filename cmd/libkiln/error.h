#include <stdint.h>

/* What only the library itself calls. On Windows that is everything without another mark. */
#ifdef _WIN32
#define HIDDEN
#else
#define HIDDEN __attribute__((visibility("hidden")))
#endif

/* The text of the last error of the calling thread. */
HIDDEN void kiln_error_set(const char *text, int64_t length);
HIDDEN void kiln_error_get(char *out, int64_t out_bytes);
