/* Refuses a receive that would block for ever: only this rank itself can send the message, and no thread of it can. */
#ifndef MPIXLA_NATIVE_SELF_MESSAGE_H
#define MPIXLA_NATIVE_SELF_MESSAGE_H

#include "call/frame.h"

/* Returns whether the call receives a message that only this rank can send. */
int self_message_is_awaited(const call_facts *f);

/* Waits until the message of a blocking receive has arrived (MPI_Iprobe), if only this rank can send it. Returns 0
 * then; at once if the call does not await such a message, or sends it itself; and, if the call sends another message,
 * once another thread may still send this one: then the call itself waits. Returns REFUSED if nothing can send the
 * message, or an error code. */
int self_message_await(const frame *f);

/* Waits for the request `receiving` of a started receive, and sets `status`, as MPI_Wait does. Returns 0, an error
 * code, or REFUSED if nothing can send the message: then the request is still active. */
int self_message_request_wait(const call_facts *started, mpi_request *receiving, void *status);

#endif
