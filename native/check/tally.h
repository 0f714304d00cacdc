/* Compares the messages between each two ranks, in calls whose messages differ by rank: alltoallv, exchanges with
 * neighbours, and halos.
 */
#ifndef MPIXLA_NATIVE_TALLY_H
#define MPIXLA_NATIVE_TALLY_H

#include "call/frame.h"

/* Returns whether the call's messages differ by rank, so that they need to be compared in pairs. */
int tally_is_needed(const frame *f);

/* Compares the messages between each two ranks of a call, by an MPI_Alltoall of counts and hashes, after agree.h has
 * compared all other properties. Collective. All ranks return 0, or all REFUSED with error_set; or an error code;
 * without memory it ends the job, or returns REFUSED on one rank (job_fail). */
int tally_compare(const frame *f);

#endif
