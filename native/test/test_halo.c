/* The halo operations, with one array and with several: what they send where, and what of the arrays they touch. The
 * fake MPI overwrites as many bytes of a receive buffer as the test says, with 0x7f, when it is waited for. */
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "scarce.h"

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
    fake->arrived_bytes = COLUMNS * sizeof(int32_t);
}

static void check_message(int place, const char *function, const void *buffer, int64_t n, int type, int peer, int tag) {
    const fake_message *m = &fake->messages[place];
    CHECK_STR(m->function, function);
    CHECK(!buffer || m->buffer == buffer);
    const int in_bytes = m->type == FFI_U8 && type != FFI_U8; /* as what is received */
    CHECK_INT(m->n, in_bytes ? 4 * n : n);
    CHECK_INT(m->type, in_bytes ? FFI_U8 : type);
    CHECK_INT(m->peer, peer);
    CHECK_INT(m->tag, tag);
    CHECK_INT(m->waited, 1);
    CHECK(m->comm != FIXTURE_RANK0 + 1); /* a communicator of its own */
}

/* Both directions at once: what this rank receives is known to MPI before it sends. Rank 3 above sends down with the
 * tag with which this rank sends down, to rank 1. */
static void exchange_fills_ghosts_where_they_lie(void) {
    make("halo_exchange");
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->posted, 4); /* to the neighbours; none to itself */
    check_message(0, "MPI_Irecv", first[0], COLUMNS, FFI_S32, 1, 1);
    check_message(1, "MPI_Irecv", first[ROWS - 1], COLUMNS, FFI_S32, 3, 0);
    check_message(2, "MPI_Isend", first[ROWS - 2], COLUMNS, FFI_S32, 3, 1);
    check_message(3, "MPI_Isend", first[1], COLUMNS, FFI_S32, 1, 0);
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
    CHECK_INT(fake->posted, 4);
    check_message(0, "MPI_Irecv", NULL, COLUMNS, FFI_S32, 3, 0);
    check_message(1, "MPI_Irecv", NULL, COLUMNS, FFI_S32, 1, 1);
    check_message(2, "MPI_Isend", first[0], COLUMNS, FFI_S32, 1, 0);
    check_message(3, "MPI_Isend", first[ROWS - 1], COLUMNS, FFI_S32, 3, 1);
    for (int y = 0; y < ROWS; y++) {
        uint32_t sum = 3U * (uint32_t)(COLUMNS * y + 1); /* of the row, whose ghosts are its own */
        if (y == 1 || y == ROWS - 2) sum += 0x7f7f7f7fU;
        int ghost = y == 0 || y == ROWS - 1;
        CHECK_INT(first[y][0], y == 1 || y == ROWS - 2 ? 0x7f7f7f7f : 0); /* the fake fills ghosts as well */
        CHECK_INT((uint32_t)first[y][1], ghost ? 0 : sum);
    }
}

/* Where both neighbours are one rank, the tags tell what goes which way. */
static void one_neighbour_on_both_sides(void) {
    static const int64_t both[] = {2, 0};
    make("halo_exchange");
    call_grid_set(FIXTURE_RANK0, 2, both, both);
    CHECK_STR(call_run(&c), "");
    check_message(0, "MPI_Irecv", first[0], COLUMNS, FFI_S32, 2, 1);
    check_message(1, "MPI_Irecv", first[ROWS - 1], COLUMNS, FFI_S32, 2, 0);
    check_message(2, "MPI_Isend", first[ROWS - 2], COLUMNS, FFI_S32, 2, 1);
    check_message(3, "MPI_Isend", first[1], COLUMNS, FFI_S32, 2, 0);
}

/* A rank at a wall has one neighbour in that dimension. */
static void half_a_dimension(void) {
    static const int64_t low[] = {MPIXLA_PROC_NULL, 0}, high[] = {3, 0};
    make("halo_exchange");
    call_grid_set(FIXTURE_RANK0, 2, low, high);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->posted, 2);
    check_message(0, "MPI_Irecv", first[ROWS - 1], COLUMNS, FFI_S32, 3, 0);
    check_message(1, "MPI_Isend", first[ROWS - 2], COLUMNS, FFI_S32, 3, 1);
    CHECK_INT(first[0][1], 1);
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
        fake->arrived_bytes = 2 * COLUMNS * sizeof(int32_t);
        CHECK_STR(call_run(&c), "");
        CHECK_INT(fake->posted, 4);
        for (int i = 0; i < 4; i++)
            check_message(i, i < 2 ? "MPI_Irecv" : "MPI_Isend", NULL, mixed ? 24 : 6, mixed ? FFI_U8 : FFI_S32,
                          i == 1 || i == 2 ? 3 : 1, i == 0 || i == 2);
        const int32_t *sent = fake->messages[3].buffer;
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
    fake->item_bytes = fixture_item_bytes;
    CHECK_STR(call_run(&c), "");
    if (fake->has_large)
        check_message(3, "MPI_Isend_c", first[1], COLUMNS, FFI_S32, 1, 0);
    else
        CHECK_IN(fake->call, "MPI_Isend 1 t30"); /* of a type of three items */
    fake->item_bytes = NULL;
    mpixla_count_limit_set(before);
}

static void refuses_what_cannot_be_added(void) {
    static const int types[] = {FFI_PRED, FFI_F16, FFI_BF16, FFI_F8E5M2};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int before = fake->calls;
        make("halo_transpose");
        for (int side = 0; side < 2; side++) call_dtype_set(&c, side, 0, types[i]);
        CHECK_IN(call_run(&c), "the transpose of a halo exchange cannot add items of type ");
        CHECK_INT(fake->calls, before); /* no neighbour gets a message of a call that is not made */
    }
}

/* Slots are those of the grid; test_exchange.c has the rest of what messages may come to. */
static void tells_which_message_failed(void) {
    static const struct {
        const char *function;
        int spared;
        const char *where;
    } rows[] = {{"MPI_Irecv", 1, ", in source slot 1 <- 3 with tag 0 and 3 items)"},
                {"MPI_Isend", 0, ", in destination slot 1 -> 3 with tag 1 and 3 items)"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        make("halo_exchange");
        fixture_fail(rows[i].function, 6);
        fake->spared = rows[i].spared;
        CHECK_IN(
            call_run(&c),
            "(MPI_Isend of the halos of blocks with 15 items of int32, on rank 0 of 4 of communicator 'rank0', in ");
        CHECK_IN(c.message, rows[i].where);
        fixture_fail(NULL, 0);
    }
    make("halo_exchange");
    fake->missing = 4;
    CHECK_IN(call_run(&c),
             "r0 | a message of 8 bytes came from rank 1, but source slot 0 was to receive 12: neighbours must pass "
             "arrays of the same types that differ in size only along the axis between them (MPI_Isend of the halos");
    fake->missing = 0;
    CHECK_STR(call_run(&c), "");
}

static void pairs_must_agree(void) {
    make("halo_exchange");
    call_insert(&c, CALL_OPERANDS, 1, FFI_S32, 3, second);
    CHECK_STR(call_run(&c), "MPI_Isend takes at least one operand, and as many operands as results");
    make("halo_exchange");
    call_remove(&c, CALL_OPERANDS, 0);
    call_remove(&c, CALL_RESULTS, 0);
    CHECK_STR(call_run(&c), "MPI_Isend takes at least one operand, and as many operands as results");
    static int64_t turned[2] = {COLUMNS, ROWS};
    make("halo_exchange");
    c.sides[CALL_RESULTS].buffers[0].dims = turned;
    CHECK_STR(call_run(&c), "operand 0 of MPI_Isend differs from its result in type or shape");
    make("halo_exchange");
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_F32);
    CHECK_STR(call_run(&c), "operand 0 of MPI_Isend differs from its result in type or shape");
}

/* Without memory for its lines a rank cannot make its part, for which its neighbours wait. */

/* The array is made up: its lines along the second axis, of which there are very many, are never reached. */
static void make_huge(int64_t comm) {
    static int64_t huge[2] = {INT64_C(1) << 52, COLUMNS};
    static const int64_t axes[] = {1, 0}, width[] = {1, 0}, low[] = {1, 0}, high[] = {0, 0};
    make("halo_exchange");
    call_attribute_set(&c, "comm", comm);
    call_grid_set(comm, 2, low, high);
    call_list_set(&c, "axes", axes, 2);
    call_list_set(&c, "width", width, 2);
    for (int side = 0; side < 2; side++) c.sides[side].buffers[0].dims = huge;
}

static void run_in_a_child(void) {
    (void)call_run(&c);
}

static void ends_the_job_without_memory(void) {
    make_huge(FIXTURE_RANK0);
    const scarce_end end = scarce_run(run_in_a_child);
    CHECK_INT(end.status, 1);
    CHECK_IN(end.told, "mpixla: r0 | there are no 72057594037927936 bytes of memory for a call");
    CHECK_IN(end.told, "communicator 'rank0' wait for this one");
    /* Alone it is an error. */
    make_huge(FIXTURE_SELF);
    CHECK_IN(call_run(&c), "there are no 72057594037927936 bytes of memory for a call");
    CHECK_INT(c.code, FFI_ABORTED);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    exchange_fills_ghosts_where_they_lie();
    transpose_adds_and_clears();
    one_neighbour_on_both_sides();
    half_a_dimension();
    walls_stay();
    several_are_one_message();
    copies_what_is_elsewhere();
    uses_large_counts();
    refuses_what_cannot_be_added();
    tells_which_message_failed();
    pairs_must_agree();
    ends_the_job_without_memory();
    return check_failures();
}
