/* The life of one call: it is read and checked (frame_read), watched by whatever is switched on (base/feature.h), made
 * by its row's expression, and whatever went wrong becomes an FFI error, which Python sees as an exception. Nothing is
 * allocated but a request.
 */
#ifndef MPIXLA_NATIVE_LIFE_H
#define MPIXLA_NATIVE_LIFE_H

#include "call/frame.h"

/* What a row's handlers do. */
typedef struct life_operation {
    frame_shape row;
    int (*run)(frame *f);          /* returns 0 or an error code (base/error.h) */
    int (*through_nccl)(frame *f); /* likewise; NULL: it takes another transport */
} life_operation;

/* A call with the host's memory, or a GPU's. NULL, or an error, which is XLA's then. */
ffi_error *life_on_host(ffi_call_frame *call, const life_operation *o);
ffi_error *life_on_device(const ffi_call_frame *call, const life_operation *o);

#endif
