/* When MPI may touch device memory: inside its calls, while the stream of the calling thread has nothing left to run.
 * After the start of a non-blocking call the memory stays open, since MPI goes on meanwhile, until the thread has
 * waited for as many calls as it has started, makes another blocking call, calls the driver, or its handler ends.
 */
#ifndef MPIXLA_TEST_FAKE_ACCESS_H
#define MPIXLA_TEST_FAKE_ACCESS_H

#include "test/gpu/fake_stream.h"

/* The stream of the handler that this thread runs, or NULL. */
void fake_access_stream_set(fake_stream *stream);

/* An MPI call begins. Returns what its end is to be told. */
FAKE_API int fake_access_begin(void);
/* What becomes of memory that is open when a call ends: it is closed, it stays open if it was open before, it is left
 * open for a call that was started, or closed if that was the last one. */
enum { FAKE_ACCESS_CLOSE, FAKE_ACCESS_AS_BEFORE, FAKE_ACCESS_LEAVE, FAKE_ACCESS_WAITED };
FAKE_API void fake_access_end(int begun, int what);

/* Closes what a non-blocking call left open. */
void fake_access_release(void);

#endif
