/* Whether arrays are the same on all ranks. */
#ifndef MPIXLA_NATIVE_REPLICATED_H
#define MPIXLA_NATIVE_REPLICATED_H

#include "call/frame.h"

/* What it is if arrays differ, as `checked` says. */
enum {
    REPLICATED_ASSERTED, /* an error of the program's own check */
    REPLICATED_CHECKED,  /* an error of checked mode */
    REPLICATED_TOLD      /* none: the communicator's first rank writes it, once for each line of the source */
};

/* Compares all arrays of the call bit by bit, and gives them back. `leaves` has a number for each, which is the same on
 * ranks that mean the same array, and whose text (site_text) names it.
 *
 * All ranks of the communicator must call it. All return 0, or, unless that is only told, all REFUSED with a sentence
 * that names the first array that is not the same, and says which ranks have another one, and where it differs; or a
 * code of MPI's. */
int assert_replicated(const frame *f);

#endif
