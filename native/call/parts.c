/* Programs have rows, MPI wants items, and ints or 64-bit numbers depending on the function. */
#include "call/parts.h"

#include "base/error.h"
#include "base/scratch.h"

int parts_make(parts *p, int slot, const int64_t *rows, int64_t n, int64_t row_items, int large) {
    const scratch_use use = slot == PARTS_SENT ? SCRATCH_SENT : SCRATCH_RECEIVED;
    int64_t *wide = scratch_get(use, (size_t)(2 * n) * sizeof *wide), next = 0;
    int *narrow = (int *)wide;
    if (!wide) return REFUSED;
    for (int64_t i = 0; i < n; next += rows[i++] * row_items)
        if (large) {
            wide[i] = rows[i] * row_items;
            wide[n + i] = next;
        } else {
            narrow[i] = (int)(rows[i] * row_items);
            narrow[n + i] = (int)next;
        }
    *p = large ? (parts){wide, wide + n} : (parts){narrow, narrow + n};
    return 0;
}
