/* The routes (call/route.h), and the choice of one for each call. */
#ifndef MPIXLA_NATIVE_ROUTES_H
#define MPIXLA_NATIVE_ROUTES_H

#include "base/feature.h"
#include "call/route.h"
#include "routes/gpu.h"

/* The five routes, each in the file of its name; NCCL's is in nccl_calls.c. */
extern const route route_host_shared; /* the host's memory: through memory that the ranks of one host share */
extern const route route_host_mpi;    /* the host's memory: through MPI */
extern const route route_nccl;        /* a GPU's memory: through NCCL */
extern const route route_gpu_mpi;     /* a GPU's memory: through an MPI that takes it */
extern const route route_gpu_host;    /* a GPU's memory: by way of pinned memory of the host, and through MPI */

/* THE TABLE: the first that can make a call makes it; the last one can make every call. */
extern const route *const routes_table[];

/* Sets f->route to the route of a call that was read. In a job where some rank may have a GPU the ranks of a collective
 * call agree on a plan first, with arrays in either memory; that communicates. Returns 0 or an error code. */
int routes_choose(frame *f, const operation *o);

/* Chooses the route, unless the call is prepared and has it: that holds in a job without GPUs. `on`: the features that
 * are on (base/feature.h). */
static inline int routes_find(frame *f, const operation *o, unsigned on) {
    return f->route && !(on & FEATURE_GPUS) ? 0 : routes_choose(f, o);
}

/* Returns 0, or an error code if memory that the ranks of the communicator share is broken, so that calls on it cannot
 * go on. Called before the ranks of a call compare it. */
int routes_check(const frame *f);

/* Prepares a call that goes through MPI: sets f->comm for the row's expression, and waits for a message that only this
 * rank itself can send. Returns 0 or an error code; REFUSED if nothing can send that message. */
int routes_mpi_prepare(frame *f);

#endif
