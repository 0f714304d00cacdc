#include "xla.h"

#include <stdio.h>
#include <string.h>

struct XLA_FFI_Error {
    char message[4096];
};
static XLA_FFI_Error the_error;

static XLA_FFI_Error *error_create(XLA_FFI_Error_Create_Args *args) {
    snprintf(the_error.message, sizeof the_error.message, "%s", args->message);
    return &the_error;
}

static struct registered {
    char target[64], platform[16];
    XLA_FFI_Handler *handler;
} registry[256];
static size_t registered;

static void copy(char *text, size_t bytes, XLA_FFI_ByteSpan span) {
    snprintf(text, bytes, "%.*s", (int)span.len, span.ptr);
}

static XLA_FFI_Error *handler_register(XLA_FFI_Handler_Register_Args *args) {
    static XLA_FFI_Error full = {"the registry is full"};
    if (registered == sizeof registry / sizeof *registry) return &full;
    struct registered *r = &registry[registered++];
    copy(r->target, sizeof r->target, args->name);
    copy(r->platform, sizeof r->platform, args->platform);
    r->handler = args->bundle.execute;
    return NULL;
}

static const XLA_FFI_Api api = {
    .struct_size = XLA_FFI_Api_STRUCT_SIZE,
    .api_version = {.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE,
                    .major_version = XLA_FFI_API_MAJOR,
                    .minor_version = XLA_FFI_API_MINOR},
    .XLA_FFI_Error_Create = error_create,
    .XLA_FFI_Handler_Register = handler_register,
};

const XLA_FFI_Api *xla_api(void) {
    return &api;
}

static XLA_FFI_Handler *find(const char *target) {
    for (size_t i = 0; i < registered; i++)
        if (strcmp(registry[i].target, target) == 0 && strcmp(registry[i].platform, "Host") == 0)
            return registry[i].handler;
    return NULL;
}

/* Returns how many there are. */
static int64_t buffers_make(const array *arrays, XLA_FFI_Buffer *buffers, void **pointers) {
    int64_t n = 0;
    for (; n < XLA_MOST && arrays[n].type != XLA_FFI_DataType_INVALID; n++) {
        buffers[n] = (XLA_FFI_Buffer){.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
                                      .dtype = arrays[n].type,
                                      .data = arrays[n].data,
                                      .rank = 1,
                                      .dims = (int64_t *)&arrays[n].size};
        pointers[n] = &buffers[n];
    }
    return n;
}

const char *xla_run(const custom_call *call) {
    XLA_FFI_Handler *handler = find(call->target);
    if (!handler) return "no handler is registered for this target";

    XLA_FFI_Buffer operands[XLA_MOST], results[XLA_MOST];
    XLA_FFI_ArgType operand_types[XLA_MOST];
    XLA_FFI_RetType result_types[XLA_MOST];
    void *operand_pointers[XLA_MOST], *result_pointers[XLA_MOST];

    XLA_FFI_ByteSpan names[XLA_MOST], *name_pointers[XLA_MOST];
    XLA_FFI_Scalar scalars[XLA_MOST];
    XLA_FFI_AttrType attribute_types[XLA_MOST];
    void *scalar_pointers[XLA_MOST];

    int64_t attributes = 0;
    for (; attributes < XLA_MOST && call->attributes[attributes].name; attributes++) {
        const attribute *a = &call->attributes[attributes];
        names[attributes] = (XLA_FFI_ByteSpan){a->name, strlen(a->name)};
        scalars[attributes] = (XLA_FFI_Scalar){XLA_FFI_DataType_S64, (void *)&a->value};
        attribute_types[attributes] = XLA_FFI_AttrType_SCALAR;
        name_pointers[attributes] = &names[attributes];
        scalar_pointers[attributes] = &scalars[attributes];
    }
    for (int i = 0; i < XLA_MOST; i++) {
        operand_types[i] = XLA_FFI_ArgType_BUFFER;
        result_types[i] = XLA_FFI_RetType_BUFFER;
    }
    XLA_FFI_CallFrame frame = {
        .struct_size = XLA_FFI_CallFrame_STRUCT_SIZE,
        .api = &api,
        .stage = XLA_FFI_ExecutionStage_EXECUTE,
        .args = {.struct_size = XLA_FFI_Args_STRUCT_SIZE,
                 .size = buffers_make(call->operands, operands, operand_pointers),
                 .types = operand_types,
                 .args = operand_pointers},
        .rets = {.struct_size = XLA_FFI_Rets_STRUCT_SIZE,
                 .size = buffers_make(call->results, results, result_pointers),
                 .types = result_types,
                 .rets = result_pointers},
        .attrs = {.struct_size = XLA_FFI_Attrs_STRUCT_SIZE,
                  .size = attributes,
                  .types = attribute_types,
                  .names = name_pointers,
                  .attrs = scalar_pointers},
    };
    XLA_FFI_Error *error = handler(&frame);
    return error ? error->message : NULL;
}
