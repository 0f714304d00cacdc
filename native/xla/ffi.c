#include "xla/ffi.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"

/* Returns whether the call is XLA's question for the handler's version, which it answers, or is for another stage. The
 * answer lacks COMMAND_BUFFER_COMPATIBLE: XLA would make the handler a part of a CUDA graph, and call it when that is
 * recorded, not in each run, so without checks, errors and choice of a route. Besides, CUDA forbids waiting for the
 * stream in a capture, as the way through the host's memory does; and NCCL wants a call captured on all ranks or on
 * none, where XLA decides for each program by itself. */
int ffi_query_answer(const ffi_call_frame *call, int stage) {
    for (const ffi_extension *e = call->extension_start; e; e = e->next) {
        if (e->type != FFI_EXTENSION_METADATA) continue;
        ffi_metadata *metadata = ((const ffi_metadata_extension *)e)->metadata;
        metadata->api_version.major_version = FFI_VERSION_MAJOR;
        metadata->api_version.minor_version = FFI_VERSION_MINOR;
        return 1;
    }
    return call->stage != stage;
}

/* State */

static atomic_int_least64_t state_type; /* XLA's number for the type of states; 0: no call has one */

/* Frees an error that XLA has returned. Returns REFUSED, or 0 if `error` is NULL. */
static int ffi_error_free(const ffi_call_frame *call, ffi_error *error) {
    ffi_error_destroy_args args = {.struct_size = sizeof args, .error = error};
    if (!error) return 0;
    call->api->error_destroy(&args);
    return REFUSED;
}

/* Registers the type of the library's states with XLA, once in a process, with their deleter. Returns 0 or REFUSED.
 * Takes a lock. */
static int ffi_state_type_register(const ffi_call_frame *call, void (*deleter)(void *state)) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ffi_type_info info = {.struct_size = sizeof info}; /* XLA may keep the address */
    static const char name[] = "mpixla.prepared";
    int64_t id = 0;
    ffi_type_register_args args = {
        .struct_size = sizeof args, .name = {name, sizeof name - 1}, .type_id = &id, .type_info = &info};
    pthread_mutex_lock(&lock);
    info.deleter = deleter;
    const int is_known = atomic_load(&state_type) != 0;
    const int code = is_known ? 0 : ffi_error_free(call, call->api->type_register(&args));
    if (!is_known && code == 0) atomic_store(&state_type, id);
    pthread_mutex_unlock(&lock);
    return code;
}

int ffi_state_set(const ffi_call_frame *call, void *state, void (*deleter)(void *state)) {
    if (ffi_state_type_register(call, deleter) != 0) return REFUSED;
    int64_t id = atomic_load(&state_type);
    ffi_state_args args = {.struct_size = sizeof args,
                           .context = call->context,
                           .stage = FFI_STAGE_INSTANTIATE,
                           .type_id = &id,
                           .state = state};
    return ffi_error_free(call, call->api->state_set(&args));
}

void *ffi_state_get(const ffi_call_frame *call) {
    int64_t id = atomic_load_explicit(&state_type, memory_order_acquire);
    ffi_state_args args = {
        .struct_size = sizeof args, .context = call->context, .stage = FFI_STAGE_INSTANTIATE, .type_id = &id};
    if (id == 0 || ffi_error_free(call, call->api->state_get(&args)) != 0) return NULL;
    return args.state;
}

/* Errors */

ffi_error *ffi_error_make(const ffi_call_frame *call, ffi_error_code code, const char *message) {
    ffi_error_create_args args = {.struct_size = sizeof args, .message = message, .code = (int)code};
    return call->api->error_create(&args);
}

ffi_error *ffi_error_from_sentence(const ffi_call_frame *call) {
    return ffi_error_make(call, FFI_ABORTED, error_get());
}

/* The frame says a size without its future, whether it has one or not; the table's functions came with it. */
int ffi_has_futures(const ffi_call_frame *call) {
    return call->api->struct_size >= sizeof(ffi_api);
}

ffi_error *ffi_future_make(const ffi_call_frame *call, ffi_future **future) {
    ffi_future_create_args args = {.struct_size = sizeof args};
    ffi_error *error = call->api->future_create(&args);
    *future = args.future;
    return error;
}

void ffi_call_end(const ffi_call_frame *call, ffi_future *future, ffi_error *error) {
    if (error) {
        ffi_future_set_error_args args = {.struct_size = sizeof args, .future = future, .error = error};
        (void)call->api->future_set_error(&args);
    } else {
        ffi_future_set_available_args args = {.struct_size = sizeof args, .future = future};
        (void)call->api->future_set_available(&args);
    }
}
