#include "call/frame.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "call/site.h"
#include "call/values.h"
#include "mpi/float_reduce.h"
#include "mpi/pair_reduce.h"
#include "mpi/reduction.h"
#include "mpi/status.h"

static const char *const attribute_names[] = {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) name,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

static const uint8_t attribute_lengths[] = {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) sizeof name - 1,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

/* The forms that a program may give an attribute in; for ROWS see attributes.def. */
enum { NUMBER = 1, ARRAY = 2, STEPS = 4, AT_RUN_TIME = 8 };
enum { RANK = NUMBER | STEPS | AT_RUN_TIME, TAG = NUMBER | AT_RUN_TIME, ROWS = ARRAY | AT_RUN_TIME, PLACE = ROWS };
static const uint8_t attribute_forms[] = {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) kind,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

const char *const *mpixla_attribute_table(size_t *rows) {
    *rows = ATTRIBUTES;
    return attribute_names;
}

/* Attributes */

static int frame_attribute_name_is(const ffi_bytes *name, int attribute) {
    return name->len == attribute_lengths[attribute] && memcmp(name->ptr, attribute_names[attribute], name->len) == 0;
}

/* Returns the call's site from attribute `i`; 0 if the attribute is none, as only reports need it. */
static int64_t frame_site_read(frame *f, const ffi_attributes *given, int64_t i) {
    if (given->types[i] == FFI_ATTRIBUTE_STRING) {
        const ffi_bytes *text = given->values[i];
        return site_parse(text->ptr, text->len);
    }
    const ffi_scalar *scalar = given->values[i];
    if (given->types[i] != FFI_ATTRIBUTE_SCALAR || scalar->dtype != FFI_S64) return 0;
    int64_t site = *(const int64_t *)scalar->value;
    f->site_is_of_thread = site == MPIXLA_SITE_OF_THREAD;
    return f->site_is_of_thread ? site_of_thread() : site;
}

/* Reads attribute `next` of `given`, which must be an array, or the steps of a shifted rank, as attribute i. Returns 0
 * or REFUSED. */
static int frame_array_read(frame *f, const ffi_attributes *given, int64_t next, int i) {
    const ffi_array *array = given->values[next];
    int is_rank = attribute_forms[i] & STEPS;
    if (given->types[next] != FFI_ATTRIBUTE_ARRAY || array->dtype != FFI_S64 || array->size > INT_MAX ||
        (is_rank && (array->size == 0 || !comm_is_shift((int64_t)array->size))))
        return error_set("attribute '%s' of %s must be %s", attribute_names[i], f->facts.row->mpi_name,
                         is_rank ? "a 64-bit integer, or pairs of them: a direction and by how many ranks"
                                 : "an array of 64-bit integers");
    f->own.arrays[i] = (frame_array){.items = array->data, .size = (int64_t)array->size};
    return 0;
}

/* Reads the call's attributes and its site into the frame; those that are given at run time it only adds to
 * f->at_run_time, as bits. A missing optional attribute becomes 0, or MPIXLA_NO_STATUS. Returns 0, or REFUSED if
 * another one is missing, one has an invalid type, or there is one that the operation does not take. Both lists are
 * sorted by name, so one pass finds missing and unknown ones. */
static int frame_attributes_read(frame *f, const ffi_attributes *given) {
    const char *op = f->facts.row->mpi_name;
    int64_t next = 0;
    for (uint32_t left = (f->facts.row->attributes | OPTIONAL) & ((1U << ATTRIBUTES) - 1); left; left &= left - 1) {
        int i = __builtin_ctz(left);
        int is_given = next < given->size && frame_attribute_name_is(given->names[next], i);
        f->own.arrays[i].size = 0;
        if (i == ATTRIBUTE_SITE) {
            if (is_given) f->facts.site = frame_site_read(f, given, next++);
            continue;
        }
        if (!is_given && (i == ATTRIBUTE_PACKED || (f->facts.row->optional >> i & 1))) {
            f->own.attributes[i] = i == ATTRIBUTE_STATUS ? MPIXLA_NO_STATUS : 0;
            continue;
        }
        if (!is_given)
            return error_set("%s was called without its attribute '%s', or with one that it does not take", op,
                             attribute_names[i]);
        int type = given->types[next];
        if ((attribute_forms[i] & AT_RUN_TIME) && type == FFI_ATTRIBUTE_STRING &&
            values_are_in_operand(given->values[next])) {
            f->at_run_time |= 1U << i;
            next++;
            continue;
        }
        if ((attribute_forms[i] & ARRAY) || ((attribute_forms[i] & STEPS) && type == FFI_ATTRIBUTE_ARRAY)) {
            if (frame_array_read(f, given, next++, i)) return REFUSED;
            continue;
        }
        const ffi_scalar *scalar = given->values[next];
        if (type != FFI_ATTRIBUTE_SCALAR || scalar->dtype != FFI_S64)
            return error_set("attribute '%s' of %s must be a 64-bit integer", attribute_names[i], op);
        f->own.attributes[i] = *(const int64_t *)scalar->value;
        next++;
    }
    if (next < given->size)
        return error_set("%s was called with an attribute '%.*s' that it does not take", op,
                         (int)given->names[next]->len, given->names[next]->ptr);
    return 0;
}

/* Sets a rank that the program gives as steps from this one. Returns 0 or REFUSED. */
static int frame_shift_resolve(frame *f, int attribute) {
    const frame_array *steps = &f->arrays[attribute];
    return comm_shift(f->facts.communicator, steps->items, steps->size, &f->own.attributes[attribute]);
}

/* Numbers at run time, which are this MPI's and are translated to the program's */

static int frame_attribute_is_at_run_time(const frame *f, int attribute) {
    return (int)(f->at_run_time >> attribute & 1U);
}

/* Returns how many numbers an attribute has at run time: 1, or one for each rank or neighbour. */
static int64_t frame_attribute_size(const frame *f, int attribute) {
    if (!(attribute_forms[attribute] & ARRAY)) return 1;
    if (attribute == ATTRIBUTE_SENDBEGIN) return f->arrays[ATTRIBUTE_SENDSIZE].size;
    if (attribute == ATTRIBUTE_RECVBEGIN) return f->arrays[ATTRIBUTE_RECVSIZE].size;
    if (!facts_have_neighbours(&f->facts)) return f->size;
    return facts_neighbours(&f->facts, attribute != ATTRIBUTE_RECVCOUNTS)->number;
}

/* Returns the program's number for a rank or tag of this MPI. Any other number becomes INT64_MIN, as it could equal one
 * of the program's special values. */
static int64_t frame_number_from_mpi(const mpixla_mpi_facts *facts, int attribute, int64_t number) {
    int is_source = attribute == ATTRIBUTE_SOURCE;
    if (is_source && number == facts->any_source) return MPIXLA_ANY_SOURCE;
    if ((is_source || attribute == ATTRIBUTE_DEST) && number == facts->proc_null) return MPIXLA_PROC_NULL;
    if (attribute == ATTRIBUTE_RECVTAG && number == facts->any_tag) return MPIXLA_ANY_TAG;
    return number < 0 ? INT64_MIN : number;
}

/* Returns the number that the program has given for an attribute, for error messages. */
static int64_t frame_number_given(const frame *f, int attribute) {
    return frame_attribute_is_at_run_time(f, attribute) ? *f->arrays[attribute].items : f->attributes[attribute];
}

/* Sets the attributes that are given at run time from the numbers `v`. Returns 0 or REFUSED. */
static int frame_values_resolve(frame *f, const mpi_library *mpi, const values *v) {
    int64_t used = 0;
    for (uint32_t left = f->at_run_time; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        int64_t n = frame_attribute_size(f, i);
        if (!v->numbers || used + n > v->n) {
            used = v->n + 1;
            break;
        }
        f->own.arrays[i] = (frame_array){.items = v->numbers + used, .size = n};
        if (!(attribute_forms[i] & ARRAY)) {
            f->own.attributes[i] = frame_number_from_mpi(&mpi->facts, i, v->numbers[used]);
            f->own.arrays[i].size = 0; /* no steps */
        }
        used += n;
    }
    if (used == v->n) return 0;
    return error_set("%s was given %lld numbers at run time, but its attributes need another number of them",
                     f->facts.row->mpi_name, (long long)v->n);
}

/* Checks that an attribute is a rank of the communicator, or one of `also`, which ends with a number that is not
 * negative. Resolves a shift. Returns 0 or REFUSED. */
static int frame_rank_check(frame *f, int attribute, const int *also) {
    if (f->arrays[attribute].size > 0) return frame_shift_resolve(f, attribute);
    int64_t rank = f->attributes[attribute];
    if (rank >= 0 && rank < f->size) return 0;
    for (; *also < 0; also++)
        if (rank == *also) return 0;
    return error_set("%s got %s = %lld, but the ranks of communicator '%s' are 0 to %d", f->facts.row->mpi_name,
                     attribute_names[attribute], (long long)frame_number_given(f, attribute),
                     f->facts.communicator->name, f->size - 1);
}

/* Checks that an attribute is a tag, or, with `any`, MPIXLA_ANY_TAG. Returns 0 or REFUSED. */
static int frame_tag_check(const frame *f, int attribute, int any) {
    const int64_t tag = f->attributes[attribute], most = mpi_get()->facts.tag_ub;
    if ((tag >= 0 && tag <= most) || (any && tag == MPIXLA_ANY_TAG)) return 0;
    return error_set("%s got %s = %lld, but tags are 0 to %lld", f->facts.row->mpi_name, attribute_names[attribute],
                     (long long)frame_number_given(f, attribute), (long long)most);
}

/* Returns MPI's number for a program's rank. */
static int frame_rank_to_mpi(const mpixla_mpi_facts *facts, int64_t rank) {
    return (int)(rank == MPIXLA_PROC_NULL ? facts->proc_null : rank == MPIXLA_ANY_SOURCE ? facts->any_source : rank);
}

/* Checks that the communicator has the topology that the call's neighbours come from. Returns 0 or REFUSED. */
static int frame_topology_check(const frame *f) {
    const topology *t = f->facts.communicator->topology;
    int is_halo = frame_has(f, ATTRIBUTE_WIDTH);
    if (t && (!is_halo || t->dimensions >= 0)) return 0;
    return error_set("%s needs a communicator with a %s, but '%s' has none", f->facts.row->op_name,
                     is_halo ? "Cartesian topology" : "topology, which defines the neighbours",
                     f->facts.communicator->name);
}

/* Returns whether the row waits for the request of a message. */
static int frame_waits_for_message(const frame_shape *row) {
    return row->request == MPIXLA_WAITS && (row->template_ != MPIXLA_NOWHERE || row->recv == MPIXLA_NOWHERE);
}

/* Sets the call's communicator, its handle and its size. Returns 0, or REFUSED if it is unknown or freed. A wait for a
 * message also takes a freed communicator: MPI allows freeing it while requests are open. A wait for a collective call
 * does not: Open MPI 5 crashes. */
static int frame_comm_resolve(frame *f) {
    const int64_t id = f->attributes[ATTRIBUTE_COMM];
    const int may_be_freed = frame_waits_for_message(f->facts.row) && comm_state_check() == 0;
    f->facts.communicator = may_be_freed ? comm_find_any(id) : NULL;
    if (!f->facts.communicator) f->facts.communicator = comm_find(id);
    if (!f->facts.communicator) return REFUSED;
    f->comm = f->facts.communicator->handle;
    f->size = f->facts.communicator->size;
    return 0;
}

/* Sets f->status, the address that MPI writes the status to: the program's status object, or scratch memory without
 * one. A status that is a result is set later (frame_status_result_set). Returns 0 or REFUSED. */
static int frame_status_resolve(frame *f) {
    const int64_t status = frame_has(f, ATTRIBUTE_STATUS) ? f->attributes[ATTRIBUTE_STATUS] : MPIXLA_NO_STATUS;
    const int is_object =
        status != MPIXLA_NO_STATUS && status != MPIXLA_STATUS_RESULT && status != MPIXLA_STATUS_NUMBERS;
    if (f->facts.row->request == MPIXLA_WAITS && status != MPIXLA_NO_STATUS && status != MPIXLA_STATUS_NUMBERS)
        return error_set("%s got status = %lld, but gives no status other than its numbers", f->facts.row->mpi_name,
                         (long long)status);
    f->status = is_object ? status_find(status) : f->scratch;
    return f->status ? 0 : REFUSED;
}

/* Checks the attributes, and sets the numbers that MPI is called with. Returns 0 or REFUSED. */
static int frame_attributes_resolve(frame *f, const mpi_library *mpi, const values *v) {
    static const int nothing_else[] = {0}, or_null[] = {MPIXLA_PROC_NULL, 0},
                     or_any[] = {MPIXLA_PROC_NULL, MPIXLA_ANY_SOURCE, 0};
    const int64_t *a = f->attributes;
    f->facts.reverse = frame_has(f, ATTRIBUTE_REVERSE) && a[ATTRIBUTE_REVERSE] != 0;
    f->facts.back = frame_has(f, ATTRIBUTE_BACK) && a[ATTRIBUTE_BACK] != 0;
    if (frame_has(f, ATTRIBUTE_ROOT)) {
        if (frame_rank_check(f, ATTRIBUTE_ROOT, nothing_else)) return REFUSED;
        f->root = (int)a[ATTRIBUTE_ROOT];
        f->on_root = f->root == f->facts.communicator->rank;
    }
    if (frame_has(f, ATTRIBUTE_FILL) && f->arrays[ATTRIBUTE_FILL].size != 2 && /* as many as the longest item takes */
        !(f->facts.row->optional & FILL && f->arrays[ATTRIBUTE_FILL].size == 0))
        return error_set("%s got %lld numbers to fill its first result with, but takes 2", f->facts.row->mpi_name,
                         (long long)f->arrays[ATTRIBUTE_FILL].size);
    if ((facts_have_neighbours(&f->facts) && frame_topology_check(f)) || frame_values_resolve(f, mpi, v))
        return REFUSED;
    if (frame_has(f, ATTRIBUTE_DEST)) {
        if (frame_rank_check(f, ATTRIBUTE_DEST, or_null) || frame_tag_check(f, ATTRIBUTE_SENDTAG, 0)) return REFUSED;
        f->dest = frame_rank_to_mpi(&mpi->facts, a[ATTRIBUTE_DEST]);
        f->sendtag = (int)a[ATTRIBUTE_SENDTAG];
    }
    if (frame_has(f, ATTRIBUTE_SOURCE)) {
        if (frame_rank_check(f, ATTRIBUTE_SOURCE, or_any) || frame_tag_check(f, ATTRIBUTE_RECVTAG, 1)) return REFUSED;
        f->source = frame_rank_to_mpi(&mpi->facts, a[ATTRIBUTE_SOURCE]);
        f->recvtag = (int)(a[ATTRIBUTE_RECVTAG] == MPIXLA_ANY_TAG ? mpi->facts.any_tag : a[ATTRIBUTE_RECVTAG]);
    }
    return frame_status_resolve(f);
}

/* Buffers. Tokens carry order, not data, and are passed over. */

/* Returns whether this rank has a buffer. */
static int frame_buffer_is_here(mpixla_where where, const frame *f) {
    return where == MPIXLA_EVERYWHERE || (where == MPIXLA_ON_ROOT && f->on_root) ||
           (where == MPIXLA_OFF_ROOT && !f->on_root);
}

/* Sets `*b` to one of XLA's buffers, and checks its type, shape and address. Returns 0 or REFUSED. */
static int frame_buffer_read(frame_buffer *b, const frame *f, const char *label, const ffi_buffer *given) {
    const char *op = f->facts.row->mpi_name;
    b->dtype = dtype_find(given->dtype);
    if (!b->dtype) return REFUSED;
    if (given->rank < 0 || (given->rank > 0 && !given->dims))
        return error_set("the %s of %s has no valid shape", label, op);
    b->count = 1;
    /* Empty axes are left out: so no product of some of the dimensions overflows, nor its bytes. */
    int64_t bytes = b->dtype->row->itemsize;
    for (int64_t i = 0; i < given->rank; i++) {
        int64_t dim = given->dims[i];
        if (dim < 0 || (dim > 0 && __builtin_mul_overflow(bytes, dim, &bytes)))
            return error_set("the %s of %s has a dimension of %lld items, which is no valid shape", label, op,
                             (long long)dim);
        b->count *= dim;
    }
    if (!given->data && b->count > 0)
        return error_set("the %s of %s is a null pointer, but has %lld items", label, op, (long long)b->count);
    b->data = given->data;
    b->axes = given->rank;
    b->dims = given->dims;
    return 0;
}

/* Reads the data buffers of the call's operands or results into two slots, in order; a slot that is NULL is left out. A
 * call that waits may have further operands, which it does not read. Returns 0 or REFUSED. */
static int frame_buffers_read(frame *f, const ffi_buffers *given, const char *side, frame_buffer *slots[2],
                              const char *const label[2]) {
    int expected = (slots[0] != NULL) + (slots[1] != NULL), found = 0;
    for (int64_t i = 0; i < given->size; i++) {
        const ffi_buffer *buffer = given->buffers[i];
        if (given->types[i] != FFI_KIND_BUFFER)
            return error_set("%s %lld of %s is not a buffer", side, (long long)i, f->facts.row->mpi_name);
        if (buffer->dtype == FFI_TOKEN) continue;
        int slot = slots[0] && found == 0 ? 0 : 1;
        if (found < expected && frame_buffer_read(slots[slot], f, label[slot], buffer)) return REFUSED;
        if (found < expected) slots[slot]->place = i;
        found++;
    }
    int more = f->facts.row->request == MPIXLA_WAITS && slots[0] == &f->id;
    if (more ? found < expected : found != expected)
        return error_set("%s was called with %d %ss on this rank, but takes %d", f->facts.row->mpi_name, found, side,
                         expected);
    return 0;
}

int64_t frame_buffer_next(const ffi_buffers *given, int64_t i) {
    while (i < given->size && given->types[i] == FFI_KIND_BUFFER &&
           ((const ffi_buffer *)given->buffers[i])->dtype == FFI_TOKEN)
        i++;
    return i;
}

/* Returns whether two of XLA's buffers differ in type or shape. */
static int frame_shapes_differ(const ffi_buffer *a, const ffi_buffer *b) {
    int differ = a->dtype != b->dtype || a->rank != b->rank;
    for (int64_t i = 0; !differ && i < a->rank; i++) differ = a->dims[i] != b->dims[i];
    return differ;
}

/* Reads the operands and results of a call of any number of arrays (MANY), in pairs. `send` and `recv` become the first
 * pair, with the items of all pairs. Returns 0 or REFUSED. */
static int frame_many_read(frame *f, const ffi_buffers *operands, const ffi_buffers *results) {
    const char *op = f->facts.row->mpi_name;
    int64_t items = 0, pairs = 0, i = 0, j = 0;
    for (;; i++, j++, pairs++) {
        frame_buffer in = {0}, out = {0};
        i = frame_buffer_next(operands, i);
        j = frame_buffer_next(results, j);
        if (i == operands->size || j == results->size) break;
        if (operands->types[i] != FFI_KIND_BUFFER)
            return error_set("operand %lld of %s is not a buffer", (long long)i, op);
        if (results->types[j] != FFI_KIND_BUFFER)
            return error_set("result %lld of %s is not a buffer", (long long)j, op);
        const ffi_buffer *operand = operands->buffers[i], *result = results->buffers[j];
        if (frame_buffer_read(&in, f, "send buffer", operand) || frame_buffer_read(&out, f, "receive buffer", result))
            return REFUSED;
        if (frame_shapes_differ(operand, result))
            return error_set("operand %lld of %s differs from its result in type or shape", (long long)i, op);
        if (__builtin_add_overflow(items, out.count, &items))
            return error_set("%s was called with more items in all than a 64-bit integer holds", op);
        if (pairs > 0) continue;
        f->send = in;
        f->send.place = i;
        f->recv = out;
        f->recv.place = j;
    }
    if (pairs == 0 || i < operands->size || j < results->size)
        return error_set("%s takes at least one operand, and as many operands as results", op);
    f->send.count = f->recv.count = f->n = items;
    f->type = f->recv.dtype->handle;
    f->operands = operands;
    f->results = results;
    return 0;
}

/* Returns whether `all` is a * b, without overflow. */
static int frame_is_product(int64_t all, int64_t a, int64_t b) {
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) && product == all;
}

/* Returns whether the call starts a request that gives back what it sends: on the other ranks of a call to a root. */
static int frame_gives_back(const frame *f) {
    return f->facts.row->request == MPIXLA_STARTS && f->facts.row->pattern == TO_ROOT && !f->on_root;
}

/* Checks that the counts and types of the buffers agree, and sets f->n and f->type, the count and the type for MPI.
 * Returns 0 or REFUSED. */
static int frame_counts_check(frame *f) {
    const frame_buffer *send = &f->send, *recv = &f->recv;
    const char *op = f->facts.row->mpi_name;
    if (f->template_.dtype && (f->template_.dtype != recv->dtype || f->template_.count != recv->count))
        return error_set("the template of %s differs from its result in type or size", op);
    f->type = recv->dtype ? recv->dtype->handle : send->dtype ? send->dtype->handle : 0;
    f->n = send->count > recv->count ? send->count : recv->count;
    if (f->facts.row->counts == GATHERED) f->n = send->count;
    if (f->facts.row->counts == SCATTERED) f->n = recv->count;
    if (f->facts.row->counts == DIVIDED) f->n = recv->count / f->size;
    if (f->facts.row->counts == FREE || !send->dtype || !recv->dtype || frame_gives_back(f)) return 0;
    if (send->dtype != recv->dtype)
        return error_set("%s was called with %s to send and %s to receive", op, send->dtype->row->name,
                         recv->dtype->row->name);
    int64_t size = f->size;
    if ((f->facts.row->counts == SAME && send->count != recv->count) ||
        (f->facts.row->counts == DIVIDED && (send->count != recv->count || f->n * size != recv->count)) ||
        (f->facts.row->counts == GATHERED && !frame_is_product(recv->count, size, send->count)) ||
        (f->facts.row->counts == SCATTERED && !frame_is_product(send->count, size, recv->count)))
        return error_set(
            "%s on %lld ranks was called with %lld items to send and %lld to receive, whose numbers do not match", op,
            (long long)size, (long long)send->count, (long long)recv->count);
    return 0;
}

/* Sets the operation, type and count of a reduction of pairs (value, place), which are bytes along the last axis.
 * Returns 0 or REFUSED. */
static int frame_pairs_resolve(frame *f, const mpi_library *mpi) {
    const frame_buffer *b = f->send.dtype ? &f->send : &f->recv;
    if (b->dtype->number != FFI_U8 || b->axes == 0 || (f->recv.dtype && f->recv.dtype != b->dtype))
        return error_set("%s with op %s takes pairs as uint8 with the bytes of a pair along the last axis",
                         f->facts.row->mpi_name, reduction_name(f->attributes[ATTRIBUTE_OP]));
    int64_t bytes = b->dims[b->axes - 1];
    const pair_reduction *pair = pair_reduce_find(mpi, bytes, b->dtype->handle);
    if (!pair) return REFUSED;
    f->op = pair->op;
    f->type = pair->type;
    f->n /= bytes;
    return 0;
}

int64_t frame_pair_bytes(const frame *f) {
    const frame_buffer *b = f->send.dtype ? &f->send : &f->recv;
    return frame_has(f, ATTRIBUTE_OP) && reduction_is_of_pairs(f->attributes[ATTRIBUTE_OP]) ? b->dims[b->axes - 1] : 0;
}

/* Sets MPI's operation for the call's reduction and element type. Returns 0 or REFUSED. */
static int frame_reduction_resolve(frame *f, const mpi_library *mpi) {
    if (!frame_has(f, ATTRIBUTE_OP)) return 0;
    int64_t number = f->attributes[ATTRIBUTE_OP];
    const dtype_entry *dtype = f->send.dtype ? f->send.dtype : f->recv.dtype;
    if (!dtype) return error_set("%s was called without a buffer to reduce", f->facts.row->mpi_name);
    if (reduction_is_of_pairs(number)) return frame_pairs_resolve(f, mpi);
    if (!reduction_takes(number, dtype->number))
        return error_set("%s of %s cannot be made with op %s, which has no meaning for that data type",
                         f->facts.row->mpi_name, dtype->row->name, reduction_name(number));
    const mpixla_handle *op = float_reduce_find(dtype->number, number);
    if (!op) op = reduction_find(number);
    if (!op) return REFUSED;
    f->op = *op;
    return 0;
}

/* Parts by rows */

/* Returns the attribute with the rows of the buffer that is sent, or received. */
static int frame_rows_attribute(const frame *f, int slot) {
    if (f->facts.row->counts != EXCHANGED_ROWS) return ATTRIBUTE_COUNTS;
    return slot == PARTS_SENT ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_RECVCOUNTS;
}

const int64_t *frame_rows(const frame *f, int slot) {
    return f->arrays[frame_rows_attribute(f, slot)].items;
}

/* Returns the sum of the rows in an array attribute, or REFUSED if one is negative or the sum overflows. */
static int64_t frame_rows_sum(const frame *f, int attribute) {
    const char *op = frame_name(f), *name = attribute_names[attribute];
    const frame_array *array = &f->arrays[attribute];
    int64_t sum = 0;
    for (int64_t i = 0; i < array->size; i++) {
        int64_t rows = array->items[i];
        if (rows < 0)
            return error_set("%s got %s[%lld] = %lld, which is negative", op, name, (long long)i, (long long)rows);
        if (__builtin_add_overflow(sum, rows, &sum))
            return error_set("%s got %s that add up to more than a 64-bit integer holds", op, name);
    }
    return sum;
}

/* Returns the sum of the rows in an attribute that has one number for each rank, or REFUSED if it has another size, a
 * number is negative, or the sum overflows. */
static int64_t frame_rank_rows_sum(const frame *f, int attribute) {
    const frame_array *array = &f->arrays[attribute];
    if (array->size == f->size) return frame_rows_sum(f, attribute);
    return error_set("%s got %lld %s, but communicator '%s' has %d ranks", f->facts.row->mpi_name,
                     (long long)array->size, attribute_names[attribute], f->facts.communicator->name, f->size);
}

/* Returns the items of one row of the buffer; REFUSED if it does not have `rows` rows, or at run time at least as many.
 */
static int64_t frame_items_per_row(const frame *f, const frame_buffer *b, const char *label, int64_t rows) {
    const char *op = frame_name(f);
    int64_t items = 1;
    if (b->axes == 0) return error_set("the %s of %s is a scalar, which has no rows", label, op);
    if (f->at_run_time && b->dims[0] < rows)
        return error_set("the %s of %s has %lld rows, but its counts say %lld%s", label, op, (long long)b->dims[0],
                         (long long)rows, b == &f->recv ? ": a larger capacity takes them" : "");
    if (!f->at_run_time && b->dims[0] != rows)
        return error_set("the %s of %s has %lld rows, but its counts say %lld", label, op, (long long)b->dims[0],
                         (long long)rows);
    for (int64_t i = 1; i < b->axes; i++) items *= b->dims[i]; /* frame_buffer_read has checked every product */
    return items;
}

/* Shortens a buffer to its first `items` items; the rest of a receive buffer is set as f->rest, which becomes zeros. */
static void frame_buffer_shorten(frame *f, frame_buffer *b, int64_t items) {
    int64_t itemsize = b->dtype->row->itemsize;
    if (b == &f->recv && b->count > items) {
        f->rest = (char *)b->data + items * itemsize;
        f->rest_bytes = (b->count - items) * itemsize;
    }
    b->count = items;
}

/* Checks the buffers against the rows of all ranks, and sets the items of a row and the greatest count; shortens the
 * buffers to rows that are given at run time. Returns 0 or REFUSED. */
static int frame_rows_check(frame *f) {
    int64_t whole_sent = frame_rank_rows_sum(f, frame_rows_attribute(f, PARTS_SENT));
    int64_t whole_received = whole_sent < 0 ? -1 : frame_rank_rows_sum(f, frame_rows_attribute(f, PARTS_RECEIVED));
    if (whole_received < 0) return REFUSED;
    int rank = f->facts.communicator->rank;
    int64_t sent = f->facts.row->counts == GATHERED_ROWS ? frame_rows(f, PARTS_SENT)[rank] : whole_sent;
    int64_t received = f->facts.row->counts == SCATTERED_ROWS ? frame_rows(f, PARTS_RECEIVED)[rank] : whole_received;
    int64_t items_sent = f->send.dtype ? frame_items_per_row(f, &f->send, "send buffer", sent) : 0;
    if (items_sent < 0) return REFUSED;
    const int starts = f->facts.row->request == MPIXLA_STARTS; /* without a receive buffer */
    if (starts && f->at_run_time)
        return error_set("%s takes counts that are known when the program is compiled", f->facts.row->mpi_name);
    int64_t items_received =
        f->recv.dtype && !starts ? frame_items_per_row(f, &f->recv, "receive buffer", received) : items_sent;
    if (items_received < 0) return REFUSED;
    if (f->send.dtype && items_sent != items_received)
        return error_set("%s was called with rows of %lld items to send and of %lld to receive", f->facts.row->mpi_name,
                         (long long)items_sent, (long long)items_received);
    /* The counts of a rank that is alone are compared in its first calls only, and not by every MPI. */
    if (f->size == 1 && f->facts.row->counts == EXCHANGED_ROWS && sent != received)
        return error_set(
            "%s got sendcounts[0] = %lld but recvcounts[0] = %lld, on a communicator of one rank: it is "
            "to send itself as many rows as it is to receive",
            f->facts.row->mpi_name, (long long)sent, (long long)received);
    f->row_items = items_received;
    if (__builtin_mul_overflow(whole_sent > whole_received ? whole_sent : whole_received, f->row_items, &f->n))
        return error_set("%s got counts of more items than a 64-bit integer holds", f->facts.row->mpi_name);
    if (starts) f->recv.count = received * f->row_items;
    if (f->at_run_time && f->send.dtype) frame_buffer_shorten(f, &f->send, sent * f->row_items);
    if (f->at_run_time && f->recv.dtype) frame_buffer_shorten(f, &f->recv, received * f->row_items);
    return 0;
}

/* Checks the buffers of an exchange against its received rows, and sets the items of a row; shortens the receive buffer
 * to rows that are given at run time. Parts that are sent may overlap or leave rows out. Returns 0 or REFUSED. */
static int frame_slots_check(frame *f) {
    int64_t received = frame_rows_sum(f, ATTRIBUTE_RECVCOUNTS);
    int64_t sent = f->send.axes > 0 ? f->send.dims[0] : 0;
    f->row_items = received < 0 ? -1 : frame_items_per_row(f, &f->send, "send buffer", sent);
    int64_t items = f->row_items < 0 ? -1 : frame_items_per_row(f, &f->recv, "receive buffer", received);
    if (items < 0) return REFUSED;
    int at_run_time = f->at_run_time != 0;
    if (f->row_items != items || f->at_run_time != (at_run_time ? RECVCOUNTS | SENDCOUNTS | SENDOFFSETS : 0))
        return error_set(
            "an exchange was called with rows of %lld items to send and of %lld to receive, or with only "
            "some of its counts at run time",
            (long long)f->row_items, (long long)items);
    if (at_run_time) frame_buffer_shorten(f, &f->recv, received * items);
    return 0;
}

/* Fills MPI's counts and displacements of the buffers with one part for each rank; `large`: as 64-bit numbers. Returns
 * 0; without memory it ends the job if the call is collective, else it returns REFUSED (facts_fail). */
static int frame_parts_fill(frame *f, int large) {
    int sends_parts = f->facts.row->counts != GATHERED_ROWS && f->send.dtype;
    int receives_parts = f->facts.row->counts != SCATTERED_ROWS && f->recv.dtype;
    int failed =
        (sends_parts && parts_make(&f->sent, PARTS_SENT, frame_rows(f, PARTS_SENT), f->size, f->row_items, large)) ||
        (receives_parts &&
         parts_make(&f->received, PARTS_RECEIVED, frame_rows(f, PARTS_RECEIVED), f->size, f->row_items, large));
    return failed ? facts_fail(&f->facts) : 0;
}

/* Requests */

/* Sets f->recv to the type and size of the data that a call which starts a request will receive. Returns 0 or REFUSED.
 */
static int frame_started_read(frame *f) {
    const char *op = f->facts.row->mpi_name;
    f->recv = f->template_.dtype ? f->template_ : f->send;
    f->recv.data = NULL;
    if (!frame_has(f, ATTRIBUTE_SOURCE) && frame_has(f, ATTRIBUTE_DEST)) f->recv = (frame_buffer){0};
    if (f->facts.row->counts == GATHERED && !frame_gives_back(f) &&
        __builtin_mul_overflow(f->send.count, (int64_t)f->size, &f->recv.count))
        return error_set("%s gives more items than a 64-bit integer holds", op);
    if (f->facts.row->counts == SCATTERED && f->send.dtype) f->recv.count = f->send.count / f->size;
    return 0;
}

/* Checks the shape of a request's id, which only a request of an empty batch lacks. Returns 0 or REFUSED. */
static int frame_id_check(const frame *f) {
    int is_there = f->id.count > 0 ? f->id.count % 2 == 0 : f->send.count == 0 && f->recv.count == 0;
    if (is_there && strcmp(f->id.dtype->row->name, "float32") == 0) return 0;
    return error_set("the id of a request is two float32 numbers, but %s was called with %lld of %s",
                     f->facts.row->mpi_name, (long long)f->id.count, f->id.dtype->row->name);
}

/* Sets a result of the call as the memory that MPI writes the status to. Returns 0 or REFUSED. */
static int frame_status_result_set(frame *f, const mpi_library *mpi, const frame_buffer *status) {
    if (status->dtype->number != FFI_U8 || status->count < mpi->facts.status_size)
        return error_set("the status that %s gives is uint8 and of %lld bytes, but was to be %s and %lld",
                         f->facts.row->mpi_name, (long long)mpi->facts.status_size, status->dtype->row->name,
                         (long long)status->count);
    f->status = status->data;
    f->status_place = status->place;
    return 0;
}

enum { STATUS_NUMBERS = 3 }; /* source, tag and length */

/* Checks the type and size of the result for the message's source, tag and length. Returns 0 or REFUSED. */
static int frame_numbers_check(const frame *f) {
    const int number = f->numbers.dtype->number;
    if ((number == FFI_S32 || number == FFI_S64) && f->numbers.count == STATUS_NUMBERS) return 0;
    return error_set("the status that %s gives as numbers is %d of int32 or int64, but was to be %lld of %s",
                     f->facts.row->mpi_name, STATUS_NUMBERS, (long long)f->numbers.count, f->numbers.dtype->row->name);
}

/* Returns whether the call's only operand is the memory of its result: a rank that sends nothing passes that, so that
 * XLA allocates no other. */
static int frame_passes_result_memory(const ffi_call_frame *call) {
    int64_t i = frame_buffer_next(&call->args, 0), j = frame_buffer_next(&call->rets, 0);
    return i < call->args.size && j < call->rets.size && frame_buffer_next(&call->args, i + 1) == call->args.size &&
           call->args.types[i] == FFI_KIND_BUFFER && call->rets.types[j] == FFI_KIND_BUFFER &&
           ((const ffi_buffer *)call->args.buffers[i])->data == ((const ffi_buffer *)call->rets.buffers[j])->data;
}

/* Checks that the result fits into the operand `memory` that has its address; without such an operand it is empty.
 * Returns 0 or REFUSED. */
static int frame_result_memory_check(const frame *f, const frame_buffer *memory) {
    const int64_t has = frame_buffer_bytes(memory), needs = frame_buffer_bytes(&f->recv);
    if (!memory->dtype || has >= needs) return 0;
    return error_set("the operand of %s is the memory of its result, but has %lld bytes of %lld",
                     f->facts.row->mpi_name, (long long)has, (long long)needs);
}

/* Returns whether the message is sent from the array in which another is received: then that is the only operand. */
static int frame_sends_from_target(const frame *f, const ffi_buffers *operands) {
    const int has_both = frame_has(f, ATTRIBUTE_SENDSIZE) && frame_has(f, ATTRIBUTE_RECVSIZE);
    if (!has_both || f->arrays[ATTRIBUTE_SENDSIZE].size == 0 || f->arrays[ATTRIBUTE_RECVSIZE].size == 0) return 0;
    return frame_buffer_next(operands, frame_buffer_next(operands, 0) + 1) >= operands->size;
}

/* Returns whether a call that sends from a window, and receives nothing, has the array as its result. */
static int frame_passes_array(const frame *f, const ffi_buffers *results) {
    const frame_shape *row = f->facts.row;
    return row->recv == MPIXLA_NOWHERE && (row->optional & SENDSIZE) && f->arrays[ATTRIBUTE_SENDSIZE].size > 0 &&
           frame_buffer_next(results, 0) < results->size;
}

/* Sets f->passed to the result `b`, unless that is empty. Returns 0, or REFUSED if it differs from the array that is
 * sent from. */
static int frame_passed_set(frame *f, const frame_buffer *b) {
    if (!b->dtype) return 0;
    f->passed = b->data;
    int is_array = b->dtype == f->send.dtype && b->axes == f->send.axes;
    for (int64_t i = 0; is_array && i < b->axes; i++) is_array = b->dims[i] == f->send.dims[i];
    return is_array ? 0
                    : error_set("the result of %s differs in type or shape from the array that is sent from",
                                f->facts.row->mpi_name);
}

/* Sets the address that MPI sends from: the send buffer, or MPI_IN_PLACE if that is the receive buffer. */
static void frame_send_address_set(frame *f, const mpi_library *mpi) {
    const int is_in_place = f->send.data == f->recv.data && f->recv.count > 0;
    f->from = is_in_place ? (const void *)(intptr_t)mpi->facts.in_place /* NOLINT(performance-no-int-to-ptr) */
                          : f->send.data;
}

/* Sets the call's number on its communicator, and counts the call there if it is collective. A refused call is not
 * counted: the other ranks have made none in its place. */
static void frame_sequence_set(frame *f) {
    f->facts.sequence = facts_are_collective(&f->facts) ? comm_count(f->facts.communicator) : 0;
}

/* Makes the frame that of a call of which nothing is known but its row: field by field, as clearing the whole would
 * touch the scratch status on every call. Returns 0; REFUSED before mpixla_start. */
static int frame_begin(frame *f, const frame_shape *shape, frame_gpu *gpu) {
    memset(&f->facts, 0, sizeof f->facts); /* padding and fields that a row lacks are 0 in every copy */
    if (!mpi_get()) return error_set("%s was called before mpixla_start", shape->mpi_name);
    f->facts.row = shape;
    f->send = f->template_ = f->recv = (frame_buffer){0};
    f->sent = f->received = (parts){0};
    f->sent_window = f->received_window = (frame_window){0};
    f->passed = NULL;
    f->packed = NULL;
    f->id = f->numbers = (frame_buffer){0};
    f->request = NULL;
    f->started = NULL;
    f->agreement = NULL;
    f->on_root = 0;
    f->fault = (frame_fault){0};
    f->gpu = gpu;
    f->at_run_time = 0;
    f->site_is_of_thread = 0;
    f->attributes = f->own.attributes;
    f->arrays = f->own.arrays;
    f->route = NULL;
    f->rest = NULL;
    f->arrived = 0;
    return 0;
}

/* Sets the address that MPI sends from, the functions of MPI for the call's counts, and the type in which it receives a
 * message. */
static void frame_mpi_set(frame *f, const mpi_library *mpi) {
    frame_send_address_set(f, mpi);
    f->mpi = f->n > mpi->count_limit ? mpi->large : mpi->small;
    if (frame_has(f, ATTRIBUTE_SOURCE)) f->expects = dtype_receive(f->recv.dtype, f->recv.count, mpi_bytes_limit(mpi));
}

/* Reads and checks all of the frame except its facts, its posts, and its sequence number; `gpu` as in frame_read.
 * Returns 0 or REFUSED. */
static int frame_read_all(frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu) {
    static const char *const taken[] = {"send buffer", "template"}, *const given[] = {"receive buffer", "status"};
    const mpi_library *mpi = mpi_get();
    if (frame_begin(f, shape, gpu)) return REFUSED;
    ffi_buffers operands = call->args;
    values v = {.n = 0};
    if (frame_attributes_read(f, &call->attrs) || frame_comm_resolve(f) ||
        (f->at_run_time && values_operand_read(&v, &operands, frame_device(f), &f->facts)) ||
        frame_attributes_resolve(f, mpi, &v))
        return REFUSED;
    if (shape->counts == MANY) {
        if (frame_many_read(f, &call->args, &call->rets)) return REFUSED;
        return facts_have_neighbours(&f->facts) ? frame_neighbours_check(f) : 0;
    }
    frame_buffer *in[] = {frame_buffer_is_here(shape->send, f) ? &f->send : NULL,
                          frame_buffer_is_here(shape->template_, f) ? &f->template_ : NULL};
    frame_buffer status = {0}; /* as a result */
    const int gives_status = frame_gives_status(f), gives_numbers = frame_gives_numbers(f);
    frame_buffer *out[] = {frame_buffer_is_here(shape->recv, f) ? &f->recv : NULL, gives_status    ? &status
                                                                                   : gives_numbers ? &f->numbers
                                                                                                   : NULL};
    frame_buffer passed = {0}; /* as a result */
    if (shape->optional && frame_passes_array(f, &call->rets)) out[0] = &passed;
    if (shape->request == MPIXLA_STARTS) out[0] = &f->id;
    if (shape->request == MPIXLA_WAITS) in[0] = &f->id;
    const int sends_from_target = shape->optional && frame_sends_from_target(f, &operands);
    if (sends_from_target) in[0] = NULL;
    frame_buffer memory = {0}; /* of the result */
    if ((shape->attributes & IN_PLACE) && !in[0] && out[0] && frame_passes_result_memory(call)) in[0] = &memory;
    if (frame_buffers_read(f, &operands, "operand", in, taken) ||
        frame_buffers_read(f, &call->rets, "result", out, given) ||
        (gives_status && frame_status_result_set(f, mpi, &status)) || (gives_numbers && frame_numbers_check(f)) ||
        frame_passed_set(f, &passed) || frame_result_memory_check(f, &memory))
        return REFUSED;
    if (sends_from_target) f->send = f->template_;
    if ((shape->optional && frame_windows_read(f)) || (shape->request == MPIXLA_STARTS && frame_started_read(f)) ||
        (f->id.dtype && frame_id_check(f)) || frame_counts_check(f) || frame_reduction_resolve(f, mpi) ||
        (frame_has_rows(f) && frame_rows_check(f)) || (frame_has(f, ATTRIBUTE_BACK) && frame_slots_check(f)) ||
        (facts_have_neighbours(&f->facts) && frame_neighbours_check(f)))
        return REFUSED;
    frame_mpi_set(f, mpi);
    return frame_has_rows(f) ? frame_parts_fill(f, f->n > mpi->count_limit) : 0;
}

/* Sets a buffer's address and shape to those of this run of the call. */
static void frame_buffer_read_again(frame_buffer *b, const ffi_buffers *given) {
    if (!b->dtype) return;
    const ffi_buffer *buffer = given->buffers[b->place];
    b->data = buffer->data;
    b->dims = buffer->dims;
}

/* Finds a user-made reduction again, which may have been freed since the last run. Returns 0 or REFUSED. */
static int frame_reduction_find_again(frame *f) {
    const int64_t number = frame_has(f, ATTRIBUTE_OP) ? f->attributes[ATTRIBUTE_OP] : 0;
    if (reduction_is_predefined(number) || reduction_is_of_pairs(number)) return 0;
    const mpixla_handle *op = reduction_find(number);
    if (!op) return REFUSED;
    f->op = *op;
    return 0;
}

int frame_read_again(frame *f, const frame *known, const ffi_call_frame *call, frame_gpu *gpu) {
    const mpi_library *mpi = mpi_get();
    const mpixla_request request = known->facts.row->request;
    memcpy(f, known, offsetof(frame, own));
    f->gpu = gpu;
    if (f->site_is_of_thread) f->facts.site = site_of_thread();
    if (frame_comm_resolve(f) || frame_status_resolve(f) || frame_reduction_find_again(f)) return REFUSED;
    frame_buffer_read_again(&f->send, &call->args);
    frame_buffer_read_again(&f->template_, &call->args);
    frame_buffer_read_again(&f->id, request == MPIXLA_STARTS ? &call->rets : &call->args);
    if (request == MPIXLA_STARTS)
        f->recv.dims = f->template_.dtype ? f->template_.dims : f->send.dims; /* as in frame_started_read */
    else
        frame_buffer_read_again(&f->recv, &call->rets);
    if (f->facts.windows) frame_windows_read_again(f);
    if (f->passed) f->passed = ((const ffi_buffer *)call->rets.buffers[frame_buffer_next(&call->rets, 0)])->data;
    if (frame_gives_status(f)) f->status = ((const ffi_buffer *)call->rets.buffers[f->status_place])->data;
    frame_buffer_read_again(&f->numbers, &call->rets);
    if (f->facts.row->attributes & LOCAL) {
        f->posts.send = f->send.data;
        f->posts.recv = f->recv.data;
    }
    if (f->facts.row->counts == MANY) {
        f->operands = &call->args;
        f->results = &call->rets;
    } else {
        frame_send_address_set(f, mpi);
    }
    if (frame_has_rows(f) && frame_parts_fill(f, f->n > mpi->count_limit)) return REFUSED;
    frame_sequence_set(f);
    return 0;
}

/* Fills what the call's own thread and all others read of it: facts, posts and the sequence number. */
static void frame_end(frame *f) {
    facts_fill(f);
    if (f->facts.row->attributes & LOCAL) frame_posts_fill(f);
    frame_sequence_set(f);
}

int frame_read(frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu) {
    if (frame_read_all(f, shape, call, gpu)) return REFUSED;
    frame_end(f);
    return 0;
}

/* Sets `*b` to a buffer of a call outside of XLA, of one dimension; leaves it empty for NULL. Returns 0 or REFUSED. */
static int frame_given_buffer_read(frame_buffer *b, const frame *f, const dtype_entry *dtype, const void *data,
                                   const int64_t *items) {
    if (*items < 0)
        return error_set(
            "r%d | %s was called with %lld items: a caller that counts in ints moves at most 2^31 - 1 items at once, "
            "so split the array",
            mpi_get()->world_rank, f->facts.row->mpi_name, (long long)*items);
    *b = (frame_buffer){.data = (void *)(uintptr_t)data, .count = *items, .dtype = dtype, .axes = 1, .dims = items};
    return 0;
}

int frame_given_read(frame *f, const frame_shape *shape, const mpixla_call *call) {
    const mpi_library *mpi = mpi_get();
    const values none = {.n = 0};
    if (frame_begin(f, shape, NULL)) return REFUSED;
    memset(&f->own, 0, sizeof f->own);
    int64_t *a = f->own.attributes;
    a[ATTRIBUTE_COMM] = call->comm;
    a[ATTRIBUTE_OP] = call->op;
    a[ATTRIBUTE_DEST] = call->dest;
    a[ATTRIBUTE_SENDTAG] = call->sendtag;
    a[ATTRIBUTE_SOURCE] = call->source;
    a[ATTRIBUTE_RECVTAG] = call->recvtag;
    a[ATTRIBUTE_STATUS] = MPIXLA_NO_STATUS;
    if (frame_comm_resolve(f) || frame_attributes_resolve(f, mpi, &none)) return REFUSED;
    const dtype_entry *dtype = dtype_find(call->dtype);
    if (!dtype ||
        (frame_buffer_is_here(shape->send, f) &&
         frame_given_buffer_read(&f->send, f, dtype, call->send, &call->sent)) ||
        (frame_buffer_is_here(shape->recv, f) &&
         frame_given_buffer_read(&f->recv, f, dtype, call->recv, &call->received)) ||
        frame_counts_check(f) || frame_reduction_resolve(f, mpi))
        return REFUSED;
    frame_mpi_set(f, mpi);
    frame_end(f);
    return 0;
}
