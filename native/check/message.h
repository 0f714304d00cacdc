/* Whether a message is of the data type, and has the items, that its receiver expects.
 *
 * MPI tells the receiver how many bytes have come. The data type, the shape and the sender's line are in a note, which
 * the sender sends ahead. The receiver compares them with its template; the sender hears nothing of that. A message
 * without a note, such as one of mpi4py's, is compared by its bytes.
 *
 * A right program is never refused: a note is used only where it is certain that it belongs to the message, which
 * message.c says how it finds out.
 */
#ifndef MPIXLA_NATIVE_MESSAGE_H
#define MPIXLA_NATIVE_MESSAGE_H

#include "call/frame.h"

/* Which messages are compared. With MESSAGES_FIRST, the data types of the first MESSAGES_FIRST_NOTES messages that a
 * rank sends to each other rank on the library's own communicator, without waiting for a note; with MESSAGES_ALL, all
 * messages, and their shapes and lengths as well. */
typedef enum messages_compared { MESSAGES_NONE, MESSAGES_FIRST, MESSAGES_ALL } messages_compared;
enum { MESSAGES_FIRST_NOTES = 64 };

/* Notes travel on this duplicate of MPI_COMM_WORLD, with tag 0, from now on. Call it before there are any. Returns 0
 * or REFUSED. */
int message_channel_set(mpixla_handle comm);

/* All messages on this communicator are made by handlers: no other part of the program can use it. */
void message_own_set(const comm_entry *comm);
int message_is_on_own(const call_facts *call);

/* Sends the note of a call that sends, or starts to, and notes that it starts to receive: right before the call is
 * made. What goes wrong with the note the receiver bears. */
void message_announce(const frame *f, messages_compared which);

/* After a call that receives, with its status and its code; for a wait, `call` is the call that started. With
 * `accepts_short` a message may have fewer items than its template. Returns the code, or REFUSED where
 * the message is not what was expected. */
int message_compare(const frame *f, const call_facts *call, const void *status, int accepts_short,
                    messages_compared which, int code);

#endif
