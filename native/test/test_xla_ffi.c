/* native/xla/xla_ffi.h against the header of a jaxlib: it compiles if they agree. Types whose names change between
 * jaxlibs are not named. */
#include "xla/ffi/api/c_api.h"
#include "xla/xla_ffi.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " differs from " #theirs)
#define SAME_FIELD(ours, field, theirs, their_field)                                     \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, their_field) &&             \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->their_field), \
                   #ours "." #field " is elsewhere than " #theirs "." #their_field)
#define SAME_HEAD(ours, theirs)                         \
    SAME_FIELD(ours, struct_size, theirs, struct_size); \
    SAME_FIELD(ours, extension_start, theirs, extension_start)

SAME(FFI_VERSION_MAJOR, XLA_FFI_API_MAJOR);
_Static_assert(FFI_VERSION_MINOR <= XLA_FFI_API_MINOR, "this jaxlib is older than what libmpixla announces");

SAME(FFI_PRED, XLA_FFI_DataType_PRED);
SAME(FFI_S8, XLA_FFI_DataType_S8);
SAME(FFI_S16, XLA_FFI_DataType_S16);
SAME(FFI_S32, XLA_FFI_DataType_S32);
SAME(FFI_S64, XLA_FFI_DataType_S64);
SAME(FFI_U8, XLA_FFI_DataType_U8);
SAME(FFI_U16, XLA_FFI_DataType_U16);
SAME(FFI_U32, XLA_FFI_DataType_U32);
SAME(FFI_U64, XLA_FFI_DataType_U64);
SAME(FFI_F16, XLA_FFI_DataType_F16);
SAME(FFI_F32, XLA_FFI_DataType_F32);
SAME(FFI_F64, XLA_FFI_DataType_F64);
SAME(FFI_C64, XLA_FFI_DataType_C64);
SAME(FFI_BF16, XLA_FFI_DataType_BF16);
SAME(FFI_TOKEN, XLA_FFI_DataType_TOKEN);
SAME(FFI_C128, XLA_FFI_DataType_C128);
SAME(FFI_F8E5M2, XLA_FFI_DataType_F8E5M2);
SAME(FFI_F8E4M3FN, XLA_FFI_DataType_F8E4M3FN);
SAME(FFI_F8E4M3B11FNUZ, XLA_FFI_DataType_F8E4M3B11FNUZ);
SAME(FFI_F8E5M2FNUZ, XLA_FFI_DataType_F8E5M2FNUZ);
SAME(FFI_F8E4M3FNUZ, XLA_FFI_DataType_F8E4M3FNUZ);
SAME(FFI_F8E4M3, XLA_FFI_DataType_F8E4M3);
SAME(FFI_F8E3M4, XLA_FFI_DataType_F8E3M4);
SAME(FFI_F8E8M0FNU, XLA_FFI_DataType_F8E8M0FNU);

SAME(FFI_FAILED_PRECONDITION, XLA_FFI_Error_Code_FAILED_PRECONDITION);
SAME(FFI_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
SAME(FFI_EXTENSION_METADATA, XLA_FFI_Extension_Metadata);
SAME(FFI_STAGE_EXECUTE, XLA_FFI_ExecutionStage_EXECUTE);
SAME(FFI_KIND_BUFFER, XLA_FFI_ArgType_BUFFER);
SAME(FFI_KIND_BUFFER, XLA_FFI_RetType_BUFFER);
SAME(FFI_ATTRIBUTE_ARRAY, XLA_FFI_AttrType_ARRAY);
SAME(FFI_ATTRIBUTE_SCALAR, XLA_FFI_AttrType_SCALAR);
SAME(FFI_ATTRIBUTE_STRING, XLA_FFI_AttrType_STRING);

/* The extension's type has two names, but is the first member here in both. */
typedef __typeof__(((XLA_FFI_Metadata_Extension *)0)->extension_base) extension_base;
SAME_FIELD(ffi_extension, struct_size, extension_base, struct_size);
SAME_FIELD(ffi_extension, type, extension_base, type);
SAME_FIELD(ffi_extension, next, extension_base, next);
SAME_FIELD(ffi_metadata_extension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME_FIELD(ffi_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME_FIELD(ffi_metadata, struct_size, XLA_FFI_Metadata, struct_size);
SAME_FIELD(ffi_metadata, api_version, XLA_FFI_Metadata, api_version);
SAME_FIELD(ffi_metadata, traits, XLA_FFI_Metadata, traits);

SAME_HEAD(ffi_version, XLA_FFI_Api_Version);
SAME_FIELD(ffi_version, major_version, XLA_FFI_Api_Version, major_version);
SAME_FIELD(ffi_version, minor_version, XLA_FFI_Api_Version, minor_version);

SAME_HEAD(ffi_error_create_args, XLA_FFI_Error_Create_Args);
SAME_FIELD(ffi_error_create_args, message, XLA_FFI_Error_Create_Args, message);
SAME_FIELD(ffi_error_create_args, code, XLA_FFI_Error_Create_Args, errc);
/* XLA checks the size that we give. */
_Static_assert(sizeof(ffi_error_create_args) >= XLA_FFI_Error_Create_Args_STRUCT_SIZE, "too small for XLA");

SAME_HEAD(ffi_error_destroy_args, XLA_FFI_Error_Destroy_Args);
SAME_FIELD(ffi_error_destroy_args, error, XLA_FFI_Error_Destroy_Args, error);

SAME_HEAD(ffi_stream_get_args, XLA_FFI_Stream_Get_Args);
SAME_FIELD(ffi_stream_get_args, context, XLA_FFI_Stream_Get_Args, ctx);
SAME_FIELD(ffi_stream_get_args, stream, XLA_FFI_Stream_Get_Args, stream);

SAME_HEAD(ffi_future_create_args, XLA_FFI_Future_Create_Args);
SAME_FIELD(ffi_future_create_args, future, XLA_FFI_Future_Create_Args, future);
SAME_HEAD(ffi_future_set_available_args, XLA_FFI_Future_SetAvailable_Args);
SAME_FIELD(ffi_future_set_available_args, future, XLA_FFI_Future_SetAvailable_Args, future);
SAME_HEAD(ffi_future_set_error_args, XLA_FFI_Future_SetError_Args);
SAME_FIELD(ffi_future_set_error_args, future, XLA_FFI_Future_SetError_Args, future);
SAME_FIELD(ffi_future_set_error_args, error, XLA_FFI_Future_SetError_Args, error);

SAME_HEAD(ffi_api, XLA_FFI_Api);
SAME_FIELD(ffi_api, api_version, XLA_FFI_Api, api_version);
SAME_FIELD(ffi_api, internal_api, XLA_FFI_Api, internal_api);
SAME_FIELD(ffi_api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_FIELD(ffi_api, error_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME_FIELD(ffi_api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME_FIELD(ffi_api, future_create, XLA_FFI_Api, XLA_FFI_Future_Create);
SAME_FIELD(ffi_api, future_set_available, XLA_FFI_Api, XLA_FFI_Future_SetAvailable);
SAME_FIELD(ffi_api, future_set_error, XLA_FFI_Api, XLA_FFI_Future_SetError);

SAME_HEAD(ffi_buffer, XLA_FFI_Buffer);
SAME_FIELD(ffi_buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_FIELD(ffi_buffer, data, XLA_FFI_Buffer, data);
SAME_FIELD(ffi_buffer, rank, XLA_FFI_Buffer, rank);
SAME_FIELD(ffi_buffer, dims, XLA_FFI_Buffer, dims);

SAME_FIELD(ffi_bytes, ptr, XLA_FFI_ByteSpan, ptr);
SAME_FIELD(ffi_bytes, len, XLA_FFI_ByteSpan, len);
SAME_FIELD(ffi_scalar, dtype, XLA_FFI_Scalar, dtype);
SAME_FIELD(ffi_scalar, value, XLA_FFI_Scalar, value);
SAME_FIELD(ffi_array, dtype, XLA_FFI_Array, dtype);
SAME_FIELD(ffi_array, size, XLA_FFI_Array, size);
SAME_FIELD(ffi_array, data, XLA_FFI_Array, data);

SAME_HEAD(ffi_buffers, XLA_FFI_Args);
SAME_FIELD(ffi_buffers, size, XLA_FFI_Args, size);
SAME_FIELD(ffi_buffers, types, XLA_FFI_Args, types);
SAME_FIELD(ffi_buffers, buffers, XLA_FFI_Args, args);
SAME_HEAD(ffi_buffers, XLA_FFI_Rets);
SAME_FIELD(ffi_buffers, size, XLA_FFI_Rets, size);
SAME_FIELD(ffi_buffers, types, XLA_FFI_Rets, types);
SAME_FIELD(ffi_buffers, buffers, XLA_FFI_Rets, rets);

SAME_HEAD(ffi_attributes, XLA_FFI_Attrs);
SAME_FIELD(ffi_attributes, size, XLA_FFI_Attrs, size);
SAME_FIELD(ffi_attributes, types, XLA_FFI_Attrs, types);
SAME_FIELD(ffi_attributes, names, XLA_FFI_Attrs, names);
SAME_FIELD(ffi_attributes, values, XLA_FFI_Attrs, attrs);

/* Embedded structs, so their sizes count too. */
SAME_HEAD(ffi_call_frame, XLA_FFI_CallFrame);
SAME_FIELD(ffi_call_frame, api, XLA_FFI_CallFrame, api);
SAME_FIELD(ffi_call_frame, context, XLA_FFI_CallFrame, ctx);
SAME_FIELD(ffi_call_frame, stage, XLA_FFI_CallFrame, stage);
SAME_FIELD(ffi_call_frame, args, XLA_FFI_CallFrame, args);
SAME_FIELD(ffi_call_frame, rets, XLA_FFI_CallFrame, rets);
SAME_FIELD(ffi_call_frame, attrs, XLA_FFI_CallFrame, attrs);
SAME_FIELD(ffi_call_frame, future, XLA_FFI_CallFrame, future);

/* Enums are read as ints. */
_Static_assert(sizeof(XLA_FFI_DataType) == sizeof(int) && sizeof(XLA_FFI_AttrType) == sizeof(int),
               "enums are not ints");

int main(void) {
    return 0;
}
