/* dpctl's C interface to SYCL, as the table has it, against dpctl's headers: it compiles if they agree. Nothing of
 * dpctl is linked, as its functions are not called.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <syclinterface/dpctl_sycl_context_interface.h>
#include <syclinterface/dpctl_sycl_device_interface.h>
#include <syclinterface/dpctl_sycl_device_manager.h>
#include <syclinterface/dpctl_sycl_event_interface.h>
#include <syclinterface/dpctl_sycl_queue_interface.h>
#include <syclinterface/dpctl_sycl_usm_interface.h>

#include "device/sycl.h" /* ours */

_Static_assert(SYCL_COMPLETE == (int)DPCTL_COMPLETE, "the state of an event");
_Static_assert(SYCL_GPU == (int)DPCTL_GPU && SYCL_LEVEL_ZERO == (int)DPCTL_LEVEL_ZERO, "kinds of devices");
_Static_assert(sizeof(sycl_queue) == sizeof(DPCTLSyclQueueRef) &&
                   sizeof(sycl_status) == sizeof(DPCTLSyclEventStatusType),
               "types");

/* The table again, with dpctl's own types. */
#define sycl_queue DPCTLSyclQueueRef
#define sycl_device DPCTLSyclDeviceRef
#define sycl_context DPCTLSyclContextRef
#define sycl_event DPCTLSyclEventRef
#define sycl_memory DPCTLSyclUSMRef
#define sycl_status DPCTLSyclEventStatusType
#define MPIXLA_SYCL(name, function, result, prototype) \
    _Static_assert(_Generic(&function, result(*) prototype: 1, default: 0), #function " has another prototype");
#include "tables/sycl_functions.def"

int main(void) {
    return 0;
}
