/* Messages that only this rank itself can send to itself: a receive that waits for one which nothing sends is an error,
 * where it would wait for ever.
 */
#ifndef MPIXLA_NATIVE_ITSELF_H
#define MPIXLA_NATIVE_ITSELF_H

#include "call/frame.h"

/* Returns whether the call receives a message that only this rank can send. */
int itself_is_awaited(const call_facts *f);

/* Waits, before a call that receives and completes, for a message that itself_is_awaited and that the call does not
 * send itself. Returns 0 once MPI has it, or where something else may still send it and the call has to send, too: then
 * the call waits as any other. Returns REFUSED, with error_set, if nothing can send it, or an error code of MPI's. */
int itself_await(const frame *f);

/* Waits for a request of such a receive, as MPI_Wait does. Returns the same, with REFUSED while the request is MPI's.
 */
int itself_wait(const call_facts *started, mpi_request *receiving, void *status);

#endif
