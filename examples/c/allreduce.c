/* libmpixla without Python and without JAX: a sum over all ranks, a message around a ring, and a call that is wrong.
 * docs/other_tools.md says how to build it. Start it under mpirun. */
#include <mpi.h>
#include <mpixla.h>
#include <stdio.h>

#include "front_end.h"
#include "xla.h"

enum { ITEMS = 3, TAG = 5 };

static int rank, size;

/* One line, in one piece. */
static void say(const char *what, const float *values) {
    printf("r%d | %s: %g %g %g\n", rank, what, (double)values[0], (double)values[1], (double)values[2]);
    fflush(stdout);
}

/* Whoever shows a failure to the user tells the library, which else thinks that nobody has seen it. */
static void run(const custom_call *call) {
    const char *error = xla_run(call);
    if (!error) return;
    printf("r%d | error: %s\n", rank, error);
    fflush(stdout);
    mpixla_failures_seen(error);
}

static void sum_over_ranks(int64_t comm) {
    float x[ITEMS] = {(float)rank, (float)rank + 1, (float)rank + 2}, sum[ITEMS];
    const custom_call call = {
        .target = "mpixla_allreduce",
        .operands = {{XLA_FFI_DataType_F32, ITEMS, x}},
        .results = {{XLA_FFI_DataType_F32, ITEMS, sum}},
        .attributes = {{"comm", comm}, {"op", reduction_number("MPI_SUM")}},
    };
    run(&call);
    say("sum", sum);
}

/* To the next rank, from the one before. The template is what the result has wherever no message arrives. */
static void pass_on(int64_t comm) {
    float x[ITEMS] = {(float)rank, (float)rank + 1, (float)rank + 2}, template[ITEMS] = {0}, received[ITEMS];
    const custom_call call = {
        .target = "mpixla_sendrecv",
        .operands = {{XLA_FFI_DataType_F32, ITEMS, x}, {XLA_FFI_DataType_F32, ITEMS, template}},
        .results = {{XLA_FFI_DataType_F32, ITEMS, received}},
        .attributes = {{"comm", comm},
                       {"dest", (rank + 1) % size},
                       {"recvtag", TAG},
                       {"sendtag", TAG},
                       {"source", (rank + size - 1) % size},
                       {"status", MPIXLA_NO_STATUS}},
    };
    run(&call);
    say("received", received);
}

/* No rank has this number. The handler refuses before it calls MPI. */
static void broadcast_from_nobody(int64_t comm) {
    float x[ITEMS] = {0};
    const custom_call call = {
        .target = "mpixla_bcast",
        .results = {{XLA_FFI_DataType_F32, ITEMS, x}},
        .attributes = {{"comm", comm}, {"root", size}},
    };
    run(&call);
}

int main(int argc, char **argv) {
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level); /* XLA calls from threads of its own */
    connect_mpi();
    register_handlers(xla_api());

    MPI_Comm ring;
    MPI_Comm_dup(MPI_COMM_WORLD, &ring);              /* so that no message meets the program's own */
    MPI_Comm_set_errhandler(ring, MPI_ERRORS_RETURN); /* so that MPI's errors become the program's */
    int64_t comm = mpixla_comm_register(HANDLE(ring), "ring");
    if (comm < 0) give_up("mpixla_comm_register");
    MPI_Comm_rank(ring, &rank);
    MPI_Comm_size(ring, &size);

    sum_over_ranks(comm);
    pass_on(comm);
    broadcast_from_nobody(comm);

    int failed = mpixla_requests_end() != 0 || mpixla_failures_end() != 0;
    MPI_Comm_free(&ring);
    MPI_Finalize();
    return failed;
}
