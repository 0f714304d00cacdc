#include "mpi/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/output.h"

enum { STATUS = 1, FAILURE_BYTES = ERROR_BYTES + 512 };
enum { END_SECONDS = 10, FLUSH_MILLISECONDS = 2000 };
/* mpirun drops output that it has not forwarded when a job aborts, and other ranks flush their output in this time
 * (deadline.c). */
enum { FORWARDING_MILLISECONDS = 500 };

static volatile sig_atomic_t late_status;

/* Handles SIGALRM: exits at once, as the orderly end has taken too long. */
static void job_exit_late(int number) {
    (void)number;
    _exit(late_status);
}

/* Makes this process exit with the status after so many seconds, by an alarm, even if its end blocks. */
void mpixla_job_limit(int seconds, int status) {
    struct sigaction late;
    sigset_t alarms;
    memset(&late, 0, sizeof late);
    late.sa_handler = job_exit_late;
    late_status = status;
    (void)sigaction(SIGALRM, &late, NULL);
    (void)alarm((unsigned)seconds);
    /* The library's threads take no signals, and the program's may all have blocked this one. */
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    (void)pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
}

void job_end(const char *why, int status, int ends_others) {
    mpixla_job_limit(END_SECONDS, status);
    if (why) output_write(why);
    output_flush(FLUSH_MILLISECONDS);
    clock_sleep(FORWARDING_MILLISECONDS);
    if (ends_others) (void)mpi_get()->abort(mpi_get()->facts.comm_world, status);
    _exit(status);
}

void mpixla_job_end(int status, int ends_others) {
    job_end(NULL, status, ends_others);
}

static int ends_badly;

/* Finalizes MPI if the program has not, and exits with EXIT_FAILURE if `ends_badly`. The C library runs this last of
 * all: Python, and with it mpi4py, has ended by then. */
static void job_process_finalize(void) {
    if (comm_state_check() == 0) (void)mpi_get()->finalize();
    if (!ends_badly) return;
    fflush(NULL);
    _exit(EXIT_FAILURE);
}

/* Registers MPI_Finalize to run after all exit handlers. `badly`: the process then exits with a failure. Returns 0 or
 * REFUSED. */
int mpixla_end_last(int badly) {
    ends_badly = badly;
    return atexit(job_process_finalize) == 0
               ? 0
               : error_set("MPI_Finalize cannot be registered for the end of this process: atexit has failed");
}

int job_fail(const comm_entry *entry) {
    if (entry->size == 1) return REFUSED;
    char text[FAILURE_BYTES];
    snprintf(text, sizeof text,
             "mpixla: r%d | %s\nThe other ranks of communicator '%s' wait for this one in the same call and cannot go "
             "on, so the job ends.\n",
             mpi_get()->world_rank, error_get(), entry->name);
    job_end(text, STATUS, 1);
}
