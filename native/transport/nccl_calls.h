/* The calls that NCCL can make, for ops.def: each gives the frame's stream what it has to do, and returns; 0, or
 * MPI_REFUSED with error_set. The frame's `device`, `nccl` and `nccl_comm` are set.
 *
 * What has no reduction travels as bytes. Messages of one call are one group, in which those between two ranks meet in
 * the order in which both issue them.
 */
#ifndef MPIXLA_NATIVE_NCCL_CALLS_H
#define MPIXLA_NATIVE_NCCL_CALLS_H

#include "call/frame.h"

/* Whether NCCL has the element type and the reduction of this call, which are equal on all ranks. */
int nccl_takes(const frame *f);

/* Whether all that was given to NCCL before has gone well, as far as it knows yet: 0, or MPI_REFUSED with error_set. */
int nccl_look(const frame *f);

int nccl_allgather(const frame *f);
int nccl_allgatherv(const frame *f);
int nccl_allreduce(const frame *f);
int nccl_alltoall(const frame *f);
int nccl_alltoallv(const frame *f);
int nccl_bcast(const frame *f);
int nccl_exchange(const frame *f);
int nccl_gather(const frame *f);
int nccl_gatherv(const frame *f);
int nccl_reduce(const frame *f);
int nccl_reduce_scatter(const frame *f);
int nccl_scatter(const frame *f);
int nccl_scatterv(const frame *f);

#endif
