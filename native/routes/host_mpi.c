/* Calls with the host's memory through MPI: the row's expression, on XLA's buffers. Messages between neighbours may
 * take memory that two ranks share all the same (neighbours/messages.h). */
#include "routes/routes.h"

static int host_mpi_can_make(const frame *f, const operation *o) {
    (void)o;
    return !f->gpu;
}

/* Makes a call with the host's memory through MPI. Returns 0, or an error code, also if the communicator's shared
 * memory is broken. */
static int host_mpi_run(frame *f, const operation *o) {
    int code = routes_check(f);
    if (code == 0) code = routes_mpi_prepare(f);
    return code != 0 ? code : o->run(f);
}

const route route_host_mpi = {.can_make = host_mpi_can_make, .run = host_mpi_run};
