/* From what all ranks say of themselves to who waits for whom, in words. */
#ifndef MPIXLA_NATIVE_REPORT_H
#define MPIXLA_NATIVE_REPORT_H

#include "watch/state.h"

/* What the ranks have said: one state for each rank of MPI_COMM_WORLD, in their order. */
typedef struct report_ranks {
    const state *all;
    int64_t n;
    int *room; /* as many numbers, to work in */
} report_ranks;

/* Whether a call of this rank waits for somebody who has not come, or has come to another call. If not, all are there
 * that it takes: data is moving. */
int report_is_stuck(const report_ranks *ranks, int64_t rank);

/* Whether a process was stopped or has gone: who has come to the end of its script waits for the others, however long
 * they run, but not for those. */
int report_has_lost(const report_ranks *ranks);

/* Returns whether a call of this rank can never end: it takes a rank that has left, and has not come. A message that
 * this rank has sent before must have had the time to arrive. That it has not come to a collective call is certain only
 * if its list of communicators is complete, and has none by which it may have come. */
int report_is_in_vain(const report_ranks *ranks, int64_t rank);

/* Returns a number for why the job of this rank can never end, the same as long as it is for the same calls; 0 if that
 * is not certain. A call takes a rank whose process is gone; or ranks wait for each other in a circle, each in one
 * blocking call, and nothing else of them can make another: no thread of the front end, no open request, no message of
 * any source. What was sent before must have had the time to arrive: ask twice. */
uint64_t report_deadlock(const report_ranks *ranks, int64_t rank);

/* The lowest rank, up to this one, that waits as this one does: for somebody, and for so many milliseconds. */
int64_t report_lowest(const report_ranks *ranks, int64_t rank, int64_t milliseconds);

/* Why a rank reports: its call has waited for longer than the limit, which is also for a rank in no call that waits at
 * its end; for longer than that of a word, and goes on; it waits in vain; or report_deadlock has said the same twice.
 */
typedef enum report_reason { REPORT_LIMIT, REPORT_WORD, REPORT_IN_VAIN, REPORT_DEADLOCK } report_reason;

/* The report of a rank, with the limit in seconds. The caller frees it; NULL where there is no memory. */
char *report_write(const report_ranks *ranks, int64_t rank, report_reason reason, double limit);

#endif
