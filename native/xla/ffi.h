/* What every FFI handler does: answering what XLA asks before it calls, and errors. */
#ifndef MPIXLA_NATIVE_FFI_H
#define MPIXLA_NATIVE_FFI_H

#include "xla/xla_ffi.h"

/* Whether XLA calls for something else than to run the call; it is answered then. */
int ffi_is_answered(const ffi_call_frame *call);

/* An error for XLA, which copies the message. */
ffi_error *ffi_error_make(const ffi_call_frame *call, ffi_error_code code, const char *message);

/* The same of error_get, for a call that does not fit. */
ffi_error *ffi_error_of_call(const ffi_call_frame *call);

#endif
