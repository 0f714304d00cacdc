/* The signal that comes again; that one alone ends the job after a while is tested with a real MPI. */
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"

enum { APART_MILLISECONDS = 800 };

static call c;
static atomic_int handled, in_call;

static void handle(int number) {
    (void)number;
    atomic_fetch_add(&handled, 1);
}

static void stay(void) {
    atomic_store(&in_call, 1);
    for (;;) clock_sleep(1000);
}

static void *run_for_ever(void *unused) {
    fake->during = stay;
    call_run(&c);
    return unused;
}

/* What the process is that does this, and is interrupted twice. */
static int interrupted(void (*handler)(int), int calls, int times) {
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < times; i++) {
            signal(SIGINT, handler);
            if (mpixla_interrupt_watch(1, 1, -1) != 0) _exit(77);
        }
        if (mpixla_interrupt_watch(1, 1, -1) != 0) _exit(77); /* once more: the handler is ours already */
        call_make(&c, "send", FIXTURE_RANK0, 0);
        (void)threads_start(calls, run_for_ever);
        while (calls && !atomic_load(&in_call)) clock_sleep(1);
        for (int i = 0; i < 2; i++) {
            raise(SIGINT);
            if (atomic_load(&handled) != i + 1 && handler == handle) _exit(78);
            clock_sleep(APART_MILLISECONDS);
        }
        clock_sleep(APART_MILLISECONDS);
        _exit(calls ? 79 : 0);
    }
    return process_end(child);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    CHECK_INT(interrupted(handle, 1, 1), 130);
    CHECK_INT(interrupted(handle, 1, 2), 130);
    CHECK_INT(interrupted(handle, 0, 1), 0);
    CHECK_INT(interrupted(SIG_IGN, 1, 1), 79); /* ignored it stays */
    CHECK_INT(interrupted(SIG_DFL, 1, 1), -SIGINT);
    return check_failures();
}
