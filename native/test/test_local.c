/* Ranks that are threads here, each with its own communicator over one memory: all rows that may go through it,
 * compared with what they are to give. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/shared.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "local/local.h"
#include "local/segment.h"

/* As many items as go through it: some posts of each rank. */
enum { RANKS = 4, MOST = 16384, MOST_SPLIT = MOST / RANKS, PAGE = 4096 };

static int64_t comms[RANKS];
static int numbers_of_comms[RANKS];
static void *memories[RANKS]; /* the same, where each has it */
static int32_t sent[RANKS][RANKS * MOST], received[RANKS][RANKS * MOST];

/* One call, which all ranks make. */
static struct {
    const char *op;
    int64_t root, items;
    int reverse;
} now;

/* Afterwards. */
static char messages[RANKS][CALL_MESSAGE];

static void buffer_set(call *c, int side, int position, int64_t items, void *data) {
    call_count_set(c, side, position, items);
    call_dtype_set(c, side, position, FFI_S32);
    c->sides[side].buffers[position].data = data;
}

static void *rank_run(void *number) {
    const int rank = *(const int *)number;
    call *c = malloc(sizeof *c);
    if (!c) return NULL;
    const frame_shape *shape = call_shape(now.op);
    const int64_t all = RANKS * now.items;
    const int is_root = rank == now.root;
    call_make(c, now.op, comms[rank], now.root);
    if (shape->attributes & REVERSE) call_attribute_set(c, "reverse", now.reverse);
    if (shape->send == MPIXLA_EVERYWHERE || (shape->send == MPIXLA_ON_ROOT && is_root))
        buffer_set(c, CALL_OPERANDS, 0, shape->counts == DIVIDED || shape->counts == SCATTERED ? all : now.items,
                   sent[rank]);
    if (shape->recv == MPIXLA_EVERYWHERE || (shape->recv == MPIXLA_ON_ROOT && is_root) ||
        (shape->recv == MPIXLA_OFF_ROOT && !is_root))
        buffer_set(c, CALL_RESULTS, 0, shape->counts == DIVIDED || shape->counts == GATHERED ? all : now.items,
                   received[rank]);
    strcpy(messages[rank], call_run(c));
    free(c);
    return NULL;
}

/* At the same time. */
static void ranks_run(int from, int to) {
    static int numbers[RANKS] = {0, 1, 2, 3};
    pthread_t threads[RANKS];
    for (int i = from; i < to; i++) pthread_create(&threads[i], NULL, rank_run, &numbers[i]);
    for (int i = from; i < to; i++) pthread_join(threads[i], NULL);
}

static int32_t sum(int64_t item, int from, int to) {
    int32_t s = 0;
    for (int r = from; r < to; r++) s += sent[r][item];
    return s;
}

/* What item `i` of what the rank receives is to be. */
static int32_t expected(int rank, int64_t i) {
    const int64_t n = now.items, from = n > 0 ? i / n : 0, at = n > 0 ? i % n : 0;
    const char *op = now.op;
    if (strcmp(op, "allgather") == 0 || strcmp(op, "gather") == 0) return sent[from][at];
    if (strcmp(op, "alltoall") == 0) return sent[from][rank * n + at];
    if (strcmp(op, "bcast") == 0) return sent[now.root][i];
    if (strcmp(op, "scatter") == 0) return sent[now.root][rank * n + i];
    if (strcmp(op, "reduce_scatter") == 0) return sum(rank * n + i, 0, RANKS);
    if (strcmp(op, "scan") == 0) return now.reverse ? sum(i, rank, RANKS) : sum(i, 0, rank + 1);
    if (strcmp(op, "exscan") == 0) return now.reverse ? sum(i, rank + 1, RANKS) : sum(i, 0, rank);
    return sum(i, 0, RANKS);
}

static int64_t received_by(int rank) {
    const frame_shape *shape = call_shape(now.op);
    const int is_root = rank == now.root;
    if (shape->recv == MPIXLA_NOWHERE || (shape->recv == MPIXLA_ON_ROOT && !is_root) ||
        (shape->recv == MPIXLA_OFF_ROOT && is_root))
        return 0;
    return shape->counts == DIVIDED || shape->counts == GATHERED ? RANKS * now.items : now.items;
}

static void check_now(void) {
    static uint32_t random = 1;
    const int calls = fake->calls - fake->probes;
    for (int r = 0; r < RANKS; r++) {
        for (int64_t i = 0; i < RANKS * now.items; i++) sent[r][i] = (int32_t)((random = random * 1664525U + 1U) >> 16);
        memset(received[r], 0x55, sizeof received[r]);
    }
    ranks_run(0, RANKS);
    CHECK_INT(fake->calls - fake->probes, calls); /* nothing went through MPI */
    for (int r = 0; r < RANKS; r++) {
        CHECK_STR(messages[r], "");
        int64_t wrong = 0, all = received_by(r);
        for (int64_t i = 0; i < all; i++) wrong += received[r][i] != expected(r, i);
        if (wrong > 0)
            printf("%s of %lld items, root %lld, rank %d\n", now.op, (long long)now.items, (long long)now.root, r);
        CHECK_INT(wrong, 0);
        CHECK(all == RANKS * MOST || received[r][all] == 0x55555555);
    }
}

static void gives_what_mpi_would(void) {
    static const char *const ops[] = {"allgather", "allreduce", "alltoall",       "barrier", "bcast",  "exscan",
                                      "gather",    "reduce",    "reduce_scatter", "scan",    "scatter"};
    static const int64_t items[] = {0, 1, 3, 100, 4097, 4001, MOST};
    for (int repeat = 0; repeat < 3; repeat++)
        for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++)
            for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
                now.op = ops[o];
                const frame_counts counts = call_shape(now.op)->counts;
                now.items = (counts == DIVIDED || counts == SCATTERED) && items[i] > MOST_SPLIT ? MOST_SPLIT : items[i];
                now.root = (repeat + (int)i) % RANKS;
                now.reverse = repeat & 1;
                check_now();
            }
}

/* Nobody waits for those who read but when all slots are full: there are fewer for many bytes. All begin a call in
 * which they have seen each other. */
static void runs_ahead(void) {
    now.root = 0;
    for (int many = 0; many < 2; many++) {
        const int ahead = many ? 4 : 64;
        now.items = 1;
        now.op = "allreduce";
        check_now();
        now.op = "bcast";
        now.items = many ? 1000 : 1;
        for (int i = 0; i < ahead; i++) {
            sent[0][0] = i;
            ranks_run(0, 1);
            CHECK_STR(messages[0], "");
        }
        fixture_fail("MPI_Iprobe", 75); /* which is called by who waits */
        ranks_run(0, 1);
        fixture_fail(NULL, 0);
        CHECK_IN(messages[0], "MPI_Bcast returned error code 75");
        if (!*messages[0]) exit(check_failures()); /* it is a call ahead of the others, who would wait for ever */
        for (int rank = 1; rank < RANKS; rank++)
            for (int i = 0; i < ahead; i++) {
                ranks_run(rank, rank + 1);
                CHECK_INT(received[rank][0], i);
            }
        check_now();
    }
}

/* A rank that waits calls MPI, which says when it is in vain. */
static void ends_when_mpi_says_so(void) {
    now.op = "allreduce";
    now.items = 1;
    fixture_fail("MPI_Iprobe", 75);
    ranks_run(0, 1);
    fixture_fail(NULL, 0);
    CHECK_IN(messages[0], "MPI_Allreduce returned error code 75");
    ranks_run(1, RANKS); /* what it has posted is there all the same */
    CHECK_STR(messages[1], "");
}

/* As Open MPI does, this one goes on only when it finds no message. Some lie there: one with the tag that is looked for
 * first, and they have any. */
static atomic_int first_tag, moved;
static int lie_there(int source, int tag, int comm) {
    int none = -1;
    (void)source, (void)comm;
    (void)atomic_compare_exchange_strong(&first_tag, &none, tag);
    const int found = tag == FAKE_ANY_TAG || tag == atomic_load(&first_tag);
    moved += !found;
    return found;
}

static void lets_mpi_go_on_beside_messages(void) {
    enum { ENOUGH = 100 };
    static int rank = 0;
    pthread_t thread;
    const int probes = fake->probes;
    now.op = "allreduce";
    now.items = 1;
    atomic_store(&first_tag, -1);
    fake->is_there = lie_there;
    pthread_create(&thread, NULL, rank_run, &rank);
    while (fake->probes < probes + ENOUGH) sched_yield();
    CHECK(moved > 0);
    ranks_run(1, RANKS);
    pthread_join(thread, NULL);
    fake->is_there = NULL;
    CHECK_STR(messages[0], "");
}

/* The fake MPI does not say that all ranks have found the memory. */
static void is_not_made_unless_all_have_it(void) {
    const comm_entry *entry = comm_find(comms[0]);
    segment *s;
    CHECK_INT(segment_make(entry, &s), 0);
    CHECK(s == NULL);
    for (int i = 0; i < 2; i++) {
        fixture_fail(i ? "MPI_Bcast" : "MPI_Allreduce", 4);
        CHECK_INT(segment_make(entry, &s), 4);
        CHECK(s == NULL);
    }
    fixture_fail(NULL, 0);
}

static void refuses_other_calls(void) {
    now.op = "bcast";
    now.root = 0;
    now.items = 2;
    ranks_run(0, 1);
    now.items = 3;
    ranks_run(1, 2);
    CHECK_IN(messages[1],
             "MPI_Bcast: rank 0 of communicator 'of rank 1' makes another call where this rank makes this one");
}

static int is_mapped(int rank) {
    return msync(memories[rank], PAGE, MS_ASYNC) == 0;
}

/* A program that frees communicators while a call waits for others: in the memory of one of them. */
static void lasts_as_long_as_it_is_used(void) {
    static int rank = 0;
    pthread_t thread;
    const int probes = fake->probes;
    now.op = "barrier";
    pthread_create(&thread, NULL, rank_run, &rank);
    while (fake->probes == probes) sched_yield();
    ranks_run(rank, rank + 1);
    CHECK_IN(messages[rank], "two threads make collective calls on communicator 'of rank 0' at the same time");
    CHECK(is_mapped(1));
    fake->comm_free(numbers_of_comms[1]);
    CHECK(!is_mapped(1));
    CHECK(is_mapped(rank));
    fake->comm_free(numbers_of_comms[rank]);
    pthread_join(thread, NULL);
    CHECK_IN(messages[rank], "freed");
    CHECK(!is_mapped(rank));
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    const uint64_t shared = shared_number();
    for (int i = 0; i < RANKS; i++) {
        const int number = numbers_of_comms[i] = fake->comm_new(i, RANKS, 0);
        char name[16];
        snprintf(name, sizeof name, "of rank %d", i);
        comms[i] = mpixla_comm_register(fake->handle(number), name);
        comm_entry *entry = comm_find(comms[i]);
        memories[i] = shared_open(shared, i == 0, segment_bytes(RANKS), 0, segment_bytes(RANKS));
        if (!memories[i]) return 1;
        comm_attach(entry, COMM_SLOT_LOCAL, segment_over(memories[i], entry));
    }
    shared_forget(shared);
    mpixla_local_start();
    gives_what_mpi_would();
    runs_ahead();
    ends_when_mpi_says_so();
    lets_mpi_go_on_beside_messages();
    is_not_made_unless_all_have_it();
    refuses_other_calls();
    lasts_as_long_as_it_is_used();
    return check_failures();
}
