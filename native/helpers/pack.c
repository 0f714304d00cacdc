/* Many arrays as one, for a call of MPI with all of them. The one has lines of equal length, as many as its axes but
 * the last have entries; each of the many has as many, and its lines follow those of the one before.
 *
 * XLA could do the same, but runs a kernel for each array, which takes longer than copying some thousand bytes.
 */
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "helpers/helper.h"
#include "mpi/dtype.h"
#include "xla/ffi.h"

/* The bytes of a buffer, or REFUSED. */
static int64_t buffer_bytes(const ffi_buffers *given, int64_t i) {
    const ffi_buffer *b = given->buffers[i];
    if (given->types[i] != FFI_KIND_BUFFER) return error_set("array %lld to pack is not a buffer", (long long)i);
    const dtype_entry *dtype = dtype_find(b->dtype);
    if (!dtype) return REFUSED;
    int64_t bytes = dtype->row->itemsize;
    if (b->rank < 0 || (b->rank > 0 && !b->dims))
        return error_set("array %lld to pack has no valid shape", (long long)i);
    for (int64_t k = 0; k < b->rank; k++)
        if (b->dims[k] < 0 || __builtin_mul_overflow(bytes, b->dims[k], &bytes))
            return error_set("array %lld to pack has no valid shape", (long long)i);
    if (!b->data && bytes > 0) return error_set("array %lld to pack is a null pointer", (long long)i);
    return bytes;
}

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
    if (one->size != 1) return error_set("arrays are packed into 1 array, but there are %lld", (long long)one->size);
    const ffi_buffer *whole = one->buffers[0];
    int64_t length = buffer_bytes(one, 0), sum = 0, lines = 1;
    if (length < 0) return REFUSED;
    if (whole->rank == 0) return error_set("arrays are packed along the last axis, but the packed one has no axes");
    for (int64_t k = 0; k + 1 < whole->rank; k++) lines *= whole->dims[k];
    for (int64_t i = 0; i < many->size; i++) {
        int64_t bytes = buffer_bytes(many, i);
        if (bytes < 0) return REFUSED;
        if (lines > 0 && bytes % lines != 0)
            return error_set("array %lld to pack does not have %lld equal lines", (long long)i, (long long)lines);
        sum += bytes;
    }
    if (sum != length)
        return error_set("arrays of %lld bytes are not packed into %lld bytes", (long long)sum, (long long)length);
    if (length == 0 || lines == 0) return 0;
    char *place = whole->data;
    for (int64_t i = 0; i < many->size; i++) {
        const ffi_buffer *b = many->buffers[i];
        int64_t line = buffer_bytes(many, i) / lines;
        if (!b->data) continue; /* without items */
        if (copy_lines(c, place, length / lines, b->data, line, lines)) return REFUSED;
        place += line;
    }
    return 0;
}

static ffi_error *handle(const ffi_call_frame *call, int packs) {
    const copier c = {.packs = packs};
    if (ffi_is_answered(call)) return NULL;
    return copy_all(packs ? &call->rets : &call->args, packs ? &call->args : &call->rets, &c) ? ffi_error_of_call(call)
                                                                                              : NULL;
}

static ffi_error *handle_on_device(const ffi_call_frame *call, int packs) {
    device d;
    const copier c = {.device = &d, .packs = packs};
    if (ffi_is_answered(call)) return NULL;
    if (device_enter(&d, call)) return ffi_error_of_call(call);
    int failed = copy_all(packs ? &call->rets : &call->args, packs ? &call->args : &call->rets, &c);
    device_leave(&d);
    return failed ? ffi_error_of_call(call) : NULL;
}

/* cppcheck-suppress-begin constParameterPointer ; they are handlers */
ffi_error *mpixla_pack_host(ffi_call_frame *call) {
    return handle(call, 1);
}

ffi_error *mpixla_unpack_host(ffi_call_frame *call) {
    return handle(call, 0);
}

ffi_error *mpixla_pack_device(ffi_call_frame *call) {
    return handle_on_device(call, 1);
}

ffi_error *mpixla_unpack_device(ffi_call_frame *call) {
    return handle_on_device(call, 0);
}
/* cppcheck-suppress-end constParameterPointer */
