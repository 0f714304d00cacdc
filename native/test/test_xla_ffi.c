/* native/xla/xla_ffi.h against the header of a jaxlib: it compiles if they agree. Types whose names change between
 * jaxlibs are not named. */
#include "xla/ffi/api/c_api.h"
#include "xla/xla_ffi.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " differs from " #theirs)
#define SAME_FIELD(ours, field, theirs, their_field)                                     \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, their_field) &&             \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->their_field), \
                   #ours "." #field " is elsewhere than " #theirs "." #their_field)
#define SAME_1(ours, theirs, field) SAME_FIELD(ours, field, theirs, field)
#define SAME_2(ours, theirs, field, ...) \
    SAME_1(ours, theirs, field);         \
    SAME_1(ours, theirs, __VA_ARGS__)
#define SAME_3(ours, theirs, field, ...) \
    SAME_1(ours, theirs, field);         \
    SAME_2(ours, theirs, __VA_ARGS__)
#define SAME_4(ours, theirs, field, ...) \
    SAME_1(ours, theirs, field);         \
    SAME_3(ours, theirs, __VA_ARGS__)
#define SAME_HEAD(ours, theirs)                         \
    SAME_FIELD(ours, struct_size, theirs, struct_size); \
    SAME_FIELD(ours, extension_start, theirs, extension_start)

SAME(FFI_VERSION_MAJOR, XLA_FFI_API_MAJOR);
_Static_assert(FFI_VERSION_MINOR <= XLA_FFI_API_MINOR, "this jaxlib is older than what libmpixla announces");

#define SAME_TYPE(name) SAME(FFI_##name, XLA_FFI_DataType_##name)
SAME_TYPE(PRED);
SAME_TYPE(S8);
SAME_TYPE(S16);
SAME_TYPE(S32);
SAME_TYPE(S64);
SAME_TYPE(U8);
SAME_TYPE(U16);
SAME_TYPE(U32);
SAME_TYPE(U64);
SAME_TYPE(F16);
SAME_TYPE(F32);
SAME_TYPE(F64);
SAME_TYPE(C64);
SAME_TYPE(BF16);
SAME_TYPE(TOKEN);
SAME_TYPE(C128);
SAME_TYPE(F8E5M2);
SAME_TYPE(F8E4M3FN);
SAME_TYPE(F8E4M3B11FNUZ);
SAME_TYPE(F8E5M2FNUZ);
SAME_TYPE(F8E4M3FNUZ);
SAME_TYPE(F8E4M3);
SAME_TYPE(F8E3M4);
SAME_TYPE(F8E8M0FNU);

SAME(FFI_ABORTED, XLA_FFI_Error_Code_ABORTED);
SAME(FFI_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
SAME(FFI_EXTENSION_METADATA, XLA_FFI_Extension_Metadata);
SAME(FFI_STAGE_INSTANTIATE, XLA_FFI_ExecutionStage_INSTANTIATE);
SAME(FFI_STAGE_EXECUTE, XLA_FFI_ExecutionStage_EXECUTE);
SAME(FFI_KIND_BUFFER, XLA_FFI_ArgType_BUFFER);
SAME(FFI_KIND_BUFFER, XLA_FFI_RetType_BUFFER);
SAME(FFI_ATTRIBUTE_ARRAY, XLA_FFI_AttrType_ARRAY);
SAME(FFI_ATTRIBUTE_SCALAR, XLA_FFI_AttrType_SCALAR);
SAME(FFI_ATTRIBUTE_STRING, XLA_FFI_AttrType_STRING);

/* The extension's type has two names, but is the first member here in both. */
typedef __typeof__(((XLA_FFI_Metadata_Extension *)0)->extension_base) extension_base;
SAME_3(ffi_extension, extension_base, struct_size, type, next);
SAME_FIELD(ffi_metadata_extension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME_FIELD(ffi_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME_3(ffi_metadata, XLA_FFI_Metadata, struct_size, api_version, traits);

SAME_HEAD(ffi_version, XLA_FFI_Api_Version);
SAME_2(ffi_version, XLA_FFI_Api_Version, major_version, minor_version);

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

SAME_HEAD(ffi_type_info, XLA_FFI_TypeInfo);
SAME_FIELD(ffi_type_info, deleter, XLA_FFI_TypeInfo, deleter);
SAME_HEAD(ffi_type_register_args, XLA_FFI_Type_Register_Args);
SAME_3(ffi_type_register_args, XLA_FFI_Type_Register_Args, name, type_id, type_info);
_Static_assert(sizeof(XLA_FFI_TypeId) == sizeof(int64_t), "a type's id is another number");

SAME_HEAD(ffi_state_args, XLA_FFI_State_Set_Args);
SAME_FIELD(ffi_state_args, context, XLA_FFI_State_Set_Args, ctx);
SAME_3(ffi_state_args, XLA_FFI_State_Set_Args, stage, type_id, state);
SAME_HEAD(ffi_state_args, XLA_FFI_State_Get_Args);
SAME_FIELD(ffi_state_args, context, XLA_FFI_State_Get_Args, ctx);
SAME_3(ffi_state_args, XLA_FFI_State_Get_Args, stage, type_id, state);

SAME_HEAD(ffi_future_create_args, XLA_FFI_Future_Create_Args);
SAME_FIELD(ffi_future_create_args, future, XLA_FFI_Future_Create_Args, future);
SAME_HEAD(ffi_future_set_available_args, XLA_FFI_Future_SetAvailable_Args);
SAME_FIELD(ffi_future_set_available_args, future, XLA_FFI_Future_SetAvailable_Args, future);
SAME_HEAD(ffi_future_set_error_args, XLA_FFI_Future_SetError_Args);
SAME_2(ffi_future_set_error_args, XLA_FFI_Future_SetError_Args, future, error);

SAME_HEAD(ffi_api, XLA_FFI_Api);
SAME_2(ffi_api, XLA_FFI_Api, api_version, internal_api);
SAME_FIELD(ffi_api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_FIELD(ffi_api, error_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME_FIELD(ffi_api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME_FIELD(ffi_api, type_register, XLA_FFI_Api, XLA_FFI_Type_Register);
SAME_FIELD(ffi_api, state_set, XLA_FFI_Api, XLA_FFI_State_Set);
SAME_FIELD(ffi_api, state_get, XLA_FFI_Api, XLA_FFI_State_Get);
SAME_FIELD(ffi_api, future_create, XLA_FFI_Api, XLA_FFI_Future_Create);
SAME_FIELD(ffi_api, future_set_available, XLA_FFI_Api, XLA_FFI_Future_SetAvailable);
SAME_FIELD(ffi_api, future_set_error, XLA_FFI_Api, XLA_FFI_Future_SetError);

SAME_HEAD(ffi_buffer, XLA_FFI_Buffer);
SAME_4(ffi_buffer, XLA_FFI_Buffer, dtype, data, rank, dims);

SAME_2(ffi_bytes, XLA_FFI_ByteSpan, ptr, len);
SAME_2(ffi_scalar, XLA_FFI_Scalar, dtype, value);
SAME_3(ffi_array, XLA_FFI_Array, dtype, size, data);

SAME_HEAD(ffi_buffers, XLA_FFI_Args);
SAME_2(ffi_buffers, XLA_FFI_Args, size, types);
SAME_FIELD(ffi_buffers, buffers, XLA_FFI_Args, args);
SAME_HEAD(ffi_buffers, XLA_FFI_Rets);
SAME_2(ffi_buffers, XLA_FFI_Rets, size, types);
SAME_FIELD(ffi_buffers, buffers, XLA_FFI_Rets, rets);

SAME_HEAD(ffi_attributes, XLA_FFI_Attrs);
SAME_3(ffi_attributes, XLA_FFI_Attrs, size, types, names);
SAME_FIELD(ffi_attributes, values, XLA_FFI_Attrs, attrs);

/* Embedded structs, so their sizes count too. */
SAME_HEAD(ffi_call_frame, XLA_FFI_CallFrame);
SAME_FIELD(ffi_call_frame, api, XLA_FFI_CallFrame, api);
SAME_FIELD(ffi_call_frame, context, XLA_FFI_CallFrame, ctx);
SAME_4(ffi_call_frame, XLA_FFI_CallFrame, stage, args, rets, attrs);
SAME_FIELD(ffi_call_frame, future, XLA_FFI_CallFrame, future);

/* Enums are read as ints. */
_Static_assert(sizeof(XLA_FFI_DataType) == sizeof(int) && sizeof(XLA_FFI_AttrType) == sizeof(int),
               "enums are not ints");

int main(void) {
    return 0;
}
