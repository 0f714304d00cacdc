/* Many arrays as one, for a call of MPI with all of them. The one has lines of equal length, as many as its axes but
 * the last have entries; each of the many has as many, and its lines follow those of the one before.
 *
 * XLA could do the same, but runs a kernel for each array, which takes longer than copying some thousand bytes.
 */
#include <string.h>

#include "base/error.h"
#include "helpers/helper.h"

/* Copies `lines` lines of `line` bytes, into the packed array or out of it. */
typedef struct copier {
    const device *device; /* which has the arrays; NULL: the host */
    int packs;
} copier;

static int copy_lines(const copier *c, char *packed, int64_t distance, char *own, int64_t line, int64_t lines) {
    device_lines whole = {.first = packed, .distance = distance}, part = {.first = own, .distance = line};
    if (c->device) return device_copy_lines(c->device, c->packs ? whole : part, c->packs ? part : whole, lines, line);
    for (int64_t k = 0; k < lines; k++, packed += distance, own += line)
        memcpy(c->packs ? packed : own, c->packs ? own : packed, (size_t)line);
    return 0;
}

static int copy_all(const ffi_buffers *one, const ffi_buffers *many, const copier *c) {
    helper_array whole, part;
    int64_t sum = 0;
    if (one->size != 1) return error_set("arrays are packed into 1 array, but there are %lld", (long long)one->size);
    if (helper_array_read(&whole, one, 0, "to pack")) return REFUSED;
    if (whole.buffer->rank == 0)
        return error_set("arrays are packed along the last axis, but the packed one has no axes");
    for (int64_t i = 0; i < many->size; i++) {
        if (helper_array_read(&part, many, i, "to pack")) return REFUSED;
        if (whole.lines > 0 && part.bytes % whole.lines != 0)
            return error_set("array %lld to pack does not have %lld equal lines", (long long)i, (long long)whole.lines);
        if (__builtin_add_overflow(sum, part.bytes, &sum)) sum = -1;
    }
    if (sum != whole.bytes)
        return error_set("arrays of %lld bytes are not packed into %lld bytes", (long long)sum, (long long)whole.bytes);
    if (whole.bytes == 0) return 0;
    char *place = whole.buffer->data;
    for (int64_t i = 0; i < many->size; i++) {
        if (helper_array_read(&part, many, i, "to pack")) return REFUSED;
        int64_t line = part.bytes / whole.lines;
        if (line == 0) continue;
        if (copy_lines(c, place, whole.bytes / whole.lines, part.buffer->data, line, whole.lines)) return REFUSED;
        place += line;
    }
    return 0;
}

int helper_pack(const ffi_call_frame *call, const device *d) {
    return copy_all(&call->rets, &call->args, &(copier){.device = d, .packs = 1});
}

int helper_unpack(const ffi_call_frame *call, const device *d) {
    return copy_all(&call->args, &call->rets, &(copier){.device = d});
}
