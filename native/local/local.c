#include "local/local.h"

#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "local/hold.h"
#include "local/memory.h"
#include "local/segment.h"
#include "mpi/reduction.h"
#include "mpixla.h"
#include "ops/exscan.h"

enum {
    ALIGNED = 16, /* for any item */
    MOST_RANKS = 16,
    MOST_BYTES = 1 << 18 /* that a rank posts, times ranks, up to which this is faster than MPI */
};

static atomic_int is_on;

static int segment_make_held(const comm_entry *c, void **made) {
    return segment_make(c, (segment **)made);
}
static void segment_free_held(void *s) {
    segment_free(s);
}
static memory_state *segment_state_held(const void *s) {
    return segment_state(s);
}
static int segment_check_held(const void *s) {
    return segment_check(s);
}
static const hold segments = {.slot = COMM_SLOT_LOCAL,
                              .make = segment_make_held,
                              .free = segment_free_held,
                              .state = segment_state_held,
                              .check = segment_check_held};

static void slot_freed(void *s) {
    hold_free(&segments, s);
}

void mpixla_local_start(void) {
    comm_slot_freed_by(COMM_SLOT_LOCAL, slot_freed);
    atomic_store(&is_on, 1);
}

/* A call as bytes that are posted and looked at. */
typedef struct route {
    const char *send;
    char *recv;
    int posts;        /* whether others look at this rank's; those of a barrier have no bytes */
    int parts;        /* of a post, a part for each rank, or one for all */
    int part;         /* which of them this rank takes */
    int64_t bytes;    /* of a part */
    int first, ranks; /* whose posts it looks at: so many ranks, from this one on, */
    int step;         /* upwards or downwards */
    int64_t apart;    /* their parts go to places so many bytes apart, by rank, */
    int combines;     /* or are combined by the call's reduction */
} route;

/* All of it is in the columns of the row. */
static route route_of(const frame *f) {
    const frame_counts counts = f->facts.row->counts;
    const int is_barrier = f->facts.row->send == MPIXLA_NOWHERE, is_split = counts == DIVIDED || counts == SCATTERED;
    const int me = f->facts.communicator->rank, reverse = f->facts.reverse;
    const frame_buffer *part = counts == SCATTERED || !f->send.dtype ? &f->recv : &f->send;
    route r = {.send = f->send.data,
               .recv = f->recv.data,
               .posts = is_barrier || (f->send.dtype && (f->facts.row->recv != MPIXLA_ON_ROOT || !f->on_root)),
               .parts = is_split ? f->size : 1,
               .part = is_split ? me : 0,
               .bytes = frame_buffer_bytes(part),
               .ranks = is_barrier || f->recv.dtype ? f->size : 0,
               .step = 1};
    if (counts == DIVIDED) r.bytes /= f->size;
    if (counts == DIVIDED || counts == GATHERED) r.apart = r.bytes;
    r.combines = frame_has(f, ATTRIBUTE_OP);
    if (f->facts.row->send == MPIXLA_ON_ROOT && r.ranks > 0) {
        r.first = f->root;
        r.ranks = 1;
    } else if (frame_has(f, ATTRIBUTE_REVERSE)) { /* scans: who comes before, and the rank itself if nothing fills in */
        r.ranks = (reverse ? f->size - 1 - me : me) + !frame_has(f, ATTRIBUTE_FILL);
        r.first = reverse ? f->size - 1 : 0;
        r.step = reverse ? -1 : 1;
    }
    return r;
}

/* What all ranks must want alike, in a number that has all of it. */
static uint64_t what_of(const frame *f) {
    const call_facts *c = &f->facts;
    const dtype_entry *type = facts_type(c);
    const int64_t reduction = frame_has(f, ATTRIBUTE_OP) ? c->reduction + 1 : 0;
    const int64_t root = frame_has(f, ATTRIBUTE_ROOT) ? c->root + 1 : c->reverse;
    return (uint64_t)c->row->number | (uint64_t)(type ? type->number + frame_pair_bytes(f) : 0) << 8 |
           (uint64_t)reduction << 16 | (uint64_t)root << 24 | (uint64_t)(c->items + 1) << 32;
}

/* The first part of a call's posts has this bit. */
#define BEGINS (UINT64_C(1) << 63)

static int differ(const frame *f, int rank) {
    return error_set(
        "%s: rank %d of communicator '%s' makes another call where this rank makes this one. Run the program with "
        "MPIXLA_CHECK=1, which says what each rank wants, and at which line",
        f->facts.row->mpi_name, rank, f->facts.communicator->name);
}

/* Where this rank's own part is: where it was, if nothing else is written there. */
static const char *own_part(const segment *s, const route *r, int is_first, int64_t at, int64_t bytes) {
    const char *mine = r->send + r->part * r->bytes + at;
    return r->send != r->recv || is_first ? mine : memcpy(segment_own(s), mine, (size_t)bytes);
}

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGNED - 1) & ~(int64_t)(ALIGNED - 1);
}

/* Bytes from `at` on of each part, which are so many items; parts begin where vectors may. */
static int round_make(segment *s, const frame *f, const route *r, int64_t at, int64_t bytes, int64_t items,
                      uint64_t what) {
    const int me = f->facts.communicator->rank;
    const int64_t apart = aligned(bytes);
    const char *own = NULL;
    int code = 0;
    if (r->posts) {
        char *to;
        code = segment_room(s, apart * r->parts, &to);
        if (code != 0) return code;
        for (int i = 0; bytes > 0 && i < r->parts; i++)
            if (i != me || r->parts == 1) memcpy(to + i * apart, r->send + i * r->bytes + at, (size_t)bytes);
        segment_post(s, what);
    }
    if (r->send && bytes > 0) own = own_part(s, r, me == r->first, at, bytes);
    for (int i = 0, rank = r->first; code == 0 && i < r->ranks; i++, rank += r->step) {
        const char *from = own;
        if (rank != me) {
            uint64_t theirs;
            code = segment_look(s, rank, apart * r->parts, &from, &theirs);
            if (code == 0 && theirs != what) code = differ(f, rank);
            if (code != 0) break;
            from += r->part * apart;
        }
        char *to = r->recv + rank * r->apart + at;
        if (bytes == 0 || !from || from == to) continue;
        if (i == 0 || !r->combines)
            memcpy(to, from, (size_t)bytes);
        else
            code = mpi_get()->reduce_local(from, to, (int)items, f->type, f->op);
    }
    if (code == 0) segment_end(s, r->ranks == f->size);
    return code;
}

/* As many rounds as it takes, each of whole items where these are combined. */
static int rounds_make(segment *s, const frame *f, const route *r, uint64_t what) {
    const int64_t item = r->combines ? r->bytes / f->n : 1,
                  most = (int64_t)(SEGMENT_POST_BYTES / ALIGNED / r->parts) * ALIGNED / item * item;
    int code = 0;
    what |= BEGINS;
    for (int64_t at = 0; code == 0 && at < r->bytes; at += most, what &= ~BEGINS) {
        const int64_t bytes = r->bytes - at < most ? r->bytes - at : most;
        code = round_make(s, f, r, at, bytes, bytes / item, what);
    }
    return code;
}

int local_check(const frame *f) {
    return hold_check(&segments, f->facts.communicator);
}

/* Where a rank has a GPU, its arrays may be there, and this call's another way. User-made reductions may want their
 * items from left to right, and take no part of them. */
static int is_possible(const frame *f) {
    return atomic_load_explicit(&is_on, memory_order_relaxed) && (f->facts.row->attributes & LOCAL) &&
           !(features_get() & FEATURE_GPUS) && f->size > 1 && f->size <= MOST_RANKS &&
           (!frame_has(f, ATTRIBUTE_OP) || reduction_is_predefined(f->facts.reduction));
}

int local_run(const frame *f, int *made) {
    segment *s = NULL;
    *made = 0;
    if (!is_possible(f)) return local_check(f);
    const route r = route_of(f);
    if (r.bytes > MOST_BYTES || r.bytes * r.parts * f->size > MOST_BYTES) return local_check(f);
    int code = hold_take(&segments, f->facts.communicator, (void **)&s);
    if (code != 0 || !s) return code;
    *made = 1;
    const uint64_t what = what_of(f);
    code = segment_check(s);
    const int is_short = aligned(r.bytes) * r.parts <= SEGMENT_POST_BYTES;
    if (code == 0 && is_short) code = round_make(s, f, &r, 0, r.bytes, f->n, what | BEGINS);
    if (code == 0 && !is_short) code = rounds_make(s, f, &r, what);
    if (code != 0) memory_fail(segment_state(s), f, code);
    hold_give(&segments, f->facts.communicator, s);
    if (code == 0 && frame_has(f, ATTRIBUTE_FILL)) exscan_fill(f);
    return code;
}
