/* What Linux and macOS do in different ways. */
#ifndef MPIXLA_NATIVE_SYSTEM_H
#define MPIXLA_NATIVE_SYSTEM_H

#include <pthread.h>
#include <stdint.h>

/* A condition whose time is that of base/clock.h. Returns 0 or REFUSED. */
int system_condition_make(pthread_cond_t *condition);
/* Waits for it until the clock says `until`. Returns whether that time is over. */
int system_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);

/* Takes the lock if that is possible within so many milliseconds. Returns whether it was. */
int system_lock(pthread_mutex_t *lock, int milliseconds);

/* What a signal handler may ring, and a thread waits for: each ring is heard once. There is one in a process, to be
 * made before anything else is done with it. Returns 0 or REFUSED. */
int system_bell_make(void);
void system_bell_ring(void);
/* Waits for a ring. */
void system_bell_wait(void);

#endif
