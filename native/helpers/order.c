/* The handler that turns an array into a token, or a token into an array, so that values that a program carries order
 * its calls: the result depends on the operand. It does no work.
 */
#include "base/error.h"
#include "call/frame.h"
#include "helpers/helper.h"
#include "xla/ffi.h"

/* Returns whether the result, if it is an array, is in the memory of the operand, so that the handler has nothing to
 * copy. */
static int order_is_in_place(const ffi_call_frame *call) {
    int64_t in = frame_buffer_next(&call->args, 0), out = frame_buffer_next(&call->rets, 0);
    if (out == call->rets.size) return 1;
    if (in == call->args.size) return 0;
    const ffi_buffer *from = call->args.buffers[in], *to = call->rets.buffers[out];
    return from->data == to->data;
}

/* Turns an array into a token, or a token into an array: does no work, but refuses a result that XLA has put elsewhere.
 */
/* cppcheck-suppress constParameterPointer ; it is a handler */
ffi_error *mpixla_order(ffi_call_frame *call) {
    if (ffi_query_answer(call, FFI_STAGE_EXECUTE) || order_is_in_place(call)) return NULL;
    error_set("the array that a token was made of must be passed on in its own memory, but XLA moved it");
    return ffi_error_from_sentence(call);
}
