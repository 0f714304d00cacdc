/* NCCL, or RCCL, which has the same functions: found when it is first needed. */
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

/* The result of a call that has not done its work yet: nobody knows when the stream has it. */
enum { NCCL_IN_PROGRESS = 7 };

/* Versions, as NCCL writes them. */
enum {
    NCCL_OLDEST = 21400,      /* the first with all that is called */
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

/* NCCL for GPUs of this platform, or NULL with error_set, which says what was tried. */
const nccl *nccl_get(driver_platform platform);

/* 0 or REFUSED, for a function that returned `code`. */
int nccl_check(const nccl *n, int function, nccl_comm comm, int code);

/* The same for a failure that NCCL found after the call had returned; what is in progress is none. */
int nccl_check_earlier(const nccl *n, nccl_comm comm, int code);

/* Makes a communicator: 0 or REFUSED, as for one that is nonblocking. What `comm` is then, if not NULL, is to be
 * aborted.
 */
int nccl_comm_make(const nccl *n, nccl_comm *comm, int size, nccl_id id, int rank);

/* Around messages that go at once: 0 or REFUSED. `failed`: whether one has; the group is ended all the same,
 * else NCCL would wait for its end in all later calls, and the first failure is the one that is told. */
int nccl_group_start(const nccl *n, nccl_comm comm);
int nccl_group_end(const nccl *n, nccl_comm comm, int failed);

#define NCCL_CALL(n, comm, name, ...) nccl_check(n, NCCL_FUNCTION_##name, comm, (n)->name(__VA_ARGS__))

#endif
