/* Compares the messages between each two ranks in calls where these differ by rank: alltoallv, exchanges with
 * neighbours, and halos.
 */
#ifndef MPIXLA_NATIVE_TALLY_H
#define MPIXLA_NATIVE_TALLY_H

#include "call/frame.h"

/* Returns whether a call is one of these. */
int tally_is_needed(const frame *f);

/* Compares the messages, after agree.h has compared all else. All ranks return 0, or all REFUSED; or a code of MPI. */
int tally_compare(const frame *f);

#endif
