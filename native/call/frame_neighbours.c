/* Checks the messages of a call between neighbours, once: all later readers of the frame rely on it. */
#include "base/error.h"
#include "call/frame.h"

int64_t frame_ffi_buffer_bytes(const ffi_buffer *buffer) {
    int64_t bytes = dtype_find(buffer->dtype)->row->itemsize;
    for (int64_t i = 0; i < buffer->rank; i++) bytes *= buffer->dims[i];
    return bytes;
}

/* Exchanges */

/* Checks that an attribute has a number for each neighbour. Returns 0 or REFUSED. */
static int frame_slot_numbers_check(const frame *f, const char *peer, const topology_slots *slots, int attribute,
                                    const char *label) {
    const frame_array *numbers = &f->arrays[attribute];
    if (numbers->size == slots->number) return 0;
    return error_set("an exchange has %lld %s for its %ss, but rank %d of communicator '%s' has %lld",
                     (long long)numbers->size, label, peer, f->facts.communicator->rank, f->facts.communicator->name,
                     (long long)slots->number);
}

/* Checks that the rows for each destination lie in the send buffer; they may overlap. frame.c has compared the received
 * rows with the receive buffer. Returns 0 or REFUSED. */
static int frame_exchange_check(const frame *f) {
    const topology_slots *dests = facts_neighbours(&f->facts, 1), *sources = facts_neighbours(&f->facts, 0);
    int64_t items = 0;
    if (f->send.dtype != f->recv.dtype)
        return error_set("an exchange was called with %s to send and %s to receive", f->send.dtype->row->name,
                         f->recv.dtype->row->name);
    if (frame_slot_numbers_check(f, "destination", dests, ATTRIBUTE_SENDCOUNTS, "counts") ||
        frame_slot_numbers_check(f, "destination", dests, ATTRIBUTE_SENDOFFSETS, "offsets") ||
        frame_slot_numbers_check(f, "source", sources, ATTRIBUTE_RECVCOUNTS, "counts"))
        return REFUSED;
    for (int64_t i = 0; i < dests->number; i++) {
        int64_t rows = f->arrays[ATTRIBUTE_SENDCOUNTS].items[i], first = f->arrays[ATTRIBUTE_SENDOFFSETS].items[i], end;
        if (rows < 0 || first < 0 || __builtin_add_overflow(first, rows, &end) || end > f->send.dims[0])
            return error_set("destination %lld of an exchange has %lld rows from row %lld on, but the buffer has %lld",
                             (long long)i, (long long)rows, (long long)first, (long long)f->send.dims[0]);
        if (__builtin_add_overflow(items, rows * f->row_items, &items))
            return error_set("the destinations of an exchange have more items in all than a 64-bit integer holds");
    }
    return 0;
}

/* Halos */

int64_t frame_border_bytes(const frame *f, int64_t dimension) {
    const ffi_buffers *arrays = f->results;
    const frame_array *width = &f->arrays[ATTRIBUTE_WIDTH];
    const int64_t *axis = &f->arrays[ATTRIBUTE_AXES].items[dimension];
    int64_t bytes = 0;
    if (width->items[dimension] == 0) return 0;
    for (int64_t i = frame_buffer_next(arrays, 0); i < arrays->size;
         i = frame_buffer_next(arrays, i + 1), axis += width->size)
        bytes += frame_ffi_buffer_bytes(arrays->buffers[i]) / ((const ffi_buffer *)arrays->buffers[i])->dims[*axis] *
                 width->items[dimension];
    return bytes;
}

/* Checks that an array has the axes of the halos, each at least three widths long. Returns 0 or REFUSED. */
static int frame_widths_check(const frame *f, const ffi_buffer *array, const int64_t *axes) {
    const frame_array *width = &f->arrays[ATTRIBUTE_WIDTH];
    for (int64_t d = 0; d < width->size; d++)
        if (axes[d] < 0 || axes[d] >= array->rank || width->items[d] < 0 || width->items[d] > array->dims[axes[d]] / 3)
            return error_set(
                "a halo exchange of width %lld along axis %lld got an array without that axis, or with fewer than "
                "three times as many items along it",
                (long long)width->items[d], (long long)axes[d]);
    return 0;
}

/* Checks the widths and axes of a halo exchange. Returns 0 or REFUSED. */
static int frame_halo_check(const frame *f) {
    const ffi_buffers *arrays = f->results;
    const frame_array *axes = &f->arrays[ATTRIBUTE_AXES];
    int64_t dimensions = f->arrays[ATTRIBUTE_WIDTH].size, number = 0, bytes = 0;
    for (int64_t i = frame_buffer_next(arrays, 0); i < arrays->size; i = frame_buffer_next(arrays, i + 1)) number++;
    if (f->facts.communicator->topology->dimensions != dimensions || axes->size != dimensions * number)
        return error_set(
            "a halo exchange of %lld arrays has %lld widths and %lld axes, but communicator '%s' has %d dimensions",
            (long long)number, (long long)dimensions, (long long)axes->size, f->facts.communicator->name,
            f->facts.communicator->topology->dimensions);
    const int64_t *own = axes->items;
    for (int64_t i = frame_buffer_next(arrays, 0); i < arrays->size;
         i = frame_buffer_next(arrays, i + 1), own += dimensions) {
        if (frame_widths_check(f, arrays->buffers[i], own)) return REFUSED;
        /* A dimension has four messages at most, each of a part of this: so all of them can be measured. */
        if (__builtin_add_overflow(bytes, frame_ffi_buffer_bytes(arrays->buffers[i]), &bytes) ||
            bytes > INT64_MAX / 4 / (dimensions + 1))
            return error_set("a halo exchange got arrays of more bytes in all than any memory has");
    }
    return 0;
}

int frame_neighbours_check(const frame *f) {
    return frame_has(f, ATTRIBUTE_WIDTH) ? frame_halo_check(f) : frame_exchange_check(f);
}
