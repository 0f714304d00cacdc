/* Calls with a GPU's memory through an MPI that takes it, if the user asks for that: the row's expression, on XLA's
 * buffers. MPI does not know the stream, so it is waited for. */
#include "mpi/float_reduce.h"
#include "mpi/reduction.h"
#include "routes/gpu.h"
#include "routes/routes.h"

/* Returns whether MPI makes the reduction itself, without a function of the library's or of the user's, which would
 * touch a GPU's memory. */
static int gpu_mpi_reduces(const frame *f) {
    int64_t number = f->attributes[ATTRIBUTE_OP];
    return reduction_is_predefined(number) && !reduction_is_of_pairs(number) &&
           !float_reduce_find(facts_type(&f->facts)->number, number);
}

/* Returns whether MPI can make the call on a GPU's memory, as the user asks. Excludes calls in which the processor
 * touches the arrays: requests and messages of this rank to itself are copied, and an exscan may fill its result. */
static int gpu_mpi_can_make(const frame *f, const operation *o) {
    int is_to_itself = frame_has(f, ATTRIBUTE_DEST) && f->attributes[ATTRIBUTE_DEST] == f->facts.communicator->rank;
    const int fills = frame_has(f, ATTRIBUTE_FILL) && f->arrays[ATTRIBUTE_FILL].size > 0;
    if (!f->gpu || plan_wish_get() != PLAN_MPI) return 0;
    if (o->row.request != MPIXLA_COMPLETES || is_to_itself || fills) return 0;
    return !frame_has(f, ATTRIBUTE_OP) || gpu_mpi_reduces(f);
}

/* Waits for the GPU's stream, which MPI does not know, before a call on the GPU's memory. A halo exchange waits itself
 * when it has packed its messages. Returns 0. A local failure ends the job if the call is collective, else it returns
 * REFUSED (facts_fail). */
static int gpu_mpi_begin(frame *f) {
    f->gpu->has_arrays = 1;
    if (f->facts.row->counts == MANY) return 0;
    return gpu_local_step_check(f, gpu_mirrors_make(f) || device_wait(frame_device(f)));
}

static int gpu_mpi_run(frame *f, const operation *o) {
    const int code = routes_mpi_prepare(f);
    return code != 0 ? code : o->run(f);
}

const route route_gpu_mpi = {.name = "mpi",
                             .can_make = gpu_mpi_can_make,
                             .begin = gpu_mpi_begin,
                             .run = gpu_mpi_run,
                             .end = gpu_mirrors_end,
                             .reaches_gpu = 1};
