/* The parts of an FFI handler that do not depend on the call: answers to XLA's questions before it, state, and errors.
 */
#ifndef MPIXLA_NATIVE_FFI_H
#define MPIXLA_NATIVE_FFI_H

#include "xla/xla_ffi.h"

/* Returns whether XLA calls for something else than this stage (FFI_STAGE_EXECUTE, ...), and answers it. */
int ffi_is_answered(const ffi_call_frame *call, int stage);

/* Gives XLA a state for the call, where XLA instantiates it: each run of the call finds it, and `deleter` is called
 * with it when XLA has no use for the call any more. The library has states of one type, so of one deleter. Returns 0,
 * or REFUSED if XLA did not take it. */
int ffi_state_set(const ffi_call_frame *call, void *state, void (*deleter)(void *state));

/* Returns the call's state in one of its runs; NULL if it has none. */
void *ffi_state_get(const ffi_call_frame *call);

/* An error for XLA, which copies the message. */
ffi_error *ffi_error_make(const ffi_call_frame *call, ffi_error_code code, const char *message);

/* Makes an error of error_get's sentence, for a call that is refused. */
ffi_error *ffi_error_of_call(const ffi_call_frame *call);

/* Returns whether XLA can go on before the call has ended; an old jaxlib cannot. */
int ffi_can_wait(const ffi_call_frame *call);

/* Makes the future that XLA waits for then. Returns NULL, or XLA's error. */
ffi_error *ffi_future_make(const ffi_call_frame *call, ffi_future **future);

/* Tells XLA that the call has ended, with this error if it is not NULL. The future and the error are XLA's then. XLA
 * may go on in this thread before this returns. */
void ffi_call_end(const ffi_call_frame *call, ffi_future *future, ffi_error *error);

#endif
