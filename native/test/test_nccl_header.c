/* NCCL's functions and numbers, as the tables have them, against a real nccl.h, which may be RCCL's: it compiles if
 * they agree. Nothing of NCCL is linked, as its functions are not called.
 *
 *   TEST_HIP_HEADER   it is RCCL's, and streams are HIP's
 */
#include "device/nccl.h" /* ours */

#ifdef TEST_HIP_HEADER
#define __HIP_PLATFORM_AMD__ /* NOLINT(bugprone-reserved-identifier): its header wants to know */
#include <hip/hip_runtime_api.h>
#define STREAM hipStream_t
#else
#define STREAM cudaStream_t
#endif
#include <nccl.h>

#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs);
SAME_NUMBER(0, ncclSuccess)
SAME_NUMBER(NCCL_IN_PROGRESS, ncclInProgress)
SAME_NUMBER(NCCL_INT8, ncclInt8)
SAME_NUMBER(NCCL_UINT8, ncclUint8)
SAME_NUMBER(NCCL_INT32, ncclInt32)
SAME_NUMBER(NCCL_UINT32, ncclUint32)
SAME_NUMBER(NCCL_INT64, ncclInt64)
SAME_NUMBER(NCCL_UINT64, ncclUint64)
SAME_NUMBER(NCCL_FLOAT16, ncclFloat16)
SAME_NUMBER(NCCL_FLOAT32, ncclFloat32)
SAME_NUMBER(NCCL_FLOAT64, ncclFloat64)
SAME_NUMBER(NCCL_BFLOAT16, ncclBfloat16)
SAME_NUMBER(NCCL_SUM, ncclSum)
SAME_NUMBER(NCCL_PROD, ncclProd)
SAME_NUMBER(NCCL_MAX, ncclMax)
SAME_NUMBER(NCCL_MIN, ncclMin)

/* How ncclGetVersion writes versions. */
SAME_NUMBER(NCCL_OLDEST, NCCL_VERSION(2, 14, 0))
SAME_NUMBER(NCCL_SHARED_GPUS, NCCL_VERSION(2, 30, 0))
_Static_assert(NCCL_VERSION_CODE >= NCCL_OLDEST, "this nccl.h is older than what is asked for");

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours " is not as large as " #theirs);
SAME_SIZE(nccl_id, ncclUniqueId)
SAME_SIZE(nccl_comm, ncclComm_t)
SAME_SIZE(nccl_code, ncclResult_t)
SAME_SIZE(nccl_type, ncclDataType_t)
SAME_SIZE(nccl_op, ncclRedOp_t)
SAME_SIZE(driver_stream, STREAM)

/* Functions: the table again, with NCCL's own types. */
#define nccl_id ncclUniqueId
#define nccl_comm ncclComm_t
#define nccl_code ncclResult_t
#define nccl_type ncclDataType_t
#define nccl_op ncclRedOp_t
#define driver_stream STREAM
#define MPIXLA_NCCL(name, function, result, prototype) \
    _Static_assert(_Generic(&function, result(*) prototype: 1, default: 0), #function " has another prototype");
#include "tables/nccl_functions.def"

int main(void) {
    return 0;
}
