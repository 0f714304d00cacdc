#include "helpers/helper.h"

#include <string.h>

#include "base/error.h"
#include "mpi/dtype.h"
#include "xla/ffi.h"

/* Runs a helper on arrays in the host's memory. Returns NULL or XLA's error. */
static ffi_error *helper_run_on_host(const ffi_call_frame *call, helper_work *work) {
    return !ffi_query_answer(call, FFI_STAGE_EXECUTE) && work(call, NULL) ? ffi_error_from_sentence(call) : NULL;
}

/* Runs a helper (`work`) on the GPU of the call, whose device is current in this thread meanwhile. Returns NULL or
 * XLA's error. */
static ffi_error *helper_run_on_device(const ffi_call_frame *call, helper_work *work) {
    device d;
    if (ffi_query_answer(call, FFI_STAGE_EXECUTE)) return NULL;
    if (device_enter(&d, call)) return ffi_error_from_sentence(call);
    int failed = work(call, &d);
    device_leave(&d);
    return failed ? ffi_error_from_sentence(call) : NULL;
}

#define HELPER(name, on_host, on_device)                  \
    ffi_error *on_host(ffi_call_frame *call) {            \
        return helper_run_on_host(call, helper_##name);   \
    }                                                     \
    ffi_error *on_device(ffi_call_frame *call) {          \
        return helper_run_on_device(call, helper_##name); \
    }
MPIXLA_HELPERS(HELPER)
#undef HELPER

/* Returns the table of all helpers and their handlers, and sets `*rows` to its number of rows and `*row_size`, unless
 * it is NULL, to their size. */
const mpixla_helper_row *mpixla_helper_table(size_t *rows, size_t *row_size) {
    static const mpixla_helper_row table[] = {
#define HELPER(name, on_host, on_device) {#name, (mpixla_handler *)(on_host), (mpixla_handler *)(on_device)},
        MPIXLA_HELPERS(HELPER) HELPER(order, mpixla_order, mpixla_order)
#undef HELPER
    };
    *rows = sizeof table / sizeof table[0];
    if (row_size) *row_size = sizeof table[0];
    return table;
}

int helper_attribute_is(const ffi_attributes *given, int64_t i, const char *name, int type) {
    return i < given->size && given->types[i] == type && given->names[i]->len == strlen(name) &&
           memcmp(given->names[i]->ptr, name, given->names[i]->len) == 0;
}

int helper_array_read(helper_array *a, const ffi_buffers *given, int64_t i, const char *label) {
    if (i >= given->size || given->types[i] != FFI_KIND_BUFFER)
        return error_set("array %lld %s is not a buffer", (long long)i, label);
    const ffi_buffer *b = given->buffers[i];
    const dtype_entry *dtype = dtype_find(b->dtype);
    if (!dtype) return REFUSED;
    *a = (helper_array){.buffer = b, .lines = 1, .line = 1};
    int64_t bytes = dtype->row->itemsize;
    int is_valid = b->rank >= 0 && (b->rank == 0 || b->dims), is_empty = 0;
    for (int64_t k = 0; is_valid && k < b->rank; k++) {
        int64_t n = b->dims[k];
        is_valid = n >= 0 && (n == 0 || !__builtin_mul_overflow(bytes, n, &bytes)); /* also where another is 0 */
        is_empty |= n == 0;
        if (k + 1 < b->rank && is_valid) a->lines *= n;
        a->line = n;
    }
    if (!is_valid) return error_set("array %lld %s has no valid shape", (long long)i, label);
    a->bytes = is_empty ? 0 : bytes;
    if (!b->data && a->bytes > 0) return error_set("array %lld %s is a null pointer", (long long)i, label);
    return 0;
}
