/* Many arrays as one, and one as many. */
#include "call.h"
#include "check.h"
#include "fixture.h"

static call c;

/* A call without buffers. */
static void make(const char *name) {
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_helper_handler(name);
}

static float one[8], a[2], b[4], d[2];
static int64_t lines[] = {2, 4};

/* One array of two lines of four items, and three of one, two and one; or all in one line. */
static void add_one(int side, int is_lines) {
    call_insert(&c, side, 0, FFI_F32, 8, one);
    if (!is_lines) return;
    c.sides[side].buffers[0].dims = lines;
    c.sides[side].buffers[0].rank = 2;
}

static void add_many(int side) {
    call_insert(&c, side, 0, FFI_F32, 2, a);
    call_insert(&c, side, 1, FFI_F32, 0, NULL);
    call_insert(&c, side, 2, FFI_F32, 4, b);
    call_insert(&c, side, 3, FFI_F32, 2, d);
}

static void packs_and_unpacks(void) {
    static const float in_lines[] = {1, 3, 4, 7, 2, 5, 6, 8};
    for (int is_lines = 0; is_lines < 2; is_lines++) {
        for (int i = 0; i < 4; i++) b[i] = (float)(i + 3);
        a[0] = 1, a[1] = 2, d[0] = 7, d[1] = 8;
        make("pack");
        add_many(CALL_OPERANDS);
        add_one(CALL_RESULTS, is_lines);
        CHECK_STR(call_run(&c), "");
        for (int i = 0; i < 8; i++) CHECK(one[i] == (is_lines ? in_lines[i] : (float)(i + 1)));
        memset(a, 0, sizeof a);
        memset(b, 0, sizeof b);
        memset(d, 0, sizeof d);
        make("unpack");
        add_one(CALL_OPERANDS, is_lines);
        add_many(CALL_RESULTS);
        CHECK_STR(call_run(&c), "");
        CHECK(a[0] == 1 && a[1] == 2 && b[0] == 3 && b[3] == 6 && d[0] == 7 && d[1] == 8);
    }
}

static void packs_nothing(void) {
    make("pack");
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 0, NULL);
    CHECK_STR(call_run(&c), "");
}

static void refuses(void) {
    make("pack");
    add_many(CALL_OPERANDS);
    CHECK_STR(call_run(&c), "arrays are packed into 1 array, but there are 0");
    CHECK_INT(c.code, FFI_ABORTED);
    add_one(CALL_RESULTS, 0);
    call_count_set(&c, CALL_RESULTS, 0, 7);
    CHECK_STR(call_run(&c), "arrays of 32 bytes are not packed into 28 bytes");
    call_count_set(&c, CALL_RESULTS, 0, -1);
    CHECK_STR(call_run(&c), "array 0 to pack has no valid shape");
    int64_t *dims = c.sides[CALL_RESULTS].buffers[0].dims;
    c.sides[CALL_RESULTS].buffers[0].dims = NULL;
    CHECK_STR(call_run(&c), "array 0 to pack has no valid shape");
    c.sides[CALL_RESULTS].buffers[0].dims = dims;
    c.sides[CALL_RESULTS].buffers[0].rank = -1;
    CHECK_STR(call_run(&c), "array 0 to pack has no valid shape");
    c.sides[CALL_RESULTS].buffers[0].rank = 0;
    CHECK_STR(call_run(&c), "arrays are packed along the last axis, but the packed one has no axes");
    make("pack");
    add_many(CALL_OPERANDS);
    add_one(CALL_RESULTS, 1);
    call_count_set(&c, CALL_OPERANDS, 0, 1);
    call_dtype_set(&c, CALL_OPERANDS, 0, FFI_U8);
    CHECK_STR(call_run(&c), "array 0 to pack does not have 2 equal lines");
    call_dtype_set(&c, CALL_OPERANDS, 0, 63);
    CHECK_IN(call_run(&c), "element type number 63");
    make("unpack");
    add_one(CALL_OPERANDS, 0);
    add_many(CALL_RESULTS);
    c.sides[CALL_RESULTS].buffers[2].data = NULL;
    CHECK_STR(call_run(&c), "array 2 to pack is a null pointer");
    c.sides[CALL_RESULTS].types[2] = 9;
    CHECK_STR(call_run(&c), "array 2 to pack is not a buffer");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    packs_and_unpacks();
    packs_nothing();
    refuses();
    return check_failures();
}
