#include "base/clock.h"

#include <sched.h>

int64_t clock_now(void) {
    return clock_read(CLOCK_MONOTONIC);
}

int64_t clock_read(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void clock_sleep(int milliseconds) {
    const struct timespec t = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

void clock_backoff(int polls) {
    enum { AT_ONCE = 2000 };
    if (polls < AT_ONCE)
        (void)sched_yield();
    else
        clock_sleep(1);
}
