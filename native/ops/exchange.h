/* Messages to and from the neighbours on a communicator with a topology: what the neighbour operations use. */
#ifndef MPIXLA_NATIVE_EXCHANGE_H
#define MPIXLA_NATIVE_EXCHANGE_H

#include "call/frame.h"

/* Slot i of the call's `dests` (frame.h) is sent sendcounts[i] items from sendoffsets[i] of the send buffer; from slot
 * i of its `sources` come recvcounts[i] items, one slot behind the other, which together are the receive buffer. Where
 * a rank is MPIXLA_PROC_NULL nothing is sent, and what would be received is zeros. Messages between two ranks that have
 * the same tag arrive in the order of the slots.
 *
 * Returns as messages_run (messages.h). */
int exchange(frame *f);

#endif
