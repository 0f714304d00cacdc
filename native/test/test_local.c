/* Ranks that are threads here, each with its own communicator over one memory: all rows that may go through it,
 * compared with what they are to give. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/shared.h"
#include "call.h"
#include "fixture.h"
#include "local/local.h"
#include "local/segment.h"
#include "run.h"

/* As many items as go through it: some posts of each rank; and of a call that combines more than one long post. */
enum { RANKS = 4, MOST = 16384, MOST_SPLIT = MOST / RANKS, MOST_COMBINED = RANKS * MOST, PAGE = 4096 };

static int64_t comms[RANKS]; /* by rank, here and below */
static int numbers_of_comms[RANKS];
static void *memories[RANKS]; /* the same, where each has it */
static int32_t sent[RANKS][RANKS * MOST], received[RANKS][RANKS * MOST];

/* One call, which all ranks make. */
static struct call_now {
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
        for (int64_t i = 0; i < RANKS * MOST; i++) sent[r][i] = (int32_t)((random = random * 1664525U + 1U) >> 16);
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

static int64_t most_items(const frame_shape *shape) {
    const int is_split = shape->counts == DIVIDED || shape->counts == SCATTERED;
    if (shape->attributes & OP) return is_split ? MOST_COMBINED / RANKS : MOST_COMBINED;
    return is_split ? MOST_SPLIT : MOST;
}

static void gives_what_mpi_would(void) {
    static const char *const ops[] = {"allgather", "allreduce", "alltoall",       "barrier", "bcast",  "exscan",
                                      "gather",    "reduce",    "reduce_scatter", "scan",    "scatter"};
    static const int64_t items[] = {0, 1, 3, 100, 4097, 4001, MOST, 40001, MOST_COMBINED - 3};
    for (int repeat = 0; repeat < 3; repeat++)
        for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++)
            for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
                now.op = ops[o];
                const int64_t most = most_items(call_shape(now.op));
                now.items = items[i] < most ? items[i] : most;
                now.root = (repeat + (int)i) % RANKS;
                now.reverse = repeat & 1;
                check_now();
            }
}

/* Gives all ranks memory that nobody has used. */
static void memory_renew(void) {
    const uint64_t shared = shared_random_number();
    for (int i = 0; i < RANKS; i++) {
        comm_entry *entry = comm_find(comms[i]);
        segment *old = comm_attached(entry, COMM_SLOT_LOCAL);
        if (old) segment_free(old);
        memories[i] = shared_open(shared, i == 0, segment_bytes(RANKS), 0, segment_bytes(RANKS));
        CHECK(memories[i] != NULL);
        if (!memories[i]) exit(check_failures());
        comm_attach(entry, COMM_SLOT_LOCAL, segment_new_over(memories[i], entry));
    }
    shared_unlink(shared);
}

/* Runs a call of rank 0 that waits for others, in a thread of its own. */
static pthread_t waiting_run(void) {
    static int rank = 0;
    pthread_t thread;
    const int probes = fake->probes; /* which who waits makes */
    pthread_create(&thread, NULL, rank_run, &rank);
    while (fake->probes == probes) sched_yield();
    return thread;
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
        const pthread_t thread = waiting_run();
        for (int rank = 1; rank < RANKS; rank++)
            for (int i = 0; i < ahead; i++) {
                ranks_run(rank, rank + 1);
                CHECK_INT(received[rank][0], i);
            }
        pthread_join(thread, NULL);
        CHECK_STR(messages[0], "");
        ranks_run(1, RANKS);
        check_now();
    }
}

/* Calls that fail after they have begun */

/* No rank can make a collective call any more, whichever way it would go, and each says why and what to do. */
static void check_broken(const char *why) {
    static const char *const ops[] = {"bcast", "allreduce", "barrier"}, *const others[] = {"allgatherv", "iallreduce"};
    const int calls = fake->calls - fake->probes;
    for (int rank = 0; rank < RANKS; rank++)
        for (int o = 0; o < 2; o++) {
            call *c = malloc(sizeof *c);
            if (!c) return;
            call_make(c, others[o], comms[rank], 0);
            CHECK_IN(call_run(c), why);
            free(c);
        }
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        now.op = ops[o];
        now.items = o == 0 ? MOST_COMBINED : 1; /* more than goes through memory */
        for (int rank = 0; rank < RANKS; rank++) {
            ranks_run(rank, rank + 1);
            CHECK_IN(messages[rank], why);
            CHECK_IN(messages[rank], "no collective call can be made on communicator 'of rank");
            CHECK_IN(messages[rank], "comm.Dup()");
        }
    }
    CHECK_INT(fake->calls - fake->probes, calls);
    memory_renew();
    now.op = "allreduce";
    now.items = 3;
    check_now();
}

/* What rank 2 sends before and after a call that fails there, with the slots that it would use again if the call had
 * been read by all: rank 1 has read nothing yet. */
static void never_gives_what_another_call_sent(void) {
    enum { CALLS = 60 };
    now.op = "allreduce";
    now.items = 1;
    check_now();
    now = (struct call_now){.op = "bcast", .root = 2, .items = 1};
    for (int i = 0; i < CALLS; i++) {
        sent[2][0] = i;
        ranks_run(2, 3);
        ranks_run(0, 1);
        CHECK_INT(received[0][0], i);
    }
    now.root = 0;
    ranks_run(0, 1);
    now.op = "allreduce";
    ranks_run(2, 3);
    CHECK_IN(messages[2], "MPI_Allreduce: rank 0 of communicator 'of rank 2' makes another call");
    now = (struct call_now){.op = "bcast", .root = 2, .items = 1};
    for (int i = 0; i < CALLS; i++) {
        sent[2][0] = 1000 + i;
        ranks_run(2, 3);
    }
    for (int i = 0; i < CALLS; i++) {
        ranks_run(1, 2);
        CHECK(*messages[1] || received[1][0] == i);
    }
    check_broken("has failed on rank 2 before all ranks had its data: MPI_Allreduce: rank 0");
}

/* A rank that waits calls MPI, which says when it is in vain. The others may wait for its next post. */
static void breaks_when_mpi_says_that_it_waits_in_vain(void) {
    now.op = "allreduce";
    now.items = 1;
    fixture_fail("MPI_Iprobe", 75);
    ranks_run(0, 1);
    fixture_fail(NULL, 0);
    CHECK_IN(messages[0], "MPI_Allreduce returned error code 75");
    check_broken("has failed on rank 0 before all ranks had its data: r0 | MPI_Allreduce returned");
}

static void breaks_when_a_reduction_fails(void) {
    now.op = "allreduce";
    now.items = 2 * MOST / RANKS; /* several rounds */
    fixture_fail("MPI_Reduce_local", 9);
    ranks_run(0, RANKS);
    fixture_fail(NULL, 0);
    check_broken("MPI_Allreduce returned error code 9");
}

/* Those that wait already hear of it, and so does who comes later. */
static void ends_the_waits_of_others(void) {
    now.op = "allreduce";
    now.items = 1;
    const pthread_t thread = waiting_run();
    now.items = 2;
    ranks_run(2, 3);
    CHECK_IN(messages[2], "rank 0 of communicator 'of rank 2' makes another call");
    pthread_join(thread, NULL);
    CHECK_IN(messages[0], "no collective call can be made");
    check_broken("has failed on rank 2 before");
}

/* One rank makes its first long call, for which all share more memory, and another one a short call. */
static void never_takes_a_short_call_for_a_long_one(void) {
    now.op = "allreduce";
    now.items = MOST_COMBINED;
    const pthread_t thread = waiting_run();
    now.items = 1;
    ranks_run(2, 3);
    CHECK_IN(messages[2], "rank 0 of communicator 'of rank 2' makes another call");
    pthread_join(thread, NULL);
    CHECK_IN(messages[0], "no collective call can be made");
    check_broken("has failed on rank 2 before");
}

static void leaves_long_calls_to_mpi_where_there_is_no_memory(void) {
    struct rlimit files, none;
    memory_renew();
    now.op = "allreduce";
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = files.rlim_max};
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int repeat = 0; repeat < 2; repeat++) { /* it is tried once */
        const int calls = fake->calls - fake->probes;
        now.items = MOST_COMBINED;
        ranks_run(0, RANKS);
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &files), 0);
        CHECK_INT(fake->calls - fake->probes, calls + RANKS);
        for (int rank = 0; rank < RANKS; rank++) CHECK_STR(messages[rank], "");
        now.items = MOST / 2; /* some posts of the memory that is there */
        check_now();
    }
    memory_renew();
}

/* Another thread's call was not made, in whose place other ranks would take the next. */
static void breaks_when_two_threads_call(void) {
    now.op = "allreduce";
    now.items = 1;
    const pthread_t thread = waiting_run();
    ranks_run(0, 1);
    CHECK_IN(messages[0], "two threads make collective calls on communicator 'of rank 0' at the same time");
    ranks_run(1, RANKS); /* the first one's goes on */
    pthread_join(thread, NULL);
    CHECK_STR(messages[0], "");
    check_broken("has failed on rank 0 before all ranks had its data: two threads of it");
}

/* A process that has posted, and then ended. MPI itself has an error class for it, or does not know. */
static void hears_of_the_end_of_a_process(void) {
    for (int knows = 0; knows < 2; knows++) {
        memory_renew();
        pid_t child = fork();
        if (child == 0) {
            comm_entry *entry = comm_find(comms[1]);
            free(comm_attached(entry, COMM_SLOT_LOCAL));
            comm_attach(entry, COMM_SLOT_LOCAL, segment_new_over(memories[1], entry));
            now.op = "bcast";
            now.root = 1;
            now.items = 1;
            sent[1][0] = 7;
            ranks_run(1, 2);
            _exit(*messages[1] != '\0');
        }
        CHECK_INT(process_end(child), 0);
        mpixla_loss_classes_set(knows ? 71 : 0, 0, 0);
        now.op = "bcast";
        now.root = 1;
        now.items = 1;
        ranks_run(0, 1);
        CHECK_STR(messages[0], "");
        CHECK_INT(received[0][0], 7); /* what it has posted is there all the same */
        now.op = "allreduce";
        ranks_run(0, 1);
        if (!knows) {
            CHECK_IN(messages[0], "the process of rank 1 of communicator 'of rank 0'");
            check_broken("the process of rank 1 of communicator 'of rank 0'");
            continue;
        }
        CHECK_IN(messages[0], "MPI_Allreduce returned error code 71");
        CHECK_IN(messages[0], "go on without it by comm.Revoke() and comm.Shrink()");
        ranks_run(2, 3);
        CHECK_IN(messages[2], "returned error code 71");
        mpixla_loss_classes_set(0, 0, 0);
        memory_renew();
    }
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

/* Rank 0's message about the memory, and whether another rank has not found it. */
static struct {
    uint64_t number, nonce;
} told;
static int is_not_found;
static void tell(void *memory, int64_t bytes, int is_received) {
    uint64_t *words = memory;
    if (!is_received || bytes != sizeof told) return;
    if (words[0] != ~words[1])
        memcpy(memory, &told, sizeof told);
    else if (is_not_found) /* whose number is 0 */
        words[1] = UINT64_MAX;
}

static int64_t bytes_of_u64(int type) {
    (void)type;
    return sizeof(uint64_t);
}

static void proves_that_it_is_the_same_memory(void) {
    const comm_entry *entry = comm_find(comms[1]);
    segment *s;
    told.number = shared_random_number();
    uint64_t *memory = shared_open(told.number, 1, segment_bytes(RANKS), 0, segment_bytes(RANKS));
    CHECK(memory != NULL);
    if (!memory) return;
    *memory = shared_random_number();
    fake->touches = tell;
    fake->item_bytes = bytes_of_u64;
    for (int right = 0; right < 2; right++) {
        told.nonce = *memory + !right;
        CHECK_INT(segment_make(entry, &s), 0);
        if (s) segment_free(s);
        CHECK((s != NULL) == right);
    }
    fake->touches = NULL;
    fake->item_bytes = NULL;
    shared_unlink(told.number);
    shared_close(memory, segment_bytes(RANKS));
}

/* If MPI fails, other ranks may have found the memory. */
static void is_not_made_unless_all_have_it(void) {
    const comm_entry *entry = comm_find(comms[0]);
    segment *s;
    fake->touches = tell;
    fake->item_bytes = bytes_of_u64;
    for (is_not_found = 1; is_not_found >= 0; is_not_found--) {
        CHECK_INT(segment_make(entry, &s), 0);
        CHECK((s != NULL) == !is_not_found);
        if (s) segment_free(s);
    }
    is_not_found = 0;
    fake->touches = NULL;
    fake->item_bytes = NULL;
    for (int i = 0; i < 2; i++) {
        fixture_fail(i ? "MPI_Bcast" : "MPI_Allreduce", 4);
        CHECK_INT(segment_make(entry, &s), 4);
        CHECK(s != NULL);
        if (!s) continue;
        CHECK_INT(segment_check(s), REFUSED);
        CHECK_IN(mpixla_last_error(), "by which its ranks agree to share memory");
        segment_free(s);
    }
    fixture_fail(NULL, 0);
}

static int is_mapped(int rank) {
    return msync(memories[rank], PAGE, MS_ASYNC) == 0;
}

/* A program that frees communicators while a call waits for others: in the memory of one of them. */
static void lasts_as_long_as_it_is_used(void) {
    now.op = "barrier";
    const pthread_t thread = waiting_run();
    CHECK(is_mapped(1));
    fake->comm_free(numbers_of_comms[1]);
    CHECK(!is_mapped(1));
    CHECK(is_mapped(0));
    fake->comm_free(numbers_of_comms[0]);
    pthread_join(thread, NULL);
    CHECK_IN(messages[0], "freed");
    CHECK(!is_mapped(0));
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    for (int i = 0; i < RANKS; i++) {
        const int number = numbers_of_comms[i] = fake->comm_new(i, RANKS, 0);
        char name[16];
        snprintf(name, sizeof name, "of rank %d", i);
        comms[i] = mpixla_comm_register(fake->handle(number), name);
    }
    memory_renew();
    mpixla_local_start();
    gives_what_mpi_would();
    runs_ahead();
    never_gives_what_another_call_sent();
    breaks_when_mpi_says_that_it_waits_in_vain();
    breaks_when_a_reduction_fails();
    ends_the_waits_of_others();
    never_takes_a_short_call_for_a_long_one();
    leaves_long_calls_to_mpi_where_there_is_no_memory();
    breaks_when_two_threads_call();
    hears_of_the_end_of_a_process();
    lets_mpi_go_on_beside_messages();
    is_not_made_unless_all_have_it();
    proves_that_it_is_the_same_memory();
    lasts_as_long_as_it_is_used();
    return check_failures();
}
