/* Wraps the system calls that differ between Linux and macOS: timed waits and a semaphore for signal handlers. */
#ifndef MPIXLA_NATIVE_SYSTEM_H
#define MPIXLA_NATIVE_SYSTEM_H

#include <pthread.h>
#include <stdint.h>

/* Initializes a condition variable for system_condition_wait. Returns 0 or REFUSED. */
int system_condition_make(pthread_cond_t *condition);

/* Waits for the condition until clock_now() >= until. Returns whether that time has passed. */
int system_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);

/* Acquires the lock, and gives up after so many milliseconds. Returns whether the lock was acquired. */
int system_lock(pthread_mutex_t *lock, int milliseconds);

/* Initializes the bell, a semaphore that signal handlers may post (ring). There is one in a process. Returns 0 or
 * REFUSED. */
int system_bell_make(void);
void system_bell_ring(void);

/* Waits for one ring; each ring ends one wait. */
void system_bell_wait(void);

#endif
