#include "device/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "mpixla.h"

static const char *const names[NCCL_FUNCTIONS] = {
#define MPIXLA_NCCL(name, function, result, prototype) #function,
#include "tables/nccl_functions.def"
#undef MPIXLA_NCCL
};

/* Where a pointer to each function is kept. */
static const size_t places[NCCL_FUNCTIONS] = {
#define MPIXLA_NCCL(name, function, result, prototype) offsetof(nccl, name),
#include "tables/nccl_functions.def"
#undef MPIXLA_NCCL
};

static const struct {
    const char *name, *variable, *file;
} libraries[DRIVER_PLATFORMS] = {
    [DRIVER_CUDA] = {"NCCL", "MPIXLA_NCCL_LIBRARY", "libnccl.so.2"},
    [DRIVER_ROCM] = {"RCCL", "MPIXLA_RCCL_LIBRARY", "librccl.so.1"},
};

static nccl found;
static const nccl *connected;
static char added[1024];
static char why_not[ERROR_BYTES]; /* "" before the first try */
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;

void mpixla_nccl_file_add(const char *file) {
    pthread_mutex_lock(&finding);
    snprintf(added, sizeof added, "%s", file);
    pthread_mutex_unlock(&finding);
}

/* The one that the user names; else the one that XLA has loaded, which should be the process's only one; else the one
 * of the Python package, or of the system. */
static void *open_library(driver_platform p, const char **file) {
    const char *given = getenv(libraries[p].variable);
    *file = given && *given ? given : libraries[p].file;
    if (given && *given) return dlopen(given, RTLD_NOW | RTLD_LOCAL); /* NOLINT(*.GenericTaint) */
    void *library = dlopen(*file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library && *added && p == DRIVER_CUDA) {
        *file = added;
        library = dlopen(added, RTLD_NOW | RTLD_LOCAL);
    }
    if (library) return library;
    *file = libraries[p].file;
    return dlopen(*file, RTLD_NOW | RTLD_LOCAL);
}

static int find(driver_platform p) {
    const char *what = libraries[p].name;
    nccl made = {0};
    void *library = open_library(p, &made.file);
    if (!library) return error_set("%s cannot be loaded: %s", what, dlerror());
    for (int i = 0; i < NCCL_FUNCTIONS; i++) {
        void *function = dlsym(library, names[i]);
        if (!function) return error_set("%s (%s) has no function %s: it is too old", what, made.file, names[i]);
        memcpy((char *)&made + places[i], &function, sizeof function);
    }
    if (NCCL_CALL(&made, NULL, version, &made.number)) return -1;
    if (made.number < NCCL_OLDEST)
        return error_set("%s %d.%d (%s) is too old: mpixla takes 2.14 or later", what, made.number / 10000,
                         made.number / 100 % 100, made.file);
    found = made;
    return 0;
}

const nccl *nccl_get(driver_platform platform) {
    pthread_mutex_lock(&finding);
    if (!connected && !*why_not) {
        if (find(platform) == 0)
            connected = &found;
        else
            snprintf(why_not, sizeof why_not, "%s", error_get());
    }
    const nccl *n = connected;
    pthread_mutex_unlock(&finding);
    if (!n) (void)error_set("%s", why_not);
    return n;
}

static int fail(const nccl *n, const char *what, nccl_comm comm, int code) {
    const char *text = n->error_text(code), *more = n->last_error(comm);
    return error_set("%s error code %d, %s%s%s", what, code, text ? text : "unknown", more && *more ? ": " : "",
                     more ? more : "");
}

int nccl_check(const nccl *n, int function, nccl_comm comm, int code) {
    char what[64];
    if (code == 0 || code == NCCL_IN_PROGRESS) return 0;
    snprintf(what, sizeof what, "%s returned", names[function]);
    return fail(n, what, comm, code);
}

int nccl_check_earlier(const nccl *n, nccl_comm comm, int code) {
    if (code == 0 || code == NCCL_IN_PROGRESS) return 0;
    return fail(n, "an earlier call through NCCL has failed since, so start the job again: NCCL's", comm, code);
}

int nccl_group_start(const nccl *n, nccl_comm comm) {
    return nccl_check(n, NCCL_FUNCTION_group_start, comm, n->group_start());
}

int nccl_group_end(const nccl *n, nccl_comm comm, int failed) {
    char why[ERROR_BYTES];
    snprintf(why, sizeof why, "%s", error_get());
    if (nccl_check(n, NCCL_FUNCTION_group_end, comm, n->group_end()) == 0 && !failed) return 0;
    return failed ? error_set("%s", why) : -1;
}
