/* SIGINT (Ctrl-C) while a call waits for another rank.
 *
 * Python learns of a signal when the call returns, which may be never. So a thread of the library's hears of it as
 * well, looks which calls are under way at that moment, says so if one of them lasts, and ends the job if it lasts too
 * long. What handled the signal before still does, so a program that catches KeyboardInterrupt has as much time.
 */
#define _XOPEN_SOURCE 700 /* SA_ONSTACK; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/output.h"
#include "base/system.h"
#include "base/thread.h"
#include "mpi/job.h"
#include "mpi/mpi.h"
#include "watch/flight.h"

enum { MOST_CALLS = 64, CALL_BYTES = 512, SENTENCE_BYTES = 1024, STACK_BYTES = 1 << 18 };
enum { EXIT_INTERRUPTED = 130 /* as shells give it for a process that SIGINT ended */ };
/* Milliseconds: until a call that lasts is told, until it ends the job, and between two looks. */
enum { TELL_AFTER = 300, END_AFTER = 5000, POLL = 50 };

static struct sigaction before; /* the handler that the signal had; written before the thread starts */
static int ends_job;            /* all ranks, not this process alone; as `before` */

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

/* Returns whether one of them has not ended, and writes which. */
static int calls_last(const seen_call *seen, int calls, char text[CALL_BYTES]) {
    flight_view view;
    for (int i = 0; i < calls; i++) {
        if (!flight_see(seen[i].thread, &view) || view.entered != seen[i].entered) continue;
        flight_describe(&view, text, CALL_BYTES);
        return 1;
    }
    return 0;
}

static void interrupt_tell(const char *call) {
    char text[SENTENCE_BYTES];
    snprintf(
        text, sizeof text,
        "mpixla: rank %d was interrupted (SIGINT) in %s, which has not ended. A call of MPI cannot be interrupted: "
        "%s ends if the call lasts for %d s.\n",
        mpi_get()->world_rank, call, ends_job ? "the whole job" : "this process", END_AFTER / 1000);
    output_say(text);
}

/* Returns when the calls have ended, and ends the job if they take too long. */
static void calls_attend(const seen_call *seen, int calls) {
    char text[CALL_BYTES];
    for (int waited = 0; calls_last(seen, calls, text); waited += POLL) {
        if (waited == TELL_AFTER) interrupt_tell(text);
        if (waited == END_AFTER) job_end(NULL, EXIT_INTERRUPTED, ends_job);
        clock_sleep(POLL);
    }
}

static void *interrupts_attend(void *nothing) {
    for (;;) {
        seen_call seen[MOST_CALLS];
        system_bell_wait();
        const int calls = calls_see(seen);
        calls_attend(seen, calls);
    }
    return nothing;
}

int mpixla_interrupt_watch(int job) {
    struct sigaction now;
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (sigaction(SIGINT, NULL, &before) != 0) return error_set("the handler of SIGINT cannot be read");
    /* A signal that the program ignores stays ignored, and one that nothing handles ends the process anyway. */
    if (!(before.sa_flags & SA_SIGINFO) && (before.sa_handler == SIG_IGN || before.sa_handler == SIG_DFL)) return 0;
    ends_job = job;
    if (system_bell_make() || thread_start(interrupts_attend, STACK_BYTES, "that hears of SIGINT")) return REFUSED;
    memset(&now, 0, sizeof now);
    now.sa_sigaction = on_signal;
    now.sa_flags = SA_SIGINFO | (before.sa_flags & (SA_RESTART | SA_ONSTACK));
    now.sa_mask = before.sa_mask;
    return sigaction(SIGINT, &now, NULL) == 0 ? 0 : error_set("the handler of SIGINT cannot be set");
}
