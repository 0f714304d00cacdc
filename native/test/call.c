#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE MPIXLA_NOWHERE
#define EVERYWHERE MPIXLA_EVERYWHERE
#define ON_ROOT MPIXLA_ON_ROOT
#define OFF_ROOT MPIXLA_OFF_ROOT

struct ffi_error {
    int code;
    char message[CALL_MESSAGE];
};

/* As XLA's: the message is copied. One at a time in each thread, as call_run takes it at once. */
static ffi_error *error_create(ffi_error_create_args *args) {
    static _Thread_local ffi_error error;
    error.code = args->code;
    snprintf(error.message, sizeof error.message, "%s", args->message);
    return args->struct_size == sizeof *args ? &error : NULL;
}

const char *call_error_message(const ffi_error *error) {
    return error->message;
}

const frame_shape *call_shape(const char *op) {
    static const struct {
        const char *name;
        frame_shape shape;
    } rows[] = {
#define MPIXLA_OP(name, host, device, shape, call, nccl) {#name, {.op_name = #name, shape}},
#include "tables/ops.def"
#undef MPIXLA_OP
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, op) == 0) return &rows[i].shape;
    fprintf(stderr, "there is no operation %s\n", op);
    exit(2);
}

ffi_handler *call_helper_handler(const char *name) {
    size_t rows;
    const mpixla_helper_row *table = mpixla_helper_table(&rows, NULL);
    for (size_t i = 0; i < rows; i++)
        if (strcmp(table[i].name, name) == 0) return (ffi_handler *)table[i].host_handler;
    return NULL;
}

ffi_handler *call_handler(const char *op) {
    size_t rows;
    const mpixla_op_row *table = mpixla_op_table(&rows, NULL);
    for (size_t i = 0; i < rows; i++)
        if (strcmp(table[i].name, op) == 0) return (ffi_handler *)table[i].host_handler;
    return NULL;
}

void call_insert(call *c, int side, int position, int dtype, int64_t count, void *data) {
    struct call_side *s = &c->sides[side];
    ffi_buffers *buffers = side == CALL_OPERANDS ? &c->frame.args : &c->frame.rets;
    for (int64_t i = buffers->size++; i > position; i--) {
        s->buffers[i] = s->buffers[i - 1];
        s->buffers[i].dims = s->dims[i];
        s->dims[i][0] = s->dims[i - 1][0];
    }
    s->dims[position][0] = count;
    s->buffers[position] = (ffi_buffer){
        .struct_size = sizeof(ffi_buffer), .dtype = dtype, .data = data, .rank = 1, .dims = s->dims[position]};
}

void call_remove(call *c, int side, int position) {
    struct call_side *s = &c->sides[side];
    ffi_buffers *buffers = side == CALL_OPERANDS ? &c->frame.args : &c->frame.rets;
    buffers->size--;
    for (int64_t i = position; i < buffers->size; i++) {
        s->buffers[i] = s->buffers[i + 1];
        s->buffers[i].dims = s->dims[i];
        s->dims[i][0] = s->dims[i + 1][0];
    }
}

void call_count_set(call *c, int side, int position, int64_t count) {
    c->sides[side].dims[position][0] = count;
}

void call_dtype_set(call *c, int side, int position, int dtype) {
    c->sides[side].buffers[position].dtype = dtype;
}

static ffi_bytes bytes_of(const char *name) {
    return (ffi_bytes){.ptr = name, .len = strlen(name)};
}

static void attribute_move(call *c, int64_t from, int64_t to) {
    int type = c->attributes.types[to] = c->attributes.types[from];
    c->attributes.names[to] = c->attributes.names[from];
    c->attributes.values[to] = c->attributes.values[from];
    c->attributes.value_pointers[to] =
        type == FFI_ATTRIBUTE_SCALAR ? &c->attributes.scalars[to] : c->attributes.value_pointers[from];
}

void call_attribute_insert(call *c, int position, const char *name, int64_t value) {
    for (int64_t i = c->frame.attrs.size++; i > position; i--) attribute_move(c, i - 1, i);
    c->attributes.names[position] = bytes_of(name);
    c->attributes.values[position] = value;
    c->attributes.types[position] = FFI_ATTRIBUTE_SCALAR;
    c->attributes.value_pointers[position] = &c->attributes.scalars[position];
}

void call_attribute_remove(call *c, int position) {
    c->frame.attrs.size--;
    for (int64_t i = position; i < c->frame.attrs.size; i++) attribute_move(c, i + 1, i);
}

void call_site_set(call *c, int64_t site, const char *text) {
    int i = 0;
    while (i < c->frame.attrs.size && strcmp(c->attributes.names[i].ptr, "site") < 0) i++;
    call_attribute_insert(c, i, "site", site);
    if (!text) return;
    c->attributes.site = bytes_of(text);
    c->attributes.types[i] = FFI_ATTRIBUTE_STRING;
    c->attributes.value_pointers[i] = &c->attributes.site;
}

/* The place of the attribute. */
static int attribute_find(const call *c, const char *name) {
    for (int i = 0; i < c->frame.attrs.size; i++)
        if (strcmp(c->attributes.names[i].ptr, name) == 0) return i;
    fprintf(stderr, "the call has no attribute %s\n", name);
    exit(2);
}

void call_attribute_set(call *c, const char *name, int64_t value) {
    c->attributes.values[attribute_find(c, name)] = value;
}

void call_array_set(call *c, int attribute, size_t size, const int64_t *elements) {
    c->attributes.arrays[attribute] =
        (ffi_array){.dtype = FFI_S64, .size = size, .data = c->attributes.elements[attribute]};
    memcpy(c->attributes.elements[attribute], elements, size * sizeof *elements);
}

void call_list_set(call *c, const char *name, const int64_t *items, size_t size) {
    *(ffi_array *)c->attributes.value_pointers[attribute_find(c, name)] =
        (ffi_array){.dtype = FFI_S64, .size = size, .data = (void *)(uintptr_t)items};
}

void call_list_insert(call *c, int attribute, const int64_t *items, size_t size) {
    size_t rows;
    const char *name = mpixla_attribute_table(&rows)[attribute];
    int i = 0;
    while (i < c->frame.attrs.size && strcmp(c->attributes.names[i].ptr, name) < 0) i++;
    call_attribute_insert(c, i, name, 0);
    c->attributes.types[i] = FFI_ATTRIBUTE_ARRAY;
    c->attributes.value_pointers[i] = &c->attributes.arrays[attribute];
    c->attributes.arrays[attribute] = (ffi_array){.dtype = FFI_S64, .size = size, .data = (void *)(uintptr_t)items};
}

void call_shift_set(call *c, const char *name, int64_t direction, int64_t disp) {
    int i = attribute_find(c, name), attribute = strcmp(name, "dest") == 0 ? ATTRIBUTE_DEST : ATTRIBUTE_SOURCE;
    c->attributes.types[i] = FFI_ATTRIBUTE_ARRAY;
    c->attributes.value_pointers[i] = &c->attributes.arrays[attribute];
    call_array_set(c, attribute, 2, (const int64_t[]){direction, disp});
}

void call_put_off(call *c, const char *name) {
    int i = attribute_find(c, name);
    c->attributes.operand = bytes_of("operand");
    c->attributes.types[i] = FFI_ATTRIBUTE_STRING;
    c->attributes.value_pointers[i] = &c->attributes.operand;
}

/* Neighbours */

enum { COMMS = 64 };
static struct {
    topology topology;
    int64_t ranks[2][CALL_EDGES], tags[2][CALL_EDGES];
    int sizes[CALL_RANKS], periods[CALL_RANKS], place[CALL_RANKS];
} neighbours[COMMS];

static topology *topology_of(int64_t comm, int dimensions) {
    comm_entry *entry = comm >= 0 && comm < COMMS ? comm_find_any(comm) : NULL;
    if (!entry) return NULL;
    topology *t = &neighbours[comm].topology;
    t->dimensions = dimensions;
    entry->topology = t;
    return t;
}

void call_edges_set(int64_t comm, int sending, int64_t number, const int64_t *ranks, const int64_t *tags) {
    topology *t = topology_of(comm, -1);
    if (!t) return;
    int64_t *own = neighbours[comm].ranks[sending], *own_tags = neighbours[comm].tags[sending];
    for (int64_t i = 0; i < number; i++) {
        own[i] = ranks[i];
        own_tags[i] = tags[i];
    }
    *(sending ? &t->dests : &t->sources) = (topology_slots){.number = number, .ranks = own, .tags = own_tags};
}

void call_grid_set(int64_t comm, int dimensions, const int64_t *low, const int64_t *high) {
    int64_t ranks[CALL_EDGES], tags[2][CALL_EDGES];
    for (int64_t i = 0; i < 2 * (int64_t)dimensions; i++) {
        ranks[i] = i % 2 ? high[i / 2] : low[i / 2];
        tags[0][i] = i ^ 1;
        tags[1][i] = i;
    }
    for (int sending = 0; sending < 2; sending++)
        call_edges_set(comm, sending, 2 * (int64_t)dimensions, ranks, tags[sending]);
    topology *t = topology_of(comm, dimensions);
    if (!t) return;
    const comm_entry *entry = comm_find_any(comm);
    for (int d = 0; d < dimensions; d++) {
        neighbours[comm].sizes[d] = d == 0 ? entry->size : 1;
        neighbours[comm].periods[d] = 1;
        neighbours[comm].place[d] = d == 0 ? entry->rank : 0;
    }
    t->sizes = neighbours[comm].sizes;
    t->periods = neighbours[comm].periods;
    t->place = neighbours[comm].place;
}

/* As many rows for each rank. */
static void array_append(call *c, int attribute, const char *name, int size) {
    static const int64_t rows[CALL_RANKS] = {CALL_COUNT, CALL_COUNT, CALL_COUNT, CALL_COUNT};
    int last = (int)c->frame.attrs.size;
    call_attribute_insert(c, last, name, 0);
    c->attributes.types[last] = FFI_ATTRIBUTE_ARRAY;
    c->attributes.value_pointers[last] = &c->attributes.arrays[attribute];
    call_array_set(c, attribute, (size_t)size, rows);
}

static void call_clear(call *c) {
    memset(c, 0, sizeof *c);
    c->api = (ffi_api){.struct_size = sizeof c->api, .error_create = error_create};
    c->frame.struct_size = offsetof(ffi_call_frame, future); /* as jaxlib says */
    c->frame.api = &c->api;
    c->frame.stage = FFI_STAGE_EXECUTE;
    for (int i = 0; i < CALL_SLOTS; i++) {
        for (int side = 0; side < 2; side++) {
            c->sides[side].types[i] = FFI_KIND_BUFFER;
            c->sides[side].pointers[i] = &c->sides[side].buffers[i];
        }
        c->attributes.types[i] = FFI_ATTRIBUTE_SCALAR;
        c->attributes.scalars[i] = (ffi_scalar){.dtype = FFI_S64, .value = &c->attributes.values[i]};
        c->attributes.name_pointers[i] = &c->attributes.names[i];
        c->attributes.value_pointers[i] = &c->attributes.scalars[i];
    }
    c->frame.args =
        (ffi_buffers){.struct_size = sizeof(ffi_buffers), .types = c->sides[0].types, .buffers = c->sides[0].pointers};
    c->frame.rets =
        (ffi_buffers){.struct_size = sizeof(ffi_buffers), .types = c->sides[1].types, .buffers = c->sides[1].pointers};
    c->frame.attrs = (ffi_attributes){.struct_size = sizeof(ffi_attributes),
                                      .types = c->attributes.types,
                                      .names = c->attributes.name_pointers,
                                      .values = c->attributes.value_pointers};
}

void call_make(call *c, const char *op, int64_t comm, int64_t root) {
    static const int64_t values[ATTRIBUTES] = {[ATTRIBUTE_DEST] = 1,
                                               [ATTRIBUTE_SENDTAG] = 7,
                                               [ATTRIBUTE_SOURCE] = 2,
                                               [ATTRIBUTE_RECVTAG] = 8,
                                               [ATTRIBUTE_STATUS] = MPIXLA_NO_STATUS};
    const frame_shape *shape = call_shape(op);
    call_clear(c);
    c->handler = call_handler(op);
    size_t rows;
    const char *const *names = mpixla_attribute_table(&rows);
    const comm_entry *entry = comm_find(comm);
    int size = entry ? entry->size : 1, on_root = entry ? entry->rank == root : root == 0;
    for (int i = 0; i < ATTRIBUTES; i++)
        if (1 << i & (AXES | COUNTS | FILL | LEAVES | RECVCOUNTS | SENDCOUNTS | SENDOFFSETS | WIDTH) &
            shape->attributes & ~shape->optional)
            array_append(c, i, names[i], size);
        else if ((shape->attributes & ~shape->optional) >> i & 1)
            call_attribute_insert(c, (int)c->frame.attrs.size, names[i],
                                  i == ATTRIBUTE_COMM   ? comm
                                  : i == ATTRIBUTE_ROOT ? root
                                                        : values[i]);

    /* Of an exchange and of a halo; a fill; the number of a name. The others are rows of each rank. */
    static const struct {
        uint32_t of;
        size_t size;
        int64_t elements[2];
    } lists[ATTRIBUTES] = {[ATTRIBUTE_SENDCOUNTS] = {BACK, 2, {1, 2}},  [ATTRIBUTE_RECVCOUNTS] = {BACK, 2, {2, 1}},
                           [ATTRIBUTE_SENDOFFSETS] = {BACK, 2, {0, 1}}, [ATTRIBUTE_AXES] = {AXES, 1, {0}},
                           [ATTRIBUTE_WIDTH] = {AXES, 1, {1}},          [ATTRIBUTE_FILL] = {FILL, 2, {0, 0}},
                           [ATTRIBUTE_LEAVES] = {LEAVES, 1, {5}}};
    static const int64_t one_two[] = {1, 2}, two_one[] = {2, 1}, sendtags[] = {3, 4}, recvtags[] = {5, 6};
    for (int i = 0; i < ATTRIBUTES; i++)
        if (shape->attributes & lists[i].of && c->attributes.arrays[i].data)
            call_array_set(c, i, lists[i].size, lists[i].elements);
    if (shape->attributes & BACK) {
        call_edges_set(comm, 1, 2, one_two, sendtags);
        call_edges_set(comm, 0, 2, two_one, recvtags);
    }
    if (shape->attributes & AXES) call_grid_set(comm, 1, one_two, &one_two[1]);

    frame_counts counts = shape->counts;
    int64_t divided = counts == DIVIDED || counts == EXCHANGED_ROWS ? size * CALL_COUNT : CALL_COUNT;
    int64_t scattered = counts == SCATTERED || counts == SCATTERED_ROWS ? size * CALL_COUNT : divided;
    int64_t gathered = counts == GATHERED || counts == GATHERED_ROWS ? size * CALL_COUNT : divided;
    if (shape->request == MPIXLA_STARTS) gathered = 2; /* an id */
    if (shape->request == MPIXLA_WAITS) scattered = 2;
    const struct {
        mpixla_where where;
        int side;
        int64_t count;
        void *data;
    } buffers[] = {
        {shape->send, CALL_OPERANDS, scattered, c->send},
        {shape->template_, CALL_OPERANDS, CALL_COUNT, c->template_},
        {shape->recv, CALL_RESULTS, gathered, c->recv},
    };
    for (int i = 0; i < 3; i++) {
        int here = buffers[i].where == EVERYWHERE || (buffers[i].where == ON_ROOT && on_root) ||
                   (buffers[i].where == OFF_ROOT && !on_root);
        int side = buffers[i].side, last = (int)(side == CALL_OPERANDS ? c->frame.args.size : c->frame.rets.size);
        if (here) call_insert(c, side, last, FFI_F32, buffers[i].count, buffers[i].data);
    }
}

const char *call_read(const call *c, const char *op, frame *f) {
    return frame_read(f, call_shape(op), &c->frame, NULL) == 0 ? "" : mpixla_last_error();
}

const char *call_run(call *c) {
    mpixla_failures_seen(call_run_unseen(c));
    return c->message;
}

const char *call_run_unseen(call *c) {
    const ffi_error *error = c->handler(&c->frame);
    c->code = error ? error->code : 0;
    snprintf(c->message, sizeof c->message, "%s", error ? error->message : "");
    return c->message;
}
