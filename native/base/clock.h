/* Time: a clock that only goes forward. */
#ifndef MPIXLA_NATIVE_CLOCK_H
#define MPIXLA_NATIVE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds; and those of another clock of the system's. */
int64_t clock_now(void);
int64_t clock_read(clockid_t clock);

/* Waits for so long, or until a signal. */
void clock_sleep(int milliseconds);

/* Between two looks at what another process is to do: lets others have the processor, and waits a moment after the
 * first so many looks. */
void clock_between(int looks);

#endif
