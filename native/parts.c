/* Programs have rows, MPI wants items, and ints or 64-bit numbers depending on the function. Each thread keeps the
 * memory for them, which grows to the largest communicator that it has used, so that a call allocates nothing.
 */
#include "parts.h"

#include <pthread.h>
#include <stdlib.h>

#include "error.h"

typedef struct memory {
    int64_t *numbers;
    int64_t capacity;
} memory;

static _Thread_local memory kept[PARTS_SLOTS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its only use is that a thread that ends has its memory freed */
static int no_key;

static void thread_end(void *slots) {
    for (int i = 0; i < PARTS_SLOTS; i++) free(((memory *)slots)[i].numbers);
}

static void key_create(void) {
    no_key = pthread_key_create(&key, thread_end);
}

static int64_t *memory_get(memory *m, int64_t capacity) {
    if (capacity <= m->capacity) return m->numbers;
    pthread_once(&once, key_create);
    if (no_key || pthread_setspecific(key, kept) != 0) return NULL;
    int64_t *numbers = realloc(m->numbers, (size_t)capacity * sizeof *numbers);
    if (!numbers) return NULL;
    m->numbers = numbers;
    m->capacity = capacity;
    return numbers;
}

int parts_make(parts *p, int slot, const int64_t *rows, int64_t n, int64_t row_items, int large) {
    int64_t *numbers = memory_get(&kept[slot], 2 * n), next = 0;
    if (!numbers) return error_set("there is no memory for the counts of %lld ranks", (long long)n);
    if (large) {
        int64_t *counts = numbers, *displs = numbers + n;
        for (int64_t i = 0; i < n; i++) {
            counts[i] = rows[i] * row_items;
            displs[i] = next;
            next += counts[i];
        }
    } else {
        int *counts = (int *)numbers, *displs = counts + n;
        for (int64_t i = 0; i < n; i++) {
            counts[i] = (int)(rows[i] * row_items);
            displs[i] = (int)next;
            next += counts[i];
        }
    }
    *p = large ? (parts){numbers, numbers + n} : (parts){numbers, (int *)numbers + n};
    return 0;
}
