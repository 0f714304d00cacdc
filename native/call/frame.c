#include "call/frame.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "call/site.h"
#include "mpi/float_reduce.h"
#include "mpi/pair_reduce.h"
#include "mpi/reduction.h"
#include "mpi/status.h"

static const char *const names[] = {
#define MPIXLA_ATTRIBUTE(NAME, name) name,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

static const uint8_t lengths[] = {
#define MPIXLA_ATTRIBUTE(NAME, name) sizeof name - 1,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

static const uint32_t are_arrays = 0
#define MPIXLA_ATTRIBUTE(NAME, name)
#define MPIXLA_ATTRIBUTE_ARRAY(NAME, name) | NAME
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
#undef MPIXLA_ATTRIBUTE_ARRAY
    ;

static const uint32_t may_be_shifts = 0
#define MPIXLA_ATTRIBUTE(NAME, name)
#define MPIXLA_ATTRIBUTE_RANK(NAME, name) | NAME
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
#undef MPIXLA_ATTRIBUTE_RANK
    ;

const char *const *mpixla_attribute_table(size_t *rows) {
    *rows = ATTRIBUTES;
    return names;
}

/* Attributes: both lists are sorted, so they are walked together, ours by the bits that are set. */

static int name_is(const ffi_bytes *name, int attribute) {
    return name->len == lengths[attribute] && memcmp(name->ptr, names[attribute], name->len) == 0;
}

/* Where the call comes from only matters to people: a program may leave it out, and what is no site is unknown. */
static int64_t site_of(const ffi_attributes *given, int64_t i) {
    if (given->types[i] == FFI_ATTRIBUTE_STRING) {
        const ffi_bytes *text = given->values[i];
        return site_read(text->ptr, text->len);
    }
    const ffi_scalar *scalar = given->values[i];
    return given->types[i] == FFI_ATTRIBUTE_SCALAR && scalar->dtype == FFI_S64 ? *(const int64_t *)scalar->value : 0;
}

/* The next attribute is an array, or a rank that is given as a shift. */
static int array_read(frame *f, const ffi_attributes *given, int64_t next, int i) {
    const ffi_array *array = given->values[next];
    int is_rank = (int)(may_be_shifts >> i & 1U);
    if (given->types[next] != FFI_ATTRIBUTE_ARRAY || array->dtype != FFI_S64 || array->size > INT_MAX ||
        (is_rank && (array->size == 0 || !comm_is_shift((int64_t)array->size))))
        return error_set("attribute '%s' of %s must be %s", names[i], f->shape->mpi_name,
                         is_rank ? "a 64-bit integer, or pairs of them: a direction and by how many ranks"
                                 : "an array of 64-bit integers");
    f->arrays[i] = (frame_array){.items = array->data, .size = (int64_t)array->size};
    return 0;
}

static int attributes_read(frame *f, const ffi_attributes *given) {
    const char *op = f->shape->mpi_name;
    int64_t next = 0;
    for (uint32_t left = f->shape->attributes & ((1U << ATTRIBUTES) - 1); left; left &= left - 1) {
        int i = __builtin_ctz(left);
        int is_given = next < given->size && name_is(given->names[next], i);
        if (i == ATTRIBUTE_SITE) {
            if (is_given) f->site = site_of(given, next++);
            continue;
        }
        if (!is_given)
            return error_set("%s was called without its attribute '%s', or with one that it does not take", op,
                             names[i]);
        f->arrays[i].size = 0;
        int may_be_array = (int)((are_arrays | may_be_shifts) >> i & 1U);
        if (may_be_array && (are_arrays >> i & 1U || given->types[next] == FFI_ATTRIBUTE_ARRAY)) {
            if (array_read(f, given, next++, i)) return -1;
            continue;
        }
        const ffi_scalar *scalar = given->values[next];
        if (given->types[next] != FFI_ATTRIBUTE_SCALAR || scalar->dtype != FFI_S64)
            return error_set("attribute '%s' of %s must be a 64-bit integer", names[i], op);
        f->attributes[i] = *(const int64_t *)scalar->value;
        next++;
    }
    if (next < given->size)
        return error_set("%s was called with an attribute '%.*s' that it does not take", op,
                         (int)given->names[next]->len, given->names[next]->ptr);
    return 0;
}

/* The rank at the other end of a message, where the program says how far it is from here. */
static int shift_resolve(frame *f, int attribute) {
    const frame_array *steps = &f->arrays[attribute];
    return comm_shift(f->communicator, steps->items, steps->size, &f->attributes[attribute]);
}

/* A rank of the communicator, or one of `also` (ending with a number that is not negative). */
static int rank_check(frame *f, int attribute, const int *also) {
    if (f->arrays[attribute].size > 0) return shift_resolve(f, attribute);
    int64_t rank = f->attributes[attribute];
    if (rank >= 0 && rank < f->size) return 0;
    for (; *also < 0; also++)
        if (rank == *also) return 0;
    return error_set("%s got %s = %lld, but the ranks of communicator '%s' are 0 to %d", f->shape->mpi_name,
                     names[attribute], (long long)rank, f->communicator->name, f->size - 1);
}

static int tag_check(const frame *f, int attribute, int any) {
    int64_t tag = f->attributes[attribute];
    if ((tag >= 0 && tag <= INT_MAX) || (any && tag == MPIXLA_ANY_TAG)) return 0;
    return error_set("%s got %s = %lld, but tags are 0 to %d", f->shape->mpi_name, names[attribute], (long long)tag,
                     INT_MAX);
}

static int rank_of_mpi(const mpixla_mpi_facts *facts, int64_t rank) {
    return (int)(rank == MPIXLA_PROC_NULL ? facts->proc_null : rank == MPIXLA_ANY_SOURCE ? facts->any_source : rank);
}

/* Who the neighbours are is the communicator's to say: so the program is the same on every rank. */
static int neighbours_resolve(frame *f) {
    const topology *t = f->communicator->topology;
    int is_halo = frame_has(f, ATTRIBUTE_WIDTH);
    if (!t || (is_halo && t->dimensions < 0))
        return error_set("%s needs a communicator with a %s, but '%s' has none", f->shape->op_name,
                         is_halo ? "Cartesian topology" : "topology, which says who is whose neighbour",
                         f->communicator->name);
    int back = frame_has(f, ATTRIBUTE_BACK) && f->attributes[ATTRIBUTE_BACK] != 0;
    f->sources = back ? &t->dests : &t->sources;
    f->dests = back ? &t->sources : &t->dests;
    return 0;
}

static int attributes_resolve(frame *f, const mpi_library *mpi) {
    static const int nothing_else[] = {0}, nobody[] = {MPIXLA_PROC_NULL, 0},
                     anybody[] = {MPIXLA_PROC_NULL, MPIXLA_ANY_SOURCE, 0};
    const int64_t *a = f->attributes;
    f->communicator = comm_find(a[ATTRIBUTE_COMM]);
    if (!f->communicator) return -1;
    f->comm = f->communicator->handle;
    f->size = f->communicator->size;
    f->reverse = frame_has(f, ATTRIBUTE_REVERSE) && a[ATTRIBUTE_REVERSE] != 0;
    if (frame_has(f, ATTRIBUTE_ROOT)) {
        if (rank_check(f, ATTRIBUTE_ROOT, nothing_else)) return -1;
        f->root = (int)a[ATTRIBUTE_ROOT];
        f->on_root = f->root == f->communicator->rank;
    }
    if (frame_has(f, ATTRIBUTE_DEST)) {
        if (rank_check(f, ATTRIBUTE_DEST, nobody) || tag_check(f, ATTRIBUTE_SENDTAG, 0)) return -1;
        f->dest = rank_of_mpi(&mpi->facts, a[ATTRIBUTE_DEST]);
        f->sendtag = (int)a[ATTRIBUTE_SENDTAG];
    }
    if (frame_has(f, ATTRIBUTE_SOURCE)) {
        if (rank_check(f, ATTRIBUTE_SOURCE, anybody) || tag_check(f, ATTRIBUTE_RECVTAG, 1)) return -1;
        f->source = rank_of_mpi(&mpi->facts, a[ATTRIBUTE_SOURCE]);
        f->recvtag = (int)(a[ATTRIBUTE_RECVTAG] == MPIXLA_ANY_TAG ? mpi->facts.any_tag : a[ATTRIBUTE_RECVTAG]);
    }
    if (frame_has_neighbours(f) && neighbours_resolve(f)) return -1;
    if (frame_has(f, ATTRIBUTE_STATUS)) {
        int64_t status = a[ATTRIBUTE_STATUS];
        int is_object = status != MPIXLA_NO_STATUS && status != MPIXLA_STATUS_RESULT;
        f->status = is_object ? status_find(status) : f->scratch;
        if (!f->status) return -1;
    }
    return 0;
}

/* Buffers. Tokens carry order, not data, and are passed over. */

static int is_here(mpixla_where where, const frame *f) {
    return where == MPIXLA_EVERYWHERE || (where == MPIXLA_ON_ROOT && f->on_root) ||
           (where == MPIXLA_OFF_ROOT && !f->on_root);
}

static int buffer_read(frame_buffer *b, const frame *f, const char *what, const ffi_buffer *given) {
    const char *op = f->shape->mpi_name;
    b->dtype = dtype_find(given->dtype);
    if (!b->dtype) return -1;
    if (given->rank < 0 || (given->rank > 0 && !given->dims))
        return error_set("the %s of %s has no valid shape", what, op);
    b->count = 1;
    /* Without the axes that are empty: so no product of some of the dimensions can be too large, nor its bytes. */
    int64_t bytes = b->dtype->row->itemsize;
    for (int64_t i = 0; i < given->rank; i++) {
        int64_t dim = given->dims[i];
        if (dim < 0 || (dim > 0 && __builtin_mul_overflow(bytes, dim, &bytes)))
            return error_set("the %s of %s has a dimension of %lld items, which is no valid shape", what, op,
                             (long long)dim);
        b->count *= dim;
    }
    if (!given->data && b->count > 0)
        return error_set("the %s of %s is a null pointer, but has %lld items", what, op, (long long)b->count);
    b->data = given->data;
    b->rank = given->rank;
    b->dims = given->dims;
    return 0;
}

/* The data buffers of one side of the call, in the order of the two slots; a slot that is NULL is not there. A call
 * that waits may have further operands, whose values do not matter. */
static int buffers_read(frame *f, const ffi_buffers *given, const char *side, frame_buffer *slots[2],
                        const char *const what[2]) {
    int expected = (slots[0] != NULL) + (slots[1] != NULL), found = 0;
    for (int64_t i = 0; i < given->size; i++) {
        const ffi_buffer *buffer = given->buffers[i];
        if (given->types[i] != FFI_KIND_BUFFER)
            return error_set("%s %lld of %s is not a buffer", side, (long long)i, f->shape->mpi_name);
        if (buffer->dtype == FFI_TOKEN) continue;
        int slot = slots[0] && found == 0 ? 0 : 1;
        if (found < expected && buffer_read(slots[slot], f, what[slot], buffer)) return -1;
        found++;
    }
    int more = f->shape->request == FRAME_WAITS && slots[0] == &f->id;
    if (more ? found < expected : found != expected)
        return error_set("%s was called with %d %ss on this rank, but takes %d", f->shape->mpi_name, found, side,
                         expected);
    return 0;
}

int64_t frame_next(const ffi_buffers *given, int64_t i) {
    while (i < given->size && given->types[i] == FFI_KIND_BUFFER &&
           ((const ffi_buffer *)given->buffers[i])->dtype == FFI_TOKEN)
        i++;
    return i;
}

static int shapes_differ(const ffi_buffer *a, const ffi_buffer *b) {
    int differ = a->dtype != b->dtype || a->rank != b->rank;
    for (int64_t i = 0; !differ && i < a->rank; i++) differ = a->dims[i] != b->dims[i];
    return differ;
}

/* The pairs of MANY. `send` and `recv` are the first pair, with the items of all of them. */
static int pairs_read(frame *f, const ffi_buffers *operands, const ffi_buffers *results) {
    const char *op = f->shape->mpi_name;
    int64_t items = 0, pairs = 0, i = 0, j = 0;
    for (;; i++, j++, pairs++) {
        frame_buffer in = {0}, out = {0};
        i = frame_next(operands, i);
        j = frame_next(results, j);
        if (i == operands->size || j == results->size) break;
        if (operands->types[i] != FFI_KIND_BUFFER)
            return error_set("operand %lld of %s is not a buffer", (long long)i, op);
        if (results->types[j] != FFI_KIND_BUFFER)
            return error_set("result %lld of %s is not a buffer", (long long)j, op);
        const ffi_buffer *operand = operands->buffers[i], *result = results->buffers[j];
        if (buffer_read(&in, f, "send buffer", operand) || buffer_read(&out, f, "receive buffer", result)) return -1;
        if (shapes_differ(operand, result))
            return error_set("operand %lld of %s differs from its result in type or shape", (long long)i, op);
        items += out.count;
        if (pairs > 0) continue;
        f->send = in;
        f->recv = out;
    }
    if (pairs == 0 || i < operands->size || j < results->size)
        return error_set("%s takes at least one operand, and as many operands as results", op);
    f->send.count = f->recv.count = f->n = items;
    f->type = f->recv.dtype->handle;
    f->operands = operands;
    f->results = results;
    f->status = f->scratch;
    return 0;
}

static int is_not_times(int64_t all, int64_t size, int64_t part) {
    int64_t product;
    return __builtin_mul_overflow(size, part, &product) || product != all;
}

static int counts_check(frame *f) {
    const frame_buffer *send = &f->send, *recv = &f->recv;
    const char *op = f->shape->mpi_name;
    if (f->template_.dtype && (f->template_.dtype != recv->dtype || f->template_.count != recv->count))
        return error_set("the template of %s differs from its result in type or size", op);
    f->type = recv->dtype ? recv->dtype->handle : send->dtype ? send->dtype->handle : 0;
    f->n = send->count > recv->count ? send->count : recv->count;
    if (f->shape->counts == GATHERED) f->n = send->count;
    if (f->shape->counts == SCATTERED) f->n = recv->count;
    if (f->shape->counts == DIVIDED) f->n = recv->count / f->size;
    if (f->shape->counts == FREE || !send->dtype || !recv->dtype) return 0;
    if (send->dtype != recv->dtype)
        return error_set("%s was called with %s to send and %s to receive", op, send->dtype->row->name,
                         recv->dtype->row->name);
    int64_t size = f->size;
    if ((f->shape->counts == SAME && send->count != recv->count) ||
        (f->shape->counts == DIVIDED && (send->count != recv->count || f->n * size != recv->count)) ||
        (f->shape->counts == GATHERED && is_not_times(recv->count, size, send->count)) ||
        (f->shape->counts == SCATTERED && is_not_times(send->count, size, recv->count)))
        return error_set(
            "%s on %lld ranks was called with %lld items to send and %lld to receive, which do not go "
            "together",
            op, (long long)size, (long long)send->count, (long long)recv->count);
    return 0;
}

/* Pairs of a value and a place are bytes along the last axis, and MPI is told of the pairs. */
static int pairs_resolve(frame *f, const mpi_library *mpi) {
    const frame_buffer *b = f->send.dtype ? &f->send : &f->recv;
    if (b->dtype->number != FFI_U8 || b->rank == 0 || (f->recv.dtype && f->recv.dtype != b->dtype))
        return error_set("%s with op %s takes pairs as uint8 with the bytes of a pair along the last axis",
                         f->shape->mpi_name, reduction_name(f->attributes[ATTRIBUTE_OP]));
    int64_t bytes = b->dims[b->rank - 1];
    const pair_reduction *pair = pair_reduce_find(mpi, bytes, b->dtype->handle);
    if (!pair) return -1;
    f->op = pair->op;
    f->type = pair->type;
    f->n /= bytes;
    return 0;
}

/* Which operation of MPI's reduces depends on the element type. */
static int reduction_resolve(frame *f, const mpi_library *mpi) {
    if (!frame_has(f, ATTRIBUTE_OP)) return 0;
    int64_t number = f->attributes[ATTRIBUTE_OP];
    const dtype_entry *dtype = f->send.dtype ? f->send.dtype : f->recv.dtype;
    if (!dtype) return error_set("%s was called without a buffer to reduce", f->shape->mpi_name);
    if (reduction_is_of_pairs(number)) return pairs_resolve(f, mpi);
    if (!reduction_takes(number, dtype->number))
        return error_set("%s of %s cannot be made with op %s, which has no meaning for that data type",
                         f->shape->mpi_name, dtype->row->name, reduction_name(number));
    const mpixla_handle *op = float_reduce_find(dtype->number, number);
    if (!op) op = reduction_find(number);
    if (!op) return -1;
    f->op = *op;
    return 0;
}

/* Parts by rows */

static int has_rows(const frame *f) {
    return f->shape->counts == GATHERED_ROWS || f->shape->counts == SCATTERED_ROWS ||
           f->shape->counts == EXCHANGED_ROWS;
}

static int attribute_of(const frame *f, int slot) {
    if (f->shape->counts != EXCHANGED_ROWS) return ATTRIBUTE_COUNTS;
    return slot == PARTS_SENT ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_RECVCOUNTS;
}

static const int64_t *rows_of(const frame *f, int slot) {
    return f->arrays[attribute_of(f, slot)].items;
}

/* All rows of an array attribute, or -1. */
static int64_t rows_add_up(const frame *f, int attribute) {
    const char *op = f->shape->mpi_name, *name = names[attribute];
    const frame_array *array = &f->arrays[attribute];
    const int64_t *rows = array->items;
    int64_t sum = 0;
    if (array->size != f->size)
        return error_set("%s got %lld %s, but communicator '%s' has %d ranks", op, (long long)array->size, name,
                         f->communicator->name, f->size);
    for (int i = 0; i < f->size; i++) {
        if (rows[i] < 0) return error_set("%s got %s[%d] = %lld, which is negative", op, name, i, (long long)rows[i]);
        if (__builtin_add_overflow(sum, rows[i], &sum))
            return error_set("%s got %s that add up to more than a 64-bit integer holds", op, name);
    }
    return sum;
}

/* The items of each of the buffer's rows, of which there must be as many as are given; or -1. */
static int64_t row_measure(const frame *f, const frame_buffer *b, const char *what, int64_t rows) {
    const char *op = f->shape->mpi_name;
    int64_t items = 1;
    if (b->rank == 0) return error_set("the %s of %s is a scalar, which has no rows", what, op);
    if (b->dims[0] != rows)
        return error_set("the %s of %s has %lld rows, but its counts say %lld", what, op, (long long)b->dims[0],
                         (long long)rows);
    for (int64_t i = 1; i < b->rank; i++) items *= b->dims[i]; /* buffer_read has looked at every product */
    return items;
}

/* Compares the buffers with the rows of all ranks, and finds the items of a row and the greatest count. */
static int rows_check(frame *f) {
    int64_t whole_sent = rows_add_up(f, attribute_of(f, PARTS_SENT));
    int64_t whole_received = whole_sent < 0 ? -1 : rows_add_up(f, attribute_of(f, PARTS_RECEIVED));
    if (whole_received < 0) return -1;
    int rank = f->communicator->rank;
    int64_t sent = f->shape->counts == GATHERED_ROWS ? rows_of(f, PARTS_SENT)[rank] : whole_sent;
    int64_t received = f->shape->counts == SCATTERED_ROWS ? rows_of(f, PARTS_RECEIVED)[rank] : whole_received;
    int64_t items_sent = f->send.dtype ? row_measure(f, &f->send, "send buffer", sent) : 0;
    if (items_sent < 0) return -1;
    int64_t items_received = f->recv.dtype ? row_measure(f, &f->recv, "receive buffer", received) : items_sent;
    if (items_received < 0) return -1;
    if (f->send.dtype && items_sent != items_received)
        return error_set("%s was called with rows of %lld items to send and of %lld to receive", f->shape->mpi_name,
                         (long long)items_sent, (long long)items_received);
    f->row_items = items_received;
    if (__builtin_mul_overflow(whole_sent > whole_received ? whole_sent : whole_received, f->row_items, &f->n))
        return error_set("%s got counts of more items than a 64-bit integer holds", f->shape->mpi_name);
    return 0;
}

static int parts_fill(frame *f, int large) {
    int sends_parts = f->shape->counts != GATHERED_ROWS && f->send.dtype;
    int receives_parts = f->shape->counts != SCATTERED_ROWS && f->recv.dtype;
    if (sends_parts && parts_make(&f->sent, PARTS_SENT, rows_of(f, PARTS_SENT), f->size, f->row_items, large))
        return -1;
    return receives_parts
               ? parts_make(&f->received, PARTS_RECEIVED, rows_of(f, PARTS_RECEIVED), f->size, f->row_items, large)
               : 0;
}

/* Requests */

/* What a call that starts will receive. */
static int started_read(frame *f) {
    const char *op = f->shape->mpi_name;
    f->recv = f->template_.dtype ? f->template_ : f->send;
    f->recv.data = NULL;
    if (!frame_has(f, ATTRIBUTE_SOURCE) && frame_has(f, ATTRIBUTE_DEST)) f->recv = (frame_buffer){0};
    if (f->shape->counts == GATHERED && __builtin_mul_overflow(f->send.count, (int64_t)f->size, &f->recv.count))
        return error_set("%s gives more items than there are", op);
    if (f->shape->counts == SCATTERED) f->recv.count = f->send.count / f->size;
    return 0;
}

static int id_check(const frame *f) {
    if (strcmp(f->id.dtype->row->name, "float32") == 0 && f->id.count >= 2 && f->id.count % 2 == 0) return 0;
    return error_set("the id of a request is two float32 numbers, but %s was called with %lld of %s",
                     f->shape->mpi_name, (long long)f->id.count, f->id.dtype->row->name);
}

/* MPI writes the status where the program wants it. */
static int status_take(frame *f, const mpi_library *mpi, const frame_buffer *status) {
    if (status->dtype->number != FFI_U8 || status->count < mpi->facts.status_size)
        return error_set("the status that %s gives is uint8 and of %lld bytes, but was to be %s and %lld",
                         f->shape->mpi_name, (long long)mpi->facts.status_size, status->dtype->row->name,
                         (long long)status->count);
    f->status = status->data;
    return 0;
}

/* Whether the one operand is the result's memory, which a rank passes that sends nothing. */
static int passes_memory(const ffi_call_frame *call) {
    int64_t i = frame_next(&call->args, 0), j = frame_next(&call->rets, 0);
    return i < call->args.size && j < call->rets.size && frame_next(&call->args, i + 1) == call->args.size &&
           call->args.types[i] == FFI_KIND_BUFFER && call->rets.types[j] == FFI_KIND_BUFFER &&
           ((const ffi_buffer *)call->args.buffers[i])->data == ((const ffi_buffer *)call->rets.buffers[j])->data;
}

int frame_read(frame *f, const frame_shape *shape, const ffi_call_frame *call) {
    static const char *const operands[] = {"send buffer", "template"}, *const results[] = {"receive buffer", "status"};
    const mpi_library *mpi = mpi_get();
    f->site = 0;
    if (!mpi) return error_set("%s was called before mpixla_start", shape->mpi_name);
    /* Field by field: clearing the whole would touch the scratch status on every call. */
    f->shape = shape;
    f->send = f->template_ = f->recv = (frame_buffer){0};
    f->sent = f->received = (parts){0};
    f->id = (frame_buffer){0};
    f->request = NULL;
    f->started = NULL;
    f->checks[0] = f->checks[1] = NULL;
    f->on_root = 0;
    f->fault = (frame_fault){0};
    f->device = NULL;
    f->nccl = NULL;
    f->direct = 0;
    if (attributes_read(f, &call->attrs) || attributes_resolve(f, mpi)) return -1;
    f->sequence = frame_is_collective(f) ? comm_count(f->communicator) : 0;
    if (shape->counts == MANY) return pairs_read(f, &call->args, &call->rets);
    frame_buffer *in[] = {is_here(shape->send, f) ? &f->send : NULL,
                          is_here(shape->template_, f) ? &f->template_ : NULL};
    frame_buffer status = {0}; /* as a result */
    int gives_status = frame_has(f, ATTRIBUTE_STATUS) && f->attributes[ATTRIBUTE_STATUS] == MPIXLA_STATUS_RESULT;
    frame_buffer *out[] = {is_here(shape->recv, f) ? &f->recv : NULL, gives_status ? &status : NULL};
    if (shape->request == FRAME_STARTS) out[0] = &f->id;
    if (shape->request == FRAME_WAITS) in[0] = &f->id;
    frame_buffer memory = {0}; /* of the result */
    if ((shape->attributes & IN_PLACE) && !in[0] && out[0] && passes_memory(call)) in[0] = &memory;
    if (buffers_read(f, &call->args, "operand", in, operands) || buffers_read(f, &call->rets, "result", out, results) ||
        (gives_status && status_take(f, mpi, &status)) || (f->id.dtype && id_check(f)) ||
        (shape->request == FRAME_STARTS && started_read(f)) || counts_check(f) || reduction_resolve(f, mpi) ||
        (has_rows(f) && rows_check(f)))
        return -1;
    int is_in_place = f->send.data == f->recv.data && f->recv.count > 0;
    f->from = is_in_place ? (const void *)(intptr_t)mpi->facts.in_place
                          : f->send.data; /* NOLINT(performance-no-int-to-ptr) */
    int large = f->n > mpi->count_limit;
    f->mpi = large ? mpi->large : mpi->small;
    return has_rows(f) ? parts_fill(f, large) : 0;
}

/* Text */

static const char *peer_name(int64_t peer, char number[24]) {
    if (peer == MPIXLA_ANY_SOURCE) return "any";
    if (peer == MPIXLA_PROC_NULL) return "nobody";
    snprintf(number, 24, "%lld", (long long)peer);
    return number;
}

static size_t add_message(char *text, size_t bytes, size_t used, const char *arrow, int64_t peer, int64_t tag,
                          const frame_buffer *b) {
    char number[24], tag_text[24];
    snprintf(tag_text, sizeof tag_text, tag == MPIXLA_ANY_TAG ? "any" : "%lld", (long long)tag);
    return text_add(text, bytes, used, " %s %s with tag %s and %lld items", arrow, peer_name(peer, number), tag_text,
                    (long long)b->count);
}

/* The neighbours on one side of an exchange, and the items that go to them or come from them. */
static size_t add_neighbours(char *text, size_t bytes, size_t used, const char *arrow, const topology_slots *slots,
                             const frame_array *counts) {
    int64_t neighbours = 0, items = 0;
    for (int64_t i = 0; i < slots->number && i < counts->size; i++) {
        if (slots->ranks[i] == MPIXLA_PROC_NULL) continue;
        neighbours++;
        items += counts->items[i];
    }
    return text_add(text, bytes, used, " %s %lld neighbours with %lld items", arrow, (long long)neighbours,
                    (long long)items);
}

static size_t add_fault(const frame *f, char *text, size_t bytes, size_t used) {
    int sending = f->fault.sending;
    const topology_slots *slots = sending ? f->dests : f->sources;
    int64_t i = f->fault.slot;
    char number[24];
    return text_add(text, bytes, used, ", in %s slot %lld %s %s with tag %lld and %lld items",
                    sending ? "destination" : "source", (long long)i, sending ? "->" : "<-",
                    peer_name(slots->ranks[i], number), (long long)slots->tags[i],
                    (long long)f->arrays[sending ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_RECVCOUNTS].items[i]);
}

static size_t add_rows(char *text, size_t bytes, size_t used, const char *what, const int64_t *rows, int n) {
    used = text_add(text, bytes, used, "%s %lld", what, (long long)rows[0]);
    for (int i = 1; i < n; i++) used = text_add(text, bytes, used, ", %lld", (long long)rows[i]);
    return text_add(text, bytes, used, " rows");
}

/* The rows of each rank, or of the first ones, and what all ranks must agree on: MPI itself only says that a message is
 * too long. */
static size_t add_parts(const frame *f, char *text, size_t bytes, size_t used) {
    enum { SHOWN = 8 };
    char ranks[64] = "rank 0", others[32] = "";
    int n = f->size < SHOWN ? f->size : SHOWN;
    if (f->size > n) snprintf(others, sizeof others, " (and %d more)", f->size - n);
    if (n > 1) snprintf(ranks, sizeof ranks, "ranks 0 to %d%s", n - 1, others);
    if (f->shape->counts != EXCHANGED_ROWS) {
        used = add_rows(text, bytes, used, ", with", rows_of(f, PARTS_SENT), n);
        return text_add(text, bytes, used, " on %s; the counts must be the same on every rank", ranks);
    }
    used = add_rows(text, bytes, used, ", sending", rows_of(f, PARTS_SENT), n);
    used = text_add(text, bytes, used, " to %s", ranks);
    used = add_rows(text, bytes, used, " and receiving", rows_of(f, PARTS_RECEIVED), n);
    return text_add(text, bytes, used, " from there; rank i's sendcounts[j] must be rank j's recvcounts[i]");
}

static size_t add_site(char *text, size_t bytes, size_t used, const char *what, int64_t site) {
    const char *line = site_text(site);
    return *line ? text_add(text, bytes, used, ", %s %s", what, line) : used;
}

void frame_describe(const frame *f, int details, char *text, size_t bytes) {
    const frame *waits = NULL;
    size_t used = 0;
    if (f->shape->request == FRAME_WAITS) {
        used = text_add(text, bytes, 0, "%s for %s", f->shape->mpi_name, f->started ? "" : "no request");
        if (!f->started && details) (void)add_site(text, bytes, used, "at", f->site);
        if (!f->started || used >= bytes) return;
        waits = f;
        f = f->started;
    }
    const int64_t *a = f->attributes;
    const frame_buffer *data = f->send.dtype ? &f->send : &f->recv;
    used = text_add(text, bytes, used, "%s", f->shape->mpi_name);
    if (frame_has(f, ATTRIBUTE_WIDTH)) used = text_add(text, bytes, used, " of the halos of blocks");
    if (frame_has(f, ATTRIBUTE_LEAVES)) used = text_add(text, bytes, used, " that compares arrays");
    if (frame_has(f, ATTRIBUTE_DEST))
        used = add_message(text, bytes, used, "->", a[ATTRIBUTE_DEST], a[ATTRIBUTE_SENDTAG], &f->send);
    if (frame_has(f, ATTRIBUTE_SOURCE)) {
        used = add_message(text, bytes, used, "<-", a[ATTRIBUTE_SOURCE], a[ATTRIBUTE_RECVTAG], &f->recv);
    } else if (frame_has(f, ATTRIBUTE_BACK)) {
        used = add_neighbours(text, bytes, used, "->", f->dests, &f->arrays[ATTRIBUTE_SENDCOUNTS]);
        used = add_neighbours(text, bytes, used, "<-", f->sources, &f->arrays[ATTRIBUTE_RECVCOUNTS]);
    } else if (!frame_has(f, ATTRIBUTE_DEST) && data->dtype) {
        used = text_add(text, bytes, used, " with %lld items", (long long)data->count);
    }
    if (frame_has(f, ATTRIBUTE_ROOT)) used = text_add(text, bytes, used, " and root %d", f->root);
    if (f->reverse) used = text_add(text, bytes, used, " from the last rank");
    if (!details) return;
    if (data->dtype) used = text_add(text, bytes, used, " of %s", data->dtype->row->name);
    if (f->recv.dtype && f->recv.dtype != data->dtype)
        used = text_add(text, bytes, used, " and %s", f->recv.dtype->row->name);
    if (frame_has(f, ATTRIBUTE_OP)) used = text_add(text, bytes, used, ", op %s", reduction_name(a[ATTRIBUTE_OP]));
    if (f->fault.function && f->fault.slot >= 0) used = add_fault(f, text, bytes, used);
    used = text_add(text, bytes, used, ", on rank %d of %d of communicator '%s'", f->communicator->rank, f->size,
                    f->communicator->name);
    if (waits) used = add_site(text, bytes, used, "at", waits->site);
    used = add_site(text, bytes, used, waits ? "started at" : "at", f->site);
    if (has_rows(f)) add_parts(f, text, bytes, used);
}
