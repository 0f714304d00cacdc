/* The execution of one call: it is read and checked (frame_read), watched by whatever is switched on (base/feature.h),
 * and made by the route that its bytes take (call/route.h); and whatever went wrong becomes an FFI error, which Python
 * sees as an exception. Nothing is allocated but a request.
 */
#ifndef MPIXLA_NATIVE_EXECUTE_H
#define MPIXLA_NATIVE_EXECUTE_H

#include "call/route.h"

/* Makes a call with the host's memory. Returns NULL, or XLA's error, which XLA owns. */
ffi_error *execute_on_host(ffi_call_frame *call, const operation *o);

/* Makes a call with a GPU's memory. Returns NULL, or XLA's error, which XLA owns. */
ffi_error *execute_on_device(const ffi_call_frame *call, const operation *o);

/* Makes a call that a front end makes outside of XLA (mpixla_call_make). The ranks do not compare it. Returns 0, or
 * REFUSED with the error set. */
int execute_given(const mpixla_call *call, const operation *o);

#endif
