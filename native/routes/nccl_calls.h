/* Calls with a GPU's memory through NCCL: the route, and the calls that it can make, for ops.def. Each puts its
 * work on the GPU's stream, and returns 0 or REFUSED. The frame's `gpu` is a gpu_call with a plan that has NCCL.
 *
 * Calls without a reduction are made of bytes.
 */
#ifndef MPIXLA_NATIVE_NCCL_CALLS_H
#define MPIXLA_NATIVE_NCCL_CALLS_H

#include "call/frame.h"

/* Returns whether NCCL has the element type and the reduction of this call: the same on all ranks. */
int nccl_supports(const frame *f);

/* Makes calls through NCCL synchronous from now on: they return when their work on the stream is done, as all others
 * do, so that it can be seen how long they take. By default they only give the stream their work. */
void nccl_calls_synchronous_set(void);

int nccl_allgather(frame *f);
int nccl_allreduce(frame *f);
int nccl_bcast(frame *f);
int nccl_reduce(frame *f);
int nccl_reduce_scatter(frame *f);

/* Makes a call that consists of messages, as one group: rank i is sent part i of the send buffer, or all of it by a
 * call that gathers; from rank i comes part i of the receive buffer, or all of it in a call that scatters. With a root
 * only the root's messages are passed. Returns as messages_run. */
int nccl_parts(frame *f);

#endif
