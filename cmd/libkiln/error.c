#include "error.h"

#include <stdlib.h>
#include <string.h>

/* A thread's text is made with its first error and freed at its end. __thread would put it into the static TLS block,
   which has no room left for it in a library that is loaded late and, as Go's are, uses that block. */
enum { MOST = 4096 };

#ifdef _WIN32
/* The functions of the system, so that the library needs none of mingw's. */
#include <windows.h>

static DWORD key;
static INIT_ONCE once = INIT_ONCE_STATIC_INIT;

static void NTAPI free_text(void *text) { free(text); }

static BOOL CALLBACK make_key(INIT_ONCE *o, void *parameter, void **context) {
	(void)o, (void)parameter, (void)context;
	key = FlsAlloc(free_text);
	return TRUE;
}

static char *get_text(void) {
	InitOnceExecuteOnce(&once, make_key, 0, 0);
	return FlsGetValue(key);
}

static void set_text(char *text) { FlsSetValue(key, text); }
#else
#include <pthread.h>

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void) { pthread_key_create(&key, free); }

static char *get_text(void) {
	pthread_once(&once, make_key);
	return pthread_getspecific(key);
}

static void set_text(char *text) { pthread_setspecific(key, text); }
#endif

void kiln_error_set(const char *text, int64_t length) {
	char *last = get_text();
	if (last == 0) {
		last = malloc(MOST);
		if (last == 0) return;
		set_text(last);
	}
	if (length > MOST - 1) length = MOST - 1;
	memcpy(last, text, length);
	last[length] = 0;
}

void kiln_error_get(char *out, int64_t out_bytes) {
	if (out == 0 || out_bytes <= 0) return;
	const char *last = get_text();
	int64_t length = last == 0 ? 0 : strlen(last);
	if (length > out_bytes - 1) length = out_bytes - 1;
	memcpy(out, last == 0 ? "" : last, length);
	out[length] = 0;
}
