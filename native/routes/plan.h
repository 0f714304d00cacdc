/* How the calls on a communicator communicate where their buffers are a GPU's: what all its ranks have agreed on. */
#ifndef MPIXLA_NATIVE_PLAN_H
#define MPIXLA_NATIVE_PLAN_H

#include <stdatomic.h>

#include "call/frame.h"
#include "device/device.h"
#include "device/nccl.h"

/* What the user asks for (mpixla_gpu_transport_set). */
typedef enum plan_wish { PLAN_AUTO, PLAN_HOST, PLAN_NCCL, PLAN_MPI, PLAN_WISHES } plan_wish;

enum { PLAN_WHY_BYTES = 512 };

/* What holds on all ranks of a communicator. */
typedef struct plan {
    int64_t piece_bytes; /* of the pieces in which all ranks make large calls through the host; 0: not in pieces */
    const nccl *nccl;    /* NULL: not used */
    nccl_comm nccl_comm;
    atomic_int has_failed;    /* a handler has told that a call through NCCL has */
    int device;               /* of this rank, in the NCCL communicator */
    int is_refused;           /* the ranks cannot communicate as the user asks, as `why` says */
    char why[PLAN_WHY_BYTES]; /* why NCCL is not used, as half a sentence; "": it is */
    struct plan *next;
} plan;

/* The user's wish in this process. */
plan_wish plan_wish_get(void);

/* Why MPI cannot be given a GPU's memory; "" if it can. */
const char *plan_mpi_refusal(void);

/* Called by mpixla_start. */
void plan_start(void);

/* For a call that all ranks of a communicator make, with buffers of this GPU, or of the host (NULL): finds the plan, or
 * makes it together with the others. It is freed with the communicator. `*found` is NULL while all ranks call with the
 * host's memory. While FEATURE_GPUS is on (base/feature.h) calls with the host's memory must call this, too. Returns 0
 * or an error code. */
int plan_find(const frame *f, const device *d, plan **found);

/* Asks NCCL whether all that it was given for a plan that has NCCL has gone well, as far as it knows yet. Returns 0, or
 * REFUSED with error_set. */
int plan_nccl_check(const plan *p);

/* The same of all plans, unless a handler has told of it: for a thread that watches. It waits for nothing. */
int plan_nccl_poll(void);

#endif
