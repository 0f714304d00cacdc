/* Starts threads of the library, which are never joined, and tells them from the front end's. */
#ifndef MPIXLA_NATIVE_THREAD_H
#define MPIXLA_NATIVE_THREAD_H

#include <stddef.h>

/* Starts a detached thread, which calls `work` with NULL. All signals are blocked there except the synchronous ones
 * (SIGSEGV, SIGBUS, ...): the others are for the program's threads. `what_for` follows "no thread can be started" in
 * the sentence of a failure. Returns 0 or REFUSED. */
int thread_start(void *(*work)(void *nothing), size_t stack_bytes, const char *what_for);

/* Returns whether the calling thread is one of the front end's, by the function of mpixla_failures_raised_on: then XLA
 * runs a program on the thread that dispatched it. */
int thread_is_front_end(void);

#endif
