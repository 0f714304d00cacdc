#include "xla/ffi.h"

#include "base/error.h"

/* No handler says that it may be captured (COMMAND_BUFFER_COMPATIBLE): XLA would make it a part of a CUDA graph, and
 * call it when that is recorded, not in each run, so without checks, errors and choice of a transport. Besides, CUDA
 * forbids waiting for the stream in a capture, as the way through the host's memory does; and NCCL wants a call
 * captured on all ranks or on none, where XLA decides for each program by itself. */
int ffi_is_answered(const ffi_call_frame *call) {
    for (const ffi_extension *e = call->extension_start; e; e = e->next) {
        if (e->type != FFI_EXTENSION_METADATA) continue;
        ffi_metadata *metadata = ((const ffi_metadata_extension *)e)->metadata;
        metadata->api_version.major_version = FFI_VERSION_MAJOR;
        metadata->api_version.minor_version = FFI_VERSION_MINOR;
        return 1;
    }
    return call->stage != FFI_STAGE_EXECUTE;
}

ffi_error *ffi_error_make(const ffi_call_frame *call, ffi_error_code code, const char *message) {
    ffi_error_create_args args = {.struct_size = sizeof args, .message = message, .code = (int)code};
    return call->api->error_create(&args);
}

ffi_error *ffi_error_of_call(const ffi_call_frame *call) {
    return ffi_error_make(call, FFI_ABORTED, error_get());
}

/* The frame says a size without its future, whether it has one or not; the table's functions came with it. */
int ffi_can_wait(const ffi_call_frame *call) {
    return call->api->struct_size >= sizeof(ffi_api);
}

ffi_error *ffi_future_make(const ffi_call_frame *call, ffi_future **future) {
    ffi_future_create_args args = {.struct_size = sizeof args};
    ffi_error *error = call->api->future_create(&args);
    *future = args.future;
    return error;
}

/* XLA fails in neither but for the size of what it is given. */
void ffi_call_end(const ffi_call_frame *call, ffi_future *future, ffi_error *error) {
    if (error) {
        ffi_future_set_error_args args = {.struct_size = sizeof args, .future = future, .error = error};
        (void)call->api->future_set_error(&args);
    } else {
        ffi_future_set_available_args args = {.struct_size = sizeof args, .future = future};
        (void)call->api->future_set_available(&args);
    }
}
