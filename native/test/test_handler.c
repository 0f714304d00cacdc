#include <limits.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "handler.h"

static call c;

/* Each operation, on the root and off it: MPI's function and all its arguments. Handles: t11 is MPI_FLOAT, op 100
 * MPI_SUM, c2 a communicator in which this process is rank 0 of 4, c3 one in which it is rank 2. */
static void calls_mpi(void) {
    static const struct {
        const char *op;
        int64_t comm, root;
        const char *call;
        int send, recv; /* whether MPI gets these buffers */
    } rows[] = {
        {"allgather", FIXTURE_RANK0, 0, "MPI_Allgather 3 t11 to 3 t11 c2", 1, 1},
        {"allreduce", FIXTURE_RANK2, 0, "MPI_Allreduce 3 t11 op 100 c3", 1, 1},
        {"alltoall", FIXTURE_RANK0, 0, "MPI_Alltoall 3 t11 to 3 t11 c2", 1, 1},
        {"barrier", FIXTURE_RANK2, 0, "MPI_Barrier c3", 0, 0},
        {"bcast", FIXTURE_RANK0, 0, "MPI_Bcast 3 t11 root 0 c2", 1, 0},
        {"bcast", FIXTURE_RANK2, 0, "MPI_Bcast 3 t11 root 0 c3", 0, 1},
        {"bcast", FIXTURE_RANK2, 2, "MPI_Bcast 3 t11 root 2 c3", 1, 0},
        {"gather", FIXTURE_RANK0, 0, "MPI_Gather 3 t11 to 3 t11 root 0 c2", 1, 1},
        {"gather", FIXTURE_RANK0, 3, "MPI_Gather 3 t11 to 3 t11 root 3 c2", 1, 0},
        {"recv", FIXTURE_RANK0, 0, "MPI_Recv 12 t6 <- 2 tag 8 c2", 0, 1},
        {"reduce", FIXTURE_RANK2, 2, "MPI_Reduce 3 t11 op 100 root 2 c3", 1, 1},
        {"reduce", FIXTURE_RANK2, 1, "MPI_Reduce 3 t11 op 100 root 1 c3", 1, 0},
        {"scan", FIXTURE_RANK0, 0, "MPI_Scan 3 t11 op 100 c2", 1, 1},
        {"scatter", FIXTURE_RANK2, 2, "MPI_Scatter 3 t11 to 3 t11 root 2 c3", 1, 1},
        {"scatter", FIXTURE_RANK2, 0, "MPI_Scatter 3 t11 to 3 t11 root 0 c3", 0, 1},
        {"send", FIXTURE_RANK0, 0, "MPI_Send 3 t11 -> 1 tag 7 c2", 1, 0},
        {"sendrecv", FIXTURE_RANK0, 0, "MPI_Sendrecv 3 t11 -> 1 tag 7, 12 t6 <- 2 tag 8 c2", 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int before = fake->calls;
        fake->arrived = 4 * CALL_COUNT;
        call_make(&c, rows[i].op, rows[i].comm, rows[i].root);
        CHECK_STR(call_run(&c), "");
        CHECK_INT(fake->calls, before + 1);
        CHECK_STR(fake->call, rows[i].call);
        if (strcmp(rows[i].op, "bcast") == 0) { /* MPI has one buffer for both */
            CHECK(fake->recv == (rows[i].send ? c.send : c.recv));
            continue;
        }
        CHECK(fake->send == (rows[i].send ? c.send : NULL));
        CHECK(fake->recv == (rows[i].recv ? c.recv : NULL));
    }
}

/* The two sides of a sendrecv have counts and types of their own. */
static void passes_both_sides_of_a_sendrecv(void) {
    fake->arrived = 16;
    call_make(&c, "sendrecv", FIXTURE_RANK0, 0);
    call_dtype_set(&c, CALL_OPERANDS, 0, FFI_S32);
    call_count_set(&c, CALL_OPERANDS, 0, 5);
    for (int side = 0; side < 2; side++) {
        call_dtype_set(&c, side, side == CALL_OPERANDS, FFI_F64);
        call_count_set(&c, side, side == CALL_OPERANDS, 2);
    }
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Sendrecv 5 t4 -> 1 tag 7, 16 t6 <- 2 tag 8 c2");
}

static void passes_special_values(void) {
    fake->arrived = 4 * CALL_COUNT;
    call_make(&c, "sendrecv", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", MPIXLA_PROC_NULL);
    call_attribute_set(&c, "source", MPIXLA_ANY_SOURCE);
    call_attribute_set(&c, "recvtag", MPIXLA_ANY_TAG);
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Sendrecv 3 t11 -> -13 tag 7, 12 t6 <- -11 tag -12 c2");
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "op", mpixla_reduction_register(fake->handle(200)));
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Allreduce 3 t11 op 200 c2");
}

static void calls_mpi_for_no_items(void) {
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_count_set(&c, CALL_OPERANDS, 0, 0);
    c.sides[CALL_OPERANDS].buffers[0].data = NULL;
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Send 0 t11 -> 1 tag 7 c2");
    fake->arrived = 0;
    fake->arrived_bytes = 0;
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    for (int side = 0; side < 2; side++) {
        call_count_set(&c, side, 0, 0);
        c.sides[side].buffers[0].data = NULL;
    }
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Recv 0 t6 <- 2 tag 8 c2");
}

/* What a front end steps through its tables by. */
static void tables_say_how_long_a_row_is(void) {
    size_t rows, size = 0;
    CHECK(mpixla_op_table(&rows, &size) != NULL);
    CHECK_INT(size, sizeof(mpixla_op_row));
    CHECK(mpixla_helper_table(&rows, &size) != NULL);
    CHECK_INT(size, sizeof(mpixla_helper_row));
    CHECK_INT(mpixla_abi_version(), MPIXLA_ABI_VERSION);
}

/* XLA asks for the version by an extension, and runs other stages than execution: neither is a call. */
static void answers_without_calling(void) {
    int before = fake->calls;
    ffi_metadata metadata = {.struct_size = sizeof metadata, .api_version = {.major_version = -1, .minor_version = -1}};
    ffi_metadata_extension extension = {.base = {.struct_size = sizeof extension, .type = FFI_EXTENSION_METADATA},
                                        .metadata = &metadata};
    size_t rows;
    const mpixla_op_row *table = mpixla_op_table(&rows, NULL);
    for (size_t i = 0; i < rows; i++) {
        call_make(&c, table[i].name, FIXTURE_RANK0, 0);
        for (c.frame.stage = 0; c.frame.stage < FFI_STAGE_EXECUTE; c.frame.stage++) CHECK_STR(call_run(&c), "");
        metadata.api_version.major_version = metadata.api_version.minor_version = -1;
        c.frame.extension_start = &extension.base;
        CHECK_STR(call_run(&c), "");
        CHECK_INT(metadata.api_version.major_version, FFI_VERSION_MAJOR);
        CHECK_INT(metadata.api_version.minor_version, FFI_VERSION_MINOR);
    }
    /* It may be behind an extension that is not for us, */
    ffi_extension other = {.struct_size = sizeof other, .type = FFI_EXTENSION_METADATA + 1, .next = &extension.base};
    metadata.api_version.major_version = -1;
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    c.frame.extension_start = &other;
    CHECK_STR(call_run(&c), "");
    CHECK_INT(metadata.api_version.major_version, FFI_VERSION_MAJOR);
    CHECK_INT(metadata.traits, 0);
    CHECK_INT(fake->calls, before);
    /* without which it is a call. */
    other.next = NULL;
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->calls, before + 1);
}

/* The handler that passes arrays on as tokens calls nothing, and an array stays in its memory. */
static void orders_without_calling(void) {
    int before = fake->calls;
    ffi_handler *order = call_helper_handler("order");
    ffi_metadata metadata = {.struct_size = sizeof metadata, .api_version = {.major_version = -1}};
    ffi_metadata_extension extension = {.base = {.struct_size = sizeof extension, .type = FFI_EXTENSION_METADATA},
                                        .metadata = &metadata};
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    c.handler = order;
    CHECK_STR(call_run(&c), "the array that a token was made of must be passed on in its own memory, but XLA moved it");
    CHECK_INT(c.code, FFI_ABORTED);
    c.sides[CALL_RESULTS].buffers[0].data = c.sides[CALL_OPERANDS].buffers[0].data;
    CHECK_STR(call_run(&c), "");
    call_insert(&c, CALL_OPERANDS, 0, FFI_TOKEN, 0, NULL);
    call_insert(&c, CALL_RESULTS, 1, FFI_TOKEN, 0, NULL);
    CHECK_STR(call_run(&c), "");
    call_remove(&c, CALL_RESULTS, 0); /* the token alone is left */
    CHECK_STR(call_run(&c), "");
    c.frame.extension_start = &extension.base;
    CHECK_STR(call_run(&c), "");
    CHECK_INT(metadata.api_version.major_version, FFI_VERSION_MAJOR);
    CHECK_INT(metadata.api_version.minor_version, FFI_VERSION_MINOR);
    CHECK_INT(fake->calls, before);
}

static void refuses_a_wrong_call(void) {
    int before = fake->calls;
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", 4);
    CHECK_STR(call_run(&c), "MPI_Send got dest = 4, but the ranks of communicator 'rank0' are 0 to 3");
    CHECK_INT(c.code, FFI_ABORTED);
    CHECK_INT(fake->calls, before);
    CHECK_INT(mpixla_calls_in_flight(), 0);
}

/* Every function of MPI that fails is an error, and the next call works. */
static void tells_of_errors_of_mpi(void) {
    size_t rows;
    const mpixla_op_row *table = mpixla_op_table(&rows, NULL);
    for (size_t i = 0; i < rows && table[i].request == MPIXLA_COMPLETES; i++) {
        char start[80];
        fake->arrives_whole = 1;
        call_make(&c, table[i].name, FIXTURE_RANK0, 0);
        fixture_fail(table[i].mpi_name, 0xabc06);
        snprintf(start, sizeof start, "r0 | %s returned error code 6: the fake MPI's text for error 703494 (%s",
                 table[i].mpi_name, table[i].mpi_name);
        CHECK(strncmp(call_run(&c), start, strlen(start)) == 0);
        CHECK_IN(c.message, start);
        CHECK_IN(c.message, "communicator 'rank0'");
        CHECK_INT(c.code, FFI_INTERNAL);
        CHECK_INT(mpixla_calls_in_flight(), 0);
        fixture_fail(NULL, 0);
        CHECK_STR(call_run(&c), "");
    }
    fake->arrives_whole = 0;
    fixture_fail("MPI_Send", 6);
    call_make(&c, "send", FIXTURE_RANK2, 0);
    CHECK_STR(call_run(&c),
              "r0 | MPI_Send returned error code 6: the fake MPI's text for error 6 (MPI_Send -> 1 with tag 7 "
              "and 3 items of float32, on rank 2 of 4 of communicator 'rank2')");
    fake->failing[1] = "MPI_Error_class";
    fake->code = 0xabc06;
    CHECK_IN(call_run(&c), "r0 | MPI_Send returned error code 703494: the fake MPI's text");
    fake->failing[1] = "MPI_Error_string";
    CHECK_IN(call_run(&c), "r0 | MPI_Send returned error code 6: unknown error (MPI_Send");
    fixture_fail("MPI_Get_elements_x", 3);
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    CHECK_IN(call_run(&c), "r0 | MPI_Recv returned error code 3: ");
    fixture_fail(NULL, 0);
}

/* The receive buffer ends as the template beyond what arrived. */
static void keeps_the_template(void) {
    static const struct {
        int64_t source, arrived, kept; /* items; kept: the first that comes from the template */
        int dtype, itemsize;
    } rows[] = {
        {2, 0, 0, FFI_F32, 4},
        {2, 1, 1, FFI_F32, 4},
        {2, 2, 2, FFI_C128, 16},
        {2, CALL_COUNT, CALL_COUNT, FFI_F32, 4},
        {2, FAKE_UNDEFINED, 0, FFI_F32, 4},
        {MPIXLA_ANY_SOURCE, 1, 1, FFI_F32, 4},
        {MPIXLA_PROC_NULL, CALL_COUNT, 0, FFI_F32, 4},
    };
    static const char *const ops[] = {"recv", "sendrecv"};
    static char status[sizeof(fake_status)];
    for (size_t i = 0; i < 4 * sizeof rows / sizeof rows[0]; i++) {
        const char *op = ops[i % 2];
        size_t row = i / 4;
        int64_t itemsize = rows[row].itemsize, bytes = CALL_COUNT * itemsize, kept = rows[row].kept * itemsize;
        fake->arrived = rows[row].arrived * (rows[row].arrived > 0 ? itemsize : 1);
        fake->arrived_bytes = (size_t)(rows[row].arrived > 0 ? rows[row].arrived * itemsize : 0);
        call_make(&c, op, FIXTURE_RANK0, 0);
        call_attribute_set(&c, "source", rows[row].source);
        /* With the user's status and with ours. */
        if (i / 2 % 2) call_attribute_set(&c, "status", mpixla_status_register(status));
        call_dtype_set(&c, CALL_OPERANDS, (int)(i % 2), rows[row].dtype);
        call_dtype_set(&c, CALL_RESULTS, 0, rows[row].dtype);
        memset(c.template_, 0x11, sizeof c.template_);
        memset(c.recv, 0, sizeof c.recv);
        CHECK_STR(call_run(&c), "");
        CHECK((fake->status == status) == (i / 2 % 2 != 0));
        for (int64_t b = 0; b < CALL_BYTES; b++) {
            CHECK_INT(c.recv[b], b >= bytes ? 0 : b < kept ? 0x7f : 0x11);
            CHECK_INT(c.template_[b], 0x11); /* what lies before the receive buffer */
        }
    }
    fake->arrived = fake->arrived_bytes = 0;
}

/* Received as bytes, where these are no whole items. */
static void refuses_part_of_an_item(void) {
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    fake->arrived = 7;
    CHECK_IN(call_run(&c), "a message of 7 bytes came, which is no whole number of items of float32");
    CHECK_INT(mpixla_calls_in_flight(), 0);
    mpixla_count_limit_set(11); /* bytes that this MPI cannot count: it counts items */
    fake->arrived = 12;
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Recv 3 t11 <- 2 tag 8 c2");
    fake->arrived = 0;
    mpixla_count_limit_set(INT_MAX);
}

/* A result in its operand's memory; a rank that sends nothing may pass the memory of its result. */
static void works_in_place(void) {
    static const char *const ops[] = {"allreduce", "reduce", "scan"};
    const void *in_place = (const void *)(intptr_t)FAKE_IN_PLACE;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        for (int limit = 1; limit <= CALL_COUNT; limit += CALL_COUNT - 1) {
            mpixla_count_limit_set(limit);
            call_make(&c, ops[i], FIXTURE_RANK0, 0);
            c.sides[CALL_OPERANDS].buffers[0].data = c.recv;
            CHECK_STR(call_run(&c), "");
            CHECK(fake->send == in_place);
            CHECK(fake->recv == c.recv + (limit == 1 && !fake->has_large ? 2 * FAKE_ITEM : 0));
        }
    mpixla_count_limit_set(INT_MAX);
    call_make(&c, "bcast", FIXTURE_RANK2, 0);
    call_insert(&c, CALL_OPERANDS, 0, FFI_F32, CALL_COUNT, c.recv);
    CHECK_STR(call_run(&c), "");
    CHECK(fake->recv == c.recv);
    call_make(&c, "bcast", FIXTURE_RANK2, 0);
    call_insert(&c, CALL_OPERANDS, 0, FFI_F32, CALL_COUNT - 1, c.recv);
    CHECK_IN(call_run(&c), "the operand of MPI_Bcast is the memory of its result, but has 8 bytes of 12");
    call_make(&c, "bcast", FIXTURE_RANK2, 0);
    call_insert(&c, CALL_OPERANDS, 0, FFI_F32, CALL_COUNT, c.send);
    CHECK_IN(call_run(&c), "MPI_Bcast was called with 1 operands on this rank, but takes 0");
}

/* Every function that has a count has a large one. Without those it is the last of two pieces, or one element of a type
 * of four items. */
static void uses_large_counts(void) {
    static const struct {
        const char *op, *call, *without;
    } rows[] = {
        {"allgather", "MPI_Allgather_c 4 t11 to 4 t11 c2", "MPI_Allgather 1 t300 to 1 t300 c2"},
        {"allreduce", "MPI_Allreduce_c 4 t11 op 100 c2", "MPI_Allreduce 1 t11 op 100 c2"},
        {"alltoall", "MPI_Alltoall_c 4 t11 to 4 t11 c2", "MPI_Alltoall 1 t300 to 1 t300 c2"},
        {"bcast", "MPI_Bcast_c 4 t11 root 0 c2", "MPI_Bcast 1 t11 root 0 c2"},
        {"gather", "MPI_Gather_c 4 t11 to 4 t11 root 0 c2", "MPI_Gather 1 t300 to 1 t300 root 0 c2"},
        {"recv", "MPI_Recv_c 4 t11 <- 2 tag 8 c2", "MPI_Recv 1 t300 <- 2 tag 8 c2"},
        {"reduce", "MPI_Reduce_c 4 t11 op 100 root 0 c2", "MPI_Reduce 1 t11 op 100 root 0 c2"},
        {"scan", "MPI_Scan_c 4 t11 op 100 c2", "MPI_Scan 1 t11 op 100 c2"},
        {"scatter", "MPI_Scatter_c 4 t11 to 4 t11 root 0 c2", "MPI_Scatter 1 t300 to 1 t300 root 0 c2"},
        {"send", "MPI_Send_c 4 t11 -> 1 tag 7 c2", "MPI_Send 1 t300 -> 1 tag 7 c2"},
        {"sendrecv", "MPI_Sendrecv_c 4 t11 -> 1 tag 7, 4 t11 <- 2 tag 8 c2",
         "MPI_Sendrecv 1 t301 -> 1 tag 7, 1 t300 <- 2 tag 8 c2"},
    };
    CHECK_INT(mpixla_count_limit_set(CALL_COUNT), INT_MAX);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, rows[i].op, FIXTURE_RANK0, 0);
        for (int side = 0; side < 2; side++)
            for (int place = 0; place < 2; place++) {
                int64_t *count = &c.sides[side].dims[place][0];
                *count = *count / CALL_COUNT * (CALL_COUNT + 1);
            }
        CHECK_STR(call_run(&c), "");
        CHECK_STR(fake->call, fake->has_large ? rows[i].call : rows[i].without);
        CHECK_INT(fake->types, 0);
    }
    CHECK_INT(mpixla_count_limit_set(INT_MAX), CALL_COUNT);
}

/* Last: communicators, and then MPI, go away. */
static void refuses_what_is_gone(void) {
    int before = fake->calls, number = fake->comm_new(0, FIXTURE_SIZE, 0);
    int64_t id = mpixla_comm_register(fake->handle(number), "gone");
    call_make(&c, "allreduce", id, 0);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->comm_free(number), 0);
    CHECK_IN(call_run(&c), "communicator 'gone' was freed after this program was traced");
    CHECK_INT(c.code, FFI_ABORTED);
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->calls, before + 2);
    fake->finalize();
    before = fake->calls;
    CHECK_STR(call_run(&c), "MPI is finalized, so communicator 'rank0' can no longer be used");
    CHECK_INT(c.code, FFI_ABORTED);
    CHECK_INT(fake->calls, before);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    calls_mpi();
    passes_both_sides_of_a_sendrecv();
    passes_special_values();
    calls_mpi_for_no_items();
    tables_say_how_long_a_row_is();
    answers_without_calling();
    orders_without_calling();
    refuses_a_wrong_call();
    tells_of_errors_of_mpi();
    works_in_place();
    keeps_the_template();
    refuses_part_of_an_item();
    uses_large_counts();
    refuses_what_is_gone();
    return check_failures();
}
