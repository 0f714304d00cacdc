/* The operations whose parts differ in size, from XLA's frame to what MPI is told. */
#include <limits.h>
#include <stdlib.h>

#include "base/error.h"
#include "call.h"
#include "call/parts.h"
#include "check.h"
#include "fixture.h"
#include "run.h"
#include "scarce.h"

static call c;

static const struct {
    const char *op;
    int64_t sent[4], received[4]; /* `sent` is COUNTS where there is one array */
    int64_t root;
    int64_t rows[2];  /* of the send and the receive buffer; -1: not here */
    const char *call; /* of MPI, behind the function's name */
} rows[] = {
    /* this process is rank 2 of 4 */
    {"allgatherv", {1, 2, 0, 3}, {0}, 0, {0, 6}, "0 t11 to (5 10 0 15 @ 0 5 15 15) t11 c3"},
    {"allgatherv", {0, 0, 4, 1}, {0}, 0, {4, 5}, "20 t11 to (0 0 20 5 @ 0 0 0 20) t11 c3"},
    {"alltoallv", {1, 0, 2, 3}, {2, 1, 2}, 0, {6, 5}, "(5 0 10 15 @ 0 5 5 15) t11 to (10 5 10 0 @ 0 10 15 25) t11 c3"},
    {"alltoallv", {1, 0, 0, 0}, {2, 1, 2}, 0, {1, 5}, "(5 0 0 0 @ 0 5 5 5) t11 to (10 5 10 0 @ 0 10 15 25) t11 c3"},
    {"gatherv", {1, 2, 3, 0}, {0}, 2, {3, 6}, "15 t11 to (5 10 15 0 @ 0 5 15 30) t11 root 2 c3"},
    {"gatherv", {1, 2, 3, 0}, {0}, 1, {3, -1}, "15 t11 to (none) t11 root 1 c3"},
    {"scatterv", {1, 2, 3, 0}, {0}, 2, {6, 3}, "(5 10 15 0 @ 0 5 15 30) t11 to 15 t11 root 2 c3"},
    {"scatterv", {1, 2, 3, 0}, {0}, 1, {-1, 3}, "(none) t11 to 15 t11 root 1 c3"},
    {"alltoallv", {0, 0, 0, 0}, {0}, 0, {0, 0}, "(0 0 0 0 @ 0 0 0 0) t11 to (0 0 0 0 @ 0 0 0 0) t11 c3"},
};
enum { ROWS = sizeof rows / sizeof rows[0], ITEMS = 5 };
static int64_t dims[2][3];

/* Rows of ITEMS items, in three axes. */
static void make(size_t i) {
    call_make(&c, rows[i].op, FIXTURE_RANK2, rows[i].root);
    int exchanged = call_shape(rows[i].op)->counts == EXCHANGED_ROWS;
    call_array_set(&c, exchanged ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_COUNTS, 4, rows[i].sent);
    if (exchanged) call_array_set(&c, ATTRIBUTE_RECVCOUNTS, 4, rows[i].received);
    for (int side = 0; side < 2; side++) {
        if (rows[i].rows[side] < 0) continue;
        dims[side][0] = rows[i].rows[side];
        dims[side][1] = 1;
        dims[side][2] = ITEMS;
        c.sides[side].buffers[0].dims = dims[side];
        c.sides[side].buffers[0].rank = 3;
    }
}

static void check_call(const char *op, const char *suffix, const char *arguments) {
    char expected[160];
    snprintf(expected, sizeof expected, "%s%s %s", call_shape(op)->mpi_name, suffix, arguments);
    CHECK_STR(c.message, "");
    CHECK_STR(fake->call, expected);
}

static void tells_mpi_the_parts(void) {
    for (size_t i = 0; i < ROWS; i++) {
        make(i);
        call_run(&c);
        check_call(rows[i].op, "", rows[i].call);
        CHECK(fake->send == (rows[i].rows[0] < 0 ? NULL : c.send));
        CHECK(fake->recv == (rows[i].rows[1] < 0 ? NULL : c.recv));
    }
}

/* A call of more items than an int counts: MPI's own function makes it, and without one it is refused. */
static void run_large(const char *op, const char *arguments, int64_t limit) {
    char sentence[256];
    int before = fake->calls;
    mpixla_count_limit_set(limit);
    call_run(&c);
    if (fake->has_large) {
        check_call(op, "_c", arguments);
        return;
    }
    const char *name = call_shape(op)->mpi_name;
    snprintf(sentence, sizeof sentence,
             "r0 | %s was called with more than %lld items, for which this MPI has no function (%s_c is of MPI 4.0): "
             "send the array in pieces",
             name, (long long)limit, name);
    CHECK_STR(c.message, sentence);
    CHECK_INT(fake->calls, before);
}

/* The items of all ranks decide, so that all of them choose alike, whatever their own part. */
static void uses_large_counts(void) {
    for (size_t i = 0; i < ROWS; i++) {
        int64_t most = 0, received = 0;
        for (int r = 0; r < 4; r++) {
            most += rows[i].sent[r];
            received += rows[i].received[r];
        }
        if (received > most) most = received;
        make(i);
        mpixla_count_limit_set(most > 0 ? most * ITEMS : 1);
        call_run(&c);
        check_call(rows[i].op, "", rows[i].call);
        if (most > 0) run_large(rows[i].op, rows[i].call, most * ITEMS - 1);
    }
    /* Displacements beyond 32 bits: nothing is read or written, since this is a fake. */
    static const int64_t great[] = {INT64_C(3000000000), 1, 2, 3};
    make(0);
    call_array_set(&c, ATTRIBUTE_COUNTS, 4, great);
    dims[0][0] = 2;
    dims[1][0] = INT64_C(3000000006);
    run_large("allgatherv", "10 t11 to (15000000000 5 10 15 @ 0 15000000000 15000000005 15000000015) t11 c3", INT_MAX);
}

static void refuses_wrong_counts(void) {
    enum { OF_ROWS = ATTRIBUTE_COUNTS, SENT = ATTRIBUTE_SENDCOUNTS, RECEIVED = ATTRIBUTE_RECVCOUNTS };
    static const struct {
        const char *op;
        int attribute;
        size_t size;
        int64_t elements[4];
        const char *part; /* of the sentence */
    } wrong[] = {
        {"allgatherv", OF_ROWS, 3, {3, 3, 3}, "MPI_Allgatherv got 3 counts, but communicator 'rank2' has 4 ranks"},
        {"scatterv", OF_ROWS, 0, {0}, "MPI_Scatterv got 0 counts, but communicator 'rank2' has 4 ranks"},
        {"alltoallv", SENT, 3, {3, 3, 3}, "MPI_Alltoallv got 3 sendcounts, but communicator 'rank2' has 4 ranks"},
        {"alltoallv", RECEIVED, 1, {3}, "MPI_Alltoallv got 1 recvcounts, but communicator 'rank2' has 4 ranks"},
        {"allgatherv", OF_ROWS, 4, {9, 3, 3, -3}, "MPI_Allgatherv got counts[3] = -3, which is negative"},
        {"alltoallv", RECEIVED, 4, {-1, 3, 3, 3}, "MPI_Alltoallv got recvcounts[0] = -1, which is negative"},
        {"gatherv", OF_ROWS, 4, {INT64_MAX, 1}, "got counts that add up to more than a 64-bit integer holds"},
        {"allgatherv", OF_ROWS, 4, {3, 3, 2, 4}, "send buffer of MPI_Allgatherv has 3 rows, but its counts say 2"},
        {"allgatherv", OF_ROWS, 4, {3, 3, 3, 4}, "receive buffer of MPI_Allgatherv has 12 rows, but its counts say 13"},
        {"gatherv", OF_ROWS, 4, {3, 2, 4, 3}, "send buffer of MPI_Gatherv has 3 rows, but its counts say 4"},
        {"gatherv", OF_ROWS, 4, {3, 2, 3, 3}, "receive buffer of MPI_Gatherv has 12 rows, but its counts say 11"},
        {"scatterv", OF_ROWS, 4, {3, 2, 3, 3}, "send buffer of MPI_Scatterv has 12 rows, but its counts say 11"},
        {"scatterv", OF_ROWS, 4, {2, 3, 4, 3}, "receive buffer of MPI_Scatterv has 3 rows, but its counts say 4"},
        {"alltoallv", SENT, 4, {3, 3, 3, 2}, "send buffer of MPI_Alltoallv has 12 rows, but its counts say 11"},
        {"alltoallv", RECEIVED, 4, {3, 3, 3, 2}, "receive buffer of MPI_Alltoallv has 12 rows, but its counts say 11"},
    };
    int before = fake->calls;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        call_make(&c, wrong[i].op, FIXTURE_RANK2, 2);
        call_array_set(&c, wrong[i].attribute, wrong[i].size, wrong[i].elements);
        CHECK_IN(call_run(&c), wrong[i].part);
        CHECK_INT(c.code, FFI_ABORTED);
    }
    CHECK_INT(fake->calls, before);
}

static void refuses_wrong_rows(void) {
    static const char *const ops[] = {"allgatherv", "alltoallv", "gatherv", "scatterv"};
    static const char *const what[] = {"send", "receive"};
    char sentence[128];
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        for (int side = 0; side < 2; side++) {
            const char *name = call_shape(ops[i])->mpi_name;
            call_make(&c, ops[i], FIXTURE_RANK2, 2);
            c.sides[side].buffers[0].rank = 0;
            snprintf(sentence, sizeof sentence, "the %s buffer of %s is a scalar, which has no rows", what[side], name);
            CHECK_STR(call_run(&c), sentence);

            call_make(&c, ops[i], FIXTURE_RANK2, 2);
            int64_t wide[] = {c.sides[side].dims[0][0], 2};
            c.sides[side].buffers[0].dims = wide;
            c.sides[side].buffers[0].rank = 2;
            snprintf(sentence, sizeof sentence, "%s was called with rows of %d items to send and of %d to receive",
                     name, side == 0 ? 2 : 1, side == 0 ? 1 : 2);
            CHECK_STR(call_run(&c), sentence);

            call_make(&c, ops[i], FIXTURE_RANK2, 2);
            call_dtype_set(&c, side, 0, FFI_S32);
            CHECK_IN(call_run(&c), " was called with ");
        }
    /* Without rows a shape may have more items than there are numbers for. */
    static const int64_t none[4] = {0};
    int64_t huge[] = {0, INT64_C(1) << 40, INT64_C(1) << 40};
    call_make(&c, "allgatherv", FIXTURE_RANK2, 0);
    call_array_set(&c, ATTRIBUTE_COUNTS, 4, none);
    for (int side = 0; side < 2; side++) {
        c.sides[side].buffers[0].dims = huge;
        c.sides[side].buffers[0].rank = 3;
    }
    CHECK_STR(call_run(&c),
              "the send buffer of MPI_Allgatherv has a dimension of 1099511627776 items, which is no valid shape");
    /* And other ranks may have more rows than there are numbers for items. */
    static const int64_t much[] = {INT64_C(1) << 62, 0, 1, 0};
    int64_t one[] = {1, 4};
    call_make(&c, "gatherv", FIXTURE_RANK2, 0);
    call_array_set(&c, ATTRIBUTE_COUNTS, 4, much);
    c.sides[0].buffers[0].dims = one;
    c.sides[0].buffers[0].rank = 2;
    CHECK_STR(call_run(&c), "MPI_Gatherv got counts of more items than a 64-bit integer holds");
}

/* Memory: it grows, each side has its own, and so has each thread. */

enum { LOTS = 10000 };

static void *fill(void *unused) {
    (void)unused;
    int64_t *numbers = malloc(LOTS * sizeof *numbers);
    for (int64_t i = 0; i < LOTS; i++) numbers[i] = i % 3;
    parts sent, received;
    for (int64_t n = 1; n <= LOTS; n *= 10)
        for (int large = 0; large < 2; large++) {
            CHECK_INT(parts_make(&sent, PARTS_SENT, numbers, n, 7, large), 0);
            CHECK_INT(parts_make(&received, PARTS_RECEIVED, numbers, n, 11, !large), 0);
            int64_t next = 0;
            for (int64_t i = 0; i < n; i++) {
                const parts *wide = large ? &sent : &received, *narrow = large ? &received : &sent;
                int64_t items[] = {large ? 7 : 11, large ? 11 : 7};
                if (((const int64_t *)wide->counts)[i] != numbers[i] * items[0] ||
                    ((const int64_t *)wide->displs)[i] != next * items[0] ||
                    ((const int *)narrow->counts)[i] != numbers[i] * items[1] ||
                    ((const int *)narrow->displs)[i] != next * items[1]) {
                    CHECK_INT(i, -1);
                    break;
                }
                next += numbers[i];
            }
            const void *kept = sent.counts;
            CHECK_INT(parts_make(&sent, PARTS_SENT, numbers, 1, 7, large), 0);
            CHECK(sent.counts == kept);
        }
    free(numbers);
    return NULL;
}

static void keeps_memory_for_each_thread(void) {
    fill(NULL);
    threads_run(4, fill);
}

static void make_too_many(void) {
    int64_t one = 1;
    parts p;
    CHECK_INT(parts_make(&p, PARTS_SENT, &one, INT64_C(1) << 56, 1, 1), -1);
    fputs(error_get(), stderr);
}

static void needs_memory(void) {
    CHECK_IN(scarce_run(make_too_many).told,
             "out of memory for 1152921504606846976 bytes that a call needs while it runs");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    tells_mpi_the_parts();
    uses_large_counts();
    refuses_wrong_counts();
    refuses_wrong_rows();
    keeps_memory_for_each_thread();
    needs_memory();
    return check_failures();
}
