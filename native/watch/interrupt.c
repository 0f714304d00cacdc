/* SIGINT (Ctrl-C) while a call waits for another rank.
 *
 * Python learns of a signal when the call returns, which may be never. So a thread of the library's hears of it as
 * well, looks which calls are under way at that moment, says so if one of them lasts, and ends the job if it lasts too
 * long. What handled the signal before still does, so a program that catches KeyboardInterrupt has as much time. All
 * ranks hear of one Ctrl-C, and one of each host speaks.
 */
#define _XOPEN_SOURCE 700 /* SA_ONSTACK; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/output.h"
#include "base/system.h"
#include "base/thread.h"
#include "mpi/job.h"
#include "mpi/mpi.h"
#include "watch/flight.h"

enum { MOST_CALLS = 64, CALL_TEXT = 512, SENTENCE = 1024, STACK_BYTES = 1 << 18 };
enum { EXIT_INTERRUPTED = 130 /* what shells give for a process that SIGINT ended */ };

/* Seconds that a call has to end. */
enum { SECONDS = 5 };
/* Milliseconds: when a rank says that it waits, which each does a little later than the one before it, as one of a host
 * is to speak; between two looks; between two signals that are one Ctrl-C, which a terminal and mpirun may both pass
 * on; and for how long those that do not speak leave it to the one that does to end the job. */
enum { WORD = 300, WORD_LATER = 50, POLL = 50, ONE_SIGNAL = 500, LEFT_TO_OTHERS = 2000 };

static struct sigaction before;                      /* what handled the signal before */
static atomic_int ends_job, is_patient, shared_file; /* as mpixla_interrupt_watch was told last */

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

/* Whether one of them has not ended; then which, in words. */
static int calls_last(const seen_call *seen, int calls, char *text, size_t bytes) {
    flight_view view;
    for (int i = 0; i < calls; i++) {
        if (!flight_see(seen[i].thread, &view) || view.entered != seen[i].entered) continue;
        flight_describe(&view, text, bytes);
        return 1;
    }
    return 0;
}

/* Takes the lock of the file that the ranks of a host share (F_WRLCK), or gives it back (F_UNLCK). Returns whether this
 * process may speak: it has taken the lock, or there is no file. */
static int lock_set(short how) {
    struct flock all = {.l_type = how, .l_whence = SEEK_SET};
    return shared_file < 0 || fcntl(shared_file, F_SETLK, &all) == 0;
}

static void sentence_write(char text[SENTENCE], const char *call, const char *why, const char *then) {
    snprintf(text, SENTENCE, "mpixla: rank %d was interrupted (SIGINT) in %s, %s. %s\n", mpi_get()->world_rank, call,
             why, then);
}

static void say_what_follows(const char *call) {
    char then[160], text[SENTENCE];
    snprintf(then, sizeof then, "A call of MPI cannot be interrupted: %s ends %s.",
             ends_job ? "the whole job" : "this process",
             is_patient ? "when it is interrupted again" : "when the call lasts 5 s, or is interrupted again");
    sentence_write(text, call, "which has not ended", then);
    output_say(text);
}

static _Noreturn void interrupt_end(const char *call, const char *why, int speaks) {
    char text[SENTENCE];
    if (!speaks) clock_sleep(LEFT_TO_OTHERS);
    sentence_write(text, call, why,
                   ends_job ? "A call of MPI cannot be interrupted, so the whole job is aborted."
                            : "A call of MPI cannot be interrupted, so this process ends.");
    job_end(text, EXIT_INTERRUPTED, ends_job);
}

/* Returns when the calls have ended, and ends the job if they take too long, or there is another signal. */
static void calls_attend(const seen_call *seen, int calls) {
    char text[CALL_TEXT], why[64];
    int rank = mpi_get()->world_rank, speaks = 0;
    int word = WORD + (rank < 4 ? rank : 4) * WORD_LATER;
    snprintf(why, sizeof why, "which has not ended %d s later", SECONDS);
    for (int waited = 0; calls_last(seen, calls, text, sizeof text); waited += POLL) {
        if (system_bell_was_rung() && waited >= ONE_SIGNAL)
            interrupt_end(text, "which has not ended, and was interrupted again", speaks);
        if (waited == word) {
            speaks = lock_set(F_WRLCK);
            if (speaks) say_what_follows(text);
        }
        if (waited == SECONDS * 1000 && !is_patient) interrupt_end(text, why, speaks);
        clock_sleep(POLL);
    }
    if (speaks) (void)lock_set(F_UNLCK);
}

static void *interrupts_attend(void *nothing) {
    for (;;) {
        seen_call seen[MOST_CALLS];
        system_bell_wait();
        int calls = calls_see(seen);
        calls_attend(seen, calls);
    }
    return nothing;
}

static int attention_start(void) {
    static int has_started;
    if (has_started) return 0;
    int code = system_bell_make();
    if (code == 0) code = thread_start(interrupts_attend, STACK_BYTES, "that hears of SIGINT");
    has_started = code == 0;
    return code;
}

int mpixla_interrupt_watch(int ends, int patient, int file) {
    struct sigaction found, now;
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (sigaction(SIGINT, NULL, &found) != 0) return error_set("the handler of SIGINT cannot be read");
    ends_job = ends;
    is_patient = patient;
    shared_file = file;
    const int has_info = (found.sa_flags & SA_SIGINFO) != 0, is_ours = has_info && found.sa_sigaction == on_signal;
    /* A signal that the program ignores stays ignored, and one that nothing handles ends the process anyway. */
    if (is_ours || (!has_info && (found.sa_handler == SIG_IGN || found.sa_handler == SIG_DFL))) return 0;
    if (attention_start()) return REFUSED;
    before = found;
    memset(&now, 0, sizeof now);
    now.sa_sigaction = on_signal;
    now.sa_flags = SA_SIGINFO | (before.sa_flags & (SA_RESTART | SA_ONSTACK));
    now.sa_mask = before.sa_mask;
    return sigaction(SIGINT, &now, NULL) == 0 ? 0 : error_set("the handler of SIGINT cannot be set");
}
