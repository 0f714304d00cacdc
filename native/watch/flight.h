/* Publishes the call that each thread of this process is in, and its last calls, to threads that watch.
 *
 * Entering and leaving a call takes no lock. A watching thread delays the thread that it looks at only if the call ends
 * at that moment.
 */
#ifndef MPIXLA_NATIVE_FLIGHT_H
#define MPIXLA_NATIVE_FLIGHT_H

#include <stdatomic.h>

#include "call/facts.h"

/* The last FLIGHT_KEPT calls of a thread are kept, each as the 64-bit words of a flight_record. */
enum { FLIGHT_KEPT = 16 };
typedef struct flight_record {
    call_facts facts;
    int64_t when; /* nanoseconds of flight_now */
} flight_record;
enum { FLIGHT_WORDS = sizeof(flight_record) / sizeof(int64_t) };

/* A call that a thread is in. The memory is the caller's, on its stack. */
typedef struct flight_call {
    const call_facts *facts;
    _Atomic(const call_facts *) started; /* the call that started its request, once known (flight_started_set) */
    struct flight_call *outer;           /* the call that this one is inside of, where MPI calls a user's function that
                                          * calls us */
} flight_call;

/* The wait of a thread as deadline.c measures it, in nanoseconds. A wait is the same one as long as neither the number
 * of calls of the thread nor that of its pauses changes. */
typedef struct flight_clock {
    int64_t waited_ns;
    int64_t entered; /* these two as in the flight */
    int pauses;
    int reported;       /* a report has been written in which this wait is */
    int64_t scouted_ns; /* `waited_ns` when deadline.c last asked which ranks have left */
} flight_clock;

/* A thread's place. */
typedef struct flight {
    _Atomic(flight_call *) call;                          /* NULL: it is in none */
    atomic_int_least64_t entered;                         /* calls so far: tells them apart */
    atomic_int readers;                                   /* readers at the moment: the call must not end meanwhile */
    atomic_int taken;                                     /* a thread has the place */
    atomic_int is_front_end;                              /* it is one of the front end's */
    atomic_int pauses;                                    /* as pause.h counts them */
    atomic_int_least64_t last[FLIGHT_KEPT][FLIGHT_WORDS]; /* call number n at n % FLIGHT_KEPT */
    flight_clock clock;                                   /* for the thread of deadline.c alone */
} flight;

/* Returns the calling thread's entry, which is made in its first call and given back when it ends; NULL with error_set
 * without memory. */
flight *flight_of_thread(void);

/* Publishes that the thread begins a call. `call` and `facts` must stay valid until flight_leave. */
void flight_enter(flight *mine, flight_call *call, const call_facts *facts);
void flight_leave(flight *mine, flight_call *call);

/* Publishes the call that started the request which this call waits for. `started` must stay valid until flight_leave.
 */
static inline void flight_started_set(flight_call *call, const call_facts *started) {
    atomic_store_explicit(&call->started, started, memory_order_release);
}

/* Returns the number of threads that are in a call. */
int64_t flight_count(void);

/* Returns a monotonic clock in nanoseconds, with a resolution of a few milliseconds. */
int64_t flight_now(void);

/* Returns the number of threads that have ever made a call. */
int64_t flight_threads(void);

/* A thread at this moment. Here and below threads are numbered from 0, and `thread` must be less than
 * flight_threads(). */
typedef struct flight_moment {
    int64_t entered; /* calls so far */
    int in_call;
    int is_front_end; /* it is one of the front end's: it waits until the call is over */
    int pauses;       /* odd: it waits for something that is no other rank (pause.h) */
} flight_moment;

/* Returns the state of a thread at this moment: whether it is in a call, whether it is one of the front end's, and its
 * counts of calls and of pauses. */
flight_moment flight_moment_read(int64_t thread);

/* Returns the measurements of a thread, for deadline.c alone. */
flight_clock *flight_clock_of(int64_t thread);

/* A copy of the call that a thread is in. */
typedef struct flight_view {
    int64_t entered; /* which of its calls */
    call_facts facts;
    int waits;          /* it waits for a request, */
    call_facts started; /* which this call has started */
} flight_view;

/* Copies the call that a thread is in to `*view`; it cannot end meanwhile. Returns 0 if the thread is in none. */
int flight_view_read(int64_t thread, flight_view *view);

/* Copies the last calls of a thread to `records`, the newest first. Returns their number; 0 for any number that is no
 * thread's. A call that is overwritten meanwhile is left out. */
int flight_records_read(int64_t thread, flight_record records[FLIGHT_KEPT]);

/* Describes a call that flight_view_read has copied, as facts_describe does, with details. */
void flight_describe(const flight_view *view, char *text, size_t bytes);

#endif
