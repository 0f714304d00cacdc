/* Messages to and from any number of ranks at once. */
#ifndef MPIXLA_NATIVE_EXCHANGE_H
#define MPIXLA_NATIVE_EXCHANGE_H

#include "call/frame.h"

/* Slot i of the call's `dests` (frame.h) is sent sendcounts[i] items from sendoffsets[i] of the send buffer; from slot
 * i of its `sources` come recvcounts[i] items, one slot behind the other, which together are the receive buffer. Where
 * a rank is MPIXLA_PROC_NULL nothing is sent, and what would be received is zeros. Messages between two ranks that have
 * the same tag arrive in the order of the slots.
 *
 * All ranks of the communicator must call it. Messages of the program on the same communicator are not met.
 *
 * Returns MPI's error code, with f->fault saying what failed, or MPI_REFUSED. Whatever fails, no request is left. */
int exchange(frame *f);

/* Whether the attributes go together and with the buffers: 0, or -1 with error_set. */
int exchange_check(const frame *f);

#endif
