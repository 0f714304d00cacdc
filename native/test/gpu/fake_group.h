/* A group of NCCL's operations: what the stream runs as one. All their messages go on together; those between two ranks
 * meet in the order in which they were issued.
 */
#ifndef MPIXLA_TEST_FAKE_GROUP_H
#define MPIXLA_TEST_FAKE_GROUP_H

#include <stdatomic.h>

#include "test/gpu/fake_wire.h"

/* NCCL's codes. */
enum {
    FAKE_NCCL_SUCCESS = 0,
    FAKE_NCCL_CUDA = 1,
    FAKE_NCCL_SYSTEM = 2,
    FAKE_NCCL_INTERNAL = 3,
    FAKE_NCCL_INVALID_ARGUMENT = 4,
    FAKE_NCCL_INVALID_USAGE = 5,
    FAKE_NCCL_REMOTE = 6
};

typedef struct fake_comm {
    struct fake_comm *next;
    int is_live;
    wire *wire;
    int size, rank, device;
    atomic_int error;      /* NCCL's asynchronous error */
    atomic_int has_failed; /* a call has, or has said so: ncclCommDestroy would wait for ever */
    atomic_int is_aborted; /* what is late does nothing */
    atomic_int late;       /* operations that have not run */
} fake_comm;

typedef enum fake_kind {
    FAKE_ALL_REDUCE,
    FAKE_REDUCE,
    FAKE_REDUCE_SCATTER,
    FAKE_BROADCAST,
    FAKE_ALL_GATHER,
    FAKE_SEND,
    FAKE_RECV
} fake_kind;

typedef struct fake_operation {
    fake_kind kind;
    const void *from;
    void *to;
    size_t count;
    int type;
    int op;   /* where it reduces */
    int peer; /* or root */
    fake_comm *comm;
} fake_operation;

/* The operation in words: "ncclSend of 3 float32 to rank 1". */
void fake_operation_describe(const fake_operation *o, char *text, size_t bytes);

/* The bytes that it reads, and that it writes, on this rank. */
size_t fake_operation_reads(const fake_operation *o);
size_t fake_operation_writes(const fake_operation *o);

/* Runs them. What goes wrong becomes the communicators' asynchronous error, and is complained about, on all ranks. */
void fake_group_run(const fake_operation *operations, size_t count);

#endif
