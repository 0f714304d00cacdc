/* The timeline of this process (MPIXLA_TRACE, mpixla_trace_start): a record of each call (watch/timeline.h).
 *
 * The record is written when the call begins, so that a call which never ends is in the file, and is given its end when
 * it has one.
 */
#ifndef MPIXLA_NATIVE_TRACE_H
#define MPIXLA_NATIVE_TRACE_H

#include "call/facts.h"
#include "watch/timeline.h"

/* One call, while it runs. */
typedef struct trace_call {
    timeline *file;       /* NULL: tracing has ended since the call looked */
    timeline_call *entry; /* NULL: not written */
    const comm_entry *communicator;
    int64_t began;  /* clock_now then, */
    int64_t waited; /* and pause_total */
    int on_a_gpu;   /* its arrays are */
    int is_compared;
} trace_call;

/* While FEATURE_TRACE is on (base/feature.h): a call begins, which is before anything that may wait. `on_a_gpu`: a
 * transport will be chosen for it. `is_compared`: the ranks compare it first (check/check.h). */
void trace_start(trace_call *c, const call_facts *f, int on_a_gpu, int is_compared);

/* The request of a call that starts one, or waits for it. */
typedef struct trace_request {
    int number, generation;    /* -1: none */
    const call_facts *started; /* the call that started the one that is waited for; else NULL */
} trace_request;

/* For each call that starts or waits, once its request is known, and before it is made. Other calls have been written
 * when they began. */
void trace_request_known(trace_call *c, const call_facts *f, const trace_request *r);

/* The call ends. `transport` is the name of what was chosen where its arrays are a GPU's, else NULL. */
void trace_end(const trace_call *c, const char *transport, int failed);

#endif
