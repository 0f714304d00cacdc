/* Collective calls through memory that the ranks of one host share (local/local.h). Whether there is such memory, all
 * ranks find out together in their first call; without it, and where MPI is faster, MPI makes the call. */
#include "local/local.h"
#include "routes/routes.h"

static int host_shared_can_make(const frame *f, const operation *o) {
    (void)o;
    return !f->gpu && local_can_make(f);
}

/* Makes a call through memory that the ranks share, or, where MPI is faster or there is none, through MPI. Returns 0 or
 * an error code. */
static int host_shared_run(frame *f, const operation *o) {
    int is_made = 0;
    const int code = local_run(f, &is_made);
    return code != 0 || is_made ? code : route_host_mpi.run(f, o);
}

const route route_host_shared = {.can_make = host_shared_can_make, .run = host_shared_run};
