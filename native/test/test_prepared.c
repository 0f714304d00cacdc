#include <string.h>

#include "call.h"
#include "call/prepared.h"
#include "check.h"
#include "fixture.h"
#include "handler.h"

/* XLA's part: one executable with one call, whose state it keeps. */
static struct {
    void (*deleter)(void *state);
    void *state;
    int refuses;           /* takes no state */
    int errors, destroyed; /* which it has made, and taken back */
} xla;

static ffi_error *xla_error(void) {
    static char error;
    xla.errors++;
    return (ffi_error *)(void *)&error;
}

static void xla_error_destroy(ffi_error_destroy_args *args) {
    xla.destroyed += args->error != NULL;
}

static ffi_error *xla_type_register(ffi_type_register_args *args) {
    *args->type_id = 77;
    xla.deleter = args->type_info->deleter;
    return NULL;
}

static ffi_error *xla_state_set(ffi_state_args *args) {
    CHECK_INT(*args->type_id, 77);
    CHECK_INT(args->stage, FFI_STAGE_INSTANTIATE);
    if (xla.refuses) return xla_error();
    xla.state = args->state;
    return NULL;
}

static ffi_error *xla_state_get(ffi_state_args *args) {
    if (!xla.state) return xla_error();
    args->state = xla.state;
    return NULL;
}

static call c;

/* Drops the executable before, and compiles the call `c`. */
static void call_compile(void) {
    const ffi_buffers nothing = {.struct_size = sizeof nothing};
    if (xla.state) xla.deleter(xla.state);
    xla.state = NULL;
    c.api.error_destroy = xla_error_destroy;
    c.api.type_register = xla_type_register;
    c.api.state_set = xla_state_set;
    c.api.state_get = xla_state_get;
    ffi_call_frame frame = c.frame; /* without buffers, which no run has given yet */
    frame.stage = FFI_STAGE_INSTANTIATE;
    frame.args = frame.rets = nothing;
    CHECK(((ffi_handler *)mpixla_instantiate_handler())(&frame) == NULL);
}

/* The buffers of another run: each lies elsewhere. */
static void buffers_move(void) {
    static _Alignas(16) char elsewhere[2][CALL_SLOTS][CALL_BYTES];
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < CALL_SLOTS; i++)
            if (c.sides[side].buffers[i].data) c.sides[side].buffers[i].data = elsewhere[side][i];
}

static void a_later_run_has_its_own_buffers(void) {
    size_t rows;
    const mpixla_op_row *table = mpixla_op_table(&rows, NULL);
    for (size_t i = 0; i < rows; i++) {
        for (int rank = FIXTURE_RANK0; rank <= FIXTURE_RANK2; rank++) {
            char first[sizeof fake->call];
            if (table[i].request) continue;
            call_make(&c, table[i].name, rank, 0);
            call_compile();
            fake->arrived = 4 * CALL_COUNT;
            CHECK_STR(call_run(&c), "");
            snprintf(first, sizeof first, "%s", fake->call);
            const void *send = fake->send, *recv = fake->recv;
            buffers_move();
            fake->send = fake->recv = NULL;
            CHECK_STR(call_run(&c), "");
            CHECK_STR(fake->call, first);
            CHECK((fake->send == NULL) == (send == NULL) && (fake->recv == NULL) == (recv == NULL));
            const int is_copied = strcmp(table[i].name, "assert_replicated") == 0 || strstr(table[i].name, "halo");
            CHECK(is_copied || !send || fake->send != send);
            CHECK(is_copied || !recv || fake->recv != recv);
        }
    }
}

/* XLA gives each run the attributes of the first: the library does not look at them again. */
static void a_later_run_reads_no_attributes(void) {
    call_make(&c, "bcast", FIXTURE_RANK0, 0);
    call_compile();
    CHECK_STR(call_run(&c), "");
    c.frame.attrs.size = 0;
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Bcast 3 t11 root 0 c2");
}

static void items_of_attributes_are_copied(void) {
    call_make(&c, "gatherv", FIXTURE_RANK0, 0);
    call_compile();
    CHECK_STR(call_run(&c), "");
    char first[sizeof fake->call];
    snprintf(first, sizeof first, "%s", fake->call);
    memset(c.attributes.elements, -1, sizeof c.attributes.elements);
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, first);
}

static void a_refused_call_is_read_again(void) {
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "comm", 9);
    call_compile();
    CHECK_IN(call_run(&c), "communicator");
    call_attribute_set(&c, "comm", FIXTURE_RANK0); /* which is there now */
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Allreduce 3 t11 op 100 c2");
}

static void a_freed_reduction_is_refused(void) {
    static mpixla_handle kept; /* mpi4py's variable */
    kept = fake->handle(201);
    const int64_t reduction = mpixla_reduction_register(kept);
    CHECK_INT(mpixla_reduction_keep(reduction, &kept), 1);
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "op", reduction);
    call_compile();
    for (int i = 0; i < 2; i++) CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Allreduce 3 t11 op 201 c2");
    kept = 0;
    CHECK_IN(call_run(&c), "freed");
}

static void each_run_has_the_line_of_its_thread(void) {
    CHECK_INT(mpixla_site_name(21, "first.py:1"), 0);
    CHECK_INT(mpixla_site_name(22, "second.py:2"), 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_site_set(&c, MPIXLA_SITE_OF_THREAD, NULL);
    call_compile();
    mpixla_site_call(21);
    CHECK_STR(call_run(&c), "");
    mpixla_site_call(22);
    fixture_fail("MPI_Send", 5);
    CHECK_IN(call_run(&c), "second.py:2");
    fixture_fail(NULL, 0);
}

static void without_a_state_each_run_reads_the_call(void) {
    call_make(&c, "bcast", FIXTURE_RANK0, 0);
    xla.refuses = 1;
    call_compile();
    xla.refuses = 0;
    CHECK(xla.errors > 0);
    for (int i = 0; i < 2; i++) CHECK_STR(call_run(&c), "");
    call_attribute_set(&c, "root", 1);
    CHECK_IN(call_run(&c), "MPI_Bcast"); /* off the root it takes other buffers */
    CHECK_INT(xla.errors, xla.destroyed);
}

static void a_freed_communicator_is_refused(void) {
    const int number = fake->comm_new(0, FIXTURE_SIZE, 0);
    call_make(&c, "allreduce", mpixla_comm_register(fake->handle(number), "short-lived"), 0);
    call_compile();
    for (int i = 0; i < 2; i++) CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->comm_free(number), 0);
    CHECK_IN(call_run(&c), "communicator 'short-lived' was freed after this program was traced");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    a_later_run_has_its_own_buffers();
    a_later_run_reads_no_attributes();
    items_of_attributes_are_copied();
    a_refused_call_is_read_again();
    a_freed_reduction_is_refused();
    each_run_has_the_line_of_its_thread();
    without_a_state_each_run_reads_the_call();
    a_freed_communicator_is_refused();
    if (xla.state) xla.deleter(xla.state);
    return check_failures();
}
