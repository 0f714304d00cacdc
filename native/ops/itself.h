/* Refuses a receive of a message that only this rank itself can send, and does not send: it would wait for ever.
 */
#ifndef MPIXLA_NATIVE_ITSELF_H
#define MPIXLA_NATIVE_ITSELF_H

#include "call/frame.h"

/* Returns whether the call receives a message that only this rank can send. */
int itself_is_awaited(const call_facts *f);

/* Before a blocking call that receives a message for which itself_is_awaited, and does not send that message itself:
 * waits until MPI has the message. Returns 0 then, or if the call also sends and another thread may still send the
 * message: then the call waits as any other. Returns REFUSED if nothing can send the message, or an error code. */
int itself_await(const frame *f);

/* Waits for the request of such a receive, as MPI_Wait does. Returns as itself_await; after REFUSED the request is
 * still active. */
int itself_wait(const call_facts *started, mpi_request *receiving, void *status);

#endif
