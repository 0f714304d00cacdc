#include "test/gpu/fake_pinned.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "test/gpu/fake_memory.h"

enum { PAGE = 4096, SPOILT = 1 << 24 }; /* bytes that are filled: of a large piece the first ones */

typedef struct piece {
    char *start;
    size_t bytes;
    struct piece *next;
} piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static piece *pieces;
static atomic_llong live, live_bytes;

void *fake_pinned_alloc(size_t bytes) {
    piece *p = malloc(sizeof *p);
    void *memory = NULL;
    if (!p || posix_memalign(&memory, PAGE, bytes) != 0) {
        free(p);
        return NULL;
    }
    memset(memory, FAKE_FRESH, bytes < SPOILT ? bytes : SPOILT);
    pthread_mutex_lock(&lock);
    *p = (piece){.start = memory, .bytes = bytes, .next = pieces};
    pieces = p;
    live++;
    live_bytes += (int64_t)bytes;
    pthread_mutex_unlock(&lock);
    return memory;
}

int fake_pinned_free(void *memory) {
    pthread_mutex_lock(&lock);
    piece **at = &pieces;
    while (*at && (*at)->start != memory) at = &(*at)->next;
    piece *found = *at;
    if (found) {
        *at = found->next;
        live--;
        live_bytes -= (int64_t)found->bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!found) return -1;
    memset(memory, FAKE_FREED, found->bytes < SPOILT ? found->bytes : SPOILT);
    free(memory);
    free(found);
    return 0;
}

int fake_pinned_has(const void *memory, size_t bytes) {
    uintptr_t p = (uintptr_t)memory;
    pthread_mutex_lock(&lock);
    const piece *found = pieces;
    while (found) {
        uintptr_t start = (uintptr_t)found->start;
        if (p >= start && p - start <= found->bytes && bytes <= found->bytes - (p - start)) break;
        found = found->next;
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

int64_t fake_pinned_live(void) {
    return atomic_load(&live);
}

int64_t fake_pinned_bytes(void) {
    return atomic_load(&live_bytes);
}
