/* A signal while a call waits that never ends, while none does, and where nothing handles it. */
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"

enum { LONG_SECONDS = 60 };

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

/* Returns the status of a process with this handler that is interrupted, while a call of it waits or not, and then
 * lasts for so many seconds. */
static int interrupted(void (*handler)(int), int calls, int seconds) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGINT, handler);
        if (mpixla_interrupt_watch(1) != 0) _exit(77);
        call_make(&c, "send", FIXTURE_RANK0, 0);
        (void)threads_start(calls, run_for_ever);
        while (calls && !atomic_load(&in_call)) clock_sleep(1);
        raise(SIGINT);
        if (atomic_load(&handled) != 1 && handler == handle) _exit(78);
        clock_sleep(1000 * seconds);
        _exit(79);
    }
    return process_end(child);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    CHECK_INT(interrupted(handle, 1, LONG_SECONDS), 130);
    CHECK_INT(interrupted(handle, 0, 1), 79);
    CHECK_INT(interrupted(SIG_IGN, 1, 1), 79); /* ignored it stays */
    CHECK_INT(interrupted(SIG_DFL, 1, 1), -SIGINT);
    return check_failures();
}
