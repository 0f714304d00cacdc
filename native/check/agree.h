/* Whether the ranks of a communicator want the same collective call, which all of them learn before it is made.
 *
 * Each rank makes a number of what it wants, and one small reduction tells all of them whether the numbers are equal.
 * Where they are not, each rank tells all others what it wants, and all have the same report.
 */
#ifndef MPIXLA_NATIVE_AGREE_H
#define MPIXLA_NATIVE_AGREE_H

#include "call/frame.h"

/* What ranks tell each other travels on this duplicate of MPI_COMM_WORLD, with tags from 2 on. Without it a report
 * knows this rank's call alone. */
void agree_channel_set(mpixla_handle comm);

/* One comparison that was started. */
typedef struct agreement agreement;

/* Each returns 0 or an error code. With what `details` say (wanted.h).
 *
 * For a call that completes. All ranks return 0, or all REFUSED. */
int agree_now(const frame *f, unsigned details);

/* For a call that starts: the comparison is started, and nobody waits. */
int agree_start(const frame *f, unsigned details, agreement **started);

/* Waits for the comparison, and frees it: once, before the call is waited for. A call that is refused here was started
 * all the same, so its memory is MPI's for good. Its communicator may have been freed meanwhile, as MPI allows. */
int agree_wait(agreement *a);

/* At the end of the process, until it returns 0: tells of what was started and never waited for, as far as it is known.
 * Returns for how many calls the other ranks have yet to say what they want. */
int agree_end(void);

#endif
