/* A call of a compiled program, prepared once: the facts that its first run reads and checks hold for every run, since
 * XLA gives them the same attributes and shapes, and buffers in the same places.
 *
 * XLA keeps a `prepared` for each call of an executable, from the moment at which it instantiates the call until it
 * drops the executable, and gives it to all runs, which may be in several threads. It is empty until a run has read the
 * call whole; that run publishes a copy of its frame. Later runs copy that frame, and look up what can end between two
 * runs: the communicator, a user-made reduction, a status. A call that is refused is read again in each run.
 */
#ifndef MPIXLA_NATIVE_PREPARED_H
#define MPIXLA_NATIVE_PREPARED_H

#include "call/frame.h"

typedef struct prepared prepared;

/* Returns the prepared call that XLA keeps as the call's state; NULL if XLA did not instantiate the call. Called in
 * XLA's own thread. */
prepared *prepared_of(const ffi_call_frame *call);

/* Reads a call from the frame of an earlier run, or, without one, as frame_read. `p` may be NULL, here and below.
 * Returns 0 or REFUSED. */
int prepared_read(prepared *p, frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu);

/* Publishes a copy of this run's frame for the later runs, unless there is one already or attributes are given at run
 * time. The run was read, has its route, and has not begun. */
void prepared_publish(prepared *p, const frame *f);

#endif
