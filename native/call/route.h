/* A route: one of the ways in which the bytes of a call travel between ranks. Each is a file that fills a `route`, and
 * a line in the table of routes/routes.c; the first in the table that can make a call makes it.
 */
#ifndef MPIXLA_NATIVE_ROUTE_H
#define MPIXLA_NATIVE_ROUTE_H

#include "call/frame.h"

/* A row of ops.def: the shape of its frame, and the call. */
typedef struct operation {
    frame_shape row;
    int (*run)(frame *f);          /* through MPI: the row's expression. Returns 0 or an error code (base/error.h) */
    int (*through_nccl)(frame *f); /* likewise; NULL: NCCL cannot make it */
} operation;

struct messages;

/* Functions return 0 or an error code, unless they say otherwise. */
typedef struct route {
    const char *name; /* in timelines; NULL: they name none for the host's memory */

    /* Returns whether the route can make the call: the same on all ranks of a collective call, without communication.
     * NULL: it always can. */
    int (*can_make)(const frame *f, const operation *o);

    /* Brings arrays to where the operation reads them. For a failure of this rank alone, of memory or a GPU's driver,
     * it returns facts_fail (facts.h), since other ranks may wait. NULL: there is nothing to do. */
    int (*begin)(frame *f);

    /* Makes the call. */
    int (*run)(frame *f, const operation *o);

    /* Follows begin, whatever has failed since: brings results to where XLA expects them if `code` is 0, and gives back
     * the memory that the call had. Returns `code`, or REFUSED. NULL: there is nothing to do. */
    int (*end)(const frame *f, int code);

    /* For operations that are made of messages, in a GPU's memory: */
    int reaches_gpu; /* the messages may lie there; else in pinned memory of the host */
    /* Makes the messages of a call on the GPU's stream, behind what that has to do (messages_run, in
     * neighbours/messages.h). NULL: MPI makes them at once. */
    int (*messages_run)(struct messages *m, frame *f);
} route;

/* The route of a call with a GPU's memory; NULL of one with the host's. */
static inline const route *route_on_gpu(const frame *f) {
    return f->gpu ? f->route : NULL;
}

#endif
