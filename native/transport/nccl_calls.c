#include "transport/nccl_calls.h"

#include <string.h>

#include "base/error.h"
#include "base/scratch.h"
#include "device/device.h"
#include "device/nccl.h"
#include "ops/exchange.h"

/* Types and reductions */

/* NCCL's numbers, by XLA's number of the element type. */
static const int types[] = {
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) [ffi] = (nccl) + 1,
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
};

static const int reductions[] = {
#define MPIXLA_REDUCTION(name, kinds, nccl) nccl,
#include "tables/reductions.def"
#undef MPIXLA_REDUCTION
};

/* What a call reduces, as NCCL sees it. */
typedef struct reduced {
    int type, op;
    size_t parts; /* of that type, for each element */
} reduced;

static int is_reduced(const frame *f, reduced *r) {
    int64_t number = f->attributes[ATTRIBUTE_OP];
    const dtype_entry *dtype = f->send.dtype ? f->send.dtype : f->recv.dtype;
    if (number < 0 || number >= (int64_t)(sizeof reductions / sizeof *reductions)) return 0;
    int is_complex = strcmp(dtype->row->kind, "complex") == 0, is_float = strcmp(dtype->row->kind, "float") == 0;
    *r = (reduced){.type = types[dtype->number] - 1, .op = reductions[number], .parts = is_complex ? 2 : 1};
    if (r->type == NCCL_NONE || r->op == NCCL_NONE || (is_complex && r->op != NCCL_SUM)) return 0;
    /* Where one rank has NaN, NCCL's MAX and MIN of floats give another rank's number. */
    return !is_float || (r->op != NCCL_MAX && r->op != NCCL_MIN);
}

int nccl_takes(const frame *f) {
    reduced r;
    return !frame_has(f, ATTRIBUTE_OP) || is_reduced(f, &r);
}

/* Calls */

#define CALL(f, name, ...) NCCL_CALL((f)->nccl, (f)->nccl_comm, name, __VA_ARGS__, (f)->nccl_comm, (f)->device->stream)

static int done(int failed) {
    return failed ? MPI_REFUSED : 0;
}

int nccl_look(const frame *f) {
    int earlier = 0;
    if (NCCL_CALL(f->nccl, f->nccl_comm, comm_error, f->nccl_comm, &earlier)) return MPI_REFUSED;
    return done(nccl_check_earlier(f->nccl, f->nccl_comm, earlier));
}

static size_t bytes_of(const frame *f, int64_t items) {
    return (size_t)(items * (f->recv.dtype ? f->recv.dtype : f->send.dtype)->row->itemsize);
}

/* Where a reduction reads: where it writes, for one in place. */
static const void *source_of(const frame *f) {
    return f->send.dtype ? f->send.data : f->recv.data;
}

int nccl_allreduce(const frame *f) {
    reduced r;
    if (!is_reduced(f, &r) || f->n == 0) return 0;
    return done(CALL(f, all_reduce, source_of(f), f->recv.data, (size_t)f->n * r.parts, r.type, r.op));
}

int nccl_reduce(const frame *f) {
    reduced r;
    if (!is_reduced(f, &r) || f->n == 0) return 0;
    return done(CALL(f, reduce, source_of(f), f->recv.data, (size_t)f->n * r.parts, r.type, r.op, f->root));
}

int nccl_reduce_scatter(const frame *f) {
    reduced r;
    if (!is_reduced(f, &r) || f->n == 0) return 0;
    return done(CALL(f, reduce_scatter, f->send.data, f->recv.data, (size_t)f->n * r.parts, r.type, r.op));
}

int nccl_bcast(const frame *f) {
    void *data = f->on_root ? f->send.data : f->recv.data;
    size_t bytes = bytes_of(f, f->n);
    return bytes == 0 ? 0 : done(CALL(f, broadcast, data, data, bytes, NCCL_UINT8, f->root));
}

int nccl_allgather(const frame *f) {
    size_t bytes = bytes_of(f, f->n);
    return bytes == 0 ? 0 : done(CALL(f, all_gather, f->send.data, f->recv.data, bytes, NCCL_UINT8));
}

/* Groups of messages */

static int group_start(const frame *f) {
    return nccl_group_start(f->nccl, f->nccl_comm);
}

static int group_end(const frame *f, int failed) {
    return done(nccl_group_end(f->nccl, f->nccl_comm, failed));
}

static int send(const frame *f, const frame_buffer *b, int64_t at, int64_t items, int peer) {
    size_t bytes = bytes_of(f, items);
    return bytes > 0 && CALL(f, send, (const char *)b->data + bytes_of(f, at), bytes, NCCL_UINT8, peer);
}

static int receive(const frame *f, const frame_buffer *b, int64_t at, int64_t items, int peer) {
    size_t bytes = bytes_of(f, items);
    return bytes > 0 && CALL(f, recv, (char *)b->data + bytes_of(f, at), bytes, NCCL_UINT8, peer);
}

/* Whose rows: `counts` has those of each rank, or all have `n` items. */
typedef struct rows {
    const int64_t *counts;
    int64_t items; /* of a row */
    int64_t n;
} rows;

static int64_t items_of(const rows *r, int rank) {
    return r->counts ? r->counts[rank] * r->items : r->n;
}

/* The parts of the send buffer go to the ranks, or from the ranks come those of the receive buffer; NULL: nothing does.
 */
static int parts_move(const frame *f, const rows *sent, const rows *received) {
    if (group_start(f)) return MPI_REFUSED;
    int failed = 0;
    int64_t out = 0, in = 0;
    for (int i = 0; i < f->size && !failed; i++) {
        if (sent) {
            failed = send(f, &f->send, out, items_of(sent, i), i);
            out += items_of(sent, i);
        }
        if (received && !failed) {
            failed = receive(f, &f->recv, in, items_of(received, i), i);
            in += items_of(received, i);
        }
    }
    return group_end(f, failed);
}

int nccl_alltoall(const frame *f) {
    const rows all = {.n = f->n};
    return parts_move(f, &all, &all);
}

int nccl_alltoallv(const frame *f) {
    const rows sent = {.counts = f->arrays[ATTRIBUTE_SENDCOUNTS].items, .items = f->row_items};
    const rows received = {.counts = f->arrays[ATTRIBUTE_RECVCOUNTS].items, .items = f->row_items};
    return parts_move(f, &sent, &received);
}

static int all_receive(const frame *f, const rows *received) {
    if (group_start(f)) return MPI_REFUSED;
    int failed = 0;
    int64_t in = 0;
    for (int i = 0; i < f->size && !failed; in += items_of(received, i++)) {
        failed = send(f, &f->send, 0, f->send.count, i);
        if (!failed) failed = receive(f, &f->recv, in, items_of(received, i), i);
    }
    return group_end(f, failed);
}

int nccl_allgatherv(const frame *f) {
    const rows received = {.counts = f->arrays[ATTRIBUTE_COUNTS].items, .items = f->row_items};
    return all_receive(f, &received);
}

/* To the root, from all. */
static int root_receives(const frame *f, const rows *received) {
    if (group_start(f)) return MPI_REFUSED;
    int failed = send(f, &f->send, 0, f->send.count, f->root);
    int64_t in = 0;
    for (int i = 0; f->on_root && i < f->size && !failed; in += items_of(received, i++))
        failed = receive(f, &f->recv, in, items_of(received, i), i);
    return group_end(f, failed);
}

int nccl_gather(const frame *f) {
    const rows received = {.n = f->n};
    return root_receives(f, &received);
}

int nccl_gatherv(const frame *f) {
    const rows received = {.counts = f->arrays[ATTRIBUTE_COUNTS].items, .items = f->row_items};
    return root_receives(f, &received);
}

static int root_sends(const frame *f, const rows *sent) {
    if (group_start(f)) return MPI_REFUSED;
    int failed = 0;
    int64_t out = 0;
    for (int i = 0; f->on_root && i < f->size && !failed; out += items_of(sent, i++))
        failed = send(f, &f->send, out, items_of(sent, i), i);
    if (!failed) failed = receive(f, &f->recv, 0, f->recv.count, f->root);
    return group_end(f, failed);
}

int nccl_scatter(const frame *f) {
    const rows sent = {.n = f->n};
    return root_sends(f, &sent);
}

int nccl_scatterv(const frame *f) {
    const rows sent = {.counts = f->arrays[ATTRIBUTE_COUNTS].items, .items = f->row_items};
    return root_sends(f, &sent);
}

/* The neighbour operations. NCCL has no tags: two ranks' messages meet in the order of their tags and then of their
 * slots, which is that of both. */

typedef struct slot {
    int64_t tag, number, at;
} slot;

/* Few slots, and mostly in order. */
static void slots_sort(slot *s, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const slot moved = s[i];
        int64_t j = i;
        for (; j > 0 && (s[j - 1].tag > moved.tag || (s[j - 1].tag == moved.tag && s[j - 1].number > moved.number));
             j--)
            s[j] = s[j - 1];
        s[j] = moved;
    }
}

static int slots_clear(const frame *f) {
    const frame_array *a = f->arrays;
    int failed = 0;
    for (int64_t i = 0, at = 0; i < f->sources->number && !failed; at += a[ATTRIBUTE_RECVCOUNTS].items[i++])
        if (f->sources->ranks[i] == MPIXLA_PROC_NULL)
            failed = device_clear(f->device, (char *)f->recv.data + bytes_of(f, at),
                                  (int64_t)bytes_of(f, a[ATTRIBUTE_RECVCOUNTS].items[i]));
    return failed;
}

int nccl_exchange(const frame *f) {
    const frame_array *a = f->arrays;
    int64_t sources = f->sources->number, dests = f->dests->number;
    if (exchange_check(f)) return MPI_REFUSED;
    slot *s = scratch_get(SCRATCH_MESSAGES, (size_t)(sources + dests) * sizeof *s);
    if (!s || slots_clear(f) || group_start(f)) return MPI_REFUSED;
    slot *r = s + dests;
    for (int64_t i = 0; i < dests; i++) s[i] = (slot){f->dests->tags[i], i, a[ATTRIBUTE_SENDOFFSETS].items[i]};
    for (int64_t i = 0, at = 0; i < sources; at += a[ATTRIBUTE_RECVCOUNTS].items[i++])
        r[i] = (slot){f->sources->tags[i], i, at};
    slots_sort(s, dests);
    slots_sort(r, sources);
    int failed = 0;
    for (int64_t i = 0; i < dests && !failed; i++) {
        int64_t peer = f->dests->ranks[s[i].number], items = a[ATTRIBUTE_SENDCOUNTS].items[s[i].number];
        if (peer != MPIXLA_PROC_NULL) failed = send(f, &f->send, s[i].at, items, (int)peer);
    }
    for (int64_t i = 0; i < sources && !failed; i++) {
        int64_t peer = f->sources->ranks[r[i].number], items = a[ATTRIBUTE_RECVCOUNTS].items[r[i].number];
        if (peer != MPIXLA_PROC_NULL) failed = receive(f, &f->recv, r[i].at, items, (int)peer);
    }
    return group_end(f, failed);
}
