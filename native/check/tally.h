/* Compares the messages between each two ranks, in calls whose messages differ by rank: alltoallv, exchanges with
 * neighbours, and halos.
 */
#ifndef MPIXLA_NATIVE_TALLY_H
#define MPIXLA_NATIVE_TALLY_H

#include "call/frame.h"

/* Returns whether the messages of a call differ by rank. */
int tally_is_needed(const frame *f);

/* Compares the messages, after agree.h has compared all other properties. Collective. All ranks return 0, or all
 * REFUSED with error_set; or an error code. */
int tally_compare(const frame *f);

#endif
