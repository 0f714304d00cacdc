/* Returns a rank as a value of a program, so that all ranks compile the same text. The attributes are "comm", and
 * "shift", an array: empty for this process's rank, or the steps from it (mpixla_comm_shift).
 */
#include "base/error.h"
#include "device/pool.h"
#include "helpers/helper.h"
#include "mpi/comm.h"

/* Sets `*rank` to the rank that the attributes name. Returns 0 or REFUSED. */
static int rank_read(const ffi_attributes *given, int64_t *rank) {
    if (given->size != 2 || !helper_attribute_is(given, 0, "comm", FFI_ATTRIBUTE_SCALAR) ||
        !helper_attribute_is(given, 1, "shift", FFI_ATTRIBUTE_ARRAY))
        return error_set("a rank takes the attributes 'comm', a number, and 'shift', an array");
    const ffi_scalar *comm = given->values[0];
    const ffi_array *shift = given->values[1];
    if (comm->dtype != FFI_S64 || shift->dtype != FFI_S64 || !comm_is_shift((int64_t)shift->size))
        return error_set("'comm' of a rank is a 64-bit integer, and 'shift' has pairs of them, or none");
    const comm_entry *entry = comm_find(*(const int64_t *)comm->value);
    if (!entry) return REFUSED;
    return comm_shift(entry, shift->data, (int64_t)shift->size, rank);
}

/* Returns the memory of the result; NULL with error_set if it is no int32 scalar. */
static int32_t *rank_result(const ffi_call_frame *call) {
    const ffi_buffer *b = call->rets.size == 1 && call->rets.types[0] == FFI_KIND_BUFFER ? call->rets.buffers[0] : NULL;
    if (b && b->dtype == FFI_S32 && b->rank == 0 && b->data) return b->data;
    return error_null("a rank is given as one int32 without axes");
}

/* Writes this process's rank, or the rank at a shift from it, to the result. Returns 0 or REFUSED. */
int helper_rank(const ffi_call_frame *call, const device *d) {
    int64_t rank = 0;
    int32_t *result = rank_result(call);
    if (!result || rank_read(&call->attrs, &rank)) return REFUSED;
    if (!d) {
        *result = (int32_t)rank;
        return 0;
    }
    pool_block *block = pool_get(d, POOL_PINNED, (int64_t)sizeof *result);
    if (!block) return REFUSED;
    *(int32_t *)(void *)block->data = (int32_t)rank;
    int failed = device_copy_in(d, result, block->data, (int64_t)sizeof *result);
    pool_give_back(d, block);
    return failed;
}
