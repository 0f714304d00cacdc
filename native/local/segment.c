/* Invariant: posting round n implies having ended round n - 1. Hence a rank that has looked at the posts of all ranks
 * in round n may use all slots up to n - 1 again; otherwise it looks at `ended` of each. A rank that fails in round n
 * never ends it, and posts in no later one.
 *
 * The memory is the system's and not a window of MPI's: freeing a window waits for all ranks, of which one may have
 * died, and its pages may not be there when they are written to. A process shares it that finds it by its number. */
#include "local/segment.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/shared.h"
#include "mpi/agreed.h"
#include "mpi/dtype.h"
#include "mpi/loss.h"
#include "mpi/mpi.h"
#include "xla/xla_ffi.h"

enum {
    SLOTS = 64,
    PLACES = 4, /* for more bytes than a slot has itself */
    LONG_PLACES = 2,
    SLOT_BYTES = 2 * MEMORY_LINE,
    FEW = SLOT_BYTES - 2 * sizeof(uint64_t)
};

typedef struct slot {
    _Alignas(SLOT_BYTES) _Atomic uint64_t number; /* of the round whose bytes it has */
    uint64_t call_hash;
    char bytes[FEW];
} slot;

/* The part of the memory that one rank writes and all read. */
typedef struct area {
    slot slots[SLOTS];
    char places[PLACES][SEGMENT_POST_BYTES];
    _Alignas(MEMORY_LINE) _Atomic uint64_t ended; /* the last round that it has ended */
    _Alignas(MEMORY_LINE) process_id process;     /* written before any round */
} area;

/* The beginning of the memory. */
typedef struct head {
    uint64_t nonce; /* random: it shows that a rank has opened the memory that rank 0 made */
    memory_state state;
} head;

/* One rank's part of the memory for long posts, which is made with the first of them. */
typedef struct long_area {
    char places[LONG_PLACES][SEGMENT_LONG_BYTES];
} long_area;

struct segment {
    _Alignas(MEMORY_LINE) void *memory; /* NULL: it has none, and is broken */
    head *head;                         /* of the memory, or else `own` */
    area *areas;
    long_area *longs;     /* NULL: there is no memory for long posts */
    uint64_t long_number; /* by which this rank has opened it, until that is settled */
    int long_settled;
    uint64_t round; /* the present one; they count from 1 */
    uint64_t seen;  /* all other ranks are known to have ended this one */
    const comm_entry *communicator;
    int spins;
    head own;
};

/* The head, and each rank's area, have pages of their own. */
enum { HEAD_BYTES = MEMORY_PAGE, AREA_BYTES = (sizeof(area) + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE };
_Static_assert(sizeof(head) <= HEAD_BYTES && sizeof(long_area) % MEMORY_PAGE == 0, "each has pages of its own");

static area *segment_area(const segment *s, int rank) {
    return (area *)((char *)s->areas + (size_t)rank * AREA_BYTES);
}

static slot *segment_slot(const segment *s, int rank) {
    return &segment_area(s, rank)->slots[s->round % SLOTS];
}

/* Returns the address of a rank's post of so many bytes in this round. */
static char *segment_place(const segment *s, int rank, int64_t bytes) {
    if (bytes <= FEW) return segment_slot(s, rank)->bytes;
    if (bytes <= SEGMENT_POST_BYTES) return segment_area(s, rank)->places[s->round % PLACES];
    return s->longs[rank].places[s->round % LONG_PLACES];
}

/* Returns the number of places for posts of so many bytes: a place is used again after as many rounds. */
static uint64_t segment_place_count(int64_t bytes) {
    return bytes <= FEW ? SLOTS : bytes <= SEGMENT_POST_BYTES ? PLACES : LONG_PLACES;
}

int64_t segment_bytes(int size) {
    return HEAD_BYTES + (int64_t)size * AREA_BYTES;
}

/* Returns a new handle without memory, which segment_free frees; NULL with error_set without memory for it. */
static segment *segment_new(const comm_entry *c) {
    segment *s = aligned_alloc(MEMORY_LINE, sizeof *s);
    if (!s) return error_null("out of memory for the segment that the ranks of a communicator share");
    *s = (segment){.round = 1, .communicator = c, .spins = MEMORY_SPINS_MOST};
    s->head = &s->own;
    return s;
}

/* Sets the memory of a segment, and writes this process's identity there. */
static void segment_memory_set(segment *s, void *memory) {
    s->memory = memory;
    s->head = memory;
    s->areas = (area *)((char *)memory + HEAD_BYTES);
    segment_area(s, s->communicator->rank)->process = process_self();
}

segment *segment_new_over(void *memory, const comm_entry *c) {
    segment *s = segment_new(c);
    if (s) segment_memory_set(s, memory);
    return s;
}

static int64_t segment_long_bytes(const segment *s) {
    return s->communicator->size * (int64_t)sizeof(long_area);
}

static void segment_long_close(segment *s) {
    if (s->longs) shared_close(s->longs, segment_long_bytes(s));
    s->longs = NULL;
}

void segment_free(segment *s) {
    segment_long_close(s);
    if (s->memory) shared_close(s->memory, segment_bytes(s->communicator->size));
    free(s);
}

/* Marks the segment as broken because MPI has failed while it was made, which no other rank can know. */
static void segment_break_unmade(segment *s, int code) {
    const int class = mpi_error_class(code);
    (void)mpi_error_set("MPI_Bcast or MPI_Allreduce", code, "by which its ranks agree to share memory", "");
    memory_break(&s->head->state, s->communicator->rank, loss_is_error(class) ? class : 0, error_get());
}

int segment_make(const comm_entry *c, segment **made) {
    const mpi_counted *mpi = mpi_get()->small;
    const mpixla_handle u64 = dtype_find(FFI_U64)->handle;
    const int makes = c->rank == 0;
    const int64_t bytes = segment_bytes(c->size), from = makes ? 0 : HEAD_BYTES + c->rank * (int64_t)AREA_BYTES,
                  mine = makes ? HEAD_BYTES + AREA_BYTES : AREA_BYTES;
    struct {
        uint64_t number, nonce;
    } name = {shared_random_number(), shared_random_number()};
    uint64_t alike = 0;
    agreed all = {0};
    segment *s = segment_new(c);
    void *memory = makes ? shared_open(name.number, 1, bytes, from, mine) : NULL;
    if (memory) ((head *)memory)->nonce = name.nonce;
    int code = mpi->bcast(&name, 2, u64, 0, c->handle);
    if (code == 0 && !makes) memory = shared_open(name.number, 0, bytes, from, mine);
    alike = code == 0 && s && memory && ((head *)memory)->nonce == name.nonce;
    if (alike) segment_memory_set(s, memory);
    if (code == 0) code = agreed_find(c->handle, alike, &all);
    if (makes) shared_unlink(name.number);
    if (memory && !alike) shared_close(memory, bytes);
    if (code != 0 && s) segment_break_unmade(s, code);
    *made = code != 0 || (alike && all.least == 1) ? s : NULL;
    if (!*made && s) segment_free(s);
    return code;
}

/* Long posts */

uint64_t segment_long_open(segment *s, uint64_t number) {
    const int makes = number == 0;
    s->long_number = makes ? shared_random_number() : number;
    s->longs = shared_open(s->long_number, makes, segment_long_bytes(s),
                           s->communicator->rank * (int64_t)sizeof(long_area), sizeof(long_area));
    return s->longs ? s->long_number : 0;
}

void segment_long_settle(segment *s, int all_have) {
    if (s->communicator->rank == 0 && s->long_number != 0) shared_unlink(s->long_number);
    if (!all_have) segment_long_close(s);
    s->long_settled = 1;
}

int segment_long_is_settled(const segment *s) {
    return s->long_settled;
}

int64_t segment_post_bytes_max(const segment *s) {
    return s->longs ? SEGMENT_LONG_BYTES : SEGMENT_POST_BYTES;
}

/* Failures */

memory_state *segment_state(const segment *s) {
    return &s->head->state;
}

int segment_check(const segment *s) {
    return memory_check(&s->head->state, s->communicator);
}

/* Waiting */

/* Returns whether a counter in shared memory is `least` or greater. Waits read it once more after a check has failed.
 */
static int segment_number_reached(const _Atomic uint64_t *number, uint64_t least) {
    return atomic_load_explicit(number, memory_order_acquire) >= least;
}

/* Waits until a rank's counter reaches `least`: yields, and drives MPI's progress now and then. Returns 0, or an error
 * code if the communicator is freed, the segment is broken, or the rank's process has ended. */
static int segment_wait_long(const segment *s, int rank, const _Atomic uint64_t *number, uint64_t least) {
    int code = 0;
    for (unsigned i = 0; code == 0 && !segment_number_reached(number, least); i++) {
        code = memory_wait(s->communicator, i);
        if (code == 0 && memory_process_check_is_due(i)) {
            code = memory_process_check(s->communicator, rank, &segment_area(s, rank)->process);
            if (code != 0 && segment_number_reached(number, least)) return 0;
        }
        if (code == 0) code = segment_check(s);
    }
    return code;
}

/* Waits until a rank's counter reaches `least`: spins first, then as segment_wait_long. Returns 0 or an error code. */
static inline int segment_wait(segment *s, int rank, const _Atomic uint64_t *number, uint64_t least) {
    for (int i = 0; i < s->spins; i++) {
        if (segment_number_reached(number, least)) return 0;
        memory_spin_pause();
    }
    memory_yield(&s->spins);
    return segment_wait_long(s, rank, number, least);
}

int segment_slot_reserve(segment *s, int64_t bytes, char **to) {
    const uint64_t kept = segment_place_count(bytes);
    if (s->round > s->seen + kept) {
        uint64_t least = UINT64_MAX;
        for (int i = 0; i < s->communicator->size; i++) {
            if (i == s->communicator->rank) continue;
            const _Atomic uint64_t *ended = &segment_area(s, i)->ended;
            int code = segment_wait(s, i, ended, s->round - kept);
            if (code != 0) return code;
            uint64_t last = atomic_load_explicit(ended, memory_order_acquire); /* slots up to it are written to */
            least = last < least ? last : least;
        }
        s->seen = least;
    }
    *to = segment_place(s, s->communicator->rank, bytes);
    return 0;
}

void segment_slot_publish(segment *s, uint64_t call_hash) {
    slot *mine = segment_slot(s, s->communicator->rank);
    mine->call_hash = call_hash;
    atomic_store_explicit(&mine->number, s->round, memory_order_release);
}

int segment_post_wait(segment *s, int rank, int64_t bytes, const char **from, uint64_t *call_hash) {
    const slot *theirs = segment_slot(s, rank);
    int code = segment_wait(s, rank, &theirs->number, s->round);
    if (code != 0) return code;
    *from = segment_place(s, rank, bytes);
    *call_hash = theirs->call_hash;
    return 0;
}

void segment_round_end(segment *s, int from_all) {
    atomic_store_explicit(&segment_area(s, s->communicator->rank)->ended, s->round, memory_order_release);
    if (from_all) s->seen = s->round - 1;
    s->round++;
}
