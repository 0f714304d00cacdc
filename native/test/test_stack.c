/* Questions to the front end. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/stack.h"
#include "check.h"
#include "mpixla.h"
#include "run.h"

enum { MILLISECONDS = 50, TEXT_BYTES = 32, TOO_LONG = 20 };

#ifdef __linux__
#include <sys/syscall.h>

/* A time of day that is an hour ahead of the system's, as if that was set back just after it was read: who waits by it
 * waits for an hour. */
int clock_gettime(clockid_t clock, struct timespec *time) {
    int code = (int)syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME) time->tv_sec += 3600;
    return code;
}
#endif

static char text[TEXT_BYTES];
static int64_t threads;

static void nobody_answers(void) {
    CHECK(!stack_is_available());
    text[0] = 'x';
    CHECK(!stack_ask(text, sizeof text, &threads, MILLISECONDS));
    CHECK_STR(text, "");
    CHECK_INT(threads, -1);
}

static void answer(void) {
    mpixla_timeout_stack_give("a line", 3);
}

/* Asks, and checks the answer. */
static void is_answered(const char *expected, int64_t expected_threads) {
    char own[TEXT_BYTES];
    int64_t found;
    CHECK(stack_ask(own, sizeof own, &found, 1000 * TOO_LONG));
    CHECK_STR(own, expected);
    CHECK_INT(found, expected_threads);
}

static void *ask(void *nothing) {
    is_answered("a line", 3);
    return nothing;
}

static void *ask_later(void *nothing) {
    is_answered("a later line", 4);
    return nothing;
}

static atomic_int is_late, calls;

static void answer_late(void) {
    while (atomic_load(&is_late)) clock_sleep(1);
    if (atomic_fetch_add(&calls, 1) == 0)
        mpixla_timeout_stack_give("a line", 3);
    else
        mpixla_timeout_stack_give("a later line", 4);
}

/* The front end answers a question after its time; who asks next does not take that for its own answer. */
static void a_late_answer_is_nobodys(void) {
    atomic_store(&is_late, 1);
    mpixla_front_end_set(MPIXLA_WISH_STACKS, answer_late);
    CHECK(!stack_ask(text, sizeof text, &threads, MILLISECONDS));
    const run_threads next = threads_start(1, ask_later);
    clock_sleep(MILLISECONDS); /* by then it has asked, most likely */
    /* And who asks meanwhile waits for its own time, not for that of the other. */
    CHECK(!stack_ask(text, sizeof text, &threads, MILLISECONDS));
    CHECK_INT(threads, -1);
    atomic_store(&is_late, 0);
    threads_join(&next);
}

static void each_thread_is_answered(void) {
    mpixla_front_end_set(MPIXLA_WISH_STACKS, answer);
    threads_run(4, ask);
    CHECK(stack_is_available());
    stack_close();
    CHECK(!stack_ask(text, sizeof text, &threads, MILLISECONDS));
    CHECK_INT(threads, -1);
}

int main(void) {
    alarm(TOO_LONG);
    nobody_answers();
    a_late_answer_is_nobodys();
    each_thread_is_answered();
    return check_failures();
}
