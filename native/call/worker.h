/* Makes calls on threads of the library, so that they block none of XLA's.
 *
 * JAX's own collectives wait for other ranks in XLA's threads, of which there are few. So do calls, and between the two
 * there is no order but that of data: the threads of one rank may all wait in collectives that another rank comes to
 * only after a call which the first one has no thread left for. A call on a worker thread takes none of XLA's threads,
 * so both come in any order. XLA still keeps calls in the order in which they depend on each other.
 */
#ifndef MPIXLA_NATIVE_WORKER_H
#define MPIXLA_NATIVE_WORKER_H

#include <stdint.h>

#include "xla/xla_ffi.h"

/* Makes a call with `operation` and `state`, in a thread of the library. Returns NULL, or XLA's error. */
typedef ffi_error *worker_function(const ffi_call_frame *call, const void *operation, void *state);

/* Queues a copy of the call, which a thread of the library makes by `make`, with `operation` and `state`, which must
 * outlive the call. Returns NULL at once, with the call's future set, which tells XLA how the call ended; or an error,
 * and then the call is not made. Used with a jaxlib that is new enough (ffi_has_futures), while FEATURE_WORKERS is on
 * (mpixla_calls_apart). */
ffi_error *worker_call_submit(ffi_call_frame *call, worker_function *make, const void *operation, void *state);

/* Returns the number of calls on worker threads whose end XLA has not been told yet. */
int64_t worker_call_count(void);

#endif
