#include "mpi/job.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { STATUS = 1, FORWARDING_MILLISECONDS = 300 };

int job_fail(const comm_entry *entry) {
    const mpi_library *mpi = mpi_get();
    if (entry->size == 1) return MPI_REFUSED;
    fprintf(stderr,
            "mpixla: r%d | %s\nThe other ranks of communicator '%s' wait for this one in the same call and cannot go "
            "on, so the job ends.\n",
            mpi->world_rank, error_get(), entry->name);
    fflush(stderr);
    clock_sleep(FORWARDING_MILLISECONDS); /* mpirun drops what it has not forwarded when a job aborts */
    (void)mpi->abort(mpi->facts.comm_world, STATUS);
    _exit(STATUS);
}
