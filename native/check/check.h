/* Checked mode (MPIXLA_CHECK): calls are compared between the ranks that make them. */
#ifndef MPIXLA_NATIVE_CHECK_CHECK_H
#define MPIXLA_NATIVE_CHECK_CHECK_H

#include <stdatomic.h>

#include "call/frame.h"

/* How much is compared: nothing; the first collective calls of each communicator, and then ever fewer, and the first
 * messages of the library's own (message.h); all calls and their shapes; their lines as well. */
typedef enum check_mode { CHECK_OFF, CHECK_FIRST, CHECK_CALLS, CHECK_LINES } check_mode;
enum { CHECK_FIRST_CALLS = 64 };
extern atomic_int check_mode_now;
static inline check_mode check_mode_get(void) {
    return (check_mode)atomic_load_explicit(&check_mode_now, memory_order_relaxed);
}

/* Of the first messages: whether it can be one. */
int check_message_is_due(const call_facts *f);

/* Whether the call is compared, which all ranks that make it know alike: by its number on the communicator. */
static inline int check_is_due(const call_facts *f) {
    check_mode mode = check_mode_get();
    if (mode != CHECK_FIRST) return mode != CHECK_OFF;
    if (f->row->request == MPIXLA_WAITS) return 1; /* for a call that was, see check_run */
    if (facts_are_of_message(f)) return check_message_is_due(f);
    int64_t number = f->sequence + 1;
    return (number <= CHECK_FIRST_CALLS || (number & (number - 1)) == 0);
}

/* Each returns 0 or an error code.
 *
 * Before a call is made, and before its transport is chosen: */
int check_begin(frame *f);
/* right before it is made, when its transport is ready, and it has its request: where a wait is refused, what was
 * started is MPI's for good. */
int check_run(const frame *f);
/* After a call that check_begin let pass, whether it was made, and with its code, which it returns if there is nothing
 * else to say. */
int check_end(frame *f, int made, int code);

#endif
