
#include "base/error.h"
#include "check.h"
#include "fixture.h"
#include "mpi/comm.h"
#include "mpi/loss.h"
#include "run.h"

enum { THREADS = 4, EACH = 150 };

static int64_t comm_register(int number, const char *name) {
    return mpixla_comm_register(fake->handle(number), name);
}

static void knows_none_before_the_start(void) {
    CHECK_INT(mpixla_comm_register(1, "early"), -1);
    CHECK_STR(error_get(), "mpixla_start has not been called");
    CHECK(comm_find(0) == NULL);
    CHECK_INT(mpixla_comm_is_alive(0), 0);
}

static void numbers_in_order(void) {
    const comm_entry *self = comm_find(FIXTURE_SELF), *rank2 = comm_find(FIXTURE_RANK2);
    CHECK(self && self->handle == fake->handle(FAKE_SELF) && self->size == 1 && self->rank == 0);
    CHECK(rank2 && rank2->handle == fake->handle(FIXTURE_RANK2 + 1) && rank2->size == 4 && rank2->rank == 2);
    if (!self || !rank2) return;
    CHECK_STR(self->name, "MPI_COMM_SELF");
    CHECK_STR(rank2->name, "rank2");
    CHECK_INT(comm_register(FIXTURE_RANK2 + 1, "another name"), FIXTURE_RANK2);
    CHECK_INT(comm_register(FAKE_SELF, NULL), FIXTURE_SELF);
    CHECK_STR(rank2->name, "rank2");
    CHECK_INT(mpixla_comm_is_alive(FIXTURE_RANK2), 1);
    CHECK_INT(mpixla_comm_is_alive(FIXTURE_RANK2 + 1), 0);
    CHECK_INT(mpixla_comm_is_alive(-1), 0);
    CHECK(comm_find(FIXTURE_RANK2 + 1) == NULL);
    CHECK_STR(error_get(),
              "communicator number 3 is not registered in this process; a program that was exported needs its "
              "communicators passed to an operation here first, in the same order, as docs/other_tools.md says");
}

static void takes_any_name(void) {
    char name[2 * COMM_NAME_BYTES];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    int64_t named = comm_register(fake->comm_new(0, 1, 0), name),
            nameless = comm_register(fake->comm_new(0, 1, 0), NULL), empty = comm_register(fake->comm_new(0, 1, 0), "");
    CHECK(comm_find(named) && strlen(comm_find(named)->name) == COMM_NAME_BYTES - 1);
    CHECK(comm_find(nameless) && comm_find(empty));
    if (!comm_find(nameless) || !comm_find(empty)) return;
    CHECK_STR(comm_find(nameless)->name, "unnamed");
    CHECK_STR(comm_find(empty)->name, "unnamed");
}

static void knows_who_is_in_it(void) {
    static const int first[] = {7, 0, 3, 12}, other[] = {1, 2, 3, 4};
    int64_t id = comm_register(fake->comm_new(1, 4, 0), "of four");
    const comm_entry *entry = comm_find(id);
    CHECK(entry && atomic_load(&entry->members) == NULL);
    CHECK_INT(mpixla_comm_members_set(id, first), 0);
    const int *members = atomic_load(&entry->members);
    CHECK(members && members != first && memcmp(members, first, sizeof first) == 0);
    CHECK_INT(mpixla_comm_members_set(id, other), 0); /* who reads them may go on */
    CHECK(atomic_load(&entry->members) == members && members[3] == 12);
    CHECK_INT(mpixla_comm_members_set(100000, first), -1);
    CHECK_STR(error_get(), "communicator number 100000 is not registered in this process");
    CHECK_INT(mpixla_comm_members_set(-1, first), -1);
}

static void forgets_a_freed_one(void) {
    int number = fake->comm_new(1, 3, 0);
    int64_t id = comm_register(number, "short-lived");
    CHECK_INT(mpixla_comm_is_alive(id), 1);
    CHECK_INT(fake->comm_free(number), 0);
    CHECK_INT(mpixla_comm_is_alive(id), 0);
    CHECK(comm_find(id) == NULL);
    CHECK_STR(error_get(),
              "communicator 'short-lived' was freed after this program was traced; trace the program again "
              "with a communicator that exists, or, if the call was made before comm.Free(), block on its result "
              "before that");
    CHECK_INT(comm_register(number, "short-lived"), -1);
    CHECK_STR(error_get(), "MPI does not know this communicator: it was freed, or it belongs to another MPI");
    /* MPI gives the handle to the next communicator, which is another one. */
    CHECK_INT(fake->comm_new(0, 2, 0), number);
    CHECK_INT(comm_register(number, "next"), id + 1);
    CHECK_INT(mpixla_comm_is_alive(id), 0);
    CHECK_INT(mpixla_comm_is_alive(id + 1), 1);
}

static void tells_a_duplicate_from_its_original(void) {
    int copy = fake->comm_dup(FIXTURE_RANK2 + 1);
    int64_t id = comm_register(copy, "copy");
    CHECK(id > FIXTURE_RANK2);
    CHECK_INT(fake->comm_free(copy), 0);
    CHECK_INT(mpixla_comm_is_alive(id), 0);
    CHECK_INT(mpixla_comm_is_alive(FIXTURE_RANK2), 1);
}

static void refuses(void) {
    int inter = fake->comm_new(0, 2, 1), number = fake->comm_new(0, 2, 0);
    CHECK_INT(comm_register(inter, "inter"), -1);
    CHECK_STR(error_get(),
              "this is an inter-communicator, which mpixla does not take: merge it with Merge(), and pass the "
              "intra-communicator that this gives");
    static const char *const functions[][2] = {
        {"MPI_Comm_get_attr", "MPI does not know this communicator"},
        {"MPI_Comm_test_inter", "MPI does not know this communicator"},
        {"MPI_Comm_rank", "MPI_Comm_rank or MPI_Comm_size failed"},
        {"MPI_Comm_size", "MPI_Comm_rank or MPI_Comm_size failed"},
        {"MPI_Comm_set_attr", "MPI_Comm_set_attr failed"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        fixture_fail(functions[i][0], 5);
        CHECK_INT(comm_register(number, "refused"), -1);
        CHECK_IN(error_get(), functions[i][1]);
    }
    fixture_fail(NULL, 0);
    CHECK(comm_register(number, "accepted") > 0); /* and no lock was kept */
}

/* The communicators that are made of another: each on first use, and freed with it. */
static void has_derived_ones(int which, const char *function) {
    int number = fake->comm_new(1, 4, 0), other = 0;
    comm_entry *entry = comm_find(comm_register(number, "forward"));
    mpixla_handle derived = 0, again = 0, reversed = 0, private = 0;
    fake->failing[0] = function;
    fake->code = 16;
    CHECK_INT(comm_derive(entry, which, &derived), 16);
    fake->failing[0] = NULL;
    CHECK_INT(comm_derive(entry, which, &derived), 0);
    CHECK_INT(comm_derive(entry, which, &again), 0);
    CHECK(derived == again && derived != entry->handle);
    CHECK_INT(comm_derive(entry, COMM_REVERSED, &reversed), 0);
    CHECK_INT(comm_derive(entry, COMM_PRIVATE, &private), 0);
    CHECK(reversed != private);
    /* It is freed with the communicator: then its handle is free for another. */
    while (fake->handle(other) != derived) other++;
    CHECK_INT(fake->comm_free(number), 0);
    CHECK(fake->comm_free(other) != 0);
}

/* What the library has made of a communicator goes with a process that dies; the communicator itself is the program's.
 */
static void revokes_what_it_has_made(void) {
    int number = fake->comm_new(1, 4, 0);
    comm_entry *entry = comm_find(comm_register(number, "lossy"));
    mpixla_handle derived = 0;
    int before = fake->revoked;
    loss_derived_revoke(entry);
    CHECK_INT(fake->revoked, before);
    CHECK_INT(comm_derive(entry, COMM_PRIVATE, &derived), 0);
    loss_derived_revoke(entry);
    CHECK_INT(fake->revoked, before + 1);
    CHECK_INT(comm_derive(entry, COMM_REVERSED, &derived), 0);
    loss_derived_revoke(entry);
    CHECK_INT(fake->revoked, before + 3);
    CHECK_INT(loss_is_error(75), 0);
    mpixla_loss_classes_set(75, 76, 77);
    for (int class = 74; class < 79; class++) CHECK_INT(loss_is_error(class), class >= 75 && class <= 77);
    CHECK_INT(loss_is_pending(76), 1);
    CHECK_INT(loss_is_pending(77), 0);
    mpixla_loss_classes_set(0, 0, 0);
    CHECK_INT(loss_is_error(0), 0);
    CHECK_INT(loss_is_pending(0), 0);
}

/* All threads register the same communicators at once. */
static int first_comm;
static int64_t ids[THREADS][EACH];
static pthread_barrier_t together;

static void *register_all(void *argument) {
    int thread = (int)(intptr_t)argument;
    for (int i = 0; i < EACH; i++) {
        pthread_barrier_wait(&together);
        ids[thread][i] = comm_register(first_comm + i, "many");
        CHECK(comm_find(ids[thread][i]) != NULL);
    }
    return NULL;
}

static void is_shared_by_threads(void) {
    first_comm = fake->comm_new(0, 1, 0);
    for (int i = 1; i < EACH; i++) CHECK_INT(fake->comm_new(0, 1, 0), first_comm + i);
    pthread_barrier_init(&together, NULL, THREADS);
    threads_run(THREADS, register_all);
    pthread_barrier_destroy(&together);
    for (int i = 0; i < EACH; i++) {
        CHECK(ids[0][i] >= 0 && (i == 0 || ids[0][i] == ids[0][i - 1] + 1));
        for (int t = 1; t < THREADS; t++) CHECK_INT(ids[t][i], ids[0][i]);
    }
}

/* Last: nothing works after it. */
static void refuses_after_finalize(void) {
    fake->finalize();
    CHECK_INT(mpixla_comm_is_alive(FIXTURE_SELF), 0);
    CHECK_INT(mpixla_comm_is_alive(FIXTURE_RANK2), 0);
    CHECK(comm_find(FIXTURE_RANK2) == NULL);
    CHECK_STR(error_get(), "MPI is finalized, so communicator 'rank2' can no longer be used");
    CHECK_INT(comm_register(FIXTURE_RANK2 + 1, "rank2"), -1);
    CHECK_STR(error_get(), "MPI is finalized, so no communicator can be used any more");
}

/* The key counts those of a kind: of one name, and, once they are known, of the same members. */
static void counts_communicators_of_a_kind(void) {
    enum { MANY = 300, ALIKE = 3 };
    static const int members[] = {0, 1, 2, 3};
    int64_t ids[ALIKE], keys[MANY];
    for (int i = 0; i < MANY; i++) {
        char name[24];
        snprintf(name, sizeof name, "one of many %d", i);
        const int64_t id = mpixla_comm_register(fake->handle(fake->comm_new(0, FIXTURE_SIZE, 0)), name);
        keys[i] = comm_find(id)->key;
        for (int j = 0; j < i; j++) CHECK(keys[i] != keys[j]);
    }
    for (int i = 0; i < ALIKE; i++) {
        ids[i] = mpixla_comm_register(fake->handle(fake->comm_new(0, FIXTURE_SIZE, 0)), "alike");
        CHECK_INT(comm_find(ids[i])->key - (int64_t)comm_find(ids[i])->kind, i);
    }
    for (int i = 0; i < ALIKE; i++)
        for (int again = 0; again < 2; again++) {
            CHECK_INT(mpixla_comm_members_set(ids[i], members), 0);
            CHECK_INT(comm_find(ids[i])->key - (int64_t)comm_find(ids[i])->kind, i);
        }
    const int64_t last = mpixla_comm_register(fake->handle(fake->comm_new(0, FIXTURE_SIZE, 0)), "alike");
    CHECK_INT(comm_find(last)->key - (int64_t)comm_find(last)->kind, 0); /* the others' members are known */
    CHECK_INT(mpixla_comm_members_set(last, members), 0);
    CHECK_INT(comm_find(last)->key - (int64_t)comm_find(last)->kind, ALIKE);
}

int main(int argc, char **argv) {
    knows_none_before_the_start();
    fixture_start(argc, argv);
    numbers_in_order();
    takes_any_name();
    knows_who_is_in_it();
    forgets_a_freed_one();
    tells_a_duplicate_from_its_original();
    refuses();
    has_derived_ones(COMM_REVERSED, "MPI_Comm_split");
    has_derived_ones(COMM_PRIVATE, "MPI_Comm_dup");
    revokes_what_it_has_made();
    is_shared_by_threads();
    counts_communicators_of_a_kind();
    refuses_after_finalize();
    return check_failures();
}
