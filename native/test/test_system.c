#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/system.h"
#include "run.h"

enum { MILLISECOND = 1000000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition;
static atomic_int done;

static int has_locked;

static void *try_lock(void *nothing) {
    has_locked = system_lock(&lock, 20);
    if (has_locked) pthread_mutex_unlock(&lock);
    return nothing;
}

static int lock_elsewhere(void) {
    threads_run(1, try_lock);
    return has_locked;
}

static void locks_for_so_long(void) {
    CHECK(lock_elsewhere());
    pthread_mutex_lock(&lock);
    int64_t before = clock_now();
    CHECK(!lock_elsewhere());
    CHECK(clock_now() - before >= 20 * MILLISECOND);
    pthread_mutex_unlock(&lock);
}

static void *signal_condition(void *nothing) {
    pthread_mutex_lock(&lock);
    atomic_store(&done, 1);
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&lock);
    return nothing;
}

/* By the clock that only goes forward: by the time of day the moment would be long past. */
static void waits_until(void) {
    CHECK_INT(system_condition_make(&condition), 0);
    pthread_mutex_lock(&lock);
    int64_t until = clock_now() + 20 * MILLISECOND;
    CHECK(system_condition_wait(&condition, &lock, until));
    CHECK(clock_now() >= until);
    CHECK(system_condition_wait(&condition, &lock, -1));
    const run_threads thread = threads_start(1, signal_condition);
    int64_t forever = clock_now() + INT64_C(3600000) * MILLISECOND;
    while (!atomic_load(&done)) CHECK(!system_condition_wait(&condition, &lock, forever));
    pthread_mutex_unlock(&lock);
    threads_join(&thread);
}

static void ring(int number) {
    (void)number;
    system_bell_ring();
}

static void *wait_for_bell(void *nothing) {
    system_bell_wait();
    atomic_store(&done, 2);
    return nothing;
}

static void hears_each_ring_once(void) {
    CHECK_INT(system_bell_make(), 0);
    const struct sigaction action = {.sa_handler = ring};
    CHECK_INT(sigaction(SIGUSR1, &action, NULL), 0);
    CHECK_INT(raise(SIGUSR1), 0);
    CHECK_INT(raise(SIGUSR1), 0);
    system_bell_wait();
    system_bell_wait();
    const run_threads thread = threads_start(1, wait_for_bell);
    system_bell_ring();
    threads_join(&thread);
    CHECK_INT(atomic_load(&done), 2);
}

int main(void) {
    locks_for_so_long();
    waits_until();
    hears_each_ring_once();
    return check_failures();
}
