#include "ops/pieces.h"

#include <string.h>

#include "base/copy.h"
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

/* An exchange along the last axis has small blocks: a copy of a constant size is a single instruction. */

#define PIECES_COPY_BLOCKS(SIZE) \
    for (int64_t i = 0; i < p.number; i++, there += there_step, here += here_step) memcpy(there, here, SIZE)

/* Copies the blocks of `p` from `here` to `there`, with these distances in bytes between blocks. */
static void pieces_copy(char *there, int64_t there_step, const char *here, int64_t here_step, pieces p) {
    if (p.size == 1)
        PIECES_COPY_BLOCKS(1);
    else if (p.size == 2)
        PIECES_COPY_BLOCKS(2);
    else if (p.size == 4)
        PIECES_COPY_BLOCKS(4);
    else if (p.size == 8)
        PIECES_COPY_BLOCKS(8);
    else if (p.size == 16)
        PIECES_COPY_BLOCKS(16);
    else
        for (int64_t i = 0; i < p.number; i++, there += there_step, here += here_step) copy_bytes(there, here, p.size);
}

/* Returns the blocks of a slice as lines. */
static device_lines pieces_lines(pieces p) {
    return (device_lines){.first = p.first, .distance = p.distance};
}

/* Returns the message as lines, one behind the other. */
static device_lines pieces_message_lines(const pieces_place *place, pieces p, char *message) {
    return (device_lines){.first = message, .distance = p.size, .on_host = place->on_host};
}

/* Copies the pieces into the message. Returns 0 or REFUSED; on a GPU only puts the copy on the stream. */
int pieces_pack(const pieces_place *place, pieces p, char *message) {
    if (place->device)
        return device_copy_lines(place->device, pieces_message_lines(place, p, message), pieces_lines(p), p.number,
                                 p.size);
    pieces_copy(message, p.size, p.first, p.distance, p);
    return 0;
}

/* Copies the message into the pieces. Returns 0 or REFUSED; on a GPU only puts the copy on the stream. */
int pieces_unpack(const pieces_place *place, pieces p, char *message) {
    if (place->device)
        return device_copy_lines(place->device, pieces_lines(p), pieces_message_lines(place, p, message), p.number,
                                 p.size);
    pieces_copy(p.first, p.distance, message, p.size, p);
    return 0;
}

/* Fills the pieces with zeros. Returns 0 or REFUSED; on a GPU only puts that on the stream. The message is unused, but
 * every pieces_action has it. */
int pieces_clear(const pieces_place *place, pieces p, char *message) { /* NOLINT(readability-non-const-parameter) */
    (void)message;
    if (place->device) return device_clear_lines(place->device, pieces_lines(p), p.number, p.size);
    for (int64_t i = 0; i < p.number; i++) memset(p.first + i * p.distance, 0, (size_t)p.size);
    return 0;
}

/* Adds a message to the pieces. Uses memcpy, as a message is not aligned for its items. */
typedef void pieces_adder(pieces p, const char *message);
#define PIECES_ADDER(type)                                                \
    static void pieces_add_##type(pieces p, const char *message) {        \
        for (int64_t i = 0; i < p.number; i++, message += p.size)         \
            for (int64_t j = 0; j < p.size; j += (int64_t)sizeof(type)) { \
                type sum, more;                                           \
                memcpy(&sum, p.first + i * p.distance + j, sizeof sum);   \
                memcpy(&more, message + j, sizeof more);                  \
                sum = (type)(sum + more);                                 \
                memcpy(p.first + i * p.distance + j, &sum, sizeof sum);   \
            }                                                             \
    }
PIECES_ADDER(uint8_t)
PIECES_ADDER(uint16_t)
PIECES_ADDER(uint32_t)
PIECES_ADDER(uint64_t)
PIECES_ADDER(float)
PIECES_ADDER(double)

/* Returns the function that adds items of this type; NULL if there is none. Signed integers are added as unsigned ones,
 * so sums wrap. */
static pieces_adder *pieces_adder_for(const dtype_entry *dtype) {
    int64_t size = dtype->row->itemsize;
    if (strcmp(dtype->row->kind, "integer") == 0)
        return size == 1   ? pieces_add_uint8_t
               : size == 2 ? pieces_add_uint16_t
               : size == 4 ? pieces_add_uint32_t
               : size == 8 ? pieces_add_uint64_t
                           : NULL;
    if (strcmp(dtype->row->kind, "complex") == 0) size /= 2;
    return size == sizeof(float) ? pieces_add_float : size == sizeof(double) ? pieces_add_double : NULL;
}

int pieces_add_check(const dtype_entry *dtype) {
    if (pieces_adder_for(dtype)) return 0;
    return error_set("the transpose of a halo exchange cannot add items of type %s", dtype->row->name);
}

/* Adds the message to the pieces. Returns 0 or REFUSED. Pieces in a GPU's memory are copied to the host, which waits
 * for the stream, added there, and copied back: the library has no kernels for GPUs. */
int pieces_add(const pieces_place *place, pieces p, char *message) {
    pieces_adder *add = pieces_adder_for(p.dtype);
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

int pieces_operands_copy(const frame *f) {
    for (int64_t i = 0, j = 0;; i++, j++) {
        i = frame_buffer_next(f->operands, i);
        j = frame_buffer_next(f->results, j);
        if (j == f->results->size) return 0;
        const ffi_buffer *in = f->operands->buffers[i], *out = f->results->buffers[j];
        int64_t bytes = frame_ffi_buffer_bytes(out);
        if (in->data != out->data && device_copy_within(frame_array_device(f), out->data, in->data, bytes))
            return REFUSED;
    }
}
