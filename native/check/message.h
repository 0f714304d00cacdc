/* Compares the data type and the number of items of a message with its receiver's template.
 *
 * MPI tells the receiver the number of bytes. The data type, the shape and the sender's line are in a note, which the
 * sender sends before the message. The receiver compares the note with its template, and sends nothing back. A message
 * without a note, such as one of mpi4py's, is compared by its bytes.
 * A correct program is never refused: a note is used only if it certainly belongs to the message (message.c).
 */
#ifndef MPIXLA_NATIVE_MESSAGE_H
#define MPIXLA_NATIVE_MESSAGE_H

#include "call/frame.h"

/* MESSAGES_FIRST: compares the data types of the first MESSAGES_FIRST_NOTES messages of each pair of ranks on the
 * library's own communicator, and waits for no note. MESSAGES_ALL: all messages, with shapes and lengths. */
typedef enum messages_compared { MESSAGES_NONE, MESSAGES_FIRST, MESSAGES_ALL } messages_compared;
enum { MESSAGES_FIRST_NOTES = 64 };

/* Sets the duplicate of MPI_COMM_WORLD on which notes are sent, with tag 0. Call it before any message. Returns 0;
 * REFUSED without memory or if MPI fails. */
int message_channel_set(mpixla_handle comm);

/* Sets the library's own communicator, on which only handlers send messages. */
void message_own_comm_set(const comm_entry *comm);

/* Returns whether a call is on the library's own communicator. */
int message_is_on_own_comm(const call_facts *call);

/* Sends the note of a call that sends a message; for MESSAGES_FIRST only of the first to each rank. Does nothing for
 * other calls, or a destination whose rank in MPI_COMM_WORLD is unknown. Call it right before the call is made. A note
 * that cannot be sent is dropped. Takes a lock. */
void message_note_send(const frame *f, messages_compared which);

/* Compares a received message with its note and its length; `status` and `code` are those of the call that has received
 * it, and `call` is the call that started the request, for a wait. With `accepts_short` a message may have fewer items
 * than its template. Returns `code`, or REFUSED if the message does not fit the template. With MESSAGES_ALL waits for
 * the note, for a second at most. */
int message_compare(const frame *f, const call_facts *call, const void *status, int accepts_short,
                    messages_compared which, int code);

#endif
