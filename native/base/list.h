/* An append-only list in chunks that never move: readers need no lock while a writer appends.
 *
 * Items are numbered from 0 in the order in which they are appended, and live as long as the process.
 */
#ifndef MPIXLA_NATIVE_LIST_H
#define MPIXLA_NATIVE_LIST_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { LIST_CHUNK = 256, LIST_CHUNKS = 4096 };

/* Define one as `static list l = {.item_size = sizeof(item), .items_name = "items"};`. */
typedef struct list {
    size_t item_size;       /* bytes */
    const char *items_name; /* for messages, in the plural */
    atomic_int_least64_t count;
    _Atomic(char *) chunks[LIST_CHUNKS];
} list;

/* Returns the item with this number, or NULL if there is none. */
void *list_find(list *l, int64_t number);

/* Appends a copy of the item. Returns the number of the copy, or REFUSED with error_set if the list is full or without
 * memory. Takes a lock. */
int64_t list_append(list *l, const void *item);

/* Returns the number of the first item with the same bytes; appends a copy if there is none. Returns REFUSED with
 * error_set if the list is full or without memory. Takes a lock. */
int64_t list_find_or_append(list *l, const void *item);

#endif
