/* The exchange of the neighbour operations: messages to and from the neighbours on a communicator with a topology. */
#ifndef MPIXLA_NATIVE_EXCHANGE_H
#define MPIXLA_NATIVE_EXCHANGE_H

#include "call/frame.h"

/* Exchanges rows with the neighbours. Sends sendcounts[i] rows (of the first axis), from row sendoffsets[i] of the send
 * buffer on, to destination neighbour i (facts_neighbours), and receives recvcounts[i] rows from source neighbour i.
 * The received rows, one neighbour's behind the other's, fill the receive buffer. For a neighbour MPIXLA_PROC_NULL
 * sends nothing, and fills its received rows with zeros. Messages between two ranks with the same tag arrive in the
 * order of the slots. Returns as messages_run (messages.h). */
int exchange(frame *f);

#endif
