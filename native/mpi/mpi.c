/* Finds the MPI that this process has loaded and connects the library to it.
 *
 * The front end names a file that is loaded already and depends on MPI (mpi4py's extension module is one), or none if
 * the program itself does. dlsym on it also searches its dependencies, so the MPI that is found is the one that the
 * front end uses, and the library needs neither MPI's headers nor its file name.
 *
 * A tool that intercepts MPI (PMPI) was preloaded, and has functions of the same names. The dynamic linker binds the
 * front end to these, and dlsym on the front end's file passes them by. So functions are looked up in the global scope
 * first, as the linker does, provided that it is the same MPI which is global: another may be, that of a library which
 * has nothing to do with this one.
 */
#define _GNU_SOURCE /* dladdr, RTLD_DEFAULT; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include "mpi/mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/loader.h"
#include "mpi/dtype.h"
#include "xla/xla_ffi.h"

static mpi_library library = {.count_limit = INT_MAX};
static const mpi_library *connected;
static char own_file[4096], tool_file[4096]; /* mpixla_mpi_file, mpixla_mpi_tool */

/* The functions that move data, which a tool is about. */
static const char *const communicating[] = {
#define MPIXLA_MPI_COUNTED(name, function, function_c, prototype, arguments) #function, #function_c,
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
    "MPI_Barrier",
};

const mpi_library *mpi_get(void) {
    return connected;
}

/* Returns whether an MPI_Status can have an int at this offset. */
static int mpi_status_has_int_at(int64_t at) {
    return at >= 0 && at + (int64_t)sizeof(int) <= MPI_STATUS_BYTES;
}

/* Checks the front end's facts of MPI against the limits of this library. Returns 0 or REFUSED. */
static int mpi_facts_check(const mpixla_mpi_facts *facts) {
    if (facts->struct_size != sizeof *facts)
        return error_set(
            "mpixla_start was given facts of %zu bytes, but this library expects %zu: the Python "
            "package and libmpixla are of different versions; install mpixla again",
            facts->struct_size, sizeof *facts);
    if (facts->status_size > MPI_STATUS_BYTES)
        return error_set(
            "this MPI's MPI_Status has %lld bytes, more than the %d that libmpixla reserves; please "
            "report this MPI to mpixla",
            (long long)facts->status_size, MPI_STATUS_BYTES);
    if (!mpi_status_has_int_at(facts->status_source) || !mpi_status_has_int_at(facts->status_tag))
        return error_set(
            "an MPI_Status has its source and its tag in its first %d bytes, but bytes %lld and %lld were "
            "given",
            MPI_STATUS_BYTES, (long long)facts->status_source, (long long)facts->status_tag);
    if (facts->max_error_string > MPI_ERROR_BYTES)
        return error_set(
            "this MPI's error texts have up to %lld bytes, more than the %d that libmpixla reserves; "
            "please report this MPI to mpixla",
            (long long)facts->max_error_string, MPI_ERROR_BYTES);
    return 0;
}

/* Writes the path of the file that a function was loaded from; "" if unknown. */
static void mpi_function_file(void *function, char *file, size_t bytes) {
    Dl_info info;
    snprintf(file, bytes, "%s", function && dladdr(function, &info) && info.dli_fname ? info.dli_fname : "");
}

/* Returns the handle for dlsym that finds MPI's functions as the dynamic linker does: that of the global scope if it
 * has the same MPI as `loaded`, else `loaded`. */
static void *mpi_scope_choose(void *loaded) {
    void *global = NULL, *local = NULL;
    (void)loader_function(RTLD_DEFAULT, "PMPI_Comm_rank", &global);
    (void)loader_function(loaded, "PMPI_Comm_rank", &local);
    return global && global == local ? RTLD_DEFAULT : loaded;
}

/* Sets own_file to the file of MPI, "" if unknown, and tool_file to that of a tool which intercepts some function that
 * communicates. */
static void mpi_files_find(void *scope) {
    void *function = NULL, *own = NULL;
    if (!loader_function(scope, "PMPI_Comm_rank", &function)) (void)loader_function(scope, "MPI_Comm_rank", &function);
    mpi_function_file(function, own_file, sizeof own_file);
    void *file = *own_file ? dlopen(own_file, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    for (size_t i = 0; file && !*tool_file && i < sizeof communicating / sizeof communicating[0]; i++)
        if (loader_function(scope, communicating[i], &function) && loader_function(file, communicating[i], &own) &&
            function != own)
            mpi_function_file(function, tool_file, sizeof tool_file);
    if (file) (void)dlclose(file);
}

mpi_library *mpi_connect(const mpixla_mpi_facts *facts) {
    if (connected) return error_null("mpixla_start was called twice in one process");
    if (mpi_facts_check(facts)) return NULL;
    void *const loaded = dlopen(facts->library, RTLD_LAZY | RTLD_NOLOAD);
    if (!loaded)
        return error_null("%s is not loaded in this process, so MPI cannot be found through it", facts->library);
    void *const scope = mpi_scope_choose(loaded);
    const char *missing;
    if (facts->handle_size == (int64_t)sizeof(int))
        missing = mpi_int_bind(&library, scope);
    else if (facts->handle_size == (int64_t)sizeof(void *))
        missing = mpi_pointer_bind(&library, scope);
    else
        return error_null(
            "this MPI's communicator handles have %lld bytes; libmpixla knows handles of %zu (MPICH) "
            "and %zu bytes (Open MPI, MPI-5 ABI)",
            (long long)facts->handle_size, sizeof(int), sizeof(void *));
    if (missing)
        return error_null("the MPI loaded by %s has no function %s: mpixla needs those of MPI 3.0",
                          facts->library ? facts->library : "the program", missing);
    library.facts = *facts;
    library.facts.library = NULL;
    mpi_files_find(scope);
    library.has_tool = *tool_file != '\0';
    if (library.comm_rank(facts->comm_world, &library.world_rank) != 0)
        return error_null("MPI_Comm_rank failed on MPI_COMM_WORLD: is MPI initialized?");
    return &library;
}

void mpi_publish(void) {
    connected = &library;
}

const char *mpixla_mpi_file(void) {
    return connected ? own_file : "";
}

const char *mpixla_mpi_tool(void) {
    return connected ? tool_file : "";
}

/* Sets the number of items from which large-count functions are used, for tests. Returns the limit before. */
int64_t mpixla_count_limit_set(int64_t limit) {
    int64_t before = library.count_limit;
    if (limit > 0 && limit <= INT_MAX) library.count_limit = limit;
    return before;
}

int64_t mpi_length(const void *length) {
    return library.long_lengths ? *(const int64_t *)length : *(const int *)length;
}

/* Returns the int at an offset of a status. */
static int mpi_status_int(const void *status, int64_t at) {
    int value;
    memcpy(&value, (const char *)status + at, sizeof value);
    return value;
}

int mpi_source_of(const void *status) {
    return mpi_status_int(status, library.facts.status_source);
}

int mpi_tag_of(const void *status) {
    return mpi_status_int(status, library.facts.status_tag);
}

int mpi_bytes_of(const void *status, int64_t *bytes) {
    return library.get_elements(status, dtype_find(FFI_U8)->handle, bytes);
}

int mpi_request_is_done(mpi_request *request) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int done = 0;
    return library.test(request, &done, status) != 0 || done;
}

/* Drives MPI's progress engine by MPI_Iprobe, and returns 0 or MPI's error code. Each probe has another tag: Open MPI
 * only progresses if the probe finds no message, so the probes cycle through the tags from 32767 down, which programs
 * seldom use. */
int mpi_progress(mpixla_handle comm) {
    enum { TAGS = 1 << 15 };
    static atomic_uint calls;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int there = 0;
    const unsigned tag = TAGS - 1 - atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) % TAGS;
    return library.iprobe((int)library.facts.any_source, (int)tag, comm, &there, status);
}

int mpi_error_class(int code) {
    int class = 0;
    return code <= 0 || library.error_class(code, &class) != 0 ? code : class;
}

int mpi_error_set(const char *function, int code, const char *call, const char *more) {
    char text[MPI_ERROR_BYTES];
    int length = 0;
    if (library.error_string(code, text, &length) != 0) snprintf(text, sizeof text, "unknown error");
    text[MPI_ERROR_BYTES - 1] = '\0';
    return error_set("r%d | %s returned error code %d: %s (%s)%s", library.world_rank, function, mpi_error_class(code),
                     text, call, more);
}
