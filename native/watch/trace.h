/* The timeline of this process (MPIXLA_TRACE, mpixla_trace_start): a record for each call (watch/timeline.h).
 *
 * A call is written when it starts, as one that has no end, and gets its end in its place.
 */
#ifndef MPIXLA_NATIVE_TRACE_H
#define MPIXLA_NATIVE_TRACE_H

#include "call/facts.h"
#include "watch/timeline.h"

/* One call. */
typedef struct trace_call {
    timeline *file;       /* NULL: tracing has ended since the call looked */
    timeline_call *entry; /* NULL: not written */
    int64_t began;        /* nanoseconds */
    int64_t waited;       /* what pause_total said then */
    int on_a_gpu;         /* its arrays are */
} trace_call;

/* While FEATURE_TRACE is on (base/feature.h). A call starts: before anything that may wait. `on_a_gpu`: a transport
 * will be chosen for it. */
void trace_start(trace_call *c, const call_facts *f, int on_a_gpu);

/* The request that a call starts or waits for. */
typedef struct trace_request {
    int number, generation;    /* which it is; -1: none */
    const call_facts *started; /* what one that waits waits for; NULL */
} trace_request;

/* It is known: to be called once for each call that starts or waits, and that is made; nothing for other calls. */
void trace_request_known(trace_call *c, const call_facts *f, const trace_request *r);

/* It ends, having failed or not. `transport` is the name of what was chosen where its arrays are a GPU's, else NULL. */
void trace_end(const trace_call *c, const char *transport, int failed);

#endif
