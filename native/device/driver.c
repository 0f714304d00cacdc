#include "device/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/loader.h"
#include "device/sycl.h"
#include "mpixla.h"

/* The functions of a platform, by number; functions of other platforms alone have no name. */
static const loader_row cuda_functions[DRIVER_FUNCTIONS] = {
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) [DRIVER_FUNCTION_##name] = {#cuda, offsetof(driver, name)},
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) [DRIVER_FUNCTION_##name] = {#cuda, offsetof(driver, name)},
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
};

static const loader_row hip_functions[DRIVER_FUNCTIONS] = {
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) [DRIVER_FUNCTION_##name] = {#hip, offsetof(driver, name)},
#define MPIXLA_DRIVER_HIP(name, hip, prototype) [DRIVER_FUNCTION_##name] = {#hip, offsetof(driver, name)},
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_HIP
};

/* Names for messages: device/sycl.c has the functions. */
static const loader_row sycl_functions[DRIVER_FUNCTIONS] = {
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) [DRIVER_FUNCTION_##name] = {#sycl, offsetof(driver, name)},
#define MPIXLA_DRIVER_SYCL(name, sycl, prototype) [DRIVER_FUNCTION_##name] = {#sycl, offsetof(driver, name)},
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_SYCL
};

static loader the_driver = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* the file that is added is HIP's */
static loader the_sycl = {.lock = PTHREAD_MUTEX_INITIALIZER};   /* only for the file that is added */

/* ROCm's numbers are in the names of its files: before 6, HIP has other kinds of memory (driver_types.h). */
enum { FILES = 3 };
static const struct {
    const char *name, *variable; /* of the environment, which names another file */
    const char *files[FILES];
    const loader_row *rows;
} platforms[DRIVER_PLATFORMS] = {
    [DRIVER_CUDA] = {"CUDA", "MPIXLA_CUDA_LIBRARY", {"libcuda.so.1", "", ""}, cuda_functions},
    [DRIVER_ROCM] = {"ROCm",
                     "MPIXLA_HIP_LIBRARY",
                     {the_driver.added, "libamdhip64.so.7", "libamdhip64.so.6"},
                     hip_functions},
    [DRIVER_SYCL] = {"SYCL", "MPIXLA_SYCL_LIBRARY", {the_sycl.added, "", ""}, sycl_functions},
};

void mpixla_hip_file_add(const char *file) {
    loader_add(&the_driver, file);
}

void mpixla_sycl_file_add(const char *file) {
    loader_add(&the_sycl, file);
}

/* Looks up the functions of a driver in the library. Returns them in static memory; NULL with error_set if one is
 * missing. */
static const driver *driver_bind(driver_platform p, void *library, const char *file) {
    static driver found;
    const char *missing = p == DRIVER_SYCL ? sycl_bind(&found, library)
                                           : loader_functions(library, platforms[p].rows, DRIVER_FUNCTIONS, &found);
    found.platform = p;
    found.platform_name = platforms[p].name;
    found.file = file;
    found.functions = platforms[p].rows;
    if (!missing) return &found;
    return error_null("the %s driver (%s) has no function %s: it is older than mpixla can use. Install a newer driver",
                      found.platform_name, file, missing);
}

/* Loads the driver of GPUs (for loader_get), and returns its functions; NULL with error_set if there is none. Tries
 * libraries that are in the process already first: JAX has loaded the one of its platform, if it has loaded any yet. */
static const void *driver_find(int number) {
    char tried[768] = "";
    (void)number;
    for (int is_loaded = 1; is_loaded >= 0; is_loaded--)
        for (int p = 0; p < DRIVER_PLATFORMS; p++) {
            const char *file = "";
            void *library = loader_open(platforms[p].variable, platforms[p].files, FILES, is_loaded, &file);
            if (library) return driver_bind(p, library, file);
            if (is_loaded) continue;
            size_t used = strlen(tried);
            const char *reason = dlerror();
            snprintf(tried + used, sizeof tried - used, "%s%s: %s", used ? "; " : "", platforms[p].name,
                     reason ? reason : "dpctl and JAX's plugin, which it is for, are not both installed");
        }
    return error_null("no driver of a GPU can be loaded (%s)", tried);
}

const driver *driver_get(void) {
    return loader_get(&the_driver, driver_find, 0);
}

int mpixla_gpu_is_possible(void) {
    return driver_get() != NULL;
}

/* Starts the driver of a platform, "CUDA", "ROCm" or "SYCL", and returns the number of its GPUs that this process can
 * use; 0 if it has no driver. */
int mpixla_gpu_count(const char *platform) {
    int count = 0;
    const driver *d = driver_get();
    if (!d || strcmp(d->platform_name, platform) != 0 || DRIVER_CALL(d, init, 0))
        return 0; /* init may be called again */
    return DRIVER_CALL(d, device_count, &count) ? 0 : count;
}

int driver_check(const driver *d, int function, int code) {
    if (code == 0) return 0;
    const char *name = NULL, *text = NULL;
    if (d->error_name(code, &name) != 0 || !name) name = "an error without a name";
    if (d->error_text(code, &text) != 0 || !text) text = "the driver says no more";
    return error_set("%s of the %s driver returned error code %d, %s: %s", d->functions[function].name,
                     d->platform_name, code, name, text);
}
