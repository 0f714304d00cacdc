/* SIGINT (Ctrl-C) while a call waits for another rank.
 *
 * Python handles a signal when the call returns, which may be never. So a thread of the library is woken as well, finds
 * the calls that are under way at that moment, prints one if it lasts, and ends the job if it lasts too long. The
 * previous handler still runs, so a program that catches KeyboardInterrupt has as much time.
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
/* Milliseconds: until a call that lasts is printed, until it ends the job, and between two looks at it. */
enum { PRINT_AFTER_MS = 300, END_AFTER_MS = 5000, POLL_MS = 50 };

static struct sigaction previous; /* handler of the signal; written before the thread starts */
static int ends_job;              /* all ranks, not this process alone; as `previous` */

/* Handles the signal: wakes the thread, and calls the previous handler. */
static void interrupt_handle(int number, siginfo_t *info, void *context) {
    int kept = errno;
    system_bell_ring();
    errno = kept;
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(number, info, context);
    else
        previous.sa_handler(number);
}

/* A call that was under way at the signal. */
typedef struct seen_call {
    int64_t thread, entered;
} seen_call;

/* Sets `seen` to the calls that are under way, at most MOST_CALLS. Returns their number. */
static int interrupt_calls_find(seen_call seen[MOST_CALLS]) {
    int calls = 0;
    flight_view view;
    for (int64_t i = 0; i < flight_threads() && calls < MOST_CALLS; i++)
        if (flight_view_read(i, &view)) seen[calls++] = (seen_call){.thread = i, .entered = view.entered};
    return calls;
}

/* Returns whether one of the calls has not ended, and writes the description of the first such call to `text`. */
static int interrupt_calls_still_run(const seen_call *seen, int calls, char text[CALL_BYTES]) {
    flight_view view;
    for (int i = 0; i < calls; i++) {
        if (!flight_view_read(seen[i].thread, &view) || view.entered != seen[i].entered) continue;
        flight_describe(&view, text, CALL_BYTES);
        return 1;
    }
    return 0;
}

/* Prints the call that cannot be interrupted, and after which time the process or the job ends. */
static void interrupt_call_print(const char *call) {
    char text[SENTENCE_BYTES];
    snprintf(
        text, sizeof text,
        "mpixla: rank %d was interrupted (SIGINT) in %s, which has not ended. A call of MPI cannot be interrupted: "
        "%s ends if the call lasts for %d s.\n",
        mpi_get()->world_rank, call, ends_job ? "the whole job" : "this process", END_AFTER_MS / 1000);
    output_write(text);
}

/* Waits until the calls have ended; prints one that still runs after PRINT_AFTER_MS, and ends the job, or this process,
 * after END_AFTER_MS. */
static void interrupt_calls_await(const seen_call *seen, int calls) {
    char text[CALL_BYTES];
    for (int waited = 0; interrupt_calls_still_run(seen, calls, text); waited += POLL_MS) {
        if (waited == PRINT_AFTER_MS) interrupt_call_print(text);
        if (waited == END_AFTER_MS) job_end(NULL, EXIT_INTERRUPTED, ends_job);
        clock_sleep(POLL_MS);
    }
}

/* Runs the thread that waits for signals, and then for the calls that are under way; never returns, and may end the
 * job. */
static void *interrupt_thread_run(void *nothing) {
    for (;;) {
        seen_call seen[MOST_CALLS];
        system_bell_wait();
        const int calls = interrupt_calls_find(seen);
        interrupt_calls_await(seen, calls);
    }
    return nothing;
}

/* Starts the thread that ends the process, or with `job` the job, if a call has not ended five seconds after SIGINT,
 * and sets the signal's handler. Does nothing if the signal is ignored or has no handler. Returns 0 or REFUSED. */
int mpixla_interrupt_watch(int job) {
    struct sigaction now;
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (sigaction(SIGINT, NULL, &previous) != 0) return error_set("the handler of SIGINT cannot be read");
    /* A signal that the program ignores stays ignored, and one that nothing handles ends the process anyway. */
    if (!(previous.sa_flags & SA_SIGINFO) && (previous.sa_handler == SIG_IGN || previous.sa_handler == SIG_DFL))
        return 0;
    ends_job = job;
    if (system_bell_make() || thread_start(interrupt_thread_run, STACK_BYTES, "that handles SIGINT")) return REFUSED;
    memset(&now, 0, sizeof now);
    now.sa_sigaction = interrupt_handle;
    now.sa_flags = SA_SIGINFO | (previous.sa_flags & (SA_RESTART | SA_ONSTACK));
    now.sa_mask = previous.sa_mask;
    return sigaction(SIGINT, &now, NULL) == 0 ? 0 : error_set("the handler of SIGINT cannot be set");
}
