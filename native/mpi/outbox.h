/* Messages of the library's own, which MPI sends from memory that the outbox owns: no rank waits until one is received.
 */
#ifndef MPIXLA_NATIVE_OUTBOX_H
#define MPIXLA_NATIVE_OUTBOX_H

#include <stdint.h>

#include "mpi/mpi.h"

typedef struct outbox_message {
    mpi_request request;
    struct outbox_message *next;
    int64_t bytes;
    _Alignas(8) char data[];
} outbox_message;

/* Messages that MPI may still read; all zeros: none. One thread at a time uses an outbox. */
typedef struct outbox {
    outbox_message *first;
} outbox;

/* Returns a message of so many bytes, zeros, to be filled and passed to outbox_send; NULL without memory. */
outbox_message *outbox_message_new(int64_t bytes);

/* Sends a message, which is the outbox's from then on, and frees the messages that MPI has sent. Returns 0 or MPI's
 * error code. */
int outbox_send(outbox *o, outbox_message *m, int to, int tag, mpixla_handle comm);

/* Frees the messages that MPI has sent, or has failed to send. Returns whether MPI still sends any. */
int outbox_is_sending(outbox *o);

#endif
