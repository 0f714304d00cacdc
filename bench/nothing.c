/* An XLA call that does nothing: what XLA itself takes for each call inside a program. bench/jax_worker.py loads it. */
#include <stddef.h>
#include <xla/ffi/api/c_api.h>

XLA_FFI_Error *nothing(XLA_FFI_CallFrame *frame);

XLA_FFI_Error *nothing(XLA_FFI_CallFrame *frame) {
    /* XLA asks once which version of its interface this was compiled for. */
    for (XLA_FFI_Extension_Base *e = frame->extension_start; e; e = e->next)
        if (e->type == XLA_FFI_Extension_Metadata)
            ((XLA_FFI_Metadata_Extension *)e)->metadata->api_version =
                (XLA_FFI_Api_Version){XLA_FFI_Api_Version_STRUCT_SIZE, NULL, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    return NULL;
}
