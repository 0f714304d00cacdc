/* Threads of the library's own, which last as long as the process. */
#ifndef MPIXLA_NATIVE_THREAD_H
#define MPIXLA_NATIVE_THREAD_H

#include <stddef.h>

/* Starts a thread that nobody waits for and that takes no signals but those of its own faults: the rest are for the
 * threads of the program. `run` is called with NULL.
 * Returns 0, or -1; error_set is not called. */
int thread_start(void *(*run)(void *nothing), size_t stack_bytes);

#endif
