/* What a call between neighbours says of its messages: whatever does not go together is refused when the call is read,
 * before anybody looks at it, and no sum or product overflows on the way (which UBSan sees).
 */
#include "call.h"
#include "check.h"
#include "fixture.h"

enum { ROWS = 5, COLUMNS = 3 };

static call c;
static frame f;

/* As call_make has it: 1 item to rank 1 and 2 to rank 2, of 3; and 2 from rank 2 and 1 from rank 1. */
static void exchanges(void) {
    static const struct {
        const char *list;
        int64_t items[3];
        size_t size;
        const char *sentence;
    } rows[] = {
        {"sendcounts", {1}, 1, "an exchange has 1 counts for its destinations, but rank 0 of communicator 'rank0' has"},
        {"recvcounts",
         {1, 1, 1},
         3,
         "an exchange has 3 counts for its sources, but rank 0 of communicator 'rank0' has"},
        {"sendoffsets", {0}, 1, "an exchange has 1 offsets for its destinations, but rank 0 of"},
        {"sendcounts", {1, 3}, 2, "destination 1 of an exchange has 3 rows from row 1 on, but the buffer has 3"},
        {"sendcounts", {-1, 1}, 2, "destination 0 of an exchange has -1 rows from row 0 on"},
        {"sendcounts", {INT64_MAX, INT64_MAX}, 2, "destination 0 of an exchange has 9223372036854775807 rows"},
        {"sendoffsets", {-1, 1}, 2, "destination 0 of an exchange has 1 rows from row -1 on"},
        {"sendoffsets", {INT64_MAX, 1}, 2, "destination 0 of an exchange has 1 rows from row 9223372036854775807"},
        {"recvcounts", {2, 2}, 2, "the receive buffer of an exchange with neighbours has 3 rows, but its counts say 4"},
        {"recvcounts", {4, -1}, 2, "an exchange with neighbours got recvcounts[1] = -1, which is negative"},
        {"recvcounts", {INT64_MAX, INT64_MAX}, 2, "recvcounts that add up to more than a 64-bit integer holds"},
        {"recvcounts", {1, 1}, 2, "the receive buffer of an exchange with neighbours has 3 rows, but its counts say 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, "exchange", FIXTURE_RANK0, 0);
        CHECK_STR(call_read(&c, "exchange", &f), "");
        call_list_set(&c, rows[i].list, rows[i].items, rows[i].size);
        CHECK_IN(call_read(&c, "exchange", &f), rows[i].sentence);
    }
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_S32);
    CHECK_STR(call_read(&c, "exchange", &f), "an exchange was called with float32 to send and int32 to receive");
}

static void needs_neighbours(void) {
    int64_t alone = mpixla_comm_register(fake->handle(fake->comm_new(0, FIXTURE_SIZE, 0)), "alone");
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "comm", alone);
    CHECK_STR(call_read(&c, "exchange", &f),
              "exchange needs a communicator with a topology, which defines the neighbours, but 'alone' has none");
    call_make(&c, "halo_exchange", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "comm", alone);
    CHECK_STR(call_read(&c, "halo_exchange", &f),
              "halo_exchange needs a communicator with a Cartesian topology, but 'alone' has none");
}

/* Two destinations may be sent the same items, but not so many that nobody can count them. */
static void exchanges_of_more_than_can_be_counted(void) {
    static const int64_t all[] = {INT64_MAX / 2 + 1, INT64_MAX / 2 + 1}, from_the_first[] = {0, 0};
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_count_set(&c, CALL_OPERANDS, 0, all[0]);
    for (int side = 0; side < 2; side++) call_dtype_set(&c, side, 0, FFI_U8);
    call_list_set(&c, "sendcounts", all, 2);
    call_list_set(&c, "sendoffsets", from_the_first, 2);
    CHECK_STR(call_read(&c, "exchange", &f),
              "the destinations of an exchange have more items in all than a 64-bit integer holds");
}

/* Watchers add up what a call has: they get none that cannot be added up. */
static void nobody_sees_what_is_refused(void) {
    static const int64_t greatest[] = {INT64_MAX, INT64_MAX};
    static const char *const lists[] = {"sendcounts", "recvcounts"};
    static const char *const sentences[] = {"has 9223372036854775807 rows from row 0 on, but the buffer has 3",
                                            "add up to more than a 64-bit integer holds"};
    int before = mpixla_logging_set(1);
    for (int i = 0; i < 2; i++) {
        call_make(&c, "exchange", FIXTURE_RANK0, 0);
        call_list_set(&c, lists[i], greatest, 2);
        CHECK_IN(call_run(&c), sentences[i]);
        CHECK_INT(c.code, FFI_ABORTED);
    }
    mpixla_logging_set(before);
}

static int32_t block[ROWS][COLUMNS];
static int64_t dims[2] = {ROWS, COLUMNS};

/* Of `arrays` blocks with these dimensions, on a grid of two dimensions. */
static void halo_make(int arrays, int64_t *of) {
    static const int64_t axes[] = {0, 1, 0, 1}, low[] = {1, 0}, high[] = {3, 0}, width[] = {1, 1};
    call_make(&c, "halo_exchange", FIXTURE_RANK0, 0);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < arrays; i++) {
            if (i > 0) call_insert(&c, side, i, FFI_S32, 1, block);
            call_dtype_set(&c, side, i, FFI_S32);
            c.sides[side].buffers[i].data = block;
            c.sides[side].buffers[i].rank = 2;
            c.sides[side].buffers[i].dims = of;
        }
    call_grid_set(FIXTURE_RANK0, 2, low, high);
    call_list_set(&c, "axes", axes, 2 * (size_t)arrays);
    call_list_set(&c, "width", width, 2);
}

static void halos(void) {
    static const int64_t one[] = {1}, wide[] = {2, 1}, widest[] = {1, INT64_MAX}, negative[] = {-1, 1}, far[] = {0, 2},
                         under[] = {-1, 1};
    static const struct {
        const char *attribute;
        const int64_t *items;
        size_t size;
        const char *sentence;
    } rows[] = {
        {"axes", one, 1,
         "a halo exchange of 1 arrays has 2 widths and 1 axes, but communicator 'rank0' has 2 dimensions"},
        {"width", one, 1, "has 1 widths and 2 axes, but communicator 'rank0' has 2 dimensions"},
        {"width", wide, 2,
         "a halo exchange of width 2 along axis 0 got an array without that axis, or with fewer than"},
        {"width", widest, 2, "a halo exchange of width 9223372036854775807 along axis 1 got an array without"},
        {"width", negative, 2, "of width -1 along axis 0"},
        {"axes", far, 2, "along axis 2 got an array without that axis, or with fewer than"},
        {"axes", under, 2, "along axis -1 got an array without that axis, or with fewer than"},
    };
    static const char *const ops[] = {"halo_exchange", "halo_transpose"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int k = 0; k < 2; k++) {
            halo_make(1, dims);
            CHECK_STR(call_read(&c, ops[k], &f), "");
            call_list_set(&c, rows[i].attribute, rows[i].items, rows[i].size);
            CHECK_IN(call_read(&c, ops[k], &f), rows[i].sentence);
        }
}

/* A row of 3 items of 4 bytes goes to each neighbour in the first dimension, a column of 5 in the second. */
static void borders_are_measured(void) {
    static const int64_t wall[] = {1, MPIXLA_PROC_NULL}, high[] = {3, 0}, one_way[] = {0, 1};
    halo_make(2, dims);
    CHECK_STR(call_read(&c, "halo_exchange", &f), "");
    CHECK_INT(frame_border_bytes(&f, 0), 2 * 12);
    CHECK_INT(frame_border_bytes(&f, 1), 2 * 20);
    CHECK_INT(f.facts.border_bytes, 2 * 24 + 2 * 40);
    call_grid_set(FIXTURE_RANK0, 2, wall, high);
    CHECK_STR(call_read(&c, "halo_exchange", &f), "");
    CHECK_INT(f.facts.border_bytes, 2 * 24 + 40);
    call_list_set(&c, "width", one_way, 2);
    CHECK_STR(call_read(&c, "halo_exchange", &f), "");
    CHECK_INT(frame_border_bytes(&f, 0), 0);
    CHECK_INT(f.facts.border_bytes, 40);
    /* As much as is taken: nothing overflows. */
    static int64_t most[2] = {INT64_C(3) << 28, INT64_C(3) << 28};
    static const int64_t third[] = {1 << 28, 1 << 28};
    halo_make(1, most);
    for (int side = 0; side < 2; side++) call_dtype_set(&c, side, 0, FFI_U8);
    call_list_set(&c, "width", third, 2);
    CHECK_STR(call_read(&c, "halo_exchange", &f), "");
    CHECK_INT(f.facts.border_bytes, INT64_C(12) << 56);
}

static void halos_of_more_than_can_be_counted(void) {
    static int64_t half[2] = {INT64_C(1) << 60, 1}, third[2] = {INT64_C(1) << 59, 3};
    halo_make(1, half);
    CHECK_IN(call_read(&c, "halo_exchange", &f), "of width 1 along axis 1"); /* it is read, and measured */
    halo_make(2, third);
    CHECK_STR(call_read(&c, "halo_exchange", &f),
              "a halo exchange got arrays of more bytes in all than any memory has");
    /* Items, too, where each array can be measured by itself. */
    static int64_t most[2] = {INT64_C(1) << 60, 7};
    halo_make(2, most);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 2; i++) call_dtype_set(&c, side, i, FFI_U8);
    CHECK_STR(call_read(&c, "halo_exchange", &f),
              "MPI_Isend was called with more items in all than a 64-bit integer holds");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    exchanges();
    needs_neighbours();
    exchanges_of_more_than_can_be_counted();
    nobody_sees_what_is_refused();
    halos();
    borders_are_measured();
    halos_of_more_than_can_be_counted();
    return check_failures();
}
