/* SIGINT (Ctrl-C) while a call waits for another rank.
 *
 * Python learns of a signal when the call returns, which may be never. So a thread of ours hears of it as well, says
 * which call of that moment is still waited for, and ends the job if it lasts too long. What handled the signal before
 * still does: a program that catches KeyboardInterrupt has that long. All ranks hear of one Ctrl-C, and of those that
 * wait on one host one speaks.
 */
#define _XOPEN_SOURCE 700 /* SA_ONSTACK; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system.h"
#include "base/thread.h"
#include "mpi/mpi.h"
#include "watch/flight.h"

enum { WORD_MILLISECONDS = 300, LATER_MILLISECONDS = 50 /* the next rank */, SECONDS = 5, OTHERS_MILLISECONDS = 2000 };
enum { EXIT_INTERRUPTED = 130 /* what shells give for a process that SIGINT ended */ };
enum { MOST_CALLS = 64, CALL_TEXT = 512, POLL_MILLISECONDS = 50, STACK_BYTES = 1 << 18, FORWARDING_MILLISECONDS = 300 };

/* A terminal and mpirun may both pass one Ctrl-C on: signals that are this close count as one. */
enum { ONE_SIGNAL_MILLISECONDS = 500 };

static struct sigaction before;
static int ends_job, is_patient, shared_file;

static void on_signal(int number, siginfo_t *info, void *context) {
    int kept = errno;
    system_bell_ring();
    errno = kept;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
}

/* A call that was under way at the signal. */
typedef struct seen_call {
    int64_t thread, entered;
} seen_call;

static int calls_see(seen_call seen[MOST_CALLS]) {
    int calls = 0;
    flight_view view;
    for (int64_t i = 0; i < flight_threads() && calls < MOST_CALLS; i++)
        if (flight_see(i, &view)) seen[calls++] = (seen_call){.thread = i, .entered = view.entered};
    return calls;
}

/* Whether one of them has not ended, and which. */
static int calls_last(const seen_call *seen, int calls, char *text, size_t bytes) {
    flight_view view;
    for (int i = 0; i < calls; i++) {
        if (!flight_see(seen[i].thread, &view) || view.entered != seen[i].entered) continue;
        flight_describe(&view, text, bytes);
        return 1;
    }
    return 0;
}

/* Whether this process has the lock of the file that it shares with the other ranks of the host, or there is none. It
 * takes it, or gives it back: F_WRLCK, F_UNLCK. */
static int lock(short how) {
    struct flock all = {.l_type = how, .l_whence = SEEK_SET};
    return shared_file < 0 || fcntl(shared_file, F_SETLK, &all) == 0;
}

static void say(const char *call, const char *why, const char *then) {
    fprintf(stderr, "mpixla: rank %d was interrupted (SIGINT) in %s, %s. %s\n", mpi_get()->world_rank, call, why, then);
    fflush(stderr);
}

static void say_word(const char *call) {
    char then[160];
    snprintf(then, sizeof then, "A call of MPI cannot be interrupted: %s ends %s.",
             ends_job ? "the whole job" : "this process",
             is_patient ? "when it is interrupted again" : "when the call lasts 5 s, or is interrupted again");
    say(call, "which has not ended", then);
}

/* Does not return. */
static void end(const char *call, const char *why, int speaks) {
    if (!speaks) clock_sleep(OTHERS_MILLISECONDS); /* whoever speaks ends the job, if it is still there */
    say(call, why,
        ends_job ? "A call of MPI cannot be interrupted, so the whole job is aborted."
                 : "A call of MPI cannot be interrupted, so this process ends.");
    clock_sleep(FORWARDING_MILLISECONDS); /* mpirun drops what it has not forwarded when a job aborts */
    if (ends_job) (void)mpi_get()->abort(mpi_get()->facts.comm_world, EXIT_INTERRUPTED);
    _exit(EXIT_INTERRUPTED);
}

/* Waits until the calls have ended, or the time is over, or there is another signal. */
static void attend(const seen_call *seen, int calls) {
    char text[CALL_TEXT], why[64];
    int rank = mpi_get()->world_rank, speaks = 0;
    int word = WORD_MILLISECONDS + (rank < 4 ? rank : 4) * LATER_MILLISECONDS;
    for (int waited = 0; calls_last(seen, calls, text, sizeof text); waited += POLL_MILLISECONDS) {
        int again = system_bell_was_rung() && waited >= ONE_SIGNAL_MILLISECONDS;
        if (again) end(text, "which has not ended, and was interrupted again", speaks);
        if (waited == word) {
            speaks = lock(F_WRLCK);
            if (speaks) say_word(text);
        }
        if (waited == SECONDS * 1000 && !is_patient) {
            snprintf(why, sizeof why, "which has not ended %d s later", SECONDS);
            end(text, why, speaks);
        }
        clock_sleep(POLL_MILLISECONDS);
    }
    if (speaks) (void)lock(F_UNLCK);
}

static void *watch(void *nothing) {
    for (;;) {
        seen_call seen[MOST_CALLS];
        system_bell_wait();
        int calls = calls_see(seen);
        attend(seen, calls);
    }
    return nothing;
}

int mpixla_interrupt_watch(int ends, int patient, int file) {
    struct sigaction now;
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (sigaction(SIGINT, NULL, &before) != 0) return error_set("the handler of SIGINT cannot be read");
    /* Ignored it is to be ignored, and by default it ends the process. */
    if (!(before.sa_flags & SA_SIGINFO) && (before.sa_handler == SIG_IGN || before.sa_handler == SIG_DFL)) return 0;
    ends_job = ends;
    is_patient = patient;
    shared_file = file;
    if (system_bell_make() != 0 || thread_start(watch, STACK_BYTES) != 0)
        return error_set("no thread can be started that hears of SIGINT");
    memset(&now, 0, sizeof now);
    now.sa_sigaction = on_signal;
    now.sa_flags = SA_SIGINFO | (before.sa_flags & (SA_RESTART | SA_ONSTACK));
    now.sa_mask = before.sa_mask;
    return sigaction(SIGINT, &now, NULL) == 0 ? 0 : error_set("the handler of SIGINT cannot be set");
}
