#include "helpers/helper.h"

#include "base/error.h"
#include "mpi/dtype.h"

const mpixla_helper_row *mpixla_helper_table(size_t *rows) {
    static const mpixla_helper_row table[] = {
        {"exact_add", (mpixla_handler *)mpixla_exact_add_host, (mpixla_handler *)mpixla_exact_add_device},
        {"exact_round", (mpixla_handler *)mpixla_exact_round_host, (mpixla_handler *)mpixla_exact_round_device},
        {"order", (mpixla_handler *)mpixla_order, (mpixla_handler *)mpixla_order},
        {"pack", (mpixla_handler *)mpixla_pack_host, (mpixla_handler *)mpixla_pack_device},
        {"rank", (mpixla_handler *)mpixla_rank_host, (mpixla_handler *)mpixla_rank_device},
        {"unpack", (mpixla_handler *)mpixla_unpack_host, (mpixla_handler *)mpixla_unpack_device},
    };
    *rows = sizeof table / sizeof table[0];
    return table;
}

int helper_array_read(helper_array *a, const ffi_buffers *given, int64_t i, const char *what) {
    if (i >= given->size || given->types[i] != FFI_KIND_BUFFER)
        return error_set("array %lld %s is not a buffer", (long long)i, what);
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
    if (!is_valid) return error_set("array %lld %s has no valid shape", (long long)i, what);
    a->bytes = is_empty ? 0 : bytes;
    if (!b->data && a->bytes > 0) return error_set("array %lld %s is a null pointer", (long long)i, what);
    return 0;
}
