/* Checked mode, what goes between each two ranks: this process is rank 0 of four, and the test says what rank 1 sends.
 */
#include "base/error.h"
#include "call.h"
#include "check.h"
#include "check/check.h"
#include "check/tally.h"
#include "fixture.h"

enum { WORDS = 3 }; /* of a tally: messages, items, and a number made of all */

static call c;
static frame f;
static int64_t more_for_me; /* items of rank 1's beyond what this rank expects */

/* The others expect what this rank sends, and find nothing. */
static void bring(void) {
    int64_t tallies[WORDS * FIXTURE_SIZE], count = fixture_count();
    char *to = fake->recv;
    if (fixture_is("MPI_Alltoall")) {
        CHECK_INT(count, WORDS);
        memcpy(tallies, (const char *)fake->send + sizeof tallies, sizeof tallies); /* what it expects lies behind */
        tallies[WORDS + 1] += more_for_me;
        memcpy(to, tallies, sizeof tallies);
    } else if (fixture_is("MPI_Allgather")) {
        for (int i = 0; i < FIXTURE_SIZE; i++) memcpy(to + i * count, fake->send, (size_t)count);
    }
}

static const char *compare(const char *op) {
    call_make(&c, op, FIXTURE_RANK0, 0);
    CHECK_INT(frame_read(&f, call_shape(op), &c.frame, NULL), 0);
    CHECK(tally_is_needed(&f));
    int code = tally_compare(&f);
    return code == 0 ? "" : code == REFUSED ? error_get() : "MPI failed";
}

static void what_fits(void) {
    more_for_me = 0;
    CHECK_STR(compare("alltoallv"), "");
    CHECK_STR(compare("exchange"), "");
    CHECK_STR(compare("halo_exchange"), "");
    CHECK_INT(frame_read(&f, call_shape("allreduce"), (call_make(&c, "allreduce", FIXTURE_RANK0, 0), &c.frame), NULL),
              0);
    CHECK(!tally_is_needed(&f));
}

static void what_does_not(void) {
    more_for_me = 2;
    const char *message = compare("alltoallv");
    CHECK_IN(message,
             "r0 | MPIXLA_CHECK: the ranks of communicator 'rank0' do not agree on the messages between them in ");
    CHECK_IN(message, "\n  rank 1 sends rank 0 5 rows, at an unknown line\n  rank 0 expects 3 rows from rank 1, at ");
    CHECK_IN(compare("exchange"), "\n  rank 1 sends rank 0 3 items, at an unknown line\n  rank 0 expects 1 item from ");
    CHECK_IN(compare("halo_exchange"), "blocks of neighbours may differ in size only along the axis between them");
    CHECK_IN(error_get(),
             "\n  rank 1 sends rank 0 6 bytes, at an unknown line\n  rank 0 expects 4 bytes from rank 1, ");
    more_for_me = 0;
}

static void an_error_of_mpi(void) {
    fixture_fail("MPI_Alltoall", 9);
    CHECK_STR(compare("alltoallv"), "MPI failed");
    fixture_fail("MPI_Allgather", 9);
    CHECK_STR(compare("alltoallv"), "MPI failed");
    fixture_fail(NULL, 0);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fake->during = bring;
    what_fits();
    what_does_not();
    an_error_of_mpi();
    return check_failures();
}
