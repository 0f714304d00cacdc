#include "call/values.h"

#include <string.h>

#include "base/error.h"
#include "base/scratch.h"
#include "device/pool.h"

int values_are_in_operand(const ffi_bytes *text) {
    static const char word[] = "operand";
    return text->len == sizeof word - 1 && memcmp(text->ptr, word, sizeof word - 1) == 0;
}

/* Removes the last operand that is data, and the tokens behind it, from `given`. Returns it, or NULL if there is none.
 */
static const ffi_buffer *values_operand_remove(ffi_buffers *given) {
    while (given->size > 0) {
        int64_t i = --given->size;
        const ffi_buffer *buffer = given->buffers[i];
        if (given->types[i] != FFI_KIND_BUFFER) return NULL;
        if (buffer->dtype != FFI_TOKEN) return buffer;
    }
    return NULL;
}

/* Copies the numbers from the GPU's memory to `to`, and waits for the copy, as the call cannot be read without them.
 * Returns 0 or REFUSED. */
static int values_gpu_copy(void *to, const void *from, int64_t bytes, const device *gpu) {
    pool_block *block = pool_get(gpu, POOL_PINNED, bytes);
    int failed = !block || device_copy_out(gpu, block->data, from, bytes) || device_wait(gpu);
    if (!failed) memcpy(to, block->data, (size_t)bytes);
    pool_give_back(gpu, block);
    return failed ? REFUSED : 0;
}

int values_operand_read(values *v, ffi_buffers *given, const device *gpu, const call_facts *call) {
    const ffi_buffer *b = values_operand_remove(given);
    if (!b || (b->dtype != FFI_S32 && b->dtype != FFI_S64) || b->rank != 1 || !b->dims || b->dims[0] < 0 ||
        b->dims[0] > INT32_MAX || (!b->data && b->dims[0] > 0))
        return error_set(
            "%s was called without the operand that its numbers at run time are in: int32 or int64, with one axis",
            call->row->mpi_name);
    int64_t n = b->dims[0];
    int64_t *numbers = scratch_get(SCRATCH_VALUES, (size_t)n * sizeof *numbers);
    if (!numbers) return facts_fail(call);
    int64_t bytes = n * (int64_t)(b->dtype == FFI_S32 ? sizeof(int32_t) : sizeof(int64_t));
    if (gpu && bytes > 0 && values_gpu_copy(numbers, b->data, bytes, gpu)) return facts_fail(call);
    if (!gpu && bytes > 0) memcpy(numbers, b->data, (size_t)bytes);
    if (b->dtype == FFI_S32) { /* widen in place, from the last on */
        const char *narrow = (const char *)numbers;
        for (int64_t i = n; i-- > 0;) {
            int32_t number;
            memcpy(&number, narrow + i * (int64_t)sizeof number, sizeof number);
            numbers[i] = number;
        }
    }
    *v = (values){.numbers = numbers, .n = n};
    return 0;
}
