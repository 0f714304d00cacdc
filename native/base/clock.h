/* Time: a clock that only goes forward. */
#ifndef MPIXLA_NATIVE_CLOCK_H
#define MPIXLA_NATIVE_CLOCK_H

#include <stdint.h>

/* Nanoseconds. */
int64_t clock_now(void);

/* Waits for so long, or until a signal. */
void clock_sleep(int milliseconds);

#endif
