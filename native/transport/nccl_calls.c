#include "transport/nccl_calls.h"

#include <string.h>

#include "device/device.h"
#include "device/nccl.h"
#include "neighbours/messages.h"

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
    const dtype_entry *dtype = facts_type(&f->facts);
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

int nccl_look(const frame *f) {
    int earlier = 0;
    if (NCCL_CALL(f->nccl, f->nccl_comm, comm_error, f->nccl_comm, &earlier)) return REFUSED;
    return nccl_check_earlier(f->nccl, f->nccl_comm, earlier);
}

/* Of the items that this rank has of a call that reduces nothing. */
static size_t bytes_of_items(const frame *f) {
    return (size_t)(f->n * facts_type(&f->facts)->row->itemsize);
}

/* Where a reduction reads: where it writes, for one in place. */
static const void *source_of(const frame *f) {
    return f->send.dtype ? f->send.data : f->recv.data;
}

int nccl_allreduce(frame *f) {
    reduced r;
    if (!is_reduced(f, &r) || f->n == 0) return 0;
    return CALL(f, all_reduce, source_of(f), f->recv.data, (size_t)f->n * r.parts, r.type, r.op);
}

int nccl_reduce(frame *f) {
    reduced r;
    if (!is_reduced(f, &r) || f->n == 0) return 0;
    return CALL(f, reduce, source_of(f), f->recv.data, (size_t)f->n * r.parts, r.type, r.op, f->root);
}

int nccl_reduce_scatter(frame *f) {
    reduced r;
    if (!is_reduced(f, &r) || f->n == 0) return 0;
    return CALL(f, reduce_scatter, f->send.data, f->recv.data, (size_t)f->n * r.parts, r.type, r.op);
}

int nccl_bcast(frame *f) {
    void *data = f->on_root ? f->send.data : f->recv.data;
    size_t bytes = bytes_of_items(f);
    return bytes == 0 ? 0 : CALL(f, broadcast, data, data, bytes, NCCL_UINT8, f->root);
}

int nccl_allgather(frame *f) {
    size_t bytes = bytes_of_items(f);
    return bytes == 0 ? 0 : CALL(f, all_gather, f->send.data, f->recv.data, bytes, NCCL_UINT8);
}

/* Messages */

/* Of rank i's part, in a buffer that has one for each rank. */
static int64_t items_of_part(const frame *f, int slot, int i) {
    return frame_has_rows(f) ? frame_rows(f, slot)[i] * f->row_items : f->n;
}

int nccl_parts(frame *f) {
    frame_counts counts = f->facts.row->counts;
    int gathers = counts == GATHERED || counts == GATHERED_ROWS;
    int scatters = counts == SCATTERED || counts == SCATTERED_ROWS;
    int has_root = frame_has(f, ATTRIBUTE_ROOT);
    int64_t from = 0, to = 0;
    messages m;
    if (messages_begin(&m, f, 2 * (int64_t)f->size)) return REFUSED;
    for (int i = 0; i < f->size; i++) {
        message sent = {.is_sent = 1, .peer = i, .slot = i, .data = f->send.data, .dtype = f->send.dtype};
        message received = {.peer = i, .slot = i, .data = f->recv.data, .dtype = f->recv.dtype};
        sent.items = gathers ? f->send.count : items_of_part(f, PARTS_SENT, i);
        received.items = scatters ? f->recv.count : items_of_part(f, PARTS_RECEIVED, i);
        if (!has_root || (gathers ? i == f->root : f->on_root)) {
            if (!gathers) sent.data = frame_item(&f->send, from);
            messages_add(&m, sent);
            from += sent.items;
        }
        if (!has_root || (gathers ? f->on_root : i == f->root)) {
            if (!scatters) received.data = frame_item(&f->recv, to);
            messages_add(&m, received);
            to += received.items;
        }
    }
    return messages_run(&m, f);
}
