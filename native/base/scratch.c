#include "base/scratch.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

typedef struct memory {
    void *bytes;
    size_t size;
} memory;

static _Thread_local memory kept[SCRATCH_USES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its only use is that a thread that ends has its memory freed */
static int no_key;

/* Frees the buffers of a thread that ends. */
static void scratch_thread_free(void *uses) {
    for (int i = 0; i < SCRATCH_USES; i++) free(((memory *)uses)[i].bytes);
}

static void scratch_key_create(void) {
    no_key = pthread_key_create(&key, scratch_thread_free);
}

void *scratch_get(scratch_use use, size_t bytes) {
    memory *m = &kept[use];
    if (m->bytes && bytes <= m->size) return m->bytes;
    pthread_once(&once, scratch_key_create);
    void *more = no_key || pthread_setspecific(key, kept) != 0 ? NULL : malloc(bytes > 0 ? bytes : 1);
    if (!more) return error_null("out of memory for %zu bytes that a call needs while it runs", bytes);
    free(m->bytes);
    *m = (memory){.bytes = more, .size = bytes};
    return more;
}
