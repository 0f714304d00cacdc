/* What checked mode knows of a communicator, and what it is to check. */
#ifndef MPIXLA_NATIVE_CHECK_STATE_H
#define MPIXLA_NATIVE_CHECK_STATE_H

#include "mpi/comm.h"

/* Kept in COMM_SLOT_CHECKS of the communicator, made at the first call in checked mode, and freed with the
 * communicator. One thread at a time uses a communicator, and so this. */
typedef struct check_state {
    comm_entry *entry;
    struct courier *courier; /* messages about messages (message.h); NULL before the first */
    struct check_state *next;
} check_state;

/* NULL with error_set where there is no memory. */
check_state *check_state_of(comm_entry *entry);

/* Calls `act` with each that there is, while no call is under way. Returns for how many of them it was not 0. */
int check_states_each(int (*act)(check_state *s));

/* From now on `freed` is called with each state before it goes. */
void check_state_freed_by(void (*freed)(check_state *s));

/* How much is compared: nothing; the first collective calls of each communicator, and then ever fewer; all calls; their
 * lines as well. */
typedef enum check_mode { CHECK_OFF, CHECK_FIRST, CHECK_CALLS, CHECK_LINES } check_mode;
enum { CHECK_FIRST_CALLS = 64 };
extern atomic_int check_mode_now;
static inline check_mode check_mode_get(void) {
    return (check_mode)atomic_load_explicit(&check_mode_now, memory_order_relaxed);
}
void check_mode_set(check_mode mode);

#endif
