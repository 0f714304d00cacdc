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

static const char *const names[] = {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) name,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

static const uint8_t lengths[] = {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) sizeof name - 1,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

/* What a program may give for an attribute; for ROWS see attributes.def. */
enum { NUMBER = 1, ARRAY = 2, STEPS = 4, AT_RUN_TIME = 8 };
enum { RANK = NUMBER | STEPS | AT_RUN_TIME, TAG = NUMBER | AT_RUN_TIME, ROWS = ARRAY | AT_RUN_TIME };
static const uint8_t forms[] = {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) kind,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
};

const char *const *mpixla_attribute_table(size_t *rows) {
    *rows = ATTRIBUTES;
    return names;
}

/* Attributes: both lists are sorted, so they are walked together, ours by the bits that are set. */

static int name_is(const ffi_bytes *name, int attribute) {
    return name->len == lengths[attribute] && memcmp(name->ptr, names[attribute], name->len) == 0;
}

/* Where the call comes from only matters to people: a program may leave it out, and what is no site is unknown. */
static int64_t site_of(frame *f, const ffi_attributes *given, int64_t i) {
    if (given->types[i] == FFI_ATTRIBUTE_STRING) {
        const ffi_bytes *text = given->values[i];
        return site_read(text->ptr, text->len);
    }
    const ffi_scalar *scalar = given->values[i];
    if (given->types[i] != FFI_ATTRIBUTE_SCALAR || scalar->dtype != FFI_S64) return 0;
    int64_t site = *(const int64_t *)scalar->value;
    f->site_is_of_thread = site == MPIXLA_SITE_OF_THREAD;
    return f->site_is_of_thread ? site_of_thread() : site;
}

/* The next attribute is an array, or a rank that is given as a shift. */
static int array_read(frame *f, const ffi_attributes *given, int64_t next, int i) {
    const ffi_array *array = given->values[next];
    int is_rank = forms[i] & STEPS;
    if (given->types[next] != FFI_ATTRIBUTE_ARRAY || array->dtype != FFI_S64 || array->size > INT_MAX ||
        (is_rank && (array->size == 0 || !comm_is_shift((int64_t)array->size))))
        return error_set("attribute '%s' of %s must be %s", names[i], f->facts.row->mpi_name,
                         is_rank ? "a 64-bit integer, or pairs of them: a direction and by how many ranks"
                                 : "an array of 64-bit integers");
    f->own.arrays[i] = (frame_array){.items = array->data, .size = (int64_t)array->size};
    return 0;
}

static int attributes_read(frame *f, const ffi_attributes *given) {
    const char *op = f->facts.row->mpi_name;
    int64_t next = 0;
    for (uint32_t left = (f->facts.row->attributes | OPTIONAL) & ((1U << ATTRIBUTES) - 1); left; left &= left - 1) {
        int i = __builtin_ctz(left);
        int is_given = next < given->size && name_is(given->names[next], i);
        f->own.arrays[i].size = 0;
        if (i == ATTRIBUTE_SITE) {
            if (is_given) f->facts.site = site_of(f, given, next++);
            continue;
        }
        if (i == ATTRIBUTE_PACKED && !is_given) {
            f->own.attributes[i] = 0;
            continue;
        }
        if (!is_given)
            return error_set("%s was called without its attribute '%s', or with one that it does not take", op,
                             names[i]);
        int type = given->types[next];
        if ((forms[i] & AT_RUN_TIME) && type == FFI_ATTRIBUTE_STRING && values_are_in_operand(given->values[next])) {
            f->at_run_time |= 1U << i;
            next++;
            continue;
        }
        if ((forms[i] & ARRAY) || ((forms[i] & STEPS) && type == FFI_ATTRIBUTE_ARRAY)) {
            if (array_read(f, given, next++, i)) return REFUSED;
            continue;
        }
        const ffi_scalar *scalar = given->values[next];
        if (type != FFI_ATTRIBUTE_SCALAR || scalar->dtype != FFI_S64)
            return error_set("attribute '%s' of %s must be a 64-bit integer", names[i], op);
        f->own.attributes[i] = *(const int64_t *)scalar->value;
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
    return comm_shift(f->facts.communicator, steps->items, steps->size, &f->own.attributes[attribute]);
}

/* At run time: numbers of this MPI's, which become those that programs have. */

static int is_at_run_time(const frame *f, int attribute) {
    return (int)(f->at_run_time >> attribute & 1U);
}

static int64_t numbers_of(const frame *f, int attribute) {
    if (!(forms[attribute] & ARRAY)) return 1;
    if (!facts_have_neighbours(&f->facts)) return f->size;
    return facts_neighbours(&f->facts, attribute != ATTRIBUTE_RECVCOUNTS)->number;
}

/* A number that means no rank or tag must not look like one of those that programs have for nobody and any. */
static int64_t number_of_program(const mpixla_mpi_facts *facts, int attribute, int64_t number) {
    int is_source = attribute == ATTRIBUTE_SOURCE;
    if (is_source && number == facts->any_source) return MPIXLA_ANY_SOURCE;
    if ((is_source || attribute == ATTRIBUTE_DEST) && number == facts->proc_null) return MPIXLA_PROC_NULL;
    if (attribute == ATTRIBUTE_RECVTAG && number == facts->any_tag) return MPIXLA_ANY_TAG;
    return number < 0 ? INT64_MIN : number;
}

/* What a message says of an attribute that has a wrong number. */
static int64_t as_given(const frame *f, int attribute) {
    return is_at_run_time(f, attribute) ? *f->arrays[attribute].items : f->attributes[attribute];
}

static int values_resolve(frame *f, const mpi_library *mpi, const values *v) {
    int64_t used = 0;
    for (uint32_t left = f->at_run_time; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        int64_t n = numbers_of(f, i);
        if (!v->numbers || used + n > v->n) {
            used = v->n + 1;
            break;
        }
        f->own.arrays[i] = (frame_array){.items = v->numbers + used, .size = n};
        if (!(forms[i] & ARRAY)) {
            f->own.attributes[i] = number_of_program(&mpi->facts, i, v->numbers[used]);
            f->own.arrays[i].size = 0; /* no steps */
        }
        used += n;
    }
    if (used == v->n) return 0;
    return error_set("%s was given %lld numbers at run time, which are not as many as its attributes need",
                     f->facts.row->mpi_name, (long long)v->n);
}

/* A rank of the communicator, or one of `also` (ending with a number that is not negative). */
static int rank_check(frame *f, int attribute, const int *also) {
    if (f->arrays[attribute].size > 0) return shift_resolve(f, attribute);
    int64_t rank = f->attributes[attribute];
    if (rank >= 0 && rank < f->size) return 0;
    for (; *also < 0; also++)
        if (rank == *also) return 0;
    return error_set("%s got %s = %lld, but the ranks of communicator '%s' are 0 to %d", f->facts.row->mpi_name,
                     names[attribute], (long long)as_given(f, attribute), f->facts.communicator->name, f->size - 1);
}

static int tag_check(const frame *f, int attribute, int any) {
    const int64_t tag = f->attributes[attribute], most = mpi_get()->facts.tag_ub;
    if ((tag >= 0 && tag <= most) || (any && tag == MPIXLA_ANY_TAG)) return 0;
    return error_set("%s got %s = %lld, but tags are 0 to %lld", f->facts.row->mpi_name, names[attribute],
                     (long long)as_given(f, attribute), (long long)most);
}

static int rank_of_mpi(const mpixla_mpi_facts *facts, int64_t rank) {
    return (int)(rank == MPIXLA_PROC_NULL ? facts->proc_null : rank == MPIXLA_ANY_SOURCE ? facts->any_source : rank);
}

/* The communicator says who the neighbours are: so the program is the same on every rank. */
static int topology_check(const frame *f) {
    const topology *t = f->facts.communicator->topology;
    int is_halo = frame_has(f, ATTRIBUTE_WIDTH);
    if (t && (!is_halo || t->dimensions >= 0)) return 0;
    return error_set("%s needs a communicator with a %s, but '%s' has none", f->facts.row->op_name,
                     is_halo ? "Cartesian topology" : "topology, which says who is whose neighbour",
                     f->facts.communicator->name);
}

static int waits_for_message(const frame_shape *row) {
    return row->request == MPIXLA_WAITS && (row->template_ != MPIXLA_NOWHERE || row->recv == MPIXLA_NOWHERE);
}

/* MPI allows a communicator to be freed while something is under way on it. With messages every MPI can do that; in a
 * wait for a collective call Open MPI 5 crashes. */
static int comm_resolve(frame *f) {
    const int64_t id = f->attributes[ATTRIBUTE_COMM];
    const int may_be_freed = waits_for_message(f->facts.row) && comm_state_check() == 0;
    f->facts.communicator = may_be_freed ? comm_look(id) : NULL;
    if (!f->facts.communicator) f->facts.communicator = comm_find(id);
    if (!f->facts.communicator) return REFUSED;
    f->comm = f->facts.communicator->handle;
    f->size = f->facts.communicator->size;
    return 0;
}

/* Where MPI writes the status, unless that is a result (status_take). */
static int status_resolve(frame *f) {
    const int64_t status = frame_has(f, ATTRIBUTE_STATUS) ? f->attributes[ATTRIBUTE_STATUS] : MPIXLA_NO_STATUS;
    const int is_object = status != MPIXLA_NO_STATUS && status != MPIXLA_STATUS_RESULT;
    f->status = is_object ? status_find(status) : f->scratch;
    return f->status ? 0 : REFUSED;
}

static int attributes_resolve(frame *f, const mpi_library *mpi, const values *v) {
    static const int nothing_else[] = {0}, nobody[] = {MPIXLA_PROC_NULL, 0},
                     anybody[] = {MPIXLA_PROC_NULL, MPIXLA_ANY_SOURCE, 0};
    const int64_t *a = f->attributes;
    f->facts.reverse = frame_has(f, ATTRIBUTE_REVERSE) && a[ATTRIBUTE_REVERSE] != 0;
    f->facts.back = frame_has(f, ATTRIBUTE_BACK) && a[ATTRIBUTE_BACK] != 0;
    if (frame_has(f, ATTRIBUTE_ROOT)) {
        if (rank_check(f, ATTRIBUTE_ROOT, nothing_else)) return REFUSED;
        f->root = (int)a[ATTRIBUTE_ROOT];
        f->on_root = f->root == f->facts.communicator->rank;
    }
    if (frame_has(f, ATTRIBUTE_FILL) && f->arrays[ATTRIBUTE_FILL].size != 2) /* which no item is longer than */
        return error_set("%s got %lld numbers to fill its first result with, but takes 2", f->facts.row->mpi_name,
                         (long long)f->arrays[ATTRIBUTE_FILL].size);
    if ((facts_have_neighbours(&f->facts) && topology_check(f)) || values_resolve(f, mpi, v)) return REFUSED;
    if (frame_has(f, ATTRIBUTE_DEST)) {
        if (rank_check(f, ATTRIBUTE_DEST, nobody) || tag_check(f, ATTRIBUTE_SENDTAG, 0)) return REFUSED;
        f->dest = rank_of_mpi(&mpi->facts, a[ATTRIBUTE_DEST]);
        f->sendtag = (int)a[ATTRIBUTE_SENDTAG];
    }
    if (frame_has(f, ATTRIBUTE_SOURCE)) {
        if (rank_check(f, ATTRIBUTE_SOURCE, anybody) || tag_check(f, ATTRIBUTE_RECVTAG, 1)) return REFUSED;
        f->source = rank_of_mpi(&mpi->facts, a[ATTRIBUTE_SOURCE]);
        f->recvtag = (int)(a[ATTRIBUTE_RECVTAG] == MPIXLA_ANY_TAG ? mpi->facts.any_tag : a[ATTRIBUTE_RECVTAG]);
    }
    return status_resolve(f);
}

/* Buffers. Tokens carry order, not data, and are passed over. */

static int is_here(mpixla_where where, const frame *f) {
    return where == MPIXLA_EVERYWHERE || (where == MPIXLA_ON_ROOT && f->on_root) ||
           (where == MPIXLA_OFF_ROOT && !f->on_root);
}

static int buffer_read(frame_buffer *b, const frame *f, const char *what, const ffi_buffer *given) {
    const char *op = f->facts.row->mpi_name;
    b->dtype = dtype_find(given->dtype);
    if (!b->dtype) return REFUSED;
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
            return error_set("%s %lld of %s is not a buffer", side, (long long)i, f->facts.row->mpi_name);
        if (buffer->dtype == FFI_TOKEN) continue;
        int slot = slots[0] && found == 0 ? 0 : 1;
        if (found < expected && buffer_read(slots[slot], f, what[slot], buffer)) return REFUSED;
        if (found < expected) slots[slot]->place = i;
        found++;
    }
    int more = f->facts.row->request == MPIXLA_WAITS && slots[0] == &f->id;
    if (more ? found < expected : found != expected)
        return error_set("%s was called with %d %ss on this rank, but takes %d", f->facts.row->mpi_name, found, side,
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
    const char *op = f->facts.row->mpi_name;
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
        if (buffer_read(&in, f, "send buffer", operand) || buffer_read(&out, f, "receive buffer", result))
            return REFUSED;
        if (shapes_differ(operand, result))
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

static int is_product(int64_t all, int64_t a, int64_t b) {
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) && product == all;
}

static int counts_check(frame *f) {
    const frame_buffer *send = &f->send, *recv = &f->recv;
    const char *op = f->facts.row->mpi_name;
    if (f->template_.dtype && (f->template_.dtype != recv->dtype || f->template_.count != recv->count))
        return error_set("the template of %s differs from its result in type or size", op);
    f->type = recv->dtype ? recv->dtype->handle : send->dtype ? send->dtype->handle : 0;
    f->n = send->count > recv->count ? send->count : recv->count;
    if (f->facts.row->counts == GATHERED) f->n = send->count;
    if (f->facts.row->counts == SCATTERED) f->n = recv->count;
    if (f->facts.row->counts == DIVIDED) f->n = recv->count / f->size;
    if (f->facts.row->counts == FREE || !send->dtype || !recv->dtype) return 0;
    if (send->dtype != recv->dtype)
        return error_set("%s was called with %s to send and %s to receive", op, send->dtype->row->name,
                         recv->dtype->row->name);
    int64_t size = f->size;
    if ((f->facts.row->counts == SAME && send->count != recv->count) ||
        (f->facts.row->counts == DIVIDED && (send->count != recv->count || f->n * size != recv->count)) ||
        (f->facts.row->counts == GATHERED && !is_product(recv->count, size, send->count)) ||
        (f->facts.row->counts == SCATTERED && !is_product(send->count, size, recv->count)))
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
                         f->facts.row->mpi_name, reduction_name(f->attributes[ATTRIBUTE_OP]));
    int64_t bytes = b->dims[b->rank - 1];
    const pair_reduction *pair = pair_reduce_find(mpi, bytes, b->dtype->handle);
    if (!pair) return REFUSED;
    f->op = pair->op;
    f->type = pair->type;
    f->n /= bytes;
    return 0;
}

int64_t frame_pair_bytes(const frame *f) {
    const frame_buffer *b = f->send.dtype ? &f->send : &f->recv;
    return frame_has(f, ATTRIBUTE_OP) && reduction_is_of_pairs(f->attributes[ATTRIBUTE_OP]) ? b->dims[b->rank - 1] : 0;
}

/* Which operation of MPI's reduces depends on the element type. */
static int reduction_resolve(frame *f, const mpi_library *mpi) {
    if (!frame_has(f, ATTRIBUTE_OP)) return 0;
    int64_t number = f->attributes[ATTRIBUTE_OP];
    const dtype_entry *dtype = f->send.dtype ? f->send.dtype : f->recv.dtype;
    if (!dtype) return error_set("%s was called without a buffer to reduce", f->facts.row->mpi_name);
    if (reduction_is_of_pairs(number)) return pairs_resolve(f, mpi);
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

static int attribute_of(const frame *f, int slot) {
    if (f->facts.row->counts != EXCHANGED_ROWS) return ATTRIBUTE_COUNTS;
    return slot == PARTS_SENT ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_RECVCOUNTS;
}

const int64_t *frame_rows(const frame *f, int slot) {
    return f->arrays[attribute_of(f, slot)].items;
}

/* All rows of an array attribute, or REFUSED. */
static int64_t rows_sum(const frame *f, int attribute) {
    const char *op = frame_name(f), *name = names[attribute];
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

/* The same, of one number of rows for each rank. */
static int64_t rows_add_up(const frame *f, int attribute) {
    const frame_array *array = &f->arrays[attribute];
    if (array->size == f->size) return rows_sum(f, attribute);
    return error_set("%s got %lld %s, but communicator '%s' has %d ranks", f->facts.row->mpi_name,
                     (long long)array->size, names[attribute], f->facts.communicator->name, f->size);
}

/* The items of each of the buffer's rows, of which there must be as many as are given, or at run time no less; or
 * REFUSED. */
static int64_t row_measure(const frame *f, const frame_buffer *b, const char *what, int64_t rows) {
    const char *op = frame_name(f);
    int64_t items = 1;
    if (b->rank == 0) return error_set("the %s of %s is a scalar, which has no rows", what, op);
    if (f->at_run_time && b->dims[0] < rows)
        return error_set("the %s of %s has %lld rows, but its counts say %lld%s", what, op, (long long)b->dims[0],
                         (long long)rows, b == &f->recv ? ": a larger capacity takes them" : "");
    if (!f->at_run_time && b->dims[0] != rows)
        return error_set("the %s of %s has %lld rows, but its counts say %lld", what, op, (long long)b->dims[0],
                         (long long)rows);
    for (int64_t i = 1; i < b->rank; i++) items *= b->dims[i]; /* buffer_read has looked at every product */
    return items;
}

/* From now on the buffer has the items that count. What the result has behind them becomes zeros. */
static void rest_leave(frame *f, frame_buffer *b, int64_t items) {
    int64_t itemsize = b->dtype->row->itemsize;
    if (b == &f->recv && b->count > items) {
        f->rest = (char *)b->data + items * itemsize;
        f->rest_bytes = (b->count - items) * itemsize;
    }
    b->count = items;
}

/* Compares the buffers with the rows of all ranks, and finds the items of a row and the greatest count. */
static int rows_check(frame *f) {
    int64_t whole_sent = rows_add_up(f, attribute_of(f, PARTS_SENT));
    int64_t whole_received = whole_sent < 0 ? -1 : rows_add_up(f, attribute_of(f, PARTS_RECEIVED));
    if (whole_received < 0) return REFUSED;
    int rank = f->facts.communicator->rank;
    int64_t sent = f->facts.row->counts == GATHERED_ROWS ? frame_rows(f, PARTS_SENT)[rank] : whole_sent;
    int64_t received = f->facts.row->counts == SCATTERED_ROWS ? frame_rows(f, PARTS_RECEIVED)[rank] : whole_received;
    int64_t items_sent = f->send.dtype ? row_measure(f, &f->send, "send buffer", sent) : 0;
    if (items_sent < 0) return REFUSED;
    int64_t items_received = f->recv.dtype ? row_measure(f, &f->recv, "receive buffer", received) : items_sent;
    if (items_received < 0) return REFUSED;
    if (f->send.dtype && items_sent != items_received)
        return error_set("%s was called with rows of %lld items to send and of %lld to receive", f->facts.row->mpi_name,
                         (long long)items_sent, (long long)items_received);
    /* What a rank alone sends itself nobody compares after its first calls, and not every MPI does. */
    if (f->size == 1 && f->facts.row->counts == EXCHANGED_ROWS && sent != received)
        return error_set(
            "%s got sendcounts[0] = %lld but recvcounts[0] = %lld, on a communicator of one rank: it is "
            "to send itself as many rows as it is to receive",
            f->facts.row->mpi_name, (long long)sent, (long long)received);
    f->row_items = items_received;
    if (__builtin_mul_overflow(whole_sent > whole_received ? whole_sent : whole_received, f->row_items, &f->n))
        return error_set("%s got counts of more items than a 64-bit integer holds", f->facts.row->mpi_name);
    if (f->at_run_time && f->send.dtype) rest_leave(f, &f->send, sent * f->row_items);
    if (f->at_run_time && f->recv.dtype) rest_leave(f, &f->recv, received * f->row_items);
    return 0;
}

/* Of an exchange: the items of a row. Of what is sent, parts may overlap, and some rows go nowhere. */
static int slots_check(frame *f) {
    int64_t received = rows_sum(f, ATTRIBUTE_RECVCOUNTS);
    int64_t sent = f->send.rank > 0 ? f->send.dims[0] : 0;
    f->row_items = received < 0 ? -1 : row_measure(f, &f->send, "send buffer", sent);
    int64_t items = f->row_items < 0 ? -1 : row_measure(f, &f->recv, "receive buffer", received);
    if (items < 0) return REFUSED;
    int at_run_time = f->at_run_time != 0;
    if (f->row_items != items || f->at_run_time != (at_run_time ? RECVCOUNTS | SENDCOUNTS | SENDOFFSETS : 0))
        return error_set(
            "an exchange was called with rows of %lld items to send and of %lld to receive, or with only "
            "some of its counts at run time",
            (long long)f->row_items, (long long)items);
    if (at_run_time) rest_leave(f, &f->recv, received * items);
    return 0;
}

static int parts_fill(frame *f, int large) {
    int sends_parts = f->facts.row->counts != GATHERED_ROWS && f->send.dtype;
    int receives_parts = f->facts.row->counts != SCATTERED_ROWS && f->recv.dtype;
    int failed =
        (sends_parts && parts_make(&f->sent, PARTS_SENT, frame_rows(f, PARTS_SENT), f->size, f->row_items, large)) ||
        (receives_parts &&
         parts_make(&f->received, PARTS_RECEIVED, frame_rows(f, PARTS_RECEIVED), f->size, f->row_items, large));
    return failed ? call_fail(&f->facts) : 0;
}

/* Requests */

/* What a call that starts will receive. */
static int started_read(frame *f) {
    const char *op = f->facts.row->mpi_name;
    f->recv = f->template_.dtype ? f->template_ : f->send;
    f->recv.data = NULL;
    if (!frame_has(f, ATTRIBUTE_SOURCE) && frame_has(f, ATTRIBUTE_DEST)) f->recv = (frame_buffer){0};
    if (f->facts.row->counts == GATHERED && __builtin_mul_overflow(f->send.count, (int64_t)f->size, &f->recv.count))
        return error_set("%s gives more items than a 64-bit integer holds", op);
    if (f->facts.row->counts == SCATTERED) f->recv.count = f->send.count / f->size;
    return 0;
}

/* A request for a batch of no examples has no id, and gives nothing. */
static int id_check(const frame *f) {
    int is_there = f->id.count > 0 ? f->id.count % 2 == 0 : f->send.count == 0 && f->recv.count == 0;
    if (is_there && strcmp(f->id.dtype->row->name, "float32") == 0) return 0;
    return error_set("the id of a request is two float32 numbers, but %s was called with %lld of %s",
                     f->facts.row->mpi_name, (long long)f->id.count, f->id.dtype->row->name);
}

/* MPI writes the status where the program wants it. */
static int status_take(frame *f, const mpi_library *mpi, const frame_buffer *status) {
    if (status->dtype->number != FFI_U8 || status->count < mpi->facts.status_size)
        return error_set("the status that %s gives is uint8 and of %lld bytes, but was to be %s and %lld",
                         f->facts.row->mpi_name, (long long)mpi->facts.status_size, status->dtype->row->name,
                         (long long)status->count);
    f->status = status->data;
    f->status_place = status->place;
    return 0;
}

/* Whether the call's only operand is the memory of its result: a rank that sends nothing passes that, so that XLA gets
 * no other for the result. */
static int passes_memory(const ffi_call_frame *call) {
    int64_t i = frame_next(&call->args, 0), j = frame_next(&call->rets, 0);
    return i < call->args.size && j < call->rets.size && frame_next(&call->args, i + 1) == call->args.size &&
           call->args.types[i] == FFI_KIND_BUFFER && call->rets.types[j] == FFI_KIND_BUFFER &&
           ((const ffi_buffer *)call->args.buffers[i])->data == ((const ffi_buffer *)call->rets.buffers[j])->data;
}

/* What MPI is told to send. */
static void from_resolve(frame *f, const mpi_library *mpi) {
    const int is_in_place = f->send.data == f->recv.data && f->recv.count > 0;
    f->from = is_in_place ? (const void *)(intptr_t)mpi->facts.in_place /* NOLINT(performance-no-int-to-ptr) */
                          : f->send.data;
}

/* A call that is refused is not made, and so it is not counted: the other ranks have made no call in its place. */
static void call_number(frame *f) {
    f->facts.sequence = facts_are_collective(&f->facts) ? comm_count(f->facts.communicator) : 0;
}

static int read_all(frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu) {
    static const char *const taken[] = {"send buffer", "template"}, *const given[] = {"receive buffer", "status"};
    const mpi_library *mpi = mpi_get();
    memset(&f->facts, 0, sizeof f->facts); /* what a row does not have, and what lies between, is 0 in every copy */
    if (!mpi) return error_set("%s was called before mpixla_start", shape->mpi_name);
    /* Field by field: clearing the whole would touch the scratch status on every call. */
    f->facts.row = shape;
    f->send = f->template_ = f->recv = (frame_buffer){0};
    f->sent = f->received = (parts){0};
    f->id = (frame_buffer){0};
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
    ffi_buffers operands = call->args;
    values v = {.n = 0};
    if (attributes_read(f, &call->attrs) || comm_resolve(f) ||
        (f->at_run_time && values_take(&v, &operands, frame_device(f), &f->facts)) || attributes_resolve(f, mpi, &v))
        return REFUSED;
    if (shape->counts == MANY) {
        if (pairs_read(f, &call->args, &call->rets)) return REFUSED;
        return facts_have_neighbours(&f->facts) ? frame_check_neighbours(f) : 0;
    }
    frame_buffer *in[] = {is_here(shape->send, f) ? &f->send : NULL,
                          is_here(shape->template_, f) ? &f->template_ : NULL};
    frame_buffer status = {0}; /* as a result */
    const int gives_status = frame_gives_status(f);
    frame_buffer *out[] = {is_here(shape->recv, f) ? &f->recv : NULL, gives_status ? &status : NULL};
    if (shape->request == MPIXLA_STARTS) out[0] = &f->id;
    if (shape->request == MPIXLA_WAITS) in[0] = &f->id;
    frame_buffer memory = {0}; /* of the result */
    if ((shape->attributes & IN_PLACE) && !in[0] && out[0] && passes_memory(call)) in[0] = &memory;
    if (buffers_read(f, &operands, "operand", in, taken) || buffers_read(f, &call->rets, "result", out, given) ||
        (gives_status && status_take(f, mpi, &status)) || (shape->request == MPIXLA_STARTS && started_read(f)) ||
        (f->id.dtype && id_check(f)) || counts_check(f) || reduction_resolve(f, mpi) ||
        (frame_has_rows(f) && rows_check(f)) || (frame_has(f, ATTRIBUTE_BACK) && slots_check(f)) ||
        (facts_have_neighbours(&f->facts) && frame_check_neighbours(f)))
        return REFUSED;
    from_resolve(f, mpi);
    int large = f->n > mpi->count_limit;
    f->mpi = large ? mpi->large : mpi->small;
    if (frame_has(f, ATTRIBUTE_SOURCE)) f->expects = dtype_receive(f->recv.dtype, f->recv.count, mpi_most_bytes(mpi));
    return frame_has_rows(f) ? parts_fill(f, large) : 0;
}

/* The buffer of another run of the call. */
static void buffer_read_again(frame_buffer *b, const ffi_buffers *given) {
    if (!b->dtype) return;
    const ffi_buffer *buffer = given->buffers[b->place];
    b->data = buffer->data;
    b->dims = buffer->dims;
}

/* A user-made reduction may have been freed since. */
static int reduction_find_again(frame *f) {
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
    if (comm_resolve(f) || status_resolve(f) || reduction_find_again(f)) return REFUSED;
    buffer_read_again(&f->send, &call->args);
    buffer_read_again(&f->template_, &call->args);
    buffer_read_again(&f->id, request == MPIXLA_STARTS ? &call->rets : &call->args);
    if (request == MPIXLA_STARTS)
        f->recv.dims = f->template_.dtype ? f->template_.dims : f->send.dims; /* as in started_read */
    else
        buffer_read_again(&f->recv, &call->rets);
    if (frame_gives_status(f)) f->status = ((const ffi_buffer *)call->rets.buffers[f->status_place])->data;
    if (f->facts.row->attributes & LOCAL) {
        f->posts.send = f->send.data;
        f->posts.recv = f->recv.data;
    }
    if (f->facts.row->counts == MANY) {
        f->operands = &call->args;
        f->results = &call->rets;
    } else {
        from_resolve(f, mpi);
    }
    if (frame_has_rows(f) && parts_fill(f, f->n > mpi->count_limit)) return REFUSED;
    call_number(f);
    return 0;
}

int frame_read(frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu) {
    if (read_all(f, shape, call, gpu)) return REFUSED;
    facts_read(f);
    if (shape->attributes & LOCAL) frame_posts_read(f);
    call_number(f);
    return 0;
}
