#include "error.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A thread's text is made with its first error and freed at its end. __thread would put it into the static TLS block,
   which has no room left for it in a library that is loaded late and, as Go's are, uses that block. */
enum { MOST = 4096 };

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void) { pthread_key_create(&key, free); }

void kiln_error_set(const char *text, int64_t length) {
	pthread_once(&once, make_key);
	char *last = pthread_getspecific(key);
	if (last == 0) {
		last = malloc(MOST);
		if (last == 0) return;
		pthread_setspecific(key, last);
	}
	if (length > MOST - 1) length = MOST - 1;
	memcpy(last, text, length);
	last[length] = 0;
}

void kiln_error_get(char *out, int64_t out_bytes) {
	if (out == 0 || out_bytes <= 0) return;
	pthread_once(&once, make_key);
	const char *last = pthread_getspecific(key);
	int64_t length = last == 0 ? 0 : strlen(last);
	if (length > out_bytes - 1) length = out_bytes - 1;
	memcpy(out, last == 0 ? "" : last, length);
	out[length] = 0;
}
