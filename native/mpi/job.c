#include "mpi/job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { STATUS = 1, FORWARDING_MILLISECONDS = 300 };
enum { FAILURE_BYTES = ERROR_BYTES + 512 };

static int output = STDERR_FILENO;

void mpixla_output_set(int file) {
    output = file;
}

void job_say(const char *text) {
    size_t bytes = strlen(text);
    while (bytes > 0) {
        ssize_t written = write(output, text, bytes);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return;
        if (written < 0) continue;
        text += written;
        bytes -= (size_t)written;
    }
}

void job_end(int status, int ends_others) {
    fflush(stderr);
    clock_sleep(FORWARDING_MILLISECONDS); /* mpirun drops what it has not forwarded when a job aborts */
    if (ends_others) (void)mpi_get()->abort(mpi_get()->facts.comm_world, status);
    _exit(status);
}

static int ends_badly;

/* The C library runs this last of all: Python, and with it mpi4py, has ended by then. */
static void end(void) {
    if (comm_state_check() == 0) (void)mpi_get()->finalize();
    if (!ends_badly) return;
    fflush(NULL);
    _exit(EXIT_FAILURE);
}

int mpixla_end_last(int badly) {
    ends_badly = badly;
    return atexit(end) == 0 ? 0 : error_set("the end of this process cannot be seen to: atexit has failed");
}

int job_fail(const comm_entry *entry) {
    if (entry->size == 1) return REFUSED;
    char text[FAILURE_BYTES];
    snprintf(text, sizeof text,
             "mpixla: r%d | %s\nThe other ranks of communicator '%s' wait for this one in the same call and cannot go "
             "on, so the job ends.\n",
             mpi_get()->world_rank, error_get(), entry->name);
    job_say(text);
    job_end(STATUS, 1);
}
