/* Makes the counts and displacements of a buffer with one part for each rank, for MPI's functions with a "v". */
#ifndef MPIXLA_NATIVE_PARTS_H
#define MPIXLA_NATIVE_PARTS_H

#include <stdint.h>

enum { PARTS_SENT, PARTS_RECEIVED };

typedef struct parts {
    const void *counts, *displs; /* in items: ints, or int64_ts for MPI's large-count functions */
} parts;

/* Fills `p` with the counts and displacements, in items, of n parts in order. Part i has rows[i] rows of row_items
 * items; the sum must fit an int, or with `large` an int64_t. The arrays belong to the calling thread, and are valid
 * until its next call for this slot. Returns 0 or REFUSED. */
int parts_make(parts *p, int slot, const int64_t *rows, int64_t n, int64_t row_items, int large);

#endif
