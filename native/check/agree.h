/* Whether the ranks of a communicator want the same collective call, which all of them learn before it is made.
 *
 * Each rank makes a number of what it wants, and one small reduction tells all of them whether the numbers are equal.
 * Where they are not, each rank tells all others what it wants, and all have the same report.
 */
#ifndef MPIXLA_NATIVE_AGREE_H
#define MPIXLA_NATIVE_AGREE_H

#include "call/frame.h"
#include "check/state.h"

/* What ranks tell each other travels on this duplicate of MPI_COMM_WORLD, with tags from 2 on. Without it a report
 * knows this rank's call alone. */
void agree_channel_set(mpixla_handle comm);

/* For a call that completes. All ranks return 0, or all MPI_REFUSED with error_set; or MPI's error code. */
int agree_now(comm_entry *entry, const frame *f);

/* For a call that starts: the comparison is started, and nobody waits. NULL with error_set, or with MPI's error code in
 * `*code`. What it returns agree_wait takes, and frees: once, before the call is waited for. That returns 0, MPI's
 * error code, or MPI_REFUSED with error_set. A call that is refused there was started all the same, so its memory is
 * MPI's for good. */
struct agreement *agree_start(comm_entry *entry, const frame *f, int *code);
int agree_wait(struct agreement *a);

/* At the end of the process, until it returns 0: tells of what was started and never waited for, as far as it is known.
 * Returns for how many calls the other ranks have yet to say what they want. */
int agree_end(void);

/* At the end of the communicator: forgets what was started and is not compared yet, which is MPI's for good. */
void agree_forget(const comm_entry *entry);

#endif
