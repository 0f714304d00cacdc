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

/* Makes the segment of a communicator (hold.make): sets `*made` as segment_make. Returns 0 or MPI's error code. */
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

/* Switches shared memory on in this process: all processes of the job do so, or none. */
void mpixla_local_start(void) {
    comm_slot_destructor_set(COMM_SLOT_LOCAL, local_slot_free);
    pairs_start();
    atomic_store(&is_on, 1);
}

/* The first part of a call's posts has this bit. */
#define BEGINS (UINT64_C(1) << 63)

/* Sets the error for a rank whose post is of another call. Returns REFUSED. */
static int local_difference_refuse(const frame *f, int rank) {
    return error_set(
        "%s: rank %d of communicator '%s' makes another call where this rank makes this one. Run the program with "
        "MPIXLA_CHECK=1, which reports the call of each rank, with its line",
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

/* Combines items of two buffers into a third, which may be one of the two, by the call's reduction. Returns MPI's code.
 */
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

/* Makes one round: posts `bytes` bytes (`items` items) of each part of this rank, from byte `at` on, waits for and
 * reads the posts of the others, and copies or combines them into the result. Returns 0 or an error code; REFUSED if a
 * post is of another call. Parts in a post begin where vectors may.
 *
 * Parts are combined in the order of the ranks. In place, this rank's operand lies where the result goes, so it is
 * moved into the slot first, unless it is the first to be combined. It may stay as the second one where no other rank
 * combines the same items: a + b and b + a differ in the bits of NaNs, and of products of complex numbers. */
static int local_round_make(segment *s, const frame *f, const frame_posts *posts, int64_t at, int64_t bytes,
                            int64_t items, uint64_t call_hash) {
    const int me = f->facts.communicator->rank;
    const int64_t stride = local_bytes_align(bytes);
    const char *own = posts->send && bytes > 0 ? posts->send + posts->own_part * posts->part_bytes + at : NULL;
    const int is_in_place = own && posts->combines && own == posts->recv + at,
              stays = is_in_place && posts->combines_alone && me == posts->first_rank + posts->rank_step,
              is_moved = is_in_place && !stays && me != posts->first_rank;
    int code = 0;
    if (posts->is_posted || is_moved) {
        char *place;
        code = segment_slot_reserve(s, stride * posts->part_count, &place);
        if (code != 0) return code;
        for (int i = 0; own && i < posts->part_count; i++)
            if (i != me || posts->part_count == 1 || is_moved)
                copy_bytes(place + i * stride, posts->send + i * posts->part_bytes + at, bytes);
        if (posts->is_posted) segment_slot_publish(s, call_hash);
        if (is_moved) own = place + posts->own_part * stride;
    }
    const char *so_far = NULL; /* combined */
    char *to = posts->recv + at;
    for (int i = 0, rank = posts->first_rank; code == 0 && i < posts->rank_count; i++, rank += posts->rank_step) {
        const char *from = own;
        if (rank != me) {
            uint64_t theirs;
            code = segment_post_wait(s, rank, stride * posts->part_count, &from, &theirs);
            if (code == 0 && theirs != call_hash) code = local_difference_refuse(f, rank);
            if (code != 0) break;
            from += posts->own_part * stride;
        }
        if (bytes == 0 || !from) continue;
        if (!posts->combines) {
            if (from != to + rank * posts->stride_bytes) copy_bytes(to + rank * posts->stride_bytes, from, bytes);
        } else if (so_far) {
            code = local_items_combine(f, from, so_far, to, items, bytes);
            so_far = to;
        } else {
            so_far = from;
        }
    }
    if (code == 0 && so_far && so_far != to) copy_bytes(to, so_far, bytes);
    if (code == 0) segment_round_end(s, posts->rank_count == f->size);
    return code;
}

/* Returns the most bytes of a part that one post can have, with so many parts in it, in whole items of `item` bytes. */
static int64_t local_part_bytes_max(const segment *s, int parts, int64_t item) {
    return segment_post_bytes_max(s) / parts / ALIGNED * ALIGNED / item * item;
}

static int64_t local_item_bytes(const frame *f, const frame_posts *posts) {
    return posts->combines ? posts->part_bytes / f->n : 1;
}

/* Makes a call in as many rounds as its parts take, each of whole items. Returns 0 or an error code. */
static int local_rounds_make(segment *s, const frame *f, const frame_posts *posts, uint64_t call_hash) {
    const int64_t item = local_item_bytes(f, posts), most = local_part_bytes_max(s, posts->part_count, item);
    int code = 0;
    for (int64_t at = 0; code == 0 && at < posts->part_bytes; at += most, call_hash &= ~BEGINS) {
        const int64_t bytes = posts->part_bytes - at < most ? posts->part_bytes - at : most;
        code = local_round_make(s, f, posts, at, bytes, bytes / item, call_hash);
    }
    return code;
}

/* Returns whether all ranks get the same combined array, so that each may combine a part of it for all. */
static int local_combines_for_all(const frame *f, const frame_posts *posts) {
    return posts->combines && posts->part_count == 1 && f->facts.row->pattern == ALL;
}

/* Combines the arrays of all ranks for all ranks, with two rounds for each piece of the array, a reduce-scatter and an
 * allgather: every rank combines one part of the piece, and then all ranks read all parts. Returns 0 or an error code.
 */
static int local_parts_combine(segment *s, const frame *f, const frame_posts *posts, uint64_t call_hash) {
    const int me = f->facts.communicator->rank;
    const int64_t item = local_item_bytes(f, posts), most = local_part_bytes_max(s, f->size, item);
    int code = 0;
    for (int64_t at = 0; code == 0 && at < posts->part_bytes;) {
        const int64_t left = (posts->part_bytes - at) / item / f->size * item, part = left < most ? left : most;
        if (part == 0)
            return local_round_make(s, f, posts, at, posts->part_bytes - at, (posts->part_bytes - at) / item,
                                    call_hash);
        char *all = posts->recv + at, *mine = all + me * part;
        const frame_posts combined = {.send = posts->send + at,
                                      .recv = mine,
                                      .is_posted = 1,
                                      .part_count = f->size,
                                      .own_part = me,
                                      .part_bytes = part,
                                      .rank_count = f->size,
                                      .rank_step = 1,
                                      .combines = 1,
                                      .combines_alone = 1},
                          gathered = {.send = mine,
                                      .recv = all,
                                      .is_posted = 1,
                                      .part_count = 1,
                                      .part_bytes = part,
                                      .rank_count = f->size,
                                      .rank_step = 1,
                                      .stride_bytes = part};
        code = local_round_make(s, f, &combined, 0, part, part / item, call_hash);
        call_hash &= ~BEGINS;
        if (code == 0) code = local_round_make(s, f, &gathered, 0, part, part / item, call_hash);
        at += part * f->size;
    }
    return code;
}

/* Gathers one number of each rank into `all`, by a round of the segment that belongs to no call: its `call_hash` is
 * BEGINS alone. Returns 0 or an error code. */
static int local_numbers_gather(segment *s, const frame *f, uint64_t mine, uint64_t *all) {
    const frame_posts posts = {.send = (const char *)&mine,
                               .recv = (char *)all,
                               .is_posted = 1,
                               .part_count = 1,
                               .part_bytes = sizeof mine,
                               .rank_count = f->size,
                               .rank_step = 1,
                               .stride_bytes = sizeof mine};
    return local_round_make(s, f, &posts, 0, sizeof mine, 1, BEGINS);
}

/* Opens the memory for long posts on all ranks, or on none if one rank cannot, and settles which for good: call it once
 * for a segment, on all ranks. Rank 0 makes the memory; in one round the others get its number, and in another one all
 * learn who has it. Returns 0 in either case (segment_long_settle), or an error code if a round fails. */
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

/* Returns whether a call may go through shared memory. Excludes jobs with GPUs, in which another rank may have its
 * arrays in a GPU's memory and take another route, and user-made reductions, which may depend on getting whole arrays.
 */
int local_can_make(const frame *f) {
    return atomic_load_explicit(&is_on, memory_order_relaxed) && (f->facts.row->attributes & LOCAL) &&
           !(features_get() & FEATURE_GPUS) && f->size > 1 && f->size <= MOST_RANKS &&
           (!frame_has(f, ATTRIBUTE_OP) || reduction_is_predefined(f->facts.reduction));
}

static int local_fits_one_post(const frame_posts *posts) {
    return posts->part_bytes <= SEGMENT_POST_BYTES &&
           local_bytes_align(posts->part_bytes) * posts->part_count <= SEGMENT_POST_BYTES;
}

/* Returns whether shared memory is faster than MPI with posts of SEGMENT_POST_BYTES. */
static int local_is_faster_short(const frame *f, const frame_posts *posts) {
    return posts->part_bytes <= MOST_BYTES && posts->part_bytes * posts->part_count * f->size <= MOST_BYTES;
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
static int local_is_faster_long(const frame *f, const frame_posts *posts) {
    return posts->combines && !local_fits_one_post(posts) &&
           (f->size <= FEW_RANKS || posts->part_count > 1 || local_combines_for_all(f, posts));
}

/* Makes the collective call through the segment, in one round or several. Sets `*made` to whether it did: not if MPI is
 * faster because the ranks have no memory for long posts. Returns 0 or an error code. */
static int local_call_make(segment *s, const frame *f, const frame_posts *posts, int *made) {
    const int is_long = local_is_faster_long(f, posts);
    const uint64_t call_hash = posts->call_hash | BEGINS;
    int code = segment_check(s);
    if (code == 0 && is_long && !segment_long_is_settled(s)) code = local_long_posts_open(s, f);
    if (code != 0) return code;
    *made = local_is_faster_short(f, posts) || (is_long && segment_post_bytes_max(s) > SEGMENT_POST_BYTES);
    if (!*made) return 0;
    if (local_fits_one_post(posts)) return local_round_make(s, f, posts, 0, posts->part_bytes, f->n, call_hash);
    if (is_long && local_combines_for_all(f, posts)) return local_parts_combine(s, f, posts, call_hash);
    return local_rounds_make(s, f, posts, call_hash);
}

int local_run(const frame *f, int *made) {
    void *held = NULL;
    *made = 0;
    const frame_posts *posts = &f->posts;
    if (!local_is_faster_short(f, posts) && !local_is_faster_long(f, posts)) return 0;
    int code = hold_acquire(&segments, f->facts.communicator, &held);
    segment *s = held;
    if (code != 0 || !s) return code;
    code = local_call_make(s, f, posts, made);
    if (code != 0) memory_break_by_call(segment_state(s), f, code);
    hold_release(&segments, f->facts.communicator, s);
    if (code == 0 && *made && frame_has(f, ATTRIBUTE_FILL)) exscan_fill(f);
    return code;
}
