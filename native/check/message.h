/* Whether a message is what its receiver expects.
 *
 * MPI tells the receiver how many bytes have come. The data type and the sender's line are in a note, which the sender
 * sends ahead. The receiver compares both with its template; the sender hears nothing of that. A message without a
 * note, from a program that is not mpixla's, is compared by its bytes.
 */
#ifndef MPIXLA_NATIVE_MESSAGE_H
#define MPIXLA_NATIVE_MESSAGE_H

#include "call/facts.h"

/* Notes travel on this duplicate of MPI_COMM_WORLD, with tag 0, from now on. Call it before there are any. Returns 0
 * or REFUSED. */
int message_channel_set(mpixla_handle comm);

/* Sends the note of a call that sends, or starts to: before that. What goes wrong with it the receiver bears. */
void message_announce(const call_facts *call);

/* After a call that receives, with its status and its code; for a wait, `call` is the call that started. With
 * `accepts_short` a message may have fewer items than its template. Returns the code, or REFUSED where
 * the message is not what was expected. */
int message_compare(const call_facts *call, const void *status, int accepts_short, int code);

#endif
