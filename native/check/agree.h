/* Compares a collective call between the ranks of a communicator before it is made.
 *
 * Each rank hashes its call, and one small reduction tells all ranks whether the hashes are equal: MAX over (h, ~h),
 * since all h are equal if and only if max(h) == ~max(~h). If they differ, each rank sends a description of its call to
 * all others, and all ranks return the same report.
 */
#ifndef MPIXLA_NATIVE_AGREE_H
#define MPIXLA_NATIVE_AGREE_H

#include "call/frame.h"

/* Sets the duplicate of MPI_COMM_WORLD for descriptions of calls, with tags from 2 on. Without it a report has this
 * rank's call alone. */
void agree_channel_set(mpixla_handle comm);

/* One comparison that was started. */
typedef struct agreement agreement;

/* Compares a blocking call between the ranks, and waits for the result; `details`: SIGNATURE_LINES and
 * SIGNATURE_SHAPES, the properties to compare beside the others. Collective. Meanwhile progresses the active
 * comparisons of all threads, if there are any. All ranks return 0, or all REFUSED with the report as the error; or an
 * error code. Without memory it ends the job, or returns REFUSED on one rank (job_fail). */
int agree_compare(const frame *f, unsigned details);

/* Starts, without waiting, the comparison of a call that starts a request: a reduction of the hashes of all ranks'
 * calls. `details` as in signature.h. Sets `*started` to the comparison, which agree_compare_wait frees; NULL on
 * failure. Returns 0 or an error code; REFUSED without memory. Collective. */
int agree_compare_start(const frame *f, unsigned details, agreement **started);

/* Waits for a comparison and frees it; meanwhile progresses all active comparisons, since other ranks may wait for
 * them. Returns 0 if the calls agree, REFUSED with the report as the error if not, or an error code. Call it once,
 * before the request is waited for: a call that is refused here has been started, so MPI keeps its memory for good. The
 * communicator may have been freed meanwhile. */
int agree_compare_wait(agreement *a);

/* Prints the differences of calls that were started and never waited for, as far as they are known, and frees their
 * comparisons; progresses the others. Returns the number of comparisons that are not complete: at the end of the
 * process call it until it returns 0. */
int agree_unfinished_report(void);

#endif
