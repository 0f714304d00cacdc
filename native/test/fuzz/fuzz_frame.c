#include "test/fuzz/fuzz_frame.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact/exact_sum.h"
#include "handler.h"
#include "helpers/helper.h"
#include "test/fake_mpi.h"

#define NOWHERE MPIXLA_NOWHERE
#define EVERYWHERE MPIXLA_EVERYWHERE
#define ON_ROOT MPIXLA_ON_ROOT
#define OFF_ROOT MPIXLA_OFF_ROOT

static const fuzz_row rows[] = {
#define MPIXLA_OP(name, host, device, shape, call, nccl) {#name, {shape}, host, device},
#include "tables/ops.def"
#undef MPIXLA_OP
#define HELPER(name, host, device) {#name, {.mpi_name = NULL}, host, device},
    MPIXLA_HELPERS(HELPER) HELPER(order, mpixla_order, mpixla_order)
#undef HELPER
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static const struct {
    int number, bytes;
    const char *kind;
} dtypes[] = {
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) {ffi, itemsize, kind},
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const fuzz_row *fuzz_rows(int *count) {
    *count = ROWS;
    return rows;
}

const fuzz_row *fuzz_row_find(const char *name) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* Parts of a frame */

static fuzz_buffer *add_buffer(fuzz_frame *f, int side, int dtype, int64_t rank, const int64_t *dims) {
    struct fuzz_side *s = &f->sides[side];
    fuzz_buffer *made = &s->given[s->count++];
    *made = (fuzz_buffer){.dtype = dtype, .kind = FFI_KIND_BUFFER, .rank = rank};
    if (rank > 0) memcpy(made->dims, dims, (size_t)rank * sizeof *dims);
    return made;
}

static fuzz_attribute *add_attribute(fuzz_frame *f, const char *name, int type) {
    fuzz_attribute *made = &f->attributes[f->attribute_count++];
    *made = (fuzz_attribute){.type = type, .dtype = FFI_S64};
    snprintf(made->name, sizeof made->name, "%s", name);
    return made;
}

static int has(const fuzz_row *row, uint32_t attribute) {
    const uint32_t optional = row->shape.mpi_name ? OPTIONAL : 0; /* helpers have none */
    return ((row->shape.attributes | optional) & attribute) != 0;
}

/* A right call: shapes */

typedef struct shape {
    int64_t rank, dims[FUZZ_AXES];
} shape;

static shape shape_any(fuzz_bytes *b) {
    shape s = {.rank = fuzz_below(b, 4)};
    for (int i = 0; i < s.rank; i++) s.dims[i] = fuzz_below(b, 5);
    return s;
}

/* With one more axis in front. */
static shape shape_of(int64_t first, shape s) {
    for (int64_t i = s.rank++; i > 0; i--) s.dims[i] = s.dims[i - 1];
    s.dims[0] = first;
    return s;
}

static int is_here(mpixla_where where, const fuzz_frame *f) {
    int on_root = f->root == f->comm->rank;
    return where == EVERYWHERE || (where == ON_ROOT && on_root) || (where == OFF_ROOT && !on_root);
}

static void place_buffers(fuzz_frame *f, shape send, shape template_, shape recv, int send_dtype, int recv_dtype) {
    const frame_shape *s = &f->row->shape;
    if (is_here(s->send, f)) add_buffer(f, FUZZ_OPERANDS, send_dtype, send.rank, send.dims);
    if (is_here(s->template_, f)) add_buffer(f, FUZZ_OPERANDS, recv_dtype, template_.rank, template_.dims);
    if (s->request == MPIXLA_STARTS) {
        static const int64_t two[] = {2};
        add_buffer(f, FUZZ_RESULTS, FFI_F32, 1, two);
        return;
    }
    if (is_here(s->recv, f)) add_buffer(f, FUZZ_RESULTS, recv_dtype, recv.rank, recv.dims);
}

static void gives(fuzz_frame *f, int dtype, shape s) {
    f->gives.dtype = dtype;
    f->gives.rank = s.rank;
    memcpy(f->gives.dims, s.dims, sizeof s.dims);
}

static fuzz_attribute *attribute_find(fuzz_frame *f, const char *name) {
    for (int i = 0; i < f->attribute_count; i++)
        if (strcmp(f->attributes[i].name, name) == 0) return &f->attributes[i];
    return NULL;
}

/* Rows of each rank; returns their sum. */
static int64_t rows_fill(fuzz_frame *f, fuzz_bytes *b, const char *name) {
    fuzz_attribute *a = attribute_find(f, name);
    int64_t sum = 0;
    a->size = f->comm->size;
    for (int i = 0; i < a->size; i++) sum += a->elements[i] = fuzz_below(b, 4);
    return sum;
}

static void shapes_of_rows(fuzz_frame *f, fuzz_bytes *b, shape row) {
    frame_counts counts = f->row->shape.counts;
    if (row.rank == FUZZ_AXES) row.rank--;
    if (counts == EXCHANGED_ROWS) {
        int64_t sent = rows_fill(f, b, "sendcounts"), received = rows_fill(f, b, "recvcounts");
        int64_t *own = &attribute_find(f, "recvcounts")->elements[f->comm->rank];
        received -= *own;
        received += *own = attribute_find(f, "sendcounts")->elements[f->comm->rank];
        place_buffers(f, shape_of(sent, row), row, shape_of(received, row), f->dtype, f->dtype);
        if (f->row->shape.request == MPIXLA_STARTS) gives(f, f->dtype, shape_of(received, row));
        return;
    }
    int64_t whole = rows_fill(f, b, "counts"), own = attribute_find(f, "counts")->elements[f->comm->rank];
    shape one = shape_of(own, row), all = shape_of(whole, row);
    int gathers = counts == GATHERED_ROWS;
    place_buffers(f, gathers ? one : all, row, gathers ? all : one, f->dtype, f->dtype);
}

static void shapes_of_halo(fuzz_frame *f, fuzz_bytes *b) {
    int arrays = 1 + fuzz_below(b, 3), dimensions = f->comm->topology->dimensions;
    fuzz_attribute *axes = attribute_find(f, "axes"), *width = attribute_find(f, "width");
    width->size = dimensions;
    for (int d = 0; d < dimensions; d++) width->elements[d] = fuzz_below(b, 3);
    axes->size = (int64_t)arrays * dimensions;
    for (int i = 0; i < arrays; i++) {
        shape s = {.rank = dimensions + fuzz_below(b, 2)};
        int first = fuzz_below(b, (int)s.rank - dimensions + 1);
        for (int k = 0; k < s.rank; k++) s.dims[k] = fuzz_below(b, 4);
        for (int d = 0; d < dimensions; d++) {
            axes->elements[i * dimensions + d] = first + d;
            s.dims[first + d] = 3 * width->elements[d] + fuzz_below(b, 3);
        }
        /* Whatever is added must be something that can be added. */
        int dtype = strcmp(f->row->name, "halo_transpose") == 0 && i == 0 ? FFI_F32 : f->dtype;
        if (strcmp(f->row->name, "halo_transpose") == 0) dtype = i % 2 ? FFI_S16 : FFI_F32;
        add_buffer(f, FUZZ_OPERANDS, dtype, s.rank, s.dims);
        fuzz_buffer *result = add_buffer(f, FUZZ_RESULTS, dtype, s.rank, s.dims);
        if (!fuzz_rarely(b, 4)) result->same_as = f->sides[FUZZ_OPERANDS].count;
    }
}

/* Arrays that are compared, and the sites that name them. */
static void shapes_of_leaves(fuzz_frame *f, fuzz_bytes *b) {
    fuzz_attribute *leaves = attribute_find(f, "leaves");
    leaves->size = 1 + fuzz_below(b, 3);
    for (int i = 0; i < leaves->size; i++) {
        shape s = shape_any(b);
        leaves->elements[i] = fuzz_below(b, 8);
        int dtype = dtypes[fuzz_below(b, DTYPES)].number;
        add_buffer(f, FUZZ_OPERANDS, dtype, s.rank, s.dims);
        fuzz_buffer *result = add_buffer(f, FUZZ_RESULTS, dtype, s.rank, s.dims);
        if (!fuzz_rarely(b, 4)) result->same_as = f->sides[FUZZ_OPERANDS].count;
    }
}

static void shapes_of_exchange(fuzz_frame *f, fuzz_bytes *b) {
    const topology *t = f->comm->topology;
    int back = attribute_find(f, "back")->value != 0;
    int64_t rows = fuzz_below(b, 8), row = 1 + fuzz_below(b, 3), received = 0;
    fuzz_attribute *sendcounts = attribute_find(f, "sendcounts"), *offsets = attribute_find(f, "sendoffsets"),
                   *recvcounts = attribute_find(f, "recvcounts");
    sendcounts->size = offsets->size = (back ? &t->sources : &t->dests)->number;
    recvcounts->size = (back ? &t->dests : &t->sources)->number;
    for (int i = 0; i < sendcounts->size; i++) {
        int64_t offset = offsets->elements[i] = fuzz_below(b, (int)rows + 1);
        sendcounts->elements[i] = fuzz_below(b, (int)(rows - offset) + 1);
    }
    for (int i = 0; i < recvcounts->size; i++) received += recvcounts->elements[i] = fuzz_below(b, 4);
    add_buffer(f, FUZZ_OPERANDS, f->dtype, 2, (const int64_t[]){rows, row});
    add_buffer(f, FUZZ_RESULTS, f->dtype, 2, (const int64_t[]){received, row});
}

/* A wait, for this request or for none (NULL). */
static void shapes_of_wait(fuzz_frame *f, fuzz_bytes *b, const fuzz_request *r) {
    const int64_t numbers[] = {r && r->nameless_on ? 0 : 2};
    shape s = {0};
    int dtype = f->dtype;
    f->waited = r;
    if (r) {
        memcpy(f->id, r->id, sizeof f->id);
        dtype = r->dtype;
        s.rank = r->rank;
        memcpy(s.dims, r->dims, sizeof s.dims);
    } else {
        s = shape_any(b);
    }
    add_buffer(f, FUZZ_OPERANDS, FFI_F32, 1, numbers);
    if (f->row->shape.template_ == EVERYWHERE) add_buffer(f, FUZZ_OPERANDS, dtype, s.rank, s.dims);
    if (f->row->shape.recv == EVERYWHERE) add_buffer(f, FUZZ_RESULTS, dtype, s.rank, s.dims);
    for (int i = 0; b && i < 2 && fuzz_rarely(b, 3); i++) {
        shape more = shape_any(b);
        add_buffer(f, FUZZ_OPERANDS, FFI_U8, more.rank, more.dims);
    }
}

static void shapes_of_pack(fuzz_frame *f, fuzz_bytes *b, int packs) {
    int one = packs ? FUZZ_RESULTS : FUZZ_OPERANDS, arrays = fuzz_below(b, 4);
    int64_t lines = fuzz_below(b, 4), columns = 0;
    for (int i = 0; i < arrays; i++) {
        const int64_t dims[2] = {lines, fuzz_below(b, 4)};
        columns += dims[1];
        add_buffer(f, !one, f->dtype, 2, dims);
    }
    const int64_t dims[2] = {lines, columns};
    add_buffer(f, one, f->dtype, 2, dims);
}

static void shapes_of_exact_add(fuzz_frame *f, fuzz_bytes *b) {
    int dtype = fuzz_rarely(b, 2) ? FFI_F32 : FFI_F64, arrays = 1 + fuzz_below(b, 2);
    int64_t lines = fuzz_below(b, 4);
    const int64_t dims[2] = {lines, fuzz_below(b, 20)};
    for (int i = 0; i < arrays; i++) add_buffer(f, FUZZ_OPERANDS, dtype, 2, dims);
    exact_kind kind = arrays == 2 && dtype == FFI_F64 ? EXACT_PRODUCTS : EXACT_NUMBERS;
    add_buffer(f, FUZZ_RESULTS, FFI_S64, 2, (const int64_t[]){lines, exact_words(kind)});
}

/* Of words that no sum has made. */
static void shapes_of_exact_round(fuzz_frame *f, fuzz_bytes *b) {
    int64_t lines = fuzz_below(b, 4), words = exact_words(fuzz_rarely(b, 2) ? EXACT_NUMBERS : EXACT_PRODUCTS);
    add_buffer(f, FUZZ_OPERANDS, FFI_S64, 2, (const int64_t[]){lines, words});
    add_buffer(f, FUZZ_RESULTS, fuzz_rarely(b, 2) ? FFI_F32 : FFI_F64, 2, (const int64_t[]){lines, 1});
    add_attribute(f, "digits", FFI_ATTRIBUTE_SCALAR)->value = 1 + fuzz_below(b, 53);
    add_attribute(f, "largest", FFI_ATTRIBUTE_SCALAR)->value = fuzz_number(b);
    add_attribute(f, "lowest", FFI_ATTRIBUTE_SCALAR)->value = -fuzz_below(b, 1075);
}

/* A right call: attributes */

static int kind_fits(const char *kinds, int dtype) {
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].number == dtype) return strstr(kinds, dtypes[i].kind) != NULL;
    return 0;
}

static void reduction_choose(fuzz_frame *f, fuzz_bytes *b) {
    size_t count;
    const mpixla_reduction_row *reductions = mpixla_reduction_table(&count, NULL);
    f->reduction = fuzz_below(b, (int)count);
    if (strcmp(reductions[f->reduction].kinds, "pair") == 0) {
        f->dtype = FFI_U8;
        return;
    }
    for (int i = 0; !kind_fits(reductions[f->reduction].kinds, f->dtype); i++) f->dtype = dtypes[i].number;
}

static int64_t value_of(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b, int attribute) {
    switch (attribute) {
        case ATTRIBUTE_COMM:
            return f->comm->id;
        case ATTRIBUTE_ROOT:
            return f->root;
        case ATTRIBUTE_OP:
            return f->reduction;
        case ATTRIBUTE_BACK:
        case ATTRIBUTE_CHECKED:
        case ATTRIBUTE_REVERSE:
            return fuzz_below(b, 2);
        case ATTRIBUTE_DEST:
            return fuzz_rarely(b, 6) ? MPIXLA_PROC_NULL : fuzz_below(b, f->comm->size);
        case ATTRIBUTE_SOURCE:
            return fuzz_rarely(b, 6)   ? MPIXLA_PROC_NULL
                   : fuzz_rarely(b, 5) ? MPIXLA_ANY_SOURCE
                                       : fuzz_below(b, f->comm->size);
        case ATTRIBUTE_SENDTAG:
            return fuzz_rarely(b, 4) ? FAKE_TAG_UB : fuzz_below(b, 9);
        case ATTRIBUTE_RECVTAG:
            return fuzz_rarely(b, 4) ? MPIXLA_ANY_TAG : fuzz_below(b, 9);
        case ATTRIBUTE_STATUS:
            return fuzz_rarely(b, 3)   ? w->status
                   : fuzz_rarely(b, 3) ? MPIXLA_STATUS_RESULT
                   : fuzz_rarely(b, 3) ? MPIXLA_STATUS_NUMBERS
                                       : MPIXLA_NO_STATUS;
        default:
            return 0;
    }
}

/* As tracing writes it, or an exported program; or not at all. */
static void add_site(fuzz_frame *f, fuzz_bytes *b) {
    int kind = fuzz_below(b, 3);
    if (kind == 0) return;
    fuzz_attribute *a = add_attribute(f, "site", kind == 1 ? FFI_ATTRIBUTE_SCALAR : FFI_ATTRIBUTE_STRING);
    a->value = fuzz_below(b, 64);
    a->bytes = (size_t)snprintf(a->text, sizeof a->text, "%016llx model.py:%lld in step", (long long)a->value + 1,
                                (long long)a->value);
}

static const uint32_t are_arrays = AXES | COUNTS | FILL | LEAVES | RECVCOUNTS | SENDCOUNTS | SENDOFFSETS | WIDTH;

/* A rank becomes one that is so many steps away. */
static void shift_make(const fuzz_frame *f, fuzz_attribute *a, fuzz_bytes *b) {
    const topology *t = f->comm->topology;
    a->type = FFI_ATTRIBUTE_ARRAY;
    int dimensions = t && t->dimensions > 0 ? t->dimensions : 1, first = fuzz_below(b, dimensions);
    a->size = dimensions > 1 && fuzz_rarely(b, 4) ? 4 : 2;
    for (int i = 0; i < a->size; i += 2) {
        a->elements[i] = (first + i / 2) % dimensions;
        a->elements[i + 1] = fuzz_rarely(b, 4) ? fuzz_number(b) : fuzz_below(b, 9) - 4;
    }
}

static void add_attributes(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b) {
    size_t count;
    const char *const *names = mpixla_attribute_table(&count);
    const uint32_t windows = w->on_device ? 0
                                          : (fuzz_rarely(b, 3) ? SEND_WINDOW : 0) |
                                                (fuzz_rarely(b, 3) ? RECV_WINDOW & ~FILL : 0) |
                                                (fuzz_rarely(b, 3) ? RECV_WINDOW : 0);
    for (int i = 0; i < ATTRIBUTES; i++) {
        if (i == ATTRIBUTE_STATUS && f->row->shape.optional & STATUS) { /* of a wait */
            if (fuzz_rarely(b, 3))
                add_attribute(f, names[i], FFI_ATTRIBUTE_SCALAR)->value =
                    fuzz_rarely(b, 4) ? MPIXLA_NO_STATUS : MPIXLA_STATUS_NUMBERS;
        } else if (f->row->shape.optional >> i & 1U) {
            if (windows >> i & 1U) add_attribute(f, names[i], FFI_ATTRIBUTE_ARRAY)->size = i == ATTRIBUTE_FILL ? 2 : 0;
        } else if (i == ATTRIBUTE_SITE) {
            if (has(f->row, SITE)) add_site(f, b);
        } else if (i == ATTRIBUTE_PACKED) {
            if (has(f->row, PACKED) && fuzz_rarely(b, 4)) add_attribute(f, "packed", FFI_ATTRIBUTE_SCALAR)->value = 3;
        } else if (are_arrays & f->row->shape.attributes & 1U << i) {
            add_attribute(f, names[i], FFI_ATTRIBUTE_ARRAY)->size = i == ATTRIBUTE_FILL ? 2 : 0;
        } else if (has(f->row, 1U << i)) {
            fuzz_attribute *made = add_attribute(f, names[i], FFI_ATTRIBUTE_SCALAR);
            made->value = value_of(f, w, b, i);
            if ((i == ATTRIBUTE_DEST || i == ATTRIBUTE_SOURCE) && fuzz_rarely(b, 4)) shift_make(f, made, b);
        }
    }
}

static void add_number(fuzz_frame *f, int64_t number) {
    if (f->number_count < FUZZ_NUMBERS) f->numbers[f->number_count++] = number;
}

/* What this MPI has for the numbers of programs. */
static int64_t of_mpi(int attribute, int64_t number) {
    int is_rank = attribute == ATTRIBUTE_DEST || attribute == ATTRIBUTE_SOURCE;
    if (is_rank && number == MPIXLA_PROC_NULL) return FAKE_PROC_NULL;
    if (attribute == ATTRIBUTE_SOURCE && number == MPIXLA_ANY_SOURCE) return FAKE_ANY_SOURCE;
    return attribute == ATTRIBUTE_RECVTAG && number == MPIXLA_ANY_TAG ? FAKE_ANY_TAG : number;
}

/* Some of the call's ranks, tags and rows are known only at run time; those of an exchange together. Buffers may then
 * have more rows. */
static void put_off(fuzz_frame *f, fuzz_bytes *b) {
    static const uint32_t each = DEST | RECVTAG | SENDTAG | SOURCE,
                          rows_ = COUNTS | RECVCOUNTS | SENDCOUNTS | SENDOFFSETS;
    if ((f->row->shape.attributes & (each | rows_)) == 0 || !fuzz_rarely(b, 3)) return;
    size_t count;
    const char *const *names = mpixla_attribute_table(&count);
    int puts_off_rows = 0;
    for (int i = 0; i < ATTRIBUTES; i++) {
        fuzz_attribute *a = f->row->shape.optional >> i & 1U ? NULL : attribute_find(f, names[i]);
        int is_rows = (int)(rows_ >> i & 1U);
        if (is_rows && f->row->shape.request == MPIXLA_STARTS) continue;
        if (!a || !((each | rows_) >> i & 1U) || (!is_rows && a->type == FFI_ATTRIBUTE_ARRAY)) continue;
        if (!(is_rows && has(f->row, BACK)) && fuzz_rarely(b, 2)) continue;
        for (int k = 0; k < a->size; k++) add_number(f, a->elements[k]);
        if (!is_rows) add_number(f, of_mpi(i, a->value));
        puts_off_rows |= is_rows;
        a->type = FFI_ATTRIBUTE_STRING;
        a->bytes = (size_t)snprintf(a->text, sizeof a->text, "operand");
    }
    for (int side = 0; side < 2 && puts_off_rows; side++)
        if (f->sides[side].count > 0) f->sides[side].given[0].dims[0] += fuzz_below(b, 3);
    if (f->number_count == 0) return;
    int64_t n = f->number_count;
    add_buffer(f, FUZZ_OPERANDS, fuzz_rarely(b, 2) ? FFI_S64 : FFI_S32, 1, &n)->is_values = 1;
}

static const fuzz_request *request_choose(const fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b) {
    int gives_array = f->row->shape.recv == EVERYWHERE, first = fuzz_below(b, w->request_count + 1);
    for (int i = first; i < w->request_count; i++)
        if ((w->requests[i].dtype != 0) == gives_array && (f->changes > 0 || w->requests[i].is_sure))
            return &w->requests[i];
    return NULL;
}

/* A box of the array. */
static void window_choose(fuzz_frame *f, fuzz_bytes *b, const char *begin, const char *size, const shape *array) {
    fuzz_attribute *from = attribute_find(f, begin), *of = attribute_find(f, size);
    if (!from) return;
    from->size = of->size = array->rank;
    for (int i = 0; i < array->rank; i++) {
        from->elements[i] = fuzz_below(b, (int)array->dims[i] + 1);
        of->elements[i] = fuzz_below(b, (int)(array->dims[i] - from->elements[i]) + 1);
    }
    if (array->rank == 0 && attribute_find(f, "fill")) attribute_find(f, "fill")->size = 0;
}

/* The status as numbers, if the call is to give it so. */
static void numbers_add(fuzz_frame *f, fuzz_bytes *b) {
    const fuzz_attribute *status = attribute_find(f, "status");
    const int64_t numbers[] = {3};
    if (status && status->value == MPIXLA_STATUS_NUMBERS)
        add_buffer(f, FUZZ_RESULTS, fuzz_rarely(b, 2) ? FFI_S64 : FFI_S32, 1, numbers);
}

static void shapes_of_plain(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b) {
    const frame_shape *s = &f->row->shape;
    shape one = shape_any(b), more = shape_of(f->comm->size, one), send = one, recv = one;
    int recv_dtype = f->dtype;
    if (has(f->row, OP) && f->dtype == FFI_U8 && f->reduction >= 10) { /* pairs */
        static const int64_t sizes[] = {2, 3, 4, 5, 6, 8, 9, 10, 12, 16};
        if (one.rank == 0) one.rank = 1;
        one.dims[one.rank - 1] = sizes[fuzz_below(b, 10)];
        send = recv = one;
        more = shape_of(f->comm->size, one);
    }
    if (s->counts == GATHERED) recv = more;
    if (s->counts == SCATTERED) send = more;
    if (s->counts == DIVIDED) send = recv = more;
    if (s->counts == FREE && has(f->row, DEST) && has(f->row, SOURCE)) {
        recv = shape_any(b);
        recv_dtype = dtypes[fuzz_below(b, DTYPES)].number;
    }
    place_buffers(f, send, recv, recv, f->dtype, recv_dtype);
    window_choose(f, b, "sendbegin", "sendsize", &send);
    window_choose(f, b, "recvbegin", "recvsize", &recv);
    if (attribute_find(f, "recvbegin") && recv.rank > 0 && !fuzz_rarely(b, 4))
        f->sides[FUZZ_RESULTS].given[0].same_as = f->sides[FUZZ_OPERANDS].count;
    if (s->request == MPIXLA_STARTS && (has(f->row, SOURCE) || !has(f->row, DEST)) &&
        (s->send != NOWHERE || s->template_ != NOWHERE)) /* no barrier */
        gives(f, recv_dtype, s->pattern == TO_ROOT && !is_here(ON_ROOT, f) ? send : recv);
    fuzz_attribute *status = attribute_find(f, "status");
    if (status && status->value == MPIXLA_STATUS_RESULT) {
        const int64_t bytes[] = {64};
        add_buffer(f, FUZZ_RESULTS, FFI_U8, 1, bytes);
    }
    numbers_add(f, b);
    if (!(s->attributes & IN_PLACE)) return;
    int operands = f->sides[FUZZ_OPERANDS].count, results = f->sides[FUZZ_RESULTS].count;
    if (results == 1 && operands == 0 && fuzz_rarely(b, 2)) {
        add_buffer(f, FUZZ_OPERANDS, f->dtype, recv.rank, recv.dims);
        operands = 1;
        f->sides[FUZZ_RESULTS].given[0].same_as = 1;
    } else if (results == 1 && operands == 1 && fuzz_rarely(b, 2)) {
        f->sides[FUZZ_RESULTS].given[0].same_as = 1;
    }
    (void)w;
}

static void add_tokens(fuzz_frame *f, fuzz_bytes *b);

/* One that has what the row needs. */
static const fuzz_comm *comm_choose(const fuzz_row *row, const fuzz_world *w, fuzz_bytes *b) {
    int first = fuzz_below(b, w->alive);
    for (int i = 0; i < w->alive; i++) {
        const fuzz_comm *c = &w->comms[(first + i) % w->alive];
        int fits = has(row, WIDTH)  ? c->topology && c->topology->dimensions >= 0
                   : has(row, BACK) ? c->topology != NULL
                                    : 1;
        if (fits) return c;
    }
    return &w->comms[first];
}

static void right(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b) {
    f->row = &rows[fuzz_below(b, ROWS)];
    f->comm = comm_choose(f->row, w, b);
    f->root = fuzz_below(b, f->comm->size);
    f->dtype = dtypes[fuzz_below(b, DTYPES)].number;
    if (has(f->row, OP)) reduction_choose(f, b);
    add_attributes(f, w, b);
    frame_counts counts = f->row->shape.counts;
    if (strcmp(f->row->name, "order") == 0) {
        int64_t items = fuzz_below(b, 5);
        add_buffer(f, FUZZ_OPERANDS, f->dtype, 1, &items);
        if (fuzz_rarely(b, 2)) add_buffer(f, FUZZ_RESULTS, f->dtype, 1, &items)->same_as = 1;
    } else if (strcmp(f->row->name, "rank") == 0) {
        add_attribute(f, "comm", FFI_ATTRIBUTE_SCALAR)->value = f->comm->id;
        shift_make(f, add_attribute(f, "shift", FFI_ATTRIBUTE_ARRAY), b);
        if (fuzz_rarely(b, 2)) attribute_find(f, "shift")->size = 0;
        add_buffer(f, FUZZ_RESULTS, FFI_S32, 0, NULL);
        return;
    } else if (strcmp(f->row->name, "exact_add") == 0) {
        shapes_of_exact_add(f, b);
        return;
    } else if (strcmp(f->row->name, "exact_round") == 0) {
        shapes_of_exact_round(f, b);
        return;
    } else if (!f->row->shape.mpi_name) {
        shapes_of_pack(f, b, strcmp(f->row->name, "pack") == 0);
        return; /* it takes no tokens */
    } else if (f->row->shape.request == MPIXLA_WAITS) {
        shapes_of_wait(f, b, request_choose(f, w, b));
        numbers_add(f, b);
    } else if (has(f->row, LEAVES)) {
        shapes_of_leaves(f, b);
    } else if (counts == MANY) {
        shapes_of_halo(f, b);
    } else if (has(f->row, BACK)) {
        shapes_of_exchange(f, b);
    } else if (counts == GATHERED_ROWS || counts == SCATTERED_ROWS || counts == EXCHANGED_ROWS) {
        shapes_of_rows(f, b, shape_any(b));
    } else {
        shapes_of_plain(f, w, b);
    }
    put_off(f, b);
    add_tokens(f, b);
}

/* Changes */

static void insert_buffer(fuzz_frame *f, int side, int at, fuzz_buffer given) {
    struct fuzz_side *s = &f->sides[side];
    if (s->count == FUZZ_BUFFERS) return;
    memmove(&s->given[at + 1], &s->given[at], (size_t)(s->count - at) * sizeof given);
    s->given[at] = given;
    s->count++;
    for (int i = 0; side == FUZZ_OPERANDS && i < f->sides[FUZZ_RESULTS].count; i++)
        if (f->sides[FUZZ_RESULTS].given[i].same_as > at) f->sides[FUZZ_RESULTS].given[i].same_as++;
}

static void add_tokens(fuzz_frame *f, fuzz_bytes *b) {
    for (int side = 0; side < 2; side++)
        while (fuzz_rarely(b, 3) && f->sides[side].count < FUZZ_BUFFERS - 2)
            insert_buffer(f, side, fuzz_below(b, f->sides[side].count + 1),
                          (fuzz_buffer){.dtype = FFI_TOKEN, .kind = FFI_KIND_BUFFER, .no_data = 1});
}

static fuzz_buffer *buffer_choose(fuzz_frame *f, fuzz_bytes *b) {
    int operands = f->sides[0].count, all = operands + f->sides[1].count;
    if (all == 0) return NULL;
    int i = fuzz_below(b, all);
    return i < operands ? &f->sides[0].given[i] : &f->sides[1].given[i - operands];
}

static int dtype_any(fuzz_bytes *b) {
    return fuzz_rarely(b, 3) ? (int)fuzz_number(b) : fuzz_below(b, 40);
}

static void change_buffers(fuzz_frame *f, fuzz_bytes *b) {
    int side = fuzz_below(b, 2);
    struct fuzz_side *s = &f->sides[side];
    fuzz_buffer *chosen = buffer_choose(f, b), other;
    int at = fuzz_below(b, s->count + 1), from = s->count > 0 ? fuzz_below(b, s->count) : 0;
    switch (fuzz_below(b, 12)) {
        case 0:
            if (from == s->count) return;
            memmove(&s->given[from], &s->given[from + 1], (size_t)(--s->count - from) * sizeof *s->given);
            return;
        case 1:
            other = (fuzz_buffer){.dtype = dtype_any(b), .kind = FFI_KIND_BUFFER, .rank = fuzz_below(b, FUZZ_AXES)};
            for (int i = 0; i < other.rank; i++) other.dims[i] = fuzz_below(b, 4);
            insert_buffer(f, side, at, other);
            return;
        case 2:
            if (s->count < 2) return;
            other = s->given[from];
            at = fuzz_below(b, s->count);
            s->given[from] = s->given[at];
            s->given[at] = other;
            return;
        case 3:
            if (chosen) chosen->dtype = dtype_any(b);
            return;
        case 4:
            if (chosen) chosen->dtype = FFI_TOKEN;
            return;
        case 5:
            if (chosen) chosen->no_data = 1;
            return;
        case 6:
            if (chosen) chosen->kind = fuzz_below(b, 4);
            return;
        case 7:
            if (chosen) chosen->rank = fuzz_below(b, FUZZ_AXES + 3) - 2;
            if (chosen && chosen->rank > FUZZ_AXES) chosen->rank = INT64_MIN;
            return;
        case 8:
            if (chosen) chosen->no_dims = 1;
            return;
        case 9:
            if (chosen && f->sides[0].count > 0 && has(f->row, IN_PLACE))
                chosen->same_as = 1 + fuzz_below(b, f->sides[0].count);
            return;
        default:
            if (chosen && chosen->rank > 0) chosen->dims[fuzz_below(b, (int)chosen->rank)] = fuzz_number(b);
    }
}

static void insert_attribute(fuzz_frame *f, int at, fuzz_attribute given) {
    if (f->attribute_count == FUZZ_ATTRIBUTES) return;
    memmove(&f->attributes[at + 1], &f->attributes[at], (size_t)(f->attribute_count - at) * sizeof given);
    f->attributes[at] = given;
    f->attribute_count++;
}

static fuzz_attribute attribute_any(fuzz_bytes *b) {
    size_t count;
    const char *const *names = mpixla_attribute_table(&count);
    fuzz_attribute made = {.type = fuzz_rarely(b, 4) ? fuzz_below(b, 6) : FFI_ATTRIBUTE_SCALAR,
                           .dtype = fuzz_rarely(b, 4) ? dtype_any(b) : FFI_S64,
                           .value = fuzz_number(b),
                           .size = fuzz_below(b, FUZZ_ELEMENTS + 1)};
    snprintf(made.name, sizeof made.name, "%s", fuzz_rarely(b, 3) ? "" : names[fuzz_below(b, (int)count)]);
    if (fuzz_rarely(b, 4)) made.name[fuzz_below(b, 8)] = (char)fuzz_take(b, 1);
    for (int i = 0; i < made.size; i++) made.elements[i] = fuzz_number(b);
    return made;
}

/* What an exported program could write: digits, a blank, and anything; or nothing of the kind. */
static void change_site(fuzz_frame *f, fuzz_bytes *b) {
    fuzz_attribute *a = attribute_find(f, "site");
    if (!a) return;
    a->type = FFI_ATTRIBUTE_STRING;
    a->bytes = (size_t)(fuzz_take(b, 2) % FUZZ_TEXT);
    for (size_t i = 0; i < a->bytes; i++) a->text[i] = (char)fuzz_take(b, 1);
    if (fuzz_rarely(b, 4)) return;
    for (size_t i = 0; i < a->bytes && i < 16; i++) a->text[i] = "0123456789abcdef"[i < 12 ? 0 : fuzz_below(b, 16)];
    if (a->bytes > 16) a->text[16] = ' ';
}

static void change_attributes(fuzz_frame *f, fuzz_bytes *b) {
    int n = f->attribute_count, i = n > 0 ? fuzz_below(b, n) : 0, k;
    fuzz_attribute *a = &f->attributes[i], other;
    int choice = fuzz_below(b, 10);
    if (n == 0 && choice != 1) return;
    switch (choice) {
        case 0:
            memmove(a, a + 1, (size_t)(--f->attribute_count - i) * sizeof *a);
            return;
        case 1:
            insert_attribute(f, fuzz_below(b, n + 1), attribute_any(b));
            return;
        case 2:
            k = fuzz_below(b, n);
            other = *a;
            *a = f->attributes[k];
            f->attributes[k] = other;
            return;
        case 3:
            a->type = fuzz_below(b, 6);
            return;
        case 4:
            a->dtype = dtype_any(b);
            return;
        case 5:
            change_site(f, b);
            return;
        case 6:
            a->size = fuzz_below(b, FUZZ_ELEMENTS + 1);
            return;
        default:
            if (a->type == FFI_ATTRIBUTE_ARRAY && a->size > 0)
                a->elements[fuzz_below(b, (int)a->size)] = fuzz_number(b);
            else
                a->value = fuzz_number(b);
    }
}

static void change_number(fuzz_frame *f, fuzz_bytes *b) {
    if (f->number_count > 0) f->numbers[fuzz_below(b, f->number_count)] = fuzz_number(b);
}

static void change_id(fuzz_frame *f, fuzz_bytes *b) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, -1.F, -0.F, 0.5F, 1.F, 2.F, 16777216.F, 3e38F, 1e-40F, 7.F};
    for (int i = 0; i < 2; i++)
        if (fuzz_rarely(b, 2)) f->id[i] = odd[fuzz_below(b, sizeof odd / sizeof odd[0])];
}

/* Gives the call another operation. Of operations without IN_PLACE XLA never puts a result into an operand's memory. */
static void change_row(fuzz_frame *f, fuzz_bytes *b) {
    f->row = &rows[fuzz_below(b, ROWS)];
    for (int i = 0; i < f->sides[FUZZ_RESULTS].count && !has(f->row, IN_PLACE); i++)
        f->sides[FUZZ_RESULTS].given[i].same_as = 0;
}

static void change(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b) {
    switch (fuzz_below(b, 9)) {
        case 8:
            change_number(f, b);
            return;
        case 0:
            if (attribute_find(f, "comm"))
                attribute_find(f, "comm")->value =
                    fuzz_rarely(b, 2) ? fuzz_number(b) : w->comms[fuzz_below(b, w->comm_count)].id;
            return;
        case 1:
            if (f->row->shape.request == MPIXLA_WAITS)
                change_id(f, b);
            else
                change_row(f, b);
            return;
        case 2:
        case 3:
        case 4:
            change_attributes(f, b);
            return;
        default:
            change_buffers(f, b);
    }
}

/* XLA's structs, and memory */

int fuzz_itemsize(int dtype) {
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].number == dtype) return dtypes[i].bytes;
    return 0;
}

/* What the shape says; -1 if it is none. */
static int64_t bytes_of(const fuzz_buffer *g) {
    int64_t bytes = fuzz_itemsize(g->dtype);
    if (bytes == 0 || g->rank < 0 || (g->rank > 0 && g->no_dims)) return -1;
    for (int i = 0; i < g->rank; i++)
        if (g->dims[i] < 0 || __builtin_mul_overflow(bytes, g->dims[i], &bytes)) return -1;
    return bytes;
}

/* Whether a handler of the row copies nothing itself: such calls may be too large to be copied. */
static int copies_nothing(const fuzz_frame *f, const fuzz_world *w) {
    const frame_shape *s = &f->row->shape;
    return s->mpi_name && s->request == MPIXLA_COMPLETES && s->counts != MANY && s->template_ == NOWHERE &&
           !has(f->row, BACK) && !has(f->row, DEST) && !f->row->shape.optional && f->number_count == 0 && !w->on_device;
}

static void memory_get(fuzz_frame *f, const fuzz_world *w, int side, int i) {
    fuzz_buffer *g = &f->sides[side].given[i];
    g->bytes = bytes_of(g);
    if (g->same_as > f->sides[FUZZ_OPERANDS].count || (side == FUZZ_OPERANDS && g->same_as > i)) g->same_as = 0;
    if (g->same_as > 0) {
        const fuzz_buffer *other = &f->sides[FUZZ_OPERANDS].given[g->same_as - 1];
        if (other->bytes == g->bytes) {
            g->data = other->data;
            return;
        }
    }
    if (g->no_data || g->dtype == FFI_TOKEN) return;
    if (g->bytes > FUZZ_LARGE) { /* nobody has so much memory: but where it is only passed on, it may be pretended */
        g->data = w->vast && g->bytes <= FUZZ_VAST && copies_nothing(f, w) ? w->vast : NULL;
        return;
    }
    /* Under no shape there is a little memory, which nobody may use: it has no size. */
    size_t bytes = g->bytes < 0 ? 1 : (size_t)g->bytes;
    g->data = w->get(bytes);
    g->is_own = 1;
    if (g->bytes > 0 && g->data) memset(w->reach(g->data), 1, (size_t)g->bytes);
}

static void numbers_write(const fuzz_frame *f, const fuzz_world *w, const fuzz_buffer *g) {
    int size = g->dtype == FFI_S64 ? 8 : 4;
    if (!g->is_values || !g->data || (g->dtype != FFI_S64 && g->dtype != FFI_S32)) return;
    char *to = w->reach(g->data);
    for (int64_t i = 0; i < f->number_count && (i + 1) * size <= g->bytes; i++) {
        int32_t narrow = (int32_t)f->numbers[i];
        memcpy(to + i * size, size == 8 ? (const void *)&f->numbers[i] : &narrow, (size_t)size);
    }
}

/* Returns how many rows as long as an operand's have FUZZ_LARGE bytes; 0 if one has more. */
static int64_t rows_most(const fuzz_buffer *operand) {
    int64_t bytes = fuzz_itemsize(operand->dtype) > 0 ? fuzz_itemsize(operand->dtype) : 1;
    for (int i = 1; i < operand->rank && !operand->no_dims; i++)
        if (operand->dims[i] > 0 && __builtin_mul_overflow(bytes, operand->dims[i], &bytes)) return 0;
    return FUZZ_LARGE / bytes;
}

/* Makes a request receive no more rows than there is memory for: without memory its call ends the job. */
static void received_rows_limit(fuzz_frame *f) {
    fuzz_attribute *a = attribute_find(f, "recvcounts");
    if (!a || f->row->shape.request != MPIXLA_STARTS) return;
    for (int k = 0; k < f->sides[FUZZ_OPERANDS].count && a->size > 0; k++) {
        const int64_t most = rows_most(&f->sides[FUZZ_OPERANDS].given[k]) / a->size; /* from each rank */
        for (int i = 0; i < a->size; i++)
            if (a->elements[i] > most) a->elements[i] = most;
    }
}

static void finish(fuzz_frame *f, const fuzz_world *w) {
    received_rows_limit(f);
    for (int side = 0; side < 2; side++) {
        struct fuzz_side *s = &f->sides[side];
        for (int i = 0; i < s->count; i++) {
            fuzz_buffer *g = &s->given[i];
            memory_get(f, w, side, i);
            numbers_write(f, w, g);
            s->types[i] = g->kind;
            s->pointers[i] = &s->buffers[i];
            s->buffers[i] = (ffi_buffer){.struct_size = sizeof(ffi_buffer),
                                         .dtype = g->dtype,
                                         .data = g->data,
                                         .rank = g->rank,
                                         .dims = g->no_dims || g->rank == 0 ? NULL : g->dims};
        }
        ffi_buffers *all = side == FUZZ_OPERANDS ? &f->frame.args : &f->frame.rets;
        *all = (ffi_buffers){.struct_size = sizeof *all, .size = s->count, .types = s->types, .buffers = s->pointers};
    }
    const fuzz_buffer *first = &f->sides[FUZZ_OPERANDS].given[0];
    for (int i = 0; f->row->shape.request == MPIXLA_WAITS && i < f->sides[FUZZ_OPERANDS].count; i++, first++) {
        if (first->dtype == FFI_TOKEN) continue;
        if (first->data && first->bytes >= (int64_t)sizeof f->id) memcpy(w->reach(first->data), f->id, sizeof f->id);
        break;
    }
    for (int i = 0; i < f->attribute_count; i++) {
        fuzz_attribute *a = &f->attributes[i];
        f->names[i] = (ffi_bytes){.ptr = a->name, .len = strlen(a->name)};
        f->types[i] = a->type;
        f->name_pointers[i] = &f->names[i];
        f->value_pointers[i] = &f->values[i];
        if (a->type == FFI_ATTRIBUTE_ARRAY)
            f->values[i].array =
                (ffi_array){.dtype = a->dtype, .size = (size_t)a->size, .data = a->size > 0 ? a->elements : NULL};
        else if (a->type == FFI_ATTRIBUTE_STRING)
            f->values[i].text = (ffi_bytes){.ptr = a->text, .len = a->bytes};
        else
            f->values[i].scalar = (ffi_scalar){.dtype = a->dtype, .value = &a->value};
    }
    f->frame.attrs = (ffi_attributes){.struct_size = sizeof f->frame.attrs,
                                      .size = f->attribute_count,
                                      .types = f->types,
                                      .names = f->name_pointers,
                                      .values = f->value_pointers};
}

static void clear(fuzz_frame *f) {
    memset(f, 0, sizeof *f);
    f->frame.struct_size = sizeof f->frame;
    f->frame.api = &f->api;
    f->frame.stage = FFI_STAGE_EXECUTE;
    f->api.struct_size = sizeof f->api;
}

void fuzz_frame_make(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b, int changes) {
    clear(f);
    f->changes = fuzz_below(b, changes + 1);
    right(f, w, b);
    for (int i = 0; i < f->changes; i++) change(f, w, b);
    finish(f, w);
}

void fuzz_frame_wait(fuzz_frame *f, const fuzz_world *w, const fuzz_request *r) {
    fuzz_bytes none = {0};
    clear(f);
    f->row = fuzz_row_find(r->dtype ? "wait" : "wait_send");
    f->comm = r->nameless_on ? r->nameless_on : &w->comms[0];
    add_attributes(f, w, &none);
    shapes_of_wait(f, &none, r);
    finish(f, w);
}

void fuzz_frame_drop(fuzz_frame *f, const fuzz_world *w) {
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < f->sides[side].count; i++)
            if (f->sides[side].given[i].is_own) w->give_back(f->sides[side].given[i].data);
}

void fuzz_frame_print(const fuzz_frame *f) {
    fprintf(stderr, "  %s on rank %d of %d of communicator %lld, %d changes\n", f->row->name, f->comm->rank,
            f->comm->size, (long long)f->comm->id, f->changes);
    for (int i = 0; i < f->attribute_count; i++) {
        const fuzz_attribute *a = &f->attributes[i];
        fprintf(stderr, "  %s (type %d of %d) = %lld [", a->name, a->type, a->dtype, (long long)a->value);
        for (int k = 0; k < a->size; k++) fprintf(stderr, " %lld", (long long)a->elements[k]);
        fprintf(stderr, " ]\n");
    }
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < f->sides[side].count; i++) {
            const fuzz_buffer *g = &f->sides[side].given[i];
            fprintf(stderr, "  %s %d: kind %d dtype %d, %s, %lld bytes, as operand %d, axes %lld:",
                    side == FUZZ_OPERANDS ? "operand" : "result", i, g->kind, g->dtype, g->data ? "data" : "no data",
                    (long long)g->bytes, g->same_as - 1, (long long)g->rank);
            for (int k = 0; k < g->rank && k < FUZZ_AXES; k++) fprintf(stderr, " %lld", (long long)g->dims[k]);
            fprintf(stderr, "\n");
        }
}
