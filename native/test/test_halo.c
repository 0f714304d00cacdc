/* The halo operations, with one array and with several: what they send where, and what of the arrays they touch. The
 * fake MPI overwrites as many bytes of a receive buffer as the test says, with 0x7f. */
#include "call.h"
#include "check.h"
#include "fixture.h"

enum { ROWS = 5, COLUMNS = 3 };

static call c;
static int32_t first[ROWS][COLUMNS], second[ROWS][COLUMNS], result[ROWS][COLUMNS];
static int64_t dims[2] = {ROWS, COLUMNS};

static void fill(int32_t array[ROWS][COLUMNS], int start) {
    for (int i = 0; i < ROWS * COLUMNS; i++) (&array[0][0])[i] = start + i;
}

/* A call that is right: in place on one array of int32 with the two dimensions as axes, in a grid whose first dimension
 * has neighbours 1 below and 3 above, and whose second has this rank alone. */
static void make(const char *op) {
    call_make(&c, op, FIXTURE_RANK0, 0);
    for (int side = 0; side < 2; side++) {
        call_dtype_set(&c, side, 0, FFI_S32);
        c.sides[side].buffers[0].data = first;
        c.sides[side].buffers[0].rank = 2;
        c.sides[side].buffers[0].dims = dims;
    }
    static const int64_t axes[] = {0, 1}, low[] = {1, 0}, high[] = {3, 0}, width[] = {1, 1};
    call_grid_set(FIXTURE_RANK0, 2, low, high);
    call_list_set(&c, "axes", axes, 2);
    call_list_set(&c, "width", width, 2);
    fill(first, 0);
    fill(second, 100);
    fake->arrived = COLUMNS;
    fake->arrived_bytes = COLUMNS * sizeof(int32_t);
}

static void exchange_fills_ghosts_where_they_lie(void) {
    int before = fake->calls;
    make("halo_exchange");
    CHECK_STR(call_run(&c), "");
    /* Two messages to the neighbours; none to itself. */
    CHECK_INT(fake->calls, before + 2);
    CHECK(strncmp(fake->call, "MPI_Sendrecv 3 t4 -> 1 tag 1, 3 t4 <- 3 tag 1 c", 47) == 0);
    CHECK(strcmp(fake->call + 46, "c2") != 0); /* a communicator of its own */
    CHECK(fake->send == first[1]);
    CHECK(fake->recv == first[ROWS - 1]);
    for (int y = 0; y < ROWS; y++) {
        int ghost = y == 0 || y == ROWS - 1;
        CHECK_INT(first[y][1], ghost ? 0x7f7f7f7f : COLUMNS * y + 1);
        CHECK_INT(first[y][0], first[y][1]);
        CHECK_INT(first[y][2], first[y][1]);
    }
}

static void transpose_adds_and_clears(void) {
    make("halo_transpose");
    CHECK_STR(call_run(&c), "");
    CHECK(strncmp(fake->call, "MPI_Sendrecv 3 t4 -> 3 tag 1, 3 t4 <- 1 tag 1 c", 47) == 0);
    CHECK(fake->send == first[ROWS - 1]);
    for (int y = 0; y < ROWS; y++) {
        uint32_t sum = 3U * (uint32_t)(COLUMNS * y + 1); /* of the row, whose ghosts are its own */
        if (y == 1 || y == ROWS - 2) sum += 0x7f7f7f7fU;
        int ghost = y == 0 || y == ROWS - 1;
        CHECK_INT(first[y][0], y == 1 || y == ROWS - 2 ? 0x7f7f7f7f : 0); /* the fake fills ghosts as well */
        CHECK_INT((uint32_t)first[y][1], ghost ? 0 : sum);
    }
}

static void walls_stay(void) {
    static const int64_t wall[] = {MPIXLA_PROC_NULL, MPIXLA_PROC_NULL};
    static const char *const ops[] = {"halo_exchange", "halo_transpose"};
    for (int i = 0; i < 2; i++) {
        make(ops[i]);
        call_grid_set(FIXTURE_RANK0, 2, wall, wall);
        CHECK_STR(call_run(&c), "");
        for (int j = 0; j < ROWS * COLUMNS; j++) CHECK_INT((&first[0][0])[j], j);
    }
}

/* All arrays are one message in each direction, packed, of bytes if their types differ. */
static void several_are_one_message(void) {
    static const int64_t axes[] = {0, 1, 0, 1}, width[] = {1, 0};
    for (int mixed = 0; mixed < 2; mixed++) {
        make("halo_exchange");
        for (int side = 0; side < 2; side++) {
            call_insert(&c, side, 1, FFI_TOKEN, 0, NULL);
            call_insert(&c, side, 2, mixed ? FFI_F32 : FFI_S32, ROWS, second);
            c.sides[side].buffers[2].rank = 2;
            c.sides[side].buffers[2].dims = dims;
        }
        call_list_set(&c, "axes", axes, 4);
        call_list_set(&c, "width", width, 2);
        fake->arrived = (mixed ? 4 : 1) * 2 * COLUMNS;
        fake->arrived_bytes = 2 * COLUMNS * sizeof(int32_t);
        int before = fake->calls;
        CHECK_STR(call_run(&c), "");
        CHECK_INT(fake->calls, before + 2);
        CHECK_IN(fake->call,
                 mixed ? "MPI_Sendrecv 24 t6 -> 1 tag 1, 24 t6 <- 3 tag 1" : "MPI_Sendrecv 6 t4 -> 1 tag 1");
        const int32_t *sent = fake->send;
        CHECK_INT(sent[1], 4);
        CHECK_INT(sent[COLUMNS + 1], 104);
        for (int y = 0; y < ROWS; y++) {
            int ghost = y == 0 || y == ROWS - 1;
            for (int x = 0; x < COLUMNS; x++) {
                CHECK_INT(first[y][x], ghost ? 0x7f7f7f7f : COLUMNS * y + x);
                CHECK_INT(second[y][x], ghost ? 0x7f7f7f7f : 100 + COLUMNS * y + x);
            }
        }
    }
}

static void copies_what_is_elsewhere(void) {
    make("halo_exchange");
    c.sides[CALL_RESULTS].buffers[0].data = result;
    CHECK_STR(call_run(&c), "");
    for (int i = 0; i < ROWS * COLUMNS; i++) CHECK_INT((&first[0][0])[i], i);
    CHECK_INT(result[0][1], 0x7f7f7f7f);
    CHECK_INT(result[2][1], first[2][1]);
    CHECK_INT(result[2][0], first[2][1]);
}

static void uses_large_counts(void) {
    make("halo_exchange");
    int64_t before = mpixla_count_limit_set(COLUMNS - 1);
    CHECK_STR(call_run(&c), "");
    CHECK_IN(fake->call, fake->has_large ? "MPI_Sendrecv_c 3 t4" : "MPI_Sendrecv 1 t301"); /* a type of three items */
    mpixla_count_limit_set(before);
}

static void refuses(void) {
    static const int64_t one[] = {1}, wide[] = {2, 1}, negative[] = {-1, 1}, far[] = {0, 2}, under[] = {-1, 1};
    static const struct {
        const char *attribute;
        const int64_t *items;
        int64_t size;
        const char *sentence;
    } rows[] = {
        {"axes", one, 1,
         "a halo exchange of 1 arrays has 2 widths and 1 axes, but communicator 'rank0' has 2 dimensions"},
        {"width", one, 1, "has 1 widths and 2 axes, but communicator 'rank0' has 2 dimensions"},
        {"width", wide, 2,
         "a halo exchange of width 2 along axis 0 got an array without that axis, or with fewer than"},
        {"width", negative, 2, "of width -1 along axis 0"},
        {"axes", far, 2, "along axis 2 got an array without that axis, or with fewer than"},
        {"axes", under, 2, "along axis -1 got an array without that axis, or with fewer than"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int before = fake->calls;
        make("halo_exchange");
        call_list_set(&c, rows[i].attribute, rows[i].items, rows[i].size);
        CHECK_IN(call_run(&c), rows[i].sentence);
        CHECK_INT(c.code, FFI_FAILED_PRECONDITION);
        CHECK_INT(fake->calls, before);
        CHECK_INT(mpixla_calls_in_flight(), 0);
    }
    make("halo_exchange");
    fake->arrived = 2;
    CHECK_STR(
        call_run(&c),
        "a halo exchange on rank 0 of communicator 'rank0' got 2 items from rank 1, but expected 3; neighbours must "
        "pass arrays of the same types that differ in size only along the axis between them");
    make("halo_transpose");
    for (int side = 0; side < 2; side++) call_dtype_set(&c, side, 0, FFI_PRED);
    CHECK_IN(call_run(&c), "the transpose of a halo exchange cannot add items of type bool");
}

static void tells_of_errors_of_mpi(void) {
    static const char *const functions[] = {"MPI_Sendrecv", "MPI_Get_elements_x"};
    for (int i = 0; i < 2; i++) {
        make("halo_exchange");
        fixture_fail(functions[i], 6);
        CHECK_IN(call_run(&c), "r0 | MPI_Sendrecv returned error code 6: ");
        CHECK_IN(c.message, "(MPI_Sendrecv of the halos of blocks with 15 items of int32, on rank 0 of 4 of");
        fixture_fail(NULL, 0);
        CHECK_STR(call_run(&c), "");
    }
    int number = fake->comm_new(0, 4, 0);
    int64_t comm = mpixla_comm_register(fake->handle(number), "new");
    make("halo_exchange");
    call_attribute_set(&c, "comm", comm);
    CHECK_STR(call_run(&c), "halo_exchange needs a communicator with a Cartesian topology, but 'new' has none");
    call_grid_set(comm, 2, (const int64_t[]){1, 0}, (const int64_t[]){3, 0});
    fixture_fail("MPI_Comm_dup", 7);
    CHECK_IN(call_run(&c), "returned error code 7: ");
    fixture_fail(NULL, 0);
    CHECK_STR(call_run(&c), "");
}

static void pairs_must_agree(void) {
    make("halo_exchange");
    call_insert(&c, CALL_OPERANDS, 1, FFI_S32, 3, second);
    CHECK_STR(call_run(&c), "MPI_Sendrecv takes at least one operand, and as many operands as results");
    make("halo_exchange");
    call_remove(&c, CALL_OPERANDS, 0);
    call_remove(&c, CALL_RESULTS, 0);
    CHECK_STR(call_run(&c), "MPI_Sendrecv takes at least one operand, and as many operands as results");
    static int64_t turned[2] = {COLUMNS, ROWS};
    make("halo_exchange");
    c.sides[CALL_RESULTS].buffers[0].dims = turned;
    CHECK_STR(call_run(&c), "operand 0 of MPI_Sendrecv differs from its result in type or shape");
    make("halo_exchange");
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_F32);
    CHECK_STR(call_run(&c), "operand 0 of MPI_Sendrecv differs from its result in type or shape");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    exchange_fills_ghosts_where_they_lie();
    transpose_adds_and_clears();
    walls_stay();
    several_are_one_message();
    copies_what_is_elsewhere();
    uses_large_counts();
    refuses();
    tells_of_errors_of_mpi();
    pairs_must_agree();
    return check_failures();
}
