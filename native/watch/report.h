/* Finds out from the states of all ranks which rank waits for which, and writes the report. */
#ifndef MPIXLA_NATIVE_REPORT_H
#define MPIXLA_NATIVE_REPORT_H

#include "watch/state.h"

/* The states of all ranks of MPI_COMM_WORLD, by rank. */
typedef struct report_ranks {
    const state *all;
    int64_t n;
    int *room; /* scratch: `n` numbers */
} report_ranks;

/* Returns whether a call of this rank waits for a rank that has not reached the call, or is in another one. If not, all
 * ranks that the call needs are in it, and data is moving. */
int report_is_stuck(const report_ranks *ranks, int64_t rank);

/* Returns whether some process is stopped or gone. A rank at the end of its script waits for the others however long
 * they run, but not for such a process. */
int report_has_lost(const report_ranks *ranks);

/* Returns whether a call of this rank can never end, as it needs a rank that makes no more calls and has not reached
 * this one. Messages that were sent before must have had the time to arrive. It is certain that a rank has not reached
 * a collective call only if its list of communicators is complete and has none that could be the call's. */
int report_is_in_vain(const report_ranks *ranks, int64_t rank);

/* Returns a hash that identifies the proof that the job of this rank can never end, equal for the same calls; 0 without
 * a proof. A proof is: a call needs a rank whose process is gone; or ranks wait for each other in a circle, each in one
 * blocking call, and none can make another call (no other thread of the front end, no open request, no receive from any
 * source). Messages that were sent before must have had the time to arrive: ask twice. */
uint64_t report_deadlock_hash(const report_ranks *ranks, int64_t rank);

/* Returns the lowest rank that has waited for another rank for so many milliseconds; `rank` if no lower one has. */
int64_t report_lowest_waiting_find(const report_ranks *ranks, int64_t rank, int64_t milliseconds);

/* Why a rank reports: its call, or its wait at the end of the script, has lasted longer than the limit
 * (REPORT_LIMIT); longer than the time for a warning, and goes on (REPORT_WARNING); report_is_in_vain; or
 * report_deadlock_hash has returned the same number twice. */
typedef enum report_reason { REPORT_LIMIT, REPORT_WARNING, REPORT_IN_VAIN, REPORT_DEADLOCK } report_reason;

/* Writes the report of a rank: the call that waits, its cause, and the calls of all ranks. Returns the text, which the
 * caller frees; NULL without memory. `limit` is in seconds. */
char *report_write(const report_ranks *ranks, int64_t rank, report_reason reason, double limit);

#endif
