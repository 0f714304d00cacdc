/* The timeline of this process (MPIXLA_TRACE, mpixla_trace_start): an event for each call, in the Chrome trace format.
 *
 * A call is written when it starts, as one that has no end ("ph":"B"), and becomes one with a duration ("X") in its
 * place when it ends. Its row in the pictures ("tid") is the first that no other call is in, as XLA moves programs from
 * thread to thread; the thread is among its arguments. docs/trace.md has the arguments.
 */
#ifndef MPIXLA_NATIVE_TRACE_H
#define MPIXLA_NATIVE_TRACE_H

#include "call/frame.h"
#include "transport/transport.h"

/* One call. */
typedef struct trace_call {
    char *event;         /* NULL: not written */
    int64_t began;       /* nanoseconds */
    int64_t waited;      /* what pause_total said then */
    int lane;            /* its row */
    int on_a_gpu;        /* its arrays are */
    int is_of_a_request; /* written when that is known */
} trace_call;

/* Whether calls are to be traced. */
int trace_is_on(void);

/* A call starts: before anything that may wait. `on_a_gpu`: a transport will be chosen for it. */
void trace_start(trace_call *c, const frame *f, int on_a_gpu);

/* The request that it starts or waits for is known: nothing for other calls. */
void trace_request(trace_call *c, const frame *f);

/* It ends, having failed or not; `t` is NULL unless its arrays are a GPU's. */
void trace_end(const trace_call *c, const transport *t, int failed);

#endif
