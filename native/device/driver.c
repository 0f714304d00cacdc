#include "device/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "mpixla.h"

static const char *const cuda_names[DRIVER_FUNCTIONS] = {
#define MPIXLA_DRIVER(name, cuda, hip, prototype) [DRIVER_FUNCTION_##name] = #cuda,
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) [DRIVER_FUNCTION_##name] = #cuda,
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
};

static const char *const hip_names[DRIVER_FUNCTIONS] = {
#define MPIXLA_DRIVER(name, cuda, hip, prototype) [DRIVER_FUNCTION_##name] = #hip,
#define MPIXLA_DRIVER_HIP(name, hip, prototype) [DRIVER_FUNCTION_##name] = #hip,
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_HIP
};

/* Where a pointer to each function is kept. */
static const size_t places[DRIVER_FUNCTIONS] = {
#define MPIXLA_DRIVER(name, ...) [DRIVER_FUNCTION_##name] = offsetof(driver, name),
#define MPIXLA_DRIVER_CUDA(name, ...) [DRIVER_FUNCTION_##name] = offsetof(driver, name),
#define MPIXLA_DRIVER_HIP(name, ...) [DRIVER_FUNCTION_##name] = offsetof(driver, name),
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
#undef MPIXLA_DRIVER_HIP
};

enum { FILES = 2 };

/* ROCm's numbers are in the names of its files: before 6, HIP has other numbers for kinds of memory (driver.h). */
static const struct {
    const char *name, *variable; /* of the environment, which names another file */
    const char *files[FILES];    /* the first that is there */
    const char *const *names;
} platforms[DRIVER_PLATFORMS] = {
    [DRIVER_CUDA] = {"CUDA", "MPIXLA_CUDA_LIBRARY", {"libcuda.so.1"}, cuda_names},
    [DRIVER_ROCM] = {"ROCm", "MPIXLA_HIP_LIBRARY", {"libamdhip64.so.7", "libamdhip64.so.6"}, hip_names},
};

static driver found;
static const driver *connected;
static char added_hip[1024];
static char why_not[ERROR_BYTES]; /* "" before the first try */
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;

void mpixla_hip_file_add(const char *file) {
    pthread_mutex_lock(&finding);
    snprintf(added_hip, sizeof added_hip, "%s", file);
    pthread_mutex_unlock(&finding);
}

static void *open_file(driver_platform p, int mode, const char **file) {
    const char *const given = getenv(platforms[p].variable);
    if (given && *given) {
        *file = given;
        return dlopen(given, RTLD_NOW | RTLD_LOCAL | mode); /* NOLINT(*.GenericTaint): who runs it names it */
    }
    void *library = NULL;
    if (p == DRIVER_ROCM && *added_hip && mode != RTLD_NOLOAD) {
        *file = added_hip;
        library = dlopen(added_hip, RTLD_NOW | RTLD_LOCAL | mode);
    }
    for (int i = 0; i < FILES && platforms[p].files[i] && !library; i++) {
        *file = platforms[p].files[i];
        library = dlopen(*file, RTLD_NOW | RTLD_LOCAL | mode);
    }
    return library;
}

/* Fills `found`. */
static int bind(driver_platform p, void *library, const char *file) {
    driver made = {.platform = p, .platform_name = platforms[p].name, .file = file, .names = platforms[p].names};
    for (int i = 0; i < DRIVER_FUNCTIONS; i++) {
        if (!made.names[i]) continue;
        void *function = dlsym(library, made.names[i]);
        if (!function)
            return error_set(
                "the %s driver (%s) has no function %s: it is older than mpixla can use. Install a newer driver",
                made.platform_name, file, made.names[i]);
        memcpy((char *)&made + places[i], &function, sizeof function);
    }
    found = made;
    return 0;
}

/* The platform that JAX has loaded comes first; it may not have loaded any yet. */
static int find(void) {
    static const int modes[] = {RTLD_NOLOAD, 0};
    char tried[512] = "";
    for (size_t mode = 0; mode < sizeof modes / sizeof *modes; mode++)
        for (int p = 0; p < DRIVER_PLATFORMS; p++) {
            const char *file = "";
            void *library = open_file(p, modes[mode], &file);
            if (library) return bind(p, library, file);
            if (modes[mode] != 0) continue;
            size_t used = strlen(tried);
            const char *reason = dlerror();
            snprintf(tried + used, sizeof tried - used, "%s%s: %s", used ? "; " : "", platforms[p].name,
                     reason ? reason : file);
        }
    return error_set("no driver of a GPU can be loaded (%s)", tried);
}

const driver *driver_get(void) {
    pthread_mutex_lock(&finding);
    if (!connected && !*why_not) {
        if (find() == 0)
            connected = &found;
        else
            snprintf(why_not, sizeof why_not, "%s", error_get());
    }
    const driver *d = connected;
    pthread_mutex_unlock(&finding);
    if (!d) (void)error_set("%s", why_not);
    return d;
}

const driver *driver_start(void) {
    const driver *d = driver_get();
    if (!d) return NULL;
    return DRIVER_CALL(d, init, 0) ? NULL : d; /* doing so again does nothing */
}

int mpixla_gpu_is_possible(void) {
    return driver_get() != NULL;
}

int mpixla_gpu_count(const char *platform) {
    int count = 0;
    const driver *d = driver_get();
    if (!d || strcmp(d->platform_name, platform) != 0 || !driver_start()) return 0;
    return DRIVER_CALL(d, device_count, &count) ? 0 : count;
}

int driver_check(const driver *d, int function, int code) {
    if (code == 0) return 0;
    const char *name = NULL, *text = NULL;
    if (d->error_name(code, &name) != 0 || !name) name = "an error without a name";
    if (d->error_text(code, &text) != 0 || !text) text = "the driver says no more";
    return error_set("%s of the %s driver returned error code %d, %s: %s", d->names[function], d->platform_name, code,
                     name, text);
}
