/* Packs many arrays into one along the last axis, for one call of MPI, and unpacks them. Each array has as many lines
 * as the packed one: the product of its axes but the last. Line k of the packed array is line k of each array, one
 * behind the other.
 *
 * XLA's concatenate runs a kernel for each array, which takes longer than copying some thousand bytes.
 */

#include "base/copy.h"
#include "base/error.h"
#include "helpers/helper.h"

/* The direction of copies, and their memory. */
typedef struct pack_copier {
    const device *device; /* whose memory has the arrays; NULL: the host's */
    int packs;            /* 0: copies out of the packed array */
} pack_copier;

/* Copies `lines` lines of `line` bytes between the packed array and one of the arrays (`own`). Returns 0 or REFUSED. */
static int pack_lines_copy(const pack_copier *c, char *packed, int64_t distance, char *own, int64_t line,
                           int64_t lines) {
    device_lines whole = {.first = packed, .distance = distance}, part = {.first = own, .distance = line};
    if (c->device) return device_copy_lines(c->device, c->packs ? whole : part, c->packs ? part : whole, lines, line);
    for (int64_t k = 0; k < lines; k++, packed += distance, own += line)
        copy_bytes(c->packs ? packed : own, c->packs ? own : packed, line);
    return 0;
}

/* Checks the arrays, and copies all of `many` into `one`, or back. Returns 0 or REFUSED. */
static int pack_arrays_copy(const ffi_buffers *one, const ffi_buffers *many, const pack_copier *c) {
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
        if (pack_lines_copy(c, place, whole.bytes / whole.lines, part.buffer->data, line, whole.lines)) return REFUSED;
        place += line;
    }
    return 0;
}

int helper_pack(const ffi_call_frame *call, const device *d) {
    return pack_arrays_copy(&call->rets, &call->args, &(pack_copier){.device = d, .packs = 1});
}

int helper_unpack(const ffi_call_frame *call, const device *d) {
    return pack_arrays_copy(&call->args, &call->rets, &(pack_copier){.device = d});
}
