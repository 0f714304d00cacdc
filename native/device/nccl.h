/* NCCL, or RCCL, which has the same functions: loaded when it is first needed. */
#ifndef MPIXLA_NATIVE_NCCL_H
#define MPIXLA_NATIVE_NCCL_H

#include <stdint.h>

#include "device/driver.h"

typedef void *nccl_comm;
typedef int nccl_code, nccl_type, nccl_op;
typedef struct nccl_id {
    char internal[128];
} nccl_id;

/* NCCL's numbers of element types and reductions, as dtypes.def and reductions.def have them. */
enum { NCCL_NONE = -1 };
enum {
    NCCL_INT8 = 0,
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_UINT32 = 3,
    NCCL_INT64 = 4,
    NCCL_UINT64 = 5,
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_BFLOAT16 = 9
};
enum { NCCL_SUM = 0, NCCL_PROD = 1, NCCL_MAX = 2, NCCL_MIN = 3 };

/* The result of a call on a nonblocking communicator that goes on after the call: its work may not be on the stream
 * yet. */
enum { NCCL_IN_PROGRESS = 7 };

/* Versions, as NCCL writes them. */
enum {
    NCCL_OLDEST = 21400,      /* the first with all functions that are called */
    NCCL_SHARED_GPUS = 23000, /* ranks on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE=1 */
};

typedef struct nccl {
    const char *file;
    int number; /* its version: 22703 for 2.27.3 */
#define MPIXLA_NCCL(name, function, result, prototype) result(*name) prototype;
#include "tables/nccl_functions.def"
#undef MPIXLA_NCCL
} nccl;

/* The functions by number, for messages. */
enum {
#define MPIXLA_NCCL(name, function, result, prototype) NCCL_FUNCTION_##name,
#include "tables/nccl_functions.def"
#undef MPIXLA_NCCL
    NCCL_FUNCTIONS
};

/* Returns NCCL for GPUs of this platform, or NULL with error_set, which says which file failed. */
const nccl *nccl_get(driver_platform platform);

/* Returns 0 if `code`, the result of a function (NCCL_FUNCTION_...), is 0; else REFUSED, with NCCL's text of the error.
 */
int nccl_check(const nccl *n, int function, nccl_comm comm, int code);

/* Returns REFUSED if `code` is a failure that NCCL found after a call had returned, else 0. NCCL_IN_PROGRESS is no
 * failure. */
int nccl_check_earlier(const nccl *n, nccl_comm comm, int code);

/* Makes NCCL's communicator of `size` ranks that have the same id. Returns 0; or REFUSED, also for a nonblocking
 * communicator: then the caller aborts `*comm` unless it is NULL. */
int nccl_comm_make(const nccl *n, nccl_comm *comm, int size, nccl_id id, int rank);

/* Start and end a group of messages that go at once. Return 0 or REFUSED. `failed`: a message of the group has failed.
 * The group must be ended all the same, since NCCL would wait for its end in all later calls; then nccl_group_end
 * returns REFUSED with the error_set of that failure. */
int nccl_group_start(const nccl *n, nccl_comm comm);
int nccl_group_end(const nccl *n, nccl_comm comm, int failed);

#define NCCL_CALL(n, comm, name, ...) nccl_check(n, NCCL_FUNCTION_##name, comm, (n)->name(__VA_ARGS__))

#endif
