/* Ranks that are threads here, each with its own communicator: exchanges between neighbours through memory that two of
 * them share. What ranks tell each other when they make it goes from thread to thread, in place of the fake MPI's
 * collective calls, which move nothing. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "fixture.h"
#include "local/local.h"
#include "local/pairs.h"
#include "run.h"

enum { RANKS = 4, MOST = 8192 /* items of a message, as many as go through a ring, in pieces */, EDGES = 4 };

static int64_t comms[RANKS]; /* by rank, here and below */
static int numbers_of_comms[RANKS];
static int32_t *sent[RANKS], *received[RANKS];
static char told[RANKS][CALL_MESSAGE];

/* What ranks tell each other */

static int host_of[RANKS];
static _Thread_local int me;
static _Thread_local enum { GATHER, GATHERED_ALL, SPREAD, SPREAD_ALL, AGREED } phase = AGREED;
static char board[RANKS][RANKS * sizeof(uint64_t)];
static atomic_int arrivals;

static void meet(void) {
    const int mine = atomic_fetch_add(&arrivals, 1), all = (mine / RANKS + 1) * RANKS;
    while (atomic_load(&arrivals) < all) sched_yield();
}

/* Who is on another host finds no memory by the number that it is told. */
static void agree(void *memory, int64_t bytes, int is_received) {
    const int64_t each = bytes / RANKS;
    if (phase == AGREED) return;
    if (!is_received) {
        memcpy(board[me], memory, (size_t)bytes);
        meet();
    }
    for (int r = 0; r < RANKS && is_received; r++) {
        char *to = (char *)memory + r * each;
        memcpy(to, board[r] + (phase == SPREAD_ALL ? me * each : 0), (size_t)each);
        if (phase == GATHERED_ALL && host_of[r] != host_of[me]) *to = (char)(*to + 1);
    }
    if (is_received) meet();
    phase++;
}

static int64_t bytes_of_type(int type) {
    return type == FFI_U64 ? 8 : type == FFI_U8 ? 1 : 4;
}

/* Calls */

/* What each rank sends, and to whom. */
typedef struct graph {
    int64_t number, ranks[EDGES], tags[EDGES], items[EDGES];
} graph;
static graph dests[RANKS], sources[RANKS];
static int is_first; /* the call makes the memory */

static int64_t items_of(const graph *g) {
    int64_t items = 0;
    for (int64_t i = 0; i < g->number; i++) items += g->items[i];
    return items;
}

static void edge_add(int from, int to, int64_t tag, int64_t items) {
    graph *d = &dests[from], *s = &sources[to];
    d->ranks[d->number] = to;
    s->ranks[s->number] = from;
    d->tags[d->number] = s->tags[s->number] = tag;
    d->items[d->number++] = s->items[s->number++] = items;
}

static void edges_clear(void) {
    memset(dests, 0, sizeof dests);
    memset(sources, 0, sizeof sources);
}

static void *rank_run(void *number) {
    me = (int)(intptr_t)number;
    phase = is_first ? GATHER : AGREED;
    call *c = malloc(sizeof *c);
    if (!c) return NULL;
    const graph *d = &dests[me], *s = &sources[me];
    int64_t offsets[EDGES] = {0};
    for (int64_t i = 1; i < d->number; i++) offsets[i] = offsets[i - 1] + d->items[i - 1];
    call_make(c, "exchange", comms[me], 0);
    call_edges_set(comms[me], 1, d->number, d->ranks, d->tags);
    call_edges_set(comms[me], 0, s->number, s->ranks, s->tags);
    call_list_set(c, "sendcounts", d->items, (size_t)d->number);
    call_list_set(c, "sendoffsets", offsets, (size_t)d->number);
    call_list_set(c, "recvcounts", s->items, (size_t)s->number);
    for (int side = 0; side < 2; side++) {
        call_dtype_set(c, side, 0, FFI_S32);
        call_count_set(c, side, 0, items_of(side == CALL_OPERANDS ? d : s));
        c->sides[side].buffers[0].data = side == CALL_OPERANDS ? sent[me] : received[me];
    }
    strcpy(told[me], call_run(c));
    free(c);
    return NULL;
}

static pthread_t rank_start(int rank) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, rank_run, (void *)(intptr_t)rank) == 0);
    return thread;
}

static void one_run(int rank) {
    pthread_join(rank_start(rank), NULL);
}

static void all_run(void) {
    threads_run(RANKS, rank_run);
}

static pthread_t waiting_start(int rank) {
    const int probes = fake->probes; /* which who waits makes */
    const pthread_t thread = rank_start(rank);
    while (fake->probes == probes) sched_yield();
    return thread;
}

static void sent_fill(int32_t start) {
    for (int r = 0; r < RANKS; r++) {
        const int64_t n = items_of(&dests[r]), m = items_of(&sources[r]);
        for (int64_t i = 0; i < n; i++) sent[r][i] = (int32_t)(start + r * 1000003 + i * 7);
        for (int64_t i = 0; i < m; i++) received[r][i] = -1;
    }
}

/* The messages of two ranks with one tag meet in their order. */
static void received_check(int rank) {
    const graph *s = &sources[rank];
    int64_t at = 0;
    for (int64_t i = 0; i < s->number; at += s->items[i++]) {
        const graph *d = &dests[s->ranks[i]];
        int64_t nth = 0, from = 0, j = 0, wrong = 0;
        for (int64_t k = 0; k < i; k++) nth += s->ranks[k] == s->ranks[i] && s->tags[k] == s->tags[i];
        for (;; from += d->items[j++])
            if (d->ranks[j] == rank && d->tags[j] == s->tags[i] && nth-- == 0) break;
        for (int64_t k = 0; k < s->items[i]; k++) wrong += received[rank][at + k] != sent[s->ranks[i]][from + k];
        CHECK_INT(wrong, 0);
    }
}

static void all_check(void) {
    const int posted = fake->calls - fake->probes;
    sent_fill(fake->calls);
    all_run();
    for (int r = 0; r < RANKS; r++) {
        CHECK_STR(told[r], "");
        received_check(r);
    }
    CHECK_INT(fake->calls - fake->probes, posted); /* nothing went through MPI */
}

/* New communicators, whose ranks have made their memory in a first call in which nobody sends much. */
static void begin(void (*edges)(int64_t items)) {
    for (int r = 0; r < RANKS; r++) {
        char name[16];
        mpixla_handle private;
        if (comms[r]) (void)fake->comm_free(numbers_of_comms[r]);
        numbers_of_comms[r] = fake->comm_new(r, RANKS, 0);
        snprintf(name, sizeof name, "of rank %d", r);
        comms[r] = mpixla_comm_register(fake->handle(numbers_of_comms[r]), name);
        CHECK_INT(comm_derive(comm_find_any(comms[r]), COMM_PRIVATE, &private), 0);
    }
    edges_clear();
    edges(1);
    sent_fill(1);
    is_first = 1;
    all_run();
    is_first = 0;
    for (int r = 0; r < RANKS; r++) CHECK_STR(told[r], "");
    edges_clear();
}

static void ring(int64_t items) {
    for (int r = 0; r < RANKS; r++) {
        edge_add(r, (r + 1) % RANKS, 0, items);
        edge_add(r, (r + RANKS - 1) % RANKS, 1, items / 2);
    }
}

/* Rank 0 alone sends. */
static void one_way(int64_t items) {
    edge_add(0, 1, 0, items);
}

static void any_length_arrives(void) {
    static const int64_t items[] = {0, 1, 3, 12, 13, 100, 4092, 4093, 5000, 7000, MOST};
    begin(ring);
    for (int repeat = 0; repeat < 4; repeat++)
        for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
            edges_clear();
            ring(items[i]);
            all_check();
        }
}

/* One rank is both neighbours of another, and of itself: their tags, or else their order, tell messages apart. */
static void several_messages_of_a_pair(void) {
    begin(ring);
    for (int descending = 0; descending < 2; descending++) {
        edges_clear();
        for (int r = 0; r < RANKS; r++)
            for (int i = 0; i < 2; i++) {
                const int tag = descending ? 1 - i : i;
                dests[r].ranks[i] = sources[r].ranks[i] = r ^ 1;
                dests[r].tags[i] = tag;
                sources[r].tags[i] = 1 - tag;
                dests[r].items[i] = 7500 + tag;
                sources[r].items[i] = 7500 + 1 - tag;
                dests[r].number = sources[r].number = 2;
            }
        all_check();
    }
    edges_clear();
    for (int i = 0; i < 3; i++) edge_add(2, 3, 0, 1 + 4000 * i);
    all_check();
}

static void to_itself(int64_t items) {
    for (int r = 0; r < RANKS; r++) edge_add(r, r, 0, items);
}

static void a_rank_sends_to_itself(void) {
    begin(to_itself);
    to_itself(MOST);
    all_check();
}

/* Who sends goes on until the ring is full, and then waits. */
static void a_sender_is_far_ahead(void) {
    static const int64_t items[] = {1, 1000, 7500};
    static const int ahead[] = {2000, 30, 4};
    begin(one_way);
    for (int i = 0; i < 3; i++) {
        edges_clear();
        one_way(items[i]);
        for (int call = 0; call < ahead[i]; call++) {
            sent_fill(call);
            one_run(0);
            CHECK_STR(told[0], "");
        }
        for (int call = 0; call < ahead[i]; call++) {
            one_run(1);
            CHECK_STR(told[1], "");
            CHECK_INT(received[1][0], call);
        }
    }
    sent_fill(5);
    for (int i = 0; i < 4; i++) one_run(0);
    const pthread_t thread = waiting_start(0);
    for (int i = 0; i < 5; i++) {
        one_run(1);
        received_check(1);
    }
    pthread_join(thread, NULL);
}

/* What goes to another host is given to MPI before anybody waits for the others. */
static void neighbours_on_another_host(void) {
    host_of[2] = host_of[3] = 1;
    begin(ring);
    host_of[2] = host_of[3] = 0;
    ring(MOST);
    sent_fill(1);
    fake->posted = 0;
    for (int i = 0; i < FAKE_MESSAGES; i++) fake->messages[i].waited = 1;
    const pthread_t waiting = waiting_start(0);
    CHECK_INT(fake->posted, 2); /* to rank 3, and from it */
    for (int i = 0; i < 2; i++) CHECK_INT(fake->messages[i].peer, 3);
    one_run(1);
    pthread_join(waiting, NULL);
    CHECK_STR(told[0], "");
    CHECK_STR(told[1], "");
    for (int64_t i = 0; i < MOST; i++) received[0][MOST / 2 + i] = sent[3][i]; /* which the fake does not move */
    received_check(0);
}

/* Both ends know, whatever the receiver expects. */
static void long_messages_go_through_mpi(void) {
    begin(one_way);
    for (int shorter = 0; shorter < 2; shorter++) {
        edges_clear();
        one_way(MOST + 1);
        if (shorter) sources[1].items[0] = 3;
        sent_fill(1);
        fake->posted = 0;
        one_run(0);
        one_run(1);
        CHECK_STR(told[0], "");
        CHECK_STR(told[1], "");
        CHECK_STR(fake->messages[fake->posted - 1].function, "MPI_Irecv");
    }
    edges_clear();
    one_way(5);
    all_check();
}

/* The receiver is told, in the words that are MPI's elsewhere; the next call is right. */
static void lengths_that_disagree(void) {
    begin(ring);
    for (int longer = 0; longer < 2; longer++) {
        edges_clear();
        edge_add(0, 1, 0, 8000);
        sources[1].items[0] += longer ? -4000 : 4000;
        sent_fill(3);
        received[1][4000] = -5;
        const pthread_t thread = rank_start(0);
        one_run(1);
        pthread_join(thread, NULL);
        CHECK_STR(told[0], "");
        if (longer) {
            CHECK_IN(told[1], "MPI_Irecv returned error code 14: the fake MPI's text for error 14 (");
            CHECK_IN(told[1], "in source slot 0 <- 0 with tag 0 and 4000 items");
            CHECK_INT(received[1][4000], -5);
        } else {
            CHECK_IN(told[1],
                     "a message of 32000 bytes came from rank 0, but source slot 0 was to receive 48000: the two "
                     "ranks disagree on the messages between them (");
        }
        edges_clear();
        ring(7);
        all_check();
    }
}

/* Calls that fail in the middle */

static void check_broken(int rank, const char *why) {
    edges_clear();
    ring(1);
    one_run(rank);
    CHECK_IN(told[rank], why);
    CHECK_IN(told[rank], "no collective call can be made on communicator 'of rank");
    call *c = malloc(sizeof *c);
    if (!c) return;
    call_make(c, "allgatherv", comms[rank], 0); /* which goes through MPI */
    CHECK_IN(call_run(c), why);
    free(c);
}

/* Who comes later hears of it, from the rank or from those who wait for it. */
static void breaks_when_mpi_says_that_it_waits_in_vain(void) {
    begin(ring);
    ring(1);
    sent_fill(1);
    fixture_fail("MPI_Iprobe", 75);
    one_run(0);
    fixture_fail(NULL, 0);
    CHECK_IN(told[0], "MPI_Isend returned error code 75");
    check_broken(0, "has failed on rank 0 before all ranks had its data: r0 | MPI_Isend returned");
    check_broken(3, "has failed on rank 0 before all ranks");
    check_broken(2, "has failed on rank 0 before all ranks");
}

static void ends_the_waits_of_others(void) {
    begin(ring);
    ring(1);
    sent_fill(1);
    const pthread_t waiting = waiting_start(1);
    memory_break(pairs_held.state(comm_attached(comm_find_any(comms[0]), COMM_SLOT_PAIRS)), 0, 0, "a test");
    pthread_join(waiting, NULL);
    CHECK_IN(told[1], "has failed on rank 0 before all ranks had its data: a test. Go on");
    check_broken(2, "has failed on rank 0 before all ranks had its data: a test. Go on");
}

static void two_threads(void) {
    begin(one_way);
    one_way(3);
    sent_fill(1);
    const pthread_t thread = waiting_start(1);
    one_run(1);
    CHECK_IN(told[1], "two threads make collective calls on communicator 'of rank 1' at the same time");
    one_run(0);
    pthread_join(thread, NULL);
    CHECK_STR(told[1], "");
    check_broken(1, "two threads of it made collective calls at the same time");
}

static void freed_while_it_waits(void) {
    begin(one_way);
    one_way(3);
    sent_fill(1);
    const pthread_t thread = waiting_start(1);
    (void)fake->comm_free(numbers_of_comms[1]);
    pthread_join(thread, NULL);
    comms[1] = 0;
    CHECK_IN(told[1], "the communicator was freed while this call waited for other ranks");
}

/* MPI fails while the memory is made: of the others nobody knows. */
static void broken_before_it_is_made(void) {
    static const char *const functions[] = {"MPI_Allgather", "MPI_Alltoall"};
    for (int i = 0; i < 2; i++) {
        begin(ring);
        void *made;
        fixture_fail(functions[i], 4);
        CHECK_INT(pairs_held.make(comm_find_any(comms[0]), &made), 4);
        fixture_fail(NULL, 0);
        CHECK(made != NULL);
        if (!made) continue;
        CHECK_INT(pairs_held.check(made), REFUSED);
        CHECK_IN(mpixla_last_error(), "by which neighbours agree to share memory");
        pairs_held.free(made);
    }
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fake->touches = agree;
    fake->item_bytes = bytes_of_type;
    for (int r = 0; r < RANKS; r++) {
        sent[r] = calloc(2 * MOST, sizeof **sent);
        received[r] = calloc(2 * MOST, sizeof **received);
        if (!sent[r] || !received[r]) return 2;
    }
    mpixla_local_start();
    any_length_arrives();
    several_messages_of_a_pair();
    a_rank_sends_to_itself();
    a_sender_is_far_ahead();
    neighbours_on_another_host();
    long_messages_go_through_mpi();
    lengths_that_disagree();
    breaks_when_mpi_says_that_it_waits_in_vain();
    ends_the_waits_of_others();
    two_threads();
    freed_while_it_waits();
    broken_before_it_is_made();
    for (int r = 0; r < RANKS; r++) {
        free(sent[r]);
        free(received[r]);
    }
    return check_failures();
}
