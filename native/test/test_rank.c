/* Ranks as values of a program. */
#include <string.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "helpers/helper.h"

static call c;

/* The frame of another call, which has the communicator alone. */
static void make(int64_t comm, size_t size, int64_t direction, int64_t disp) {
    call_make(&c, "barrier", comm, 0);
    c.handler = mpixla_rank_host;
    call_attribute_insert(&c, 1, "shift", 0);
    c.attributes.types[1] = FFI_ATTRIBUTE_ARRAY;
    c.attributes.value_pointers[1] = &c.attributes.arrays[0];
    call_array_set(&c, 0, size, (const int64_t[]){direction, disp, 0});
    call_insert(&c, CALL_RESULTS, 0, FFI_S32, 1, c.recv);
    c.sides[CALL_RESULTS].buffers[0].rank = 0;
}

static int given(void) {
    int32_t rank;
    memcpy(&rank, c.recv, sizeof rank);
    return rank;
}

static void gives_ranks(void) {
    static const struct {
        int64_t comm, disp;
        size_t size;
        int rank;
    } rows[] = {{FIXTURE_RANK0, 0, 0, 0},
                {FIXTURE_RANK2, 0, 0, 2},
                {FIXTURE_RANK2, 1, 2, 3},
                {FIXTURE_RANK2, 2, 2, 0},
                {FIXTURE_SELF, 5, 2, 0}};
    int before = fake->calls;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        make(rows[i].comm, rows[i].size, 0, rows[i].disp);
        CHECK_STR(call_run(&c), "");
        CHECK_INT(given(), rows[i].rank);
    }
    CHECK_INT(fake->calls, before); /* MPI is not asked */
}

static void refuses(void) {
    make(FIXTURE_RANK0, 2, 1, 1);
    CHECK_IN(call_run(&c), "a shift has direction 1, but communicator 'rank0' is not Cartesian");
    make(FIXTURE_RANK0, 3, 0, 0);
    CHECK_IN(call_run(&c), "'shift' has pairs of them, or none");
    make(999, 0, 0, 0);
    CHECK_IN(call_run(&c), "communicator number 999 is not registered");
    make(FIXTURE_RANK0, 0, 0, 0);
    call_attribute_remove(&c, 1);
    CHECK_STR(call_run(&c), "a rank takes the attributes 'comm', a number, and 'shift', an array");
    make(FIXTURE_RANK0, 0, 0, 0);
    c.sides[CALL_RESULTS].buffers[0].rank = 1;
    CHECK_STR(call_run(&c), "a rank is given as one int32 without axes");
    make(FIXTURE_RANK0, 0, 0, 0);
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_S64);
    CHECK_STR(call_run(&c), "a rank is given as one int32 without axes");
    make(FIXTURE_RANK0, 0, 0, 0);
    call_remove(&c, CALL_RESULTS, 0);
    CHECK_STR(call_run(&c), "a rank is given as one int32 without axes");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    gives_ranks();
    refuses();
    return check_failures();
}
