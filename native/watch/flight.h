/* The calls that this process is in at this moment, one for each thread: for those who watch from another thread.
 *
 * A thread says which call it enters and leaves; that takes no lock. Who looks holds the thread up only if its call
 * ends just then.
 */
#ifndef MPIXLA_NATIVE_FLIGHT_H
#define MPIXLA_NATIVE_FLIGHT_H

#include <stdatomic.h>

#include "call/frame.h"

typedef struct flight {
    _Atomic(const frame *) call;  /* NULL: none */
    atomic_int_least64_t entered; /* calls so far: tells them apart */
    atomic_int looked_at, taken;
} flight;

/* The calling thread's place, which is its own until it ends; NULL with error_set where there is no memory. */
flight *flight_mine(void);

/* Around a call. `enter` gives what `leave` takes: the call that this one is inside of, where MPI calls a user's
 * function that calls us. */
const frame *flight_enter(flight *mine, const frame *call);
void flight_leave(flight *mine, const frame *outer);

/* How many threads are in a call. */
int64_t flight_count(void);

/* A call that was seen: of which thread, and which of its calls. */
typedef struct flight_seen {
    int64_t thread, entered;
} flight_seen;

/* Writes down the calls of this moment, at most `most`, and returns how many. */
int flight_look(flight_seen *seen, int most);

/* Whether the thread is still in that call; then what it is, as frame_describe says it with details. */
int flight_lasts(const flight_seen *seen, char *text, size_t bytes);

#endif
