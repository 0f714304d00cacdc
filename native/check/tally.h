/* Whether the ranks of a communicator agree on what goes between each two of them, in calls in which that is not the
 * same for all: alltoallv, exchanges with neighbours, and halos.
 */
#ifndef MPIXLA_NATIVE_TALLY_H
#define MPIXLA_NATIVE_TALLY_H

#include "call/frame.h"

/* Whether it is such a call. */
int tally_is_needed(const frame *f);

/* Once the ranks agree on all else (agree.h). All ranks return 0, or all REFUSED; or a code of MPI's. */
int tally_compare(const frame *f);

#endif
