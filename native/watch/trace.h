/* Records each call of this process in its timeline (MPIXLA_TRACE, mpixla_trace_start; watch/timeline.h).
 *
 * The record is written when the call begins, so that a call which never ends is in the file, and completed at its end.
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

/* Begins to record a call, before anything that may wait, in `c`; called while FEATURE_TRACE is on (base/feature.h).
 * `on_a_gpu`: its arrays are in a GPU's memory. `is_compared`: the ranks compare it first (check/check.h). A call that
 * starts a request or waits for one gets its record by trace_request_set. */
void trace_start(trace_call *c, const call_facts *f, int on_a_gpu, int is_compared);

/* The request of a call that starts one, or waits for it. */
typedef struct trace_request {
    int number, generation;    /* -1: none */
    const call_facts *started; /* the call that started the one that is waited for; else NULL */
} trace_request;

/* Records a call that starts a request or waits for one, once the request is known, before the call is made. The
 * records of other calls are complete when they begin. */
void trace_request_set(trace_call *c, const call_facts *f, const trace_request *r);

/* Records the end of a call, and whether it failed. `transport` is the name of the route if the arrays are in a GPU's
 * memory, else NULL. */
void trace_end(const trace_call *c, const char *transport, int failed);

#endif
