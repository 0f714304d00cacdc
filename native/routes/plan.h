/* The plan of a communicator: how calls with a GPU's memory travel on it, as all its ranks have agreed. */
#ifndef MPIXLA_NATIVE_PLAN_H
#define MPIXLA_NATIVE_PLAN_H

#include <stdatomic.h>

#include "call/frame.h"
#include "device/device.h"
#include "device/nccl.h"

/* The transport that the user asks for (mpixla_gpu_transport_set). */
typedef enum plan_wish { PLAN_AUTO, PLAN_HOST, PLAN_NCCL, PLAN_MPI, PLAN_WISHES } plan_wish;

enum { PLAN_WHY_BYTES = 512 };

/* The same on all ranks of the communicator, but for `device` and `has_failed`. */
typedef struct plan {
    int64_t piece_bytes; /* of the pieces in which all ranks make large calls through the host; 0: not in pieces */
    const nccl *nccl;    /* NULL: not used */
    nccl_comm nccl_comm;
    atomic_int has_failed;    /* a handler has reported that NCCL failed */
    int device;               /* of this rank, in the NCCL communicator */
    int is_refused;           /* the ranks cannot communicate as the user asks, as `why` says */
    char why[PLAN_WHY_BYTES]; /* why NCCL is not used, as half a sentence; "": it is */
    struct plan *next;
} plan;

/* Returns the user's wish in this process. */
plan_wish plan_wish_get(void);

/* Returns why MPI cannot be given a GPU's memory; "" if it can. */
const char *plan_mpi_refusal(void);

/* Registers plan_free, which frees a plan with its communicator. Called by mpixla_start. */
void plan_start(void);

/* Finds the plan of a collective call with buffers on this GPU, or on the host for NULL; if there is none yet, all
 * ranks make it together. `*found` belongs to the communicator; it is NULL while all ranks call with the host's memory.
 * While FEATURE_GPUS is on (base/feature.h), calls with the host's memory must call this as well. Returns 0 or an error
 * code.
 */
int plan_find(const frame *f, const device *d, plan **found);

/* Asks NCCL for errors of the plan's communicator so far. Returns 0, or REFUSED with error_set. The plan has NCCL. */
int plan_nccl_check(const plan *p);

/* Asks NCCL for errors of all plans whose errors no handler has reported, for a thread that watches. Never blocks.
 * Returns 0, also while another thread has the list of plans; or REFUSED with error_set. */
int plan_nccl_poll(void);

#endif
