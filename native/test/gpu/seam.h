/* A device handler, run on the CPU: the call's buffers are moved to a fake GPU, the handler is called with a stream of
 * that, and the results are brought back.
 */
#ifndef MPIXLA_TEST_SEAM_H
#define MPIXLA_TEST_SEAM_H

#include "test/gpu/gpu_types.h"
#include "xla/xla_ffi.h"

/* Makes the call of this target with the device handler, which is NULL if there is none. */
ffi_error *seam_run(ffi_call_frame *call, const char *target, ffi_handler *device_handler);

/* How many calls the seam has made. */
FAKE_API int64_t seam_calls(void);

#endif
