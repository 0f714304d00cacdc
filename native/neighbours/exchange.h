/* Messages to and from the neighbours on a communicator with a topology: what the neighbour operations use. */
#ifndef MPIXLA_NATIVE_EXCHANGE_H
#define MPIXLA_NATIVE_EXCHANGE_H

#include "call/frame.h"

/* Neighbour i of those that the call sends to (facts_neighbours) is sent sendcounts[i] rows (of the first axis) from
 * row sendoffsets[i] of the send buffer; from neighbour i of those that it receives from come recvcounts[i] rows, one
 * behind the other, which together are the receive buffer. Where a rank is MPIXLA_PROC_NULL nothing is sent, and what
 * would come is zeros. Messages between two ranks that have the same tag arrive in the order of the slots.
 *
 * Returns as messages_run (messages.h). */
int exchange(frame *f);

#endif
