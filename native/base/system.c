#include "base/system.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"

int system_lock(pthread_mutex_t *lock, int milliseconds) {
    for (; pthread_mutex_trylock(lock) != 0; milliseconds--) {
        if (milliseconds <= 0) return 0;
        clock_sleep(1);
    }
    return 1;
}

/* Sets the error "no `label` can be made in this process". Returns REFUSED. */
static int system_failure_set(const char *label, const char *why) {
    return error_set("no %s can be made in this process: %s", label, why);
}

static struct timespec system_timespec(int64_t nanoseconds) {
    if (nanoseconds < 0) nanoseconds = 0;
    return (struct timespec){.tv_sec = (time_t)(nanoseconds / 1000000000), .tv_nsec = (long)(nanoseconds % 1000000000)};
}

#ifdef __APPLE__
/* Conditions take the time of day, or a duration. The only semaphores are Mach's. */
#include <mach/mach_error.h>
#include <mach/mach_init.h>
#include <mach/semaphore.h>
#include <mach/task.h>

int system_condition_make(pthread_cond_t *condition) {
    int code = pthread_cond_init(condition, NULL);
    return code == 0 ? 0 : system_failure_set("condition", strerror(code));
}

int system_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until) {
    const struct timespec time = system_timespec(until - clock_now());
    return pthread_cond_timedwait_relative_np(condition, lock, &time) == ETIMEDOUT;
}

static semaphore_t bell;

int system_bell_make(void) {
    kern_return_t code = semaphore_create(mach_task_self(), &bell, SYNC_POLICY_FIFO, 0);
    return code == KERN_SUCCESS ? 0 : system_failure_set("semaphore", mach_error_string(code));
}

void system_bell_ring(void) {
    (void)semaphore_signal(bell);
}

void system_bell_wait(void) {
    while (semaphore_wait(bell) != KERN_SUCCESS) {
    }
}

#else
#include <semaphore.h>

int system_condition_make(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    int code = pthread_condattr_init(&attributes);
    if (code != 0) return system_failure_set("condition", strerror(code));
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    code = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return code == 0 ? 0 : system_failure_set("condition", strerror(code));
}

int system_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until) {
    const struct timespec time = system_timespec(until);
    return pthread_cond_timedwait(condition, lock, &time) == ETIMEDOUT;
}

static sem_t bell;

int system_bell_make(void) {
    return sem_init(&bell, 0, 0) == 0 ? 0 : system_failure_set("semaphore", strerror(errno));
}

void system_bell_ring(void) {
    (void)sem_post(&bell);
}

void system_bell_wait(void) {
    while (sem_wait(&bell) != 0) {
    }
}
#endif
