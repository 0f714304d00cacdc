/* Reads the monotonic clock, sleeps, and backs off between polls. */
#ifndef MPIXLA_NATIVE_CLOCK_H
#define MPIXLA_NATIVE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns the monotonic clock in nanoseconds. */
int64_t clock_now(void);

/* Returns another clock of the system in nanoseconds. */
int64_t clock_read(clockid_t clock);

/* Sleeps for so many milliseconds, or until a signal arrives. */
void clock_sleep(int milliseconds);

/* Waits a moment between two polls for progress of another process: yields the processor, or sleeps a millisecond
 * instead once `polls`, the number of polls so far, is large. */
void clock_backoff(int polls);

#endif
