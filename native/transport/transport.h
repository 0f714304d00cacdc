/* How the bytes of a call travel whose buffers are a GPU's: by way of pinned memory of the host, through NCCL, or as
 * MPI takes them. The operation is the same: its row's expression runs on what the transport has prepared.
 */
#ifndef MPIXLA_NATIVE_TRANSPORT_H
#define MPIXLA_NATIVE_TRANSPORT_H

#include "call/frame.h"
#include "device/pool.h"
#include "transport/plan.h"

typedef enum transport_kind { TRANSPORT_HOST, TRANSPORT_NCCL, TRANSPORT_MPI } transport_kind;

enum { TRANSPORT_MIRRORS = 4 };

/* A buffer and its copy in pinned memory. */
typedef struct transport_mirror {
    void *on_device, *on_host;
    int64_t bytes;
    int goes_out, comes_in; /* to the host before the call, to the GPU after it */
} transport_mirror;

/* For a call with the host's memory, in a job where some rank may have a GPU: takes part in what the ranks agree on.
 * Returns as transport_begin. */
int transport_join(const frame *f);

/* From now on calls through NCCL return when all is done, as all others do, so that it can be seen how long they take:
 * by themselves they only give the stream what there is to do. */
void transport_wait_for_nccl(void);

/* One call. */
typedef struct transport {
    device gpu;
    transport_kind kind;
    plan *plan;        /* NULL where the ranks need none */
    pool_block *block; /* which has the mirrors */
    transport_mirror mirrors[TRANSPORT_MIRRORS];
    int mirrored;
    int in_pieces;
} transport;

/* "host", "nccl" or "mpi": what was chosen. */
const char *transport_name(const transport *t);

/* For a frame that was read, and a transport of which only `gpu` is set: chooses, and brings what the call reads to
 * where it reads it. What a row can do through NCCL is `through_nccl`, NULL for nothing. Returns 0 or an error
 * code, and transport_end follows in any case. Without pinned memory, or where the driver fails, it returns as
 * call_fail (facts.h), since other ranks may wait. */
int transport_begin(transport *t, frame *f, int (*through_nccl)(frame *f));

/* Makes the call. Returns as `run`, or as transport_begin. */
int transport_run(const transport *t, frame *f, int (*run)(frame *f), int (*through_nccl)(frame *f));

/* The result from byte `at` on becomes what the template has there. Returns 0 or
 * REFUSED. */
int transport_keep(const transport *t, const frame *f, int64_t at, int64_t bytes);

/* Brings the results back if `code` is 0, and gives back what the call had. Returns `code`, or REFUSED if
 * this fails. */
int transport_end(transport *t, int code);

#endif
