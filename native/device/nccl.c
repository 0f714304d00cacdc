#include "device/nccl.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/error.h"
#include "base/loader.h"
#include "mpixla.h"

static const loader_row functions[NCCL_FUNCTIONS] = {
#define MPIXLA_NCCL(name, function, result, prototype) {#function, offsetof(nccl, name)},
#include "tables/nccl_functions.def"
#undef MPIXLA_NCCL
};

static loader the_nccl = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* the file that is added is NCCL's, not RCCL's */

enum { FILES = 2 };
static const struct {
    const char *name, *variable, *files[FILES];
} libraries[DRIVER_PLATFORMS] = {
    [DRIVER_CUDA] = {"NCCL", "MPIXLA_NCCL_LIBRARY", {the_nccl.added, "libnccl.so.2"}},
    [DRIVER_ROCM] = {"RCCL", "MPIXLA_RCCL_LIBRARY", {"librccl.so.1", ""}},
};

void mpixla_nccl_file_add(const char *file) {
    loader_add(&the_nccl, file);
}

/* Loads NCCL's library and sets its functions in `n`. Returns 0, or REFUSED if it cannot be loaded or is too old. Takes
 * the file that the user names; else the one that XLA has loaded, which should be the only one of the process; else the
 * one of the Python package, or of the system. */
static int nccl_bind(nccl *n, driver_platform p) {
    const char *label = libraries[p].name, *variable = libraries[p].variable;
    if (!label) return error_set("there is no NCCL for Intel's GPUs");
    void *library = loader_open(variable, libraries[p].files, FILES, 1, &n->file);
    if (!library) library = loader_open(variable, libraries[p].files, FILES, 0, &n->file);
    if (!library) return error_set("%s cannot be loaded: %s", label, dlerror());
    const char *missing = loader_functions(library, functions, NCCL_FUNCTIONS, n);
    if (missing) return error_set("%s (%s) has no function %s: it is too old", label, n->file, missing);
    if (NCCL_CALL(n, NULL, version, &n->number)) return REFUSED;
    if (n->number < NCCL_OLDEST)
        return error_set("%s %d.%d (%s) is too old: mpixla takes 2.14 or later", label, n->number / 10000,
                         n->number / 100 % 100, n->file);
    return 0;
}

/* Returns the functions of NCCL, or of RCCL; NULL with error_set on failure. Called once, by loader_get. */
static const void *nccl_find(int platform) {
    static nccl found;
    return nccl_bind(&found, (driver_platform)platform) ? NULL : &found;
}

const nccl *nccl_get(driver_platform platform) {
    return loader_get(&the_nccl, nccl_find, (int)platform);
}

/* Sets the error of a failed call: `label`, its code, and NCCL's text. Returns REFUSED. */
static int nccl_error_set(const nccl *n, const char *label, nccl_comm comm, int code) {
    const char *text = n->error_text(code), *more = n->last_error(comm);
    return error_set("%s error code %d, %s%s%s", label, code, text ? text : "unknown", more && *more ? ": " : "",
                     more ? more : "");
}

int nccl_check(const nccl *n, int function, nccl_comm comm, int code) {
    char description[64];
    if (code == 0) return 0;
    if (code == NCCL_IN_PROGRESS)
        return error_set(
            "%s returned before it was done, since NCCL's communicator is nonblocking, which mpixla cannot use: unset "
            "NCCL_COMM_BLOCKING, or set it to 1",
            functions[function].name);
    snprintf(description, sizeof description, "%s returned", functions[function].name);
    return nccl_error_set(n, description, comm, code);
}

int nccl_check_earlier(const nccl *n, nccl_comm comm, int code) {
    if (code == 0 || code == NCCL_IN_PROGRESS) return 0;
    return nccl_error_set(n, "an earlier call through NCCL has failed since, so start the job again: NCCL's", comm,
                          code);
}

int nccl_comm_make(const nccl *n, nccl_comm *comm, int size, nccl_id id, int rank) {
    int code = n->comm_init(comm, size, id, rank), state = 0;
    if (code != 0 && code != NCCL_IN_PROGRESS) *comm = NULL;
    if (nccl_check(n, NCCL_FUNCTION_comm_init, NULL, code)) return REFUSED;
    /* comm_init may return 0 for a nonblocking communicator; then the state is NCCL_IN_PROGRESS. */
    if (NCCL_CALL(n, *comm, comm_error, *comm, &state)) return REFUSED;
    return nccl_check(n, NCCL_FUNCTION_comm_init, *comm, state);
}

int nccl_group_start(const nccl *n, nccl_comm comm) {
    return nccl_check(n, NCCL_FUNCTION_group_start, comm, n->group_start());
}

/* Ends a group of messages. Returns 0; REFUSED if that fails, or, with `failed`, REFUSED with the sentence that
 * error_get had before. */
int nccl_group_end(const nccl *n, nccl_comm comm, int failed) {
    char why[ERROR_BYTES];
    snprintf(why, sizeof why, "%s", error_get());
    if (nccl_check(n, NCCL_FUNCTION_group_end, comm, n->group_end()) == 0 && !failed) return 0;
    return failed ? error_set("%s", why) : REFUSED;
}
