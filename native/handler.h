/* The XLA FFI handlers: one for each row of ops.def. */
#ifndef MPIXLA_NATIVE_HANDLER_H
#define MPIXLA_NATIVE_HANDLER_H

#include "mpixla.h"
#include "xla/xla_ffi.h"

#define MPIXLA_OP(name, host_handler, device_handler, shape, call, nccl) \
    MPIXLA_API ffi_error *host_handler(ffi_call_frame *call_frame);      \
    MPIXLA_API ffi_error *device_handler(ffi_call_frame *call_frame);
#include "tables/ops.def"
#undef MPIXLA_OP

#endif
