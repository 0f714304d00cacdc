/* The part of XLA's FFI (its C interface for custom calls) that libmpixla uses.
 *
 * XLA publishes this interface as a binary contract: structs start with their size, and fields are only ever
 * added at the end. It is declared here, reduced to what is read, so that the library builds without a copy of
 * jaxlib; test_xla_ffi.c compares each offset and constant with the header of the jaxlib that is installed.
 */
#ifndef MPIXLA_NATIVE_XLA_FFI_H
#define MPIXLA_NATIVE_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

/* The version that the handlers announce: XLA accepts handlers of its own major version. */
enum { FFI_VERSION_MAJOR = 0, FFI_VERSION_MINOR = 1 };

/* Element types, numbered as in XLA's PrimitiveType. */
typedef enum ffi_dtype {
    FFI_PRED = 1,
    FFI_S8 = 2,
    FFI_S16 = 3,
    FFI_S32 = 4,
    FFI_S64 = 5,
    FFI_U8 = 6,
    FFI_U16 = 7,
    FFI_U32 = 8,
    FFI_U64 = 9,
    FFI_F16 = 10,
    FFI_F32 = 11,
    FFI_F64 = 12,
    FFI_C64 = 15,
    FFI_BF16 = 16,
    FFI_TOKEN = 17,
    FFI_C128 = 18,
    FFI_F8E5M2 = 19,
    FFI_F8E4M3FN = 20,
    FFI_F8E4M3B11FNUZ = 23,
    FFI_F8E5M2FNUZ = 24,
    FFI_F8E4M3FNUZ = 25,
    FFI_F8E4M3 = 28,
    FFI_F8E3M4 = 29,
    FFI_F8E8M0FNU = 33
} ffi_dtype;

typedef enum ffi_error_code { FFI_ABORTED = 10, FFI_INTERNAL = 13 } ffi_error_code;

enum {
    FFI_EXTENSION_METADATA = 1,
    FFI_STAGE_INSTANTIATE = 0,
    FFI_STAGE_EXECUTE = 3,
    FFI_KIND_BUFFER = 1,
    FFI_ATTRIBUTE_ARRAY = 1,
    FFI_ATTRIBUTE_SCALAR = 3,
    FFI_ATTRIBUTE_STRING = 4
};

typedef struct ffi_error ffi_error; /* XLA's own; its receiver destroys it */

typedef struct ffi_extension {
    size_t struct_size;
    int type;
    struct ffi_extension *next;
} ffi_extension;

typedef struct ffi_version {
    size_t struct_size;
    ffi_extension *extension_start;
    int major_version;
    int minor_version;
} ffi_version;

typedef struct ffi_error_create_args {
    size_t struct_size;
    ffi_extension *extension_start;
    const char *message; /* XLA copies it */
    int code;
} ffi_error_create_args;

typedef struct ffi_error_destroy_args {
    size_t struct_size;
    ffi_extension *extension_start;
    ffi_error *error;
} ffi_error_destroy_args;

typedef struct ffi_stream_get_args {
    size_t struct_size;
    ffi_extension *extension_start;
    void *context; /* of the call frame */
    void *stream;  /* written: the platform's stream, as its driver has it */
} ffi_stream_get_args;

typedef struct ffi_type_info {
    size_t struct_size;
    ffi_extension *extension_start;
    void (*deleter)(void *object);
} ffi_type_info;

typedef struct ffi_bytes {
    const char *ptr; /* not NUL-terminated */
    size_t len;
} ffi_bytes;

typedef struct ffi_type_register_args {
    size_t struct_size;
    ffi_extension *extension_start;
    ffi_bytes name;
    int64_t *type_id; /* written; before, 0 */
    const ffi_type_info *type_info;
} ffi_type_register_args;

/* The arguments of state_set, and of state_get, which writes `state`. */
typedef struct ffi_state_args {
    size_t struct_size;
    ffi_extension *extension_start;
    void *context; /* of the call frame */
    int stage;     /* whose state it is */
    int64_t *type_id;
    void *state;
} ffi_state_args;

typedef struct ffi_future ffi_future; /* XLA's own: how a call that has not ended yet will end */

typedef struct ffi_future_create_args {
    size_t struct_size;
    ffi_extension *extension_start;
    ffi_future *future; /* written */
} ffi_future_create_args;

typedef struct ffi_future_set_available_args {
    size_t struct_size;
    ffi_extension *extension_start;
    ffi_future *future;
} ffi_future_set_available_args;

typedef struct ffi_future_set_error_args {
    size_t struct_size;
    ffi_extension *extension_start;
    ffi_future *future;
    ffi_error *error; /* which becomes XLA's */
} ffi_future_set_error_args;

typedef struct ffi_api {
    size_t struct_size;
    ffi_extension *extension_start;
    ffi_version api_version;
    const void *internal_api;
    ffi_error *(*error_create)(ffi_error_create_args *args);
    void (*error_get_message)(void *args);
    void (*error_destroy)(ffi_error_destroy_args *args);
    ffi_error *(*handler_register)(void *args);
    ffi_error *(*stream_get)(ffi_stream_get_args *args);
    ffi_error *(*type_register)(ffi_type_register_args *args);
    void (*context_get)(void);
    ffi_error *(*state_set)(ffi_state_args *args);
    ffi_error *(*state_get)(ffi_state_args *args);
    void (*not_used[4])(void);
    /* Not in every jaxlib: see ffi_has_futures. */
    ffi_error *(*future_create)(ffi_future_create_args *args);
    ffi_error *(*future_set_available)(ffi_future_set_available_args *args);
    ffi_error *(*future_set_error)(ffi_future_set_error_args *args);
} ffi_api;

typedef struct ffi_buffer {
    size_t struct_size;
    ffi_extension *extension_start;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims; /* `rank` of them */
} ffi_buffer;

typedef struct ffi_scalar {
    int dtype;
    void *value;
} ffi_scalar;

typedef struct ffi_array {
    int dtype;
    size_t size; /* elements */
    void *data;
} ffi_array;

typedef struct ffi_buffers { /* operands, and in the same layout results */
    size_t struct_size;
    ffi_extension *extension_start;
    int64_t size;
    int *types; /* `size` of them, FFI_KIND_BUFFER */
    void **buffers;
} ffi_buffers;

typedef struct ffi_attributes {
    size_t struct_size;
    ffi_extension *extension_start;
    int64_t size;
    int *types;
    ffi_bytes **names; /* sorted */
    void **values;
} ffi_attributes;

typedef struct ffi_call_frame {
    size_t struct_size;
    ffi_extension *extension_start;
    const ffi_api *api;
    void *context;
    int stage;
    ffi_buffers args;
    ffi_buffers rets;
    ffi_attributes attrs;
    ffi_future *future; /* written by a handler that returns before its call has ended; not in every jaxlib */
} ffi_call_frame;

typedef struct ffi_metadata {
    size_t struct_size;
    ffi_version api_version;
    uint32_t traits;
} ffi_metadata;

typedef struct ffi_metadata_extension {
    ffi_extension base;
    ffi_metadata *metadata;
} ffi_metadata_extension;

typedef ffi_error *ffi_handler(ffi_call_frame *frame);

#endif
