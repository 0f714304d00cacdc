/* Programs have rows, MPI wants items, and ints or 64-bit numbers depending on the function. */
#include "call/parts.h"

#include "base/error.h"
#include "base/scratch.h"

int parts_make(parts *p, int slot, const int64_t *rows, int64_t n, int64_t row_items, int large) {
    int64_t *numbers =
                scratch_get(slot == PARTS_SENT ? SCRATCH_SENT : SCRATCH_RECEIVED, (size_t)(2 * n) * sizeof *numbers),
            next = 0;
    if (!numbers) return REFUSED;
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
