/* Checked mode (MPIXLA_CHECK): calls are compared between the ranks that make them. */
#ifndef MPIXLA_NATIVE_CHECK_CHECK_H
#define MPIXLA_NATIVE_CHECK_CHECK_H

#include <stdatomic.h>

#include "call/frame.h"

/* How much is compared: nothing; the first collective calls of each communicator, and then ever fewer; all calls; their
 * lines as well. */
typedef enum check_mode { CHECK_OFF, CHECK_FIRST, CHECK_CALLS, CHECK_LINES } check_mode;
enum { CHECK_FIRST_CALLS = 64 };
extern atomic_int check_mode_now;
static inline check_mode check_mode_get(void) {
    return (check_mode)atomic_load_explicit(&check_mode_now, memory_order_relaxed);
}

/* Whether the call is compared, which all ranks that make it know alike: by its number on the communicator. */
static inline int check_is_due(const call_facts *f) {
    check_mode mode = check_mode_get();
    if (mode != CHECK_FIRST) return mode != CHECK_OFF;
    if (f->row->request == MPIXLA_WAITS) return 1; /* for a call that was, see check_wait */
    int64_t number = f->sequence + 1;
    return facts_are_collective(f) && (number <= CHECK_FIRST_CALLS || (number & (number - 1)) == 0);
}

/* Each returns 0 or an error code.
 *
 * Before a call is made, and before its transport is chosen: */
int check_begin(frame *f);
/* before a call waits for a request, which it has: where it is refused, what was started is MPI's for good. */
int check_wait(const frame *f);
/* After a call that check_begin let pass, whether it was made, and with its code, which it returns if there is nothing
 * else to say. */
int check_end(frame *f, int made, int code);

#endif
