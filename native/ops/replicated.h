/* Compares arrays between all ranks (assert_replicated). */
#ifndef MPIXLA_NATIVE_REPLICATED_H
#define MPIXLA_NATIVE_REPLICATED_H

#include "call/frame.h"

/* The attribute `checked`: the reaction to arrays that differ. */
enum {
    REPLICATED_ASSERTED, /* an error of the program's own check */
    REPLICATED_CHECKED,  /* an error of checked mode */
    REPLICATED_PRINTED   /* no error: rank 0 of the communicator prints the difference, once for each source line */
};

/* Compares all arrays of the call bit by bit between the ranks, and returns them unchanged. The attribute `leaves` has
 * the site of each array, equal on all ranks, whose text (site_text) names the array. Collective. All ranks return 0,
 * or, except for REPLICATED_PRINTED, all REFUSED with error_set, which names the first array that differs, the ranks
 * and the index; or an error code. A failure of this rank alone ends the job. */
int assert_replicated(const frame *f);

#endif
