#include <semaphore.h>
#include <signal.h>

#include "base/error.h"
#include "base/thread.h"
#include "check.h"

static sigset_t blocked;
static sem_t has_run;

static void *look(void *nothing) {
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    sem_post(&has_run);
    return nothing;
}

/* A fault of the thread's own must reach whoever handles it. */
static void takes_no_signals_but_its_own_faults(void) {
    static const struct {
        int signal, is_blocked;
    } cases[] = {{SIGINT, 1},  {SIGTERM, 1}, {SIGALRM, 1}, {SIGCHLD, 1}, {SIGUSR1, 1}, {SIGPIPE, 1},
                 {SIGSEGV, 0}, {SIGBUS, 0},  {SIGFPE, 0},  {SIGILL, 0},  {SIGABRT, 0}, {SIGTRAP, 0}};
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK_INT(thread_start(look, 1 << 20, "for a test"), 0);
    while (sem_wait(&has_run) != 0) {
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_INT(sigismember(&blocked, cases[i].signal), cases[i].is_blocked);
    /* Who starts it keeps its own. */
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_INT(sigismember(&after, cases[i].signal), sigismember(&before, cases[i].signal));
}

/* No machine has memory for its stack. */
static void says_what_it_was_for(void) {
    CHECK_INT(thread_start(look, (size_t)1 << 60, "for a test"), REFUSED);
    CHECK_IN(error_get(), "no thread can be started for a test: ");
}

int main(void) {
    CHECK_INT(sem_init(&has_run, 0, 0), 0);
    takes_no_signals_but_its_own_faults();
    says_what_it_was_for();
    return check_failures();
}
