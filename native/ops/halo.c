/* Dimension by dimension, each block sends the lines at its border whole, with the ghosts at their ends: so corners
 * come right without messages to diagonal neighbours, and a message is a few equal pieces of each array, at equal
 * distances.
 *
 * All arrays' pieces are one message. It is sent and received where it lies if it is one piece; else it is packed here,
 * as a derived type of MPI's for several arrays would have to be made again whenever XLA moves one of them. A rank that
 * is its own neighbour copies.
 */
#include "ops/halo.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/nccl.h"
#include "device/pool.h"
#include "ops/pieces.h"

/* The memory for packed messages is kept from call to call. Threads that communicate at once each have one; the last
 * that is done leaves it here. Nothing frees it before the process ends. */
typedef struct packing {
    size_t bytes;
    _Alignas(16) char data[];
} packing;

static _Atomic(packing *) kept;

static void packing_keep(packing *s) {
    free(atomic_exchange(&kept, s));
}

static char *packing_get(packing **s, int64_t bytes) {
    if (!*s || (*s)->bytes < (size_t)bytes) {
        free(*s);
        *s = malloc(sizeof **s + (size_t)bytes);
        if (!*s) return NULL;
        (*s)->bytes = (size_t)bytes;
    }
    return (*s)->data;
}

/* One dimension */

/* Memory for packed messages. */
typedef struct room {
    packing *host;      /* in the host's memory, */
    pool_block *device; /* or in one for a GPU */
} room;

typedef struct dimension {
    const frame *c;
    mpixla_handle comm;
    int number; /* of the dimension */
    int64_t width;
    int low, high; /* ranks, as this MPI numbers them */
    int itself;    /* whether they are both this rank */
    pieces_place place;
    room *room;
} dimension;

static int64_t item(const frame *c, int attribute, int i) {
    return c->arrays[attribute].items[i];
}

/* Does the action with the pieces of each array at `at`, which lie in the message one after another. */
static int each(const dimension *d, int64_t at, pieces_action *act, char *message) {
    int dimensions = (int)d->c->arrays[ATTRIBUTE_WIDTH].size, failed = 0;
    const int64_t *axis = &d->c->arrays[ATTRIBUTE_AXES].items[d->number];
    for (int64_t i = frame_next(d->c->results, 0); i < d->c->results->size && !failed;
         i = frame_next(d->c->results, i + 1), axis += dimensions) {
        pieces p = pieces_of(d->c->results->buffers[i], *axis, d->width, at);
        failed = act(&d->place, p, message);
        if (message) message += p.number * p.size;
    }
    return failed ? MPI_REFUSED : 0;
}

/* What a message is: its bytes, its MPI type (one of bytes if the arrays' types differ), and its place if it is one
 * piece. */
typedef struct message {
    int64_t bytes;
    const dtype_entry *type;
    char *place;
} message;

static message message_of(const dimension *d, int64_t at) {
    const ffi_buffers *arrays = d->c->results;
    int dimensions = (int)d->c->arrays[ATTRIBUTE_WIDTH].size;
    const int64_t *axis = &d->c->arrays[ATTRIBUTE_AXES].items[d->number];
    message m = {.type = d->c->recv.dtype};
    int64_t number = 0;
    for (int64_t i = frame_next(arrays, 0); i < arrays->size; i = frame_next(arrays, i + 1), axis += dimensions) {
        pieces p = pieces_of(arrays->buffers[i], *axis, d->width, at);
        m.bytes += p.number * p.size;
        number += p.number;
        if (p.number > 0) m.place = p.first;
        if (p.dtype != m.type) m.type = dtype_find(FFI_U8);
    }
    if (number != 1) m.place = NULL;
    return m;
}

static int arrived_check(const frame *c, const message *m, int64_t items, int source) {
    int64_t arrived = 0;
    int code = mpi_get()->get_elements(c->status, m->type->handle, &arrived);
    if (code != 0 || arrived == items) return code;
    error_set(
        "a halo exchange on rank %d of communicator '%s' got %lld items from rank %d, but expected %lld; neighbours "
        "must pass arrays of the same types that differ in size only along the axis between them",
        c->communicator->rank, c->communicator->name, (long long)arrived, source, (long long)items);
    return MPI_REFUSED;
}

/* Lines that go to one neighbour, and those that come from the other. */
typedef struct transfer {
    int64_t from, to;
    int dest, source, tag;
    message out, in;
    char *sent, *received;
} transfer;

static char *room_get(const dimension *d, int64_t bytes) {
    const frame *c = d->c;
    if (!c->device) {
        char *data = packing_get(&d->room->host, bytes);
        if (!data) (void)error_set("out of memory for messages of %lld bytes of a halo exchange", (long long)bytes);
        return data;
    }
    pool_give_back(c->device, d->room->device);
    d->room->device = pool_get(c->device, d->place.on_host ? POOL_PINNED : POOL_DEVICE, bytes);
    return d->room->device ? d->room->device->data : NULL;
}

/* Finds where both messages are sent from and received, and packs those that are not one piece where they can be. */
static int transfers_prepare(dimension *d, transfer both[2], pieces_action *act) {
    const mpi_library *mpi = mpi_get();
    int in_place = !d->place.on_host, code = 0;
    int64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        transfer *t = &both[i];
        t->out = message_of(d, t->from);
        t->in = message_of(d, t->to);
        if (!t->out.type) return MPI_REFUSED;
        t->sent = in_place ? t->out.place : NULL;
        t->received = in_place && act == pieces_unpack ? t->in.place : NULL;
        if (t->out.bytes > bytes) bytes = t->out.bytes;
    }
    if (both[0].sent && both[0].received && both[1].sent && both[1].received) return 0;
    /* For each transfer what is sent, and what is received; pieces_add works in the one of them that is not needed. */
    bytes = (bytes + 15) / 16 * 16;
    d->place.room = d->itself ? bytes : -bytes;
    char *room = room_get(d, 4 * bytes);
    if (!room) return MPI_REFUSED;
    for (int i = 0; i < 2 && code == 0; i++) {
        transfer *t = &both[i];
        char *packed = room + 2 * bytes * i;
        if (!t->received) t->received = packed + bytes;
        if (t->sent) continue;
        t->sent = packed;
        if (t->dest != (int)mpi->facts.proc_null) code = each(d, t->from, pieces_pack, packed);
    }
    return code;
}

/* Through MPI. */
static int transfer_make(const dimension *d, const transfer *t) {
    const frame *c = d->c;
    const mpi_library *mpi = mpi_get();
    int64_t items = t->out.bytes / t->out.type->row->itemsize;
    const mpi_counted *calls = items <= mpi->count_limit ? mpi->small : mpi->large;
    mpixla_handle type = t->out.type->handle;
    int code = calls->sendrecv(t->sent, items, type, t->dest, t->tag, t->received, items, type, t->source, t->tag,
                               d->comm, c->status);
    return code != 0 || t->source == (int)mpi->facts.proc_null ? code : arrived_check(c, &t->in, items, t->source);
}

/* Through NCCL: both at once. Where both neighbours are one rank, its messages come in the order in which they are
 * received here. */
static int transfers_make_nccl(const dimension *d, const transfer both[2]) {
    const frame *c = d->c;
    int nobody = (int)mpi_get()->facts.proc_null, failed = 0;
    if (nccl_group_start(c->nccl, c->nccl_comm)) return MPI_REFUSED;
    for (int i = 0; i < 2 && !failed; i++) {
        const transfer *t = &both[i];
        size_t bytes = (size_t)t->out.bytes;
        if (bytes == 0) continue;
        if (t->dest != nobody)
            failed = NCCL_CALL(c->nccl, c->nccl_comm, send, t->sent, bytes, NCCL_UINT8, t->dest, c->nccl_comm,
                               c->device->stream);
        if (t->source != nobody && !failed)
            failed = NCCL_CALL(c->nccl, c->nccl_comm, recv, t->received, bytes, NCCL_UINT8, t->source, c->nccl_comm,
                               c->device->stream);
    }
    return nccl_group_end(c->nccl, c->nccl_comm, failed) ? MPI_REFUSED : 0;
}

static int transfers_make(const dimension *d, const transfer both[2]) {
    if (d->c->nccl) return transfers_make_nccl(d, both);
    /* What MPI is given must be there. */
    if (d->c->device && device_wait(d->c->device)) return MPI_REFUSED;
    int code = transfer_make(d, &both[0]);
    return code != 0 ? code : transfer_make(d, &both[1]);
}

/* Sends all that is to be sent, and does the action with what comes in. What is sent is not what the action changes,
 * except that pieces_add may change the same lines twice. */
static int transfers_run(dimension *d, transfer both[2], pieces_action *act) {
    int nobody = (int)mpi_get()->facts.proc_null;
    int code = transfers_prepare(d, both, act);
    if (code == 0 && !d->itself) code = transfers_make(d, both);
    for (int i = 0; i < 2 && code == 0; i++) {
        transfer *t = &both[i];
        char *arrived = d->itself ? t->sent : t->received;
        if (t->source != nobody && arrived != t->in.place) code = each(d, t->to, act, arrived);
    }
    return code;
}

static int exchange(dimension *d) {
    transfer both[2] = {
        {.from = -2 * d->width, .dest = d->high, .source = d->low, .to = 0, .tag = 2 * d->number},
        {.from = d->width, .dest = d->low, .source = d->high, .to = -d->width, .tag = 2 * d->number + 1}};
    return transfers_run(d, both, pieces_unpack);
}

static int give_back(dimension *d) {
    transfer both[2] = {
        {.from = 0, .dest = d->low, .source = d->high, .to = -2 * d->width, .tag = 2 * d->number},
        {.from = -d->width, .dest = d->high, .source = d->low, .to = d->width, .tag = 2 * d->number + 1}};
    int nobody = (int)mpi_get()->facts.proc_null, code = transfers_run(d, both, pieces_add);
    if (code == 0 && d->low != nobody) code = each(d, 0, pieces_clear, NULL);
    if (code == 0 && d->high != nobody) code = each(d, -d->width, pieces_clear, NULL);
    return code;
}

/* All of them */

/* The neighbour in a slot, as this MPI numbers it. */
static int rank_of(const frame *c, int slot) {
    int64_t rank = c->dests->ranks[slot];
    return (int)(rank == MPIXLA_PROC_NULL ? mpi_get()->facts.proc_null : rank);
}

/* Whether the attributes go together and with the arrays. */
static int check(const frame *c) {
    const frame_array *a = c->arrays;
    int64_t dimensions = a[ATTRIBUTE_WIDTH].size, number = 0;
    for (int64_t i = frame_next(c->results, 0); i < c->results->size; i = frame_next(c->results, i + 1)) number++;
    if (c->communicator->topology->dimensions != dimensions || a[ATTRIBUTE_AXES].size != dimensions * number)
        return error_set(
            "a halo exchange of %lld arrays has %lld widths and %lld axes, but communicator '%s' has %d dimensions",
            (long long)number, (long long)dimensions, (long long)a[ATTRIBUTE_AXES].size, c->communicator->name,
            c->communicator->topology->dimensions);
    const int64_t *axis = a[ATTRIBUTE_AXES].items, *width = a[ATTRIBUTE_WIDTH].items;
    for (int64_t i = frame_next(c->results, 0); i < c->results->size; i = frame_next(c->results, i + 1)) {
        const ffi_buffer *array = c->results->buffers[i];
        for (int64_t d = 0; d < dimensions; d++, axis++)
            if (*axis < 0 || *axis >= array->rank || width[d] < 0 || width[d] > array->dims[*axis] / 3)
                return error_set(
                    "a halo exchange of width %lld along axis %lld got an array without that axis, or with fewer than "
                    "three times as many items along it",
                    (long long)width[d], (long long)*axis);
    }
    return 0;
}

/* XLA gives the result its operand's memory; else it becomes a copy of it. */
static int results_fill(const frame *c) {
    for (int64_t i = 0, j = 0;; i++, j++) {
        i = frame_next(c->operands, i);
        j = frame_next(c->results, j);
        if (j == c->results->size) return 0;
        const ffi_buffer *in = c->operands->buffers[i], *out = c->results->buffers[j];
        if (in->data == out->data) continue;
        int64_t bytes = dtype_find(out->dtype)->row->itemsize;
        for (int64_t k = 0; k < out->rank; k++) bytes *= out->dims[k];
        if (c->device) {
            if (device_copy_within(c->device, out->data, in->data, bytes)) return MPI_REFUSED;
        } else if (bytes > 0) {
            memcpy(out->data, in->data, (size_t)bytes);
        }
    }
}

/* The parameter of the transpose is that it goes through the dimensions backwards. */
static int run(const frame *c, int backwards, int (*one)(dimension *d)) {
    if (check(c)) return MPI_REFUSED;
    room memory = {.host = NULL};
    dimension d = {.c = c, .room = &memory, .place = {.device = c->device}};
    d.place.on_host = c->device && (backwards || !(c->nccl || c->direct));
    int code = c->nccl ? 0 : comm_private(c->communicator, &d.comm);
    if (code == 0) code = results_fill(c);
    if (code != 0) return code;
    if (!c->device) memory.host = atomic_exchange(&kept, NULL);
    int dimensions = (int)c->arrays[ATTRIBUTE_WIDTH].size;
    for (int i = 0; i < dimensions && code == 0; i++) {
        d.number = backwards ? dimensions - 1 - i : i;
        d.width = item(c, ATTRIBUTE_WIDTH, d.number);
        d.low = rank_of(c, 2 * d.number);
        d.high = rank_of(c, 2 * d.number + 1);
        d.itself = d.low == c->communicator->rank && d.high == d.low;
        if (d.width > 0) code = one(&d);
    }
    if (c->device)
        pool_give_back(c->device, memory.device);
    else
        packing_keep(memory.host);
    return code;
}

int halo_exchange(const frame *c) {
    return run(c, 0, exchange);
}

int halo_transpose(const frame *c) {
    return run(c, 1, give_back);
}
