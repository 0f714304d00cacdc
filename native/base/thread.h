/* Threads of the library's own, which last as long as the process, and those of the front end. */
#ifndef MPIXLA_NATIVE_THREAD_H
#define MPIXLA_NATIVE_THREAD_H

#include <stddef.h>

/* Starts a thread that nobody waits for and that takes no signals but those of its own faults: the rest are for the
 * threads of the program. It calls `work` with NULL. What it is for goes on behind "no thread can be started", in the
 * sentence of a failure. Returns 0 or REFUSED. */
int thread_start(void *(*work)(void *nothing), size_t stack_bytes, const char *what_for);

/* Returns whether the calling thread is one of the front end's, as mpixla_failures_raised_on tells them: XLA runs the
 * program on the thread that called it. */
int thread_is_front_end(void);

#endif
