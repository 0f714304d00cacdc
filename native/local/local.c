#include "local/local.h"

#include "base/copy.h"
#include "base/error.h"
#include "base/feature.h"
#include "local/hold.h"
#include "local/memory.h"
#include "local/pairs.h"
#include "local/segment.h"
#include "mpi/reduction.h"
#include "mpixla.h"
#include "ops/exscan.h"
#include "xla/xla_ffi.h"

enum {
    ALIGNED = 16, /* for any item */
    MOST_RANKS = 16,
    FEW_RANKS = 4,       /* of which one combines all parts sooner than MPI does */
    MOST_BYTES = 1 << 18 /* that a rank posts, times ranks, up to which this is faster than MPI */
};

static atomic_int is_on;

static int local_segment_make(const comm_entry *c, void **made) {
    segment *s = NULL;
    const int code = segment_make(c, &s);
    *made = s;
    return code;
}
static void local_segment_free(void *s) {
    segment_free(s);
}
static memory_state *local_segment_state(const void *s) {
    return segment_state(s);
}
static int local_segment_check(const void *s) {
    return segment_check(s);
}
static const hold segments = {.slot = COMM_SLOT_LOCAL,
                              .make = local_segment_make,
                              .free = local_segment_free,
                              .state = local_segment_state,
                              .check = local_segment_check};

static void local_slot_free(void *s) {
    hold_free(&segments, s);
}

void mpixla_local_start(void) {
    comm_slot_destructor_set(COMM_SLOT_LOCAL, local_slot_free);
    pairs_start();
    atomic_store(&is_on, 1);
}

/* The first part of a call's posts has this bit. */
#define BEGINS (UINT64_C(1) << 63)

static int local_difference_refuse(const frame *f, int rank) {
    return error_set(
        "%s: rank %d of communicator '%s' makes another call where this rank makes this one. Run the program with "
        "MPIXLA_CHECK=1, which says what each rank wants, and at which line",
        f->facts.row->mpi_name, rank, f->facts.communicator->name);
}

static int64_t local_bytes_align(int64_t bytes) {
    return (bytes + ALIGNED - 1) & ~(int64_t)(ALIGNED - 1);
}

/* Sums of the types that programs have most, as MPI's function loads and stores each number by itself. */
#define SUM(type)                                                                                          \
    static void type##_sum(const type *restrict a, const type *restrict b, type *restrict to, int64_t n) { \
        for (int64_t i = 0; i < n; i++) to[i] = a[i] + b[i];                                               \
    }                                                                                                      \
    static void type##_add(const type *restrict a, type *restrict to, int64_t n) {                         \
        for (int64_t i = 0; i < n; i++) to[i] += a[i];                                                     \
    }
SUM(float)
SUM(double)

/* Combines items of two buffers into a third, which may be one of them. Returns MPI's code. */
static int local_items_combine(const frame *f, const void *a, const void *b, void *to, int64_t items, int64_t bytes) {
    const int is_sum = f->facts.reduction == 0; /* the first row of reductions.def */
    const int type = is_sum ? facts_type(&f->facts)->number : -1;
    const void *other = a == to ? b : a;
    const int is_third = a != to && b != to;
    if (type == FFI_F32 && is_third) {
        float_sum(a, b, to, items);
    } else if (type == FFI_F32) {
        float_add(other, to, items);
    } else if (type == FFI_F64 && is_third) {
        double_sum(a, b, to, items);
    } else if (type == FFI_F64) {
        double_add(other, to, items);
    } else {
        if (is_third) copy_bytes(to, b, bytes);
        return mpi_get()->reduce_local(other, to, (int)items, f->type, f->op);
    }
    return 0;
}

/* Makes one round: posts `bytes` bytes (`items` items) of each part of this rank, from byte `at` on, reads the posts of
 * the others, and copies or combines them into the result. Parts in a post begin where vectors may.
 *
 * Parts are combined in the order of the ranks. In place, this rank's operand lies where the result goes, so it is
 * moved into the slot first, unless it is the first to be combined. It may stay as the second one where no other rank
 * combines the same items: a + b and b + a differ in the bits of NaNs, and of products of complex numbers. */
static int local_round_make(segment *s, const frame *f, const frame_posts *r, int64_t at, int64_t bytes, int64_t items,
                            uint64_t what) {
    const int me = f->facts.communicator->rank;
    const int64_t apart = local_bytes_align(bytes);
    const char *own = r->send && bytes > 0 ? r->send + r->part * r->bytes + at : NULL;
    const int is_in_place = own && r->combines && own == r->recv + at,
              stays = is_in_place && r->is_alone && me == r->first + r->step,
              is_moved = is_in_place && !stays && me != r->first;
    int code = 0;
    if (r->posts || is_moved) {
        char *place;
        code = segment_room(s, apart * r->parts, &place);
        if (code != 0) return code;
        for (int i = 0; own && i < r->parts; i++)
            if (i != me || r->parts == 1 || is_moved) copy_bytes(place + i * apart, r->send + i * r->bytes + at, bytes);
        if (r->posts) segment_post(s, what);
        if (is_moved) own = place + r->part * apart;
    }
    const char *so_far = NULL; /* combined */
    char *to = r->recv + at;
    for (int i = 0, rank = r->first; code == 0 && i < r->ranks; i++, rank += r->step) {
        const char *from = own;
        if (rank != me) {
            uint64_t theirs;
            code = segment_look(s, rank, apart * r->parts, &from, &theirs);
            if (code == 0 && theirs != what) code = local_difference_refuse(f, rank);
            if (code != 0) break;
            from += r->part * apart;
        }
        if (bytes == 0 || !from) continue;
        if (!r->combines) {
            if (from != to + rank * r->apart) copy_bytes(to + rank * r->apart, from, bytes);
        } else if (so_far) {
            code = local_items_combine(f, from, so_far, to, items, bytes);
            so_far = to;
        } else {
            so_far = from;
        }
    }
    if (code == 0 && so_far && so_far != to) copy_bytes(to, so_far, bytes);
    if (code == 0) segment_end(s, r->ranks == f->size);
    return code;
}

/* Returns the most bytes of a part that one post can have, with so many parts in it, in whole items of `item` bytes. */
static int64_t local_part_bytes_max(const segment *s, int parts, int64_t item) {
    return segment_most(s) / parts / ALIGNED * ALIGNED / item * item;
}

static int64_t local_item_bytes(const frame *f, const frame_posts *r) {
    return r->combines ? r->bytes / f->n : 1;
}

/* Makes as many rounds as the call takes, each of whole items. */
static int local_rounds_make(segment *s, const frame *f, const frame_posts *r, uint64_t what) {
    const int64_t item = local_item_bytes(f, r), most = local_part_bytes_max(s, r->parts, item);
    int code = 0;
    for (int64_t at = 0; code == 0 && at < r->bytes; at += most, what &= ~BEGINS) {
        const int64_t bytes = r->bytes - at < most ? r->bytes - at : most;
        code = local_round_make(s, f, r, at, bytes, bytes / item, what);
    }
    return code;
}

/* Returns whether all ranks get the same combined array, so that each may combine a part of it for all. */
static int local_combines_for_all(const frame *f, const frame_posts *r) {
    return r->combines && r->parts == 1 && f->facts.row->pattern == ALL;
}

/* Makes two rounds for each piece of the array, a reduce-scatter and an allgather: every rank combines one part of the
 * piece, and then all ranks read all parts. */
static int local_parts_combine(segment *s, const frame *f, const frame_posts *r, uint64_t what) {
    const int me = f->facts.communicator->rank;
    const int64_t item = local_item_bytes(f, r), most = local_part_bytes_max(s, f->size, item);
    int code = 0;
    for (int64_t at = 0; code == 0 && at < r->bytes;) {
        const int64_t left = (r->bytes - at) / item / f->size * item, part = left < most ? left : most;
        if (part == 0) return local_round_make(s, f, r, at, r->bytes - at, (r->bytes - at) / item, what);
        char *all = r->recv + at, *mine = all + me * part;
        const frame_posts combined = {.send = r->send + at,
                                      .recv = mine,
                                      .posts = 1,
                                      .parts = f->size,
                                      .part = me,
                                      .bytes = part,
                                      .ranks = f->size,
                                      .step = 1,
                                      .combines = 1,
                                      .is_alone = 1},
                          gathered = {.send = mine,
                                      .recv = all,
                                      .posts = 1,
                                      .parts = 1,
                                      .bytes = part,
                                      .ranks = f->size,
                                      .step = 1,
                                      .apart = part};
        code = local_round_make(s, f, &combined, 0, part, part / item, what);
        what &= ~BEGINS;
        if (code == 0) code = local_round_make(s, f, &gathered, 0, part, part / item, what);
        at += part * f->size;
    }
    return code;
}

/* Gathers a number of each rank, in a round that belongs to no call: its `what` is BEGINS alone. */
static int local_numbers_gather(segment *s, const frame *f, uint64_t mine, uint64_t *all) {
    const frame_posts r = {.send = (const char *)&mine,
                           .recv = (char *)all,
                           .posts = 1,
                           .parts = 1,
                           .bytes = sizeof mine,
                           .ranks = f->size,
                           .step = 1,
                           .apart = sizeof mine};
    return local_round_make(s, f, &r, 0, sizeof mine, 1, BEGINS);
}

/* Opens memory for long posts, on all ranks or on none. */
static int local_long_posts_open(segment *s, const frame *f) {
    uint64_t numbers[MOST_RANKS] = {0};
    int all_have = 1;
    const int makes = f->facts.communicator->rank == 0;
    uint64_t mine = makes ? segment_long_open(s, 0) : 0;
    int code = local_numbers_gather(s, f, mine, numbers);
    if (code == 0 && !makes && numbers[0] != 0) mine = segment_long_open(s, numbers[0]);
    if (code == 0) code = local_numbers_gather(s, f, mine, numbers);
    for (int i = 0; code == 0 && i < f->size; i++) all_have &= numbers[i] != 0;
    segment_long_settle(s, code == 0 && all_have);
    return code;
}

int local_check(const frame *f) {
    const int code = hold_check(&segments, f->facts.communicator);
    return code != 0 ? code : hold_check(&pairs_held, f->facts.communicator);
}

/* Excludes jobs with GPUs, in which another rank may have its arrays in a GPU's memory and take another route, and
 * user-made reductions, which may depend on getting whole arrays. */
int local_can(const frame *f) {
    return atomic_load_explicit(&is_on, memory_order_relaxed) && (f->facts.row->attributes & LOCAL) &&
           !(features_get() & FEATURE_GPUS) && f->size > 1 && f->size <= MOST_RANKS &&
           (!frame_has(f, ATTRIBUTE_OP) || reduction_is_predefined(f->facts.reduction));
}

static int local_fits_one_post(const frame_posts *r) {
    return r->bytes <= SEGMENT_POST_BYTES && local_bytes_align(r->bytes) * r->parts <= SEGMENT_POST_BYTES;
}

/* Returns whether this is faster than MPI with posts of SEGMENT_POST_BYTES. */
static int local_is_faster_short(const frame *f, const frame_posts *r) {
    return r->bytes <= MOST_BYTES && r->bytes * r->parts * f->size <= MOST_BYTES;
}

/* Returns whether this is faster than MPI with long posts: at any length, if the call combines. Its time over MPI's,
 * least and greatest from 20 KiB to 16 MiB of float32 and SUM, on a virtual machine with two cores of an AMD EPYC
 * (November 2026):
 *
 *                            MPICH 4                 Open MPI 5
 *                     2 ranks      4 ranks      2 ranks      4 ranks
 *   allreduce       0.4 to 0.8   0.6 to 0.7   0.4 to 1.1   0.5 to 0.8
 *   reduce          0.3 to 0.5   0.3 to 0.7   0.5 to 1.5   0.6 to 1.0
 *   reduce_scatter  0.4 to 1.1   0.4 to 1.0   0.4 to 0.7   0.6 to 0.7
 *   scan            0.3          0.2 to 0.3   0.3 to 0.7   0.6 to 0.7
 *
 * Calls above 1 come here all the same, so that sums have the same bits under every MPI.
 *
 * Other calls only copy: once if MPI reads another process's memory, and twice here. From 256 KiB on alltoall,
 * allgather and bcast took 1.0 to 2.7 times as long. The root of a reduce, and the last rank of a scan, combine the
 * parts of all ranks by themselves, so of many ranks MPI is faster. */
static int local_is_faster_long(const frame *f, const frame_posts *r) {
    return r->combines && !local_fits_one_post(r) &&
           (f->size <= FEW_RANKS || r->parts > 1 || local_combines_for_all(f, r));
}

/* Makes the call, unless it would need long posts to be faster than MPI and the ranks have no memory for such. */
static int local_call_make(segment *s, const frame *f, const frame_posts *r, int *made) {
    const int is_long = local_is_faster_long(f, r);
    const uint64_t what = r->what | BEGINS;
    int code = segment_check(s);
    if (code == 0 && is_long && !segment_long_is_settled(s)) code = local_long_posts_open(s, f);
    if (code != 0) return code;
    *made = local_is_faster_short(f, r) || (is_long && segment_most(s) > SEGMENT_POST_BYTES);
    if (!*made) return 0;
    if (local_fits_one_post(r)) return local_round_make(s, f, r, 0, r->bytes, f->n, what);
    if (is_long && local_combines_for_all(f, r)) return local_parts_combine(s, f, r, what);
    return local_rounds_make(s, f, r, what);
}

int local_run(const frame *f, int *made) {
    void *held = NULL;
    *made = 0;
    const frame_posts *r = &f->posts;
    if (!local_is_faster_short(f, r) && !local_is_faster_long(f, r)) return 0;
    int code = hold_take(&segments, f->facts.communicator, &held);
    segment *s = held;
    if (code != 0 || !s) return code;
    code = local_call_make(s, f, r, made);
    if (code != 0) memory_fail(segment_state(s), f, code);
    hold_give(&segments, f->facts.communicator, s);
    if (code == 0 && *made && frame_has(f, ATTRIBUTE_FILL)) exscan_fill(f);
    return code;
}
