/* Connects the library to the MPI of this process, and starts all that needs it. */
#include "mpi/comm.h"
#include "mpi/float_reduce.h"
#include "mpi/mpi.h"
#include "mpi/pair_reduce.h"
#include "routes/plan.h"
#include "watch/leftover.h"

int mpixla_abi_version(void) {
    return MPIXLA_ABI_VERSION;
}

/* Connects the library to the MPI of this process, registers MPI_COMM_SELF, and makes the library's reductions. Returns
 * 0, or REFUSED, also in a second call. */
int mpixla_start(const mpixla_mpi_facts *facts) {
    mpi_library *mpi = mpi_connect(facts);
    if (!mpi || comm_start(mpi) || float_reduce_start(mpi) || pair_reduce_start(mpi)) return REFUSED;
    plan_start();
    leftover_start();
    mpi_publish();
    return 0;
}
