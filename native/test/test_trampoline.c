/* XLA's calls for JAX's own collectives: what MPI is called with, and what becomes of errors. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "run.h"
#include "trampoline/calls.h"
#include "trampoline/clique.h"
#include "xla/xla_ffi.h"

_Static_assert(TRAMPOLINE_U64 == (int)FFI_U64 && TRAMPOLINE_F64 == (int)FFI_F64 && TRAMPOLINE_C64 == (int)FFI_C64 &&
                   TRAMPOLINE_C128 == (int)FFI_C128,
               "numbers of XLA's element types");

enum { FIRST = 7 }; /* a device */

#define CHECK_CALL(begin) CHECK(strncmp(fake->call, begin, strlen(begin)) == 0)

static float x[4], y[16];
static trampoline_handle comm;

/* What XLA gets. */
static const char *error_text(void) {
    static char text[TRAMPOLINE_TEXT_BYTES];
    int length = 0;
    CHECK_INT(trampoline_error_string(1, text, &length), 0);
    return text;
}

static void offers_are_taken_by_place(void) {
    trampoline_handle other = 0;
    CHECK_INT(mpixla_trampoline_offer(FIXTURE_RANK2, FIRST, 2), 0);
    CHECK_INT(mpixla_trampoline_offer(FIXTURE_RANK0, FIRST, 0), 0);
    CHECK_INT(mpixla_trampoline_offer(FIXTURE_SELF, FIRST, 0), 0);
    CHECK_INT(mpixla_trampoline_offers(), 3);
    CHECK_INT(trampoline_comm_split(TRAMPOLINE_WORLD, FIRST, 2, &comm), 0);
    CHECK_INT((int64_t)comm, FIXTURE_RANK2 + TRAMPOLINE_COMMS);
    /* The newest of those that look alike. */
    CHECK_INT(trampoline_comm_split(TRAMPOLINE_WORLD, FIRST, 0, &other), 0);
    CHECK_INT((int64_t)other, FIXTURE_SELF + TRAMPOLINE_COMMS);
    CHECK_INT(mpixla_trampoline_offers(), 1);
    CHECK_INT(clique_offer_take(FIRST + 1, 0), -1);
}

static void communicators_say_what_they_are(void) {
    int rank = -1, size = -1;
    CHECK_INT(trampoline_comm_rank(comm, &rank), 0);
    CHECK_INT(trampoline_comm_size(comm, &size), 0);
    CHECK_INT(rank, 2);
    CHECK_INT(size, FIXTURE_SIZE);
    CHECK_INT(trampoline_comm_rank(TRAMPOLINE_WORLD, &rank), 0);
    CHECK_INT(rank, fake->world_rank);
    CHECK(trampoline_comm_size(comm + 99, &size) != 0);
    CHECK_IN(error_text(), "communicator number 101 is not registered");
}

static void calls_go_to_mpi(void) {
    const int counts[FIXTURE_SIZE] = {2, 2, 2, 2}, uneven[FIXTURE_SIZE] = {2, 2, 1, 2};
    CHECK_INT(trampoline_allreduce(x, y, 4, FFI_S32, TRAMPOLINE_PROD, comm), 0);
    CHECK_CALL("MPI_Allreduce");
    CHECK(fake->send == x && fake->recv == y);
    CHECK_INT(trampoline_allreduce(x, x, 4, FFI_F32, TRAMPOLINE_MAX, comm), 0);
    CHECK(fake->send != x && fake->recv == x);
    CHECK_INT(trampoline_allgather(x, 16, TRAMPOLINE_BYTE, y, 16, TRAMPOLINE_BYTE, comm), 0);
    CHECK_CALL("MPI_Allgather 16");
    CHECK_INT(trampoline_reduce_scatter(y, x, counts, FFI_F64, TRAMPOLINE_SUM, comm), 0);
    CHECK_CALL("MPI_Reduce_scatter_block 2");
    CHECK(trampoline_reduce_scatter(y, x, uneven, FFI_F64, TRAMPOLINE_SUM, comm) != 0);
    CHECK(strstr(error_text(), "of parts of different sizes") != NULL);
    CHECK_INT(trampoline_sendrecv(x, 4, FFI_U8, 1, 5, y, 4, FFI_U8, 3, 6, comm, NULL), 0);
    CHECK_CALL("MPI_Sendrecv 4");
    trampoline_handle requests[2];
    CHECK_INT(trampoline_irecv(y, 4, FFI_U8, 3, 0, comm, &requests[1]), 0);
    CHECK_INT(trampoline_isend(x, 4, FFI_U8, 1, 0, comm, &requests[0]), 0);
    CHECK_INT(trampoline_wait(&requests[0], NULL), 0);
    CHECK_INT(trampoline_wait(&requests[1], NULL), 0);
}

static void failures_are_sentences(void) {
    char text[TRAMPOLINE_TEXT_BYTES];
    int length = 0, calls = fake->calls;
    CHECK(trampoline_allreduce(x, y, -4, FFI_F32, TRAMPOLINE_SUM, comm) != 0);
    CHECK(strstr(error_text(), "at most 2^31 - 1 items at once") != NULL);
    CHECK(trampoline_allreduce(x, y, 4, 63, TRAMPOLINE_SUM, comm) != 0);
    CHECK(trampoline_allreduce(x, y, 4, FFI_F32, 99, comm) != 0);
    CHECK_INT(fake->calls, calls);
    fixture_fail("MPI_Allreduce", 0x1005);
    int code = trampoline_allreduce(x, y, 4, FFI_F32, TRAMPOLINE_SUM, comm);
    CHECK(code > 0);
    CHECK_INT(trampoline_error_string(code, text, &length), 0);
    CHECK_INT(length, (int)strlen(text));
    CHECK(strstr(text, "MPI_Allreduce returned error code 5: ") != NULL);
    CHECK(strstr(text, "(JAX's MPI_Allreduce with 4 items of float32, op MPI_SUM, on rank 2 of 4 of") != NULL);
    fixture_fail(NULL, 0);
}

static void operations_with_further_attributes_are_refused(void) {
    mpixla_call call = {.name = "bcast", .comm = FIXTURE_RANK2, .dtype = FFI_F32, .send = x, .recv = y};
    CHECK_INT(mpixla_call_make(&call), -1);
    CHECK_IN(mpixla_last_error(), "an operation 'bcast' cannot be called outside of XLA");
    call.name = "barrier";
    CHECK_INT(mpixla_call_make(&call), 0);
    CHECK_CALL("MPI_Barrier");
    call.comm = 99;
    CHECK_INT(mpixla_call_make(&call), -1);
    CHECK_IN(mpixla_last_error(), "communicator number 99 is not registered");
}

static void messages_that_were_not_started_are_not_waited_for(void) {
    trampoline_handle request = 77;
    CHECK(trampoline_wait(&request, NULL) != 0);
    CHECK_IN(error_text(), "XLA waits for a message that it has not started");
    CHECK(trampoline_isend(x, 4, FFI_U8, FIXTURE_SIZE, 0, comm, &request) != 0);
    CHECK_IN(error_text(), "dest = 4, but the ranks of communicator");
}

/* To where people read, as all that ends a process. */
static void unknown_calls_end_the_process(void) {
    int ends[2];
    char text[TRAMPOLINE_TEXT_BYTES] = "";
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        mpixla_output_set(ends[1]);
        trampoline_refuse("MPIABI_Abort");
    }
    close(ends[1]);
    CHECK_INT(process_end(child), -SIGABRT);
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    CHECK(strstr(text, "mpixla: XLA has called MPIABI_Abort, which mpixla does not pass on to MPI.") == text);
    close(ends[0]);
}

int main(int argc, char **argv) {
    int provided = 0, flag = 0;
    CHECK(trampoline_init_thread(NULL, NULL, 1, &provided) != 0);
    CHECK(strstr(error_text(), "before mpixla has been imported") != NULL);
    fixture_start(argc, argv);
    CHECK_INT(trampoline_init_thread(NULL, NULL, 1, &provided), 0);
    CHECK_INT(provided, 1);
    CHECK_INT(trampoline_is_thread_main(&flag), 0);
    CHECK_INT(flag, 1);
    offers_are_taken_by_place();
    communicators_say_what_they_are();
    calls_go_to_mpi();
    failures_are_sentences();
    operations_with_further_attributes_are_refused();
    messages_that_were_not_started_are_not_waited_for();
    unknown_calls_end_the_process();
    CHECK_INT(trampoline_comm_free(&comm), 0);
    CHECK_INT((int64_t)comm, 0);
    CHECK_INT(trampoline_finalize(), 0);
    return check_failures();
}
