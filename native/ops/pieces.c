#include "ops/pieces.h"

#include <string.h>

#include "base/error.h"

pieces pieces_of(const ffi_buffer *array, int64_t axis, int64_t width, int64_t at) {
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

/* Small pieces are what an exchange along the last axis has: copies of a known size are single instructions. */
#define COPY_PIECES(SIZE) \
    for (int64_t i = 0; i < p.number; i++, there += there_step, here += here_step) memcpy(there, here, SIZE)
static void copy(char *there, int64_t there_step, const char *here, int64_t here_step, pieces p) {
    if (p.size == 1)
        COPY_PIECES(1);
    else if (p.size == 2)
        COPY_PIECES(2);
    else if (p.size == 4)
        COPY_PIECES(4);
    else if (p.size == 8)
        COPY_PIECES(8);
    else if (p.size == 16)
        COPY_PIECES(16);
    else
        COPY_PIECES((size_t)p.size);
}

static device_lines lines_of(pieces p) {
    return (device_lines){.first = p.first, .distance = p.distance};
}

static device_lines packed(const pieces_place *place, pieces p, char *message) {
    return (device_lines){.first = message, .distance = p.size, .on_host = place->on_host};
}

int pieces_pack(const pieces_place *place, pieces p, char *message) {
    if (place->device)
        return device_copy_lines(place->device, packed(place, p, message), lines_of(p), p.number, p.size);
    copy(message, p.size, p.first, p.distance, p);
    return 0;
}

int pieces_unpack(const pieces_place *place, pieces p, char *message) {
    if (place->device)
        return device_copy_lines(place->device, lines_of(p), packed(place, p, message), p.number, p.size);
    copy(p.first, p.distance, message, p.size, p);
    return 0;
}

/* It takes a message, which it does not need, as every pieces_action does. */
int pieces_clear(const pieces_place *place, pieces p, char *message) { /* NOLINT(readability-non-const-parameter) */
    (void)message;
    if (place->device) return device_clear_lines(place->device, lines_of(p), p.number, p.size);
    for (int64_t i = 0; i < p.number; i++) memset(p.first + i * p.distance, 0, (size_t)p.size);
    return 0;
}

/* Through memcpy, as a message is not aligned for its items. */
typedef void pieces_adder(pieces p, const char *message);
#define ADDER(type)                                                       \
    static void add_##type(pieces p, const char *message) {               \
        for (int64_t i = 0; i < p.number; i++, message += p.size)         \
            for (int64_t j = 0; j < p.size; j += (int64_t)sizeof(type)) { \
                type sum, more;                                           \
                memcpy(&sum, p.first + i * p.distance + j, sizeof sum);   \
                memcpy(&more, message + j, sizeof more);                  \
                sum = (type)(sum + more);                                 \
                memcpy(p.first + i * p.distance + j, &sum, sizeof sum);   \
            }                                                             \
    }
ADDER(uint8_t)
ADDER(uint16_t)
ADDER(uint32_t)
ADDER(uint64_t)
ADDER(float)
ADDER(double)

/* NULL for types that are not added. Integers with a sign are added as those without: the sums wrap. */
static pieces_adder *adder_of(const dtype_entry *dtype) {
    int64_t size = dtype->row->itemsize;
    if (strcmp(dtype->row->kind, "integer") == 0)
        return size == 1   ? add_uint8_t
               : size == 2 ? add_uint16_t
               : size == 4 ? add_uint32_t
               : size == 8 ? add_uint64_t
                           : NULL;
    if (strcmp(dtype->row->kind, "complex") == 0) size /= 2;
    return size == sizeof(float) ? add_float : size == sizeof(double) ? add_double : NULL;
}

int pieces_check_adding(const dtype_entry *dtype) {
    if (adder_of(dtype)) return 0;
    return error_set("the transpose of a halo exchange cannot add items of type %s", dtype->row->name);
}

/* A GPU's pieces are added to on the host: without a compiler for GPUs there is no function to do it there. */
int pieces_add(const pieces_place *place, pieces p, char *message) {
    pieces_adder *add = adder_of(p.dtype);
    if (!place->device) {
        add(p, message);
        return 0;
    }
    pieces here = p;
    here.first = message + place->room;
    here.distance = p.size;
    if (pieces_pack(place, p, here.first) || device_wait(place->device)) return REFUSED;
    add(here, message);
    return pieces_unpack(place, p, here.first);
}

int pieces_results_fill(const frame *f) {
    for (int64_t i = 0, j = 0;; i++, j++) {
        i = frame_next(f->operands, i);
        j = frame_next(f->results, j);
        if (j == f->results->size) return 0;
        const ffi_buffer *in = f->operands->buffers[i], *out = f->results->buffers[j];
        int64_t bytes = frame_bytes(out);
        if (in->data != out->data && device_copy_within(frame_array_device(f), out->data, in->data, bytes))
            return REFUSED;
    }
}
