/* The parts of a buffer, one for each rank and one behind the other, as MPI's functions with a "v" take them. */
#ifndef MPIXLA_NATIVE_PARTS_H
#define MPIXLA_NATIVE_PARTS_H

#include <stdint.h>

enum { PARTS_SENT, PARTS_RECEIVED };

typedef struct parts {
    const void *counts, *displs; /* in items: ints, or int64_ts for MPI's large-count functions */
} parts;

/* Part i, of n, has rows[i] rows of row_items items; all of them together fit the kind of number that is asked for. The
 * arrays belong to the calling thread, and last until it makes parts for this slot again. On failure -1, with
 * error_set.
 */
int parts_make(parts *p, int slot, const int64_t *rows, int64_t n, int64_t row_items, int large);

#endif
