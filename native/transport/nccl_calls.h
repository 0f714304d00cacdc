/* The calls that NCCL can make, for ops.def: each gives the frame's stream what it has to do, and returns; 0 or
 * REFUSED. The frame's `device`, `nccl` and `nccl_comm` are set.
 *
 * What has no reduction travels as bytes.
 */
#ifndef MPIXLA_NATIVE_NCCL_CALLS_H
#define MPIXLA_NATIVE_NCCL_CALLS_H

#include "call/frame.h"

/* Whether NCCL has the element type and the reduction of this call, which are equal on all ranks. */
int nccl_takes(const frame *f);

/* Whether all that was given to NCCL before has gone well, as far as it knows yet. Returns 0 or REFUSED. */
int nccl_look(const frame *f);

int nccl_allgather(frame *f);
int nccl_allreduce(frame *f);
int nccl_bcast(frame *f);
int nccl_reduce(frame *f);
int nccl_reduce_scatter(frame *f);

/* Calls that are messages. Rank i is sent part i of the send buffer, or all of it by a call that gathers; from rank i
 * comes part i of the receive buffer, or all of it in a call that scatters. With a root there is only what goes to it,
 * or comes from it. */
int nccl_parts(frame *f);

#endif
