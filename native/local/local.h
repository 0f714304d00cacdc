/* Collective calls of ranks that all are on one host, through memory that they share (local/segment.h) instead of MPI.
 * Which rows may go that way says LOCAL in ops.def; what each of them is follows from its other columns.
 *
 * Sums are made in the order of the ranks, so that they have the same bits on every rank, and in every run.
 */
#ifndef MPIXLA_NATIVE_LOCAL_H
#define MPIXLA_NATIVE_LOCAL_H

#include "call/frame.h"

/* Makes a call on the host's memory, whose row has LOCAL, if it can go this way: `*made` says whether. What a
 * communicator needs for it is made in its first call, and freed with it. Returns 0 or an error code. */
int local_run(const frame *f, int *made);

#endif
