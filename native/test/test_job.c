#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "mpi/job.h"
#include "run.h"
#include "scarce.h"

static void fail_in_a_child(void) {
    (void)error_set("out of memory for a test");
    (void)job_fail(comm_find_any(FIXTURE_RANK2));
}

static void ends_the_job_of_others(void) {
    const scarce_end end = scarce_run(fail_in_a_child);
    CHECK_INT(end.status, 1);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for a test\n");
    CHECK_IN(end.told, "communicator 'rank2' wait for this one");
}

static void is_an_error_of_one_alone(void) {
    (void)error_set("out of memory for a test");
    CHECK_INT(job_fail(comm_find_any(FIXTURE_SELF)), REFUSED);
    CHECK_STR(error_get(), "out of memory for a test");
}

static FILE *elsewhere;

static void fail_elsewhere(void) {
    mpixla_output_set(fileno(elsewhere));
    fail_in_a_child();
}

static void says_it_where_people_read(void) {
    char told[256] = "";
    elsewhere = tmpfile();
    CHECK(elsewhere != NULL);
    CHECK_STR(scarce_run(fail_elsewhere).told, "");
    CHECK(pread(fileno(elsewhere), told, sizeof told - 1, 0) > 0);
    CHECK_IN(told, "communicator 'rank2' wait for this one");
    fclose(elsewhere);
}

/* What keeps a process from ending, each in a process of its own */

enum { ABORTED = 3, ENDED = 1 };

static void abort_ends(void) {
    _exit(ABORTED);
}

static void abort_never_returns(void) {
    for (;;) clock_sleep(60000);
}

#ifndef __SANITIZE_THREAD__ /* its _exit flushes stdio */
static void *print_for_ever(void *nothing) {
    flockfile(stdout);
    flockfile(stderr);
    for (;;) clock_sleep(60000);
    return nothing;
}
#endif

static void block_abort(void) {
    fake->aborting = abort_never_returns;
}

/* It is not waited for: MPI_Abort is called all the same. */
static void block_stdio(void) {
    fake->aborting = abort_ends;
#ifndef __SANITIZE_THREAD__
    (void)threads_start(1, print_for_ever);
    while (ftrylockfile(stderr) == 0) {
        funlockfile(stderr);
        clock_sleep(1);
    }
#endif
}

/* Standard error becomes a full pipe that nobody reads; O_NONBLOCK: as terminals and pipes of event loops are. */
static void block_stderr(int flags) {
    char bytes[4096];
    int ends[2];
    memset(bytes, '.', sizeof bytes);
    if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0) _exit(77);
    while (write(ends[1], bytes, sizeof bytes) > 0) {
    }
    if (fcntl(ends[1], F_SETFL, flags) < 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(77);
}

static void block_nonblocking_stderr(void) {
    block_stderr(O_NONBLOCK);
}

static void block_blocking_stderr(void) {
    block_stderr(0);
}

static void block_stdout(void) {
    block_stderr(0);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    (void)fputs("buffered", stdout);
}

static void block_signals(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    block_abort();
}

static void ends_whatever_blocks(void) {
    void (*const blocks[])(void) = {block_stdio,           block_abort, block_signals, block_nonblocking_stderr,
                                    block_blocking_stderr, block_stdout};
    enum { WAYS = sizeof blocks / sizeof blocks[0] };
    pid_t children[WAYS];
    for (int i = 0; i < WAYS; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        blocks[i]();
        (void)error_set("out of memory for a test");
        (void)job_fail(comm_find_any(FIXTURE_RANK2));
        _exit(79);
    }
    for (int i = 0; i < WAYS; i++) CHECK_INT(process_end(children[i]), i == 0 ? ABORTED : ENDED);
}

static call c;

static void call_in_a_crowd(void) {
    (void)call_run(&c);
}

/* What the ranks of a communicator agree on before a GPU's memory comes: the others wait for what this one says. */
static void ends_it_without_memory_to_agree(void) {
    call_make(&c, "barrier", mpixla_comm_register(fake->handle(fake->comm_new(0, INT32_MAX, 0)), "crowd"), 0);
    mpixla_gpus_expect(1, 0);
    const scarce_end end = scarce_run(call_in_a_crowd);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for the plan of a communicator's GPUs\n");
    CHECK_INT(end.status, 1);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    ends_the_job_of_others();
    ends_whatever_blocks();
    says_it_where_people_read();
    is_an_error_of_one_alone();
    ends_it_without_memory_to_agree();
    return check_failures();
}
