/* Checked mode (MPIXLA_CHECK): compares calls between the ranks that make them. */
#ifndef MPIXLA_NATIVE_CHECK_CHECK_H
#define MPIXLA_NATIVE_CHECK_CHECK_H

#include <stdatomic.h>

#include "call/frame.h"

/* CHECK_OFF: nothing is compared. CHECK_FIRST: the first collective calls of each communicator, then those with a power
 * of two for number, and the first messages on the library's own communicator (message.h). CHECK_CALLS: all calls, with
 * shapes. CHECK_LINES: all calls, with shapes and source lines. */
typedef enum check_mode { CHECK_OFF, CHECK_FIRST, CHECK_CALLS, CHECK_LINES } check_mode;
enum { CHECK_FIRST_CALLS = 64 };
extern atomic_int check_mode_now;
static inline check_mode check_mode_get(void) {
    return (check_mode)atomic_load_explicit(&check_mode_now, memory_order_relaxed);
}

/* Returns whether a message may be one of the first, which CHECK_FIRST compares. */
int check_message_is_due(const call_facts *f);

/* Returns whether the call is compared. All ranks of a collective call return the same: it depends on the number of the
 * call on its communicator. */
static inline int check_is_due(const call_facts *f) {
    check_mode mode = check_mode_get();
    if (mode != CHECK_FIRST) return mode != CHECK_OFF;
    if (f->row->request == MPIXLA_WAITS) return 1; /* the start may have been compared (check_run) */
    if (facts_are_message(f)) return check_message_is_due(f);
    int64_t number = f->sequence + 1;
    return (number <= CHECK_FIRST_CALLS || (number & (number - 1)) == 0);
}

/* Compares a collective call between its ranks, before its route is chosen; of one that starts a request, only starts
 * the comparison (f->agreement). Returns 0 or an error code. */
int check_begin(frame *f);

/* Sends the note of a message, or ends the comparison of the call whose request is waited for, right before the call is
 * made. Returns 0 or an error code. If a wait is refused, MPI keeps the memory of its request for good. */
int check_run(const frame *f);

/* Compares the message that a call has received with its note; `made`: the call was made. Returns `code`, the code of
 * the call, if there is no difference, else REFUSED. */
int check_end(frame *f, int made, int code);

#endif
