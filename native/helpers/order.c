/* The handler that calls nothing: it turns an array into a token, or a token into an array, so that calls can be put
 * in order by values that a program carries. What it takes is there before what it gives.
 */
#include "base/error.h"
#include "call/frame.h"
#include "helpers/helper.h"
#include "xla/ffi.h"

/* An array that comes out is the one that went in, in its memory: nothing is copied, on whatever device it lies. */
static int is_in_place(const ffi_call_frame *call) {
    int64_t in = frame_next(&call->args, 0), out = frame_next(&call->rets, 0);
    if (out == call->rets.size) return 1;
    if (in == call->args.size) return 0;
    const ffi_buffer *from = call->args.buffers[in], *to = call->rets.buffers[out];
    return from->data == to->data;
}

/* cppcheck-suppress constParameterPointer ; it is a handler */
ffi_error *mpixla_order(ffi_call_frame *call) {
    if (ffi_is_answered(call, FFI_STAGE_EXECUTE) || is_in_place(call)) return NULL;
    error_set("the array that a token was made of must be passed on in its own memory, but XLA moved it");
    return ffi_error_of_call(call);
}
