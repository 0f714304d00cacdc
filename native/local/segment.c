/* A rank that has posted round n has ended n - 1. So who has looked at all ranks in round n knows that none of them
 * reads what was posted in n - 1; others look at `ended`.
 *
 * The memory is the system's and not a window of MPI's: freeing a window waits for all ranks, of which one may have
 * died, and it may be of memory that is not there when it is written to. Whoever finds it by its number shares it. */
#include "local/segment.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/shared.h"
#include "mpi/dtype.h"
#include "mpi/mpi.h"
#include "mpi/reduction.h"
#include "xla/xla_ffi.h"

enum {
    SLOTS = 64,
    PLACES = 4, /* for more bytes than a slot has itself */
    LINE = 64,  /* of the processor's cache, at least */
    SLOT_BYTES = 2 * LINE,
    FEW = SLOT_BYTES - 2 * sizeof(uint64_t),
    SPINS = 2000,
    SPINS_CROWDED = 5, /* where there are more ranks than processors: whom it waits for may need this one */
    YIELDS = 8         /* between two calls of MPI */
};

typedef struct slot {
    _Alignas(SLOT_BYTES) _Atomic uint64_t number; /* of the round whose bytes it has */
    uint64_t what;
    char bytes[FEW];
} slot;

/* What a rank writes and all read. */
typedef struct area {
    slot slots[SLOTS];
    char places[PLACES][SEGMENT_POST_BYTES];
    _Alignas(LINE) _Atomic uint64_t ended; /* the last round that it has ended */
} area;

struct segment {
    _Alignas(LINE) area *areas;
    uint64_t round; /* the present one; they count from 1 */
    uint64_t seen;  /* all other ranks are known to have ended this one */
    const comm_entry *communicator;
    int spins;
    char *own; /* behind this */
};

/* Each rank's area has pages of its own. */
enum { PAGE = 4096, AREA_BYTES = (sizeof(area) + PAGE - 1) / PAGE * PAGE };

static area *area_of(const segment *s, int rank) {
    return (area *)((char *)s->areas + (size_t)rank * AREA_BYTES);
}

static slot *slot_of(const segment *s, int rank) {
    return &area_of(s, rank)->slots[s->round % SLOTS];
}

static char *bytes_of(const segment *s, int rank, int64_t bytes) {
    return bytes <= FEW ? slot_of(s, rank)->bytes : area_of(s, rank)->places[s->round % PLACES];
}

int64_t segment_bytes(int size) {
    return (int64_t)size * AREA_BYTES;
}

segment *segment_over(void *memory, const comm_entry *c) {
    segment *s = aligned_alloc(LINE, sizeof *s + SEGMENT_POST_BYTES);
    if (!s) return error_null("out of memory for what the ranks of a communicator share");
    s->areas = memory;
    s->own = (char *)(s + 1);
    s->round = 1;
    s->seen = 0;
    s->communicator = c;
    s->spins = c->size > sysconf(_SC_NPROCESSORS_ONLN) ? SPINS_CROWDED : SPINS;
    return s;
}

void segment_free(segment *s) {
    shared_close(s->areas, segment_bytes(s->communicator->size));
    free(s);
}

int segment_make(const comm_entry *c, segment **made) {
    const mpi_counted *mpi = mpi_get()->small;
    const mpixla_handle u64 = dtype_find(FFI_U64)->handle;
    const int64_t bytes = segment_bytes(c->size), from = c->rank * (int64_t)AREA_BYTES;
    const int makes = c->rank == 0;
    uint64_t number = shared_number(), alike = 0, all = 0;
    void *memory = makes ? shared_open(number, 1, bytes, from, AREA_BYTES) : NULL;
    segment *s = NULL;
    int code = mpi->bcast(&number, 1, u64, 0, c->handle);
    if (code == 0 && !makes) memory = shared_open(number, 0, bytes, from, AREA_BYTES);
    if (code == 0 && memory) s = segment_over(memory, c);
    alike = s != NULL;
    if (code == 0) code = mpi->allreduce(&alike, &all, 1, u64, *reduction_named("MPI_MIN"), c->handle);
    if (makes) shared_forget(number);
    *made = code == 0 && all ? s : NULL;
    if (!*made) {
        free(s);
        if (memory) shared_close(memory, bytes);
    }
    return code;
}

static inline void breathe(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int wait_long(const segment *s, const _Atomic uint64_t *number, uint64_t least) {
    int code = 0;
    for (unsigned i = 0; code == 0 && atomic_load_explicit(number, memory_order_acquire) < least; i++) {
        sched_yield();
        if (!atomic_load(&s->communicator->alive))
            return error_set(
                "the communicator was freed while this call waited for other ranks; block on its result before "
                "comm.Free()");
        if (i % YIELDS == YIELDS - 1) code = mpi_go_on(s->communicator->handle);
    }
    return code;
}

static inline int wait_for(const segment *s, const _Atomic uint64_t *number, uint64_t least) {
    for (int i = 0; i < s->spins; i++) {
        if (atomic_load_explicit(number, memory_order_acquire) >= least) return 0;
        breathe();
    }
    return wait_long(s, number, least);
}

int segment_room(segment *s, int64_t bytes, char **to) {
    const uint64_t kept = bytes <= FEW ? SLOTS : PLACES;
    if (s->round > s->seen + kept) {
        uint64_t least = UINT64_MAX;
        for (int i = 0; i < s->communicator->size; i++) {
            if (i == s->communicator->rank) continue;
            const _Atomic uint64_t *ended = &area_of(s, i)->ended;
            int code = wait_for(s, ended, s->round - kept);
            if (code != 0) return code;
            uint64_t last = atomic_load_explicit(ended, memory_order_relaxed);
            least = last < least ? last : least;
        }
        s->seen = least;
    }
    *to = bytes_of(s, s->communicator->rank, bytes);
    return 0;
}

void segment_post(segment *s, uint64_t what) {
    slot *mine = slot_of(s, s->communicator->rank);
    mine->what = what;
    atomic_store_explicit(&mine->number, s->round, memory_order_release);
}

char *segment_own(const segment *s) {
    return s->own;
}

int segment_look(const segment *s, int rank, int64_t bytes, const char **from, uint64_t *what) {
    const slot *theirs = slot_of(s, rank);
    int code = wait_for(s, &theirs->number, s->round);
    *from = bytes_of(s, rank, bytes);
    *what = theirs->what;
    return code;
}

void segment_end(segment *s, int from_all) {
    atomic_store_explicit(&area_of(s, s->communicator->rank)->ended, s->round, memory_order_release);
    if (from_all) s->seen = s->round - 1;
    s->round++;
}
