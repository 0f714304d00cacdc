/* Calls with a GPU's memory through NCCL: the route, and the calls that it can make, for ops.def. Each gives the GPU's
 * stream what it has to do, and returns 0 or REFUSED. The frame's `gpu` is a gpu_call with a plan that has NCCL.
 *
 * What has no reduction travels as bytes.
 */
#ifndef MPIXLA_NATIVE_NCCL_CALLS_H
#define MPIXLA_NATIVE_NCCL_CALLS_H

#include "call/frame.h"

/* Returns whether NCCL has the element type and the reduction of this call: the same on all ranks. */
int nccl_takes(const frame *f);

/* From now on calls through NCCL return when all is done, as all others do, so that it can be seen how long they take:
 * by themselves they only give the stream what there is to do. */
void nccl_calls_wait(void);

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
