#include "routes/nccl_calls.h"

#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "neighbours/messages.h"
#include "routes/gpu.h"
#include "routes/routes.h"

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

/* The type and the reduction of a call, in NCCL's numbers. */
typedef struct reduced {
    int type, op;
    size_t parts; /* of that type, for each element */
} reduced;

/* Sets `*r` to NCCL's type and reduction for the call. Returns whether NCCL has both, and NaN as MPI has it; so not for
 * MAX and MIN of floats. */
static int nccl_reduction_find(const frame *f, reduced *r) {
    int64_t number = f->attributes[ATTRIBUTE_OP];
    const dtype_entry *dtype = facts_type(&f->facts);
    if (number < 0 || number >= (int64_t)(sizeof reductions / sizeof *reductions)) return 0;
    int is_complex = strcmp(dtype->row->kind, "complex") == 0, is_float = strcmp(dtype->row->kind, "float") == 0;
    *r = (reduced){.type = types[dtype->number] - 1, .op = reductions[number], .parts = is_complex ? 2 : 1};
    if (r->type == NCCL_NONE || r->op == NCCL_NONE || (is_complex && r->op != NCCL_SUM)) return 0;
    /* If one rank has NaN, NCCL's MAX and MIN of floats return another rank's number. */
    return !is_float || (r->op != NCCL_MAX && r->op != NCCL_MIN);
}

int nccl_supports(const frame *f) {
    reduced r;
    return !frame_has(f, ATTRIBUTE_OP) || nccl_reduction_find(f, &r);
}

/* Calls */

static const plan *nccl_plan(const frame *f) {
    return gpu_call_of(f)->plan;
}

#define CALL(f, name, ...)                                                                             \
    NCCL_CALL(nccl_plan(f)->nccl, nccl_plan(f)->nccl_comm, name, __VA_ARGS__, nccl_plan(f)->nccl_comm, \
              frame_device(f)->stream)

/* Returns the bytes of this rank's items, in a call that reduces nothing. */
static size_t nccl_items_bytes(const frame *f) {
    return (size_t)(f->n * facts_type(&f->facts)->row->itemsize);
}

/* Returns the operand of a reduction: the result's memory, if it is in place. */
static const void *nccl_reduction_source(const frame *f) {
    return f->send.dtype ? f->send.data : f->recv.data;
}

/* Puts an allreduce on the GPU's stream, through NCCL. */
int nccl_allreduce(frame *f) {
    reduced r;
    if (!nccl_reduction_find(f, &r) || f->n == 0) return 0;
    return CALL(f, all_reduce, nccl_reduction_source(f), f->recv.data, (size_t)f->n * r.parts, r.type, r.op);
}

/* Puts a reduce on the GPU's stream, through NCCL. */
int nccl_reduce(frame *f) {
    reduced r;
    if (!nccl_reduction_find(f, &r) || f->n == 0) return 0;
    return CALL(f, reduce, nccl_reduction_source(f), f->recv.data, (size_t)f->n * r.parts, r.type, r.op, f->root);
}

/* Puts a reduce_scatter on the GPU's stream, through NCCL. */
int nccl_reduce_scatter(frame *f) {
    reduced r;
    if (!nccl_reduction_find(f, &r) || f->n == 0) return 0;
    return CALL(f, reduce_scatter, f->send.data, f->recv.data, (size_t)f->n * r.parts, r.type, r.op);
}

int nccl_bcast(frame *f) {
    void *data = f->on_root ? f->send.data : f->recv.data;
    size_t bytes = nccl_items_bytes(f);
    return bytes == 0 ? 0 : CALL(f, broadcast, data, data, bytes, NCCL_UINT8, f->root);
}

int nccl_allgather(frame *f) {
    size_t bytes = nccl_items_bytes(f);
    return bytes == 0 ? 0 : CALL(f, all_gather, f->send.data, f->recv.data, bytes, NCCL_UINT8);
}

/* Messages */

/* Returns the items of rank i's part, in a buffer with a part for each rank. */
static int64_t nccl_part_items(const frame *f, int slot, int i) {
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
        sent.items = gathers ? f->send.count : nccl_part_items(f, PARTS_SENT, i);
        received.items = scatters ? f->recv.count : nccl_part_items(f, PARTS_RECEIVED, i);
        if (!has_root || (gathers ? i == f->root : f->on_root)) {
            if (!gathers) sent.data = frame_item_address(&f->send, from);
            messages_add(&m, sent);
            from += sent.items;
        }
        if (!has_root || (gathers ? f->on_root : i == f->root)) {
            if (!scatters) received.data = frame_item_address(&f->recv, to);
            messages_add(&m, received);
            to += received.items;
        }
    }
    return messages_run(&m, f);
}

/* Gives one message to NCCL, as bytes. Returns 0 or REFUSED. */
static int nccl_message_enqueue(const frame *f, const message *m) {
    size_t bytes = (size_t)(m->items * m->dtype->row->itemsize);
    if (bytes == 0) return 0;
    return m->is_sent ? CALL(f, send, m->data, bytes, NCCL_UINT8, (int)m->peer)
                      : CALL(f, recv, m->data, bytes, NCCL_UINT8, (int)m->peer);
}

/* Gives all messages to NCCL as one group, in the order of their tags; sorts the list for that. Returns 0 or REFUSED.
 */
static int nccl_messages_run(messages *m, frame *f) {
    const plan *p = nccl_plan(f);
    messages_sort(m);
    if (nccl_group_start(p->nccl, p->nccl_comm)) return REFUSED;
    int failed = 0;
    for (int64_t i = 0; i < m->number && !failed; i++) failed = nccl_message_enqueue(f, &m->all[i]);
    return nccl_group_end(p->nccl, p->nccl_comm, failed);
}

/* The route */

static atomic_int waits;

void nccl_calls_synchronous_set(void) {
    atomic_store(&waits, 1);
}

/* Notes in the plan that NCCL has failed, if `code` is not 0. Returns `code`. */
static int nccl_failure_note(const frame *f, int code) {
    if (code != 0) atomic_store(&gpu_call_of(f)->plan->has_failed, 1);
    return code;
}

/* Returns whether the communicator's plan has NCCL, and NCCL can make the call. */
static int nccl_can_make(const frame *f, const operation *o) {
    return f->gpu && o->through_nccl && nccl_plan(f) && nccl_plan(f)->nccl && nccl_supports(f);
}

/* Checks that NCCL has not failed, and that the call is for the GPU of its communicator; notes a failure of NCCL in the
 * plan. Returns 0 or REFUSED. */
static int nccl_begin(frame *f) {
    const plan *p = nccl_plan(f);
    const int number = frame_device(f)->number;
    f->gpu->has_arrays = 1;
    if (p->device == number) return nccl_failure_note(f, plan_nccl_check(p));
    return error_set(
        "%s on communicator '%s' was called for GPU %d, but before for GPU %d: use one GPU in each process",
        f->facts.row->mpi_name, f->facts.communicator->name, number, p->device);
}

/* Puts a call on the stream through NCCL; with nccl_calls_synchronous_set waits for the stream before and after it.
 * Returns 0 or REFUSED. A wait that fails ends the job if the call is collective, since the other ranks wait for this
 * one; else it returns REFUSED. The watchdog must not count the work that the stream has to do before the call:
 * device_wait marks that time as a pause. */
static int nccl_run(frame *f, const operation *o) {
    const device *d = frame_device(f);
    const int is_waited_for = atomic_load_explicit(&waits, memory_order_relaxed);
    int code = is_waited_for ? gpu_local_step_check(f, device_wait(d)) : 0;
    if (code == 0) code = nccl_failure_note(f, o->through_nccl(f));
    if (!is_waited_for || code != 0) return code;
    return gpu_local_step_check(f, DRIVER_CALL(d->driver, stream_synchronize, d->stream));
}

const route route_nccl = {.name = "nccl",
                          .can_make = nccl_can_make,
                          .begin = nccl_begin,
                          .run = nccl_run,
                          .reaches_gpu = 1,
                          .messages_run = nccl_messages_run};
