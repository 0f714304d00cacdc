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

/* Pieces of an array: all items that have certain indices on one axis. Sizes are in bytes. */
typedef struct pieces {
    char *first;
    int64_t number, size, distance;
    const dtype_entry *dtype;
} pieces;

/* Those with `width` indices from `at` on, which counts from the end if it is negative. */
static pieces pieces_of(const ffi_buffer *array, int64_t axis, int64_t width, int64_t at) {
    pieces p = {.dtype = dtype_find(array->dtype), .number = 1};
    int64_t line = p.dtype->row->itemsize;
    for (int64_t i = 0; i < axis; i++) p.number *= array->dims[i];
    for (int64_t i = axis + 1; i < array->rank; i++) line *= array->dims[i];
    p.size = width * line;
    p.distance = array->dims[axis] * line;
    if (p.size == 0) p.number = 0;
    if (p.number > 0) p.first = (char *)array->data + (at < 0 ? at + array->dims[axis] : at) * line;
    return p;
}

typedef int action(pieces p, char *message);

/* Small pieces are what an exchange along the last axis has: copies of a known size are single instructions. */
#define COPY_PIECES(SIZE) \
    for (int64_t i = 0; i < p.number; i++, there += there_step, here += here_step) memcpy(there, here, SIZE)
static void copy(char *there, int64_t there_step, const char *here, int64_t here_step, pieces p) {
    switch (p.size) {
        case 1:
            COPY_PIECES(1);
            return;
        case 2:
            COPY_PIECES(2);
            return;
        case 4:
            COPY_PIECES(4);
            return;
        case 8:
            COPY_PIECES(8);
            return;
        case 16:
            COPY_PIECES(16);
            return;
        default:
            COPY_PIECES((size_t)p.size);
    }
}

static int pack(pieces p, char *message) {
    copy(message, p.size, p.first, p.distance, p);
    return 0;
}

static int unpack(pieces p, char *message) {
    copy(p.first, p.distance, message, p.size, p);
    return 0;
}

/* Of the type of every action. */
static int clear(pieces p, char *message) { /* NOLINT(readability-non-const-parameter) */
    (void)message;
    for (int64_t i = 0; i < p.number; i++) memset(p.first + i * p.distance, 0, (size_t)p.size);
    return 0;
}

/* Through memcpy, as a message is not aligned for its items. */
#define ADDER(type)                                                       \
    static int add_##type(pieces p, const char *message) {                \
        for (int64_t i = 0; i < p.number; i++, message += p.size)         \
            for (int64_t j = 0; j < p.size; j += (int64_t)sizeof(type)) { \
                type sum, more;                                           \
                memcpy(&sum, p.first + i * p.distance + j, sizeof sum);   \
                memcpy(&more, message + j, sizeof more);                  \
                sum = (type)(sum + more);                                 \
                memcpy(p.first + i * p.distance + j, &sum, sizeof sum);   \
            }                                                             \
        return 0;                                                         \
    }
ADDER(uint8_t)
ADDER(uint16_t)
ADDER(uint32_t)
ADDER(uint64_t)
ADDER(float)
ADDER(double)

static int add(pieces p, char *message) {
    const mpixla_dtype_row *row = p.dtype->row;
    int64_t size = row->itemsize;
    if (strcmp(row->kind, "integer") == 0) { /* signed ones too: the sums wrap */
        if (size == 1) return add_uint8_t(p, message);
        if (size == 2) return add_uint16_t(p, message);
        if (size == 4) return add_uint32_t(p, message);
        if (size == 8) return add_uint64_t(p, message);
    }
    if (strcmp(row->kind, "complex") == 0) size /= 2;
    if (size == sizeof(float) && strcmp(row->kind, "bytes") != 0) return add_float(p, message);
    if (size == sizeof(double) && strcmp(row->kind, "bytes") != 0) return add_double(p, message);
    error_set("the transpose of a halo exchange cannot add items of type %s", row->name);
    return MPI_REFUSED;
}

/* One dimension */

typedef struct dimension {
    const frame *c;
    mpixla_handle comm;
    int number; /* of the dimension */
    int64_t width;
    int low, high; /* ranks, as this MPI numbers them */
    int itself;    /* whether they are both this rank */
    packing *packing;
} dimension;

static int64_t item(const frame *c, int attribute, int i) {
    return c->arrays[attribute].items[i];
}

/* Does the action with the pieces of each array at `at`, which lie in the message one after another. */
static int each(const dimension *d, int64_t at, action *act, char *message) {
    int dimensions = (int)d->c->arrays[ATTRIBUTE_WIDTH].size, code = 0;
    const int64_t *axis = &d->c->arrays[ATTRIBUTE_AXES].items[d->number];
    for (int64_t i = frame_next(d->c->results, 0); i < d->c->results->size && code == 0;
         i = frame_next(d->c->results, i + 1), axis += dimensions) {
        pieces p = pieces_of(d->c->results->buffers[i], *axis, d->width, at);
        code = act(p, message);
        if (message) message += p.number * p.size;
    }
    return code;
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

/* Sends what is at `from`, and does the action with what comes in, at `to`. */
static int transfer(dimension *d, int64_t from, int dest, int source, int64_t to, action *act, int tag) {
    const frame *c = d->c;
    const mpi_library *mpi = mpi_get();
    message out = message_of(d, from), in = message_of(d, to);
    if (!out.type) return MPI_REFUSED;
    char *sent = out.place, *received = act == unpack ? in.place : NULL;
    if (!sent || !received) {
        char *room = packing_get(&d->packing, 2 * out.bytes);
        if (!room) {
            error_set("out of memory for a message of %lld bytes of a halo exchange", (long long)out.bytes);
            return MPI_REFUSED;
        }
        if (!sent) {
            sent = room;
            if (dest != (int)mpi->facts.proc_null) (void)each(d, from, pack, sent);
        }
        if (!received) received = room + out.bytes;
    }
    if (d->itself) return each(d, to, act, sent);
    int64_t items = out.bytes / out.type->row->itemsize;
    const mpi_counted *calls = items <= mpi->count_limit ? mpi->small : mpi->large;
    int code = calls->sendrecv(sent, items, out.type->handle, dest, tag, received, items, out.type->handle, source, tag,
                               d->comm, c->status);
    if (code != 0 || source == (int)mpi->facts.proc_null) return code;
    code = arrived_check(c, &in, items, source);
    return code == 0 && received != in.place ? each(d, to, act, received) : code;
}

static int exchange(dimension *d) {
    int code = transfer(d, -2 * d->width, d->high, d->low, 0, unpack, 2 * d->number);
    return code ? code : transfer(d, d->width, d->low, d->high, -d->width, unpack, 2 * d->number + 1);
}

static int give_back(dimension *d) {
    int code = transfer(d, 0, d->low, d->high, -2 * d->width, add, 2 * d->number);
    if (code == 0) code = transfer(d, -d->width, d->high, d->low, d->width, add, 2 * d->number + 1);
    if (code) return code;
    int nobody = (int)mpi_get()->facts.proc_null;
    if (d->low != nobody) (void)each(d, 0, clear, NULL);
    if (d->high != nobody) (void)each(d, -d->width, clear, NULL);
    return 0;
}

/* All of them */

static int rank_of(const frame *c, int attribute, int dimension, int *rank) {
    int64_t given = item(c, attribute, dimension);
    *rank = (int)(given == MPIXLA_PROC_NULL ? mpi_get()->facts.proc_null : given);
    if (given == MPIXLA_PROC_NULL || (given >= 0 && given < c->size)) return 0;
    return error_set("a halo exchange got rank %lld as a neighbour, but the ranks of communicator '%s' are 0 to %d",
                     (long long)given, c->communicator->name, c->size - 1);
}

/* Whether the attributes go together and with the arrays. */
static int check(const frame *c) {
    const frame_array *a = c->arrays;
    int64_t dimensions = a[ATTRIBUTE_WIDTH].size, number = 0;
    for (int64_t i = frame_next(c->results, 0); i < c->results->size; i = frame_next(c->results, i + 1)) number++;
    if (a[ATTRIBUTE_LOW].size != dimensions || a[ATTRIBUTE_HIGH].size != dimensions ||
        a[ATTRIBUTE_AXES].size != dimensions * number)
        return error_set("the attributes of a halo exchange of %lld arrays have different numbers of dimensions",
                         (long long)number);
    const int64_t *axis = a[ATTRIBUTE_AXES].items, *width = a[ATTRIBUTE_WIDTH].items;
    for (int64_t i = frame_next(c->results, 0); i < c->results->size; i = frame_next(c->results, i + 1)) {
        const ffi_buffer *array = c->results->buffers[i];
        for (int64_t d = 0; d < dimensions; d++, axis++)
            if (*axis < 0 || *axis >= array->rank || width[d] < 0 || width[d] > array->dims[*axis] / 3)
                return error_set("a halo exchange of width %lld along axis %lld got an array with no such block",
                                 (long long)width[d], (long long)*axis);
    }
    return 0;
}

/* The parameter of the transpose is that it goes through the dimensions backwards. */
static int run(const frame *c, int backwards, int (*one)(dimension *d)) {
    if (check(c)) return MPI_REFUSED;
    dimension d = {.c = c};
    int code = comm_private(c->communicator, &d.comm);
    if (code != 0) return code;
    for (int64_t i = 0, j = 0;; i++, j++) {
        i = frame_next(c->operands, i);
        j = frame_next(c->results, j);
        if (j == c->results->size) break;
        const ffi_buffer *in = c->operands->buffers[i], *out = c->results->buffers[j];
        if (in->data == out->data) continue;
        int64_t bytes = dtype_find(out->dtype)->row->itemsize;
        for (int64_t k = 0; k < out->rank; k++) bytes *= out->dims[k];
        if (bytes > 0) memcpy(out->data, in->data, (size_t)bytes);
    }
    d.packing = atomic_exchange(&kept, NULL);
    int dimensions = (int)c->arrays[ATTRIBUTE_WIDTH].size;
    for (int i = 0; i < dimensions && code == 0; i++) {
        d.number = backwards ? dimensions - 1 - i : i;
        d.width = item(c, ATTRIBUTE_WIDTH, d.number);
        if (rank_of(c, ATTRIBUTE_LOW, d.number, &d.low) || rank_of(c, ATTRIBUTE_HIGH, d.number, &d.high)) {
            code = MPI_REFUSED;
            break;
        }
        d.itself = d.low == c->communicator->rank && d.high == d.low;
        if (d.width > 0) code = one(&d);
    }
    packing_keep(d.packing);
    return code;
}

int halo_exchange(const frame *c) {
    return run(c, 0, exchange);
}

int halo_transpose(const frame *c) {
    return run(c, 1, give_back);
}
