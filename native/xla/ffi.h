/* The parts of an FFI handler that do not depend on the call: answers to XLA's questions before it, state, and errors.
 */
#ifndef MPIXLA_NATIVE_FFI_H
#define MPIXLA_NATIVE_FFI_H

#include "xla/xla_ffi.h"

/* Answers a call in which XLA asks for the handler's version, or that is for another stage than this one
 * (FFI_STAGE_EXECUTE, ...). Returns whether it was such a call, so that there is nothing to do. */
int ffi_query_answer(const ffi_call_frame *call, int stage);

/* Gives XLA the state of a call that XLA instantiates: each run of the call finds it, and `deleter` is called with it
 * when XLA drops the call. The library has states of one type, so of one deleter. Returns 0, or REFUSED if XLA did not
 * take it. */
int ffi_state_set(const ffi_call_frame *call, void *state, void (*deleter)(void *state));

/* Returns the call's state in one of its runs; NULL if it has none. */
void *ffi_state_get(const ffi_call_frame *call);

/* Makes an error for XLA, which copies the message. */
ffi_error *ffi_error_make(const ffi_call_frame *call, ffi_error_code code, const char *message);

/* Makes an error for XLA of error_get's sentence, for a call that is refused. */
ffi_error *ffi_error_from_sentence(const ffi_call_frame *call);

/* Returns whether this jaxlib has futures, so that XLA can go on before a call has ended. */
int ffi_has_futures(const ffi_call_frame *call);

/* Sets `*future` to a new future, which XLA waits for while the call is under way. Returns NULL, or XLA's error. */
ffi_error *ffi_future_make(const ffi_call_frame *call, ffi_future **future);

/* Tells XLA that the call has ended, with this error if it is not NULL. The future and the error are XLA's then. XLA
 * may go on in this thread before this returns. */
void ffi_call_end(const ffi_call_frame *call, ffi_future *future, ffi_error *error);

#endif
