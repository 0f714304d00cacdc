/* NCCL's functions, as its library has them.
 *
 *   MPIXLA_FAKE_NCCL_VERSION     what ncclGetVersion says, by default 23004 for 2.30.4
 *   MPIXLA_FAKE_DEVICE_TIMEOUT   seconds after which a rank that waits for others gives up, by default 60
 *   NCCL_MULTI_RANK_GPU_ENABLE   1: from 2.30 on, ranks may share a GPU
 */
#ifndef MPIXLA_TEST_FAKE_NCCL_H
#define MPIXLA_TEST_FAKE_NCCL_H

#include "test/gpu/gpu_types.h"

#define MPIXLA_NCCL(name, nccl, result, prototype) FAKE_API result nccl prototype;
#include "tables/nccl_functions.def"
#undef MPIXLA_NCCL

/* Ends the group that this thread is in, without its operations. Returns whether there was one. */
FAKE_API int fake_nccl_group_drop(void);

/* How many communicators there are. */
FAKE_API int64_t fake_comms_live(void);

#endif
