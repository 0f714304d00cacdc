/* Whether a message is what its receiver expects.
 *
 * With each message its sender sends a note on a communicator of its own (comm_checking): what it sends, and from
 * where. Who receives the message compares the note with its template, and answers: so both learn of a difference. A
 * message without a note, from a program that is not mpixla's, is not compared.
 */
#ifndef MPIXLA_NATIVE_MESSAGE_H
#define MPIXLA_NATIVE_MESSAGE_H

#include "call/frame.h"
#include "check/state.h"

/* Lets the ranks of a communicator exchange notes from now on. All of them must call it. Returns MPI's error code, or
 * MPI_REFUSED with error_set. */
int message_join(check_state *s);

/* Before a call that sends or receives, or starts to: f->checks are what goes with it. Returns 0, MPI_REFUSED with
 * error_set, or MPI's error code; the call is not made then, and nothing is left of it. */
int message_begin(check_state *s, frame *f);

/* After it, with its status, where it receives, and its code; for a wait, `call` is the call that started. With
 * `accepts_short` a message may have fewer items than its template. Returns the code, or MPI_REFUSED with error_set
 * where the message is not what was expected. */
int message_end(check_state *s, const frame *call, const void *status, int accepts_short, int code);

/* A call that began was not made. */
void message_forget(check_state *s, frame *f);

/* Answers what others ask, and hears what they have answered. */
void message_poll(check_state *s);

/* At the end of the process, until it returns 0: answers and hears as message_poll does. Returns whether something is
 * on its way or not answered, for which message_patience says how long to wait, in nanoseconds. */
int message_finish(check_state *s);
int64_t message_patience(void);

/* At the end of the communicator. */
void message_free(check_state *s);

/* From now on `tell` is called with what is wrong with a message whose sender no longer waits to hear it. */
void message_late_told_to(void (*tell)(const char *sentence));

#endif
