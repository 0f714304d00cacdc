#include "base/list.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* One lock for all lists: appending is rare. */
static pthread_mutex_t appending = PTHREAD_MUTEX_INITIALIZER;

static void *list_at(list *l, int64_t number) {
    char *chunk = atomic_load_explicit(&l->chunks[number / LIST_CHUNK], memory_order_acquire);
    return chunk + (size_t)(number % LIST_CHUNK) * l->item_size;
}

void *list_find(list *l, int64_t number) {
    int64_t count = atomic_load_explicit(&l->count, memory_order_acquire);
    return number >= 0 && number < count ? list_at(l, number) : NULL;
}

/* Appends a copy of the item. Returns its number, or REFUSED. The caller holds the lock `appending`. */
static int64_t list_append_locked(list *l, const void *item) {
    int64_t number = atomic_load(&l->count);
    if (number >= (int64_t)LIST_CHUNK * LIST_CHUNKS)
        return error_set("more than %d %s were used in one process; create them once and use them again",
                         LIST_CHUNK * LIST_CHUNKS, l->items_name);
    if (!atomic_load(&l->chunks[number / LIST_CHUNK])) {
        char *chunk = calloc(LIST_CHUNK, l->item_size);
        if (!chunk) return error_set("out of memory for one more of the %s", l->items_name);
        atomic_store_explicit(&l->chunks[number / LIST_CHUNK], chunk, memory_order_release);
    }
    memcpy(list_at(l, number), item, l->item_size);
    atomic_store_explicit(&l->count, number + 1, memory_order_release);
    return number;
}

int64_t list_append(list *l, const void *item) {
    pthread_mutex_lock(&appending);
    int64_t number = list_append_locked(l, item);
    pthread_mutex_unlock(&appending);
    return number;
}

int64_t list_find_or_append(list *l, const void *item) {
    pthread_mutex_lock(&appending);
    int64_t count = atomic_load(&l->count), number = 0;
    while (number < count && memcmp(list_at(l, number), item, l->item_size) != 0) number++;
    if (number == count) number = list_append_locked(l, item);
    pthread_mutex_unlock(&appending);
    return number;
}
