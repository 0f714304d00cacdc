/* The calls that this process is in at this moment, one for each thread: for those who watch from another thread.
 *
 * A thread says which call it enters and leaves; that takes no lock. Who looks holds the thread up only if its call
 * ends just then.
 */
#ifndef MPIXLA_NATIVE_FLIGHT_H
#define MPIXLA_NATIVE_FLIGHT_H

#include <stdatomic.h>

#include "call/frame.h"

/* The last calls of a thread are kept. */
enum { FLIGHT_KEPT = 16, FLIGHT_WORDS = 8 };

typedef struct flight {
    _Atomic(const frame *) call;  /* NULL: none */
    atomic_int_least64_t entered; /* calls so far: tells them apart */
    atomic_int looked_at, taken;
    atomic_int pauses;                                    /* of the thread (pause.h) */
    atomic_int_least64_t last[FLIGHT_KEPT][FLIGHT_WORDS]; /* call number n at n % FLIGHT_KEPT (flight_record) */
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

/* A call that a thread has entered, as far as it is kept. */
typedef struct flight_record {
    const frame_shape *shape;
    const comm_entry *communicator;
    const dtype_entry *dtype; /* NULL: no buffer */
    int64_t site, items, sequence;
    int32_t to, from, tag; /* destination or root, source, tag, where the row has them; as programs number them */
    int64_t when;          /* nanoseconds of flight_now */
} flight_record;

/* A clock that only goes forward, in nanoseconds, a few milliseconds coarse. */
int64_t flight_now(void);

/* The last calls of a thread (0 is the first that ever made one), the newest first, at most FLIGHT_KEPT; returns how
 * many: 0 for a thread that there is not. One that is overwritten meanwhile is left out. */
int flight_last(int64_t thread, flight_record records[FLIGHT_KEPT]);

/* How many threads have ever made a call: those with the numbers below it. */
int64_t flight_threads(void);

/* A thread at this moment. */
typedef struct flight_moment {
    int64_t entered; /* calls so far */
    int in_call;
    int pauses; /* odd: it waits for something that is no other rank (pause.h) */
} flight_moment;

/* Of a thread that there is, here and in flight_show. */
flight_moment flight_of(int64_t thread);

/* Shows the call that a thread is in, which cannot end meanwhile, to `see`, or does nothing where it is in none. */
void flight_show(int64_t thread, void (*see)(void *context, const frame *call), void *context);

/* Whether the thread is still in that call; then what it is, as frame_describe says it with details. */
int flight_lasts(const flight_seen *seen, char *text, size_t bytes);

#endif
