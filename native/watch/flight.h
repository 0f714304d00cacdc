/* The calls that this process is in at this moment, one for each thread: for those who watch from another thread.
 *
 * A thread says which call it enters and leaves; that takes no lock. Who looks holds the thread up only if its call
 * ends just then.
 */
#ifndef MPIXLA_NATIVE_FLIGHT_H
#define MPIXLA_NATIVE_FLIGHT_H

#include <stdatomic.h>

#include "call/facts.h"

/* The last calls of a thread are kept, so many of them, each as the words of a flight_record. */
enum { FLIGHT_KEPT = 16 };
typedef struct flight_record {
    call_facts facts;
    int64_t when; /* nanoseconds of flight_now */
} flight_record;
enum { FLIGHT_WORDS = sizeof(flight_record) / sizeof(int64_t) };

/* A call that a thread is in, in the memory of whoever makes it. */
typedef struct flight_call {
    const call_facts *facts;
    _Atomic(const call_facts *) started; /* what it waits for, once that is known (flight_waits_for) */
    struct flight_call *outer;           /* the call that this one is inside of, where MPI calls a user's function that
                                          * calls us */
} flight_call;

/* What deadline.c measures of a thread. */
typedef struct flight_clock {
    int64_t entered, waited; /* in which of its calls, nanoseconds */
    int64_t scouted;         /* what it had waited when it was last asked who has left */
    int pauses, told;        /* which of its pauses; a word was said of this wait */
} flight_clock;

/* A thread's place. */
typedef struct flight {
    _Atomic(flight_call *) call;  /* NULL: none */
    atomic_int_least64_t entered; /* calls so far: tells them apart */
    atomic_int looked_at, taken;
    atomic_int pauses;                                    /* of the thread (pause.h) */
    atomic_int_least64_t last[FLIGHT_KEPT][FLIGHT_WORDS]; /* call number n at n % FLIGHT_KEPT */
    flight_clock clock;                                   /* for the thread of deadline.c alone */
} flight;

/* The calling thread's place, which is its own until it ends; NULL with error_set where there is no memory. */
flight *flight_mine(void);

/* Around a call. */
void flight_enter(flight *mine, flight_call *call, const call_facts *facts);
void flight_leave(flight *mine, flight_call *call);

/* The call waits for what this one has started, which lasts until it has left. */
static inline void flight_waits_for(flight_call *call, const call_facts *started) {
    atomic_store_explicit(&call->started, started, memory_order_release);
}

/* How many threads are in a call. */
int64_t flight_count(void);

/* A clock that only goes forward, in nanoseconds, a few milliseconds coarse. */
int64_t flight_now(void);

/* How many threads have ever made a call: those with the numbers below it. */
int64_t flight_threads(void);

/* A thread at this moment. Here and below, one that there is. */
typedef struct flight_moment {
    int64_t entered; /* calls so far */
    int in_call;
    int pauses; /* odd: it waits for something that is no other rank (pause.h) */
} flight_moment;
flight_moment flight_of(int64_t thread);

/* What is measured of it, for the thread of deadline.c alone. */
flight_clock *flight_clock_of(int64_t thread);

/* The call that a thread is in. */
typedef struct flight_view {
    int64_t entered; /* which of its calls */
    call_facts facts;
    int waits;          /* it is one that waits, for */
    call_facts started; /* this one */
} flight_view;

/* Copies the call that a thread is in; returns 0 where it is in none. */
int flight_see(int64_t thread, flight_view *view);

/* The last calls of a thread (0 is the first that ever made one), the newest first, at most FLIGHT_KEPT; returns how
 * many: 0 for a thread that there is not. One that is overwritten meanwhile is left out. */
int flight_last(int64_t thread, flight_record records[FLIGHT_KEPT]);

/* call_describe of what was seen, with details. */
void flight_describe(const flight_view *view, char *text, size_t bytes);

#endif
