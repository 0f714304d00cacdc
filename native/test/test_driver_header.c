/* The driver's functions, as the table has them, against CUDA's header or HIP's: it compiles if they agree. Nothing of
 * the driver is linked, as its functions are not called.
 *
 *   TEST_HIP_HEADER   compares with <hip/hip_runtime_api.h>, else with <cuda.h>
 */
#include <stddef.h>

#include "device/driver.h" /* ours */

#ifdef TEST_HIP_HEADER
#define __HIP_PLATFORM_AMD__ /* NOLINT(bugprone-reserved-identifier): its header wants to know */
#include <hip/hip_runtime_api.h>
#define CODE hipError_t
#define STREAM hipStream_t
#define EVENT hipEvent_t
#define UUID hipUUID
#define MEMORY hipDeviceptr_t
#define BYTE int
#define COPY_2D hip_Memcpy2D
#define SAME_NUMBER(ours, cuda, hip) _Static_assert((ours) == (int)(hip), #ours " is not " #hip);
#else
#include <cuda.h>
#define CODE CUresult
#define STREAM CUstream
#define EVENT CUevent
#define CONTEXT CUcontext
#define UUID CUuuid
#define MEMORY CUdeviceptr
#define BYTE unsigned char
#define COPY_2D CUDA_MEMCPY2D
#define SAME_NUMBER(ours, cuda, hip) _Static_assert((ours) == (int)(cuda), #ours " is not " #cuda);
#endif

SAME_NUMBER(0, CUDA_SUCCESS, hipSuccess)
SAME_NUMBER(DRIVER_NOT_READY, CUDA_ERROR_NOT_READY, hipErrorNotReady)
SAME_NUMBER(DRIVER_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE, hipHostMallocPortable)
SAME_NUMBER(DRIVER_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING, hipEventDisableTiming)
SAME_NUMBER(DRIVER_HOST, CU_MEMORYTYPE_HOST, hipMemoryTypeHost)
SAME_NUMBER(DRIVER_DEVICE, CU_MEMORYTYPE_DEVICE, hipMemoryTypeDevice)

/* What our types stand for. */
#define SAME_SIZE(ours, theirs)                                                                \
    _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) == _Alignof(theirs), #ours \
                   " is not as "                                                               \
                   "large as " #theirs)
SAME_SIZE(driver_code, CODE);
SAME_SIZE(driver_stream, STREAM);
SAME_SIZE(driver_event, EVENT);
SAME_SIZE(driver_memory, MEMORY);
SAME_SIZE(driver_uuid, UUID);
SAME_SIZE(driver_copy_2d, COPY_2D);
#ifdef CONTEXT
SAME_SIZE(driver_context, CONTEXT);
#endif

#define SAME_PLACE(ours, theirs)                                                              \
    _Static_assert(offsetof(driver_copy_2d, ours) == offsetof(COPY_2D, theirs) &&             \
                       sizeof(((driver_copy_2d *)0)->ours) == sizeof(((COPY_2D *)0)->theirs), \
                   #ours " is elsewhere than " #theirs)
SAME_PLACE(from.x, srcXInBytes);
SAME_PLACE(from.y, srcY);
SAME_PLACE(from.kind, srcMemoryType);
SAME_PLACE(from.host, srcHost);
SAME_PLACE(from.device, srcDevice);
SAME_PLACE(from.array, srcArray);
SAME_PLACE(from.pitch, srcPitch);
SAME_PLACE(to.x, dstXInBytes);
SAME_PLACE(to.y, dstY);
SAME_PLACE(to.kind, dstMemoryType);
SAME_PLACE(to.host, dstHost);
SAME_PLACE(to.device, dstDevice);
SAME_PLACE(to.array, dstArray);
SAME_PLACE(to.pitch, dstPitch);
SAME_PLACE(width, WidthInBytes);
SAME_PLACE(height, Height);

/* Functions: the table again, with the driver's own types. */
#define driver_code CODE
#define driver_stream STREAM
#define driver_event EVENT
#define driver_context CONTEXT
#define driver_uuid UUID
#define driver_memory MEMORY
#define driver_const_memory MEMORY
#define driver_byte BYTE
#define driver_copy_2d COPY_2D
#define SAME_FUNCTION(function, prototype) \
    _Static_assert(_Generic(&function, CODE(*) prototype: 1, default: 0), #function " has another prototype");
#ifdef TEST_HIP_HEADER
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) SAME_FUNCTION(hip, prototype)
#define MPIXLA_DRIVER_HIP(name, hip, prototype) SAME_FUNCTION(hip, prototype)
#else
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) SAME_FUNCTION(cuda, prototype)
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) SAME_FUNCTION(cuda, prototype)
#endif
#include "tables/driver_functions.def"

int main(void) {
    return 0;
}
