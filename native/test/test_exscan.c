/* What an exclusive scan gives on its first rank, which MPI leaves open. */
#include <string.h>

#include "call.h"
#include "check.h"
#include "fixture.h"

static call c;

static void make(int64_t comm) {
    static const float fill[4] = {2.5F, 9.F, 9.F, 9.F};
    call_make(&c, "exscan", comm, 0);
    memcpy(c.attributes.elements[ATTRIBUTE_FILL], fill, sizeof fill);
    memset(c.recv, 0x55, sizeof c.recv);
}

static int is_filled(void) {
    float items[CALL_COUNT + 1];
    memcpy(items, c.recv, sizeof items);
    for (int i = 0; i < CALL_COUNT; i++)
        if (items[i] != 2.5F) return 0;
    return c.recv[CALL_COUNT * sizeof(float)] == 0x55;
}

static void fills_the_first(void) {
    make(FIXTURE_RANK0);
    CHECK_STR(call_run(&c), "");
    CHECK(is_filled());
    make(FIXTURE_RANK2);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(c.recv[0], 0x55);
    /* From the last rank it is the last one. */
    make(FIXTURE_RANK0);
    call_attribute_set(&c, "reverse", 1);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(c.recv[0], 0x55);
}

/* Pairs are bytes, of which MPI is told fewer. */
static void fills_pairs(void) {
    static int64_t dims[2] = {2, 8};
    size_t rows;
    const mpixla_reduction_row *reductions = mpixla_reduction_table(&rows, NULL);
    int64_t op = 0;
    while (strcmp(reductions[op].name, "MPI_MAXLOC") != 0) op++;
    make(FIXTURE_RANK0);
    call_attribute_set(&c, "op", op);
    call_array_set(&c, ATTRIBUTE_FILL, 2, (const int64_t[]){7, 0});
    for (int side = 0; side < 2; side++) {
        call_dtype_set(&c, side, 0, FFI_U8);
        c.sides[side].buffers[0].rank = 2;
        c.sides[side].buffers[0].dims = dims;
    }
    CHECK_STR(call_run(&c), "");
    for (int i = 0; i < 17; i++) CHECK_INT(c.recv[i], i < 16 ? 7 : 0x55);
}

static void refuses(void) {
    int before = fake->calls;
    make(FIXTURE_RANK0);
    call_array_set(&c, ATTRIBUTE_FILL, 1, (const int64_t[]){7});
    CHECK_STR(call_run(&c), "MPI_Exscan got 1 numbers to fill its first result with, but takes 2");
    CHECK_INT(fake->calls, before);
    make(FIXTURE_RANK0);
    fixture_fail("MPI_Exscan", 4);
    CHECK_IN(call_run(&c), "r0 | MPI_Exscan returned error code 4");
    CHECK(!is_filled());
    fixture_fail(NULL, 0);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fills_the_first();
    fills_pairs();
    refuses();
    return check_failures();
}
