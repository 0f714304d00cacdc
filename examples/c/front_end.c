#include "front_end.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

void give_up(const char *what) {
    fprintf(stderr, "%s: %s\n", what, mpixla_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void start(void) {
    if (mpixla_abi_version() != MPIXLA_ABI_VERSION) {
        fprintf(stderr,
                "this program was built for ABI version %d of libmpixla, but the library has %d: build it again\n",
                MPIXLA_ABI_VERSION, mpixla_abi_version());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, *tag_ub, is_there;
    MPI_Get_library_version(version, &length);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_ub, &is_there);
    const mpixla_mpi_facts facts = {
        .struct_size = sizeof facts,
        .library = NULL, /* this program is linked with MPI */
        .handle_size = sizeof(MPI_Comm),
        .status_size = sizeof(MPI_Status),
        .status_source = offsetof(MPI_Status, MPI_SOURCE),
        .status_tag = offsetof(MPI_Status, MPI_TAG),
        .any_source = MPI_ANY_SOURCE,
        .any_tag = MPI_ANY_TAG,
        .tag_ub = is_there ? *tag_ub : 32767, /* which every MPI has */
        .proc_null = MPI_PROC_NULL,
        .in_place = (intptr_t)MPI_IN_PLACE,
        .match_first = strstr(version, "MPICH") != NULL,
        .cart = MPI_CART,
        .graph = MPI_GRAPH,
        .dist_graph = MPI_DIST_GRAPH,
        .max_error_string = MPI_MAX_ERROR_STRING,
        .err_truncate = MPI_ERR_TRUNCATE,
        .comm_world = HANDLE(MPI_COMM_WORLD),
        .comm_self = HANDLE(MPI_COMM_SELF),
    };
    if (mpixla_start(&facts) != 0) give_up("mpixla_start");
}

typedef struct named_handle {
    const char *name;
    mpixla_handle handle;
} named_handle;
#define NAMED(handle) {#handle, HANDLE(handle)}

static mpixla_handle find(const named_handle *handles, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(handles[i].name, name) == 0) return handles[i].handle;
    fprintf(stderr, "this front end does not know %s, which libmpixla asks for\n", name);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 0;
}

static void bind_datatypes(void) {
    const named_handle handles[] = {
        NAMED(MPI_C_BOOL),           NAMED(MPI_INT8_T),  NAMED(MPI_INT16_T),  NAMED(MPI_INT32_T),
        NAMED(MPI_INT64_T),          NAMED(MPI_UINT8_T), NAMED(MPI_UINT16_T), NAMED(MPI_UINT32_T),
        NAMED(MPI_UINT64_T),         NAMED(MPI_FLOAT),   NAMED(MPI_DOUBLE),   NAMED(MPI_C_FLOAT_COMPLEX),
        NAMED(MPI_C_DOUBLE_COMPLEX),
    };
    size_t rows, size;
    const mpixla_dtype_row *row = mpixla_dtype_table(&rows, &size);
    for (; rows > 0; row = MPIXLA_NEXT_ROW(mpixla_dtype_row, row, size), rows--)
        if (mpixla_datatype_bind(row->mpi_name, find(handles, sizeof handles / sizeof *handles, row->mpi_name)) != 0)
            give_up("mpixla_datatype_bind");
}

static void bind_reductions(void) {
    const named_handle handles[] = {
        NAMED(MPI_SUM),  NAMED(MPI_PROD), NAMED(MPI_MAX), NAMED(MPI_MIN),  NAMED(MPI_LAND),   NAMED(MPI_LOR),
        NAMED(MPI_LXOR), NAMED(MPI_BAND), NAMED(MPI_BOR), NAMED(MPI_BXOR), NAMED(MPI_MAXLOC), NAMED(MPI_MINLOC),
    };
    size_t rows, size;
    const mpixla_reduction_row *row = mpixla_reduction_table(&rows, &size);
    for (; rows > 0; row = MPIXLA_NEXT_ROW(mpixla_reduction_row, row, size), rows--)
        if (mpixla_reduction_bind(row->name, find(handles, sizeof handles / sizeof *handles, row->name)) != 0)
            give_up("mpixla_reduction_bind");
}

void connect_mpi(void) {
    start();
    bind_datatypes();
    bind_reductions();
}

static void register_handler(const XLA_FFI_Api *api, const char *name, const char *platform, mpixla_handler *handler) {
    char target[64];
    snprintf(target, sizeof target, "mpixla_%s", name);
    XLA_FFI_Handler_Register_Args args = {
        .struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE,
        .name = {target, strlen(target)},
        .platform = {platform, strlen(platform)},
        .bundle = {.execute = (XLA_FFI_Handler *)handler},
    };
    if (api->XLA_FFI_Handler_Register(&args)) {
        fprintf(stderr, "XLA does not take the handler %s for %s\n", target, platform);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void register_for_all(const XLA_FFI_Api *api, const char *name, mpixla_handler *host, mpixla_handler *device) {
    register_handler(api, name, "Host", host);
    register_handler(api, name, "CUDA", device);
    register_handler(api, name, "ROCM", device);
}

void register_handlers(const XLA_FFI_Api *api) {
    size_t rows, size;
    const mpixla_op_row *op = mpixla_op_table(&rows, &size);
    for (; rows > 0; op = MPIXLA_NEXT_ROW(mpixla_op_row, op, size), rows--)
        register_for_all(api, op->name, op->host_handler, op->device_handler);
    const mpixla_helper_row *helper = mpixla_helper_table(&rows, &size);
    for (; rows > 0; helper = MPIXLA_NEXT_ROW(mpixla_helper_row, helper, size), rows--)
        register_for_all(api, helper->name, helper->host_handler, helper->device_handler);
}

int64_t reduction_number(const char *name) {
    size_t rows, size;
    const mpixla_reduction_row *row = mpixla_reduction_table(&rows, &size);
    for (size_t i = 0; i < rows; i++, row = MPIXLA_NEXT_ROW(mpixla_reduction_row, row, size))
        if (strcmp(row->name, name) == 0) return (int64_t)i;
    return -1;
}
