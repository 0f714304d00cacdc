/* The handler that calls nothing: it turns an array into a token, or a token into an array, so that calls can be put
 * in order by values that a program carries. What it takes is there before what it gives.
 */
#include "error.h"
#include "frame.h"
#include "mpixla.h"
#include "xla_ffi.h"

static ffi_error *error_make(const ffi_api *api) {
    ffi_error_create_args args = {.struct_size = sizeof args, .message = error_get(), .code = FFI_FAILED_PRECONDITION};
    return api->error_create(&args);
}

/* An array that comes out is the one that went in, in its memory: nothing is copied, on whatever device it lies. */
static int is_in_place(const ffi_call_frame *call) {
    int64_t in = frame_next(&call->args, 0), out = frame_next(&call->rets, 0);
    if (out == call->rets.size) return 1;
    if (in == call->args.size) return 0;
    const ffi_buffer *from = call->args.buffers[in], *to = call->rets.buffers[out];
    return from->data == to->data;
}

static ffi_error *order_host(ffi_call_frame *call) {
    if (call->extension_start && call->extension_start->type == FFI_EXTENSION_METADATA) {
        ffi_metadata *metadata = ((ffi_metadata_extension *)call->extension_start)->metadata;
        metadata->api_version.major_version = FFI_VERSION_MAJOR;
        metadata->api_version.minor_version = FFI_VERSION_MINOR;
        return NULL;
    }
    if (call->stage != FFI_STAGE_EXECUTE || is_in_place(call)) return NULL;
    error_set("the array that a token was made of must be passed on in its own memory, but XLA moved it");
    return error_make(call->api);
}

mpixla_handler *mpixla_order_handler(void) {
    return (mpixla_handler *)order_host;
}
