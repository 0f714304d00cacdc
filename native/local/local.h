/* Collective calls of ranks that all are on one host, through memory that they share (local/segment.h) instead of MPI.
 * LOCAL in ops.def marks the rows that may go that way; each call follows from the row's other columns.
 *
 * Sums are made in the order of the ranks, so that they have the same bits on every rank, and in every run.
 */
#ifndef MPIXLA_NATIVE_LOCAL_H
#define MPIXLA_NATIVE_LOCAL_H

#include "call/frame.h"

/* Returns whether a call with the host's memory may go through shared memory: its row has LOCAL, there are not too many
 * ranks, and its reduction is a predefined one. The same on all ranks. */
int local_can_make(const frame *f);

/* Makes a collective call through the ranks' shared memory if this is faster than MPI: if the call is short or
 * combines, and its ranks share memory. Sets `*made` to whether it was made, the same on all ranks. The memory of a
 * communicator is made in its first such call, and freed with it. A call that fails after it has begun breaks the
 * communicator for all its ranks (local/segment.h): this and each later collective call on it fails, also one that
 * would go through MPI. Returns 0 or an error code. */
int local_run(const frame *f, int *made);

/* Returns 0, or an error code if the communicator's shared memory is broken: for a call that goes through MPI. */
int local_check(const frame *f);

#endif
