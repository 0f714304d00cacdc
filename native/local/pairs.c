/* A piece in a ring is a record: its length and one, that of the message, and the bytes. The next record begins at the
 * next line of the cache. Before a rank writes a record it clears the length of the next one, so that bytes of an
 * earlier lap are never taken for a record.
 */
#include "local/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "base/feature.h"
#include "base/shared.h"
#include "mpi/loss.h"
#include "xla/xla_ffi.h"

enum {
    MOST_PAIRS = 32, /* of a rank; one with more neighbours sends all through MPI */
    RING_BYTES = 1 << 17,
    PIECE_BYTES = 1 << 14 /* at most; a multiple of 16, as is all that is cut */
};

typedef struct record {
    _Alignas(16) _Atomic uint64_t length; /* of the piece, and one; 0: it is not there yet */
    uint64_t whole;
} record;

typedef struct ring {
    _Alignas(MEMORY_LINE) _Atomic uint64_t read; /* bytes since the beginning, with the padding between records */
    _Alignas(MEMORY_LINE) char bytes[RING_BYTES];
} ring;

/* The beginning of a rank's memory; its rings follow. */
typedef struct head {
    uint64_t nonce; /* random: it shows that another rank has opened the memory that this one made */
    process_id process;
    memory_state state;
} head;

enum { HEAD_BYTES = MEMORY_PAGE };
_Static_assert(sizeof(head) <= HEAD_BYTES, "the head has its page");

struct pair {
    int rank;
    head *theirs; /* their memory */
    int64_t their_bytes;
    ring *out, *in;
    uint64_t posted, most; /* bytes in `out` since the beginning, and how many there may be for all that is known */
    uint64_t read;         /* of `in` */
    pair_progress progress[2];
};

struct pairs {
    head *own; /* this rank's memory, or `none` */
    int64_t own_bytes;
    head none;
    const comm_entry *communicator;
    int spins;
    int number;
    pair all[MOST_PAIRS];
};

static atomic_int is_on;

/* Unmaps a neighbour's memory, unless it is this rank's own. */
static void pairs_close(const pairs *p, const pair *one) {
    if (one->theirs && one->theirs != p->own) shared_close(one->theirs, one->their_bytes);
}

/* Unmaps all memory of the pairs, and frees them. */
static void pairs_free(void *value) {
    pairs *p = value;
    for (int i = 0; i < p->number; i++) pairs_close(p, &p->all[i]);
    if (p->own != &p->none) shared_close(p->own, p->own_bytes);
    free(p);
}

/* Making them */

/* A rank's memory, as it describes it to all others. */
typedef struct offer {
    uint64_t number, nonce, rings; /* no rings: it has no memory */
} offer;
enum { OFFER_NUMBERS = sizeof(offer) / sizeof(uint64_t) };

static int64_t pairs_memory_bytes(uint64_t rings) {
    return HEAD_BYTES + (int64_t)rings * (int64_t)sizeof(ring);
}

static ring *pairs_ring(head *memory, uint64_t number) {
    return (ring *)((char *)memory + HEAD_BYTES) + number;
}

/* Adds each rank of the slots as a pair, once; this rank, too, if it is its own neighbour. With more than MOST_PAIRS
 * p->number becomes greater than that, and none is used. */
static void pairs_neighbours_add(pairs *p, const topology_slots *slots) {
    for (int64_t i = 0; i < slots->number && p->number <= MOST_PAIRS; i++) {
        const int64_t rank = slots->ranks[i];
        int known = rank == MPIXLA_PROC_NULL;
        for (int j = 0; j < p->number && !known; j++) known = p->all[j].rank == rank;
        if (known) continue;
        if (p->number < MOST_PAIRS) p->all[p->number] = (pair){.rank = (int)rank};
        p->number++;
    }
}

/* Makes this rank's memory, with a ring for each pair. Returns its description for the other ranks; without memory one
 * with no rings, and p->number becomes 0. */
static offer pairs_memory_make(pairs *p) {
    const offer mine = {shared_random_number(), shared_random_number(), (uint64_t)p->number};
    head *memory = NULL;
    p->own_bytes = pairs_memory_bytes(mine.rings);
    if (p->number > 0 && p->number <= MOST_PAIRS) memory = shared_open(mine.number, 1, p->own_bytes, 0, p->own_bytes);
    if (!memory) {
        p->number = 0;
        return (offer){0};
    }
    memory->nonce = mine.nonce;
    memory->process = process_self();
    p->own = memory;
    return mine;
}

/* Sets one->theirs to the mapped memory of a neighbour, for this rank itself to its own; NULL if it cannot be had.
 * Returns whether it is there, and is the memory of that offer. */
static int pair_open(const pairs *p, pair *one, const offer *theirs) {
    if (theirs->rings == 0) return 0;
    one->their_bytes = pairs_memory_bytes(theirs->rings);
    one->theirs =
        one->rank == p->communicator->rank ? p->own : shared_open(theirs->number, 0, one->their_bytes, 0, HEAD_BYTES);
    if (!one->theirs || one->theirs->nonce == theirs->nonce) return one->theirs != NULL;
    pairs_close(p, one);
    one->theirs = NULL;
    return 0;
}

/* Exchanges the descriptions of all ranks' memory in `offers`, and keeps the pairs in which each rank has opened the
 * other's. Collective. Returns 0 or MPI's error code: then there are no pairs. In `told` and `heard` each rank tells
 * each other the number, and one, of the ring that it writes for it; 0: it has not found the other's memory. */
static int pairs_connect(pairs *p, const offer *mine, offer *offers, uint64_t *told, uint64_t *heard) {
    const mpi_counted *mpi = mpi_get()->small;
    const comm_entry *c = p->communicator;
    const mpixla_handle u64 = dtype_find(FFI_U64)->handle;
    int code = mpi->allgather(mine, OFFER_NUMBERS, u64, offers, OFFER_NUMBERS, u64, c->handle);
    for (int i = 0; i < p->number && code == 0; i++)
        if (pair_open(p, &p->all[i], &offers[p->all[i].rank])) told[p->all[i].rank] = (uint64_t)i + 1;
    if (code == 0) code = mpi->alltoall(told, 1, u64, heard, 1, u64, c->handle);
    if (mine->rings > 0) shared_unlink(mine->number);
    int pairs_found = 0;
    for (int i = 0; i < p->number; i++) {
        pair one = p->all[i];
        if (code != 0 || !one.theirs || heard[one.rank] == 0) {
            pairs_close(p, &one);
            continue;
        }
        one.out = pairs_ring(p->own, (uint64_t)i);
        one.in = pairs_ring(one.theirs, heard[one.rank] - 1);
        one.most = RING_BYTES;
        p->all[pairs_found++] = one;
    }
    p->number = pairs_found;
    return code;
}

/* Marks this rank's memory as broken because MPI has failed meanwhile, which no other rank can know. */
static void pairs_break_unmade(pairs *p, int code) {
    const int class = mpi_error_class(code);
    (void)mpi_error_set("MPI_Allgather or MPI_Alltoall", code, "by which neighbours agree to share memory", "");
    memory_break(&p->own->state, p->communicator->rank, loss_is_error(class) ? class : 0, error_get());
}

/* Makes the pairs of a communicator with a topology (hold.make): a collective call. `*made` is NULL if this rank has
 * none. Returns 0 or an error code, with which the pairs are broken; without memory it ends the job, or returns REFUSED
 * on one rank (job_fail). */
static int pairs_make(const comm_entry *c, void **made) {
    *made = NULL;
    if (c->size == 1) return 0;
    const size_t size = (size_t)c->size;
    pairs *p = calloc(1, sizeof *p);
    offer *offers = calloc(size, sizeof *offers);
    uint64_t *told = calloc(2 * size, sizeof *told);
    int code;
    if (p && offers && told) {
        p->own = &p->none;
        p->communicator = c;
        p->spins = MEMORY_SPINS_MOST;
        pairs_neighbours_add(p, &c->topology->dests);
        pairs_neighbours_add(p, &c->topology->sources);
        const offer mine = pairs_memory_make(p);
        code = pairs_connect(p, &mine, offers, told, told + size);
        if (code != 0) pairs_break_unmade(p, code);
        if (code == 0 && p->number == 0) {
            pairs_free(p);
            p = NULL;
        }
        *made = p;
    } else {
        free(p);
        (void)error_set("out of memory for the memory that neighbours share");
        code = job_fail(c);
    }
    free(offers);
    free(told);
    return code;
}

/* Ownership */

static memory_state *pairs_state(const void *value) {
    return &((const pairs *)value)->own->state;
}

/* Returns 0, or an error code if this rank's shared memory is broken. If a neighbour's memory is broken, breaks this
 * rank's as well, for the ranks that wait for this one. */
static int pairs_check(const void *value) {
    const pairs *p = value;
    memory_state *own = &p->own->state;
    int broken = 0;
    for (int i = 0; i < p->number && !broken; i++) broken = memory_break_copy(own, &p->all[i].theirs->state);
    return memory_check(own, p->communicator);
}

const hold pairs_held = {
    .slot = COMM_SLOT_PAIRS, .make = pairs_make, .free = pairs_free, .state = pairs_state, .check = pairs_check};

static void pairs_slot_free(void *value) {
    hold_free(&pairs_held, value);
}

void pairs_start(void) {
    comm_slot_destructor_set(COMM_SLOT_PAIRS, pairs_slot_free);
    atomic_store(&is_on, 1);
}

int pairs_are_on(void) {
    return atomic_load_explicit(&is_on, memory_order_relaxed) && !(features_get() & FEATURE_GPUS);
}

pair *pairs_find(pairs *p, int64_t rank) {
    for (pair *one = p->all; one < p->all + p->number; one++)
        if (one->rank == rank) return one;
    return NULL;
}

void pairs_progress_clear(pairs *p) {
    for (pair *one = p->all; one < p->all + p->number; one++) memset(one->progress, 0, sizeof one->progress);
}

pair_progress *pair_progress_of(pair *p, int is_sent) {
    return &p->progress[is_sent];
}

/* Bytes */

static uint64_t pairs_record_bytes(int64_t length) {
    return (sizeof(record) + (uint64_t)length + MEMORY_LINE - 1) / MEMORY_LINE * MEMORY_LINE;
}

static record *pairs_record_at(const ring *r, uint64_t at) {
    return (record *)(uintptr_t)(r->bytes + at % RING_BYTES);
}

char *pair_piece_reserve(pair *p, int64_t *bytes) {
    const int64_t to_end = RING_BYTES - (int64_t)(p->posted % RING_BYTES) - (int64_t)sizeof(record);
    const int64_t most = to_end < PIECE_BYTES ? to_end : PIECE_BYTES;
    if (*bytes > most) *bytes = most;
    const uint64_t end = p->posted + pairs_record_bytes(*bytes) + MEMORY_LINE;
    if (end > p->most) p->most = atomic_load_explicit(&p->out->read, memory_order_acquire) + RING_BYTES;
    return end > p->most ? NULL : (char *)(pairs_record_at(p->out, p->posted) + 1);
}

void pair_piece_publish(pair *p, int64_t bytes, int64_t whole) {
    record *r = pairs_record_at(p->out, p->posted);
    p->posted += pairs_record_bytes(bytes);
    atomic_store_explicit(&pairs_record_at(p->out, p->posted)->length, 0, memory_order_relaxed);
    r->whole = (uint64_t)whole;
    atomic_store_explicit(&r->length, (uint64_t)bytes + 1, memory_order_release);
}

const char *pair_piece_peek(const pair *p, int64_t *bytes, int64_t *whole) {
    const record *r = pairs_record_at(p->in, p->read);
    const uint64_t length = atomic_load_explicit(&r->length, memory_order_acquire);
    if (length == 0) return NULL;
    *bytes = (int64_t)length - 1;
    *whole = (int64_t)r->whole;
    return (const char *)(r + 1);
}

void pair_piece_release(pair *p) {
    p->read += pairs_record_bytes(
        (int64_t)atomic_load_explicit(&pairs_record_at(p->in, p->read)->length, memory_order_relaxed) - 1);
    atomic_store_explicit(&p->in->read, p->read, memory_order_release);
}

/* Waiting */

int pairs_spins(const pairs *p) {
    return p->spins;
}

/* Returns whether a message of this pair can make progress now. */
static int pair_is_ready(pair *p) {
    int64_t bytes = 1, whole;
    return (p->progress[0].done < p->progress[0].all && pair_piece_peek(p, &bytes, &whole)) ||
           (p->progress[1].done < p->progress[1].all && pair_piece_reserve(p, &bytes));
}

/* Returns 0, or an error code if the pair `one` can never make progress: its other rank has broken its memory, which
 * breaks this rank's as well, or, with `checks_process`, its process has ended. */
static int pair_check(const pairs *p, pair *one, int checks_process) {
    memory_state *own = &p->own->state;
    int code = 0;
    if (atomic_load_explicit(&one->theirs->state.broken, memory_order_acquire) != 0 && !pair_is_ready(one)) {
        (void)memory_break_copy(own, &one->theirs->state);
        return memory_check(own, p->communicator);
    }
    if (checks_process) code = memory_process_check(p->communicator, one->rank, &one->theirs->process);
    return code != 0 && pair_is_ready(one) ? 0 : code;
}

int pairs_wait_step(pairs *p, pairs_wait *w) {
    if (w->spins > 0) {
        w->spins--;
        memory_spin_pause();
        return 0;
    }
    if (w->turn == 0) memory_yield(&p->spins);
    const int checks_process = memory_process_check_is_due(w->turn);
    int code = memory_wait(p->communicator, w->turn++);
    for (pair *one = p->all; one < p->all + p->number && code == 0; one++)
        if (one->progress[0].done < one->progress[0].all || one->progress[1].done < one->progress[1].all)
            code = pair_check(p, one, checks_process);
    return code;
}
