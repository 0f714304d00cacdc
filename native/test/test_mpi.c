#include <dlfcn.h>
#include <limits.h>

#include "base/error.h"
#include "check.h"
#include "fixture.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"

static void start_refused(const mpixla_mpi_facts *facts, const char *sentence) {
    CHECK_INT(mpixla_start(facts), -1);
    CHECK_IN(mpixla_last_error(), sentence);
    CHECK(mpi_get() == NULL);
}

static void refuses_wrong_facts(void) {
    mpixla_mpi_facts facts = fixture_facts();
    facts.struct_size -= 8;
    start_refused(&facts, "are of different versions; install mpixla again");
    facts = fixture_facts();
    facts.status_size = MPI_STATUS_BYTES + 1;
    start_refused(&facts, "MPI_Status has 129 bytes, more than the 128");
    facts = fixture_facts();
    facts.status_tag = MPI_STATUS_BYTES - 1;
    start_refused(&facts, "has its source and its tag in its first 128 bytes, but bytes 0 and 127 were given");
    facts = fixture_facts();
    facts.max_error_string = MPI_ERROR_BYTES + 1;
    start_refused(&facts, "error texts have up to 2049 bytes, more than the 2048");
    facts = fixture_facts();
    facts.handle_size = 3;
    start_refused(&facts, "communicator handles have 3 bytes; libmpixla knows handles of 4 (MPICH) and 8 bytes");
}

/* Loading an MPI would give the process a second one. */
static void loads_nothing(const char *file) {
    mpixla_mpi_facts facts = fixture_facts();
    facts.library = "libmpi_of_nobody.so";
    start_refused(&facts, "libmpi_of_nobody.so is not loaded in this process");
    facts.library = file;
    start_refused(&facts, "is not loaded in this process");
}

static void refuses_a_file_without_mpi(void) {
    mpixla_mpi_facts facts = fixture_facts();
    /* The C library is loaded, and has none of MPI's functions. */
    facts.library = "libc.so.6";
    if (dlopen(facts.library, RTLD_LAZY | RTLD_NOLOAD))
        start_refused(&facts, "the MPI loaded by libc.so.6 has no function MPI_Allgather");
    facts.library = NULL;
    start_refused(&facts, "the MPI loaded by the program has no function MPI_Allgather");
}

static void refuses_an_mpi_that_fails(void) {
    static const char *const functions[][2] = {
        {"MPI_Comm_rank", "MPI_Comm_rank failed on MPI_COMM_WORLD: is MPI initialized?"},
        {"MPI_Comm_create_keyval", "MPI_Comm_create_keyval failed"},
        {"MPI_Comm_test_inter", "MPI does not know this communicator"},
    };
    mpixla_mpi_facts facts = fixture_facts();
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        fixture_fail(functions[i][0], 16);
        start_refused(&facts, functions[i][1]);
    }
    fixture_fail(NULL, 0);
}

static void names_the_file(const char *file) {
    CHECK_STR(mpixla_mpi_file(), file);
}

static void starts_once(void) {
    mpixla_mpi_facts facts = fixture_facts();
    fake->world_rank = 3;
    CHECK(mpi_get() == NULL);
    CHECK_INT(mpixla_start(&facts), 0);
    const mpi_library *mpi = mpi_get();
    CHECK(mpi != NULL);
    if (!mpi) return;
    CHECK_INT(mpi->world_rank, 3);
    CHECK_INT(mpi->facts.proc_null, FAKE_PROC_NULL);
    CHECK(mpi->facts.library == NULL);
    CHECK(comm_find(0) != NULL);
    CHECK_INT(mpixla_start(&facts), -1);
    CHECK_STR(mpixla_last_error(), "mpixla_start was called twice in one process");
}

static void passes_arguments_on(void) {
    const mpi_library *mpi = mpi_get();
    char send = 0, recv = 0;
    mpixla_handle type = fake->handle(11), comm = fake->handle(FAKE_WORLD), op = fake->handle(100);
    CHECK_INT(mpi->small->reduce(&send, &recv, 5, type, op, 1, comm), 0);
    CHECK_STR(fake->call, "MPI_Reduce 5 t11 op 100 root 1 c0");
    CHECK(fake->send == &send && fake->recv == &recv);
    int code = mpi->large->reduce(&send, &recv, INT64_C(5000000000), type, op, 1, comm);
    CHECK_INT(code, 0);
    CHECK_STR(fake->call, fake->has_large ? "MPI_Reduce_c 5000000000 t11 op 100 root 1 c0" /* else the last piece */
                                          : "MPI_Reduce 705032706 t11 op 100 root 1 c0");
    int size = 0;
    CHECK_INT(mpi->comm_size(comm, &size), 0);
    CHECK_INT(size, 4);
}

/* Where it is to be so, receives from any rank are matched with a probe first, and no others. */
static void matches_first(void) {
    static const struct {
        const char *fails;
        int first, source, receives, exchanges;
    } cases[] = {
        {"MPI_Mprobe", 0, FAKE_ANY_SOURCE, 0, 0},   {"MPI_Mprobe", 1, 2, 0, 0},
        {"MPI_Mprobe", 1, FAKE_ANY_SOURCE, 7, 7},   {"MPI_Mrecv", 1, FAKE_ANY_SOURCE, 7, 7},
        {"MPI_Recv", 1, FAKE_ANY_SOURCE, 0, 0},     {"MPI_Recv", 0, FAKE_ANY_SOURCE, 7, 0},
        {"MPI_Isend", 1, FAKE_ANY_SOURCE, 0, 7},    {"MPI_Wait", 1, FAKE_ANY_SOURCE, 0, 7},
        {"MPI_Sendrecv", 1, FAKE_ANY_SOURCE, 0, 0}, {"MPI_Sendrecv", 1, 2, 0, 7},
    };
    _Alignas(16) char status[MPI_STATUS_BYTES];
    char b[8];
    mpi_library *mpi = (mpi_library *)(intptr_t)mpi_get();
    mpixla_handle t = fake->handle(11), comm = fake->handle(FAKE_WORLD);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mpi->facts.match_first = cases[i].first;
        fixture_fail(cases[i].fails, 7);
        CHECK_INT(mpi->small->recv(b, 1, t, cases[i].source, 3, comm, status), cases[i].receives);
        CHECK_INT(mpi->small->sendrecv(b, 1, t, 1, 3, b, 1, t, cases[i].source, 3, comm, status), cases[i].exchanges);
    }
    fixture_fail(NULL, 0);
    mpi->facts.match_first = 1;
    /* Greater counts go the same way. */
    fixture_fail(fake->has_large ? "MPI_Mrecv_c" : "MPI_Mrecv", 7);
    CHECK_INT(mpi->large->recv(b, INT64_C(5000000000), t, FAKE_ANY_SOURCE, 3, comm, status), 7);
    fixture_fail(NULL, 0);
    mpi->facts.match_first = 0;
}

/* Whether the receive fails for want of a message or in another way, nothing reads what was sent once the call has
 * returned; a send that may find no receiver is cancelled first. */
static void ends_the_send_when_it_fails_to_receive(void) {
    static const struct {
        const char *fails;
        int cancels;
    } cases[] = {{"MPI_Mprobe", 1}, {"MPI_Mrecv", 0}};
    _Alignas(16) char status[MPI_STATUS_BYTES];
    char b[8];
    mpi_library *mpi = (mpi_library *)(intptr_t)mpi_get();
    mpixla_handle t = fake->handle(11), comm = fake->handle(FAKE_WORLD);
    mpi->facts.match_first = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int cancelled = fake->cancelled, freed = fake->freed;
        fixture_fail(cases[i].fails, 7);
        CHECK_INT(mpi->small->sendrecv(b, 1, t, 1, 3, b, 1, t, FAKE_ANY_SOURCE, 3, comm, status), 7);
        CHECK_STR(fake->messages[0].function, "MPI_Isend");
        CHECK_INT(fake->posted, 1);
        CHECK(fake->messages[0].waited);
        CHECK_INT(fake->freed, freed); /* which would leave it to MPI */
        CHECK_INT(fake->cancelled - cancelled, cases[i].cancels);
    }
    fixture_fail(NULL, 0);
    mpi->facts.match_first = 0;
}

/* Whichever call fails that makes a derived type, those made before it are freed. */
static void frees_types_after_failures(void) {
    static const char *const makers[] = {"MPI_Type_size", "MPI_Type_contiguous", "MPI_Type_create_struct",
                                         "MPI_Type_commit"};
    enum { MOST = 4, BEYOND = 10 /* the limit */, SIDES = 2 };
    _Alignas(16) char status[MPI_STATUS_BYTES];
    char b[8];
    int failed = 0;
    const mpi_library *mpi = mpi_get();
    mpixla_handle t = fake->handle(11), comm = fake->handle(FAKE_WORLD), repeated;
    int64_t limit = mpixla_count_limit_set(BEYOND);
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++)
        for (int spared = 0; spared < MOST; spared++) {
            fixture_fail(makers[i], 7);
            fake->spared = spared;
            failed += mpi->large->sendrecv(b, 25, t, 1, 3, b, 35, t, 2, 3, comm, status) != 0;
            CHECK_INT(fake->types, 0);
        }
    CHECK_INT(failed, fake->has_large ? 0 : SIDES * 4); /* each maker runs once for each side */
    fixture_fail("MPI_Type_commit", 7);
    CHECK_INT(mpi->type_repeat(3, t, &repeated), 7);
    CHECK_INT(fake->types, 0);
    fixture_fail(NULL, 0);
    (void)mpixla_count_limit_set(limit);
}

/* Where MPI has no large-count functions: one element of a type, or pieces. What is refused is in test_parts.c and
 * test_request.c. */
static void has_stand_ins_for_large_counts(void) {
    enum { N = 25, LIMIT = 10 };
    _Alignas(16) char status[MPI_STATUS_BYTES];
    static char s[4 * N * FAKE_ITEM], r[4 * N * FAKE_ITEM];
    const mpi_counted *large = mpi_get()->large;
    mpixla_handle t = fake->handle(11), comm = fake->handle(FAKE_WORLD), op = fake->handle(100);
    mpi_request request;
    if (fake->has_large) return;
    int64_t limit = mpixla_count_limit_set(LIMIT);
    CHECK_INT(large->ialltoall(s, N, t, r, N, t, comm, &request), 0);
    CHECK_STR(fake->call, "MPI_Ialltoall 1 t300 to 1 t300 c0");
    CHECK_INT(mpi_get()->wait(&request, status), 0);
    int before = fake->calls;
    CHECK_INT(large->scan(s, r, N, t, op, comm), 0);
    CHECK_INT(fake->calls - before, 3);
    CHECK_STR(fake->call, "MPI_Scan 5 t11 op 100 c0");
    CHECK(fake->send == s + 2 * LIMIT * FAKE_ITEM && fake->recv == r + 2 * LIMIT * FAKE_ITEM);
    CHECK_INT(fake->types, 0);
    (void)mpixla_count_limit_set(limit);
}

static void limits_counts(void) {
    CHECK_INT(mpixla_count_limit_set(10), INT_MAX);
    CHECK_INT(mpixla_count_limit_set(0), 10);
    CHECK_INT(mpixla_count_limit_set(-5), 10);
    CHECK_INT(mpixla_count_limit_set((int64_t)INT_MAX + 1), 10); /* no int can hold it */
    CHECK_INT(mpixla_count_limit_set(INT_MAX), 10);
}

int main(int argc, char **argv) {
    fixture_load(argc, argv);
    refuses_wrong_facts();
    if (argc > 2) loads_nothing(argv[2]);
    refuses_a_file_without_mpi();
    refuses_an_mpi_that_fails();
    names_the_file("");
    starts_once();
    names_the_file(argv[1]);
    passes_arguments_on();
    matches_first();
    ends_the_send_when_it_fails_to_receive();
    frees_types_after_failures();
    has_stand_ins_for_large_counts();
    limits_counts();
    return check_failures();
}
